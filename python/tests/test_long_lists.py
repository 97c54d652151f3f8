"""Long lists of results over a wide table: planned and optimised in parts, and kept by drives. Each must be what DuckDB
gives, at first and again, however the list is mixed."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import skytether

COLUMNS, ROWS = 260, 3_000


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(7)
    columns = {"id": pa.array(range(ROWS)), "Kind": pa.array([f"k{n % 5}" for n in range(ROWS)])}
    for n in range(COLUMNS):
        values = random.integers(-50, 50, ROWS)
        some = random.random(ROWS) < 0.1
        kind = (pa.float32(), pa.int32(), pa.float64(), pa.int64())[n % 4]
        columns[f"c{n}"] = pa.array(values, kind, mask=some)
    return pa.table(columns)


@pytest.fixture(scope="module")
def fleet(table, tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("long") / "fleet", drives=3, slice_rows=250) as fleet:
        fleet.ingest(table, "wide.t")
        yield fleet


def results(*forms):
    """A list in which the forms take turns, one result per column."""
    return ", ".join(forms[n % len(forms)].format(n=n, m=(n * 7 + 4) % COLUMNS) for n in range(COLUMNS))


LISTS = {
    "sums": (results("sum(c{n})"), ""),
    "kinds of aggregates": (results("sum(c{n}) AS a{n}", "avg(c{n}) AS a{n}", "min(c{n}) AS a{n}", "count(c{n}) AS a{n}", "max(c{n}) - min(c{m}) AS a{n}"), ""),
    "one aggregate over what others compute too": (results("sum(c{n} + 1) AS a{n}", "avg(c{m} + 1) AS a{n}", "stddev(c{m} + 1) AS a{n}"), ""),
    "with a condition": (results("sum(c{n}) AS a{n}", "max(c{n} * 2) AS a{n}"), "WHERE c5 > 3 AND \"Kind\" <> 'k1'"),
    "of some drives' rows": (results("sum(c{n}) AS a{n}", "count(c{n}) AS a{n}"), "WHERE id < 300"),
    "of no rows": (results("sum(c{n}) AS a{n}", "count(c{n}) AS a{n}"), "WHERE id < -1"),
    "by groups": ('"Kind" AS kind, ' + results("sum(c{n}) AS a{n}", "avg(c{n}) + count(c{m}) AS a{n}"), 'GROUP BY "Kind"'),
    "by groups with a condition": ('id % 3 AS g, "Kind" AS kind, ' + results("sum(c{n}) AS a{n}", "min(c{n} - 1) AS a{n}"), 'WHERE c6 IN (1, 2, 3, 4, 5, 6, 7) GROUP BY id % 3, "Kind"'),
    "with conditions of their own": (results("sum(c{n}) FILTER (WHERE c{m} > 0) AS a{n}", "count(*) FILTER (WHERE c{n} < 5) AS a{n}"), "WHERE id > 100"),
    "expressions": ("id, " + results("c{n}", "c{n} + 1 AS a{n}", "CASE WHEN c{n} > c{m} THEN {n} ELSE c{n} END AS a{n}"), "WHERE c7 > 40"),
    "expressions of all rows": ("id, " + results("c{n} * 2 AS a{n}", "c{n} IS NULL AS a{n}"), ""),
    "columns": ("id, " + results("c{n}"), "WHERE id BETWEEN 40 AND 50"),
    "under another name": (results("sum(u.c{n}) AS a{n}", "max(c{n}) AS a{n}"), "AS u WHERE u.c9 < 10"),
}


def rows(answer):
    """The rows, sorted, with floats rounded to what sums in another order agree in."""
    cell = lambda v: (v is None, str(v)) if v is None or isinstance(v, str) else (False, f"{float(v):.6e}")  # noqa:E731
    return sorted(tuple(cell(v) for v in row.values()) for row in answer.to_pylist())


@pytest.mark.parametrize("title", LISTS)
def test_long_lists_equal_duckdb_at_first_and_again(fleet, table, title):
    found, rest = LISTS[title]
    with duckdb.connect() as db:
        db.register("t", table)
        expected = db.sql(f"SELECT {found} FROM t {rest}").to_arrow_table()
    first = fleet.sql(f"SELECT {found} FROM wide.t {rest}").to_arrow()
    assert first.num_columns == expected.num_columns
    assert rows(first) == rows(expected)
    again = fleet.sql(f"SELECT {found} FROM wide.t {rest}").to_arrow()
    assert again.schema == first.schema and rows(again) == rows(first)
    # The same as where drives do as little as they can.
    raw = fleet.sql(f"SELECT {found} FROM wide.t {rest}", cut="raw").to_arrow()
    assert raw.schema == first.schema and rows(raw) == rows(first)


def test_a_condition_of_a_long_list_leaves_slices_out(fleet):
    found, rest = LISTS["of some drives' rows"]
    result = fleet.sql(f"SELECT {found} FROM wide.t {rest}")
    result.to_arrow()
    drives = result.receipt.to_dict()["drives"]
    # Of twelve stripes two have such rows; one drive has planned for all.
    assert sum(drive["slices_pruned"] for drive in drives) == 5 * sum(drive["slices"] for drive in drives) > 0


def test_errors_in_a_long_list_are_named(fleet):
    found = results("sum(c{n}) AS a{n}")
    for wrong, told in ((f"{found}, sum(nix)", "nix"), (f"{found}, c1", "c1"), (f"{found}, sum(c1) AS a3", "a3")):
        with pytest.raises(skytether.SkytetherError, match=told):
            fleet.sql(f"SELECT {wrong} FROM wide.t")
