"""Files in CephFS and RADOS as pyarrow reads them: a file system over a listing, and what is known of the files."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs

from . import _internal
from .errors import CorruptError, InvalidError, SkytetherError, UnsupportedError

#: Files that are inspected at a time.
INSPECTED = 8

#: Formats of text, whose columns have no types of their own, and in which a file without a byte has no rows.
TEXT = ("csv", "json")


class Reader(io.RawIOBase):
    """An open file, read by place."""

    def __init__(self, file: Any) -> None:
        self._file, self._at, self._size = file, 0, file.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        found = self._file.read(self._at, end)
        self._at += len(found)
        return found

    def readinto(self, into: Any) -> int:
        found = self.read(len(into))
        into[: len(found)] = found
        return len(found)

    def readall(self) -> bytes:
        return self.read()


class Opened(pyarrow.fs.FileSystemHandler):
    """The files of a listing as a file system: each must be as it was listed. With `keep`, each is opened once."""

    def __init__(self, tree: Any, keep: bool) -> None:
        self._tree, self._keep, self._lock = tree, keep, threading.Lock()
        self._open: dict[str, Any] = {}
        self._sizes = dict(tree.list())

    def file(self, path: str) -> Any:
        """The open file."""
        if not self._keep:
            return self._tree.open(path)
        with self._lock:
            found = self._open.get(path)
            if found is None:
                found = self._open[path] = self._tree.open(path)
            return found

    def opened(self) -> list[Any]:
        """The files that are open."""
        with self._lock:
            return list(self._open.values())

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(Reader(self.file(path)), mode="r")

    open_input_stream = open_input_file

    def get_type_name(self) -> str:
        return "skytether-ceph"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pyarrow.fs.FileInfo]:
        kinds = pyarrow.fs.FileType
        return [pyarrow.fs.FileInfo(path, kinds.File if path in self._sizes else kinds.NotFound, size=self._sizes.get(path)) for path in paths]

    def get_file_info_selector(self, selector: pyarrow.fs.FileSelector) -> list[pyarrow.fs.FileInfo]:
        below = selector.base_dir.rstrip("/") + "/"
        return self.get_file_info([path for path in self._sizes if path.startswith(below)])

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError("files of a data set in Ceph are read, not written: use skytether.write_dataset")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


#: Names of formats, and pyarrow's.
_FORMATS = {"parquet": "parquet", "feather": "feather", "arrow": "feather", "ipc": "feather", "csv": "csv", "json": "json"}


def format_of(given: Any, paths: Sequence[str]) -> pads.FileFormat:
    """pyarrow's format for a name or a format; by the ending of the first file's name where nothing is given."""
    if isinstance(given, pads.FileFormat):
        return given
    name = given
    if name is None:
        ending = paths[0].rpartition(".")[2].lower() if paths else ""
        name = {"pq": "parquet", "jsonl": "json", "ndjson": "json"}.get(ending, ending)
        if name not in _FORMATS:
            first = repr(paths[0]) if paths else "of no file"
            raise InvalidError(f"the name {first} does not tell the format: say format=, one of {', '.join(_FORMATS)}")
    if not isinstance(name, str) or name not in _FORMATS:
        raise InvalidError(f"format {name!r} is not known: say one of {', '.join(_FORMATS)}, or give pyarrow's")
    made = {"parquet": pads.ParquetFileFormat, "feather": pads.IpcFileFormat, "csv": pads.CsvFileFormat, "json": pads.JsonFileFormat}
    return made[_FORMATS[name]]()


def kind_of(format: pads.FileFormat) -> str:
    """``parquet``, ``feather``, ``csv`` or ``json``."""
    return "feather" if isinstance(format, pads.IpcFileFormat) else format.default_extname


def wrong(path: str, kind: str, error: BaseException) -> SkytetherError:
    """What pyarrow says of a file, as an error that names it."""
    return CorruptError(f"{path} can't be read as {kind}: {error}; write it again, or leave it out")


def readable(tree: Any, kind: str, ignore_prefixes: Sequence[str]) -> list[str]:
    """The paths of the files that have rows, without names in the tree that begin with one of `ignore_prefixes`."""
    base, ignored = tree.base().rstrip("/") + "/", tuple(ignore_prefixes)
    found = []
    for path, size in tree.list():
        names = path[len(base) :].split("/") if path.startswith(base) else [path.rpartition("/")[2]]
        if any(ignored and name.startswith(ignored) for name in names):
            continue
        if size == 0 and kind not in TEXT:
            raise wrong(path, kind, ValueError("the file has no bytes"))
        if size > 0:
            found.append(path)
    return found


def inspected(fragments: Sequence[Any], kind: str) -> Iterator[tuple[str, pa.Schema]]:
    """Path and columns of each file; several are read at a time."""

    def one(fragment: Any) -> tuple[str, pa.Schema]:
        try:
            return fragment.path, fragment.physical_schema
        except SkytetherError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise wrong(fragment.path, kind, error) from error

    with ThreadPoolExecutor(INSPECTED) as threads:
        yield from threads.map(one, fragments)


def merged(schemas: Iterator[tuple[str, pa.Schema]], kind: str) -> pa.Schema:
    """The columns of all files by name, each with the narrowest type that holds the values of all.

    A column that one CSV file has as a text is one in all. Otherwise types without a common one are refused.
    """
    fields: dict[str, tuple[pa.Field, str]] = {}
    metadata = None
    for number, (path, schema) in enumerate(schemas):
        metadata = schema.metadata if number == 0 else metadata
        for field in schema:
            known = fields.get(field.name)
            if known is None:
                fields[field.name] = field, path
            elif known[0].type != field.type:
                common = _common(known[0].type, field.type, kind)
                if common is None:
                    raise InvalidError(
                        f"column {field.name!r} is {known[0].type} in {known[1]} and {field.type} in {path}, and no type holds both: "
                        "give schema=, or read the files one by one"
                    )
                fields[field.name] = pa.field(field.name, common, metadata=known[0].metadata), known[1]
    return pa.schema([field.with_nullable(True) for field, _ in fields.values()], metadata)


def _common(a: pa.DataType, b: pa.DataType, kind: str) -> pa.DataType | None:
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    common = _internal.common_type(a, b)
    if common is not None:
        return pa.DataType._import_from_c_capsule(common.__arrow_c_schema__())
    return pa.string() if kind == "csv" else None
