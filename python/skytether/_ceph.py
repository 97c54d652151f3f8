"""Files in CephFS or in RADOS as a `pyarrow.dataset.Dataset`: `dataset` and `write_dataset`.

The files are listed once, when the data set is made. A scan reads each of them as it was listed, or raises
`ConflictError`: footers first, then the ranges of the row groups and columns that the scan needs. libcephfs says in
which objects a file's bytes lie, and librados reads these; nothing is mounted.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs

from . import _internal
from ._ceph_files import Opened, format_of, inspected, kind_of, merged, readable
from ._ceph_scan import FileScanner, Run
from ._dataset import Dataset, _both
from .errors import InvalidError

#: Names that begin so are no files of a data set, as with pyarrow.
IGNORED = (".", "_")

#: Row groups that a writer makes: 64 MiB and more are read in several steps by others.
GROUP_ROWS = 1 << 20


def dataset(
    source: str,
    schema: pa.Schema | None = None,
    format: str | pads.FileFormat | None = None,
    *,
    partitioning: str | pads.Partitioning | pads.PartitioningFactory | None = "hive",
    ignore_prefixes: Sequence[str] = IGNORED,
    pushdown: bool = True,
) -> FileDataset:
    """Files in a Ceph cluster as a data set: Parquet, Feather (Arrow IPC), CSV or JSON lines, without a mount.

    Parameters
    ----------
    source
        ``cephfs:/PATH?conf=FILE``: a file of the cluster's file system, or all files below a directory. Or
        ``rados://POOL/PREFIX?conf=FILE``: objects whose names begin with the prefix; each is a file. More
        parameters are ``user`` (without ``client.``; ``admin``), ``timeout`` (seconds of a call; 60), ``fs`` (the name
        of the file system) and ``namespace`` (of the pool). docs/ceph.md has more.
    schema
        The columns, where they shall be others than those of all files together.
    format
        ``"parquet"``, ``"feather"``, ``"csv"``, ``"json"``, or a format of pyarrow's with options. By default the
        ending of the first name says it.
    partitioning
        As with `pyarrow.dataset.dataset`; by default names such as ``year=2024`` are columns.
    ignore_prefixes
        Files and directories whose names begin so are left out.
    pushdown
        False: nothing is computed in OSDs.

    Files may have different columns: the data set has all of them, by name, and where a file lacks one it is NULL.
    Types are widened to the narrowest that holds all values: whole numbers of 32 and 64 bits are ones of 64 bits.

    Raises
    ------
    CorruptError
        A file can't be read in this format; the text names it.
    InvalidError
        The address is wrong, or columns of two files do not go together.
    NotFoundError
        There is no such path, pool or object, or no library of Ceph's.

    Examples
    --------
    >>> rides = skytether.dataset("cephfs:/rides?conf=/etc/ceph/ceph.conf", format="parquet")   # doctest: +SKIP
    >>> rides.to_table(columns=["fare"], filter=pc.field("fare") > 20)                           # doctest: +SKIP
    >>> print(rides.receipt)                                                                     # doctest: +SKIP
    """
    return FileDataset(_Listing(source, format, partitioning, tuple(ignore_prefixes), pushdown), schema)


def write_dataset(data: Any, source: str, format: str = "parquet", *, basename: str = "part-{i}", rows_per_file: int | None = None, **options: Any) -> list[str]:
    """Writes a table as files below `source`. A file of at most 64 MiB is one object.

    Parameters
    ----------
    data
        A pyarrow Table or RecordBatchReader, or anything with ``__arrow_c_stream__``.
    source
        As in `dataset`: a directory of CephFS, or the beginning of objects' names.
    format
        ``"parquet"``, ``"feather"`` or ``"csv"``.
    basename
        The files' names; ``{i}`` is their number. The format's ending is added.
    rows_per_file
        Rows of a file; by default all rows are one file. In CephFS, a file of more than 64 MiB is several objects.
    options
        For pyarrow's writer of the format.

    Returns the names of the files below `source`. A file that has the name is replaced.

    Raises
    ------
    InvalidError
        The address, the format or the names are wrong.
    NotFoundError
        There is no such pool or file system, or no library of Ceph's.
    UnavailableError
        The cluster did not take a file in time.
    """
    kind = kind_of(format_of(format, []))
    if kind not in _WRITERS:
        raise InvalidError(f"{kind} files are not written: write parquet, feather or csv")
    if "{i}" not in basename or (rows_per_file is not None and rows_per_file < 1):
        raise InvalidError("basename needs {i}, the number of a file, and rows_per_file is at least 1")
    table = data if isinstance(data, pa.Table) else pa.table(pa.RecordBatchReader.from_stream(data).read_all())
    tree = _internal.CephFiles(source, False)
    step = rows_per_file or max(1, table.num_rows)
    names = []
    for number, first in enumerate(range(0, max(1, table.num_rows), step)):
        written = io.BytesIO()
        _WRITERS[kind](table.slice(first, step), written, options)
        name = f"{basename.format(i=number)}.{kind}"
        tree.write(name, written.getvalue())
        names.append(name)
    return names


def _parquet(table: pa.Table, to: io.BytesIO, options: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, to, **{"row_group_size": GROUP_ROWS, **options})


def _feather(table: pa.Table, to: io.BytesIO, options: dict[str, Any]) -> None:
    with pa.ipc.new_file(to, table.schema, **options) as writer:
        writer.write_table(table)


def _csv(table: pa.Table, to: io.BytesIO, options: dict[str, Any]) -> None:
    from pyarrow import csv

    csv.write_csv(table, to, **options)


_WRITERS = {"parquet": _parquet, "feather": _feather, "csv": _csv}


class _Listing:
    """Files as they were listed, and how they are read."""

    def __init__(self, source: str, format: Any, partitioning: Any, ignored: tuple[str, ...], pushdown: bool) -> None:
        if not isinstance(source, str):
            raise InvalidError(f"files in Ceph have an address, such as cephfs:/path, and not {source!r}")
        self.arguments = (source, format, partitioning, ignored, pushdown)
        self.tree = _internal.CephFiles(source, True)
        self.name, self.pushdown = self.tree.name(), pushdown
        self.format = format_of(format, [path for path, _ in self.tree.list()])
        self.kind = kind_of(self.format)
        self.paths = readable(self.tree, self.kind, ignored)
        self.sizes = {path: size for path, size in self.tree.list()}
        if partitioning == "hive":
            partitioning = pads.HivePartitioning.discover()
        elif isinstance(partitioning, str) or not isinstance(partitioning, (pads.Partitioning, pads.PartitioningFactory, type(None))):
            raise InvalidError(f"partitioning is 'hive', None or one of pyarrow.dataset's, and not {partitioning!r}")
        self.partitioning = partitioning

    def with_schema(self, schema: pa.Schema | None) -> pads.FileSystemDataset:
        """pyarrow's own data set over the files."""
        system = pyarrow.fs.PyFileSystem(Opened(self.tree, keep=False))
        options = pads.FileSystemFactoryOptions(
            partition_base_dir=self.tree.base(), partitioning=self.partitioning or pads.DirectoryPartitioning(pa.schema([])), exclude_invalid_files=False
        )
        factory = pads.FileSystemDatasetFactory(system, self.paths, self.format, options)
        if schema is None:
            directories = factory.inspect(fragments=0)
            fragments = list(factory.finish(directories).get_fragments())
            # Also those of directories: a file may have the column, too.
            found = [*inspected(fragments, self.kind), *([(self.name, directories)] if len(directories) else [])]
            schema = merged(iter(found), self.kind)
        return factory.finish(schema)


class FileDataset(Dataset):
    """Files in a Ceph cluster. Make one with `dataset`.

    It has the files that there were at its creation, and the methods of `pyarrow.dataset.Dataset`. Rows come in the
    order of the files' paths. The `drives` of its `receipt` are OSDs, with what each of them read and computed.

    Attributes
    ----------
    files
        The paths of the files that have rows, in order.
    format
        pyarrow's format of the files.
    """

    def __init__(self, listing: _Listing, schema: pa.Schema | None = None, filter: pc.Expression | None = None) -> None:
        self._listing, self._filter = listing, filter
        self._inner = listing.with_schema(schema)
        self._columns = self._inner.schema
        #: The last run of a scan.
        self._last: Run | None = None  # type: ignore[assignment]
        # Functions of pyarrow that bypass the methods of a data set read the files by themselves.
        pads.UnionDataset.__init__(self, self._columns, [self._inner])

    @property
    def files(self) -> list[str]:
        return list(self._listing.paths)

    @property
    def format(self) -> pads.FileFormat:
        return self._listing.format

    @property
    def name(self) -> str:
        """The address without its parameters."""
        return self._listing.name

    def filter(self, expression: pc.Expression) -> FileDataset:
        """This data set with only the rows where `expression` is true."""
        return FileDataset(self._listing, self._columns, _both(self._filter, expression))

    def _scan(self, columns: Any, filter: pc.Expression | None, batch_size: int, options: dict[str, Any]) -> FileScanner:
        return FileScanner(self, columns, filter, batch_size, options)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:  # type: ignore[override]
        """pyarrow's fragments, one for each file that may have rows for `filter` by its directories' names."""
        condition = _both(self._filter, filter)
        return self._inner.get_fragments() if condition is None else self._inner.get_fragments(condition)

    _get_fragments = get_fragments

    @property
    def partitioning(self) -> Any:
        """As pyarrow has it."""
        return self._inner.partitioning

    @property
    def children(self) -> list[Any]:
        """pyarrow's data set of the files, which computes all here."""
        return [self._inner]

    def replace_schema(self, schema: pa.Schema) -> FileDataset:
        """This data set with other columns or types: what a file has otherwise is cast, and what it lacks is NULL."""
        return FileDataset(self._listing, schema, self._filter)

    def take(self, indices: Any, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """The rows with these numbers, counted in the order of the files' paths."""
        return self.scanner(columns, filter, **options).take(indices)

    def _check(self) -> None:
        pass

    def __reduce__(self) -> Any:
        return _again, (self._listing.arguments, self._columns, self._filter)

    def __repr__(self) -> str:
        where = "" if self._filter is None else f" where {self._filter}"
        return f"<skytether.FileDataset {self.name}, {len(self.files)} files{where}>"


def _again(arguments: tuple[Any, ...], schema: pa.Schema, filter: pc.Expression | None) -> FileDataset:
    return FileDataset(_Listing(*arguments), schema, filter)
