"""A Ceph cluster for tests, and programs that find its libraries."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleets import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "ceph_cluster.py"


class Cluster:
    """One monitor and three OSDs on loopback, with the replicated pool `sky`."""

    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen([sys.executable, SCRIPT, "run", place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = self._answer()
        self.conf, self.root = told["conf"], Path(told["root"])
        # Where the unpacked library is, and what it needs: the loader reads this when a program starts.
        self.environment = {**os.environ, "LD_LIBRARY_PATH": told["libraries"]}
        self.engines: list[subprocess.Popen[str]] = []
        self.tell("pool sky 3")

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, "the cluster did not start"
        return json.loads(line)

    def tell(self, line: str) -> Any:
        """Has the cluster do something: see tools/ceph_cluster.py."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, (line, answer)
        return answer["done"]

    def url(self, place: str = "sky", more: str = "") -> str:
        return f"rados://{place}?conf={self.conf}{more}"

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Starts the command."""
        return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)

    def run(self, *arguments: object, status: int = 0) -> str:
        """Runs the command; what it prints, or what it says where it is to fail."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=150)
        assert process.returncode == status, (arguments, out, err)
        return out if status == 0 else err

    def python(self, code: str) -> str:
        """Runs a program; what it prints."""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=self.environment, timeout=150)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def values(self, pool: str, namespace: str) -> int:
        """How many values lie in a namespace of a pool, by Ceph's own tool."""
        command = [self.root / "usr/bin/rados", "-c", self.conf, "-p", pool, "-N", namespace, "ls"]
        listed = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60)
        assert listed.returncode == 0, listed.stderr
        return listed.stdout.count("skytether-value.")

    @property
    def place(self) -> Path:
        return Path(self.conf).parent

    def install(self, osd: int, *more: object) -> str:
        """Puts the object class into the folder of an OSD, as if that were on a machine of its own."""
        places = ("--class-dir", self.place / f"osd{osd}/classes", "--unit-dir", self.place / f"osd{osd}", "--class", object_class())
        return self.run("ceph", "install", *places, *more)

    def engine(self, osd: int) -> subprocess.Popen[str]:
        """Starts the engine next to an OSD; it ends with the cluster, if not before."""
        sockets = self.place / "sockets"
        engine = self.start("ceph", "engine", "--osd", osd, "--sockets", sockets)
        self.engines.append(engine)
        # One that was killed has left its socket, where no process listens.
        while not any(listens(at) for at in sockets.glob(f"osd.{osd}.*")):
            assert engine.poll() is None, engine.communicate()
            time.sleep(0.02)
        return engine

    def stop(self) -> None:
        for engine in self.engines:
            engine.kill()
            engine.wait()
            engine.stdout.close()
            engine.stderr.close()
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def slices_of_osds(receipt: dict[str, Any]) -> dict[str, int]:
    """How many slices each OSD processed, by the OSDs' names."""
    found: dict[str, int] = {}
    for drive in receipt["drives"]:
        for below in drive.get("below", []):
            found[below["name"]] = found.get(below["name"], 0) + below["slices"]
    return found


def listens(at: Path) -> bool:
    """Whether a process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as trying:
        return trying.connect_ex(str(at)) == 0


@functools.cache
def object_class() -> Path:
    """The library that OSDs load, built."""
    subprocess.run(["cargo", "build", "--quiet", "--offline", "-p", "skytether-ceph-class"], cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "debug/libcls_skytether_1.so"


@contextmanager
def cluster(place: Path) -> Iterator[Cluster]:
    """A cluster, where its packages can be had."""
    found = subprocess.run([sys.executable, SCRIPT, "where"], capture_output=True, text=True)
    if found.returncode != 0:
        why = found.stderr.strip()
        if os.environ.get("SKYTETHER_CEPH") == "required":
            pytest.fail(f"SKYTETHER_CEPH=required: {why}")
        pytest.skip(why)
    running = Cluster(place)
    try:
        yield running
    finally:
        running.stop()


def load(libraries: str, names: tuple[str, ...] = ("librados.so.2", "libcephfs.so.2")) -> None:
    """Has this process have Ceph's libraries from where they were unpacked: the loader read its variable before."""
    folders = [Path(folder) for folder in libraries.split(":")]
    left = list(names)
    while left:
        file = next(folder / left[-1] for folder in folders if (folder / left[-1]).exists())
        try:
            ctypes.CDLL(str(file))
            left.pop()
        except OSError as error:
            missing = str(error).partition(":")[0]
            # Otherwise it is the file itself that can't be loaded.
            assert missing != left[-1] and missing not in left, error
            left.append(missing)
