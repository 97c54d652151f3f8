"""What of a scan of files in Ceph goes to the OSDs that have them: parts of files, each in one object.

The OSD gives the rows that pass those parts of the filter that can be sent. The whole filter is applied here once
more, so that the answer does not depend on where a part of a file was evaluated.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from . import _expression as ex
from . import _internal
from ._dataset import _OF_FILES, _plain
from .errors import SkytetherError

#: Formats that engines next to OSDs read by the rules that pyarrow has. Of text they have other ones.
FORMATS = ("parquet", "feather")

#: After this number of failed calls in a row, the rest of a scan is evaluated here without asking.
GIVE_UP = 8


#: Bytes of rows from OSDs below which it does not matter whether the columns have fewer.
LEAST = 8 << 20


@dataclass(frozen=True)
class Part:
    """A part of a file that is evaluated at once: in the OSD of an object, or here."""

    #: Row groups of a Parquet file; None for a whole file of another format.
    groups: list[int] | None
    #: What the OSD is told, or None.
    told: dict[str, Any] | None
    #: Why it is evaluated here, where nothing is told.
    reason: str | None


@dataclass(frozen=True)
class Done:
    """What an OSD did."""

    osd: str
    groups: int
    rows: int
    read: int
    sent: int
    seconds: float


class Push:
    """The part of one run of a scan that goes to OSDs."""

    def __init__(self, schema: pa.Schema, kind: str, outputs: Any, condition: pc.Expression | None) -> None:
        self._schema, self._kind, self._outputs, self._condition = schema, kind, outputs, condition
        self._lock = threading.Lock()
        self._scans: dict[tuple[pa.Schema, frozenset[str]], Any] = {}
        self._failed = self._read = self._sent = 0
        # The first part is asked for alone: what came of it decides about the others.
        self._asked, self._tried = False, threading.Event()
        self._stopped: str | None = None
        self.done: list[Done] = []
        #: Why nothing can go there, whatever the file.
        self.reason = self._prepare()

    def _prepare(self) -> str | None:
        if self._kind not in FORMATS:
            return f"{self._kind} files are read here, by pyarrow's rules for text"
        if self._condition is None:
            return "without a filter an OSD would send all rows: the columns are read from the objects"
        try:
            self._node = ex.parse(self._condition)
            nodes = [self._node, *(ex.parse(e) for e in self._outputs.values())] if isinstance(self._outputs, dict) else [self._node]
        except ex.NotPortable as error:
            return str(error)
        needed = set().union(*map(ex.columns, nodes))
        needed |= set(self._schema.names if self._outputs is None else self._outputs if isinstance(self._outputs, list) else ())
        if needed & _OF_FILES:
            return "the scan asks for what pyarrow says of files"
        self._needed = [field for field in self._schema if field.name in needed]
        return None

    def _scan(self, fragment: Any) -> Any:
        """The scan of files with the columns of a fragment, or why there is none, as a text."""
        of = (fragment.physical_schema, frozenset(pads.get_partition_keys(fragment.partition_expression)))
        with self._lock:
            if of not in self._scans:
                self._scans[of] = self._made(*of)
            return self._scans[of]

    def _made(self, physical: pa.Schema, keys: frozenset[str]) -> Any:
        pushed, why = [], None
        if len(set(physical.names)) != len(physical.names):
            return "the file has two columns of one name"
        # The value in a file's path goes before a column of the file.
        there = set(physical.names) - keys
        # An OSD compares values as the file has them, pyarrow as the data set does.
        cast = {field.name for field in physical if field.name in there and not _is_same(field.type, self._schema, field.name)}
        writer, plain = ex.Writer(physical), ex.plain_schema(physical)
        for part in ex.operands(self._node, "and_kleene"):
            read = ex.columns(part)
            if not read or not read <= there:
                why = why or "a part of the filter is about columns that the file does not have"
                continue
            if read & cast:
                why = why or "a part of the filter is about columns whose type in the file is not that of the data set"
                continue
            try:
                pushed.append((writer.condition(part), read))
            except ex.NotPortable as error:
                why = str(error)
        if not pushed:
            return why or "no part of the filter can be sent"
        read = set().union(*(names for _, names in pushed))
        wanted = [field.name for field in self._needed if field.name in there] or [sorted(read)[0]]
        try:
            joined = ex.joined([expression for expression, _ in pushed], "and_kleene")
            condition = ex.message([joined], ["filter"], pa.schema([field for field in plain if field.name in read]))
            return _internal.CephScan(self._kind, physical.remove_metadata(), wanted, condition)
        except (ex.NotPortable, SkytetherError) as error:
            return str(error)

    def parts(self, fragment: Any, file: Any) -> Iterator[Part]:
        """The parts of a file, in their order."""
        groups = None
        if self._kind == "parquet":
            left = fragment.split_by_row_group(self._condition, schema=self._schema)
            groups = [group.id for one in left for group in one.row_groups]
            if not groups:
                return
        scan = self._scan(fragment)
        if isinstance(scan, str):
            yield Part(groups, None, scan)
        elif groups is None:
            objects = file.objects(0, file.size())
            if len(objects) == 1:
                yield Part(None, {"object": objects[0][0], "at": 0, "len": file.size(), "groups": None, "pieces": []}, None)
            else:
                yield Part(None, None, f"the file lies in {len(objects)} objects")
        else:
            yield from self._grouped(fragment.metadata, groups, file)

    def _grouped(self, metadata: Any, groups: list[int], file: Any) -> Iterator[Part]:
        """Neighbouring row groups of one object together; those that lie in two are read here."""
        size = file.size()
        footer = size - 8 - metadata.serialized_size
        run: list[int] = []
        place: tuple[str, int] | None = None
        with self._lock:
            alone = not self._asked
        for group in [*groups, None]:
            found = None if group is None else _place(metadata.row_group(group), file)
            if run and (group is None or found != place or alone):
                yield self._part(run, place, footer, file)
                run, alone = [], False
            if group is not None:
                run.append(group)
                place = found

    def _part(self, groups: list[int], place: tuple[str, int] | None, footer: int, file: Any) -> Part:
        if place is None:
            return Part(groups, None, "a row group lies in several objects")
        object, at = place
        end = at
        for name, first, last in file.objects(at, file.size()):
            if name != object or first != end - at:
                break
            end = at + last
        if end == at:
            return Part(groups, None, "the file is striped over several objects")
        pieces = [] if at <= footer and end == file.size() else [(footer, file.read(footer, file.size()))]
        return Part(groups, {"object": object, "at": at, "len": end - at, "groups": groups, "pieces": pieces}, None)

    def run(self, part: Part, fragment: Any, file: Any) -> pa.Table | str:
        """The rows of a part that the OSD gave, as columns of the data set; or why there are none, in words."""
        assert part.told is not None
        with self._lock:
            first, self._asked = not self._asked, True
        if not first:
            self._tried.wait()
        try:
            return self._run(part, fragment, file)
        finally:
            self._tried.set()

    def _run(self, part: Part, fragment: Any, file: Any) -> pa.Table | str:
        with self._lock:
            if self._failed >= GIVE_UP:
                return f"{GIVE_UP} calls in a row failed before"
            if self._stopped is not None:
                return self._stopped
        osd, rows, number, read, seconds, reason = file.scan(part.told, self._scan(fragment))
        table: pa.Table | str = reason if osd is None or reason is None else f"osd.{osd}: {reason}"
        if rows is not None:
            try:
                table = self._conformed(pa.ipc.open_stream(rows).read_all(), fragment)
            except pa.ArrowException as error:
                table = f"the rows of the OSD are of types that pyarrow can't turn into those of the data set: {error}"
        with self._lock:
            if isinstance(table, str):
                self._failed += 1
                if reason is not None and reason.startswith("Exhausted"):
                    table = self._stopped = f"the filter keeps more rows than an OSD gives at once: {table}"
            else:
                self._failed = 0
                name = "osd.?" if osd is None else f"osd.{osd}"
                self.done.append(Done(name, len(part.groups or [0]), number, read, len(rows), seconds))
                stored = read if part.groups is None else self._stored(fragment.metadata, part.groups)
                self._read, self._sent = self._read + stored, self._sent + len(rows)
                if self._sent >= max(LEAST, self._read):
                    few, many = f"{self._read:,} bytes of columns", f"{self._sent:,} bytes of rows"
                    self._stopped = f"OSDs made {many} of {few}, which are less to read from here"
        return table

    def _stored(self, metadata: Any, groups: list[int]) -> int:
        """Bytes of the columns that the scan needs, as the file has them."""
        needed = {field.name for field in self._needed}
        chunks = (metadata.row_group(group).column(number) for group in groups for number in range(metadata.num_columns))
        return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in needed)

    def _conformed(self, table: pa.Table, fragment: Any) -> pa.Table:
        """`table` with the columns of the data set that the scan needs."""
        keys = pads.get_partition_keys(fragment.partition_expression)
        columns = []
        for field in self._needed:
            if field.name in keys:
                columns.append(pa.repeat(pa.scalar(keys[field.name], field.type), table.num_rows))
            elif field.name in table.column_names:
                column = table.column(field.name)
                plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(column.type)
                columns.append((column if plain is None else column.cast(plain)).cast(field.type))
            else:
                columns.append(pa.nulls(table.num_rows, field.type))
        return pa.table(columns, pa.schema(self._needed))

    def finished(self, table: pa.Table, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rest of the scan, over rows of an OSD."""
        chosen = {name: options[name] for name in ("columns", "batch_size") if name in options}
        for batch in table.to_batches():
            yield from pads.InMemoryDataset(_plain(batch)).scanner(filter=self._condition, **chosen).to_batches()


def _is_same(type: pa.DataType, schema: pa.Schema, name: str) -> bool:
    """Whether comparisons of a file's column give what those of the data set's column give."""
    if name not in schema.names or (wanted := schema.field(name).type) == type:
        return True
    signed = pa.types.is_signed_integer(type) and pa.types.is_signed_integer(wanted)
    unsigned = pa.types.is_unsigned_integer(type) and pa.types.is_unsigned_integer(wanted)
    return (signed or unsigned) and wanted.bit_width > type.bit_width


def _place(group: Any, file: Any) -> tuple[str, int] | None:
    """The object that has a row group, and where in the file the object begins; None where it lies in several."""
    starts, ends = [], []
    for number in range(group.num_columns):
        column = group.column(number)
        pages = [page for page in (column.dictionary_page_offset, column.data_page_offset) if page is not None]
        starts.append(min(pages))
        ends.append(min(pages) + column.total_compressed_size)
    objects = file.objects(min(starts), max(ends))
    if len(objects) != 1:
        return None
    object, first, _ = objects[0]
    return object, min(starts) - first
