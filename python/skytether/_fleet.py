"""A fleet as Python sees it: thin over the Rust classes of `skytether._internal`."""

from __future__ import annotations

import json
import operator
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, Union

from . import _internal, _lending
from ._growth import Growth, bytes_per_s, either_name
from ._result import Explanation, Receipt, Result
from ._reading import reading, refuse
from ._sources import as_stream, plan_bytes, row_of
from .errors import InvalidError

if TYPE_CHECKING:
    from ._dataset import Dataset

#: `_result` has what queries give; programs and pickles also know it by this module.
__all__ = ["Explanation", "Fleet", "Receipt", "Result", "calibrate", "connect", "generate_particles", "open"]

#: What may be told how far an ingest is: called with the bytes or rows done.
Progress = Callable[[int], None]

#: What may be told how far a file is: called with the bytes done, and how many there will be.
FileProgress = Callable[[int, int], None]

#: Open fleets of this process by their directories. ``skytether://`` reads through these objects, as a directory can't
#: be opened twice.
_opened: weakref.WeakValueDictionary[str, Fleet] = weakref.WeakValueDictionary()

#: A device profile: the name of a shipped one (``"envoy"``, ``"newport"``, ``"server"``, ``"unlimited"``), the path of
#: a TOML file, or a profile's TOML text.
Profile = Union[str, "os.PathLike[str]"]


def open(  # noqa: A001 - the name users expect
    path: str | os.PathLike[str],
    drives: int | None = None,
    redundancy: str = "none",
    profile: Profile | Sequence[Profile] | Mapping[int, Profile] = "unlimited",
    *,
    create: bool = True,
    memory_per_drive: int | None = None,
    memory_limit: int | None = None,
    spill_limit: int | None = None,
    slice_rows: int | None = None,
    nodes: int | None = None,
    hosts: int | None = None,
    kept_per_drive: int | None = None,
) -> Fleet:
    """Opens the embedded fleet in directory `path`, and makes it where there is none.

    Parameters
    ----------
    path
        The fleet's directory; drive n lives in ``path/drives/n``. Or pools of a Ceph cluster,
        ``rados://POOL?conf=PATH``: see ``docs/ceph.md``. Or Kinetic drives that are served,
        ``kinetic://HOST:PORT,HOST:PORT`` (``kinetics://`` with TLS; semicolons separate nodes): see
        ``docs/kinetic.md``. This process is then their host, and hosts that began before change nothing any more.
        Their profiles and memory are their own.
    drives
        How many drives a new fleet gets (default 4). For a fleet that exists it must be left out or be right.
    redundancy
        Redundancy of a new fleet, for data sets whose ingest names none: ``"none"``, ``"replicas:R"`` (R copies),
        ``"ec:K+M"`` (any M drives may be lost; takes M/K more space), or, with `nodes`, ``"ec:K+M/k+m"`` (any M nodes
        may be lost, and m drives of each other one at the same time). An existing fleet keeps its own; anything but the
        default must equal it.
    profile
        The devices that the drives emulate: a profile bounds processor, disk, link and memory of a drive. It is the
        name of a shipped one (``"envoy"``, ``"newport"``, ``"server"``, ``"unlimited"``), the path of a TOML file, or
        TOML text. Give one for all drives, a list with one for each, or a dict of some by the drives' numbers, where
        the others are as fast as the machine. Only reading and queries are slowed down. `calibrate` measures how well
        drives keep to it.
    create
        False: fail with `NotFoundError` where there is no fleet.
    memory_per_drive
        Bytes that each drive's engine may use for queries (default: what its profile says, or 512 MiB without one).
        Never more than the profile says.
    memory_limit
        Bytes that all queries together may use on the host's side, for sorting, joining and merging (default 1 GiB).
    spill_limit
        Bytes that queries may spill to ``path/spill`` for sorting, joining and merging what memory can't hold (default
        10 GiB). A query that needs more raises `ExhaustedError`.
    slice_rows
        Limit of rows in a slice of ingested data; slices are distributed over the drives round robin. By default only a
        slice's size counts (1 MiB), so that a small table is one slice on one drive.
    nodes
        Number of nodes (failure domains) of a new fleet, each with the same number of drives, in order. For an existing
        fleet leave it out, or give its number.
    hosts
        The former name of `nodes`.
    kept_per_drive
        Bytes of each drive's store that results may take which the drive keeps: those of tests of whole matrices, so
        that further contrasts of the same groups need not read the matrix (default 64 MiB). 0 keeps none.

    Raises
    ------
    ConflictError
        Another process has the fleet open. Of Kinetic drives: their fleet has another redundancy.
    UnsupportedError
        A newer version of Skytether made it.
    InvalidError
        There is no such profile, it can't be used, or there are more or fewer than drives; there is no such redundancy,
        it needs more drives, or the fleet that exists has another.
    UnavailableError
        Drives are missing, and more of them than the fleet's redundancy survives.
    """
    if drives is not None and not hasattr(drives, "__index__"):
        raise InvalidError(
            f"drives is {drives!r}, and must be a number: open() is for drives in a directory; served drives have a host "
            "(skytether host serve --drives ADDR,ADDR), which connect(\"HOST:PORT\") reaches; Kinetic drives can be opened by "
            "\"kinetic://HOST:PORT,HOST:PORT\""
        )
    nodes = either_name("nodes", nodes, "hosts", hosts)
    _lending.make_way(os.fspath(path))
    limits = (memory_per_drive, memory_limit, spill_limit, slice_rows)
    fleet = Fleet(
        _internal.Fleet.open(os.fspath(path), drives, redundancy, _profiles(profile), create, *limits, nodes=nodes, kept_per_drive=kept_per_drive)
    )
    _opened[_place(path)] = fleet
    return fleet


def opened(path: str | os.PathLike[str]) -> Fleet | None:
    """The fleet in directory `path`, if it is open in this process."""
    return _opened.get(_place(path))


def _place(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if _internal.is_store(text) else os.path.realpath(text)


def _profiles(given: Profile | Sequence[Profile] | Mapping[int, Profile]) -> str | list[str] | dict[int, str]:
    try:
        if isinstance(given, (str, os.PathLike)):
            return os.fspath(given)
        if isinstance(given, Mapping):
            return {operator.index(drive): os.fspath(profile) for drive, profile in given.items()}
        return [os.fspath(profile) for profile in given]
    except TypeError as error:
        raise InvalidError(f"{given!r} is no device profile: give a name, a path or TOML text, a list with one for each drive, or a dict by the drives' numbers") from error


def calibrate(
    profile: Profile, *, served: bool = False, dir: str | os.PathLike[str] | None = None  # noqa: A002 - a CLI name
) -> dict[str, Any]:
    """Measures whether a drive under a device profile works as that device would. Takes some seconds, and
    longer for slow devices.

    Parameters
    ----------
    profile
        As for `open`.
    served
        True: measure the link of a drive that is served on loopback, instead of that of an embedded one.
    dir
        Where to make a directory to work in, which is removed afterwards (default: the system's for temporary files).

    Returns
    -------
    dict
        `profile`, `served`, `tolerance`, `within` (whether all figures are within the tolerance), and `measured`: a
        dict for each figure of the profile with its `key`, `unit`, what was `asked` (None: nothing is bounded), what
        was `got`, their `ratio` (None where nothing was asked) and whether that is `within` the tolerance of 1.

    Raises
    ------
    InvalidError
        There is no such profile, or it can't be used.
    """
    given = _profiles(profile)
    if not isinstance(given, str):
        raise InvalidError("one profile can be calibrated at a time")
    return json.loads(_internal.calibrate(given, None if dir is None else os.fspath(dir), served))


def generate_particles(
    path: str | os.PathLike[str], rows: int, seed: int = 1, *, gathered: float = 0.0,
    format: str | None = None, replace: bool = False, progress: Progress | None = None,  # noqa: A002 - as of `ingest`
) -> int:
    """Writes a file of synthetic particles (ID, x, y, z, ke). The share of energetic ones is the one that C2's authors
    published; docs/physicists.md describes the distribution.

    Parameters
    ----------
    path
        The file; its ending says what it is: ``.parquet``, or ``.vpic`` for raw records.
    rows, seed
        Number of particles, and the seed of all numbers: equal seeds make equal files, on any machine.
    gathered
        The share of the energetic particles (ke > 0.3) that is in every 16th brick of the box; the others are anywhere.
    format
        ``"parquet"`` or ``"vpic"``, whatever the file is called.
    replace
        True: put it in the place of a file that is there. False: that is a `ConflictError`.
    progress
        Called now and then with the number of rows done.

    Returns
    -------
    int
        Bytes of the file.
    """
    return _internal.generate_particles(os.fspath(path), rows, seed, gathered, format, replace, progress)


#: The credentials by which this process has reached hosts, by URL. Data sets out of pickles and files of fsspec
#: connect again with them.
_credentials: dict[str, tuple[str | None, str | None]] = {}


def connect(url: str, *, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None) -> Fleet:
    """Connects to a host that serves a fleet.

    Parameters
    ----------
    url
        ``grpc://127.0.0.1:5300``, or ``grpc+tls://HOST:PORT`` where the host has TLS.
    token
        The token that the host asks for (``skytether token create``); by default that of the environment variable
        ``SKYTETHER_TOKEN``.
    tls_ca
        A PEM file with the authority of the host's certificate; by default that of ``SKYTETHER_TLS_CA``, or else
        those that the system trusts. Other processes that get a pickled data set use the environment: a pickle holds
        no token.

    Raises
    ------
    InvalidError
        The host refuses the token, or its certificate can't be verified.
    UnavailableError
        No host answers there.
    """
    ca = None if tls_ca is None else os.path.abspath(os.fspath(tls_ca))
    fleet = Fleet(_internal.Fleet.connect(url, token, ca))
    _credentials[fleet._inner.location()] = (token, ca)
    return fleet


def connect_again(url: str) -> Fleet:
    """Connects to a host with the credentials by which this process has reached it before."""
    token, tls_ca = _credentials.get(url, (None, None))
    return connect(url, token=token, tls_ca=tls_ca)


class Fleet(Growth):
    """Drives and a host over them. Make one with `skytether.open` or `skytether.connect`; usable in
    a ``with`` statement."""

    def __init__(self, inner: _internal.Fleet) -> None:
        self._inner = inner

    def ingest(
        self, source: Any, name: str, replace: bool = False, progress: Progress | None = None, *, partition_by: str | Sequence[str] | None = None,
        redundancy: str | None = None, format: str | None = None,  # noqa: A002 - as the command has it
        schema: str = "strict", hive: bool = True, delimiter: str | None = None, header: bool = True, quote: str = '"',
        null: str | Sequence[str] = (), types: Mapping[str, str] | None = None, all_text: bool = False,
    ) -> None:
        """Stores a table under `name` (``domain.dataset``), spread over the drives; all of it or nothing.

        Parameters
        ----------
        source
            A path, directory or glob of Parquet, Arrow IPC/Feather, CSV, JSON (lines of objects, or one array of them)
            or raw VPIC particle (``.vpic``) files (texts also as .gz or .zst). Files that begin with ``.`` are left
            out, and in directories, which are read at any depth, also those that begin with ``_``. Or a table in
            memory: a pyarrow Table or RecordBatchReader, a pandas or polars data frame, anything with
            ``__arrow_c_stream__``. The index of a pandas data frame becomes columns, as pyarrow does it, unless it is
            a range without a name.
        replace
            True: put it in the place of a data set of that name, atomically. False: a data set of that
            name is a `ConflictError`.
        progress
            Called now and then with the number of rows stored so far.
        partition_by
            The column, or columns in order, whose values determine the drive of a row: rows with equal values are on
            one drive. Windows and aggregates by these columns then run whole on the drives, and so do joins with a
            table that is partitioned by columns of the same kinds. Integers, texts, bytes, booleans, dates, times and
            decimals can be such columns. By default rows are spread evenly, whatever they hold.
        redundancy
            Redundancy of the data set, instead of the fleet's: ``"none"``, ``"replicas:R"``, ``"ec:K+M"``, or, in a
            fleet with nodes, ``"ec:K+M/k+m"``.
        format
            The format of all files, whatever their names end in: ``"parquet"``, ``"arrow"``, ``"csv"``, ``"tsv"``,
            ``"jsonl"`` or ``"vpic"``.
        schema
            ``"strict"``: all files have the same columns, in any order. ``"union"``: the columns of all files, by name.
            Types are widened to one that holds every value, and what a file lacks is null.
        hive
            Whether directories called ``key=value`` around the files become columns.
        delimiter, quote
            What separates the values of CSV and TSV files, and what encloses values with separators in them: one
            character each; ``"tab"`` is a delimiter, too, and ``quote=""`` means that no value is enclosed.
        header
            False: their first line holds values; the columns are called ``column_1`` and so on.
        null
            A text, or texts, that mean no value in them, besides the empty text.
        types
            Types of some of their columns, instead of inferred ones: ``{"zip": "text"}``; also ``"int8"`` to
            ``"int64"``, ``"uint8"`` to ``"uint64"``, ``"float32"``, ``"float64"``, ``"decimal(P,S)"``, ``"bool"``,
            ``"date"``, ``"time"``, ``"timestamp"``.
        all_text
            True: all their other columns are text.

        Raises
        ------
        InvalidError
            There is no such column, or it is of a type that can't say where a row lies; there is no such redundancy,
            or it needs more drives. A value does not fit its column, or files do not go together: file, column and row
            are named. What another library raised is the exception's cause.
        CorruptError
            A file is damaged.
        UnsupportedError
            A column is of a type that can't be stored, or nested more than 32 levels deep.
        ExhaustedError
            A row of a text file takes more than 64 MiB, or a batch of an Arrow file far more than the file.

        Warns where a file of values seems to be separated by something else than its name says, and of what a union
        widened or filled with nulls.
        """
        by = [partition_by] if isinstance(partition_by, str) else list(partition_by or ())
        options = reading(
            format=format, schema=schema, hive=hive, delimiter=delimiter, header=header, quote=quote, null=null, types=types, all_text=all_text,
        )  # fmt: skip
        if isinstance(source, (str, os.PathLike)):
            hint = self._inner.ingest_files(os.fspath(source), name, replace, by, redundancy, progress, options)
            if hint is not None:
                warnings.warn(hint, stacklevel=2)
        else:
            refuse(options)
            self._inner.ingest_stream(as_stream(source, name), name, replace, by, redundancy, progress)

    def export(self, name: str, path: str | os.PathLike[str], replace: bool = False, progress: FileProgress | None = None) -> dict[str, Any]:
        """Writes a table to one Parquet file: its slices as they are stored, byte for byte, behind one footer. The file
        is there whole or not at all.

        ``skytether://`` reads the same file where it is, without writing it
        (``pandas.read_parquet("skytether://...")``; docs/physicists.md).

        Parameters
        ----------
        name
            ``domain.dataset``, or ``domain.dataset.table`` of an expression data set (``obs``, ``var``, ``x_rows``).
        path
            The file.
        replace
            True: put it in the place of a file that is there. False: that is a `ConflictError`.
        progress
            Called now and then with the bytes that are done and how many there will be.

        Returns
        -------
        dict
            `rows`, `row_groups`, `slices`, `bytes` and `seconds`.

        Raises
        ------
        NotFoundError
            There is no such table.
        UnsupportedError
            The table is the dense view of a matrix, which no drive stores: take its rows (``x_rows``).
        """
        return json.loads(self._inner.export(name, os.fspath(path), replace, progress))

    def sql(self, text: str, cut: str = "adaptive", *, params: Sequence[Any] | Mapping[Any, Any] | None = None) -> Result:
        """Plans a query; it runs when its result is first asked for.

        Parameters
        ----------
        text
            One SQL query over ``domain.dataset`` tables.
        cut
            How much may run on the drives: ``"adaptive"`` (the system decides), ``"full"``, ``"filter"`` or ``"raw"``.
        params
            The values of the query's parameters: one for each ``?`` in the order of the text, or ``$1`` first. Numbers,
            texts, bytes, booleans, dates, times, decimals, lists and None, of Python, numpy or pyarrow. A dict has them
            by number: ``{1: "Rome"}``.

        Raises
        ------
        InvalidError
            There are more or fewer values than parameters, or a value is of a kind that no column can have.
        """
        return Result(self._inner.sql(text, cut, row_of(params)))

    def dataset(self, name: str) -> Dataset:
        """A table (``domain.dataset`` or ``domain.dataset.table``) as a `pyarrow.dataset.Dataset`, for
        tools of the Arrow ecosystem.

        Its scans send columns and filters to the drives.

        Raises
        ------
        NotFoundError
            There is no such table.
        """
        from ._dataset import Dataset

        return Dataset(self, name)

    def substrait(self, plan: Any, cut: str = "adaptive") -> Result:
        """Plans a query that another producer wrote as a Substrait plan; it runs when its result is first asked for.

        Parameters
        ----------
        plan
            The bytes of a ``substrait.Plan``, or the protobuf message itself. Tables are named as in SQL, in two
            or three parts; the plan's own letter case and order of columns are followed as long as only one
            table or column can be meant.
        cut
            As for `sql`.

        Raises
        ------
        UnsupportedError
            The plan has something that the system does not know: the relation, the function or the option is named.
        InvalidError
            The bytes are no plan, or the plan contradicts itself or the tables.
        """
        return Result(self._inner.substrait(plan_bytes(plan), cut))

    def explain(self, text: Any, analyze: bool = False, cut: str = "adaptive") -> Explanation:
        """How a query is cut: the super-plan that the host keeps, the sub-plans for the drives, and why what stays
        on the host stays there.

        Parameters
        ----------
        text
            The query's text, or a plan as for `substrait`.
        analyze
            True: run it, and add where each operator ran, with rows, bytes, slices and time.
        cut
            As for `sql`.
        """
        return Explanation(*self._inner.explain(text if isinstance(text, str) else plan_bytes(text), analyze, cut))

    def ls(self) -> list[dict[str, Any]]:
        """The data sets: a dict each with at least `name`, `kind` and `tables`; one that can't be read has
        `kind` None and an `error`."""
        return json.loads(self._inner.list())

    def describe(self, name: str) -> dict[str, Any]:
        """What is known of one data set without reading its data: kind, tables, rows, bytes, application metadata."""
        return json.loads(self._inner.describe(name))

    def drop(self, name: str) -> None:
        """Removes a data set. There is no way back."""
        self._inner.drop(name)

    def status(self) -> list[dict[str, Any]]:
        """The drives, a dict each: `info` and `usage` (what it is and holds), or `error` (why it is lost, and what to
        do); `blank` where nothing was rebuilt on it yet, and `fenced` where another host has the fleet. In a fleet with
        nodes, `host` is the name of the drive's node."""
        return json.loads(self._inner.status())

    def create_index(
        self, table: str, columns: str | Sequence[str], *, include: str | Sequence[str] = (), name: str | None = None, wait: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> str:
        """Has the drives build an index, in the background: it finds rows by ranges of its columns, several at once.
        Queries use it when that saves time, as far as it is built, and answer the same as without. A data set that is
        replaced has it again, and so has a drive that was repaired.

        Parameters
        ----------
        table
            The data set (``"physics.p"``), or one of its tables (``"physics.p.data"``).
        columns
            The column, or columns (at most 8), by whose ranges the index finds rows.
        include
            Columns that the index includes besides its own. A query that reads no other columns reads no slice for the
            rows that the index finds. The index then takes as much space as these columns do.
        name
            Name of the index (default: its columns).
        wait
            Wait until it is built. An embedded fleet's drives build only while it is open.
        progress
            Called while it waits with how much is done, and 1000.

        Returns
        -------
        str
            What it is called.

        Raises
        ------
        NotFoundError
            There is no such table or column.
        ConflictError
            There is an index of that name.
        UnsupportedError
            A column is of a type without an order, the table is a matrix, or a drive is of a
            version that builds no indexes.
        ExhaustedError
            While waiting: a drive had no space for it.
        """
        parts = table.replace("/", ".").split(".")
        dataset, of = (".".join(parts[:2]), parts[2]) if len(parts) == 3 else (table, "data")
        listed = [[names] if isinstance(names, str) else list(names) for names in (columns, include)]
        called = self._inner.create_index(dataset, of, listed[0], listed[1], name)
        if wait:
            self._inner.wait_for_index(dataset, called, progress)
        return called

    def list_indexes(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """The indexes of a data set (default: of all), a dict each: `dataset`, `name`, `table`, `columns`, `include`,
        `state` (``"building"``, ``"ready"``, ``"dropped"`` for lack of space, ``"failed"``, ``"unknown"``), `done` (0
        to 1), `rows`, `bytes`, and `drives`, with the state on each drive."""
        return json.loads(self._inner.indexes(dataset))

    def drop_index(self, dataset: str, name: str) -> None:
        """Removes an index."""
        self._inner.drop_index(dataset, name)

    def scrub(
        self, datasets: str | Sequence[str] | None = None, *, rate: float | None = None, check: bool = False, progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Has every drive verify its values, compares parities with data by digests, and repairs damage. Queries and
        ingests continue.

        Parameters
        ----------
        datasets
            The data set, or data sets, to scrub (default: all).
        rate
            How fast each drive may read for it, in MB/s (default: as fast as it goes).
        check
            True: only report, and change nothing.
        progress
            Called now and then with the bytes done and those that there are.

        Returns
        -------
        dict
            `values` that were verified, `groups` whose parities were compared with their data, `bytes_verified` and
            `bytes_moved` for that, `damaged` and `mended` values, `found` (damage: a dict each with `key`, `drive`,
            `what`, `mended` and perhaps an `error`), drives that were `skipped` and why, and others.
            ``damaged - mended`` values are still damaged.

        Raises
        ------
        NotFoundError
            There is no data set of a name.
        UnavailableError
            More drives are lost than the fleet's redundancy covers.
        """
        names = [datasets] if isinstance(datasets, str) else list(datasets or ())
        return json.loads(self._inner.scrub(names, bytes_per_s(rate), check, progress))

    def repair(
        self, replace: str | Sequence[str] | None = None, *, address: str | None = None, rate: float | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Rebuilds the content of lost drives on blank ones in their places, and takes these in. Queries continue, and
        so do ingests where enough drives are left. A call after an interrupted one continues it.

        Parameters
        ----------
        replace
            The lost drive, or drives, by name or id. An embedded fleet creates a blank drive for each whose directory
            is gone or empty. By default all blank drives are rebuilt.
        address
            For a fleet behind a host: the address of the blank drive (``skytether drive serve --replace ID``) that
            replaces the named one, if the host does not reach it yet.
        rate
            How fast the other drives may read for it together, in MB/s (default: as fast as it goes).
        progress
            Called now and then with the bytes done and those that there are.

        Returns
        -------
        dict
            The `drives` that were rebuilt, the numbers of values that were `rebuilt` or `kept` from an earlier repair,
            `bytes_read` from the others, `bytes_least` that the codes need, `bytes_written`, `left` (texts about values
            that could not be rebuilt), drives that are still `lost` and why, and others.

        Raises
        ------
        InvalidError
            A drive is not lost, or the drive in its place is not blank.
        UnsupportedError
            The fleet has no redundancy.
        ConflictError
            Another repair is under way.
        UnavailableError
            More drives are lost than the fleet's redundancy covers, or one does not answer.
        """
        drives = [replace] if isinstance(replace, str) else list(replace or ())
        return json.loads(self._inner.repair(drives, address, bytes_per_s(rate), progress))

    def close(self) -> None:
        """Closes the connection or the drives. Ingested data are already safe. A second call does nothing.

        Results that were not read before can't be read any more. An Arrow stream with a reader keeps the drives until
        its end.
        """
        self._inner.close()
        for path, fleet in list(_opened.items()):
            if fleet is self:
                del _opened[path]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<skytether.Fleet {self._inner.location()}>"
