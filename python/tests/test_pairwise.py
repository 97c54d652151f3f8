"""Every pair of groups from one look at the matrix equals one test after the other, and scanpy's."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.stats
from conftest import rich
from test_rank import assert_same_p

import msgexpress
import skytether


@pytest.fixture(scope="module")
def normal(counted) -> ad.AnnData:
    adata = counted.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


@pytest.fixture(scope="module")
def ds(counted, tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("pairs") / "fleet", drives=2) as db:
        yield db.ingest(counted, "blood/some")


@pytest.mark.parametrize("method", ["t-test", "t-test_overestim_var"])
@pytest.mark.parametrize("corr_method", ["benjamini-hochberg", "bonferroni"])
def test_pairs_equal_scanpy_with_each_reference(ds, normal, method, corr_method):
    groups = ["B", "CD14+ Mono", "NK", "Platelet"]
    res = ds.pairwise("cell_type", groups, method=method, corr_method=corr_method, transform="log1p_cp10k")
    assert res.groups == groups and len(res) == 12 and res.params["reference"] == "pairwise"
    for reference in groups:
        adata = ad.AnnData(normal.X, obs=normal.obs, var=normal.var)
        sc.tl.rank_genes_groups(adata, "cell_type", groups=groups, reference=reference, method=method, corr_method=corr_method, pts=True)
        for group in groups:
            if group == reference:
                continue
            ours = res[group, reference]
            theirs = sc.get.rank_genes_groups_df(adata, group).set_index("names").loc[ours["names"]].reset_index()
            scale = np.maximum(1, np.abs(theirs["scores"]))
            assert (np.abs(ours["scores"] - theirs["scores"]) / scale).max() < 1e-6
            np.testing.assert_allclose(ours["logfoldchanges"], theirs["logfoldchanges"], rtol=1e-6, atol=1e-6)
            for column in ("pvals", "pvals_adj"):
                assert_same_p(ours[column], theirs[column])
            np.testing.assert_allclose(ours["pct_nz_group"], theirs["pct_nz_group"], rtol=1e-12)
            assert set(ours["group"]) == {group} and set(ours["reference"]) == {reference}


def test_pairs_equal_rank_genes_groups_with_all_options(db):
    adata = rich()
    adata.raw = adata.copy()
    adata.layers["log"] = np.log1p(adata.X.toarray()).astype(np.float64)
    ds = db.ingest(adata, "t/x")
    part = np.arange(60) % 7 > 0
    cases = [
        {"transform": "log1p_cp10k"},
        {"transform": "log1p_cp10k", "method": "student", "corr_method": "bonferroni", "n_genes": 6},
        {"transform": None, "layer": "log", "cells": part, "genes": ["g7", "g3", "g20", "g31"]},
        {"transform": "log1p_cp10k", "use_raw": True, "gene_symbols": "symbol"},
        {"transform": "log1p_cp10k", "logfc": "seurat", "min_logfc": 0.3, "min_pct": 0.3, "min_cells": 7, "cells": part},
        {"transform": "log1p_cp10k", "method": "wilcoxon"},
        {"transform": None, "layer": "log", "method": "wilcoxon", "tie_correct": True, "genes": ["g7", "g3", "g20"]},
        {"transform": "log1p_cp10k", "method": "wilcoxon", "logfc": "seurat4", "min_logfc": 0.3, "min_pct": 0.3, "min_cells": 7, "cells": part},
    ]
    for options in cases:
        res = ds.pairwise("type", **options)
        assert res.groups == ["T", "B", "NK"]
        for group, reference in res.pairs:
            wanted = ds.rank_genes_groups("type", groups=[group], reference=reference, **options).to_df()
            found = res[group, reference]
            assert list(found.columns) == ["group", "reference", *wanted.columns]
            pd.testing.assert_frame_equal(found[wanted.columns], wanted, check_exact=False, rtol=1e-9, atol=1e-12, check_names=False)
            assert res.top(3)[group, reference].tolist() == found["symbol" if "gene_symbols" in options else "names"].head(3).tolist()
        assert all(res.params[key] == value for key, value in options.items() if key in ("method", "corr_method", "logfc", "min_pct", "tie_correct"))
        looks = 1 + ("logfc" in options) + (3 if options.get("method") == "wilcoxon" else 0)
        assert len(res.receipts) == looks and res.receipt is res.receipts[0]
    assert ds.pairwise("type", transform="log1p_cp10k", method="wilcoxon", tie_correct=True).test == "Wilcoxon rank sum test, corrected for ties"
    with pytest.raises(skytether.InvalidError, match="tie_correct belongs to the Wilcoxon test"):
        ds.pairwise("type", transform="log1p_cp10k", tie_correct=True)


def test_one_look_at_the_matrix_serves_all_pairs(ds, monkeypatch):
    asked = []
    sql = type(ds.fleet).sql
    monkeypatch.setattr(type(ds.fleet), "sql", lambda self, query, *args, **kwargs: (asked.append(query), sql(self, query, *args, **kwargs))[1])
    res = ds.pairwise("cell_type", transform="log1p_cp10k")
    assert len(res.to_df()) == 90 * ds.n_vars and len(res.summary()) == 10 * ds.n_vars
    assert sum("moments(" in query for query in asked) == 1
    assert res.receipt.to_dict()["bytes_moved"] > 0


def test_summary_is_the_least_over_all_references(ds):
    res = ds.pairwise("cell_type", ["B", "NK", "DC"], transform="log1p_cp10k", n_genes=5)
    whole = ds.pairwise("cell_type", ["B", "NK", "DC"], transform="log1p_cp10k")
    found = whole.summary("B").set_index("names")
    pairs = {reference: whole["B", reference].set_index("names").loc[found.index] for reference in ("NK", "DC")}
    scores = pd.DataFrame({reference: frame["scores"] for reference, frame in pairs.items()})
    assert (found["min_score"] == scores.min(axis=1)).all() and found["min_score"].is_monotonic_decreasing
    assert (found["min_reference"].astype(str) == scores.idxmin(axis=1))[scores["NK"] != scores["DC"]].all()
    assert (found["max_pval_adj"] == np.maximum(pairs["NK"]["pvals_adj"], pairs["DC"]["pvals_adj"])).all()
    assert (found["min_logfoldchange"] == np.minimum(pairs["NK"]["logfoldchanges"], pairs["DC"]["logfoldchanges"])).all()
    assert (found["max_pct_nz_reference"] == np.maximum(pairs["NK"]["pct_nz_reference"], pairs["DC"]["pct_nz_reference"])).all()
    pd.testing.assert_frame_equal(res.summary("B"), whole.summary("B").head(5))
    assert len(res.to_df()) == 6 * 5 and len(res.to_df("B")) == 10 and len(res.to_df(None, "B")) == 10
    text = res.to_csv().splitlines()
    assert len(text) == 31 and text[0].startswith("group,reference,names,scores")


def test_genes_that_fail_one_filter_are_no_summary(ds):
    res = ds.pairwise("cell_type", ["B", "NK", "DC"], transform="log1p_cp10k", min_pct=0.3)
    both = set(res["B", "NK"]["names"]) & set(res["B", "DC"]["names"])
    assert set(res.summary("B")["names"]) == both and 0 < len(both) < len(set(res["B", "NK"]["names"]) | set(res["B", "DC"]["names"]))


def test_equal_scores_of_pairs_are_in_the_order_of_genes(db):
    x = np.random.default_rng(1).poisson(1.0, (60, 10)).astype(np.float32)
    adata = ad.AnnData(np.tile(x, (1, 3)), obs=rich().obs[["type"]], var=pd.DataFrame(index=[f"g{i}" for i in range(30)]))
    ds = db.ingest(adata, "t/x")
    for frame in (ds.pairwise("type", transform="log1p_cp10k")["B", "NK"], ds.pairwise("type", transform="log1p_cp10k").summary("B")):
        numbers = frame["names"].str[1:].astype(int).to_numpy()
        assert (numbers.reshape(10, 3) == numbers[::3, None] + [0, 10, 20]).all()


def test_constant_genes_have_no_difference_or_an_infinite_one(db):
    x = np.ones((6, 3), np.float64)
    x[:3, 1], x[:, 2] = 2, [1, 2, 3, 4, 5, 7]
    adata = ad.AnnData(x, obs=pd.DataFrame({"g": list("aaabbb")}, index=list("123456")))
    frame = db.ingest(adata, "t/x").pairwise("g", transform=None, logfc="scanpy")["a", "b"].set_index("names")
    assert frame.loc["0", ["scores", "pvals"]].tolist() == [0, 1] and frame.loc["1", ["scores", "pvals"]].tolist() == [np.inf, 0]
    wanted = scipy.stats.ttest_ind(x[:3, 2], x[3:, 2], equal_var=False)
    np.testing.assert_allclose(frame.loc["2", ["scores", "pvals"]].tolist(), wanted, rtol=1e-6)


def test_pairs_of_booleans_and_numbers(db):
    adata = rich()
    adata.obs["level"] = np.arange(60) % 3
    ds = db.ingest(adata, "t/x")
    assert ds.pairwise("ok", transform="log1p_cp10k").pairs == [("False", "True"), ("True", "False")]
    assert ds.pairwise("ok", [True, False], transform="log1p_cp10k").groups == ["False", "True"]
    levels = ds.pairwise("level", [2, 0], transform="log1p_cp10k")
    assert levels.groups == ["0", "2"] and len(levels[2, 0]) == 40


def one_and_all(ds, first, second):
    """One cell of the type `first` and all of the type `second`."""
    kinds = ds.obs["cell_type"]
    return [*np.flatnonzero(kinds == first)[:1], *np.flatnonzero(kinds == second)]


WRONG = {
    "no pair": (lambda ds: ds.pairwise("cell_type", ["B"], transform=None), "InvalidError", "no pairs to compare: 1 of the groups"),
    "no group": (lambda ds: ds.pairwise("cell_type", ["B", "NKK"], transform=None), "NotFoundError", "no group 'NKK'.*did you mean 'NK'"),
    "no transform": (lambda ds: ds.pairwise("cell_type"), "InvalidError", "say transform=: .* looks like raw counts"),
    "an argument": (lambda ds: ds.pairwise("cell_type", transform=None, key_added="x"), "InvalidError", "key_added is none of pairwise's arguments"),
    "one cell": (lambda ds: ds.pairwise("cell_type", transform="log1p_cp10k", cells=one_and_all(ds, "B", "NK")), "InvalidError", "group 'B' has 1 cells"),
    "as a reference": (
        lambda ds: ds.rank_genes_groups("cell_type", reference="pairwise", transform="log1p_cp10k"),
        "NotFoundError",
        r"ds.pairwise\('cell_type'\) compares every pair",
    ),
    "the same": (lambda ds: ds.pairwise("cell_type", ["B", "NK"], transform="log1p_cp10k")["B", "B"], "InvalidError", "the reference itself"),
    "half a pair": (lambda ds: ds.pairwise("cell_type", ["B", "NK"], transform="log1p_cp10k")["B"], "InvalidError", r"write res\[group, reference\]"),
    "another group": (lambda ds: ds.pairwise("cell_type", ["B", "NK"], transform="log1p_cp10k")["B", "DC"], "NotFoundError", "no group 'DC' in this result"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_pairs_are_told(ds, what):
    call, kind, says = WRONG[what]
    with pytest.raises(getattr(skytether, kind), match=says):
        call(ds)


def test_more_pairs_than_fit_are_refused(ds, monkeypatch):
    from msgexpress import _group_moments

    monkeypatch.setattr(_group_moments, "MOST_ENTRIES", 1000)
    with pytest.raises(skytether.ExhaustedError, match="more than a result of pairs holds.*groups= or genes="):
        ds.pairwise("cell_type", transform="log1p_cp10k")
    assert len(ds.pairwise("cell_type", transform="log1p_cp10k", genes=range(50)).to_df("B", "NK")) == 50
    # Ranks are kept for each pair.
    with pytest.raises(skytether.ExhaustedError, match="each ranked with each other one.*groups= or genes="):
        ds.pairwise("cell_type", method="wilcoxon", transform="log1p_cp10k", genes=range(50))
    assert len(ds.pairwise("cell_type", method="wilcoxon", transform="log1p_cp10k", genes=range(5)).to_df("B", "NK")) == 5
