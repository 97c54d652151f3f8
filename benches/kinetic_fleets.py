"""The processes of the Kinetic measurements: drives, hosts, the Java simulator; and the programs that cargo builds.

Each ends with its block, by its own number. What the simulator needs, `need_java` and `alone` of the tests, is here as
well: it sends multicast messages, so it runs in a network name space that has nothing but the loopback interface.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TESTS = ROOT / "python" / "tests" / "kinetic"

#: A directory that has the programs of `EXAMPLES`, and maybe `skytether`, already: nothing is built then.
BUILT = os.environ.get("SKYTETHER_BENCH_PROGRAMS")

#: The command, as the installed package gives it.
SKYTETHER = Path(BUILT or "", "skytether") if BUILT and Path(BUILT, "skytether").exists() else Path(sys.executable).with_name("skytether")

#: Seconds that a process has to start, and to end.
START, END = 60, 20

#: Packages whose features decide together, so that dependencies are those that the Python extension was built with.
SELECTION = ("skytether-python", "skytether-kinetic", "skytether-kinetic-server")

#: What cargo builds of them.
EXAMPLES = ("load", "search", "serve")


#: Of two drives and their hosts, by `grpc` and `kinetic`: the numbers of the drives' processes, the hosts' addresses,
#: and the numbers of the hosts' processes.
Doors = tuple[dict[str, int], dict[str, str], dict[str, int]]


class Skipped(Exception):
    """Why a row can't be measured here."""


def built(examples: tuple[str, ...] = EXAMPLES, selection: tuple[str, ...] = SELECTION) -> dict[str, Path]:
    """The programs `examples`, built with the profile of benchmarks unless they are up to date."""
    if BUILT:
        return {name: Path(BUILT) / name for name in examples}
    protoc = Path(sys.executable).with_name("protoc")
    environment = {"PROTOC": str(protoc), **os.environ} if protoc.exists() else None
    words = ["cargo", "build", "--quiet", "--profile", "benchmark"]
    words += [word for package in selection for word in ("-p", package)] + [word for name in examples for word in ("--example", name)]
    subprocess.run(words, cwd=ROOT, check=True, env=environment)
    return {name: Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "benchmark" / "examples" / name for name in examples}


def told(words: list[object], seconds: float = 300) -> dict[str, Any]:
    """Runs a program; the JSON of its last line."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()


@contextlib.contextmanager
def serving(words: list[object], log: Path, schemes: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Runs a server that prints its addresses; its number, and the address of each scheme."""
    with open(log, "a") as errors:
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True)
    try:
        found: dict[str, str] = {}
        while not set(schemes) <= found.keys():
            if not (line := process.stdout.readline()):
                raise SystemExit(f"{' '.join(map(str, words))} ended:\n{log.read_text()[-3000:]}")
            if address := re.search(r"\b([a-z]+)://([\d.]+:\d+)$", line.strip()):
                found[address[1]] = f"{address[1]}://{address[2]}"
        yield process.pid, found
    finally:
        _end(process)


def _of_tests(name: str) -> Any:
    """A module of the tests of Kinetic drives. Their package has the name of a part of `make bench`."""
    spec = importlib.util.spec_from_file_location(f"kinetic_tests_{name}", TESTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def class_path() -> tuple[tuple[str, ...], str]:
    """The options and the class path of Java, whose jars Maven fetches."""
    import pytest

    jars = _of_tests("jars")
    if why := jars.missing() or (None if shutil.which("javac") else "javac is missing (Debian: default-jdk-headless)"):
        raise Skipped(why)

    try:
        return jars.JAVA_OPTIONS, jars.class_path()
    except (pytest.skip.Exception, pytest.fail.Exception) as why:
        raise Skipped(str(why).splitlines()[-1][:120]) from None
    except subprocess.TimeoutExpired:
        raise Skipped("Maven reaches no registry") from None


def alone(*words: object) -> list[str]:
    """The command line of `words` in a name space without a network."""
    return _of_tests("alone").command(*words)


def is_alone() -> bool:
    return [name for _, name in socket.if_nameindex()] == ["lo"]


@contextlib.contextmanager
def simulator(place: Path, options: tuple[str, ...], path: str, port: int = 8123) -> Iterator[str]:
    """The Java simulator with its own store (LevelDB), in such a name space; its address."""
    if not is_alone():
        raise Skipped("the simulator sends multicast messages, and this machine permits no network name space")
    home, log = place / "simulator", place / "simulator.log"
    home.mkdir(parents=True)
    words = ["java", *options, "-Xmx1g", "-Djava.net.preferIPv4Stack=true", "-cp", path]
    words += ["com.seagate.kinetic.simulator.internal.SimulatorRunner", "-home", str(home), "-port", str(port), "-tlsport", str(port + 320)]
    with open(log, "a") as out:
        process = subprocess.Popen(words, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True)
    try:
        deadline = time.monotonic() + START
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the simulator does not answer:\n{log.read_text()[-3000:]}") from None
                time.sleep(0.05)
        yield f"kinetic://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            # Its own way to end may hang.
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def both_doors(place: Path, *options: object, profile: str = "unlimited") -> Iterator[Doors]:
    """Two drives that keep to `profile`, one behind Flight and one behind Kinetic, and a host over each. One drive
    can't have both: a host over Kinetic finds a fleet that a host over Flight has made of the same drive, and does not
    touch it."""
    place.mkdir(parents=True, exist_ok=True)
    numbers, hosts, of_hosts = {}, {}, {}
    with contextlib.ExitStack() as stack:
        for door in ("grpc", "kinetic"):
            log = place / f"{door}.log"
            words = [SKYTETHER, "drive", "serve", "--data", place / door, "--profile", profile, "--listen", f"{door}://127.0.0.1:0"]
            numbers[door], drive = stack.enter_context(serving(words, log, (door,)))
            words = [SKYTETHER, "host", "serve", "--drives", drive[door], "--listen", "127.0.0.1:0", *options]
            of_hosts[door], address = stack.enter_context(serving(words, log, ("grpc",)))
            hosts[door] = address["grpc"]
        yield numbers, hosts, of_hosts


def must_execute(took: dict[str, float]) -> None:
    """Refuses what was not executed on the drive: `took` has the processor time of the drive behind each door."""
    if took["kinetic"] < took["grpc"] / 3:
        raise SystemExit(f"the drive behind Kinetic worked {took['kinetic'] * 1e3:.1f} ms, that behind Flight {took['grpc'] * 1e3:.1f}: its host executes instead")


def processor_seconds(number: int) -> float:
    """Processor time of a process so far, in seconds, with that of threads that have ended."""
    # The clock of another process, as clock_getcpuclockid(3) makes its number.
    return time.clock_gettime_ns((~number << 3) | 2) / 1e9
