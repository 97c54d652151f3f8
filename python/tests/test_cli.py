"""The commands as processes of their own: what is on stdout, what on stderr, and the exit status."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import PBMC3K, assert_same, command, rich

import msgexpress
import skytether


@pytest.fixture
def fleet(tmp_path):
    rich().write_h5ad(tmp_path / "a.h5ad")
    done = command("ingest", tmp_path / "a.h5ad", "--to", "t/x", "--fleet", tmp_path / "fleet", "--drives", 2)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "t/x: 60 cells x 40 genes" in done.stderr and "\r" not in done.stderr
    return tmp_path / "fleet"


def test_list_info_export_drop(fleet, tmp_path):
    listed = command("ls", "--fleet", fleet, "--format", "json")
    assert json.loads(listed.stdout) == [{"name": "t/x", "cells": 60, "genes": 40, "layers": ""}] and listed.stderr == ""
    info = command("info", "t/x", MSGX_FLEET=str(fleet)).stdout
    assert "60 x 40" in info and "batch" in info and "eins" in info
    about = json.loads(command("info", "t/x", "--format", "json", "--fleet", fleet).stdout)
    assert (about["name"], about["cells"], about["genes"], about["matrices"][0]["from"]) == ("t/x", 60, 40, "X")
    assert {"column": "type", "type": "category", "values": 3, "groups": {"T": 20, "B": 20, "NK": 20, "unused": 0}} in about["obs"]
    out = tmp_path / "out.h5ad"
    assert command("export", "t/x", out, "--fleet", fleet).returncode == 0
    assert_same(ad.read_h5ad(out), ad.read_h5ad(tmp_path / "a.h5ad"))
    again = command("export", "t/x", out, "--fleet", fleet)
    # It is not the call that is wrong: without that file it is a good one.
    assert again.returncode == 1 and "--force" in again.stderr
    wrong = command("export", "t/x", tmp_path / "out", "--fleet", fleet)
    assert wrong.returncode == 2 and "out.h5ad" in wrong.stderr and not (tmp_path / "out").exists()
    assert command("drop", "t/x", "--fleet", fleet).returncode == 0
    assert command("ls", "--fleet", fleet, "--format", "csv").stdout == "name,cells,genes,layers\n"
    assert command("drop", "t/x", "--fleet", fleet).returncode == 1


def test_de_in_every_format(fleet):
    def de(*more):
        done = command("de", "t/x", "--groupby", "type", "--transform", "log1p_cp10k", "--fleet", fleet, *more)
        assert done.returncode == 0, done.stderr
        return done

    table = pd.read_csv(io.StringIO(de("--format", "csv").stdout))
    assert list(table.columns) == ["group", "names", "scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference"]
    assert len(table) == 120 and list(table["group"].unique()) == ["T", "B", "NK"]
    one = json.loads(de("--format", "json", "--group", "B", "--top", 5, "--reference", "NK").stdout)
    assert len(one) == 5 and one[0]["group"] == "B" and isinstance(one[0]["scores"], float)
    text = de("--top", 2, "--receipt")
    assert len(text.stdout.splitlines()) == 8 and "drive-1" in text.stderr and "drive-1" not in text.stdout
    done = subprocess.run([sys.executable, "-m", "msgexpress.cli", "de", "t/x", "--groupby", "type", "--transform", "none", "--method", "student", "--format", "arrow", "--fleet", str(fleet)], capture_output=True, timeout=60)
    assert pa.ipc.open_stream(done.stdout).read_all().num_rows == 120


def test_volcanoes(fleet, tmp_path):
    base = ["de", "t/x", "--groupby", "type", "--transform", "log1p_cp10k", "--fleet", fleet]
    done = command(*base, "--volcano", tmp_path / "plots")
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == ["volcano-B.png", "volcano-NK.png", "volcano-T.png"], done.stderr
    assert command(*base, "--group", "B", "--volcano", tmp_path / "b.svg").returncode == 0 and (tmp_path / "b.svg").stat().st_size > 5000
    wrong = command(*base, "--volcano", tmp_path / "b.png")
    assert wrong.returncode == 1 and "--group" in wrong.stderr and wrong.stdout == ""
    # Endings in capitals, and all that matplotlib writes.
    for name in ("B.PNG", "b.jpeg", "b.tiff"):
        assert command(*base, "--group", "B", "--volcano", tmp_path / name).returncode == 0 and (tmp_path / name).stat().st_size > 5000
    (tmp_path / "dir.png").mkdir()
    assert command(*base, "--group", "B", "--volcano", tmp_path / "dir.png").returncode == 0 and (tmp_path / "dir.png" / "volcano-B.png").exists()
    assert command(*base, "--group", "B", "--volcano", f"{tmp_path}/v1.2/").returncode == 0 and (tmp_path / "v1.2" / "volcano-B.png").exists()


@pytest.mark.parametrize(
    ("target", "groups", "says"),
    [("none/b.png", ["B"], "no directory .*none"), ("b.xyz", ["B"], r"end in one of .*\.png"), ("plots.v2", [], "put / behind it"), ("file", [], "file is a file"), ("b.png", ["B", "T"], "2 groups")],
)
def test_impossible_volcano_is_refused_before_any_work(tmp_path, target, groups, says):
    # What is on the disk makes it wrong, or the call alone.
    status = 1 if target in ("none/b.png", "file") else 2
    (tmp_path / "file").write_text("a")
    # The fleet is not there: it is not even looked for.
    chosen = [part for g in groups for part in ("--group", g)]
    done = command("de", "t/x", "--groupby", "type", "--transform", "none", "--fleet", tmp_path / "no fleet", *chosen, "--volcano", tmp_path / target)
    assert done.returncode == status and re.search(says, done.stderr) and done.stdout == "", done.stderr
    assert len(done.stderr.splitlines()) == 1 and sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["de", "t/x", "--groupby", "type"], 2, "log1p_cp10k"),
        (["de", "t/x", "--groupby", "nope", "--transform", "none"], 1, "nope"),
        (["de", "t/nope", "--groupby", "type", "--transform", "none"], 1, "no data set t/nope; there are t/x"),
        (["de", "t/x", "--groupby", "type", "--transform", "none", "--group", "nope"], 1, "nope"),
        (["de", "t/x", "--groupby", "type", "--transform", "none", "--group", "B", "--reference", "B"], 1, "'B' is the reference itself"),
        (["ingest", "GOOD", "--to", "t/x"], 1, "t/x exists already: drop it, choose another name, or replace it (--replace)"),
        (["ingest", "table.parquet", "--to", "t/y"], 1, "`skytether ingest`"),
        (["info", "--format", "csv", "t/x"], 2, "--format"),
        (["ingest", "missing.h5ad", "--to", "t/y"], 1, "missing.h5ad"),
        (["info", "noslash"], 2, "noslash"),
        (["drop", "a/b/c"], 2, "DOMAIN/DATASET"),
        (["de", "t/x", "--groupby", "type", "--transform", "none", "--top", "abc"], 2, "'abc' is not a whole number of 1 or more"),
        (["de", "t/x", "--groupby", "type", "--transform", "none", "--top", "0"], 2, "'0' is not a whole number of 1 or more"),
        (["de", "t/x", "--groupby", "note", "--transform", "none"], 1, "at least two"),
        (["de", "t/x", "--groupby", "type", "--transform", "none", "--layer", "q"], 1, "no --layer"),
        (["ingest", "BAD", "--to", "t/y"], 1, "bad.h5ad"),
        (["ingest", "BAD", "--to", "t/y", "--genome", "hg19"], 1, "--genome"),
        (["ingest", "BAD", "--to", "t/y", "--layer", "q"], 1, "no layer 'q'"),
        (["export", "t/x", "no such directory/x.h5ad"], 1, "no directory"),
        (["de"], 2, "required"),
        (["frobnicate"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
    ],
)
def test_errors_are_one_sentence(fleet, arguments, status, says):
    if "BAD" in arguments:
        bad = rich()
        bad.X = bad.X.astype(np.int64)
        bad.X.data[5] = 2**53 + 1
        bad.write_h5ad(fleet.parent / "bad.h5ad")
        arguments = [fleet.parent / "bad.h5ad" if a == "BAD" else a for a in arguments]
    arguments = [fleet.parent / "a.h5ad" if a == "GOOD" else a for a in arguments]
    if "table.parquet" in arguments:
        pd.DataFrame({"a": [1]}).to_parquet(fleet.parent / "table.parquet")
        arguments = [fleet.parent / a if a == "table.parquet" else a for a in arguments]
    done = command(*arguments, MSGX_FLEET=str(fleet))
    assert done.returncode == status and done.stdout == "" and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    # What Python's functions call their arguments is of no use here.
    assert not re.search(r"\b(transform|layer|genome|replace)=", done.stderr)
    if status == 1:
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("msgx: ")
        assert "Traceback" in command(*arguments, MSGX_FLEET=str(fleet), MSGX_DEBUG="1").stderr


def test_a_fleet_is_a_directory_or_a_host(fleet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rich().write_h5ad("a.h5ad")
    # No host listens there, and no directory is made in its place.
    for where in ("localhost:1", "127.0.0.1:1", "grpc://localhost:1", "[::1]:1"):
        before = sorted(os.listdir())
        for arguments in (["ingest", "a.h5ad", "--to", "t/x"], ["ls"]):
            done = command(*arguments, "--fleet", where)
            assert done.returncode == 1 and where.removeprefix("grpc://") in done.stderr and sorted(os.listdir()) == before, done.stderr
        assert command("ingest", "a.h5ad", "--to", "t/x", "--fleet", where, "--drives", "2").returncode == 2
    # A directory may be called so, too.
    os.rename(fleet, "localhost:1")
    assert json.loads(command("ls", "--fleet", "localhost:1", "--format", "json").stdout)[0]["name"] == "t/x"


def test_an_ingest_of_nothing_makes_no_fleet(tmp_path):
    (tmp_path / "text.h5ad").write_text("not hdf5")
    rich().write_h5ad(tmp_path / "a.h5ad")
    for arguments in (["missing.h5ad"], ["text.h5ad"], ["a.h5ad", "--layer", "q"], ["a.h5ad", "--genome", "hg19"]):
        done = command("ingest", tmp_path / arguments[0], *arguments[1:], "--to", "t/x", "--fleet", tmp_path / "fleet")
        assert done.returncode == 1 and not (tmp_path / "fleet").exists(), done.stderr
    assert command("ingest", tmp_path / "a.h5ad", "--to", "t x", "--fleet", tmp_path / "fleet").returncode == 2
    assert not (tmp_path / "fleet").exists()


def test_unreadable_data_set_is_listed_with_the_others(fleet, monkeypatch):
    from msgexpress import _source

    with msgexpress.open(fleet) as db, monkeypatch.context() as patched:
        patched.setattr(_source, "FORMAT", 99)
        with pytest.raises(skytether.UnsupportedError):
            db.ingest(rich(), "t/newer")
        patched.setattr(_source.Source, "_kept", lambda *_: [])
        with pytest.raises(skytether.CorruptError):
            db.ingest(rich(), "t/odd")
        db.fleet.ingest(pa.table({"v": [1]}), "t.table")
        db.fleet.ingest(pa.table({"v": [1]}), "t.lost")
    # A bit of the root record of one is wrong.
    (root,) = (p for p in fleet.rglob("slices/*/*") if b'"name":"t.lost"' in p.read_bytes())
    root.write_bytes(root.read_bytes().replace(b'"t.lost"', b'"t.lust"'))
    done = command("ls", "--fleet", fleet, "--format", "json")
    lost, newer, odd, good = json.loads(done.stdout)
    assert lost["name"] == "t/lost" and lost["cells"] is None and "t/lost" in lost["error"]
    assert good == {"name": "t/x", "cells": 60, "genes": 40, "layers": "", "error": None} and done.returncode == 0
    assert newer["name"] == "t/newer" and newer["cells"] is None and "format 99" in newer["error"]
    assert odd["name"] == "t/odd" and odd["genes"] is None and "can't be read" in odd["error"]
    text = command("ls", "--fleet", fleet).stdout.splitlines()
    assert [line.split()[0] for line in text] == ["name", "-------", "t/lost", "t/newer", "t/odd", "t/x"] and "nan" not in "".join(text).lower()


def test_export_keeps_text_as_text(tmp_path):
    adata = rich()
    adata.obs["word"] = ["same", "other"] * 30
    adata.write_h5ad(tmp_path / "a.h5ad", convert_strings_to_categoricals=False)
    wanted = ad.read_h5ad(tmp_path / "a.h5ad")
    assert not isinstance(wanted.obs["word"].dtype, pd.CategoricalDtype)
    command("ingest", tmp_path / "a.h5ad", "--to", "t/x", "--fleet", tmp_path / "fleet")
    assert command("export", "t/x", tmp_path / "out.h5ad", "--fleet", tmp_path / "fleet").returncode == 0
    assert_same(ad.read_h5ad(tmp_path / "out.h5ad"), wanted)


def test_version_is_that_of_the_package():
    assert command("-V").stdout == command("--version").stdout == f"msgx {msgexpress.__version__}\n"
    assert msgexpress.__version__ == skytether.__version__


def test_without_a_fleet(tmp_path):
    done = command("ls", MSGX_FLEET="")
    assert done.returncode == 2 and "--fleet" in done.stderr
    nowhere = command("ls", "--fleet", tmp_path / "none")
    assert nowhere.returncode == 1 and "`msgx ingest` makes one" in nowhere.stderr
    assert not (tmp_path / "none").exists()


def test_a_reader_that_has_seen_enough_is_no_failure(fleet):
    shell = f"{sys.executable} -m msgexpress.cli de t/x --groupby type --transform log1p_cp10k --format csv --fleet {fleet} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def on_a_terminal(*arguments: object, stream: str = "stderr", columns: int = 100) -> str:
    """What a command writes to the terminal that `stream` is; the rest goes nowhere."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: theirs}
    process = subprocess.Popen([sys.executable, "-m", "msgexpress.cli", *map(str, arguments)], env={**os.environ, "COLUMNS": str(columns)}, **streams)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, seen
    return seen.decode()


def test_a_bar_on_a_terminal_only(tmp_path):
    rich().write_h5ad(tmp_path / "a.h5ad")
    seen = on_a_terminal("ingest", tmp_path / "a.h5ad", "--to", "t/x", "--fleet", tmp_path / "f")
    assert "ingesting t/x [" in seen and "100%" in seen and "60 cells x 40 genes" in seen


def test_terminal_table_fits_and_shows_the_best_genes_only(fleet):
    def lines(*more, columns=100):
        return on_a_terminal("de", "t/x", "--groupby", "type", "--transform", "log1p_cp10k", "--fleet", fleet, *more, stream="stdout", columns=columns).splitlines()

    assert len(lines()) == 2 + 3 * 10 and len(lines("--top", "all")) == 2 + 3 * 40 and len(lines("--top", "3")) == 2 + 3 * 3
    wide, narrow = (on_a_terminal("info", "t/x", "--fleet", fleet, stream="stdout", columns=c) for c in (200, 48))
    assert max(map(len, wide.splitlines())) > 48 and "note 0, note 1" in wide
    columns = narrow[narrow.index("obs column") :].splitlines()
    assert max(map(len, columns)) <= 48 and "…" in narrow, narrow


def test_an_export_that_does_not_fit_says_so_and_leaves_nothing(fleet, tmp_path):
    # A file may have no more than a page, as if the disk were full then. HDF5 crashes when it is to close
    # what it could not write.
    program = """
import resource, sys, anndata
from msgexpress import cli
write = anndata.AnnData.write_h5ad
def full(*args, **options):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        write(*args, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
anndata.AnnData.write_h5ad = full
sys.exit(cli.main(sys.argv[1:]))
"""
    out = tmp_path / "out" / "x.h5ad"
    out.parent.mkdir()
    done = subprocess.run([sys.executable, "-c", program, "export", "t/x", str(out), "--fleet", str(fleet)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done
    assert done.stderr == f"msgx: cannot write {out}: File too large\n", done.stderr
    assert not any(out.parent.iterdir())


def test_counts_that_are_compared_as_they_are_give_a_warning(fleet):
    done = command("de", "t/x", "--groupby", "type", "--transform", "none", "--top", 2, "--fleet", fleet)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 8
    assert done.stderr.startswith("msgx: warning: t/x holds counts") and "--transform log1p_cp10k" in done.stderr and len(done.stderr.splitlines()) == 1


def test_every_argument_explains_itself():
    import argparse

    from msgexpress import cli

    def commands(parser):
        """The commands below one, by name."""
        return {name: sub for a in parser._actions if isinstance(a, argparse._SubParsersAction) for name, sub in a.choices.items()}

    every = commands(cli._parser())
    every |= {f"{name} {below}": sub for name, parser in every.items() for below, sub in commands(parser).items()}
    missing = [(name, a.dest) for name, sub in every.items() for a in sub._actions if not a.help and not isinstance(a, argparse._SubParsersAction)]
    assert {"ingest", "de", "report", "plot dotplot", "plot volcano"} < set(every) and len(every) >= 15 and missing == []


def test_names_in_either_spelling(fleet, tmp_path):
    assert command("ingest", tmp_path / "a.h5ad", "--to", "t/with-dash", "--fleet", fleet).returncode == 0
    for name in ("t/with-dash", "t.with-dash", 't."with-dash"', '"t"."with-dash"', '"t"/with-dash'):
        done = command("info", name, "--fleet", fleet)
        assert done.returncode == 0 and done.stdout.startswith("t/with-dash: "), done.stderr
    lost = command("drop", "t/with-dish", "--fleet", fleet)
    assert lost.returncode == 1 and "did you mean t/with-dash?" in lost.stderr
    assert command("drop", 't."with-dash"', "--fleet", fleet, module="skytether._cli").returncode == 0
    wrong = command("drop", 't."with dash"', "--fleet", fleet, module="skytether._cli")
    assert wrong.returncode == 2 and wrong.stderr.count("is no data set name") == 1, wrong.stderr


def test_call_without_a_transform_is_always_wrong(fleet, tmp_path):
    for name, where in (("t/nope", fleet), ("t/x", tmp_path / "none"), ("t/x", "127.0.0.1:1")):
        done = command("de", name, "--groupby", "g", "--fleet", where)
        assert done.returncode == 2 and done.stderr.startswith("msgx: say --transform log1p_cp10k") and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "none").exists()


def test_a_matrix_is_not_for_skytether_ingest(fleet, tmp_path):
    done = command("ingest", tmp_path / "a.h5ad", "--to", "t.y", "--fleet", fleet, module="skytether._cli")
    assert done.returncode == 1 and "msgx ingest" in done.stderr


def test_demo_without_cell_types_is_refused_before_any_work(tmp_path):
    rich().write_h5ad(tmp_path / "a.h5ad")
    done = command("demo", "--data", tmp_path / "a.h5ad", "--out", tmp_path / "out")
    assert done.returncode == 1 and "cell_type" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("columns", "texts"), [([79.329, 105.9, 7.0], ["79.33", "105.90", "7.00"]), ([0.25, 1.0, float("nan")], ["0.2500", "1.0000", ""])])
def test_numbers_of_a_column_have_as_many_decimals(columns, texts):
    from msgexpress._text import table

    lines = table(["scores", "pvals"], [(v, 10.0**-i) for i, v in enumerate(columns)]).splitlines()[2:]
    assert [line[: line.rindex("  ")].strip() for line in lines] == texts and lines[1].endswith("1.000e-01")


def test_demo(tmp_path):
    out = tmp_path / "demo"
    for _ in range(2):
        done = command("demo", "--data", PBMC3K, "--out", out, alone=True)
        assert done.returncode == 0, done.stderr
    assert "62 cells 'unassigned' count as other cells and are not listed" in done.stdout and "unassigned" not in done.stdout.split("62 cells")[0]
    for wanted in ("CD79A", "GNLY", "LYZ", "CD14+ Mono", "Platelet", "drive-3", "moved"):
        assert wanted in done.stdout, done.stdout
    assert len(list(out.glob("volcano-*.png"))) == 9 and len(pd.read_csv(out / "markers.csv")) == 10 * 32738


def test_demo_on_kinetic_drives_runs_its_tests_there(tmp_path):
    out = tmp_path / "demo"
    done = command("demo", "--drives", "kinetic", "--data", PBMC3K, "--out", out, alone=True)
    assert done.returncode == 0, done.stderr
    for wanted in ("CD79A", "GNLY", "drive-3: everything ran here"):
        assert wanted in done.stdout, done.stdout
    assert len(pd.read_csv(out / "markers.csv")) == 10 * 32738


def test_the_skytether_command_is_reached_through_the_wheel(fleet):
    done = command("ls", "--fleet", fleet, "--format", "json", module="skytether._cli", alone=True)
    assert done.returncode == 0 and "t.x" in done.stdout, done.stderr
    assert command("no-such-command", module="skytether._cli", alone=True).returncode == 2
