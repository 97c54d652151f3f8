"""Writes a data set, or a part of it, as an h5ad file in bounded memory: anndata writes all but the values of the
matrices, which follow in parts."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Iterator

import h5py
import numpy as np

from skytether import ExhaustedError, InvalidError

from . import _features, _memory, _shell
from ._stream import Stream

if TYPE_CHECKING:
    import anndata

    from ._dataset import Dataset

#: Elements of a chunk of a list of values or indices.
_CHUNK = 1 << 16


class NotWritten(ExhaustedError):
    """An HDF5 file could not be written.

    HDF5 can't flush what it holds of the file, and crashes when it tries that at the end of the process.
    """


def write(ds: Dataset, path: str, genes: np.ndarray | None, cells: np.ndarray | None) -> tuple[int, int]:
    """Writes all of `ds`, or some genes and cells of it (numbers), to `path`. An unfinished file is next to it.

    Gives the numbers of cells and genes.

    Raises
    ------
    InvalidError
        It has names or values that h5ad files can't hold.
    NotWritten
        There is no room for it.
    """
    bare, matrices = _parts(ds, genes, cells)
    wrong = _shell.name_in_the_way(bare) or next(
        (f"layers[{m.removeprefix('layers/')!r}]" for m in matrices if m.startswith("layers/") and _is_path(m.removeprefix("layers/"))), None
    )
    if wrong is not None:
        raise InvalidError(f"{ds.name} has a name that h5ad files can't hold: {wrong}; use to_anndata() in Python, or rename it and ingest it again")
    aside = f"{path}.part"
    hooks = sys.excepthook, sys.unraisablehook
    # Where the disk is full, objects of HDF5 print a traceback each as they are deleted: one line is enough.
    sys.excepthook = sys.unraisablehook = lambda *_: None
    try:
        import anndata

        # Text stays text: what was ingested is what is written.
        with anndata.settings.override(allow_write_nullable_strings=True):
            try:
                bare.write_h5ad(aside, compression="gzip", convert_strings_to_categoricals=False)
            except (ValueError, TypeError, KeyError, NotImplementedError) as e:
                raise InvalidError(f"{ds.name} can't be written as an h5ad file: {_shell.unwritable(e)}") from e
        with h5py.File(aside, "r+") as file:
            for origin, stream in matrices.items():
                _matrix(file, origin, stream, os.path.dirname(os.path.abspath(path)))
        os.replace(aside, path)
    except (InvalidError, ExhaustedError):
        raise
    except (OSError, RuntimeError) as e:
        # HDF5 has the system's number in its text, and h5py not always in its error.
        found = re.search(r"\berrno = (\d+)", str(e))
        number = getattr(e, "errno", None) or (int(found[1]) if found else None)
        raise NotWritten(f"cannot write {path}: {os.strerror(number) if number else e}") from e
    finally:
        sys.excepthook, sys.unraisablehook = hooks
        if os.path.exists(aside):
            os.remove(aside)
    return bare.n_obs, bare.n_vars


def _is_path(name: str) -> bool:
    return "/" in name or "\0" in name or name in ("", ".", "..")


def _parts(ds: Dataset, genes: np.ndarray | None, cells: np.ndarray | None) -> tuple[anndata.AnnData, dict[str, Stream]]:
    """Everything of some genes and cells but the values of the matrices, and these by their place in the file."""
    stored = {kept["origin"]: table for table, kept in ds._kept["matrices"].items() if not kept["origin"].startswith(_features.ORIGIN)}
    shell = ds._shell
    if ds._swapped and genes is not None:
        # Of some of raw's genes, as in `Dataset.to_anndata`: these alone.
        some = shell[_all(cells)]
        raw = shell.raw
        bare = _memory.empty(
            some.obs.copy(),
            raw.var.iloc[genes].copy(),
            uns=dict(some.uns),
            obsm=dict(some.obsm),
            obsp=dict(some.obsp),
            varm={k: v.iloc[genes] if hasattr(v, "iloc") else v[genes] for k, v in raw.varm.items()},
        )
        return bare, {"X": Stream(ds, "x", genes, cells)}
    bare = shell.copy() if genes is None and cells is None else shell[_all(cells), :][:, _all(genes)].copy()
    return bare, {origin: Stream(ds, table, None if origin == "raw/X" else genes, cells) for origin, table in stored.items()}


def _all(chosen: np.ndarray | None) -> Any:
    return slice(None) if chosen is None else chosen


def _matrix(file: h5py.File, origin: str, stream: Stream, place: str) -> None:
    """Puts the values of a matrix where they belong in a file."""
    if origin in file:
        del file[origin]
    if stream.kept["layout"] == "dense":
        _dense(file, origin, stream, place)
        return
    by_gene = stream.kept["layout"] == "csc"
    group = file.create_group(origin)
    group.attrs["encoding-type"] = f"{stream.kept['layout']}_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    group.attrs["shape"] = np.array(stream.shape, np.int64)
    kinds = {"data": stream.dtype, "indices": np.dtype(stream.kept["index"])}
    lists = {name: group.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(_CHUNK,), compression="gzip", compression_opts=4) for name, kind in kinds.items()}
    lengths = []
    for part in _of(stream, place, by_gene):
        lengths.append(np.diff(part.indptr))
        for name, values in (("data", part.data), ("indices", part.indices)):
            there = lists[name]
            old = len(there)
            there.resize((old + len(values),))
            there[old:] = values.astype(there.dtype, copy=False)
    rows = np.concatenate([[0], *lengths]).astype(np.int64)
    group.create_dataset("indptr", data=np.cumsum(rows).astype(stream.kept["indptr"]), compression="gzip")


def _of(stream: Stream, place: str, by_gene: bool) -> Iterator[Any]:
    for _, part in stream.by_gene() if by_gene else stream.by_cell(place):
        part.sort_indices()
        yield part


def _dense(file: h5py.File, origin: str, stream: Stream, place: str) -> None:
    cells, genes = stream.shape
    options: dict[str, Any] = {"compression": "gzip", "chunks": (max(1, min(cells, _CHUNK // max(1, genes))), genes)} if cells and genes else {}
    there = file.create_dataset(origin, stream.shape, stream.dtype, **options)
    there.attrs["encoding-type"], there.attrs["encoding-version"] = "array", "0.2.0"
    for first, part in stream.by_cell(place, dense=True):
        there[first : first + part.shape[0]] = part.toarray().astype(stream.dtype, copy=False)
