"""Quality of cells and genes is that of scanpy's calculate_qc_metrics."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, counts

import msgexpress
import skytether


def made(x: object) -> ad.AnnData:
    n, m = x.shape
    var = pd.DataFrame({"mt": np.arange(m) < 4, "odd": np.arange(m) % 2 == 1}, index=[f"MT-{i}" if i < 4 else f"g{i}" for i in range(m)])
    return ad.AnnData(x, obs=pd.DataFrame({"half": np.where(np.arange(n) % 2, "a", "b")}, index=[f"c{i}" for i in range(n)]), var=var)


def assert_same(ours: tuple[pd.DataFrame, pd.DataFrame], theirs: tuple[pd.DataFrame, pd.DataFrame], **tolerance: float) -> None:
    for mine, other in zip(ours, theirs):
        assert list(mine.columns) == list(other.columns)
        pd.testing.assert_frame_equal(mine, other, check_index_type=False, check_names=False, **(tolerance or {"check_exact": True}))


def test_qc_of_pbmc3k_is_exactly_that_of_scanpy(pbmc3k_fleet):
    adata = ad.read_h5ad(PBMC3K)
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    adata.var["ribo"] = adata.var_names.str.startswith(("RPS", "RPL"))
    theirs = sc.pp.calculate_qc_metrics(adata, qc_vars=["mt", "ribo"])
    with msgexpress.open(pbmc3k_fleet) as db:
        ours = db["blood/pbmc3k"].qc_metrics({"mt": "MT-", "ribo": adata.var["ribo"]})
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", ["csr", "csc", "dense", "int64", "uint16", "float64"])
def test_qc_has_the_types_of_scanpy(tmp_path, kind):
    x = counts(70, 60)
    x[3] = 0
    x = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}.get(kind, lambda x: sp.csr_matrix(x.astype(kind)))(x)
    adata = made(x)
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ours = db.ingest(adata, "t/x").qc_metrics(["mt", "odd"], percent_top=[3, 50])
    assert_same(ours, sc.pp.calculate_qc_metrics(adata, qc_vars=["mt", "odd"], percent_top=[3, 50]))


def test_qc_of_values_that_are_no_counts(tmp_path):
    adata = made(sp.csr_matrix(counts(50, 40)))
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        assert not any(c.startswith("pct_counts_in_top") for c in ds.qc_metrics()[0])
        ours = ds.qc_metrics({"mt": [0, 1, 2, 3]}, percent_top=[2, 10])
    assert_same(ours, sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=[2, 10]), rtol=1e-5, atol=1e-6)


def test_qc_over_several_blocks_of_cells(tmp_path):
    rng = np.random.default_rng(5)
    x = sp.random(70_001, 60, 0.1, format="csr", dtype=np.float32, random_state=rng, data_rvs=lambda n: np.floor(rng.exponential(8, n)) + 1)
    # The last cell of a block and the first of the next, with counts beyond 16 bits.
    x[65_535, 3], x[65_536, 59] = 70_000, 90_000
    adata = made(x.tocsr())
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(adata, "t/x")
        ours = ds.qc_metrics(["mt"], percent_top=[1, 5, 20])
        view = ds.filter_cells(mask=np.arange(70_001) % 7 == 0).filter_genes(mask=np.arange(60) % 5 != 0)
        of_view = view.qc_metrics(["odd"], percent_top=[2])
    assert_same(ours, sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=[1, 5, 20]))
    part = adata[np.arange(70_001) % 7 == 0, np.arange(60) % 5 != 0].copy()
    assert_same(of_view, sc.pp.calculate_qc_metrics(part, qc_vars=["odd"], percent_top=[2]))


@pytest.mark.parametrize("cut", ["full", "filter", "raw"])
def test_sums_are_the_same_wherever_they_are_made(tmp_path, cut):
    from skytether import _internal

    x = counts(40, 30)
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made(sp.csr_matrix(x)), "t/x")
        weights = np.linspace(-1, 2, 30).astype(np.float32)
        for transform, table in ((None, x), ("cp10k", x / np.maximum(x.sum(1, keepdims=True), 1) * 1e4)):
            spec = _internal.cell_sums_spec("t/x", "x", [("values", None), ("nonzeros", None), ("values", weights)], [], transform)
            rows = db.fleet.sql(f"SELECT block, cell_sums(idx, val, block, gene_id, '{spec}') AS s FROM t.x.x_rows GROUP BY block", cut=cut)
            found = rows.to_arrow().column("s")[0].values.to_numpy().reshape(3, 40)
            np.testing.assert_allclose(found, [table.sum(1), (x > 0).sum(1), table @ weights.astype(float)], rtol=1e-6, atol=1e-2)


def test_qc_without_logarithms_and_shares(tmp_path):
    adata = made(sp.csr_matrix(counts(30, 20)))
    adata.layers["twice"] = adata.X * 2
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ours = db.ingest(adata, "t/x").qc_metrics(layer="twice", percent_top=None, log1p=False)
    assert_same(ours, sc.pp.calculate_qc_metrics(adata, layer="twice", percent_top=None, log1p=False))


def test_qc_refuses_what_it_cannot_count(tmp_path):
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(made(sp.csr_matrix(counts(30, 20))), "t/x")
        with pytest.raises(skytether.InvalidError, match="no gene of t/x has a name that begins with 'MITO-'"):
            ds.qc_metrics({"mt": "MITO-"})
        for top in ([0], [21], [2.5], [True]):
            with pytest.raises(skytether.InvalidError, match="percent_top has"):
                ds.qc_metrics(percent_top=top)
        with pytest.raises(skytether.NotFoundError, match="has no layer 'spliced'"):
            ds.qc_metrics(layer="spliced")
        with pytest.raises(skytether.NotFoundError, match="var of t/x has no column 'mito'"):
            ds.qc_metrics("mito")
        # Without 50 genes there is no share of 50.
        assert list(ds.qc_metrics(log1p=False)[0].columns) == ["n_genes_by_counts", "total_counts"]


def test_progress_of_qc_is_told(tmp_path):
    said = []
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        db.ingest(made(sp.csr_matrix(counts(30, 20))), "t/x").qc_metrics(progress=lambda done, total: said.append((done, total)))
    assert said == [(0, 2), (1, 2), (2, 2)]
