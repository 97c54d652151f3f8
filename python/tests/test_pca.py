"""Principal components, against scikit-learn's and scanpy's."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scanpy as sc

import msgexpress
from msgexpress import _pca
from skytether import InvalidError, NotFoundError

from conftest import PBMC3K, counts


def same_space(a: np.ndarray, b: np.ndarray) -> float:
    """The sine of the largest angle between the spaces that the columns span."""
    a, b = np.linalg.qr(a.astype(np.float64))[0], np.linalg.qr(b.astype(np.float64))[0]
    return float(np.linalg.norm(a - b @ (b.T @ a), 2))


@pytest.fixture(scope="module")
def blood(tmp_path_factory: pytest.TempPathFactory):
    with msgexpress.open(tmp_path_factory.mktemp("pca") / "fleet", drives=3) as db:
        yield db.ingest(PBMC3K, "blood/pbmc3k")


@pytest.fixture(scope="module")
def normal() -> ad.AnnData:
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=500)
    return adata


def test_pca_equals_scanpys_subspace(blood, normal) -> None:
    genes = normal.var_names[normal.var["highly_variable"]]
    found = blood.pca(30, genes=list(genes), transform="log1p_cp10k", keep=False)
    reference = sc.pp.pca(normal[:, normal.var["highly_variable"]].copy(), n_comps=30, copy=True, svd_solver="arpack")
    assert same_space(found.embedding, reference.obsm["X_pca"]) < 1e-4
    np.testing.assert_allclose(found.variance, reference.uns["pca"]["variance"], rtol=1e-5)
    np.testing.assert_allclose(found.variance_ratio, reference.uns["pca"]["variance_ratio"], rtol=1e-5)
    signs = np.sign((found.loadings * reference.varm["PCs"]).sum(axis=0))
    np.testing.assert_allclose(found.loadings * signs, reference.varm["PCs"], atol=1e-4)
    np.testing.assert_allclose(found.embedding * signs, reference.obsm["X_pca"], atol=2e-3)
    assert found.receipt.to_dict()["drives"]
    assert list(found.genes) == list(genes) and list(found.cells) == list(blood.obs_names)


def test_largest_loading_of_each_component_is_positive(blood, normal) -> None:
    found = blood.pca(5, genes=normal.var["highly_variable"].to_numpy(), transform="log1p_cp10k", keep=False)
    assert (found.loadings[np.abs(found.loadings).argmax(axis=0), np.arange(5)] > 0).all()
    np.testing.assert_allclose(found.loadings.T @ found.loadings, np.eye(5), atol=1e-9)


def test_scaled_and_clipped_pca_equals_scanpys(blood, normal) -> None:
    mask = normal.var["highly_variable"].to_numpy()
    for most in (None, 3.0):
        reference = normal[:, mask].copy()
        sc.pp.scale(reference, max_value=most)
        assert most is None or (reference.X == -most).any(), "genes that are nearly everywhere are clipped below, too"
        sc.pp.pca(reference, n_comps=10, svd_solver="arpack")
        found = blood.pca(10, genes=mask, transform="log1p_cp10k", scale=True, max_value=most, keep=False)
        assert same_space(found.embedding, reference.obsm["X_pca"]) < 1e-3
        np.testing.assert_allclose(found.variance, reference.uns["pca"]["variance"], rtol=1e-4)


def test_uncentred_pca_equals_truncated_svd(blood, normal) -> None:
    mask = normal.var["highly_variable"].to_numpy()
    found = blood.pca(8, genes=mask, zero_center=False, transform="log1p_cp10k", keep=False)
    from sklearn.decomposition import TruncatedSVD

    svd = TruncatedSVD(8, algorithm="arpack").fit(normal.X[:, mask].astype(np.float64))
    assert same_space(found.loadings, svd.components_.T) < 1e-6
    np.testing.assert_allclose(found.variance, svd.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(found.variance_ratio, svd.explained_variance_ratio_, rtol=1e-5)


def test_few_cells_of_all_genes_take_the_products_of_cells(blood, normal) -> None:
    found = blood.pca(6, genes=None, transform="log1p_cp10k", keep=False)
    reference = sc.pp.pca(normal, n_comps=6, copy=True, svd_solver="arpack", mask_var=None)
    assert same_space(found.embedding, reference.obsm["X_pca"]) < 1e-4
    assert same_space(found.loadings, reference.varm["PCs"]) < 1e-4
    np.testing.assert_allclose(found.variance_ratio, reference.uns["pca"]["variance_ratio"], rtol=1e-4)


def test_both_ways_agree_on_some_cells(blood, normal, monkeypatch: pytest.MonkeyPatch) -> None:
    genes, cells = np.flatnonzero(normal.var["highly_variable"])[:200], normal.obs["cell_type"].isin(["B", "NK"]).to_numpy()
    one = blood.pca(4, genes=genes, cells=cells, transform="log1p_cp10k")
    monkeypatch.setattr(_pca, "MOST", 199)
    with pytest.raises(InvalidError, match="too large"):
        blood.pca(4, genes=genes, cells=cells, transform="log1p_cp10k")
    monkeypatch.setattr(_pca, "_by_genes", _pca._by_cells)
    monkeypatch.setattr(_pca, "MOST", 6000)
    other = blood.pca(4, genes=genes, cells=cells, transform="log1p_cp10k")
    np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-4)
    np.testing.assert_allclose(one.loadings, other.loadings, atol=1e-6)
    dense = normal.X[cells][:, genes].toarray().astype(np.float64)
    assert same_space(one.loadings, np.linalg.svd(dense - dense.mean(axis=0), full_matrices=False)[2][:4].T) < 1e-6


def test_parts_of_the_cells_give_the_same_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = sp.random(70_000, 30, density=0.2, format="csr", random_state=rng, data_rvs=lambda n: rng.integers(1, 9, n)).astype(np.float32)
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(x), "t/x")
        whole = ds.pca(5, genes=None, transform=None, keep=False)
        monkeypatch.setattr(_pca, "PART", 90_000)
        seen: list[tuple[int, int]] = []
        parts = ds.pca(5, genes=None, transform=None, keep=False, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(parts.embedding, whole.embedding, atol=1e-5)
    np.testing.assert_allclose(parts.variance, whole.variance, rtol=1e-12)
    assert len(seen) > 4 and all(a <= b for a, b in zip(seen, seen[1:])) and seen[-1][0] == seen[-1][1]
    dense = x.toarray().astype(np.float64)
    vectors = np.linalg.eigh(np.cov(dense.T))[1][:, ::-1][:, :5]
    assert same_space(whole.loadings, vectors) < 1e-8


def test_bad_arguments_of_pca_are_refused_by_name(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(sp.csr_matrix(counts()), var=pd.DataFrame(index=[f"g{i}" for i in range(40)])), "t/x")
        for wrong, match in (
            ({"n_comps": 40}, "from 1 to 39"),
            ({"n_comps": 0}, "n_comps is 0"),
            ({"n_comps": 2.5}, "2.5"),
            ({"max_value": 10}, "scale=True"),
            ({"scale": True, "max_value": -1}, "max_value is -1"),
            ({"genes": ["g1"]}, "two genes"),
        ):
            with pytest.raises(InvalidError, match=match):
                ds.pca(**{"genes": None, "transform": None, **wrong})
        with pytest.raises(NotFoundError, match="highly_variable"):
            ds.pca(transform=None)
        with pytest.raises(InvalidError, match="transform"):
            ds.pca(genes=None)


def test_values_that_no_component_takes_are_named(tmp_path: Path) -> None:
    x = counts()
    x[3, 5] = np.nan
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(x), "t/x")
        with pytest.raises(InvalidError, match="gene '5' has the value nan in cell '3'"):
            ds.pca(genes=None, transform=None)


def test_constant_genes_have_no_part_in_scaled_components(tmp_path: Path) -> None:
    x = counts()
    x[:, 7] = 3
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        found = db.ingest(ad.AnnData(x), "t/x").pca(5, genes=None, transform=None, scale=True, keep=False)
    reference = sc.AnnData(x.copy())
    sc.pp.scale(reference)
    sc.pp.pca(reference, n_comps=5, svd_solver="full")
    np.testing.assert_allclose(np.abs(found.loadings[[7, 20]]), 0, atol=1e-7)
    np.testing.assert_allclose(found.variance, reference.uns["pca"]["variance"], rtol=1e-4)
