"""The processes of the measurements of block storage: our drives, Debian's tgt, and the clients of both.

Each ends with its block, by its own number.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import kinetic_fleets as fleets  # noqa: E402

#: Administrators' programs are not in everybody's search path.
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

#: Debian packages of programs.
PACKAGES = {"tgtd": "tgt", "tgtadm": "tgt", "qemu-img": "qemu-utils and qemu-block-extra", "iscsi-perf": "libiscsi-bin", "rg": "ripgrep"}

#: The name of each target.
IQN = "iqn.2026-11.io.skytether.bench:disk"

#: tgt's answer to MODE SENSE, page 8: write cache on, as it is by default. A WRITE is then a `pwrite` into the page
#: cache of the backing file and survives the end of tgtd; SYNCHRONIZE CACHE is an fdatasync (both seen with strace).
#: Ours is the same, of its journal.
WRITE_CACHE_ON = "mode_page=8:0:18:0x14:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0"

#: Seconds that a server of ours must rest to count as settled (it merges its journal two to four seconds after the last
#: write), the processor time that it may take in a quarter of a second of them, and the most seconds that it gets.
REST, REST_WORK, SETTLE = 5.0, 0.01, 180.0

#: The same rest of tgt, which does nothing after its answers: what it wrote is in the page cache of its file.
REST_OF_TGT = 0.5


def missing(*programs: str) -> str | None:
    """Which of the programs are not here, and how they are to be had."""
    absent = [program for program in programs if shutil.which(program, path=SEARCH) is None]
    return f"{', '.join(absent)} missing (Debian: apt-get install {' '.join(dict.fromkeys(PACKAGES[program] for program in absent))})" if absent else None


def run(*words: object, seconds: float = 300, environment: dict[str, str] | None = None) -> str:
    """What a program prints. It must succeed."""
    called = {**os.environ, "PATH": SEARCH, "LC_ALL": "C", **(environment or {})}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, env=called)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def drive(place: Path, size: int, profile: str | None = None) -> Iterator[tuple[int, str]]:
    """A drive of ours with a volume of `size` bytes: its number, and the volume's URL."""
    words: list[object] = [fleets.SKYTETHER, "drive", "serve", "--data", place, "--listen", "iscsi://127.0.0.1:0", "--iscsi-name", IQN]
    words += ["--volume", f"disk={size}"]
    words += ["--profile", profile] if profile else []
    with fleets.serving(words, place.with_name(f"{place.name}.log"), ("iscsi",)) as (number, found):
        yield number, f"{found['iscsi']}/{IQN}/1"


@contextlib.contextmanager
def tgt(place: Path, size: int) -> Iterator[tuple[int, str]]:
    """Debian's tgt in user space over a file of `size` bytes in `place`: its number, and the URL of the file."""
    place.mkdir(parents=True)
    image = place / "image"
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # A socket of its own for its administration, so that it meets no other tgtd.
    apart = {"TGT_IPC_SOCKET": str(place / "control")}
    environment = {**os.environ, "PATH": SEARCH, **apart}
    with open(place / "log", "w") as log:
        words = ["tgtd", "-f", "--iscsi", f"portal=127.0.0.1:{port}"]
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def administer(*options: object) -> None:
        run("tgtadm", "--lld", "iscsi", *options, environment=apart)

    try:
        deadline = time.monotonic() + fleets.START
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"tgtd does not answer:\n{(place / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        administer("--op", "new", "--mode", "target", "--tid", 1, "-T", IQN)
        administer("--op", "new", "--mode", "logicalunit", "--tid", 1, "--lun", 1, "--bstype", "rdwr", "-b", image)
        administer("--op", "update", "--mode", "logicalunit", "--tid", 1, "--lun", 1, "--params", WRITE_CACHE_ON)
        administer("--op", "bind", "--mode", "target", "--tid", 1, "-I", "ALL")
        yield process.pid, f"iscsi://127.0.0.1:{port}/{IQN}/1"
    finally:
        # It ignores SIGTERM while a target is there. Its file is of no use any more.
        process.kill()
        process.wait()


def settle(number: int, rest: float = REST) -> None:
    """Waits until a server has done what it does after its answers (our journal is merged), and all is on the disk."""
    deadline, last, since = time.monotonic() + SETTLE, fleets.processor_seconds(number), time.monotonic()
    while time.monotonic() < min(deadline, since + rest):
        time.sleep(0.25)
        now = fleets.processor_seconds(number)
        if now - last > REST_WORK:
            last, since = now, time.monotonic()
    os.sync()


def qemu(url: str, size: int, depth: int, count: int, *, write: bool, step: int, start: int = 0, flush: int = 0) -> float:
    """Requests per second of `qemu-img bench`: `count` of `size` bytes, `step` bytes from each to the next. With
    `flush`, it flushes after that many."""
    words: list[object] = ["qemu-img", "bench", "-f", "raw", "-t", "none", "-c", count, "-d", depth, "-s", size, "-S", step, "-o", start]
    words += ["-w", "--pattern", 0xA5] if write else []
    words += [f"--flush-interval={flush}"] if flush else []
    told = run(*words, url, seconds=1200)
    took = re.search(r"Run completed in ([\d.]+) seconds", told)
    if not took:
        raise SystemExit(f"qemu-img bench says no time:\n{told[-2000:]}")
    return count / float(took[1])


def iscsi_perf(url: str, depth: int, seconds: float) -> float:
    """Random reads of 4 KiB per second, by libiscsi's own program."""
    told = run("iscsi-perf", "-b", 8, "-m", depth, "-r", "-t", max(1, round(seconds)), url)
    found = re.findall(r"iops average (\d+)", told)
    if not found:
        raise SystemExit(f"iscsi-perf says no rate:\n{told[-2000:]}")
    return float(found[-1])
