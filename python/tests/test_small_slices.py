"""Small slices that follow one another are read and sent together: the same rows and receipts as with large ones,
wherever they are processed."""

import numpy as np
import pyarrow as pa
import pytest

import skytether

ROWS = 9_000
#: 900 slices, 450 on each drive: more than drives are asked to decide about one by one.
SMALL = 10
#: Two cores, a bit slower than this machine's.
DEVICE = (
    "speed_per_core = 0.5\ncores = 2\nmemory_bytes = 1073741824\ndisk_bytes_per_s = 1e9\ndisk_seek_s = 0.0\nlink_bits_per_s = 1e9\nlink_latency_s = 0.0001\n"
)
CUTS = ("adaptive", "full", "filter", "raw")

QUERIES = [
    "SELECT count(*) AS n FROM t.t",
    "SELECT kind, count(*) AS n, sum(x) AS x, min(name) AS name FROM t.t GROUP BY kind ORDER BY kind NULLS FIRST",
    "SELECT id, name FROM t.t WHERE x < 0.01 ORDER BY id",
    "SELECT id, x FROM t.t WHERE id BETWEEN 333 AND 1234 OR id > 8990 ORDER BY id",
    "SELECT id FROM t.t WHERE name LIKE '%7' ORDER BY x DESC LIMIT 11",
    "SELECT * FROM t.t ORDER BY id",
    "SELECT sum(id) AS s FROM t.t WHERE kind IS NULL",
]


def table():
    """Texts, a dictionary with NULLs, and numbers whose sums are exact in any order."""
    random = np.random.default_rng(11)
    kinds = [None if i % 17 == 0 else f"kind {i % 7}" for i in range(ROWS)]
    return pa.table({"id": range(ROWS), "kind": pa.array(kinds).dictionary_encode(), "name": [f"row {i}" for i in range(ROWS)], "x": random.integers(0, 1 << 20, ROWS) / (1 << 20)})


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    base = tmp_path_factory.mktemp("small")
    for name, rows in (("small", SMALL), ("whole", None)):
        with skytether.open(base / name, drives=2, slice_rows=rows) as fleet:
            fleet.ingest(table(), "t.t")
    return base


@pytest.fixture(scope="module")
def expected(places):
    with skytether.open(places / "whole") as fleet:
        return {sql: fleet.sql(sql).to_arrow().to_pylist() for sql in QUERIES}


@pytest.mark.parametrize("device", ["unlimited", DEVICE], ids=["machine", "device"])
@pytest.mark.parametrize("cut", CUTS)
def test_small_slices_give_the_rows_of_large_ones(places, expected, device, cut):
    with skytether.open(places / "small", profile=device) as fleet:
        for sql in QUERIES:
            assert fleet.sql(sql, cut=cut).to_arrow().to_pylist() == expected[sql], (cut, sql)


def test_receipts_count_slices_and_not_runs_of_them(places):
    with skytether.open(places / "small", profile=DEVICE) as fleet:
        result = fleet.sql("SELECT kind, sum(x) FROM t.t GROUP BY kind", cut="full")
        result.to_arrow()
        drives = result.receipt.to_dict()["drives"]
        assert sum(drive["slices_total"] for drive in drives) == ROWS // SMALL
        # A slice may be processed twice, if its drive seems to be stuck.
        assert sum(drive["slices"] for drive in drives) >= ROWS // SMALL
    with skytether.open(places / "small") as fleet:
        result = fleet.sql("SELECT id FROM t.t WHERE id < 95")
        assert result.to_arrow().num_rows == 95
        drives = result.receipt.to_dict()["drives"]
        assert sum(drive["slices"] for drive in drives) == 10 and sum(drive["slices_pruned"] for drive in drives) == ROWS // SMALL - 10
        limited = fleet.sql("SELECT id FROM t.t LIMIT 5")
        assert limited.to_arrow().num_rows == 5
        assert sum(drive["slices"] for drive in limited.receipt.to_dict()["drives"]) <= 4


def test_dictionaries_that_do_not_fit_one_another_stay_apart(tmp_path):
    # 100 values in each batch are all that an int8 can number; together they are 400.
    def batch(n):
        values = pa.array([f"value {n} {i}" for i in range(100)])
        keys = pa.array([i % 100 for i in range(5000)], pa.int8())
        return pa.record_batch({"id": pa.array(range(5000 * n, 5000 * (n + 1))), "k": pa.DictionaryArray.from_arrays(keys, values)})

    batches = [batch(n) for n in range(4)]
    with skytether.open(tmp_path / "fleet", drives=1, slice_rows=500) as fleet:
        fleet.ingest(pa.RecordBatchReader.from_batches(batches[0].schema, batches), "t.d")
        rows = fleet.sql("SELECT id, k FROM t.d WHERE id >= 0")
        found = {row["id"]: row["k"] for part in pa.RecordBatchReader.from_stream(rows) for row in part.to_pylist()}
        assert found == {row["id"]: row["k"] for part in batches for row in part.to_pylist()}
