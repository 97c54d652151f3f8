"""Scans of files in Ceph: which row groups are read, where each is computed, and what it cost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs

from ._ceph_files import Opened, wrong
from ._ceph_push import Part, Push
from ._dataset import Scanner, _outputs, check_batch_size
from ._ordered import ordered
from ._result import Receipt
from .errors import InvalidError, SkytetherError

if TYPE_CHECKING:
    from ._ceph import FileDataset

#: Files that are scanned at a time.
FILES = 4

#: Objects of a receipt whose places the monitors are asked for, at most.
ASKED = 1000


class FileScanner(Scanner):
    """Some columns of some rows of files in Ceph. It has the methods of `pyarrow.dataset.Scanner`, and scans again each
    time it is read."""

    def __init__(self, dataset: FileDataset, columns: Any, filter: pc.Expression | None, batch_size: int, options: dict[str, Any]) -> None:
        check_batch_size(batch_size)
        self._files, self._batch_size, self._options = dataset, batch_size, options
        self._outputs, self._condition = _outputs(columns), filter
        self._ran: Run | None = None
        self.dataset_schema = dataset.schema
        # pyarrow itself says what is wrong with an expression, and what comes.
        self._projected: pa.Schema = dataset._inner.scanner(columns=self._outputs, filter=filter).projected_schema

    @property
    def local(self) -> str | None:
        """Why less than all was computed in OSDs in the last run; None where all was, or none was needed."""
        return None if self._ran is None else self._ran.reason

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of what comes."""
        return self._projected

    @property
    def receipt(self) -> Receipt:
        """What the last run cost. Raises `InvalidError` where there was none, or it was not read to its end."""
        if self._ran is None:
            raise InvalidError(f"{self._files.name} was not read by this scan yet: there is no receipt")
        return self._ran.receipt

    def _begin(self, outputs: Any) -> Run:
        self._ran = self._files._last = Run(self._files, self._condition, outputs)
        return self._ran

    def _batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in self._tagged(limit))

    def _tagged(self, limit: int | None = None) -> Iterator[tuple[pa.RecordBatch, Any]]:
        run = self._begin(self._outputs)
        batch_size = self._batch_size if limit is None else max(1, min(self._batch_size, limit))
        options = {**self._options, "columns": self._outputs, "batch_size": batch_size}
        # Where few rows are wanted, the first file may have them all.
        pieces = ordered((partial(run.rows, fragment, options) for fragment in run.fragments), 1 if limit is not None else FILES)
        try:
            yield from pieces
            run.end()
        finally:
            pieces.close()
            run.close()

    def scan_batches(self) -> Iterator[pads.TaggedRecordBatch]:
        """As `to_batches`, each batch with the fragment that it is of."""
        return (pads.TaggedRecordBatch(batch, fragment) for batch, fragment in self._tagged())

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream: nothing is read before the first batch is asked for, and nothing after the stream is
        let go."""
        return pa.RecordBatchReader.from_batches(self._projected, self._batches())

    def to_table(self) -> pa.Table:
        """The rows in memory."""
        if not self._projected.names:
            return pa.table({"rows": pa.nulls(self.count_rows())}).select([])
        return pa.Table.from_batches(self._batches(), self._projected)

    def head(self, num_rows: int) -> pa.Table:
        """The first `num_rows` rows. No file after the one that has the last of them is read."""
        if not isinstance(num_rows, int) or num_rows < 0:
            raise InvalidError(f"head takes a number of rows, not {num_rows!r}")
        found, missing = [], num_rows
        batches = self._batches(num_rows)
        while missing > 0 and (batch := next(batches, None)) is not None:
            found.append(batch.slice(0, missing))
            missing -= found[-1].num_rows
        batches.close()
        if self._ran is not None:
            self._ran.end()
        return pa.Table.from_batches(found, self._projected)

    def count_rows(self) -> int:
        """How many rows there are. Without a filter, only the footers of Parquet files are read."""
        # Of rows of an OSD, a column of the filter says how many there are.
        run = self._begin([])
        counts = ordered((partial(run.count, fragment, self._options) for fragment in run.fragments), FILES)
        try:
            total = sum(counts)
            run.end()
            return total
        finally:
            counts.close()
            run.close()

    def take(self, indices: Any) -> pa.Table:
        """The rows with these numbers, in the order of the files' paths."""
        return self.to_table().take(indices)

    def __arrow_c_schema__(self) -> object:
        return self._projected.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<skytether.FileScanner {self._files.name}: {', '.join(self._projected.names)}>"


class Run:
    """One run of a scan: its files, each opened once, and what was done."""

    def __init__(self, dataset: FileDataset, condition: pc.Expression | None, outputs: Any) -> None:
        listing = dataset._listing
        self._dataset, self._listing, self.condition = dataset, listing, condition
        self._schema: pa.Schema = dataset.schema
        self._opened = Opened(listing.tree, keep=True)
        self._system = pyarrow.fs.PyFileSystem(self._opened)
        self._lock = threading.Lock()
        self._started, self._seconds = time.monotonic(), None
        self._push = Push(self._schema, listing.kind, outputs, condition)
        #: Why the first part that was evaluated here was.
        self.reason = self._push.reason if listing.pushdown else "pushdown=False"
        self._reads: list[tuple[str, str, str, int, int]] = []
        self._groups, self._pruned = 0, 0
        self._receipt: Receipt | None = None
        inner = dataset._inner
        self.fragments = list(inner.get_fragments() if condition is None else inner.get_fragments(condition))

    def _fragment(self, of: Any) -> Any:
        """The fragment over this run's files."""
        return self._listing.format.make_fragment(of.path, filesystem=self._system, partition_expression=of.partition_expression)

    def _named(self, path: str, work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The results of `work`; errors of pyarrow name the file."""
        try:
            yield from work()
        except SkytetherError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise wrong(path, self._listing.kind, error) from error

    def rows(self, of: Any, options: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """The rows of a file, each batch with the fragment."""
        return self._named(of.path, lambda: self._rows_of(of, options))

    def _rows_of(self, of: Any, options: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        fragment = self._fragment(of)
        self._note_groups(fragment)
        for part in self._parts(fragment):
            table = self._at_osd(part, fragment)
            if table is not None:
                batches = self._push.finished(table, options)
            else:
                batches = _subset(fragment, part).scanner(schema=self._schema, filter=self.condition, **options).to_batches()
            for batch in batches:
                if batch.num_rows:
                    yield batch, of

    def _parts(self, fragment: Any) -> Iterator[Part]:
        """The parts of a file; one where nothing goes to OSDs."""
        if not self._listing.pushdown or self._push.reason is not None:
            return iter([Part(None, None, None)])
        return self._push.parts(fragment, self._opened.file(fragment.path))

    def _at_osd(self, part: Part, fragment: Any) -> pa.Table | None:
        """The rows of a part by the OSD that has it; None where it is evaluated here."""
        reason = part.reason
        if part.told is not None:
            found = self._push.run(part, fragment, self._opened.file(fragment.path))
            if not isinstance(found, str):
                return found
            reason = found
        with self._lock:
            self.reason = self.reason or reason
        return None

    def count(self, of: Any, options: dict[str, Any]) -> Iterator[int]:
        """How many rows of a file there are."""

        def work() -> Iterator[int]:
            fragment = self._fragment(of)
            self._note_groups(fragment)
            for part in self._parts(fragment):
                table = self._at_osd(part, fragment)
                if table is not None:
                    yield pads.InMemoryDataset(table).count_rows(filter=self.condition)
                else:
                    yield _subset(fragment, part).scanner(schema=self._schema, filter=self.condition, **options).count_rows()

        return self._named(of.path, work)

    def _note_groups(self, fragment: Any) -> None:
        """Counts the row groups, and those that the filter needs."""
        whole = left = 1
        if self._listing.kind == "parquet":
            whole = left = fragment.num_row_groups
            if self.condition is not None:
                left = len(fragment.split_by_row_group(self.condition, schema=self._schema))
        with self._lock:
            self._groups, self._pruned = self._groups + whole, self._pruned + whole - left

    def end(self) -> None:
        """All that was wanted was read."""
        if self._seconds is None:
            self._seconds = time.monotonic() - self._started

    def close(self) -> None:
        """Lets go of the files."""
        self._reads += [(*file.pool(), *read) for file in self._opened.opened() for read in file.reads()]
        self._opened, self._system = Opened(self._listing.tree, keep=False), None

    @property
    def receipt(self) -> Receipt:
        """What it cost. Asks the monitors which OSDs have the objects.

        Raises
        ------
        InvalidError
            The scan was not read to its end.
        """
        if self._seconds is None:
            raise InvalidError("the scan was not read to its end: there is no receipt for half a scan")
        if self._receipt is None:
            self._receipt = self._made()
        return self._receipt

    def _made(self) -> Receipt:
        drives: dict[tuple[str, str], dict[str, Any]] = {}
        for done in self._push.done:
            drive = drives.setdefault((done.osd, "filter"), _drive(done.osd, "filter", None))
            for key, value in (("slices", done.groups), ("rows_out", done.rows), ("bytes_read", done.read), ("bytes_sent", done.sent), ("seconds", done.seconds)):
                drive[key] += value
        for at, (pool, namespace, object, _, size) in enumerate(self._reads):
            osd = self._listing.tree.osd(pool, namespace, object) if at < ASKED else None
            name = f"osd.{osd}" if osd is not None else f"pool {pool}"
            drive = drives.setdefault((name, "raw"), _drive(name, "raw", self.reason))
            drive["slices"] += 1
            drive["bytes_read"] += size
            drive["bytes_sent"] += size
        moved = sum(drive["bytes_sent"] for drive in drives.values())
        found = {
            "bytes_stored": sum(self._listing.sizes[path] for path in self._listing.paths),
            "bytes_read": sum(drive["bytes_read"] for drive in drives.values()),
            "bytes_moved": moved,
            "seconds": self._seconds,
            "drives": [drives[name] for name in sorted(drives)],
            "files": len(self._listing.paths),
            "files_pruned": len(self._listing.paths) - len(self.fragments),
            "row_groups": self._groups,
            "row_groups_pruned": self._pruned,
        }
        tree = _tree(found)
        return Receipt(json.dumps(found), tree, tree)


def _drive(name: str, rung: str, reason: str | None) -> dict[str, Any]:
    return {
        "name": name, "rung": rung, "slices": 0, "slices_pruned": 0, "rows_out": 0, "bytes_read": 0, "bytes_sent": 0, "seconds": 0.0,
        "reason": reason,
    }  # fmt: skip


def _subset(fragment: Any, part: Part) -> Any:
    """The part of a file, for pyarrow."""
    return fragment if part.groups is None else fragment.subset(row_group_ids=part.groups)


def _tree(found: dict[str, Any]) -> str:
    lines = [
        f"{found['files']} files ({found['files_pruned']} left out by their directories), {found['row_groups']} row groups "
        f"({found['row_groups_pruned']} left out by their statistics), in {found['seconds'] * 1000:.1f} ms",
        f"├─ stored {found['bytes_stored']:,} bytes, read {found['bytes_read']:,}, moved {found['bytes_moved']:,}",
    ]
    for drive in found["drives"]:
        what = "filter ran there" if drive["rung"] != "raw" else "read from here"
        why = f" ({drive['reason']})" if drive["reason"] else ""
        parts = "objects" if drive["rung"] == "raw" else "row groups"
        moved = f"{drive['bytes_read']:,} bytes read, {drive['bytes_sent']:,} sent"
        lines.append(f"├─ {drive['name']}: {what}; {drive['slices']} {parts}, {moved}{why}")
    lines[-1] = lines[-1].replace("├─", "└─", 1)
    return "\n".join(lines)
