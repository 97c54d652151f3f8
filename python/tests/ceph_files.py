"""The same files in CephFS, in RADOS and on a disk, for tests of data sets of files in Ceph."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import skytether
from ceph import Cluster
from skytether import _internal

ROWS = 5000

FIELD = pc.field

#: Conditions over many types of `rows`, each true for some of them.
CONDITIONS = [
    FIELD("small") < 7,
    FIELD("wide") > 4_000 * 10**12,
    FIELD("odd") > 100.0,
    FIELD("odd").is_nan(),
    FIELD("odd") == -0.0,
    FIELD("day") >= date.fromordinal(733000),
    FIELD("at") < datetime(2020, 1, 3, tzinfo=timezone.utc),
    FIELD("money") > Decimal("30.00"),
    FIELD("b"),
    FIELD("b").is_null(),
    FIELD("s").isin(["name 1", "name 2"]),
    pc.starts_with(FIELD("s"), "name 9"),
    pc.field("inner", "x") == 3,
    (FIELD("i") > 0) & (FIELD("f") < 1000) & ~(FIELD("s") == "name 5"),
]


def rows(first: int, number: int = ROWS, text_only: bool = False) -> pa.Table:
    """Rows of many types, with NULLs in each; of those that CSV and JSON have with `text_only`."""
    n = np.arange(first, first + number)
    noise = np.random.default_rng(first)
    null = noise.random(number) < 0.1

    def some(values: Any, of: pa.DataType) -> pa.Array:
        return pa.array([None if gone else value for value, gone in zip(values, null)], of)

    table = pa.table(
        {
            "id": pa.array(n, pa.int64()),
            "i": some((n % 1000 - 500).tolist(), pa.int64()),
            "f": some([x / 4 for x in range(number)], pa.float64()),
            "s": some([f"name {x % 97}" for x in n], pa.string()),
            "b": some([bool(x % 3) for x in n], pa.bool_()),
        }
    )
    if text_only:
        return table
    day = [date.fromordinal(730000 + int(x) % 4000) for x in n]
    at = [datetime(2020, 1, 1 + int(x) % 28, int(x) % 24, tzinfo=timezone.utc) for x in n]
    odd = [float("nan") if x % 11 == 0 else float("inf") if x % 13 == 0 else -0.0 if x % 7 == 0 else float(x) for x in n]
    more = {
        "small": some((n % 100).tolist(), pa.int8()),
        "wide": some((n * 10**12).tolist(), pa.uint64()),
        "odd": some(odd, pa.float32()),
        "day": some(day, pa.date32()),
        "at": some(at, pa.timestamp("us", "UTC")),
        "money": some([Decimal(int(x)) / 100 for x in n], pa.decimal128(12, 2)),
        "raw": some([bytes([int(x) % 256]) * 3 for x in n], pa.binary()),
        "list": some([[int(x)] * (int(x) % 3) for x in n], pa.list_(pa.int32())),
        "inner": some([{"x": int(x) % 5, "y": str(x)} for x in n], pa.struct([("x", pa.int32()), ("y", pa.string())])),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


def written(table: pa.Table, format: str, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, out, **{"row_group_size": 700, **options})
    elif format == "feather":
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, 700)
    elif format == "csv":
        pyarrow.csv.write_csv(table, out)
    else:
        out.write("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode())
    return out.getvalue().to_pybytes()


def alike(found: pa.Table, due: pa.Table) -> bool:
    """Whether two tables have the same values to the last bit: NaN and -0.0, too."""
    return found.schema.equals(due.schema) and repr(found.to_pylist()) == repr(due.to_pylist())


class Both:
    """The same files in CephFS, in RADOS, and on a disk."""

    def __init__(self, ceph: Cluster, disk: Path, name: str, format: str) -> None:
        self.disk, self.format = disk / name, format
        self.addresses = [f"cephfs:/{name}?conf={ceph.conf}", f"rados://sky/{name}/?conf={ceph.conf}&namespace=files"]
        self.trees = [_internal.CephFiles(address, False) for address in self.addresses]

    def write(self, path: str, data: bytes) -> None:
        (self.disk / path).parent.mkdir(parents=True, exist_ok=True)
        (self.disk / path).write_bytes(data)
        for tree in self.trees:
            tree.write(path, data)

    def mine(self, **options: Any) -> list[skytether.FileDataset]:
        return [skytether.dataset(address, format=self.format, **options) for address in self.addresses]

    def theirs(self, schema: pa.Schema) -> pads.Dataset:
        return pads.dataset(self.disk, schema=schema, format=self.format, partitioning="hive")

    def same(self, **scan: Any) -> pa.Table:
        """The table of a scan, which is pyarrow's in both."""
        for mine in self.mine():
            due = self.theirs(mine.schema).to_table(**scan)
            found = mine.to_table(**scan)
            assert found.schema.equals(due.schema), (found.schema, due.schema)
            assert alike(found, due)
            condition = scan.get("filter")
            assert mine.count_rows(filter=condition) == self.theirs(mine.schema).count_rows(filter=condition) == due.num_rows
        return due
