"""What an engine answers, a table or a refusal, and whether two answers are the same.

Numbers are the same if they are near; zeros are equal, NULL and NaN are themselves. A column must be of the same kind
in both: integers of all widths are one kind, and so are decimals and floats of DuckDB where ours are decimals."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: How far doubles may be apart: engines add in different orders. `LOOSE` is for what cancels, such as variances.
RELATIVE, LOOSE = 1e-9, 1e-6
#: Rows beyond which an answer stays in Arrow and is compared column by column: Python takes seconds for a million.
LARGE = 20_000
#: Rows beyond which an answer is not read: memory has no room for what some joins give.
HUGE = 3_000_000
#: How far apart rows that are the same may be in sorted answers.
NEAR = 1000

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Refusal:
    """An error: its class, and its text."""

    kind: str
    text: str

    @property
    def template(self) -> str:
        """The text without names, numbers and values, by which refusals are counted."""
        text = re.sub(r"^sql: ", "", self.text.split("\n")[0])
        text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'..'", text)
        text = re.sub(r"\b(?:a\d+|c\d+|w\d+|t\d+|e|p|x)\.\S+", "..", text)
        return f"{self.kind}: {re.sub(r'-?[0-9][0-9.]*', 'N', text)[:110]}"

    @property
    def is_defect(self) -> bool:
        """Whether an error says of itself that the system is wrong."""
        return self.kind == "InternalError" or bool(re.search(r"internal error|panicked|datafusion|bug in|file a (bug|ticket)|github\.com|^plan: \[|__common_expr", self.text, re.IGNORECASE))

    @property
    def of_data(self) -> bool:
        """Whether it depends on which rows are computed, which no order of conditions promises."""
        return bool(re.search(r"overflow|out of range|divi(de|sion) by zero|cast|convert|parse|negative number|argument of|too large|square root|logarithm", self.text, re.IGNORECASE))


@dataclass(frozen=True)
class Rows:
    """An answer: its rows, and the kinds of its columns. A large one has `table` instead of rows."""

    rows: list[Row]
    kinds: tuple[str, ...]
    table: pa.Table | None = None

    @property
    def count(self) -> int:
        return len(self.rows) if self.table is None else self.table.num_rows


Answer = Rows | Refusal


def kind_of(of: pa.DataType) -> str:
    """The kind of an Arrow type, as results are compared."""
    t = pa.types
    if t.is_dictionary(of):
        return kind_of(of.value_type)
    if t.is_integer(of) or t.is_null(of):
        return "int"
    if t.is_floating(of):
        return "float"
    if t.is_decimal(of):
        return "decimal"
    if t.is_string(of) or t.is_large_string(of) or t.is_string_view(of):
        return "text"
    if t.is_binary(of) or t.is_large_binary(of) or t.is_binary_view(of) or t.is_fixed_size_binary(of):
        return "binary"
    if t.is_timestamp(of):
        return "zoned" if of.tz else "timestamp"
    if t.is_date(of):
        return "date"
    if t.is_list(of) or t.is_large_list(of) or t.is_fixed_size_list(of) or t.is_list_view(of):
        return f"list of {kind_of(of.value_type)}"
    if t.is_struct(of):
        return "struct"
    return str(of).split("[")[0].rstrip("0123456789")


class TooManyRows(Exception):
    """An answer has more than `HUGE` rows."""


def of_stream(stream: pa.RecordBatchReader) -> Rows:
    """As `of_table`, of rows as they come."""
    batches, rows = [], 0
    for batch in stream:
        batches.append(batch)
        rows += batch.num_rows
        if rows > HUGE:
            raise TooManyRows
    return of_table(pa.Table.from_batches(batches, stream.schema))


def of_table(table: pa.Table) -> Rows:
    """The rows of a table, in Python's values; timestamps in microseconds, where they are whole ones."""
    if table.num_rows > LARGE:
        return Rows([], tuple(kind_of(column.type) for column in table.columns), table)
    columns, kinds = [], []
    for column in table.columns:
        of = column.type
        kinds.append(kind_of(of))
        if pa.types.is_timestamp(of) and of.unit == "ns":
            try:
                column = column.cast(pa.timestamp("us", of.tz))
            except pa.ArrowInvalid:
                column = pc.cast(column, pa.int64())
        if pa.types.is_timestamp(column.type) and column.type.tz:
            # Instants: pyarrow's own values would need the zone.
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        elif pa.types.is_time(of):
            column = column.cast(pa.time64("us"))
        try:
            columns.append(column.to_pylist())
        except (ValueError, OverflowError):
            # Beyond what Python's dates hold.
            columns.append(column.cast(pa.int64() if not pa.types.is_date32(of) else pa.int32()).to_pylist())
    return Rows(list(zip(*columns)) if columns else [], tuple(kinds))


def difference(ours: Rows, theirs: Rows, ordered: bool = False, loose: bool = False, kinds: bool = True) -> str | None:
    """The first difference of two answers in words; None if they are the same."""
    if len(ours.kinds) != len(theirs.kinds):
        return f"{len(ours.kinds)} columns instead of {len(theirs.kinds)}"
    for at, (a, b) in enumerate(zip(ours.kinds, theirs.kinds)):
        # A column of NULL alone may be of any type.
        if kinds and not _same_kind(a, b) and ours.table is None and any(row[at] is not None for row in (*ours.rows, *theirs.rows)):
            return f"column {at + 1} is {a} instead of {b}"
    if ours.table is not None or theirs.table is not None:
        return _columns_difference(ours, theirs)
    return rows_difference(ours.rows, theirs.rows, ordered, loose)


def _columns_difference(ours: Rows, theirs: Rows) -> str | None:
    """The first difference of two large answers: the number of rows, then each column's values and how often each is
    there, for kinds whose values are the same in both engines; of the others the number of NULLs."""
    if ours.count != theirs.count or ours.table is None or theirs.table is None:
        return f"{ours.count} rows instead of {theirs.count}"
    for at, (x, y) in enumerate(zip(ours.table.columns, theirs.table.columns)):
        if x.null_count != y.null_count:
            return f"column {at + 1} has {x.null_count} NULLs instead of {y.null_count}"
        if ours.kinds[at] == theirs.kinds[at] and ours.kinds[at] in ("int", "text", "bool", "date"):
            if ours.kinds[at] == "text":
                # pyarrow counts views of texts wrongly.
                x, y = x.cast(pa.string()), y.cast(pa.string())
            x, y = ({str(each["values"]): each["counts"] for each in column.value_counts().to_pylist()} for column in (x, y))
            if x != y:
                value = next(value for value in {**x, **y} if x.get(value) != y.get(value))
                return f"column {at + 1} has {value} {x.get(value, 0)} times instead of {y.get(value, 0)}"
    return None


def rows_difference(a: list[Row], b: list[Row], ordered: bool = False, loose: bool = False) -> str | None:
    """As `difference`, of rows alone."""
    if len(a) != len(b):
        return f"{len(a)} rows instead of {len(b)}" + _surplus(a, b)
    if a == b or not ordered and _equal_bags(a, b):
        return None
    if not ordered:
        a, b = sorted(a, key=_key), sorted(b, key=_key)
    bound = LOOSE if loose else RELATIVE
    for at, (x, y) in enumerate(zip(a, b)):
        if not all(same(p, q, bound) for p, q in zip(x, y)):
            # Values that are near may have sorted differently.
            if not ordered and _matched(a, b, bound):
                return None
            return f"row {at} is {x} instead of {y}" if ordered else f"rows differ{_surplus(a, b)}"
    return None


def _equal_bags(a: list[Row], b: list[Row]) -> bool:
    """Whether the rows are exactly equal in some order: the quick way, which says nothing of NaN, lists and dicts."""
    try:
        return Counter(a) == Counter(b)
    except TypeError:
        return False


def _surplus(a: list[Row], b: list[Row]) -> str:
    """Rows that only one side has."""
    ours, theirs = [_key(row) for row in a], [_key(row) for row in b]
    only_ours = [row for row, key in zip(a, ours) if key not in set(theirs)][:3]
    only_theirs = [row for row, key in zip(b, theirs) if key not in set(ours)][:3]
    return (f"; only ours: {only_ours}" if only_ours else "") + (f"; only theirs: {only_theirs}" if only_theirs else "")


def _matched(a: list[Row], b: list[Row], bound: float) -> bool:
    """Whether each row of one side, both sorted, has a row of its own on the other: near its place, as only values that
    are near may have sorted differently."""
    left = list(b)
    for row in a:
        found = next((at for at, other in enumerate(left[:NEAR]) if all(same(p, q, bound) for p, q in zip(row, other))), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_kind(a: str, b: str) -> bool:
    if a == b:
        return True
    # Averages and products of decimals are doubles in DuckDB; a list without values has no kind.
    return {a, b} <= {"decimal", "float"} or {a, b} <= {"int", "decimal"} or "int" in (a.removeprefix("list of "), b.removeprefix("list of ")) and a.startswith("list") and b.startswith("list")


def same(a: Any, b: Any, bound: float = RELATIVE) -> bool:
    """Whether two values are the same."""
    if a is None or b is None:
        return a is b
    if isinstance(a, (float, Decimal)) or isinstance(b, (float, Decimal)):
        if isinstance(a, (int, float, Decimal)) and isinstance(b, (int, float, Decimal)):
            return _same_number(a, b, bound)
        return False
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, bound) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key], bound) for key in a)
    return a == b


def _same_number(a: Any, b: Any, bound: float) -> bool:
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        # DuckDB's common type of decimals has 38 digits at most, and then fewer behind the point.
        shorter = b.is_finite() and b.as_tuple().exponent > a.as_tuple().exponent
        return a == b or shorter and a.quantize(b, ROUND_HALF_UP, Context(prec=76)) == b
    x, y = float(a), float(b)
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    if x == y:
        return True
    if math.isinf(x) or math.isinf(y):
        return False
    return abs(x - y) <= bound * max(abs(x), abs(y), 1.0 if bound == LOOSE else 0.0)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(map(_key_of, row))


def _key_of(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (3, 0.0, "")
    if isinstance(value, bool):
        return (0, float(value), "")
    if isinstance(value, (int, float, Decimal)):
        try:
            number = float(value)
        except OverflowError:
            return (1, math.inf, str(value))
        return (2, 0.0, "") if math.isnan(number) else (1, float(f"{number + 0.0:.6g}"), str(value) if isinstance(value, int) and abs(value) > 2**50 else "")
    if isinstance(value, list):
        return (4, 0.0, str([_key_of(each) for each in value]))
    if isinstance(value, dict):
        return (5, 0.0, str([_key_of(each) for each in value.values()]))
    return (6, 0.0, str(value))
