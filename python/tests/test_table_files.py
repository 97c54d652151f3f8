"""Files of everyday tools: months whose columns drift, hive directories, CSV and JSON as people have them, times that
nanoseconds don't hold, columns of other libraries that Arrow does not know, and nesting up to the limit."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import subprocess
import sys
import warnings

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import skytether
from skytether.errors import CorruptError, ExhaustedError, InvalidError, SkytetherError, UnsupportedError


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("fleet"), drives=2, slice_rows=3) as opened:
        yield opened


def read(fleet, sql: str) -> list[tuple]:
    return [tuple(row.values()) for row in fleet.sql(sql).to_arrow().to_pylist()]


# --- times of 96 bits ---


def int96(path, *times: dt.datetime | None, unit: str = "us", name: str = "t"):
    table = pa.table({name: pa.array(times, pa.timestamp(unit)), "n": range(len(times))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"
    return path


# docs/sql.md: Parquet's INT96
def test_int96_beyond_nanoseconds_keeps_its_day(fleet, tmp_path):
    times = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), None, dt.datetime(2024, 2, 29, 12)]
    fleet.ingest(int96(tmp_path / "t.parquet", *times), "int96.far")
    found = fleet.sql("SELECT t FROM int96.far ORDER BY n").to_arrow()
    assert found.schema.field("t").type == pa.timestamp("us") and found["t"].to_pylist() == times
    assert read(fleet, "SELECT min(t), max(t), count(t) FROM int96.far") == [(times[1], times[0], 3)]


def test_int96_within_nanoseconds_keeps_them(fleet, tmp_path):
    table = pa.table({"t": pa.array([1, -1, 2**62], pa.timestamp("ns")), "n": [0, 1, 2]})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    fleet.ingest(tmp_path / "t.parquet", "int96.near")
    found = fleet.sql("SELECT t FROM int96.near ORDER BY n").to_arrow()["t"]
    assert found.type == pa.timestamp("ns") and found.cast(pa.int64()).to_pylist() == [1, -1, 2**62]


def test_int96_of_several_files_has_one_unit(fleet, tmp_path):
    int96(tmp_path / "1.parquet", dt.datetime(2024, 1, 1))
    int96(tmp_path / "2.parquet", dt.datetime(9999, 12, 31), None)
    fleet.ingest(tmp_path, "int96.two")
    assert read(fleet, "SELECT min(t), max(t) FROM int96.two") == [(dt.datetime(2024, 1, 1), dt.datetime(9999, 12, 31))]


# docs/sql.md: Parquet's INT96
def test_int96_that_no_unit_holds_is_refused_by_row(fleet, tmp_path):
    near = pa.table({"t": pa.array([1], pa.timestamp("ns")), "n": [0]})
    pq.write_table(near, tmp_path / "1.parquet", use_deprecated_int96_timestamps=True)
    int96(tmp_path / "2.parquet", dt.datetime(9999, 12, 31))
    with pytest.raises(InvalidError, match=r'2\.parquet: column "t": no unit of time .*1\.parquet'):
        fleet.ingest(tmp_path, "int96.none")


def test_int96_within_lists_and_structs(fleet, tmp_path):
    far = dt.datetime(9999, 12, 31)
    of = pa.struct([("when", pa.list_(pa.timestamp("us"))), ("n", pa.int64())])
    table = pa.table({"s": pa.array([{"when": [far, None], "n": 1}, None, {"when": [], "n": 2}], of)})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    fleet.ingest(tmp_path / "t.parquet", "int96.deep")
    assert read(fleet, "SELECT s['when'][1] FROM int96.deep WHERE s['n'] = 1") == [(far,)]


# docs/sql.md: intervals of any unit, unions, structs without a field
def test_intervals_are_refused_with_what_to_write(fleet, tmp_path):
    """pyarrow, pandas and Polars read no intervals of days and milliseconds, and DuckDB reads them wrongly."""
    import duckdb

    path = tmp_path / "t.parquet"
    for intervals in ("(INTERVAL 2 DAY)", "(INTERVAL 3 MONTH)", "(INTERVAL '1 month 2 days')"):
        duckdb.execute(f"COPY (SELECT * FROM (VALUES {intervals}) v(iv)) TO '{path}'")
        with pytest.raises(UnsupportedError, match='column "iv" of .*Interval.*columns of months, days and milliseconds'):
            fleet.ingest(path, "int96.interval")


# --- nesting ---


def nested(kind: str, levels: int) -> tuple[pa.DataType, object]:
    of, value = pa.int64(), 1
    for at in range(levels):
        if kind == "list":
            of, value = pa.list_(of), [value]
        elif kind == "struct":
            of, value = pa.struct([("a", of)]), {"a": value}
        elif kind == "map":
            of, value = pa.map_(pa.string(), of), [("k", value)]
        else:
            of, value = (pa.struct([("a", of)]), {"a": value}) if at % 2 else (pa.list_(of), [value])
    return of, value


#: Levels that are stored: a map counts as two.
DEEPEST = {"list": 32, "struct": 32, "map": 16, "both": 32}


# JSON has no maps.
@pytest.mark.parametrize(("kind", "source"), [(k, s) for k in DEEPEST for s in ("memory", "Parquet", "Arrow", "JSON") if (k, s) != ("map", "JSON")])
def test_nesting_is_stored_to_the_limit_and_refused_beyond(fleet, tmp_path, kind, source):
    def given(levels: int):
        of, value = nested(kind, levels)
        table = pa.table({"k": [1, 2], "deep": pa.array([value, None], of)})
        path = tmp_path / f"t.{ {'Parquet': 'parquet', 'Arrow': 'arrow'}.get(source, 'jsonl') }"
        if source == "memory":
            return table
        if source == "Parquet":
            pq.write_table(table, path)
        elif source == "Arrow":
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in [{"k": 1, "deep": value}, {"k": 2}]))
        return path

    fleet.ingest(given(DEEPEST[kind]), "deep.at", replace=True)
    for cut in ("adaptive", "full", "raw"):
        for sql in (
            "SELECT deep FROM deep.at WHERE k = 1", "SELECT b.deep FROM deep.at a JOIN deep.at b ON a.k = b.k JOIN deep.at c ON b.k = c.k WHERE c.k = 1",
            "SELECT first_value(deep ORDER BY k) FROM deep.at WHERE deep IS NOT NULL GROUP BY k",
        ):  # fmt: skip
            assert fleet.sql(sql, cut=cut).to_arrow().num_rows == 1
    with pytest.raises(UnsupportedError, match='"deep" of deep.beyond is nested (33|34) levels deep, and at most 32'):
        fleet.ingest(given(DEEPEST[kind] + 1), "deep.beyond")
    assert "deep.beyond" not in [d["name"] for d in fleet.ls()]


# --- months that drift ---


def month(**columns) -> pa.Table:
    base = {"id": pa.array([1, 2], pa.int64()), "at": pa.array([0, 10**6], pa.timestamp("us")), "count": pa.array([1.0, None]), "fee": pa.array([0.5, 1.25])}
    return pa.table({**base, **columns})


DRIFT = {
    "a narrower integer": (month(id=pa.array([3, 4], pa.int32())), "id", pa.int64()),
    "integers that were floats": (month(count=pa.array([1, None], pa.int64())), "count", pa.float64()),
    "another unit of time": (month(at=pa.array([0, 10**9], pa.timestamp("ns"))), "at", pa.timestamp("ns")),
    "a column more": (month(extra=["x", None]), "extra", pa.string()),
    "a column less": (month().drop_columns("fee"), "fee", pa.float64()),
    "another case": (month().rename_columns(["id", "at", "count", "Fee"]), "fee", pa.float64()),
    "unsigned integers": (month(id=pa.array([3, 2**64 - 1], pa.uint64())), "id", pa.decimal128(20, 0)),
    "decimals": (month(id=pa.array([decimal.Decimal("1.25"), None])), "id", pa.decimal128(21, 2)),
}


@pytest.mark.parametrize("what", DRIFT)
def test_a_union_takes_months_that_drift_and_strict_does_not(fleet, tmp_path, what):
    other, column, of = DRIFT[what]
    pq.write_table(month(), tmp_path / "1.parquet")
    pq.write_table(other, tmp_path / "2.parquet")
    with pytest.raises(InvalidError, match=r'2\.parquet has other columns than .*1\.parquet: .*schema="union"'):
        fleet.ingest(tmp_path, "drift.strict")
    with pytest.warns(UserWarning, match="widened|null there|case of letters"):
        fleet.ingest(tmp_path, "drift.months", replace=True, schema="union")
    found = fleet.sql("SELECT * FROM drift.months").to_arrow()
    assert found.num_rows == 4 and found.schema.field(column).type == of
    name = column if column in other.column_names else "Fee"
    given = [*(month()[column].to_pylist() if column in month().column_names else [None, None]), *(other[name].to_pylist() if name in other.column_names else [None, None])]
    assert sorted(map(str, found[column].to_pylist())) == sorted(str(pa.scalar(v, of).as_py()) for v in given)


def test_order_and_columns_without_a_type_are_taken_strictly(fleet, tmp_path):
    pq.write_table(month(), tmp_path / "1.parquet")
    pq.write_table(month(fee=pa.nulls(2)).select(["fee", "count", "at", "id"]), tmp_path / "2.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fleet.ingest(tmp_path, "drift.order", replace=True)
    assert read(fleet, "SELECT sum(id), sum(fee), count(*) FROM drift.order") == [(6, 1.75, 4)]


def test_values_that_the_common_type_does_not_hold_are_refused(fleet, tmp_path):
    pq.write_table(month(), tmp_path / "1.parquet")
    for name, column in (("count", pa.array([2**53, 2**53 + 1], pa.int64())), ("at", pa.array([0, 1], pa.timestamp("ns")))):
        pq.write_table(month(**{name: column}), tmp_path / "2.parquet")
        if name == "at":
            pq.write_table(month(at=pa.array([0, 253_402_214_400_000_000], pa.timestamp("us"))), tmp_path / "1.parquet")
        with pytest.raises(InvalidError, match=rf'\.parquet: column "{name}", row 2: .* does not fit'):
            fleet.ingest(tmp_path, "drift.none", schema="union")
    pq.write_table(month(id=["x", "y"]), tmp_path / "2.parquet")
    with pytest.raises(InvalidError, match='column "id" is Utf8, and Int64 in other files: no type holds both'):
        fleet.ingest(tmp_path, "drift.none", schema="union")


def test_structs_and_lists_drift_too(fleet, tmp_path):
    pq.write_table(pa.table({"s": pa.array([{"a": 1, "l": [1]}], pa.struct([("a", pa.int32()), ("l", pa.list_(pa.int32()))]))}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"s": pa.array([{"l": [2**40], "b": "x"}], pa.struct([("l", pa.large_list(pa.int64())), ("b", pa.string())]))}), tmp_path / "2.parquet")
    with pytest.warns(UserWarning, match="widened"):
        fleet.ingest(tmp_path, "drift.deep", schema="union")
    found = fleet.sql("SELECT s FROM drift.deep").to_arrow()["s"].to_pylist()
    assert sorted(found, key=str) == sorted([{"a": 1, "l": [1], "b": None}, {"a": None, "l": [2**40], "b": "x"}], key=str)


# --- hive ---


def hive(tmp_path):
    for year, city in ((2023, "S%C3%A3o Paulo"), (2024, "__HIVE_DEFAULT_PARTITION__")):
        place = tmp_path / f"year={year}" / f"city={city}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"n": [year]}), place / "part-0.parquet")


@pytest.mark.parametrize("how", ["", "**/*.parquet", "year=*/*/part-0.parquet"])
def test_hive_directories_become_columns(fleet, tmp_path, how):
    hive(tmp_path)
    fleet.ingest(tmp_path / how, "hive.t", replace=True)
    assert read(fleet, "SELECT n, year, city FROM hive.t ORDER BY n") == [(2023, 2023, "São Paulo"), (2024, 2024, None)]
    assert read(fleet, "SELECT n FROM hive.t WHERE year = 2024") == [(2024,)]


def test_hive_directories_may_be_left_out_or_typed(fleet, tmp_path):
    hive(tmp_path)
    fleet.ingest(tmp_path, "hive.out", hive=False)
    assert fleet.sql("SELECT * FROM hive.out").to_arrow().column_names == ["n"]
    fleet.ingest(tmp_path, "hive.text", types={"year": "text"})
    assert read(fleet, "SELECT year FROM hive.text WHERE n = 2023") == [("2023",)]
    pq.write_table(pa.table({"n": [1]}), tmp_path / "stray.parquet")
    with pytest.raises(InvalidError, match=r'stray\.parquet is in no directory called "year=\.\.\."'):
        fleet.ingest(tmp_path, "hive.stray")


@pytest.mark.parametrize("schema", ["strict", "union"])
def test_own_column_and_directory_agree_or_are_refused(fleet, tmp_path, schema):
    for at, value in enumerate([7, 7, 1]):
        (tmp_path / f"{at}" / "n=7").mkdir(parents=True)
        pq.write_table(pa.table({"n": [7, value]}), tmp_path / f"{at}" / "n=7" / "t.parquet")
    fleet.ingest(tmp_path / "0", "hive.own", replace=True, schema=schema)
    assert read(fleet, "SELECT * FROM hive.own") == [(7,), (7,)]
    with pytest.raises(InvalidError, match=r't\.parquet: column "n", row 2, is "1", and its directory says "n=7".*hive=False'):
        fleet.ingest(tmp_path / "2", "hive.differs", schema=schema)
    fleet.ingest(tmp_path / "2", "hive.own", replace=True, schema=schema, hive=False)
    assert sorted(read(fleet, "SELECT * FROM hive.own")) == [(1,), (7,)]


@pytest.mark.parametrize(("values", "of"), [((2020, 2021), pa.int32()), (("x", "2021"), pa.string()), ((dt.date(2020, 1, 1), dt.date(2021, 1, 1)), pa.date32())])
def test_a_union_fills_own_columns_from_directories(fleet, tmp_path, values, of):
    for value in values:
        (tmp_path / f"y={value}").mkdir()
    pq.write_table(pa.table({"y": pa.array([values[0]], of), "n": [1]}), tmp_path / f"y={values[0]}" / "t.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / f"y={values[1]}" / "t.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fleet.ingest(tmp_path, "hive.filled", replace=True, schema="union")
    found = fleet.sql("SELECT y, n FROM hive.filled ORDER BY n").to_arrow()
    assert found.schema.field("y").type == of and found["y"].to_pylist() == list(values)


def test_a_directory_of_another_type_than_the_column(fleet, tmp_path):
    for name in ("y=1", "y=x"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({"y": [1], "n": [1]}), tmp_path / "y=1" / "t.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "y=x" / "t.parquet")
    with pytest.raises(InvalidError, match=r't\.parquet: the directory "y=x" is not of the type Int64'):
        fleet.ingest(tmp_path, "hive.misfit", schema="union")


def test_a_union_takes_keys_in_any_case_for_one_column(fleet, tmp_path):
    for name in ("Y=1", "y=2"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({"y": [1], "n": [1]}), tmp_path / "Y=1" / "t.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "y=2" / "t.parquet")
    fleet.ingest(tmp_path, "hive.cases", schema="union")
    assert read(fleet, "SELECT * FROM hive.cases ORDER BY n") == [(1, 1), (2, 2)]


def test_directories_are_read_at_any_depth(fleet, tmp_path):
    for at, name in enumerate(["m", "z/m", "z/deeper/m", "_aside/m", ".git/m", "z/_m"]):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [at]}), path)
    fleet.ingest(tmp_path, "files.deep", replace=True)
    assert read(fleet, "SELECT n FROM files.deep ORDER BY n") == [(0,), (1,), (2,)]
    (tmp_path / "y=1").mkdir()
    pq.write_table(pa.table({"n": [7]}), tmp_path / "y=1" / "m.parquet")
    # Some are in no such directory.
    with pytest.raises(InvalidError, match=r'm\.parquet is in no directory called "y=\.\.\."'):
        fleet.ingest(tmp_path, "files.deep", replace=True)
    fleet.ingest(tmp_path, "files.deep", replace=True, hive=False)
    assert read(fleet, "SELECT count(*) FROM files.deep") == [(4,)]


# --- separated values ---


CSV = {
    # docs/sql.md: `delimiter=";"`
    "semicolons": ("a;b\n1,5;x\n", {"delimiter": ";"}, {"a": ["1,5"], "b": ["x"]}),
    "pipes in a .txt": ("a|b\n1|x\n", {"delimiter": "|"}, {"a": [1], "b": ["x"]}),
    "tabs by name": ("a\tb\n1\tx\n", {"delimiter": "tab"}, {"a": [1], "b": ["x"]}),
    # docs/sql.md: `header=False`
    "no header": ("1,x\n2,y\n", {"header": False}, {"column_1": [1, 2], "column_2": ["x", "y"]}),
    "one column without a header": ("1\n\n3\n", {"header": False}, {"column_1": [1, None, 3]}),
    # docs/sql.md: `quote="'"`
    "another quote": ("a,b\n'x, y','it''s'\n", {"quote": "'"}, {"a": ["x, y"], "b": ["it's"]}),
    "no quote": ('a,b\n"x,5" pipe\n', {"quote": ""}, {"a": ['"x'], "b": ['5" pipe']}),
    # docs/sql.md: `null=["NA"]`
    "a text for null": ("a,b\n1,NA\nNA,y\n", {"null": "NA"}, {"a": [1, None], "b": [None, "y"]}),
    "texts for null": ("a\n1\nNA\n.\n-\n", {"null": ["NA", ".", "-"]}, {"a": [1, None, None, None]}),
    # docs/sql.md: `types={"zip": "text"}`
    "types": ("zip,p,d\n00501,1.50,2024-02-29\n", {"types": {"zip": "text", "p": "decimal(10,2)", "d": "text"}}, {"zip": ["00501"], "p": [decimal.Decimal("1.50")], "d": ["2024-02-29"]}),
    "a narrow type": ("n,f\n7,1.5\n", {"types": {"n": "int8", "f": "float32"}}, {"n": [7], "f": [1.5]}),
    # docs/sql.md: `all_text=True`
    "all text": ("a,b\n1,\n2,3\n", {"all_text": True}, {"a": ["1", "2"], "b": [None, "3"]}),
    "all text but one": ("a,b\n1,7\n", {"all_text": True, "types": {"b": "int64"}}, {"a": ["1"], "b": [7]}),
    "spaces around numbers": ("a, b,c\n 1, 2.5 , x\n3,4, y\n", {}, {"a": [1, 3], " b": [2.5, 4.0], "c": [" x", " y"]}),
    "numbers beyond a double": ("a\n1e400\n1\n", {}, {"a": ["1e400", "1"]}),
    "numbers below a double": ("a\n1e-400\n1\n", {}, {"a": ["1e-400", "1"]}),
    "a leap second": ("a\n2016-12-31T23:59:60Z\n2016-12-31T23:59:59Z\n", {}, {"a": ["2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"]}),
    "ten digits of a second": ("a\n2020-01-01 10:00:00.1234567890\n2020-01-01 10:00:00.123456789\n", {}, {"a": ["2020-01-01 10:00:00.1234567890", "2020-01-01 10:00:00.123456789"]}),
    "a date that is a time": ("a\n2024-02-29\n", {"types": {"a": "timestamp"}}, {"a": [dt.datetime(2024, 2, 29)]}),
}


@pytest.mark.parametrize("what", CSV)
def test_separated_values_are_read_as_they_are_said_to_be(fleet, tmp_path, what):
    text, options, wanted = CSV[what]
    path = tmp_path / ("t.txt" if ".txt" in what else "t.csv")
    path.write_text(text, encoding="utf-8")
    fleet.ingest(path, "csv.t", replace=True, **options)
    found = fleet.sql("SELECT * FROM csv.t").to_arrow()
    assert found.column_names == list(wanted)
    assert sorted(zip(*found.to_pydict().values()), key=str) == sorted(zip(*wanted.values()), key=str)
    if what == "a narrow type":
        assert [str(f.type) for f in found.schema] == ["int8", "float"]


REFUSED = {
    "a decimal with more digits": ("p\n1.5\n1.555\n", {"types": {"p": "decimal(10,2)"}}, r"line 3 does not fit: .*'1\.555'"),
    "a word for an integer": ("a,n\nx,1\ny,z\n", {"types": {"n": "int64"}}, "line 3 does not fit"),
    "a number beyond a float": ("f\n1\n1e39\n", {"types": {"f": "float32"}}, 'line 3 does not fit: column "f"'),
    "a number beyond an integer": ("n\n300\n", {"types": {"n": "int8"}}, "line 2 does not fit"),
    "a column that is not there": ("a\n1\n", {"types": {"b": "text"}}, '"b", which is not there: the columns are a'),
    "a type that is not known": ("a\n1\n", {"types": {"a": "complex"}}, "there is no type"),
    "a delimiter of two characters": ("a\n1\n", {"delimiter": "||"}, "not one character"),
    "a delimiter that is the quote": ("a\n1\n", {"delimiter": '"'}, "the same character"),
    "a mode that is not known": ("a\n1\n", {"schema": "merge"}, "strict or union"),
    "a time for a date": ("d\n2020-01-01\n2020-01-01T00:00:00+02:00\n", {"types": {"d": "date"}}, 'line 3 does not fit: column "d" has more than a day'),
    "a number for a time": ("d\n45000\n", {"types": {"d": "time"}}, 'line 2 does not fit: column "d" has no time of day'),
    "a leap second": ("d\n23:59:59\n23:59:60\n", {"types": {"d": "time"}}, "line 3 does not fit: .*a leap second"),
    "picoseconds": ("d\n10:00:00.123456789012\n", {"types": {"d": "time"}}, "line 2 does not fit: .*more digits than nanoseconds"),
    "a timestamp of ten digits": ("d\n2020-01-01T10:00:00.123456789\n2020-01-01T10:00:00.1234567890\n", {"types": {"d": "timestamp"}}, "line 3 does not fit: .*more digits"),
    "a number below a double": ("f\n1e-400\n", {"types": {"f": "float64"}}, "line 2 does not fit: .*below the floats"),
    "a day that is none": ("d\n2024-02-29 10:00:00\n2024-02-30 10:00:00\n", {}, r"""line 3 does not fit: error parsing timestamp from '2024-02-30 10:00:00'.* for column "d".*types=\{"d": "text"\}"""),
    "an unclosed quote before a separator": ('a,b\n1,"x\n2,y\n', {}, 'line 2 opens a quote that is never closed.*quote=""'),
    "other separators": ("a;b\n1,5;2,5\n", {}, 'separated by .;.: say so .delimiter=";"'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_separated_values_that_do_not_fit_are_refused(fleet, tmp_path, what):
    text, options, says = REFUSED[what]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidError, match=says):
        fleet.ingest(tmp_path / "t.csv", "csv.refused", **options)


def test_another_separator_is_hinted_at(fleet, tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n")
    with pytest.warns(UserWarning, match='separated by .;.: say so .delimiter=";"'):
        fleet.ingest(tmp_path / "t.csv", "csv.hinted")


def test_options_of_files_are_refused_where_they_mean_nothing(fleet, tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(InvalidError, match="none of the files is one"):
        fleet.ingest(tmp_path / "t.parquet", "csv.no", delimiter=";")
    with pytest.raises(InvalidError, match="has its type from its file"):
        fleet.ingest(tmp_path / "t.parquet", "csv.no", types={"a": "text"})
    with pytest.raises(InvalidError, match="delimiter, schema can only be said of files"):
        fleet.ingest(pa.table({"a": [1]}), "csv.no", delimiter=";", schema="union")


@pytest.mark.parametrize("option", [{"types": {"a": int}}, {"types": ["a"]}, {"types": {1: "text"}}, {"null": 7}, {"null": [7]}, {"header": 0}, {"delimiter": 1}, {"hive": "no"}])
def test_options_of_another_type_are_refused_with_theirs(fleet, tmp_path, option):
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InvalidError, match=rf"^{next(iter(option))}=.*: give (a |True)"):
        fleet.ingest(tmp_path / "t.csv", "csv.options", **option)


# --- JSON ---


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_a_table(fleet, tmp_path, indent):
    rows = [{"a": 1, "s": "],[{\"", "l": [[1], []]}, {"a": None, "o": {"x": 2**60}}]
    (tmp_path / "t.json").write_text(json.dumps(rows, indent=indent))
    fleet.ingest(tmp_path / "t.json", "json.array", replace=True)
    assert read(fleet, "SELECT a, s, l, o FROM json.array ORDER BY a") == [(1, '],[{"', [[1], []], None), (None, None, None, {"x": 2**60})]


@pytest.mark.parametrize("rows", ['{"a": -0}\n{"a": 9007199254740993}\n', '[{"a": [-0, 9007199254740993]}]'])
def test_a_zero_with_a_sign_makes_no_doubles(fleet, tmp_path, rows):
    (tmp_path / "t.json").write_text(rows)
    fleet.ingest(tmp_path / "t.json", "json.zero", replace=True)
    found = fleet.sql("SELECT a FROM json.zero").to_arrow()["a"].to_pylist()
    assert sorted(found[0] if isinstance(found[0], list) else found) == [0, 9007199254740993]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ('{"a": 1}\n{"a": 1e999}\n', r"t\.json: line 2, column 11: a number is beyond doubles: write it as text, in quotes$"),
        ('[{"a": 1}, {"a": 1e999}]', r"t\.json: element 2: a number is beyond doubles"),
        ('{"a": 1}\n{"a": x}\n', r"t\.json: line 2 is no JSON object: expected value, column 7$"),
    ],
)
def test_json_that_can_not_be_read_names_one_place(fleet, tmp_path, rows, says):
    (tmp_path / "t.json").write_text(rows)
    with pytest.raises(InvalidError, match=says):
        fleet.ingest(tmp_path / "t.json", "json.wrong")


def test_wrong_elements_of_a_json_array_are_named(fleet, tmp_path):
    for text, says in (('[{"a": 1}, 2]', "element 2 is no JSON object"), ('[{"a": 1}', "within element 1"), ('[{"a": 1}, {"a": [1]}]', 'element 2 does not fit: "a" is a list .* element 1')):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(InvalidError, match=says):
            fleet.ingest(tmp_path / "t.json", "json.wrong")


# --- other libraries' columns and exceptions ---


# docs/sql.md: integers of 128 bits
def test_polars_columns_without_a_type_and_of_128_bits(fleet):
    frame = pl.DataFrame(
        {
            "n": [1, 2, 3], "none": [None, None, None], "big": pl.Series([2**100, None, -1], dtype=pl.Int128), "deep": [[None], None, []],
            "s": [{"x": None}, None, {"x": None}],
        }
    )  # fmt: skip
    fleet.ingest(frame, "polars.odd")
    assert read(fleet, "SELECT none, big, deep, s FROM polars.odd ORDER BY n") == [
        (None, decimal.Decimal(2**100), [None], {"x": None}), (None, None, None, None), (None, decimal.Decimal(-1), [], {"x": None}),
    ]  # fmt: skip


# docs/sql.md: integers of 128 bits
def test_integers_of_128_bits_that_do_not_fit_are_refused(fleet, tmp_path):
    frame = pl.DataFrame({"big": pl.Series([2**127 - 1], dtype=pl.Int128)})
    with pytest.raises(InvalidError, match="column 'big' of the data frame") as caught:
        fleet.ingest(frame, "polars.big")
    assert isinstance(caught.value.__cause__, pl.exceptions.PolarsError)
    frame.write_parquet(tmp_path / "t.parquet")
    with pytest.raises(SkytetherError, match='column "big" has integers of 128 bits'):
        fleet.ingest(tmp_path / "t.parquet", "polars.big")


FOREIGN = {
    "objects of several kinds": (lambda: pd.DataFrame({"ok": [1, 2], "mixed": ["a", 1]}), "column 'mixed' of the data frame holds a int in row 2"),
    "a dtype that Arrow lacks": (lambda: pd.DataFrame({"z": [1j, 2j]}), "column 'z' of the data frame, of dtype complex128"),
    "names that come twice": (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns named 'a'"),
    "periods": (lambda: pd.DataFrame({"p": pd.period_range("2024-01", periods=2, freq="M")}), "column 'p' of the data frame holds periods"),
    "objects of Polars": (lambda: pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)}), "column 'o' of the data frame holds Python's objects"),
    "a frame without rows yet": (lambda: pl.LazyFrame({"a": [1]}), "give its .collect"),
    "no table": (lambda: {"a": [1]}, "a dict can't be ingested"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_other_libraries_raise_becomes_ours(fleet, what):
    make, says = FOREIGN[what]
    with pytest.raises(InvalidError, match=says) as caught:
        fleet.ingest(make(), "foreign.t")
    assert "foreign.t" in str(caught.value) or caught.value.__cause__ is None


def test_a_source_that_fails_is_named_callbacks_errors_are_kept(fleet):
    def batches():
        yield pa.record_batch({"a": [1]})
        raise RuntimeError("the third page is missing")

    with pytest.raises(InvalidError, match="foreign.pages: the source of rows failed.*the third page is missing"):
        fleet.ingest(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()), "foreign.pages")

    def stop(_: int):
        raise ZeroDivisionError("mine")

    with pytest.raises(InvalidError, match="the progress function failed: ZeroDivisionError: mine"):
        fleet.ingest(pa.table({"a": range(100_000)}), "foreign.mine", progress=stop)


def test_slices_of_structs_within_structs(fleet):
    rows = [{"a": {"b": {"c": n}, "l": [{"x": n}]}} if n % 3 else None for n in range(10)]
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([{"x": n, "l": [n]} for n in range(20)]), 2)
    table = pa.table({"s": pa.array(rows), "n": range(10), "f": pairs}).slice(3, 5)
    fleet.ingest(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2)), "foreign.slices")
    found = read(fleet, "SELECT s, f FROM foreign.slices ORDER BY n")
    assert found == [(row, pair) for row, pair in zip(rows[3:8], pairs.to_pylist()[3:8])]


# --- hostile files ---

HOSTILE = """
import resource, sys
import skytether
from skytether.errors import SkytetherError
fleet = skytether.open(sys.argv[1], drives=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    fleet.ingest(sys.argv[2], "hostile.t")
    print("taken")
except SkytetherError as error:
    print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
assert fleet.sql("SELECT 1 AS n").to_arrow().num_rows == 1
"""


def hostile(tmp_path, path) -> tuple[str, int]:
    """What an ingest in a process of its own says, and by how many MiB its memory grew."""
    done = subprocess.run([sys.executable, "-c", HOSTILE, tmp_path / "fleet", path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    *said, grown = done.stdout.strip().splitlines()
    return "\n".join(said), int(grown)


def deep_parquet(path, levels: int) -> None:
    """A file whose schema is that many groups around a number, with no rows; no library writes it."""
    varint = lambda n: bytes([n & 0x7F | 0x80]) + varint(n >> 7) if n > 0x7F else bytes([n])  # noqa: E731
    footer = b"\x15\x02\x19\xfc" + varint(levels + 2) + b"\x48\x06schema\x15\x02\x00"
    footer += b"\x35\x02\x18\x01g\x15\x02\x00" * levels + b"\x15\x02\x25\x00\x18\x01x\x00" + b"\x16\x00\x19\x0c\x00"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def test_a_deep_parquet_schema_is_an_error(tmp_path):
    deep_parquet(tmp_path / "t.parquet", 6000)
    said, grown = hostile(tmp_path, tmp_path / "t.parquet")
    assert said.startswith("UnsupportedError") and "t.parquet" in said and "nested deeper than" in said and grown < 100


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
def test_a_row_without_an_end_is_an_error_in_bounded_memory(tmp_path, ending):
    import gzip

    path = tmp_path / f"t.{ending}.gz"
    begin = {"csv": b"a,b\n1,", "json": b'[{"a": "', "jsonl": b'{"a": "'}[ending]
    with gzip.open(path, "wb", 1) as out:
        out.write(begin)
        for _ in range(100):
            out.write(b"0" * 10_000_000)
    said, grown = hostile(tmp_path, path)
    assert said.startswith("ExhaustedError") and f"t.{ending}.gz" in said and "longer than 64 MiB" in said and grown < 500


def test_texts_that_are_shared_unpack_in_bounded_memory(tmp_path):
    table = pa.table({"s": pa.array(["z" * 1_000_000]).take(pa.array([0] * 1500)), "n": range(1500)})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    del table
    said, grown = hostile(tmp_path, tmp_path / "t.parquet")
    assert said == "taken" and grown < 1000


def test_damaged_arrow_streams_are_errors(fleet, tmp_path):
    table = pa.table({"i": range(1000), "s": [f"text {i}" for i in range(1000)]})
    with ipc.new_stream(tmp_path / "s.arrows", table.schema) as writer:
        writer.write_table(table)
    whole = (tmp_path / "s.arrows").read_bytes()
    for at in range(0, 1200, 40):
        wrong = bytearray(whole)
        wrong[at] ^= 0xFF
        wrong[at + 1] ^= 0x7F
        (tmp_path / "wrong.arrows").write_bytes(wrong)
        try:
            fleet.ingest(tmp_path / "wrong.arrows", "hostile.arrow", replace=True)
        except SkytetherError as error:
            assert "wrong.arrows" in str(error), at
            assert isinstance(error, (CorruptError, ExhaustedError, UnsupportedError, InvalidError)), at


def test_what_is_no_file_is_refused(fleet, tmp_path):
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with pytest.raises(InvalidError, match="zero.csv is a pipe or a device"):
        fleet.ingest(tmp_path / "zero.csv", "hostile.zero")
