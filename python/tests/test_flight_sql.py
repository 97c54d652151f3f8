"""Flight SQL of a host, asked by the ADBC driver of the Arrow project."""

from __future__ import annotations

import signal
import threading

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight
import pytest
from conftest import rich
from fleets import Served

import msgexpress
import skytether

ROWS = 5000
TRIPS = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "fare": pa.array([None if n % 7 == 0 else n / 8 for n in range(ROWS)], pa.float64()),
        "zone": [f"zone {n % 5} é" for n in range(ROWS)],
        "small": pa.array([n % 100 for n in range(ROWS)], pa.int16()),
        "kind": pa.array([f"k{n % 3}" for n in range(ROWS)]).dictionary_encode(),
        "price": pa.array([n for n in range(ROWS)], pa.int32()).cast(pa.decimal128(12, 2)),
        "day": pa.array([n % 400 for n in range(ROWS)], pa.int32()).cast(pa.date32()),
        "at": pa.array([n * 1_000_000 for n in range(ROWS)], pa.timestamp("us", "UTC")),
        "raw": pa.array([bytes([n % 256]) for n in range(ROWS)], pa.binary()),
        "some": pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.int64())),
    }
)
QUERIES = [
    "SELECT * FROM taxi.trips ORDER BY id",
    "SELECT * FROM taxi.trips.data WHERE id < 10 ORDER BY id",
    "SELECT zone, count(*) AS n, sum(fare) AS s, min(price) AS p FROM taxi.trips GROUP BY zone ORDER BY zone",
    "SELECT id, fare FROM taxi.trips WHERE fare > 600 ORDER BY fare DESC LIMIT 5",
    "SELECT a.id FROM taxi.trips a JOIN taxi.zones b ON a.zone = b.zone WHERE b.n = 2 ORDER BY a.id",
    "SELECT id FROM taxi.trips WHERE id < 0",
    "SELECT type, count(*) AS n FROM cells.pbmc.obs GROUP BY type ORDER BY type",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    fleet = Served(tmp_path_factory.mktemp("flight-sql"))
    try:
        fill(fleet.url)
        yield fleet
        fleet.stop()
        assert "panicked" not in fleet.errors.read_text()
    finally:
        fleet.kill()


def fill(place: str) -> None:
    connect = skytether.connect if place.startswith("grpc:") else lambda p: skytether.open(p, drives=2)
    with connect(place) as fleet:
        fleet.ingest(TRIPS, "taxi.trips")
        fleet.ingest(pa.table({"zone": [f"zone {n} é" for n in range(5)], "n": range(5)}), "taxi.zones")
    with (msgexpress.connect if place.startswith("grpc:") else msgexpress.open)(place) as db:
        db.ingest(rich(), "cells/pbmc")


@pytest.fixture
def adbc(served):
    with flight_sql.connect(served.url.replace("grpc://", "grpc+tcp://"), autocommit=True) as connection:
        yield connection


def ask(adbc, sql: str, values: object = None) -> pa.Table:
    with adbc.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetch_arrow_table()


def test_answers_are_those_of_an_embedded_fleet(adbc, tmp_path):
    fill(str(tmp_path / "fleet"))
    with skytether.open(tmp_path / "fleet") as fleet:
        for sql in QUERIES:
            wanted, found = fleet.sql(sql).to_arrow(), ask(adbc, sql)
            assert found.column_names == wanted.column_names, sql
            assert found.to_pylist() == wanted.to_pylist(), sql
            # Dictionaries are written out; all other types are the same.
            for field in wanted.schema:
                plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
                assert found.schema.field(field.name).type == plain, (sql, field)


def test_parameters(adbc):
    one = "SELECT id, zone FROM taxi.trips WHERE id = ? AND zone = ?"
    two = "SELECT id, zone FROM taxi.trips WHERE zone = $2 AND id = $1"
    for sql in (one, two):
        assert ask(adbc, sql, (6, "zone 1 é")).to_pylist() == [{"id": 6, "zone": "zone 1 é"}]
        assert ask(adbc, sql, (6, "zone 2 é")).num_rows == 0
    # Text stays text.
    assert ask(adbc, one, (6, "' OR 1 = 1 --")).num_rows == 0
    assert ask(adbc, "SELECT count(*) AS n FROM taxi.trips WHERE small < ?", (10,)).to_pydict() == {"n": [500]}
    assert ask(adbc, "SELECT count(*) AS n FROM taxi.trips WHERE fare > ?", (None,)).to_pydict() == {"n": [0]}
    assert ask(adbc, "SELECT id FROM taxi.trips ORDER BY id LIMIT ? OFFSET ?", (2, 3)).to_pydict() == {"id": [3, 4]}
    assert ask(adbc, "SELECT id FROM taxi.trips WHERE id IN (SELECT n FROM taxi.zones WHERE n >= ?) ORDER BY id", (3,)).to_pydict() == {"id": [3, 4]}
    assert ask(adbc, "SELECT ? + id AS x FROM taxi.trips WHERE id = 1", (41,)).to_pydict() == {"x": [42]}


def test_a_prepared_statement_is_used_again(adbc):
    with adbc.cursor() as cursor:
        schema = cursor.adbc_prepare("SELECT id FROM taxi.trips WHERE id = ? AND zone = ?")
        assert len(schema) == 2 and schema.field(0).type == pa.int64(), schema
        for n in (3, 8):
            cursor.execute("SELECT id FROM taxi.trips WHERE id = ? AND zone = ?", (n, "zone 3 é"))
            assert cursor.fetch_arrow_table().to_pydict() == {"id": [n]}


def test_wrong_numbers_of_values_are_refused(adbc):
    for values in ((), (1,), (1, 2, 3)):
        with pytest.raises(adbc_driver_manager.Error, match="2 parameters|[Pp]arameter"):
            ask(adbc, "SELECT id FROM taxi.trips WHERE id = ? OR id = ?", values or None)
    with pytest.raises(adbc_driver_manager.Error, match="both"):
        ask(adbc, "SELECT id FROM taxi.trips WHERE id = ? OR id = $1", (1,))
    with pytest.raises(adbc_driver_manager.Error, match="one row"), adbc.cursor() as cursor:
        cursor.execute("SELECT id FROM taxi.trips WHERE id = ?", pa.record_batch({"0": [1, 2]}))
        cursor.fetchall()


def test_metadata(adbc):
    objects = adbc.adbc_get_objects(depth="all").read_all().to_pylist()
    found = {
        (c["catalog_name"], s["db_schema_name"], t["table_name"]): (t["table_type"], [column["column_name"] for column in t["table_columns"]])
        for c in objects
        for s in c["catalog_db_schemas"]
        for t in s["db_schema_tables"]
    }
    assert found["taxi", "trips", "data"] == ("TABLE", TRIPS.column_names)
    assert found["taxi", "zones", "data"] == ("TABLE", ["zone", "n"])
    assert found["cells", "pbmc", "x"] == ("VIEW", ["gene", "cell", "value"])
    assert found["cells", "pbmc", "obs"][0] == "TABLE" and "type" in found["cells", "pbmc", "obs"][1]
    # Whatever is listed can be read by its three names.
    for names, (_, columns) in found.items():
        quoted = ".".join(f'"{name}"' for name in names)
        assert ask(adbc, f"SELECT * FROM {quoted} LIMIT 1").column_names == columns, names
    chosen = adbc.adbc_get_objects(depth="tables", catalog_filter="taxi", db_schema_filter="z%").read_all().to_pylist()
    assert [s["db_schema_name"] for c in chosen for s in c["catalog_db_schemas"]] == ["zones"]
    schema = adbc.adbc_get_table_schema("data", catalog_filter="taxi", db_schema_filter="trips")
    assert schema.names == TRIPS.column_names and schema.field("id").type == pa.int64()
    assert adbc.adbc_get_table_types() == ["TABLE", "VIEW"]
    assert adbc.adbc_get_info()["vendor_name"] == "Skytether"
    with pytest.raises(adbc_driver_manager.Error):
        adbc.adbc_get_table_schema("nope", catalog_filter="taxi", db_schema_filter="trips")


def test_information_schema_lists_what_the_driver_lists(adbc):
    """The tables and columns of SQL are those that `GetTables` gives, over the same connection."""
    listed = ask(adbc, "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables").to_pylist()
    objects = adbc.adbc_get_objects(depth="tables").read_all().to_pylist()
    kinds = {"TABLE": "BASE TABLE", "VIEW": "VIEW"}
    due = [
        {"table_catalog": c["catalog_name"], "table_schema": s["db_schema_name"], "table_name": t["table_name"], "table_type": kinds[t["table_type"]]}
        for c in objects for s in c["catalog_db_schemas"] for t in s["db_schema_tables"]
    ]  # fmt: skip
    key = lambda row: tuple(row.values())
    assert sorted(listed, key=key) == sorted(due, key=key) and len(due) > 6
    columns = ask(adbc, "SELECT column_name FROM information_schema.columns WHERE table_schema = ? ORDER BY ordinal_position", ("trips",))
    assert columns["column_name"].to_pylist() == TRIPS.column_names


@pytest.mark.parametrize(
    ("sql", "kind", "says"),
    [
        ("SELECT nope FROM taxi.trips", adbc_driver_manager.ProgrammingError, "nope"),
        ("SELECT * FROM taxi.nope", adbc_driver_manager.ProgrammingError, "taxi.nope"),
        ("SELEC 1", adbc_driver_manager.Error, "SELEC"),
        ("DROP TABLE taxi.trips", adbc_driver_manager.NotSupportedError, "DROP"),
        ("INSERT INTO taxi.zones VALUES ('x', 1)", adbc_driver_manager.NotSupportedError, "INSERT"),
    ],
)
def test_errors(adbc, sql, kind, says):
    with pytest.raises(kind, match=says):
        ask(adbc, sql)
    # The connection lives on.
    assert ask(adbc, "SELECT count(*) AS n FROM taxi.zones").to_pydict() == {"n": [5]}


def test_ingestion_is_refused_and_says_how(adbc):
    with pytest.raises(adbc_driver_manager.NotSupportedError, match="skytether ingest"), adbc.cursor() as cursor:
        cursor.adbc_ingest("new", pa.table({"v": [1]}))
    with pytest.raises(adbc_driver_manager.NotSupportedError, match="skytether ingest"), adbc.cursor() as cursor:
        cursor.executescript("DELETE FROM taxi.trips")


LONG = "SELECT count(*) AS n FROM taxi.trips a, taxi.trips b, taxi.trips c WHERE a.fare + b.fare + c.fare < 0"


def test_cancellation(adbc):
    with adbc.cursor() as cursor:
        over = threading.Event()

        def cancel() -> None:
            # What comes before the query is lost on it.
            while not over.wait(0.05):
                cursor.adbc_cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        try:
            with pytest.raises(adbc_driver_manager.Error, match="(?i)cancel"):
                cursor.execute(LONG)
                cursor.fetchall()
        finally:
            over.set()
            canceller.join()
    assert ask(adbc, "SELECT count(*) AS n FROM taxi.zones").to_pydict() == {"n": [5]}


def field(number: int, value: bytes) -> bytes:
    """A field of bytes in protobuf."""
    length, size = len(value), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + value


def packed(kind: str, value: bytes) -> bytes:
    return field(1, b"type.googleapis.com/arrow.flight.protocol.sql." + kind.encode()) + field(2, value)


@pytest.fixture
def deaf():
    """No Ctrl-C: pyarrow interrupts the main thread where a call of any thread was cancelled, by whomever."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("deaf")
def test_the_action_cancels_a_running_query(served):
    with pa.flight.connect(served.url) as client:
        info = client.get_flight_info(pa.flight.FlightDescriptor.for_command(packed("CommandStatementQuery", field(1, LONG.encode()))))
        cancel = pa.flight.Action("CancelQuery", packed("ActionCancelQueryRequest", field(1, info.serialize())))
        said = []

        def read() -> None:
            try:
                client.do_get(info.endpoints[0].ticket).read_all()
            except pa.ArrowException as e:
                said.append(str(e))

        # Nothing runs: 3 is "not cancellable".
        assert [r.body.to_pybytes()[-2:] for r in client.do_action(cancel)] == [b"\x08\x03"]
        reader = threading.Thread(target=read)
        reader.start()
        answers = set()
        # Until it has begun there is nothing to cancel.
        while reader.is_alive():
            answers.update(r.body.to_pybytes()[-2:] for r in client.do_action(cancel))
            reader.join(timeout=0.02)
        assert b"\x08\x01" in answers and len(said) == 1 and "cancelled" in said[0], (answers, said)


def test_hostile_messages_get_a_status(served):
    handles = [b"", b"\x00", b"\xff" * 16, b"\xff" * 100, b"h" * (1 << 20)]
    kinds = ["CommandStatementQuery", "CommandPreparedStatementQuery", "TicketStatementQuery", "CommandGetTables", "CommandStatementUpdate", "Nothing", "CommandStatementSubstraitPlan"]
    garbage = [b"\xff" * 1000, bytes(1000), b"\x0a\xff\xff\xff\xff\x0f", *(packed(kind, field(1, handle)) for kind in kinds for handle in handles if (kind, handle) != ("CommandGetTables", b""))]
    known = 0
    with pa.flight.connect(served.url) as client:
        for bytes_ in garbage:
            for call in (
                lambda: client.get_flight_info(pa.flight.FlightDescriptor.for_command(bytes_)),
                lambda: client.do_get(pa.flight.Ticket(bytes_)).read_all(),
                lambda: put(client, bytes_),
                lambda: list(client.do_action(pa.flight.Action("CreatePreparedStatement", bytes_))),
                lambda: list(client.do_action(pa.flight.Action("CancelQuery", bytes_))),
                lambda: list(client.do_action(pa.flight.Action("CancelFlightInfo", bytes_))),
            ):
                try:
                    call()
                    known += 1
                except (pa.ArrowException, OSError) as e:
                    assert "panicked" not in str(e)
        assert all(process.poll() is None for process in served.processes), served.errors.read_text()
        assert "panicked" not in served.errors.read_text()
    # A pattern that matches no name gives an answer: few of the garbage queries have one, not all.
    assert known < len(garbage)


def put(client: pa.flight.FlightClient, command: bytes) -> None:
    writer, _ = client.do_put(pa.flight.FlightDescriptor.for_command(command), pa.schema([("a", pa.int64())]))
    with writer:
        writer.write_table(pa.table({"a": [1]}))
