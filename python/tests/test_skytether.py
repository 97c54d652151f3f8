"""The system's Python interface: plain tables, SQL, results and their errors."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command
from fleets import with_threads

import skytether

TABLE = pa.table({"k": ["a", "b", None] * 1000, "v": np.arange(3000), "x": np.linspace(0, 1, 3000)})


@pytest.fixture
def fleet(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=3) as opened:
        opened.ingest(TABLE, "d.t")
        yield opened


def rows(fleet, name: str) -> pa.Table:
    return fleet.sql(f"SELECT * FROM {name} ORDER BY v").to_arrow()


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_files(fleet, tmp_path, ending):
    frame = TABLE.to_pandas()
    paths = [tmp_path / f"part-{i}.{ending}" for i in range(2)]
    for path, part in zip(paths, (frame[:1500], frame[1500:])):
        if ending == "parquet":
            part.to_parquet(path, index=False)
        elif ending == "arrow":
            part.reset_index(drop=True).to_feather(path, compression="uncompressed")
        elif ending == "csv":
            part.to_csv(path, index=False)
        else:
            part.to_json(path, orient="records", lines=True)
    done = []
    fleet.ingest(tmp_path / f"*.{ending}", "d.files", progress=done.append)
    assert done[-1] == 3000
    pd.testing.assert_frame_equal(rows(fleet, "d.files").to_pandas(), frame, check_dtype=False)


@pytest.mark.parametrize("kind", ["table", "reader", "pandas", "polars", "duckdb"])
def test_tables_in_memory(fleet, kind):
    source = {
        "table": lambda: TABLE,
        "reader": lambda: TABLE.to_reader(max_chunksize=100),
        "pandas": TABLE.to_pandas,
        "polars": lambda: pl.from_arrow(TABLE),
        "duckdb": lambda: duckdb.from_arrow(TABLE),
    }[kind]()
    fleet.ingest(source, "d.copy")
    assert rows(fleet, "d.copy").to_pydict() == TABLE.to_pydict()


def test_the_index_of_a_data_frame_is_kept(fleet):
    frame = TABLE.to_pandas().set_index(["k", pd.Index(range(10, 3010), name="number")])
    fleet.ingest(frame, "d.named")
    assert rows(fleet, "d.named").column_names == ["v", "x", "k", "number"]
    assert rows(fleet, "d.named").select(["v", "x", "k", "number"]).to_pydict() == {**TABLE.select(["v", "x", "k"]).to_pydict(), "number": list(range(10, 3010))}
    fleet.ingest(TABLE.to_pandas().rename_axis("row"), "d.range")
    assert rows(fleet, "d.range").column("row").to_pylist() == list(range(3000))
    chosen = TABLE.to_pandas().query("v % 7 < 3")
    fleet.ingest(chosen, "d.unnamed")
    assert rows(fleet, "d.unnamed").column("__index_level_0__").to_pylist() == chosen.index.tolist() == chosen["v"].tolist()
    # A range without a name says nothing.
    fleet.ingest(TABLE.to_pandas(), "d.plain")
    assert rows(fleet, "d.plain").column_names == TABLE.column_names


@pytest.mark.parametrize("series", [pd.Series([1, 2], name="fare"), pl.Series("fare", [1, 2])], ids=["pandas", "polars"])
def test_a_series_is_no_table(fleet, series):
    with pytest.raises(skytether.InvalidError, match="Series 'fare'.*to_frame"):
        fleet.ingest(series, "d.series")
    fleet.ingest(series.to_frame(), "d.series")
    assert fleet.sql("SELECT sum(fare) AS s FROM d.series").to_arrow().to_pydict() == {"s": [3]}


def rows_of(receipt: skytether.Receipt) -> int:
    return sum(drive["rows_out"] for drive in receipt.to_dict()["drives"])


def test_the_receipt_is_of_the_last_run_that_ended(fleet):
    result = fleet.sql("SELECT v FROM d.t")
    stream = pa.RecordBatchReader.from_stream(result)
    with pytest.raises(StopIteration):
        while True:
            stream.read_next_batch()
    assert rows_of(result.receipt) == 3000
    assert result.to_arrow().num_rows == 3000
    # A stream that is taken and not read does not take the receipt away.
    begun = pa.RecordBatchReader.from_stream(result)
    assert rows_of(result.receipt) == 3000
    del begun
    unread = fleet.sql("SELECT v FROM d.t")
    begun = pa.RecordBatchReader.from_stream(unread)
    assert rows_of(unread.receipt) == 3000 and begun.schema.names == ["v"]


def test_results_in_every_shape(fleet):
    sql = "SELECT k, sum(v) AS s, count(*) AS n FROM d.t GROUP BY k ORDER BY k"
    result = fleet.sql(sql)
    wanted = {"k": ["a", "b", None], "s": [1498500, 1499500, 1500500], "n": [1000] * 3}
    assert result.to_arrow().to_pydict() == wanted
    assert result.to_pandas()["s"].tolist() == wanted["s"]
    assert result.to_polars()["n"].to_list() == wanted["n"]
    # A stream may be taken more than once, and by anybody.
    for _ in range(2):
        assert pa.table(result).to_pydict() == wanted
    assert pl.DataFrame(result)["s"].to_list() == wanted["s"]
    stream = pa.RecordBatchReader.from_stream(result)
    assert duckdb.sql("SELECT sum(s) FROM stream").fetchall() == [(4498500,)]
    assert pa.schema(result).names == ["k", "s", "n"]
    receipt = result.receipt.to_dict()
    # The table is one slice, and so on one drive.
    assert len(receipt["drives"]) >= 1 and receipt["bytes_moved"] > 0
    assert receipt["drives"][0]["name"] in repr(result.receipt) and "<pre>" in result.receipt._repr_html_()


@pytest.mark.parametrize("cut", ["adaptive", "full", "filter", "raw"])
def test_cuts(fleet, cut):
    result = fleet.sql("SELECT k, avg(x) AS m, min(v) AS low, count(*) AS n FROM d.t WHERE v >= 1500 GROUP BY k ORDER BY k", cut=cut)
    # Of v = 1500 + i, 1503 + i, ..., 2997 + i the mean is 2248.5 + i, and x is v / 2999.
    assert result.to_pandas()["m"].tolist() == pytest.approx([(2248.5 + i) / 2999 for i in range(3)], rel=1e-12)
    assert result.to_arrow().drop_columns("m").to_pydict() == {"k": ["a", "b", None], "low": [1500, 1501, 1502], "n": [500] * 3}
    rungs = {d["rung"] for d in result.receipt.to_dict()["drives"]}
    assert rungs == {"full" if cut == "adaptive" else cut}


def test_explain_and_catalog(fleet):
    text = fleet.explain("SELECT k, count(*) FROM d.t GROUP BY k")
    assert "d.t" in text and "Aggregate" in text
    assert "receipt" in fleet.explain("SELECT k FROM d.t", analyze=True)
    sql = "SELECT k, count(*) AS n FROM d.t GROUP BY k"
    raw = fleet.explain(sql, analyze=True, cut="raw")
    data = raw.to_dict()
    assert [note["reason"] for note in data["notes"] if note["operator"] == "Aggregate"] == ["cut=raw sends only scans down"]
    assert "cut=raw sends only scans down" in raw and repr(raw) == str(raw) and data["sub_plans"][0]["rung"] == "raw"
    assert fleet.explain(sql).to_dict()["receipt"] is None
    result = fleet.sql(sql, cut="raw")
    result.to_arrow()
    receipts = (data["receipt"], result.receipt.to_dict())
    for receipt in receipts:
        aggregate = next(o for o in receipt["host"] if o["name"] == "AggregateExec")
        assert aggregate["reason"] == "cut=raw sends only scans down" and aggregate["rows_out"] == receipt["rows"]
        assert all(a["operators"][-1]["name"] == "SliceScanExec" for scan in receipt["scans"] for a in scan["annotations"])
    assert "cut=raw sends only scans down" in result.receipt.operators()
    assert [(d["name"], d["kind"], d["rows"]) for d in fleet.ls()] == [("d.t", "table", 3000)]
    assert fleet.describe("d/t")["tables"]["data"]["rows"] == 3000
    assert [drive["info"]["name"] for drive in fleet.status()] == ["drive-0", "drive-1", "drive-2"]
    fleet.drop("d.t")
    assert fleet.ls() == []


def test_errors(fleet, tmp_path):
    with pytest.raises(skytether.NotFoundError, match="d.nope"):
        fleet.sql("SELECT * FROM d.nope")
    with pytest.raises(skytether.InvalidError):
        fleet.sql("SELEC 1")
    with pytest.raises(skytether.InvalidError):
        fleet.sql("SELECT nope FROM d.t")
    with pytest.raises(skytether.UnsupportedError):
        fleet.sql("DROP TABLE d.t")
    with pytest.raises(skytether.InvalidError, match="half"):
        fleet.sql("SELECT 1", cut="half")
    with pytest.raises(skytether.ConflictError):
        fleet.ingest(TABLE, "d.t")
    with pytest.raises(skytether.NotFoundError, match="matches"):
        fleet.ingest(tmp_path / "none-*.csv", "d.u")
    with pytest.raises(skytether.InvalidError, match="object can't be ingested"):
        fleet.ingest(object(), "d.u")
    with pytest.raises(skytether.InvalidError, match="replicas:one"):
        skytether.open(tmp_path / "other", redundancy="replicas:one")
    with pytest.raises(skytether.InvalidError, match="needs 5 drives"):
        skytether.open(tmp_path / "other", drives=4, redundancy="ec:4+1")
    with pytest.raises(skytether.InvalidError, match="must be a number.*connect"):
        skytether.open(tmp_path / "other", drives=["127.0.0.1:1"])
    with pytest.raises(skytether.SkytetherError):
        skytether.connect("grpc://127.0.0.1:1")
    fleet.close()
    with pytest.raises(skytether.InvalidError, match="closed"):
        fleet.ls()
    # Kinds are the built-in exceptions too.
    assert issubclass(skytether.NotFoundError, KeyError) and issubclass(skytether.InvalidError, ValueError)
    assert issubclass(skytether.UnavailableError, ConnectionError) and issubclass(skytether.ExhaustedError, OSError)


def test_a_corrupt_file_is_named(fleet, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(skytether.SkytetherError, match="t.parquet"):
        fleet.ingest(path, "d.u")
    assert [d["name"] for d in fleet.ls()] == ["d.t"]


def test_a_source_that_fails_leaves_nothing(fleet):
    def batches():
        yield TABLE.to_batches()[0]
        raise RuntimeError("the source broke")

    with pytest.raises(skytether.InvalidError, match="the source broke"):
        fleet.ingest(pa.RecordBatchReader.from_batches(TABLE.schema, batches()), "d.u")
    assert [d["name"] for d in fleet.ls()] == ["d.t"]


def noise(rows: int, seed: int) -> pa.Table:
    """Rows that take many slices: nothing in them can be compressed."""
    rng = np.random.default_rng(seed)
    return pa.table({"seed": np.full(rows, seed), "v": np.arange(rows), "noise": rng.integers(-(2**63), 2**63 - 1, rows)})


@pytest.mark.parametrize("change", ["replace", "drop"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_result_that_is_open_while_its_data_set_changes(tmp_path, begun, change):
    """It has all the old rows, or says that it must be run again: never some of them, never new ones among them."""
    # One drive gets many slices: most are unread when the first rows arrive.
    old, new = noise(3_000_000, 1), noise(1000, 2)
    fleet = skytether.open(tmp_path / "fleet", drives=1)
    fleet.ingest(old, "d.big")
    result = fleet.sql("SELECT * FROM d.big", cut="raw")
    batches = []
    if begun:
        stream = iter(pa.RecordBatchReader.from_stream(result))
        batches.append(next(stream))
        assert 0 < batches[0].num_rows < old.num_rows
    if change == "replace":
        fleet.ingest(new, "d.big", replace=True)
    else:
        fleet.drop("d.big")
    try:
        batches.extend(stream if begun else result.to_arrow().to_batches())
    except (skytether.ConflictError, skytether.NotFoundError, OSError, pa.ArrowException) as e:
        # Through an Arrow stream pyarrow raises errors of its own kinds; the text is ours.
        assert "d.big" in str(e) and "again" in str(e), repr(e)
    else:
        found = pa.Table.from_batches(batches)
        assert found.sort_by("v").equals(old.cast(found.schema))
    if change == "replace":
        # A later query gets the new rows and nothing else.
        assert fleet.sql("SELECT * FROM d.big ORDER BY v").to_arrow().to_pydict() == new.to_pydict()
    else:
        with pytest.raises(skytether.NotFoundError, match="d.big"):
            fleet.sql("SELECT * FROM d.big")


@pytest.mark.parametrize("read", ["result.to_arrow()", "pa.table(result)"])
def test_control_c_interrupts_a_long_query(tmp_path, read):
    # The small side is kept and the large one streams by: nothing is put aside on disk.
    code = f"""
import signal, skytether, pyarrow as pa
# Background jobs of a shell are made to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
fleet = skytether.open({str(tmp_path / "f")!r}, drives=2, spill_limit=1 << 20)
fleet.ingest(pa.table({{"v": range(60000)}}), "d.t")
result = fleet.sql("SELECT count(*) FROM d.t c, (SELECT a.v + b.v AS s FROM d.t a, d.t b) ab WHERE ab.s + c.v = 17")
try:
    print("go", flush=True)
    try:
        {read}
    except pa.ArrowException:
        # An Arrow stream knows no KeyboardInterrupt: Python raises it next.
        while True:
            pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    try:
        # Uninterrupted it would take longer than anybody waits.
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said == "interrupted\n"


def test_closed_fleet_is_closed_despite_open_results(tmp_path):
    with skytether.open(tmp_path / "f", drives=2) as fleet:
        fleet.ingest(TABLE, "d.t")
        read, unread = fleet.sql("SELECT count(*) AS n FROM d.t"), fleet.sql("SELECT v FROM d.t")
        assert read.to_arrow().to_pydict() == {"n": [3000]}
        assert pa.table(fleet.sql("SELECT v FROM d.t LIMIT 5")).num_rows == 5
    with skytether.open(tmp_path / "f") as again:
        assert [d["name"] for d in again.ls()] == ["d.t"]
        # What was read stays; what would have to run does not.
        assert read.to_arrow().to_pydict() == {"n": [3000]} and read.receipt.to_dict()["bytes_moved"] > 0
        for run in (lambda: pa.table(read), unread.to_arrow, lambda: pa.table(unread)):
            with pytest.raises(skytether.InvalidError, match="closed: open it again"):
                run()


def test_a_stream_under_way_outlives_its_fleet(tmp_path):
    fleet = skytether.open(tmp_path / "f", drives=1)
    # Far more than waits anywhere for its reader.
    fleet.ingest(noise(3_000_000, 1), "d.big")
    stream = pa.RecordBatchReader.from_stream(fleet.sql("SELECT v, noise FROM d.big", cut="raw"))
    rows = stream.read_next_batch().num_rows
    fleet.close()
    with pytest.raises(skytether.ConflictError):
        skytether.open(tmp_path / "f")
    assert rows + stream.read_all().num_rows == 3_000_000
    skytether.open(tmp_path / "f").close()


def test_a_result_without_its_fleet_object(tmp_path):
    skytether.open(tmp_path / "f", drives=1).ingest(TABLE, "d.t")
    result = skytether.open(tmp_path / "f").sql("SELECT sum(v) AS s FROM d.t")
    for _ in range(2):
        assert pa.table(result).to_pydict() == {"s": [4498500]}


def test_a_result_is_a_source(fleet):
    fleet.ingest(fleet.sql("SELECT v, x FROM d.t WHERE v < 100"), "d.part")
    assert fleet.sql("SELECT count(*) AS n FROM d.part").to_arrow().to_pydict() == {"n": [100]}


def test_queries_beyond_memory_and_disk_are_refused(tmp_path):
    with with_threads(tmp_path / "f", 1, 64 << 20, 0, 2) as fleet:
        fleet.ingest(TABLE, "d.t")
        # Nine million groups.
        pairs = fleet.sql("SELECT count(*) FROM (SELECT a.v * 3000 + b.v AS pair, count(*) FROM d.t a, d.t b GROUP BY pair)")
        with pytest.raises(skytether.ExhaustedError, match="spill limit"):
            pairs.to_arrow()
        # What a sort keeps at hand while it merges can't be put aside at all.
        with pytest.raises(skytether.ExhaustedError, match="memory limit|spill limit"):
            fleet.sql("SELECT a.v AS x, b.v AS y FROM d.t a, d.t b ORDER BY a.v * b.v, a.v").to_arrow()


@pytest.mark.parametrize("keys", ["product, x", "product", "text, y"])
def test_sorts_that_memory_does_not_hold(tmp_path, keys):
    with with_threads(tmp_path / "f", 1, 48 << 20, None, 2) as fleet:
        fleet.ingest(pa.table({"v": range(2000)}), "d.t")
        pairs = "SELECT a.v AS x, b.v AS y, a.v * b.v AS product, 'v' || ((a.v * 7919 + b.v) % 1000) AS text FROM d.t a, d.t b"
        found = fleet.sql(f"{pairs} ORDER BY {keys}").to_arrow()
        assert found.num_rows == 4_000_000
        same = np.ones(found.num_rows - 1, bool)
        for key in keys.split(", "):
            column = found[key].to_numpy()
            assert (column[1:] >= column[:-1])[same].all()
            same &= column[1:] == column[:-1]


@pytest.mark.parametrize("source", ["table", "pandas", "csv"])
def test_a_column_without_a_value(fleet, tmp_path, source):
    table = pa.table({"v": [1, 2], "nothing": pa.nulls(2)})
    path = tmp_path / "n.csv"
    path.write_text("v,nothing\n1,\n2,\n")
    fleet.ingest({"table": table, "pandas": table.to_pandas(), "csv": path}[source], "d.n")
    assert fleet.sql("SELECT v, nothing FROM d.n ORDER BY v").to_arrow().to_pydict() == table.to_pydict()


def test_directories_and_patterns_leave_hidden_files_out(fleet, tmp_path):
    here = tmp_path / "files"  # The fleet is in tmp_path.
    here.mkdir()
    for name in ("a.csv", "b.csv", ".hidden.csv"):
        (here / name).write_text(f"v\n{len(name)}\n")
    for n, source in enumerate((here, here / "*.csv", str(here / "*.csv"))):
        fleet.ingest(source, f"d.found{n}")
        assert fleet.sql(f"SELECT v FROM d.found{n}").to_arrow().to_pydict() == {"v": [5, 5]}
    fleet.ingest(here / ".hidden.csv", "d.hidden")
    assert fleet.sql("SELECT v FROM d.hidden").to_arrow().to_pydict() == {"v": [11]}
    (tmp_path / "empty").mkdir()
    for nothing in ("no.csv", "no*.csv", "empty"):
        with pytest.raises(skytether.NotFoundError, match="no file is called or matches"):
            fleet.ingest(tmp_path / nothing, "d.nothing")


def test_suspicious_files_give_a_warning(fleet, tmp_path):
    (tmp_path / "semi.csv").write_text("a;b\n1;2\n")
    with pytest.warns(UserWarning, match="semi.csv has one column.*separated by ';'") as told:
        fleet.ingest(tmp_path / "semi.csv", "d.semi")
    assert told[0].filename == __file__
    assert fleet.sql("SELECT * FROM d.semi").to_arrow().num_rows == 1


def test_whole_numbers_of_text_files_stay_exact(fleet, tmp_path):
    (tmp_path / "n.jsonl").write_text('{"v": 18446744073709551615, "w": 1}\n{"v": 18446744073709551614, "w": 99999999999999999999}\n')
    fleet.ingest(tmp_path / "n.jsonl", "d.longs")
    assert fleet.sql("SELECT count(DISTINCT v) AS n, max(v) AS v, max(w) AS w FROM d.longs").to_arrow().to_pylist() == [{"n": 2, "v": 2**64 - 1, "w": "99999999999999999999"}]


def test_types_of_text_files_hold_all_files(fleet, tmp_path):
    for n, value in enumerate(["1", "2.5", "x"]):
        (tmp_path / f"{n}.csv").write_text(f"k,v\n{n},{value}\n")
    fleet.ingest(tmp_path / "[01].csv", "d.numbers")
    assert fleet.sql("SELECT v FROM d.numbers ORDER BY k").to_arrow().to_pydict() == {"v": [1.0, 2.5]}
    fleet.ingest(tmp_path / "*.csv", "d.texts")
    assert fleet.sql("SELECT v FROM d.texts ORDER BY k").to_arrow().to_pydict() == {"v": ["1", "2.5", "x"]}
    (tmp_path / "days.csv").write_text("k,day\n1,2024-02-28\n2,2024-02-30\n")
    with pytest.raises(skytether.InvalidError, match="days.csv: line 3"):
        fleet.ingest(tmp_path / "days.csv", "d.days")


def test_importing_is_light():
    code = "import sys, skytether, msgexpress; print([m for m in ('pyarrow', 'pandas', 'scipy', 'anndata', 'h5py', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done


def test_metadata_answers_counts_and_bounds(tmp_path):
    days = pa.array([1, 9, None, 4], pa.int32()).cast(pa.date32())
    rows = pa.table(
        {
            "v": pa.array([3, None, -7, 5], pa.int64()),
            "day": days,
            "price": pa.array([1, 2, 3, None], pa.int32()).cast(pa.decimal128(12, 2)),
            "yes": [True, False, True, None],
            "f": [0.5, -2.5, 8.0, 1.0],
            "nan": [1.0, float("nan"), 2.0, 3.0],
            "zero": [0.0, -0.0, 1.0, 2.0],
            "text": ["b", "a" * 300, "c" * 300, None],
            "nothing": pa.nulls(4, pa.int32()),
        }
    )
    with skytether.open(tmp_path / "f", drives=2) as fleet:
        fleet.ingest(rows, "d.t")
        fleet.ingest(rows.slice(0, 0), "d.empty")

        def asked(sql: str) -> tuple[dict, int]:
            result = fleet.sql(sql)
            found = result.to_arrow().to_pylist()
            return found[0], sum(drive["slices"] for drive in result.receipt.to_dict()["drives"])

        known = "SELECT count(*) AS n, count(v) AS nv, min(v) AS lv, max(v) AS hv, min(day) AS ld, max(day) AS hd, min(price) AS lp, max(yes) AS hy, min(f) AS lf, max(f) AS hf, count(nan) AS nn, count(text) AS nt FROM {}"
        wanted = duckdb.sql(known.format("rows")).to_arrow_table().to_pylist()[0]
        assert asked(known.format("d.t")) == (wanted, 0)
        assert asked(known.format("d.empty")) == (duckdb.sql("SELECT * FROM (" + known.format("rows WHERE v > 100") + ")").to_arrow_table().to_pylist()[0], 0)
        # Where metadata does not know, the rows are asked: bounds of text are shortened, a zero's sign is not kept, NaN
        # has no place among bounds.
        for expression in ("max(text)", "min(text)", "min(zero)", "max(nan)", "sum(v)", "max(nothing)", "count(DISTINCT v)", "max(v + 1)"):
            found, slices = asked(f"SELECT {expression} AS x FROM d.t")
            want = duckdb.sql(f"SELECT {expression} AS x FROM rows").to_arrow_table().to_pylist()[0]
            assert slices > 0 and (found == want or np.isnan(found["x"]) and np.isnan(want["x"])), expression
        assert asked("SELECT max(v) AS x FROM d.t WHERE v < 5")[0] == {"x": 3}
        assert asked("SELECT max(v) FILTER (WHERE v < 5) AS x FROM d.t")[0] == {"x": 3}


def test_a_hosts_address_is_no_directory(tmp_path, monkeypatch):
    import msgexpress

    monkeypatch.chdir(tmp_path)
    for opens in (skytether.open, msgexpress.open):
        for address in ("grpc://127.0.0.1:5300", "127.0.0.1:1", "localhost:5300", "[::1]:5300"):
            with pytest.raises(skytether.InvalidError, match="host's address.*use connect"):
                opens(address)
    assert list(tmp_path.iterdir()) == []
    # Who means it, may; and what is there stays open to all.
    skytether.open("./localhost:1", drives=1).close()
    skytether.open("localhost:1").close()


def test_the_command_explains_as_text_and_as_data(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=2) as made:
        made.ingest(pa.table({"k": [1, 2, 1], "v": [1.0, 2.0, 3.0]}), "d.t")
    sql = "SELECT k, sum(v) AS v FROM d.t GROUP BY k"
    explain = ("explain", sql, "--fleet", tmp_path / "fleet", "--cut", "filter")
    done = command(*explain, "--analyze", "--format", "json", module="skytether._cli")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert {note["reason"] for note in data["notes"]} >= {"cut=filter sends no aggregates down"}
    assert data["receipt"]["rows"] == 2 and data["sub_plans"][0]["rung"] == "filter"
    text = command(*explain, module="skytether._cli").stdout
    assert "cut=filter sends no aggregates down" in text and "what ran where" not in text
    assert command(*explain[:-1], "sideways", module="skytether._cli").returncode == 2


def test_a_lost_drive_changes_no_answer(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=3, redundancy="ec:2+1") as fleet:
        fleet.ingest(TABLE, "d.kept")
        fleet.ingest(TABLE, "d.copied", redundancy="replicas:2")
        whole = [fleet.sql(f"SELECT * FROM d.{name}").to_arrow() for name in ("kept", "copied")]
        with pytest.raises(skytether.InvalidError, match="ec:4\\+1 needs 5 drives"):
            fleet.ingest(TABLE, "d.wide", redundancy="ec:4+1")
    shutil.rmtree(tmp_path / "fleet" / "drives" / "1")
    with skytether.open(tmp_path / "fleet") as fleet:
        rows = [fleet.sql(f"SELECT * FROM d.{name}").to_arrow() for name in ("kept", "copied")]
    assert [table.num_rows for table in rows] == [table.num_rows for table in whole]
    keys = [(name, "ascending") for name in TABLE.column_names]
    assert [table.sort_by(keys) for table in rows] == [table.sort_by(keys) for table in whole]


def test_loss_of_a_node_and_a_drive_each_changes_no_answer(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=9, nodes=3, redundancy="ec:2+1/2+1", slice_rows=100) as fleet:
        fleet.ingest(TABLE, "d.kept")
        whole = fleet.sql("SELECT * FROM d.kept").to_arrow()
    for drive in (0, 3, 4, 5, 8):
        shutil.rmtree(tmp_path / "fleet" / "drives" / str(drive))
    with skytether.open(tmp_path / "fleet", nodes=3) as fleet:
        rows = fleet.sql("SELECT * FROM d.kept").to_arrow()
    keys = [(name, "ascending") for name in TABLE.column_names]
    assert rows.num_rows == whole.num_rows and rows.sort_by(keys) == whole.sort_by(keys)
    with pytest.raises(skytether.InvalidError, match="nodes=3"):
        skytether.open(tmp_path / "other", drives=9, redundancy="ec:2+1/2+1")
    with pytest.raises(skytether.InvalidError, match="has 3 nodes"):
        skytether.open(tmp_path / "fleet", nodes=2)


def test_former_keywords_for_nodes_are_aliases(tmp_path):
    def nodes(fleet):
        return [drive["host"] for drive in fleet.status()]

    with skytether.open(tmp_path / "new", drives=4, nodes=2) as new, skytether.open(tmp_path / "former", drives=4, hosts=2) as former:
        assert nodes(new) == nodes(former) == ["node-0", "node-0", "node-1", "node-1"]
        assert new.add_drives(node="rack")["added"] == former.add_drives(host="rack")["added"] == ["drive-4"]
        assert nodes(new)[4] == nodes(former)[4] == "rack"
        with pytest.raises(skytether.InvalidError, match="host= is the former name of node="):
            new.add_drives(node="rack", host="rack")
        assert len(new.status()) == 5
    with pytest.raises(skytether.InvalidError, match="hosts= is the former name of nodes="):
        skytether.open(tmp_path / "none", drives=4, nodes=2, hosts=2)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["Explanation", "Fleet", "Receipt", "Result", "calibrate", "connect", "generate_particles", "open"])
def test_former_pickles_find_what_they_name(name):
    assert pickle.loads(f"cskytether._fleet\n{name}\n.".encode()) is getattr(skytether, name)
