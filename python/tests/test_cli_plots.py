"""`msgx plot` and `msgx report`: files, numbers, messages and exit statuses."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import command, rich

import msgexpress


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    made = rich(cells=90)
    made.obsm["X_umap"] = np.random.default_rng(5).normal(size=(90, 2))
    place = tmp_path_factory.mktemp("fleet") / "fleet"
    with msgexpress.open(place, drives=2) as db:
        db.ingest(made, "t/x")
    return place


T = ("--transform", "log1p_cp10k")


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        (("dotplot", "--groupby", "type", "--genes", "g3,g0", *T), ["group", "gene", "mean", "fraction", "cells"]),
        (("dotplot", "--groupby", "type", "--top", "2", "--swap-axes", *T), ["group", "gene", "mean", "fraction", "cells"]),
        (("heatmap", "--groupby", "type", "--genes", "a:S3", "--genes", "b:S0,S1", "--gene-symbols", "symbol", *T), ["Unnamed: 0", "type", "S3", "S0", "S1"]),
        (("heatmap", "--groupby", "type", "--genes", "g3", "--by", "groups", "--scale", "var", "--transform", "none"), ["type", "g3"]),
        (("violin", "--keys", "depth,g3", "--groupby", "type", *T), ["Unnamed: 0", "type", "depth", "g3"]),
        (("violin", "--keys", "depth", "--keys", "n"), ["Unnamed: 0", "depth", "n"]),
        (("embedding", "--color", "type,g3", "--legend", "both", *T), ["Unnamed: 0", "UMAP1", "UMAP2", "type", "g3"]),
        (("embedding", "--basis", "X_pca", "--color", "depth"), ["Unnamed: 0", "PC1", "PC2", "depth"]),
        (("qc", "--set", "tens=g1"), ["Unnamed: 0", "n_genes_by_counts", "total_counts", "pct_counts_tens"]),
        (("volcano", "--groupby", "type", "--group", "B", *T), ["names", "scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference"]),
    ],
    ids=lambda v: "-".join(v).replace("--", "")[:40] if isinstance(v, tuple) else "",
)
def test_a_plot_is_drawn_and_its_numbers_are_written(fleet, tmp_path, arguments, columns):
    kind, *options = arguments
    done = command("plot", kind, "t/x", *options, "-o", tmp_path / "a.png", "--csv", tmp_path / "a.csv", "--fleet", fleet)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    said = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert said == [f"drew {tmp_path / 'a.png'}", f"wrote {tmp_path / 'a.csv'}"]
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG" and list(pd.read_csv(tmp_path / "a.csv").columns) == columns


def test_numbers_of_the_shell_are_those_of_python(fleet, tmp_path):
    command("plot", "dotplot", "t/x", "--groupby", "type", "--genes", "x:g3", "--genes", "g0", *T, "-o", tmp_path / "a.svg", "--csv", tmp_path / "a.csv", "--fleet", fleet)
    with msgexpress.open(fleet) as db:
        due = db["t/x"].plot_dotplot(["g3", "g0"], "type", transform="log1p_cp10k", path=tmp_path / "b.svg").data
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), due, check_dtype=False)


def test_report_is_written_with_and_without_markers(fleet, tmp_path):
    page = tmp_path / "page.html"
    done = command("report", "t/x", "--groupby", "type", *T, "--top", 5, "-o", page, "--fleet", fleet)
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.endswith(f"wrote {page}\n")
    assert page.read_text(encoding="utf-8").count("<article") == 3
    done = command("report", "t/x", "--groupby", "type", "-o", page, "--fleet", fleet)
    assert done.returncode == 0 and "the page has no marker genes: say --transform log1p_cp10k" in done.stderr
    assert "<article" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("plot", "dotplot", "t/x", "--groupby", "type", "--genes", "g3", "-o", "a.png"), 2, "say --transform log1p_cp10k"),
        (("plot", "heatmap", "t/nope", "--groupby", "type", "--top", "2", "-o", "a.png"), 2, "say --transform log1p_cp10k"),
        (("plot", "violin", "t/x", "--keys", "g3", "-o", "a.png"), 2, "say --transform log1p_cp10k"),
        (("plot", "qc", "t/x", "-o", "a.txt"), 2, "a.txt: pictures end in one of"),
        (("plot", "qc", "t/x", "-o", "none/a.png"), 1, "there is no directory none to put a.png into"),
        (("plot", "qc", "t/x", "--set", "mt", "-o", "a.png"), 2, "'mt' is no set: write NAME=PREFIX"),
        (("plot", "dotplot", "t/x", "--groupby", "type", "--genes", ",", "-o", "a.png", *T), 2, "write names with commas"),
        (("plot", "dotplot", "t/x", "--groupby", "type", "--genes", "CD3E", "-o", "a.png", *T), 1, "there is no gene 'CD3E'"),
        (("plot", "embedding", "t/x", "--basis", "tsne", "-o", "a.png"), 1, "obsm of t/x has no embedding 'tsne': it has 'X_pca', 'X_umap'"),
        (("plot", "volcano", "t/x", "--groupby", "type", "--group", "A", "-o", "a.png", *T), 1, 'there is no group "A"'),
        (("report", "t/x", "-o", "page.txt"), 2, "a page ends in .html: say page.txt.html"),
        (("report", "t/x", "-o", "page.html"), 1, "say --groupby with one of 'type', 'batch'"),
        (("plot",), 2, "the following arguments are required: PLOT"),
    ],
    ids=lambda v: "-".join(v[:4]).replace("--", "").replace("/", "") if isinstance(v, tuple) else None,
)
def test_a_call_that_cannot_be_done_says_why(fleet, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, *(("--fleet", fleet) if len(arguments) > 1 else ()))
    assert done.returncode == status and text in done.stderr and done.stdout == "" and not list(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize("plot", ["dotplot", "heatmap", "violin", "embedding", "qc", "volcano", "report"])
def test_help_teaches_with_a_call_that_parses(plot):
    done = command(*(("report",) if plot == "report" else ("plot", plot)), "--help")
    assert done.returncode == 0 and "for example:" in done.stdout
    (example,) = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("msgx ")]
    msgexpress.cli._parser().parse_args(example.split()[1:])


def test_a_module_run_alone_knows_its_own_errors(fleet, tmp_path):
    done = command("plot", "violin", "t/x", "--keys", "g3", "-o", tmp_path / "a.png", "--fleet", fleet, alone=True)
    assert done.returncode == 2 and done.stderr.startswith("msgx: say --transform")


def on_a_terminal(*words: object) -> tuple[str, str]:
    """What a command prints, and what it says on stderr, which is a terminal."""
    outer, inner = pty.openpty()
    arguments = [sys.executable, "-m", "msgexpress.cli", *map(str, words)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=inner, env={**os.environ, "COLUMNS": "120"})
    os.close(inner)
    said = b""
    try:
        while part := os.read(outer, 65536):
            said += part
    except OSError:
        pass  # the other end is closed
    os.close(outer)
    printed = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait(timeout=120) == 0, said.decode()
    return printed, said.decode()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["de", "t/x", "--groupby", "type"], "markers of t/x [........................]   0%  the drives rank the genes"),
        (["pairs", "t/x", "--groupby", "type"], "pairs of t/x [........................]   0%  the drives look at the matrix"),
        (["hvg", "t/x"], "genes of t/x [........................]   0%  the drives look at how they vary"),
    ],
)
def test_long_commands_say_what_they_do_on_a_terminal(fleet, words, says):
    printed, said = on_a_terminal(*words, *T, "--top", "2", "--format", "csv", "--fleet", fleet)
    # The line is wiped at the end, and is no part of what is printed.
    wiped = "\r" + " " * 78 + "\r"
    assert says in said and wiped in said and says not in said.split(wiped)[-1] and "[...." not in printed and printed.count("\n") > 2


def test_report_shows_a_bar_on_a_terminal(fleet, tmp_path):
    """Steps by name, on stderr; the line is wiped at the end."""
    words = ["report", "t/x", "--groupby", "type", *T, "--top", "3", "-o", tmp_path / "a.html", "--fleet", fleet]
    printed, text = on_a_terminal(*words)
    assert printed == ""
    assert "report of t/x [" in text and "  0%  quality of cells" in text and "volcano plot of NK" in text and "100%  writing" in text
    assert text.rstrip().endswith(f"wrote {tmp_path / 'a.html'}")
