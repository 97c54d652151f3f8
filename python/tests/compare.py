"""Whether two engines gave the same answer."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

#: How far sums of doubles may be apart: engines add in different orders.
RELATIVE = 1e-9


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of `table`; column names may repeat."""
    return list(zip(*(column.to_pylist() for column in table.columns))) if table.num_columns else []


def same_value(ours: Any, theirs: Any) -> bool:
    """Whether two values are the same: nulls and NaN are themselves, zeros are equal, doubles are near, a rounded
    decimal is that of the exact value."""
    if ours is None or theirs is None:
        return ours is theirs
    if isinstance(ours, Decimal) and isinstance(theirs, float):
        # Averages of decimals: DataFusion's are decimals cut to a scale, DuckDB's are doubles.
        return abs(float(ours) - theirs) <= 10.0 ** ours.as_tuple().exponent + RELATIVE * abs(theirs)
    if isinstance(ours, float) or isinstance(theirs, float):
        a, b = float(ours), float(theirs)
        return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= RELATIVE * max(abs(a), abs(b))
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same_value, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same_value(ours[k], theirs[k]) for k in ours)
    return ours == theirs


def _key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    def one(value: Any) -> tuple[Any, ...]:
        if value is None:
            return (2, 0.0, "")
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            return (1, 0.0, "") if math.isnan(value) else (0, round(float(value), 6) if math.isfinite(value) else float(value), "")
        return (0, 0.0, str(value))

    return tuple(map(one, row))


def assert_same(ours: pa.Table, theirs: pa.Table, ordered: bool, what: str) -> None:
    """Fails, showing the first difference, where the answers are not the same; without `ordered` in any order."""
    a, b = rows(ours), rows(theirs)
    assert ours.num_columns == theirs.num_columns, f"{what}: {ours.num_columns} columns instead of {theirs.num_columns}"
    assert len(a) == len(b), f"{what}: {len(a)} rows instead of {len(b)}"
    if not ordered:
        a, b = sorted(a, key=_key), sorted(b, key=_key)
    for at, (x, y) in enumerate(zip(a, b)):
        assert all(map(same_value, x, y)), f"{what}: row {at} is {x} instead of {y}"
