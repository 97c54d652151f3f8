"""The Python side of the R package (`r/msgexpress`): calls that give an outcome, frames and matrices as plain bytes.

reticulate is built for one binary interface of numpy, and Debian's can't take arrays of numpy 2. Nothing crosses as an
array, therefore: columns and matrices are bytearrays of native numbers, which R reads with `readBin`. An exception
crosses as its kind, text and detail, which are the same for every version of reticulate.

See also: r/msgexpress/R/call.R and r/msgexpress/R/columns.R.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from skytether import InvalidError, NotFoundError, SkytetherError, UnsupportedError

from ._hints import instead
from ._transforms import said

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    from ._dataset import Dataset
    from ._pairs import PairwiseResult
    from ._db import MsgExpress
    from ._rank import RankResult

#: R's integers are of 32 bits, the smallest of them is NA; its doubles hold all integers up to this one.
_INTEGER, _EXACT = 2**31 - 1, 2**53
#: Values that a matrix of R's package Matrix can hold: it counts them in 32 bits.
MOST_VALUES = 2**31 - 1


# ---- calls


def attempt(call: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Calls, and gives `value`, `error` (None, or `kind`, `text` and `detail`) and `warnings` (texts)."""
    out: dict[str, Any] = {"value": None, "error": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            out["value"] = call(*args, **dict(kwargs or {}))
        except Exception as e:  # each of them becomes a condition of R's
            out["error"] = _told(e)
    out["warnings"] = [str(w.message) for w in caught if issubclass(w.category, (UserWarning, RuntimeWarning))]
    return out


def method(owner: Any, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """The result of a method, or `UnsupportedError` where this version of the Python package has none of that name."""
    found = getattr(owner, name, None)
    if found is None:
        from . import __version__

        raise UnsupportedError(f"msgexpress {__version__} for Python has no {name}: upgrade it to the version of the R package")
    return found(*args, **dict(kwargs or {}))


def _told(error: Exception) -> dict[str, Any]:
    if isinstance(error, SkytetherError):
        return {"kind": error.kind, "text": str(error), "detail": error.detail}
    text = f"{type(error).__name__}: {error}"
    kinds = {(TypeError, ValueError): "invalid", (ImportError,): "unsupported", (MemoryError,): "exhausted"}
    for classes, kind in kinds.items():
        if isinstance(error, classes):
            return {"kind": kind, "text": text if kind == "exhausted" else str(error), "detail": None}
    return {"kind": "python", "text": text, "detail": None}


def open_fleet(path: str, drives: int | None, **options: Any) -> MsgExpress:
    """`msgexpress.open`, under a name that says what it opens."""
    from . import _db

    return _db.open(path, drives, **options)


def connect(url: str, **options: Any) -> MsgExpress:
    """`msgexpress.connect`."""
    from . import _db

    return _db.connect(url, **options)


def sql(db: MsgExpress, query: str) -> pd.DataFrame:
    """The rows of a query. Integers and booleans stay such where some are missing."""
    import pandas as pd
    import pyarrow as pa

    kinds: dict[Any, Any] = {pa.bool_(): pd.BooleanDtype()}
    for bits in (8, 16, 32, 64):
        kinds[getattr(pa, f"int{bits}")()] = getattr(pd, f"Int{bits}Dtype")()
        kinds[getattr(pa, f"uint{bits}")()] = getattr(pd, f"UInt{bits}Dtype")()
    return db.fleet.sql(query).to_arrow().to_pandas(types_mapper=kinds.get)


def annotations(ds: Dataset, which: str, columns: Sequence[str] | None) -> pd.DataFrame:
    """obs or var, or some columns of it.

    Raises
    ------
    NotFoundError
        There is no such column.
    """
    found = ds.obs if which == "obs" else ds.var
    if columns is None:
        return found
    for name in _listed(columns):
        if name not in found.columns:
            raise NotFoundError(f"{which} of {ds.name} has no column {name!r}: it has {', '.join(map(repr, found.columns)) or 'none'}{instead(name, found.columns)}")
    return found[_listed(columns)]


def cell_names(ds: Dataset) -> list[str]:
    """The names of the cells."""
    return [str(name) for name in ds.obs_names]


def told_of_ranks(result: RankResult | PairwiseResult) -> dict[str, Any]:
    """What a result of a test says besides its numbers."""
    return {
        "dataset": result.dataset,
        "groups": list(result.groups),
        "test": result.test,
        "params": {**result.params, "transform": said(result.params["transform"])},
        "receipt": result.receipt.to_dict(),
        "tree": str(result.receipt),
    }


def parts_of_bulk(result: anndata.AnnData) -> dict[str, Any]:
    """The `values` (doubles, genes as rows) and the `obs` of a result of `Dataset.pseudobulk`.

    Raises
    ------
    UnsupportedError
        A sum is beyond what a double holds exactly.
    """
    import pandas as pd

    if result.X.size and np.abs(result.X).max() > _EXACT:
        raise UnsupportedError("a sum is beyond 2^53, up to which R's doubles hold whole numbers exactly: take it from Python")
    return {"values": dense(pd.DataFrame(result.X.T, index=result.var_names, columns=result.obs_names)), "obs": result.obs}


def parts_of_pca(ds: Dataset, result: Any) -> dict[str, Any]:
    """The parts of a result of `Dataset.pca`, with the names of cells and genes."""
    loadings = result.loadings
    genes = getattr(result, "genes", None)
    if genes is None and not hasattr(loadings, "columns") and len(loadings) == ds.n_vars:
        genes = ds.var_names
    return {
        "embedding": dense(result.embedding, ds.obs_names),
        "loadings": dense(loadings, genes),
        "variance": _bytes(result.variance, np.float64),
        "variance_ratio": _bytes(result.variance_ratio, np.float64),
    }


def with_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Cells of several data sets with their names, which may repeat and so name no rows in R, as the second column:
    `cell`, or where obs has a column of that name `cell_name`."""
    label = "cell"
    while label in table.columns:
        label += "_name"
    made = table.copy(deep=False)
    made.insert(1, label, table.index.to_numpy(object))
    return made


def parts_of_centroids(result: Any) -> dict[str, Any]:
    """The parts of a result of `MsgExpress.centroids`: `means` of clusters by genes, and the clusters' `cells`."""
    names = [f"{dataset}: {group}" for dataset, group in result.means.index]
    return {"means": dense(result.means.set_axis(names, axis=0), names), "cells": _bytes(result.sizes, np.float64)}


# ---- to R


def frame(table: pd.DataFrame, named: bool = True) -> dict[str, Any]:
    """A data frame: `rows`, `names` (of columns) and `columns`, each as `column` gives it; where its rows are `named`,
    `index` has their names."""
    columns = [table.iloc[:, at] for at in range(table.shape[1])]
    names = [str(name) for name in table.columns]
    return {
        "rows": len(table),
        "index": [str(name) for name in table.index] if named else [],
        "names": names,
        "columns": [column(values, name) for values, name in zip(columns, names)],
    }


def column(values: pd.Series, name: str) -> dict[str, Any]:
    """A column: its `kind`, its `data`, where values are `missing` (a byte each, or None), and what else its kind has.

    Kinds: ``factor`` (32-bit codes from 0; `levels`, `ordered`), ``logical`` (bytes), ``integer`` (32 bits),
    ``double``, ``integer64`` (also as `text`), ``complex``, ``time`` (seconds since 1970; `zone`), ``date`` (days since
    1970), ``duration`` (seconds), ``text`` and ``list`` (Python lists as `data`).

    Raises
    ------
    UnsupportedError
        A text holds a NUL character, which R has none of.
    """
    import pandas as pd

    dtype = values.dtype
    if isinstance(dtype, pd.SparseDtype):
        values = values.sparse.to_dense()
        dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = _texts([str(level) for level in dtype.categories], name)
        return {"kind": "factor", "data": _bytes(values.cat.codes, np.int32), "missing": None, "levels": levels, "ordered": bool(dtype.ordered)}
    missing = values.isna().to_numpy()
    if pd.api.types.is_bool_dtype(dtype):
        return _plain("logical", _filled(values, missing, False), np.uint8, missing)
    if pd.api.types.is_integer_dtype(dtype):
        return _whole(_filled(values, missing, 0), missing)
    if pd.api.types.is_float_dtype(dtype):
        return _plain("double", values.to_numpy(np.float64, na_value=np.nan), np.float64, missing)
    if pd.api.types.is_complex_dtype(dtype):
        return _plain("complex", values.to_numpy(), np.complex128, missing)
    if pd.api.types.is_datetime64_any_dtype(dtype):
        zone = getattr(dtype, "tz", None)
        utc = values if zone is None else values.dt.tz_convert("UTC").dt.tz_localize(None)
        return {**_plain("time", _seconds(utc.to_numpy("datetime64[us]"), missing), np.float64, missing), "zone": "UTC" if zone is None else str(zone)}
    if pd.api.types.is_timedelta64_dtype(dtype):
        return _plain("duration", _seconds(values.to_numpy("timedelta64[us]"), missing), np.float64, missing)
    return _objects(values, missing, name)


def _objects(values: pd.Series, missing: np.ndarray, name: str) -> dict[str, Any]:
    """A column of Python objects: what they all are decides."""
    import pandas as pd

    found = values.to_numpy(object)
    kind = pd.api.types.infer_dtype(found, skipna=True)
    if kind == "boolean":
        return _plain("logical", np.where(missing, False, found).astype(bool), np.uint8, missing)
    if kind == "integer":
        return _whole(np.where(missing, 0, found), missing)
    if kind in ("floating", "mixed-integer-float", "decimal"):
        return _plain("double", np.where(missing, np.nan, found).astype(np.float64), np.float64, missing)
    if kind == "date":
        days = np.array([0 if gone else value.toordinal() - 719_163 for value, gone in zip(found, missing)], np.float64)
        return _plain("date", days, np.float64, missing)
    if kind in ("datetime", "datetime64"):
        return column(pd.Series(pd.to_datetime(found)), name)
    if any(isinstance(value, (np.ndarray, list, tuple)) for value in found[~missing]):
        return {"kind": "list", "data": [None if gone else np.asarray(value).tolist() for value, gone in zip(found, missing)], "missing": None}
    texts = ["" if gone else str(value) for value, gone in zip(found, missing)]
    return {"kind": "text", "data": _texts(texts, name), "missing": _mask(missing)}


def _whole(values: np.ndarray, missing: np.ndarray) -> dict[str, Any]:
    """A column of integers, in the narrowest of R's types that has them all."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if -_INTEGER <= low and high <= _INTEGER:
        return _plain("integer", values, np.int32, missing)
    if -_EXACT <= low and high <= _EXACT:
        return _plain("double", values, np.float64, missing)
    fits = -(2**63) < low and high < 2**63
    data = _bytes(values, np.int64) if fits else None
    return {"kind": "integer64", "data": data, "missing": _mask(missing), "text": [str(int(value)) for value in values]}


def _plain(kind: str, values: np.ndarray, dtype: Any, missing: np.ndarray) -> dict[str, Any]:
    return {"kind": kind, "data": _bytes(values, dtype), "missing": _mask(missing)}


def _mask(missing: np.ndarray) -> bytearray | None:
    return _bytes(missing, np.uint8) if missing.any() else None


def _filled(values: pd.Series, missing: np.ndarray, by: Any) -> np.ndarray:
    """The values as numpy's, with `by` in the place of those that are missing."""
    return (values.fillna(by) if missing.any() else values).to_numpy(values.dtype if isinstance(values.dtype, np.dtype) else values.dtype.numpy_dtype)


def _seconds(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Microseconds as seconds. Whole seconds stay whole: they are not divided."""
    whole, rest = np.divmod(np.where(missing, 0, values.view(np.int64)), 1_000_000)
    return whole.astype(np.float64) + rest / 1e6


def _bytes(values: Any, dtype: Any) -> bytearray:
    """The values as bytes of native numbers, copied once."""
    found = np.ascontiguousarray(values, dtype=dtype)
    return bytearray(memoryview(found).cast("B")) if found.size else bytearray()


def _texts(values: list[str], where: str) -> list[str]:
    for value in values:
        if "\0" in value:
            raise UnsupportedError(f"{where}: {value!r} holds a NUL character, which R has no text for: replace it, and ingest the data set again")
    return values


def dense(values: Any, rows: Iterable[Any] | None = None) -> dict[str, Any]:
    """A matrix (or a vector, as its one column) of doubles, by columns: `data`, `dim`, and names of `rows` and
    `columns` (None for none)."""
    columns = None
    if hasattr(values, "columns"):
        rows, columns = list(values.index) if rows is None else rows, [str(name) for name in values.columns]
        values = values.to_numpy()
    if hasattr(values, "toarray"):
        values = values.toarray()
    array = np.asarray(values, np.float64)
    array = array.reshape(len(array), -1) if array.ndim != 2 else array
    return {"data": _bytes(array.T, np.float64), "dim": list(array.shape), "rows": None if rows is None else [str(name) for name in rows], "columns": columns}


def counts(ds: Dataset, layer: str | None, genes: Any, cells: Any) -> dict[str, Any]:
    """The stored values of one matrix, or of some genes and cells of it, as the parts of R's dgCMatrix with genes as
    rows: `i`, `p`, `x`, `dim`, and the names of `genes` and `cells`. Nothing else is read. Doubles hold all values: an
    ingest refuses others.

    Raises
    ------
    NotFoundError
        There is no such layer, gene or cell.
    InvalidError
        A name that is there twice; more values than a dgCMatrix can hold.
    ConflictError
        The data set was replaced.
    """
    import pandas as pd

    from . import _export, _select

    table = ds._matrix(layer)
    names, cell_names = pd.Index(ds._names(table)), ds.obs_names
    gene_at = None if genes is None else _select.positions(genes, names, "gene", ds.var)
    cell_at = None if cells is None else _select.positions(cells, cell_names, "cell")
    gene_set, cell_set = (None if at is None else np.unique(at) for at in (gene_at, cell_at))
    shape = (len(cell_names) if cell_set is None else len(cell_set), len(names) if gene_set is None else len(gene_set))
    # As sparse rows whatever it was when it was stored: its columns are R's.
    kept = {**ds._kept["matrices"][table], "layout": "csr", "array": False}
    with ds._unchanged():
        if shape[0] * shape[1] > MOST_VALUES:
            _check_size(ds, table, gene_set)
        found = _export.matrix(ds.fleet, ds.table(f"{table}_rows"), kept, gene_set, cell_set)
    if gene_at is not None and gene_set is not None and not np.array_equal(gene_at, gene_set):
        found = found[:, np.searchsorted(gene_set, gene_at)]
    if cell_at is not None and cell_set is not None and not np.array_equal(cell_at, cell_set):
        found = found[np.searchsorted(cell_set, cell_at)]
    if found.nnz > MOST_VALUES:
        raise _too_many(ds, found.nnz)
    found.sort_indices()
    return {
        "i": _bytes(found.indices, np.int32),
        "p": _bytes(found.indptr, np.int32),
        "x": _bytes(found.data, np.float64),
        "dim": [found.shape[1], found.shape[0]],
        "genes": [str(name) for name in (names if gene_at is None else names[gene_at])],
        "cells": [str(name) for name in (cell_names if cell_at is None else cell_names[cell_at])],
    }


def _check_size(ds: Dataset, table: str, genes: np.ndarray | None) -> None:
    """Refuses what has too many values, before they are read. Of some cells all are counted."""
    from . import _export

    found = ds.fleet.sql(f"SELECT sum(nnz) AS n FROM {ds.table(f'{table}_rows')}{_export._where(genes)}").to_arrow().column(0)[0].as_py() or 0
    if found > MOST_VALUES:
        raise _too_many(ds, found)


def _too_many(ds: Dataset, found: int) -> InvalidError:
    return InvalidError(f"{ds.name}: {found:,} values are more than a dgCMatrix of R can hold ({MOST_VALUES:,}): choose fewer genes= or cells=")


def names(ds: Dataset, layer: str | None) -> list[str]:
    """The names of a matrix's genes."""
    return [str(name) for name in ds._names(ds._matrix(layer))]


def is_counts(ds: Dataset, layer: str | None) -> bool:
    """Whether a matrix holds non-negative integers alone."""
    return ds._is_counts(layer)


def is_logarithmic(ds: Dataset, layer: str | None) -> bool:
    """Whether the file says that the matrix holds logarithms (scanpy's ``uns["log1p"]``): X or raw, and no counts."""
    origin = ds._kept["matrices"][ds._matrix(layer)]["origin"]
    return "log1p" in ds._shell.uns and origin in ("X", "raw/X") and not ds._is_counts(layer)


def obs_of(ds: Dataset, cells: Any) -> pd.DataFrame:
    """What is known of some cells."""
    from . import _select

    found = ds.obs
    return found if cells is None else found.iloc[_select.positions(cells, found.index, "cell")]


def var_of(ds: Dataset, layer: str | None, genes: Any) -> pd.DataFrame:
    """What is known of a matrix's genes, or of some of them."""
    from . import _features, _select

    table = ds._matrix(layer)
    origin = ds._kept["matrices"][table]["origin"]
    if origin.startswith(_features.ORIGIN):
        found = ds._own_var(table)
    else:
        found = (ds._shell.raw.var if origin == "raw/X" else ds._shell.var).copy()
    return found if genes is None else found.iloc[_select.positions(genes, found.index, "gene")]


def embeddings(ds: Dataset, cells: Any) -> dict[str, Any]:
    """The obsm entries with numbers for each cell, as `dense`, by their names."""
    from . import _select

    shell, found = ds._shell, {}
    chosen = slice(None) if cells is None else _select.positions(cells, shell.obs.index, "cell")
    rows = shell.obs.index[chosen]
    for name, values in shell.obsm.items():
        part = values.iloc[chosen] if hasattr(values, "iloc") else values[chosen]
        try:
            found[str(name)] = dense(part, rows)
        except (TypeError, ValueError):  # texts, or values of more than two dimensions that can't be matrices
            warnings.warn(f"obsm[{str(name)!r}] of {ds.name} holds no numbers, and is left out", stacklevel=2)
    return found


# ---- from R


def mask(chosen: bytearray) -> np.ndarray:
    """A mask of cells or genes, from a byte for each."""
    return np.frombuffer(chosen, np.uint8).astype(bool)


def positions(chosen: bytearray) -> np.ndarray:
    """Numbers of cells or genes from 0, from 32 bits for each."""
    return np.frombuffer(chosen, np.int32).astype(np.int64)


def _series(given: Mapping[str, Any]) -> Any:
    """A column of an R data frame, as `column` describes them."""
    import pandas as pd

    kind, data = given["kind"], given["data"]
    gone = None if given.get("missing") is None else np.frombuffer(given["missing"], np.uint8).astype(bool)
    if kind == "factor":
        codes = np.frombuffer(data, np.int32)
        return pd.Categorical.from_codes(codes, categories=pd.Index(_listed(given["levels"]), dtype=object), ordered=bool(given["ordered"]))
    if kind == "text":
        return np.array(_listed(data) if gone is None else [None if away else text for text, away in zip(_listed(data), gone)], object)
    types = {"logical": (np.uint8, bool), "integer": (np.int32, np.int32), "integer64": (np.int64, np.int64), "double": (np.float64, np.float64)}
    stored, dtype = types[kind]
    values = np.frombuffer(data, stored).astype(dtype)
    if gone is None or kind == "double":
        return values
    return pd.arrays.BooleanArray(values, gone) if kind == "logical" else pd.arrays.IntegerArray(values, gone)


def _listed(values: Any) -> list[Any]:
    # reticulate gives a vector of one element as that element.
    return [values] if isinstance(values, str) else list(values)


def _table(given: Mapping[str, Any], index: list[str]) -> pd.DataFrame:
    import pandas as pd

    # By position first, as names may repeat.
    out = pd.DataFrame({at: _series(values) for at, values in enumerate(given["columns"])}, index=pd.Index(index, dtype=object))
    return out.set_axis(_listed(given["names"]) if given["columns"] else [], axis=1)


def _sparse(given: Mapping[str, Any]) -> Any:
    """Cells as rows, from the parts of a dgCMatrix with cells as columns."""
    import scipy.sparse

    genes, cells = given["dim"]
    parts = (np.frombuffer(given["x"], np.float64), np.frombuffer(given["i"], np.int32), np.frombuffer(given["p"], np.int32))
    return scipy.sparse.csr_matrix(parts, shape=(int(cells), int(genes)))


def annotated(
    x: Mapping[str, Any], genes: Any, cells: Any, var: Mapping[str, Any], obs: Mapping[str, Any], layers: Mapping[str, Any], obsm: Mapping[str, Any]
) -> anndata.AnnData:
    """An AnnData from R's parts: matrices with genes as rows, data frames, and embeddings by columns."""
    import anndata

    genes, cells = _listed(genes), _listed(cells)
    return anndata.AnnData(
        X=_sparse(x),
        obs=_table(obs, cells),
        var=_table(var, genes),
        layers={name: _sparse(values) for name, values in dict(layers).items()},
        obsm={name: np.frombuffer(values["data"], np.float64).reshape([int(n) for n in values["dim"]][::-1]).T.copy() for name, values in dict(obsm).items()},
    )
