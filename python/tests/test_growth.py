"""Fleets that grow and shrink, from Python and from the command line, and when the process is
killed in the middle of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import command

import skytether

ROWS = 40_000


def table(rows: int = ROWS) -> pa.Table:
    return pa.table({"id": list(range(rows)), "x": [(i * 7919 % 10_007) / 16 for i in range(rows)]})


def make(path: Path, redundancy: str) -> Path:
    with skytether.open(path, drives=4, redundancy=redundancy, slice_rows=500) as opened:
        opened.ingest(table(), "lab.t")
        opened.ingest(table(900), "lab.small")
        opened.ingest(table(10_000), "lab.more")
    return path


def total(fleet: skytether.Fleet) -> list[dict[str, object]]:
    return fleet.sql("SELECT count(*) AS n, sum(id) AS ids, max(x) AS most FROM lab.t").to_arrow().to_pylist()


def check(fleet: skytether.Fleet) -> None:
    assert total(fleet) == [{"n": ROWS, "ids": ROWS * (ROWS - 1) // 2, "most": 10_006 / 16}]
    scrubbed = fleet.scrub()
    assert (scrubbed["damaged"], scrubbed["unverified"], scrubbed["skipped"]) == (0, 0, {})


@pytest.mark.parametrize("redundancy", ["none", "ec:2+1"])
def test_drives_come_and_go(tmp_path: Path, redundancy: str) -> None:
    path = make(tmp_path / "fleet", redundancy)
    with skytether.open(path) as fleet:
        told: list[tuple[int, int]] = []
        grown = fleet.add_drives(2, progress=lambda done, all_: told.append((done, all_)))
        assert grown["added"] == ["drive-4", "drive-5"] and grown["off_after"] < 0.05 + 2 * grown["longest"] / (sum(d["after"] for d in grown["drives"]) / 6)
        assert grown["bytes_moved"] <= grown["bytes_least"] + 2 * 3 * 6 * grown["longest"] and told[-1][0] == told[-1][1] > 0
        check(fleet)
        # What small data sets leave uneven together follows from the places of all of them: a second look
        # may find a slice or two.
        assert fleet.balance()["bytes_moved"] <= 6 * grown["longest"]
        shrunk = fleet.retire(["drive-0", "drive-5"], rate=1000)
        assert shrunk["retired"] == ["drive-0", "drive-5"]
        assert [drive["info"]["name"] for drive in fleet.status()] == ["drive-1", "drive-2", "drive-3", "drive-4"]
        check(fleet)
        for wrong in (lambda: fleet.retire("drive-0"), lambda: fleet.add_drives(0), lambda: fleet.add_drives(1, addresses="127.0.0.1:1"), lambda: fleet.balance(rate=-1)):
            with pytest.raises(skytether.InvalidError):
                wrong()
    with skytether.open(path) as fleet:
        check(fleet)


def test_from_the_command_line(tmp_path: Path) -> None:
    path = make(tmp_path / "fleet", "replicas:2")
    added = command("fleet", "add", "--fleet", str(path), "--format", "json", module="skytether._cli")
    assert added.returncode == 0 and json.loads(added.stdout)["added"] == ["drive-4"], added
    retired = command("fleet", "retire", "drive-2", "--fleet", str(path), "--rate", "500", module="skytether._cli")
    assert retired.returncode == 0 and "drive-2 retired" in retired.stdout and "furthest off the mean" in retired.stdout, retired
    balanced = command("fleet", "balance", "--fleet", str(path), "--format", "json", module="skytether._cli")
    report = json.loads(balanced.stdout)
    assert balanced.returncode == 0 and report["bytes_moved"] <= 6 * report["longest"] and report["left"] == [], balanced
    wrong = command("fleet", "retire", "drive-2", "--fleet", str(path), module="skytether._cli")
    assert wrong.returncode == 1 and "there is no drive" in wrong.stderr
    assert command("fleet", "retire", "--fleet", str(path), module="skytether._cli").returncode == 2


def names(path: Path) -> list[str]:
    with skytether.open(path) as fleet:
        check(fleet)
        return [drive["info"]["name"] for drive in fleet.status()]


def killed(args: list[str], after: float, begun: Path | None = None) -> bool:
    """Runs our command and kills it `after` seconds after it began, or after `begun` was there. Gives whether it was
    alive until then."""
    process = subprocess.Popen([sys.executable, "-m", "skytether._cli", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 60
    while begun is not None and not begun.exists() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.01)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_growth_resumes(tmp_path: Path, seed: int) -> None:
    """A growth and a retirement, killed at random times and begun again, until they are done:
    everything is whole each time."""
    path = make(tmp_path / "fleet", "ec:2+1")
    draw, kills = random.Random(seed), 0
    # So that it takes some seconds.
    slowly = ["--fleet", str(path), "--rate", "0.05"]
    for _ in range(6):
        there = "drive-4" in names(path)
        if not killed(["fleet", "balance" if there else "add", *slowly], 0.2 + 2 * draw.random()):
            break
        kills += 1
    if "drive-4" not in names(path):
        assert command("fleet", "add", "--fleet", str(path), module="skytether._cli").returncode == 0
    for _ in range(6):
        if "drive-1" not in names(path) or not killed(["fleet", "retire", "drive-1", *slowly], 0.2 + 2 * draw.random()):
            break
        kills += 1
    assert kills > 2, seed
    if "drive-1" in names(path):
        assert command("fleet", "retire", "drive-1", "--fleet", str(path), module="skytether._cli").returncode == 0
    with skytether.open(path) as fleet:
        fleet.balance()
        check(fleet)
        for dataset in fleet.ls():
            fleet.drop(dataset["name"])
        # The record of the fleet is all that is left on each drive.
        assert [drive["usage"]["keys"] for drive in fleet.status()] == [1] * 4


def test_a_repair_that_is_killed_goes_on(tmp_path: Path) -> None:
    path = make(tmp_path / "fleet", "ec:2+1")
    lost = path / "drives" / "1"
    lost.rename(tmp_path / "away")
    draw, kills = random.Random(3), 0
    for _ in range(4):
        kills += killed(["repair", "--fleet", str(path), "--replace", "drive-1", "--rate", "0.1"], 0.3 * draw.random(), lost / "drive.json")
        time.sleep(0.01)
    assert kills > 0
    with skytether.open(path) as fleet:
        report = fleet.repair()
        assert report["drives"] == ["drive-1"] or not report["lost"], report
        check(fleet)
    before = {file.name for file in (tmp_path / "away" / "slices").rglob("*") if file.is_file()}
    after = {file.name for file in (lost / "slices").rglob("*") if file.is_file()}
    assert len(after) == len(before)
