"""AnnData in memory as a source, and the AnnData without matrices of sources that are no AnnData."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterator

import numpy as np

from skytether import UnsupportedError

from . import _backed, _features, _h5, _h5ad, _shell
from ._source import ALL_LAYERS, Encoding, Layers, Matrix, Source, push_compressed, push_dense

if TYPE_CHECKING:
    import anndata
    import pandas as pd


def source(adata: anndata.AnnData, what: str = "AnnData", layers: Layers = ALL_LAYERS) -> Source:
    """An AnnData object as a source, with those of its layers that `layers` has. Nothing of it is copied, let alone
    changed."""
    if adata.isbacked:
        what = f"AnnData backed by {adata.filename}"
        found = _backed.matrices(adata, what)
    else:
        found = [] if adata.X is None else [matrix("X", adata.X, what)]
    raw = adata.raw
    if raw is not None and not adata.isbacked:
        found.append(matrix("raw/X", raw.X, what))
    left_out = set()
    for name, values in adata.layers.items():
        origin = f"layers/{name}"
        if layers.keep(origin):
            found.append(matrix(origin, values, what))
        else:
            left_out.add(origin)
    shell = _shell.of_anndata(adata, what)
    made = Source(what, adata.obs, adata.var, found, shell, None if raw is None else raw.var, _h5ad.log1p_base(adata.uns, what), left_out=left_out)
    made.note = _features.mixed(what, adata.var["feature_types"]) if "feature_types" in adata.var else None
    return made


def frames_source(what: str, obs: pd.DataFrame, var: pd.DataFrame, matrices: list[Matrix], obsm: dict[str, np.ndarray] | None = None, **more: Any) -> Source:
    """A source of the given obs, var and matrices, with a shell that holds just obs, var, obsm and what is in `more`,
    by AnnData's names (varm, obsp, varp)."""
    for frame in (obs, var):
        frame.columns = [str(c) for c in frame.columns]
    whole = empty(obs, var, obsm=obsm, **more)
    return Source(what, obs, var, matrices, _shell.of_anndata(whole, what))


def empty(obs: pd.DataFrame, var: pd.DataFrame, has_x: bool = True, raw_var: pd.DataFrame | None = None, **more: Any) -> anndata.AnnData:
    """An AnnData without values, with a raw of `raw_var` if given, and what is in `more` by AnnData's names."""
    import anndata
    import scipy.sparse

    def x(genes: int) -> Any:
        return scipy.sparse.csr_matrix((len(obs), genes), dtype=np.float32)

    raw = None if raw_var is None else {"X": x(len(raw_var)), "var": raw_var, "varm": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anndata.AnnData(X=x(len(var)) if has_x else None, obs=obs, var=var, raw=raw, **more)


def matrix(origin: str, values: Any, what: str) -> Matrix:
    """An array or scipy sparse matrix in memory."""
    import scipy.sparse

    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UnsupportedError(f"{what}: {origin} is a masked array, and a matrix has no mask: fill it, for example with filled(np.nan)")
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return _dense(origin, values)
    in_file = _backed.stored(origin, values, what)
    if in_file is not None:
        return in_file
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

    def push(sink: Any, step: Callable[[int], None]) -> None:
        parts = _h5.compressed(indptr, lambda a, b: values.indices[a:b], lambda a, b: values.data[a:b])
        push_compressed(sink, step, layout == "csc", parts)

    encoding = Encoding(layout, values.dtype.name, values.indices.dtype.name, values.indptr.dtype.name, isinstance(values, scipy.sparse.sparray))
    return Matrix(origin, values.shape, encoding, int(indptr[-1]), push)
