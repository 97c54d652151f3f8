"""Tables that are partitioned by key: what is stored where, what is rejected, and that joins, windows and aggregates by
the key run whole on the drives."""

from __future__ import annotations

import decimal
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleets import PROGRAM, opened_or_connected
from skytether.errors import InvalidError

import skytether

ROWS = 4000


def keyed() -> pa.Table:
    """Rows of keys of each kind, with NULLs; two thirds have one key."""
    k = [None if i % 17 == 0 else 7 if i % 3 else i % 50 for i in range(ROWS)]
    return pa.table({
        "k": pa.array(k, pa.int64()),
        "s": pa.array([None if i % 19 == 0 else f"ä{i % 40}" for i in range(ROWS)]),
        "d": pa.array([i % 90 for i in range(ROWS)], pa.int32()).cast(pa.date32()),
        "m": pa.array([decimal.Decimal(i % 30) / 4 for i in range(ROWS)], pa.decimal128(10, 2)),
        "b": pa.array([i % 5 == 0 for i in range(ROWS)]),
        "v": pa.array(range(ROWS), pa.int64()),
        "f": pa.array([i / 7 for i in range(ROWS)]),
    })


def rows_by_drive(fleet: skytether.Fleet, name: str) -> list[int]:
    return [part["rows"] for part in fleet.describe(name)["tables"]["data"]["partitions"]]


@pytest.mark.parametrize("by", ["k", ["k", "s"], ("b", "d", "m")], ids=str)
def test_every_row_is_stored_once_and_equal_keys_are_together(tmp_path: Path, by: str | list[str]) -> None:
    table = keyed()
    columns = [by] if isinstance(by, str) else list(by)
    with skytether.open(tmp_path / "fleet", drives=5) as fleet:
        seen = []
        fleet.ingest(table, "p.t", partition_by=by, progress=seen.append)
        assert seen[-1] == ROWS
        assert fleet.sql("SELECT * FROM p.t ORDER BY v").to_arrow().equals(table.cast(fleet.sql("SELECT * FROM p.t").to_arrow().schema))
        record = fleet.describe("p.t")["tables"]["data"]
        assert [key["column"] for key in record["partitioned_by"]["keys"]] == columns
        assert len(record["partitions"]) == 5 and sum(rows_by_drive(fleet, "p.t")) == ROWS
        # Each drive gives its own groups: were a key on two drives, it would come twice.
        distinct = fleet.sql(f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(columns)} FROM p.t)").to_arrow().column(0)[0].as_py()
        assert distinct == len(set(zip(*(table.column(c).to_pylist() for c in columns))))
        assert fleet.ls()[0]["partitioned_by"] == {"data": columns}


def test_equal_keys_of_two_tables_are_on_one_drive(tmp_path: Path) -> None:
    """Whatever integers and texts are held in, and in which order tables were written."""
    keys = [None, *range(40)]
    wide = pa.table({"k": pa.array(keys, pa.int64())})
    narrow = pa.table({"k": pa.array(keys, pa.uint8())})
    texts = pa.table({"k": pa.array([None if k is None else f"key {k}" for k in keys]).cast(pa.string_view())})
    coded = pa.table({"k": pa.array([None if k is None else f"key {k}" for k in keys]).dictionary_encode()})
    with skytether.open(tmp_path / "fleet", drives=3) as fleet:
        for name, table in [("wide", wide), ("narrow", narrow), ("texts", texts), ("coded", coded)]:
            fleet.ingest(table, f"p.{name}", partition_by="k")
        assert rows_by_drive(fleet, "p.wide") == rows_by_drive(fleet, "p.narrow")
        assert rows_by_drive(fleet, "p.texts") == rows_by_drive(fleet, "p.coded")
        assert min(rows_by_drive(fleet, "p.wide")) > 0


def test_an_empty_table_and_one_key_alone_are_partitioned_too(tmp_path: Path) -> None:
    with skytether.open(tmp_path / "fleet", drives=3) as fleet:
        fleet.ingest(keyed().slice(0, 0), "p.empty", partition_by="k")
        fleet.ingest(pa.table({"k": [1] * 100, "v": list(range(100))}), "p.one", partition_by="k")
        assert rows_by_drive(fleet, "p.empty") == [0, 0, 0]
        assert sorted(rows_by_drive(fleet, "p.one")) == [0, 0, 100]
        assert fleet.sql("SELECT count(*), sum(v) FROM p.one").to_arrow().to_pylist() == [{"count(*)": 100, "sum(p.one.v)": 4950}]
        assert fleet.sql("SELECT * FROM p.empty").to_arrow().num_rows == 0


def test_unsupported_keys_are_refused_by_name(tmp_path: Path) -> None:
    with skytether.open(tmp_path / "fleet", drives=2) as fleet:
        table = keyed().append_column("list", pa.array([[1]] * ROWS))
        for by, words in [("f", ["\"f\"", "fraction"]), ("list", ["\"list\"", "plain values"]), ("nothing", ["\"nothing\"", "k, s, d"]), (["k", "k"], ["twice"])]:
            with pytest.raises(InvalidError) as error:
                fleet.ingest(table, "p.t", partition_by=by)
            assert all(word in str(error.value) for word in words), error.value
        assert fleet.ls() == []
        fleet.ingest(table, "p.t", partition_by=[])
        assert "partitioned_by" not in fleet.describe("p.t")["tables"]["data"]


def test_the_command_and_a_served_fleet_partition_as_well(tmp_path: Path) -> None:
    pq.write_table(keyed(), tmp_path / "t.parquet")
    with opened_or_connected("connected", tmp_path, 3) as fleet:
        fleet.ingest(tmp_path / "t.parquet", "p.python", partition_by=["k", "s"])
        place = fleet._inner.location()
        run = [PROGRAM, "ingest", tmp_path / "t.parquet", "--to", "p.command", "--partition-by", "k,s", "--fleet", place]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.startswith("p.command: 4,000 rows")
        assert rows_by_drive(fleet, "p.python") == rows_by_drive(fleet, "p.command")
        listed = subprocess.run([PROGRAM, "ls", "--fleet", place], capture_output=True, text=True, check=True).stdout
        assert "data by k, s" in listed
        shown = json.loads(subprocess.run([PROGRAM, "ls", "--fleet", place, "--format", "json"], capture_output=True, text=True, check=True).stdout)
        assert {d["name"]: d["partitioned_by"] for d in shown} == {"p.command": {"data": ["k", "s"]}, "p.python": {"data": ["k", "s"]}}
        wrong = subprocess.run([*run[:3], "--to", "p.wrong", "--partition-by", "f", "--fleet", place], capture_output=True, text=True, check=False)
        assert wrong.returncode == 1 and "\"f\"" in wrong.stderr
