"""AnnData as zarr: a directory or a zip file of it, of zarr's formats 2 and 3, streamed.

zarr takes a chunk that is not there for one that holds the fill value. So a copy that lacks files reads as zeros. Where
the values of a sparse matrix lack a chunk, this module refuses them: no program stores a whole chunk of zeros there.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import numpy as np

from skytether import CorruptError, InvalidError, SkytetherError, UnsupportedError

from . import _features, _h5, _h5ad, _shell, _tiles
from ._hints import chosen_modality, of_all_modalities
from ._source import ALL_LAYERS, Encoding, Layers, Matrix, Source, push_compressed

if TYPE_CHECKING:
    import anndata

#: Files that only directories of zarr have, of format 3 and of format 2.
_MARKS = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata")


def is_store(path: str) -> bool:
    """Whether a directory, or a zip file, holds zarr data."""
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, mark)) for mark in _MARKS)
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as packed:
        return any(name.rpartition("/")[2] in _MARKS for name in packed.namelist())


def source(path: str, layers: Layers = ALL_LAYERS, modality: str | None = None) -> Source:
    """Reads all but the matrices of an AnnData in zarr, and of its layers those that `layers` has. `modality` chooses
    one of a MuData's.

    Raises
    ------
    CorruptError
        A part is damaged or missing; the text names it.
    InvalidError
        It is no AnnData; or `modality` is needed, or not there.
    UnsupportedError
        It holds something that this anndata or this zarr can't read.
    """
    root, close = _opened(path)
    try:
        there = list(root["mod"].keys()) if "mod" in root else None
        chosen = chosen_modality(path, modality, there)
        columns = root["obs"].attrs.get("column-order", ()) if chosen is not None and "obs" in root else ()
        if chosen is not None:
            root = root["mod"][chosen]
        if "obs" not in root or "var" not in root:
            raise InvalidError(f"{path} is zarr, but no AnnData: it has no obs and var")
        left_out = {origin for origin in _origins(root) if not layers.keep(origin)}
        found = [m for m in (_element(root, path, o) for o in _origins(root) if o not in left_out) if m is not None]
        adata = _bare(root, path, found, left_out)
        for m in found:
            genes = adata.raw.n_vars if m.origin == "raw/X" else adata.n_vars
            if m.shape != (adata.n_obs, genes):
                raise CorruptError(f"{path}: {m.origin} is {m.shape[0]} x {m.shape[1]}, but obs and var say {adata.n_obs} x {genes}")
        raw_var = adata.raw.var if any(m.origin == "raw/X" for m in found) else None
        made = Source(path, adata.obs, adata.var, found, _shell.of_anndata(adata, path), raw_var, _h5ad.log1p_base(adata.uns, path), close, left_out=left_out)
    except BaseException:
        close()
        raise
    made.modal = chosen is not None
    notes = [_features.mixed(path, adata.var["feature_types"]) if "feature_types" in adata.var else None]
    notes.append(of_all_modalities(path, columns, there or [], adata.obs.columns))
    made.note = "; ".join(filter(None, notes)) or None
    return made


def _opened(path: str) -> tuple[Any, Callable[[], None]]:
    """The group of an AnnData at `path`, and what closes it. A zip file may hold the directory itself, or its files."""
    try:
        import zarr
        import zarr.storage
    except ImportError as e:
        raise UnsupportedError(f"{path} is zarr, which needs a package that is not installed: pip install zarr") from e
    store = None
    with _reading(path, "the group at its root"):
        if os.path.isdir(path):
            return zarr.open_group(path, mode="r"), lambda: None
        store = zarr.storage.ZipStore(path, mode="r")
        with zipfile.ZipFile(path) as packed:
            marked = [name.rpartition("/")[0] for name in packed.namelist() if name.rpartition("/")[2] in _MARKS]
        inside = min(marked, key=lambda name: (name.count("/") + bool(name), len(name)))
        return zarr.open_group(store, path=inside or None, mode="r"), store.close


@contextmanager
def _reading(path: str, what: str) -> Iterator[None]:
    """Turns what zarr and its codecs raise about broken bytes into `CorruptError`, naming the place."""
    try:
        yield
    except (SkytetherError, MemoryError):
        raise
    except Exception as e:  # each codec and store raises kinds of its own
        lines = " ".join(str(e).strip("'\"").split())
        raise CorruptError(f"{path}: cannot read {what}: {lines or type(e).__name__}; copy or write it again") from e


def _origins(root: Any) -> Iterator[str]:
    yield "X"
    if "raw" in root and "X" in root["raw"]:
        yield "raw/X"
    if "layers" in root:
        yield from (f"layers/{name}" for name in root["layers"].keys())


def _is_array(element: Any) -> bool:
    return hasattr(element, "chunks")


def _element(root: Any, path: str, origin: str) -> Matrix | None:
    """The matrix at `origin`, or None where there is none that could be stored as one."""
    with _reading(path, origin):
        if origin not in root:
            return None
        element = root[origin]
        kind = str(element.attrs.get("encoding-type", "array" if _is_array(element) else ""))
        if _is_array(element):
            if kind == "array" and element.ndim == 2 and element.dtype.kind in "iufb":
                return _dense(element, path, origin)
            if origin == "X" and kind != "null":
                raise InvalidError(f"{path}: X is an array of {element.ndim} dimensions of {element.dtype}, which is no matrix of numbers")
            return None
        layout = {"csr_matrix": "csr", "csc_matrix": "csc"}.get(kind)
        return None if layout is None else _sparse(element, path, origin, layout)


class Vector:
    """A one-dimensional array that is read in ranges, mostly one after the other. The end of the last chunk is kept, so
    that none is decompressed twice."""

    def __init__(self, array: Any, path: str, where: str) -> None:
        if not _is_array(array) or array.ndim != 1 or array.dtype.kind not in "iufb":
            raise CorruptError(f"{path}: {where} is not a list of numbers")
        self._array, self._path, self._where = array, path, where
        self.size, self.dtype = int(array.shape[0]), np.dtype(array.dtype)
        self._chunk = max(1, int(array.chunks[0]))
        self._from, self._ahead = 0, np.zeros(0, self.dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Elements start..stop."""
        if start < self._from or start > self._from + len(self._ahead):
            self._from, self._ahead = start, self._ahead[:0]
        got = self._from + len(self._ahead)
        if stop > got:
            end = min(self.size, -(-stop // self._chunk) * self._chunk)
            with _reading(self._path, f"{self._where}[{start}:{stop}]"):
                more = np.asarray(self._array[got:end])
            self._ahead = np.concatenate([self._ahead[start - self._from :], more])
            self._from = start
        out = self._ahead[start - self._from : stop - self._from]
        # A copy, so that a chunk does not stay in memory for its last values.
        self._ahead, self._from = self._ahead[stop - self._from :].copy(), stop
        return out


def _sparse(group: Any, path: str, origin: str, layout: str) -> Matrix:
    shape = group.attrs.get("shape")
    if shape is None or len(shape) != 2 or min(shape) < 0:
        raise CorruptError(f"{path}: {origin} has no shape")
    missing = {"data", "indices", "indptr"} - set(group.keys())
    if missing:
        raise CorruptError(f"{path}: {origin} has no {' and no '.join(sorted(missing))}")
    cells, genes = (int(n) for n in shape)
    by_gene = layout == "csc"
    data, indices, pointers = (Vector(group[part], path, f"{origin}/{part}") for part in ("data", "indices", "indptr"))
    if data.size != indices.size:
        raise CorruptError(f"{path}: {origin} has {data.size} values but {indices.size} indices")
    if indices.dtype.kind not in "iu" or pointers.dtype.kind not in "iu":
        raise CorruptError(f"{path}: the indices of {origin} are no integers")
    array = group["data"]
    stored, chunks = int(array.nchunks_initialized), int(array.nchunks)
    if stored < chunks:
        raise CorruptError(f"{path}: {origin}/data has {stored} of its {chunks} chunks: copy it whole, or write it again without stored zeros (eliminate_zeros())")
    indptr = pointers.read(0, pointers.size).astype(np.int64) if pointers.size else np.zeros(0, np.int64)
    _h5.check_indptr(indptr, genes if by_gene else cells, data.size, path, origin)

    def push(sink: Any, step: Callable[[int], None]) -> None:
        with closing(_h5.prefetched(_h5.compressed(indptr, indices.read, data.read))) as ahead:
            push_compressed(sink, step, by_gene, ahead)

    return Matrix(origin, (cells, genes), Encoding(layout, data.dtype.name, indices.dtype.name, pointers.dtype.name), int(indptr[-1]), push)


def _dense(array: Any, path: str, origin: str) -> Matrix:
    shape = (int(array.shape[0]), int(array.shape[1]))

    def read(a: int, b: int, c: int, d: int) -> np.ndarray:
        with _reading(path, f"{origin} from row {a}"):
            return np.asarray(array[a:b, c:d])

    def push(sink: Any, step: Callable[[int], None]) -> None:
        parts = _tiles.tiles(shape, _tiles.spans(shape, array.chunks), read)
        with closing(_h5.prefetched(parts)) as ahead:
            _tiles.push(sink, step, shape[1], False, ahead)

    return Matrix(origin, shape, Encoding("dense", np.dtype(array.dtype).name), shape[0] * shape[1], push)


def _bare(root: Any, path: str, found: list[Matrix], left_out: set[str]) -> anndata.AnnData:
    """Everything but the values of the matrices `found` and the layers `left_out`: an AnnData with empty matrices."""
    import anndata
    import scipy.sparse

    origins = {m.origin: m for m in found}
    foreign = [key for key in root.keys() if key not in _shell.PARTS]
    if foreign:
        warnings.warn(f"{path}: {', '.join(map(repr, foreign))} {'is' if len(foreign) == 1 else 'are'} no part of AnnData and left out", stacklevel=6)

    def element(key: str) -> Any:
        try:
            return anndata.io.read_elem(root[key])
        except (MemoryError, SkytetherError):
            raise
        except Exception as e:  # anndata, pandas, numpy, zarr and codecs raise many kinds
            raise _shell.unreadable(e, path) from e

    def empty(shape: tuple[int, int]) -> Any:
        return scipy.sparse.csr_matrix(shape, dtype=np.float32)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = {key: element(key) for key in ("obs", "var", "uns", "obsm", "varm", "obsp", "varp") if key in root}
        obs, var = parts["obs"], parts["var"]
        raw = None
        if "raw" in root:
            raw_var = element("raw/var")
            raw_x = empty((len(obs), len(raw_var))) if "raw/X" in origins else element("raw/X")
            raw = {"X": raw_x, "var": raw_var, "varm": element("raw/varm") if "varm" in root["raw"] else {}}
        layers = [name for name in (root["layers"].keys() if "layers" in root else ()) if f"layers/{name}" not in {*origins, *left_out}]
        if layers:
            raise UnsupportedError(f"{path}: layers/{layers[0]} is no matrix of numbers: choose with layers= which layers to keep")
        try:
            return anndata.AnnData(X=empty((len(obs), len(var))) if "X" in origins else None, raw=raw, **parts)
        except (ValueError, TypeError, KeyError, IndexError) as e:
            raise CorruptError(f"{path}: its parts do not belong together: {' '.join(str(e).split())}") from e
