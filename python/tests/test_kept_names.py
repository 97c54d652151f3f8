"""AnnData in memory with names and columns that HDF5 or anndata take for something else: kept as they are, or refused
by their place before anything is replaced."""

from __future__ import annotations

import warnings

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import command, counts

import msgexpress
import skytether
from msgexpress import _shell

NAMES = ["a/b", "/", "a/", "/a", "a//b", "./a", ".", "..", "", "%", "%2F", "100%", "a", "CD4/CD8 ratio", "categories"]


def small(cells: int = 8, genes: int = 4) -> ad.AnnData:
    obs = pd.DataFrame({"g": pd.Categorical(list("ab") * (cells // 2))}, index=[f"c{i}" for i in range(cells)])
    return ad.AnnData(sp.csr_matrix(counts(cells, genes)), obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(genes)]))


def named() -> ad.AnnData:
    """An AnnData with each of NAMES in each of its parts."""
    made = small()
    for number, name in enumerate(NAMES):
        made.obs[name] = pd.Categorical([f"{name}:{i % 2}" for i in range(8)])
        made.var[name] = [f"{number}-{i}" for i in range(4)]
        made.obsm[name] = np.full((8, 2), float(number))
        made.varm[name] = pd.DataFrame({n: np.full(4, float(number)) for n in NAMES}, index=made.var_names)
        made.obsp[name] = sp.csr_matrix(np.eye(8) * (number + 1))
        made.varp[name] = np.eye(4) * number
        made.layers[name] = made.X * (number + 1)
        made.uns[name] = {n: number for n in NAMES}
    made.obs.index.name = "x/y"
    made.raw = made
    made.raw.varm["p/q"] = np.ones((4, 1))
    return made


def test_names_with_slashes_dots_and_none_are_kept(db) -> None:
    adata = named()
    ds = db.ingest(adata, "t/x")
    back = ds.to_anndata()
    assert list(back.obs.columns) == ["g", *NAMES] and list(back.var.columns) == NAMES == list(back.raw.var.columns) and back.obs.index.name == "x/y"
    for number, name in enumerate(NAMES):
        assert list(back.obs[name]) == list(adata.obs[name]) and list(back.var[name]) == list(adata.var[name])
        for part in ("obsm", "obsp", "varp", "layers"):
            a, b = (m.toarray() if sp.issparse(m) else m for m in (getattr(back, part)[name], getattr(adata, part)[name]))
            np.testing.assert_array_equal(a, b, err_msg=f"{part} {name}")
        pd.testing.assert_frame_equal(back.varm[name], adata.varm[name])
        assert dict(back.uns[name]) == dict.fromkeys(NAMES, number)
    for part in ("obsm", "varm", "obsp", "varp", "layers", "uns"):
        assert set(getattr(back, part)) == set(NAMES), part
    assert set(back.raw.varm) == set(adata.raw.varm)
    assert ds.rank_genes_groups("a/b", transform="log1p_cp10k").groups == ["a/b:0", "a/b:1"]
    assert ds.rank_genes_groups("g", transform="log1p_cp10k", layer="a/b").groups == ["a", "b"]


@pytest.mark.parametrize(
    ("part", "says"),
    [("obsm", r"obsm\['a/b'\]"), ("varm", r"varm\['a/b'\]"), ("obsp", r"obsp\['a/b'\]"), ("layers", r"layers\['a/b'\]"), ("uns", r"uns\['k'\]\['a/b'\]"), ("obs", r"obs\['\.'\]")],
)
def test_exports_refuse_names_that_h5ad_cannot_hold(tmp_path, part, says) -> None:
    adata = small()
    if part == "uns":
        adata.uns["k"] = {"a/b": 1}
    elif part == "obs":
        adata.obs["."] = 1
    else:
        getattr(adata, part)["a/b"] = np.zeros({"varm": (4, 2), "obsp": (8, 8), "layers": (8, 4)}.get(part, (8, 2)))
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        db.ingest(adata, "t/x")
    import re

    done = command("export", "t/x", tmp_path / "x.h5ad", "--fleet", tmp_path / "fleet")
    assert done.returncode == 1 and re.search(says + ".*rename it", done.stderr), done.stderr
    assert not (tmp_path / "x.h5ad").exists() and not (tmp_path / "x.h5ad.part").exists()


def test_a_column_with_a_slash_is_exported(tmp_path) -> None:
    adata = small()
    adata.obs["CD4/CD8"] = range(8)
    adata.obs["text"] = pd.array([None, *"bcdefgh"], "string")
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        db.ingest(adata, "t/x")
    assert command("export", "t/x", tmp_path / "x.h5ad", "--fleet", tmp_path / "fleet").returncode == 0
    assert list(ad.read_h5ad(tmp_path / "x.h5ad").obs["CD4/CD8"]) == list(range(8))
    assert ad.read_h5ad(tmp_path / "x.h5ad").obs["text"].isna().tolist() == [True] + [False] * 7


#: Values of `uns` that anndata would change without a word.
CHANGED = [
    np.ma.masked_equal([1, 2, 3], 2), ["a", 1, True], [2**53 + 1, 0.5], [True, 2], [0.5, True], [[True, 2], [3, 4]],
]  # fmt: skip


def within(spoil) -> ad.AnnData:
    """An AnnData that is in another one's `uns`."""
    inner = small()
    inner.X = inner.X.toarray()
    spoil(inner)
    return inner


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda a: a.obs.__setitem__("x", pd.date_range("2020-01-01", periods=8)), r"obs\['x'\]: h5ad files have no form for pandas.DatetimeArray: make the column text"),
        (lambda a: a.obs.__setitem__("x", pd.cut(np.arange(8), 2)), r"obs\['x'\]: .*make the column text"),
        (lambda a: a.obs.__setitem__("x", pd.period_range("2020", periods=8, freq="Y")), r"obs\['x'\]: h5ad files have no form for pandas.PeriodArray"),
        (lambda a: a.obs.__setitem__("x", [1, "a"] * 4), r"obs\['x'\]: its values are neither all texts nor all numbers"),
        (lambda a: a.var.__setitem__("x", [[1], [2], [3], [4]]), r"var\['x'\]: its values are neither all texts nor all numbers"),
        (lambda a: a.obs.__setitem__("x", [b"bytes"] * 8), r"obs\['x'\] would come back as something else"),
        (lambda a: a.obs.__setitem__("x", ["a\0b"] * 8), r"obs\['x'\]: a text has the character \\0, .*\.str\.replace"),
        (lambda a: a.obs.__setitem__("x", pd.Categorical(["lone \ud800"] * 8)), r"obs\['x'\]: a text has half of a character .* replace it"),
        (lambda a: a.obs.index.__setattr__("name", 5), "the index of obs is named 5, which is no text: rename it"),
        (lambda a: a.obs.index.__setattr__("name", "_index"), "the index of obs is named '_index'.*: rename it"),
        (lambda a: (a.obs.__setitem__("q", range(8)), a.obs.index.__setattr__("name", "q")), "obs has a column and an index named 'q' with different values"),
        (lambda a: a.obs.__setitem__(5, range(8)), "obs has the column 5, whose name is no text: rename it"),
        (lambda a: a.obsm.__setitem__("x", pd.DataFrame(np.eye(8)[:, :2], index=a.obs_names, columns=["a", "a"])), r"obsm\['x'\] has two columns named 'a'"),
        (lambda a: a.uns.__setitem__("x", pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(1, 2)]))), r"the index of uns\['x'\] has several levels"),
        (lambda a: a.uns.__setitem__("x", pd.DataFrame({"a": [1, 2]}, index=["r", 2])), r"the index of uns\['x'\]: its values .*make all of its names text"),
        (lambda a: setattr(a.obs, "index", pd.Index([*"abcdefg", np.nan], dtype=object)), "row 8 of obs has no name"),
        (lambda a: a.obs.index.values.__setitem__(2, "c\0"), "the index of obs: a text has the character"),
        *((lambda a, value=value: a.uns.__setitem__("k", {"l": value}), r"uns\['k'\]\['l'\] would come back as something else: make it an array of one type") for value in CHANGED),
        (lambda a: a.uns.__setitem__("k", [None, "a"]), r"uns\['k'\]: its values are neither"),
        (lambda a: a.uns.__setitem__("uns", {"k": [None]}), r"uns\['uns'\]\['k'\]: its values are neither"),
        (lambda a: a.uns.__setitem__("k", within(lambda b: b.uns.__setitem__("l", [True, 2]))), r"uns\['k'\].uns\['l'\] would come back"),
        (lambda a: a.uns.__setitem__("k", within(lambda b: b.obsm.__setitem__("l", np.ma.masked_equal(np.eye(8), 1)))), r"uns\['k'\].obsm\['l'\] would come back"),
        (lambda a: a.obs.__setitem__("_index", range(8)), "obs has a column named '_index', which h5ad files keep for the index: rename the column"),
        (lambda a: a.obsm.__setitem__("x", np.ma.masked_equal(np.eye(8), 1)), r"obsm\['x'\] would come back as something else"),
        (lambda a: a.uns.__setitem__("k", {"l": {5: 1}}), r"uns\['k'\]\['l'\] has the key 5, which is no text"),
        (lambda a: a.uns.__setitem__("k", {"l": object()}), r"uns\['k'\]\['l'\]: h5ad files have no form for object"),
        (lambda a: a.obsm.__setitem__("k", pd.DataFrame({"l": [1, "a"] * 4}, index=a.obs_names)), r"obsm\['k'\]\['l'\]: its values"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_place(db, spoil, says) -> None:
    db.ingest(small(), "t/x")
    bad = small()
    spoil(bad)
    with pytest.raises(skytether.InvalidError, match="^AnnData can't be kept: " + says):
        db.ingest(bad, "t/x", replace=True)
    # What was there stays.
    assert db["t/x"].to_anndata().shape == (8, 4) and list(db["t/x"].obs.columns) == ["g"]


def test_values_of_uns_that_stay_the_same_are_kept(db) -> None:
    adata = small()
    kept = {
        "lists": [[1, 0.5, np.nan], ["a", "é"], [[1, 2], [3, 4]], [], [True, False]], "arrays": [np.array(["a", "b"]), np.zeros((0, 3)), np.array([1 + 2j]), np.array([b"x"])],
        "records": [np.array([("a", 1.5)], dtype=[("names", "O"), ("scores", "f4")])], "single": [1, 1.5, True, None, "x", float("nan"), np.float32(0.1), np.str_("y")],
        "pandas": [pd.Categorical(["u", None]), pd.array([1, None], "Int64")], "sparse": [sp.csr_matrix(np.eye(3)), sp.csc_array(np.eye(3))], "anndata": [within(lambda b: None)],
        "no mask": [np.ma.array([1, 2])],
    }  # fmt: skip
    adata.uns = {kind: {str(number): value for number, value in enumerate(values)} for kind, values in kept.items()}
    back = db.ingest(adata, "t/x").to_anndata().uns
    assert {kind: set(values) for kind, values in back.items()} == {kind: set(values) for kind, values in adata.uns.items()}
    assert back["records"]["0"]["names"].tolist() == ["a"] and back["anndata"]["0"].X.tolist() == small().X.toarray().tolist()


def test_what_is_written_is_read_again_before_the_commit(db, monkeypatch) -> None:
    """Whatever anndata writes and can't read, or reads as something else: nothing is replaced by it."""
    db.ingest(small(), "t/x")
    write = ad.io.write_elem

    def spoiled(change):
        def spoiling(file: h5py.File, *args, **kwargs) -> None:
            write(file, *args, **kwargs)
            change(file)

        return spoiling

    def lose(file: h5py.File) -> None:
        del file["obs/g"]

    def other(file: h5py.File) -> None:
        file["obsm/k"][2, 0] = 7

    def nested(file: h5py.File) -> None:
        file.move("uns/k", "uns/l")

    adata = small()
    adata.obsm["k"], adata.uns["k"] = np.zeros((8, 1)), 1
    for change, says in ((lose, "can't read it again"), (other, r"obsm\['k'\] would come back as something else"), (nested, r"uns\['k'\] would")):
        monkeypatch.setattr(ad.io, "write_elem", spoiled(change))
        with pytest.raises(skytether.InvalidError, match=says):
            db.ingest(adata, "t/x", replace=True)
        monkeypatch.undo()
    assert "k" not in db["t/x"].to_anndata().obsm


def test_columns_of_other_types_keep_their_values(db) -> None:
    adata = small()
    gaps = [None, 1, 2, None, 4, 5, 6, 7]
    adata.obs["all none"] = pd.Series([None] * 8, index=adata.obs_names, dtype=object)
    adata.obs["objects"] = pd.Series(list(range(8)), index=adata.obs_names, dtype=object)
    adata.obs["objects with gaps"] = pd.Series(gaps, index=adata.obs_names, dtype=object)
    adata.obs["Float64"] = pd.array([v and v / 4 for v in gaps], "Float64")
    adata.obs["string"] = pd.array(list("abcdefgh"), "string")
    adata.obs["string with gaps"] = pd.array([v and str(v) for v in gaps], "string")
    adata.obs["arrow"] = pd.array(list("abcdefgh"), "string[pyarrow]")
    adata.obs["days"] = pd.Categorical(["2020-01-01", None] * 4)
    frame = pd.DataFrame({"label": [v and f"v{v}" for v in gaps]}, index=adata.obs_names)
    adata.obsm["frame"] = frame
    adata.uns["frame"] = frame
    before = adata.obs.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = db.ingest(adata, "t/x").to_anndata()
    for column in adata.obs:
        assert [None if pd.isna(v) else v for v in back.obs[column]] == [None if pd.isna(v) else v for v in adata.obs[column]], column
    assert str(back.obs["string"].dtype) == str(back.obs["string with gaps"].dtype) == "string"
    assert [None if pd.isna(v) else v for v in back.obsm["frame"]["label"]] == [None if pd.isna(v) else v for v in back.uns["frame"]["label"]] == list(frame["label"])
    pd.testing.assert_frame_equal(adata.obs, before)
    rows = db.fleet.sql('SELECT cell, "objects with gaps" AS n, "string with gaps" AS s FROM t.x.obs ORDER BY cell LIMIT 2').to_arrow().to_pylist()
    assert rows == [{"cell": "c0", "n": None, "s": None}, {"cell": "c1", "n": 1, "s": "1"}]


def test_encoded_names_come_back_from_any_name() -> None:
    names = _shell.Names("x")
    for name in [*NAMES, "a\0b", "%00", "é/%", "%%", "..."]:
        encoded = names.name(name)
        assert _shell._decoded(encoded) == name and "/" not in encoded and "\0" not in encoded and encoded not in ("", ".", "..")
    assert names.encoded and not _shell.Names("x").encoded
