"""Wrong calls of `msgx`: one line that names the object and says what to do, without what a library said inside."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import command, rich

import msgexpress

DE = ["de", "t/x", "--groupby", "type", "--transform", "log1p_cp10k"]
PSEUDOBULK = ["pseudobulk", "t/x", "--sample", "batch", "-o"]
COMPARE = ["compare", "t/x:type=B", "t/y:type=B", "--transform", "log1p_cp10k"]
CENTROIDS = ["centroids", "t", "--groupby", "type", "--transform", "log1p_cp10k"]

#: A call, its exit status, and what it says.
WRONG = {
    "fleet that is a file": (["ls", "--fleet", "text"], 1, "text is a file, and a fleet is a directory"),
    "table that is no matrix": (["drop", "t/table"], 1, "t/table is a table, not an expression data set: skytether's own calls and commands are for it"),
    "names in no file": ([*DE, "--genes", "@lost"], 1, "cannot read names from lost: No such file or directory; @FILE is a file with one name a line"),
    "names in a directory": ([*DE, "--genes", "@dir.csv"], 1, "cannot read names from dir.csv: Is a directory"),
    "names that are no text": ([*DE, "--genes", "@bytes"], 1, "cannot read names from bytes: it is no text in UTF-8"),
    "no names in a file": ([*DE, "--genes", "@empty"], 1, "empty names none"),
    "no names": ([*DE, "--genes", ""], 2, "there is no name in ''"),
    "no names to export": (["export", "t/x", "x.h5ad", "--cells", ","], 2, "there is no name in ','"),
    "a share beyond 1": ([*DE, "--min-pct", "5"], 1, "--min-pct is 5.0: give a share of cells from 0 to 1, such as 0.05, or leave it out"),
    "a fold change below 0": ([*DE, "--min-logfc", "nan"], 1, "--min-logfc is nan: give a number of 0 or more"),
    "volcanoes in a file": ([*DE, "--top", "1", "--volcano", "text/plots/"], 1, "cannot make the directory text/plots/: Not a directory"),
    "pseudobulk in a directory": ([*PSEUDOBULK, "dir.h5ad", "--force"], 1, "dir.h5ad is a directory: choose another name"),
    "csv in a directory": ([*PSEUDOBULK, "dir.csv", "--force"], 1, "dir.csv is a directory"),
    "too many cells": ([*PSEUDOBULK, "new.h5ad", "--min-cells", "100000"], 1, "there is nothing to add up: --min-cells 100000"),
    "one column twice": ([*PSEUDOBULK, "new.h5ad", "--groupby", "batch"], 1, "leave --groupby out"),
    "picture in a directory": (["qc", "t/x", "-o", "dir.png"], 1, "dir.png is a directory"),
    "numbers in a directory": (["qc", "t/x", "--cells", "dir.csv"], 1, "dir.csv is a directory"),
    "numbers of a plot": (["plot", "qc", "t/x", "-o", "a.png", "--csv", "dir.csv"], 1, "dir.csv is a directory"),
    "a base of 1": (["hvg", "t/x", "--base", "1"], 2, "--base is 1.0: a logarithm needs a number above 1"),
    "a sum below 0": (["hvg", "t/x", "--target-sum", "-5"], 2, "--target-sum is -5.0"),
    "no embedding": (["plot", "embedding", "t/x", "--basis", "umap", "-o", "a.png"], 1, r"no embedding 'umap': it has 'X_pca'"),
    "join of one file": (["ingest", "a.h5ad", "--to", "t/z", "--join", "outer"], 1, "--join is for several sources"),
    "on of one file": (["ingest", "a.h5ad", "--to", "t/z", "--on", "symbol"], 1, "--on is for several sources"),
    "one label of two": (["ingest", "a.h5ad", "b.h5ad", "--to", "t/z", "--label", "one"], 1, "--label has 1 label for 'batch', but there are 2 sources"),
    "other filling": (["ingest", "a.h5ad", "b.h5ad", "--to", "t/z", "--join", "outer", "--fill-value", "3"], 1, "--fill-value is 3.0"),
    "clash of no column": (
        ["ingest", "a.h5ad", "b.h5ad", "--to", "t/z", "--batch", "from", "--clash", "nope=text"], 1, "--clash names the obs column 'nope', which no source has"
    ),
    "clipped without scale": (["pca", "t/x", "--transform", "none", "--genes", "all", "--max-value", "3"], 1, "--max-value is for --scale, and positive"),
    "too many components": (["pca", "t/x", "--transform", "none", "--genes", "all", "--components", "999"], 1, "--components is 999: a whole number"),
    "no such metric": (["neighbors", "t/x", "--metric", "nope"], 1, "pynndescent find no neighbours by metric 'nope': 'euclidean', 'cosine'"),
    "one neighbour": (["neighbors", "t/x", "--neighbors", "1"], 1, "--neighbors is 1: a whole number from 2"),
    "points below 0": (["umap", "t/x", "--min-dist", "-1"], 1, "--min-dist is -1.0: how close points may be, a number from 0 on"),
    "points beyond clusters": (["umap", "t/x", "--min-dist", "50"], 1, "--min-dist is 50.0 and spread is 1.0"),
    "points that are none": (["umap", "t/x", "--min-dist", "nan"], 1, "--min-dist is nan"),
    "seed below 0": (["umap", "t/x", "--seed", "-1"], 1, "--seed is -1: a whole number from 0"),
    "seed beyond all": (["leiden", "t/x", "--seed", "99999999999999999999"], 1, "--seed is 99999999999999999999: a whole number from 0 to 2147483647"),
    "clusters without a name": (["leiden", "t/x", "--key", ""], 1, "--key is '': the name of the obs column"),
    "no resolution": (["leiden", "t/x", "--resolution", "0"], 1, "--resolution is 0.0: a positive number"),
    "cells of no data set": (["compare", ":a=b", "t/y", "--transform", "none"], 2, "':a=b' names no data set: write DOMAIN/DATASET:COLUMN=VALUE"),
    "one column of two": ([*COMPARE, "--on", "symbol", "--on", "t/x=symbol"], 1, "'symbol' names no data set, where others do: write DATASET=VALUE each time"),
    "a column of one": ([*COMPARE, "--on", "t/x=symbol"], 1, "--on says nothing of t/y"),
    "genes in a directory": ([*COMPARE, "--missing", "dir.csv"], 1, "dir.csv is a directory"),
    "means in a directory": ([*CENTROIDS, "-o", "dir.h5ad"], 1, "dir.h5ad is a directory"),
    "no such group column": (["centroids", "t", "--groupby", "nope", "--transform", "none", "-o", "c.csv"], 1, "with --groupby t/x=COLUMN, or leave"),
    "no such condition": ([*CENTROIDS, "-o", "c.csv", "--where", "nope = 1"], 1, "--where of t/x: no field named nope"),
    "columns of no table": (["set-obs", "t/x", "text"], 2, "text: columns of cells come from a .csv"),
    "columns of no file": (["set-obs", "t/x", "lost.csv"], 1, "lost.csv can't be read: No such file or directory"),
    "names and no column": (["set-obs", "t/x", "names.csv"], 1, "names.csv has one column, the cells' names, and so there is nothing to set"),
    "names as categories": (["set-obs", "t/x", "columns.csv", "--category", "cell"], 1, r"has no column 'cell' of values \(the first has the cells' names\): it has 'k'"),
    "no such category": (["set-obs", "t/x", "columns.csv", "--category", "nope"], 1, "columns.csv has no column 'nope' of values: it has 'k'"),
    "other cells": (["set-obs", "t/x", "others.csv"], 1, "the first column has a name that is no cell of t/x \\('nope'\\)"),
    "demo in a file": (["demo", "--data", "typed.h5ad", "--out", "text"], 1, "cannot make the directory text: File exists; choose another one with --out"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a fleet, and with files and directories of many kinds."""
    path = tmp_path_factory.mktemp("messages")
    adata = rich()
    adata.obs_names = [f"cell-{i}" for i in range(60)]
    adata.write_h5ad(path / "a.h5ad")
    other = adata[:20].copy()
    other.obs_names = [f"other-{i}" for i in range(20)]
    other.write_h5ad(path / "b.h5ad")
    adata.obs["cell_type"] = adata.obs["type"]
    adata.write_h5ad(path / "typed.h5ad")
    with msgexpress.open(path / "fleet", drives=2) as db:
        ds = db.ingest(path / "a.h5ad", "t/x")
        # What neighbors keeps, without the half a minute that its libraries compile.
        ds.set_obsm("X_pca", np.random.default_rng(1).random((60, 5)))
        graph = {"connectivities": adata.obsp["distances"], "distances": adata.obsp["distances"]}
        from msgexpress import _versions

        _versions.put(ds, obsp=graph, uns={"neighbors": {"connectivities_key": "connectivities", "params": {"use_rep": "X_pca"}}}, action="neighbors")
        db.ingest(path / "a.h5ad", "t/y")
        db.fleet.ingest(pa.table({"v": [1]}), "t.table")
    for name in ("dir.csv", "dir.h5ad", "dir.png"):
        (path / name).mkdir()
    (path / "text").write_text("x")
    (path / "empty").write_text("\n")
    (path / "bytes").write_bytes(b"\xff\xfe\x00")
    (path / "names.csv").write_text("cell\ncell-0\n")
    pd.DataFrame({"cell": ["cell-0"], "k": [1]}).to_csv(path / "columns.csv", index=False)
    pd.DataFrame({"cell": ["nope"], "k": [1]}).to_csv(path / "others.csv", index=False)
    return path


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_name_the_object_and_say_what_to_do(place, monkeypatch, what) -> None:
    words, status, says = WRONG[what]
    monkeypatch.chdir(place)
    before = sorted(path.name for path in place.iterdir())
    done = command(*words, MSGX_FLEET="" if "--fleet" in words else "fleet")
    assert done.returncode == status and re.search(says, done.stderr), done.stderr
    assert not re.search(r"Traceback|Errno|errno|MSGX_DEBUG|\w=\s|  (?=is|has|of)", done.stderr.splitlines()[-1]), done.stderr
    if status == 1:
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("msgx: ")
    assert sorted(path.name for path in place.iterdir()) == before
