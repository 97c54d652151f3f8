"""AnnData files (.h5ad), of today and of before anndata 0.7, and the modalities of MuData files (.h5mu), streamed: only
the matrices' structure is ever held whole."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Callable, Iterator

import h5py
import numpy as np

from skytether import CorruptError, InvalidError

from . import _features, _h5, _shell, _tiles
from ._hints import chosen_modality, of_all_modalities
from ._source import ALL_LAYERS, Encoding, Layers, Matrix, Source, push_compressed


def is_h5ad(file: h5py.Group) -> bool:
    """Whether an open HDF5 file, or a group, is AnnData's."""
    return "obs" in file and "var" in file


def is_h5mu(file: h5py.File) -> bool:
    """Whether an open HDF5 file is MuData's, with an AnnData for each modality."""
    return isinstance(file.get("mod"), h5py.Group)


def source(path: str, layers: Layers = ALL_LAYERS, modality: str | None = None) -> Source:
    """Reads all but the matrices of an h5ad file, and of its layers those that `layers` has; the file stays open until
    `Source.close`. Of an h5mu file `modality` chooses the AnnData; where it has only one, that is it.

    Raises
    ------
    CorruptError
        The file is cut short or damaged; the text names the data set.
    InvalidError
        It is no AnnData file; or `modality` is needed, or not there.
    UnsupportedError
        It holds something that this anndata can't read.
    """
    opened = _h5.open_file(path)
    try:
        with _h5.reading(path, "mod"):
            there = list(opened["mod"]) if is_h5mu(opened) else None
            chosen = chosen_modality(path, modality, there)
            file = opened if chosen is None else opened["mod"][chosen]
        if not is_h5ad(file):
            raise InvalidError(
                f"{path} is no h5ad file: it has no obs and var" if chosen is None else f"{path}: modality {chosen!r} is no AnnData: it has no obs and var"
            )
        left_out = {origin for origin in _origins(file) if not layers.keep(origin)}
        found = [m for m in (_element(file, path, o) for o in _origins(file) if o not in left_out) if m is not None]
        raw_genes = next((m.shape[1] for m in found if m.origin == "raw/X"), None)
        with _h5.reading(path, "obs, var and the like"):
            shell = _shell.of_file(file, path, {m.origin for m in found}, raw_genes, left_out)
        adata = _shell.opened(shell, path)
    except BaseException:
        opened.close()
        raise
    for m in found:
        genes = raw_genes if m.origin == "raw/X" else adata.n_vars
        if m.shape != (adata.n_obs, genes):
            opened.close()
            raise CorruptError(f"{path}: {m.origin} is {m.shape[0]} x {m.shape[1]}, but obs and var say {adata.n_obs} x {genes}")
    raw_var = adata.raw.var if raw_genes is not None else None
    made = Source(path, adata.obs, adata.var, found, shell, raw_var, log1p_base(adata.uns, path), opened.close, left_out=left_out)
    made.modal = chosen is not None
    notes = [_features.mixed(path, adata.var["feature_types"]) if "feature_types" in adata.var else None]
    if chosen is not None and isinstance(opened.get("obs"), h5py.Group):
        notes.append(of_all_modalities(path, map(_h5.text, opened["obs"].attrs.get("column-order", ())), there or [], adata.obs.columns))
    made.note = "; ".join(filter(None, notes)) or None
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


def _origins(file: h5py.Group) -> Iterator[str]:
    yield "X"
    if isinstance(file.get("raw"), h5py.Group):
        yield "raw/X"
    elif "raw.X" in file:  # before anndata 0.7
        yield "raw.X"
    layers = file.get("layers")
    if isinstance(layers, h5py.Group):
        yield from (f"layers/{name}" for name in layers)


def _element(file: h5py.Group, path: str, key: str) -> Matrix | None:
    """The matrix below `key`, or None where there is none that could be stored as one (it stays in the shell then)."""
    with _h5.reading(path, key):
        found = file.get(key)
        return None if found is None else element(found, path, "raw/X" if key == "raw.X" else key)


def element(stored: h5py.Group | h5py.Dataset, path: str, origin: str) -> Matrix | None:
    """A group or data set of a file as the matrix at `origin`; None where it is none that could be stored as one."""
    with _h5.reading(path, origin):
        if isinstance(stored, h5py.Group):
            layout = _sparse_layout(stored)
            return None if layout is None else _sparse(stored, path, origin, layout)
        encoding = _h5.text(stored.attrs.get("encoding-type", "array"))
        if stored.ndim == 2 and stored.dtype.kind in "iufb" and encoding == "array":
            return _dense(stored, path, origin)
        if origin != "X" or stored.shape is None or encoding == "null":
            return None
        if stored.ndim == 2:
            raise InvalidError(f"{path}: X holds {stored.dtype}, which are no expression values")
        raise CorruptError(f"{path}: X has {stored.ndim} dimensions instead of 2")


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
    shape = dset.shape

    def read(a: int, b: int, c: int, d: int) -> np.ndarray:
        with _h5.reading(path, f"{origin} from row {a}"):
            return dset[a:b, c:d]

    def push(sink: Any, step: Callable[[int], None]) -> None:
        parts = _tiles.tiles(shape, _tiles.spans(shape, dset.chunks), read)
        with closing(_h5.prefetched(parts)) as ahead:
            _tiles.push(sink, step, shape[1], False, ahead)

    return Matrix(origin, shape, Encoding("dense", dset.dtype.name), shape[0] * shape[1], push)
