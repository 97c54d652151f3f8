"""Ways to ask with SQL: parameters in Python, files and standard input in the shell, what tables there are, and errors
in words that are not the engine's."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import command, rich

import msgexpress
import skytether

ROWS = pa.table(
    {
        "a": [1, 2, 3, None],
        "s": ["x", "y", None, "it's; here"],
        "l": [[1], None, [], [2, 3]],
        "st": [{"p": 1, "q": "x"}] * 4,
        "m": pa.array([decimal.Decimal("1.10")] * 4, pa.decimal128(9, 2)),
        "ts": pa.array([datetime.datetime(2024, 1, n) for n in range(1, 5)], pa.timestamp("us")),
        "d": pa.array([datetime.date(2024, 1, n) for n in range(1, 5)]),
        "b": [b"\x00", b"\x01", None, b""],
        "bo": [True, False, None, True],
    }
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    where = tmp_path_factory.mktemp("sql") / "fleet"
    with skytether.open(where, drives=2) as fleet:
        fleet.ingest(ROWS, "lab.t")
    with msgexpress.open(where) as db:
        db.ingest(rich(), "lab/cells")
    return where


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("embedded"), drives=2) as opened:
        opened.ingest(ROWS, "lab.t")
        opened.ingest(pa.table({"x": pa.array([1.5], pa.float32()), "Big Name": [1]}), "other.Two")
        yield opened


# ---- parameters


@pytest.mark.parametrize(
    ("sql", "params", "due"),
    [
        ("SELECT a FROM lab.t WHERE a > ? ORDER BY a", [1], [2, 3]),
        ("SELECT a FROM lab.t WHERE a > $1 AND s = $2", (1, "y"), [2]),
        ("SELECT a FROM lab.t WHERE a = $2 OR a = $1 ORDER BY a", {1: 1, "$2": 3}, [1, 3]),
        ("SELECT count(*) FROM lab.t WHERE s = ?", ["it's; here"], [1]),
        ("SELECT count(*) FROM lab.t WHERE s IS NOT DISTINCT FROM ?", [None], [1]),
        ("SELECT count(*) FROM lab.t WHERE m = ?", [decimal.Decimal("1.10")], [4]),
        ("SELECT a FROM lab.t WHERE ts = ?", [datetime.datetime(2024, 1, 2)], [2]),
        ("SELECT a FROM lab.t WHERE d = ?", [datetime.date(2024, 1, 3)], [3]),
        ("SELECT a FROM lab.t WHERE ts = ?", [pd.Timestamp("2024-01-01")], [1]),
        ("SELECT a FROM lab.t WHERE b = ?", [b"\x01"], [2]),
        ("SELECT count(*) FROM lab.t WHERE bo = ?", [True], [2]),
        ("SELECT a FROM lab.t WHERE a = ?", [np.int16(2)], [2]),
        ("SELECT a FROM lab.t WHERE a = ?", np.array([3]), [3]),
        ("SELECT a FROM lab.t WHERE a = ?", [pa.scalar(1, pa.uint8())], [1]),
        ("SELECT a FROM lab.t ORDER BY a LIMIT ?", [1], [1]),
        ("SELECT ? + a FROM lab.t WHERE a = 1", [10], [11]),
        ("SELECT count(*) FROM lab.t", [], [4]),
    ],
)
def test_parameters_have_values_of_every_kind(fleet, sql, params, due):
    for cut in ("adaptive", "raw"):
        result = fleet.sql(sql, cut, params=params)
        assert result.to_arrow().column(0).to_pylist() == due
    # A second run has the same values.
    assert pa.table(result).column(0).to_pylist() == due


@pytest.mark.parametrize(
    ("sql", "params", "says"),
    [
        ("SELECT a FROM lab.t WHERE a = ?", None, "has 1 parameters and was given 0"),
        ("SELECT a FROM lab.t WHERE a = ?", [1, 2], "has 1 parameters and was given 2"),
        ("SELECT a FROM lab.t WHERE a = ?", "1", "must be a list"),
        ("SELECT a FROM lab.t WHERE a = ?", 1, r"must be a list .*\[1\]"),
        ("SELECT a FROM lab.t WHERE a = ?", [object()], r"parameter \$1 is a object"),
        ("SELECT a FROM lab.t WHERE a = $1", {"name": 1}, "have numbers and no names"),
        ("SELECT a FROM lab.t WHERE a = $2", {2: 1}, r"parameter \$1 has no value"),
    ],
)
def test_wrong_parameters_say_what_is_wrong(fleet, sql, params, says):
    with pytest.raises(skytether.InvalidError, match=says):
        fleet.sql(sql, params=params).to_arrow()


# ---- what tables there are


def test_information_schema_shows_tables_and_columns(fleet):
    ask = lambda sql: fleet.sql(sql).to_arrow().to_pylist()
    assert ask("SELECT table_catalog AS c, table_schema AS s, table_name AS t, table_type AS k FROM information_schema.tables ORDER BY 1") == [
        {"c": "lab", "s": "t", "t": "data", "k": "BASE TABLE"},
        {"c": "other", "s": "Two", "t": "data", "k": "BASE TABLE"},
    ]
    columns = ask("SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_schema = 't' ORDER BY ordinal_position")
    assert [c["column_name"] for c in columns] == ROWS.column_names and columns[0]["data_type"] == "Int64" and {c["is_nullable"] for c in columns} == {"YES"}
    (decimals,) = ask("SELECT numeric_precision AS p, numeric_scale AS s FROM information_schema.columns WHERE column_name = 'm'")
    assert decimals == {"p": 9, "s": 2}
    assert ask("SELECT schema_name FROM information_schema.schemata ORDER BY 1") == [{"schema_name": "Two"}, {"schema_name": "t"}]
    assert ask("SELECT table_schema FROM other.information_schema.tables") == [{"table_schema": "Two"}]
    # It is joined and aggregated as any table is, also with ones on the drives.
    assert ask("SELECT t.table_catalog AS c, count(*) AS n FROM information_schema.tables t JOIN information_schema.columns USING (table_catalog, table_schema) GROUP BY 1 ORDER BY 1") == [
        {"c": "lab", "n": 9},
        {"c": "other", "n": 2},
    ]
    assert ask("SELECT count(*) AS n FROM lab.t, information_schema.tables") == [{"n": 8}]
    assert ask("SELECT table_name FROM information_schema.tables WHERE false") == []


def test_information_schema_shows_the_forms_of_a_matrix(place):
    with skytether.open(place) as fleet:
        kinds = fleet.sql("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'cells'").to_pandas()
        kinds = dict(zip(kinds["table_name"], kinds["table_type"]))
        assert {"x": "VIEW", "x_rows": "VIEW", "obs": "BASE TABLE", "var": "BASE TABLE", "cells": "BASE TABLE"} == kinds
        views = fleet.sql("SELECT table_name FROM information_schema.views ORDER BY 1").to_pandas()["table_name"].tolist()
        assert views == ["x", "x_rows"]
        names = fleet.sql("SELECT column_name FROM information_schema.columns WHERE table_name = 'x' ORDER BY ordinal_position").to_pandas()["column_name"].tolist()
        assert names == ["gene", "cell", "value"]


# ---- the shell


def test_queries_come_from_a_file_or_standard_input(place, tmp_path):
    text = "-- two queries; with a comment\nSELECT a FROM lab.t WHERE s = 'it''s; here' OR a = 1 ORDER BY a;\nSELECT count(*) AS n FROM lab.t;\n"
    (tmp_path / "q.sql").write_text("\ufeff" + text)
    done = command("sql", "-f", tmp_path / "q.sql", "--format", "csv", "--fleet", place, module="skytether._cli")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("a\n1\n") and done.stdout.endswith("n\n4\n"), done
    program = [sys.executable, "-m", "skytether._cli", "sql", "--format", "csv", "--fleet", str(place)]
    for more in (["-"], [], ["-f", "-"]):
        piped = subprocess.run([*program, *more], input=text, capture_output=True, text=True, timeout=120)
        assert (piped.returncode, piped.stdout) == (0, done.stdout), piped


def test_a_file_ends_at_the_first_wrong_query(place, tmp_path):
    (tmp_path / "q.sql").write_text("SELECT 1 AS one; SELECT nope FROM lab.t; SELECT 3 AS three")
    done = command("sql", "-f", tmp_path / "q.sql", "--format", "csv", "--fleet", place, module="skytether._cli")
    assert done.returncode == 1 and done.stdout == "one\n1\n" and "query 2 of 3: " in done.stderr and "nope" in done.stderr
    for content, status, says in ((b" -- nothing\n;", 2, "no query"), (b"SELECT '\xff'", 1, "no text in UTF-8")):
        (tmp_path / "q.sql").write_bytes(content)
        done = command("sql", "-f", tmp_path / "q.sql", "--fleet", place, module="skytether._cli")
        assert done.returncode == status and says in done.stderr, done
    done = command("sql", "-f", tmp_path / "none.sql", "--fleet", place, module="skytether._cli")
    assert done.returncode == 1 and "none.sql" in done.stderr


def test_describe_shows_columns_and_tables(place):
    def describe(*words):
        done = command("describe", *words, "--fleet", place, module="skytether._cli")
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = describe("lab.t")
    assert shown.startswith("lab.t: 4 rows, 9 columns\n") and "Decimal128(9, 2)" in shown and "column" in shown
    about = json.loads(describe("lab.t", "--format", "json"))
    assert (about["kind"], about["rows"]) == ("table", 4) and [c["name"] for c in about["columns"]] == ROWS.column_names
    assert "lab.cells.obs" in describe("lab.cells") and "shell" not in describe("lab.cells")
    assert "type" in describe("lab.cells.obs") and "value" in describe('lab."cells".x')
    missing = command("describe", "lab.tt", "--fleet", place, module="skytether._cli")
    assert missing.returncode == 1 and "did you mean" in missing.stderr


# ---- errors

#: What no error may say: names of the engine and of its parts, dumps of its structures, requests of its authors.
INSIDE = [
    "DataFusion", "datafusion", "github.com", "bug report", "Internal error", "internal error", "Error during planning", "Execution error", "Schema error",
    "LogicalPlan", "logical plan", "physical plan", "logical expression", "Ident {", "Column {", "Field {", "Some(", "TypeSignature", "OneOf(", "Exact(",
    "TableScan", "Optimizer rule", "ast node", "subquery: <", "regex_match_dyn", "__correlated",
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "kind", "says"),
    [
        ("SELECT EXISTS (SELECT 1 FROM lab.t u WHERE u.a = t.a) FROM lab.t t", None, "subquery"),
        ("SELECT a, (SELECT max(u.a) FROM lab.t u WHERE u.a < t.a) FROM lab.t t", None, "subquery"),
        ("SELECT * FROM lab.t t, LATERAL (SELECT * FROM lab.t u WHERE u.a < t.a LIMIT 1) x", skytether.UnsupportedError, "subquery"),
        ("SELECT a BETWEEN l AND s FROM lab.t", skytether.InvalidError, "BETWEEN"),
        ("SELECT s ~ '[' FROM lab.t", skytether.InvalidError, "no regular expression: unclosed character class"),
        ("SELECT regexp_replace(s, '[', 'x') FROM lab.t", skytether.InvalidError, "no regular expression"),
        ("SELECT substr(a) FROM lab.t", None, ""),
        ("SELECT * FROM lab.t t LEFT JOIN lab.t u ON t.a = u.a AND EXISTS (SELECT 1 FROM lab.t v WHERE v.a = u.a)", None, "subquery"),
        ("SELECT TOP 1 a FROM lab.t", skytether.UnsupportedError, "TOP is not supported"),
        ("SELECT sum(unnest(l)) FROM lab.t", skytether.UnsupportedError, "unnest"),
        ("SELECT a FROM lab.t WHERE unnest(l) = 1", skytether.UnsupportedError, "unnest"),
        ("SELECT a INTO x FROM lab.t", skytether.UnsupportedError, "leave INTO out"),
        ("SELECT * FROM lab.t PIVOT (sum(a) FOR s IN ('x'))", skytether.UnsupportedError, "PIVOT"),
        ("SELECT sqrt(s) FROM lab.t", skytether.InvalidError, r"sqrt does not take arguments of these types: sqrt\(Utf8"),
        ("SELECT date_bin('1 day', a) FROM lab.t", skytether.InvalidError, "date_bin does not take"),
        ("SELECT to_char(a, '%Y') FROM lab.t", skytether.InvalidError, "to_char does not take"),
        ("SELECT power(s, 2) FROM lab.t", skytether.InvalidError, "power does not take"),
        ("SELECT a[1] FROM lab.t", skytether.InvalidError, "array_element does not take"),
        ("SELECT array_concat(l, a) FROM lab.t", skytether.InvalidError, "array_concat does not take"),
        ("SELECT make_array(1, 'x', l) FROM lab.t", skytether.InvalidError, "make_array does not take"),
        ("SELECT ts + ts FROM lab.t", skytether.InvalidError, ""),
        ("SELECT sum(a, a, a) FROM lab.t", skytether.InvalidError, "sum takes 1 argument, not 3"),
        ("SELECT nofunc(a) FROM lab.t", skytether.InvalidError, "nofunc"),
        ("SELECT nope FROM lab.t", skytether.InvalidError, "nope"),
        ("SELEC 1", skytether.InvalidError, "no SQL"),
    ],
)
def test_errors_are_in_the_words_of_sql(fleet, sql, kind, says):
    """Some of these the engine takes for defects of its own, and asks for reports at its tracker."""
    for cut in ("adaptive", "raw"):
        try:
            fleet.sql(sql, cut).to_arrow()
        except skytether.SkytetherError as e:
            error = e
        else:
            assert kind is None, f"{sql} was answered"
            continue
        text = str(error)
        assert not [words for words in INSIDE if words in text], text
        assert re.search(says, text), text
        assert kind is None or isinstance(error, kind), text
        assert not isinstance(error, skytether.InternalError), text
