"""Whether an AnnData that was written and read again holds what went in.

Types may differ where values do not: texts become categories where some are missing. In `uns` only names are compared,
as anndata makes arrays of lists and numpy's numbers of Python's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import anndata
    import pandas as pd


def place(first: str, *more: str) -> str:
    """A place in AnnData as Python writes it: ``obs['cluster']``, ``raw.var['symbol']``."""
    if first == "raw" and more:
        first, more = f"raw.{more[0]}", more[1:]
    return first + "".join(f"[{part!r}]" for part in more)


def difference(want: anndata.AnnData, got: anndata.AnnData) -> str | None:
    """The first place that does not hold the same; None where there is none. Matrices and layers are not compared."""
    for part in ("obs", "var"):
        found = _frame(getattr(want, part), getattr(got, part), (part,))
        if found is not None:
            return found
    for part in ("obsm", "varm", "obsp", "varp"):
        found = _mapping(getattr(want, part), getattr(got, part), (part,), _element)
        if found is not None:
            return found
    found = _mapping(want.uns, got.uns, ("uns",), _nested)
    if found is not None or want.raw is None:
        return found
    if got.raw is None:
        return "raw"
    return _frame(want.raw.var, got.raw.var, ("raw", "var")) or _mapping(want.raw.varm, got.raw.varm, ("raw", "varm"), _element)


def _mapping(want: Mapping[Any, Any], got: Mapping[Any, Any], at: tuple[str, ...], compare: Any) -> str | None:
    for key in want:
        if key not in got:
            return place(*at, key)
        found = compare(want[key], got[key], (*at, key))
        if found is not None:
            return found
    extra = [key for key in got if key not in want]
    return place(*at, extra[0]) if extra else None


def _nested(want: Any, got: Any, at: tuple[str, ...]) -> str | None:
    import pandas as pd

    if isinstance(want, pd.DataFrame):
        return _frame(want, got, at)
    if isinstance(want, Mapping):
        return _mapping(want, got, at, _nested) if isinstance(got, Mapping) else place(*at)
    return place(*at) if isinstance(got, Mapping) else None


def _element(want: Any, got: Any, at: tuple[str, ...]) -> str | None:
    import pandas as pd
    import scipy.sparse

    if isinstance(want, pd.DataFrame):
        return _frame(want, got, at)
    if isinstance(want, np.ma.MaskedArray) and np.ma.is_masked(want):
        same = False  # files have no mask
    elif scipy.sparse.issparse(want):
        same = scipy.sparse.issparse(got) and got.shape == want.shape and _same_sparse(want, got)
    elif isinstance(want, np.ndarray) and want.dtype.kind in "biufc":
        same = isinstance(got, np.ndarray) and _same_numbers(want, got)
    else:
        same = type(want).__name__ != "ndarray" or isinstance(got, np.ndarray)
    return None if same else place(*at)


def _same_numbers(want: np.ndarray, got: np.ndarray) -> bool:
    return want.shape == got.shape and got.dtype.kind == want.dtype.kind and np.array_equal(want, got, equal_nan=want.dtype.kind in "fc")


def _same_sparse(want: Any, got: Any) -> bool:
    a, b = want.tocoo(), got.tocoo()
    if a.nnz != b.nnz:
        return False
    of_a, of_b = np.lexsort((a.col, a.row)), np.lexsort((b.col, b.row))
    return bool((a.row[of_a] == b.row[of_b]).all() and (a.col[of_a] == b.col[of_b]).all()) and _same_numbers(a.data[of_a], b.data[of_b])


def _frame(want: pd.DataFrame, got: Any, at: tuple[str, ...]) -> str | None:
    import pandas as pd

    if not isinstance(got, pd.DataFrame) or len(got) != len(want):
        return place(*at)
    for number, label in enumerate(want.columns):
        if number >= got.shape[1] or got.columns[number] != label or not _same_column(want.iloc[:, number], got.iloc[:, number]):
            return place(*at, label)
    if got.shape[1] > want.shape[1]:
        return place(*at, got.columns[want.shape[1]])
    if got.index.name != want.index.name or not np.array_equal(want.index.astype(str).to_numpy(object), got.index.astype(str).to_numpy(object)):
        return f"the index of {place(*at)}"
    return None


def _same_column(want: pd.Series, got: pd.Series) -> bool:
    import pandas as pd

    missing = want.isna().to_numpy()
    if not np.array_equal(missing, got.isna().to_numpy()):
        return False
    if isinstance(want.dtype, pd.CategoricalDtype):
        if not isinstance(got.dtype, pd.CategoricalDtype) or want.cat.ordered != got.cat.ordered:
            return False
        return list(want.cat.categories) == list(got.cat.categories) and np.array_equal(want.cat.codes.to_numpy(), got.cat.codes.to_numpy())
    if want.dtype.kind in "biuf" and got.dtype.kind == want.dtype.kind and not missing.any():
        return np.array_equal(want.to_numpy(), got.to_numpy())
    a, b = want.astype(object).to_numpy()[~missing], got.astype(object).to_numpy()[~missing]
    if pd.api.types.infer_dtype(a, skipna=False) == "string":
        return np.array_equal(a, b)
    # One and True are equal in Python, and not the same in a table.
    return all(isinstance(x, (bool, np.bool_)) == isinstance(y, (bool, np.bool_)) and type(x == y) in (bool, np.bool_) and bool(x == y) for x, y in zip(a, b))
