"""Loom files: what loompy writes comes in as anndata reads it."""

from __future__ import annotations

import html
import warnings
from pathlib import Path

import anndata as ad
import h5py
import loompy
import numpy as np
import pytest
import scipy.sparse as sp
from conftest import assert_same, command, counts

import skytether


def made(path: Path, **more: object) -> Path:
    """A file of loompy with layers, attributes of all kinds, and graphs."""
    x = counts().T
    rows = {"Gene": np.array([f"G{i % 39}" for i in range(40)]), "Accession": np.array([f"ENSG{i}" for i in range(40)]), "high": np.arange(40) % 2, "loads": np.arange(80.0).reshape(40, 2)}
    columns = {"CellID": np.array([f"cell-{i}" for i in range(60)]), "cluster <ü>": np.array(["α & β", "B"] * 30), "age": np.arange(60) / 4, "X_umap": np.arange(120.0).reshape(60, 2)}
    layers = {"": x, "spliced": (x * 2).astype(np.int32), "unspliced": sp.coo_matrix(x / 2)}
    loompy.create(str(path), layers, {**rows, **more}, columns, file_attrs={"title": "a test"})
    with loompy.connect(str(path)) as file:
        file.col_graphs["KNN"] = sp.coo_matrix(([0.5, 1.5], ([0, 3], [1, 59])), shape=(60, 60))
        file.row_graphs["of genes"] = sp.coo_matrix(([2.0], ([0], [39])), shape=(40, 40))
    return path


def as_anndata_reads(path: Path) -> ad.AnnData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ad.io.read_loom(path, sparse=True, X_name="")


@pytest.mark.filterwarnings("ignore:.*gene names repeat")
@pytest.mark.parametrize("budget", [1 << 21, 64])
def test_loom_comes_in_as_anndata_reads_it(db, tmp_path, monkeypatch, budget):
    from msgexpress import _tiles

    monkeypatch.setattr(_tiles.spans, "__defaults__", (budget,))
    place = made(tmp_path / "a.loom")
    ds = db.ingest(place, "t/x")
    back, theirs = ds.to_anndata(), as_anndata_reads(place)
    assert back.obsp["KNN"][3, 59] == 1.5 and back.obsp["KNN"].nnz == 2 and back.varp["of genes"][0, 39] == 2.0
    del back.obsp["KNN"], back.varp["of genes"]
    # loompy gives layers as doubles, whatever their type is.
    assert back.layers["spliced"].dtype == np.int32
    for name in theirs.layers:
        theirs.layers[name] = theirs.layers[name].astype(back.layers[name].dtype)
    # loompy writes letters beyond ASCII, and drops them as it reads.
    assert back.obs["cluster <ü>"].iloc[0] == "α & β" and theirs.obs["cluster <ü>"].iloc[0] == " & "
    theirs.obs["cluster <ü>"] = back.obs["cluster <ü>"].to_numpy()
    # h5py gives texts of one type, pandas those of another.
    for frame in (back.obs, theirs.obs, back.var, theirs.var):
        for column in frame.columns:
            if frame[column].dtype == object or str(frame[column].dtype) == "category":
                frame[column] = frame[column].astype(str).astype(object)
    assert_same(theirs, back)
    assert ds.rank_genes_groups("cluster <ü>", transform="log1p_cp10k").groups == ["B", "α & β"]
    assert {*ds.layers} == {"spliced", "unspliced"} and list(ds.to_anndata(genes=[3]).var_names) == ["G3"]


def as_version_2(path: Path) -> Path:
    """Makes a file of version 3 one of version 2, as loompy 2 wrote it: the file's attributes are those of its root,
    and texts are ASCII of one length, with XML's names for other signs (loompy's specification of the format)."""
    place = path.with_name("version-2.loom")
    place.write_bytes(path.read_bytes())
    with h5py.File(place, "r+") as file:
        assert file["attrs/LOOM_SPEC_VERSION"][()] in (b"3.0.0", "3.0.0")
        file.attrs["title"] = file["attrs/title"][()]
        file.attrs["LOOM_SPEC_VERSION"] = "2.0.1"
        del file["attrs"]
        for axis in ("row_attrs", "col_attrs"):
            for name in list(file[axis]):
                values = file[axis][name][()]
                if values.dtype.kind in "OSU":
                    texts = [text.decode() if isinstance(text, bytes) else text for text in values]
                    del file[axis][name]
                    file[axis][name] = np.array([html.unescape(text).replace("&", "&amp;").encode("ascii", "xmlcharrefreplace") for text in texts])
                    assert file[axis][name].dtype.kind == "S"
    return place


@pytest.mark.filterwarnings("ignore:.*gene names repeat")
def test_version_2_comes_in_as_version_3_does(db, tmp_path):
    third = made(tmp_path / "version-3.loom")
    second = as_version_2(third)
    with h5py.File(second) as file:
        assert "attrs" not in file and b"&#945; &amp; &#946;" in file["col_attrs/cluster <ü>"][:2]
    found = [db.ingest(place, f"t/x{n}").to_anndata() for n, place in enumerate((second, third))]
    assert_same(*found)
    assert found[0].obs["cluster <ü>"].iloc[0] == "α & β" and found[0].obs_names[59] == "cell-59" and {*found[0].layers} == {"spliced", "unspliced"}


@pytest.mark.filterwarnings("ignore:.*gene names repeat")
def test_a_layer_of_loom_is_chosen_as_the_matrix(tmp_path):
    place = made(tmp_path / "a.loom")
    done = command("ingest", place, "--to", "t/x", "--layer", "spliced", "--no-layers", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "t/x: 60 cells x 40 genes, layers X\n" in done.stderr, done.stderr
    import msgexpress

    with msgexpress.open(tmp_path / "f") as db:
        np.testing.assert_array_equal(db["t/x"].to_anndata().layers["spliced"].toarray(), counts() * 2)
        assert list(db["t/x"].rank_genes_groups("cluster <ü>", transform="log1p_cp10k").to_df("B").columns)[:2] == ["names", "Accession"]


def test_loom_without_names_is_numbered_with_a_warning(db, tmp_path):
    loompy.create(str(tmp_path / "a.loom"), counts().T, {"x": np.arange(40)}, {"y": np.arange(60)})
    with pytest.warns(UserWarning, match=r"a.loom names no cells \(col_attrs has none of CellID.*names no genes"):
        ds = db.ingest(tmp_path / "a.loom", "t/x")
    assert list(ds.obs_names[:2]) == ["0", "1"] and ds.var_names[39] == "39" and list(ds.obs["y"]) == list(range(60))


def other_layer(file: h5py.File) -> None:
    file["layers/odd"] = np.zeros((40, 59))


def short_attribute(file: h5py.File) -> None:
    file["col_attrs/short"] = np.zeros(59)


def texts(file: h5py.File) -> None:
    del file["matrix"]
    file["matrix"] = np.full((40, 60), b"x")


def far_edge(file: h5py.File) -> None:
    file["col_graphs/KNN/b"][1] = 60


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (other_layer, skytether.CorruptError, "layers/odd is not of 40 genes x 60 cells"),
        (short_attribute, skytether.CorruptError, r"col_attrs/short has \(59,\) values instead of 60"),
        (texts, skytether.InvalidError, "matrix holds .*, which are no expression values"),
        (far_edge, skytether.CorruptError, "col_graphs/KNN has edges that are none between 60 nodes"),
    ],
    ids=["layer", "attribute", "texts", "graph"],
)
def test_parts_of_loom_that_do_not_fit_are_named(db, tmp_path, change, kind, says):
    place = made(tmp_path / "a.loom")
    with h5py.File(place, "r+") as file:
        change(file)
    with pytest.raises(kind, match=f"a.loom: {says}"):
        db.ingest(place, "t/x")
    assert list(db) == []


def test_loom_cut_short_is_reported(db, tmp_path):
    place = made(tmp_path / "a.loom")
    place.write_bytes(place.read_bytes()[:-5000])
    with pytest.raises(skytether.CorruptError, match="a.loom"):
        db.ingest(place, "t/x")
