"""Views: filters of cells and genes that copy nothing, in scanpy's order of steps."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, command, counts
from test_rank import assert_agree, scanpy_says

import msgexpress
import skytether

CELLS, GENES = 150, 80


def made() -> ad.AnnData:
    x = counts(CELLS, GENES, seed=6, share=0.4)
    x[:, 3] = 0
    x[5:8, ::2] = 0
    obs = pd.DataFrame({"type": pd.Categorical(np.array(["T", "B", "NK"])[np.arange(CELLS) % 3])}, index=[f"c{i}" for i in range(CELLS)])
    adata = ad.AnnData(sp.csr_matrix(x), obs=obs, var=pd.DataFrame({"symbol": [f"S{i}" for i in range(GENES)]}, index=[f"g{i}" for i in range(GENES)]))
    adata.raw = adata[:, :10].copy()
    return adata


@pytest.fixture(scope="module")
def adata():
    return made()


@pytest.fixture(scope="module")
def ds(tmp_path_factory, adata):
    with msgexpress.open(tmp_path_factory.mktemp("views") / "fleet", drives=3) as db:
        yield db.ingest(adata, "t/x")


def filtered(adata: ad.AnnData, cells: dict | None = None, genes: dict | None = None) -> ad.AnnData:
    adata = adata.copy()
    for name, limit in (cells or {}).items():
        sc.pp.filter_cells(adata, **{name: limit})
    for name, limit in (genes or {}).items():
        sc.pp.filter_genes(adata, **{name: limit})
    return adata


@pytest.mark.parametrize("name, limit", [("min_genes", 30), ("max_genes", 34), ("min_counts", 70), ("max_counts", 60.5)])
def test_each_limit_of_cells_leaves_scanpys(ds, adata, name, limit):
    left = filtered(adata, cells={name: limit})
    view = ds.filter_cells(**{name: limit})
    assert 0 < left.n_obs < CELLS and list(view.obs_names) == list(left.obs_names) and view.shape == left.shape


@pytest.mark.parametrize("name, limit", [("min_cells", 60), ("max_cells", 61), ("min_counts", 300), ("max_counts", 310.5)])
def test_each_limit_of_genes_leaves_scanpys(ds, adata, name, limit):
    left = filtered(adata, genes={name: limit})
    view = ds.filter_genes(**{name: limit})
    assert 0 < left.n_vars < GENES and list(view.var_names) == list(left.var_names) and view.shape == left.shape


def test_filters_follow_each_other_as_in_scanpy(ds, adata):
    left = filtered(adata, {"min_genes": 25, "max_counts": 2000}, {"min_cells": 40})
    sc.pp.filter_cells(left, min_counts=50)
    view = ds.filter_cells(min_genes=25, max_counts=2000).filter_genes(min_cells=40).filter_cells(min_counts=50)
    assert view.shape == left.shape and list(view.obs_names) == list(left.obs_names) and list(view.var_names) == list(left.var_names)
    assert view.filters == ("min_genes=25", "max_counts=2,000", "min_cells=40", "min_counts=50")
    assert repr(view) == f"<msgexpress.View of t/x, {left.n_obs} of 150 cells x {left.n_vars} of 80 genes: min_genes=25, max_counts=2,000, min_cells=40, min_counts=50>"
    pd.testing.assert_frame_equal(view.obs, left.obs[["type"]])
    pd.testing.assert_frame_equal(view.var, left.var[["symbol"]])
    np.testing.assert_array_equal(view.to_anndata().X.toarray(), left.X.toarray())
    np.testing.assert_array_equal(view[:3, ["g1"]].X.toarray(), left[:3, ["g1"]].X.toarray())


def test_masks_choose_as_in_tests(ds, adata):
    assert list(ds.filter_cells(mask={"type": "B"}).obs["type"].unique()) == ["B"]
    assert list(ds.filter_cells(mask={"type": ["B", "T"]}).filter_cells(mask=[0, 2]).obs_names) == ["c0", "c3"]
    assert list(ds.filter_genes(mask=["g7", "g1"]).var_names) == ["g1", "g7"]
    assert ds.filter_cells(mask=adata.obs["type"] == "B", min_genes=1).shape == (50, GENES)
    # A mask by names may be of more cells than a view has.
    assert ds.filter_cells(mask={"type": ["B", "T"]}).filter_cells(mask=adata.obs["type"] == "B").shape == (50, GENES)
    assert list(ds.filter_genes(mask=["g7", "g1"]).filter_genes(mask=pd.Series(adata.var_names == "g7", adata.var_names)).var_names) == ["g7"]
    assert list(ds.filter_cells(mask={"type": "B"}).obs["type"].cat.categories) == ["B"]


@pytest.mark.parametrize("transform", ["log1p_cp10k", msgexpress.Normalize("median"), msgexpress.Normalize(300, base=2)], ids=str)
def test_normalised_after_filters_as_in_scanpy(ds, adata, transform):
    left = filtered(adata, {"min_genes": 25}, {"min_cells": 50})
    of = msgexpress.Normalize() if isinstance(transform, str) else transform
    sc.pp.normalize_total(left, target_sum=None if of.target_sum == "median" else of.target_sum)
    sc.pp.log1p(left, base=of.base)
    view = ds.filter_cells(min_genes=25).filter_genes(min_cells=50)
    res = view.rank_genes_groups("type", transform=transform)
    theirs = scanpy_says(left, "type", method="t-test")
    assert_agree(res, theirs, ["B", "NK", "T"])
    again = ds.filter_cells(min_genes=25).filter_genes(min_cells=50).normalize(transform=transform)
    assert again.rank_genes_groups("type").to_df().equals(res.to_df())
    # Plots of it show the same values.
    dots = res.plot_dotplot(n_genes=2).data
    gene, group = dots["gene"][0], dots["group"][0]
    np.testing.assert_allclose(dots["mean"][0], left[left.obs["type"] == group, gene].X.mean(), rtol=1e-6)


def test_normalised_before_filters_as_in_scanpy(ds, adata):
    whole = adata.copy()
    sc.pp.normalize_total(whole)
    sc.pp.log1p(whole)
    left = filtered(adata, {"min_genes": 25}, {"min_cells": 50})
    theirs = scanpy_says(whole[left.obs_names, left.var_names].copy(), "type", method="t-test")
    view = type(ds)(ds.fleet, ds.name).normalize("median").filter_cells(min_genes=25).filter_genes(min_cells=50)
    assert_agree(view.rank_genes_groups("type"), theirs, ["B", "NK", "T"])


def test_pbmc3k_from_counts_as_in_scanpys_tutorial(pbmc3k_fleet):
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.filter_cells(adata, min_genes=200)
    sc.pp.filter_genes(adata, min_cells=3)
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    theirs = sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"])
    with msgexpress.open(pbmc3k_fleet) as db:
        view = db["blood/pbmc3k"].filter_cells(min_genes=200).filter_genes(min_cells=3)
        for mine, other in zip(view.qc_metrics({"mt": "MT-"}), theirs):
            pd.testing.assert_frame_equal(mine, other, check_exact=True, check_names=False)
        few = theirs[0]["pct_counts_mt"] < 5
        adata = adata[few].copy()
        sc.pp.normalize_total(adata)
        sc.pp.log1p(adata)
        view = view.filter_cells(mask=few).normalize("median")
        assert view.shape == adata.shape
        # Five cells are unassigned: too few for scores that agree to six digits, as numpy's logarithms are a bit off.
        groups = [g for g in adata.obs["cell_type"].cat.categories if g != "unassigned"]
        assert_agree(view.rank_genes_groups("cell_type", groups=groups), scanpy_says(adata, "cell_type", method="t-test", groups=groups), groups)
        chosen = sc.pp.highly_variable_genes(adata, n_top_genes=500, inplace=False)
        assert list(view.var_names[view.highly_variable_genes(500)["highly_variable"]]) == list(adata.var_names[chosen["highly_variable"]])


def test_tests_within_a_view_choose_among_its_cells(ds, adata):
    view = ds.filter_cells(mask=np.arange(CELLS) < 100).filter_genes(mask=np.arange(GENES) < 40)
    left = adata[:100, :40].copy()
    sc.pp.normalize_total(left, target_sum=1e4)
    sc.pp.log1p(left)
    some = view.rank_genes_groups("type", transform="log1p_cp10k", cells=np.arange(100) >= 20, genes=["g1", "g2", "g5"])
    assert_agree(some, scanpy_says(left[20:, ["g1", "g2", "g5"]].copy(), "type", method="t-test"), ["B", "NK", "T"])
    two = view.ttest({"type": "B"}, {"type": "T"}, transform="log1p_cp10k")
    pair = scanpy_says(left.copy(), "type", groups=["B"], reference="T", method="t-test")
    theirs = sc.get.rank_genes_groups_df(pair, "B").set_index("names")["scores"].loc[two.to_df("B")["names"]]
    np.testing.assert_allclose(two.to_df("B")["scores"], theirs, rtol=2e-6, atol=2e-6)
    assert two.params["reference"] == "T"


def test_views_are_saved_by_name(ds):
    view = ds.filter_cells(min_genes=25).normalize("median", base=2).filter_genes(min_cells=50)
    assert view.save("clean") is view and ds.views == view.views == ["clean"]
    again = type(ds)(ds.fleet, ds.name).view("clean")
    assert repr(again) == repr(view) and np.array_equal(again.cells, view.cells) and np.array_equal(again.genes, view.genes)
    assert again.rank_genes_groups("type").to_df().equals(view.rank_genes_groups("type").to_df())
    with pytest.raises(skytether.ConflictError, match="t/x has a view 'clean' already"):
        view.save("clean")
    assert ds.filter_cells(mask=[0, 1]).save("clean", replace=True).shape == ds.view("clean").shape == (2, GENES)
    with pytest.raises(skytether.NotFoundError, match="has no view 'claen': it has 'clean'; did you mean 'clean'"):
        ds.view("claen")


def test_what_a_view_cannot_do_is_refused(ds):
    view = ds.filter_genes(min_cells=50)
    with pytest.raises(AttributeError, match="plot_dotplot is not offered of a view: use it on view.dataset"):
        view.plot_dotplot(["g1"], "type")
    with pytest.raises(AttributeError, match="no attribute 'shap'.*did you mean 'shape'"):
        view.shap
    with pytest.raises(skytether.InvalidError, match="says nothing of raw/X"):
        view.rank_genes_groups("type", layer="raw", transform="log1p_cp10k")
    with pytest.raises(skytether.InvalidError, match="says nothing of raw/X"):
        view.qc_metrics(layer="raw")
    for call, text in (
        (lambda: ds.filter_cells(), "a filter needs a limit"), (lambda: ds.filter_cells(min_genes=1000), "no cell of t/x is left by min_genes=1,000"),
        (lambda: ds.filter_genes(min_cells="3"), "min_cells is '3'"), (lambda: ds.filter_genes(min_cells=-1), "min_cells is -1"),
        (lambda: ds.filter_genes(max_counts=0, min_cells=1), "no gene of t/x is left"), (lambda: view.save(""), "is empty"),
    ):
        with pytest.raises(skytether.InvalidError, match=text):
            call()
    with pytest.raises(skytether.InvalidError, match="say transform="):
        view.rank_genes_groups("type")


def test_a_view_is_exported_and_drawn(ds, adata, tmp_path):
    view = ds.filter_cells(min_genes=25).filter_genes(min_cells=50)
    view.export(tmp_path / "part.h5ad")
    written = ad.read_h5ad(tmp_path / "part.h5ad")
    assert written.shape == view.shape and list(written.var_names) == list(view.var_names)
    plot = view.plot_qc(path=tmp_path / "qc.png")
    assert len(plot.data) == view.n_obs and (tmp_path / "qc.png").stat().st_size > 1000


def test_views_write_nothing_and_masks_ask_nothing(tmp_path, adata, monkeypatch):
    place = tmp_path / "fleet"
    with msgexpress.open(place, drives=2, kept_per_drive=0) as db:
        ds = db.ingest(adata, "t/x")
        asked = []
        sql = skytether.Fleet.sql
        monkeypatch.setattr(skytether.Fleet, "sql", lambda self, query, *args, **kwargs: (asked.append(query), sql(self, query, *args, **kwargs))[1])

        def files() -> dict[str, tuple[int, int]]:
            found = ((path, path.stat()) for path in place.rglob("*") if path.is_file())
            return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found}

        ds.obs_names, ds.var_names  # read once, and known from then on
        before, versions = files(), len(ds.history)
        asked.clear()
        view = ds.filter_cells(mask=np.arange(CELLS) < 100).filter_genes(mask=np.arange(GENES) < 40).filter_cells(mask=np.arange(100) >= 20)
        assert view.shape == (80, 40) and asked == []
        # Limits count on the drives, from columns of counts: no value of the matrix comes here.
        view = view.filter_cells(min_genes=5).filter_genes(min_cells=3)
        assert view.n_obs <= 80 and asked and not any("val FROM" in query for query in asked)
        assert files() == before and len(ds.history) == versions
        assert ds.views == []


def test_saved_views_are_dropped(tmp_path, adata):
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        ds.filter_cells(min_genes=25).save("clean")
        ds.filter_cells(min_genes=30).save("other")
        ds.drop_view("clean")
        assert ds.views == ["other"] and [*ds.history["action"]] == ["ingest", "save_view", "save_view", "drop_view"] and ds.n_obs == CELLS
        with pytest.raises(skytether.NotFoundError, match="t/x has no view 'clean': it has 'other'"):
            ds.drop_view("clean")
    with msgexpress.open(tmp_path / "fleet") as db:
        assert db["t/x"].views == ["other"]


def test_views_command_saves_lists_and_drops(tmp_path, adata):
    fleet = tmp_path / "fleet"
    with msgexpress.open(fleet, drives=2) as db:
        db.ingest(adata, "t/x")

    def views(*words: str) -> str:
        done = command("views", "t/x", *words, "--fleet", fleet)
        assert done.returncode == 0, done.stderr
        return done.stdout or done.stderr

    assert views("--format", "csv") == "view,cells,genes,filters\n"
    said = views("--save", "clean", "--set", "some=g1", "--max-pct", "some=15", "--min-genes", "25", "--min-cells", "20")
    with msgexpress.open(fleet) as db:
        ds = db["t/x"]
        few = ds.qc_metrics({"some": "g1"})[0]["pct_counts_some"] <= 15
        wanted = ds.filter_cells(mask=few).filter_cells(min_genes=25).filter_genes(min_cells=20)
        found = ds.view("clean")
        assert 0 < (~few).sum() < CELLS and np.array_equal(found.cells, wanted.cells) and np.array_equal(found.genes, wanted.genes)
        assert said == f"view clean has {wanted.n_obs} of {CELLS} cells and {wanted.n_vars} of {GENES} genes of t/x\n"
    assert views("--format", "csv").splitlines()[1].startswith(f"clean,{wanted.n_obs},{wanted.n_vars},")
    assert views("--save", "clean", "--max-counts", "60", "--replace").startswith("view clean has ")
    assert views("--drop", "clean") == "dropped view clean of t/x\n" and views("--format", "csv").count("\n") == 1
    for words, status, says in (
        (("--save", "x"), 2, "--save needs a limit"),
        (("--min-genes", "3"), 2, "belong to --save VIEW"),
        (("--drop", "x"), 1, "has no view 'x'"),
        (("--save", "x", "--max-pct", "ribo=3"), 2, "there is no set ribo"),
    ):
        done = command("views", "t/x", *words, "--fleet", fleet)
        assert done.returncode == status and says in done.stderr, done.stderr
