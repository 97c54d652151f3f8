"""Schemas and data: small tables with the edges of every type, in types that both engines store.

Each table has `u` (unique, never null) and `k` (few values, nulls), by which tables join and are partitioned. The other
columns are drawn. One table has over sixteen times the rows of the small ones, so that joins are sent to the drives."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, Callable

import pyarrow as pa

NAN, INF = float("nan"), float("inf")
UTC = dt.timezone.utc

#: Without letters whose upper or lower case has another length, and spaces beyond ASCII: engines differ about these.
WORDS = [
    "", " ", "a", "A", "ab", "b", "B", "abc", "ä", "é", "e\u0301", "ñ", "Ω", "日本", "🧬 gene", "👩\u200d🔬", "tab\there", "line\nbreak", "quote's", '"', "per%cent", "under_score",
    "back\\slash", "NULL", "null", " padded ", "0", "1", "-7", "1.5", "true", "2024-02-29", "a" * 40, "\u3042", "%", "_", "\u0001", "z", "Größe", "a,b", "{x}", "Δ",
]
DATES = [dt.date(2024, 2, 29), dt.date(2023, 12, 31), dt.date(2024, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2000, 2, 29), dt.date(2021, 1, 3), dt.date(1900, 3, 1)]
FAR_DATES = [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 14), dt.date(1677, 9, 20), dt.date(2262, 4, 12), dt.date(2024, 2, 29)]
MOMENTS = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(1969, 12, 31, 23, 59, 59, 500000), dt.datetime(1970, 1, 1), dt.datetime(2024, 3, 31, 1, 30),
    dt.datetime(2024, 10, 27, 0, 30), dt.datetime(2023, 12, 31, 12), dt.datetime(2021, 1, 3, 0, 0, 0, 1), dt.datetime(1960, 6, 15, 6, 30),
]
WHOLE_MOMENTS = [moment.replace(microsecond=0) for moment in MOMENTS]
TIMES = [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12, 30), dt.time(1, 2, 3, 4)]
TAME_FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, 1.5, -2.5, 3.0, 10.0, 99.5, -100.0, NAN, INF, -INF]
WILD_FLOATS = [0.0, -0.0, NAN, INF, -INF, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 0.1, 1e15, 9007199254740993.0, 1e-7]
BYTES = [b"", b"\x00", b"a", b"ab", b"\xff\xfe", b"a\x00b"]


@dataclass(frozen=True)
class Type:
    """A type of a column: the kind of its values, how it is stored, and how its values are drawn."""

    name: str
    kind: str
    arrow: pa.DataType
    draw: Callable[[Random], Any]
    #: Bound of the absolute value where it is computed with.
    size: float | None = None
    width: int = 64
    exact: bool = True


def _integers(low: int, high: int) -> Callable[[Random], int]:
    return lambda random: random.randint(low, high)


def _of(values: list[Any]) -> Callable[[Random], Any]:
    return lambda random: random.choice(values)


def _list_of(one: Callable[[Random], Any]) -> Callable[[Random], list[Any]]:
    return lambda random: [None if random.random() < 0.15 else one(random) for _ in range(random.choice([0, 1, 1, 2, 3]))]


def _struct(random: Random) -> dict[str, Any]:
    return {"a": random.choice([None, 0, 1, 2, 7]), "b": random.choice([None, "", "a", "ä", "b"])}


BIG = 2**63 - 1

TYPES = [
    Type("i8", "int", pa.int8(), _integers(-5, 9), 9, 8),
    Type("i16", "int", pa.int16(), _integers(-20, 40), 40, 16),
    Type("i32", "int", pa.int32(), _integers(-300, 300), 300, 32),
    Type("i64", "int", pa.int64(), _integers(-1000, 1000), 1000, 64),
    Type("u8", "int", pa.uint8(), _of([0, 1, 7, 127, 128, 255])),
    Type("u16", "int", pa.uint16(), _of([0, 1, 65535, 300])),
    Type("u32", "int", pa.uint32(), _of([0, 1, 2, 2**31, 2**32 - 1])),
    Type("u64", "int", pa.uint64(), _of([0, 1, 2**63, 2**64 - 1, 5])),
    Type("far8", "int", pa.int8(), _of([-128, 127, 0, 1])),
    Type("far64", "int", pa.int64(), _of([-BIG - 1, BIG, 0, -1, 1, 2**53 + 1, 2**31])),
    Type("f64", "float", pa.float64(), _of(TAME_FLOATS), 100),
    Type("f32", "float", pa.float32(), _of(TAME_FLOATS), 100),
    Type("wild", "float", pa.float64(), _of(WILD_FLOATS), exact=False),
    Type("m12", "decimal", pa.decimal128(12, 2), lambda r: Decimal(r.choice([0, 1, -1, 150, 99999, -12345, r.randint(-500, 500)])) / 100, 1000),
    Type("m38", "decimal", pa.decimal128(38, 10), lambda r: Decimal(r.choice(["0", "1.0000000001", "-9999999999999999999999999999.9999999999", "12345.6789", "0.5"]))),
    Type("m5", "decimal", pa.decimal128(5, 0), lambda r: Decimal(r.choice([0, 1, 99999, -99999, 42]))),
    Type("words", "text", pa.string(), _of(WORDS)),
    Type("letters", "text", pa.string(), _of(["a", "b", "ab", "B", "ä", ""])),
    Type("large", "text", pa.large_string(), _of(["a", "b", "日本", "long enough to be no inlined view"])),
    Type("view", "text", pa.string_view(), _of(["a", "b", "ä", "long enough to be no inlined view"])),
    Type("coded", "text", pa.dictionary(pa.int32(), pa.string()), _of(["a", "b", "c", "ä"])),
    Type("bool", "bool", pa.bool_(), lambda r: r.random() < 0.5),
    Type("date", "date", pa.date32(), _of(DATES), 1),
    Type("far_date", "date", pa.date32(), _of(FAR_DATES)),
    Type("us", "timestamp", pa.timestamp("us"), _of(MOMENTS), 1),
    Type("ms", "timestamp", pa.timestamp("ms"), _of([m.replace(microsecond=m.microsecond // 1000 * 1000) for m in MOMENTS]), 1),
    Type("s", "timestamp", pa.timestamp("s"), _of(WHOLE_MOMENTS), 1),
    Type("utc", "zoned", pa.timestamp("us", "UTC"), _of([m.replace(tzinfo=UTC) for m in MOMENTS]), 1),
    Type("berlin", "zoned", pa.timestamp("us", "Europe/Berlin"), _of([m.replace(tzinfo=UTC) for m in MOMENTS])),
    Type("time", "time", pa.time64("us"), _of(TIMES)),
    Type("binary", "binary", pa.binary(), _of(BYTES)),
    Type("ints", "ints", pa.list_(pa.int64()), _list_of(_integers(-2, 5))),
    Type("texts", "texts", pa.list_(pa.string()), _list_of(_of(["a", "", "ä", "b"]))),
    Type("struct", "struct", pa.struct({"a": pa.int64(), "b": pa.string()}), _struct),
]
BY_NAME = {one.name: one for one in TYPES}

#: Names that columns may have: plain, and such as need quotes.
NAMES = ["x", "y", "z", "w", "v", "n", "m", "Größe", "a b", "select", "Mixed", "q'uote", "dot.ted", "_1", "日"]


@dataclass(frozen=True)
class Column:
    name: str
    type: Type


@dataclass(frozen=True)
class Stored:
    """A table: its columns and its rows."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def arrow(self) -> pa.Table:
        """The table as Arrow has it."""
        of = [_array([row[at] for row in self.rows], column.type.arrow) for at, column in enumerate(self.columns)]
        return pa.table(of, schema=pa.schema([pa.field(c.name, a.type) for c, a in zip(self.columns, of)]))


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(of):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, of)


Schema = dict[str, Stored]

#: Types of the keys by which tables join and are partitioned, with values that tables share.
KEYS = {
    "int": [Type("k32", "int", pa.int32(), _integers(-2, 8), 8, 32), Type("k64", "int", pa.int64(), _integers(-2, 8), 8, 64), Type("k16", "int", pa.int16(), _integers(-2, 8), 8, 16)],
    "text": [Type("kt", "text", pa.string(), _of(["a", "b", "ä", "", "long enough to be no inlined view"])), Type("kl", "text", pa.large_string(), _of(["a", "b", "c", "ä"]))],
    "date": [Type("kd", "date", pa.date32(), _of(DATES[:4]), 1)],
}


def schema(random: Random) -> Schema:
    """Three tables: one of some hundred rows and two small ones."""
    types = list(TYPES)
    key = random.choice(["int", "int", "int", "text", "date"])
    sizes = [random.randint(110, 200), random.choice([1, 6, 10, 12]), random.choice([0, 3, 5, 8, 30])]
    return {f"t{n}": _table(random, f"t{n}", rows, key, types) for n, rows in enumerate(sizes)}


def _table(random: Random, name: str, rows: int, key: str, types: list[Type]) -> Stored:
    unique = Type("unique", "int", pa.int64(), _integers(0, 0), 1000, 64)
    drawn = random.sample(types, random.randint(5, 8))
    if not any(one.kind == "text" for one in drawn):
        drawn.append(BY_NAME["letters"])
    names = random.sample(NAMES, len(drawn))
    columns = [Column("u", unique), Column("k", random.choice(KEYS[key])), *map(Column, names, drawn)]
    unique_values = random.sample(range(-400, 999), rows)
    data: list[list[Any]] = [unique_values]
    for column in columns[1:]:
        share = random.choice([0.0, 0.1, 0.1, 0.4, 1.0 if random.random() < 0.2 else 0.1])
        data.append([None if random.random() < share else column.type.draw(random) for _ in range(rows)])
    return Stored(name, tuple(columns), tuple(zip(*data)) if rows else ())
