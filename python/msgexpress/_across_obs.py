"""The cells of several data sets: their obs as one frame, and their numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, NotFoundError

from ._across_sql import Column, Filter, as_text, columns_of, quoted
from ._arguments import names_of
from ._clashes import check_columns
from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

    from ._dataset import Dataset


def obs(datasets: list[Dataset], columns: Iterable[str] | str | None, where: Any, clash: Mapping[str, str] | None, label: str) -> pd.DataFrame:
    """See `MsgExpress.obs`."""
    import pandas as pd

    known = {ds: columns_of(ds) for ds in datasets}
    wanted = _wanted(known, columns)
    _check_label(label, wanted)
    chosen = Filter(where, known)
    frames = []
    for ds in datasets:
        own = {name: known[ds][name] for name in wanted if name in known[ds]}
        selected = ", ".join(["cell", *(f"{quoted(c.sql)} AS {quoted(f'c{i}')}" for i, c in enumerate(own.values()))])
        with ds._unchanged():
            rows = chosen.asked(ds, f"SELECT {selected} {chosen.source(ds)}")
        made = {name: _series(rows.column(f"c{i}"), column).array for i, (name, column) in enumerate(own.items())}
        frames.append(pd.DataFrame(made, index=pd.Index(rows.column("cell").to_pandas().to_numpy(object), dtype=object)))
    frames = check_columns(frames, [ds.name for ds in datasets], clash)
    kept = [name for name in wanted if any(name in frame.columns for frame in frames)]
    _say_missing(kept, known)
    sizes = [len(frame) for frame in frames]
    names = [ds.name for ds in datasets]
    made = {label: pd.Categorical.from_codes(np.repeat(np.arange(len(names)), sizes), categories=names)}
    made.update((name, _joined([frame[name] if name in frame.columns else None for frame in frames], sizes)) for name in kept)
    index = np.concatenate([frame.index.to_numpy(object) for frame in frames])
    return pd.DataFrame(made, index=pd.Index(index, dtype=object))


def _wanted(known: Mapping[Dataset, Mapping[str, Column]], columns: Iterable[str] | str | None) -> list[str]:
    """The columns that are asked for; all of all data sets for None."""
    there = list(dict.fromkeys(name for own in known.values() for name in own))
    if columns is None:
        left = {ds.name: ds._kept["not_in_sql"]["obs"] for ds in known if ds._kept["not_in_sql"]["obs"]}
        for name, out in left.items():
            warnings.warn(f"obs of {name} has columns that a table can't hold, and they are left out: {', '.join(map(repr, out))}", stacklevel=4)
        return there
    wanted = list(dict.fromkeys(names_of(columns, "columns", "obs column")))
    for name in wanted:
        if name not in there:
            raise NotFoundError(f"no data set has the obs column {name!r}: there are {', '.join(map(repr, there)) or 'none'}{instead(name, there)}")
    return wanted


def _check_label(label: str, wanted: Iterable[str]) -> None:
    if not isinstance(label, str) or not label:
        raise InvalidError(f"label is {label!r}: name the column that says which data set a cell is from")
    if label in wanted:
        raise InvalidError(f"obs has a column {label!r} of its own: say with label= what the column is called that has the data set's name")


def _say_missing(columns: Iterable[str], known: Mapping[Dataset, Mapping[str, Column]]) -> None:
    """Warns of columns that not all data sets have."""
    for name in columns:
        lacking = [ds.name for ds, own in known.items() if name not in own]
        if lacking:
            warnings.warn(f"{', '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no obs column {name!r}: the cells miss a value there", stacklevel=4)


def _series(values: Any, column: Column) -> pd.Series:
    """A column as pandas has it: categories in their order; integers and booleans stay such where some are missing."""
    import pandas as pd
    import pyarrow as pa

    if column.categories is not None:
        return pd.Series(pd.Categorical(values.to_pandas().to_numpy(object), categories=column.categories, ordered=column.ordered))
    nullable: dict[Any, Any] = {}
    if values.null_count:
        nullable = {pa.bool_(): pd.BooleanDtype()}
        nullable.update((getattr(pa, f"{sign}int{bits}")(), getattr(pd, f"{'U' if sign else ''}Int{bits}Dtype")()) for sign in ("", "u") for bits in (8, 16, 32, 64))
    made = values.to_pandas(types_mapper=nullable.get)
    return made.astype(object) if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type) else made


def _joined(parts: list[pd.Series | None], sizes: list[int]) -> Any:
    """One column of several data sets; a data set without it (None) misses its values."""
    import pandas as pd

    there = [part for part in parts if part is not None]
    if all(isinstance(part.dtype, pd.CategoricalDtype) for part in there):
        # As a union of categories: the first data set's order, then what the others add.
        categories = list(dict.fromkeys(c for part in there for c in part.cat.categories))
        ordered = all(part.cat.ordered for part in there) and len({tuple(part.cat.categories) for part in there}) == 1
        codes = [np.full(size, -1) if part is None else _codes(part, categories) for part, size in zip(parts, sizes)]
        return pd.Categorical.from_codes(np.concatenate(codes).astype(np.int64), categories=categories, ordered=ordered)
    if any(part is None for part in parts):
        there = [_nullable(part) for part in there]
    texts = any(isinstance(part.dtype, pd.CategoricalDtype) or part.dtype == object for part in there)
    kind: Any = object if texts else there[0].dtype
    filled = [pd.Series([None if texts else pd.NA] * size, dtype=object) if part is None else part.astype(object) if texts else part for part, size in zip(parts, sizes)]
    if not texts:
        filled = [one if part is not None else pd.Series([pd.NA] * len(one), dtype=object).astype(_missing_type(kind)) for one, part in zip(filled, parts)]
    return pd.concat(filled, ignore_index=True).array


def _codes(part: pd.Series, categories: list[Any]) -> np.ndarray:
    """The numbers of a column's values among `categories`, which have all of its own; -1 where one is missing."""
    place = {category: i for i, category in enumerate(categories)}
    # A missing value's code is -1, the last element.
    return np.array([*(place[c] for c in part.cat.categories), -1], np.int64)[part.cat.codes]


def _nullable(part: pd.Series) -> pd.Series:
    """Integers and booleans as types that can miss values."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(part.dtype):
        return part.astype("boolean")
    if pd.api.types.is_integer_dtype(part.dtype) and isinstance(part.dtype, np.dtype):
        return part.astype(f"{'U' if part.dtype.kind == 'u' else ''}Int{8 * part.dtype.itemsize}")
    return part


def _missing_type(kind: Any) -> Any:
    """The type of a column without values next to one of type `kind`."""
    return "float64" if isinstance(kind, np.dtype) and kind.kind == "f" else kind


def cells(datasets: list[Dataset], groupby: Iterable[str] | str | None, where: Any, clash: Mapping[str, str] | None) -> pd.DataFrame:
    """See `MsgExpress.cells`."""
    import pandas as pd

    known = {ds: columns_of(ds) for ds in datasets}
    by = _wanted(known, names_of(groupby, "groupby", "obs column"))
    _check_label("dataset", by)
    if "cells" in by:
        raise InvalidError("obs column 'cells' is called as the column with the numbers of cells: group by another one")
    answers = dict(clash or {})
    kinds = {name: _kind(name, known, answers.get(name)) for name in by}
    by = [name for name in by if answers.get(name) != "drop"]
    _say_missing(by, known)
    chosen = Filter(where, known)
    rows: list[tuple[Any, ...]] = []
    for ds in datasets:
        groups = [_grouped(known[ds].get(name), kinds[name]) for name in by]
        named = "".join(f", {sql} AS g{i}" for i, sql in enumerate(groups))
        grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
        with ds._unchanged():
            found = chosen.asked(ds, f"SELECT count(*) AS n{named} {chosen.source(ds)}{grouped}").to_pylist()
        rows += [(ds.name, *(row[f"g{i}"] for i in range(len(by))), row["n"]) for row in found]
    # In the order of the data sets, then of the groups.
    place = {ds.name: i for i, ds in enumerate(datasets)}
    orders = [{c: i for i, c in enumerate(dict.fromkeys(c for own in known.values() if name in own for c in own[name].categories or ()))} for name in by]
    rows.sort(key=lambda row: (place[row[0]], *(_place(value, order) for value, order in zip(row[1:-1], orders))))
    return pd.DataFrame(rows, columns=["dataset", *by, "cells"])


def _place(value: Any, order: Mapping[Any, int]) -> tuple[Any, ...]:
    """Sorts values by their categories' order, then numbers, then texts, missing ones last."""
    if value is None:
        return (3,)
    if value in order:
        return 0, order[value]
    return (1, float(value)) if isinstance(value, (int, float)) else (2, str(value))


def _kind(name: str, known: Mapping[Dataset, Mapping[str, Column]], answer: str | None) -> str:
    """As what all data sets can group by a column: texts or numbers."""
    if answer not in (None, "text", "number", "drop"):
        raise InvalidError(f"clash says {answer!r} for obs column {name!r}: say one of 'text', 'number', 'drop'")
    if answer is not None:
        return "numbers" if answer == "number" else "texts"
    kinds = {ds.name: "texts" if own[name].kind == "categories" else own[name].kind for ds, own in known.items() if name in own}
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{kind} in {ds}" for ds, kind in kinds.items())
        raise InvalidError(f"obs column {name!r} clashes: it is {said}; say what it becomes with clash={{{name!r}: \"text\"}}, \"number\" or \"drop\"")
    return next(iter(kinds.values()), "texts")


def _grouped(column: Column | None, kind: str) -> str:
    """What SQL groups by."""
    import pyarrow as pa

    if column is None:
        return f"arrow_cast(NULL, '{'Float64' if kind == 'numbers' else 'Boolean' if kind == 'booleans' else 'Utf8'}')"
    if kind == "numbers":
        return quoted(column.sql) if pa.types.is_integer(column.type) else f"CAST({quoted(column.sql)} AS DOUBLE)"
    return quoted(column.sql) if kind == "booleans" else as_text(column)


