"""Computing in the block storage below a mounted file system: digests, search, counts, sort, compression.

A file's bytes do not move: the target that has the disk below the file system computes over them. What it can't do is
done here, with the reason. `docs/block.md` has more.

>>> from skytether import oas                                                          # doctest: +SKIP
>>> volume = oas.Session("iscsi://127.0.0.1:3261/iqn.2024-01.io.skytether:b0/1")       # doctest: +SKIP
>>> done = volume.sum("/mnt/disk/file", "md5")                                         # doctest: +SKIP
>>> done.value.hex(), done.where                                                       # doctest: +SKIP
('d41d8cd98f00b204e9800998ecf8427e', 'there')

Methods take one file, and raise what went wrong with it; or several, and give an answer for each. A file is a path, or
a file object that is open for reading. Opening it is the permission.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Callable, Generic, Iterable, Literal, TypeVar, overload

from ._internal import Oas
from ._result import Receipt
from .errors import SkytetherError

if TYPE_CHECKING:
    from typing import Union

    import pandas
    import polars
    import pyarrow

    Path = Union[str, os.PathLike[str]]
    File = Union[str, os.PathLike[str], IO[Any]]

__all__ = ["Counts", "Done", "Framed", "Match", "Rows", "Session", "sql"]

T = TypeVar("T")
U = TypeVar("U")

Digest = Literal["md5", "sha256", "blake3", "crc32c", "crc32", "crc64", "highwayhash"]


@dataclass(frozen=True)
class Done(Generic[T]):
    """What came out, and where it was computed."""

    #: The file, as it was given; of an answer for several files, the first.
    file: File
    #: What went wrong, or None.
    error: SkytetherError | None
    #: ``"there"``: in the target. ``"here"``: in this process.
    where: Literal["there", "here"]
    #: Why it was not computed in the target; None where it was, and where there is no target.
    reason: str | None
    _value: T | None

    @property
    def value(self) -> T:
        """The answer. Raises the error where there is none."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]


@dataclass(frozen=True)
class Framed:
    """Whether the digests inside a file are right. It is true if they are."""

    #: The first frame that is not right, counted from 0; None if all are.
    bad_frame: int | None

    @property
    def right(self) -> bool:
        """Whether all frames are right."""
        return self.bad_frame is None

    def __bool__(self) -> bool:
        return self.right


@dataclass(frozen=True)
class Counts:
    """What `wc` counts."""

    lines: int
    words: int
    characters: int
    bytes: int


@dataclass(frozen=True)
class Match:
    """Something that was found."""

    #: Its first byte in the file.
    at: int
    #: Its bytes.
    text: bytes


class Rows:
    """The rows of a query over files. Other libraries read them by Arrow's C stream (`pyarrow.table(rows)`)."""

    def __init__(self, told: tuple[Any, int, int, str | None, tuple[str, str, str]]) -> None:
        self._rows, self._there, self._here, self.reason, receipt = told
        #: What the query cost: a drive of the receipt is a file.
        self.receipt = Receipt(*receipt)

    #: Why the first part that was done here was not done in the target; None where none was, and without a target.
    reason: str | None

    @property
    def where(self) -> Literal["there", "here", "both"]:
        """Where the files were read: in the target, in this process, or some parts so and some so."""
        return "there" if not self._here else "both" if self._there else "here"

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a pyarrow Table."""
        import pyarrow

        return pyarrow.RecordBatchReader.from_stream(self._rows).read_all()

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars DataFrame (needs polars)."""
        import polars

        return polars.from_arrow(self.to_arrow())  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<oas.Rows computed {self.where}>"


class Session:
    """Computes in the target that has the disk below the files. Several threads may use it.

    :param target: ``iscsi://[USER%SECRET@]HOST[:PORT]/IQN/LUN``, or the node of a SCSI disk (``/dev/sdb``). None: the
        disk below the files, where the kernel can tell it.
    :param where: ``"any"``: what the target can't do is done here. ``"there"``: it is an error. ``"here"``: all is done
        here.
    :param timeout: the most seconds that a request to the target takes.
    :param parallel: how many requests are under way at a time.
    :raises InvalidError: for a URL that is none.
    """

    def __init__(
        self, target: str | None = None, *, where: Literal["any", "there", "here"] = "any", timeout: float = 600.0, parallel: int = 4
    ) -> None:
        if where not in ("any", "there", "here"):
            raise ValueError(f'where is {where!r}; say "any", "there" or "here"')
        self._inner = Oas(target, None if where == "any" else where == "here", timeout, parallel)
        self._where = where

    @property
    def target(self) -> str | None:
        """The target; None for the disk below the files, and where all is done here."""
        return self._inner.name()

    def __repr__(self) -> str:
        return f"<oas.Session {self.target or ('without a target' if self._where == 'here' else 'with the disk below the files')}>"

    @overload
    def sum(self, files: File, digest: Digest = "sha256", *, key: bytes | None = None) -> Done[bytes]: ...
    @overload
    def sum(self, files: Iterable[File], digest: Digest = "sha256", *, key: bytes | None = None) -> list[Done[bytes]]: ...
    def sum(self, files: Any, digest: Digest = "sha256", *, key: bytes | None = None) -> Any:
        """The digest of each file, as bytes. CRCs have their highest byte first.

        :param key: that of ``"highwayhash"``, 32 bytes (default: the one that MinIO uses).
        """
        return _each(files, lambda given: self._inner.sum(given, digest, key), lambda sum: sum)

    @overload
    def verify_framed(self, files: File, *, block: int, digest: Digest = "highwayhash", key: bytes | None = None) -> Done[Framed]: ...
    @overload
    def verify_framed(self, files: Iterable[File], *, block: int, digest: Digest = "highwayhash", key: bytes | None = None) -> list[Done[Framed]]: ...
    def verify_framed(self, files: Any, *, block: int, digest: Digest = "highwayhash", key: bytes | None = None) -> Any:
        """Whether the digests inside each file are right. A file is a row of frames: a digest, and then `block` bytes
        of data. The last frame may have fewer. MinIO's files are so, with `digest` and `key` as they are by default.

        :param key: that of ``"highwayhash"``, 32 bytes (default: the one that MinIO uses).
        """
        return _each(files, lambda given: self._inner.verify_framed(given, digest, key, block), lambda bad: Framed(None if bad < 0 else bad))

    @overload
    def grep(self, pattern: str | bytes, files: File, *, fixed: bool = False, ignore_case: bool = False) -> Done[list[Match]]: ...
    @overload
    def grep(self, pattern: str | bytes, files: Iterable[File], *, fixed: bool = False, ignore_case: bool = False) -> list[Done[list[Match]]]: ...
    def grep(self, pattern: str | bytes, files: Any, *, fixed: bool = False, ignore_case: bool = False) -> Any:
        """The matches of each file with their places, as ``grep -a -o -b -E`` finds them.

        :param pattern: a regular expression.
        :param fixed: the pattern is a string; lines of it are several strings.
        """
        what = _pattern(pattern, fixed)
        return _each(files, lambda given: self._inner.grep(given, *what, ignore_case, True), lambda found: [Match(*match) for match in found])

    @overload
    def grep_offsets(self, pattern: str | bytes, files: File, *, fixed: bool = False, ignore_case: bool = False) -> Done[list[int]]: ...
    @overload
    def grep_offsets(self, pattern: str | bytes, files: Iterable[File], *, fixed: bool = False, ignore_case: bool = False) -> list[Done[list[int]]]: ...
    def grep_offsets(self, pattern: str | bytes, files: Any, *, fixed: bool = False, ignore_case: bool = False) -> Any:
        """The places of the matches of each file, without their bytes. Otherwise as `grep`."""
        what = _pattern(pattern, fixed)
        return _each(files, lambda given: self._inner.grep(given, *what, ignore_case, False), lambda found: [at for at, _ in found])

    @overload
    def grep_count(self, pattern: str | bytes, files: File, *, fixed: bool = False, ignore_case: bool = False, lines: bool = True) -> Done[int]: ...
    @overload
    def grep_count(
        self, pattern: str | bytes, files: Iterable[File], *, fixed: bool = False, ignore_case: bool = False, lines: bool = True
    ) -> list[Done[int]]: ...
    def grep_count(self, pattern: str | bytes, files: Any, *, fixed: bool = False, ignore_case: bool = False, lines: bool = True) -> Any:
        """How many lines of each file have a match, as ``grep -c``; or, without `lines`, how many matches there are."""
        what = _pattern(pattern, fixed)
        return _each(files, lambda given: self._inner.count(given, *what, ignore_case, lines), lambda count: count)

    @overload
    def wc(self, files: File) -> Done[Counts]: ...
    @overload
    def wc(self, files: Iterable[File]) -> list[Done[Counts]]: ...
    def wc(self, files: Any) -> Any:
        """Lines, words, characters (of UTF-8) and bytes of each file, as `wc` counts them."""
        return _each(files, self._inner.wc, lambda counts: Counts(*counts))

    def sort(
        self, files: File | Iterable[File], output: Path | None = None, *, reverse: bool = False, unique: bool = False, record: int | None = None,
        key_at: int = 0, key_length: int | None = None,
    ) -> Done[Any]:
        """Sort the lines of files together, as ``LC_ALL=C sort``. Gives the bytes; or with an `output`, writes them to
        that file and gives their number.

        The target writes the output, if it is on the same file system as the files. It may be one of them.

        :param record: sort records of this many bytes instead of lines.
        :param key_at: the place of the key in a record.
        :param key_length: the length of the key (default: to the record's end).
        """
        return self._order(files, output, False, reverse, unique, record, key_at, key_length)

    def merge(
        self, files: File | Iterable[File], output: Path | None = None, *, reverse: bool = False, unique: bool = False, record: int | None = None,
        key_at: int = 0, key_length: int | None = None,
    ) -> Done[Any]:
        """Merge files that are sorted, as ``LC_ALL=C sort -m``. Otherwise as `sort`."""
        return self._order(files, output, True, reverse, unique, record, key_at, key_length)

    def _order(
        self, files: Any, output: Path | None, merge: bool, reverse: bool, unique: bool, record: int | None, key_at: int, key_length: int | None
    ) -> Done[Any]:
        listed = [files] if _is_one(files) else list(files)
        if not listed:
            raise ValueError("there is no file; give at least one")
        key = None if record is None else (record, key_at, max(record - key_at, 0) if key_length is None else key_length)
        to = None if output is None else os.fspath(output)
        return _only(_done(listed[0], self._inner.sort([_given(file) for file in listed], to, merge, key, reverse, unique), lambda sorted: sorted))

    def compress(self, file: File, output: Path, *, format: Literal["zstd", "lz4"] = "zstd", level: int | None = None) -> Done[int]:
        """Compress a file into another one; gives the number of bytes that were written.

        :param level: for zstd, from 1, the fastest, to 12, the smallest.
        """
        return _only(_done(file, self._inner.compress(_given(file), os.fspath(output), format, level), lambda written: written))

    def decompress(self, file: File, output: Path, *, format: Literal["zstd", "lz4"] = "zstd", room: int = 1 << 30) -> Done[int]:
        """Decompress a file into another one; gives the number of bytes that were written.

        :param room: the most bytes that may come out.
        """
        return _only(_done(file, self._inner.decompress(_given(file), os.fspath(output), format, room), lambda written: written))

    def sql(self, query: str, files: File | Iterable[File], *, format: Literal["csv", "json", "parquet"] | None = None) -> Rows:
        """Run one SELECT over files, which are the table ``files``.

        Each file is queried by itself in the target, and the results are merged here. CSV files have names in their
        first line; JSON files have an object per line.

        :param format: that of the files (default: by their names).
        :raises InvalidError: for SQL that is wrong, and for files that are none of their format.
        """
        listed = [files] if _is_one(files) else list(files)  # type: ignore[arg-type]
        if not listed:
            raise ValueError("there is no file; give at least one")
        return Rows(self._inner.sql(query, [_given(file) for file in listed], format))


def sql(
    query: str, files: File | Iterable[File], target: str | None = None, *, format: Literal["csv", "json", "parquet"] | None = None,
    where: Literal["any", "there", "here"] = "any",
) -> Rows:
    """Run one SELECT over files in the target that has the disk below them: see `Session` and `Session.sql`."""
    return Session(target, where=where).sql(query, files, format=format)


def _is_one(files: Any) -> bool:
    return isinstance(files, (str, bytes, os.PathLike)) or hasattr(files, "fileno")


def _given(file: Any) -> tuple[str, int]:
    """A path, and the number of the open file or -1."""
    if not hasattr(file, "fileno"):
        return os.fsdecode(file), -1
    if getattr(file, "writable", bool)():
        # What it holds back would be missing.
        file.flush()
    number = file.fileno()
    name = getattr(file, "name", None)
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else f"file {number}", number


def _pattern(pattern: str | bytes, fixed: bool) -> tuple[list[bytes], str | None]:
    if fixed:
        return (pattern.encode() if isinstance(pattern, str) else pattern).split(b"\n"), None
    return [], pattern.decode() if isinstance(pattern, bytes) else pattern


def _done(file: Any, told: tuple[Any, Any, bool, str | None], convert: Callable[[Any], T]) -> Done[T]:
    value, error, there, reason = told
    return Done(file, error, "there" if there else "here", reason, None if error is not None else convert(value))


def _only(done: Done[T]) -> Done[T]:
    if done.error is not None:
        raise done.error
    return done


def _each(files: Any, ask: Callable[[list[tuple[str, int]]], list[Any]], convert: Callable[[Any], T]) -> Any:
    listed = [files] if _is_one(files) else list(files)
    all_ = [_done(file, told, convert) for file, told in zip(listed, ask([_given(file) for file in listed]))]
    return _only(all_[0]) if _is_one(files) else all_
