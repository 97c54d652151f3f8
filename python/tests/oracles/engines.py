"""The engines: fleets of several forms that hold the same tables, DuckDB, and DataFusion's own package.

`Fleets` has an embedded fleet with each table three times (spread, partitioned by key, with indexes), an embedded one
with redundancy that has lost a drive, one of drives of several speeds among which work moves, and a served one that an
ADBC driver asks with prepared statements."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from fleets import Served, device

import skytether
import skytether.errors

from . import answers, nodes, printing
from .tables import Schema

CUTS = ("full", "filter", "raw", "adaptive")
#: How the fleet with a lost drive keeps its data, drawn for each schema.
REDUNDANCIES = ("ec:2+1", "replicas:2", "replicas:3")


def new_duck() -> duckdb.DuckDBPyConnection:
    """DuckDB with an empty schema `e`."""
    con = duckdb.connect()
    con.execute("SET threads = 1; SET TimeZone = 'UTC'; SET integer_division = true; CREATE SCHEMA e")
    return con


def duck(schema: Schema) -> duckdb.DuckDBPyConnection:
    """DuckDB with the tables of a schema in `e`."""
    con = new_duck()
    for table in schema.values():
        con.register("given", table.arrow())
        con.execute(f"CREATE TABLE e.{table.name} AS SELECT * FROM given")
        con.unregister("given")
    return con


#: How long DuckDB may take for a query, in seconds. Drawn joins may be products that it does not finish.
DUCK_SECONDS = 60.0


def ask_duck(con: duckdb.DuckDBPyConnection, sql: str, seconds: float = DUCK_SECONDS) -> answers.Answer:
    limit = threading.Timer(seconds, con.interrupt)
    limit.start()
    try:
        return answers.of_stream(con.sql(sql).to_arrow_reader())
    except answers.TooManyRows:
        return answers.Refusal("TooManyRows", "more rows than the oracles read")
    except (duckdb.Error, pa.ArrowException, OSError, RuntimeError, UnicodeDecodeError) as error:
        return answers.Refusal(type(error).__name__, str(error))
    finally:
        limit.cancel()


def ask_plain_duck(con: duckdb.DuckDBPyConnection, sql: str) -> answers.Answer:
    """DuckDB's answer without its optimizer, which has faults of its own."""
    con.execute("PRAGMA disable_optimizer")
    try:
        # Joins may be products of all rows then.
        return ask_duck(con, sql, 20)
    finally:
        con.execute("PRAGMA enable_optimizer")


def ask(fleet: skytether.Fleet, sql: str | bytes, cut: str = "full") -> answers.Answer:
    """A fleet's answer to a text or to a Substrait plan."""
    try:
        result = fleet.sql(sql, cut=cut) if isinstance(sql, str) else fleet.substrait(sql, cut=cut)
        return answers.of_stream(pa.RecordBatchReader.from_stream(result))
    except answers.TooManyRows:
        return answers.Refusal("TooManyRows", "more rows than the oracles read")
    except skytether.errors.SkytetherError as error:
        return answers.Refusal(type(error).__name__, str(error))
    except (pa.ArrowException, OSError) as error:
        # What happens while rows come through pyarrow.
        return answers.Refusal(type(error).__name__, str(error).removeprefix("External error: "))


class Fleets:
    """Fleets that hold one schema, in directories below `place`; `served` says whether there are processes as well."""

    def __init__(self, place: Path, served: bool = False) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.main = skytether.open(place / "main", drives=3, slice_rows=7)
        self.moving = skytether.open(place / "moving", drives=3, slice_rows=7)
        self.moving.close()
        self.lost: skytether.Fleet | None = None
        self.moving = skytether.open(place / "moving", profile=[device(1.0), device(0.5, cores=2), device(0.25)], slice_rows=7)
        self.processes = Served(self._made("served"), 3, "--slice-rows", 7) if served else None
        self.served = skytether.connect(self.processes.url) if self.processes else None
        self.adbc: Any = None
        if self.processes:
            import adbc_driver_flightsql.dbapi as flight_sql

            self.adbc = flight_sql.connect(self.processes.url.replace("grpc://", "grpc+tcp://"), autocommit=True)

    def _made(self, name: str) -> Path:
        (self.place / name).mkdir(parents=True, exist_ok=True)
        return self.place / name

    def fill(self, schema: Schema, random: Random, only: tuple[str, str] | None = None) -> None:
        """Puts the tables of a schema in the place of those before; `only` those of the main fleet and one more form:
        which fleet, and which domain."""
        for table in schema.values():
            arrow = table.arrow()
            self.main.ingest(arrow, f"e.{table.name}", replace=True)
            if only in (None, ("main", "p")):
                self.main.ingest(arrow, f"p.{table.name}", replace=True, partition_by="k")
            if only in (None, ("main", "x")):
                # A data set that is replaced keeps its indexes, and this schema has others.
                with contextlib.suppress(skytether.errors.NotFoundError):
                    self.main.drop(f"x.{table.name}")
                self.main.ingest(arrow, f"x.{table.name}")
                self._index(table, random)
            if only in (None, ("moving", "e")):
                self.moving.ingest(arrow, f"e.{table.name}", replace=True)
            if self.served is not None and only in (None, ("served", "e")):
                self.served.ingest(arrow, f"e.{table.name}", replace=True)
        if only in (None, ("lost", "e")):
            self._lose(schema, random)

    def _index(self, table: Any, random: Random) -> None:
        able = [c.name for c in table.columns if c.type.kind not in nodes.NESTED]
        for at in range(2):
            columns = random.sample(able, min(len(able), random.choice([1, 1, 2, 3])))
            others = [name for name in able if name not in columns]
            include = random.sample(others, min(len(others), random.choice([0, 0, 2])))
            self.main.create_index(f"x.{table.name}", columns, include=include, name=f"index{at}", wait=True)

    def _lose(self, schema: Schema, random: Random) -> None:
        """A fleet with redundancy, whose drive is lost once the tables are there."""
        place = self.place / "lost"
        if self.lost is not None:
            self.lost.close()
        shutil.rmtree(place, ignore_errors=True)
        with skytether.open(place, drives=3, redundancy=random.choice(REDUNDANCIES), slice_rows=7) as fleet:
            for table in schema.values():
                fleet.ingest(table.arrow(), f"e.{table.name}", **({"partition_by": "k"} if random.random() < 0.4 else {}))
        shutil.rmtree(place / "drives" / str(random.randrange(3)))
        self.lost = skytether.open(place)

    def prepared(self, query: nodes.Query, typed: bool) -> answers.Answer | None:
        """The answer of a prepared statement whose constants are parameters; None without a constant."""
        import adbc_driver_manager

        sql, values = printing.with_parameters(query, "e", typed)
        if not values:
            return None
        row = pa.record_batch([pa.array([value], _ARROW[kind]) for value, kind in values], names=[str(at) for at in range(len(values))])
        try:
            with self.adbc.cursor() as cursor:
                cursor.adbc_statement.set_sql_query(sql)
                cursor.adbc_statement.prepare()
                cursor.adbc_statement.bind(row)
                stream, _ = cursor.adbc_statement.execute_query()
                return answers.of_table(pa.RecordBatchReader._import_from_c(stream.address).read_all())
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            return answers.Refusal(type(error).__name__, str(error))

    def close(self) -> None:
        """Ends all fleets and processes."""
        if self.adbc is not None:
            self.adbc.close()
        for fleet in (self.main, self.lost, self.moving, self.served):
            if fleet is not None:
                fleet.close()
        if self.processes is not None:
            self.processes.kill()


_ARROW = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us")}


class DataFusion:
    """The `datafusion` package over the tables of a schema, which writes Substrait plans."""

    def __init__(self, schema: Schema) -> None:
        import datafusion

        self.context = datafusion.SessionContext()
        self.context.sql("CREATE SCHEMA e").collect()
        for table in schema.values():
            arrow = _plain(table.arrow())
            batches = arrow.to_batches() or [pa.RecordBatch.from_pylist([], schema=arrow.schema)]
            self.context.register_record_batches(f"e.{table.name}", [batches])

    def plan(self, sql: str) -> bytes | None:
        """The plan of a query; None where the package writes none."""
        from datafusion import substrait

        try:
            return substrait.Producer.to_substrait_plan(self.context.sql(sql).logical_plan(), self.context).encode()
        except BaseException as error:  # noqa: BLE001 - a panic of the package is none of its exceptions
            if isinstance(error, KeyboardInterrupt):
                raise
            return None

    def run(self, plan: bytes) -> answers.Answer:
        """The package's own answer to a plan that it wrote."""
        from datafusion import substrait

        try:
            read = substrait.Consumer.from_substrait_plan(self.context, substrait.Serde.deserialize_bytes(plan))
            frame = self.context.create_dataframe_from_logical_plan(read)
            batches = frame.collect()
            return answers.of_table(pa.Table.from_batches(batches) if batches else frame.schema().empty_table())
        except BaseException as error:  # noqa: BLE001 - as above
            if isinstance(error, KeyboardInterrupt):
                raise
            return answers.Refusal(type(error).__name__, str(error))


def _plain(table: pa.Table) -> pa.Table:
    """The table as a fleet stores it: dictionaries as their values."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(at, table.field(at).name, column.cast(pa.string()))
    return table
