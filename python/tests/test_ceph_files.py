"""Files in CephFS and RADOS as data sets, compared with pyarrow's data sets of the same files on a disk."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import ceph as cluster_of_tests
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skytether
from ceph import Cluster
from ceph_files import CONDITIONS, FIELD, ROWS, Both, alike, rows, written
from skytether.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from test_docs import blocks

pytestmark = pytest.mark.timeout(300)

FORMATS = ("parquet", "feather", "csv", "json")


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_tests.cluster(tmp_path_factory.mktemp("ceph")) as running:
        running.tell("fs files")
        cluster_of_tests.load(running.environment["LD_LIBRARY_PATH"])
        yield running


Make = Callable[[str, str], Both]


@pytest.fixture
def make(ceph: Cluster, tmp_path: Path) -> Make:
    return lambda name, format: Both(ceph, tmp_path, name, format)


@pytest.mark.parametrize("format", FORMATS)
def test_all_formats_read_as_pyarrow_reads_them(make: Make, format: str) -> None:
    both = make(f"plain-{format}", format)
    for number in range(3):
        both.write(f"{number}.{format}", written(rows(number * ROWS, text_only=format in ("csv", "json")), format))
    assert both.same().num_rows == 3 * ROWS
    assert both.same(columns=["s", "id"], filter=FIELD("i") > 400).num_rows > 0
    assert both.same(columns={"twice": FIELD("i") * 2, "s": FIELD("s")}, filter=(FIELD("s") == "name 3") | FIELD("i").is_null()).num_rows > 0
    assert both.same(columns=[]).num_columns == 0
    for mine in both.mine():
        theirs = both.theirs(mine.schema)
        late = {"columns": ["id"], "filter": FIELD("id") > 4990}
        assert alike(mine.head(10), theirs.head(10)) and alike(mine.head(7, **late), theirs.head(7, **late))
        assert alike(mine.take([0, 5001, 14999]), theirs.take([0, 5001, 14999]))
        assert [fragment.path for fragment in mine.get_fragments()] == mine.files and len(mine.files) == 3
        assert sum(batch.num_rows for batch in mine.to_batches(batch_size=100)) == 3 * ROWS
        assert {fragment.path for _, fragment in ((tagged.record_batch, tagged.fragment) for tagged in mine.scanner().scan_batches())} == set(mine.files)
        assert pa.RecordBatchReader.from_stream(mine.scanner(columns=["id"])).read_all().num_rows == 3 * ROWS
        assert mine.filter(FIELD("id") < 10).count_rows() == 10
        assert pickle.loads(pickle.dumps(mine)).count_rows() == 3 * ROWS


@pytest.mark.parametrize("format", ["parquet", "feather"])
def test_filters_over_all_types_answer_as_pyarrow(make: Make, format: str) -> None:
    both = make(f"types-{format}", format)
    both.write(f"a.{format}", written(rows(0), format))
    filters = [
        *CONDITIONS,
        FIELD("raw") == b"\x05\x05\x05",
        ~FIELD("b"),
        FIELD("i").isin([1, None]),
        pc.list_value_length(FIELD("list")) == 2,
        FIELD("i") > 1.5,
    ]
    for condition in filters:
        assert 0 < both.same(columns=["id", "odd"], filter=condition).num_rows < ROWS, condition


def test_directories_names_are_columns_and_prune(make: Make) -> None:
    both = make("partitions", "parquet")
    for year in (2020, 2021, 2022):
        for zone in ("a", "b c"):
            both.write(f"year={year}/zone={zone.replace(' ', '%20')}/part.parquet", written(rows(year, 300), "parquet"))
    assert set(both.same(columns=["id", "year", "zone"], filter=FIELD("year") == 2021).column("zone").to_pylist()) == {"a", "b c"}
    assert both.same(filter=(FIELD("zone") == "b c") & (FIELD("i") < 0)).num_rows > 0
    for mine in both.mine():
        assert mine.schema.field("year").type == pa.int32()
        assert len(list(mine.get_fragments(FIELD("year") > 2020))) == 4
        mine.to_table(columns=["id"], filter=FIELD("year") == 2020)
        assert mine.receipt.to_dict()["files_pruned"] == 4
    for plain in both.mine(partitioning=None):
        assert "year" not in plain.schema.names


def test_columns_of_all_files_are_united_and_widened(make: Make) -> None:
    both = make("evolved", "parquet")
    both.write("1.parquet", written(pa.table({"a": pa.array([1, 2, None], pa.int32()), "b": ["x", "y", None]}), "parquet"))
    both.write("2.parquet", written(pa.table({"c": [1.5, None], "a": pa.array([2**40, 5], pa.int64())}), "parquet"))
    both.write("3.parquet", written(pa.table({"b": pa.nulls(2), "a": pa.array([7, 8], pa.int8())}), "parquet"))
    for mine in both.mine():
        assert mine.schema == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    assert both.same().column("c").null_count == 6
    for condition in (FIELD("a") > 6, FIELD("c").is_null(), FIELD("b") == "x", (FIELD("c") > 1) | (FIELD("a") == 1), FIELD("a") == 2**40):
        assert both.same(filter=condition).num_rows > 0
    both.write("4.parquet", written(pa.table({"a": [date(2020, 1, 1)]}), "parquet"))
    with pytest.raises(InvalidError, match=r"'a'.*int64.*4\.parquet"):
        both.mine()
    given = pa.schema([("b", pa.string()), ("z", pa.int16())])
    for mine in both.mine(schema=given):
        assert mine.schema == given and mine.to_table().column("b").to_pylist().count("x") == 1


def test_csv_column_that_is_text_once_is_text_in_all(make: Make) -> None:
    both = make("texts", "csv")
    both.write("1.csv", b"k,v\n1,007\n2,8\n")
    both.write("2.csv", b"k,v\n3,abc\n")
    assert both.same(filter=FIELD("k") < 9).column("v").to_pylist() == ["007", "8", "abc"]


def test_empty_files_have_no_rows(make: Make) -> None:
    none = rows(0, 0)
    for format in ("parquet", "feather"):
        both = make(f"empty-{format}", format)
        both.write(f"1.{format}", written(none, format))
        both.write(f"2.{format}", written(rows(0, 10), format))
        assert both.same().num_rows == 10
        both.write(f"3.{format}", b"")
        with pytest.raises(CorruptError, match=rf"3\.{format} can't be read as {format}: the file has no bytes"):
            both.mine()
    both = make("empty-csv", "csv")
    both.write("1.csv", b"k\n1\n")
    both.write("2.csv", b"")
    both.write("_ignored.csv", b"other\n1\n")
    for mine in both.mine():
        assert mine.to_table().to_pydict() == {"k": [1]}


def test_damaged_files_are_refused_by_name(make: Make) -> None:
    for format in FORMATS:
        both = make(f"damaged-{format}", format)
        both.write(f"good.{format}", written(rows(0, 10, text_only=True), format))
        both.write(f"wrong.{format}", b'"' if format == "csv" else b'{"id": ' if format == "json" else b"PAR1 and nothing more")
        with pytest.raises(CorruptError, match=rf"wrong\.{format} can't be read as {format}"):
            both.mine()
    # Its footer is sound, and its pages are not.
    both = make("damaged-pages", "parquet")
    data = bytearray(written(rows(0), "parquet", compression="zstd"))
    data[1000:40000] = bytes(39000)
    both.write("good.parquet", written(rows(0), "parquet"))
    both.write("late.parquet", bytes(data))
    for mine in both.mine():
        assert mine.count_rows() == 2 * ROWS
        with pytest.raises(CorruptError, match=r"late\.parquet can't be read"):
            mine.to_table()


def test_file_replaced_after_its_listing_is_a_conflict(make: Make) -> None:
    both = make("replaced", "parquet")
    both.write("a.parquet", written(rows(0, 10), "parquet"))
    both.write("b.parquet", written(rows(0, 20), "parquet"))
    known = both.mine()
    scans = [mine.scanner(columns=["id"]) for mine in known]
    both.write("b.parquet", written(rows(5, 20), "parquet"))
    for mine, scan in zip(known, scans):
        with pytest.raises(ConflictError, match=r"b\.parquet was changed or replaced after it was listed"):
            scan.to_table()
        with pytest.raises(ConflictError, match=r"b\.parquet"):
            mine.count_rows()
    for mine in both.mine():
        assert mine.to_table(columns=["id"]).column("id").to_pylist() == [*range(10), *range(5, 25)]


def test_file_changed_amid_its_scan_is_a_conflict(make: Make) -> None:
    both = make("amid", "parquet")
    both.write("a.parquet", written(rows(0, 50_000), "parquet", row_group_size=2000))
    for mine, tree in zip(both.mine(), both.trees):
        file = mine._listing.tree.open(mine.files[0])
        assert len(file.read(0, 100)) == 100
        tree.write("a.parquet", written(rows(1, 50_000), "parquet", row_group_size=2000))
        if "cephfs" in mine.name:
            # The file that was opened is still there, as it was.
            assert file.read(0, 4) == b"PAR1"
        else:
            with pytest.raises(ConflictError):
                file.read(200_000, 200_100)


def test_files_of_several_objects_are_read_whole(ceph: Cluster, make: Make) -> None:
    """70 MB that nothing packs: two objects of a file of ours, 18 of one with the file system's own layout."""
    noise = np.random.default_rng(1)
    table = pa.table({"id": np.arange(600_000), **{c: noise.integers(-(2**60), 2**60, 600_000) for c in "abcdefghijklmn"}})
    data = written(table, "parquet", row_group_size=50_000, compression="none")
    both = make("long", "parquet")
    (both.disk).mkdir()
    (both.disk / "a.parquet").write_bytes(data)
    both.trees[0].write("a.parquet", data)
    with pytest.raises(InvalidError, match="an object has at most"):
        both.trees[1].write("a.parquet", data)
    mine = skytether.dataset(both.addresses[0])
    file = mine._listing.tree.open(mine.files[0])
    assert len(file.objects(0, len(data))) == 2 and file.read(0, len(data)) == data
    condition = (FIELD("id") >= 310_000) & (FIELD("id") < 310_010)
    found = mine.to_table(columns=["a", "id"], filter=condition)
    assert found.equals(both.theirs(mine.schema).to_table(columns=["a", "id"], filter=condition)) and found.num_rows == 10
    cost = mine.receipt.to_dict()
    assert (cost["row_groups"], cost["row_groups_pruned"]) == (12, 11)
    assert cost["bytes_stored"] == len(data) and 2 * 50_000 * 8 <= cost["bytes_read"] < len(data) / 20


def test_count_reads_only_footers(make: Make) -> None:
    both = make("counted", "parquet")
    both.write("a.parquet", written(rows(0, 100_000), "parquet", row_group_size=20_000))
    for mine in both.mine():
        assert mine.count_rows() == 100_000
        cost = mine.receipt.to_dict()
        assert cost["bytes_read"] <= 65_536 < cost["bytes_stored"] / 10
        # The footer was read when the data set was made, and is kept.
        assert cost["drives"] == []
        mine.to_table(columns=["id"])
        assert all(drive["name"].startswith("osd.") and drive["rung"] == "raw" for drive in mine.receipt.to_dict()["drives"])
        assert "osd." in str(mine.receipt)


def test_duckdb_queries_files_in_ceph(make: Make) -> None:
    duckdb = pytest.importorskip("duckdb")
    both = make("duck", "parquet")
    for number in range(2):
        both.write(f"year={number}/a.parquet", written(rows(number * ROWS), "parquet"))
    query = "SELECT year, count(*), sum(i), max(s) FROM files WHERE i > 100 AND s IS NOT NULL GROUP BY year ORDER BY year"
    for mine in both.mine():
        connection = duckdb.connect()
        connection.register("files", both.theirs(mine.schema))
        due = connection.sql(query).fetchall()
        connection.unregister("files")
        connection.register("files", mine)
        assert connection.sql(query).fetchall() == due
        assert mine.receipt.to_dict()["files"] == 2


def test_written_files_fit_objects_and_are_read_back(ceph: Cluster) -> None:
    table = rows(0)
    for place in (f"cephfs:/made/here?conf={ceph.conf}", f"rados://sky/made/?conf={ceph.conf}"):
        names = skytether.write_dataset(table, place, rows_per_file=2000)
        assert names == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
        mine = skytether.dataset(place)
        assert alike(mine.to_table(), table) and len(mine.files) == 3
        for path in mine.files:
            file = mine._listing.tree.open(path)
            assert len(file.objects(0, file.size())) == 1
        for format in ("feather", "csv"):
            (name,) = skytether.write_dataset(table.select(["id"]), place, format=format, basename=f"other-{format}-{{i}}")
            assert name == f"other-{format}-0.{format}"
        with pytest.raises(InvalidError, match="json files are not written"):
            skytether.write_dataset(table, place, format="json")


def test_wrong_addresses_and_options_are_refused(ceph: Cluster) -> None:
    conf = f"conf={ceph.conf}"
    with pytest.raises(NotFoundError, match="/nowhere"):
        skytether.dataset(f"cephfs:/nowhere?{conf}", format="parquet")
    with pytest.raises(NotFoundError, match="no object whose name begins with"):
        skytether.dataset(f"rados://sky/nowhere?{conf}", format="parquet")
    with pytest.raises(NotFoundError, match="pool absent"):
        skytether.dataset(f"rados://absent/x?{conf}", format="parquet")
    for address in ("file:/x", f"cephfs:/x?{conf}&pool=a", "rados:///x"):
        with pytest.raises(InvalidError, match="cephfs:/PATH"):
            skytether.dataset(address, format="parquet")
    with pytest.raises(InvalidError, match="not known: say one of"):
        skytether.dataset(f"cephfs:/?{conf}", format="orc")


def test_guide_prints_what_it_shows(ceph: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    all_blocks = blocks("docs/ceph.md")
    (at,) = (number for number, (language, _) in enumerate(all_blocks) if language == "python")
    exec(compile(all_blocks[at][1].replace("/etc/ceph/ceph.conf", ceph.conf), "docs/ceph.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == all_blocks[at + 1][1]
