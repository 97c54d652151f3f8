"""NaN and infinity in matrices: kept, and the tests that meet them name gene and cell. Layers are chosen at ingest."""

from __future__ import annotations

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import command, counts, same_matrix

import msgexpress
import skytether

KINDS = [np.asarray, sp.csr_matrix, sp.csc_matrix]


def velocity(kind=sp.csr_matrix) -> ad.AnnData:
    """Counts with layers as scVelo makes them: velocities that are NaN for whole genes, and some infinite values."""
    x = counts()
    adata = ad.AnnData(kind(x), obs=pd.DataFrame({"g": pd.Categorical(["a", "b"] * 30)}, index=[f"cell-{i}" for i in range(60)]))
    adata.var_names = [f"gene-{i}" for i in range(40)]
    v = np.where(x > 0, x - 2.25, 0)
    v[:, 5] = np.nan
    v[7, 9], v[8, 9] = np.inf, -np.inf
    adata.layers["velocity"] = kind(v)
    adata.layers["spliced"] = kind(x * 2)
    return adata


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to_file", [False, True])
def test_layers_with_nan_do_not_hinder_others(db, tmp_path, kind, to_file) -> None:
    adata = velocity(kind)
    if to_file:
        adata.write_h5ad(tmp_path / "a.h5ad")
    ds = db.ingest(tmp_path / "a.h5ad" if to_file else adata, "t/x")
    back = ds.to_anndata()
    for name in ("velocity", "spliced"):
        a, b = (m.toarray() if sp.issparse(m) else m for m in (back.layers[name], adata.layers[name]))
        np.testing.assert_array_equal(a, b)
        assert type(back.layers[name]) is type(adata.layers[name]) and back.layers[name].dtype == adata.layers[name].dtype
    assert len(ds.rank_genes_groups("g", transform="log1p_cp10k").to_df("a")) == 40
    assert len(ds.rank_genes_groups("g", transform="log1p_cp10k", layer="spliced").to_df("a")) == 40
    part = ds.to_anndata(genes=["gene-5", "gene-6"], cells=[7, 3])
    np.testing.assert_array_equal(np.isnan(part.layers["velocity"].toarray() if sp.issparse(part.layers["velocity"]) else part.layers["velocity"]), [[True, False]] * 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transform", [None, "log1p_cp10k"])
def test_a_test_names_the_gene_and_cell_of_what_is_no_number(db, bad, dtype, transform) -> None:
    x = counts().astype(dtype)
    x[7, 3] = bad
    for kind in KINDS:
        adata = velocity()
        adata.X = kind(x)
        ds = db.ingest(adata, "t/x", replace=True)
        same_matrix(ds.to_anndata().X, adata.X)
        for run in (lambda: ds.rank_genes_groups("g", transform=transform), lambda: ds.ttest(range(10), range(10, 60), transform=transform)):
            with pytest.raises(skytether.InvalidError, match=rf"^t/x: gene 'gene-3' has the value {bad} in cell 'cell-7': a test needs finite numbers.*layer=") as told:
                run()
            assert told.value.detail_type == "unfit_value"


def test_sql_over_what_is_no_number(db) -> None:
    ds = db.ingest(velocity(), "t/x")
    x = ds.table("layer_velocity")
    found = db.fleet.sql(f"SELECT gene, count(*) AS n FROM {x} WHERE isnan(value) GROUP BY gene").to_arrow().to_pylist()
    assert found == [{"gene": "gene-5", "n": 60}]
    assert db.fleet.sql(f"SELECT cell, value FROM {x} WHERE abs(value) = CAST('Infinity' AS DOUBLE) ORDER BY cell").to_arrow().column("value").to_pylist() == [np.inf, -np.inf]
    with pytest.raises(skytether.InvalidError, match="cell-0|NaN"):
        db.fleet.sql(f"SELECT gene, cell_moments(cell, value, 'g', NULL) AS m FROM {x} WHERE gene = 'gene-5' GROUP BY gene").to_arrow()
    # A gene without them is tested as ever.
    assert db.fleet.sql(f"SELECT gene, cell_moments(cell, value, 'g', NULL) AS m FROM {x} WHERE gene = 'gene-6' GROUP BY gene").to_arrow().num_rows == 1


def test_a_total_that_no_float_holds_is_told_at_the_test(db) -> None:
    x = counts().astype(np.float64)
    x[7, 3] = x[7, 4] = 3e38
    adata = velocity()
    adata.X = x
    ds = db.ingest(adata, "t/x")
    np.testing.assert_array_equal(ds.to_anndata().X, x)
    with pytest.raises(skytether.InvalidError, match="values of cell 'cell-7' add up to more than a 32-bit float holds: scale"):
        ds.rank_genes_groups("g", transform="log1p_cp10k")


@pytest.mark.parametrize("to_file", [False, True])
def test_layers_are_chosen_at_ingest(db, tmp_path, to_file) -> None:
    adata = velocity()
    adata.write_h5ad(tmp_path / "a.h5ad")
    source = tmp_path / "a.h5ad" if to_file else adata
    for layers, layer, kept in ((None, None, set()), ([], None, set()), (["spliced"], None, {"spliced"}), ("spliced", None, {"spliced"}), (None, "spliced", {"spliced"}), (["velocity"], "spliced", {"velocity", "spliced"})):
        ds = db.ingest(source, "t/x", layers=layers, layer=layer, replace=True)
        assert set(ds.to_anndata().layers) == kept, (layers, layer)
        assert ds.to_anndata().shape == (60, 40)
    assert set(db.ingest(source, "t/x", replace=True).to_anndata().layers) == {"velocity", "spliced"}
    with pytest.raises(skytether.InvalidError, match="no layer 'splised' to keep: it has 'velocity', 'spliced'|'spliced', 'velocity'"):
        db.ingest(source, "t/y", layers=["splised"])
    assert list(db) == ["t/x"]


def test_layers_left_out_need_not_be_storable(db, tmp_path) -> None:
    adata = velocity()
    adata.layers["odd"] = counts().astype(np.complex64)
    with pytest.raises(skytether.SkytetherError, match="layers/odd"):
        db.ingest(adata, "t/x")
    assert set(db.ingest(adata, "t/x", layers=["spliced"]).to_anndata().layers) == {"spliced"}
    velocity().write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "a") as file:
        del file["layers/velocity/indices"]
    with pytest.raises(skytether.CorruptError, match="layers/velocity"):
        db.ingest(tmp_path / "a.h5ad", "t/y")
    assert set(db.ingest(tmp_path / "a.h5ad", "t/y", layers=["spliced"]).to_anndata().layers) == {"spliced"}


def test_layers_are_chosen_in_the_shell(tmp_path) -> None:
    velocity().write_h5ad(tmp_path / "a.h5ad")

    def ingest(*options: str) -> object:
        return command("ingest", tmp_path / "a.h5ad", "--to", "t/x", "--replace", "--fleet", tmp_path / "fleet", *options)

    for options, kept in ((["--no-layers"], []), (["--layers", "spliced"], ["spliced"]), (["--layers", "spliced", "--layers", "velocity"], ["spliced", "velocity"]), ([], ["spliced", "velocity"])):
        assert ingest(*options).returncode == 0
        with msgexpress.open(tmp_path / "fleet") as db:
            assert sorted(db["t/x"].layers) == kept
    done = ingest("--layers", "q")
    assert done.returncode == 1 and "no layer 'q' to keep" in done.stderr
    assert ingest("--layers", "q", "--no-layers").returncode == 2
