"""Columns of Python's objects and other columns of pandas: Arrow would make something else of some without an error."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

import skytether
from skytether import InvalidError
from skytether._objects import is_missing

DAY, UTC = datetime.date(2020, 1, 1), datetime.timezone.utc

REFUSED = {
    "periods of an index": (lambda: pd.DataFrame({"a": [1, 2]}, index=pd.period_range("2024-01", periods=2, freq="M", name="p")), "the index 'p' of the data frame holds periods"),
    "periods of one level": (
        lambda: pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_arrays([[1, 2], pd.period_range("2024-01", periods=2, freq="M")], names=["n", None])), "the index of the data frame holds periods"
    ),
    "periods of categories": (lambda: pd.DataFrame({"p": pd.Categorical(pd.period_range("2024-01", periods=2, freq="M"))}), "column 'p' of the data frame holds periods"),
    "intervals that are closed otherwise": (lambda: pd.DataFrame({"i": pd.interval_range(0, 2, closed="both")}), "column 'i' of the data frame holds intervals that are closed on the side 'both'"),
    "dates and times": (lambda: pd.DataFrame({"d": [None, DAY, datetime.datetime(2020, 1, 1, 12)]}), "column 'd' .* holds a datetime without a time zone in row 3, and a date before: convert"),
    "times and dates": (lambda: pd.DataFrame({"d": [datetime.datetime(2020, 1, 1, 12), DAY]}, dtype=object), "column 'd' .* holds a date in row 2"),
    "times with a zone and without": (
        lambda: pd.DataFrame({"d": [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=UTC)]}, dtype=object), "column 'd' .* holds a datetime with a time zone in row 2"
    ),
    "times of day with a zone": (lambda: pd.DataFrame({"d": [datetime.time(1, tzinfo=UTC)]}), "column 'd' .* holds a time with a time zone in row 1, and a column would lose that"),
    "nanoseconds": (lambda: pd.DataFrame({"d": [pd.Timestamp(1), datetime.datetime(2020, 1, 1)]}, dtype=object), "column 'd' .* holds a Timestamp with nanoseconds in row 1"),
    "text and bytes": (lambda: pd.DataFrame({"b": ["y", b"x"]}), "column 'b' .* holds a bytes in row 2, and a str before"),
    "integers and booleans": (lambda: pd.DataFrame({"b": [pd.NA, 2, True]}, dtype=object), "column 'b' .* holds a bool in row 3, and a int before"),
    "floats and booleans": (lambda: pd.DataFrame({"b": [np.nan, 0.5, np.True_]}, dtype=object), "column 'b' .* holds a bool_? in row 3, and a float before"),
    "floats and booleans in lists": (lambda: pd.DataFrame({"b": [[0.5], [True]]}), "column 'b' .* holds a bool in row 2, and a float before"),
    "dates and times in objects": (lambda: pd.DataFrame({"b": [{"a": DAY}, {"a": datetime.datetime(2020, 1, 1, 1)}]}), "column 'b' .* holds a datetime without a time zone in row 2"),
    "several types of categories": (lambda: pd.DataFrame({"c": pd.Categorical(["y", b"x"], categories=["y", b"x"])}), "column 'c' .* holds a bytes in row 2"),
    "none and what pyarrow lacks": (lambda: pd.DataFrame({"o": [pd.NA, object()]}), "column 'o' of the data frame, of dtype object, has no form"),
    "arrays of two dimensions": (lambda: pd.DataFrame({"o": [np.zeros((2, 2)), np.zeros((2, 2))]}), "column 'o' of the data frame, of dtype object, has no form"),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("fleet"), drives=1) as opened:
        yield opened


@pytest.mark.parametrize("what", REFUSED)
def test_columns_that_arrow_would_change_are_refused(fleet, what):
    make, says = REFUSED[what]
    with pytest.raises(InvalidError, match=f"^foreign.t: {says}"):
        fleet.ingest(make(), "foreign.t")


@pytest.mark.parametrize("value", [datetime.time(1, tzinfo=UTC), [0.5, True]])
def test_parameters_that_would_change_are_refused(fleet, value):
    with pytest.raises(InvalidError, match=r"the value of parameter \$1 holds a (bool|time with a time zone), and a .*: convert it first"):
        fleet.sql("SELECT ? AS a", params=[value])


def test_object_columns_of_one_kind_are_taken(fleet):
    values = {
        "n": [1, 0.5, None], "d": [DAY, None, pd.NaT], "t": [datetime.datetime(2020, 1, 1), pd.Timestamp("2020-01-02"), pd.NaT], "m": [decimal.Decimal("1.5"), 2, None],
        "l": [[1, 2], None, np.array([3])], "s": [{"a": 1}, {"a": None}, None], "b": [True, np.True_, pd.NA], "x": ["a", float("nan"), pd.NA],
    }  # fmt: skip
    fleet.ingest(pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in values.items()}), "foreign.kinds")
    found = fleet.sql("SELECT * FROM foreign.kinds").to_arrow().to_pydict()
    wanted = {name: [None if is_missing(v) else v.tolist() if isinstance(v, np.ndarray) else v for v in column] for name, column in values.items()}
    assert found == wanted
