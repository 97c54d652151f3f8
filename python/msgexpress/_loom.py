"""Loom files (.loom) of versions 2 and 3: genes as rows, cells as columns, streamed.

What loompy calls the main layer (``/matrix``) is X, the other layers keep their names. Attributes of one value a cell
or gene become columns of obs or var, those of several values become obsm or varm, and graphs become obsp or varp.
anndata's `read_loom` does the same with ``X_name=""``; it leaves graphs out.
"""

from __future__ import annotations

import html
from contextlib import closing
from typing import Any, Callable, Sequence

import h5py
import numpy as np

from skytether import CorruptError, InvalidError

from . import _h5, _tiles
from ._source import ALL_LAYERS, Encoding, Layers, Matrix, Source

#: Attributes that name cells and genes, the usual one first.
_CELLS = ("CellID", "cell_id", "obs_names", "cell_names", "barcodes", "barcode", "cell_barcode")
_GENES = ("Gene", "gene", "gene_names", "gene_name", "var_names", "gene_symbols", "gene_symbol", "Accession", "gene_ids", "gene_id")


def is_loom(file: h5py.File) -> bool:
    """Whether an open HDF5 file is loom's."""
    return isinstance(file.get("matrix"), h5py.Dataset) and "row_attrs" in file and "col_attrs" in file


def source(path: str, layers: Layers = ALL_LAYERS) -> Source:
    """Reads all but the matrices of a loom file, and of its layers those that `layers` has; it stays open until
    `Source.close`.

    Raises
    ------
    CorruptError
        The file is cut short or damaged; the text names the data set.
    InvalidError
        It is no loom file, or its matrix holds no numbers.
    """
    import scipy.sparse

    from . import _memory

    file = _h5.open_file(path)
    try:
        with _h5.reading(path, "the layers"):
            if not is_loom(file):
                raise InvalidError(f"{path} is no loom file: it has no matrix, row_attrs and col_attrs")
            genes, cells = (int(n) for n in file["matrix"].shape) if file["matrix"].ndim == 2 else (0, 0)
            origins = {"X": file["matrix"]}
            group = file.get("layers")
            origins.update((f"layers/{name}", group[name]) for name in (group if isinstance(group, h5py.Group) else ()))
        left_out = {origin for origin in origins if not layers.keep(origin)}
        found = [_matrix(dset, path, origin, (cells, genes)) for origin, dset in origins.items() if origin not in left_out]
        notes: list[str] = []
        obs, obsm = _attributes(file, path, "col_attrs", cells, _CELLS, notes)
        var, varm = _attributes(file, path, "row_attrs", genes, _GENES, notes)
        parts = {"obsm": obsm, "varm": varm}
        for key, graphs, n in (("obsp", "col_graphs", cells), ("varp", "row_graphs", genes)):
            parts[key] = {
                name: scipy.sparse.csr_matrix(_graph(file[graphs], path, name, n)) for name in (file[graphs] if isinstance(file.get(graphs), h5py.Group) else ())
            }
        made = _memory.frames_source(path, obs, var, found, **parts)
    except BaseException:
        file.close()
        raise
    made.close, made.left_out = file.close, left_out
    made.note = "; ".join(notes) or None
    return made


def _matrix(dset: Any, path: str, origin: str, shape: tuple[int, int]) -> Matrix:
    """A matrix of genes as rows, given as one of cells x genes."""
    cells, genes = shape
    if not isinstance(dset, h5py.Dataset) or dset.ndim != 2 or dset.shape != (genes, cells):
        raise CorruptError(f"{path}: {dset.name.lstrip('/')} is not of {genes} genes x {cells} cells, as matrix is")
    if dset.dtype.kind not in "iufb":
        raise InvalidError(f"{path}: {dset.name.lstrip('/')} holds {dset.dtype}, which are no expression values")

    def read(a: int, b: int, c: int, d: int) -> np.ndarray:
        with _h5.reading(path, f"{dset.name.lstrip('/')} from gene {a}"):
            return dset[a:b, c:d]

    def push(sink: Any, step: Callable[[int], None]) -> None:
        parts = _tiles.tiles(dset.shape, _tiles.spans(dset.shape, dset.chunks), read)
        with closing(_h5.prefetched(parts)) as ahead:
            _tiles.push(sink, step, cells, True, ahead)

    # scipy has no sparse matrices of float16.
    dtype = "float32" if dset.dtype == np.float16 else dset.dtype.name
    return Matrix(origin, shape, Encoding("csr", dtype, "int32", "int32"), cells * genes, push)


def _attributes(file: h5py.File, path: str, axis: str, n: int, names: Sequence[str], notes: list[str]) -> tuple[Any, dict[str, np.ndarray]]:
    """The attributes of cells or genes: those of one value each as a frame, and the others by name."""
    import pandas as pd

    columns: dict[str, np.ndarray] = {}
    wide: dict[str, np.ndarray] = {}
    for name in file[axis]:
        with _h5.reading(path, f"{axis}/{name}"):
            values = file[axis][name][()]
        if not isinstance(values, np.ndarray) or values.ndim == 0 or len(values) != n:
            raise CorruptError(f"{path}: {axis}/{name} has {np.shape(values)} values instead of {n}")
        values = _texts(values)
        if values.ndim > 1 and values.shape[1] != 1:
            wide[name] = values
        else:
            columns[name] = values.reshape(n)
    key = next((name for name in names if name in columns), None)
    if key is None:
        what = "cells" if axis == "col_attrs" else "genes"
        notes.append(f"{path} names no {what} ({axis} has none of {', '.join(names)}): they go by their numbers")
        return pd.DataFrame(columns, index=[str(i) for i in range(n)]), wide
    index = pd.Index(columns.pop(key).astype(str).astype(object), name=key)
    return pd.DataFrame(columns, index=index), wide


def _texts(values: np.ndarray) -> np.ndarray:
    """Texts as loompy reads them: bytes decoded, and XML's names for signs replaced by these. Numbers as they are."""
    if values.dtype.kind not in "SOU":
        return values
    out = np.empty(values.shape, object)
    for at, value in np.ndenumerate(values):
        out[at] = html.unescape(_h5.text(value))
    return out


def _graph(group: h5py.Group, path: str, name: str, n: int) -> Any:
    """A graph, stored as the edges from `a` to `b` with the weights `w`."""
    import scipy.sparse

    with _h5.reading(path, f"{group.name.lstrip('/')}/{name}"):
        a, b, w = (group[name][part][()] for part in ("a", "b", "w"))
        if not len(a) == len(b) == len(w) or (len(a) and (min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= n)):
            raise CorruptError(f"{path}: {group.name.lstrip('/')}/{name} has edges that are none between {n} nodes")
    return scipy.sparse.coo_matrix((w, (a, b)), shape=(n, n))
