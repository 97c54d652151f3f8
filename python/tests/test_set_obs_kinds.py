"""What callers give to `set_obs` and its like: it comes back equal from `obs`, from SQL and after reopening, or an
error names its place and says what to do. Nothing is changed then."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import uuid
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from conftest import counts

import msgexpress
from skytether import InvalidError, NotFoundError, SkytetherError, UnsupportedError

N, GENES = 6, 4
CELLS = [f"cell-{i}" for i in range(N)]
LEVELS = pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]])
UTC, DAY = datetime.timezone.utc, datetime.date(2020, 1, 1)


def half(value: object) -> list[object]:
    """A value in every other row, and none in the others."""
    return [value, None] * (N // 2)


#: What is kept: how it is given, and the values that come back, None for missing ones.
KEPT = {
    "list of integers": (lambda: list(range(N)), [*range(N)]),
    "range": (lambda: range(N), [*range(N)]),
    "generator": (lambda: (i * 2 for i in range(N)), [0, 2, 4, 6, 8, 10]),
    "map": (lambda: map(str, range(N)), ["0", "1", "2", "3", "4", "5"]),
    "values of a dict": (lambda: dict.fromkeys(range(N), 7).values(), [7] * N),
    "deque": (lambda: collections.deque("abcdef"), [*"abcdef"]),
    "dict by cells": (lambda: {name: i for i, name in enumerate(CELLS)}, [*range(N)]),
    "dict of some cells": (lambda: {"cell-2": "x"}, [None, None, "x", None, None, None]),
    "series of some cells": (lambda: pd.Series(["x"], index=["cell-2"]), [None, None, "x", None, None, None]),
    "index": (lambda: pd.Index(CELLS), CELLS),
    "texts with missing ones": (lambda: half("x"), half("x")),
    "booleans with missing ones": (lambda: half(True), half(True)),
    "numbers of both kinds": (lambda: [1, 2.5, None, 3, 4, 5], [1, 2.5, None, 3, 4, 5]),
    "nothing but missing values": (lambda: [None] * N, [None] * N),
    "texts of numpy": (lambda: np.array([*"abcdef"]), [*"abcdef"]),
    "booleans of numpy": (lambda: np.arange(N) % 2 == 0, [True, False] * 3),
    "half precision": (lambda: np.arange(N, dtype=np.float16), [*range(N)]),
    "the largest integers": (lambda: np.array([2**64 - 1] * N, np.uint64), [2**64 - 1] * N),
    "another byte order": (lambda: np.arange(N).astype(">i4"), [*range(N)]),
    "floats in another byte order": (lambda: np.arange(N).astype(">f8") / 2, [i / 2 for i in range(N)]),
    "long doubles that are short": (lambda: np.arange(N, dtype=np.longdouble), [*range(N)]),
    "masked integers": (lambda: np.ma.masked_array(np.arange(N) + 2**60, [0, 1] * 3), [2**60, None, 2**60 + 2, None, 2**60 + 4, None]),
    "masked booleans": (lambda: np.ma.masked_array([True] * N, [0, 1] * 3), half(True)),
    "masked floats": (lambda: np.ma.masked_array([0.5] * N, [0, 1] * 3), half(0.5)),
    "masked texts": (lambda: np.ma.masked_array(np.array(["a"] * N), [0, 1] * 3), half("a")),
    "a mask that masks nothing": (lambda: np.ma.masked_array(np.arange(N)), [*range(N)]),
    "sparse array of pandas": (lambda: pd.arrays.SparseArray([0, 0, 1, 0, 0, 2]), [0, 0, 1, 0, 0, 2]),
    "nullable integers": (lambda: pd.array(half(2**60 + 1), "Int64"), half(2**60 + 1)),
    "nullable booleans": (lambda: pd.array(half(False), "boolean"), half(False)),
    "nullable texts": (lambda: pd.array(half("x"), "string"), half("x")),
    "nullable floats": (lambda: pd.array(half(0.5), "Float64"), half(0.5)),
    "texts of pandas over Arrow": (lambda: pd.Series(half("x"), CELLS, "string[pyarrow]"), half("x")),
    "integers of pandas over Arrow": (lambda: pd.Series(half(2**60 + 1), CELLS, pd.ArrowDtype(pa.int64())), half(2**60 + 1)),
    "series of polars": (lambda: pl.Series("s", half(2**60 + 1)), half(2**60 + 1)),
    "texts of polars": (lambda: pl.Series("s", half("x")), half("x")),
    "categories of polars": (lambda: pl.Series("s", ["a", "b"] * 3, dtype=pl.Categorical), ["a", "b"] * 3),
    "array of Arrow": (lambda: pa.array(half(True)), half(True)),
    "chunks of Arrow": (lambda: pa.chunked_array([[1, 2, 3], [4, 5, 6]]), [1, 2, 3, 4, 5, 6]),
    "categories": (lambda: pd.Categorical(half("b"), ["c", "b"], ordered=True), half("b")),
    "categories of an index": (lambda: pd.CategoricalIndex(["b", "a"] * 3), ["b", "a"] * 3),
}

#: What is refused: how it is given, and what the error says.
REFUSED = {
    "set": (lambda: {*range(N)}, "column 'new' is a set, whose values have no order: give a list with 6 values"),
    "text": (lambda: "abcdef", "column 'new' is a single value \\('abcdef'\\): give an array with 6 values"),
    "bytes": (lambda: b"abcdef", "column 'new' is a single value"),
    "number": (lambda: 2.5, "column 'new' is a single value \\(2.5\\)"),
    "array without dimensions": (lambda: np.array(3), "column 'new' is a single value"),
    "function": (lambda: len, "column 'new' is a single value"),
    "none": (lambda: None, "column 'new' is None: give a value for each cell, or remove the column with drop_obs\\('new'\\)"),
    "too few": (lambda: [1] * 5, "column 'new' has 5 values, but obs of lab/a has 6 rows"),
    "too many": (lambda: np.zeros(7), "column 'new' has 7 values"),
    "generator without an end": (lambda: iter(int, 1), "column 'new' has more than 6 values"),
    "generator that ends early": (lambda: (i for i in range(2)), "column 'new' has 2 values"),
    "two dimensions": (lambda: np.zeros((N, 1)), "column 'new' is of 2 dimensions: give one value for each row, or set obsm"),
    "matrix": (lambda: np.matrix(np.zeros((N, 1))), "column 'new' is of 2 dimensions"),
    "sparse matrix": (lambda: sp.csr_matrix(np.ones((N, 1))), r"column 'new' is a sparse matrix: give its values as an array \(toarray\(\).ravel\(\)\)"),
    "sparse array of one dimension": (lambda: sp.coo_array(np.ones(N)), "column 'new' is a sparse matrix"),
    "several levels": (lambda: LEVELS, r"column 'new' is an index of several levels: give one of them \(get_level_values\(0\)\)"),
    "series by several levels": (lambda: pd.Series(range(N), LEVELS), "the index of column 'new' has several levels: index it by the cells' names alone"),
    "series by numbers": (lambda: pd.Series(range(N)), "the index of column 'new' has 6 names that are no cells of lab/a"),
    "series that repeats a cell": (lambda: pd.Series([1, 2], ["cell-1"] * 2), "the index of column 'new' has the cell 'cell-1' more than once"),
    "dict of other cells": (lambda: {"cell-x": 1}, "the index of column 'new' has a name that is no cell of lab/a \\('cell-x'\\).*: index it by the cells' names"),
    "records": (lambda: np.zeros(N, [("a", int), ("b", float)]), "column 'new' holds records of several fields.*: give each field as a column"),
    "records of numpy": (lambda: np.rec.array([(1, 2.0)] * N), "column 'new' holds records"),
    "text and numbers": (lambda: [1, "a"] * 3, r"column 'new' holds a text \('a', row 'cell-1'\) and a number before"),
    "booleans and numbers": (lambda: [True, 2] * 3, r"column 'new' holds a number \(2, row 'cell-1'\) and a bool before"),
    "lists": (lambda: [[1, 2]] * N, r"column 'new' holds a value of type list \(\[1, 2\], row 'cell-0'\).*: make them text"),
    "lists of other lengths": (lambda: [[1], [1, 2]] * 3, "column 'new' holds a value of type list"),
    "tuples": (lambda: [(1, 2)] * N, "column 'new' holds a value of type tuple"),
    "dicts": (lambda: [{"a": 1}] * N, "column 'new' holds a value of type dict"),
    "bytes in a list": (lambda: half(b"x"), r"column 'new' holds a value of type bytes \(b'x', row 'cell-0'\).*decode"),
    "bytes of numpy": (lambda: np.array([b"x"] * N), "column 'new' holds bytes, which can't be kept: make them text"),
    "complex numbers": (lambda: np.ones(N) * 1j, "column 'new' holds complex numbers.*: keep .real and .imag as two columns"),
    "days": (lambda: [DAY] * N, "column 'new' holds a value of type datetime.date .*: make them text"),
    "times": (lambda: pd.date_range("2020", periods=N), r"column 'new' holds dates or times, which can't be kept: make them text \(astype\(str\)\)"),
    "times with a zone": (lambda: pd.date_range("2020", periods=N, tz="Europe/Oslo"), "column 'new' holds dates or times"),
    "times with a zone in a list": (lambda: [datetime.datetime(2020, 1, 1, tzinfo=UTC)] * N, "column 'new' holds dates or times"),
    "times of Arrow": (lambda: pa.array([datetime.datetime(2020, 1, 1)] * N), "column 'new' holds dates or times"),
    "durations": (lambda: pd.to_timedelta(range(N)), "column 'new' holds durations.*: make them numbers"),
    "periods": (lambda: pd.period_range("2020", periods=N, freq="M"), "column 'new' holds periods of time: make them text"),
    "intervals": (lambda: pd.cut(np.arange(N), 3), "column 'new', by its categories, holds intervals: make them text"),
    "categories of times": (lambda: pd.Categorical(pd.date_range("2020", periods=N)), "column 'new', by its categories, holds dates or times"),
    "categories of two kinds": (lambda: pd.Categorical([1, "a"] * 3), "column 'new', by its categories, holds a text \\('a'\\) and a number before"),
    "categories of bytes": (lambda: pd.Categorical([b"x"] * N), "column 'new', by its categories, holds a value of type bytes"),
    "decimals": (lambda: [decimal.Decimal("1.5")] * N, "column 'new' holds a value of type decimal.Decimal"),
    "fractions": (lambda: [fractions.Fraction(1, 3)] * N, "column 'new' holds a value of type fractions.Fraction"),
    "identifiers": (lambda: [uuid.UUID(int=1)] * N, "column 'new' holds a value of type uuid.UUID"),
    "integers of 70 bits": (lambda: [2**70] * N, r"column 'new' holds an integer of more than 64 bits \(1180591620717411303424, row 'cell-0'\)"),
    "long doubles": (lambda: np.ones(N, np.longdouble) / 3, "column 'new' holds numbers of more than 64 bits: round them"),
    "half of a character": (lambda: ["\ud800"] * N, r"obs\['new'\]: a text has half of a character"),
    "the character of number 0": (lambda: ["a\0b"] * N, r"obs\['new'\]: a text has the character"),
}

#: What is refused without a name: what is given, and what the error says.
REFUSED_FRAMES = {
    "rows of several levels": (lambda: pd.DataFrame({"a": range(N)}, LEVELS), "the index of the DataFrame has several levels: index it by the cells' names alone"),
    "columns of several levels": (lambda: pd.DataFrame(np.zeros((N, 6)), CELLS, LEVELS), r"columns of the DataFrame have several levels, as \('a', .*1.*\): join them"),
    "columns of numbers": (lambda: pd.DataFrame(np.zeros((N, 2)), CELLS), "the column 0 has a name that is no text: rename it"),
    "columns of one name": (lambda: pd.DataFrame(np.zeros((N, 2)), CELLS, ["a", "a"]), "two columns named 'a'"),
    "rows of one name": (lambda: pd.DataFrame({"a": [1, 2]}, ["cell-1", "cell-1"]), "the index of the DataFrame has the cell 'cell-1' more than once"),
    "rows by number": (lambda: pd.DataFrame({"a": range(N)}), "the index of the DataFrame has 6 names that are no cells"),
    "frame of polars": (lambda: pl.DataFrame({"a": range(N)}), r"a polars.DataFrame has no index with the cells' names: .*to_pandas\(\).set_index"),
    "lazy frame of polars": (lambda: pl.LazyFrame({"a": range(N)}), "a polars.LazyFrame has no index with the cells' names"),
    "table of Arrow": (lambda: pa.table({"a": [*range(N)]}), "a pyarrow.Table has no index with the cells' names"),
    "dict of columns": (lambda: {"a": [*range(N)]}, r"a dict without name= .*: give pandas.DataFrame\(...\) for columns, or say name="),
    "series without a name": (lambda: pd.Series(range(N), CELLS), "a column needs a name: say it with name="),
    "series named by a number": (lambda: pd.Series(range(N), CELLS, name=3), "a column's name is text, and 3 is none: say it with name="),
    "one bad column of two": (lambda: pd.DataFrame({"a": range(N), "b": half(b"x")}, CELLS), "column 'b' holds a value of type bytes"),
}

#: Entries of obsm that are kept: how they are given, and as what they come back.
KEPT_ENTRIES = {
    "list of lists": (lambda: [[1, 2]] * N, np.array([[1, 2]] * N)),
    "one dimension": (lambda: np.arange(N), np.arange(N)[:, None]),
    "three dimensions": (lambda: np.arange(N * 4.0).reshape(N, 2, 2), np.arange(N * 4.0).reshape(N, 2, 2)),
    "complex numbers": (lambda: np.full((N, 2), 1j), np.full((N, 2), 1j)),
    "another byte order": (lambda: np.ones((N, 2), ">f8"), np.ones((N, 2))),
    "matrix": (lambda: np.matrix(np.ones((N, 2))), np.ones((N, 2))),
    "CSR": (lambda: sp.csr_matrix(np.eye(N)), np.eye(N)),
    "CSC": (lambda: sp.csc_matrix(np.eye(N)), np.eye(N)),
    "texts": (lambda: np.array([["a", "b"]] * N), np.array([["a", "b"]] * N)),
    "series": (lambda: pd.Series(range(N), CELLS, name="x"), pd.DataFrame({"x": range(N)}, CELLS)),
    "frame with missing values": (lambda: pd.DataFrame({"x": pd.array(half(1), "Int64")}, CELLS), pd.DataFrame({"x": pd.array(half(1), "Int64")}, CELLS)),
}

REFUSED_ENTRIES = {
    "set": (lambda: {1, 2}, r"obsm\['new'\] is of type set, which has no rows: give an array or a DataFrame with 6 rows, one for each of the cells"),
    "generator": (lambda: (i for i in range(N)), r"obsm\['new'\] is of type generator"),
    "number": (lambda: 3, r"obsm\['new'\] is of type int"),
    "dict": (lambda: {"a": 1}, r"obsm\['new'\] is of type dict"),
    "rows of other lengths": (lambda: [[1], [1, 2]] * 3, r"obsm\['new'\] is a list whose rows are of different lengths"),
    "too few rows": (lambda: np.zeros((5, 2)), r"obsm\['new'\] is of shape \(5, 2\), but needs 6 rows"),
    "masked": (lambda: np.ma.masked_array(np.ones((N, 2)), np.eye(N, 2)), r"obsm\['new'\] is masked.*: fill it"),
    "COO": (lambda: sp.coo_matrix(np.eye(N)), r"obsm\['new'\] is of type scipy.coo_matrix.*: make it a numpy array, a scipy CSR"),
    "categories": (lambda: pd.Categorical(["a"] * N), r"obsm\['new'\] is of type pandas.Categorical"),
    "nullable array": (lambda: pd.array(half(1), "Int64"), r"obsm\['new'\] is of type pandas.IntegerArray"),
    "index": (lambda: pd.Index(CELLS), r"obsm\['new'\] is of type pandas.Index"),
    "frame of polars": (lambda: pl.DataFrame({"a": range(N)}), r"obsm\['new'\] is of type polars.DataFrame"),
    "table of Arrow": (lambda: pa.table({"a": [*range(N)]}), r"obsm\['new'\] is of type pyarrow.Table"),
    "frame in another order": (lambda: pd.DataFrame({"a": range(N)}, CELLS[::-1]), r"obsm\['new'\] has another index than lab/a: bring its rows into the order of obs"),
    "frame by several levels": (lambda: pd.DataFrame({"a": range(N)}, LEVELS), r"the index of obsm\['new'\] has several levels"),
    "columns of several levels": (lambda: pd.DataFrame(np.zeros((N, 6)), CELLS, LEVELS), r"the columns of obsm\['new'\] have several levels"),
    "columns of numbers": (lambda: pd.DataFrame(np.zeros((N, 2)), CELLS), r"obsm\['new'\] has the column 0, whose name is no text: rename it"),
    "times in a frame": (lambda: pd.DataFrame({"a": pd.date_range("2020", periods=N)}, CELLS), r"obsm\['new'\]\['a'\]: h5ad files have no form for pandas.DatetimeArray"),
    "times": (lambda: np.array([["2020-01-01"]] * N, "M8[D]"), r"obsm\['new'\]: h5ad files have no form for"),
    "objects": (lambda: np.array([["a", 1]] * N, object), r"obsm\['new'\]: its values are neither all texts nor all numbers"),
}

KEPT_VALUES = {
    "text": (lambda: "a", "a"),
    "number": (lambda: 3, 3),
    "list": (lambda: [1, 2], np.array([1, 2])),
    "texts": (lambda: ["a", "b"], np.array(["a", "b"])),
    "dict of dicts": (lambda: {"a": {"b": 1.5, "none": None}}, {"a": {"b": 1.5, "none": None}}),
    "records": (lambda: np.zeros(2, [("a", int), ("b", float)]), np.zeros(2, [("a", int), ("b", float)])),
    "nullable array": (lambda: pd.array([1, None], "Int64"), pd.array([1, None], "Int64")),
    "frame": (lambda: pd.DataFrame({"a": [1, 2]}, ["x", "y"]), pd.DataFrame({"a": [1, 2]}, ["x", "y"])),
    "sparse matrix": (lambda: sp.csr_matrix(np.eye(2)), np.eye(2)),
}

REFUSED_VALUES = {
    "set": (lambda: {1, 2}, r"uns\['new'\]: h5ad files have no form for set"),
    "set in a dict": (lambda: {"a": {"b": {1}}}, r"uns\['new'\]\['a'\]\['b'\]: h5ad files have no form for set"),
    "tuple": (lambda: (1, 2), r"uns\['new'\]: h5ad files have no form for tuple"),
    "generator": (lambda: (i for i in range(3)), r"uns\['new'\]: h5ad files have no form for generator"),
    "time": (lambda: datetime.datetime(2020, 1, 1, tzinfo=UTC), r"uns\['new'\]: h5ad files have no form for datetime.datetime"),
    "bytes": (lambda: b"x", r"uns\['new'\]: h5ad files have no form for bytes"),
    "complex number": (lambda: 1j, r"uns\['new'\]: h5ad files have no form for complex"),
    "key that is no text": (lambda: {1: 2}, r"uns\['new'\] has the key 1, which is no text"),
    "list of two kinds": (lambda: [1, "a"], r"uns\['new'\] would come back as something else"),
    "lists of other lengths": (lambda: [[1], [1, 2]], r"uns\['new'\]: its lists are of different lengths"),
    "integer of 70 bits": (lambda: 2**70, r"uns\['new'\]: h5ad files have no form for such a value"),
    "masked array": (lambda: np.ma.masked_array([1, 2], [0, 1]), r"uns\['new'\] would come back as something else: .*without masks"),
    "frame by several levels": (lambda: pd.DataFrame({"a": range(N)}, LEVELS), r"the index of uns\['new'\] has several levels"),
    "columns of several levels": (lambda: pd.DataFrame(np.zeros((2, 6)), columns=LEVELS), r"the columns of uns\['new'\] have several levels.*: join them"),
    "frame of polars": (lambda: pl.DataFrame({"a": [1]}), r"uns\['new'\]: h5ad files have no form for polars.DataFrame"),
}

REFUSED_LAYERS = {
    "none": (lambda: None, "layer 'new' is None, and layers can't be removed"),
    "list": (lambda: [[1.0] * GENES] * N, "layer 'new' is of type list, which has no shape, but lab/a has 6 cells and 4 genes: give a numpy array"),
    "frame": (lambda: pd.DataFrame(np.zeros((N, GENES))), r"layer 'new' is of type pandas.DataFrame: give its values in the order of cells and genes .*to_numpy"),
    "other shape": (lambda: np.zeros((GENES, N)), r"layer 'new' is of shape \(4, 6\), but lab/a has 6 cells and 4 genes"),
    "three dimensions": (lambda: np.zeros((N, GENES, 1)), r"layer 'new' is of shape \(6, 4, 1\)"),
    "COO": (lambda: sp.coo_matrix(np.ones((N, GENES))), "layers/new is a scipy.sparse._coo.coo_matrix: make it a numpy array or a scipy CSR"),
    "complex numbers": (lambda: np.ones((N, GENES)) * 1j, "layer 'new' holds values of type complex128: make them integers or floats"),
    "texts": (lambda: np.full((N, GENES), "a"), "layer 'new' holds values of type <U1"),
    "objects": (lambda: np.full((N, GENES), None), "layer 'new' holds values of type object"),
    "masked": (lambda: np.ma.masked_array(np.ones((N, GENES)), np.eye(N, GENES)), "layers/new is a masked array.*: fill it"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kinds") / "fleet"


def small() -> ad.AnnData:
    """Six cells and four genes."""
    return ad.AnnData(counts(N, GENES), pd.DataFrame({"depth": np.arange(N)}, CELLS), pd.DataFrame(index=[f"g{i}" for i in range(GENES)]))


@pytest.fixture(scope="module")
def many(place):
    with msgexpress.open(place, drives=2) as db:
        db.ingest(small(), "lab/a")
        yield db


def plain(values: object) -> list[object]:
    """Values as Python has them, None for missing ones."""
    return [None if value is None or value is pd.NA or value != value else value for value in np.asarray(values, object).tolist()]


def assert_equal(got: object, want: object) -> None:
    """That an entry of obsm or uns came back."""
    if isinstance(want, dict):
        assert got == want
    elif isinstance(want, pd.DataFrame):
        pd.testing.assert_frame_equal(got, want)
    elif isinstance(want, pd.api.extensions.ExtensionArray):
        pd.testing.assert_extension_array_equal(got, want)
    else:
        got = got.toarray() if sp.issparse(got) else got
        np.testing.assert_array_equal(got, want)


def refuses(db, call, says: str, kinds: type | tuple[type, ...] = InvalidError) -> None:
    """That a call of the data set raises an error of ours that says so, and changes nothing."""
    ds = db["lab/a"]
    before = ds._generation
    with pytest.raises(kinds, match=says) as raised:
        call(ds)
    assert isinstance(raised.value, SkytetherError) and ds._generation == before == db["lab/a"]._generation


@pytest.mark.parametrize("what", KEPT)
def test_columns_come_back_equal(many, what) -> None:
    make, want = KEPT[what]
    ds = many["lab/a"]
    ds.set_obs(make(), name="new")
    ds.set_var(pd.Series([*range(GENES)], ds.var_names), name="other")
    for got in (ds.obs["new"], many["lab/a"].obs["new"], many.fleet.sql("SELECT new FROM lab.a.obs").to_arrow().column(0).to_pylist()):
        assert plain(got) == want
    assert list(ds.obs["depth"]) == list(range(N)) and list(ds.obs_names) == CELLS


@pytest.mark.parametrize("what", REFUSED)
def test_columns_that_would_change_are_refused(many, what) -> None:
    make, says = REFUSED[what]
    refuses(many, lambda ds: ds.set_obs(make(), name="new"), says)


@pytest.mark.parametrize("what", REFUSED_FRAMES)
def test_frames_that_do_not_fit_are_refused(many, what) -> None:
    make, says = REFUSED_FRAMES[what]
    refuses(many, lambda ds: ds.set_obs(make()), says)


def test_genes_are_named_as_cells_are(many) -> None:
    refuses(many, lambda ds: ds.set_var({1, 2}, name="new"), "column 'new' is a set.*in the order of var of lab/a")
    refuses(many, lambda ds: ds.set_var(None, name="new"), "give a value for each gene, or remove the column with drop_var")
    refuses(many, lambda ds: ds.set_var({"g9": 1}, name="new"), "a name that is no gene of lab/a")
    refuses(many, lambda ds: ds.set_var(pl.DataFrame({"a": range(GENES)})), "no index with the genes' names")


@pytest.mark.parametrize("what", KEPT_ENTRIES)
def test_entries_come_back_equal(many, what) -> None:
    make, want = KEPT_ENTRIES[what]
    ds = many["lab/a"]
    ds.set_obsm("new", make())
    assert_equal(ds.to_anndata().obsm["new"], want)
    assert_equal(many["lab/a"].to_anndata().obsm["new"], want)


@pytest.mark.parametrize("what", REFUSED_ENTRIES)
def test_entries_that_would_change_are_refused(many, what) -> None:
    make, says = REFUSED_ENTRIES[what]
    refuses(many, lambda ds: ds.set_obsm("new", make()), says)
    # A version that AnnData can't take would make the data set unreadable.
    assert many["lab/a"].to_anndata().shape == (N, GENES)


@pytest.mark.parametrize("what", KEPT_VALUES)
def test_values_of_uns_come_back_equal(many, what) -> None:
    make, want = KEPT_VALUES[what]
    ds = many["lab/a"]
    ds.set_uns("new", make())
    assert_equal(ds.to_anndata().uns["new"], want)
    assert_equal(many["lab/a"].to_anndata().uns["new"], want)


@pytest.mark.parametrize("what", REFUSED_VALUES)
def test_values_of_uns_that_would_change_are_refused(many, what) -> None:
    make, says = REFUSED_VALUES[what]
    refuses(many, lambda ds: ds.set_uns("new", make()), says)


@pytest.mark.parametrize("what", REFUSED_LAYERS)
def test_layers_that_can_not_be_kept_are_refused(many, what) -> None:
    make, says = REFUSED_LAYERS[what]
    refuses(many, lambda ds: ds.set_layer("new", make()), says, (InvalidError, UnsupportedError))


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda ds: ds.drop_obs(None), InvalidError, r'columns of obs are removed by their names, and None is none: write drop_obs\("name"\)'),
        (lambda ds: ds.drop_obs(3), InvalidError, "columns of obs are removed by their names, and 3 is none"),
        (lambda ds: ds.drop_obs([]), InvalidError, "there is no column to remove"),
        (lambda ds: ds.drop_var(["a", 3]), InvalidError, "columns of var are removed by their names, and 3 is none"),
        (lambda ds: ds.drop_obs("dept"), NotFoundError, "obs of lab/a has no column 'dept'; did you mean 'depth'"),
        (lambda ds: ds.set_obsm("lost", None), NotFoundError, r"lab/a has no obsm\['lost'\] to remove"),
        (lambda ds: ds.set_uns("lost", None), NotFoundError, r"lab/a has no uns\['lost'\] to remove"),
        (lambda ds: ds.set_obsm(3, np.zeros((N, 2))), InvalidError, "obsm has keys of text, and 3 is none"),
        (lambda ds: ds.set_uns(None, 1), InvalidError, "uns has keys of text, and None is none"),
        (lambda ds: ds.set_layer(3, np.zeros((N, GENES))), InvalidError, "a layer's name is text, and 3 is none"),
        (lambda ds: ds.set_layer("", np.zeros((N, GENES))), InvalidError, "a layer's name is text"),
    ],
    ids=range(11),
)
def test_names_that_are_none_are_refused(many, call, kind, says) -> None:
    refuses(many, call, says, kind)


def test_kinds_survive_a_restart(tmp_path) -> None:
    with msgexpress.open(tmp_path / "f", drives=2) as db:
        ds = db.ingest(small(), "lab/a")
        for number, (make, _) in enumerate(KEPT.values()):
            ds.set_obs(make(), name=f"c{number}")
        ds.set_obsm("new", [[1, 2]] * N)
    with msgexpress.open(tmp_path / "f") as db:
        ds = db["lab/a"]
        assert [plain(ds.obs[f"c{number}"]) for number in range(len(KEPT))] == [want for _, want in KEPT.values()]
        assert_equal(ds.to_anndata().obsm["new"], np.array([[1, 2]] * N))
        rows = db.fleet.sql("SELECT * FROM lab.a.obs").to_arrow()
        assert [rows.column(f"c{number}").to_pylist() for number in range(len(KEPT))] == [want for _, want in KEPT.values()]


def test_foreign_byte_orders_of_a_file_are_in_sql(db, tmp_path) -> None:
    adata = small()
    adata.obs["big"] = np.arange(N).astype(">i4")
    adata.write_h5ad(tmp_path / "a.h5ad")
    for source, name in ((adata, "lab/memory"), (tmp_path / "a.h5ad", "lab/file")):
        ds = db.ingest(source, name)
        assert ds.fleet.sql(f"SELECT sum(big) AS n FROM {ds.table('obs')}").to_arrow()["n"].to_pylist() == [15]
