"""One modality of MuData, and AnnData that stay in their files: what comes in is what mudata and anndata read."""

from __future__ import annotations

import warnings
from pathlib import Path

import anndata as ad
import mudata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from conftest import assert_same, command, counts, rich

import skytether


def multimodal(path: Path, names: tuple[str, ...] = ("rna", "prot")) -> Path:
    """MuData whose modalities differ in everything, one with raw and a layer."""
    rna = rich()
    rna.layers["more"] = sp.csc_matrix(counts(seed=3))
    rna.raw = rna.copy()
    prot = ad.AnnData(counts(50, 7, 4), obs=pd.DataFrame({"of": ["a", "b"] * 25}, index=[f"cell-{i}" for i in range(10, 60)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = mudata.MuData({name: part for name, part in zip(names, (rna, prot))})
        made.obs["whole"] = range(made.n_obs)
        if path.suffix == ".zarr":
            made.write_zarr(path)
        else:
            made.write(path)
    return path


def modality(path: Path, name: str) -> ad.AnnData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix != ".zarr":
            return mudata.read_h5ad(path, name)
        # mudata's reader of zarr leaves raw out.
        return ad.io.read_elem(zarr.open_group(path, mode="r")["mod"][name])


@pytest.mark.parametrize("ending", ["h5mu", "zarr"])
def test_one_modality_is_what_mudata_reads(db, tmp_path, ending):
    place = multimodal(tmp_path / f"a.{ending}")
    for name in ("rna", "prot"):
        # What belongs to no modality is not lost without a word.
        with pytest.warns(UserWarning, match=rf"a.{ending}: obs columns of all modalities together are left out: whole$"):
            db.ingest(place, f"t/{name}", modality=name)
        assert_same(modality(place, name), db[f"t/{name}"].to_anndata())
    assert db["t/rna"].layers == ["raw", "more"]


@pytest.mark.parametrize("ending", ["h5mu", "zarr"])
def test_modalities_are_listed_where_one_must_be_chosen(db, tmp_path, ending):
    place = multimodal(tmp_path / f"a.{ending}")
    with pytest.raises(skytether.InvalidError, match=r"a MuData file of several modalities \('(rna', 'prot|prot', 'rna)'\): say with modality= which one"):
        db.ingest(place, "t/x")
    with pytest.raises(skytether.InvalidError, match="has no modality 'ran': it has ('rna', 'prot'|'prot', 'rna')"):
        db.ingest(place, "t/x", modality="ran")
    assert list(db) == []


def test_the_only_modality_needs_no_choice(db, tmp_path):
    place = multimodal(tmp_path / "a.h5mu", ("rna",))
    assert_same(modality(place, "rna"), db.ingest(place, "t/x").to_anndata())


def test_modality_of_what_has_none_is_refused(db, tmp_path):
    rich().write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(skytether.InvalidError, match="has no modalities to choose from: leave modality= out"):
        db.ingest(tmp_path / "a.h5ad", "t/x", modality="rna")
    with pytest.raises(skytether.InvalidError, match="AnnData has no modalities"):
        db.ingest(rich(), "t/x", modality="rna")


def test_modality_is_chosen_in_the_shell(tmp_path):
    place = multimodal(tmp_path / "a.h5mu")
    done = command("ingest", place, "--to", "t/x", "--fleet", tmp_path / "f")
    assert done.returncode == 1 and "say with --modality which one" in done.stderr
    done = command("ingest", place, "--to", "t/x", "--modality", "prot", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "50 cells x 7 genes" in done.stderr


# ---- backed


def backed(path: Path, x: object) -> ad.AnnData:
    adata = rich(x)
    adata.layers["more"] = sp.csr_matrix(counts(seed=3))
    adata.raw = adata.copy()
    adata.write_h5ad(path)
    return ad.read_h5ad(path, backed="r")


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray])
def test_backed_anndata_is_read_from_its_file(db, tmp_path, form, monkeypatch):
    adata = backed(tmp_path / "a.h5ad", form(counts()))
    # Changes in memory count, and the matrix is not loaded.
    adata.obs["new"] = range(60)
    wanted = adata.to_memory()
    adata = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    adata.obs["new"] = range(60)
    kind = type(ad.io.sparse_dataset(adata.raw._adata.file["layers/more"])).__mro__[1]
    loaded = kind.to_memory
    monkeypatch.setattr(kind, "to_memory", lambda matrix: loaded(matrix) if matrix.shape != (60, 40) or not matrix.group["data"].size else pytest.fail("a matrix was loaded"))
    assert_same(wanted, db.ingest(adata, "t/x").to_anndata())
    adata.file.close()


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray])
def test_view_of_backed_anndata_is_read_in_parts(db, tmp_path, form, monkeypatch):
    monkeypatch.setattr("msgexpress._h5.BATCH", 200)
    view = backed(tmp_path / "a.h5ad", form(counts()))[[5, 3, 40, 41, 7, 59], list(range(1, 40, 2))]
    wanted = view.to_memory()
    view = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")[[5, 3, 40, 41, 7, 59], list(range(1, 40, 2))]
    back = db.ingest(view, "t/x").to_anndata()
    assert back.shape == (6, 20) and list(back.obs_names) == list(view.obs_names)
    for a, b in ((back.X, wanted.X), (back.raw.X, wanted.raw.X), (back.layers["more"], wanted.layers["more"])):
        assert isinstance(b, type(a)) and a.dtype == b.dtype
        np.testing.assert_array_equal(*(m.toarray() if sp.issparse(m) else m for m in (a, b)))


def test_layers_left_in_a_file_are_read_from_there(db, tmp_path):
    import h5py

    adata = rich()
    adata.write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad") as file:
        adata.layers["there"] = ad.io.sparse_dataset(file["X"])
        back = db.ingest(adata, "t/x").to_anndata()
    np.testing.assert_array_equal(back.layers["there"].toarray(), adata.X.toarray())
