"""Matrix Market files in Python, for sources that are joined: the engine's own reader takes a file whole, and its first
cell for the first of the data set (`MatrixWriter.push_mtx`)."""

from __future__ import annotations

import gzip
import warnings
import zlib
from contextlib import closing
from pathlib import Path
from typing import IO, Iterator

import numpy as np

from skytether import CorruptError, _internal

from . import _h5

try:  # Intel's inflate: twice as fast as zlib
    from isal import igzip
    from isal.isal_zlib import IsalError
except ImportError:
    igzip, IsalError = gzip, zlib.error  # type: ignore[assignment,misc]

#: Bytes that are read at a time.
_BLOCK = 1 << 22

#: Rows and columns from 0, and values.
Entries = tuple[np.ndarray, np.ndarray, np.ndarray]


def entries(path: str | Path) -> Iterator[Entries]:
    """The entries of a file, some at a time. Its header is checked by the engine's reader.

    Raises
    ------
    CorruptError
        It is cut short or damaged, or holds what is no entry of its matrix.
    """
    path = str(path)
    rows, columns, announced = _internal.mtx_shape(path)
    read = 0
    try:
        with (igzip.open if path.endswith(".gz") else open)(path, "rb") as file, closing(_h5.prefetched(_texts(file))) as texts:
            banner = next(texts)
            words = 2 if b"pattern" in banner else 3
            for text in texts:
                found = _numbers(path, text, words)
                row, column = found[:, 0], found[:, 1]
                value = found[:, 2] if words == 3 else np.ones(len(found))
                fits = (row >= 1) & (row <= rows) & (column >= 1) & (column <= columns) & np.isfinite(value)
                if not fits.all() or (row != np.floor(row)).any() or (column != np.floor(column)).any():
                    shown = " ".join(f"{v:g}" for v in found[int(np.argmin(fits))])
                    raise CorruptError(f"{path}: entry {read + int(np.argmin(fits)) + 1} ({shown}) is none of a matrix of {rows} x {columns}")
                read += len(found)
                yield row.astype(np.int32) - 1, column.astype(np.int32) - 1, value
    except (OSError, EOFError, zlib.error, IsalError) as e:
        raise CorruptError(f"cannot read {path}: {e}; fetch or write it again") from e
    if read != announced:
        raise CorruptError(f"{path}: {read} entries instead of the {announced} announced: fetch or write it again")


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """The first line, and then the lines of entries without comments, some at a time."""
    yield file.readline().lower()
    line = file.readline()
    while line and (line.startswith(b"%") or not line.strip()):
        line = file.readline()
    rest = b""
    while read := file.read(_BLOCK):
        text, end, rest = (rest + read).rpartition(b"\n")
        yield _bare(text + end)
    yield _bare(rest)


def _bare(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    return b"\n".join(line for line in text.split(b"\n") if not line.lstrip().startswith(b"%"))


def _numbers(path: str, text: bytes, words: int) -> np.ndarray:
    """The numbers of some lines, a row for each line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = np.fromstring(text.decode("ascii"), np.float64, sep=" ") if text.strip() else np.zeros(0)
        except (ValueError, DeprecationWarning, UnicodeDecodeError):
            found = np.zeros(1)
    if len(found) % words or len(found) != words * sum(1 for line in text.split(b"\n") if line.strip()):
        line = next((line for line in text.split(b"\n") if line.strip() and not _is_entry(line, words)), b"")
        raise CorruptError(f"{path}: {line[:40].decode('utf-8', 'replace')!r} is no entry: {words} numbers are")
    return found.reshape(-1, words)


def _is_entry(line: bytes, words: int) -> bool:
    try:
        return len([float(word) for word in line.split()]) == words
    except ValueError:
        return False
