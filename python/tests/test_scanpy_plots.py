"""scanpy's own plots of ranked genes work on what `to_uns` puts into an AnnData of the data set."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import scanpy as sc
from conftest import counts, rich

import msgexpress

matplotlib.use("Agg")


@pytest.fixture(scope="module", params=["rest", "B", "no pts"])
def both(request, tmp_path_factory):
    """An AnnData with our ranking in it, and one with scanpy's."""
    source = rich()
    source.obs["type"] = source.obs["type"].cat.remove_unused_categories()
    del source.uns["type_colors"]
    reference, pts = (request.param, True) if request.param != "no pts" else ("rest", False)
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=3) as db:
        ds = db.ingest(source, "t/x")
        res = ds.rank_genes_groups("type", reference=reference, transform="log1p_cp10k", pts=pts)
        ours = ds.to_anndata()
    sc.pp.normalize_total(ours, target_sum=1e4)
    sc.pp.log1p(ours)
    theirs = ours.copy()
    ours.uns["rank_genes_groups"] = res.to_uns()
    sc.tl.rank_genes_groups(theirs, "type", reference=reference, method="t-test", pts=pts)
    yield ours, theirs
    matplotlib.pyplot.close("all")


def picture() -> np.ndarray:
    """The pixels of the figure that was drawn last."""
    figure = matplotlib.pyplot.gcf()
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rank_genes_groups", {"n_genes": 5, "sharey": False}),
        ("rank_genes_groups_dotplot", {"n_genes": 3}),
        ("rank_genes_groups_dotplot", {"n_genes": 3, "values_to_plot": "logfoldchanges", "min_logfoldchange": 0.1}),
        ("rank_genes_groups_heatmap", {"n_genes": 3}),
        ("rank_genes_groups_matrixplot", {"n_genes": 3, "values_to_plot": "log10_pvals_adj"}),
        ("rank_genes_groups_stacked_violin", {"n_genes": 3}),
        ("rank_genes_groups_violin", {"n_genes": 3}),
        ("rank_genes_groups_tracksplot", {"n_genes": 3}),
    ],
    ids=lambda v: v.removeprefix("rank_genes_groups") if isinstance(v, str) else "-".join(map(str, v.values())),
)
def test_a_plot_of_scanpy_is_that_of_its_own_ranking(both, name, options):
    """Pixel by pixel, on the same axes."""
    pictures = []
    for adata in both:
        matplotlib.pyplot.close("all")
        if name not in ("rank_genes_groups", "rank_genes_groups_violin"):
            options = {**options, "dendrogram": False}
        if name.endswith("dotplot") and adata.uns["rank_genes_groups"]["params"]["reference"] == "B":
            options.pop("values_to_plot", None)  # scanpy has no value for the reference, and fails
        np.random.seed(1)  # scanpy scatters the points of a violin
        getattr(sc.pl, name)(adata, show=False, **options)
        pictures.append(picture())
    assert pictures[0].shape == pictures[1].shape and pictures[0].std() > 5
    # Scores may differ in their last digit, and so an edge by a shade.
    assert np.mean(np.abs(pictures[0].astype(int) - pictures[1]) > 8) < 1e-4


def test_frame_of_scanpy_is_that_of_the_ranking(both):
    ours, theirs = (sc.get.rank_genes_groups_df(adata, None) for adata in both)
    assert list(ours.columns) == list(theirs.columns) and ours["names"].tolist() == theirs["names"].tolist()
    for column in ("scores", "logfoldchanges", "pvals", "pvals_adj"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4)


@pytest.fixture(scope="module", params=["t-test", "wilcoxon", "logreg"])
def of_method(request, tmp_path_factory):
    """As `both`, of one method. The data set holds scanpy's logarithms, so that both rank the same values."""
    # scanpy makes the dendrogram of so few genes from X itself, which must be dense for that.
    source = rich(counts())
    source.obs["type"] = source.obs["type"].cat.remove_unused_categories()
    del source.uns["type_colors"]
    sc.pp.normalize_total(source, target_sum=1e4)
    sc.pp.log1p(source)
    options = {"genes": list(source.var_names)} if request.param == "logreg" else {"pts": True}
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=3) as db:
        ds = db.ingest(source, "t/x")
        res = ds.rank_genes_groups("type", request.param, transform=None, **options)
        ours = ds.to_anndata()
    theirs = ours.copy()
    ours.uns["rank_genes_groups"] = res.to_uns()
    sc.tl.rank_genes_groups(theirs, "type", method=request.param, **({} if request.param == "logreg" else options))
    yield ours, theirs
    matplotlib.pyplot.close("all")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["", "_dotplot", "_heatmap", "_matrixplot", "_stacked_violin", "_violin", "_tracksplot"])
def test_default_plots_of_scanpy_are_those_of_its_own_ranking(of_method, name):
    """Without any argument: with scanpy's dendrogram, its number of genes and its groups."""
    pictures = []
    for adata in of_method:
        matplotlib.pyplot.close("all")
        np.random.seed(1)
        getattr(sc.pl, f"rank_genes_groups{name}")(adata, show=False)
        pictures.append(picture())
    assert pictures[0].shape == pictures[1].shape and pictures[0].std() > 5
    # Equal scores of a rank test are in any order at scanpy, and so are the names of these genes.
    assert np.mean(np.abs(pictures[0].astype(int) - pictures[1]) > 8) < 5e-4
    if name in ("_dotplot", "_heatmap", "_matrixplot", "_stacked_violin", "_tracksplot"):
        assert all("dendrogram_type" in adata.uns for adata in of_method)
