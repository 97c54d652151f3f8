"""What goes on after a version: views, components, kept results and notes follow it, or say that they don't."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import msgexpress
from msgexpress import Normalize
from skytether import ConflictError, InvalidError, NotFoundError, UnavailableError

from conftest import counts

pytestmark = pytest.mark.filterwarnings("ignore")


def made(seed: int = 1, cells: int = 80, genes: int = 30) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    obs = pd.DataFrame({"type": pd.Categorical(rng.choice(["T", "B", "NK"], cells))}, index=[f"s{seed}-{i}" for i in range(cells)])
    return ad.AnnData(counts(cells, genes, seed=seed), obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(genes)]))


@pytest.fixture
def db(tmp_path: Path):
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        yield db


@pytest.mark.parametrize("redundancy", ["ec:2+1", "replicas:2"])
def test_version_is_refused_while_a_drive_is_lost(tmp_path: Path, redundancy: str) -> None:
    place = tmp_path / "fleet"
    with msgexpress.open(place, drives=4, redundancy=redundancy) as db:
        db.ingest(made(), "t/x")
    shutil.rmtree(place / "drives" / "1")
    with msgexpress.open(place) as db:
        ds = db["t/x"]
        with pytest.raises(UnavailableError, match="no new version while drive-1 is lost"):
            ds.set_obs(np.arange(80), name="n")
        before = ds.rank_genes_groups("type", transform="log1p_cp10k").to_df()
        db.fleet.repair(["drive-1"])
        ds.set_obs(np.arange(80), name="n")
        pd.testing.assert_frame_equal(ds.rank_genes_groups("type", transform="log1p_cp10k").to_df(), before)


def test_views_count_a_changed_matrix_again(db) -> None:
    adata = made()
    adata.layers["counts"] = adata.X.copy()
    ds = db.ingest(adata, "t/x", layer="counts")
    view = ds.filter_genes(min_counts=60)
    ds.filter_cells(min_genes=1)
    view.rank_genes_groups("type", transform=Normalize("median"))
    ds.set_layer("counts", made(7).X)
    fresh = db["t/x"]
    mine = view.rank_genes_groups("type", transform=Normalize("median")).to_df()
    other = fresh.filter_genes(mask=view.genes).rank_genes_groups("type", transform=Normalize("median")).to_df()
    pd.testing.assert_frame_equal(mine, other)
    assert (ds.filter_cells(min_genes=10).cells == fresh.filter_cells(min_genes=10).cells).all()


def test_view_of_raw_means_genes_by_their_names(db, tmp_path: Path) -> None:
    adata = made()
    adata.raw = adata.copy()
    ds = db.ingest(adata[:, ::2].copy(), "t/x")
    view = ds.filter_cells(mask=np.arange(80) % 2 == 0)
    genes = ["g2", "g4", "g7", "g9"]
    res = view.rank_genes_groups("type", genes=genes, layer="raw", transform="log1p_cp10k")
    assert sorted(res.to_df("B")["names"]) == genes
    assert sorted(view.ttest({"type": "T"}, {"type": "B"}, genes=genes, layer="raw", transform="log1p_cp10k").to_df()["names"]) == genes
    assert sorted(view.pca(2, genes, layer="raw", transform="log1p_cp10k", keep=False).genes) == genes
    view.export(tmp_path / "r.parquet", layer="raw", genes=genes)
    assert set(pd.read_parquet(tmp_path / "r.parquet")["gene"]) <= set(genes)
    with pytest.raises(InvalidError, match="says nothing of raw/X"):
        ds.filter_genes(mask=["g2", "g4"]).export(tmp_path / "s.parquet", layer="raw")
    with pytest.raises(NotFoundError, match="g1"):
        view.rank_genes_groups("type", genes=["g1"], transform="log1p_cp10k")


def test_views_end_when_cells_are_appended(db) -> None:
    ds = db.ingest(made(), "t/x")
    view = ds.filter_genes(mask=["g10", "g11"]).filter_cells(min_genes=1)
    view.save("some")
    ds.append(made(2)[:, 3:].copy(), join="inner")
    for use in (
        lambda: view.to_anndata(),
        lambda: view.obs,
        lambda: view.var_names,
        lambda: view.shape,
        lambda: view.filter_cells(min_genes=1),
        lambda: view.rank_genes_groups("type", transform="log1p_cp10k"),
        lambda: view.save("again"),
        lambda: repr(view),
    ):
        with pytest.raises(ConflictError, match="make it again"):
            use()
    assert ds.views == []
    assert ds.filter_cells(min_genes=1).shape[0] <= 160


def test_components_of_raw_take_the_transform_of_raw(db) -> None:
    adata = made()
    adata.raw = adata.copy()
    adata.X = np.log1p(adata.X)
    ds = db.ingest(adata, "t/x")
    ds.normalize(transform=None)
    ds.normalize(layer="raw")
    assert ds.pca(3, None, use_raw=True, keep=False).params["transform"] == "log1p_cp10k"
    assert ds.pca(3, None, keep=False).params["transform"] is None


def test_components_of_a_data_set_about_raw_are_kept(db) -> None:
    adata = made()
    adata.raw = adata.copy()
    ds = db.ingest(adata[:, ::2].copy(), "t/x", layer="raw")
    found = ds.pca(3, None, transform=None, use_raw=False)
    assert ds.to_anndata().obsm["X_pca"].shape == found.embedding.shape
    ds.pca(3, None, transform="log1p_cp10k")
    assert ds.to_anndata().obsm["X_pca"].shape == (80, 3)


def test_view_refuses_components_of_other_cells(db) -> None:
    ds = db.ingest(made(), "t/x").normalize()
    half = np.arange(80) % 2 == 0
    one, two = ds.filter_cells(mask=half), ds.filter_cells(mask=~half)
    ds.pca(5, None, transform="log1p_cp10k")
    with pytest.raises(InvalidError, match="of other cells than this view: call pca"):
        one.neighbors(5)
    one.pca(5, None, transform="log1p_cp10k")
    one.neighbors(5)
    assert one.leiden().notna().sum() == 40
    with pytest.raises(InvalidError, match="call pca and neighbors of this view first"):
        two.leiden()
    two.pca(5, None, transform="log1p_cp10k")
    with pytest.raises(InvalidError, match="call neighbors again"):
        ds.umap()


@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8])
def test_values_far_from_zero_have_no_components(db, offset: float) -> None:
    x = offset + np.random.default_rng(1).normal(size=(60, 12))
    with pytest.raises(InvalidError, match="1,000 times as large as they vary"):
        db.ingest(ad.AnnData(x), "t/x").pca(3, None, transform=None)


def test_dependent_cells_leave_no_long_loadings(db, monkeypatch: pytest.MonkeyPatch) -> None:
    from msgexpress import _pca

    x = counts(40, 90)
    x[10] = x[11]
    monkeypatch.setattr(_pca, "MOST", 80)
    found = db.ingest(ad.AnnData(x), "t/x").pca(39, None, transform=None, keep=False)
    lengths = np.linalg.norm(found.loadings, axis=0)
    np.testing.assert_allclose(lengths[:30], 1, rtol=1e-5)
    assert (lengths < 1.01).all()


def test_kept_results_outlast_versions_of_other_parts(db) -> None:
    ds = db.ingest(made(), "t/x")
    for _ in range(200):
        res = ds.rank_genes_groups("type", transform="log1p_cp10k")
        if all(drive["cached"] for drive in res.receipt.to_dict()["drives"]):
            break
        time.sleep(0.02)
    ds.set_obsm("e", np.zeros((80, 2)))
    assert all(drive["cached"] for drive in ds.rank_genes_groups("type", transform="log1p_cp10k").receipt.to_dict()["drives"])
    ds.set_obs(ds.obs["type"].cat.rename_categories({"T": "t"}), name="type")
    assert ds.rank_genes_groups("type", transform="log1p_cp10k").groups == ["B", "NK", "t"]


def test_order_of_categories_follows_versions(db) -> None:
    levels = pd.Categorical(np.where(np.arange(80) % 2, "lo", "hi"), categories=["lo", "hi"], ordered=True)
    for name in ("p/a", "p/b"):
        adata = made(1 if name == "p/a" else 2)
        adata.obs["lv"] = levels
        db.ingest(adata, name)
    assert db.obs("p")["lv"].dtype.ordered
    for name in ("p/a", "p/b"):
        db[name].set_obs(levels.as_unordered(), name="lv")
    assert not db.obs("p")["lv"].dtype.ordered


def test_bytes_are_refused_before_they_are_kept(db) -> None:
    ds = db.ingest(made(), "t/x")
    with pytest.raises(InvalidError, match="column 'b' holds a value of type bytes"):
        ds.set_obs(np.array([b"a"] * 80, object), name="b")
    ds.set_obs(np.arange(80), name="n")


def test_variable_genes_leave_no_columns_of_a_call_before(db) -> None:
    ds = db.ingest(made(), "t/x")
    ds.highly_variable_genes(10, batch_key="type", transform="log1p_cp10k")
    assert "highly_variable_nbatches" in ds.var
    ds.highly_variable_genes(10, transform="log1p_cp10k")
    assert "highly_variable_nbatches" not in ds.var and ds.var["highly_variable"].sum() == 10


def test_wrong_arguments_of_steps_are_ours(db) -> None:
    ds = db.ingest(made(), "t/x")
    ds.pca(4, None, transform="log1p_cp10k")
    ds.set_uns("bad", 5)
    for call, match in (
        (lambda: ds.neighbors(metric="nope"), "metric 'nope'"),
        (lambda: ds.neighbors(metric=None), "metric is None"),
        (lambda: ds.neighbors(n_pcs="3"), "n_pcs is '3'"),
        (lambda: ds.neighbors(seed=-1), "seed is -1"),
        (lambda: ds.pca(3, None, transform=None, scale=True, max_value="a"), "max_value is 'a'"),
        (lambda: ds.leiden("a"), "resolution is 'a'"),
        (lambda: ds.leiden(n_iterations=0), "n_iterations is 0"),
    ):
        with pytest.raises(InvalidError, match=match):
            call()
    with pytest.raises(NotFoundError, match="call neighbors first"):
        ds.leiden(neighbors_key="bad")
    ds.neighbors(5)
    for wrong in (0, 200, "2"):
        with pytest.raises(InvalidError, match="n_components is"):
            ds.umap(wrong)
