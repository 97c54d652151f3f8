"""Queries on the edges equal DuckDB over the same tables: empty and all-null input, NaN and signed zero, ties,
extremes, skew, many groups, any Unicode, joins on null, correlated subqueries; on 1, 2 and 5 drives, embedded and as
processes, at every cut. The Parquet files of the tables give the same in DuckDB and pyarrow. EXEC over such a file:
`three_doors` of the Rust tests, and `block/test_three_doors.py`."""

from __future__ import annotations

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compare import assert_same
from edge_tables import edges
from fleets import device, embedded, processes

#: Tables are those of `edge_tables` in the domain `e`. A query that sorts without ties is compared in order.
QUERIES = """
SELECT * FROM e.mixed
SELECT u, s FROM e.mixed WHERE s = '🧬 gene' AND i > 0
SELECT u FROM e.mixed WHERE s LIKE 'per%' OR s LIKE '%\\_%'
SELECT u FROM e.mixed WHERE s IN ('ä', 'é', '日本')
SELECT u FROM e.mixed WHERE s NOT IN ('ä', 'é') AND b
SELECT u FROM e.mixed WHERE i IS NULL OR f IS NULL
SELECT u FROM e.mixed WHERE NOT (i > 5)
SELECT u FROM e.mixed WHERE b IS NOT TRUE
SELECT u FROM e.mixed WHERE i BETWEEN -5 AND 5 AND k NOT BETWEEN 3 AND 30
SELECT u FROM e.mixed WHERE i IS DISTINCT FROM k
SELECT u, i * 2 - k, f / 3, -i FROM e.mixed WHERE u < 500
SELECT u, coalesce(s, '?'), nullif(i, k), CASE WHEN i > 0 THEN 'plus' WHEN i < 0 THEN 'minus' END FROM e.mixed
SELECT u, length(s), lower(s), s || '!' FROM e.mixed
SELECT u, substring(s, 1, 2), replace(s, 'e', 'é'), trim(s) FROM e.mixed
SELECT u, CAST(d + INTERVAL '1' MONTH AS DATE), extract(YEAR FROM d), extract(DOW FROM d) FROM e.mixed
SELECT u, date_trunc('hour', t), extract(MINUTE FROM t) FROM e.mixed
SELECT u, CAST(i AS VARCHAR), CAST(f AS FLOAT), CAST(k AS DOUBLE), CAST(m AS DOUBLE) FROM e.mixed
SELECT u, m + 1, m * 2, abs(m) FROM e.mixed
SELECT count(*), count(i), count(DISTINCT i), sum(i), min(i), max(i), avg(i) FROM e.mixed
SELECT k, count(*), sum(i), avg(f), min(s), max(s), min(d), max(t), sum(m) FROM e.mixed GROUP BY k
SELECT s, count(*) FROM e.mixed GROUP BY s
SELECT b, k, sum(f) FROM e.mixed GROUP BY b, k
SELECT k % 3, i > 0, count(*) FROM e.mixed GROUP BY k % 3, i > 0
SELECT stddev(f), var_pop(f), corr(f, i), median(i) FROM e.mixed
SELECT k, stddev_pop(f), var_samp(i), covar_samp(f, i) FROM e.mixed GROUP BY k
SELECT bool_and(b), bool_or(b), bit_and(k), bit_or(k), bit_xor(k) FROM e.mixed
SELECT sum(i) FILTER (WHERE b), count(*) FILTER (WHERE s = 'a') FROM e.mixed
SELECT k, count(DISTINCT s), count(DISTINCT i), sum(i) FROM e.mixed GROUP BY k
SELECT k, b, count(*) FROM e.mixed GROUP BY ROLLUP (k, b)
SELECT k, b, sum(i) FROM e.mixed GROUP BY CUBE (k, b)
SELECT k, b, sum(i), grouping(k) FROM e.mixed GROUP BY GROUPING SETS ((k), (b), ())
SELECT k, sum(i) AS n FROM e.mixed GROUP BY k HAVING sum(i) > 0
SELECT k, v, count(*) FROM (SELECT k, unnest(vs) AS v FROM (SELECT k, array_agg(i % 7) AS vs FROM e.mixed GROUP BY k)) AS a GROUP BY k, v
SELECT k, count(*) FROM (SELECT k, unnest(vs) AS v FROM (SELECT k, array_agg(i % 7) AS vs FROM e.mixed GROUP BY k)) AS a GROUP BY k, v
WITH a AS (SELECT k, unnest(vs) AS v FROM (SELECT k, array_agg(i % 7) AS vs FROM e.mixed GROUP BY k)) SELECT a.k, count(*), max(a.v), min(l.k) FROM a LEFT JOIN e.left l ON a.k = l.k GROUP BY a.k HAVING max(a.v) > 0
SELECT k, v, sum(v) OVER (ORDER BY k) AS s FROM (SELECT k, unnest(vs) AS v FROM (SELECT k, array_agg(u % 5) AS vs FROM e.mixed GROUP BY k)) AS a
SELECT k, u FROM (SELECT k, unnest(us) AS u FROM (SELECT k, array_agg(u) AS us FROM e.mixed GROUP BY k)) AS a WHERE k < 9 ORDER BY k, u LIMIT 40
SELECT u FROM e.mixed x WHERE i = (SELECT max(v) FROM (SELECT k, unnest(vs) AS v FROM (SELECT k, array_agg(i) AS vs FROM e.mixed GROUP BY k)) AS a WHERE a.k = x.k)
SELECT DISTINCT s FROM e.mixed
SELECT DISTINCT k, b FROM e.mixed WHERE i > 900
SELECT u, i FROM e.mixed ORDER BY i DESC NULLS LAST, u LIMIT 10
SELECT u, s FROM e.mixed ORDER BY f NULLS FIRST, u LIMIT 7 OFFSET 300
SELECT u FROM e.mixed ORDER BY u DESC LIMIT 5
SELECT k, sum(i) AS n FROM e.mixed GROUP BY k ORDER BY n DESC, k LIMIT 4
SELECT count(*) FROM (SELECT u FROM e.mixed LIMIT 17)
SELECT u FROM e.mixed WHERE i > (SELECT avg(i) FROM e.mixed)
SELECT u FROM e.mixed a WHERE i = (SELECT max(i) FROM e.mixed b WHERE b.k = a.k)
SELECT u FROM e.mixed x WHERE EXISTS (SELECT 1 FROM e.left l WHERE l.k = x.k)
SELECT u FROM e.mixed x WHERE NOT EXISTS (SELECT 1 FROM e.right r WHERE r.k = x.k) AND u < 300
SELECT u FROM e.mixed WHERE k IN (SELECT k FROM e.right)
SELECT k FROM e.left WHERE k NOT IN (SELECT k FROM e.right)
SELECT k FROM e.left WHERE k NOT IN (SELECT k FROM e.right WHERE k IS NOT NULL)
WITH n AS (SELECT k, count(*) AS c FROM e.mixed GROUP BY k) SELECT a.k, a.c FROM n a JOIN n b ON a.c = b.c AND a.k < b.k
SELECT l.k, a, c FROM e.left l JOIN e.right r ON l.k = r.k
SELECT l.k, a, r.k, c FROM e.left l LEFT JOIN e.right r ON l.k = r.k
SELECT l.k, a, r.k, c FROM e.left l RIGHT JOIN e.right r ON l.k = r.k
SELECT l.k, a, r.k, c FROM e.left l FULL JOIN e.right r ON l.k = r.k
SELECT l.a, r.c FROM e.left l CROSS JOIN e.right r
SELECT l.a, r.c FROM e.left l JOIN e.right r ON l.k < r.k
SELECT l.a, r.c FROM e.left l JOIN e.right r ON l.k IS NOT DISTINCT FROM r.k
SELECT k, s, v FROM e.one JOIN e.ties USING (k)
SELECT a.k, count(*) FROM e.mixed a JOIN e.ties b ON a.k = b.k WHERE b.v = 1 GROUP BY a.k
SELECT k FROM e.left UNION SELECT k FROM e.right
SELECT k FROM e.left UNION ALL SELECT k FROM e.right
SELECT k FROM e.mixed INTERSECT SELECT k FROM e.right
SELECT k FROM e.left EXCEPT SELECT k FROM e.right
SELECT sum(c) FROM (SELECT i AS c FROM e.mixed UNION ALL SELECT k FROM e.left)
SELECT * FROM e.empty
SELECT count(*), sum(i), min(s), avg(f), max(d) FROM e.empty
SELECT k, count(*) FROM e.empty GROUP BY k
SELECT u FROM e.empty ORDER BY u LIMIT 3
SELECT m.u FROM e.mixed m JOIN e.empty x ON m.u = x.u
SELECT m.u, x.s FROM e.mixed m LEFT JOIN e.empty x ON m.u = x.u WHERE m.u < 20
SELECT k, i, f, s FROM e.nulls
SELECT count(*), count(i), sum(i), avg(f), min(s), count(DISTINCT s) FROM e.nulls
SELECT s, count(*) FROM e.nulls GROUP BY s
SELECT k, sum(f), max(s) FROM e.nulls GROUP BY k
SELECT k FROM e.nulls WHERE i = i
SELECT k, f FROM e.floats
SELECT k FROM e.floats WHERE f > 0
SELECT k FROM e.floats WHERE f = 0
SELECT k, f FROM e.floats WHERE isnan(f)
SELECT k, f FROM e.floats ORDER BY f DESC NULLS LAST, k LIMIT 2
SELECT k, count(f), min(f), max(f) FROM e.floats WHERE NOT isnan(f) GROUP BY k
SELECT k, min(f), max(f), min(f) FILTER (WHERE f > 0) FROM e.floats GROUP BY k
SELECT min(f), max(f) FROM e.floats
SELECT min(f), max(CAST(f AS REAL)) FROM e.floats
SELECT abs(f) > 1, min(f), max(-f), min(CAST(-f AS REAL)) FROM e.floats GROUP BY 1
SELECT f, min(f), max(f) FROM e.floats WHERE f > 1e300 OR f < -1e300 GROUP BY f
SELECT i, n FROM e.extremes
SELECT min(i), max(i), min(n), max(n) FROM e.extremes
SELECT k FROM e.extremes WHERE i = 9223372036854775807 OR i = -9223372036854775808
SELECT k, sum(CAST(i AS DOUBLE)) FROM e.extremes GROUP BY k
SELECT k, v, count(*) FROM e.ties GROUP BY k, v
SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) FROM e.ties WHERE v = 0
SELECT v, rank() OVER (ORDER BY v), dense_rank() OVER (ORDER BY v) FROM e.ties
SELECT k, sum(v) OVER (PARTITION BY k ORDER BY v RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM e.ties
SELECT u, lag(i) OVER (ORDER BY u), lead(i, 2) OVER (ORDER BY u) FROM e.mixed WHERE u < 50
SELECT k, count(*), sum(v) FROM e.skew GROUP BY k
SELECT a.k, count(*) FROM e.skew a JOIN e.ties b ON a.v = b.k GROUP BY a.k
SELECT k, sum(v), count(*) FROM e.groups GROUP BY k
SELECT count(*) FROM (SELECT k FROM e.groups GROUP BY k HAVING sum(v) > 100)
SELECT k FROM e.groups GROUP BY k ORDER BY sum(v) DESC, k LIMIT 9
SELECT max(n) FROM (SELECT count(*) AS n FROM e.groups GROUP BY k)
SELECT string_agg(s, ',' ORDER BY s) FROM e.one
SELECT s, sum(i) FROM e.mixed WHERE s > 'a' GROUP BY s
SELECT count(*) FROM e.mixed a, e.mixed b WHERE a.u = b.u + 1 AND a.k = b.k
SELECT u FROM e.mixed WHERE d < DATE '1970-01-01' AND t >= TIMESTAMP '2024-02-29 00:00:00'
SELECT d, count(*) FROM e.mixed GROUP BY d
SELECT m, count(*) FROM e.mixed WHERE m BETWEEN -10.00 AND 10.00 GROUP BY m
SELECT min(n), max(n) FROM (SELECT CAST(i AS VARCHAR) AS n FROM e.mixed)
SELECT min(CAST(k AS VARCHAR)), max(CAST(k AS VARCHAR)) FROM e.mixed
SELECT min(n), max(n), count(n) FROM (SELECT i - 5 > 0 AS n FROM e.mixed)
SELECT min(n), max(n) FROM (SELECT -i AS n FROM e.mixed)
SELECT min(n), max(n) FROM (SELECT CAST(t AS TIME) AS n FROM e.mixed)
SELECT count(DISTINCT n), count(n), count(*) FROM (SELECT CAST(NULL AS INTEGER) AS n FROM e.mixed)
SELECT count(n), min(n), count(*) FROM (SELECT k AS n FROM e.mixed)
SELECT n.label, count(*), sum(f.v) FROM e.facts f JOIN e.names n ON f.k = n.k GROUP BY n.label
SELECT n.label, count(*), count(n.k) FROM e.facts f LEFT JOIN e.names n ON f.k = n.k GROUP BY n.label
SELECT n.label, count(*), count(f.k) FROM e.names n RIGHT JOIN e.facts f ON f.k = n.k GROUP BY n.label
SELECT label, count(*), sum(v) FROM e.facts LEFT JOIN e.names USING (k) GROUP BY label
SELECT k, count(label) FROM e.facts LEFT JOIN e.names USING (k) GROUP BY k
SELECT count(*), count(label) FROM e.facts NATURAL LEFT JOIN e.names
SELECT n.label, count(*) FROM e.facts f LEFT JOIN e.names n ON f.k = n.k AND f.x = f.y GROUP BY n.label
SELECT n.label, count(*) FROM e.facts f LEFT JOIN e.names n ON f.k = n.k AND f.x < n.x GROUP BY n.label
SELECT n.label, count(*) FROM e.facts f JOIN e.names n ON f.s = n.label AND f.x = n.x GROUP BY n.label
SELECT f.x, count(*), sum(f.v) FROM e.facts f WHERE EXISTS (SELECT 1 FROM e.names n WHERE n.k = f.k) GROUP BY f.x
SELECT f.x, count(*) FROM e.facts f WHERE NOT EXISTS (SELECT 1 FROM e.names n WHERE n.k = f.k AND f.x = f.y) GROUP BY f.x
SELECT count(*) FROM e.facts f WHERE f.k NOT IN (SELECT k FROM e.names)
SELECT count(*) FROM e.facts f WHERE f.k NOT IN (SELECT k FROM e.names WHERE k IS NOT NULL)
SELECT n.label, count(*) FROM e.facts f FULL JOIN e.names n ON f.k = n.k GROUP BY n.label
SELECT n.label, m.label, count(*) FROM e.facts f JOIN e.names n ON f.k = n.k JOIN e.names m ON f.x = m.x AND m.k < 5 GROUP BY n.label, m.label
SELECT n.c, count(*) FROM e.facts f JOIN (SELECT k, count(*) AS c FROM e.names GROUP BY k) n ON f.k = n.k GROUP BY n.c
SELECT f.v, n.label FROM e.facts f JOIN e.names n ON f.k = n.k WHERE n.x = 1 ORDER BY f.v, n.label LIMIT 20
SELECT n.label, max(f.v) FROM e.facts f JOIN (SELECT * FROM e.names ORDER BY k, x LIMIT 10) n ON f.k = n.k GROUP BY n.label ORDER BY 2, 1
SELECT f.x, count(*) FROM e.facts f JOIN (VALUES (1, 'a'), (2, 'b'), (NULL, 'c')) AS w(k, t) ON f.k = w.k GROUP BY f.x
WITH RECURSIVE r AS (SELECT 3 AS k, 0 AS n UNION ALL SELECT CAST(f.x AS INTEGER), r.n + 1 FROM r JOIN e.facts f ON f.v = r.k + 40 * r.n WHERE r.n < 6) SELECT k, n FROM r
""".strip().splitlines()


@pytest.fixture(scope="module")
def tables():
    return edges()


def answers(sources):
    """DuckDB's answers over tables or files."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.execute("CREATE SCHEMA e")
    for name, source in sources.items():
        if isinstance(source, pa.Table):
            con.register(f"{name}_source", source)
        else:
            con.read_parquet(str(source)).create_view(f"{name}_source")
        con.execute(f"CREATE VIEW e.{name} AS SELECT * FROM {name}_source")
    return {query: con.sql(query.replace("LIKE '%\\_%'", "LIKE '%\\_%' ESCAPE '\\'")).to_arrow_table() for query in QUERIES}


@pytest.fixture(scope="module")
def theirs(tables):
    """DuckDB's answers."""
    return answers(tables)


@pytest.fixture(scope="module", params=[1, 2, 5], ids=lambda n: f"{n} drives")
def fleet(request, tables, tmp_path_factory):
    with embedded(tmp_path_factory.mktemp("fleet"), request.param, sources(tables)) as fleet:
        yield fleet


@pytest.fixture(scope="module", params=[1, 5], ids=lambda n: f"{n} served drives")
def remote(request, tables, tmp_path_factory):
    with processes(tmp_path_factory.mktemp("served"), request.param, sources(tables)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def moving(tables, tmp_path_factory):
    """Drives of several speeds, with whom the host shares the work while a query runs."""
    with embedded(tmp_path_factory.mktemp("moving"), 3, sources(tables), [device(1.0), device(0.2, cores=2), device(0.05)]) as fleet:
        yield fleet


def sources(tables):
    return {f"e/{name}": (table, table.num_rows) for name, table in tables.items()}


def is_ordered(query):
    """Whether the order of rows is part of the answer."""
    return "ORDER BY" in query.split(") FROM")[-1] and "OVER" not in query


def check(fleet, theirs, query, cut):
    assert_same(fleet.sql(query, cut=cut).to_arrow(), theirs[query], is_ordered(query), query)


@pytest.mark.parametrize("cut", ["full", "filter", "raw"])
@pytest.mark.parametrize("query", QUERIES)
def test_as_duckdb(fleet, theirs, query, cut):
    check(fleet, theirs, query, cut)


@pytest.mark.parametrize("cut", ["adaptive", "raw"])
@pytest.mark.parametrize("query", QUERIES)
def test_processes_as_duckdb(remote, theirs, query, cut):
    check(remote, theirs, query, cut)


@pytest.mark.parametrize("cut", ["adaptive", "full", "raw"])
@pytest.mark.parametrize("query", QUERIES)
def test_as_duckdb_where_work_moves(moving, theirs, query, cut):
    check(moving, theirs, query, cut)


def check_spread(fleet, tables):
    """Two rows are a slice of the smallest tables."""
    drives = len(fleet.status())
    for name, table in tables.items():
        holding = [p for p in fleet.describe(f"e/{name}")["tables"]["data"]["partitions"] if p["rows"] > 0]
        assert len(holding) == min(drives, (table.num_rows + 1) // 2), name


def test_every_table_is_on_all_drives(fleet, tables):
    check_spread(fleet, tables)


def test_every_table_is_on_all_processes(remote, tables):
    check_spread(remote, tables)


def test_files_answer_as_the_tables(fleet, tables, theirs, tmp_path):
    """A table's file has its rows to the bit, wherever its slices lie, and any reader answers the queries from it."""
    files = {name: tmp_path / f"{name}.parquet" for name in tables}
    in_place = fsspec.filesystem("skytether", fleet=fleet)
    for name, file in files.items():
        fleet.export(f"e.{name}", file)
        assert in_place.cat_file(f"e.{name}") == file.read_bytes()
        read = pq.read_table(file)
        assert read.schema.equals(tables[name].schema) and in_bytes(read) == in_bytes(tables[name]), name
    for query, answer in answers(files).items():
        assert_same(answer, theirs[query], is_ordered(query), query)


def in_bytes(table):
    """Each column's values as bytes: zeros have their sign, and every NaN its bits. NULL says nothing else."""

    def one(column):
        column = column.combine_chunks()
        if pa.types.is_floating(column.type):
            column = column.view(pa.int64() if column.type == pa.float64() else pa.int32())
        return column.to_pylist()

    return [one(column) for column in table.columns]


def test_there_are_enough_of_them():
    assert len(set(QUERIES)) == len(QUERIES) >= 60
