"""Filters and fold changes of a ranking: scanpy's numbers, Seurat's rules."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import PBMC3K, rich
from test_rank import assert_same_p

import msgexpress
import skytether


@pytest.fixture(scope="module")
def pbmc3k(counted) -> ad.AnnData:
    """Normalised as scanpy does, with the result of its test."""
    adata = counted.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.tl.rank_genes_groups(adata, "cell_type", pts=True)
    return adata


@pytest.fixture(scope="module")
def ds(counted, tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("filters") / "fleet", drives=2) as db:
        yield db.ingest(counted, "blood/some")


def theirs(adata: ad.AnnData, group: str) -> pd.DataFrame:
    frame = sc.get.rank_genes_groups_df(adata, group=group)
    inside = (adata.obs["cell_type"] == group).to_numpy()
    found = adata.X.toarray()[:, adata.var_names.get_indexer(frame["names"])] > 0
    frame["cells_in"], frame["cells_out"] = found[inside].sum(axis=0), found[~inside].sum(axis=0)
    return frame


#: What stays of scanpy's frame, by Seurat's rules.
KEEPS = {
    "min_pct": ({"min_pct": 0.25}, lambda f: f[["pct_nz_group", "pct_nz_reference"]].max(axis=1) >= 0.25),
    "min_logfc": ({"min_logfc": 1.0}, lambda f: f["logfoldchanges"].abs() >= 1),
    "min_cells": ({"min_cells": 30}, lambda f: f[["cells_in", "cells_out"]].max(axis=1) >= 30),
    "all": (
        {"min_pct": 0.1, "min_logfc": 0.5, "min_cells": 100},
        lambda f: (
            (f[["pct_nz_group", "pct_nz_reference"]].max(axis=1) >= 0.1)
            & (f["logfoldchanges"].abs() >= 0.5)
            & (f[["cells_in", "cells_out"]].max(axis=1) >= 100)
        ),
    ),
}


@pytest.mark.parametrize("corr_method", ["benjamini-hochberg", "bonferroni"])
@pytest.mark.parametrize("what", KEEPS)
def test_filters_keep_the_genes_of_scanpys_numbers(ds, pbmc3k, what, corr_method):
    options, keeps = KEEPS[what]
    adata = pbmc3k
    if corr_method == "bonferroni":
        adata = ad.AnnData(pbmc3k.X, obs=pbmc3k.obs, var=pbmc3k.var)
        sc.tl.rank_genes_groups(adata, "cell_type", pts=True, corr_method=corr_method, groups=["B", "Platelet"])
    res = ds.rank_genes_groups("cell_type", groups=["B", "Platelet"], transform="log1p_cp10k", corr_method=corr_method, **options)
    for group in ("B", "Platelet"):
        wanted = theirs(adata, group)
        kept = wanted[keeps(wanted)].set_index("names")
        found = res.to_df(group).set_index("names")
        assert 0 < len(kept) < len(wanted)
        # scanpy's fold changes are float32, as ours are in tables: at the border the last bit decides.
        assert len(set(found.index) ^ set(kept.index)) <= 1
        found = found.loc[[name for name in found.index if name in kept.index]]
        kept = kept.loc[found.index]
        np.testing.assert_allclose(found["scores"], kept["scores"], rtol=1e-6, atol=1e-6)
        # Corrected for all genes, not for those that are left.
        assert_same_p(found["pvals_adj"], kept["pvals_adj"])
        np.testing.assert_allclose(found["logfoldchanges"], kept["logfoldchanges"], rtol=1e-6, atol=1e-6)
        assert found["scores"].is_monotonic_decreasing
    assert all(f"{name} {least:g}" in repr(res) and res.params[name] == least for name, least in options.items())


def test_filters_come_before_n_genes(ds):
    every = ds.rank_genes_groups("cell_type", transform="log1p_cp10k", min_pct=0.9)
    few = ds.rank_genes_groups("cell_type", transform="log1p_cp10k", min_pct=0.9, n_genes=7)
    for group in few.groups:
        pd.testing.assert_frame_equal(few.to_df(group), every.to_df(group).head(7))
        assert len(every.to_df(group)) > 7
    assert few.to_uns()["names"].shape == (7,) and every.to_uns()["scores"].shape == (max(len(every.to_df(g)) for g in every.groups),)
    assert few.top(3)["B"].tolist() == few.to_df("B")["names"].head(3).tolist()


def test_filters_of_two_sets_count_their_own_cells(db):
    adata = rich()
    ds = db.ingest(adata, "t/x")
    a, b = np.arange(60) < 10, np.arange(60) >= 25
    x = np.asarray(adata.X.todense()) > 0
    frame = ds.ttest(a, b, transform="log1p_cp10k", min_cells=9).to_df()
    assert set(frame["names"]) == set(adata.var_names[np.maximum(x[a].sum(axis=0), x[b].sum(axis=0)) >= 9]) and 0 < len(frame) < 40
    overlapping = ds.ttest(a, a | b, transform="log1p_cp10k", min_cells=12, overlap=True).to_df()
    assert set(overlapping["names"]) == set(adata.var_names[x[a | b].sum(axis=0) >= 12])
    # Cells that take no part count nowhere, those without a group do.
    part = np.arange(60) % 5 > 0
    some = ds.rank_genes_groups("type", transform="log1p_cp10k", cells=part, groups=["B"], min_cells=11).to_df()
    is_b = (adata.obs["type"] == "B").to_numpy()
    assert set(some["names"]) == set(adata.var_names[np.maximum(x[is_b & part].sum(axis=0), x[~is_b & part].sum(axis=0)) >= 11])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_fold_change": 2},
        {"min_in_group_fraction": 0.5, "max_out_group_fraction": 0.2, "min_fold_change": 0.5, "compare_abs": True},
        {"min_in_group_fraction": 0.0, "max_out_group_fraction": 1.0, "compare_abs": True},
    ],
)
@pytest.mark.parametrize("n_genes", [None, 50])
def test_filter_equals_filter_rank_genes_groups(ds, pbmc3k, options, n_genes):
    adata = pbmc3k
    if n_genes:
        adata = ad.AnnData(pbmc3k.X, obs=pbmc3k.obs, var=pbmc3k.var)
        sc.tl.rank_genes_groups(adata, "cell_type", pts=True, n_genes=n_genes)
    sc.tl.filter_rank_genes_groups(adata, **options)
    res = ds.rank_genes_groups("cell_type", transform="log1p_cp10k", n_genes=n_genes)
    found = res.filter(**options)
    records = found.to_uns()
    for group in res.groups:
        wanted = pd.Series(adata.uns["rank_genes_groups_filtered"]["names"][group])
        ours = pd.Series(records["names"][group])
        # Genes with equal scores may be in another order.
        assert set(ours.dropna()) == set(wanted.dropna()) == set(found.to_df(group)["names"])
        assert len(ours) == len(wanted)
        np.testing.assert_allclose(records["scores"][group], adata.uns["rank_genes_groups_filtered"]["scores"][group], rtol=1e-5, atol=1e-5)
    assert len(res.to_df()) > len(found.to_df())


def test_a_filtered_result_works_in_scanpys_plots(ds, pbmc3k):
    import matplotlib

    matplotlib.use("Agg")
    adata = ad.AnnData(pbmc3k.X, obs=pbmc3k.obs, var=pbmc3k.var)
    adata.uns["log1p"] = {}
    adata.uns["rank_genes_groups"] = ds.rank_genes_groups("cell_type", transform="log1p_cp10k", n_genes=20, min_pct=0.5, min_logfc=1).to_uns()
    sc.pl.rank_genes_groups_dotplot(adata, n_genes=2, dendrogram=False, show=False)
    sc.pl.rank_genes_groups(adata, n_genes=3, show=False)


def test_filters_of_filters_add_up(ds):
    res = ds.rank_genes_groups("cell_type", transform="log1p_cp10k", min_pct=0.3)
    both = res.filter(min_in_group_fraction=0.0, max_out_group_fraction=1.0, min_fold_change=1).to_df("B")
    frame = res.to_df("B")
    pd.testing.assert_frame_equal(both, frame[(frame["logfoldchanges"] > 1) & (frame["pct_nz_reference"] < 1)].reset_index(drop=True))
    assert 0 < len(both) < len(frame)


# ---- fold changes


#: What Seurat 4.4 printed for NK against B of pbmc3k, for genes that three cells have (satijalab/seurat, issue 7861):
#: `avg_log2FC`, `pct.1`, `pct.2`. What the issue has for version 5 is of a release candidate with another pseudocount.
SEURAT4 = {
    "GZMB": (5.507567, 0.961, 0.017),
    "NKG7": (6.262287, 1.000, 0.087),
    "PRF1": (4.612813, 0.948, 0.029),
    "GZMA": (4.466820, 0.929, 0.015),
    "CTSW": (4.203776, 0.987, 0.070),
    "CST7": (4.380031, 0.948, 0.038),
}
#: Two genes of SeuratObject's data set `pbmc_small`, the counts of all 230 genes in each of its 80 cells, and `Idents`.
SMALL = {
    "TYMP": "0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 4 7 1 6 5 1 6 4 5 1 0 0 0 2 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 6 5 1 1 6 4 3 2 4 5 1 3 2 5 14 11 3 4 8 4 "
    "0 0 0 0 0 0 0 0 0 2",
    "IFI30": "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 2 0 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 3 3 0 1 2 1 6 1 5 6 6 0 3 1 1 3 3 0 1 4 "
    "0 0 0 0 0 0 0 0 0 1",
    "total": "70 85 87 127 173 70 64 72 52 100 62 191 101 51 99 168 67 135 79 109 298 406 213 231 463 87 327 224 361 353 246 115 189 187 156 164 221 151 "
    "126 316 156 139 108 41 146 104 126 94 204 99 371 387 139 99 443 417 502 324 292 443 787 612 286 462 872 709 745 328 389 754 212 172 168 210 228 527 "
    "202 157 150 233",
    "ident": "0 0 0 0 0 0 0 0 0 0 2 2 2 2 2 2 2 2 2 2 1 1 1 1 1 1 1 1 1 1 0 2 0 0 0 0 0 0 0 0 0 2 0 0 2 2 0 0 0 0 1 1 2 1 1 1 1 1 1 0 2 1 2 1 2 1 1 1 1 2 "
    "0 0 0 0 0 0 0 0 0 1",
}


def test_seurat4_fold_changes_are_what_it_printed(db):
    adata = ad.read_h5ad(PBMC3K)
    ds = db.ingest(adata[:, adata.X.getnnz(axis=0) >= 3].copy(), "blood/pbmc3k")
    assert ds.n_vars == 13_714, "the genes that Seurat had"
    of = {"groups": ["NK"], "reference": "B", "transform": "log1p_cp10k", "logfc": "seurat4"}
    frame = ds.rank_genes_groups("cell_type", **of).to_df().set_index("names")
    pairs = ds.pairwise("cell_type", ["NK", "B"], transform="log1p_cp10k", logfc="seurat4").to_df("NK", "B").set_index("names")
    for name, (fold, inside, outside) in SEURAT4.items():
        row = frame.loc[name]
        assert (round(row["pct_nz_group"], 3), round(row["pct_nz_reference"], 3)) == (inside, outside)
        assert row["logfoldchanges"] == pytest.approx(fold, rel=0, abs=1e-6)
        assert pairs.loc[name, "logfoldchanges"] == pytest.approx(fold, rel=0, abs=1e-6)
    shown = ds.rank_genes_groups("cell_type", **of, min_logfc=5).to_df()["names"]
    assert {"GZMB", "NKG7"} <= {*shown} and not {"PRF1", "GZMA", "CTSW", "CST7"} & {*shown}


def test_seurat5_fold_changes_are_those_of_its_tests(db):
    """Seurat's own tests have these numbers (tests/testthat/test_differential_expression.R of version 5.5), of natural
    logarithms: ``FindMarkers(pbmc_small, ident.1 = 0, features = "TYMP", base = exp(1), pseudocount.use = 1)`` is
    -2.188179 with the shares 0.111 and 0.682, and "IFI30" of the first 40 cells against the others is -1.967123."""
    tymp, ifi30, total, ident = (np.array(SMALL[name].split(), int) for name in ("TYMP", "IFI30", "total", "ident"))
    x = np.column_stack([tymp, ifi30, total - tymp - ifi30]).astype(np.float32)
    obs = pd.DataFrame({"ident": ident.astype(str)}, index=[f"c{i}" for i in range(80)])
    ds = db.ingest(ad.AnnData(x, obs=obs, var=pd.DataFrame(index=["TYMP", "IFI30", "others"])), "t/pbmc_small")
    of = {"transform": "log1p_cp10k", "logfc": "seurat"}
    row = ds.rank_genes_groups("ident", groups=["0"], **of).to_df().set_index("names").loc["TYMP"]
    assert row["logfoldchanges"] * np.log(2) == pytest.approx(-2.188179, rel=0, abs=1e-6)
    assert (round(row["pct_nz_group"], 3), round(row["pct_nz_reference"], 3)) == (0.111, 0.682)
    first = np.arange(80) < 40
    for test in (ds.ttest, ds.wilcoxon):
        row = test(first, ~first, **of).to_df().set_index("names").loc["IFI30"]
        assert row["logfoldchanges"] * np.log(2) == pytest.approx(-1.967123, rel=0, abs=1e-6)
        assert (row["pct_nz_group"], row["pct_nz_reference"]) == (0.075, 0.45)


def test_seurat5_fold_changes_depend_on_group_sizes(db):
    """satijalab/seurat, issue 9346, printed these numbers: six cells with 0.06 of a gene against four with 0.04 of it
    have a negative fold change. A gene that is 1 in all cells has one, too. Its "counts" are logarithms here."""
    x = np.log1p(np.column_stack([[0.06] * 6 + [0.04] * 4, [1.0] * 10]))
    obs = pd.DataFrame({"g": ["a"] * 6 + ["b"] * 4}, index=[f"c{i}" for i in range(10)])
    ds = db.ingest(ad.AnnData(x, obs=obs, var=pd.DataFrame(index=["x", "y"])), "t/sizes")
    of = {"groups": ["a"], "reference": "b", "transform": None}
    found = ds.rank_genes_groups("g", **of, logfc="seurat").to_df().set_index("names")["logfoldchanges"]
    assert found["x"] == pytest.approx(-0.35548065, rel=0, abs=1e-6) and found["y"] == pytest.approx(-0.09953567, rel=0, abs=1e-6)
    # A mean of 1.06 against one of 1.04, and of 2 against 2.
    found = ds.rank_genes_groups("g", **of, logfc="seurat4").to_df().set_index("names")["logfoldchanges"]
    assert found["x"] == pytest.approx(0.02748129, rel=0, abs=1e-6) and found["y"] == pytest.approx(0, abs=1e-7)


def seurat(x: np.ndarray, a: np.ndarray, b: np.ndarray, version: int = 5) -> np.ndarray:
    """FoldChange of Seurat for its slot `data`. The tests above hold Seurat's numbers; this one is for the cells."""
    one, other = (np.expm1(x[cells].astype(np.float64)) for cells in (a, b))
    if version == 4:
        return np.log2((1 + one.mean(axis=0)) / (1 + other.mean(axis=0)))
    return np.log2((1 + one.sum(axis=0)) / (1 + other.sum(axis=0)) * (len(other) / len(one)))


@pytest.mark.parametrize("reference", ["rest", "NK"])
@pytest.mark.parametrize("version", [4, 5])
def test_seurats_fold_changes_of_groups(ds, pbmc3k, reference, version):
    kind_of = "seurat" if version == 5 else "seurat4"
    res = ds.rank_genes_groups("cell_type", groups=["B", "CD8 T"], reference=reference, transform="log1p_cp10k", logfc=kind_of)
    plain = ds.rank_genes_groups("cell_type", groups=["B", "CD8 T"], reference=reference, transform="log1p_cp10k")
    x, kind = pbmc3k.X.toarray(), pbmc3k.obs["cell_type"].to_numpy()
    for group in ("B", "CD8 T"):
        found = res.to_df(group).set_index("names")["logfoldchanges"].loc[pbmc3k.var_names]
        wanted = seurat(x, kind == group, kind == reference if reference != "rest" else kind != group, version)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        others = ["names", "scores", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference"]
        pd.testing.assert_frame_equal(res.to_df(group)[others], plain.to_df(group)[others])
        # They are other numbers: not scanpy's by mistake.
        assert np.abs(found - plain.to_df(group).set_index("names")["logfoldchanges"].loc[pbmc3k.var_names]).max() > 5
    assert res.params["logfc"] == kind_of and f"Seurat {version}'s fold changes" in repr(res) and plain.params["logfc"] == "scanpy"
    assert "Seurat" not in repr(plain) and len(res.receipts) == 2 and res.receipts[0] is res.receipt


@pytest.mark.parametrize("base", [None, 2.0])
def test_seurats_fold_changes_of_stored_logarithms(db, base):
    adata = rich()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata, base=base)
    adata.obs["g"] = pd.Categorical(np.array(["x", "y", None, "z"], object)[np.arange(60) % 4])
    ds = db.ingest(adata, "t/x")
    natural = adata.X.toarray().astype(np.float64) * (1 if base is None else np.log(base))
    n, part = np.arange(60), np.arange(60) > 7

    def agree(res, a, b):
        found = res.to_df().set_index("names")["logfoldchanges"].loc[adata.var_names]
        np.testing.assert_allclose(found, seurat(natural, a, b), rtol=1e-6, atol=1e-6)

    agree(ds.rank_genes_groups("g", groups=["y"], transform=None, logfc="seurat"), n % 4 == 1, n % 4 != 1)
    agree(ds.rank_genes_groups("g", groups=["y"], reference="z", transform=None, logfc="seurat"), n % 4 == 1, n % 4 == 3)
    agree(ds.rank_genes_groups("g", groups=["y"], transform=None, logfc="seurat", cells=part), (n % 4 == 1) & part, (n % 4 != 1) & part)
    agree(ds.ttest(n < 20, n >= 30, transform=None, logfc="seurat"), n < 20, n >= 30)
    agree(ds.ttest(n < 40, n >= 30, transform=None, logfc="seurat", overlap=True), n < 40, n >= 30)
    some = ds.rank_genes_groups("g", groups=["y"], transform=None, logfc="seurat", genes=["g30", "g3"]).to_df().set_index("names")["logfoldchanges"]
    np.testing.assert_allclose(some.loc[["g3", "g30"]], seurat(natural, n % 4 == 1, n % 4 != 1)[[3, 30]], rtol=1e-6)


def test_filters_go_by_the_fold_changes_that_are_shown(ds):
    frame = ds.rank_genes_groups("cell_type", groups=["B"], transform="log1p_cp10k", logfc="seurat").to_df()
    found = ds.rank_genes_groups("cell_type", groups=["B"], transform="log1p_cp10k", logfc="seurat", min_logfc=1).to_df()
    pd.testing.assert_frame_equal(found, frame[frame["logfoldchanges"].abs() >= 1].reset_index(drop=True))
    assert 0 < len(found) < 1000


def test_seurats_fold_changes_refuse_what_is_no_logarithm(db):
    adata = rich()
    adata.X = adata.X.copy() * 100
    with pytest.raises(skytether.InvalidError, match="too large to be logarithms.*log1p_cp10k"):
        db.ingest(adata, "t/x").rank_genes_groups("type", transform=None, logfc="seurat")


# ---- names


def test_gene_symbols_are_in_tables_and_plots(db):
    adata = rich()
    ds = db.ingest(adata, "t/x")
    res = ds.rank_genes_groups("type", transform="log1p_cp10k", gene_symbols="symbol", n_genes=5)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.tl.rank_genes_groups(adata, "type", groups=["T", "B", "NK"], n_genes=5)
    wanted = sc.get.rank_genes_groups_df(adata, "B", gene_symbols="symbol")
    frame = res.to_df("B")
    assert list(frame.columns[:2]) == ["names", "symbol"] and frame["symbol"].tolist() == wanted["symbol"].tolist()
    assert res.top(2)["B"].tolist() == wanted["symbol"].tolist()[:2]
    # scanpy looks names up in var_names, and finds symbols itself.
    assert res.to_uns()["names"]["B"].tolist() == wanted["names"].tolist()
    assert res.plot_dotplot(2).data["gene"].iloc[0] == wanted["symbol"].iloc[0] or set(res.plot_dotplot(2).data["gene"]) <= set(adata.var["symbol"])
    shown = {text.get_text() for text in res.plot_volcano("B").texts}
    assert shown & set(adata.var["symbol"]) and not shown & set(adata.var_names)
    assert "symbol" in ds.ttest({"type": "B"}, {"type": "T"}, transform="log1p_cp10k", gene_symbols="symbol").to_df()
    with pytest.raises(skytether.NotFoundError, match="no column 'symbols'.*did you mean 'symbol'"):
        ds.rank_genes_groups("type", transform="log1p_cp10k", gene_symbols="symbols")


WRONG = {
    "percent": ({"min_pct": 25}, "min_pct is 25: give a share of cells from 0 to 1, such as 0.25"),
    "negative": ({"min_pct": -0.1}, "min_pct is -0.1"),
    "nan": ({"min_logfc": float("nan")}, "min_logfc is nan: give a number of 0 or more"),
    "text": ({"min_logfc": "1"}, "min_logfc is '1'"),
    "half a cell": ({"min_cells": 2.5}, "min_cells is 2.5: give a number of cells"),
    "fold changes": ({"logfc": "Seurat"}, "logfc is 'Seurat': use 'scanpy'.*'seurat4' .version 4.*did you mean 'seurat'"),
    "symbols": ({"gene_symbols": ["symbol"]}, "gene_symbols is .*which is no text"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_filters_are_told(ds, what):
    options, says = WRONG[what]
    with pytest.raises(skytether.InvalidError, match=says):
        ds.rank_genes_groups("cell_type", transform="log1p_cp10k", **options)
    with pytest.raises(skytether.InvalidError, match=says):
        ds.ttest([0, 1], [2, 3], transform="log1p_cp10k", **options)


def test_wrong_bounds_of_filter_are_told(ds):
    res = ds.rank_genes_groups("cell_type", groups=["B"], transform="log1p_cp10k")
    for options, says in (
        ({"min_in_group_fraction": 25}, "min_in_group_fraction is 25"),
        ({"max_out_group_fraction": -1}, "max_out"),
        ({"min_fold_change": float("nan")}, "min_fold_change is nan"),
    ):
        with pytest.raises(skytether.InvalidError, match=says):
            res.filter(**options)
