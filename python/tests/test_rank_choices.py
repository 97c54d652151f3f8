"""Layers, raw, masks, order of equal scores: each as scanpy has it."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import counts, rich
from test_rank import assert_agree, normalised, scanpy_says

METHODS = ["t-test", "t-test_overestim_var"]


@pytest.fixture(scope="module")
def adata() -> ad.AnnData:
    """X, raw and a layer that differ, raw with more genes; groups whose order is not that of their names."""
    whole = rich(sp.csr_matrix(counts(90, 40, seed=5)), cells=90)
    whole.layers["spliced"] = sp.csr_matrix(counts(90, 40, seed=6))
    whole.obs["g"] = pd.Categorical(np.array(["two", "one", "ten"])[np.arange(90) % 3], categories=["two", "one", "ten"])
    part = whole[:, 3:31].copy()
    part.raw = whole
    return part


@pytest.fixture(scope="module")
def ds(adata, tmp_path_factory):
    import msgexpress

    with msgexpress.open(tmp_path_factory.mktemp("choices") / "fleet", drives=2) as db:
        yield db.ingest(adata, "t/x")


def plain(adata: ad.AnnData, x: object = None) -> ad.AnnData:
    return ad.AnnData(adata.X if x is None else x, obs=adata.obs, var=adata.var)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reference", ["rest", "one"])
def test_a_layer_equals_scanpys(ds, adata, method, reference):
    theirs = plain(adata)
    theirs.layers["log"] = normalised(plain(adata, adata.layers["spliced"])).X
    sc.tl.rank_genes_groups(theirs, "g", layer="log", use_raw=False, method=method, reference=reference, pts=True)
    res = ds.rank_genes_groups("g", layer="spliced", method=method, reference=reference, transform="log1p_cp10k")
    assert_agree(res, theirs, [g for g in ("two", "one", "ten") if g != reference], reference)
    assert res.params["layer"] == "spliced" and res.params["use_raw"] is False


@pytest.mark.parametrize("method", METHODS)
def test_raw_equals_scanpys(ds, adata, method):
    theirs = plain(adata)
    theirs.raw = normalised(adata.raw.to_adata())
    sc.tl.rank_genes_groups(theirs, "g", use_raw=True, method=method, pts=True)
    res = ds.rank_genes_groups("g", use_raw=True, method=method, transform="log1p_cp10k")
    raw = theirs.raw.to_adata()
    raw.uns["rank_genes_groups"] = theirs.uns["rank_genes_groups"]
    assert_agree(res, raw, ["two", "one", "ten"])
    assert len(res.to_df("two")) == 40 and res.params["use_raw"] is True


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("corr_method", ["benjamini-hochberg", "bonferroni"])
@pytest.mark.parametrize("where", ["X", "raw"])
def test_a_mask_of_genes_equals_mask_var(ds, adata, method, corr_method, where):
    values = normalised(adata.raw.to_adata() if where == "raw" else plain(adata))
    mask = np.arange(values.n_vars) % 3 > 0
    theirs = scanpy_says(values.copy(), "g", mask_var=mask, method=method, corr_method=corr_method)
    for genes in (mask, values.var_names[mask], np.flatnonzero(mask)):
        res = ds.rank_genes_groups("g", use_raw=where == "raw", genes=genes, method=method, corr_method=corr_method, transform="log1p_cp10k")
        some = values[:, mask].copy()
        some.uns["rank_genes_groups"] = theirs.uns["rank_genes_groups"]
        assert_agree(res, some, ["two", "one", "ten"])
        assert len(res.to_uns()["pts"]) == mask.sum()


@pytest.mark.parametrize("method", [*METHODS, "student"])
@pytest.mark.parametrize("n_genes", [None, 30, 14, 4])
def test_equal_scores_are_in_the_order_of_genes(db, method, n_genes):
    """Each gene three times, far from each other and on different drives; some genes without any value."""
    x = np.random.default_rng(1).poisson(1.0, (60, 10)).astype(np.float32)
    x[:, [3, 8]] = 0
    adata = ad.AnnData(np.tile(x, (1, 3)), obs=rich().obs[["type"]], var=pd.DataFrame(index=[f"g{i}" for i in range(30)]))
    ds = db.ingest(adata, "t/x")
    choices = {"method": method, "transform": "log1p_cp10k", "n_genes": n_genes}
    results = [ds.rank_genes_groups("type", **choices), ds.ttest({"type": "B"}, {"type": "T"}, **choices)]
    for res in results:
        for group in res.groups:
            frame = res.to_df(group)
            assert len(frame) == (n_genes or 30) and frame["scores"].is_monotonic_decreasing
            number = frame["names"].str[1:].astype(int)
            for _, same in number.groupby(frame["scores"]):
                assert same.is_monotonic_increasing
            whole = res._frame_of_all(group)
            # Those without a difference, six of them, are together and in order.
            assert whole[whole["scores"] == 0]["names"].tolist() == ["g3", "g8", "g13", "g18", "g23", "g28"]
            assert whole["names"].tolist()[: len(frame)] == frame["names"].tolist()


@pytest.mark.parametrize("groups", [["ten"], ["ten", "two"], "all"])
@pytest.mark.parametrize("n_genes", [None, 5])
def test_chosen_groups_against_any_reference(ds, adata, groups, n_genes):
    theirs = scanpy_says(normalised(plain(adata)), "g", groups=groups, reference="one", n_genes=n_genes)
    res = ds.rank_genes_groups("g", groups=groups, reference="one", n_genes=n_genes, use_raw=False, transform="log1p_cp10k")
    assert_agree(res, theirs, [g for g in ("two", "ten") if groups == "all" or g in groups], "one", n_genes=n_genes)
