"""Scans of files in CephFS and RADOS that run in the OSDs, compared with pyarrow's of the same files on a disk.

Tests run in their order: the first one without an object class, the others with one, and an engine next to each OSD.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ceph as cluster_of_tests
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skytether
from ceph import Cluster
from ceph_files import CONDITIONS, FIELD, ROWS, Both, alike, rows, written
from skytether.errors import ConflictError

pytestmark = pytest.mark.timeout(300)

OSDS = ("osd.0", "osd.1", "osd.2")

Make = Callable[[str, str], Both]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_tests.cluster(tmp_path_factory.mktemp("osds")) as running:
        running.tell("fs files")
        cluster_of_tests.load(running.environment["LD_LIBRARY_PATH"])
        yield running


@pytest.fixture(scope="module")
def engines(bare: Cluster) -> list[subprocess.Popen[str]]:
    for osd in range(3):
        bare.install(osd)
    return [bare.engine(osd) for osd in range(3)]


@pytest.fixture
def make(bare: Cluster, tmp_path: Path) -> Make:
    return lambda name, format: Both(bare, tmp_path, name, format)


def by(mine: skytether.FileDataset, rung: str) -> dict[str, Any]:
    """What the OSDs of the last scan did on this level."""
    return {drive["name"]: drive for drive in mine.receipt.to_dict()["drives"] if drive["rung"] == rung}


def test_without_class_all_is_evaluated_here(make: Make) -> None:
    both = make("bare", "parquet")
    both.write("a.parquet", written(rows(0), "parquet"))
    assert both.same(filter=FIELD("i") > 400).num_rows > 0
    for mine in both.mine():
        scan = mine.scanner(filter=FIELD("i") > 400)
        scan.to_table()
        assert by(mine, "filter") == {} and "no such object class" in (scan.local or "")
        assert all("no such object class" in drive["reason"] for drive in by(mine, "raw").values())


@pytest.mark.parametrize("format", ["parquet", "feather"])
def test_osds_filter_files_as_pyarrow(make: Make, engines: list[Any], format: str) -> None:
    both = make(f"push-{format}", format)
    for number in range(6):
        both.write(f"{number}.{format}", written(rows(number * ROWS), format))
    filters = [
        *CONDITIONS,
        (FIELD("i") > 450) & (pc.list_value_length(FIELD("list")) == 2),
    ]
    for condition in filters:
        due = both.theirs(both.mine()[0].schema).to_table(filter=condition)
        assert 0 < due.num_rows < 6 * ROWS, condition
        for mine in both.mine():
            # An engine of a busy machine may be late: then the part is evaluated here, and rightly.
            for _ in range(3):
                scan = mine.scanner(filter=condition)
                assert alike(scan.to_table(), due), condition
                if scan.local is None:
                    break
            ran = by(mine, "filter")
            assert ran and set(ran) <= set(OSDS) and scan.local is None, (condition, mine.receipt)
            assert mine.count_rows(filter=condition) == due.num_rows and by(mine, "filter")
            assert scan.head(5).num_rows == min(5, due.num_rows)
    for mine in both.mine():
        mine.to_table(columns=["id"], filter=FIELD("i") == 7)
        cost = mine.receipt.to_dict()
        assert cost["bytes_moved"] < cost["bytes_stored"] / 10, cost
        assert "filter ran there" in str(mine.receipt)
        mine.to_table(columns=["id"])
        assert by(mine, "filter") == {}


def test_osds_filter_partitions_and_evolved_files(make: Make, engines: list[Any]) -> None:
    both = make("push-evolved", "parquet")
    both.write("k=1/1.parquet", written(pa.table({"a": pa.array([1, 2, None], pa.int32()), "b": ["x", "y", None]}), "parquet"))
    both.write("k=2/2.parquet", written(pa.table({"c": [1.5, None], "a": pa.array([2**40, 5], pa.int64())}), "parquet"))
    for condition in (FIELD("a") > 1, (FIELD("a") > 1) & (FIELD("k") == 2), (FIELD("a") > 1) & FIELD("c").is_null(), FIELD("a") == 2**40):
        due = both.theirs(both.mine()[0].schema).to_table(filter=condition)
        for mine in both.mine():
            assert alike(mine.to_table(filter=condition), due) and due.num_rows > 0
            assert by(mine, "filter"), (condition, mine.receipt)


def test_conditions_mean_the_same_in_osds_and_here(make: Make, engines: list[Any]) -> None:
    """The value in a path goes before a column of the file; a narrower type of the data set decides."""
    both = make("push-same", "parquet")
    both.write("k=1/1.parquet", written(pa.table({"k": pa.array([0, None, 1]), "x": pa.array([0.1, 0.2, None])}), "parquet"))
    for mine in both.mine():
        assert mine.to_table(filter=FIELD("k") == 1).num_rows == 3
        narrow = pa.schema([pa.field(f.name, pa.float32() if f.name == "x" else f.type) for f in mine.schema])
        condition = FIELD("x") == pa.scalar(0.1, pa.float32())
        assert mine.replace_schema(narrow).to_table(filter=condition).num_rows == both.theirs(narrow).to_table(filter=condition).num_rows == 1


def test_snapshots_are_refused_by_name(bare: Cluster) -> None:
    with pytest.raises(skytether.SkytetherError, match=r"\.snap.* is in a snapshot"):
        skytether.dataset(f"cephfs:/.snap/one?conf={bare.conf}", format="parquet")


def test_text_files_are_read_here_with_the_reason(make: Make, engines: list[Any]) -> None:
    both = make("push-csv", "csv")
    both.write("a.csv", written(rows(0, text_only=True), "csv"))
    assert both.same(filter=FIELD("i") > 400).num_rows > 0
    for mine in both.mine():
        mine.to_table(filter=FIELD("i") > 400)
        assert by(mine, "filter") == {} and all("csv files are read here" in drive["reason"] for drive in by(mine, "raw").values())


def test_row_groups_of_long_files_run_in_their_objects(make: Make, engines: list[Any]) -> None:
    """A file of two objects: row groups within one run there, with the footer sent along; one lies in both."""
    noise = np.random.default_rng(1)
    table = pa.table({"id": np.arange(600_000), **{c: noise.integers(-(2**60), 2**60, 600_000) for c in "abcdefghijklmn"}})
    data = written(table, "parquet", row_group_size=50_000, compression="none")
    both = make("push-long", "parquet")
    both.disk.mkdir()
    (both.disk / "a.parquet").write_bytes(data)
    both.trees[0].write("a.parquet", data)
    mine = skytether.dataset(both.addresses[0])
    condition = FIELD("a") > 2**60 - 2**52
    scan = mine.scanner(columns=["id", "a"], filter=condition)
    found = scan.to_table()
    assert alike(found, both.theirs(mine.schema).to_table(columns=["id", "a"], filter=condition)) and found.num_rows > 100
    ran = by(mine, "filter")
    assert sum(drive["slices"] for drive in ran.values()) == 11 and scan.local == "a row group lies in several objects", mine.receipt


@pytest.mark.parametrize("groups", [70_000, 2_000_000])
def test_filters_that_keep_all_stop_the_push(make: Make, engines: list[Any], groups: int) -> None:
    """Rows travel unpacked: where nearly all are kept, the columns are less to read. One row group tells."""
    both = make(f"push-all-{groups}", "parquet")
    number = 1_000_000 if groups > 70_000 else 210_000
    for file in range(4):
        columns = {f"c{n}": np.arange(number) % (n + 2) for n in range(16)}
        both.write(f"{file}.parquet", written(pa.table({"id": np.arange(file * number, (file + 1) * number), **columns}), "parquet", row_group_size=groups))
    for mine in both.mine():
        scan = mine.scanner(filter=FIELD("id") > 5)
        assert scan.to_table().num_rows == 4 * number - 6
        ran = by(mine, "filter")
        assert sum(drive["slices"] for drive in ran.values()) == (groups == 70_000), mine.receipt
        assert ("bytes of columns" if groups == 70_000 else "more rows than an OSD gives at once") in (scan.local or ""), scan.local
        few = mine.scanner(filter=FIELD("c15") == 16, columns=["id"])
        assert few.to_table().num_rows == 4 * len(range(16, number, 17)) and few.local is None and by(mine, "filter")


def test_replaced_file_is_a_conflict_in_the_osd_too(make: Make, engines: list[Any]) -> None:
    both = make("push-replaced", "parquet")
    both.write("a.parquet", written(rows(0), "parquet"))
    known = both.mine()
    both.write("a.parquet", written(rows(1), "parquet"))
    for mine in known:
        with pytest.raises(ConflictError, match=r"a\.parquet was changed or replaced"):
            mine.to_table(filter=FIELD("i") > 400)


def test_erasure_coded_files_are_pruned_and_read_here(bare: Cluster, engines: list[Any]) -> None:
    """No object class of Ceph 16 to 20 reads in such a pool. Row groups are left out by the footers' statistics."""
    bare.tell("coded coded")
    place = f"rados://coded/files/?conf={bare.conf}"
    skytether.write_dataset(rows(0), place, row_group_size=500)
    mine = skytether.dataset(place)
    scan = mine.scanner(columns=["id", "s"], filter=FIELD("id") >= 4500)
    found = scan.to_table()
    assert alike(found, rows(0).select(["id", "s"]).slice(4500)) and "erasure-coded" in (scan.local or "") and by(mine, "filter") == {}
    cost = mine.receipt.to_dict()
    assert (cost["row_groups"], cost["row_groups_pruned"]) == (10, 9) and cost["bytes_read"] < cost["bytes_stored"] / 2, cost


def test_dead_engine_costs_no_answer(make: Make, engines: list[Any]) -> None:
    both = make("push-dead", "parquet")
    for number in range(6):
        both.write(f"{number}.parquet", written(rows(number * ROWS), "parquet"))
    engines[0].kill()
    engines[0].communicate()
    due = both.theirs(both.mine()[0].schema).to_table(filter=FIELD("i") > 400)
    for mine in both.mine():
        assert alike(mine.to_table(filter=FIELD("i") > 400), due)
        assert "osd.0" not in by(mine, "filter")
        assert any("engine" in drive["reason"] for drive in by(mine, "raw").values()), mine.receipt
    for mine in both.mine(pushdown=False):
        assert alike(mine.to_table(filter=FIELD("i") > 400), due) and by(mine, "filter") == {}
