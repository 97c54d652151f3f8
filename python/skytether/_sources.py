"""What callers give, in the form that the Rust classes take: tables in memory, and plans of other producers."""

from __future__ import annotations

from typing import Any, Mapping

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


def row_of(params: Any) -> Any:
    """The values of a query's parameters as a record batch of one row, or None without any."""
    if params is None:
        return None
    import pyarrow

    values = _by_number(params) if isinstance(params, Mapping) else params
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InvalidError(f"params is a {type(params).__name__}, and must be a list with a value for each parameter: [{params!r}]")
    arrays = []
    for number, value in enumerate(values, 1):
        try:
            arrays.append(_array(value))
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise InvalidError(f"the value of parameter ${number} is a {type(value).__name__}, which no column can have: {e}") from e
    return pyarrow.RecordBatch.from_arrays(arrays, [str(number) for number in range(1, len(arrays) + 1)]) if arrays else None


def _array(value: Any) -> Any:
    import pyarrow

    if isinstance(value, pyarrow.Scalar):
        return pyarrow.array([value.as_py()], value.type)
    return pyarrow.array([value])


def _by_number(params: Mapping[Any, Any]) -> list[Any]:
    """The values of ``{1: ..., 2: ...}``, whose keys may have ``$`` in front."""
    numbered = {}
    for key, value in params.items():
        text = str(key).removeprefix("$")
        if not text.isdecimal() or int(text) < 1:
            raise InvalidError(f"parameters have numbers and no names, and {key!r} is none: write $1, $2 in the query, and give {{1: ...}} or a list")
        numbered[int(text)] = value
    missing = [number for number in range(1, len(numbered) + 1) if number not in numbered]
    if missing:
        raise InvalidError(f"parameter ${missing[0]} has no value: the numbers of parameters begin with 1 and leave none out")
    return [numbered[number] for number in sorted(numbered)]
