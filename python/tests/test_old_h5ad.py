"""h5ad files of every form that anndata has had, and of SeuratDisk, come back with their values, categories and
names."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import assert_same, rich

import skytether

HERE = Path(__file__).parent / "h5ad"
sys.path.insert(0, str(HERE))
import make  # noqa: E402

FILES = sorted(p.name for p in HERE.glob("*.h5ad"))


def same_column(got: pd.Series, want: pd.Series, orders: bool) -> None:
    """`orders`: whether the form knows that categories have an order; anndata 0.6 does not write it."""
    if isinstance(want.dtype, pd.CategoricalDtype):
        assert list(got.cat.categories) == list(want.cat.categories) and got.cat.ordered == (want.cat.ordered and orders)
        assert list(got.cat.codes) == list(want.cat.codes)
    else:
        assert got.tolist() == want.tolist() and (got.dtype == want.dtype or want.dtype == object)


def check(ds: object, dense: bool, orders: bool = True) -> None:
    """That a data set holds `make.content`."""
    want, back = make.content(), ds.to_anndata()
    for part in ("obs", "var"):
        frame, wanted = getattr(back, part), want[part]
        assert list(frame.index) == list(wanted.index) and list(frame.columns) == list(wanted.columns)
        for column in wanted:
            same_column(frame[column], wanted[column], orders)
    for times, matrix in ((1, back.X), (2, back.raw.X), (3, back.layers["counts"])):
        assert sp.issparse(matrix) != dense and matrix.dtype == np.float32
        np.testing.assert_array_equal(matrix if dense else matrix.toarray(), want["X"] * times)
    assert list(back.raw.var_names) == list(want["var"].index) and list(back.raw.var["gene_ids"]) == list(want["var"]["gene_ids"])
    np.testing.assert_array_equal(back.obsm["X_pca"], want["obsm"]["X_pca"])
    np.testing.assert_array_equal(back.varm["PCs"], want["varm"]["PCs"])
    assert back.uns["title"] == "a test" and list(back.uns["cluster_colors"]) == list(want["uns"]["cluster_colors"])
    assert back.uns["neighbors"]["params"]["n_neighbors"] == 15 and list(back.uns["pca"]["variance"]) == [2.0, 1.0]
    for column in ("cluster", "stage", "gaps", "level"):
        res = ds.rank_genes_groups(column, transform="log1p_cp10k")
        assert res.groups == list(want["obs"][column].cat.categories)


def test_there_is_a_file_of_each_form() -> None:
    versions = {tuple(int(n) for n in name.split("-")[1].removesuffix(".h5ad").split(".")[:2]) for name in FILES}
    assert versions == {(0, 6), (0, 7), (0, 8), (0, 9), (0, 10), (0, 11)}


@pytest.mark.parametrize("name", FILES)
def test_h5ad_of_each_version_comes_back(db, name) -> None:
    check(db.ingest(HERE / name, "t/x"), "dense" in name, "-0.6." not in name)


@pytest.mark.parametrize("dense", [False, True])
def test_h5ad_of_this_version_comes_back(db, tmp_path, dense) -> None:
    make.main(tmp_path / "a.h5ad", dense)
    check(db.ingest(tmp_path / "a.h5ad", "t/x"), dense)


def test_references_outside_of_obs_are_kept(db, tmp_path) -> None:
    # Of a data set, of an attribute that has several, of the root; one that refers to nothing stays so.
    path = tmp_path / "a.h5ad"
    path.write_bytes((HERE / "anndata-0.7.8.h5ad").read_bytes())
    with h5py.File(path, "a") as file:
        codes = file["obs/cluster"]
        file["uns/title"].attrs.create("seen", [codes.ref, file["var"].ref], dtype=h5py.ref_dtype)
        file.attrs.create("main", file["X"].ref, dtype=h5py.ref_dtype)
        file["uns/title"].attrs.create("none", h5py.Reference(), dtype=h5py.ref_dtype)
    from msgexpress import _shell

    with h5py.File(path) as file:
        shell = _shell.of_file(file, str(path), {"X", "raw/X"}, 5, set())
    (tmp_path / "shell.h5ad").write_bytes(shell)
    with h5py.File(tmp_path / "shell.h5ad") as copy:
        assert [copy[r].name for r in copy["uns/title"].attrs["seen"]] == ["/obs/cluster", "/var"]
        assert copy[copy["obs/cluster"].attrs["categories"]].name == "/obs/__categories/cluster"
        assert not copy["uns/title"].attrs["none"]
    check(db.ingest(path, "t/x"), False)


def seurat(path: Path, cells: int = 9, genes: int = 4) -> np.ndarray:
    """An h5ad file in the layout of SeuratDisk: codes without a reference to their categories, R's missing code, frames
    that lack their encoding or the order of their columns, attributes of R's dimensions."""
    x = ((np.arange(cells)[:, None] + np.arange(genes)) % 3).astype(np.float64)
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        for key, values in (("X", np.log1p(x)), ("raw/X", x)):
            matrix, group = sp.csr_matrix(values), file.create_group(key)
            for part in ("data", "indices", "indptr"):
                group[part] = getattr(matrix, part)
            group.attrs["shape"] = np.array(matrix.shape, np.int32)
            group.attrs["encoding-type"], group.attrs["encoding-version"] = "csr_matrix", "0.1.0"
        for key in ("obs", "var", "raw/var"):
            frame = file.create_group(key)
            frame.attrs["_index"] = "_index"
            names = [f"AAAC{i}-1" for i in range(cells)] if key == "obs" else [f"Gene{i}" for i in range(genes)]
            frame.create_dataset("_index", data=names, dtype=text)
        obs, var = file["obs"], file["var"]
        obs.attrs["encoding-type"], obs.attrs["encoding-version"] = "dataframe", "0.1.0"
        obs.attrs.create("column-order", ["orig.ident", "nCount_RNA", "seurat_annotations"], dtype=text)
        obs["orig.ident"] = np.zeros(cells, np.int32)
        obs["nCount_RNA"] = x.sum(1)
        codes = (np.arange(cells) % 3).astype(np.int32)
        codes[4] = np.iinfo(np.int32).min  # NA, less one or not
        obs["seurat_annotations"] = codes
        obs.create_dataset("__categories/orig.ident", data=["pbmc"], dtype=text)
        obs.create_dataset("__categories/seurat_annotations", data=["B", "Memory CD4 T", "NK"], dtype=text)
        var.create_dataset("features", data=[f"Gene{i}" for i in range(genes)], dtype=text)
        var.attrs.create("column-order", ["features"], dtype=text)
        file.create_dataset("obsm/X_umap", data=np.ones((cells, 2)))
        file.create_group("varm")
    return x


def test_factors_of_seuratdisk_keep_their_labels(db, tmp_path) -> None:
    x = seurat(tmp_path / "pbmc.h5ad")
    ds = db.ingest(tmp_path / "pbmc.h5ad", "t/x")
    back = ds.to_anndata()
    labels = [["B", "Memory CD4 T", "NK"][i % 3] for i in range(9)]
    assert [None if pd.isna(v) else v for v in back.obs["seurat_annotations"]] == [*labels[:4], None, *labels[5:]]
    assert list(back.obs["orig.ident"]) == ["pbmc"] * 9 and list(back.obs["nCount_RNA"]) == list(x.sum(1))
    assert list(back.obs_names[:2]) == ["AAAC0-1", "AAAC1-1"] and list(back.var_names) == list(back.raw.var_names) == [f"Gene{i}" for i in range(4)]
    np.testing.assert_array_equal(back.raw.X.toarray(), x)
    assert ds.rank_genes_groups("seurat_annotations", transform=None).groups == ["B", "Memory CD4 T", "NK"]


def test_what_others_put_at_the_root_is_left_out(db, tmp_path) -> None:
    make.main(tmp_path / "a.h5ad", False)
    with h5py.File(tmp_path / "a.h5ad", "a") as file:
        file["active.ident"] = np.arange(12)
        file.create_group("__DATA_TYPES__")["Enum_Boolean"] = h5py.enum_dtype({"FALSE": 0, "TRUE": 1})
    with pytest.warns(UserWarning, match="'__DATA_TYPES__', 'active.ident' are no part of AnnData and left out"):
        ds = db.ingest(tmp_path / "a.h5ad", "t/x")
    check(ds, False)


def test_soft_links_lead_where_they_led(db, tmp_path) -> None:
    make.main(tmp_path / "a.h5ad", False)
    with h5py.File(tmp_path / "a.h5ad", "a") as file:
        # Within what is kept, out of it, and relative.
        for name, place in (("obs/n", "/kept/n"), ("obs/doublet", "/kept/doublet")):
            file.move(name, place)
            file[name] = h5py.SoftLink(place)
        file.move("obsm/X_pca", "aside")
        file["obsm/X_pca"] = h5py.SoftLink("/aside")
        file.move("uns/title", "uns/real")
        file["uns/title"] = h5py.SoftLink("real")
    with pytest.warns(UserWarning, match="'aside', 'kept' are no part of AnnData"):
        ds = db.ingest(tmp_path / "a.h5ad", "t/x")
    assert ds.to_anndata().uns.pop("real") == "a test"
    check(ds, False)


def test_a_base_that_is_no_number_is_refused(db, tmp_path) -> None:
    make.main(tmp_path / "a.h5ad", False)
    adata = ad.read_h5ad(tmp_path / "a.h5ad")
    adata.uns["log1p"] = {"base": "e"}
    with pytest.raises(skytether.InvalidError, match=r"uns\['log1p'\]\['base'\] is 'e', which is no number"):
        db.ingest(adata, "t/x")


def test_elements_of_unknown_forms_are_unsupported(db, tmp_path) -> None:
    make.main(tmp_path / "a.h5ad", False)
    with h5py.File(tmp_path / "a.h5ad", "a") as file:
        group = file.create_group("uns/new")
        group.attrs["encoding-type"], group.attrs["encoding-version"] = "hologram", "9.9"
    with pytest.raises(skytether.UnsupportedError, match=r"a\.h5ad: uns\['new'\] has a form .*hologram.*upgrade anndata") as told:
        db.ingest(tmp_path / "a.h5ad", "t/x")
    assert told.value.__cause__ is not None and list(db) == []


def test_elements_that_need_a_package_name_it(db, tmp_path, monkeypatch) -> None:
    make.main(tmp_path / "a.h5ad", False)
    with h5py.File(tmp_path / "a.h5ad", "a") as file:
        group = file.create_group("obsm/airr")
        group.attrs["encoding-type"], group.attrs["encoding-version"], group.attrs["length"] = "awkward-array", "0.1.0", 12
        group.attrs["form"] = '{"class": "ListOffsetArray", "offsets": "i64", "content": {"class": "NumpyArray", "primitive": "int64", "form_key": "node1"}, "form_key": "node0"}'
        group["node0-offsets"], group["node1-data"] = np.arange(13), np.arange(12)
    monkeypatch.setitem(sys.modules, "awkward", None)
    with pytest.raises(skytether.UnsupportedError, match=r"a\.h5ad: obsm\['airr'\] needs a package that is not installed.*awkward"):
        db.ingest(tmp_path / "a.h5ad", "t/x")


def test_a_damaged_column_is_named(db, tmp_path) -> None:
    path = tmp_path / "a.h5ad"
    path.write_bytes((HERE / "anndata-0.7.8.h5ad").read_bytes())
    with h5py.File(path, "a") as file:
        file["obs/cluster"][3] = 9
    with pytest.raises(skytether.CorruptError, match=r"a\.h5ad: cannot read obs.*codes need to be between -1"):
        db.ingest(path, "t/x")
    assert isinstance(ad.read_h5ad(HERE / "anndata-0.7.8.h5ad"), ad.AnnData)


@pytest.mark.parametrize("place", ["obsm/X_pca", "obsm", "uns/nested/deep", "obs/type", "layers/twice", "X"])
def test_external_links_are_followed(db, tmp_path, place):
    adata = rich()
    adata.layers["twice"] = adata.X * 2
    for name in ("whole.h5ad", "linked.h5ad"):
        adata.write_h5ad(tmp_path / name)
    with h5py.File(tmp_path / "linked.h5ad", "a") as file:
        del file[place]
        file[place] = h5py.ExternalLink("whole.h5ad", f"/{place}")
    wanted = ad.read_h5ad(tmp_path / "whole.h5ad")
    assert_same(db.ingest(tmp_path / "linked.h5ad", "t/x").to_anndata(), wanted)
    (tmp_path / "whole.h5ad").unlink()
    says = "obsm/X_pca is a link to whole.h5ad, /obsm/X_pca, which is not there: bring that file" if place == "obsm/X_pca" else "which is not there|can't open file"
    with pytest.raises((skytether.CorruptError, skytether.NotFoundError), match=f"linked.h5ad: .*({says})"):
        db.ingest(tmp_path / "linked.h5ad", "t/y")
