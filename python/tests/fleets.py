"""Fleets that the tests share: embedded ones with their tables on all drives, and ones whose drives
and host are processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import skytether

#: Where this Python's scripts are: the command as an installed wheel gives it.
PROGRAM = Path(sys.executable).with_name("skytether")

#: Tables of up to `SMALL` rows are cut into slices of `FEW` rows each, others into slices of `MANY`, so that every
#: table is on every drive.
SMALL, FEW, MANY = 500, 2, 500

#: Tables by name, each with its number of rows.
Sources = dict[str, tuple[Any, int]]


class Served:
    """Some drives and a host over them, each a process."""

    def __init__(self, place: Path, drives: int = 4, *options: object) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.place = place
        self.errors = place / "stderr"
        try:
            self.drives = [self.start("drive", "serve", "--data", place / f"drive-{n}") for n in range(drives)]
            self.url = self.host(*options)
        except BaseException:
            self.kill()
            raise

    def host(self, *options: object) -> str:
        """Starts a host over the drives; its address."""
        addresses = ",".join(f"{host}:{port}" for host, port in self.drives)
        return "grpc://{}:{}".format(*self.start("host", "serve", "--drives", addresses, *options))

    def another_host(self, *options: object) -> None:
        """Puts another host in the place of the one that there is."""
        process = self.processes[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, self.errors.read_text()
        self.processes.pop()
        process.stdout.close()
        self.url = self.host(*options)

    def strike(self, n: int) -> None:
        """Kills drive `n`, or the host, which is the last one: by SIGKILL, which a process that is
        stopped dies of as well."""
        process = self.processes[n]
        process.kill()
        process.wait()
        process.stdout.close()

    def restart(self, n: int, *options: object) -> None:
        """Starts drive `n`, which was killed, on its directory and at its address again."""
        self.start("drive", "serve", "--data", self.place / f"drive-{n}", *options, listen="{}:{}".format(*self.drives[n]))
        self.processes[n] = self.processes.pop()

    def start(self, *arguments: object, listen: str = "127.0.0.1:0") -> tuple[str, int]:
        """Starts the command and waits for the address that it prints."""
        with open(self.errors, "a") as errors:
            process = subprocess.Popen([PROGRAM, *map(str, arguments), "--listen", listen], stdout=subprocess.PIPE, stderr=errors, text=True)
        self.processes.append(process)
        line = process.stdout.readline()
        found = re.search(r"grpc://([\d.]+):(\d+)$", line.strip())
        assert found, (arguments, line, self.errors.read_text())
        return found[1], int(found[2])

    def stop(self) -> None:
        """Asks all to end, the host first, and checks that they do."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, self.errors.read_text()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


def _fill(fleet: skytether.Fleet, sources: Sources, small: bool) -> None:
    for name, (source, rows) in sources.items():
        if (rows <= SMALL) == small:
            fleet.ingest(source, name)


def with_threads(path: Path, drives: int, memory_limit: int, spill_limit: int | None, threads: int) -> skytether.Fleet:
    """An embedded fleet whose host has `threads` threads, whatever the machine has: the memory of a query depends on
    their number."""
    return skytether.Fleet(skytether._internal.Fleet.open(str(path), drives, "none", "unlimited", True, None, memory_limit, spill_limit, None, threads))


def device(speed: float, cores: int = 1, gigabits: float = 10.0, disk: float = 2e9) -> str:
    """The profile of a device: a core's speed in those of this machine, cores, its link. That it has one lets the
    work of a query move."""
    return (
        f"speed_per_core = {speed}\ncores = {cores}\nmemory_bytes = 268435456\ndisk_bytes_per_s = {disk}\nlink_bits_per_s = {gigabits * 1e9}\n"
    )


@contextmanager
def embedded(place: Path, drives: int, sources: Sources, profile: Any = "unlimited") -> Iterator[skytether.Fleet]:
    """An embedded fleet that holds `sources`; its drives are like `profile` once they do."""
    with skytether.open(place, drives=drives, slice_rows=FEW) as fleet:
        _fill(fleet, sources, True)
    with skytether.open(place, slice_rows=MANY) as fleet:
        _fill(fleet, sources, False)
        if profile == "unlimited":
            yield fleet
            return
    with skytether.open(place, profile=profile) as fleet:
        yield fleet


@contextmanager
def serving(place: Path, drives: int = 4, *options: object) -> Iterator[Served]:
    """Processes that end with the block; checks that none has panicked."""
    served = Served(place, drives, *options)
    try:
        yield served
        served.stop()
        assert "panicked" not in served.errors.read_text()
    finally:
        served.kill()


@contextmanager
def processes(place: Path, drives: int, sources: Sources) -> Iterator[skytether.Fleet]:
    """A fleet of processes that holds `sources`."""
    with serving(place, drives, "--slice-rows", FEW) as served:
        with skytether.connect(served.url) as fleet:
            _fill(fleet, sources, True)
        served.another_host("--slice-rows", MANY)
        with skytether.connect(served.url) as fleet:
            _fill(fleet, sources, False)
            yield fleet


@contextmanager
def opened_or_connected(way: str, place: Path, drives: int) -> Iterator[skytether.Fleet]:
    """An empty fleet in slices of the usual size, by `way`: ``embedded``, or ``connected`` to
    processes by HOST:PORT."""
    if way == "embedded":
        with skytether.open(place / "fleet", drives=drives) as fleet:
            yield fleet
        return
    with serving(place, drives) as served, skytether.connect(served.url.removeprefix("grpc://")) as fleet:
        yield fleet
