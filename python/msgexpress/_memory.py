"""AnnData in memory as a source, and the AnnData without matrices of sources that are no AnnData."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterator

import h5py
import numpy as np

from skytether import InvalidError, UnsupportedError

from . import _features, _h5, _h5ad
from ._source import Encoding, Matrix, Source, push_compressed, push_dense

if TYPE_CHECKING:
    import anndata
    import pandas as pd


def source(adata: anndata.AnnData, what: str = "AnnData") -> Source:
    """An AnnData object as a source. Nothing of it is copied, let alone changed."""
    if adata.isbacked:
        raise UnsupportedError(f"this AnnData is backed by {adata.filename}: ingest that file, or adata.to_memory()")
    found = [] if adata.X is None else [matrix("X", adata.X, what)]
    raw = adata.raw
    if raw is not None:
        found.append(matrix("raw/X", raw.X, what))
    found += [matrix(f"layers/{name}", values, what) for name, values in adata.layers.items()]
    made = Source(what, adata.obs, adata.var, found, shell(adata), None if raw is None else raw.var, _h5ad.log1p_base(adata.uns))
    made.note = _features.mixed(what, adata.var["feature_types"]) if "feature_types" in adata.var else None
    return made


def shell(adata: anndata.AnnData) -> bytes:
    """`adata` as an h5ad file in memory, with empty matrices.

    Raises
    ------
    InvalidError
        It holds something that h5ad files can't.
    """
    import anndata
    import scipy.sparse

    def empty(shape: tuple[int, int]) -> Any:
        return scipy.sparse.csr_matrix(shape, dtype=np.float32)

    raw = adata.raw
    with warnings.catch_warnings():
        # Names that repeat are ours to warn of.
        warnings.simplefilter("ignore")
        bare = anndata.AnnData(
            X=empty(adata.shape) if adata.X is not None else None,
            obs=_storable(adata.obs),
            var=_storable(adata.var),
            uns=dict(adata.uns),
            obsm=dict(adata.obsm),
            varm=dict(adata.varm),
            obsp=dict(adata.obsp),
            varp=dict(adata.varp),
            raw=None if raw is None else {"X": empty(raw.shape), "var": _storable(raw.var), "varm": dict(raw.varm)},
        )
    with h5py.File("shell.h5ad", "w", driver="core", backing_store=False) as file:
        try:
            anndata.io.write_elem(file, "/", bare, dataset_kwargs={"compression": "gzip"})
        except Exception as e:  # anndata raises many kinds, each naming the element
            raise InvalidError(f"this AnnData can't be kept: {e}") from e
        file.flush()
        return file.id.get_file_image()


def _storable(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with texts and booleans that miss values in types which h5ad files have for that: categories, as anndata
    itself makes them when it writes a file, and nullable booleans."""
    import pandas as pd

    better = {}
    for name in frame.columns[~frame.columns.duplicated(keep=False)]:
        column = frame[name]
        texts = column.dtype == object or isinstance(column.dtype, pd.StringDtype)
        if not texts or not column.hasnans:
            continue
        kind = pd.api.types.infer_dtype(column, skipna=True)
        if kind == "string":
            better[name] = column.astype(object).where(column.notna(), None).astype("category")
        elif kind == "boolean":
            better[name] = column.astype("boolean")
    return frame.assign(**better) if better and all(isinstance(name, str) for name in better) else frame


def frames_source(what: str, obs: pd.DataFrame, var: pd.DataFrame, matrices: list[Matrix]) -> Source:
    """A source of the given obs, var and matrices, with a shell that holds just obs and var."""
    import anndata
    import scipy.sparse

    for frame in (obs, var):
        frame.columns = [str(c) for c in frame.columns]
    x = scipy.sparse.csr_matrix((len(obs), len(var)), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = anndata.AnnData(X=x, obs=obs, var=var)
    return Source(what, obs, var, matrices, shell(whole))


def matrix(origin: str, values: Any, what: str) -> Matrix:
    """An array or scipy sparse matrix in memory."""
    import scipy.sparse

    if isinstance(values, np.ndarray) and values.ndim == 2:
        return _dense(origin, values)
    if scipy.sparse.issparse(values) and values.format in ("csr", "csc"):
        return _sparse(origin, values)
    raise UnsupportedError(f"{what}: {origin} is a {type(values).__module__}.{type(values).__name__}: make it a numpy array or a scipy CSR or CSC matrix")


def _dense(origin: str, values: np.ndarray) -> Matrix:
    values = np.asarray(values)
    cells, genes = values.shape

    def parts() -> Iterator[tuple[int, np.ndarray]]:
        step = max(1, _h5.BATCH // max(genes, 1))
        for first in range(0, cells, step):
            yield first, values[first : first + step]

    def push(sink: Any, step: Callable[[int], None]) -> None:
        push_dense(sink, step, parts())

    return Matrix(origin, (cells, genes), Encoding("dense", values.dtype.name), cells * genes, push)


def _sparse(origin: str, values: Any) -> Matrix:
    import scipy.sparse

    layout = values.format
    indptr = values.indptr.astype(np.int64, copy=False)

    def parts() -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        for a, b in _h5.ranges(indptr):
            low, high = int(indptr[a]), int(indptr[b])
            yield a, indptr[a : b + 1] - low, values.indices[low:high], values.data[low:high]

    def push(sink: Any, step: Callable[[int], None]) -> None:
        push_compressed(sink, step, layout == "csc", parts())

    encoding = Encoding(layout, values.dtype.name, values.indices.dtype.name, values.indptr.dtype.name, isinstance(values, scipy.sparse.sparray))
    return Matrix(origin, values.shape, encoding, int(indptr[-1]), push)
