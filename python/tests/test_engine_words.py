"""Aggregates, windows and operators over values of every type: each is answered, or refused in the words of SQL. No
error names a part of the engine, and none is a defect."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from test_sql_calls import INSIDE

import skytether

#: Parts of the engine's code that only its errors name.
PARTS = ["Accumulator", "accumulator", "ScalarValue", "ColumnarValue", "RecordBatch", "PhysicalExpr", "ExecutionPlan", "ArrayRef", "downcast", "retract_batch", "UDF"]

COLUMNS = {
    "i8": pa.array([1, None, -3, 4], pa.int8()),
    "i64": pa.array([1, 2, None, 4]),
    "u64": pa.array([1, 2**64 - 1, None, 4], pa.uint64()),
    "f32": pa.array([1.5, None, float("nan"), 2], pa.float32()),
    "f64": pa.array([1.5, None, float("inf"), 2]),
    "d9": pa.array([Decimal("1.50"), None, Decimal("2.25"), Decimal("0.00")], pa.decimal128(9, 2)),
    "d38": pa.array([Decimal("9" * 36 + ".99")] * 2 + [None, Decimal("1.00")], pa.decimal128(38, 2)),
    "d76": pa.array([Decimal("9" * 76)] * 2 + [None, Decimal(1)], pa.decimal256(76, 0)),
    "s": pa.array(["a", "", None, "zz"]),
    "b": pa.array([True, None, False, True]),
    "d": pa.array([dt.date(2024, 1, 1), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "ts": pa.array([0, None, 5, 2**62], pa.timestamp("ns")),
    "tz": pa.array([0, None, 5, 2**62], pa.timestamp("us", "UTC")),
    "t": pa.array([0, None, 5, 10**6], pa.time64("us")),
    "du": pa.array([0, None, 5, 2**62], pa.duration("ns")),
    "bin": pa.array([b"a", None, b"", b"\xff"]),
    "fix": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "l": pa.array([[1], None, [], [2, None]]),
    "st": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "y"}]),
    "m": pa.array([[("k", 1)], None, [], [("l", None)]], pa.map_(pa.string(), pa.int64())),
}

AGGREGATES = (
    "approx_distinct approx_median array_agg avg bit_and bit_or bit_xor bool_and bool_or count max median min stddev stddev_pop sum var_pop "
    "var_samp any_value first_value last_value"
).split()

FORMS = [
    *(
        form.replace("FRAME", "OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)").replace("f(", f"{name}(")
        for name in AGGREGATES
        for form in ("f(c)", "f(DISTINCT c) FRAME", "f(c ORDER BY k DESC)")
    ),
    "string_agg(c, ',')", "string_agg(c, ',') OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", "count(DISTINCT c, k)", "corr(c, k)", "nth_value(c, 2)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY c)", "ntile(c) OVER (ORDER BY k)", "lead(c) OVER (ORDER BY k)", "rank() OVER (ORDER BY c)",
    "sum(k) OVER (ORDER BY c RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "-c", "c + c", "c * 2", "c % 2", "c & 1", "c || 'x'", "c LIKE 'x'", "c ~ 'x'", "c < 'x'",
    "c BETWEEN 1 AND 2", "CASE WHEN c THEN 1 END", "NOT c", "c IS TRUE", "unnest(c)", "c[1]", "c['a']", "extract(YEAR FROM c)", "c AT TIME ZONE 'UTC'",
    "c + INTERVAL '1 day'", "character_length(c)", "CAST(c AS INTERVAL)", "CAST(c AS DECIMAL(5, 2))", "CAST(c AS BIGINT[])",
]  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("words"), drives=2, slice_rows=2) as opened:
        opened.ingest(pa.table({"k": range(4), **COLUMNS}), "lab.t")
        yield opened


@pytest.mark.parametrize("column", COLUMNS)
def test_errors_over_a_type_are_in_the_words_of_sql(fleet, column):
    answered = 0
    for form in FORMS:
        asked = re.sub(r"\bc\b", column, form)
        try:
            fleet.sql(f"SELECT {asked} AS x FROM lab.t").to_arrow()
            answered += 1
        except skytether.SkytetherError as e:
            text = str(e)
            assert not [words for words in [*INSIDE, *PARTS] if words in text], f"{asked}: {text}"
            assert not isinstance(e, skytether.InternalError), f"{asked}: {text}"
    assert answered > 10


def test_averages_that_do_not_fit_say_what_to_write(fleet):
    for asked in ("avg(d38)", "avg(DISTINCT d38)", "avg(d38) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"):
        with pytest.raises(skytether.InvalidError, match="avg: the average does not fit .* CAST to a wider DECIMAL, or to DOUBLE"):
            fleet.sql(f"SELECT {asked} AS x FROM lab.t WHERE k < 2").to_arrow()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("string_agg(s, ',') OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", "string_agg over a frame whose beginning moves is not supported: let .*UNBOUNDED"),
        ("sum(DISTINCT f64) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", r"sum\(DISTINCT ...\) over a frame whose beginning moves takes BIGINT alone"),
        ("count(DISTINCT s, k)", r"count\(DISTINCT a, b\) is not supported: count the rows of SELECT DISTINCT"),
    ],
)
def test_aggregates_that_there_are_none_of_say_what_to_write(fleet, asked, says):
    with pytest.raises(skytether.UnsupportedError, match=says):
        fleet.sql(f"SELECT {asked} AS x FROM lab.t").to_arrow()
