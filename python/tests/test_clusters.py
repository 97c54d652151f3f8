"""From principal components to clusters, against scanpy."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

import msgexpress
from msgexpress import _clusters
from skytether import InvalidError, NotFoundError, UnsupportedError

from conftest import PBMC3K


@pytest.fixture(scope="module")
def reference() -> ad.AnnData:
    """scanpy's steps, from counts to clusters."""
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=2000)
    sc.pp.pca(adata, n_comps=30, svd_solver="arpack")
    sc.pp.neighbors(adata, n_neighbors=15)
    sc.tl.umap(adata)
    sc.tl.leiden(adata)
    return adata


@pytest.fixture(scope="module")
def blood(tmp_path_factory: pytest.TempPathFactory, reference: ad.AnnData):
    """Ours, with the results kept."""
    with msgexpress.open(tmp_path_factory.mktemp("clusters") / "fleet", drives=3) as db:
        ds = db.ingest(PBMC3K, "blood/pbmc3k")
        ds.pca(30, genes=reference.var["highly_variable"].to_numpy(), transform="log1p_cp10k")
        ds.neighbors()
        ds.umap()
        ds.leiden()
        yield db


def test_leiden_clusters_are_scanpys(blood, reference) -> None:
    ours = blood["blood/pbmc3k"].obs["leiden"]
    assert adjusted_rand_score(ours, reference.obs["leiden"]) >= 0.95
    assert list(ours.cat.categories) == [str(i) for i in range(len(ours.cat.categories))]
    assert ours.value_counts(sort=False).is_monotonic_decreasing


def test_neighbours_are_scanpys(blood, reference) -> None:
    ds = blood["blood/pbmc3k"].to_anndata()
    ours, theirs = ds.obsp["distances"], reference.obsp["distances"]
    shared = (ours > 0).multiply(theirs > 0).sum() / (theirs > 0).sum()
    assert shared > 0.99
    difference = np.abs((ds.obsp["connectivities"] - reference.obsp["connectivities"]).toarray()).mean(axis=1)
    assert np.median(difference) < 1e-6
    assert ds.uns["neighbors"]["params"]["n_neighbors"] == 15


def test_umap_keeps_neighbours_together_as_scanpys_does(blood, reference) -> None:
    from sklearn.manifold import trustworthiness

    ds = blood["blood/pbmc3k"].to_anndata()
    layout = ds.obsm["X_umap"]
    assert layout.shape == (2700, 2) and layout.dtype == np.float32
    ours, theirs = (trustworthiness(reference.obsm["X_pca"], x, n_neighbors=15) for x in (layout, reference.obsm["X_umap"]))
    assert ours > theirs - 0.01


def test_scanpy_goes_on_from_what_is_kept(blood) -> None:
    adata = blood["blood/pbmc3k"].to_anndata()
    sc.tl.leiden(adata, key_added="again")
    assert adjusted_rand_score(adata.obs["again"], adata.obs["leiden"]) > 0.99
    sc.pl.umap(adata, color="leiden", show=False)
    sc.pl.pca_variance_ratio(adata, show=False)


def test_drives_group_by_the_new_clusters(blood) -> None:
    res = blood["blood/pbmc3k"].rank_genes_groups("leiden", transform="log1p_cp10k")
    assert res.groups == list(blood["blood/pbmc3k"].obs["leiden"].cat.categories)


def test_filtered_view_clusters_its_cells_alone(tmp_path: Path) -> None:
    adata = ad.read_h5ad(PBMC3K)
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        view = db.ingest(PBMC3K, "blood/pbmc3k").filter_cells(min_genes=800).filter_genes(min_cells=10).normalize()
        view.highly_variable_genes(800)
        view.pca(20)
        view.neighbors()
        view.leiden()
        view.umap()
        view.save("deep")
        chosen = view.cells
    sc.pp.filter_cells(adata, min_genes=800)
    sc.pp.filter_genes(adata, min_cells=10)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=800)
    sc.pp.pca(adata, n_comps=20, svd_solver="arpack")
    sc.pp.neighbors(adata)
    sc.tl.leiden(adata)
    with msgexpress.open(tmp_path / "fleet") as db:
        ds = db["blood/pbmc3k"]
        assert list(ds.var_names[ds.var["highly_variable"]]) == list(adata.var_names[adata.var["highly_variable"]])
        assert list(ds.view("deep").obs_names) == list(adata.obs_names)
        assert adjusted_rand_score(ds.obs["leiden"][chosen], adata.obs["leiden"]) >= 0.95
        assert ds.obs["leiden"][~chosen].isna().all()
        whole = ds.to_anndata()
        assert np.isnan(whole.obsm["X_pca"][~chosen]).all() and np.isfinite(whole.obsm["X_umap"][chosen]).all()
        assert [*ds.history["action"]] == ["ingest", "highly_variable_genes", "pca", "neighbors", "leiden", "umap", "save_view"]


def test_steps_out_of_order_say_what_comes_first(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(np.eye(20, dtype=np.float32)), "t/x")
        steps = ((ds.neighbors, "call pca first"), (ds.umap, "call neighbors first"), (ds.leiden, "call neighbors first"))
        for step, match in steps:
            with pytest.raises(NotFoundError, match=match):
                step()
        with pytest.raises(InvalidError, match="resolution is 0"):
            ds.leiden(0)


def test_bad_numbers_of_neighbours_are_refused() -> None:
    x = np.random.default_rng(1).random((30, 3)).astype(np.float32)
    for n in (1, 30, 2.5, True):
        with pytest.raises(InvalidError, match="n_neighbors"):
            _clusters.neighbors(x, n, "euclidean", 0)


def test_equal_cells_are_their_own_first_neighbours() -> None:
    x = np.repeat(np.random.default_rng(1).random((10, 3)), 4, axis=0).astype(np.float32)
    distances, graph = _clusters.neighbors(x, 4, "euclidean", 0)
    assert graph.diagonal().max() == 0
    assert all(i not in distances.indices[distances.indptr[i] : distances.indptr[i + 1]] for i in range(40))


def test_many_cells_have_approximate_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(1500, 5)).astype(np.float32)
    exact, _ = _clusters.neighbors(x, 10, "euclidean", 0)
    monkeypatch.setattr(_clusters, "EXACT", 1000)
    found, graph = _clusters.neighbors(x, 10, "euclidean", 0)
    assert (exact > 0).multiply(found > 0).sum() / exact.nnz > 0.95
    assert sp.issparse(graph) and graph.shape == (1500, 1500)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leidenalg", None)
    with pytest.raises(UnsupportedError, match="pip install leidenalg"):
        _clusters.leiden(sp.csr_matrix(np.ones((3, 3))), 1.0, 0, -1)
