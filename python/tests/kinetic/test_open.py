"""Fleets on Kinetic drives that Python opens itself, by the addresses of the drives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skytether
from fleets import PROGRAM

from .targets import Drive, chosen

pytestmark = pytest.mark.skipif(chosen() != "drive", reason="each test has drives of its own")

ROWS = pa.table({"city": ["Rome", "Oslo", "Rome", "Bern"] * 500, "fare": [12.5, 31.0, 8.0, 0.5] * 500})
BY_CITY = "SELECT city, count(*) AS n, sum(fare) AS fare FROM taxi.trips GROUP BY city ORDER BY city"
ANSWER = {"city": ["Bern", "Oslo", "Rome"], "n": [500, 500, 1000], "fare": [250.0, 15500.0, 10250.0]}


@pytest.fixture
def drives(tmp_path: Path) -> Iterator[list[Drive]]:
    served = [Drive(tmp_path / "drives" / str(n), "drive", (0, 0), "--name", f"drive-{n}") for n in range(3)]
    yield served
    for drive in served:
        drive.stop(kill=True)


def url(drives: list[Drive]) -> str:
    return "kinetic://" + ",".join(f"{drive.address.host}:{drive.address.port}" for drive in drives)


def test_open_makes_a_fleet_of_drives_and_finds_it_again(drives: list[Drive]) -> None:
    with skytether.open(url(drives), slice_rows=100) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        result = fleet.sql(BY_CITY)
        assert result.to_arrow().to_pydict() == ANSWER
        ran = result.receipt.to_dict()["drives"]
        assert len(ran) == 3 and all(drive["slices"] > 0 and drive["rung"] == "full" and not drive.get("stood_for") for drive in ran), ran
    with skytether.open(url(drives), create=False) as fleet:
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
    words = [PROGRAM, "sql", "SELECT max(fare) AS most FROM taxi.trips", "--fleet", url(drives), "--format", "csv"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "31" in done.stdout, (done.stdout, done.stderr)


def test_blank_drives_are_no_fleet_that_exists(drives: list[Drive]) -> None:
    with pytest.raises(skytether.NotFoundError, match="none of these drives belongs to a fleet"):
        skytether.open(url(drives), create=False)
    for options in ({"drives": 2}, {"profile": "envoy"}, {"nodes": 3}, {"kept_per_drive": 0}, {"redundancy": "ec:9"}):
        with pytest.raises(skytether.InvalidError):
            skytether.open(url(drives), **options)
    # None of these calls made one.
    with pytest.raises(skytether.NotFoundError):
        skytether.open(url(drives), create=False)


def test_fleet_with_redundancy_answers_without_a_drive(drives: list[Drive]) -> None:
    with skytether.open(url(drives), drives=3, redundancy="ec:2+1", slice_rows=100) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        drives[1].stop(kill=True)
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
    with skytether.open(url(drives), create=False) as fleet:
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
    with pytest.raises(skytether.ConflictError, match="redundancy"):
        skytether.open(url(drives), redundancy="replicas:2")


def test_fleet_that_was_opened_before_is_fenced(drives: list[Drive]) -> None:
    with skytether.open(url(drives)) as older, skytether.open(url(drives)) as newer:
        newer.ingest(ROWS, "taxi.trips")
        with pytest.raises(skytether.ConflictError, match="another host"):
            older.ingest(ROWS, "taxi.other")
        assert older.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
