"""method="logreg" equals scanpy's, which is scikit-learn's logistic regression."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import PBMC3K, rich

import msgexpress
import skytether
from msgexpress import _logreg

GENES = ["CD79A", "MS4A1", "CD74", "NKG7", "GNLY", "CD3D", "IL7R", "LYZ", "CD14", "FCGR3A", "PPBP", "CD8A"]


@pytest.fixture(scope="module")
def normal() -> ad.AnnData:
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


@pytest.fixture(scope="module")
def ds(pbmc3k_fleet):
    with msgexpress.open(pbmc3k_fleet) as db:
        yield db["blood/pbmc3k"]


def scanpy_says(adata: ad.AnnData, genes: list[str], **options) -> ad.AnnData:
    adata = ad.AnnData(adata.X, obs=adata.obs, var=adata.var)
    sc.tl.rank_genes_groups(adata, "cell_type", method="logreg", mask_var=adata.var_names.isin(genes), **options)
    return adata


def assert_agree(res: msgexpress.RankResult, adata: ad.AnnData) -> None:
    ours, theirs = res.to_df(), sc.get.rank_genes_groups_df(adata, None)
    assert list(ours.columns) == ["group", "names", "scores"] == list(theirs.columns) and ours["scores"].dtype == theirs["scores"].dtype
    assert ours["group"].astype(str).tolist() == theirs["group"].astype(str).tolist() and ours["names"].tolist() == theirs["names"].tolist()
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 1000},
        {"groups": ["B", "NK", "CD14+ Mono"], "max_iter": 500},
        {"groups": ["B", "NK"], "reference": "CD8 T", "max_iter": 500},
        {"C": 0.01, "max_iter": 500, "n_genes": 4},
    ],
    ids=["all", "groups", "reference", "options"],
)
def test_pbmc3k_scores_equal_scanpys(ds, normal, options):
    res = ds.rank_genes_groups("cell_type", method="logreg", genes=GENES, transform="log1p_cp10k", **options)
    theirs = scanpy_says(normal, GENES, **options)
    # scanpy lists groups in the order of `groups`, and we in that of the categories.
    order = res.groups
    theirs.uns["rank_genes_groups"] = {k: v if k == "params" else v[order] for k, v in theirs.uns["rank_genes_groups"].items()}
    assert_agree(res, theirs)
    assert set(res.to_uns()) == {"params", "names", "scores"} and "logistic regression" in repr(res)


def test_values_as_they_are_layers_and_cells(db, normal):
    adata = normal[:900, GENES].copy()
    adata.layers["dense"] = adata.X.toarray().astype(np.float64)
    adata.X = adata.X.copy() * 2
    # In the order that values are stored in here: in another one the regression ends up to 0.002 away, in scanpy, too.
    adata.X.sort_indices()
    ds = db.ingest(adata, "t/x")
    part = np.arange(900) % 3 > 0
    for layer in (None, "dense"):
        res = ds.rank_genes_groups("cell_type", method="logreg", layer=layer, transform=None, cells=part, max_iter=1000, groups=["B", "NK", "CD8 T"])
        some = ad.AnnData(adata.X if layer is None else adata.layers[layer], obs=adata.obs, var=adata.var)[part].copy()
        sc.tl.rank_genes_groups(some, "cell_type", groups=["B", "CD8 T", "NK"], method="logreg", max_iter=1000)
        assert res.groups == ["B", "CD8 T", "NK"]
        assert_agree(res, some)


def test_two_groups_have_the_scores_of_their_own_side(ds, normal):
    """scikit-learn gives the coefficients of the second of two classes, and scanpy calls them the first one's."""
    res = ds.rank_genes_groups("cell_type", method="logreg", groups=["B", "NK"], genes=GENES, transform="log1p_cp10k")
    theirs = sc.get.rank_genes_groups_df(scanpy_says(normal, GENES, groups=["B", "NK"]), "B").set_index("names")["scores"]
    assert res.groups == ["B", "NK"]
    assert res["B"]["names"].iloc[0] in ("CD74", "CD79A", "MS4A1") and res["NK"]["names"].iloc[0] in ("NKG7", "GNLY")
    np.testing.assert_allclose(res["NK"].set_index("names")["scores"].loc[theirs.index], theirs, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(res["B"].set_index("names")["scores"].loc[theirs.index], -theirs, rtol=1e-6, atol=1e-6)


def test_equal_scores_are_in_the_order_of_genes(db):
    x = np.random.default_rng(1).poisson(1.0, (60, 6)).astype(np.float64)
    adata = ad.AnnData(np.tile(x, (1, 2)), obs=rich().obs[["type"]], var=pd.DataFrame(index=[f"g{i}" for i in range(12)]))
    adata.X[:, [5, 11]] = 0
    for n_genes in (None, 12, 5):
        res = db.ingest(adata, "t/x", replace=True).rank_genes_groups("type", method="logreg", transform="log1p_cp10k", n_genes=n_genes)
        for group in res.groups:
            frame = res.to_df(group)
            for _, same in frame.groupby("scores"):
                assert same["names"].str[1:].astype(int).is_monotonic_increasing
            # Genes without any value have equal scores, of zero.
            assert n_genes == 5 or frame[frame["scores"] == 0]["names"].tolist() == ["g5", "g11"]


def test_the_receipt_says_that_values_moved(ds):
    few = ds.rank_genes_groups("cell_type", method="logreg", genes=["CD79A", "NKG7"], transform="log1p_cp10k")
    assert 0 < few.receipt.to_dict()["bytes_moved"] and sum(d["rows_out"] for d in few.receipt.to_dict()["drives"]) == 2
    assert "Seurat" not in repr(few)


def test_symbols_and_plots_of_a_regression(db):
    res = db.ingest(rich(), "t/x").rank_genes_groups("type", method="logreg", transform="log1p_cp10k", gene_symbols="symbol")
    assert list(res.to_df("B").columns) == ["names", "symbol", "scores"]
    assert set(res.plot_dotplot(2).data["gene"]) == {g for name in res.top(2) for g in res.top(2)[name]}
    for call, says in (
        (res.plot_volcano, "volcano plot shows p-values"),
        (res.filter, "has scores only"),
        (lambda: res.plot_dotplot(min_logfoldchange=1), "has scores only"),
    ):
        with pytest.raises(skytether.InvalidError, match=says):
            call()


WRONG = {
    "filters": ({"min_pct": 0.1}, skytether.InvalidError, "neither p-values nor fold changes"),
    "fold changes": ({"logfc": "seurat"}, skytether.InvalidError, "neither p-values nor fold changes"),
    "one group": ({"groups": ["B"]}, skytether.InvalidError, "tells groups apart, and there is 1 of them"),
    "no group": ({"groups": ["B", "NKK"]}, skytether.NotFoundError, "no group 'NKK'.*did you mean 'NK'"),
    "no reference": ({"groups": ["B", "NK"], "reference": "T"}, skytether.NotFoundError, "no group 'T'"),
    "an option": ({"max_it": 3}, TypeError, "unexpected keyword argument 'max_it'.*did you mean 'max_iter'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_regressions_are_told(ds, what):
    options, kind, says = WRONG[what]
    with pytest.raises(kind, match=says):
        ds.rank_genes_groups("cell_type", method="logreg", genes=GENES, transform="log1p_cp10k", **options)


def test_more_values_than_memory_should_hold_are_refused(ds, monkeypatch):
    asked = []
    sql = type(ds.fleet).sql
    monkeypatch.setattr(_logreg, "MOST_VALUES", 1000)
    monkeypatch.setattr(type(ds.fleet), "sql", lambda self, query, *args, **kwargs: (asked.append(query), sql(self, query, *args, **kwargs))[1])
    too_many = r"32,738 genes of blood/pbmc3k have 2,\d\d\d,\d\d\d of them: at most 1,000 are read; name fewer genes with genes="
    with pytest.raises(skytether.ExhaustedError, match=too_many):
        ds.rank_genes_groups("cell_type", method="logreg", transform="log1p_cp10k")
    assert not any("idx, val" in query for query in asked)


def test_without_scikit_learn_the_error_says_what_to_install(ds, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(skytether.UnsupportedError, match="needs scikit-learn: pip install scikit-learn"):
        ds.rank_genes_groups("cell_type", method="logreg", genes=GENES, transform="log1p_cp10k")
