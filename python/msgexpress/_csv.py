"""Text files of a whole matrix (.csv, .tsv, .txt, with .gz or not): a line of names, then a line for each gene (or
cell) with its name and all of its values, zeros among them. It is what GEO has most.

The file is read twice, in blocks of whole lines: first the names, as the number of lines is not known before, then the
values. Most of them are the single sign ``0``; only the others are looked at as text.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Callable, Iterator

import numpy as np

from skytether import CorruptError, InvalidError, NotFoundError

from . import _h5, _orientation
from ._source import Encoding, Matrix, Source, push_compressed

try:  # Intel's inflate: twice as fast as zlib
    from isal import igzip
    from isal.isal_zlib import IsalError
except ImportError:
    igzip, IsalError = gzip, zlib.error  # type: ignore[assignment,misc]

#: Endings of such files, without ``.gz``.
ENDINGS = (".csv", ".tsv", ".txt", ".tab")
#: Bytes that are read at a time.
BLOCK = 1 << 21
#: The longest text that may be a number.
_LONGEST = 64
#: Which bytes a number may have.
_OF_NUMBERS = np.zeros(256, bool)
_OF_NUMBERS[list(b"0123456789+-.eE")] = True
#: Texts for a missing value.
_MISSING = {"", "na", "nan", "n/a", "null", "none", "#n/a"}


@dataclass
class Table:
    """How a file is divided, and its names."""

    path: str
    delimiter: bytes
    #: The first field of the first line, if it is above the names of the rows.
    corner: str
    columns: list[str]
    rows: list[str]


def source(path: str, orientation: str | None = None) -> Source:
    """A text file of a matrix; `orientation` says whether its rows are genes or cells, where names do not.

    Values become float32, as for scanpy's `read_csv`; float64 where there are integers beyond 2^24.

    Raises
    ------
    InvalidError
        It is no such table; names do not say what its rows are; or it holds what is no number. The text names the row
        and the column.
    CorruptError
        It is cut short or damaged, or no UTF-8.
    """
    import pandas as pd

    from . import _memory

    _orientation.check(orientation)
    table = _named(path)
    by_gene = _orientation.decided(path, orientation, table.corner, table.rows, table.columns) == _orientation.GENES
    genes, cells = (table.rows, table.columns) if by_gene else (table.columns, table.rows)
    encoding = Encoding("csr", "float32", "int32", "int32")

    def push(sink: Any, step: Callable[[int], None]) -> None:
        with closing(_h5.prefetched(_parts(table, encoding))) as ahead:
            for first, indptr, columns, values in ahead:
                push_compressed(sink, lambda _: None, by_gene, iter([(first, indptr, columns, values)]))
                step((len(indptr) - 1) * len(table.columns))

    matrix = Matrix("X", (len(cells), len(genes)), encoding, len(cells) * len(genes), push)
    made = _memory.frames_source(path, pd.DataFrame(index=cells), pd.DataFrame(index=genes), [matrix])
    made.oriented = True
    return made


# ---- names


def _named(path: str) -> Table:
    """Reads the names of a file's rows and columns, and finds its delimiter."""
    with closing(_blocks(path)) as blocks:
        lines = next(blocks, [])
        while len(lines) == 1 and (more := next(blocks, [])):
            lines += more
        if len(lines) < 2:
            raise InvalidError(f"{path} has {'no line' if not lines else 'only one line'}: a matrix has a line of names, and then a line for each gene or cell")
        delimiter, fields = _divided(path, lines[0], lines[1])
        width = len(_fields(_text(path, lines[1], 2), delimiter))
        corner, columns = (fields[0], fields[1:]) if len(fields) == width else ("", fields)
        if columns and len(set(columns)) < len(columns) and all(map(_is_number, columns)):
            raise InvalidError(f"{path}: its first line has numbers only, and some repeat: put a line of names before it")
        table = Table(path, delimiter.encode(), corner, columns, [])
        number = 2
        lines = lines[1:]
        while lines:
            for line in lines:
                table.rows.append(_name(table, line, number)[0])
                number += 1
            lines = next(blocks, [])
    return table


def _divided(path: str, first: bytes, second: bytes) -> tuple[str, list[str]]:
    """The delimiter of a file, and the fields of its first line. They are as many as those of the second, or one less
    where the names of rows have no head, as R writes it."""
    texts = _text(path, first, 1), _text(path, second, 2)
    order = ",;\t " if path.lower().removesuffix(".gz").endswith(".csv") else "\t,; "
    for delimiter in order:
        head, row = (_fields(text, delimiter) for text in texts)
        if len(row) > 1 and len(row) - len(head) in (0, 1):
            return delimiter, head
    counts = ", ".join(f"{len(_fields(texts[0], sign))} and {len(_fields(texts[1], sign))} by {name}" for sign, name in ((",", "commas"), ("\t", "tabs")))
    raise InvalidError(
        f"{path} is no table of a matrix: its first two lines have different numbers of fields ({counts}); "
        "a line of names and a line for each gene or cell have as many, or the first has one less"
    )


def _fields(line: str, delimiter: str) -> list[str]:
    found = next(csv.reader([line], delimiter=delimiter), [])
    return found if delimiter == " " else [field.strip(" ") for field in found]


def _text(path: str, line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as e:
        raise CorruptError(f"{path}: line {number} is no UTF-8 ({e.reason}): write the file with that encoding") from e


def _name(table: Table, line: bytes, number: int) -> tuple[str, int]:
    """The name at the beginning of a line, and where what follows the delimiter begins."""
    if line[:1] == b'"':
        end = line.find(b'"', 1)
        while 0 < end and line[end + 1 : end + 2] == b'"':
            end = line.find(b'"', end + 2)
        if end > 0 and line[end + 1 : end + 2] == table.delimiter:
            return _text(table.path, line[1:end], number).replace('""', '"'), end + 2
        raise InvalidError(f"{table.path}: line {number} begins with a quotation mark that is not closed before a delimiter")
    end = line.find(table.delimiter)
    if end < 0:
        shown = _text(table.path, line[:40], number)
        raise InvalidError(f"{table.path}: line {number} ({shown!r}) has no values; each line has a name and {len(table.columns)} values")
    return _text(table.path, line[:end], number).strip(" "), end + 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- values


def _parts(table: Table, encoding: Encoding) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """The rows of a file as parts of a compressed matrix."""
    first, skip = 0, 1
    with closing(_blocks(table.path)) as blocks:
        for lines in blocks:
            rests = []
            for number, line in enumerate(lines[skip:], first + 2):
                rests.append(line[_name(table, line, number)[1] :])
            skip = 0
            if rests:
                indptr, columns, values = _parsed(table, first, rests)
                large = values[(np.abs(values) > 1 << 24) & (np.abs(values) <= 1 << 53)]
                if ((large == np.floor(large)) & (large != large.astype(np.float32))).any():
                    encoding.dtype = "float64"
                yield first, indptr, columns, values
            first += len(rests)


def _parsed(table: Table, first: int, rests: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of some rows, given as text without their names: row pointers, columns, and the values above or below
    zero."""
    width, count = len(table.columns), len(rests)
    text = b"\n".join(rests) + b"\n"
    if b'"' in text:
        text = text.replace(b'"', b"")
    if table.delimiter != b" " and b" " in text:
        text = re.sub(rb" *([" + table.delimiter + rb"\n]) *", rb"\1", text.lstrip(b" "))
    # Two signs more, so that those after the first of a field are there.
    signs = np.frombuffer(text + b"\n\n", np.uint8)
    ends = np.flatnonzero((signs[:-2] == table.delimiter[0]) | (signs[:-2] == 10))
    if len(ends) != width * count or (signs[ends[width - 1 :: width]] != 10).any():
        for at, rest in enumerate(rests):
            found = len(_fields(_text(table.path, rest, first + at + 2), table.delimiter.decode())) if rest else 1
            if found != width:
                raise InvalidError(f"line {first + at + 2} (row {table.rows[first + at]!r}) has {found} values instead of {width}")
        raise InvalidError(f"a value of lines {first + 2} to {first + count + 1} has a delimiter in quotation marks, and so is no number")
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts
    heads = signs[starts]
    zero = (heads == 48) & ((lengths == 1) | ((lengths == 3) & (signs[starts + 1] == 46) & (signs[starts + 2] == 48)))
    at = np.flatnonzero(~zero)
    values = np.empty(len(at), np.float64)
    heads = heads[at]
    digits = (lengths[at] == 1) & (heads >= 48) & (heads < 58)
    values[digits] = heads[digits] - np.uint8(48)
    longer = np.flatnonzero(~digits)
    if len(longer):
        values[longer] = _numbers(table, first, signs, starts, lengths, at[longer])
        stays = values != 0
        at, values = at[stays], values[stays]
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(at // width, minlength=count), out=indptr[1:])
    return indptr, (at % width).astype(np.int32), values


def _numbers(table: Table, first: int, signs: np.ndarray, starts: np.ndarray, lengths: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The numbers that are written in the fields `at`."""

    def wrong(which: np.ndarray) -> InvalidError:
        field = int(at[np.flatnonzero(which)[0]])
        shown = bytes(signs[starts[field] : ends_at(field)]).decode("utf-8", "replace")
        row, column = divmod(field, len(table.columns))
        what = "has no value (write 0 where nothing was found)" if shown.strip().lower() in _MISSING else f"has {shown[:40]!r}, which is no finite number"
        return InvalidError(f"row {table.rows[first + row]!r}, column {table.columns[column]!r} {what}; take out columns and rows that describe others")

    def ends_at(field: int) -> int:
        return int(starts[field] + lengths[field])

    of = lengths[at]
    if (unfit := (of == 0) | (of > _LONGEST)).any():
        raise wrong(unfit)
    places = np.arange(int(of.max()), dtype=np.int64)
    inside = places < of[:, None]
    texts = np.where(inside, signs[np.minimum(starts[at][:, None] + places, len(signs) - 1)], np.uint8(0))
    if (unfit := (~_OF_NUMBERS[texts] & inside).any(1)).any():
        raise wrong(unfit)
    if len(places) < 16 and ((texts >= 48) | ~inside).all() and (texts < 58).all():
        found = np.zeros(len(at), np.float64)
        for place in range(len(places)):  # digit by digit
            found = np.where(inside[:, place], found * 10 + texts[:, place] - 48, found)
        return found
    packed = np.ascontiguousarray(texts).view(f"S{len(places)}").reshape(-1)
    try:
        found = packed.astype(np.float64)
    except ValueError:
        raise wrong(np.array([not _is_number(text.decode()) for text in packed.tolist()])) from None
    if not np.isfinite(found).all():
        raise wrong(~np.isfinite(found))
    return found


# ---- lines


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise NotFoundError(f"there is no file {path}") from e
    except (OSError, EOFError, zlib.error, IsalError) as e:
        raise CorruptError(f"cannot read {path}: {e}; fetch or write it again") from e


def _blocks(path: str) -> Iterator[list[bytes]]:
    """The lines of a file, without their ends, some at a time. Empty lines at the end do not count."""
    with _reading(path), (igzip.open if path.lower().endswith(".gz") else open)(path, "rb") as file:
        rest, empty = b"", 0
        while True:
            with _reading(path):
                read = _read(file)
            lines = (rest + read).split(b"\n")
            rest = lines.pop() if read else b""
            if not read and lines == [b""]:
                return
            lines = [line[:-1] if line[-1:] == b"\r" else line for line in lines]
            # Those before a line that has something are lines.
            lines = [b""] * empty + lines
            empty = 0
            while lines and not lines[-1]:
                lines.pop()
                empty += 1
            if lines:
                yield lines
            if not read:
                return


def _read(file: IO[bytes]) -> bytes:
    """Bytes with at least one end of a line, or what is left."""
    read = [file.read(BLOCK)]
    while read[-1] and b"\n" not in read[-1]:
        read.append(file.read(BLOCK))
    return b"".join(read)
