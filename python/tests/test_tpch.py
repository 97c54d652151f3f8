"""The 22 queries of TPC-H over a fleet equal DuckDB over the same Parquet files, whatever the number of drives and the
cut; drives and host in one process or each a process of its own."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import tpch
from compare import assert_same
from fleets import embedded, processes

import skytether

#: How tables are partitioned where they are: lineitem with its orders, and partsupp with its parts.
KEYS = {"lineitem": ["l_orderkey"], "orders": ["o_orderkey"], "part": ["p_partkey"], "partsupp": ["ps_partkey"]}
SCALE = 0.01


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The tables as Parquet, made by a generator from PyPI."""
    return tpch.generated(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def answers(files):
    """What DuckDB says to each query."""
    con = tpch.in_duckdb(files)
    return {n: con.sql(text(n)).to_arrow_table() for n in range(1, 23)}


def text(number: int) -> str:
    return tpch.text(number, SCALE)


@pytest.fixture(scope="module", params=[1, 2, 5], ids=lambda n: f"{n} drives")
def fleet(request, files, tmp_path_factory):
    with embedded(tmp_path_factory.mktemp("fleet"), request.param, sources(files)) as fleet:
        yield fleet


@pytest.fixture(scope="module", params=[1, 4], ids=lambda n: f"{n} served drives")
def remote(request, files, tmp_path_factory):
    with processes(tmp_path_factory.mktemp("served"), request.param, sources(files)) as fleet:
        yield fleet


@pytest.fixture(scope="module", params=[2, 5], ids=lambda n: f"{n} drives by key")
def by_key(request, files, tmp_path_factory):
    """Tables that are joined lie together."""
    with skytether.open(tmp_path_factory.mktemp("keyed") / "fleet", drives=request.param, slice_rows=500) as fleet:
        for table, key in KEYS.items():
            fleet.ingest(files / f"{table}.parquet", f"tpch/{table}", partition_by=key)
        for table in set(tpch.TABLES) - set(KEYS):
            fleet.ingest(files / f"{table}.parquet", f"tpch/{table}")
        yield fleet


def sources(files):
    paths = {table: files / f"{table}.parquet" for table in tpch.TABLES}
    return {f"tpch/{table}": (path, pq.read_metadata(path).num_rows) for table, path in paths.items()}


@pytest.mark.parametrize("cut", ["adaptive", "full", "filter", "raw"])
def test_every_query_equals_duckdb(fleet, answers, cut):
    check(fleet, answers, cut)


def test_every_query_over_tables_by_key_equals_duckdb(by_key, answers):
    check(by_key, answers, "adaptive")


@pytest.mark.parametrize("cut", ["adaptive", "raw"])
def test_every_query_over_processes_equals_duckdb(remote, answers, cut):
    check(remote, answers, cut)


def check(fleet, answers, cut):
    for number in range(1, 23):
        # Every query sorts, but rows of equal keys may come in any order.
        assert_same(fleet.sql(text(number), cut=cut).to_arrow(), answers[number], False, f"query {number}")


def test_there_are_answers_to_compare(answers):
    empty = [n for n, table in answers.items() if table.num_rows == 0]
    assert len(empty) <= 3, f"at this scale queries {empty} find nothing"


def test_keys_of_a_join_go_down(fleet):
    """What a join has learnt of its keys keeps most of lineitem on the drives."""
    for number in (3, 8):
        moved = {}
        for cut in ("full", "raw"):
            result = fleet.sql(text(number), cut=cut)
            result.to_arrow()
            moved[cut] = result.receipt.to_dict()["bytes_moved"]
        assert 3 * moved["full"] < moved["raw"], f"query {number}: {moved}"
    assert "join_filters=" in fleet.explain(text(3))
