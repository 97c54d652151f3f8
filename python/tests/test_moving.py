"""Adaptive execution: slow drives get help, and a drive that dies and comes back loses only its unfinished work."""

from __future__ import annotations

import subprocess
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
import skytether
from fleets import PROGRAM, device

ROWS = 400_000
SQL = "SELECT g, count(*) AS n, sum(x) AS s, min(x) AS least FROM lab.t WHERE x > 5 GROUP BY g ORDER BY g"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    return pa.table({"g": rng.integers(0, 50, ROWS), "x": rng.integers(0, 1000, ROWS), "noise": rng.random(ROWS)})


@pytest.fixture(scope="module")
def expected(table, tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("plain"), drives=1) as fleet:
        fleet.ingest(table, "lab.t")
        return fleet.sql(SQL).to_arrow()


def test_a_slow_drive_gets_help(table, expected, tmp_path):
    with skytether.open(tmp_path / "fleet", drives=2, slice_rows=10_000) as fleet:
        fleet.ingest(table, "lab.t")
    with skytether.open(tmp_path / "fleet", profile=[device(1.0), device(0.005)]) as fleet:
        result = fleet.sql(SQL)
        assert result.to_arrow() == expected
        drives = {drive["name"]: drive for drive in result.receipt.to_dict()["drives"]}
        assert "handed to the host" in drives["drive-1"]["reason"]
        assert drives["drive-1"]["rung"] == "raw"
        # The slow drive read the slices that it sent raw, and the host processed them.
        receipt = result.receipt.to_dict()
        above, host = drives["drive-1"]["above"], receipt["host_work"]
        assert 0 < above["bytes_read"] <= drives["drive-1"]["bytes_read"] and 0 < above["slices"] <= host["slices"]
        assert host["rows_read"] > 0 and 0 < host["seconds"] <= 1.01 * sum(o["seconds"] for o in receipt["host"] if o["scan"] is not None)
        assert all(d["slices"] + d.get("above", {"slices": 0})["slices"] + d["slices_pruned"] + d["slices_told"] == d["slices_total"] for d in drives.values())
        assert "that drives handed out" in str(result.receipt)
        # The same, with the choice made beforehand.
        full = fleet.sql(SQL, cut="full")
        assert full.to_arrow() == expected
        assert all(drive["rung"] == "full" and drive["reason"] is None for drive in full.receipt.to_dict()["drives"])
        text = str(fleet.explain(SQL, analyze=True))
        assert "handed to the host" in text


@pytest.mark.parametrize("cut", ["full", "adaptive"])
def test_a_killed_drive_that_comes_back_is_asked_again(table, expected, tmp_path, cut):
    slow = tmp_path / "slow.toml"
    # Its disk and not its processor, so that the drives have begun when one is killed, and have not
    # ended, whatever the machine.
    slow.write_text(device(1.0, disk=5e4))
    processes = {}

    def start(name: str, *arguments: object) -> str:
        with open(tmp_path / f"{name}.log", "a") as log:
            process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=log, text=True)
        processes[name] = process
        line = process.stdout.readline()
        assert "grpc://" in line, (tmp_path / f"{name}.log").read_text()
        return line.strip().rsplit("grpc://", 1)[1]

    def drive(n: int, address: str = "127.0.0.1:0", *more: object) -> str:
        return start(f"drive-{n}", "drive", "serve", "--data", tmp_path / f"drive-{n}", "--listen", address, *more)

    try:
        addresses = [drive(n) for n in range(2)]
        host = start("host", "host", "serve", "--drives", ",".join(addresses), "--slice-rows", 10_000, "--listen", "127.0.0.1:0")
        with skytether.connect(host) as fleet:
            fleet.ingest(table, "lab.t")
        # From here on the drives are slow, so that there is time to kill one in the middle.
        for name in ("host", "drive-0", "drive-1"):
            processes[name].kill()
            processes[name].wait()
        addresses = [drive(n, "127.0.0.1:0", "--profile", slow) for n in range(2)]
        host = start("host", "host", "serve", "--drives", ",".join(addresses), "--listen", "127.0.0.1:0")

        killed = []

        def kill_and_start_again() -> None:
            time.sleep(2.0)
            processes["drive-1"].kill()
            processes["drive-1"].wait()
            killed.append(time.monotonic())
            drive(1, addresses[1], "--profile", slow)

        with skytether.connect(host) as fleet:
            worker = threading.Thread(target=kill_and_start_again)
            worker.start()
            result = fleet.sql(SQL, cut=cut).to_arrow()
            ended = time.monotonic()
            worker.join()
            assert result == expected
            if cut == "full":
                assert ended > killed[0], "the query was over before its drive was killed: the test shows nothing"
            assert fleet.sql(SQL, cut=cut).to_arrow() == expected
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_join_that_needs_no_rows_ends_on_the_host(tmp_path):
    """A plan that ends before its input does is done with all slices that drives sent raw: this hung."""
    rows = pa.table({"u": range(120), "m": [1, 2, None] * 40, "s": [{"a": n, "b": str(n)} for n in range(120)]})
    devices = [device(1.0), device(0.5, cores=2), device(0.25)]
    with skytether.open(tmp_path / "fleet", drives=3, slice_rows=7) as fleet:
        fleet.ingest(rows, "lab.s")
    with skytether.open(tmp_path / "fleet", profile=devices) as fleet:
        # The join has no key to look for, and reads nothing of the table.
        sql = "SELECT DISTINCT t.s FROM lab.s t JOIN (SELECT CAST(NULL AS BIGINT) AS k) AS n ON t.m = n.k"
        answers = []
        for _ in range(3):
            asked = threading.Thread(target=lambda: answers.append(fleet.sql(sql).to_arrow().num_rows), daemon=True)
            asked.start()
            asked.join(60)
        assert answers == [0, 0, 0]


def test_joins_on_drives_with_cores_count_rows_once(tmp_path):
    """Lanes of a drive share what they build of a broadcast table. A side that reads the table itself is each lane's
    own: lanes that shared it gave its rows once each."""
    numbers = [n % 7 for n in range(60)]
    rows = pa.table({"u": range(60), "m": pa.array(numbers, pa.int16())})
    with skytether.open(tmp_path / "fleet", drives=2, slice_rows=7) as fleet:
        fleet.ingest(rows, "lab.s")
        fleet.ingest(pa.table({"k": [1, 2], "name": ["a", "b"]}), "lab.names")
    with skytether.open(tmp_path / "fleet", profile=[device(1.0, cores=4), device(0.5, cores=2)]) as fleet:
        for cut in ("full", "filter", "raw", "adaptive"):

            def ask(sql: str) -> list:
                return sorted(tuple(row.values()) for row in fleet.sql(sql, cut=cut).to_arrow().to_pylist())

            # A constant of another type than the column: the smaller side by DataFusion's count is the table.
            assert ask("SELECT count(*), sum(u) FROM lab.s t JOIN (SELECT 1 AS k) AS one ON t.m = one.k") == [(9, sum(range(1, 60, 7)))]
            assert ask("SELECT u FROM lab.s t JOIN (SELECT 1 AS k) AS one ON t.m = one.k") == [(u,) for u in range(1, 60, 7)]
            assert ask("SELECT n.name, count(*) FROM lab.s t JOIN lab.names n ON t.m = n.k GROUP BY n.name") == [("a", 9), ("b", 9)]
            assert ask("SELECT count(*) FROM lab.s t LEFT JOIN lab.names n ON t.m = n.k WHERE n.k IS NULL") == [(42,)]
            assert ask("SELECT count(*) FROM lab.s t WHERE m IN (SELECT 1) OR m NOT IN (SELECT 2)") == [(51,)]
