"""AnnData in zarr, of both of its formats, as a directory and packed: what anndata writes comes back."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from conftest import assert_same, command, counts, rich

import skytether


def whole(x: object = None) -> ad.AnnData:
    adata = rich(x)
    adata.layers["scaled"] = adata.X * 2 if sp.issparse(adata.X) else np.asarray(adata.X) * 2
    adata.layers["late"] = sp.csc_matrix(counts(seed=5))
    adata.raw = ad.AnnData(X=sp.csr_matrix(counts(60, 45, 9)), obs=adata.obs[[]], var=rich(None, 60, 45).var)
    return adata


def written(adata: ad.AnnData, path: Path, version: int, chunks: tuple[int, ...] | None = None) -> Path:
    with warnings.catch_warnings(), ad.settings.override(zarr_write_format=version, allow_write_nullable_strings=True):
        warnings.simplefilter("ignore")
        adata.write_zarr(path, chunks=chunks) if chunks else adata.write_zarr(path)
    assert (path / ("zarr.json" if version == 3 else ".zgroup")).exists()
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("form", ["csr", "csc", "float16", "bool"])
def test_zarr_of_anndata_comes_back_as_it_was(db, tmp_path, form, version):
    x = counts()
    x = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray, "float16": lambda v: v.astype(np.float16), "bool": lambda v: v > 1}[form](x)
    place = written(whole(x), tmp_path / "a.zarr", version)
    ds = db.ingest(place, "t/x")
    assert_same(ad.read_zarr(place), ds.to_anndata())
    assert set(ds.layers) == {"scaled", "late", "raw"}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("inside", [True, False])
def test_zip_of_zarr_is_read_packed(db, tmp_path, version, inside):
    place = written(whole(), tmp_path / "a.zarr", version)
    packed = shutil.make_archive(str(tmp_path / "packed.zarr"), "zip", tmp_path if inside else place, "a.zarr" if inside else ".")
    ds = db.ingest(packed, "t/x", layers=["late"])
    back = ad.read_zarr(place)
    del back.layers["scaled"]
    assert_same(back, ds.to_anndata())


@pytest.mark.parametrize("chunks", [(7, 40), (60, 3), (7, 3)])
def test_dense_chunks_of_any_shape_are_read_in_parts(db, tmp_path, chunks, monkeypatch):
    from msgexpress import _h5, _tiles

    monkeypatch.setattr(_tiles.spans, "__defaults__", (150,))
    assert _tiles.spans((60, 40), chunks)[0] * _tiles.spans((60, 40), chunks)[1] <= 300 and _h5.BATCH > 150
    x = counts()
    x[3, 4] = -1.5
    place = written(whole(x), tmp_path / "a.zarr", 3, chunks)
    assert zarr.open_group(place, mode="r")["X"].chunks == chunks
    assert_same(ad.read_zarr(place), db.ingest(place, "t/x").to_anndata())


@pytest.mark.parametrize("chunks", [(60, 3), (7, 3)])
def test_dense_chunks_of_h5ad_are_read_in_parts_too(db, tmp_path, chunks, monkeypatch):
    import h5py

    from msgexpress import _tiles

    monkeypatch.setattr(_tiles.spans, "__defaults__", (150,))
    adata = rich(counts())
    adata.write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        attributes = dict(file["X"].attrs)
        del file["X"]
        file.create_dataset("X", data=adata.X, chunks=chunks, compression="gzip").attrs.update(attributes)
    assert_same(adata, db.ingest(tmp_path / "a.h5ad", "t/x").to_anndata())


def test_ranges_that_end_within_chunks_are_whole(tmp_path):
    from msgexpress import _zarr

    array = zarr.create_array(str(tmp_path / "v"), shape=(1000,), chunks=(64,), dtype="int32")
    array[:] = np.arange(1000)
    one = _zarr.Vector(zarr.open_array(str(tmp_path / "v"), mode="r"), "v", "data")
    cuts = [0, 1, 63, 64, 65, 65, 300, 999, 1000]
    assert np.concatenate([one.read(a, b) for a, b in zip(cuts, cuts[1:])]).tolist() == list(range(1000))
    assert one.read(500, 503).tolist() == [500, 501, 502] and one.read(3, 5).tolist() == [3, 4]


def test_a_missing_chunk_is_no_zeros(db, tmp_path):
    place = written(whole(), tmp_path / "a.zarr", 3)
    for chunk in (place / "X" / "data" / "c").iterdir():
        chunk.unlink()
    with pytest.raises(skytether.CorruptError, match=r"a.zarr: X/data has 0 of its 1 chunks: copy it whole"):
        db.ingest(place, "t/x")
    assert list(db) == []


@pytest.mark.parametrize("what", ["obs/type/codes", "X/indices", "X/indptr"])
def test_damaged_chunks_are_named(db, tmp_path, what):
    place = written(whole(), tmp_path / "a.zarr", 3)
    chunk = next(p for p in (place / what / "c").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(skytether.CorruptError, match=r"a.zarr: .*(obs\['type'\]|X)"):
        db.ingest(place, "t/x")
    assert list(db) == []


def test_other_zarr_and_other_zips_are_refused(db, tmp_path):
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w").create_group("images")
    with pytest.raises(skytether.InvalidError, match="g.zarr is zarr, but no AnnData: it has no obs and var"):
        db.ingest(tmp_path / "g.zarr", "t/x")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("x")
    packed = shutil.make_archive(str(tmp_path / "other"), "zip", tmp_path / "d")
    with pytest.raises(skytether.InvalidError, match="other.zip is no HDF5 file"):
        db.ingest(packed, "t/x")


def test_zarr_goes_in_from_the_shell(tmp_path):
    place = written(whole(), tmp_path / "a.zarr", 3)
    done = command("ingest", place, "--to", "t/x", "--layer", "raw", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "t/x: 60 cells x 45 genes" in done.stderr, done.stderr
