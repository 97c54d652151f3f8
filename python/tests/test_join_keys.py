"""Join filters reach every scan that has a key of the join, through any operator in between. They change no answer: it
equals DuckDB's over the same tables."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from compare import assert_same

import skytether


def _tables() -> dict[str, pa.Table]:
    """`c` has few of the values of the columns that it is joined by; keys are missing everywhere now and then; `v` and
    `w` are different in each row."""
    random = np.random.default_rng(7)

    def keys(rows: int, of: int, kind: pa.DataType = pa.int64()) -> pa.Array:
        values = random.integers(0, of, rows)
        return pa.array([None if gone else int(value) for value, gone in zip(values, random.random(rows) < 0.05)], kind)

    return {
        "a": pa.table({"k": keys(3000, 900), "x": keys(3000, 60, pa.int32()), "y": keys(3000, 40), "v": np.arange(3000)}),
        "b": pa.table({"k": keys(2000, 900), "x": keys(2000, 60, pa.int32()), "y": keys(2000, 40), "w": np.arange(2000)}),
        "c": pa.table({"x": keys(300, 12), "y": keys(300, 9), "u": np.arange(300)}),
    }


#: Rows with `x`, `y`, `v` and `w`; `x` and `y` come from one table or from two.
BELOW = {
    "inner": "SELECT a.x, b.y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k",
    "inner with a condition": "SELECT a.x, b.y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k AND a.y < b.x",
    "left": "SELECT a.x, b.y, a.v, b.w FROM t.a LEFT JOIN t.b ON a.k = b.k AND b.w > 300",
    "right": "SELECT a.x, b.y, a.v, b.w FROM t.a RIGHT JOIN t.b ON a.k = b.k AND a.v > 300",
    "full": "SELECT a.x, b.y, a.v, b.w FROM t.a FULL JOIN t.b ON a.k = b.k AND a.v + b.w > 900",
    "semi": "SELECT x, y, v, 0 AS w FROM t.a WHERE EXISTS (SELECT 1 FROM t.b WHERE b.k = a.k AND b.w % 2 = 0)",
    "semi by a key": "SELECT x, y, v, 0 AS w FROM t.a WHERE x IN (SELECT x FROM t.b WHERE w < 40)",
    "anti": "SELECT x, y, v, 0 AS w FROM t.a WHERE NOT EXISTS (SELECT 1 FROM t.b WHERE b.k = a.k AND b.w % 2 = 0)",
    "not in": "SELECT x, y, v, 0 AS w FROM t.a WHERE k NOT IN (SELECT k FROM t.b WHERE k IS NOT NULL AND w < 500)",
    "equal columns": "SELECT a.x, b.y, a.v, b.w FROM t.a JOIN t.b ON a.x = b.x AND a.k < b.k + 3 AND a.v % 4 = 0",
    "equal columns, two names": "SELECT b.x, a.y, a.v, b.w FROM t.a JOIN t.b ON a.x = b.x AND a.y = b.y",
    "other types": "SELECT CAST(a.x AS BIGINT) AS x, CAST(b.y AS SMALLINT) AS y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k",
    "computed": "SELECT a.x + 1 AS x, b.y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k",
    "groups": "SELECT a.x, b.y, sum(a.v) AS v, count(*) AS w FROM t.a JOIN t.b ON a.k = b.k GROUP BY b.y, a.x",
    "groups in sets": "SELECT a.x, b.y, sum(a.v) AS v, count(*) AS w FROM t.a JOIN t.b ON a.k = b.k GROUP BY CUBE (a.x, b.y)",
    "groups of one": "SELECT a.x, g.y, a.v, g.w FROM t.a JOIN (SELECT k, max(y) AS y, max(w) AS w FROM t.b GROUP BY k) g ON a.k = g.k",
    "distinct": "SELECT DISTINCT a.x, b.y, 1 AS v, 2 AS w FROM t.a JOIN t.b ON a.k = b.k",
    "union": "SELECT x, y, v, 1 AS z FROM t.a UNION ALL SELECT x, y, w, 2 FROM t.b UNION ALL SELECT b.x, a.y, a.v, 3 FROM t.a JOIN t.b ON a.k = b.k",
    "first rows": "SELECT a.x, b.y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k ORDER BY a.v, b.w LIMIT 700",
    "ranks": "SELECT a.x, b.y, a.v, row_number() OVER (PARTITION BY a.x ORDER BY a.v, b.w) AS w FROM t.a JOIN t.b ON a.k = b.k",
    "three tables": "SELECT a.x, d.y, a.v, b.w FROM t.a JOIN t.b ON a.k = b.k LEFT JOIN t.a d ON d.k = b.k",
}

#: What is done with them.
ABOVE = {
    "inner": "SELECT u, p.x, p.y, v, w FROM t.c JOIN ({}) p ON c.x = p.x AND c.y = p.y",
    "one key": "SELECT u, p.x, p.y, v, w FROM t.c JOIN ({}) p ON c.x = p.x AND c.y < 3",
    "swapped": "SELECT u, p.x, p.y, v, w FROM ({}) p JOIN t.c ON c.y = p.y AND c.x = p.x AND c.u < v",
    "left": "SELECT u, p.x, p.y, v, w FROM t.c LEFT JOIN ({}) p ON c.x = p.x AND c.y = p.y",
    "right": "SELECT u, p.x, p.y, v, w FROM t.c RIGHT JOIN ({}) p ON c.x = p.x AND c.y = p.y",
    "full": "SELECT u, p.x, p.y, v, w FROM t.c FULL JOIN ({}) p ON c.x = p.x AND c.y = p.y",
    "with nulls": "SELECT u, p.x, p.y, v, w FROM t.c JOIN ({}) p ON (c.x IS NOT DISTINCT FROM p.x) AND (c.y IS NOT DISTINCT FROM p.y)",
    "semi": "SELECT x, y, v, w FROM ({}) p WHERE EXISTS (SELECT 1 FROM t.c WHERE c.x = p.x AND c.y = p.y)",
    "anti": "SELECT x, y, v, w FROM ({}) p WHERE NOT EXISTS (SELECT 1 FROM t.c WHERE c.x = p.x AND c.y = p.y)",
    "nothing": "SELECT u, p.x, p.y, v, w FROM (SELECT * FROM t.c WHERE u < 0) c JOIN ({}) p ON c.x = p.x AND c.y = p.y",
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    tables = _tables()
    with skytether.open(tmp_path_factory.mktemp("keys") / "fleet", drives=3) as fleet, duckdb.connect() as duck:
        duck.execute("CREATE SCHEMA t")
        for name, table in tables.items():
            fleet.ingest(table, f"t.{name}")
            duck.register(f"arrow_{name}", table)
            duck.execute(f"CREATE TABLE t.{name} AS SELECT * FROM arrow_{name}")
        yield fleet, duck


@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("below", BELOW)
def test_answers_are_those_without(engines, below, above):
    fleet, duck = engines
    query = ABOVE[above].format(BELOW[below])
    # DataFusion takes no union with a column called as one of its branches' is that comes elsewhere.
    query = query.replace(", w FROM", ", z FROM") if below == "union" else query
    theirs = duck.sql(query).to_arrow_table()
    assert_same(fleet.sql(query).to_arrow(), theirs, False, query)
    assert theirs.num_rows or above == "nothing", query


def _sent(fleet, query: str) -> dict[str, int]:
    """Rows that the drives sent up, per table."""
    result = fleet.sql(query)
    result.to_arrow()
    return {scan["table"]: sum(drive["rows_out"] for drive in scan["annotations"]) for scan in result.receipt.to_dict()["scans"]}


def test_keys_of_two_tables_reach_both(engines):
    fleet, _ = engines
    rows = _sent(fleet, ABOVE["inner"].format(BELOW["inner"]))
    assert rows["t.a"] < 1000 and rows["t.b"] < 1000, rows
    # Through an outer join only the side that is kept whole.
    rows = _sent(fleet, ABOVE["inner"].format(BELOW["left"]))
    assert rows["t.a"] < 1000 < rows["t.b"], rows


def test_a_key_reaches_the_table_that_it_is_equal_in(engines):
    fleet, _ = engines
    rows = _sent(fleet, ABOVE["one key"].format(BELOW["equal columns"]))
    assert rows["t.a"] < 300 and rows["t.b"] < 1000, rows
