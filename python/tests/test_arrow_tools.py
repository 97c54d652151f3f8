"""Tools of the Arrow ecosystem read data sets and results: DuckDB, Polars, pandas, DataFusion; embedded
and over a connection."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
import weakref

import datafusion
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from fleets import opened_or_connected

import skytether

f = pc.field
ROWS = 200_000


def rides() -> pa.Table:
    random = np.random.default_rng(8)
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "city": pa.array(np.array(["Rome", "Oslo", "Lima", None], object)[random.integers(0, 4, ROWS)]),
            "fare": pa.array(np.round(random.gamma(2, 10, ROWS), 2), mask=random.random(ROWS) < 0.05),
            "start": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(seconds=int(n)) for n in random.integers(0, 10**7, ROWS)], pa.timestamp("us", "UTC")),
            "to": pa.array([{"zone": int(n), "name": f"z{n}"} for n in random.integers(0, 50, ROWS)]),
            "note": pa.array([f"a note of some length, number {n}" for n in range(ROWS)]),
        }
    )


RIDES = rides()


@pytest.fixture(scope="module", params=["embedded", "connected"])
def fleet(request, tmp_path_factory):
    with opened_or_connected(request.param, tmp_path_factory.mktemp("tools"), 3) as fleet:
        fleet.ingest(RIDES, "taxi.rides")
        yield fleet


@pytest.fixture
def dataset(fleet):
    return fleet.dataset("taxi.rides")


def moved(receipt: skytether.Receipt) -> int:
    return receipt.to_dict()["bytes_moved"]


@pytest.fixture(scope="module")
def whole(fleet) -> int:
    """What it takes to move the table."""
    dataset = fleet.dataset("taxi.rides")
    assert dataset.to_table().num_rows == ROWS
    return moved(dataset.receipt)


# Each with the share of the table's bytes that may move for it. (DuckDB keeps comparisons of
# floats and LIKE to itself.)
QUERIES = [
    ("SELECT count(*), sum(fare) FROM {} WHERE id >= 199000", 0.01),
    ("SELECT city, count(*), min(start) FROM {} GROUP BY city ORDER BY city", 0.3),
    ("SELECT id FROM {} WHERE city IN ('Oslo', 'Lima') AND fare > 80 ORDER BY id", 0.12),
    ("SELECT sum(id) FROM {} WHERE city IS NULL", 0.06),
    ("SELECT count(fare) FROM {} WHERE start BETWEEN '2024-02-01' AND '2024-02-02'", 0.02),
    ("SELECT max(id) FROM {} WHERE \"to\".zone = 7", 0.01),
    ("SELECT sum(id) FROM {} WHERE note LIKE '%number 17%' AND id < 20000", 0.1),
    ("SELECT count(*) FROM {} a JOIN {} b ON a.id = b.id WHERE a.fare > 70 AND b.id < 1000", 0.2),
]


@pytest.mark.parametrize("query, share", QUERIES)
def test_duckdb(dataset, whole, query, share):
    memory = RIDES  # noqa: F841 - found by its name
    expected = duckdb.sql(query.format("memory", "memory")).fetchall()
    assert duckdb.sql(query.format("dataset", "dataset")).fetchall() == expected
    assert moved(dataset.receipt) < share * whole
    with duckdb.connect() as connection:
        connection.register("registered", dataset)
        assert connection.sql(query.format("registered", "registered")).fetchall() == expected


def test_duckdb_over_results(fleet):
    result = fleet.sql("SELECT city, avg(fare) AS fare FROM taxi.rides GROUP BY city")
    query = "SELECT city FROM {} WHERE city IS NOT NULL ORDER BY city"
    for _ in range(2):
        assert duckdb.sql(query.format("result")).fetchall() == [("Lima",), ("Oslo",), ("Rome",)]
    with duckdb.connect() as connection:
        connection.register("registered", result)
        assert connection.sql(query.format("registered")).fetchall() == [("Lima",), ("Oslo",), ("Rome",)]


P = pl.col
LAZY = [
    (lambda frame: frame.filter(P("id") >= 199_000).select(P("fare").sum().round(2)), 0.02),
    (lambda frame: frame.filter(P("city").is_in(["Oslo", "Lima"]) & (P("fare") > 80)).select("id").sort("id"), 0.03),
    (lambda frame: frame.filter(P("city").is_null() | P("fare").is_nan()).select(P("id").sum()), 0.1),
    (lambda frame: frame.filter(P("start") > dt.datetime(2024, 4, 25, tzinfo=dt.timezone.utc)).select("id").sort("id"), 0.05),
    (lambda frame: frame.group_by("city").agg(pl.len()).sort("city"), 0.1),
    (lambda frame: frame.filter(P("note").str.ends_with("777")).select(P("id").sum()), 0.6),
]


@pytest.mark.parametrize("query, share", LAZY)
def test_polars(dataset, whole, query, share):
    expected = query(pl.from_arrow(RIDES).lazy()).collect()
    assert query(pl.scan_pyarrow_dataset(dataset)).collect().equals(expected)
    assert moved(dataset.receipt) < share * whole


def test_polars_over_results(fleet):
    result = fleet.sql("SELECT id, city FROM taxi.rides WHERE id < 100")
    for _ in range(2):
        assert pl.DataFrame(result)["id"].sum() == 4950
    assert result.to_polars().shape == (100, 2)


def test_pandas(dataset, fleet, whole):
    condition = f("id") >= 199_990
    frame = dataset.to_table(["id", "city", "start"], condition).to_pandas().sort_values("id", ignore_index=True)
    assert moved(dataset.receipt) < 0.01 * whole
    expected = RIDES.select(["id", "city", "start"]).slice(199_990)
    pd.testing.assert_frame_equal(frame, expected.to_pandas())
    arrow = dataset.to_table(["id", "city", "start"], condition).to_pandas(types_mapper=pd.ArrowDtype).sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(arrow, expected.to_pandas(types_mapper=pd.ArrowDtype))
    assert isinstance(arrow["id"].dtype, pd.ArrowDtype)
    result = fleet.sql("SELECT id, city FROM taxi.rides WHERE id >= 199990 ORDER BY id")
    assert result.to_pandas()["id"].tolist() == list(range(199_990, 200_000))
    typed = pa.table(result).to_pandas(types_mapper=pd.ArrowDtype)
    assert typed["city"].dtype == pd.ArrowDtype(pa.string())


def test_datafusion(dataset, fleet, whole):
    context = datafusion.SessionContext()
    context.register_table("rides", dataset)
    query = "SELECT city, count(*) AS n FROM rides WHERE id >= 190000 AND city IN ('Oslo', 'Rome') GROUP BY city ORDER BY city"
    memory = RIDES.slice(190_000)
    expected = [[city, memory.filter(f("city") == city).num_rows] for city in ("Oslo", "Rome")]
    assert context.sql(query).to_pandas().to_numpy().tolist() == expected
    assert moved(dataset.receipt) < 0.05 * whole
    result = fleet.sql("SELECT id FROM taxi.rides WHERE id < 10")
    assert context.from_arrow(result, "result").count() == 10


def test_datafusion_error_says_what_to_do_about_capsules(fleet):
    with pytest.raises(skytether.UnsupportedError) as told:
        fleet.sql("SELECT id FROM taxi.rides").__datafusion_table_provider__()
    text = str(told.value)
    assert datafusion.__version__ in text and skytether._internal.DATAFUSION_VERSION in text and "from_arrow" in text and "fleet.dataset" in text


def test_a_connected_data_set_is_pickled(dataset, fleet):
    if not fleet._inner.is_remote():
        with pytest.raises(skytether.UnsupportedError, match="skytether.connect"):
            pickle.dumps(dataset)
        return
    # The address was given without a scheme.
    assert fleet._inner.location().startswith("grpc://127.0.0.1:")
    few = pickle.dumps(dataset.filter(f("id") < 10))
    again = pickle.loads(few)
    assert again.count_rows() == 10 and again.schema.equals(dataset.schema)
    # One connection for all of them, as long as there is one of them.
    held = weakref.ref(again._fleet)
    assert pickle.loads(few)._fleet is again._fleet is pickle.loads(pickle.dumps(again))._fleet
    del again
    gc.collect()
    assert held() is None and pickle.loads(few).count_rows() == 10


def test_errors_are_those_of_the_host(fleet):
    with pytest.raises(skytether.NotFoundError, match="taxi.no"):
        fleet.dataset("taxi.no")
    with pytest.raises(skytether.InvalidError):
        fleet.dataset("no name")
    with pytest.raises(skytether.NotFoundError, match='no column "no"'):
        fleet._inner.scan("taxi.rides", ["no"], None, None, None, False, None, "adaptive")
    kept = {"upper": pc.utf8_upper(f("city"))}
    assert_equal = pads.dataset(RIDES).to_table(kept, f("id") < 50)
    assert sorted(fleet.dataset("taxi.rides").to_table(kept, f("id") < 50)["upper"].to_pylist(), key=str) == sorted(assert_equal["upper"].to_pylist(), key=str)


# --------------------------------------------------------------------------------------------- the C stream of a result


def test_stream_can_be_taken_again_and_twice_at_a_time(fleet):
    result = fleet.sql("SELECT id FROM taxi.rides WHERE id < 50000")
    streams = [pa.RecordBatchReader.from_stream(result) for _ in range(3)]
    sums = [0, 0, 0]
    open_ = {0, 1, 2}
    while open_:
        for at in sorted(open_):
            try:
                sums[at] += pc.sum(streams[at].read_next_batch()["id"]).as_py()
            except StopIteration:
                open_.remove(at)
    assert sums == [sum(range(50_000))] * 3
    assert pa.table(result).num_rows == pl.DataFrame(result).height == result.to_arrow().num_rows == 50_000
