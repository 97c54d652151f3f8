"""Sub-plans that a client sends by itself, as the guide has them: what fails is named, and harms no other."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skytether
import substrait.dataframe as sub
from skytether import programs

from .targets import Drive, chosen

pytestmark = pytest.mark.skipif(chosen() != "drive", reason="it has a drive with little memory")

ROWS = 300_000
TABLE = pa.table({"k": range(ROWS), "s": [f"{k:0100}" for k in range(ROWS)]})
#: What the drive's engine may take, in MiB: less than half of the table.
MEMORY = 16


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[programs.Drive]:
    served = Drive(tmp_path / "drives" / "small", "drive", (0, 0), "--memory", str(MEMORY))
    url = f"kinetic://{served.address.host}:{served.address.port}"
    with skytether.open(url, slice_rows=10_000) as fleet:
        fleet.ingest(TABLE, "lab.wide")
    yield programs.connect(url)
    served.stop()


def run(drive: programs.Drive, plan: sub.DataFrame) -> programs.Ended:
    """Runs a plan over the drive's partition of the table."""
    (key,) = [key.decode() for key in drive.keys("lab/wide/", "lab/wide0") if b";" not in key]
    generation, table, slot = key.rsplit("/", 1)[1].split(".")
    partition = {"dataset": "lab.wide", "generation": int(generation, 16), "table": table, "slot": int(slot)}
    text = plan.to_plan().SerializeToString()
    header = {"query": str(uuid.uuid4()), "dataset": "lab.wide", "partitions": {table: partition}, "rung": "full", "batch_rows": 0, "plan_bytes": len(text), "filters": []}
    ticket = json.dumps(header).encode()
    drive.put(b"SKYPLAN1" + struct.pack("<I", len(ticket)) + ticket + text, name="plan")
    return drive.run("plan", output_key="rows")


def read(*columns: str) -> sub.DataFrame:
    return sub.read_named_table(["lab", "wide", "data"], {"k": sub.i64, "s": sub.string}).select(*(sub.col(old).alias(new) for old, new in zip("ks", columns, strict=True)))


def test_sub_plan_that_needs_too_much_memory_is_named(drive: programs.Drive) -> None:
    joined = read("k", "s").join(read("key", "t"), on=sub.col("s") == sub.col("t"), how="inner")
    ended = run(drive, joined.aggregate((), sub.f.count(sub.col("k")).alias("n")))
    failed = json.loads(ended.printed)["failed"]
    assert (ended.code, ended.signal, ended.output) == (1, 0, b"") and failed["kind"] == "exhausted", (ended, failed)
    assert "memory" in failed["text"] and drive.read("rows") is None, failed
    # The drive goes on, for keys and for other sub-plans.
    drive.write("k", "v")
    ended = run(drive, read("k", "s").aggregate((), sub.f.count(sub.col("k")).alias("n"), sub.f.max(sub.col("k")).alias("most")))
    assert ended.code == 0 and pa.ipc.open_stream(ended.output).read_all().to_pydict() == {"n": [ROWS], "most": [ROWS - 1]}


def test_sub_plan_with_an_unknown_column_is_named(drive: programs.Drive) -> None:
    ended = run(drive, sub.read_named_table(["lab", "wide"], {"absent": sub.i64}))
    failed = json.loads(ended.printed)["failed"]
    assert (ended.code, failed["kind"]) == (1, "invalid") and "absent" in failed["text"], failed
    with pytest.raises(skytether.InvalidError, match="ticket"):
        drive.put(b"SKYPLAN1 and no ticket", name="plan")
