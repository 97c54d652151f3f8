"""Sums per sample and group equal scanpy.get.aggregate, exactly, and are what DESeq2 takes."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, rich

import msgexpress
import skytether
from msgexpress import _group_moments, _pseudobulk


@pytest.fixture(scope="module")
def counted() -> ad.AnnData:
    """Some genes of pbmc3k with twelve donors, some cells without one; conditions and ages are of donors."""
    adata = ad.read_h5ad(PBMC3K)[:, ::20].copy()
    donor = np.arange(adata.n_obs) % 13
    adata.obs["donor"] = pd.Categorical([None if d == 12 else f"d{d}" for d in donor], categories=[f"d{d}" for d in range(12)])
    adata.obs["condition"] = pd.Categorical(np.array(["ill", "well"])[donor % 2])
    adata.obs["age"] = np.where(donor == 3, np.nan, donor + 30)
    adata.obs["lane"] = np.arange(adata.n_obs) % 4
    return adata


@pytest.fixture(scope="module")
def ds(counted, tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("bulk") / "fleet", drives=3) as db:
        yield db.ingest(counted, "blood/donors")


def labelled(adata: ad.AnnData) -> ad.AnnData:
    """The cells with a donor: scanpy's aggregate takes no others."""
    return adata[adata.obs["donor"].notna().to_numpy()].copy()


@pytest.mark.parametrize("func", ["sum", "mean"])
@pytest.mark.parametrize("by", [["donor"], ["donor", "cell_type"], ["lane", "donor"]])
def test_rows_equal_scanpys_aggregate(ds, counted, func, by):
    found = ds.pseudobulk(*by, func=func)
    adata = labelled(counted)
    adata.obs["lane"] = pd.Categorical(adata.obs["lane"])
    adata.X = adata.X.astype(np.float64)
    wanted = sc.get.aggregate(adata, by, func)
    values = wanted.layers[func]
    assert list(found.obs_names) == list(wanted.obs_names) and list(found.var_names) == list(wanted.var_names)
    if func == "sum":
        assert found.X.dtype == np.int64 and (found.X == values).all()
    else:
        np.testing.assert_allclose(found.X, values, rtol=1e-14)
    sizes = counted.obs.groupby(by, observed=True).size()
    assert found.obs["n_cells"].tolist() == sizes.tolist() and len(found) > 10
    for column in by:
        assert found.obs[column].astype(str).tolist() == wanted.obs[column].astype(str).tolist()


def test_columns_of_one_value_per_row_are_kept(ds, counted):
    found = ds.pseudobulk("donor", "cell_type")
    assert list(found.obs.columns[:3]) == ["donor", "cell_type", "n_cells"] and {"condition", "age"} <= set(found.obs.columns)
    assert "lane" not in found.obs
    number = found.obs["donor"].astype(str).str[1:].astype(int)
    assert (found.obs["condition"].astype(str) == np.array(["ill", "well"])[number % 2]).all()
    assert found.obs["condition"].dtype == counted.obs["condition"].dtype
    # A donor without an age has none in all of its rows.
    assert (found.obs["age"].isna() == (number == 3)).all() and (found.obs["age"] == number + 30)[number != 3].all()
    assert found.uns["pseudobulk"] == {"sample": "donor", "groupby": "cell_type", "func": "sum", "min_cells": 0, "use_raw": False}


def test_small_rows_cells_and_genes_are_left_out(ds, counted):
    found = ds.pseudobulk("donor", "cell_type", min_cells=30)
    sizes = counted.obs.groupby(["donor", "cell_type"], observed=True).size()
    assert found.obs["n_cells"].tolist() == sizes[sizes >= 30].tolist() and 0 < len(found) < len(sizes)
    part = counted.obs["lane"] != 2
    some = ds.pseudobulk("donor", cells=part, genes=list(counted.var_names[[5, 3, 900]]))
    wanted = sc.get.aggregate(labelled(counted[part.to_numpy()])[:, [3, 5, 900]].copy(), "donor", "sum")
    assert (some.X == wanted.layers["sum"]).all() and list(some.var_names) == list(wanted.var_names)


def test_layers_and_raw_have_their_own_values(db):
    adata = rich()
    adata.raw = adata.copy()
    adata = adata[:, 4:20].copy()
    adata.layers["half"] = adata.X * 0.5
    ds = db.ingest(adata, "t/x")
    raw = ds.pseudobulk("type", layer="raw")
    assert raw.n_vars == 40 and (raw.X == sc.get.aggregate(adata.raw.to_adata(), "type", "sum").layers["sum"]).all()
    assert (ds.pseudobulk("type", use_raw=True).X == raw.X).all() and raw.uns["pseudobulk"]["use_raw"]
    with pytest.warns(UserWarning, match="layer 'half' are not all integers.*no counts"):
        half = ds.pseudobulk("type", layer="half")
    assert half.X.dtype == np.float64
    np.testing.assert_allclose(half.X, sc.get.aggregate(adata, "type", "sum", layer="half").layers["sum"], rtol=1e-12)


def test_the_result_is_what_deseq2_takes(ds, tmp_path):
    found = ds.pseudobulk("donor")
    # DESeqDataSet and PyDESeq2: whole numbers that are not negative, samples as rows, metadata with the same names.
    assert np.issubdtype(found.X.dtype, np.integer) and (found.X >= 0).all() and found.X.sum() > 10_000
    frame = found.to_df()
    assert list(frame.index) == list(found.obs.index) and frame.index.is_unique and not found.obs[["condition"]].isna().any().any()
    found.write_h5ad(tmp_path / "bulk.h5ad")
    again = ad.read_h5ad(tmp_path / "bulk.h5ad")
    assert again.X.dtype == np.int64 and (again.X == found.X).all()


@pytest.mark.parametrize("streamed", [False, True])
def test_sums_are_exact_where_means_are_not(db, monkeypatch, streamed):
    """Counts whose mean has no short binary form, next to huge ones, in several blocks of cells."""
    cells = 140_001
    rng = np.random.default_rng(4)
    x = np.zeros((cells, 4), np.int64)
    x[:, 0] = rng.integers(0, 3, cells)
    x[::3, 1] = 2**31 + rng.integers(0, 1000, len(x[::3]))
    x[-1, 2], x[5, 2] = 1, 2**32 - 1
    x[:, 3] = 7
    adata = ad.AnnData(sp.csr_matrix(x.astype(np.float64)), obs=pd.DataFrame({"s": pd.Categorical(np.arange(cells) % 3)}, index=np.arange(cells).astype(str)))
    ds = db.ingest(adata, "t/x")
    calls = []
    stream = _group_moments.streamed
    monkeypatch.setattr(_group_moments, "streamed", lambda *a: (calls.append(a[4].tolist()), stream(*a))[1])
    if streamed:
        monkeypatch.setattr(_pseudobulk, "_rounds_to_the_sum", lambda mean, *_: np.zeros(mean.shape, bool))
    found = ds.pseudobulk("s")
    assert (found.X == np.stack([x[i::3].sum(axis=0) for i in range(3)])).all()
    # Where a rounded mean need not tell sums apart, the values themselves are added up.
    assert calls == ([[0, 1, 2, 3]] if streamed else [[2]])


def test_many_rows_are_summed_in_parts(ds, counted, monkeypatch):
    monkeypatch.setattr(_group_moments, "MOST_ENTRIES", 20_000)
    found = ds.pseudobulk("donor", "cell_type")
    wanted = sc.get.aggregate(labelled(counted), ["donor", "cell_type"], "sum")
    assert (found.X == wanted.layers["sum"]).all()


WRONG = {
    "no column": (lambda ds: ds.pseudobulk("doner"), "NotFoundError", "no column 'doner'.*did you mean 'donor'"),
    "no groups": (lambda ds: ds.pseudobulk("donor", "celltype"), "NotFoundError", "did you mean 'cell_type'"),
    "twice": (lambda ds: ds.pseudobulk("donor", "donor"), "InvalidError", "sample and groupby are both 'donor'"),
    "a function": (lambda ds: ds.pseudobulk("donor", func="median"), "InvalidError", "func is 'median'"),
    "cells": (lambda ds: ds.pseudobulk("donor", min_cells=-1), "InvalidError", "min_cells is -1"),
    "too few": (lambda ds: ds.pseudobulk("donor", min_cells=10**6), "InvalidError", "min_cells=1000000, and the largest row has 208 cells"),
    "a list": (lambda ds: ds.pseudobulk(["donor"]), "InvalidError", "sample is .* which is no text"),
    "no layer": (lambda ds: ds.pseudobulk("donor", layer="raw"), "NotFoundError", "no layer 'raw'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_of_pseudobulk_are_told(ds, what):
    call, kind, says = WRONG[what]
    with pytest.raises(getattr(skytether, kind), match=says):
        call(ds)


def test_names_that_mean_two_rows_are_refused(db):
    adata = rich()
    adata.obs["s"] = pd.Categorical(np.array(["a_b", "a"])[np.arange(60) % 2])
    adata.obs["g"] = pd.Categorical(np.array(["c", "b_c"])[np.arange(60) % 2])
    ds = db.ingest(adata, "t/x")
    with pytest.raises(skytether.InvalidError, match="two rows would be called 'a_b_c'"):
        ds.pseudobulk("s", "g")
    assert len(ds.pseudobulk("s")) == 2


def test_more_values_than_fit_are_refused(ds, monkeypatch):
    monkeypatch.setattr(_pseudobulk, "MOST_VALUES", 1000)
    with pytest.raises(skytether.ExhaustedError, match="12 rows of 1,637 genes are more than one result holds"):
        ds.pseudobulk("donor")
