"""Seeded tables of every Arrow type, with values at the edges, in every encoding and under awkward names."""

from __future__ import annotations

import math
import random
import string
from decimal import Decimal

import pyarrow as pa

ZONES = ["UTC", "Europe/Rome", "America/New_York", "+05:30", "Asia/Kolkata"]
UNITS = ["s", "ms", "us", "ns"]
TEXTS = [
    "", " ", "a", "A", "ä", "é", "e\u0301", "ß", "日本", "🧬", "tab\there", "line\nbreak", "cr\r\nlf", 'quo"te', "it's", "a,b", "a;b", "NULL", "null", "NA", "NaN", "true",
    "0", "-1", "007", "1e5", "2024-02-29", "\\", "\\N", "#", "%", "\u00a0", "\u200b", "z" * 300, "\ufeff", "=1+1",
]
NAMES = [
    "a", "A", "b", "ä", "日本", "🧬", "two words", "a.b", "a/b", "a,b", "a;b", 'quo"te', "it's", "tab\t", "new\nline", "select", "SELECT", "null", "true", "1", "-", "*", "x" * 200,
    "__index_level_0__", "item", "element", "key", "value", "list", "rows", "len", "min.0", "a=b", "$1", "?", "{}", "%41", "\\", " lead", "trail ",
]


def integer(rng: random.Random, low: int, high: int) -> int:
    return rng.choice([low, high, 0, 1, low + 1, high - 1, rng.randint(low, high), rng.randint(max(low, -100), min(high, 100))])


def floating(rng: random.Random) -> float:
    edges = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 2.0**53, 2.0**53 + 2]
    return rng.choice([*edges, rng.uniform(-1e3, 1e3), rng.gauss(0, 1e-5)])


def digits(rng: random.Random, precision: int, scale: int) -> Decimal:
    whole = rng.choice([0, 1, 10**precision - 1, rng.randrange(10**precision)])
    return Decimal((rng.randrange(2), tuple(int(d) for d in str(whole)), -scale))


def leaf(rng: random.Random) -> pa.DataType:
    """A type without others in it."""
    unit = rng.choice(UNITS)
    return rng.choice(
        [
            pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
            pa.decimal32(rng.randint(1, 9), rng.randint(0, 1)), pa.decimal64(rng.randint(10, 18), rng.randint(0, 10)), pa.decimal128(rng.randint(19, 35), rng.randint(-3, 19)), pa.decimal128(38, rng.randint(0, 38)),
            pa.decimal256(rng.randint(39, 76), rng.randint(0, 39)), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
            pa.timestamp(unit), pa.timestamp(unit, rng.choice(ZONES)), pa.duration(unit), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
            pa.binary_view(), pa.binary(rng.randint(1, 20)),
        ]
    )  # fmt: skip


def some_type(rng: random.Random, depth: int = 0) -> pa.DataType:
    if depth > 2 or rng.random() < 0.7:
        return leaf(rng)
    inner = lambda: some_type(rng, depth + 1)  # noqa: E731
    kind = rng.randrange(8)
    if kind == 0:
        return pa.list_(inner())
    if kind == 1:
        return pa.large_list(inner())
    if kind == 2:
        return pa.list_(inner(), rng.randint(1, 3))
    if kind == 3:
        return pa.list_view(inner())
    if kind in (4, 5):
        return pa.struct([(name, inner()) for name in rng.sample(NAMES, rng.randint(1, 3))])
    if kind == 6:
        return pa.map_(rng.choice([pa.string(), pa.int32()]), inner())
    return pa.dictionary(rng.choice([pa.int8(), pa.int32(), pa.uint16()]), rng.choice([pa.string(), pa.large_string(), pa.int64(), pa.decimal128(20, 3), pa.date32()]))


def value(rng: random.Random, of: pa.DataType) -> object:
    """A value in a form that ``array`` takes: times are whole numbers."""
    t = pa.types
    if rng.random() < 0.15 or t.is_null(of):
        return None
    if t.is_dictionary(of):
        return value(rng, of.value_type)
    if t.is_boolean(of):
        return rng.random() < 0.5
    if t.is_integer(of):
        return integer(rng, 0, 2**of.bit_width - 1) if t.is_unsigned_integer(of) else integer(rng, -(2 ** (of.bit_width - 1)), 2 ** (of.bit_width - 1) - 1)
    if t.is_floating(of):
        return floating(rng)
    if t.is_decimal(of):
        return digits(rng, of.precision, of.scale)
    if t.is_date32(of):
        return integer(rng, -(2**31), 2**31 - 1)
    if t.is_date64(of):
        return 86_400_000 * integer(rng, -(10**8), 10**8)
    if t.is_time(of):
        return integer(rng, 0, {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[of.unit] - 1)
    if t.is_timestamp(of) or t.is_duration(of):
        # 9999-12-31, as far as the unit reaches.
        return rng.choice([integer(rng, -(2**63), 2**63 - 1), min(2**63 - 1, 253_402_214_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[of.unit])])
    if t.is_string(of) or t.is_large_string(of) or of == pa.string_view():
        return rng.choice([*TEXTS, "".join(rng.choices(string.printable, k=rng.randint(1, 30)))])
    if t.is_fixed_size_binary(of):
        return rng.randbytes(of.byte_width)
    if t.is_binary(of) or t.is_large_binary(of) or of == pa.binary_view():
        return rng.choice([b"", b"\x00", b"\xff\xfe", rng.randbytes(rng.randint(1, 40))])
    if t.is_fixed_size_list(of):
        return [value(rng, of.value_type) for _ in range(of.list_size)]
    if t.is_list(of) or t.is_large_list(of) or t.is_list_view(of):
        return [value(rng, of.value_type) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if t.is_map(of):
        keys = rng.sample(range(100), rng.choice([0, 1, 3]))
        return [(str(key) if t.is_string(of.key_type) else key, value(rng, of.item_type)) for key in keys]
    if t.is_struct(of):
        return {field.name: value(rng, field.type) for field in of}
    raise AssertionError(f"no values for {of}")


def array(rng: random.Random, of: pa.DataType, values: list) -> pa.Array:
    """Values as an array, with no library's idea of times in between."""
    t = pa.types
    nulls = pa.array([v is None for v in values], pa.bool_()) if values else None
    if t.is_dictionary(of):
        return array(rng, of.value_type, values).dictionary_encode().cast(of)
    if t.is_temporal(of):
        return pa.array(values, pa.int32() if of.bit_width == 32 else pa.int64()).view(of)
    if t.is_float16(of):
        return pa.array(values, pa.float64()).cast(pa.float16())
    if t.is_struct(of):
        children = [array(rng, field.type, [None if v is None else v[field.name] for v in values]) for field in of]
        return pa.StructArray.from_arrays(children, fields=list(of), mask=nulls)
    if t.is_fixed_size_list(of):
        items = [item for v in values for item in ([None] * of.list_size if v is None else v)]
        return pa.FixedSizeListArray.from_arrays(array(rng, of.value_type, items), type=of, mask=nulls)
    if t.is_list(of) or t.is_large_list(of) or t.is_list_view(of) or t.is_map(of):
        sizes = [0 if v is None else len(v) for v in values]
        ends = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        items = [item for v in values for item in (v or [])]
        if t.is_map(of):
            keys, rest = array(rng, of.key_type, [k for k, _ in items]), array(rng, of.item_type, [v for _, v in items])
            made = pa.MapArray.from_arrays(pa.array([None if v is None else e for v, e in zip([*values, 0], ends)], pa.int32()), keys, rest)
            return made.cast(of) if made.type != of else made
        child = array(rng, of.value_type, items)
        if t.is_list_view(of):
            return pa.ListViewArray.from_arrays(pa.array(ends[:-1], pa.int32()), pa.array(sizes, pa.int32()), child, type=of, mask=nulls)
        kind, size = (pa.LargeListArray, pa.int64()) if t.is_large_list(of) else (pa.ListArray, pa.int32())
        return kind.from_arrays(pa.array(ends, size), child, type=of, mask=nulls)
    return pa.array(values, of)


def column(rng: random.Random, of: pa.DataType, rows: int) -> pa.Array:
    """A column of the type, which now and then is a slice of a longer one, a dictionary, or of runs."""
    inner = of.value_type if pa.types.is_dictionary(of) else of
    few = [value(rng, inner) for _ in range(3)]
    more = rng.randrange(3)
    values = [rng.choice(few) if rng.random() < 0.5 else value(rng, inner) for _ in range(rows + more)]
    made = array(rng, of, values).slice(more)
    plain = not (pa.types.is_nested(of) or pa.types.is_dictionary(of) or pa.types.is_null(of) or of in (pa.string_view(), pa.binary_view(), pa.float16()))
    if plain and rows and rng.random() < 0.1 and not pa.types.is_decimal(of):
        try:
            return pa.compute.run_end_encode(made)
        except pa.ArrowNotImplementedError:
            return made
    return made


#: The column that says the order of rows.
ORDER = "row number"


def table(rng: random.Random, types: list[pa.DataType] | None = None, rows: int | None = None) -> pa.Table:
    """A table of a few columns; the last numbers its rows."""
    rows = rng.choice([0, 1, 2, 17, 40, rng.randint(3, 200)]) if rows is None else rows
    types = [some_type(rng) for _ in range(rng.randint(1, 5))] if types is None else types
    names = rng.sample(NAMES, len(types))
    made = pa.table([column(rng, of, rows) for of in types] + [pa.array(range(rows), pa.int64())], names=[*names, ORDER])
    return pa.concat_tables([made.slice(0, rows // 2), made.slice(rows // 2)]) if rng.random() < 0.3 else made
