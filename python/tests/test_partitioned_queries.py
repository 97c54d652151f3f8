"""Queries by the keys of partitioned tables equal DuckDB over the same tables, and their windows, aggregates and joins
run on the drives: with NULL keys, skew, drives without rows, keys of integers, texts and both; on 1, 2 and 5 drives,
embedded and as processes, cut and uncut."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from compare import assert_same
from edge_tables import edges
from fleets import serving

import skytether

#: How the tables are partitioned. Those of one key are in integers of several widths, and in texts of several forms.
KEYS = {
    "mixed": ["k"], "facts": ["k"], "names": ["k"], "skew": ["k"], "ties": ["k"], "empty": ["k"], "one": ["k"], "left": ["k"], "right": ["k"],
    "words": ["s"], "labels": ["s"], "pairs": ["s", "k"], "others": ["s", "k"],
}

#: What is to run on the drives and not on the host, and the query. One that sorts without ties is compared in order.
QUERIES = """
WindowAggr: SELECT u, sum(i) OVER (PARTITION BY k), count(*) OVER (PARTITION BY k) FROM e.mixed
WindowAggr: SELECT u, row_number() OVER w, rank() OVER w, dense_rank() OVER w, ntile(3) OVER w FROM e.mixed WINDOW w AS (PARTITION BY k ORDER BY i NULLS LAST, u)
WindowAggr: SELECT v, lag(x, 2, -1) OVER w, lead(y) OVER w, first_value(v) OVER w, last_value(v) OVER w FROM e.facts WINDOW w AS (PARTITION BY k ORDER BY v DESC)
WindowAggr: SELECT u, sum(i) OVER (PARTITION BY k ORDER BY u ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING), max(m) OVER (PARTITION BY k ORDER BY u ROWS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING) FROM e.mixed
WindowAggr: SELECT k, v, sum(v) OVER (PARTITION BY k ORDER BY v RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM e.ties
WindowAggr: SELECT u, n FROM (SELECT u, key, row_number() OVER (PARTITION BY key, b ORDER BY u DESC) AS n FROM (SELECT u, b, k AS key FROM e.mixed WHERE i > 0) x) y WHERE n <= 2
WindowAggr: SELECT n, count(*) FROM (SELECT ntile(2) OVER (PARTITION BY k ORDER BY v) AS n FROM e.skew) GROUP BY n
WindowAggr: SELECT u, s, count(*) OVER (PARTITION BY s), lag(s) OVER (PARTITION BY s ORDER BY u) FROM e.words
WindowAggr: SELECT w, sum(w) OVER (PARTITION BY k, s), row_number() OVER (PARTITION BY s, k, w % 2 ORDER BY w) FROM e.pairs
WindowAggr: SELECT k, i, rank() OVER (PARTITION BY k ORDER BY i) FROM e.empty
WindowAggr: SELECT k, s, count(*) OVER (PARTITION BY k) FROM e.one
WindowAggr: SELECT k, b, rank() OVER (PARTITION BY k ORDER BY sum(i)) FROM e.mixed GROUP BY k, b
WindowAggr: SELECT u, k FROM (SELECT u, k, row_number() OVER (PARTITION BY k ORDER BY u) AS n FROM e.mixed) WHERE n = 3 ORDER BY u LIMIT 5
Aggregate: SELECT k, median(f), count(DISTINCT i), sum(DISTINCT u), count(*) FROM e.mixed GROUP BY k
Aggregate: SELECT k, b, count(*) AS n FROM e.mixed GROUP BY b, k HAVING count(*) > 30
Aggregate: SELECT k, sum(v) FROM e.skew GROUP BY k
Aggregate: SELECT k, count(DISTINCT v) AS n FROM e.skew GROUP BY k ORDER BY n DESC, k LIMIT 4
Aggregate: SELECT s, count(*), min(u) FROM e.words GROUP BY s
Aggregate: SELECT DISTINCT k, s FROM e.pairs
Aggregate: SELECT k, count(*), sum(i) FROM e.empty GROUP BY k
Aggregate: SELECT k, max(s) FROM e.one GROUP BY k
Join: SELECT f.k, count(*), sum(f.v) FROM e.facts f JOIN e.names n ON f.k = n.k GROUP BY f.k
Join: SELECT n.label, count(*), sum(f.v) FROM e.facts f JOIN e.names n ON f.k = n.k AND f.x < n.x GROUP BY n.label
Join: SELECT n.label, count(*), count(n.k) FROM e.facts f LEFT JOIN e.names n ON f.k = n.k GROUP BY n.label
Join: SELECT n.label, count(*), count(f.k) FROM e.facts f RIGHT JOIN e.names n ON f.k = n.k AND f.x = 1 GROUP BY n.label
Join: SELECT n.k, f.k, n.label, count(*), sum(f.v) FROM e.facts f FULL JOIN e.names n ON f.k = n.k AND f.x = n.x GROUP BY n.k, f.k, n.label
Join: SELECT count(*), count(f.v), count(n.label) FROM e.facts f FULL JOIN e.names n ON f.k = n.k AND n.label = 'n3'
Join: SELECT f.v FROM e.facts f WHERE EXISTS (SELECT 1 FROM e.names n WHERE n.k = f.k AND n.x > f.x)
Join: SELECT f.v FROM e.facts f WHERE NOT EXISTS (SELECT 1 FROM e.names n WHERE n.k = f.k)
Join: SELECT f.v FROM e.facts f WHERE f.k IN (SELECT k FROM e.names WHERE label LIKE '%3')
Join: SELECT k FROM e.left INTERSECT SELECT k FROM e.right
Join: SELECT k FROM e.left EXCEPT SELECT k FROM e.right
Join: SELECT l.k, l.a FROM e.left l WHERE EXISTS (SELECT 1 FROM e.right r WHERE r.k = l.k)
Join: SELECT count(*), sum(l.k), sum(r.c) FROM e.left l FULL JOIN e.right r ON l.k = r.k
Join: SELECT count(*) FROM e.left l JOIN e.right r ON l.k IS NOT DISTINCT FROM r.k
Join: SELECT w.s, count(*), sum(l.n), max(l.s) FROM e.words w JOIN e.labels l ON w.s = l.s GROUP BY w.s
Join: SELECT l.n, count(*) FROM e.words w RIGHT JOIN e.labels l ON w.s = l.s GROUP BY l.n
Join: SELECT p.s, p.k, count(*), sum(o.w - p.w) FROM e.pairs p JOIN e.others o ON p.k = o.k AND p.s = o.s GROUP BY p.s, p.k
Join: SELECT a.w, b.w FROM e.pairs a JOIN e.pairs b ON b.k = a.k AND a.s = b.s AND a.w < b.w WHERE a.w < 40 ORDER BY a.w, b.w LIMIT 30
Join: SELECT s.v, count(*) FROM e.skew s JOIN e.mixed m ON s.k = m.k WHERE m.u < 300 GROUP BY s.v
Join: SELECT m.k, count(*), sum(x.i) FROM e.mixed m LEFT JOIN e.empty x ON m.k = x.k GROUP BY m.k
Join: SELECT m.k, count(*) FROM e.empty x JOIN e.mixed m ON m.k = x.k GROUP BY m.k
Join: SELECT n.label, count(*), min(m.u) FROM e.facts f JOIN e.names n ON f.k = n.k JOIN e.mixed m ON m.k = n.k AND m.u = f.v GROUP BY n.label
Join: SELECT f.k, c.n, count(*) FROM e.facts f JOIN (SELECT k, count(*) AS n FROM e.mixed GROUP BY k) c ON c.k = f.k GROUP BY f.k, c.n
Join: SELECT f.v, n.label FROM e.facts f JOIN e.names n ON f.k = n.k WHERE n.x = 1 ORDER BY f.v, n.label LIMIT 20
Join: SELECT k, count(label), max(v) FROM e.facts LEFT JOIN e.names USING (k) GROUP BY k
WindowAggr: SELECT f.v, row_number() OVER (PARTITION BY f.k ORDER BY f.v) FROM e.facts f LEFT SEMI JOIN e.names m ON f.k = m.k
""".strip().splitlines()

#: By other columns than the tables are partitioned by, or about all rows at once: on the host, and right all the same.
ABOVE = """
WindowAggr: SELECT u, sum(i) OVER (PARTITION BY b) FROM e.mixed
WindowAggr: SELECT u, row_number() OVER (ORDER BY u) FROM e.mixed
WindowAggr: SELECT u, max(s) OVER (PARTITION BY k) FROM e.mixed
WindowAggr: SELECT w, sum(w) OVER (PARTITION BY k) FROM e.pairs
WindowAggr: SELECT u, sum(i) OVER (PARTITION BY k % 3) FROM e.mixed
WindowAggr: SELECT k, c FROM (SELECT f.k, n.k AS m, count(*) OVER (PARTITION BY f.k) AS c FROM e.facts f FULL JOIN e.names n ON f.k = n.k WHERE f.v < 100 OR f.v IS NULL) x
Aggregate: SELECT s, sum(w) FROM e.pairs GROUP BY s
Aggregate: SELECT k, b, sum(i) FROM e.mixed GROUP BY ROLLUP (k, b)
Join: SELECT count(*) FROM e.facts f JOIN e.mixed m ON f.x = m.k
Join: SELECT count(*) FROM e.pairs a JOIN e.others b ON b.k = a.k
Join: SELECT count(*) FROM e.words w JOIN e.pairs p ON w.s = p.s AND w.k = p.k
Join: SELECT count(*) FROM e.facts f WHERE f.k NOT IN (SELECT k FROM e.mixed)
Join: SELECT k FROM e.left WHERE k NOT IN (SELECT k FROM e.right)
""".strip().splitlines()


def tables() -> dict[str, pa.Table]:
    found = edges()
    found["facts"] = found["facts"].slice(0, 6000)
    found["names"] = found["names"].set_column(0, "k", found["names"]["k"].cast(pa.int64()))
    mixed = found["mixed"]
    found["words"] = mixed.select(["u", "s", "k"])
    some = sorted({s for s in mixed["s"].to_pylist() if s is not None})[::2]
    found["labels"] = pa.table({"s": pa.array([*some, "elsewhere", None, *some[:3]]).cast(pa.string_view()), "n": range(len(some) + 5)})
    small = mixed.slice(0, 900)
    found["pairs"] = pa.table({"s": small["s"], "k": small["k"], "w": small["u"]})
    found["others"] = pa.table({"s": mixed["s"].slice(500, 900).cast(pa.large_string()), "k": mixed["k"].slice(500, 900).cast(pa.int16()), "w": mixed["u"].slice(500, 900)})
    return {name: found[name] for name in KEYS}


def fill(fleet: skytether.Fleet) -> None:
    for name, table in tables().items():
        fleet.ingest(table, f"e.{name}", partition_by=KEYS[name])


def parted(line: str) -> tuple[str, str]:
    operator, _, query = line.partition(": ")
    return operator, query


@pytest.fixture(scope="module")
def theirs():
    """DuckDB's answers."""
    con = duckdb.connect()
    con.execute("CREATE SCHEMA e")
    for name, table in tables().items():
        con.register(f"{name}_arrow", table)
        con.execute(f"CREATE VIEW e.{name} AS SELECT * FROM {name}_arrow")
    return {line: con.sql(parted(line)[1].replace("LEFT SEMI JOIN", "SEMI JOIN")).to_arrow_table() for line in QUERIES + ABOVE}


@pytest.fixture(scope="module", params=[1, 2, 5], ids=lambda n: f"{n} drives")
def fleet(request, tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("fleet"), drives=request.param, slice_rows=500) as fleet:
        fill(fleet)
        yield fleet


@pytest.fixture(scope="module", params=[5], ids=lambda n: f"{n} served drives")
def remote(request, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served"), request.param, "--slice-rows", 500) as served, skytether.connect(served.url) as fleet:
        fill(fleet)
        yield fleet


def check(fleet, theirs, line, cut):
    query = parted(line)[1]
    ordered = "ORDER BY" in query.split(") FROM")[-1] and "OVER" not in query
    assert_same(fleet.sql(query, cut=cut).to_arrow(), theirs[line], ordered, query)


@pytest.mark.parametrize("cut", ["full", "raw"])
@pytest.mark.parametrize("line", QUERIES + ABOVE)
def test_as_duckdb(fleet, theirs, line, cut):
    check(fleet, theirs, line, cut)


@pytest.mark.parametrize("line", QUERIES + ABOVE)
def test_processes_as_duckdb(remote, theirs, line):
    check(remote, theirs, line, "adaptive")


@pytest.mark.parametrize("line", QUERIES)
def test_it_runs_on_the_drives(fleet, line):
    operator, query = parted(line)
    cut = fleet.explain(query).to_dict()
    assert f"{operator}:" in "".join(plan["plan"] for plan in cut["sub_plans"]).replace(" Join", " Join:"), cut
    assert f"{operator}:" not in cut["super_plan"].replace(" Join", " Join:"), cut
    # Every drive was asked, and did its part of it where it has rows.
    result = fleet.sql(query)
    result.to_arrow()
    word = {"WindowAggr": "Window", "Aggregate": "Aggregate", "Join": "Join"}[operator]
    ran = [[op["name"] for op in drive["operators"]] for scan in result.receipt.to_dict()["scans"] for drive in scan["annotations"]]
    assert len(ran) == len(fleet.status()) * len(cut["sub_plans"])
    assert any(word in name for names in ran for name in names), ran


@pytest.mark.parametrize("line", ABOVE)
def test_work_on_the_host_has_its_reason(fleet, line):
    operator, query = parted(line)
    notes = fleet.explain(query).to_dict()["notes"]
    reasons = [note["reason"] for note in notes if note["operator"].endswith(operator)]
    if operator == "Aggregate":
        assert "merge" in fleet.explain(query)
    elif "NOT IN" in query:
        assert any("NOT IN" in reason for reason in reasons), notes
    else:
        assert any("partitioned by" in reason or "may lie on different drives" in reason or "repeat a long text" in reason for reason in reasons), notes


def test_some_drives_have_no_rows(fleet):
    drives = len(fleet.status())
    for name in ("one", "empty", "ties"):
        rows = [part["rows"] for part in fleet.describe(f"e.{name}")["tables"]["data"]["partitions"]]
        assert len(rows) == drives and (drives < 5 or 0 in rows), rows
