"""Whether two tables hold the same values. Values are compared as Python objects that no library interprets: times as
whole numbers of nanoseconds, floats with the sign of their zero."""

from __future__ import annotations

import decimal
import math

import pyarrow as pa
import pyarrow.compute as pc

NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def values(given: pa.Array | pa.ChunkedArray) -> list:
    """The values of a column, equal for equal values of any encoding and unit."""
    if isinstance(given, pa.ChunkedArray):
        return [v for chunk in given.chunks for v in values(chunk)]
    of, t = given.type, pa.types
    if isinstance(of, pa.BaseExtensionType):
        return values(given.storage)
    if t.is_dictionary(of):
        inner = values(given.dictionary)
        return [None if at is None else inner[at] for at in given.indices.to_pylist()]
    if t.is_run_end_encoded(of):
        return values(pc.run_end_decode(given))
    known = given.is_valid().to_pylist()
    if t.is_timestamp(of) or t.is_duration(of) or t.is_time(of):
        numbers = given.view(pa.int32() if of.bit_width == 32 else pa.int64()).to_pylist()
        zoned = "zoned" if getattr(of, "tz", None) else "plain"
        return [None if n is None else (zoned, n * NANOS[of.unit]) for n in numbers]
    if t.is_date(of):
        numbers = given.view(pa.int32() if t.is_date32(of) else pa.int64()).to_pylist()
        return [None if n is None else ("day", n * (86_400_000 if t.is_date32(of) else 1)) for n in numbers]
    if t.is_floating(of):
        return [None if f is None else "nan" if math.isnan(f) else repr(float(f)) for f in given.to_pylist()]
    if t.is_decimal(of):
        return _decimals(given)
    if t.is_map(of):
        return [None if not ok else list(zip(values(given[at].values.field(0)), values(given[at].values.field(1)))) for at, ok in enumerate(known)]
    if t.is_list(of) or t.is_large_list(of) or t.is_fixed_size_list(of) or t.is_list_view(of) or t.is_large_list_view(of):
        return [None if not ok else values(given[at].values) for at, ok in enumerate(known)]
    if t.is_struct(of):
        children = {of.field(at).name: values(given.field(at)) for at in range(of.num_fields)}
        return [None if not ok else {name: child[at] for name, child in children.items()} for at, ok in enumerate(known)]
    return given.to_pylist()


def _decimals(given: pa.Array) -> list:
    with decimal.localcontext() as context:
        context.prec = 100
        return [None if d is None else f"{d.normalize():f}" if d else "0" for d in given.to_pylist()]


def same(found: list, wanted: list) -> bool:
    return repr(found) == repr(wanted)


def difference(found: pa.Table, wanted: pa.Table) -> str | None:
    """What differs, for people; None where nothing does."""
    if found.column_names != wanted.column_names:
        return f"columns {found.column_names} and not {wanted.column_names}"
    if found.num_rows != wanted.num_rows:
        return f"{found.num_rows} rows and not {wanted.num_rows}"
    for name in wanted.column_names:
        a, b = values(found[name]), values(wanted[name])
        if same(a, b):
            continue
        at = next(at for at, (x, y) in enumerate(zip(a, b)) if not same([x], [y]))
        return f"column {name!r} ({wanted[name].type}, stored as {found[name].type}), row {at + 1}: {a[at]!r} and not {b[at]!r}"
    return None
