"""Choosing cells and genes: by obs columns, masks, names or numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Hashable, Iterable

import numpy as np

from skytether import InvalidError, NotFoundError

from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd


def positions(chosen: Any, names: pd.Index, what: str, about: pd.DataFrame | None = None) -> np.ndarray:
    """The numbers of the cells or genes (`what`) that `chosen` means: a boolean mask, names, numbers
    or a slice, in that order. `about` has further names of them, which an error hints at. A mask of pandas or of
    objects may miss values, which choose nothing.

    Raises
    ------
    NotFoundError
        A name that is not there.
    InvalidError
        A name that is there twice, a number out of range, a mask of another length.
    """
    n = len(names)
    if isinstance(chosen, slice):
        return np.arange(n)[chosen]
    if isinstance(chosen, str):
        chosen = [chosen]
    if isinstance(chosen, (set, frozenset, dict)):
        raise InvalidError(f"a {type(chosen).__name__} has no order to give {what}s in: choose them with a list of names or numbers, or a mask")
    values = np.asarray(_in_order(_plain(chosen, what), names, what))
    if values.ndim != 1:
        raise InvalidError(f"choose {what}s with a mask, names or numbers in one dimension, not {values.ndim}")
    if values.size == 0:
        return np.zeros(0, np.int64)
    if values.dtype == np.bool_:
        if len(values) != n:
            raise InvalidError(f"the mask is for {len(values)} {what}s, but there are {n}")
        return np.flatnonzero(values)
    if values.dtype.kind in "iu":
        if len(values) == n > 2 and np.isin(values, (0, 1)).all():
            raise InvalidError(f"0 and 1 for each {what} would be the first two {what}s again and again: make it a mask, with .astype(bool)")
        numbers = values.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + n, numbers)
        out = (numbers < 0) | (numbers >= n)
        if out.any():
            raise InvalidError(f"there is no {what} {values[out][0]}: they are numbered 0 to {n - 1}")
        return numbers
    return _by_name([str(v) for v in values], names, what, about)


def _plain(chosen: Any, what: str) -> Any:
    """`chosen`, or where it is a mask or numbers of a type that may miss values, as plain ones. A missing value of a
    mask chooses nothing, as it is no True."""
    import pandas as pd

    if not isinstance(chosen, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, np.ndarray, list, tuple)):
        return chosen
    dtype = getattr(chosen, "dtype", np.dtype(object))
    if isinstance(dtype, np.dtype) and dtype != object or isinstance(dtype, pd.CategoricalDtype) and dtype.categories.dtype == object:
        return chosen
    if not len(chosen):
        return chosen
    index = chosen.index if isinstance(chosen, pd.Series) else None
    if isinstance(dtype, pd.CategoricalDtype):
        chosen = chosen.astype(object)
    kind = pd.api.types.infer_dtype(chosen, skipna=True)
    if kind == "boolean":
        values = np.array([False if pd.isna(v) else bool(v) for v in chosen], bool)
    elif kind == "integer" and getattr(dtype, "kind", "") in ("i", "u"):
        missing = np.asarray(pd.isna(chosen))
        if missing.any():
            raise InvalidError(f"the number of the {what} at place {int(missing.argmax()) + 1} is missing: leave it out, for example with .dropna()")
        values = np.array([int(v) for v in chosen], np.int64)
    elif kind.startswith("mixed") and any(isinstance(v, (bool, np.bool_)) for v in chosen):
        raise InvalidError(f"booleans and other values together choose no {what}s: make them a mask (True or False for each {what}), or numbers or names alone")
    else:
        return chosen
    return values if index is None else pd.Series(values, index=index)


def _in_order(chosen: Any, names: pd.Index, what: str) -> Any:
    """`chosen`, or where it is a pandas mask by names, that mask in the order of `names`."""
    import pandas as pd

    if not isinstance(chosen, pd.Series) or chosen.dtype != np.bool_ or len(chosen) != len(names):
        return chosen
    if isinstance(chosen.index, pd.RangeIndex) or chosen.index.equals(names):
        return chosen
    if not (names.is_unique and chosen.index.is_unique and chosen.index.isin(names).all()):
        raise InvalidError(f"the mask's index does not hold the names of the {what}s: use .to_numpy() if it is in their order")
    return chosen.reindex(names)


def _by_name(wanted: list[str], names: pd.Index, what: str, about: pd.DataFrame | None) -> np.ndarray:
    if names.is_unique:
        found = names.get_indexer(wanted)
        if (found < 0).any():
            missing = [w for w, at in zip(wanted, found) if at < 0]
            more = f" (and {len(missing) - 1} more are missing)" if len(missing) > 1 else ""
            raise NotFoundError(f"there is no {what} {missing[0]!r}{more}{_another_name(missing[0], names, what, about) or instead(missing[0], names)}")
        return found.astype(np.int64)
    where: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        where.setdefault(str(name), []).append(number)
    for name in wanted:
        hits = where.get(name, [])
        if not hits:
            raise NotFoundError(f"there is no {what} {name!r}{_another_name(name, names, what, about) or instead(name, where)}")
        if len(hits) > 1:
            raise InvalidError(f"{len(hits)} {what}s are called {name!r}: choose by number ({', '.join(map(str, hits[:5]))})")
    return np.array([where[name][0] for name in wanted], np.int64)


def _another_name(name: str, names: pd.Index, what: str, about: pd.DataFrame | None) -> str:
    """Which column of `about` has `name`, and what is called so there; nothing if none has."""
    if about is None or len(about) != len(names):
        return ""
    for column in about.columns:
        hits = np.flatnonzero((about[column].astype(object) == name).fillna(False).to_numpy(bool))
        if len(hits):
            called = ", ".join(repr(str(names[at])) for at in hits[:3]) + (", ..." if len(hits) > 3 else "")
            return f"; it is in var[{str(column)!r}], of the {what} {called}"
    return ""


def mask(chosen: Any, obs: pd.DataFrame, what: str) -> np.ndarray:
    """The cells that a selector (`settled`) means: a dict of obs column to value or list of values (all must match),
    or as in `positions`."""
    chosen_cells = np.zeros(len(obs), bool)
    if isinstance(chosen, dict):
        if not chosen:
            raise InvalidError(f"{what} chooses no cells: name an obs column")
        chosen_cells[:] = True
        for column, wanted in chosen.items():
            chosen_cells &= _matching(obs, column, wanted)
    else:
        chosen_cells[positions(chosen, obs.index, "cell")] = True
    return chosen_cells


def _matching(obs: pd.DataFrame, column: str, wanted: Any) -> np.ndarray:
    if column not in obs.columns:
        raise NotFoundError(f"obs has no column {column!r}: it has {', '.join(map(repr, obs.columns)) or 'none'}{instead(column, obs.columns)}")
    values = obs[column].astype(object)
    asked = wanted if isinstance(wanted, list) else [wanted]
    odd = next((value for value in asked if not isinstance(value, Hashable)), None)
    if odd is not None:
        raise InvalidError(f"{odd!r} is no value of obs column {column!r}: give one value, or a list of values")
    there = set(values.dropna().unique())
    by_text = {str(v): v for v in there}
    chosen = []
    for value in asked:
        if value not in there and str(value) not in by_text:
            some = ", ".join(sorted(by_text)[:12])
            raise NotFoundError(f"no cell has {value!r} in obs column {column!r}: there are {some}{', ...' if len(there) > 12 else ''}{instead(value, by_text)}")
        chosen.append(value if value in there else by_text[str(value)])
    return values.isin(chosen).to_numpy()


def label(chosen: Any, otherwise: str) -> str:
    """A short name for a set of cells."""
    if not isinstance(chosen, dict):
        return otherwise
    return " & ".join(", ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted) for wanted in chosen.values())


def settled(chosen: Any) -> Any:
    """A selector that can be looked at more than once: of a dict's values, what holds several (a range, a series, a
    generator, ...) as a list."""
    if not isinstance(chosen, dict):
        return chosen if hasattr(chosen, "__len__") or not isinstance(chosen, Iterable) else list(chosen)
    return {column: list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes)) else wanted for column, wanted in chosen.items()}
