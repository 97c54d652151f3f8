"""The file system ``skytether://`` of fsspec: tables as Parquet files that are read where they are.

A path is a fleet and a table: ``skytether://127.0.0.1:5300/taxi.trips.parquet`` behind a host,
``skytether:///data/fleet/taxi.trips.parquet`` (or relative, ``skytether://fleet/...``) in a directory. Tables are
``domain.dataset``, of expression data sets ``domain.dataset.table``; the ending ``.parquet`` may be left out. The files
are those that ``skytether export`` writes, byte for byte, but nothing is written: of what is read, only the slices that
it touches are fetched, or the columns of them.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from . import _internal, _lending
from ._fleet import _credentials
from .errors import ConflictError, CorruptError, InvalidError, NotFoundError, SkytetherError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from datetime import datetime

    from ._fleet import Fleet

ENDING = ".parquet"

#: Tables whose footers (and up to 64 MiB of what was read of them) are kept in the process, so that the next who opens
#: one need not read them again.
KEPT = 4

#: Guards `_known`.
_shared = threading.Lock()

#: Tables by location of their fleet and name, the last used last.
_known: OrderedDict[tuple[str, str], Any] = OrderedDict()


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Errors as file systems have them; what Skytether said is their cause."""
    try:
        yield
    except (NotFoundError, InvalidError, UnsupportedError) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except UnavailableError as error:
        raise ConnectionError(errno.ECONNREFUSED, str(error), path) from error
    except ConflictError as error:
        raise OSError(errno.EBUSY, str(error), path) from error
    except CorruptError as error:
        raise OSError(errno.EIO, str(error), path) from error
    except SkytetherError as error:
        raise OSError(errno.EIO, str(error), path) from error


def _table(name: str) -> str:
    """The table that a file's name means. ``physics.parquet`` is a data set, too, so an ending counts as one only if it
    leaves a name."""
    short = name.removesuffix(ENDING)
    return short if "." in short else name


class SkytetherFileSystem(AbstractFileSystem):
    """Tables of fleets as Parquet files, for reading.

    Parameters
    ----------
    fleet
        A fleet that is open: paths then name its tables and nothing else. Without it, paths name fleets, too; one that
        is open in this process is used as it is, another is opened while it is read.
    """

    protocol = "skytether"
    root_marker = ""
    # fsspec tells instances apart by the text of their arguments, and fleets of one place have the same; what is worth
    # keeping the process keeps.
    cachable = False

    def __init__(self, fleet: Fleet | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._fleet = fleet
        # Names of tables in a given fleet do not say which fleet it is, so they get a cache of their own.
        self._files: OrderedDict[tuple[str, str], Any] = _known if fleet is None else OrderedDict()

    @property
    def fsid(self) -> str:
        return "skytether"

    # Paths

    def _split(self, path: str) -> tuple[str, str]:
        """The fleet's location and the file's name in it (empty for the fleet itself)."""
        path = self._strip_protocol(path)
        if self._fleet is not None:
            return "", path.strip("/")
        first, _, rest = path.partition("/")
        if _internal.is_host(first) and first:
            # A process that has connected to this address with TLS means that host.
            tls = f"grpc+tls://{first}"
            return tls if tls in _credentials else f"grpc://{first}", rest.strip("/")
        path = path.rstrip("/")
        if os.path.isfile(os.path.join(path, "fleet.json")):
            return os.path.realpath(path), ""
        parent, name = os.path.split(path)
        if os.path.isfile(os.path.join(parent or ".", "fleet.json")):
            return os.path.realpath(parent or "."), name
        raise FileNotFoundError(errno.ENOENT, "no fleet is there: write skytether://DIRECTORY/domain.dataset.parquet or skytether://HOST:PORT/domain.dataset.parquet", path)

    # Fleets

    def _take(self, location: str) -> tuple[Fleet, Callable[[], None]]:
        return (self._fleet, _lending.nothing) if self._fleet is not None else _lending.take(location)

    @contextmanager
    def _using(self, location: str) -> Iterator[Fleet]:
        with _lending.working():
            fleet, release = self._take(location)
            try:
                yield fleet
            finally:
                release()
                _lending.wait_here(location)

    def _plain(self, fleet: Fleet, location: str, name: str) -> Any:
        """The table's file, as it is now."""
        table = _table(name)
        files = self._files
        with _shared:
            known = files.get((location, table))
        if known is not None:
            known = known.of(fleet._inner)
            if known.is_current():
                with _shared:
                    # The connection before this one is let go of.
                    files[(location, table)] = known
                    files.move_to_end((location, table))
                return known
        found = fleet._inner.plain_file(table)
        with _shared:
            files[(location, table)] = found
            files.move_to_end((location, table))
            while len(files) > KEPT:
                files.popitem(last=False)
        return found

    # What fsspec asks for

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        stripped = self._strip_protocol(path)
        location, name = self._split(path)
        with _as_os_error(stripped), self._using(location) as fleet:
            if not name:
                return {"name": stripped, "size": 0, "type": "directory"}
            file = self._plain(fleet, location, name)
            return {"name": stripped, "size": file.size(), "type": "file", "rows": file.rows(), "generation": f"{file.generation():016x}"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The tables of a fleet, as files. Their sizes are not known before one is opened."""
        stripped = self._strip_protocol(path).rstrip("/")
        location, name = self._split(path)
        if name:
            found = [self.info(path)]
        else:
            with _as_os_error(stripped), self._using(location) as fleet:
                names = [name for dataset in fleet.ls() for name in _files(dataset)]
            found = [{"name": f"{stripped}/{name}" if stripped else name, "size": None, "type": "file"} for name in sorted(names)]
        return found if detail else [entry["name"] for entry in found]

    def ukey(self, path: str) -> str:
        """A key that differs for each content of a table."""
        return f"{self._strip_protocol(path)}@{self.info(path).get('generation')}"

    def modified(self, path: str) -> datetime:
        """A time that differs for each content of a table: caches need that. The time of writing is not stored."""
        from datetime import datetime, timedelta, timezone

        generation = self.info(path).get("generation") or "0"
        return datetime(2000, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(generation, 16) % (20 * 365 * 86400))

    created = modified

    def _open(self, path: str, mode: str = "rb", block_size: int | str | None = None, **_: Any) -> TableFile:
        return TableFile(self, path, mode)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with TableFile(self, path, "rb") as file:
            size = file.size
            begin, stop = (place + size if place is not None and place < 0 else place for place in (start, end))
            file.seek(begin or 0)
            return file.read(-1 if stop is None else max(0, stop - (begin or 0)))


def _files(dataset: dict[str, Any]) -> list[str]:
    """The names of a data set's files."""
    if dataset["kind"] is None:
        return []
    if dataset["kind"] == "table":
        return [dataset["name"] + ENDING]
    matrices = ("x", "raw_x")
    shown = [table for table in dataset["tables"] if table != "shell" and not table.startswith("shell_")]
    rows = [f"{table}_rows" if table in matrices or table.startswith(("layer_", "raw_layer_")) else table for table in shown]
    return [f"{dataset['name']}.{table}{ENDING}" for table in rows]


def _fetch(file: Any, path: str, start: int, end: int) -> bytes:
    with _as_os_error(path), _lending.working():
        return file.read(max(0, start), min(end, file.size()))


class TableFile(AbstractBufferedFile):
    """A table as an open Parquet file. The bytes are kept in Rust, slice by slice or column by column of a slice, 64
    MiB at most; nothing is kept here."""

    def __init__(self, fs: SkytetherFileSystem, path: str, mode: str = "rb") -> None:
        if mode not in ("rb", "r"):
            raise OSError(errno.EROFS, "tables are read as files, not written: use ingest", path)
        location, name = fs._split(path)
        stripped = fs._strip_protocol(path)
        if not name:
            raise IsADirectoryError(errno.EISDIR, "a fleet is a directory of tables", stripped)
        self._location = location
        with _as_os_error(stripped), _lending.working():
            fleet, release = fs._take(location)
            # However it ends, closed or forgotten.
            self._done = weakref.finalize(self, release)
            try:
                self._file = fs._plain(fleet, location, name)
            except BaseException:
                self._done()
                raise
        super().__init__(fs, stripped, "rb", cache_type="none", size=self._file.size())
        # Not a method of this object: nothing would let go of the fleet before the next round of garbage collection,
        # where somebody forgets to close the file.
        self.cache.fetcher = partial(_fetch, self._file, stripped)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return _fetch(self._file, self.path, start, end)

    def close(self) -> None:
        super().close()
        self._end()
        _lending.wait_here(getattr(self, "_location", ""))

    def _end(self) -> None:
        done = getattr(self, "_done", None)
        if done is not None:
            done()

    #: Not `close`, as in the base classes: that waits, and this may run on any thread and while Python exits.
    __del__ = _end
