"""Reading HDF5 fast and safely: long one-dimensional data sets chunk by chunk, and errors that name the file.

h5py decompresses inside HDF5, on one thread and holding Python's lock. This module fetches the chunks of the plain
filters (none, gzip, shuffle + gzip: those of AnnData and Cell Ranger) as they are and decompresses them here. So a
reading thread runs in parallel with the transposition, and reading is several times faster. Other filters go through
h5py.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, TypeVar

import h5py
import numpy as np

from skytether import CorruptError, InvalidError, NotFoundError

try:  # Intel's inflate: twice as fast as zlib
    from isal.isal_zlib import IsalError, decompress
except ImportError:
    from zlib import decompress, error as IsalError

T = TypeVar("T")

#: Nonzeros that are read at a time: 16 to 24 MB.
BATCH = 1 << 21

_GZIP, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE


@contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Turns what h5py and the decompressors raise about broken bytes into `CorruptError`, naming file and data set."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, zlib.error, IsalError, UnicodeDecodeError) as e:
        if isinstance(e, (CorruptError, NotFoundError)):
            raise
        raise CorruptError(f"{path}: cannot read {what}: {_first_line(e)}") from e


def open_file(path: str) -> h5py.File:
    """Opens an HDF5 file for reading.

    Raises
    ------
    NotFoundError
        There is no such file.
    CorruptError
        It is cut short or damaged.
    InvalidError
        It is no HDF5 file at all.
    """
    if not os.path.exists(path):
        raise NotFoundError(f"there is no file {path}")
    if not h5py.is_hdf5(path):
        if os.path.getsize(path) == 0:
            raise CorruptError(f"{path}: the file is empty")
        raise InvalidError(f"{path} is no HDF5 file (h5ad and 10x .h5 are)")
    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError) as e:
        raise CorruptError(f"{path} is truncated or not an HDF5 file ({_first_line(e)}): fetch or write it again") from e


class Vector:
    """A one-dimensional numeric data set that is read in ranges, mostly one after the other."""

    def __init__(self, dset: Any, path: str) -> None:
        self.path = path
        self.where = str(getattr(dset, "name", "?")).lstrip("/")
        if not isinstance(dset, h5py.Dataset) or dset.ndim != 1 or dset.dtype.kind not in "iufb":
            raise CorruptError(f"{path}: {self.where} is not a list of numbers")
        self.dset, self.dtype, self.size = dset, dset.dtype, dset.shape[0]
        self._filters = _plain_filters(dset)
        self._kept: tuple[int, np.ndarray] | None = None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Elements start..stop."""
        with reading(self.path, f"{self.where}[{start}:{stop}]"):
            if self._filters is None:
                return self.dset[start:stop]
            step = self.dset.chunks[0]
            first, last = start // step, (stop - 1) // step
            if first == last:
                return self._chunk(first)[start - first * step : stop - first * step]
            out = np.empty(stop - start, self.dtype)
            for k in range(first, last + 1):
                a, b = max(start, k * step), min(stop, (k + 1) * step)
                out[a - start : b - start] = self._chunk(k)[a - k * step : b - k * step]
            return out

    def _chunk(self, k: int) -> np.ndarray:
        if self._kept is not None and self._kept[0] == k:
            return self._kept[1]
        step = self.dset.chunks[0]
        size = step * self.dtype.itemsize
        try:
            skipped, raw = self.dset.id.read_direct_chunk((k * step,))
        except (OSError, RuntimeError, ValueError):
            skipped, raw = -1, b""
        if skipped:  # a chunk that is not stored, or not by all filters: HDF5 knows what to do
            block = self.dset[k * step : min((k + 1) * step, self.size)]
        else:
            if _GZIP in self._filters:
                raw = decompress(raw, 15, size)
            if len(raw) != size:
                raise CorruptError(f"{self.path}: chunk {k} of {self.where} has {len(raw)} bytes instead of {size}")
            if _SHUFFLE in self._filters:
                planes = np.frombuffer(raw, np.uint8).reshape(self.dtype.itemsize, step)
                block = np.ascontiguousarray(planes.T).reshape(-1).view(self.dtype)
            else:
                block = np.frombuffer(raw, self.dtype)
        self._kept = (k, block)
        return block


def _plain_filters(dset: h5py.Dataset) -> list[int] | None:
    """The filters in the order of writing, where this module can undo them; None where HDF5 must."""
    if dset.chunks is None or not dset.dtype.isnative or dset.dtype.kind == "b":
        return None
    properties = dset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    return filters if filters in ([], [_GZIP], [_SHUFFLE, _GZIP], [_SHUFFLE]) else None


def ranges(indptr: np.ndarray, batch: int = BATCH) -> Iterator[tuple[int, int]]:
    """Runs of whole rows with about `batch` nonzeros each (at least one row), covering all rows."""
    row, rows = 0, len(indptr) - 1
    while row < rows:
        end = int(np.searchsorted(indptr, indptr[row] + batch, side="right")) - 1
        end = min(max(end, row + 1), rows)
        yield row, end
        row = end


def compressed(
    indptr: np.ndarray, indices: Callable[[int, int], np.ndarray], data: Callable[[int, int], np.ndarray]
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """The parts of a compressed matrix: the first row, row pointers from 0, indices, values. `indices` and `data` read
    from one place to another."""
    for a, b in ranges(indptr):
        low, high = int(indptr[a]), int(indptr[b])
        yield a, indptr[a : b + 1] - low, indices(low, high), data(low, high)


def check_indptr(indptr: np.ndarray, rows: int, stored: int, path: str, where: str) -> None:
    """Refuses row pointers that can't be right."""
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] > stored or (np.diff(indptr) < 0).any():
        raise CorruptError(f"{path}: {where}/indptr does not describe {rows} rows over {stored} values")


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """The items, each next one already being made in a thread while the current one is used."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "msgexpress-read") as pool:
        ahead = pool.submit(next, source, end)
        while (item := ahead.result()) is not end:
            ahead = pool.submit(next, source, end)
            yield item  # type: ignore[misc]


def text(value: Any) -> str:
    """An HDF5 string attribute or element, however it was stored."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def strings(dset: h5py.Dataset, path: str) -> list[str]:
    """All elements of a data set of strings."""
    with reading(path, dset.name.lstrip("/")):
        return [text(v) for v in dset[:]]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip("'\"").splitlines()
    return lines[0] if lines else type(error).__name__
