"""Tables in memory with values that their types do not have: they are refused by column and row, and nothing is stored
that no reader could read again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import skytether
from skytether.errors import InvalidError, UnsupportedError


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("fleet"), drives=2, slice_rows=3) as opened:
        yield opened


LATIN = pa.array([b"a", None, b"caf\xe9"])
UTF8 = r'column "c", row 3: its text is no UTF-8'
VIEWS = pa.array([b"a", None, b"\xe9" * 30], pa.binary_view()).view(pa.string_view())
UNSOUND = {
    "string": (LATIN.view(pa.string()), UTF8),
    "large_string": (LATIN.cast(pa.large_binary()).view(pa.large_string()), UTF8),
    "string_view": (VIEWS, UTF8),
    "a short string_view": (pa.array([b"a", None, b"caf\xe9"], pa.binary_view()).view(pa.string_view()), UTF8),
    "a list": (pa.ListArray.from_arrays([0, 1, 2, 3], LATIN.view(pa.string())), UTF8),
    "a list view": (pa.ListViewArray.from_arrays([2, 0, 2], [0, 2, 1], LATIN.view(pa.string())), UTF8),
    "a list of fixed size": (pa.FixedSizeListArray.from_arrays(LATIN.view(pa.string()), 1), UTF8),
    "a struct": (pa.StructArray.from_arrays([LATIN.view(pa.string())], ["x"]), UTF8),
    "a map": (pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k", "l", "m"]), LATIN.view(pa.string())), UTF8),
    "a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 0, 2, 1]), LATIN.view(pa.string())), UTF8),
    "an index beyond a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 9]), pa.array(["a", "b"]), safe=False), r'column "c", row 3: its index 9 is beyond the 2 values'),
    "an index below a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, -1]), pa.array(["a", "b"]), safe=False), r'column "c", row 2: its index -1 is beyond'),
    "a decimal beyond its digits": (
        pa.Array.from_buffers(pa.decimal128(38, 0), 2, [None, pa.py_buffer((1).to_bytes(16, "little") + (10**38).to_bytes(16, "little"))]),
        r'column "c", row 2: it has more digits than its type, Decimal128\(38, 0\), holds',
    ),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_unsound_values_are_refused_by_row(fleet, tmp_path, what):
    column, says = UNSOUND[what]
    table = pa.table({"n": range(len(column)), "c": column})
    with pytest.raises(InvalidError, match=says):
        fleet.ingest(table, "unsound.t")
    # Rows are counted over batches.
    with pytest.raises(InvalidError, match=says):
        fleet.ingest(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1)), "unsound.t")
    assert not [found for found in fleet.ls() if found["name"] == "unsound.t"]


def test_what_no_row_has_is_no_fault(fleet):
    text = LATIN.view(pa.string())
    kept = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), text)
    fleet.ingest(pa.table({"a": text.slice(0, 2)}), "unsound.sliced")
    fleet.ingest(pa.table({"n": range(3), "a": kept}), "unsound.kept")
    assert fleet.sql("SELECT a FROM unsound.kept ORDER BY n").to_arrow()["a"].to_pylist() == ["a", None, "a"]


def test_unsound_values_of_annotations_are_refused(fleet):
    """The writer of applications, too."""
    table = pa.table({"c": LATIN.view(pa.string())})
    with pytest.raises(InvalidError, match=UTF8):
        fleet._inner.writer("unsound.obs", "table", False).table("data", "spread", table)


def test_unsound_values_of_files_name_the_file(fleet, tmp_path):
    column, says = UNSOUND["a decimal beyond its digits"]
    with ipc.new_file(tmp_path / "t.arrow", pa.schema([("c", column.type)])) as writer:
        writer.write_table(pa.table({"c": column}))
    with pytest.raises(InvalidError, match=r"t\.arrow: " + says):
        fleet.ingest(tmp_path / "t.arrow", "unsound.file")


def test_hugeint_beyond_its_decimal_is_refused_by_row(fleet):
    import duckdb

    fleet.ingest(duckdb.sql(f"SELECT {'9' * 38}::HUGEINT AS c").to_arrow_table(), "unsound.huge", replace=True)
    with pytest.raises(InvalidError, match=r'column "c", row 2: it has more digits'):
        fleet.ingest(duckdb.sql("SELECT unnest([1::HUGEINT, 170141183460469231731687303715884105727::HUGEINT]) AS c").to_arrow_table(), "unsound.huger")


# docs/sql.md: Parquet's VARIANT
def test_parquets_variants_are_refused_by_name(fleet, tmp_path):
    import duckdb

    try:
        duckdb.execute(f"COPY (SELECT 1 AS n, 42::VARIANT AS v) TO '{tmp_path}/t.parquet'")
    except duckdb.Error:
        pytest.fail("this DuckDB writes no variants")
    assert "VARIANT" in str(pq.ParquetFile(tmp_path / "t.parquet").schema).upper()
    with pytest.raises(UnsupportedError, match=r't\.parquet: column "v" has values of any type \(VARIANT\)'):
        fleet.ingest(tmp_path / "t.parquet", "unsound.variant")
