"""Readers that leave early: drives send no more than the buffers between them and a reader hold, however fast either
is.

Some eight batches wait between a drive and a reader: three in the drive and five in the host. Two more wait in Python,
and the reader has one. A batch has 2 MiB, and at most one batch of the scan more. That bounds the rows of one drive;
the table here has three times as many.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fleets import opened_or_connected

import skytether

f = pc.field
ROWS = 6_000_000
METERS = pa.table({name: np.random.default_rng(seed).random(ROWS) for seed, name in enumerate(("m", "n"))})
BYTES_OF_A_ROW = 16

#: Rows of a batch at most: 2 MiB and a batch of a scan.
BATCH = (2 << 20) // BYTES_OF_A_ROW + 65_536

#: Rows that may have left the drive when a reader has one batch.
BOUND = 11 * BATCH
assert BOUND < ROWS / 2


@pytest.fixture(scope="module", params=["embedded", "connected"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[skytether.Fleet]:
    with opened_or_connected(request.param, tmp_path_factory.mktemp("ends"), 1) as fleet:
        fleet.ingest(METERS, "taxi.meters")
        yield fleet


def check_an_early_end(fleet: skytether.Fleet, result: skytether.Result, rows: int = 1) -> None:
    """Checks that a run was given up after `rows` rows or more, and that the drive sent few more rows."""
    so_far = result.receipt_so_far.to_dict()
    # Over a connection the host does not tell what its drives did before the end.
    sent = sum(drive["rows_out"] for drive in so_far["drives"]) if so_far["drives"] else so_far["rows"]
    assert bool(so_far["drives"]) == ("://" not in fleet._inner.location())
    assert so_far["finished"] is False and rows <= sent < BOUND
    assert rows * BYTES_OF_A_ROW <= so_far["bytes_moved"] < 1.01 * BOUND * BYTES_OF_A_ROW and so_far["seconds"] > 0


def test_a_stream_is_computed_as_it_is_read(fleet):
    result = fleet.sql("SELECT * FROM taxi.meters")
    assert result.receipt_so_far is None
    stream = pa.RecordBatchReader.from_stream(result)
    # Taken, and nothing has begun.
    assert stream.schema.names == METERS.column_names and result.receipt_so_far.to_dict()["bytes_moved"] < 20_000
    read = stream.read_next_batch().num_rows
    check_an_early_end(fleet, result, read)


def test_an_early_end_stops_the_drives(fleet):
    result = fleet.sql("SELECT * FROM taxi.meters")
    stream = pa.RecordBatchReader.from_stream(result)
    stream.read_next_batch()
    del stream
    check_an_early_end(fleet, result)
    # Nothing hangs on, and the next run is whole.
    assert pa.RecordBatchReader.from_stream(result).read_all().num_rows == ROWS
    receipt = result.receipt_so_far.to_dict()
    assert receipt["finished"] is True and receipt["bytes_moved"] > 0.9 * METERS.nbytes and receipt == result.receipt.to_dict()


def test_the_batches_of_a_data_set_come_as_they_are_asked_for(fleet):
    scan = fleet.dataset("taxi.meters").scanner(batch_size=500)
    batches = scan.to_batches()
    assert next(batches).num_rows == 500
    batches.close()
    check_an_early_end(fleet, scan._result)
    with pytest.raises(skytether.InvalidError, match="not read to its end"):
        scan.receipt  # noqa: B018


def test_a_head_stops_the_drives(fleet):
    dataset = fleet.dataset("taxi.meters")
    assert dataset.head(5, ["m"]).num_rows == 5
    # The drives know how many rows are wanted.
    receipt = dataset.receipt.to_dict()
    assert receipt["bytes_moved"] < 5000 and sum(drive["rows_out"] for drive in receipt["drives"]) <= 5
    # With a part of the filter done here the number of rows is unknown: batches come until there are enough.
    kept = dataset.scanner(None, pc.floor(f("m") * 2) == 1)
    assert kept.local and kept.head(3).num_rows == 3
    check_an_early_end(fleet, kept._result)


def test_polars_stops_when_it_has_enough(fleet):
    meters = fleet.dataset("taxi.meters")
    assert pl.scan_pyarrow_dataset(meters).head(10).collect().shape == (10, 2)
    check_an_early_end(fleet, meters._last._result, 10)
