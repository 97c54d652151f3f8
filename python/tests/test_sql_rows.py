"""Each row of the tables in docs/sql.md has a test: a comment `docs/sql.md: <first cell>` above it names the row. Those
about the values of text files and about types are shown here."""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import skytether
from skytether.errors import UnsupportedError

PROJECT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"\s*(?:#|//) docs/sql.md: (.+)")
#: What a mark stands above: a test, a case of one, or a record of sqllogictest.
TESTS = re.compile(r"\s*(?:def test_|@pytest|#\[(?:tokio::)?test|\"|(?:(?:skip|only)if \w+\n)?(?:query|statement error))")


def cells(text: str) -> list[str]:
    """The first cell of each row of the tables of a document, without their headings."""
    tables = re.findall(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    return [row[1:].split("|")[0].strip() for table in tables for row in table.splitlines()]


def marks(text: str) -> Iterator[tuple[str, bool]]:
    """The rows that a file names, and whether a test follows."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if mark := MARK.fullmatch(line):
            rest = [after for after in lines[at + 1 : at + 30] if not after.lstrip().startswith(("# ", "//"))]
            yield mark[1], bool(TESTS.match("\n".join(rest)))


def meant(mark: str, rows: list[str]) -> list[str]:
    """The rows that a mark names: by the whole cell, or by how it begins."""
    return [row for row in rows if row == mark or mark.endswith(" ...") and row.startswith(mark.removesuffix("..."))]


def found() -> list[tuple[str, str, bool]]:
    """All marks with their files."""
    files = [path for pattern in ("crates/*/src/**/*.rs", "crates/*/tests/**/*.rs", "crates/*/tests/**/*.slt", "python/tests/**/*.py") for path in PROJECT.glob(pattern)]
    texts = ((path, path.read_text(encoding="utf-8")) for path in files)
    return [(path.name, *mark) for path, text in texts if "docs/sql.md: " in text for mark in marks(text)]


def test_each_row_of_the_tables_names_its_test():
    rows = cells((PROJECT / "docs" / "sql.md").read_text(encoding="utf-8"))
    assert len(rows) > 90 and len(set(rows)) == len(rows)
    named = {row for _, mark, _ in found() for row in meant(mark, rows)}
    missing = [row for row in rows if row not in named]
    assert not missing, "add a test, and `docs/sql.md: <first cell>` in a comment above it:\n" + "\n".join(missing)


def test_each_mark_names_one_row_and_has_a_test():
    rows = cells((PROJECT / "docs" / "sql.md").read_text(encoding="utf-8"))
    wrong = [f"{name}: {mark}" for name, mark, tested in found() if len(meant(mark, rows)) != 1 or not tested]
    assert not wrong, "no row of docs/sql.md, or no test below:\n" + "\n".join(wrong)


def test_marks_and_rows_are_read():
    """A check that finds nothing must be one that could."""
    text = "text\n\n| a | b |\n|---|---|\n| `x`, y | 1 |\n| ... below z, and more | 2 |\n\n| c | d |\n|---|---|\n| last | 3 |\n"
    assert cells(text) == ["`x`, y", "... below z, and more", "last"]
    assert meant("... below ...", cells(text)) == ["... below z, and more"] and not meant("las", cells(text)) and not meant("y", cells(text))
    slt = "# docs/sql.md: a\n# why\nskipif duckdb\nquery I\nSELECT 1\n\n# docs/sql.md: b\nstatement ok\nINGEST x\n"
    assert list(marks(slt)) == [("a", True), ("b", False)]
    rust = "    // docs/sql.md: c\n    // docs/sql.md: d\n    #[tokio::test]\n    async fn e() {}\n// docs/sql.md: f\nconst G: i32 = 1;\n"
    assert list(marks(rust)) == [("c", True), ("d", True), ("f", False)]


#: Rows about values of text files: texts, and the type and values of their column.
COLUMNS = {
    # docs/sql.md: `1`, `-7`
    "integers": (["1", "-7", "007"], pa.int64(), [1, -7, 7]),
    # docs/sql.md: `1.5`, `1e3`, `NaN`, also mixed with integers
    "fractions": (["1.5", "1e3", "NaN", "2"], pa.float64(), [1.5, 1000.0, math.nan, 2.0]),
    # docs/sql.md: `true`, `False`
    "truths": (["true", "False"], pa.bool_(), [True, False]),
    # docs/sql.md: `2024-02-29`
    "days": (["2024-02-29", "1969-12-31"], pa.date32(), [dt.date(2024, 2, 29), dt.date(1969, 12, 31)]),
    # docs/sql.md: `2024-02-29 10:00:00.5`, `2024-02-29T10:00:00Z`, also mixed with dates
    "moments": (
        ["2024-02-29 10:00:00.5", "2024-02-29T10:00:00Z", "2024-03-01"], pa.timestamp("ms"),
        [dt.datetime(2024, 2, 29, 10, 0, 0, 500_000), dt.datetime(2024, 2, 29, 10), dt.datetime(2024, 3, 1)],
    ),
    # docs/sql.md: anything else, or a mixture of these
    "mixtures": (["1", "true", "2024-02-29", "x"], pa.string(), ["1", "true", "2024-02-29", "x"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("rows"), drives=2, slice_rows=2) as opened:
        yield opened


@pytest.mark.parametrize("what", COLUMNS)
def test_values_of_text_files_have_their_types(fleet, tmp_path, what):
    texts, of, values = COLUMNS[what]
    (tmp_path / "t.csv").write_text("n,c\n" + "".join(f"{at},{text}\n" for at, text in enumerate(texts)))
    fleet.ingest(tmp_path / "t.csv", "rows.texts", replace=True)
    column = fleet.sql("SELECT c FROM rows.texts ORDER BY n").to_arrow()["c"]
    assert column.type == of and repr(column.to_pylist()) == repr(values)


def runs(values: list) -> pa.Array:
    return pc.run_end_encode(pa.array(values))


#: What is given, and the type that is stored. Values stay.
STORED = {
    # docs/sql.md: dictionary, run-end encoded
    "dictionaries": ([pa.array(["a", None, "a"]).dictionary_encode(), runs(["a", "a", None])], pa.string()),
    # docs/sql.md: fixed-size list, list view, large list view
    "lists": ([pa.array([[1, None], [2, 3], None], pa.list_(pa.int64(), 2)), pa.array([[1], [], None], pa.list_view(pa.int64()))], pa.list_(pa.int64())),
    "large lists": ([pa.array([[1], [], None], pa.large_list_view(pa.int64()))], pa.large_list(pa.int64())),
    # docs/sql.md: decimal32, decimal64
    "narrow decimals": ([pa.array([Decimal("1.50"), None, Decimal("-9.99")], of(9, 2)) for of in (pa.decimal32, pa.decimal64)], pa.decimal128(9, 2)),
    # docs/sql.md: decimals of negative scale
    "hundreds": ([pa.array([Decimal(700), None, Decimal(-12300)], pa.decimal128(5, -2))], pa.decimal128(7, 0)),
    # docs/sql.md: float16
    "halves": ([pa.array([1.5, None, -0.25], pa.float16())], pa.float32()),
    # docs/sql.md: null
    "nothing": ([pa.nulls(3)], pa.string()),
}


@pytest.mark.parametrize("what", STORED)
def test_types_are_stored_as_the_table_says(fleet, what):
    given, of = STORED[what]
    for column in given:
        fleet.ingest(pa.table({"n": range(len(column)), "c": column}), "rows.types", replace=True)
        found = fleet.sql("SELECT c FROM rows.types ORDER BY n").to_arrow()["c"]
        assert found.type == of and found.to_pylist() == column.to_pylist(), column.type


IDS = [uuid.UUID(int=1), None, uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]


# docs/sql.md: extension types, such as UUID
@pytest.mark.parametrize("source", ["memory", "pyarrow's Parquet", "DuckDB's Parquet"])
def test_uuids_come_back_as_their_bytes(fleet, tmp_path, source):
    table = pa.table({"n": [0, 1, 2], "u": pa.array([x and x.bytes for x in IDS], pa.uuid())})
    path = tmp_path / "t.parquet"
    if source.startswith("pyarrow"):
        pq.write_table(table, path)
    elif source.startswith("DuckDB"):
        rows = ", ".join(f"({n}, {'NULL' if x is None else repr(str(x))}::UUID)" for n, x in enumerate(IDS))
        duckdb.execute(f"COPY (SELECT * FROM (VALUES {rows}) v (n, u)) TO '{path}'")
    fleet.ingest(table if source == "memory" else path, "rows.uuids", replace=True)
    for cut in ("adaptive", "raw"):
        found = fleet.sql("SELECT u FROM rows.uuids ORDER BY n", cut=cut).to_arrow()["u"]
        assert found.type == pa.binary(16) and found.to_pylist() == [x and x.bytes for x in IDS]
        # As text, and by what is looked for.
        asked = f"SELECT encode(u, 'hex') AS u FROM rows.uuids WHERE u = X'{IDS[2].hex}'"
        assert fleet.sql(asked, cut=cut).to_arrow()["u"].to_pylist() == [IDS[2].hex]


def test_uuids_of_duckdb_in_memory_are_texts(fleet):
    """So DuckDB gives them to Arrow."""
    fleet.ingest(duckdb.sql(f"SELECT '{IDS[2]}'::UUID AS u").to_arrow_table(), "rows.texts", replace=True)
    assert fleet.sql("SELECT u FROM rows.texts").to_arrow()["u"].to_pylist() == [str(IDS[2])]


# docs/sql.md: intervals of any unit, unions, structs without a field
@pytest.mark.parametrize(
    "column",
    [
        pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        pa.array([{}, None], pa.struct([])),
    ],
    ids=["intervals", "unions", "structs"],
)  # fmt: skip
def test_types_without_a_stored_form_are_refused(fleet, column):
    with pytest.raises(UnsupportedError, match='column "the column" of rows.none has the type .*convert it') as caught:
        fleet.ingest(pa.table({"the column": column}), "rows.none")
    assert not pa.types.is_interval(column.type) or "to a duration, or to columns of months, days and milliseconds" in str(caught.value)
