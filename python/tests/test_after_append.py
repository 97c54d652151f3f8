"""What was made before an append: it is refused, or goes on to be right."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import counts

import msgexpress
import skytether

T = "log1p_cp10k"


def cells(first: int, end: int, **obs: object) -> ad.AnnData:
    frame = pd.DataFrame({"type": pd.Categorical(["T", "B"] * ((end - first) // 2) + ["T"] * ((end - first) % 2)), **obs}, index=[f"cell-{i}" for i in range(first, end)])
    return ad.AnnData(counts(end - first, seed=first), obs=frame)


@pytest.fixture
def db(tmp_path):
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        yield db


@pytest.mark.parametrize("read", [lambda lazy: lazy.to_memory(), lambda lazy: lazy[:60].X, lambda lazy: lazy[:, ["g1", "g2"]].to_memory()], ids=["all", "cells", "genes"])
def test_lazy_anndata_before_an_append_is_refused(db, read):
    ds = db.ingest(cells(0, 60), "t/p")
    lazy = ds.to_anndata(lazy=True)
    lazy.var_names = [f"g{i}" for i in range(lazy.n_vars)]
    ds.append(cells(60, 200))
    with pytest.raises(skytether.ConflictError, match="new version since this lazy AnnData was made"):
        read(lazy)


def test_stale_objects_are_conflicts(db):
    a = db.ingest(cells(0, 60), "t/p")
    b = db["t/p"]
    chosen = np.arange(60) > 5
    view = b.filter_cells(mask=chosen)
    assert len(b.obs) == 60
    a.append(cells(60, 85))
    for call in (
        lambda: b.rank_genes_groups("type", transform=T, cells=chosen), lambda: view.rank_genes_groups("type", transform=T),
        lambda: view.rank_genes_groups("type", transform=T, method="wilcoxon"), lambda: view.normalize("median").rank_genes_groups("type"),
    ):
        with pytest.raises(skytether.ConflictError):
            call()


def test_plots_of_a_ranking_before_an_append_are_refused(db):
    ds = db.ingest(cells(0, 60), "t/p")
    ranked, two = ds.rank_genes_groups("type", transform=T), ds.ttest({"type": "T"}, {"type": "B"}, transform=T)
    ds.append(cells(60, 85))
    for call in (ranked.plot_dotplot, ranked.plot_heatmap, two.plot_dotplot, lambda: ranked.plot_violin("T"), lambda: two.plot_violin(list(two.groups)[0])):
        with pytest.raises(skytether.ConflictError, match="85 cells now, and this ranking is of 60"):
            call()


@pytest.mark.filterwarnings("ignore")
def test_names_of_stored_cells_stay(db):
    ds = db.ingest(cells(0, 60), "t/p")
    more = cells(200, 203)
    more.obs_names = ["r", "r", "s"]
    ds.append(more)
    assert list(ds.obs_names) == [f"cell-{i}" for i in range(60)] + ["r", "r", "s"]
    with pytest.raises(skytether.InvalidError, match="whose names t/p has already"):
        ds.append(cells(0, 5))


@pytest.mark.filterwarnings("ignore")
def test_stored_embedding_stays_beside_one_of_another_width(db):
    ds = db.ingest(cells(0, 60), "t/p")
    stored = np.arange(180, dtype=np.float32).reshape(60, 3)
    ds.set_obsm("X_pca", stored)
    more = cells(60, 70)
    more.obsm["X_pca"] = np.ones((10, 2), np.float32)
    ds.append(more)
    kept = ds.to_anndata().obsm["X_pca"]
    np.testing.assert_array_equal(kept[:60], stored)
    assert kept.shape == (70, 3) and np.isnan(kept[60:]).all()


def test_nothing_is_no_append(db):
    ds = db.ingest(cells(0, 60), "t/p")
    with pytest.raises(skytether.InvalidError, match="no cells: there is nothing to append to t/p"):
        ds.append(cells(60, 62)[:0].copy())
    assert len(ds.history) == 1


@pytest.mark.parametrize("name", ["a\0b", ".", ".."])
def test_columns_that_no_h5ad_holds_are_refused(db, name):
    ds = db.ingest(cells(0, 10), "t/p")
    with pytest.raises(skytether.InvalidError, match="a name that h5ad files can't hold"):
        ds.set_obs(np.arange(10), name=name)
    with pytest.raises(skytether.InvalidError, match="a name that h5ad files can't hold"):
        ds.set_obs(pd.DataFrame({name: np.arange(10)}, index=ds.obs_names))
