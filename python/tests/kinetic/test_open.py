"""Fleets on Kinetic drives that Python opens itself, by the addresses of the drives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skytether
from fleets import PROGRAM

from . import wire
from .targets import Drive, chosen
from .wire import Code, acl, scope

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


def url(drives: list[Drive], scheme: str = "kinetic") -> str:
    port = {"kinetic": lambda at: at.port, "kinetics": lambda at: at.tls_port}[scheme]
    return f"{scheme}://" + ",".join(f"{drive.address.host}:{port(drive.address)}" for drive in drives)


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


def test_host_that_may_run_no_programs_reads_values_itself(drives: list[Drive], monkeypatch: pytest.MonkeyPatch) -> None:
    everything = scope(*(right for right in range(11) if right != 6))
    but_programs = scope(wire.READ, wire.WRITE, wire.DELETE, wire.RANGE, wire.GETLOG)
    for drive in drives:
        with drive.client(tls=True) as secure:
            assert secure.set_acls(acl(wire.IDENTITY, wire.KEY, everything), acl(2, b"narrow", but_programs)).code == Code.SUCCESS
    monkeypatch.setenv("SKYTETHER_KINETIC_IDENTITY", "2")
    monkeypatch.setenv("SKYTETHER_KINETIC_KEY", "narrow")
    with skytether.open(url(drives), slice_rows=100) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        for cut in ("adaptive", "full", "raw"):
            result = fleet.sql(BY_CITY, cut=cut)
            assert result.to_arrow().to_pydict() == ANSWER
            ran = result.receipt.to_dict()["drives"]
            # Their values moved, and the receipt says so. Asked for the values only, a host does not ask for more.
            assert len(ran) == 3 and all(drive["rung"] == "raw" and drive["slices"] > 0 for drive in ran), ran
            assert cut == "raw" or all("NOT_AUTHORIZED" in drive["stood_for"] for drive in ran), ran
    monkeypatch.delenv("SKYTETHER_KINETIC_IDENTITY")
    monkeypatch.delenv("SKYTETHER_KINETIC_KEY")
    with skytether.open(url(drives), create=False) as fleet:
        result = fleet.sql(BY_CITY)
        assert result.to_arrow().to_pydict() == ANSWER
        assert all(drive["rung"] == "full" and not drive.get("stood_for") for drive in result.receipt.to_dict()["drives"])


def test_fleet_over_tls_is_coded_scrubbed_and_repaired(drives: list[Drive], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(skytether.SkytetherError, match="certificate"):
        skytether.open(url(drives, "kinetics"))
    monkeypatch.setenv("SKYTETHER_TLS_CA", str(drives[0].pki / "ca.pem"))
    with skytether.open(url(drives, "kinetics"), redundancy="ec:2+1", slice_rows=100) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        result = fleet.sql(BY_CITY)
        assert result.to_arrow().to_pydict() == ANSWER
        assert all(drive["rung"] == "full" for drive in result.receipt.to_dict()["drives"])
        whole = fleet.scrub()
        assert whole["damaged"] == 0 and whole["values"] > 0, whole
        # Another client removes a slice.
        with drives[2].client() as other:
            slices = [key for key in other.keys(b"taxi/trips/", b"taxi/trips0") if b";" in key]
            assert slices and other.delete(slices[0], force=True).code == Code.SUCCESS
        mended = fleet.scrub()
        assert (mended["damaged"], mended["mended"]) == (1, 1), mended
        ids = {drive["info"]["name"]: drive["info"]["id"] for drive in fleet.status()}
    drives[1].stop(kill=True)
    left = [drives[0], drives[2]]
    with skytether.open(url(left, "kinetics"), create=False) as fleet:
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
        blank = Drive(tmp_path / "drives" / "blank", "drive", (0, 0), "--name", "drive-1", "--replace", ids["drive-1"])
        drives.append(blank)
        report = fleet.repair("drive-1", address=url([blank], "kinetics"))
        assert report["drives"] == ["drive-1"] and report["rebuilt"] > 0 and not report["left"] and not report["lost"], report
        assert fleet.scrub()["damaged"] == 0
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
    # The new one is whole: another one may be lost.
    drives[0].stop(kill=True)
    with skytether.open(url([drives[2], blank], "kinetics"), create=False) as fleet:
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
