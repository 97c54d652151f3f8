"""A column of every Arrow type that a table may have, with nulls, and the type in which it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa


@dataclass
class Column:
    """What goes in, and the type that comes out: its own unless `stored` says another."""

    values: pa.Array
    stored: pa.DataType | None = None

    @property
    def out(self) -> pa.DataType:
        return self.stored or self.values.type


def _of(type_: pa.DataType, *values: object, stored: pa.DataType | None = None) -> Column:
    return Column(pa.array([*values, None], type_), stored)


def _decimals(type_: pa.DataType, stored: pa.DataType | None = None) -> Column:
    one = lambda sign, digits: Decimal((sign, digits, -type_.scale))  # noqa: E731 - exact, however many digits
    return _of(type_, one(0, (1,)), one(1, (1,)), one(0, (9,) * (type_.precision + min(0, type_.scale))), stored=stored)


def columns() -> dict[str, Column]:
    """The columns by name; all have the same few rows, the last of them null."""
    words = pa.array(["ä", "", "ä", None])
    numbers = pa.array([5, 7, 5, None], pa.int64())
    pair = pa.struct([pa.field("n", pa.int64()), pa.field("s", pa.string())])
    signed, unsigned = (8, 16, 32, 64), (8, 16, 32, 64)
    every = {
        "null": Column(pa.nulls(4), pa.string()),
        "bool": _of(pa.bool_(), True, False, True),
        **{f"int{b}": _of(getattr(pa, f"int{b}")(), -(2 ** (b - 1)), 0, 2 ** (b - 1) - 1) for b in signed},
        **{f"uint{b}": _of(getattr(pa, f"uint{b}")(), 0, 1, 2**b - 1) for b in unsigned},
        "float16": _of(pa.float16(), 1.5, -0.0, float("inf"), stored=pa.float32()),
        "float32": _of(pa.float32(), 1.5, float("-inf"), 2.0**-149),
        "float64": _of(pa.float64(), 0.1, 5e-324, 1.7976931348623157e308),
        "decimal32": _decimals(pa.decimal32(9, 2), pa.decimal128(9, 2)),
        "decimal64": _decimals(pa.decimal64(18, 5), pa.decimal128(18, 5)),
        "decimal128": _decimals(pa.decimal128(38, 10)),
        "decimal256": _decimals(pa.decimal256(76, 20)),
        "hundreds": _decimals(pa.decimal128(5, -2), pa.decimal128(7, 0)),
        "many hundreds": _decimals(pa.decimal128(38, -2), pa.decimal256(40, 0)),
        **{f"timestamp {u}": _of(pa.timestamp(u), 0, -5, 2**31) for u in ("s", "ms", "us", "ns")},
        **{
            f"timestamp {u} {z}": _of(pa.timestamp(u, z), 0, -5, 2**31)
            for u, z in (("s", "UTC"), ("ms", "Europe/Rome"), ("us", "+05:30"), ("ns", "America/New_York"))
        },
        "date32": _of(pa.date32(), 0, -86_400, 20_000),
        "date64": _of(pa.date64(), 0, -86_400_000, 86_400_000_000),
        "time32 s": _of(pa.time32("s"), 0, 1, 86_399),
        "time32 ms": _of(pa.time32("ms"), 0, 1, 86_399_999),
        "time64 us": _of(pa.time64("us"), 0, 1, 86_399_999_999),
        "time64 ns": _of(pa.time64("ns"), 0, 1000, 86_399_999_999_000),
        **{f"duration {u}": _of(pa.duration(u), 0, -5, 2**31) for u in ("s", "ms", "us", "ns")},
        "string": Column(words),
        "large string": Column(words.cast(pa.large_string())),
        "string view": _of(pa.string_view(), "ä", "", "longer than what a view holds itself"),
        "binary": _of(pa.binary(), b"\x00", b"", b"\xff"),
        "large binary": _of(pa.large_binary(), b"\x00", b"", b"\xff"),
        "binary view": _of(pa.binary_view(), b"\x00", b"", b"longer than what a view holds itself"),
        "fixed binary": _of(pa.binary(2), b"\x00\x01", b"ab", b"\xff\xff"),
        "list": _of(pa.list_(pa.int32()), [1, None], [], [2]),
        "large list": _of(pa.large_list(pa.string()), ["a", None], [], ["b"]),
        "fixed list": _of(pa.list_(pa.int16(), 2), [1, None], [2, 3], [4, 5], stored=pa.list_(pa.int16())),
        "list view": _of(pa.list_view(pa.int32()), [1, None], [], [2], stored=pa.list_(pa.int32())),
        "large list view": _of(pa.large_list_view(pa.int32()), [1, None], [], [2], stored=pa.large_list(pa.int32())),
        "struct": _of(pair, {"n": 1, "s": "x"}, {"n": None, "s": None}, {"n": 2, "s": ""}),
        "map": _of(pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)], [], [("m", 2)]),
        "list of structs of maps": _of(pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int8())))])), [{"m": [("k", [1])]}], [None], []),
        "list of categories": Column(
            pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 3], pa.int32()), pa.array(["a", None, "b"]).dictionary_encode()), pa.list_(pa.field("item", pa.string()))
        ),
        **{
            f"dictionary {index}": Column(words.dictionary_encode().cast(pa.dictionary(index, pa.string())), pa.string())
            for index in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
        },
        "dictionary of numbers": Column(numbers.dictionary_encode(), pa.int64()),
        "dictionary of decimals": Column(_decimals(pa.decimal128(9, 2)).values.dictionary_encode(), pa.decimal128(9, 2)),
        "runs": Column(pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4], pa.int32()), pa.array(["x", "y", None])), pa.string()),
    }
    return every
