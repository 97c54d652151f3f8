"""Scrubs and repairs from Python and from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import command

import skytether


def table(rows: int = 20_000) -> pa.Table:
    return pa.table({"id": list(range(rows)), "x": [(i * 7919 % 10_007) / 16 for i in range(rows)]})


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet"
    with skytether.open(path, drives=4, redundancy="ec:2+1", slice_rows=1000) as opened:
        opened.ingest(table(), "lab.t")
        opened.ingest(table(500), "lab.small")
    return path


def total(path: Path) -> list[dict[str, object]]:
    with skytether.open(path) as opened:
        return opened.sql("SELECT count(*) AS n, sum(id) AS ids, max(x) AS most FROM lab.t").to_arrow().to_pylist()


def damage(path: Path, drive: int) -> int:
    """Flips a bit of every slice of a drive; how many."""
    files = [file for file in (path / "drives" / str(drive) / "slices").rglob("*") if file.is_file() and file.read_bytes()[:4] == b"PAR1"]
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    return len(files)


def test_damage_is_reported_and_repaired(fleet: Path) -> None:
    before = total(fleet)
    damaged = damage(fleet, 2)
    assert damaged > 3
    with skytether.open(fleet) as opened:
        assert opened.sql("SELECT count(*), sum(id), max(x) FROM lab.t").to_arrow().num_rows == 1
        assert {drive["info"]["name"]: drive.get("damaged", 0) > 0 for drive in opened.status()} == {f"drive-{n}": n == 2 for n in range(4)}
        told: list[tuple[int, int]] = []
        checked = opened.scrub(check=True, progress=lambda done, all_: told.append((done, all_)))
        assert (checked["damaged"], checked["mended"], checked["check"]) == (damaged, 0, True)
        assert told[-1][0] == told[-1][1] > 0
        small = opened.scrub("lab.small")
        assert small["values"] < checked["values"] and small["damaged"] == small["mended"]
        report = opened.scrub(rate=500)
        assert report["damaged"] == report["mended"] == damaged - small["damaged"]
        assert {found["drive"] for found in small["found"] + report["found"]} == {"drive-2"}
        assert opened.scrub(["lab.t", "lab.small"])["damaged"] == 0
        with pytest.raises(skytether.NotFoundError):
            opened.scrub("lab.nothing")
        with pytest.raises(skytether.InvalidError):
            opened.scrub(rate=0)

        def stop(_done: int, _all: int) -> None:
            raise ValueError("enough")

        with pytest.raises(skytether.InvalidError, match="progress function failed"):
            opened.scrub(progress=stop)
    assert total(fleet) == before


def test_a_lost_drive_is_replaced(fleet: Path) -> None:
    before = total(fleet)
    shutil.rmtree(fleet / "drives" / "1")
    with skytether.open(fleet) as opened:
        with pytest.raises(skytether.InvalidError, match="not lost"):
            opened.repair("drive-0")
        with pytest.raises(skytether.InvalidError, match="spare can't take the place of drive-1: .* leave the address out"):
            opened.repair("drive-1", address="spare")
        report = opened.repair("drive-1", rate=1000)
        assert report["drives"] == ["drive-1"] and report["rebuilt"] > 0 and report["left"] == [] and report["lost"] == {}
        assert report["bytes_read"] == report["bytes_least"]
        assert not any(drive["error"] for drive in opened.status())
        assert opened.repair()["drives"] == []
    shutil.rmtree(fleet / "drives" / "3")
    assert total(fleet) == before
    with skytether.open(fleet.parent / "bare", drives=2) as bare, pytest.raises(skytether.UnsupportedError):
        bare.repair()


def test_all_drives_that_are_missing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bare"
    with skytether.open(path, drives=3) as bare:
        bare.ingest(table(500), "lab.t")
    for drive in (0, 2):
        shutil.rmtree(path / "drives" / str(drive))
    status = command("status", "--fleet", str(path), module="skytether._cli")
    assert status.returncode == 1 and [line.split()[1] for line in status.stdout.splitlines()[1:]] == ["lost", "up", "lost"]
    with pytest.raises(skytether.UnavailableError, match=r"2 drives are lost.*drive-0 \(.*drive-2 \("):
        skytether.open(path)


def test_the_commands_tell_by_their_exit_status(fleet: Path) -> None:
    at = ["--fleet", str(fleet)]
    assert command("scrub", *at, module="skytether._cli").returncode == 0
    damaged = damage(fleet, 0)
    checked = command("scrub", "--dry-run", "--format", "json", *at, module="skytether._cli")
    assert checked.returncode == 1 and json.loads(checked.stdout)["damaged"] == damaged
    assert "scrub without --dry-run" in checked.stderr
    mended = command("scrub", *at, module="skytether._cli")
    assert mended.returncode == 0 and f"{damaged} damaged, all mended" in mended.stdout
    assert command("scrub", "--rate", "0", *at, module="skytether._cli").returncode == 2
    shutil.rmtree(fleet / "drives" / "2")
    lost = command("repair", *at, module="skytether._cli")
    assert lost.returncode == 1 and "drive-2 is lost" in lost.stdout and "lost still: drive-2" in lost.stderr
    status = command("status", *at, module="skytether._cli")
    assert status.returncode == 1 and "drive-2 is lost: it is missing: there is no drive in" in status.stderr and "`skytether repair --replace drive-2`" in status.stderr
    listed = command("ls", *at, module="skytether._cli")
    assert listed.returncode == 0 and "lab.small" in listed.stdout and "drive-2 is lost; the list is whole" in listed.stderr
    rebuilt = command("repair", "--replace", "drive-2", *at, module="skytether._cli")
    assert rebuilt.returncode == 0 and "drive-2 rebuilt" in rebuilt.stdout
    assert command("status", *at, module="skytether._cli").returncode == 0
    for n in range(4):
        damage(fleet, n)
    left = command("scrub", *at, module="skytether._cli")
    assert left.returncode == 1 and "could not be mended" in left.stdout and "left damaged" in left.stderr
