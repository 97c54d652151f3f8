"""What callers give, in the form that the Rust classes take: tables in memory, and plans of other producers."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from ._objects import CONVERT, is_missing, misfit, misfit_of_pandas
from .errors import InvalidError


def plan_bytes(plan: Any) -> bytes:
    """The bytes of a Substrait plan, given as such or as the protobuf message."""
    message = plan.SerializeToString() if hasattr(plan, "SerializeToString") else plan
    try:
        return bytes(memoryview(message))
    except TypeError:
        raise InvalidError(f"a {type(plan).__name__} is no Substrait plan: give its bytes, or the protobuf message") from None


def as_stream(source: Any, name: str = "the table") -> Any:
    """`source` as something with ``__arrow_c_stream__``, which is to be stored as `name`.

    Raises
    ------
    InvalidError
        It is no table, or has a column that Arrow does not know, which is named; what the other library raised is the
        cause.
    """
    kind, package = type(source).__name__, type(source).__module__.partition(".")[0]
    if kind == "Series" and package in ("pandas", "polars"):
        raise InvalidError(f"the Series {source.name!r} can't be ingested, as it is a column and no table: give its .to_frame()")
    if kind == "LazyFrame" and package == "polars":
        raise InvalidError("a LazyFrame has no rows yet: give its .collect()")
    if kind == "DataFrame" and package == "pandas":
        return _of_pandas(source, name)
    if kind == "DataFrame" and package == "polars":
        source = _of_polars(source, name)
    if not hasattr(source, "__arrow_c_stream__"):
        raise InvalidError(
            f"a {type(source).__name__} can't be ingested: give a path, a pyarrow Table or RecordBatchReader, a data frame, or anything with __arrow_c_stream__"
        )
    try:
        return _Stream(source.__arrow_c_stream__())
    except BaseException as error:
        # A panic of Polars is no Exception.
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise
        raise InvalidError(f"{name}: the {kind} that is given can't be read as an Arrow stream: {_text(error)}") from error


class _Stream:
    """A stream that was begun, so that what its library raises is told from what a callback raises."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._capsule


def _text(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(" ".join(str(part) for part in error.args).split()) or type(error).__name__


def _of_pandas(frame: Any, name: str) -> Any:
    import pyarrow

    for what, values in _parts(frame):
        wrong = misfit_of_pandas(values)
        if wrong is not None:
            raise InvalidError(f"{name}: {what} {wrong}")
    # By its default pyarrow keeps an index as columns, but leaves out ranges, with a name or without.
    named = any(level is not None for level in frame.index.names)
    try:
        return pyarrow.Table.from_pandas(frame, preserve_index=True if named else None)
    except Exception as error:  # noqa: BLE001 - pyarrow raises many classes, and pandas its own
        raise InvalidError(f"{name}: {_culprit(frame)}: {_text(error)}") from error


def _parts(frame: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a pandas data frame and the levels of its index, with what to call them."""
    import pandas

    for at, column in enumerate(frame.columns):
        yield f"column {column!r} of the data frame", frame.iloc[:, at]
    if not isinstance(frame.index, pandas.RangeIndex):
        for at, level in enumerate(frame.index.names):
            yield f"the index {'' if level is None else f'{level!r} '}of the data frame", frame.index.get_level_values(at)


def _culprit(frame: Any) -> str:
    """Which column of a pandas data frame has no form in Arrow, and from which row on."""
    import pyarrow

    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        return f"the data frame has two columns named {twice[0]!r}: rename one of them"
    for what, values in _parts(frame):
        try:
            pyarrow.array(values, from_pandas=True)
        except Exception:  # noqa: BLE001 - this one it is
            first: dict[type, int] = {}
            for row, value in enumerate(values if values.dtype == object else (), 1):
                if not is_missing(value):
                    first.setdefault(type(value), row)
            if len(first) > 1:
                (kind, _), (other, row) = list(first.items())[:2]
                return f'{what} holds a {other.__name__} in row {row}, and a {kind.__name__} before{CONVERT}'
            return f"{what}, of dtype {values.dtype}, has no form in Arrow: convert it first"
    return "the data frame, or its index, has no form in Arrow: reset or rename the index"


def _of_polars(frame: Any, name: str) -> Any:
    """The frame, without types that Polars has and others don't: a column without a type becomes text, and integers of
    128 bits decimals."""
    import polars

    for column, dtype in frame.schema.items():
        if _has_objects(polars, dtype):
            # Polars passes on where in memory they are.
            raise InvalidError(f"{name}: column {column!r} of the data frame holds Python's objects, of type {dtype}: convert it to another type first")
        plain = _plain(polars, dtype)
        if plain == dtype:
            continue
        try:
            changed = frame.get_column(column).cast(plain, strict=True)
            kept = dtype.is_nested() or changed.null_count() == frame.get_column(column).null_count()
        except Exception as error:  # noqa: BLE001 - whatever Polars raises
            raise InvalidError(f"{name}: column {column!r} of the data frame, of type {dtype}, can't be stored as {plain}: {_text(error)}") from error
        if not kept:
            raise InvalidError(f"{name}: column {column!r} of the data frame, of type {dtype}, has values that {plain} does not hold: cast it to text first")
        frame = frame.with_columns(changed)
    return frame


def _has_objects(polars: Any, dtype: Any) -> bool:
    if isinstance(dtype, polars.Struct):
        return any(_has_objects(polars, field.dtype) for field in dtype.fields)
    return dtype == polars.Object or (hasattr(dtype, "inner") and _has_objects(polars, dtype.inner))


def _plain(polars: Any, dtype: Any) -> Any:
    if dtype == polars.Null:
        return polars.String()
    if dtype in [getattr(polars, wide) for wide in ("Int128", "UInt128") if hasattr(polars, wide)]:
        return polars.Decimal(38, 0)
    if isinstance(dtype, polars.List):
        return polars.List(_plain(polars, dtype.inner))
    if isinstance(dtype, polars.Array):
        # `inner` of several dimensions is an array again.
        return polars.Array(_plain(polars, dtype.inner), dtype.size)
    if isinstance(dtype, polars.Struct):
        return polars.Struct([polars.Field(field.name, _plain(polars, field.dtype)) for field in dtype.fields])
    return dtype


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
        wrong = misfit([value])
        if wrong is not None:
            raise InvalidError(f"the value of parameter ${number} {wrong.replace(' in row 1', '')}: convert it first")
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
