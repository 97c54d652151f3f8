"""What callers give, in the form that the Rust classes take: tables in memory, and plans of other producers."""

from __future__ import annotations

from typing import Any

from .errors import InvalidError


def plan_bytes(plan: Any) -> bytes:
    """The bytes of a Substrait plan, given as such or as the protobuf message."""
    message = plan.SerializeToString() if hasattr(plan, "SerializeToString") else plan
    try:
        return bytes(memoryview(message))
    except TypeError:
        raise InvalidError(f"a {type(plan).__name__} is no Substrait plan: give its bytes, or the protobuf message") from None


def as_stream(source: Any) -> Any:
    """`source` as something with ``__arrow_c_stream__``."""
    kind, package = type(source).__name__, type(source).__module__.partition(".")[0]
    if kind == "Series" and package in ("pandas", "polars"):
        raise InvalidError(f"the Series {source.name!r} can't be ingested, as it is a column and no table: give its .to_frame()")
    if kind == "DataFrame" and package == "pandas":
        import pyarrow

        # By its default pyarrow keeps an index as columns, but leaves out ranges, with a name or without.
        named = any(name is not None for name in source.index.names)
        return pyarrow.Table.from_pandas(source, preserve_index=True if named else None)
    if hasattr(source, "__arrow_c_stream__"):
        return source
    raise InvalidError(
        f"a {type(source).__name__} can't be ingested: give a path, a pyarrow Table or RecordBatchReader, a data frame, or anything with __arrow_c_stream__"
    )
