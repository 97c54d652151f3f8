"""Highly variable genes are those of scanpy."""

from __future__ import annotations

import sys
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K

import msgexpress
import skytether

CELLS, GENES = 400, 600


def made(seed: int = 4) -> ad.AnnData:
    """Counts with a trend of variances, batches that differ, and genes that a batch or all cells lack."""
    rng = np.random.default_rng(seed)
    mean = rng.gamma(0.6, 2.0, GENES)
    rate = rng.gamma(2.0, 0.5, (CELLS, GENES)) * mean
    batch = np.arange(CELLS) % 3
    rate[batch == 1] *= rng.choice([1, 4], GENES, p=[0.9, 0.1])
    x = rng.poisson(rate).astype(np.float32)
    x[:, 5] = 0
    x[batch == 2, 6:20] = 0
    x[:, 30] = 2
    obs = pd.DataFrame({"batch": pd.Categorical(np.array(["b1", "b0", "b2"])[batch], categories=["b2", "b0", "b1", "unused"])}, index=[f"c{i}" for i in range(CELLS)])
    return ad.AnnData(sp.csr_matrix(x), obs=obs, var=pd.DataFrame(index=[f"g{(i * 37) % GENES}" for i in range(GENES)]))


def logs(adata: ad.AnnData, target: float | None = 1e4, base: float | None = None) -> ad.AnnData:
    adata = adata.copy()
    sc.pp.normalize_total(adata, target_sum=target)
    sc.pp.log1p(adata, base=base)
    return adata


def scanpys(adata: ad.AnnData, **options) -> pd.DataFrame:
    # scanpy fails with categories that no cell has.
    adata = adata.copy()
    if options.get("batch_key"):
        adata.obs["batch"] = adata.obs["batch"].cat.remove_unused_categories()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sc.pp.highly_variable_genes(adata, inplace=False, **options).loc[adata.var_names]


def assert_same(ours: pd.DataFrame, theirs: pd.DataFrame, atol: float = 1e-6) -> None:
    assert list(ours.columns) == list(theirs.columns) and list(ours.index) == list(theirs.index)
    assert 0 < theirs["highly_variable"].sum() < len(theirs)
    for column in theirs:
        mine, other = ours[column], theirs[column]
        if column == "mean_bin":
            np.testing.assert_allclose(np.array([b.left for b in mine]), [b.left for b in other], atol=1.1e-3)
        elif other.dtype.kind in "bO" or column.endswith(("nbatches", "rank")):
            np.testing.assert_array_equal(mine, other, err_msg=column)
        else:
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=atol, err_msg=column)


@pytest.fixture(scope="module")
def adata():
    return made()


@pytest.fixture(scope="module")
def ds(tmp_path_factory, adata):
    with msgexpress.open(tmp_path_factory.mktemp("hvg") / "fleet", drives=3) as db:
        yield db.ingest(adata, "t/x")


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger", "seurat_v3"])
def test_genes_of_pbmc3k_are_those_of_scanpy(pbmc3k_fleet, flavor):
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.filter_genes(adata, min_cells=3)
    theirs = scanpys(adata if flavor == "seurat_v3" else logs(adata), n_top_genes=2000, flavor=flavor)
    with msgexpress.open(pbmc3k_fleet) as db:
        view = db["blood/pbmc3k"].filter_genes(min_cells=3)
        ours = view.highly_variable_genes(2000, flavor) if flavor == "seurat_v3" else view.highly_variable_genes(flavor=flavor, transform="log1p_cp10k")
    assert theirs["highly_variable"].sum() >= 2000
    assert_same(ours, theirs)


@pytest.mark.parametrize("batch_key", [None, "batch"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_top_genes": 50},
        {"n_top_genes": 80, "n_bins": 7},
        {"n_top_genes": None},
        {"n_top_genes": None, "min_mean": 0.5, "max_mean": 4, "min_disp": 0.1, "max_disp": 1.5},
        {"n_top_genes": 50, "flavor": "cell_ranger"},
        {"n_top_genes": None, "flavor": "cell_ranger", "max_mean": 6},
        {"n_top_genes": 50, "flavor": "seurat_v3"},
        {"n_top_genes": 40, "flavor": "seurat_v3_paper", "span": 0.6},
    ],
    ids=str,
)
def test_each_option_selects_as_scanpy(ds, adata, batch_key, options):
    by_variance = options.get("flavor", "").startswith("seurat_v3")
    theirs = scanpys(adata if by_variance else logs(adata), batch_key=batch_key, **options)
    more = {} if by_variance else {"transform": "log1p_cp10k"}
    assert_same(ds.highly_variable_genes(batch_key=batch_key, **options, **more), theirs)


@pytest.mark.parametrize("base", [None, 2])
@pytest.mark.parametrize("target", [None, 500.0])
def test_other_transforms_select_as_scanpy(ds, adata, target, base):
    chosen = msgexpress.Normalize(target, base=base)
    for flavor in ("seurat", "cell_ranger"):
        # numpy's logarithms are some units off in the last digit, which counts where dispersions of a bin are close.
        assert_same(ds.highly_variable_genes(60, flavor, transform=chosen), scanpys(logs(adata, target, base), n_top_genes=60, flavor=flavor), 5e-6)


def test_stored_logarithms_are_taken_back_to_their_base(tmp_path, adata):
    stored = logs(adata, base=3)
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ours = db.ingest(stored, "t/logs").highly_variable_genes(60, transform=None)
    assert_same(ours, scanpys(stored, n_top_genes=60))


def test_the_transform_is_never_chosen_in_silence(ds, tmp_path, adata):
    with pytest.warns(UserWarning, match='looks like raw counts, so genes are selected with transform="log1p_cp10k"'):
        guessed = ds.highly_variable_genes(50)
    said = ds.highly_variable_genes(50, transform="log1p_cp10k")
    assert guessed.equals(said) and guessed.attrs["transform"] == said.attrs["transform"] == "log1p_cp10k"
    again = type(ds)(ds.fleet, ds.name).normalize(500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remembered = again.highly_variable_genes(50, keep=False)
    assert remembered.attrs["transform"] == "Normalize(target_sum=500.0)"
    assert remembered.equals(ds.highly_variable_genes(50, transform=msgexpress.Normalize(500)))
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        stored = db.ingest(logs(adata), "t/logs")
        with pytest.warns(UserWarning, match="looks like normalised data, so genes are selected with transform=None"):
            stored.highly_variable_genes(50)
        with pytest.warns(UserWarning, match="flavor 'seurat_v3' is for raw counts"):
            stored.highly_variable_genes(50, "seurat_v3")


def test_genes_of_a_layer_and_of_a_view(tmp_path, adata):
    adata = adata.copy()
    adata.layers["counts"] = adata.X.copy()
    adata.X = logs(adata).X
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        some = adata.obs["batch"] != "b1"
        part = adata[some, np.arange(GENES) % 4 != 0].copy()
        view = ds.filter_cells(mask=some).filter_genes(mask=np.arange(GENES) % 4 != 0)
        raw = part.copy()
        raw.X = raw.layers["counts"]
        assert_same(view.highly_variable_genes(50, "seurat_v3", "batch", layer="counts"), scanpys(raw, n_top_genes=50, flavor="seurat_v3", batch_key="batch"))
        assert_same(view.highly_variable_genes(50, "cell_ranger", transform=None), scanpys(part, n_top_genes=50, flavor="cell_ranger"))
        assert_same(view.highly_variable_genes(50, layer="counts", transform="log1p_cp10k"), scanpys(logs(raw), n_top_genes=50))


def test_what_is_selected_is_kept_in_var(tmp_path, adata):
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        found = ds.highly_variable_genes(50, transform="log1p_cp10k", keep=False)
        assert "highly_variable" not in ds.var
        ds.filter_genes(mask=np.arange(GENES) != 3).highly_variable_genes(50, transform="log1p_cp10k")
        assert ds.var["highly_variable"].sum() == 50 and not ds.var["highly_variable"].iloc[3] and np.isnan(ds.var["means"].iloc[3])
        ds.highly_variable_genes(50, transform="log1p_cp10k")
        assert list(db["t/x"].var["highly_variable"]) == list(found["highly_variable"])
        np.testing.assert_allclose(db["t/x"].var["dispersions_norm"], found["dispersions_norm"])
        assert db["t/x"].to_anndata().uns["hvg"] == {"flavor": "seurat"}


def test_what_selects_no_genes_is_refused(ds, monkeypatch):
    for options, text in (
        ({"flavor": "seurat_v4"}, "flavor 'seurat_v4' does not exist.*did you mean"),
        ({"n_top_genes": 0}, "n_top_genes is 0"), ({"n_top_genes": 2.5}, "n_top_genes is 2.5"), ({"n_bins": 0}, "n_bins is 0"), ({"span": 0}, "span is 0"),
        ({"transform": None}, "flavor 'seurat' takes logarithms, and its values are all non-negative integers"),
        ({"transform": "cp10k"}, 'transform="cp10k" gives none'), ({"flavor": "seurat_v3", "transform": "log1p_cp10k"}, "takes counts as they are"),
        ({"transform": "log1p_cp10k", "batch_key": ["batch"]}, "batch_key is"),
    ):
        with pytest.raises(skytether.InvalidError, match=text):
            ds.highly_variable_genes(**options)
    with pytest.raises(skytether.NotFoundError, match="obs of t/x has no column 'bacth'.*did you mean 'batch'"):
        ds.highly_variable_genes(batch_key="bacth", transform="log1p_cp10k")
    monkeypatch.setitem(sys.modules, "skmisc.loess", None)
    with pytest.raises(skytether.UnsupportedError, match="pip install scikit-misc"):
        ds.highly_variable_genes(flavor="seurat_v3")


def test_cells_without_a_batch_are_refused(tmp_path, adata):
    adata = adata.copy()
    adata.obs["batch"] = adata.obs["batch"].where(np.arange(CELLS) != 3)
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        with pytest.raises(skytether.InvalidError, match="1 cells have no batch in obs column 'batch'"):
            ds.highly_variable_genes(50, batch_key="batch", transform="log1p_cp10k")
        assert ds.filter_cells(mask=adata.obs["batch"].notna()).highly_variable_genes(50, batch_key="batch", transform="log1p_cp10k")["highly_variable"].sum() == 50
