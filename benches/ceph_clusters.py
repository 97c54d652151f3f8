"""Real Ceph clusters for measurements, with the object class in each OSD and an engine next to it, and clients behind a
link of their own.

A client is a process in a network name space. A pair of virtual interfaces leads to it, whose rate the kernel bounds in
both directions. What OSDs send each other does not pass it. This needs root and `tc` with the discipline `tbf`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPT = ROOT / "tools" / "ceph_cluster.py"
SKYTETHER = Path(sys.executable).with_name("skytether")

#: Seconds that one measurement of a client may take.
LONGEST = 3600

#: Bytes of an OSD in memory.
ROOM = 6 << 30


class Skipped(Exception):
    """Why this can't be measured here."""


def object_class(profile: str = "benchmark") -> Path:
    """The library that OSDs load, built with this profile."""
    subprocess.run(["cargo", "build", "--quiet", "--profile", profile, "-p", "skytether-ceph-class"], cwd=ROOT, check=True)
    folder = "debug" if profile == "dev" else profile
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / folder / "libcls_skytether_1.so"


def _ip(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"no link can be made ({' '.join(map(str, words))}: {done.stderr.strip()}): this needs root, and tc with tbf")


class Link:
    """A way of a bounded rate from this machine to a name space; `address` is this machine's end of it."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
            raise Skipped("links of a rate need root, ip and tc")
        number = os.getpid() % 200
        self.space, self.here, self.there = f"skytether{number}", f"skyh{number}", f"skyt{number}"
        self.address, self.client = f"10.249.{number}.1", f"10.249.{number}.2"
        _ip("ip", "netns", "add", self.space)
        try:
            _ip("ip", "link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.space)
            _ip("ip", "addr", "add", f"{self.address}/30", "dev", self.here)
            _ip("ip", "link", "set", self.here, "up")
            for words in (("addr", "add", f"{self.client}/30", "dev", self.there), ("link", "set", self.there, "up"), ("link", "set", "lo", "up")):
                _ip("ip", "-n", self.space, *words)
        except Skipped:
            self.close()
            raise

    def rate(self, bits: float) -> None:
        """Bounds the rate in both directions."""
        shape = ("root", "tbf", "rate", f"{bits / 1e6:.0f}mbit", "burst", "256kb", "latency", "100ms")
        _ip("tc", "qdisc", "replace", "dev", self.here, *shape)
        _ip("ip", "netns", "exec", self.space, "tc", "qdisc", "replace", "dev", self.there, *shape)

    def moved(self) -> int:
        """Bytes that have passed, in both directions."""
        folder = Path("/sys/class/net") / self.here / "statistics"
        return sum(int((folder / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def close(self) -> None:
        # The pair of interfaces goes with the name space.
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True)


class Cluster:
    """A cluster with pool `sky`, whose OSDs have the class and an engine each."""

    def __init__(self, place: Path, osds: int, link: Link | None, library: Path, concurrent: int = 2) -> None:
        environment = {**os.environ, "SKYTETHER_CEPH_BYTES": str(ROOM)}
        if link is not None:
            environment["SKYTETHER_CEPH_ADDRESS"] = link.address
        self.link, self.osds = link, osds
        self.engines: list[subprocess.Popen[str]] = []
        words = [sys.executable, str(SCRIPT), "run", str(place), str(osds)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        told = self._answer()
        self.conf, self.root = told["conf"], Path(told["root"])
        self.environment = {**os.environ, "LD_LIBRARY_PATH": told["libraries"]}
        self.tell(f"pool sky {min(3, osds)}")
        sockets = place / "sockets"
        for osd in range(osds):
            shutil.copy(library, place / f"osd{osd}" / "classes")
            words = [str(SKYTETHER), "ceph", "engine", "--osd", str(osd), "--sockets", str(sockets), "--concurrent", str(concurrent)]
            self.engines.append(subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 60
        while len(list(sockets.glob("osd.*"))) < osds:
            if any(engine.poll() is not None for engine in self.engines) or time.monotonic() > deadline:
                raise SystemExit("an engine did not start")
            time.sleep(0.02)

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the cluster did not start")
        return json.loads(line)

    def tell(self, line: str) -> Any:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise SystemExit(f"{line}: {answer['error']}")
        return answer["done"]

    def url(self, place: str, more: str = "") -> str:
        return f"rados://{place}?conf={self.conf}{'&lossy=allow' if self.osds == 1 else ''}{more}"

    def client(self, script: str, *arguments: object, linked: bool = True) -> dict[str, Any]:
        """Runs one measurement of a script of this directory, behind the link where there is one; its JSON."""
        words = [sys.executable, str(HERE / script), *map(str, arguments)]
        if self.link is not None and linked:
            words = ["ip", "netns", "exec", self.link.space, *words]
        environment = {**self.environment, "BENCH_START": str(time.time())}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=LONGEST)
        if done.returncode != 0:
            raise SystemExit(f"{script} {arguments} failed ({done.returncode}):\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def tool(self, *words: object) -> str:
        """Runs Ceph's `rados`; what it prints."""
        command = [str(self.root / "usr/bin/rados"), "-c", self.conf, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=LONGEST)
        if done.returncode != 0:
            raise SystemExit(f"rados {words}: {done.stderr}")
        return done.stdout

    def processors(self) -> float:
        """Seconds of processor time of all OSDs and engines until now."""
        ticks, all_pids = os.sysconf("SC_CLK_TCK"), [engine.pid for engine in self.engines]
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if "ceph-osd" in Path(f"/proc/{child}/cmdline").read_text():
                all_pids.append(int(child))
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in all_pids]
        return sum(int(one[11]) + int(one[12]) for one in fields) / ticks

    def stop(self) -> None:
        for engine in self.engines:
            engine.kill()
            engine.wait()
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@contextlib.contextmanager
def cluster(place: Path, osds: int = 3, link: Link | None = None, library: Path | None = None) -> Iterator[Cluster]:
    """A cluster until the block ends; `Skipped` without Ceph's packages."""
    found = subprocess.run([sys.executable, str(SCRIPT), "where"], capture_output=True, text=True)
    if found.returncode != 0:
        raise Skipped(found.stderr.strip())
    running = Cluster(place, osds, link, library or object_class())
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """A link until the block ends; `Skipped` where there can be none."""
    made = Link()
    try:
        yield made
    finally:
        made.close()
