"""Mean expression of clusters of several data sets, and which of them are alike: numbers of scanpy, scipy and numpy."""

from __future__ import annotations

import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from across import ONLY_A, ONLY_B, halves, normalised, pair, small, two  # noqa: F401 - pair and two are fixtures
from scipy import stats
from sklearn.metrics.pairwise import cosine_similarity

import skytether

T = "log1p_cp10k"
BY = {"blood/a": "cell_type", "blood/b": "label"}


@pytest.fixture
def tiny(db):
    for name, seed, first in (("t/x", 1, 0), ("t/y", 2, 10), ("t/z", 3, 0)):
        db.ingest(small(40, seed, first), name)
    return db


def means(adata: ad.AnnData, by: str, cells: np.ndarray | None = None) -> pd.DataFrame:
    """scanpy's means of groups; columns are `gene_ids`."""
    values = normalised(adata)
    made = ad.AnnData(X=values.to_numpy(), obs=adata.obs[[by]], var=pd.DataFrame(index=values.columns))
    made = made if cells is None else made[cells].copy()
    found = sc.get.aggregate(made, by, "mean")
    order = [c for c in made.obs[by].cat.categories if c in set(found.obs_names)]
    return found[order].to_df(layer="mean")


@pytest.mark.parametrize("join", ["inner", "outer"])
def test_centroids_equal_scanpy_aggregates(two, pair, join):
    found = two.centroids("blood", BY, transform=T, on="gene_ids", join=join)
    wanted = pd.concat({"blood/a": means(pair[0], "cell_type"), "blood/b": means(pair[1], "label")}, join=join)
    frame = found.to_df()
    assert sorted(frame.columns) == sorted(wanted.columns) and list(frame.index) == list(wanted.index)
    np.testing.assert_allclose(frame[wanted.columns], wanted, rtol=1e-6, atol=1e-12)
    assert frame.isna().to_numpy().any() == (join == "outer")
    assert found.sizes["blood/b"].to_dict() == pair[1].obs["label"].value_counts()[found.sizes["blood/b"].index].to_dict()
    assert (len(found.missing["blood/a"]), len(found.missing["blood/b"])) == (ONLY_B, ONLY_A)
    shares = pd.DataFrame((normalised(pair[0]) > 0).to_numpy(), columns=pair[0].var["gene_ids"]).groupby(pair[0].obs["cell_type"].to_numpy(), observed=True).mean()
    ours = found.fractions.loc["blood/a"].dropna(axis=1)
    np.testing.assert_allclose(ours, shares.loc[ours.index, ours.columns], rtol=1e-12)


def test_centroids_are_an_anndata(two, pair):
    made = two.centroids(["blood/b", "blood/a"], BY, transform=T, on="gene_ids", join="outer").to_anndata()
    assert made.shape == (20, pair[0].n_vars + ONLY_B) and list(made.obs["dataset"].cat.categories) == ["blood/a", "blood/b"]
    assert made.obs_names[0] == "blood/b: B cell" and made.obs["cells"].sum() == 2700
    assert made.var["datasets"].value_counts().to_dict() == {2: pair[0].n_vars - ONLY_A, 1: ONLY_A + ONLY_B}
    assert made.var.loc[pair[1].var["gene_ids"].iloc[0], "name"] == pair[1].var_names[0] and set(made.layers) == {"fractions"}


def test_centroids_of_some_cells_and_genes(two, pair):
    genes = [str(g) for g in pair[0].var_names[:4]]
    found = two.centroids("blood", BY, transform=T, on="gene_ids", join="outer", genes=genes, where="donor IS NULL OR donor = 'd1'")
    ids = list(pair[0].var["gene_ids"][:4])
    assert list(found.to_df().columns) == ids
    wanted = means(pair[1], "label", (pair[1].obs["donor"] == "d1").to_numpy())
    shared = [gene for gene in ids if gene in wanted.columns]
    np.testing.assert_allclose(found.to_df().loc["blood/b", shared], wanted[shared], rtol=1e-6)
    assert found.sizes["blood/b"].sum() == (pair[1].obs["donor"] == "d1").sum()


def test_no_matrix_moves_for_centroids(two, pair):
    found = two.centroids("blood", BY, transform=T, on="gene_ids")
    for one, receipt in zip(pair, found.receipts.values()):
        moved = receipt.to_dict()["bytes_moved"]
        assert moved < one.n_vars * (20 * 10 + 60) and all(d["rung"] == "full" for d in receipt.to_dict()["drives"])


def by_hand(pair, method: str, center: str | None, n_genes: int) -> pd.DataFrame:
    """The similarities by numpy, scipy and scikit-learn."""
    a, b = means(pair[0], "cell_type"), means(pair[1], "label")
    genes = [gene for gene in a.columns if gene in set(b.columns)]
    spread = a[genes].var(axis=0, ddof=0)
    genes = list(spread.sort_values(ascending=False, kind="stable").index[:n_genes])
    genes = [gene for gene in a.columns if gene in set(genes) and spread[gene] > 0]
    a, b = a[genes], b[genes]
    a, b = (a - a.mean(), b - (b.mean() if center == "each" else a.mean())) if center else (a, b)
    if method == "cosine":
        values = cosine_similarity(a, b)
    elif method == "pearson":
        values = np.corrcoef(a, b)[: len(a), len(a) :]
    else:
        values = np.array([[stats.spearmanr(x, y).statistic for y in b.to_numpy()] for x in a.to_numpy()])
    return pd.DataFrame(values, index=a.index, columns=b.index)


@pytest.mark.parametrize("center", ["mine", "each", None])
@pytest.mark.parametrize("method", ["pearson", "spearman", "cosine"])
def test_similarities_equal_those_by_hand(two, pair, method, center):
    found = two.similar("blood/a", BY, transform=T, on="gene_ids", method=method, center=center, n_genes=300)
    wanted = by_hand(pair, method, center, 300)
    np.testing.assert_allclose(found.matrix["blood/b"].loc[wanted.index, wanted.columns], wanted, rtol=1e-6, atol=1e-9)
    frame = found.to_df(top=1)
    for row in frame.itertuples():
        assert row.similarity == pytest.approx(wanted.loc[row.group].max()) and row.match == wanted.loc[row.group].idxmax() and row.n_genes == 300
        genes = found.genes(row.group, "blood/b", row.match)
        assert genes["contribution"].sum() == pytest.approx(row.similarity) and genes["contribution"].is_monotonic_decreasing and len(genes) == 300


def test_clusters_find_their_own_kind_by_its_markers(two):
    found = two.similar("blood/a", BY, transform=T, on="gene_ids")
    best = found.to_df(top=1).set_index("group")
    named = best.drop(index="unassigned")
    assert (named["match"].replace("B cell", "B") == named.index).all() and (named["similarity"] > 0.7).all()
    for group, markers in {"B": {"CD79A", "CD74"}, "NK": {"NKG7", "GZMA"}, "CD14+ Mono": {"LYZ", "S100A9"}}.items():
        assert markers <= set(best.loc[group, "genes"].split(", ")), (group, best.loc[group, "genes"])
    assert "CST3" in best.loc["Naive CD4 T", "genes_low"] and best.loc["B", "cells"] > 100 and best.loc["B", "match_cells"] > 100
    assert list(found.receipts) == ["blood/a", "blood/b"] and "10 clusters with 10 of 1 data set, pearson" in repr(found)


def test_one_cluster_and_few_matches_are_shown(two, pair):
    found = two.similar(two["blood/a"], BY, "NK", ["blood/b"], 3, transform=T, on="gene_ids")
    assert found.groups == ["NK"] and found.to_df()["match"].tolist()[0] == "NK" and len(found.to_df()) == 3 and len(found.matrix) == 1
    assert found.shared == {"blood/b": len({*pair[0].var["gene_ids"]} & {*pair[1].var["gene_ids"]})}
    ids = found.genes("NK", "blood/b", "B cell")["id"]
    assert ids.is_unique and {*ids} <= {*pair[1].var["gene_ids"]} and len(ids) == found.to_df()["n_genes"].iloc[0] > 100
    # What is compared does not depend on which cluster is asked for.
    whole = two.similar("blood/a", BY, transform=T, on="gene_ids").to_df("NK", 3)
    pd.testing.assert_frame_equal(found.to_df(), whole)


def test_genes_may_be_named(two, pair):
    markers = ["CD79A", "CD74", "NKG7", "GZMA", "LYZ", "S100A9", "PPBP", "CD3D", "IL32"]
    ids = pair[0].var["gene_ids"]
    there = [m for m in markers if m in ids.index and ids[m] in set(pair[1].var["gene_ids"])]
    assert len(there) > 4
    found = two.similar("blood/a", BY, transform=T, on="gene_ids", genes=there, min_genes=2)
    assert sorted(found.genes("B", "blood/b", "B cell")["names"]) == sorted(there)


def test_own_data_set_may_be_looked_in_too(two):
    found = two.similar("blood/a", BY, against="blood", transform=T, on="gene_ids")
    own = found.matrix["blood/a"]
    np.testing.assert_allclose(np.diag(own.to_numpy()), 1, rtol=1e-12)
    assert found.to_df(top=1)["dataset"].tolist() == ["blood/a"] * 10


def test_similarities_are_drawn(two, tmp_path):
    found = two.similar("blood/a", BY, transform=T, on="gene_ids")
    plot = found.plot(path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    pd.testing.assert_frame_equal(plot.data, found.matrix)
    squares = plot.ax.collections[0]
    np.testing.assert_array_equal(np.asarray(squares.get_array()).ravel(), found.matrix.to_numpy().ravel())
    assert squares.norm.vmin == -squares.norm.vmax and plot.ax.get_yticklabels()[0].get_text() == "B"
    plain = two.similar("blood/a", BY, transform=T, on="gene_ids", center=None).plot(path=tmp_path / "b.svg", swap_axes=True)
    assert plain.ax.collections[0].norm.vmin > 0 and plain.ax.get_xticklabels()[0].get_text() == "B"


def test_data_sets_with_several_genes_are_compared_pair_by_pair(tiny):
    found = tiny.similar("t/x", "type", transform=T, min_genes=10)
    assert found.shared == {"t/y": 20, "t/z": 30} and list(found.matrix.columns.levels[0]) == ["t/y", "t/z"]
    assert set(found.to_df()["n_genes"]) <= {20, 30}


def test_cluster_without_any_difference_has_no_similarity(db):
    db.ingest(small(), "t/x")
    other = small(seed=4)
    x = other.X.toarray()
    x[(other.obs["type"] == "NK").to_numpy()] = 2
    other.X = sp.csr_matrix(x)
    db.ingest(other, "t/y")
    found = db.similar("t/x", "type", transform=T, min_genes=10, center=None)
    assert found.matrix["t/y"]["NK"].isna().all() and found.to_df("B")["match"].tolist()[-1] == "NK" and found.to_df("B")["genes"].tolist()[-1] == ""


def test_groups_with_hostile_names_are_kept_apart(db):
    names = ["it's; --", 'a "b"', "", "null", "α\nβ", "a,b"]
    for name, seed in (("t/x", 1), ("t/y", 2)):
        made = small(60, seed)
        made.obs["my 'group\""] = pd.Categorical([names[i % 6] for i in range(60)])
        db.ingest(made, name)
    found = db.centroids("t", "my 'group\"", transform=T)
    assert sorted(found.sizes["t/x"].index) == sorted(names) and (found.sizes == 10).all()
    alike = db.similar("t/x", "my 'group\"", 'a "b"', transform=T, min_genes=10, where={"my 'group\"": names[:5]})
    assert sorted(alike.to_df()["match"]) == sorted(names[:5])
    res = db.compare({"dataset": "t/x", "my 'group\"": "it's; --"}, {"dataset": "t/y", "my 'group\"": ["", "α\nβ"]}, transform=T)
    assert res.cells == {"a": {"t/x": 10}, "b": {"t/y": 20}}
    assert len(db.obs("t", where={"my 'group\"": ""})) == 20


def test_groups_of_numbers_booleans_and_texts(db):
    for name, seed in (("t/x", 1), ("t/y", 2)):
        made = small(60, seed)
        made.obs["number"] = np.array([10, 9, 2])[np.arange(60) % 3]
        made.obs["yes"] = np.arange(60) % 2 == 0
        made.obs["text"] = pd.array([["b", "a", None][i % 3] for i in range(60)], dtype=object)
        db.ingest(made, name)
    assert db.centroids("t", "number", transform=T).sizes["t/x"].index.tolist() == ["2", "9", "10"]
    assert db.centroids("t", "yes", transform=T).sizes["t/x"].to_dict() == {"false": 30, "true": 30}
    assert db.centroids("t", "text", transform=T).sizes["t/x"].to_dict() == {"a": 20, "b": 20}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda db: db.centroids("t", "type"), "InvalidError", "say transform=: t/x: its values.*t/z: "),
        (
            lambda db: db.centroids("t", "typ", transform=T),
            "InvalidError",
            "t/x, t/y, t/z have no obs column 'typ': t/x has .*did you mean 'type'.*groupby={'t/x': ..., ...}",
        ),
        (lambda db: db.centroids("t", {"t/x": "type"}, transform=T), "InvalidError", "groupby= says nothing of t/y"),
        (lambda db: db.centroids("t", 3, transform=T), "InvalidError", "groupby is 3"),
        (lambda db: db.centroids("t", "type", transform=T, join="left"), "InvalidError", "join is 'left'"),
        (lambda db: db.centroids("t", "type", transform=T, genes=["g0"]), "InvalidError", "say join=\"outer\""),
        (lambda db: db.centroids("t", "type", transform=T, genes=["q"]), "NotFoundError", "none of t/x, t/y, t/z has a gene 'q'"),
        (lambda db: db.centroids("t", "type", transform=T, where={"type": "q"}), "NotFoundError", "no cell of t/x, t/y, t/z has 'q'"),
        (lambda db: db.centroids("t", "type", transform=T, where="n > 1000"), "InvalidError", "no cell of t/x that where= chooses"),
        (lambda db: db.centroids("t", "symbol", transform=T), "InvalidError", "t/x, t/y, t/z have no obs column 'symbol'"),
        (lambda db: db.similar("t/x", "type", "Q", transform=T, min_genes=10), "NotFoundError", "t/x has no cluster 'Q' in obs column 'type': there are 'T', 'B', 'NK'"),
        (lambda db: db.similar("t/x", "type", [], transform=T, min_genes=10), "InvalidError", "group= names none"),
        (
            lambda db: db.similar("t/x", "type", transform=T),
            "InvalidError",
            r"fewer than min_genes=50 informative genes says little \(t/y: 20 of the 20 .*; t/z: 30 of the 30",
        ),
        (lambda db: db.similar("t/x", "type", transform=T, method="kendall"), "InvalidError", "method 'kendall' does not exist"),
        (lambda db: db.similar("t/x", "type", transform=T, center="yours"), "InvalidError", "center is 'yours'"),
        (lambda db: db.similar("t/x", "type", transform=T, top=0), "InvalidError", "top is 0"),
        (lambda db: db.similar("t/x", "type", transform=T, n_genes=1.5), "InvalidError", "n_genes is 1.5"),
        (lambda db: db.similar("t/x", "type", transform=T, against=[]), "InvalidError", "the list of names is empty"),
        (lambda db: db.similar("t/x", "type", transform=T, against="u"), "NotFoundError", "there is no domain 'u'"),
        (lambda db: db.similar("t/x", "type", transform=T, min_genes=5, where={"type": "B"}), "InvalidError", "t/x has one cluster only .'B'."),
        (
            lambda db: db.similar("t/x", "type", transform=T, min_genes=5, center="each", where="NOT (type <> 'B' AND n < 0)", genes=["g11", "g12"]),
            "InvalidError",
            "min_genes=5",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(tiny, call, error, text):
    with pytest.raises(getattr(skytether, error), match=text):
        call(tiny)


def test_only_data_set_of_a_domain_has_none_alike(db):
    db.ingest(small(), "t/x")
    with pytest.raises(skytether.InvalidError, match="domain t has no data set but t/x: say with against="):
        db.similar("t/x", "type", transform=T)


def test_column_that_groups_nothing_is_refused(db):
    made = small(1100)
    made.obs["barcode"] = [f"c{i}" for i in range(1100)]
    db.ingest(made, "t/x")
    with pytest.raises(skytether.InvalidError, match="obs column 'barcode' of t/x has 1,100 values, and at most 1,000 groups are compared"):
        db.centroids("t", "barcode", transform=T)


def test_empty_data_sets_are_named(db):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db.ingest(small()[:0].copy(), "t/none")
    db.ingest(small(), "t/x")
    with pytest.raises(skytether.InvalidError, match="t/none has no cells"):
        db.centroids("t", "type", transform=T)


def test_one_cluster_needs_means_as_they_are(tiny):
    """Of single clusters, over named genes."""
    options = {"transform": T, "genes": [f"g{i}" for i in range(10, 30)], "min_genes": 5, "where": {"type": "B"}}
    with pytest.raises(skytether.InvalidError, match="t/x has one cluster only .'B'., and center='mine' compares differences.*center=None"):
        tiny.similar("t/x", "type", **options)
    found = tiny.similar("t/x", "type", center=None, **options).to_df()
    assert found["match"].tolist() == ["B", "B"] and found["n_genes"].tolist() == [20, 20]
