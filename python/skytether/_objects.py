"""Python's objects in a column: what Arrow would make something else of without an error."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: What pandas calls the values of a column that pyarrow takes as they are, or refuses.
_PLAIN = ("string", "bytes", "integer", "floating", "boolean", "empty", "decimal", "mixed-integer-float")

#: What to do about objects of several types.
CONVERT = ': convert it to one type first (.astype("string"), for example)'


def misfit(values: Iterable[Any]) -> str | None:
    """What is wrong with a column of Python's objects, with the first row of it; None where a column holds them all.

    pyarrow takes the type of a column from some of its values and casts the others: a time to a date, True to 1.0, text
    to bytes. It leaves out zones of times of day, and nanoseconds.
    """
    first: dict[tuple[str, ...], tuple[str, str]] = {}
    for row, value in enumerate(values, 1):
        for place, kind, name in _kinds(value, ()):
            if kind is None:
                return f"holds a {name} in row {row}, and a column would lose that"
            before = first.setdefault(place, (kind, name))
            if before[0] != kind:
                return f"holds a {name} in row {row}, and a {before[1]} before"
    return None


def misfit_of_pandas(values: Any) -> str | None:
    """The same of a pandas column, index level or the categories of either."""
    import pandas as pd

    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return misfit_of_pandas(dtype.categories)
    if isinstance(dtype, pd.PeriodDtype):
        # Arrow has no periods: only their numbers would be left.
        return "holds periods: convert it to times (.dt.to_timestamp(), or .to_timestamp() of an index) or text first"
    if isinstance(dtype, pd.IntervalDtype) and dtype.closed != "right":
        how = "convert them to text (.astype(str)), or to columns of .left and .right"
        return f"holds intervals that are closed on the side {dtype.closed!r}, and only their bounds would be left: {how}"
    if dtype != object or pd.api.types.infer_dtype(values, skipna=True) in _PLAIN:
        return None
    wrong = misfit(values)
    return None if wrong is None else wrong + CONVERT


def is_missing(value: Any) -> bool:
    """Whether a value is pandas' or Python's for none. (Comparing a value with itself fails for arrays and `pd.NA`.)"""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, float) and math.isnan(value)


def _kinds(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str | None, str]]:
    """Each value in `value` with its place, its kind (None where no column has such) and what to call it. Values of one
    kind can be in one column."""
    if is_missing(value):
        return
    kind = type(value)
    if isinstance(value, Mapping):
        yield place, "dict", kind.__name__
        for key, inner in value.items():
            yield from _kinds(inner, (*place, f".{key}"))
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "tolist") and getattr(value, "ndim", 0):
        yield place, "list", kind.__name__
        if hasattr(value, "dtype") and value.dtype.kind in "biufmM":
            # All of one type: the first tells it.
            value = value[:1]
        for inner in value:
            yield from _kinds(inner, (*place, "[]"))
    else:
        yield (place, *_kind(value))


def _kind(value: Any) -> tuple[str | None, str]:
    name = type(value).__name__
    of = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, bool) or of == "b":
        return "bool", name
    if isinstance(value, (int, float, decimal.Decimal)) or of in ("i", "u", "f"):
        return "number", name
    if isinstance(value, str):
        return "text", name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", name
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        return None, f"{name} with nanoseconds"
    if isinstance(value, datetime.datetime):
        zoned = "datetime with a time zone" if value.tzinfo is not None else "datetime without a time zone"
        return zoned, zoned
    if isinstance(value, datetime.time):
        return (None, "time with a time zone") if value.tzinfo is not None else ("time", "time")
    if isinstance(value, (datetime.date, datetime.timedelta)):
        kind = "date" if isinstance(value, datetime.date) else "timedelta"
        return kind, kind
    # pyarrow knows the others, or refuses them.
    return name, name
