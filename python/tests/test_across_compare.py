"""Cells of one data set against cells of another: numbers of scipy and scanpy, genes by identifier, and questions."""

from __future__ import annotations

import math
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from across import ONLY_A, ONLY_B, halves, normalised, pair, small, two  # noqa: F401 - pair and two are fixtures
from scipy import stats

import skytether

T = "log1p_cp10k"
A, B = {"dataset": "blood/a", "cell_type": "B"}, {"dataset": "blood/b", "label": "B cell"}


@pytest.fixture
def tiny(db):
    """Two data sets of 30 genes each; both have 20 of them."""
    db.ingest(small(), "t/x")
    db.ingest(small(45, 2, 10), "t/y")
    return db


def by_scipy(a: pd.DataFrame, b: pd.DataFrame, equal_var: bool) -> pd.DataFrame:
    """scipy's test of the genes that both frames have, and scanpy's fold change."""
    genes = [gene for gene in a.columns if gene in set(b.columns)]
    a, b = a[genes], b[genes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t, p = stats.ttest_ind(a.to_numpy(), b.to_numpy(), equal_var=equal_var)
    # scanpy's words for genes without any variance.
    t, p = np.nan_to_num(t, nan=0.0), np.where(np.isnan(p), 1.0, p)
    change = np.log2((np.expm1(a.mean().to_numpy()) + 1e-9) / (np.expm1(b.mean().to_numpy()) + 1e-9))
    return pd.DataFrame({"scores": t, "pvals": p, "logfoldchanges": change, "pct_nz_group": (a > 0).mean().to_numpy()}, index=genes)


def assert_like(res, wanted: pd.DataFrame, column: str = "gene_ids") -> None:
    frame = res.to_df().set_index(column)
    assert sorted(frame.index) == sorted(wanted.index)
    frame = frame.loc[wanted.index]
    for label in ("scores", "logfoldchanges", "pct_nz_group"):
        np.testing.assert_allclose(frame[label], wanted[label], rtol=1e-6, atol=1e-9, err_msg=label)
    same_p(frame["pvals"], wanted["pvals"])
    same_p(frame["pvals_adj"], stats.false_discovery_control(wanted["pvals"]))


def same_p(found: object, wanted: object) -> None:
    """Of scores that agree within 1e-6, the tails agree by their logarithms. Welch's test squares in float32, as
    scanpy does."""
    logs = [np.log(np.maximum(np.asarray(p, float), 1e-300)) for p in (found, wanted)]
    np.testing.assert_allclose(*logs, rtol=1e-6, atol=1e-5)


def same_frame(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """Columns of numbers: p-values as `same_p`, others within 1e-6."""
    for column in wanted.columns:
        if column.startswith("pvals"):
            same_p(found[column], wanted[column])
        else:
            np.testing.assert_allclose(found[column].to_numpy(float), wanted[column].to_numpy(float), rtol=1e-6, atol=1e-9, err_msg=column)


@pytest.mark.parametrize("method", ["t-test", "student"])
def test_compare_equals_scipy_over_shared_genes(two, pair, method):
    res = two.compare(A, B, on="gene_ids", method=method, transform=T)
    a, b = (normalised(one)[mask.to_numpy()] for one, mask in zip(pair, (pair[0].obs["cell_type"] == "B", pair[1].obs["label"] == "B cell")))
    assert_like(res, by_scipy(a, b, method == "student"))
    assert res.test == ("Student's t-test" if method == "student" else "Welch's t-test") and res.groups == ["B of blood/a"]
    assert list(res.to_df()["scores"]) == sorted(res.to_df()["scores"], reverse=True)
    ids = [set(one.var["gene_ids"]) for one in pair]
    assert set(res.matched) == ids[0] & ids[1] and set(res.missing_in_a) == ids[1] - ids[0] and set(res.missing_in_b) == ids[0] - ids[1]
    assert (len(res.missing_in_a), len(res.missing_in_b)) == (ONLY_B, ONLY_A)
    frame = res.to_df()
    assert (frame["names_b"] == "symbol-" + frame["names"]).all() and frame.columns[:3].tolist() == ["names", "names_b", "gene_ids"]
    assert res.cells == {"a": {"blood/a": len(a)}, "b": {"blood/b": len(b)}}
    std = pd.concat([a[res.matched].std(), b[res.matched].std()], axis=1).to_numpy()
    np.testing.assert_allclose(res.means[["std_a", "std_b"]], std, rtol=1e-6, atol=1e-9)


def test_compare_equals_scanpy_on_the_joined_matrix(two, pair):
    a, b = (normalised(one) for one in pair)
    genes = [gene for gene in a.columns if gene in set(b.columns)]
    joined = ad.AnnData(X=np.concatenate([a[genes], b[genes]]), var=pd.DataFrame(index=genes))
    joined.obs["side"] = pd.Categorical([*np.where(pair[0].obs["cell_type"] == "B", "a", "-"), *np.where(pair[1].obs["label"] == "NK", "b", "-")])
    sc.tl.rank_genes_groups(joined, "side", groups=["a"], reference="b", method="t-test")
    wanted = sc.get.rank_genes_groups_df(joined, "a").set_index("names")
    res = two.compare(A, {"dataset": "blood/b", "label": "NK"}, on="gene_ids", transform=T).to_df().set_index("gene_ids").loc[wanted.index]
    np.testing.assert_allclose(res["scores"], wanted["scores"], rtol=1e-6)
    np.testing.assert_allclose(res["logfoldchanges"], wanted["logfoldchanges"], rtol=1e-6)
    same_p(res["pvals_adj"], wanted["pvals_adj"])


def test_moments_alone_move(two, pair):
    """Per gene and group at most 18 bytes and its share of an entry; the matrices are larger."""
    res = two.compare(A, B, on="gene_ids", transform=T)
    assert list(res.receipts) == ["blood/a", "blood/b"] and res.receipt is res.receipts
    for one, column, receipt in zip(pair, ("cell_type", "label"), res.receipts.values()):
        moved = receipt.to_dict()["bytes_moved"]
        # Entries of all groups and of the cells in none, a bit more a gene, plans and metadata.
        entries = one.obs[column].nunique() + 1
        assert moved < one.n_vars * (entries * 18 + 20) + 20_000 and moved < one.X.nnz
        assert all(drive["rung"] == "full" for drive in receipt.to_dict()["drives"])
    together = res.receipts.to_dict()
    assert together["bytes_moved"] == sum(r.to_dict()["bytes_moved"] for r in res.receipts.values())
    assert {d["dataset"] for d in together["drives"]} == {"blood/a", "blood/b"}
    assert str(res.receipts).count("everything ran here") + str(res.receipts).count("answered from kept results") == 8
    few = two.compare(A, B, on="gene_ids", transform=T, genes=["CD79A", "NKG7"])
    assert few.receipts.to_dict()["bytes_moved"] < together["bytes_moved"] / 10


@pytest.mark.parametrize("groups", [True, False])
def test_groups_and_codes_give_the_same(tiny, monkeypatch, groups):
    """Whether all groups of a column move, or the cells' groups, is a matter of bytes."""
    monkeypatch.setattr("msgexpress._across_compare._takes_all_groups", lambda *sizes: groups)
    res = tiny.compare({"dataset": "t/x", "type": ["B", "NK", "B"]}, {"dataset": "t/x", "type": "T"}, transform=T)
    due = tiny["t/x"].ttest({"type": ["B", "NK"]}, {"type": "T"}, transform=T)
    same_frame(res.to_df().set_index("names"), due.to_df().set_index("names").loc[res.to_df()["names"]])
    assert res.cells == {"a": {"t/x": 26}, "b": {"t/x": 14}}
    both = "those with type 'B' of t/x" if groups else "13 of t/x"
    with pytest.raises(skytether.InvalidError, match=rf"cells are on both sides \({both}\)"):
        tiny.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/x", "type": ["B", "T"]}, transform=T)
    for value in ("b", "unused", 3):
        with pytest.raises(skytether.NotFoundError, match=f"no cell of t/x has {value!r} in obs column 'type': there are B, NK, T"):
            tiny.compare({"dataset": "t/x", "type": value}, {"dataset": "t/y", "type": "B"}, transform=T)


@pytest.mark.parametrize("way", ["mask", "names", "numbers", "sql", "columns", "pair of dict"])
def test_cells_are_chosen_in_any_way(two, pair, way):
    mask = ((pair[1].obs["label"] == "B cell") & (pair[1].obs["donor"] == "d2")).to_numpy()
    chosen = {
        "mask": ("blood/b", mask),
        "names": ("blood/b", list(pair[1].obs_names[mask])),
        "numbers": (two["blood/b"], np.flatnonzero(mask)),
        "sql": ("blood/b", "label = 'B cell' AND donor = 'd2' -- of the second"),
        "columns": {"dataset": "blood/b", "label": "B cell", "donor": "d2"},
        "pair of dict": ("blood.b", {"label": ["B cell"], "donor": ("d2",)}),
    }[way]
    res = two.compare(A, chosen, on="gene_ids", transform=T)
    a = normalised(pair[0])[(pair[0].obs["cell_type"] == "B").to_numpy()]
    assert_like(res, by_scipy(a, normalised(pair[1])[mask], False))


def test_lists_of_data_sets_are_taken_together(two, pair):
    res = two.compare([A, B], [{"dataset": "blood/a", "cell_type": ["NK", "CD8 T"]}], on="gene_ids", transform=T)
    a, b = (normalised(one) for one in pair)
    genes = [gene for gene in a.columns if gene in set(b.columns)]
    first = pd.concat([a.loc[(pair[0].obs["cell_type"] == "B").to_numpy(), genes], b.loc[(pair[1].obs["label"] == "B cell").to_numpy(), genes]])
    assert_like(res, by_scipy(first, a.loc[pair[0].obs["cell_type"].isin(["NK", "CD8 T"]).to_numpy(), genes], False))
    # A gene that one of the data sets of a side lacks is missing there.
    assert len(res.missing_in_a) == ONLY_A + ONLY_B and len(res.missing_in_b) == ONLY_B
    assert list(res.cells["a"]) == ["blood/a", "blood/b"] and list(res.receipts) == ["blood/a", "blood/b"]


def test_same_data_set_on_both_sides_equals_ttest(two):
    res = two.compare(A, {"dataset": "blood/a", "cell_type": ["NK", "CD8 T"]}, transform=T).to_df().set_index("names")
    due = two["blood/a"].ttest({"cell_type": "B"}, {"cell_type": ["NK", "CD8 T"]}, transform=T).to_df().set_index("names").loc[res.index]
    same_frame(res, due)


def test_filters_and_genes_decide_what_is_tested(two, pair):
    whole = two.compare(A, B, on="gene_ids", transform=T).to_df().set_index("gene_ids")
    res = two.compare(A, B, on="gene_ids", transform=T, min_pct=0.2, min_logfc=0.5, corr_method="bonferroni")
    some = whole[(whole[["pct_nz_group", "pct_nz_reference"]].max(axis=1) >= 0.2) & (whole["logfoldchanges"].abs() >= 0.5)]
    frame = res.to_df().set_index("gene_ids")
    assert 0 < len(some) < len(whole) and set(frame.index) == set(some.index) and set(res.filtered) == set(whole.index) - set(some.index)
    np.testing.assert_allclose(frame["pvals_adj"], np.minimum(frame["pvals"] * len(some), 1), rtol=1e-12)
    some = [pair[0].var_names[0], pair[0].var["gene_ids"].iloc[1], pair[1].var_names[5]]
    ids = {pair[0].var["gene_ids"].iloc[0], some[1], pair[1].var["gene_ids"].iloc[5]}
    few = two.compare(A, B, on="gene_ids", transform=T, genes=some)
    assert {*few.matched, *few.missing_in_a, *few.missing_in_b} == ids
    np.testing.assert_allclose(few.to_df().set_index("gene_ids")["scores"], whole.loc[few.to_df()["gene_ids"], "scores"], rtol=1e-12)
    assert len(two.compare(A, B, on="gene_ids", transform=T, n_genes=7).to_df()) == 7
    assert (two.compare(A, B, on="gene_ids", transform=T, method="t-test_overestim_var").to_df()["scores"] != whole["scores"].to_numpy()).any()


def test_missing_genes_have_no_numbers(tiny):
    res = tiny.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, transform=T)
    assert res.matched == [f"g{i}" for i in range(10, 30)]
    assert res.missing_in_a == [f"g{i}" for i in range(30, 40)] and res.missing_in_b == [f"g{i}" for i in range(10)]
    assert sorted(res.to_df()["names"]) == sorted(res.matched) and not res.to_df().isna().any().any()
    genes = res.genes.set_index("id")
    assert genes.loc["g0"].tolist() == ["g0", None] and genes.loc["g35"].tolist() == [None, "g35"] and len(genes) == 40
    assert repr(res).startswith("<msgexpress.CompareResult of B of t/x against B of t/y: 20 genes (10 missing in a, 10 missing in b), Welch's")


def test_ids_and_names_give_the_same_numbers(tiny):
    sides = {"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "T"}
    by_name = tiny.compare(*sides, transform=T).to_df()
    by_id = tiny.compare(*sides, on="gene_ids", transform=T).to_df()
    each = tiny.compare(*sides, on={"t/x": "gene_ids", "t.y": "gene_ids"}, transform=T).to_df()
    assert list(each.columns)[:2] == ["names", "id"]
    pd.testing.assert_frame_equal(by_id.drop(columns="gene_ids"), by_name)
    pd.testing.assert_frame_equal(each.drop(columns="id"), by_name)


def test_a_var_column_called_gene_is_not_the_names(db):
    for name, first in (("t/x", 0), ("t/y", 3)):
        one = small(first=first)
        one.var["gene"] = [f"entrez-{i + first}" for i in range(30)]
        one.var_names = [f"{name}-{i}" for i in range(30)]
        db.ingest(one, name)
    res = db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, on="gene", transform=T)
    assert res.matched == [f"entrez-{i}" for i in range(3, 30)]


def test_versions_of_ensembl_ids_are_asked_about(db):
    one, other = small(), small(seed=2)
    other.var["gene_ids"] = [f"{gene}.{i}" for i, gene in enumerate(other.var["gene_ids"])]
    db.ingest(one, "t/x")
    db.ingest(other, "t/y")
    sides = {"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}
    shared = r"t/x and t/y share 0 identifiers of genes, and 30 without Ensembl's versions \(ENSG\d+\.0\): say id_versions=\"drop\""
    with pytest.raises(skytether.InvalidError, match=shared):
        db.compare(*sides, on="gene_ids", transform=T)
    assert len(db.compare(*sides, on="gene_ids", transform=T, id_versions="drop").matched) == 30
    with pytest.raises(skytether.InvalidError, match="t/x, t/y share no gene by on='gene_ids': t/x has 'ENSG00000000000'"):
        db.compare(*sides, on="gene_ids", transform=T, id_versions="keep")
    assert len(db.compare(*sides, transform=T).matched) == 30


def test_par_genes_on_y_stay_apart_without_versions(db):
    one = small()
    one.var["gene_ids"] = [f"ENSG00000182378.14{'_PAR_Y' if i == 1 else ''}" if i < 2 else f"ENSG{i:011d}.3" for i in range(30)]
    db.ingest([one, one], "t/x", batch="b")
    res = db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/x", "type": "T"}, on="gene_ids", transform=T, id_versions="drop")
    assert res.matched[:3] == ["ENSG00000182378", "ENSG00000182378_PAR_Y", "ENSG00000000002"]


def test_identifiers_of_several_genes_are_asked_about(db):
    one = small()
    one.var["gene_ids"] = ["ENSG1", "ENSG1", *one.var["gene_ids"][2:]]
    db.ingest(one, "t/x")
    db.ingest(small(seed=2), "t/y")
    sides = {"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}
    with pytest.raises(skytether.InvalidError, match=r"1 identifiers of genes of t/x are those of several genes \('ENSG1'\).*on=.*duplicates=\"drop\""):
        db.compare(*sides, on="gene_ids", transform=T)
    res = db.compare(*sides, on="gene_ids", transform=T, duplicates="drop")
    assert len(res.matched) == 28 and len(res.missing_in_a) == 2


def test_genes_without_an_identifier_take_no_part(db):
    one = small()
    one.var["gene_ids"] = [None, "", *one.var["gene_ids"][2:]]
    db.ingest(one, "t/x")
    db.ingest(small(seed=2), "t/y")
    with pytest.warns(UserWarning, match=r"2 genes of t/x have no identifier \('g0', 'g1'\): they take no part"):
        res = db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, on="gene_ids", transform=T)
    assert len(res.matched) == 28


def test_genes_without_variance_are_no_difference_or_all(db):
    for name, values in (("t/x", (0, 5, 5)), ("t/y", (0, 5, 7))):
        one = small()
        x = one.X.toarray()
        x[:, 1:4] = values
        one.X = sp.csr_matrix(x)
        db.ingest(one, name)
    with pytest.warns(UserWarning, match="holds counts"):
        frame = db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, transform=None).to_df().set_index("names")
    assert frame.loc["g1", ["scores", "pvals"]].tolist() == [0, 1] and frame.loc["g2", ["scores", "pvals"]].tolist() == [0, 1]
    assert frame.loc["g3", ["scores", "pvals"]].tolist() == [-math.inf, 0]


def test_transform_layer_and_base_may_differ_by_data_set(db):
    """One data set has counts, the other logarithms with base 2 in a layer: both are compared as natural ones."""
    one, other = small(), small(seed=2)
    one.var_names = other.var_names = one.var["gene_ids"]
    logs = normalised(other)
    other.layers["logs"] = sp.csr_matrix((logs.to_numpy() / math.log(2)).astype(np.float64))
    other.uns["log1p"] = {"base": 2}
    db.ingest(one, "t/x")
    db.ingest(other, "t/y")
    sides = {"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}
    res = db.compare(*sides, transform={"t/x": T, "t/y": None}, layer={"t/x": None, "t/y": "logs"})
    assert_like(res, by_scipy(normalised(one)[(one.obs["type"] == "B").to_numpy()], logs[(other.obs["type"] == "B").to_numpy()], False), "names")
    assert res.params["transform"] == {"t/x": T, "t/y": None} and "values by data set" in repr(res)


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "text"),
    [
        ({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, {}, "InvalidError", r"say transform=: t/x: its values are all non-negative.*; t/y: .*a dict"),
        ({"type": "B"}, {"dataset": "t/y", "type": "B"}, {"transform": T}, "InvalidError", r"a does not say which data set: give \{\"dataset\""),
        ("t/x", {"dataset": "t/y"}, {"transform": T}, "InvalidError", "a is str, which names no cells of a data set"),
        ([], {"dataset": "t/y"}, {"transform": T}, "InvalidError", "a names no cells"),
        ({"dataset": 3}, {"dataset": "t/y"}, {"transform": T}, "InvalidError", "a names the data set 3"),
        ({"dataset": "t/z"}, {"dataset": "t/y"}, {"transform": T}, "NotFoundError", "there is no data set t/z"),
        (
            {"dataset": "t/x", "type": "b"},
            {"dataset": "t/y", "type": "B"},
            {"transform": T},
            "NotFoundError",
            r"no cell of t/x has 'b' in obs column 'type': there are B, NK, T; did you mean 'B'",
        ),
        ({"dataset": "t/x", "type": "unused"}, {"dataset": "t/y", "type": "B"}, {"transform": T}, "NotFoundError", "no cell of t/x has 'unused'"),
        ({"dataset": "t/x", "type": "B", "n": -1}, {"dataset": "t/y"}, {"transform": T}, "NotFoundError", "no cell of t/x has -1 in obs column 'n'"),
        ({"dataset": "t/x", "typ": "B"}, {"dataset": "t/y", "type": "B"}, {"transform": T}, "NotFoundError", "obs of t/x has no column 'typ'.*did you mean 'type'"),
        ({"dataset": "t/x", "type": []}, {"dataset": "t/y", "type": "B"}, {"transform": T}, "InvalidError", "names no value of obs column 'type'"),
        ({"dataset": "t/x", "n": 3}, {"dataset": "t/y"}, {"transform": T}, "InvalidError", "'3 of t/x' has 1 cells"),
        ({"dataset": "t/x", "type": "B"}, {"dataset": "t/x", "type": ["B", "T"]}, {"transform": T}, "InvalidError", "cells are on both sides"),
        ({"dataset": "t/x", "type": "B"}, {"dataset": "t/x"}, {"transform": T}, "InvalidError", r"cells are on both sides \(13 of t/x\)"),
        (("t/x", "typ = 1"), {"dataset": "t/y"}, {"transform": T}, "InvalidError", "where= of t/x: .*typ"),
        (
            {"dataset": "t/x"},
            {"dataset": "t/y"},
            {"transform": T, "on": "ids"},
            "NotFoundError",
            "var of t/x has no column 'ids' to identify genes by: it has 'symbol', 'high', 'gene_ids'",
        ),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "on": {"t/x": "gene_ids"}}, "InvalidError", "on= says nothing of t/y"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": {"t/x": T, "t/q": T}}, "InvalidError", "transform= says something of t/q, which takes no part"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": "log"}, "InvalidError", "there is no transform 'log'"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "method": "u"}, "InvalidError", "method 'u' does not exist"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "corr_method": "none"}, "InvalidError", "corr_method 'none' does not exist"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "min_pct": 20}, "InvalidError", "min_pct is 20: give a share"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "min_logfc": 99}, "InvalidError", "no gene of 20 passes"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "genes": ["g3x"]}, "NotFoundError", "none of t/x, t/y has a gene 'g3x'; did you mean 'g3"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "genes": ["g3"]}, "InvalidError", "none of the genes that genes= names is in all data sets"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "genes": [3]}, "InvalidError", "give a list of texts"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "layer": "more"}, "NotFoundError", "t/x has no layer 'more'"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "id_versions": "x"}, "InvalidError", "id_versions is 'x'"),
        ({"dataset": "t/x"}, {"dataset": "t/y"}, {"transform": T, "duplicates": "x"}, "InvalidError", "duplicates is 'x'"),
    ],
)
def test_what_cannot_be_compared_says_why(tiny, a, b, options, error, text):
    with pytest.raises(getattr(skytether, error), match=text):
        tiny.compare(a, b, **options)


def test_value_that_no_transform_takes_is_named(db):
    one = small()
    x = one.X.toarray()
    x[3, 4] = -1
    one.X = sp.csr_matrix(x)
    db.ingest(one, "t/x")
    db.ingest(small(seed=2), "t/y")
    with pytest.raises(skytether.InvalidError, match="t/x: gene 'g4' has the value -1 in cell 'cell-3'"), pytest.warns(UserWarning, match="not all integers"):
        db.compare({"dataset": "t/x"}, {"dataset": "t/y"}, transform=T)


def test_data_set_replaced_meanwhile_is_a_conflict(tiny):
    old = tiny["t/x"]
    tiny.ingest(small(seed=9), "t/x", replace=True)
    with pytest.raises(skytether.ConflictError, match="t/x was replaced"):
        tiny.compare((old, {"type": "B"}), {"dataset": "t/y"}, transform=T)


def test_results_plot_and_export_as_rankings_do(tiny, tmp_path):
    res = tiny.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, transform=T)
    res.plot_volcano(path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert res.to_csv().splitlines()[0].startswith("group,names,scores") and len(res.to_csv().splitlines()) == 21
    assert list(res.to_uns()["names"].dtype.names) == ["B of t/x"] and len(res["B of t/x"]) == 20
    with pytest.raises(skytether.SkytetherError):
        res.plot_dotplot()


def test_sides_called_alike_are_told_apart(tiny):
    res = tiny.compare(("t/x", np.arange(5)), ("t/x", np.arange(5, 12)), transform=T)
    assert res.groups == ["some cells of t/x (first)"] and res.params["reference"] == "some cells of t/x (second)"


def test_progress_is_reported_by_data_set(tiny):
    told = []
    tiny.compare({"dataset": "t/x"}, {"dataset": "t/y"}, transform=T, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2)]


def test_a_domain_is_a_side_of_all_its_data_sets(tiny):
    tiny.ingest(small(50, 5), "u/z")
    res = tiny.compare({"dataset": "t", "type": "B"}, {"dataset": "u", "type": "B"}, transform=T)
    due = tiny.compare({"dataset": ["t/x", "t.y"], "type": "B"}, {"dataset": "u/z", "type": "B"}, transform=T)
    pd.testing.assert_frame_equal(res.to_df(), due.to_df())
    assert list(res.cells["a"]) == ["t/x", "t/y"] and res.missing_in_b == [f"g{i}" for i in range(30, 40)]


@pytest.mark.parametrize("about", [None, "raw"])
def test_raw_and_layers_have_genes_of_their_own(db, about):
    """Raw has more genes than X, whichever of them a data set is about; the layer has those of X."""
    for name, seed in (("t/x", 1), ("t/y", 2)):
        whole = small(40, seed)
        made = whole[:, 5:].copy()
        made.raw = whole
        made.layers["twice"] = made.X * 2
        db.ingest(made, name, layer=about)
    sides = {"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}
    values = [normalised(small(40, seed)) for seed in (1, 2)]
    mask = (small().obs["type"] == "B").to_numpy()
    assert_like(db.compare(*sides, on="gene_ids", transform=T, layer=None if about else "raw"), by_scipy(*(v[mask] for v in values), False))
    main = db.compare(*sides, transform=T, layer="X" if about else None)
    assert main.matched == [f"g{i}" for i in range(5, 30)]
    pd.testing.assert_frame_equal(db.compare(*sides, transform=T, layer="twice").to_df(), main.to_df())


def test_numbers_identify_genes_also_with_gaps(db):
    for name, first in (("t/x", 0), ("t/y", 3)):
        one = small(first=first)
        one.var_names = [f"{name}-{i}" for i in range(30)]
        one.var["entrez"] = [np.nan if name == "t/y" and i == 5 else 1000 + i + first for i in range(30)]
        db.ingest(one, name)
    with pytest.warns(UserWarning, match="1 genes of t/y have no identifier"):
        res = db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/y", "type": "B"}, on="entrez", transform=T)
    assert res.matched == [str(i) for i in range(1003, 1030) if i != 1008]


def test_rank_sums_over_data_sets_are_refused_by_name(tiny):
    with pytest.raises(skytether.InvalidError, match=r"method 'wilcoxon' ranks the cells of both sides together.*batch=.*ds\.wilcoxon\(a, b\).*'t-test'"):
        tiny.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/x", "type": "T"}, method="wilcoxon", transform=T)
