"""A fleet's table as a `pyarrow.dataset.Dataset`: requests of Arrow tools run on the drives where possible."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs

from . import _expression as ex
from .errors import ConflictError, InvalidError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from ._fleet import Fleet, Receipt, Result

#: The most rows of a batch that drives send.
MAX_BATCH = 1 << 16

#: What pyarrow gives at a time by default.
DEFAULT_BATCH = 1 << 17

#: Columns in the order in which one is read where only the number of rows counts: the narrowest first.
_NARROW = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_date32, pa.types.is_floating, pa.types.is_timestamp)


class Dataset(pads.UnionDataset):
    """One table of a fleet. Make one with `Fleet.dataset`.

    It has the columns that the table had at its creation. Once a table with other columns has that name, scans raise
    `ConflictError`. Columns and filters go to the drives. What Substrait or the drives can't express is evaluated here,
    over batches as they arrive, with the same answer (`Scanner.local` says why). Rows come in no fixed order.

    A pyarrow function that reads data sets by itself, past these methods, gets an error that names the method to use.
    """

    def __init__(self, fleet: Fleet, table: str, filter: pc.Expression | None = None, schema: pa.Schema | None = None) -> None:
        self._fleet, self._table, self._filter = fleet, table, filter
        self._columns = schema if schema is not None else pa.schema(fleet._inner.schema(table))
        #: The last scan that ran.
        self._last: Scanner | None = None
        # Arrow's C++ side sees this child, so that it gets an error and not a null pointer.
        child = pads.FileSystemDataset.from_paths(
            [table], schema=self._columns, format=pads.IpcFileFormat(), filesystem=pyarrow.fs.PyFileSystem(_OnFleet(table))
        )
        super().__init__(self._columns, [child])

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._columns

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table

    @property
    def receipt(self) -> Receipt:
        """The costs of the last scan of this data set, also of scans that tools such as DuckDB make by themselves.

        Raises
        ------
        InvalidError
            There was none yet, or it was not read to its end.
        """
        if self._last is None:
            raise InvalidError(f"{self.name} was not scanned yet: there is no receipt")
        return self._last.receipt

    def filter(self, expression: pc.Expression) -> Dataset:
        """This data set with only the rows where `expression` is true."""
        return Dataset(self._fleet, self._table, _both(self._filter, expression), self._columns)

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, batch_size: int = DEFAULT_BATCH, **options: Any) -> Scanner:
        """A scan that can be run, as often as one likes.

        Parameters
        ----------
        columns
            Names of columns, or a dict of names and expressions; all columns if None.
        filter
            Only rows where this is true.
        batch_size
            The most rows of a batch.
        options
            What else pyarrow's data sets take (``use_threads``, ``batch_readahead``, ``memory_pool`` and so on) is for
            files, and without effect.
        """
        _check_options(options)
        return self._scan(columns, _both(self._filter, filter), batch_size, options)

    def _scan(self, columns: Any, filter: pc.Expression | None, batch_size: int, options: dict[str, Any]) -> Scanner:
        return Scanner(self, columns, filter, batch_size)

    def to_batches(self, columns: Any = None, filter: pc.Expression | None = None, batch_size: int = DEFAULT_BATCH, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch as they arrive; see `scanner`."""
        return self.scanner(columns, filter, batch_size, **options).to_batches()

    def to_table(self, columns: Any = None, filter: pc.Expression | None = None, batch_size: int = DEFAULT_BATCH, **options: Any) -> pa.Table:
        """The rows in memory; see `scanner`."""
        return self.scanner(columns, filter, batch_size, **options).to_table()

    def head(self, num_rows: int, columns: Any = None, filter: pc.Expression | None = None, batch_size: int = DEFAULT_BATCH, **options: Any) -> pa.Table:
        """Any `num_rows` rows; see `scanner`."""
        return self.scanner(columns, filter, batch_size, **options).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """How many rows there are; see `scanner`."""
        return self.scanner(None, filter, **options).count_rows()

    def take(self, indices: Any, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Not offered: rows have no places. See `Scanner.take`."""
        return self.scanner(columns, filter, **options).take(indices)

    def sort_by(self, sorting: Any, **options: Any) -> pads.InMemoryDataset:
        """The rows in memory, sorted."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: Any, keys: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """The join of this and another data set, in memory; `Fleet.sql` joins on the fleet."""
        return pads.InMemoryDataset(self.to_table().join(_in_memory(right_dataset), keys, *arguments, **options))

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """The join of this and another data set on their nearest keys, in memory."""
        return pads.InMemoryDataset(self.to_table().join_asof(_in_memory(right_dataset), *arguments, **options))

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Fragment]:
        """One fragment: the table, whose parts are the drives' own affair. (`filter` would choose among fragments, and
        leaves rows as they are.)"""
        return iter([Fragment(self)])

    _get_fragments = get_fragments

    @property
    def children(self) -> list[Any]:
        """None that could be read without the fleet."""
        return []

    @property
    def partition_expression(self) -> pc.Expression:
        """True: nothing is known of all rows."""
        return pc.scalar(True)

    def replace_schema(self, schema: pa.Schema) -> Dataset:
        """Only with the schema that it has: a table's columns are as they were ingested."""
        if schema.equals(self._columns):
            return self
        raise UnsupportedError(f"the columns of {self._table} can't be replaced: cast in the scan, to_table(columns={{name: field(name).cast(type)}})")

    def _check(self) -> None:
        """Raises `ConflictError` where the table has other columns than when this data set was made."""
        if not pa.schema(self._fleet._inner.schema(self._table)).equals(self._columns):
            raise ConflictError(f"{self._table} was replaced by a table of other columns: take fleet.dataset({self._table!r}) again")

    def __reduce__(self) -> Any:
        inner = self._fleet._inner
        if not inner.is_remote():
            raise UnsupportedError(f"{self._table} can't be pickled, as its fleet is open in this process: serve the fleet and use skytether.connect")
        return _reconnect, (inner.location(), self._table, self._filter)

    def __repr__(self) -> str:
        return f"<skytether.Dataset {self._table}{'' if self._filter is None else f' where {self._filter}'}>"


class Scanner:
    """Some columns of some rows of a table. It has the methods of `pyarrow.dataset.Scanner`, and scans again each time
    it is read.

    Attributes
    ----------
    local
        What is evaluated here and not on the drives, and why, in words; None where the drives evaluate all.
    """

    def __init__(self, dataset: Dataset, columns: Any, filter: pc.Expression | None, batch_size: int) -> None:
        check_batch_size(batch_size)
        self._dataset, self._batch_size = dataset, batch_size
        self._result: Result | None = None
        self.dataset_schema = dataset.schema
        self._plan = _Plan(dataset.schema, _outputs(columns), filter)

    @property
    def local(self) -> str | None:
        return self._plan.local

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of what comes."""
        return self._plan.projected

    @property
    def receipt(self) -> Receipt:
        """What the last run cost. Raises `InvalidError` where there was none, or it was not read to its end."""
        if self._result is None:
            raise InvalidError(f"{self._dataset.name} was not read by this scan yet: there is no receipt")
        found = self._result._finished = self._result._inner.receipt()
        if found is None:
            raise InvalidError("the scan was not read to its end: there is no receipt for half a scan")
        return self._result.receipt

    def _run(self, limit: int | None = None, count: bool = False) -> Result:
        from ._fleet import Result

        plan, rows = self._plan, min(self._batch_size, MAX_BATCH)
        scan = self._dataset._fleet._inner.scan
        table = self._dataset.name
        try:
            try:
                inner = scan(table, plan.columns, plan.expressions, plan.filter, None if plan.rest is not None else limit, count, rows, "adaptive")
            except UnsupportedError as e:
                self._dataset._check()
                if plan.filter is None and plan.expressions is None:
                    raise
                plan.keep_here(str(e))
                inner = scan(table, plan.columns, None, None, None if plan.rest is not None else limit, count and plan.rest is None, rows, "adaptive")
        except (InvalidError, NotFoundError):
            # It may be wrong only for what is there now.
            self._dataset._check()
            raise
        if not (count and plan.rest is None) and not pa.schema(inner).equals(plan.fetched(self._dataset.schema)):
            self._dataset._check()
        self._result, self._dataset._last = Result(inner), self
        return self._result

    def _batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        result, plan = self._run(limit), self._plan
        for batch in pa.RecordBatchReader.from_stream(result):
            for part in plan.finish(batch):
                for at in range(0, part.num_rows, self._batch_size):
                    yield part.slice(at, self._batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream: nothing runs before the first batch is asked for, and nothing after
        the stream is let go."""
        return pa.RecordBatchReader.from_batches(self._plan.projected, self._batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch as they arrive."""
        return self._batches()

    def scan_batches(self) -> Iterator[pads.TaggedRecordBatch]:
        """As `to_batches`, each batch with the fragment that it is of."""
        fragment = Fragment(self._dataset)
        return (pads.TaggedRecordBatch(batch, fragment) for batch in self._batches())

    def to_table(self) -> pa.Table:
        """The rows in memory."""
        if not self._plan.projected.names:
            # A table without columns has a number of rows, which batches of none could not carry.
            return pa.table({"rows": pa.nulls(self.count_rows())}).select([])
        return pa.Table.from_batches(self._batches(), self._plan.projected)

    def head(self, num_rows: int) -> pa.Table:
        """Any `num_rows` rows; the drives stop when they are there."""
        if not isinstance(num_rows, int) or num_rows < 0:
            raise InvalidError(f"head takes a number of rows, not {num_rows!r}")
        found, missing = [], num_rows
        batches = self._batches(num_rows)
        # Where the drives know the number they end by themselves, and what it cost is known then.
        while (missing > 0 or self._plan.rest is None) and (batch := next(batches, None)) is not None:
            found.append(batch.slice(0, missing))
            missing -= found[-1].num_rows
        batches.close()
        return pa.Table.from_batches(found, self._plan.projected)

    def count_rows(self) -> int:
        """How many rows there are."""
        result, plan = self._run(count=self._plan.rest is None), self._plan
        if plan.rest is None:
            return pa.table(result).column(0)[0].as_py()
        return sum(plan.count(batch) for batch in pa.RecordBatchReader.from_stream(result))

    def take(self, indices: Any) -> pa.Table:
        """Not offered: rows arrive from the drives in no fixed order, so that a row has no place to be taken from."""
        raise UnsupportedError(
            f"the rows of {self._dataset.name} have no fixed order, so there is no row number {_first(indices)}: filter by a column, use head(n), or to_table().take(indices)"
        )

    def __arrow_c_schema__(self) -> object:
        return self._plan.projected.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<skytether.Scanner {self._dataset.name}: {', '.join(self._plan.projected.names)}>"


class Fragment:
    """A table as the one fragment of its data set, for tools that read fragments: it has the methods of
    `pyarrow.dataset.Fragment` that read."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.physical_schema, self.partition_expression = dataset.schema, dataset.partition_expression

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> Scanner:
        """As `Dataset.scanner`; `schema` must be the table's."""
        dataset = self._dataset if schema is None else self._dataset.replace_schema(schema)
        return dataset.scanner(**options)

    def to_batches(self, schema: pa.Schema | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """As `Dataset.to_batches`."""
        return self.scanner(schema, **options).to_batches()

    def to_table(self, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """As `Dataset.to_table`."""
        return self.scanner(schema, **options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """As `Dataset.head`."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, **options: Any) -> int:
        """As `Dataset.count_rows`."""
        return self._dataset.count_rows(**options)


def check_batch_size(batch_size: Any) -> None:
    """Raises `InvalidError` where this is no number of rows."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidError(f"a batch has at least one row, not {batch_size!r}")


class _Plan:
    """What of a scan is asked of the drives, and what is left to do here."""

    def __init__(self, schema: pa.Schema, outputs: list[str] | dict[str, pc.Expression] | None, condition: pc.Expression | None) -> None:
        self.local: str | None = None
        #: The filter that remains to be applied here.
        self.rest: pc.Expression | None = None
        self.filter: bytes | None = None
        self.expressions: bytes | None = None
        self._outputs = outputs
        self._compute = False
        self._condition = condition
        nodes: list[ex.Node] = []
        try:
            condition_node = None if condition is None else ex.parse(condition)
            output_nodes = [ex.parse(e) for e in outputs.values()] if isinstance(outputs, dict) else []
        except ex.NotPortable as e:
            # It may read any column.
            bound, condition_node, output_nodes, parsed = schema, None, [], False
            self._stays(str(e))
        else:
            parsed = True
            nodes = output_nodes if condition_node is None else [condition_node, *output_nodes]
            needed = set().union(*map(ex.columns, nodes))
            needed = needed.union(schema.names if outputs is None else outputs if isinstance(outputs, list) else ())
            bound = schema if outputs is None else pa.schema([f for f in schema if f.name in needed])
        self._all = schema
        asked = (needed if parsed else set()).union(outputs if isinstance(outputs, list) else ())
        for name in sorted(_OF_FILES.intersection(asked)):
            raise UnsupportedError(f"{name} is what pyarrow says of files, and tables of a fleet are none: leave it out (Fleet.sql reads a column of that name)")
        # pyarrow itself says what is wrong with an expression, and what comes.
        like = pads.InMemoryDataset(_viewless(bound).empty_table()).scanner(columns=outputs, filter=condition)
        whole = [node.path[0] if isinstance(node, ex.Field) and len(node.path) == 1 else None for node in output_nodes]
        whole = whole or list(like.projected_schema.names if not isinstance(outputs, dict) else [None] * len(outputs))
        self.projected: pa.Schema = pa.schema(
            [f if name is None else bound.field(name).with_name(f.name) for f, name in zip(like.projected_schema, whole)]
        )
        if not parsed:
            self.rest = condition
            self._here(schema.names)
            return
        writer, plain = ex.Writer(bound), ex.plain_schema(bound)
        if condition_node is not None:
            self._push_filter(condition_node, condition, writer, plain)
        self._needed = [f.name for f in bound]
        self._push_outputs(output_nodes, writer, plain)

    def _push_filter(self, node: ex.Node, condition: pc.Expression, writer: ex.Writer, plain: pa.Schema) -> None:
        pushed = []
        for part in ex.operands(node, "and_kleene"):
            try:
                pushed.append((writer.condition(part), ex.columns(part)))
            except ex.NotPortable as e:
                # Rows that pass the other parts are filtered by the whole here: that is only done
                # twice, and never otherwise.
                self.rest = condition
                self._stays(str(e))
        if pushed:
            read = set().union(*(names for _, names in pushed))
            try:
                joined = ex.joined([e for e, _ in pushed], "and_kleene")
                self.filter = ex.message([joined], ["filter"], pa.schema([f for f in plain if f.name in read]))
            except ex.NotPortable as e:
                self.rest = condition
                self._stays(str(e))

    def _push_outputs(self, nodes: list[ex.Node], writer: ex.Writer, plain: pa.Schema) -> None:
        if self.rest is not None:
            self._here(self._needed)
            return
        if not isinstance(self._outputs, dict):
            names = self._outputs
            self.columns = None if names is None else list(dict.fromkeys(names)) or [_narrowest(self._all)]
            return
        try:
            if not nodes or not any(map(ex.columns, nodes)):
                raise ex.NotPortable("nothing is read of a row but that it is there")
            read = set().union(*map(ex.columns, nodes))
            self.expressions = ex.message(
                [writer.typed(node)[0] for node in nodes], list(self._outputs), pa.schema([f for f in plain if f.name in read])
            )
            self.columns = None
        except ex.NotPortable as e:
            self._stays(str(e))
            self._here([f.name for f in self._all if f.name in set().union(*map(ex.columns, nodes))])

    def _here(self, names: list[str]) -> None:
        """The columns of these names come, and the rest is done here."""
        self._compute = True
        self.columns: list[str] | None = names or [_narrowest(self._all)]

    def _stays(self, why: str) -> None:
        self.local = why if self.local is None else f"{self.local}; {why}"

    def keep_here(self, why: str) -> None:
        """All is done here, as the drives would not; why, in words."""
        self._stays(why)
        if self.filter is not None:
            self.rest, self.filter = self._condition, None
        if self.expressions is not None or self.rest is not None:
            self.expressions = None
            self._here(self._needed)

    def fetched(self, schema: pa.Schema) -> pa.Schema:
        """The columns that come from the drives, of a table with those of `schema`."""
        if self.expressions is not None:
            return self.projected
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    def count(self, batch: pa.RecordBatch) -> int:
        """How many rows of a batch of the drives remain."""
        return pads.InMemoryDataset(_plain(batch)).count_rows(filter=self.rest)

    def finish(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """What is left to do with a batch of the drives."""
        if self._compute:
            table = pads.InMemoryDataset(_plain(batch)).scanner(columns=self._outputs, filter=self.rest).to_table()
            return [part for part in table.cast(self.projected).to_batches() if part.num_rows]
        if isinstance(self._outputs, list) and batch.schema.names != self._outputs:
            batch = batch.select(self._outputs)
        return [batch if batch.schema.equals(self.projected) else batch.cast(self.projected)]


#: Columns that pyarrow makes up of fragments and their batches.
_OF_FILES = {"__filename", "__fragment_index", "__batch_index", "__last_in_fragment"}


class _OnFleet(pyarrow.fs.FileSystemHandler):
    """The file system of a data set without files: opening one raises an error that says what to do."""

    def __init__(self, table: str) -> None:
        self._table = table

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise OSError(f"the rows of {self._table} are on a fleet, and pyarrow can't open them as files: give it the data set's scanner().to_reader()")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_input_stream = open_input_file = open_output_stream = open_append_stream = _refuse

    def get_type_name(self) -> str:
        return "skytether"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pyarrow.fs.FileInfo]:
        return [pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.File) for path in paths]


def _outputs(columns: Any) -> list[str] | dict[str, pc.Expression] | None:
    if columns is None:
        return None
    if isinstance(columns, dict):
        wrong = [name for name, e in columns.items() if not isinstance(name, str) or not isinstance(e, pc.Expression)]
        if wrong:
            raise InvalidError(f"columns as a dict are names and pyarrow expressions, and {wrong[0]!r} is not")
        return columns
    if isinstance(columns, str):
        raise InvalidError(f"columns are a list of names: write [{columns!r}]")
    names = list(columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidError(f"columns are names or a dict of names and expressions, and not {names!r}")
    return names


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` without views."""
    schema = _viewless(batch.schema)
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _viewless(schema: pa.Schema) -> pa.Schema:
    """`schema` with texts and bytes in the forms that pyarrow can filter and compare: it can't do that with views."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([field.with_type(plain.get(field.type, field.type)) for field in schema])


def _narrowest(schema: pa.Schema) -> str:
    for is_narrow in _NARROW:
        for field in schema:
            if is_narrow(field.type):
                return field.name
    if not schema.names:
        raise NotFoundError("the table has no columns")
    return schema.names[0]


def _both(first: pc.Expression | None, second: Any) -> pc.Expression | None:
    if second is None:
        return first
    if not isinstance(second, pc.Expression):
        bound = getattr(second, "expressions", None)  # pyarrow.substrait.BoundExpressions
        if not isinstance(bound, dict) or len(bound) != 1:
            raise InvalidError(f"a filter is a pyarrow expression, for example pyarrow.compute.field('fare') > 10, and no {type(second).__name__}")
        (second,) = bound.values()
    return second if first is None else first & second


#: What else pyarrow's scanners take.
_OPTIONS = {"batch_readahead", "fragment_readahead", "fragment_scan_options", "use_threads", "cache_metadata", "memory_pool"}


def _check_options(options: dict[str, Any]) -> None:
    for name in options.keys() - _OPTIONS:
        raise InvalidError(f"a scan has no option {name!r}; it takes columns, filter and batch_size")


def _first(indices: Any) -> Any:
    try:
        first = next(iter(indices))
    except (StopIteration, TypeError):
        return indices
    return first.as_py() if isinstance(first, pa.Scalar) else first


def _in_memory(dataset: Any) -> pa.Table:
    return dataset.to_table() if isinstance(dataset, pads.Dataset) else dataset


#: The fleets of data sets that came out of pickles, by process and URL: one connection for all, as long as
#: there is such a data set.
_connected: WeakValueDictionary[tuple[int, str], Fleet] = WeakValueDictionary()


def _reconnect(url: str, table: str, filter: pc.Expression | None) -> Dataset:
    from ._fleet import connect_again

    key = (os.getpid(), url)
    fleet = _connected.get(key)
    if fleet is None:
        fleet = _connected.setdefault(key, connect_again(url))
    return Dataset(fleet, table, filter)
