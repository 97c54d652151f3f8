"""Kinetic drives: ours next to the Java simulator, the disk, Flight, and native search.

- **stores**: puts and gets by our load generator (crates/kinetic/examples/load.rs) at our server and at the simulator,
  in turn, both on the same disk; and by the Java client. Each turn measures the disk's own rate, too: an append of
  1 KiB and fdatasync, and `dd` of a file in the page cache.
- **executing**: a small query through a host over Flight and one over Kinetic, with the same rows on their drives, in
  turn.
- **search**: the particles above an energy (C2's experiment) among a million records of 48 bytes: eBPF programs and a
  native one inside the drive, the query engine, and the client that reads everything; next to the same search in
  memory.

`python benches/run.py kinetic`, or `python benches/kinetic.py [--quick] [stores executing search]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402
import kinetic_fleets as fleets  # noqa: E402

Line = Callable[..., None]

PARTS = ("stores", "executing", "search")

#: Seconds of a measurement, and turns; medians count.
SECONDS, TURNS = 3.0, 5
QUICK_SECONDS, QUICK_TURNS = 1.5, 3

#: Seconds of a measurement of write-through puts.
MOMENT = 0.4

#: The rows that compare stores: title, the words of the load generator, times that ours must be as fast.
COMPARED = (
    ("puts of 1 KiB, write-back, 1 connection", ("put", "--connections", 1), 2.0),
    ("puts of 1 KiB, write-back, 32 connections", ("put", "--connections", 32), 5.0),
    ("gets of 1 KiB, 1 connection", ("get", "--connections", 1), 2.0),
    ("gets of 1 KiB, 32 connections", ("get", "--connections", 32), 5.0),
)

#: Of write-through puts: title, connections, what it must be of the disk's rate.
DURABLE = (("puts of 1 KiB, write-through, 1 connection", 1, 0.8), ("puts of 1 KiB, write-through, 32 connections", 32, 5.0))

#: Values of 1 MiB that are read, by our client and by dd: 128 MiB, which stay in the page cache.
LARGE = 128

#: The particles' threshold (exact as a float, so that all compare alike) and the share of native speed that programs
#: must have.
ENERGY = 0.375
BULK, BY_RECORD = 0.6, 0.1

EBPF = fleets.ROOT / "crates" / "ebpf" / "tests" / "objects"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk of bench-out/."""
    data.OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kinetic_", dir=data.OUT) as place:
        yield Path(place)


def disk_rate(place: Path, seconds: float) -> float:
    """Appends of 1 KiB, each with fdatasync, per second."""
    file, count, begun = os.open(place / "appended", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 0, time.perf_counter()
    try:
        while (taken := time.perf_counter() - begun) < seconds:
            os.write(file, b"\x5a" * 1024)
            os.fdatasync(file)
            count += 1
    finally:
        os.close(file)
    return count / taken


def dd_rate(file: Path) -> float:
    """MB/s of `dd` from a file in the page cache."""
    begun = time.perf_counter()
    done = subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=1M"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    said = re.search(r"(\d+) bytes .* copied, ([\d.e-]+) s", done.stderr)
    return int(said[1]) / float(said[2]) / 1e6 if said else file.stat().st_size / (time.perf_counter() - begun) / 1e6


def stores(programs: dict[str, Path], seconds: float, turns: int) -> dict[str, Any]:
    """All measurements of the stores: a number per turn, by title and by drive; and why some are missing."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(title: str, who: str, rate: float) -> None:
        found.setdefault(title, {}).setdefault(who, []).append(rate)

    with scratch() as place, contextlib.ExitStack() as stack:
        ours = stack.enter_context(fleets.serving([programs["serve"], place / "ours", "drive", 0, 0], place / "ours.log", ("kinetic",)))[1]["kinetic"]
        drives, skipped, jars = {"ours": ours}, None, None
        try:
            jars = fleets.class_path()
            drives["simulator"] = stack.enter_context(fleets.simulator(place, *jars))
        except fleets.Skipped as why:
            skipped = str(why)
        except ImportError as why:
            skipped = f"{why.name} of requirements-dev.txt is missing"

        def load(who: str, *words: object) -> dict[str, Any]:
            return fleets.told([programs["load"], drives[who], *words, "--seconds", seconds])

        # What Java's machine and the caches do first is not measured.
        for who in drives:
            fleets.told([programs["load"], drives[who], "put", "--connections", 4, "--seconds", 2])
            fleets.told([programs["load"], drives[who], "get", "--connections", 4, "--seconds", 2])
        for _ in range(turns):
            for title, words, _ in COMPARED:
                for who in drives:
                    note(title, who, load(who, *words)["ops_per_s"])
        # A shared disk has its moods, of seconds: short measurements, close to each other, meet the same one.
        for _ in range(6 * turns):
            for title, connections, _ in DURABLE:
                note(title, "disk", disk_rate(place, MOMENT))
                for who in drives:
                    words = [programs["load"], drives[who], "put", "--sync", "through", "--connections", connections, "--seconds", MOMENT]
                    note(title, who, fleets.told(words)["ops_per_s"])
        large(place, load, drives, turns, note)
        if jars and "simulator" in drives:
            try:
                with_java(place, *jars, drives, seconds, note)
            except (OSError, subprocess.SubprocessError) as why:
                skipped = f"the Java client: {why}"
    return {"found": found, "skipped": skipped}


def large(place: Path, load: Callable[..., dict], drives: dict[str, str], turns: int, note: Callable[..., None]) -> None:
    """1 MiB values, next to dd."""
    file = place / "large"
    with open(file, "wb") as out:
        for _ in range(LARGE):
            out.write(os.urandom(1 << 20))
    os.sync()
    dd_rate(file)
    words = ("get", "--size", 1 << 20, "--keys", LARGE)
    for _ in range(turns):
        for who in drives:
            for outstanding in (1, 4):
                note(f"gets of 1 MiB, 1 connection, {outstanding} under way", who, load(who, *words, "--outstanding", outstanding)["mb_per_s"])
        note("gets of 1 MiB", "dd", statistics.median(dd_rate(file) for _ in range(5)))


def with_java(place: Path, options: tuple[str, ...], path: str, drives: dict[str, str], seconds: float, note: Callable[..., None]) -> None:
    """The Java client at both servers."""
    classes = place / "classes"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", classes, HERE / "kinetic_programs" / "Load.java"], check=True, capture_output=True, timeout=120)
    for what in ("put", "get"):
        for connections in (1, 32):
            for who, url in drives.items():
                host, port = url.removeprefix("kinetic://").split(":")
                words = ["java", *options, "-cp", f"{classes}:{path}", "Load", host, port, what, seconds, connections]
                note(f"Java client: {what}s of 1 KiB, {connections} connection{'s' * (connections > 1)}", who, fleets.told(words)["ops_per_s"])


def stores_apart(programs: dict[str, Path], seconds: float, turns: int) -> dict[str, Any]:
    """`stores` in a process in a network name space of its own, where that is permitted."""
    here = [sys.executable, Path(__file__).resolve(), "--stores", json.dumps({name: str(path) for name, path in programs.items()}), seconds, turns]
    for words in (fleets.alone(*here), here):
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=3600, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        if "unshare" not in done.stderr:
            break
    raise SystemExit(f"the stores could not be measured:\n{done.stderr[-3000:]}")


def compare_stores(programs: dict[str, Path], seconds: float, turns: int, line: Line) -> None:
    told = stores_apart(programs, seconds, turns)
    found, skipped = told["found"], told["skipped"]

    def middle(title: str, who: str) -> float:
        return statistics.median(found[title][who])

    def times(title: str, of: str, who: str = "ours", to: str | None = None) -> float:
        """How many times as much: the median of the turns, as the machine is not the same from one to the next."""
        return statistics.median(a / b for a, b in zip(found[title][who], found[to or title][of]))

    print(f"\nKinetic drives of 1 KiB values, {turns} turns of {seconds:g} s, ours and the Java simulator on one disk")
    for title, _, wanted in COMPARED:
        if "simulator" not in found[title]:
            line(title, f"{middle(title, 'ours'):,.0f}/s", f"skipped: {skipped}")
            continue
        factor = times(title, "simulator")
        line(title, f"{middle(title, 'ours'):,.0f}/s", f"simulator {middle(title, 'simulator'):,.0f}/s: {factor:.1f}x", f">= {wanted:g}x", factor >= wanted)
    for title, _, wanted in DURABLE:
        share = times(title, "disk")
        simulator = f"; simulator {middle(title, 'simulator'):,.0f}/s" if "simulator" in found[title] else ""
        said = f"append and fdatasync {middle(title, 'disk'):,.0f}/s: {share:.2f}x{simulator}"
        line(title, f"{middle(title, 'ours'):,.0f}/s", said, f">= {wanted:g}x", share >= wanted)
    for outstanding, wanted in ((4, 0.8), (1, None)):
        title = f"gets of 1 MiB, 1 connection, {outstanding} under way"
        share = times(title, "dd", to="gets of 1 MiB")
        simulator = f"; simulator {middle(title, 'simulator'):,.0f} MB/s" if "simulator" in found[title] else ""
        said = f"dd, warm {middle('gets of 1 MiB', 'dd'):,.0f} MB/s: {share:.2f}x{simulator}"
        line(title, f"{middle(title, 'ours'):,.0f} MB/s", said, f">= {wanted:g}x" if wanted else "", share >= wanted if wanted else None)
    java = [title for title in found if title.startswith("Java client")]
    for title in java:
        line(title, f"{middle(title, 'ours'):,.0f}/s", f"simulator {middle(title, 'simulator'):,.0f}/s: {times(title, 'simulator'):.1f}x")
    if not java:
        line("Java client", "", f"skipped: {skipped}")


def executing(turns: int, line: Line) -> None:
    """A query through Flight and through EXECUTE."""
    import pyarrow as pa
    import skytether

    rows = 10_000
    table = pa.table({"id": list(range(rows)), "x": [n % 97 / 7 for n in range(rows)]})
    query = "SELECT count(*) AS n, sum(x) AS s FROM lab.t WHERE id >= 1000"
    print("\nA sub-plan through Flight and through Kinetic's EXECUTE, each to a drive process with the same rows")
    taken: dict[str, list[float]] = {}
    with scratch() as place, fleets.both_doors(place) as (numbers, hosts, _), contextlib.ExitStack() as stack:
        connected = {door: stack.enter_context(skytether.connect(url)) for door, url in hosts.items()}
        answers = {}
        for door, fleet in connected.items():
            fleet.ingest(table, "lab.t")
            for _ in range(10):
                answers[door] = fleet.sql(query, cut="full").to_arrow()
        if not answers["grpc"].equals(answers["kinetic"]):
            raise SystemExit(f"the answers differ: {answers}")
        worked = {door: fleets.processor_seconds(number) for door, number in numbers.items()}
        for _ in range(60 * turns):
            for door, fleet in connected.items():
                begun = time.perf_counter()
                fleet.sql(query, cut="full").to_arrow()
                taken.setdefault(door, []).append(time.perf_counter() - begun)
        fleets.must_execute({door: fleets.processor_seconds(number) - worked[door] for door, number in numbers.items()})
    flight, kinetic = (statistics.median(taken[door]) * 1e3 for door in ("grpc", "kinetic"))
    more = statistics.median((b - a) * 1e3 for a, b in zip(taken["grpc"], taken["kinetic"]))
    line("a small query, the drive behind Kinetic", f"{kinetic:.2f} ms", f"behind Flight {flight:.2f} ms: {more:+.2f} ms", "<= +1 ms", more <= 1.0)


def native_program(place: Path) -> Path | None:
    """The search as a native program, where there is a compiler."""
    if not (compiler := shutil.which("cc")):
        return None
    words = [compiler, "-O2", "-s", "-static", "-I", fleets.ROOT / "crates" / "native" / "include", "-o", place / "native", HERE / "kinetic_programs" / "search.c"]
    done = subprocess.run([*map(str, words)], capture_output=True, timeout=120)
    return place / "native" if done.returncode == 0 else None


def search(programs: dict[str, Path], records: int, turns: int, line: Line) -> None:
    """The particle search, where the programs are and where the client is."""
    import skytether

    with scratch() as place:
        dump = place / "particles.vpic"
        skytether.generate_particles(dump, records)
        words: list[object] = [f"bulk={EBPF / 'particles.o'}", f"by record={EBPF / 'particles_scan.o'}"]
        native = native_program(place)
        words += [f"native={native}"] if native else []
        served = [programs["serve"], place / "ours", "drive", 0, 0, "native"]
        try:
            with fleets.serving(served, place / "ours.log", ("kinetic",)) as (_, urls):
                told = fleets.told([programs["search"], urls["kinetic"], dump, ENERGY, 10 * turns, *words])
        except SystemExit:
            if not native:
                raise
            # Where the kernel can't contain native programs, the others are measured.
            native = None
            shutil.rmtree(place / "ours")
            with fleets.serving(served[:-1], place / "ours.log", ("kinetic",)) as (_, urls):
                told = fleets.told([programs["search"], urls["kinetic"], dump, ENERGY, 10 * turns, *words[:2]])
        took, memory, file, client = told["programs"], told["memory_ms"], told["file_ms"], told["client_ms"]
        print(f"\nSearch of {told['records']:,} particles of 48 bytes for the {told['hits']:,} above {ENERGY}, in values of 1 MiB; from the request to the rows")
        for name, wanted in (("bulk", BULK), ("by record", BY_RECORD)):
            share = file / took[name]
            said = f"native from a file {file:.1f} ms: {share:.2f}x; in memory {memory:.1f} ms: {memory / took[name]:.2f}x"
            line(f"eBPF in the drive, {name}", f"{took[name]:.1f} ms", said, f">= {wanted:g}x", share >= wanted)
        if native:
            line("native program in the drive", f"{took['native']:.1f} ms", f"native from a file {file:.1f} ms: {file / took['native']:.2f}x")
        else:
            line("native program in the drive", "", "skipped: no C compiler, or no name spaces")
        line("all values read to the client", f"{client:.1f} ms", f"eBPF {client / took['bulk']:.1f}x as fast")
        found, asked = by_query(place / "fleet", dump, turns)
        if found != told["hits"]:
            raise SystemExit(f"the query engine found {found} particles, and the programs {told['hits']}")
        for door, name in (("kinetic", "Kinetic"), ("grpc", "Flight")):
            line(f"query engine in the drive, through {name}", f"{asked[door]:.1f} ms", f"eBPF {asked[door] / took['bulk']:.1f}x as fast")


def by_query(place: Path, dump: Path, turns: int) -> tuple[int, dict[str, float]]:
    """Rows that SQL finds, and the median of its milliseconds through each door."""
    import skytether

    query = f"SELECT * FROM physics.p WHERE ke > {ENERGY}"
    taken: dict[str, list[float]] = {}
    with fleets.both_doors(place) as (numbers, hosts, _), contextlib.ExitStack() as stack:
        connected = {door: stack.enter_context(skytether.connect(url)) for door, url in hosts.items()}
        for fleet in connected.values():
            fleet.ingest(dump, "physics.p")
            fleet.sql(query, cut="full").to_arrow()
        found, worked = set(), {door: fleets.processor_seconds(number) for door, number in numbers.items()}
        for _ in range(10 * turns):
            for door, fleet in connected.items():
                begun = time.perf_counter()
                found.add(fleet.sql(query, cut="full").to_arrow().num_rows)
                taken.setdefault(door, []).append((time.perf_counter() - begun) * 1e3)
        fleets.must_execute({door: fleets.processor_seconds(number) - worked[door] for door, number in numbers.items()})
    assert len(found) == 1, f"both doors found {found} particles"
    return found.pop(), {door: statistics.median(of) for door, of in taken.items()}


def compare(quick: bool, line: Line, parts: tuple[str, ...] = PARTS) -> None:
    """All rows, as `make bench` reports them with `line(what, value, compared, wanted, ok)`."""
    seconds, turns = (QUICK_SECONDS, QUICK_TURNS) if quick else (SECONDS, TURNS)
    programs = fleets.built()
    if "stores" in parts:
        compare_stores(programs, seconds, turns, line)
    if "executing" in parts:
        executing(turns, line)
    if "search" in parts:
        search(programs, 100_000 if quick else 1_000_000, turns, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--quick", action="store_true", help="short turns and few records, to try it")
    parser.add_argument("--stores", nargs=3, metavar=("PROGRAMS", "SECONDS", "TURNS"), help="measure the stores here, and print JSON")
    options = parser.parse_args()
    if options.stores:
        programs, seconds, turns = options.stores
        print(json.dumps(stores({name: Path(path) for name, path in json.loads(programs).items()}, float(seconds), int(turns))))
        return

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<46} {value:>12}  {compared:<70} {wanted:<8} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    compare(options.quick, line, tuple(options.parts) or PARTS)


if __name__ == "__main__":
    main()
