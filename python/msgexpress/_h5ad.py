"""AnnData files (.h5ad), of today and of before anndata 0.7, streamed: only the matrices'
structure is ever held whole."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Callable, Iterator

import h5py
import numpy as np

from skytether import CorruptError, InvalidError

from . import _features, _h5, _shell
from ._source import ALL_LAYERS, Encoding, Layers, Matrix, Source, push_compressed, push_dense


def is_h5ad(file: h5py.File) -> bool:
    """Whether an open HDF5 file is AnnData's."""
    return "obs" in file and "var" in file


def source(path: str, layers: Layers = ALL_LAYERS) -> Source:
    """Reads all but the matrices of an h5ad file, and of its layers those that `layers` has; the file stays open until
    `Source.close`.

    Raises
    ------
    CorruptError
        The file is cut short or damaged; the text names the data set.
    InvalidError
        It is no AnnData file.
    UnsupportedError
        It holds something that this anndata can't read.
    """
    file = _h5.open_file(path)
    try:
        if not is_h5ad(file):
            raise InvalidError(f"{path} is no h5ad file: it has no obs and var")
        left_out = {origin for origin in _origins(file) if not layers.keep(origin)}
        found = [m for m in (_element(file, path, o) for o in _origins(file) if o not in left_out) if m is not None]
        raw_genes = next((m.shape[1] for m in found if m.origin == "raw/X"), None)
        with _h5.reading(path, "obs, var and the like"):
            shell = _shell.of_file(file, path, {m.origin for m in found}, raw_genes, left_out)
        adata = _shell.opened(shell, path)
    except BaseException:
        file.close()
        raise
    for m in found:
        genes = raw_genes if m.origin == "raw/X" else adata.n_vars
        if m.shape != (adata.n_obs, genes):
            file.close()
            raise CorruptError(f"{path}: {m.origin} is {m.shape[0]} x {m.shape[1]}, but obs and var say {adata.n_obs} x {genes}")
    raw_var = adata.raw.var if raw_genes is not None else None
    made = Source(path, adata.obs, adata.var, found, shell, raw_var, log1p_base(adata.uns, path), file.close, left_out=left_out)
    made.note = _features.mixed(path, adata.var["feature_types"]) if "feature_types" in adata.var else None
    return made


def log1p_base(uns: Any, what: str = "AnnData") -> float | None:
    """The base of the logarithm that scanpy's `log1p` noted in `uns`, where it is not e.

    Raises
    ------
    InvalidError
        It is no number: fold changes of logarithms would be of an unknown base.
    """
    try:
        base = uns["log1p"]["base"]
    except (KeyError, TypeError, IndexError):
        return None
    if base is None:
        return None
    try:
        return float(base)
    except (TypeError, ValueError) as e:
        raise InvalidError(f"{what}: uns['log1p']['base'] is {base!r}, which is no number: make it the base of X's logarithms, or None for the natural one") from e


def _origins(file: h5py.File) -> Iterator[str]:
    yield "X"
    if isinstance(file.get("raw"), h5py.Group):
        yield "raw/X"
    elif "raw.X" in file:  # before anndata 0.7
        yield "raw.X"
    layers = file.get("layers")
    if isinstance(layers, h5py.Group):
        yield from (f"layers/{name}" for name in layers)


def _element(file: h5py.File, path: str, key: str) -> Matrix | None:
    """The matrix below `key`, or None where there is none that could be stored as one (it stays in the shell then)."""
    with _h5.reading(path, key):
        element = file.get(key)
        if element is None:
            return None
        origin = "raw/X" if key == "raw.X" else key
        if isinstance(element, h5py.Group):
            layout = _sparse_layout(element)
            return None if layout is None else _sparse(element, path, origin, layout)
        encoding = _h5.text(element.attrs.get("encoding-type", "array"))
        if element.ndim == 2 and element.dtype.kind in "iufb" and encoding == "array":
            return _dense(element, path, origin)
        if origin != "X" or element.shape is None or encoding == "null":
            return None
        if element.ndim == 2:
            raise InvalidError(f"{path}: X holds {element.dtype}, which are no expression values")
        raise CorruptError(f"{path}: X has {element.ndim} dimensions instead of 2")


def _sparse_layout(group: h5py.Group) -> str | None:
    written = group.attrs.get("encoding-type", group.attrs.get("h5sparse_format"))
    if written is None:
        return None
    return {"csr_matrix": "csr", "csc_matrix": "csc", "csr": "csr", "csc": "csc"}.get(_h5.text(written))


def _sparse(group: h5py.Group, path: str, origin: str, layout: str) -> Matrix:
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if shape is None or len(shape) != 2 or min(shape) < 0:
        raise CorruptError(f"{path}: {origin} has no shape")
    missing = {"data", "indices", "indptr"} - set(group)
    if missing:
        raise CorruptError(f"{path}: {origin} has no {' and no '.join(sorted(missing))}")
    cells, genes = (int(n) for n in shape)
    by_gene = layout == "csc"
    data, indices, pointers = (_h5.Vector(group[part], path) for part in ("data", "indices", "indptr"))
    if data.size != indices.size:
        raise CorruptError(f"{path}: {origin} has {data.size} values but {indices.size} indices")
    if indices.dtype.kind not in "iu" or pointers.dtype.kind not in "iu":
        raise CorruptError(f"{path}: the indices of {origin} are no integers")
    indptr = pointers.read(0, pointers.size).astype(np.int64) if pointers.size else np.zeros(0, np.int64)
    _h5.check_indptr(indptr, genes if by_gene else cells, data.size, path, origin)

    def push(sink: Any, step: Callable[[int], None]) -> None:
        with closing(_h5.prefetched(_h5.compressed(indptr, indices.read, data.read))) as ahead:
            push_compressed(sink, step, by_gene, ahead)

    encoding = Encoding(layout, data.dtype.name, indices.dtype.name, pointers.dtype.name)
    return Matrix(origin, (cells, genes), encoding, int(indptr[-1]), push)


def _dense(dset: h5py.Dataset, path: str, origin: str) -> Matrix:
    cells, genes = dset.shape

    def parts() -> Iterator[tuple[int, np.ndarray]]:
        step = max(1, _h5.BATCH // max(genes, 1))
        if dset.chunks:  # whole chunks, so that none is decompressed twice
            step = max(dset.chunks[0], step - step % dset.chunks[0])
        for first in range(0, cells, step):
            with _h5.reading(path, f"{origin} from row {first}"):
                yield first, dset[first : first + step]

    def push(sink: Any, step: Callable[[int], None]) -> None:
        with closing(_h5.prefetched(parts())) as ahead:
            push_dense(sink, step, ahead)

    return Matrix(origin, (cells, genes), Encoding("dense", dset.dtype.name), cells * genes, push)
