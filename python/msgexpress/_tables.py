"""obs and var as Arrow tables: every column that Arrow can hold, behind a first column with the
name of the cell or gene."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def to_arrow(frame: pd.DataFrame, index: str) -> tuple[pa.Table, dict[str, str], list[str]]:
    """`frame` as an Arrow table whose first column, called `index`, holds the row names.

    Categories become text, so that SQL can compare them. A column whose name is taken (by `index`, or by an earlier
    column) gets the suffix ``_1``, ``_2``, ... Gives the table, what each of `frame`'s columns is called in it (the
    first of several of one name), and the names of the columns that Arrow can't hold and that are left out.
    """
    import pandas as pd
    import pyarrow as pa

    names, arrays, skipped = [index], [_text(pd.Index(frame.index).astype(str).to_numpy(object))], []
    known: dict[str, str] = {}
    for position, label in enumerate(frame.columns):
        array = _column(frame.iloc[:, position])
        if array is None:
            skipped.append(str(label))
            continue
        names.append(_free(str(label), names))
        arrays.append(array)
        known.setdefault(str(label), names[-1])
    return pa.table(arrays, names=names), known, skipped


def category_orders(frame: pd.DataFrame, most: int = 1000) -> dict[str, list[str]]:
    """For each categorical column with at most `most` categories, their order, as text."""
    import pandas as pd

    orders = {}
    for position, label in enumerate(frame.columns):
        column = frame.iloc[:, position]
        if isinstance(column.dtype, pd.CategoricalDtype) and len(column.cat.categories) <= most:
            orders[str(label)] = [str(c) for c in column.cat.categories]
    return orders


def ordered(frame: pd.DataFrame) -> list[str]:
    """The categorical columns whose categories have an order."""
    import pandas as pd

    kinds = {str(label): frame.iloc[:, position].dtype for position, label in enumerate(frame.columns)}
    return [label for label, kind in kinds.items() if isinstance(kind, pd.CategoricalDtype) and kind.ordered]


def _free(name: str, taken: list[str]) -> str:
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _text(values: np.ndarray) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, pa.string(), from_pandas=True)


def _column(column: pd.Series) -> pa.Array | None:
    """One column, or None where Arrow has no plain type for it."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        categories = _text(np.array([str(c) for c in column.cat.categories], dtype=object))
        keys = pa.array(codes.astype(np.int32), mask=codes < 0)
        return pa.DictionaryArray.from_arrays(keys, categories).dictionary_decode() if len(categories) else pa.nulls(len(column), pa.string())
    if isinstance(column.dtype, np.dtype) and not column.dtype.isnative:
        column = column.astype(column.dtype.newbyteorder("="))  # Arrow has this machine's order only
    try:
        array = pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)
    return array if plain or pa.types.is_timestamp(kind) or pa.types.is_date(kind) else None
