"""Columns, entries and matrices that a caller gives for a version: in the form that is kept, or refused by their place.

A column has a value for each row. It comes from whatever holds values in order: lists, arrays, Series, iterators, and
arrays of Arrow or polars. What pandas or an h5ad file would change, or take for something else, is an `InvalidError`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError

from ._hints import JOIN_LEVELS, instead

if TYPE_CHECKING:
    import pandas as pd

#: What pandas calls object columns that can be kept.
_KEPT = {"string", "empty", "boolean", "integer", "floating", "mixed-integer-float"}
#: What is said of types by their numpy kind, and what to do.
_REFUSED = {
    "c": ("complex numbers", "keep .real and .imag as two columns"),
    "M": ("dates or times", "make them text (astype(str))"),
    "m": ("durations", "make them numbers, for example hours, or text (astype(str))"),
    "S": ("bytes", 'make them text, for example with .astype(str) or .decode("utf-8")'),
    "V": ("records of several fields", "give each field as a column of its own"),
}
_AS_TEXT = "make them text (astype(str)), numbers, booleans or categories of text"


#: Kinds of values that a column has, one of them at a time; a bool is an int, too.
_KINDS: dict[str, Any] = {"text": str, "bool": (bool, np.bool_), "number": (int, float, np.integer, np.floating)}


# ---- columns


def columns(values: Any, name: str | None, index: pd.Index, kind: str, what: str) -> dict[str, Any]:
    """The columns of what a caller gave, in the order of `index`: the names of `kind` (cells or genes) of `what`.

    Raises
    ------
    InvalidError
        A name is missing, is no text, repeats, or is none of `index`.
    """
    import pandas as pd

    if isinstance(values, pd.DataFrame):
        return _of_frame(values, name, index, kind, what)
    if hasattr(type(values), "columns"):
        raise InvalidError(
            f"a {_type(values)} has no index with the {kind}s' names: give a pandas DataFrame that has, frame.to_pandas().set_index(...), or one column with name="
        )
    name = name if name is not None else getattr(values, "name", None)
    if isinstance(values, Mapping) and name is None:
        raise InvalidError(f"a dict without name= may be columns, or one column's values by {kind}: give pandas.DataFrame(...) for columns, or say name= for one")
    if not isinstance(name, str) or not name:
        wrong = "a column needs a name" if name is None or name == "" else f"a column's name is text, and {name!r} is none"
        raise InvalidError(f"{wrong}: say it with name=")
    _check_name(name)
    if values is None:
        raise InvalidError(f"column {name!r} is None: give a value for each {kind}, or remove the column with drop_{'obs' if kind == 'cell' else 'var'}({name!r})")
    if isinstance(values, Mapping):
        values = pd.Series(list(values.values()), index=pd.Index(list(values), tupleize_cols=False), dtype=None if values else object)
    if isinstance(values, pd.Series):
        return {name: _aligned(values.to_frame(name), index, kind, what, f"column {name!r}")[name]}
    return {name: values}


def _check_name(name: str) -> None:
    """Refuses the name of a column that no h5ad file can hold."""
    if "\0" in name or name in (".", ".."):
        raise InvalidError(f"column {name!r} has a name that h5ad files can't hold: give it another one")


def _of_frame(frame: pd.DataFrame, name: str | None, index: pd.Index, kind: str, what: str) -> dict[str, Any]:
    import pandas as pd

    if name is not None:
        raise InvalidError("name= is for one column: a DataFrame has the names of its own")
    if isinstance(frame.columns, pd.MultiIndex):
        raise InvalidError(f"the columns of the DataFrame have several levels, as {frame.columns[0]!r}: {JOIN_LEVELS}")
    wrong = next((column for column in frame.columns if not isinstance(column, str)), None)
    if wrong is not None:
        raise InvalidError(f"the column {wrong!r} has a name that is no text: rename it (frame.columns.astype(str))")
    for column in frame.columns:
        _check_name(column)
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InvalidError(f"there are two columns named {twice[0]!r}: rename one of them")
    if not len(frame.columns):
        raise InvalidError("the DataFrame has no columns: there is nothing to set")
    frame = _aligned(frame, index, kind, what, "the DataFrame")
    return {column: frame[column] for column in frame.columns}


def _aligned(frame: pd.DataFrame, index: pd.Index, kind: str, what: str, whose: str) -> pd.DataFrame:
    """`frame` in the order of `index`, by names."""
    import pandas as pd

    if isinstance(frame.index, pd.MultiIndex):
        raise InvalidError(f"the index of {whose} has several levels: index it by the {kind}s' names alone, for example with droplevel or reset_index")
    names = frame.index.astype(str)
    own = index.astype(str)
    if names.equals(own):
        return frame
    unknown = names[~names.isin(own)]
    if len(unknown):
        some = ", ".join(map(repr, unknown[:3]))
        are = f"a name that is no {kind}" if len(unknown) == 1 else f"{len(unknown):,} names that are no {kind}s"
        more = f"{are} of {what} ({some}{', ...' if len(unknown) > 3 else ''}){instead(unknown[0], own[:10_000])}"
        raise InvalidError(f"the index of {whose} has {more}: index it by the {kind}s' names, or give an array with a value for each {kind}")
    for which, repeated in ((f"the index of {whose}", names), (what, own)):
        twice = repeated[repeated.duplicated()]
        if len(twice):
            raise InvalidError(f"{which} has the {kind} {twice[0]!r} more than once, so rows can't be told apart: give an array with a value for each {kind}, in order")
    return frame.set_axis(names, axis=0).reindex(own)


def column(name: str, values: Any, index: pd.Index, what: str) -> pd.Series:
    """One column with a value for each of `index`, in their order; `what` is the frame that it is for.

    Raises
    ------
    InvalidError
        It has another length, is of several dimensions, or holds what can't be kept.
    """
    import pandas as pd

    said, n = f"column {name!r}", len(index)
    if isinstance(values, (str, bytes, bytearray)) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        raise InvalidError(f"{said} is a single value ({_shown(values)}): give an array with {n:,} values")
    if isinstance(values, (set, frozenset)):
        raise InvalidError(f"{said} is a set, whose values have no order: give a list with {n:,} values, in the order of {what}")
    if isinstance(values, pd.MultiIndex):
        raise InvalidError(f"{said} is an index of several levels: give one of them (get_level_values(0))")
    if hasattr(values, "tocsr"):
        raise InvalidError(f"{said} is a sparse matrix: give its values as an array (toarray().ravel())")
    if getattr(values, "ndim", 1) != 1:
        raise InvalidError(f"{said} is of {values.ndim} dimensions: give one value for each row, or set obsm")
    if not hasattr(values, "__len__"):
        # One more than fits is enough to know that it does not fit, also of an iterator without an end.
        values = list(itertools.islice(values, n + 1))
        if len(values) > n:
            raise InvalidError(f"{said} has more than {n:,} values, but {what} has {n:,} rows")
    if len(values) != n:
        raise InvalidError(f"{said} has {len(values):,} value{'' if len(values) == 1 else 's'}, but {what} has {n:,} rows")
    _refuse(said, getattr(values, "dtype", None))
    values = _plain(said, values)
    try:
        made = pd.Series(values, index=index)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidError(f"{said} can't be kept ({' '.join(str(e).split())}): give a list or an array with a value for each row") from e
    _refuse(said, made.dtype)
    if isinstance(made.dtype, pd.CategoricalDtype):
        _refuse(f"{said}, by its categories,", made.cat.categories.dtype)
        _check_objects(f"{said}, by its categories,", made.cat.categories.to_series(), "category")
    else:
        _check_objects(said, made, "row")
    return made


def _refuse(said: str, dtype: Any) -> None:
    """Refuses types that a table or an h5ad file has no form for."""
    import pandas as pd

    if dtype is None or not hasattr(dtype, "kind"):
        return  # polars' and Arrow's types, which are looked at as pandas' later
    if isinstance(dtype, pd.IntervalDtype):
        raise InvalidError(f"{said} holds intervals: make them text (astype(str))")
    if isinstance(dtype, pd.PeriodDtype):
        raise InvalidError(f"{said} holds periods of time: make them text (astype(str))")
    if isinstance(dtype, pd.CategoricalDtype):
        return
    if dtype.kind in _REFUSED:
        holds, do = _REFUSED[dtype.kind]
        raise InvalidError(f"{said} holds {holds}, which can't be kept: {do}")


def _plain(said: str, values: Any) -> Any:
    """`values` as pandas keeps them without a loss."""
    import pandas as pd

    if isinstance(values, (pd.Series, pd.Index)):
        values = values.array
    if isinstance(values, np.ma.MaskedArray):
        return _of_masked(values)
    if isinstance(values, pd.arrays.SparseArray):
        return np.asarray(values)
    if isinstance(values, pd.arrays.ArrowExtensionArray) and not isinstance(values.dtype, pd.StringDtype):
        return _of_arrow(values)
    if not isinstance(values, pd.api.extensions.ExtensionArray) and (hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")):
        return _of_arrow(values)
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return values.astype(dtype.newbyteorder("="))  # tables have this machine's order
    if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize > 8:
        shorter = values.astype(np.float64)
        if not np.array_equal(shorter, values, equal_nan=True):
            raise InvalidError(f"{said} holds numbers of more than 64 bits: round them with astype(float)")
        return shorter
    return values


def _of_masked(values: np.ma.MaskedArray) -> Any:
    """A masked array with missing values where its mask is; integers and booleans stay such."""
    import pandas as pd

    mask, kind = np.ma.getmaskarray(values), values.dtype.kind
    if not mask.any():
        return np.asarray(values)
    if kind in "iub":
        data = np.ascontiguousarray(values.data).astype(values.dtype.newbyteorder("="))
        return (pd.arrays.BooleanArray if kind == "b" else pd.arrays.IntegerArray)(data, mask)
    if kind == "f":
        return values.filled(np.nan)
    objects = np.asarray(values.data).astype(object)
    objects[mask] = None
    return objects


def _of_arrow(values: Any) -> Any:
    """An array of Arrow's, or of what exports one, as pandas has it. Integers and booleans with nulls stay such."""
    import pandas as pd
    import pyarrow as pa

    if hasattr(values, "__arrow_array__") and not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = values.__arrow_array__()
    array = pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    nullable = {
        **{getattr(pa, f"{sign}int{bits}")(): getattr(pd, f"{'U' if sign else ''}Int{bits}Dtype")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
        pa.bool_(): pd.BooleanDtype(),
    }
    made = array.to_pandas(types_mapper=nullable.get if array.null_count else None)
    return made.array if isinstance(made, pd.Series) else made


def _check_objects(said: str, made: pd.Series, place: str) -> None:
    """Refuses objects that are not all texts, numbers or booleans; the first that does not fit is named."""
    import pandas as pd

    if made.dtype != object or pd.api.types.infer_dtype(made, skipna=True) in _KEPT - {"integer", "mixed-integer-float"}:
        return
    seen: str | None = None
    for name, value in made.items():
        if value is None or value is pd.NA or value is pd.NaT or isinstance(value, float) and value != value:
            continue
        at = _shown(value) if place == "category" else f"{_shown(value)}, {place} {name!r}"
        kind = next((kind for kind, types in _KINDS.items() if isinstance(value, types)), None)
        if kind is None:
            does = 'make them text with .decode("utf-8")' if isinstance(value, bytes) else _AS_TEXT
            raise InvalidError(f"{said} holds a value of type {_type(value)} ({at}), which can't be kept: {does}")
        if kind == "number" and isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise InvalidError(f"{said} holds an integer of more than 64 bits ({at}): make them text (astype(str)) or floats (astype(float))")
        if seen is not None and kind != seen:
            raise InvalidError(f"{said} holds a {kind} ({at}) and a {seen} before, and values of one kind can be kept: {_AS_TEXT}")
        seen = kind


# ---- entries of obsm and the like


def entry(part: str, key: str, value: Any, n: int, index: pd.Index, what: str) -> Any:
    """What is kept as `part`[`key`] (obsm, varm or obsp), with a row for each of the `n` names in `index`.

    Raises
    ------
    InvalidError
        It is no array or frame, has another shape, or rows of other names.
    """
    import anndata
    import pandas as pd

    said, rows = f"{part}[{key!r}]", "cells" if part in ("obsm", "obsp") else "genes"
    wants = f"{n:,} x {n:,} values" if part == "obsp" else f"{n:,} rows, one for each of the {rows}"
    if isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError as e:
            raise InvalidError(f"{said} is a list whose rows are of different lengths: give an array with {wants}") from e
    shape = getattr(value, "shape", None)
    if not shape:
        raise InvalidError(f"{said} is of type {_type(value)}, which has no rows: give an array or a DataFrame with {wants}")
    if shape[0] != n or (part == "obsp" and tuple(shape) != (n, n)):
        raise InvalidError(f"{said} is of shape {tuple(shape)}, but needs {wants}")
    if isinstance(value, (pd.DataFrame, pd.Series)) and part != "obsp":
        if isinstance(value.index, pd.MultiIndex):
            raise InvalidError(f"the index of {said} has several levels: index it by the names of the {rows} alone, for example with droplevel or reset_index")
        if not value.index.astype(str).equals(index.astype(str)):
            raise InvalidError(f"{said} has another index than {what}: bring its rows into the order of {part[:3]} first (.loc[ds.{part[:3]}_names])")
        if isinstance(value, pd.DataFrame) and isinstance(value.columns, pd.MultiIndex):
            raise InvalidError(f"the columns of {said} have several levels, as {value.columns[0]!r}: {JOIN_LEVELS}")
        if isinstance(value, pd.Series):
            value = value.to_frame(str(key if value.name is None else value.name))
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidError(f"{said} is masked, and masks can't be kept: fill it, for example with filled(np.nan)")
    if isinstance(value, np.matrix):
        value = np.asarray(value)
    # What AnnData does not take would make the data set unreadable.
    sizes = (n, 0) if part in ("obsm", "obsp") else (0, n)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bare = anndata.AnnData(shape=sizes, **{"obs" if sizes[0] else "var": pd.DataFrame(index=index.astype(str))})
            getattr(bare, part)[key] = value
    except Exception as e:  # anndata raises several kinds
        takes = "make it a numpy array, a scipy CSR or CSC matrix, or a pandas DataFrame"
        raise InvalidError(f"{said} is of type {_type(value)}, which AnnData does not take there: {takes}") from e
    return value


def layer(name: Any, values: Any, shape: tuple[int, int], what: str) -> Any:
    """A matrix for the layer `name`.

    Raises
    ------
    InvalidError
        The name is no text, or the values are none, or are of another shape.
    """
    if not isinstance(name, str) or not name:
        raise InvalidError(f"a layer's name is text, and {name!r} is none: write set_layer(\"scaled\", matrix)")
    sizes = f"{what} has {shape[0]:,} cells and {shape[1]:,} genes"
    if values is None:
        raise InvalidError(f"layer {name!r} is None, and layers can't be removed: ingest the data set again with layers= for those to keep")
    if getattr(values, "shape", None) is None:
        raise InvalidError(f"layer {name!r} is of type {_type(values)}, which has no shape, but {sizes}: give a numpy array, or a scipy CSR or CSC matrix")
    if tuple(values.shape) != shape:
        raise InvalidError(f"layer {name!r} is of shape {tuple(values.shape)}, but {sizes}")
    if hasattr(values, "columns"):
        ordered = "frame.loc[ds.obs_names, ds.var_names].to_numpy()"
        raise InvalidError(f"layer {name!r} is of type {_type(values)}: give its values in the order of cells and genes ({ordered})")
    dtype = np.dtype(getattr(values, "dtype", object))
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InvalidError(f"layer {name!r} holds values of type {dtype}: make them integers or floats of at most 64 bits (astype(float))")
    return values


def names(given: Any, frame: str) -> list[str]:
    """Names of columns: one, or several.

    Raises
    ------
    InvalidError
        There is none, or one is no text.
    """
    wanted = [given] if isinstance(given, str) else list(given) if hasattr(given, "__iter__") and not isinstance(given, bytes) else None
    wrong = next((name for name in wanted or [] if not isinstance(name, str)), None)
    if wanted is None or wrong is not None:
        none = _shown(given if wanted is None else wrong)
        raise InvalidError(f"columns of {frame} are removed by their names, and {none} is none: write drop_{frame}(\"name\") or a list of names")
    if not wanted:
        raise InvalidError(f"there is no column to remove: name one, as in drop_{frame}(\"name\")")
    return list(dict.fromkeys(wanted))


def _type(value: Any) -> str:
    module = type(value).__module__.partition(".")[0]
    return type(value).__name__ if module in ("builtins", "__main__") else f"{module}.{type(value).__name__}"


def _shown(value: Any, most: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."
