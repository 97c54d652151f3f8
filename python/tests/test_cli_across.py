"""`msgx domains`, `compare`, `centroids` and `similar`: numbers, files, messages and exit statuses."""

from __future__ import annotations

import json

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from across import small
from conftest import command

import msgexpress
from msgexpress import _cli_across

T = ("--transform", "log1p_cp10k")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    place = tmp_path_factory.mktemp("fleet") / "fleet"
    with msgexpress.open(place, drives=2) as db:
        for name, seed, first in (("t/x", 1, 0), ("t/y", 2, 10)):
            made = small(60, seed, first)
            made.obs["label"] = made.obs["type"].astype(str) + " cell"
            made.obs["a,b"] = "x&y"
            db.ingest(made, name)
        other = small(60, 3)
        other.obs = other.obs.rename(columns={"type": "kind"})
        db.ingest(other, "u/z")
    return place


def frame_of(done) -> pd.DataFrame:
    assert done.returncode == 0, done.stderr
    return pd.DataFrame(json.loads(done.stdout))


def test_domains_and_their_columns_are_listed(fleet):
    assert frame_of(command("domains", "--format", "json", "--fleet", fleet)).to_dict("list") == {"domain": ["t", "u"], "datasets": [2, 1], "cells": [120, 60]}
    found = frame_of(command("domains", "t", "--format", "json", "--fleet", fleet))
    assert list(found.columns) == ["column", "dataset", "type", "values", "missing"] and set(found["dataset"]) == {"t/x", "t/y"}


@pytest.mark.parametrize(
    ("a", "b", "python"),
    [
        ("t/x:type=B", "t/y:type=B,NK", ({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": ["B", "NK"]})),
        ("t.x", "t/y:label=B cell&ok=True", ({"dataset": "t/x"}, {"dataset": "t/y", "label": "B cell", "ok": True})),
        (
            '{"dataset": "t/x", "a,b": "x&y"}',
            '[{"dataset": "t/y", "type": "B"}, {"dataset": "t/y", "type": "T"}]',
            ({"dataset": "t/x"}, {"dataset": "t/y", "type": ["B", "T"]}),
        ),
    ],
)
def test_compare_prints_the_numbers_of_python(fleet, a, b, python):
    found = frame_of(command("compare", a, b, "--on", "gene_ids", *T, "--format", "json", "--fleet", fleet))
    with msgexpress.open(fleet) as db:
        due = db.compare(*python, on="gene_ids", transform="log1p_cp10k").to_df()
    assert list(found.columns) == ["group", *due.columns] and list(found["names"]) == list(due["names"])
    np.testing.assert_allclose(found["scores"], due["scores"], rtol=1e-12)


def test_compare_writes_what_is_missing_and_draws(fleet, tmp_path):
    files = tmp_path / "missing.csv", tmp_path / "v.png"
    done = command("compare", "t/x:type=B", "t/y:type=B", *T, "--top", 3, "--min-pct", 0.2, "--missing", files[0], "--volcano", files[1], "--receipt", "--fleet", fleet)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 5
    assert "20 genes of 20 and 20 cells compared; 10 are missing in A and 10 in B" in done.stderr and "t/x: 30 genes in" in done.stderr
    missing = pd.read_csv(files[0]).set_index("id")
    assert missing.loc["g0", "missing_in"] == "b" and missing.loc["g35", "missing_in"] == "a" and len(missing) == 20
    assert files[1].read_bytes()[1:4] == b"PNG"


def test_centroids_are_printed_and_written(fleet, tmp_path):
    by = ("--groupby", "t/x=type", "--groupby", "u/z=kind")
    found = frame_of(command("centroids", "t/x", "u/z", *by, *T, "--genes", "g3,g4", "--format", "json", "--fleet", fleet))
    assert list(found.columns) == ["dataset", "group", "cells", "g3", "g4"] and len(found) == 6
    for name in ("a.h5ad", "a.csv"):
        done = command("centroids", "t", "--groupby", "label", "--on", "gene_ids", "--join", "outer", *T, "-o", tmp_path / name, "--fleet", fleet)
        assert done.returncode == 0 and done.stdout == "" and done.stderr.endswith("t/x lacks 10 genes of others; t/y lacks 10 genes of others\n"), done.stderr
    written, table = ad.read_h5ad(tmp_path / "a.h5ad"), pd.read_csv(tmp_path / "a.csv")
    np.testing.assert_allclose(written.X, table.iloc[:, 3:].to_numpy(), rtol=1e-9)
    assert written.shape == (6, 40) and np.isnan(written.X).sum() == 60


def test_similar_prints_the_numbers_of_python(fleet, tmp_path):
    options = ("--groupby", "type", "--on", "gene_ids", *T, "--min-genes", 10, "--top", 2)
    options = [*options, "--group", "B", "--method", "spearman", "--center", "none", "--plot", tmp_path / "a.svg"]
    found = frame_of(command("similar", "t/x", *options, "--format", "json", "--fleet", fleet))
    with msgexpress.open(fleet) as db:
        due = db.similar("t/x", "type", "B", top=2, method="spearman", center=None, on="gene_ids", transform="log1p_cp10k", min_genes=10).to_df()
    pd.testing.assert_frame_equal(found, due, check_dtype=False)
    assert (tmp_path / "a.svg").exists()
    columns = ["--groupby", "t/x=type", "--groupby", "u/z=kind"]
    other = frame_of(command("similar", "t/x", *columns, "--against", "u", *T, "--min-genes", 10, "--format", "json", "--fleet", fleet))
    assert set(other["dataset"]) == {"u/z"}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("compare", "t/x:type=B", "t/y:type=B"), 2, "say --transform log1p_cp10k for raw counts"),
        (("compare", "t/x:type=B", "t/y:type=B", "--transform", "log"), 2, "--transform log: say log1p_cp10k or none"),
        (("compare", "t/x:type", "t/y:type=B", *T), 2, "write DOMAIN/DATASET:COLUMN=VALUE"),
        (("compare", '{"dataset"', "t/y:type=B", *T), 2, "is no JSON"),
        (("compare", "t/x:type=Q", "t/y:type=B", *T), 1, "no cell of t/x has 'Q' in obs column 'type'"),
        (("compare", "t/x", "t/y", *T, "--volcano", "a.txt"), 2, "a.txt: pictures end in one of"),
        (("compare", "t/x", "t/y", *T, "--missing", "none/a.csv"), 1, "there is no directory none"),
        (("centroids", "t", "--groupby", "type", *T), 2, "say -o FILE.h5ad or -o FILE.csv"),
        (("centroids", "t", "--groupby", "type", *T, "-o", "a.xlsx"), 2, "means are written as .h5ad or .csv"),
        (("centroids", "t", "u", "--groupby", "type", *T, "-o", "a.csv"), 1, "u/z has no obs column 'type'"),
        (("similar", "t/x", "--groupby", "type", *T), 1, "fewer than --min-genes 50 informative genes"),
        (("similar", "u/z", "--groupby", "kind", *T), 1, "domain u has no data set but u/z: say with --against"),
        (("domains", "v"), 1, "there is no domain 'v'"),
    ],
    ids=lambda v: "-".join(v).replace("--", "").replace("/", "")[:50] if isinstance(v, tuple) else None,
)
def test_a_call_that_cannot_be_done_says_why(fleet, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, "--fleet", fleet)
    assert done.returncode == status and text in done.stderr and done.stdout == "" and not list(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize("name", ["domains", "compare", "centroids", "similar"])
def test_help_teaches_with_a_call_that_parses(name):
    done = command(name, "--help")
    assert done.returncode == 0 and "for example:" in done.stdout
    (example,) = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith(f"msgx {name}")]
    assert example == _cli_across._EXAMPLES[name]
    msgexpress.cli._parser().parse_args(example.split()[1:])
