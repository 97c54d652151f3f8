"""What a `Dataset` gives back: parts of it, copies and not the cache, one generation and not two, and layers
by names of all kinds."""

from __future__ import annotations

import tracemalloc

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import assert_same, counts, rich, same_matrix

import skytether
from msgexpress import _export, _stored


# ---------------------------------------------------------------------------------------------------------------- parts


@pytest.fixture
def wide(db):
    """A matrix of many genes, with a value in most of them."""
    adata = ad.AnnData(X=sp.random(50, 6000, 0.05, format="csr", dtype=np.float32, random_state=1), var=pd.DataFrame(index=[f"g{i}" for i in range(6000)]))
    return adata, db.ingest(adata, "t/wide")


@pytest.mark.parametrize("n", [1, 520, 1000, 3000])
def test_many_genes_here_and_there(wide, n):
    adata, ds = wide
    genes = np.sort(np.random.default_rng(n).choice(6000, n, replace=False))
    same_matrix(ds.to_anndata(genes=genes).X, adata.X[:, genes])


def test_genes_in_runs_and_singles_and_more_than_can_be_named(wide, monkeypatch):
    adata, ds = wide
    # 150 runs of 20 genes with gaps of 20, and every third gene of the last ones.
    genes = np.concatenate([np.arange(i, i + 20) for i in range(0, 6000, 40)][:100] + [np.arange(4000, 6000, 3)])
    for most in (_export._MOST_NAMED, 10):
        monkeypatch.setattr(_export, "_MOST_NAMED", most)
        asked = _export._where(genes)
        assert ("IN (" in asked) == (most > 10) and asked.startswith(" WHERE gene_id BETWEEN 0 AND 5998")
        same_matrix(ds.to_anndata(genes=genes).X, adata.X[:, genes])
    # What is left out is not sent.
    monkeypatch.undo()
    sent = ds.fleet.sql(f"SELECT gene_id FROM {ds.table('x_rows')}{_export._where(genes)}").to_arrow()
    assert sorted(sent.column(0).to_pylist()) == genes.tolist()


LAYOUTS = [sp.csr_matrix, sp.csc_matrix, sp.csr_array, np.asarray]
# scipy has no sparse float16.
KINDS = [(layout, dtype) for layout in LAYOUTS for dtype in ("float32", "float64", "uint16", "bool")] + [(np.asarray, "float16")]


@pytest.mark.parametrize(("layout", "dtype"), KINDS)
def test_some_cells_of_every_type_and_layout(db, layout, dtype):
    adata = ad.AnnData(X=layout(np.minimum(counts(), 200).astype(dtype)))
    ds = db.ingest(adata, "t/x")
    for cells, genes in (([3, 17, 59], None), (np.arange(60) % 2 == 0, [0, 5, 39]), ([], None)):
        found, wanted = ds.to_anndata(cells=cells, genes=genes).X, adata[cells][:, slice(None) if genes is None else genes].X
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and sp.issparse(found) == sp.issparse(wanted)
        np.testing.assert_array_equal(found.toarray() if sp.issparse(found) else found, wanted.toarray() if sp.issparse(wanted) else wanted)


def test_some_cells_need_memory_for_some_cells_only(db):
    x = sp.random(4000, 1000, 0.5, format="csr", dtype=np.float32, random_state=1)
    ds = db.ingest(ad.AnnData(X=x), "t/x")
    ds.obs_names
    tracemalloc.start()
    try:
        part = ds.to_anndata(cells=[1, 2, 3999])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    same_matrix(part.X, x[[1, 2, 3999]])
    # The whole has 2,000,000 values, of 4 bytes with indices of 4 bytes.
    assert peak < 2_000_000 * 8 / 2


# ------------------------------------------------------------------------------------------------------------ about raw


def about_raw(db) -> tuple[ad.AnnData, object]:
    adata = rich()
    adata.raw = adata.copy()
    adata = adata[:, 5:25].copy()
    adata.X = adata.X * 3
    adata.layers["double"] = adata.X * 2
    return adata, db.ingest(adata, "t/x", layer="raw")


def test_genes_of_a_data_set_about_raw_are_raws(db):
    adata, ds = about_raw(db)
    whole = adata.raw.to_adata()
    assert list(ds.var_names) == list(whole.var_names) and len(ds.var_names) == 40
    mask = np.arange(40) % 3 == 0
    for genes in (mask, ["g39", "g0"], [1, 30]):
        part = ds.to_anndata(genes=genes)
        assert list(part.var_names) == list(whole[:, genes].var_names)
        wanted = whole[:, genes].copy()
        same_matrix(part.X, wanted.X)
        pd.testing.assert_frame_equal(part.var, wanted.var)
        assert part.raw is None and not part.layers and set(part.obsm) == set(adata.obsm)
    both = ds.to_anndata(genes=["g39"], cells=["cell-3", "cell-1"])
    np.testing.assert_array_equal(both.X.toarray(), whole[["cell-3", "cell-1"], ["g39"]].X.toarray())
    # Cells alone leave X, its genes and raw as they are.
    assert_same(ds.to_anndata(cells=["cell-3", "cell-1"]), adata[["cell-3", "cell-1"]].copy())
    assert_same(ds.to_anndata(), adata)
    with pytest.raises(skytether.InvalidError, match="20 genes, but there are 40"):
        ds.to_anndata(genes=np.ones(20, bool))


@pytest.mark.parametrize("main", [None, "raw", "double"])
def test_the_parameters_say_where_the_matrix_is_in_anndata(db, main):
    adata, _ = about_raw(db)
    ds = db.ingest(adata, "t/x", layer=main, replace=True)
    places = {"X": (False, None), "raw": (True, None), "double": (False, "double")}
    for layer in (None, *ds.layers):
        params = ds.rank_genes_groups("type", transform=None, layer=layer).params
        assert (params["use_raw"], params["layer"]) == places[layer or main or "X"], layer
    assert set(ds.layers) == set(places) - {main or "X"}


# ---------------------------------------------------------------------------------------------------------------- labels


def test_layers_called_raw_and_x_differ_from_raw_and_x(db):
    adata = rich()
    adata.raw = adata.copy()
    adata.layers["raw"], adata.layers["X"], adata.layers["layers/X"] = adata.X * 2, adata.X * 3, adata.X * 5
    factors = {None: 1, "raw": 1, "layers/raw": 2, "layers/layers/X": 3, "layers/X": 5}
    ds = db.ingest(adata, "t/x")
    assert set(ds.layers) == {label for label in factors if label}
    assert_same(ds.to_anndata(), adata)
    for label, factor in factors.items():
        with_label = db.ingest(adata, "t/main", layer=label, replace=True)
        assert db.fleet.sql("SELECT sum(value) FROM t.main.x").to_arrow().column(0)[0].as_py() == pytest.approx(adata.X.sum() * factor)
        assert set(with_label.layers) == ({"X", *factors} - {None, label} if label else set(ds.layers))
        assert_same(with_label.to_anndata(), adata)
        # What is ranked is what the label says.
        there = ds._kept["matrices"][ds._matrix(label)]["origin"]
        wanted = adata.X if there == "X" else adata.raw.X if there == "raw/X" else adata.layers[there.removeprefix("layers/")]
        assert wanted.sum() == pytest.approx(adata.X.sum() * factor)


def test_a_layer_called_raw_or_x_where_there_is_no_raw_or_x(db):
    adata = rich()
    adata.layers["raw"] = adata.X * 2
    assert db.ingest(adata, "t/x").layers == ["raw"]
    assert db.ingest(adata, "t/x", layer="raw", replace=True).layers == ["X"]
    assert db.fleet.sql("SELECT sum(value) FROM t.x.x").to_arrow().column(0)[0].as_py() == adata.X.sum() * 2
    adata.layers["X"] = adata.X * 3
    adata.X = None
    assert db.ingest(adata, "t/x", layer="X", replace=True).layers == ["raw"]
    assert db.fleet.sql("SELECT sum(value) FROM t.x.x").to_arrow().column(0)[0].as_py() == adata.layers["X"].sum()
    assert_same(db["t/x"].to_anndata(), adata)


NAMES = ["a/b", "a.b", "a;1", ";", "%41", "a_rows", "shell", "obs", "é/% 'x' \"y\"", "🧬" * 300, "x" * 3000, ""]


def test_layers_of_all_names(db):
    adata = rich()
    adata.layers["a"] = adata.X.copy()
    for number, name in enumerate(NAMES, 2):
        adata.layers[name] = adata.X * number
    # Two that begin with the same two hundred letters.
    adata.layers["x" * 2999] = adata.X * 99
    ds = db.ingest(adata, "t/x")
    assert set(ds.layers) == {"a", *NAMES, "x" * 2999}
    assert_same(ds.to_anndata(), adata)
    main = ds.rank_genes_groups("type", "student", transform=None).to_df("B")
    for name in ds.layers:
        # A multiple has the same scores, and another matrix would not have the same sums.
        np.testing.assert_allclose(ds.rank_genes_groups("type", "student", transform=None, layer=name).to_df("B")["scores"], main["scores"], rtol=1e-5, atol=1e-5)
        total = db.fleet.sql(f"SELECT sum(value) FROM {ds.table(ds._matrix(name))}").to_arrow().column(0)[0].as_py()
        assert total == pytest.approx(adata.layers[name].sum())


# ---------------------------------------------------------------------------------------------------------------- copies


def test_returned_objects_may_be_changed(db):
    adata = rich()
    adata.raw = adata.copy()
    ds = db.ingest(adata, "t/x")
    obs, var, names = ds.obs, ds.var, ds.var_names
    obs["n"] = 0
    obs.loc["cell-0", "note"] = "changed"
    obs.drop(columns="depth", inplace=True)
    var.iloc[:, :] = var.iloc[::-1].to_numpy()
    names.name = "changed"
    for cells in (None, np.ones(60, bool)):
        got = ds.to_anndata(cells=cells)
        got.uns["nested"]["deep"]["x"] = -1
        got.uns["nested"]["numbers"][:] = -1
        if cells is None:  # AnnData drops the colours of a column whose categories are not all there
            got.uns["type_colors"][:] = "#000000"
        for part in (got.obsm["X_pca"], got.varm["loadings"], got.obsp["distances"].data, got.varp["links"].data, got.X.data, got.raw.X.data):
            part[:] = -1
        got.obsm["frame"]["a"] = -1
        got.obs["n"] = -1
        got.var["high"] = False
        got.raw.var["high"] = False
        got.raw.varm["loadings"][:] = -1
    assert_same(ds.to_anndata(), adata)
    pd.testing.assert_frame_equal(ds.obs, adata.obs)
    pd.testing.assert_frame_equal(ds.var, adata.var)
    assert ds.var_names.name is None


# ---------------------------------------------------------------------------------------------------------------- generations


def another() -> ad.AnnData:
    """Of the same shape as `rich`, with other cells first."""
    adata = rich()[::-1].copy()
    adata.X = adata.X * 7
    return adata


ASKED = {
    "to_anndata": lambda ds: ds.to_anndata(),
    "obs": lambda ds: ds.obs,
    "var": lambda ds: ds.var,
    "rank_genes_groups": lambda ds: ds.rank_genes_groups("type", transform="log1p_cp10k"),
    "rank_genes_groups without transform": lambda ds: pytest.raises(skytether.InvalidError, lambda: ds.rank_genes_groups("type")),
    "ttest": lambda ds: ds.ttest(np.arange(60) < 20, np.arange(60) >= 20, transform=None),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_data_set_that_was_replaced_says_so(db, what):
    ds = db.ingest(rich(), "t/x")
    ASKED[what](ds)
    fresh = db["t/x"]
    db.ingest(another(), "t/x", replace=True)
    with pytest.raises(skytether.ConflictError, match=r"t/x was replaced.*db\['t/x'\] again"):
        ASKED[what](fresh)
    ASKED[what](db["t/x"])
    # What was read before stays what it was, and is not mixed with the new.
    if what in ("obs", "var"):
        pd.testing.assert_frame_equal(getattr(ds, what), getattr(rich(), what))
    else:
        with pytest.raises(skytether.ConflictError):
            ASKED[what](ds)


@pytest.mark.parametrize("when", ["after the shell", "within the matrix"])
def test_a_data_set_that_is_replaced_while_it_is_read_says_so(db, monkeypatch, when):
    ds = db.ingest(rich(), "t/x")
    real = _export._of_all_cells if when == "within the matrix" else _export.matrix

    def then(*arguments):
        found = real(*arguments)
        db.ingest(another() if when == "after the shell" else rich(cells=30), "t/x", replace=True)
        return found

    monkeypatch.setattr(_export, real.__name__, then)
    with pytest.raises(skytether.ConflictError, match="t/x was replaced"):
        ds.to_anndata()


def test_a_data_set_that_was_dropped_says_so(db):
    ds = db.ingest(rich(), "t/x")
    db.drop("t/x")
    with pytest.raises(skytether.NotFoundError, match="t.x"):
        ds.to_anndata()


# ------------------------------------------------------------------------------------------------- what is kept with it


def test_a_newer_or_damaged_description_is_named(db, monkeypatch):
    from msgexpress import _source

    monkeypatch.setattr(_source, "FORMAT", 99)
    with pytest.raises(skytether.UnsupportedError, match="t/new was ingested with a newer msgexpress.*99"):
        db.ingest(rich(), "t/new")
    monkeypatch.setattr(_source.Source, "_kept", lambda *_: "not an object")
    with pytest.raises(skytether.CorruptError, match="t/odd"):
        db.ingest(rich(), "t/odd")
    assert _stored.NEWEST == 2 and set(db) == {"t/new", "t/odd"}


def test_an_h5ad_with_narrow_indices(db, tmp_path):
    for layout in (sp.csr_matrix, sp.csc_matrix):
        rich(layout(counts())).write_h5ad(tmp_path / "a.h5ad")
        for kind in ("int16", "uint16", "int8", "uint32", "uint64"):
            with h5py.File(tmp_path / "a.h5ad", "a") as f:
                indices = f["X/indices"][:].astype(kind)
                del f["X/indices"]
                f["X"].create_dataset("indices", data=indices)
            back = db.ingest(tmp_path / "a.h5ad", "t/x", replace=True).to_anndata().X
            assert back.indices.dtype == kind
            same_matrix(back, ad.read_h5ad(tmp_path / "a.h5ad").X)


def test_zeros_that_were_stored_are_not(db):
    x = sp.csr_matrix(counts())
    x.data[::5] = 0
    adata = ad.AnnData(X=x.copy())
    back = db.ingest(adata, "t/x").to_anndata().X
    assert (adata.X.data == 0).sum() > 50 and (back.data != 0).all()
    x.eliminate_zeros()
    same_matrix(back, x)
