"""Ingest: what goes in comes out, for every Arrow type, shape of batches and format of files. Unreadable input is an
error with its file and place."""

from __future__ import annotations

import bz2
import gzip
import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from arrow_columns import columns
from fleets import serving

import skytether

COLUMNS = columns()


@pytest.fixture(scope="module", params=["1 drive", "3 drives", "2 processes"])
def fleet(request, tmp_path_factory):
    """Two rows are a slice, so that the rows of all tables here are on several drives."""
    place, drives = tmp_path_factory.mktemp("fleet"), int(request.param[0])
    if "processes" not in request.param:
        with skytether.open(place, drives=drives, slice_rows=2) as opened:
            yield opened
        return
    with serving(place, drives, "--slice-rows", 2) as served, skytether.connect(served.url) as connected:
        yield connected


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("one"), drives=1) as opened:
        yield opened


def numbered(table: pa.Table) -> pa.Table:
    return table.append_column("k", pa.array(range(table.num_rows), pa.int64()))


def every_type() -> pa.Table:
    return numbered(pa.table({name: column.values for name, column in COLUMNS.items()}))


def check(found: pa.Table, given: pa.Table, every: int = 1) -> None:
    """That `found` has the values of `given`, or of each row that `every` says, in the types in
    which they are stored."""
    assert found.column_names == given.column_names
    for name, column in COLUMNS.items():
        if name in found.column_names:
            assert found[name].type == column.out, name
            assert found[name].to_pylist() == given[name].to_pylist()[::every], name


class Stream:
    """An object that is only an Arrow stream, and can be read once."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self.reader = table.to_reader(max_chunksize=rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


def all_null() -> pa.Table:
    return numbered(pa.table({name: pa.nulls(5, column.values.type) for name, column in COLUMNS.items() if name != "runs"}))


def many_batches() -> pa.Table:
    """Batches of one row and of none."""
    parts = [every_type().drop_columns("k").slice(at, length) for at, length in ((0, 1), (1, 0), (1, 1), (2, 2), (0, 0), (0, 3))]
    return numbered(pa.Table.from_batches([batch for part in parts for batch in part.to_batches()], parts[0].schema))


SHAPES = {
    "as it is": every_type,
    "empty": lambda: every_type().slice(0, 0),
    "a slice": lambda: numbered(every_type().drop_columns("k").slice(1, 2)),
    "its end": lambda: numbered(every_type().drop_columns("k").slice(3)),
    "many batches": many_batches,
    "nulls everywhere": all_null,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_type_comes_out_as_it_went_in(fleet, shape):
    given = SHAPES[shape]()
    fleet.ingest(Stream(given, 3), "d.types", replace=True)
    for cut in ("adaptive", "raw"):
        check(fleet.sql("SELECT * FROM d.types ORDER BY k", cut=cut).to_arrow(), given)
        some = fleet.sql("SELECT * FROM d.types WHERE k % 2 = 0 ORDER BY k", cut=cut).to_arrow()
        check(some, given, every=2)
        counts = ", ".join(f'count("{name}") AS "{name}"' for name in given.column_names)
        found = fleet.sql(f"SELECT {counts} FROM d.types", cut=cut).to_arrow().to_pylist()[0]
        # In runs pyarrow counts no nulls.
        assert found == {name: sum(value is not None for value in given[name].to_pylist()) for name in given.column_names}
    assert fleet.describe("d.types")["tables"]["data"]["rows"] == given.num_rows


@pytest.mark.parametrize("column", [c for c, of in COLUMNS.items() if not pa.types.is_nested(of.out) and c != "null"])
def test_every_type_is_filtered_and_grouped(one, column):
    """Types that SQL compares: a value finds its rows, groups are the values that there are."""
    if "d.values" not in [d["name"] for d in one.ls()]:
        one.ingest(pa.concat_tables([every_type()] * 2), "d.values")
    quoted = f'"{column}"'
    distinct = len({value for value in COLUMNS[column].values.to_pylist()})
    assert one.sql(f"SELECT {quoted}, count(*) AS n FROM d.values GROUP BY {quoted}").to_arrow().num_rows == distinct
    same = f"SELECT count(*) AS n FROM d.values WHERE {quoted} = (SELECT {quoted} FROM d.values WHERE k = 2 LIMIT 1)"
    expected = 2 * COLUMNS[column].values.to_pylist().count(COLUMNS[column].values[2].as_py())
    for cut in ("adaptive", "raw"):
        assert one.sql(same, cut=cut).to_arrow().to_pydict() == {"n": [expected]}


def writes(write) -> bool:
    """Whether pyarrow can write something in the format at hand."""
    try:
        write()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError):
        return False
    return True


FORMATS = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=3),
    "v2.parquet": lambda table, path: pq.write_table(table, path, compression="zstd", data_page_version="2.0", use_dictionary=False),
    "arrow": lambda table, path: ipc(pa.ipc.new_file, table, path),
    "arrows": lambda table, path: ipc(pa.ipc.new_stream, table, path),
    "lz4.feather": lambda table, path: pa.feather.write_feather(table, path),
    "zstd.feather": lambda table, path: pa.feather.write_feather(table, path, compression="zstd", chunksize=1),
}


def ipc(writer, table: pa.Table, path) -> None:
    with writer(path, table.schema) as out:
        out.write_table(table, 3)


@pytest.mark.parametrize("ending", FORMATS)
def test_files_hold_every_type_that_pyarrow_writes(one, tmp_path, ending):
    whole = every_type()
    kept = ["k"]
    for name in COLUMNS:
        if writes(lambda: FORMATS[ending](whole.select([name]), tmp_path / "try")):
            kept.append(name)
    assert len(kept) > 55
    given = whole.select(kept)
    FORMATS[ending](given, tmp_path / f"t.{ending}")
    one.ingest(tmp_path / f"t.{ending}", "d.file", replace=True)
    found = one.sql("SELECT * FROM d.file ORDER BY k").to_arrow()
    if "parquet" in ending:
        # Parquet has no seconds, and what pyarrow reads back itself is what it wrote.
        written = pq.read_table(tmp_path / f"t.{ending}")
        changed = [name for name in kept if written[name].type != given[name].type]
        assert all(found[name].to_pylist() == written[name].to_pylist() for name in changed) and len(changed) < 12
        found, given = found.drop_columns(changed), given.drop_columns(changed)
    check(found, given)


PACKED = {"": lambda data: data, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "ndjson"])
def test_text_files_packed_or_not(one, tmp_path, ending, packed):
    given = pa.table({"k": [1, 2, 3, None], "s": ["a,b\t\"c\"", "ä\nö", "日本", None], "x": [0.5, -1.25, None, 1e300], "b": [True, None, False, True]})
    for at, part in enumerate((given.slice(0, 2), given.slice(2))):
        out = io.BytesIO()
        if ending in ("csv", "tsv"):
            pa.csv.write_csv(part, out, pa.csv.WriteOptions(delimiter="," if ending == "csv" else "\t"))
        else:
            out.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part.to_pylist()).encode())
        (tmp_path / f"part-{at}.{ending}{packed}").write_bytes(PACKED[packed](out.getvalue()))
    one.ingest(tmp_path / f"part-*.{ending}{packed}", "d.text", replace=True)
    found = one.sql("SELECT k, s, x, b FROM d.text").to_arrow()
    assert [str(field.type) for field in found.schema] == ["int64", "string", "double", "bool"]
    assert sorted(found.to_pylist(), key=str) == sorted(given.to_pylist(), key=str)


def parquet(*tables: pa.Table, **options) -> list[bytes]:
    made = []
    for table in tables:
        out = io.BytesIO()
        pq.write_table(table, out, **options)
        made.append(out.getvalue())
    return made


def feather(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pa.feather.write_feather(table, out, compression="uncompressed")
    return out.getvalue()


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


T = pa.table({"a": [1, 2, 3], "s": ["x", "y", "z"]})

#: Files by name, the kind of error, and what it says.
WRONG = {
    "a value of another type": ({"t.csv": b"a,day\n1,2024-02-28\n2,2024-02-28\n3,2024-02-30\n"}, skytether.InvalidError, ["t.csv", "line 4", "2024-02-30", 'column "day"']),
    "too many values": ({"t.csv": b"a,b\n1,2\n3,4,5\n"}, skytether.InvalidError, ["t.csv", "line 3"]),
    "too few values": ({"t.csv": b"a,b\n1,2\n3\n"}, skytether.InvalidError, ["t.csv", "line 3"]),
    "a quote that stays open": ({"t.csv": b'a,b\n1,x\n2,"y\n3,z\n'}, skytether.InvalidError, ["t.csv", "line 3", "never closed"]),
    "text of another encoding": ({"t.csv": "a,b\n1,x\n2,é\n".encode("latin1")}, skytether.InvalidError, ["t.csv", "line 3", "[Uu][Tt][Ff]-8"]),
    "no header": ({"t.csv": b""}, skytether.InvalidError, ["t.csv", "no columns"]),
    "other columns": ({"1.csv": b"a,b\n1,2\n", "2.csv": b"a,c\n1,2\n"}, skytether.InvalidError, ["2.csv", "1.csv", '"c"', '"b"']),
    "half a line": ({"t.jsonl": b'{"a": 1}\n{"a": \n'}, skytether.InvalidError, ["t.jsonl", "line 2"]),
    "no object": ({"t.jsonl": b'{"a": 1}\n\n[1]\n'}, skytether.InvalidError, ["t.jsonl", "line 3", "no JSON object"]),
    "a number and a list": ({"t.jsonl": b'{"a": 1}\n{"a": 2}\n{"a": [3]}\n'}, skytether.InvalidError, ["t.jsonl", "line 3", '"a"', "list", "line 1"]),
    "deep in another file": (
        {"1.jsonl": b'{"a": [{"b": {"c": 1}}]}\n', "2.jsonl": b'{"a": null}\n{"a": [{"b": 2}]}\n'},
        skytether.InvalidError,
        ["2.jsonl: line 2", r"a\[\].b", "plain", "1.jsonl: line 1"],
    ),
    "files of two types": (
        dict(zip(("1.parquet", "2.parquet"), parquet(T, T.set_column(0, "a", pa.array([0.5, 1, 2]))))),
        skytether.InvalidError,
        ["2.parquet", "1.parquet", '"a"', "Float64", "Int64"],
    ),
    "a column more": (dict(zip(("1.parquet", "2.parquet"), parquet(T, T.append_column("z", T["a"])))), skytether.InvalidError, ["2.parquet", "3 columns", '"z"']),
    "a column less": (dict(zip(("1.parquet", "2.parquet"), parquet(T, T.select(["a"])))), skytether.InvalidError, ["2.parquet", "1 columns", 'without "s"']),
    "half a Parquet file": ({"t.parquet": parquet(T)[0][:200]}, skytether.CorruptError, ["t.parquet"]),
    "a damaged Parquet page": ({"t.parquet": damaged(parquet(T, compression="none", use_dictionary=False)[0], 6)}, skytether.CorruptError, ["t.parquet", "row 0"]),
    "a codec that is not known": ({"t.parquet": parquet(T, compression="brotli")[0]}, skytether.UnsupportedError, ["t.parquet", "Brotli", "zstd"]),
    "half an Arrow file": ({"t.feather": feather(T)[:-40]}, skytether.CorruptError, ["t.feather"]),
    "another kind of file": ({"t.arrows": b"something else altogether, and not short either"}, skytether.CorruptError, ["t.arrows"]),
    "Feather of version 1": ({"t.feather": b"FEA1" + bytes(100)}, skytether.UnsupportedError, ["t.feather", "version 2"]),
    "half a gzip file": ({"t.csv.gz": gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:-20]}, skytether.CorruptError, ["t.csv.gz", "truncated"]),
    "a damaged zstd file": ({"t.jsonl.zst": PACKED[".zst"](b'{"a": 1}\n' * 9)[:9] + b"\xff" * 30}, skytether.CorruptError, ["t.jsonl.zst"]),
    "a packer that is not known": ({"t.csv.bz2": bz2.compress(b"a\n1\n")}, skytether.UnsupportedError, ["t.csv.bz2", ".gz"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_reported_with_their_place(one, tmp_path, what):
    files, kind, says = WRONG[what]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    before = [d["name"] for d in one.ls()]
    with pytest.raises(kind) as caught:
        one.ingest(tmp_path, "d.wrong")
    for part in says:
        assert caught.match(part)
    # Nothing is left of it.
    assert [d["name"] for d in one.ls()] == before


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([pa.MonthDayNano([1, 2, 3])]), ["Interval", "duration"]),
        (pa.array([{}], pa.struct([])), ["Struct"]),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])]), ["Union"]),
        (pa.array([[{"deep": pa.MonthDayNano([1, 2, 3])}]]), ["Interval"]),
    ],
    ids=["interval", "struct without a field", "union", "interval in a list"],
)
def test_types_without_a_stored_form_are_refused_by_name(one, column, says):
    with pytest.raises(skytether.UnsupportedError, match='"the column"') as caught:
        one.ingest(pa.table({"k": [1], "the column": column}), "d.refused")
    for part in says:
        assert caught.match(part)
    assert "d.refused" not in [d["name"] for d in one.ls()]
