"""Options of `msgx de`, and `msgx pairs` and `msgx pseudobulk`: the same numbers as from Python."""

from __future__ import annotations

import io

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import command, rich

import msgexpress


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "fleet"
    adata = rich()
    adata.layers["half"] = adata.X * 0.5
    with msgexpress.open(path, drives=2) as db:
        db.ingest(adata, "lab/x")
    return path


def said(fleet, *words: object) -> pd.DataFrame:
    done = command(*words, "--format", "csv", "--fleet", fleet)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(io.StringIO(done.stdout))


def in_python(fleet, call) -> pd.DataFrame:
    with msgexpress.open(fleet) as db:
        return pd.read_csv(io.StringIO(call(db["lab/x"]).to_csv(index=False)))


OPTIONS = {
    "filters": (["--min-pct", "0.4", "--min-cells", "8", "--min-logfc", "0.2"], {"min_pct": 0.4, "min_cells": 8, "min_logfc": 0.2}),
    "fold changes": (["--logfc", "seurat"], {"logfc": "seurat"}),
    "genes": (["--genes", "g3,g9,g31", "--gene-symbols", "symbol"], {"genes": ["g3", "g9", "g31"], "gene_symbols": "symbol"}),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_options_of_de_and_pairs_are_those_of_python(fleet, what):
    words, options = OPTIONS[what]
    found = said(fleet, "de", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", *words)
    pd.testing.assert_frame_equal(found, in_python(fleet, lambda ds: ds.rank_genes_groups("type", transform="log1p_cp10k", **options).to_df()))
    found = said(fleet, "pairs", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", "--group", "B", "--group", "NK", *words)
    pd.testing.assert_frame_equal(found, in_python(fleet, lambda ds: ds.pairwise("type", ["B", "NK"], transform="log1p_cp10k", **options).to_df()))


def test_de_with_logreg_ranks_chosen_genes(fleet):
    found = said(fleet, "de", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", "--method", "logreg", "--genes", "g1,g2,g3")
    assert list(found.columns) == ["group", "names", "scores"] and len(found) == 9


def test_pairs_summary_and_top(fleet):
    found = said(fleet, "pairs", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", "--summary", "--top", "4")
    pd.testing.assert_frame_equal(found, in_python(fleet, lambda ds: ds.pairwise("type", transform="log1p_cp10k", n_genes=4).summary()))
    assert len(found) == 12
    done = command("pairs", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", "--top", "1", "--receipt", "--logfc", "seurat", "--fleet", fleet)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 6 and done.stderr.count("drive-1") == 2


def test_pseudobulk_is_written_for_python_and_for_r(fleet, tmp_path):
    done = command("pseudobulk", "lab/x", "--sample", "batch", "--groupby", "type", "-o", tmp_path / "bulk.h5ad", "--fleet", fleet)
    assert done.returncode == 0 and "6 rows of cells x 40 genes" in done.stderr, done.stderr
    done = command("pseudobulk", "lab/x", "--sample", "batch", "--groupby", "type", "-o", tmp_path / "bulk.csv", "--fleet", fleet)
    assert done.returncode == 0, done.stderr
    found = ad.read_h5ad(tmp_path / "bulk.h5ad")
    counts, about = pd.read_csv(tmp_path / "bulk.csv", index_col=0), pd.read_csv(tmp_path / "bulk.obs.csv", index_col=0)
    x = rich()
    assert counts.shape == (40, 6) and (counts.to_numpy() == found.X.T).all() and found.X.sum() == x.X.sum()
    # As DESeq2's countData and colData: the same names, in the same order.
    assert list(counts.columns) == list(about.index) == list(found.obs_names) and about["n_cells"].sum() == 60
    assert counts.dtypes.eq(np.int64).all()


WRONG = {
    "there": (["pseudobulk", "lab/x", "--sample", "batch", "-o", "{there}"], 1, "exists already: choose another name, or --force"),
    "an ending": (["pseudobulk", "lab/x", "--sample", "batch", "-o", "x.tsv"], 2, "written as OUT.h5ad or OUT.csv"),
    "no sample": (["pseudobulk", "lab/x", "--sample", "donor", "-o", "{new}"], 1, "no column 'donor'"),
    "no transform": (["pairs", "lab/x", "--groupby", "type"], 2, "say --transform log1p_cp10k .* looks like raw counts"),
    "percent": (["de", "lab/x", "--groupby", "type", "--transform", "none", "--min-pct", "25"], 1, "--min-pct is 25.0: give a share"),
    "one group": (["de", "lab/x", "--groupby", "type", "--transform", "log1p_cp10k", "--method", "logreg", "--group", "B"], 1, "name at least two with --group"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_are_told_in_words_of_the_shell(fleet, tmp_path, what):
    import re

    words, status, says = WRONG[what]
    (tmp_path / "there.csv").write_text("x")
    done = command(*(w.format(there=tmp_path / "there.csv", new=tmp_path / "new.csv") for w in words), "--fleet", fleet)
    assert done.returncode == status and re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize("name", ["pairs", "pseudobulk", "de"])
def test_help_teaches(name):
    done = command(name, "--help")
    assert done.returncode == 0 and "for example:" in done.stdout and f"msgx {name} " in done.stdout.split("for example:")[1]
    assert max(map(len, done.stdout.splitlines())) <= 130
