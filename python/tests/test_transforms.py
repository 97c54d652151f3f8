"""Transforms are scanpy's normalize_total and log1p, and are chosen once or in each call."""

from __future__ import annotations

import math
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, counts
from test_rank import assert_agree, scanpy_says

import msgexpress
import skytether
from msgexpress import Normalize, _sums

CHOICES = [
    Normalize(target_sum="median"),
    Normalize(target_sum=2500.5),
    Normalize(target_sum=1e6, base=2),
    Normalize(base=10.0),
    Normalize(target_sum=None, base=1.5),
    Normalize(log1p=False),
]


def transformed(adata: ad.AnnData, transform: Normalize) -> ad.AnnData:
    adata = adata.copy()
    sc.pp.normalize_total(adata, target_sum=None if transform.target_sum == "median" else transform.target_sum)
    if transform.log1p:
        sc.pp.log1p(adata, base=transform.base)
    return adata


def made(dense: bool = False) -> ad.AnnData:
    x = counts(120, 50, seed=3)
    x[7] = 0
    obs = pd.DataFrame({"type": pd.Categorical(np.array(["T", "B", "NK"])[np.arange(120) % 3])}, index=[f"c{i}" for i in range(120)])
    return ad.AnnData(x if dense else sp.csr_matrix(x), obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(50)]))


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("transforms") / "fleet", drives=3) as db:
        yield db.ingest(made(), "t/x")


@pytest.mark.parametrize("transform", CHOICES, ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_transformed_values_are_those_of_scanpy(tmp_path, transform, dense):
    adata = made(dense)
    theirs = transformed(adata, transform).X
    theirs = theirs if dense else theirs.toarray()
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        shown = ds.plot_violin(["g1", "g3"], transform=transform).data if transform.log1p else None
        # A gene at a time as sums over that gene alone: the drives' own arithmetic.
        weights = np.eye(50, dtype=np.float32)
        found = _sums.per_cell(ds, "x", [("values", w) for w in weights[:20]], transform=transform)
    # Quotients are scanpy's to the bit. numpy's logarithm in float32 is not always rounded right, and ours is.
    scaled = transformed(adata, Normalize(transform.target_sum, log1p=False)).X
    scaled = scaled if dense else scaled.toarray()
    due = np.log1p(scaled.astype(np.float64)).astype(np.float32) if transform.log1p else scaled
    due = due if transform.base is None else (due / np.log(transform.base)).astype(np.float32)
    np.testing.assert_array_equal(found.astype(np.float32).T, due[:, :20])
    np.testing.assert_allclose(found.T, theirs[:, :20], rtol=3e-7)
    if shown is not None:
        np.testing.assert_array_equal(shown[["g1", "g3"]].to_numpy(np.float32), theirs[:, [1, 3]])


@pytest.mark.parametrize("transform", CHOICES[:5], ids=str)
def test_ranks_after_any_transform_are_those_of_scanpy(ds, transform):
    adata = scanpy_says(transformed(made(), transform), "type", method="t-test")
    res = ds.rank_genes_groups("type", transform=transform)
    assert_agree(res, adata, ["B", "NK", "T"])
    assert res.params["transform"] == transform and str(transform) in repr(res.params)


def test_pbmc3k_scaled_to_its_median_agrees_with_scanpy(pbmc3k_fleet):
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata, base=2)
    with msgexpress.open(pbmc3k_fleet) as db:
        res = db["blood/pbmc3k"].rank_genes_groups("cell_type", transform=Normalize("median", base=2))
    assert_agree(res, scanpy_says(adata, "cell_type", method="t-test"), list(adata.obs["cell_type"].cat.categories))


def test_named_transforms_are_those_of_normalize(ds):
    usual, named = ds.rank_genes_groups("type", transform=Normalize()), ds.rank_genes_groups("type", transform="log1p_cp10k")
    assert usual.params == named.params and usual.to_df().equals(named.to_df())
    with pytest.warns(UserWarning, match='transform="cp10k" takes no logarithm'):
        linear = ds.rank_genes_groups("type", transform=Normalize(log1p=False))
    with pytest.warns(UserWarning, match="takes no logarithm"):
        assert linear.to_df().equals(ds.rank_genes_groups("type", transform="cp10k").to_df())
    assert linear.params["transform"] == "cp10k"


def test_normalize_is_remembered_and_a_call_still_wins(ds):
    again = type(ds)(ds.fleet, ds.name)
    with pytest.raises(skytether.InvalidError, match="say transform="):
        again.rank_genes_groups("type")
    assert again.normalize(2000, base=2) is again
    chosen = Normalize(2000, base=2)
    assert again.transforms == {None: chosen}
    assert again.rank_genes_groups("type").to_df().equals(ds.rank_genes_groups("type", transform=chosen).to_df())
    assert again.ttest({"type": "B"}, {"type": "T"}).params["transform"] == chosen
    assert again.rank_genes_groups("type", transform="log1p_cp10k").params["transform"] == "log1p_cp10k"
    # Plots show the means of these values.
    shown, said = again.plot_dotplot(["g1"], "type"), ds.plot_dotplot(["g1"], "type", transform=chosen)
    pd.testing.assert_frame_equal(shown.data, said.data)
    other = ds.plot_dotplot(["g1"], "type", transform="log1p_cp10k")
    assert not np.allclose(shown.data["mean"], other.data["mean"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert again.normalize(transform=None).rank_genes_groups("type").params["transform"] is None
    # Another object of the data set knows nothing of it.
    assert ds.transforms == {}


def test_a_transform_in_uns_is_text(ds, tmp_path):
    res = ds.rank_genes_groups("type", transform=Normalize("median"))
    adata = made()
    adata.uns["rank_genes_groups"] = res.to_uns()
    adata.write_h5ad(tmp_path / "x.h5ad")
    assert ad.read_h5ad(tmp_path / "x.h5ad").uns["rank_genes_groups"]["params"]["transform"] == "Normalize(target_sum='median')"


def test_odd_transforms_are_refused(ds):
    for call in (
        lambda: Normalize(0), lambda: Normalize(-1), lambda: Normalize(math.nan), lambda: Normalize(1e60), lambda: Normalize("mean"), lambda: Normalize(True),
        lambda: Normalize(base=1), lambda: Normalize(base=math.inf), lambda: Normalize(log1p=False, base=2), lambda: Normalize(log1p="yes"),
        lambda: ds.rank_genes_groups("type", transform="log2"), lambda: ds.normalize(1e4, base=2, transform="cp10k"), lambda: ds.normalize(transform="log2"),
    ):
        with pytest.raises(skytether.InvalidError):
            call()
    assert Normalize(base=math.e) == Normalize() and Normalize(None) == Normalize("median")
    with pytest.raises(skytether.NotFoundError, match="has no layer"):
        ds.normalize(layer="spliced")


def test_a_median_of_no_counts_is_refused(tmp_path):
    x = counts(30, 20)
    x[:20] = 0
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame({"type": ["a", "b"] * 15}, index=map(str, range(30)))), "t/x")
        with pytest.raises(skytether.InvalidError, match="the median of the cells' sums in t/x is 0"):
            ds.rank_genes_groups("type", transform=Normalize("median"))


def test_values_that_do_not_fit_are_named_with_the_transform(tmp_path):
    x = counts(30, 20)
    x[4, 2] = -1.5
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame({"type": ["a", "b"] * 15}, index=[f"c{i}" for i in range(30)])), "t/x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(skytether.InvalidError, match=r"gene '2' has the value -1.5 in cell 'c4': transform=Normalize\(target_sum=500.0\) is for counts"):
                ds.rank_genes_groups("type", transform=Normalize(500))
