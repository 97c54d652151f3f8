"""The commands as processes of their own: what is on stdout, what on stderr, and the exit status."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import anndata as ad
import pandas as pd
import pyarrow as pa
import pytest
from conftest import PBMC3K, assert_same, command, rich


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
    out = tmp_path / "out.h5ad"
    assert command("export", "t/x", out, "--fleet", fleet).returncode == 0
    assert_same(ad.read_h5ad(out), ad.read_h5ad(tmp_path / "a.h5ad"))
    again = command("export", "t/x", out, "--fleet", fleet)
    assert again.returncode == 2 and "--force" in again.stderr
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
    assert wrong.returncode == 2 and "--group" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["de", "t/x", "--groupby", "type"], 2, "log1p_cp10k"),
        (["de", "t/x", "--groupby", "nope", "--transform", "none"], 1, "nope"),
        (["de", "t/nope", "--groupby", "type", "--transform", "none"], 1, "t.nope"),
        (["ingest", "missing.h5ad", "--to", "t/y"], 1, "missing.h5ad"),
        (["info", "noslash"], 2, "noslash"),
        (["de"], 2, "required"),
        (["frobnicate"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
    ],
)
def test_errors_are_one_sentence(fleet, arguments, status, says):
    done = command(*arguments, MSGX_FLEET=str(fleet))
    assert done.returncode == status and done.stdout == "" and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    if status == 1:
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("msgx: ")
        assert "Traceback" in command(*arguments, MSGX_FLEET=str(fleet), MSGX_DEBUG="1").stderr


def test_without_a_fleet(tmp_path):
    done = command("ls", MSGX_FLEET="")
    assert done.returncode == 2 and "--fleet" in done.stderr
    assert command("ls", "--fleet", tmp_path / "none").returncode == 1
    assert not (tmp_path / "none").exists()


def test_a_reader_that_has_seen_enough_is_no_failure(fleet):
    shell = f"{sys.executable} -m msgexpress.cli de t/x --groupby type --transform none --format csv --fleet {fleet} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_a_bar_on_a_terminal_only(tmp_path):
    rich().write_h5ad(tmp_path / "a.h5ad")
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "msgexpress.cli", "ingest", str(tmp_path / "a.h5ad"), "--to", "t/x", "--fleet", str(tmp_path / "f")], stderr=theirs, stdout=subprocess.PIPE)
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
    assert process.wait(timeout=60) == 0 and process.stdout.read() == b""
    assert b"ingesting t/x [" in seen and b"100%" in seen and b"60 cells x 40 genes" in seen
    process.stdout.close()


def test_demo(tmp_path):
    out = tmp_path / "demo"
    for _ in range(2):
        done = command("demo", "--data", PBMC3K, "--out", out)
        assert done.returncode == 0, done.stderr
    for wanted in ("CD79A", "GNLY", "LYZ", "CD14+ Mono", "Megakaryocyte" if "Megakaryocyte" in done.stdout else "Platelet", "drive-3", "moved"):
        assert wanted in done.stdout, done.stdout
    assert len(list(out.glob("volcano-*.png"))) == 9 and len(pd.read_csv(out / "markers.csv")) == 10 * 32738


def test_the_skytether_command_is_reached_through_the_wheel(fleet):
    done = command("ls", "--fleet", fleet, "--format", "json", module="skytether._cli")
    assert done.returncode == 0 and "t.x" in done.stdout, done.stderr
    assert command("no-such-command", module="skytether._cli").returncode == 2
