"""Served drives, their host, and programs that ingest, killed (SIGKILL) in the middle of their work. Data sets are old
or new, nothing leaks, and interrupted work can be repeated.

In the middle means one of three: within the progress callback, while the work waits for a drive that was stopped just
before, or while the work's thread lives.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fleets import Served, serving

import skytether

#: Fleets of four drives that survive the loss of one, and take ingests while one is away; all tables have many slices.
OPTIONS = ("--redundancy", "ec:2+1", "--slice-rows", 500)
DRIVES = 4

#: Several rounds, each with deadlines of its own, which are to say what hangs before this does.
pytestmark = pytest.mark.timeout(900)

#: How errors name a host that is dead, and how those who write through it tell that they reach no drive any more.
HOST = ("the host at ", "drives are lost")


def table(rows: int, seed: int) -> pa.Table:
    """A table in batches of 500 rows, of numbers that nothing packs."""
    noise = np.random.default_rng(seed)
    columns = {name: noise.integers(-(2**40), 2**40, rows) for name in ("a", "b", "c")}
    return pa.Table.from_batches(pa.table({"id": np.arange(rows), **columns}).to_batches(max_chunksize=500))


OLD, NEW, BESIDE = table(3_000, 1), table(20_000, 2), table(2_000, 3)


def said(rows: pa.Table) -> dict[str, int]:
    """What a query says of a table."""
    numbers = rows.to_pandas()
    return {"n": len(numbers), "ids": int(numbers["id"].sum()), "a": int(numbers["a"].sum()), "b": int(numbers["b"].min()), "c": int(numbers["c"].max())}


IS_OLD, IS_NEW, IS_BESIDE = said(OLD), said(NEW), said(BESIDE)


def content(fleet: skytether.Fleet, name: str = "lab.victim") -> dict[str, int] | None:
    """The same of a data set, if there is one of that name."""
    if name not in [dataset["name"] for dataset in fleet.ls()]:
        return None
    return fleet.sql(f"SELECT count(*) AS n, sum(id) AS ids, sum(a) AS a, min(b) AS b, max(c) AS c FROM {name}").to_arrow().to_pylist()[0]


def keys(fleet: skytether.Fleet) -> list[int]:
    return [drive["usage"]["keys"] for drive in fleet.status()]


def all_here(fleet: skytether.Fleet) -> None:
    """Waits until all drives are used again: a host looks for those that were lost every other second."""
    give_up = time.monotonic() + 90
    while any(drive["error"] for drive in fleet.status()):
        assert time.monotonic() < give_up, fleet.status()
        content(fleet, "lab.beside")
        time.sleep(0.1)


def nothing_left(fleet: skytether.Fleet) -> None:
    report = fleet.scrub()
    assert (report["damaged"], report["unverified"], report["skipped"]) == (0, 0, {}), report


@contextmanager
def victims(place: Path) -> Iterator[Served]:
    """Drives and a host, with a data set that no work changes. In the end it is there, and no other value."""
    with serving(place, DRIVES, *OPTIONS) as served:
        with skytether.connect(served.url) as fleet:
            empty = keys(fleet)
            fleet.ingest(BESIDE, "lab.beside")
        yield served
        # Who begins deletes what belongs to nothing.
        served.another_host(*OPTIONS)
        with skytether.connect(served.url) as fleet:
            all_here(fleet)
            assert content(fleet, "lab.beside") == IS_BESIDE
            for dataset in fleet.ls():
                fleet.drop(dataset["name"])
            assert keys(fleet) == empty


def after(served: Served) -> dict[str, int] | None:
    """What the victim holds for a new host, when all drives are here; nothing is damaged, and none is left out."""
    served.another_host(*OPTIONS)
    with skytether.connect(served.url) as fleet:
        all_here(fleet)
        nothing_left(fleet)
        assert content(fleet, "lab.beside") == IS_BESIDE
        return content(fleet)


class Doing(threading.Thread):
    """Work on a thread of its own, which may fail because a process that it needs was killed."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.result, self.error = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.work()
        except Exception as e:  # noqa: BLE001 - told by `ended`
            self.error = e

    def lives(self, seconds: float) -> bool:
        """Whether it is not done after so long."""
        self.join(seconds)
        return self.is_alive()

    def ended(self, *names: str) -> bool:
        """Waits for its end; whether it failed, which names one of these then."""
        self.join(120)
        assert not self.is_alive(), "it hangs"
        if self.error is not None:
            assert isinstance(self.error, skytether.UnavailableError) and any(name in str(self.error) for name in names), repr(self.error)
        return self.error is not None


@pytest.mark.parametrize("replace", [False, True])
def test_ingest_with_a_killed_drive_leaves_old_or_new(tmp_path: Path, replace: bool) -> None:
    old, failed = IS_OLD if replace else None, 0
    with victims(tmp_path) as served:
        for n, at in enumerate((500, 9_000, NEW.num_rows)):
            with skytether.connect(served.url) as fleet:
                if replace:
                    fleet.ingest(OLD, "lab.victim", replace=True)
                struck: list[int] = []

                def strike(rows: int, n: int = n, at: int = at, struck: list[int] = struck) -> None:
                    if rows >= at and not struck:
                        struck.append(rows)
                        served.strike(n)

                ingest = Doing(lambda: fleet.ingest(NEW, "lab.victim", replace=replace, progress=strike))
                lost = ingest.ended(f"drive-{n}")
                assert struck, "all was done before"
                failed += lost
                now = content(fleet)
                # What was acknowledged is there.
                assert now in (old, IS_NEW) if lost else now == IS_NEW
                assert content(fleet, "lab.beside") == IS_BESIDE
            served.restart(n)
            assert after(served) == now
            with skytether.connect(served.url) as fleet:
                fleet.ingest(NEW, "lab.victim", replace=True)
                assert content(fleet) == IS_NEW
                fleet.drop("lab.victim")
    assert failed > 0, "no ingest heard of it"


def test_drop_with_a_killed_drive_leaves_all_or_nothing(tmp_path: Path) -> None:
    with victims(tmp_path) as served:
        for n in range(DRIVES):
            with skytether.connect(served.url) as fleet:
                fleet.ingest(OLD, "lab.victim")
                # The drive answers no request, so the drop waits for it, whatever its turn is.
                served.processes[n].send_signal(signal.SIGSTOP)
                drop = Doing(lambda: fleet.drop("lab.victim"))
                waited = drop.lives(0.1 + 0.3 * n)
                served.strike(n)
                assert waited, "it was done without the drive"
                lost = drop.ended(f"drive-{n}")
                now = content(fleet)
                assert now in (None, IS_OLD) if lost else now is None
            served.restart(n)
            assert after(served) == now
            if now is not None:
                with skytether.connect(served.url) as fleet:
                    fleet.drop("lab.victim")
                    assert content(fleet) is None


def damage(drive: Path, count: int) -> None:
    """Flips a bit in some slices of a drive."""
    slices = sorted(file for file in (drive / "slices").rglob("*") if file.is_file() and file.read_bytes()[:4] == b"PAR1")[:count]
    assert len(slices) == count
    for file in slices:
        bytes_ = bytearray(file.read_bytes())
        bytes_[len(bytes_) // 2] ^= 4
        file.write_bytes(bytes_)


def test_scrub_with_a_killed_drive_is_completed_by_the_next(tmp_path: Path) -> None:
    struck = 0
    with victims(tmp_path) as served:
        with skytether.connect(served.url) as fleet:
            fleet.ingest(NEW, "lab.victim")
            # So that it takes some seconds.
            rate = fleet.scrub()["bytes_verified"] / DRIVES / 2.5e6
        for n, wait in enumerate((0.3, 0.8, 1.6)):
            damage(tmp_path / f"drive-{n}", 3)
            with skytether.connect(served.url) as fleet:
                scrub = Doing(lambda: fleet.scrub("lab.victim", rate=rate))
                struck += scrub.lives(wait)
                served.strike(n)
                if not scrub.ended(f"drive-{n}"):
                    assert set(scrub.result["skipped"]) <= {f"drive-{n}"}, scrub.result
                # The others make what it had.
                assert content(fleet) == IS_NEW
            served.restart(n)
            served.another_host(*OPTIONS)
            with skytether.connect(served.url) as fleet:
                all_here(fleet)
                report = fleet.scrub()
                assert report["damaged"] == report["mended"] <= 3 and (report["unverified"], report["skipped"]) == (0, {}), report
                nothing_left(fleet)
                assert content(fleet) == IS_NEW
    assert struck > 0, "all scrubs were over before"


def test_repair_resumes_after_a_drive_was_killed(tmp_path: Path) -> None:
    """The new drive is killed, and then another one."""
    struck = 0
    with victims(tmp_path) as served:
        with skytether.connect(served.url) as fleet:
            fleet.ingest(NEW, "lab.victim")
            fleet.ingest(OLD, "lab.more")
            lost = fleet.status()[1]
        assert lost["info"]["name"] == "drive-1"
        served.strike(1)
        shutil.rmtree(tmp_path / "drive-1")
        blank = ("--replace", lost["info"]["id"])
        served.restart(1, *blank)
        # Two shards are read for each that was lost; so that this takes some seconds.
        rate = 2 * lost["usage"]["value_bytes"] / 2.5e6
        for n, wait in ((1, 0.3), (3, 0.8), (1, 1.6)):
            with skytether.connect(served.url) as fleet:
                repair = Doing(lambda: fleet.repair(rate=rate))
                struck += repair.lives(wait)
                served.strike(n)
                repair.ended("drive-1", f"drive-{n}")
            served.restart(n, *(blank if n == 1 else ()))
            served.another_host(*OPTIONS)
            with skytether.connect(served.url) as fleet:
                assert (content(fleet), content(fleet, "lab.more")) == (IS_NEW, IS_OLD)
        assert struck > 0, "all repairs were over before"
        with skytether.connect(served.url) as fleet:
            report = fleet.repair()
            assert (report["left"], report["lost"]) == ([], {}), report
            all_here(fleet)
        assert after(served) == IS_NEW


def test_ingest_with_a_killed_host_leaves_old_or_new(tmp_path: Path) -> None:
    with victims(tmp_path) as served:

        def another() -> None:
            """A new host, where the one before is dead."""
            served.processes.pop()
            served.url = served.host(*OPTIONS)

        # Before all rows were on their way it can't have committed.
        for at in (500, 12_000, NEW.num_rows):
            with skytether.connect(served.url) as fleet:
                fleet.ingest(OLD, "lab.victim", replace=True)
                before, struck = keys(fleet), []

                def strike(rows: int, at: int = at, struck: list[int] = struck) -> None:
                    if rows >= at and not struck:
                        struck.append(rows)
                        served.strike(-1)

                ingest = Doing(lambda: fleet.ingest(NEW, "lab.victim", replace=True, progress=strike))
                assert ingest.ended(*HOST) and struck
            another()
            with skytether.connect(served.url) as fleet:
                assert content(fleet) == IS_OLD
                assert keys(fleet) == before, "what was cut off is there still"
                nothing_left(fleet)
        # And from then on either may be.
        for wait in (0.0, 0.05, 0.2):
            with skytether.connect(served.url) as fleet:
                fleet.ingest(OLD, "lab.victim", replace=True)
                last = threading.Event()
                ingest = Doing(lambda: fleet.ingest(NEW, "lab.victim", replace=True, progress=lambda rows: last.set() if rows == NEW.num_rows else None))
                assert last.wait(60)
                ingest.lives(wait)
                served.strike(-1)
                lost = ingest.ended(*HOST)
            another()
            with skytether.connect(served.url) as fleet:
                assert content(fleet) in ((IS_OLD, IS_NEW) if lost else (IS_NEW,))
                nothing_left(fleet)
                fleet.ingest(NEW, "lab.victim", replace=True)
                assert content(fleet) == IS_NEW


#: Ingests a file of batches into the victim; says after each how many rows are on their way, and
#: goes on when it is told.
INGEST = """
import sys
import pyarrow as pa
import skytether

def tell(rows):
    print(rows, flush=True)
    sys.stdin.readline()

with skytether.connect(sys.argv[1]) as fleet:
    fleet.ingest(pa.ipc.open_file(sys.argv[2]).read_all(), "lab.victim", replace=True, progress=tell)
print("done", flush=True)
"""


def test_killed_client_of_an_ingest_leaves_the_old(tmp_path: Path) -> None:
    file = tmp_path / "new.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, NEW.schema) as writer:
        writer.write_table(NEW)
    with victims(tmp_path) as served:
        with skytether.connect(served.url) as fleet:
            fleet.ingest(OLD, "lab.victim")
            before = keys(fleet)
        for at in (500, 12_000, NEW.num_rows):
            process = subprocess.Popen([sys.executable, "-c", INGEST, served.url, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                for line in process.stdout:
                    assert line.strip() != "done"
                    if int(line) >= at:
                        break
                    process.stdin.write("\n")
                    process.stdin.flush()
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
                process.stdin.close()
            assert process.returncode == -signal.SIGKILL, "it had ended before"
            with skytether.connect(served.url) as fleet:
                assert content(fleet) == IS_OLD
            assert after(served) == IS_OLD
            with skytether.connect(served.url) as fleet:
                assert keys(fleet) == before, "what was cut off is there still"
        with skytether.connect(served.url) as fleet:
            fleet.ingest(NEW, "lab.victim", replace=True)
            assert content(fleet) == IS_NEW
