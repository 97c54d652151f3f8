"""Whether an AnnData that was written and read again holds what went in.

Types may differ where values do not: texts become categories where some are missing. In `uns` anndata makes arrays of
lists, and Python's numbers of numpy's.
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
        found = frame(getattr(want, part), getattr(got, part), (part,))
        if found is not None:
            return found
    for part in ("obsm", "varm", "obsp", "varp"):
        found = _mapping(getattr(want, part), getattr(got, part), (part,))
        if found is not None:
            return found
    found = _mapping(want.uns, got.uns, ("uns",))
    if found is not None or want.raw is None:
        return found
    if got.raw is None:
        return "raw"
    return frame(want.raw.var, got.raw.var, ("raw", "var")) or _mapping(want.raw.varm, got.raw.varm, ("raw", "varm"))


def _mapping(want: Mapping[Any, Any], got: Mapping[Any, Any], at: tuple[str, ...]) -> str | None:
    for key in want:
        if key not in got:
            return place(*at, key)
        found = nested(want[key], got[key], (*at, key))
        if found is not None:
            return found
    extra = [key for key in got if key not in want]
    return place(*at, extra[0]) if extra else None


def nested(want: Any, got: Any, at: tuple[str, ...]) -> str | None:
    import anndata
    import pandas as pd

    if isinstance(want, pd.DataFrame):
        return frame(want, got, at)
    if isinstance(want, anndata.AnnData):
        found = _whole(want, got) if isinstance(got, anndata.AnnData) else ""
        return None if found is None else f"{place(*at)}.{found}".rstrip(".")
    if isinstance(want, Mapping):
        return _mapping(want, got, at) if isinstance(got, Mapping) else place(*at)
    return None if not isinstance(got, Mapping) and _same_value(want, got) else place(*at)


def _whole(want: anndata.AnnData, got: anndata.AnnData) -> str | None:
    """`difference`, with matrices and layers."""
    matrices = [("X", want.X, got.X), *((place("layers", key), want.layers[key], got.layers.get(key)) for key in want.layers)]
    if want.raw is not None and got.raw is not None:
        matrices.append(("raw.X", want.raw.X, got.raw.X))
    return difference(want, got) or next((where for where, a, b in matrices if not _same_value(a, b)), None)


def _same_value(want: Any, got: Any) -> bool:
    """Whether an array, a list or a single value is the same. A list may have become an array."""
    import pandas as pd
    import scipy.sparse

    if isinstance(want, np.ma.MaskedArray) and np.ma.is_masked(want):
        return False  # files have no mask
    if scipy.sparse.issparse(want):
        return scipy.sparse.issparse(got) and got.shape == want.shape and _same_sparse(want, got)
    if isinstance(want, pd.api.extensions.ExtensionArray):
        return isinstance(got, pd.api.extensions.ExtensionArray) and len(got) == len(want) and _same_column(pd.Series(want), pd.Series(got))
    if isinstance(want, np.ndarray) and want.ndim:
        return isinstance(got, np.ndarray) and _same_array(want, got)
    if isinstance(want, list):
        return isinstance(got, np.ndarray) and len(got) == len(want) and all(map(_same_value, want, got if got.ndim > 1 else got.tolist()))
    return _same_single(want, got)


def _same_array(want: np.ndarray, got: np.ndarray) -> bool:
    if want.dtype.names is not None:
        return want.dtype.names == got.dtype.names and want.shape == got.shape and all(_same_array(want[name], got[name]) for name in want.dtype.names)
    if want.dtype.kind in "biufc":
        return _same_numbers(want, got)
    return want.shape == got.shape and all(map(_same_single, want.ravel().tolist(), got.ravel().tolist()))


def _same_single(want: Any, got: Any) -> bool:
    a, b = (value.item() if isinstance(value, np.generic) or isinstance(value, np.ndarray) and not value.ndim else value for value in (want, got))
    if isinstance(a, bool) != isinstance(b, bool):
        return False  # One and True are equal in Python, and not the same in a table.
    try:
        return a is b or bool(a == b) or bool(a != a and b != b)
    except (TypeError, ValueError):
        return False  # of a kind that can't be compared


def _same_numbers(want: np.ndarray, got: np.ndarray) -> bool:
    if want.shape != got.shape or got.dtype.kind != want.dtype.kind:
        return False
    a, b, step = want.reshape(-1), got.reshape(-1), 1 << 20
    nan = want.dtype.kind in "fc"
    # In pieces, so that what is made meanwhile stays small.
    return all(np.array_equal(a[i : i + step], b[i : i + step], equal_nan=nan) for i in range(0, len(a), step))


def _same_sparse(want: Any, got: Any) -> bool:
    parts = ("indptr", "indices", "data")
    is_compressed = want.format == got.format and want.format in ("csr", "csc")
    if is_compressed and all(_same_numbers(getattr(want, part), getattr(got, part)) for part in parts):
        return True
    a, b = want.tocoo(), got.tocoo()
    if a.nnz != b.nnz:
        return False
    of_a, of_b = np.lexsort((a.col, a.row)), np.lexsort((b.col, b.row))
    return bool((a.row[of_a] == b.row[of_b]).all() and (a.col[of_a] == b.col[of_b]).all()) and _same_numbers(a.data[of_a], b.data[of_b])


def frame(want: pd.DataFrame, got: Any, at: tuple[str, ...]) -> str | None:
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
    return all(map(_same_single, a, b))
