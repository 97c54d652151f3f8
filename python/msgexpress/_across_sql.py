"""The obs columns of data sets in SQL: what they are called, what they hold, and conditions on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import InvalidError, NotFoundError, SkytetherError
from skytether.errors import reworded

from ._hints import instead
from ._select import settled

if TYPE_CHECKING:
    import pyarrow as pa

    from ._dataset import Dataset


@dataclass(frozen=True)
class Column:
    """One obs column of a data set: its name in SQL, the type of its values there, and the order of its categories
    (None: it has none, or they are too many to be kept)."""

    sql: str
    type: pa.DataType
    categories: list[str] | None
    ordered: bool

    @property
    def kind(self) -> str:
        """What it holds, in words."""
        import pyarrow as pa

        if self.categories is not None:
            return "categories"
        if pa.types.is_boolean(self.type):
            return "booleans"
        if pa.types.is_integer(self.type) or pa.types.is_floating(self.type):
            return "numbers"
        return "times" if pa.types.is_temporal(self.type) else "texts"


def columns_of(ds: Dataset) -> dict[str, Column]:
    """The obs columns that SQL has, by their names in AnnData."""
    import pyarrow as pa

    with ds._unchanged():
        schema = pa.schema(ds.fleet.sql(f"SELECT * FROM {ds.table('obs')} LIMIT 0"))
    types = {field.name: field.type for field in schema}
    # Data sets that are older than this note have the names as they are.
    known = ds._kept.get("obs_in_sql") or {name: name for name in schema.names[1:]}
    orders, ordered = ds._kept["categories"], set(ds._kept.get("ordered", ()))
    return {name: Column(sql, types[sql], orders.get(name), name in ordered) for name, sql in known.items() if sql in types}


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def as_text(column: Column) -> str:
    """A column's values as texts, as the drives name groups."""
    return f"arrow_cast({quoted(column.sql)}, 'Utf8')"


def where_of(ds: Dataset, columns: Mapping[str, Column], where: Mapping[str, Any]) -> str:
    """The condition that every obs column of `where` has its value, or one of its values. In a data set without such a
    column no cell meets it."""
    if not where:
        raise InvalidError(f"the selector of {ds.name} chooses no cells: name an obs column and its value")
    parts = []
    for name, wanted in where.items():
        if name not in columns:
            return "FALSE"
        parts.append("(" + " OR ".join(_equals(columns[name], value) for value in values_of(name, wanted)) + ")")
    return " AND ".join(parts)


def values_of(name: str, wanted: Any) -> list[Any]:
    """The values that a selector asks of obs column `name`."""
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values:
        raise InvalidError(f"the selector names no value of obs column {name!r}: give one value, or a list of values")
    for value in values:
        if isinstance(value, (Mapping, list, tuple, set, np.ndarray)):
            raise InvalidError(f"{value!r} is no value of obs column {name!r}: give one value, or a list of values")
    return values


def _equals(column: Column, value: Any) -> str:
    """That `column` has `value`, which may be written as its text, as `Dataset.ttest` takes it."""
    import pyarrow as pa

    name, kind = quoted(column.sql), column.type
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value != value:
        return "FALSE"  # a missing value is none to choose by
    if pa.types.is_boolean(kind):
        known = {"true": name, "false": f"NOT {name}"}
        return known.get(str(value).lower(), "FALSE")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        try:
            number = float(value) if pa.types.is_floating(kind) else int(value) if isinstance(value, str) or value == int(value) else None
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or (pa.types.is_integer(kind) and not -(2**63) <= number < 2**63):
            return "FALSE"
        if isinstance(number, int):
            return f"{name} = {number}"
        if not np.isfinite(number):
            return f"{name} = arrow_cast('{number}', '{_named(kind)}')"
        return f"{name} = arrow_cast({number!r}, '{_named(kind)}')"
    if pa.types.is_temporal(kind):
        return f"{as_text(column)} = {text(str(value))}"
    return f"{name} = {text(str(value))}"


def _named(kind: pa.DataType) -> str:
    """A type as SQL's ``arrow_cast`` spells it."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return "Boolean"
    if pa.types.is_date(kind):
        return "Date32"
    if pa.types.is_timestamp(kind):
        return "Timestamp(Nanosecond, None)"
    if pa.types.is_floating(kind):
        return f"Float{kind.bit_width}"
    if pa.types.is_integer(kind):
        return f"{'UInt' if str(kind).startswith('u') else 'Int'}{kind.bit_width}"
    return "Utf8"


class Filter:
    """Which cells of several data sets are meant: a dict of obs columns and values, a condition of SQL, or None for
    all of them.

    Raises
    ------
    NotFoundError
        No data set has such a column, or no cell of any such a value.
    InvalidError
        It is something else.
    """

    def __init__(self, where: Any, all_columns: Mapping[Dataset, Mapping[str, Column]]) -> None:
        self.where = settled(where)
        self._columns = all_columns
        if self.where is None:
            return
        if isinstance(self.where, str):
            if not self.where.strip():
                raise InvalidError("where= is an empty condition: leave it out for all cells")
            return
        if not isinstance(self.where, dict):
            raise InvalidError(f"where= is {where!r}: give a dict of obs columns and values, or a condition of SQL")
        _check_there(self.where, all_columns)

    def source(self, ds: Dataset) -> str:
        """What to write behind SELECT's columns: ``FROM ... WHERE ...``. Columns of other data sets are there, too, as
        missing values, so that one condition serves all."""
        if self.where is None:
            return f"FROM {ds.table('obs')}"
        if isinstance(self.where, str):
            # The line's end ends a comment of the condition.
            return f"FROM {self._all_columns(ds)} WHERE ({self.where}\n)"
        return f"FROM {ds.table('obs')} WHERE {where_of(ds, self._columns[ds], self.where)}"

    def grouped(self, ds: Dataset, group: str) -> str:
        """A query of `group` (SQL) for every cell in order, missing for those that are left out."""
        if self.where is None:
            return f"SELECT {group} AS g FROM {ds.table('obs')}"
        if isinstance(self.where, str):
            return f"SELECT CASE WHEN ({self.where}\n) THEN {group} END AS g FROM {self._all_columns(ds)}"
        return f"SELECT CASE WHEN {where_of(ds, self._columns[ds], self.where)} THEN {group} END AS g FROM {ds.table('obs')}"

    def asked(self, ds: Dataset, query: str) -> Any:
        """The rows of a query, with an error that names the data set. A condition of SQL may be wrong."""
        try:
            return ds.fleet.sql(query).to_arrow()
        except SkytetherError as e:
            if isinstance(self.where, str):
                raise reworded(e, f"where= of {ds.name}: {e}") from e
            raise

    def _all_columns(self, ds: Dataset) -> str:
        own = {column.sql for column in self._columns[ds].values()}
        lacking = {c.sql: c.type for columns in self._columns.values() for c in columns.values() if c.sql not in own}
        missing = [f"arrow_cast(NULL, '{_named(kind)}') AS {quoted(name)}" for name, kind in lacking.items()]
        return f"(SELECT {', '.join(['*', *missing])} FROM {ds.table('obs')}) AS obs"


def _check_there(where: Mapping[str, Any], all_columns: Mapping[Dataset, Mapping[str, Column]]) -> None:
    """That some data set has each column and each value of `where`: one row of numbers from each."""
    names = list(dict.fromkeys(name for columns in all_columns.values() for name in columns))
    of = _of(list(all_columns))
    for name in where:
        if name not in names:
            raise NotFoundError(f"obs of {of} has no column {name!r}: it has {', '.join(map(repr, names)) or 'none'}{instead(name, names)}")
    asked = [(name, value) for name, wanted in where.items() for value in values_of(name, wanted)]
    found = np.zeros(len(asked), np.int64)
    for ds, columns in all_columns.items():
        sums = [
            f"sum(CASE WHEN {_equals(columns[name], value)} THEN 1 ELSE 0 END) AS c{i}" for i, (name, value) in enumerate(asked) if name in columns
        ]
        if not sums:
            continue
        with ds._unchanged():
            rows = ds.fleet.sql(f"SELECT {', '.join(sums)} FROM {ds.table('obs')}").to_arrow().to_pylist()
        for label, count in rows[0].items() if rows else ():
            found[int(label[1:])] += count or 0
    for (name, value), count in zip(asked, found):
        if not count:
            there = _values(name, all_columns)
            some = ", ".join(there[:12])
            raise NotFoundError(f"no cell of {of} has {value!r} in obs column {name!r}: there are {some}{', ...' if len(there) > 12 else ''}{instead(value, there)}")


def _values(name: str, all_columns: Mapping[Dataset, Mapping[str, Column]]) -> list[str]:
    """The values of an obs column in all data sets, as texts; at most some thousands of each."""
    there: dict[str, None] = {}
    for ds, columns in all_columns.items():
        if name in columns:
            query = f"SELECT DISTINCT {as_text(columns[name])} AS g {'FROM ' + ds.table('obs')} LIMIT 5000"
            there.update(dict.fromkeys(v for v in ds.fleet.sql(query).to_arrow().column(0).to_pylist() if v is not None))
    return sorted(there)


def _of(datasets: Sequence[Dataset]) -> str:
    names = [ds.name for ds in datasets]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
