"""Block storage: iSCSI next to Debian's tgt, what EXEC adds to a request, search next to ripgrep, sums behind a link.

- **iscsi**: random reads and writes of 4 KiB and sequential ones of 1 MiB at a volume of ours and at tgt's file, both
  on one disk, in alternating pairs of runs of one client (`qemu-img bench`, and `iscsi-perf` for reads).
- **exec**: the EXEC of a CRC-32C of 4 KiB, and a READ of the same 4 KiB over the same connection, in turns.
- **search**: fixed strings and regular expressions by EXEC's operations and by ripgrep, on the same bytes in memory.
- **links**: CRC-32C of all bytes of one to four drives behind one link, computed by the drives or by the client.

`python benches/run.py block`, or `python benches/block.py [--quick | --tiny] [iscsi exec search links]`.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import block_targets as targets  # noqa: E402
import data  # noqa: E402
import kinetic_fleets as fleets  # noqa: E402
from link import link  # noqa: E402

Line = Callable[..., None]

PARTS = ("iscsi", "exec", "search", "links")

#: Packages whose features decide together, so that dependencies are those that the Python extension was built with.
SELECTION = ("skytether-python", "skytether-oas", "skytether-offload")
EXAMPLES = ("exec_measure", "rates")

#: Bytes per second of the link that all drives share (1 Gb/s), and of each drive's emulated disk.
LINK, DISK = 125e6, 200e6

#: What a drive is: a disk of some rate, and nothing else is slower than this machine.
PROFILE = f"speed_per_core = 1.0\ncores = 64\nmemory_bytes = 1073741824\ndisk_bytes_per_s = {DISK:.0f}\nlink_bits_per_s = 1e15\n"

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Size:
    """How much is measured: bytes of the volumes, seconds of a run, turns, pairs of small requests, MiB of text and
    turns of searches, MiB of each drive behind the link.

    The last are multiples of 64: a drive that starts again reads what the last segment of its journal has (64 MiB) from
    there, and not from its disk.
    """

    volume: int
    seconds: float
    turns: int
    pairs: int
    text: int
    searches: int
    drive: int


#: All parts take eight to ten minutes, most of them for our journals to be merged between two writing turns.
FULL = Size(1 << 30, 1.5, 5, 5000, 256, 5, 192)
QUICK = Size(256 * MIB, 1.0, 3, 2000, 64, 5, 128)
TINY = Size(64 * MIB, 0.3, 1, 200, 8, 1, 64)


@dataclass(frozen=True)
class Row:
    """One comparison at qemu-img: requests under way, bytes of each, whether they are writes, whether at random places,
    and after how many a flush comes. Flushed ones have no bar: they wait for the disk."""

    title: str
    depth: int
    size: int
    write: bool
    random: bool
    flush: int = 0


ROWS = (
    Row("4 KiB random reads, 1 under way", 1, 4 * KIB, False, True),
    Row("4 KiB random reads, 32 under way", 32, 4 * KIB, False, True),
    Row("4 KiB random writes, 1 under way", 1, 4 * KIB, True, True),
    Row("4 KiB random writes, 32 under way", 32, 4 * KIB, True, True),
    Row("1 MiB sequential reads, 4 under way", 4, MIB, False, False),
    Row("1 MiB sequential writes, 4 under way", 4, MIB, True, False),
    Row("4 KiB random writes, 1 under way, each flushed", 1, 4 * KIB, True, True, 1),
    Row("4 KiB random writes, 32 under way, flushed by 32", 32, 4 * KIB, True, True, 32),
)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk of bench-out/."""
    data.OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="block_", dir=data.OUT) as place:
        yield Path(place)


def step(row: Row, volume: int) -> int:
    """From one request to the next. Random places are those of a golden section: each block comes once before any comes
    again, and no two in a row are near each other."""
    return (int(volume // row.size * (math.sqrt(5) - 1) / 2) | 1) * row.size if row.random else row.size


class Pair:
    """Both targets, and what was measured at them by title."""

    def __init__(self, servers: dict[str, tuple[int, str]], size: Size) -> None:
        self.servers, self.size = servers, size
        self.found: dict[str, dict[str, list[float]]] = {}
        self.started: dict[str, int] = {}

    def turn(self, number: int, title: str, measure: Callable[[str], float], settles: bool) -> None:
        """One run at each, ours first in every other turn."""
        for who in sorted(self.servers, reverse=number % 2 == 1):
            self.found.setdefault(title, {}).setdefault(who, []).append(measure(self.servers[who][1]))
            if settles:
                self.settle(who)

    def settle(self, who: str) -> None:
        targets.settle(self.servers[who][0], targets.REST if who == "ours" else targets.REST_OF_TGT)

    def qemu(self, row: Row) -> None:
        volume, apart = self.size.volume, step(row, self.size.volume)

        def at(count: int) -> Callable[[str], float]:
            # Each turn goes on where the one before has ended; both targets get the same places.
            start = self.started.get(row.title, 0)
            self.started[row.title] = start + count
            return lambda url: targets.qemu(url, row.size, row.depth, count, write=row.write, step=apart, start=start * apart % volume, flush=row.flush)

        count = max(16 * row.depth, 64)
        # A short run says how many requests take the time of a turn.
        while (rate := at(count)(self.servers["tgt"][1])) * self.size.seconds > 4 * count and count < 1 << 20:
            count *= 4
        count = max(row.depth, round(rate * self.size.seconds))
        for number in range(self.size.turns):
            self.turn(number, row.title, at(count), row.write)

    def perf(self, depth: int) -> None:
        for number in range(self.size.turns):
            self.turn(number, f"4 KiB random reads, {depth} under way, iscsi-perf", lambda url: targets.iscsi_perf(url, depth, self.size.seconds), False)


def iscsi(size: Size, line: Line) -> None:
    print(f"\niSCSI, volumes of {size.volume // MIB} MiB on one disk: ours, and Debian's tgt (rdwr, write cache on), {size.turns} turns of {size.seconds:g} s")
    if why := targets.missing("tgtd", "tgtadm", "qemu-img"):
        line("iSCSI next to tgt", "", f"skipped: {why}")
        return
    with scratch() as place, targets.drive(place / "ours", size.volume) as ours, targets.tgt(place / "tgt", size.volume) as tgt:
        pair = Pair({"ours": ours, "tgt": tgt}, size)
        # Both have all blocks, on the disk and in the page cache, before anything counts.
        for who, (_, url) in pair.servers.items():
            targets.qemu(url, MIB, 4, size.volume // MIB, write=True, step=MIB)
            pair.settle(who)
            targets.qemu(url, MIB, 4, size.volume // MIB, write=False, step=MIB)
        for row in ROWS:
            pair.qemu(row)
        without = targets.missing("iscsi-perf")
        for depth in () if without else (1, 32):
            pair.perf(depth)
    for title, rates in pair.found.items():
        row = next((row for row in ROWS if row.title == title), None)
        share = statistics.median(a / b for a, b in zip(rates["ours"], rates["tgt"]))
        large = row is not None and row.size >= MIB
        ours_rate, tgt_rate = (statistics.median(rates[who]) * (row.size / 1e6 if large else 1) for who in ("ours", "tgt"))
        unit, wanted = " MB/s" if large else "/s", row is None or not row.flush
        line(title, f"{ours_rate:,.0f}{unit}", f"tgt {tgt_rate:,.0f}{unit}: {share:.2f}x", ">= 1.0x" if wanted else "", share >= 1 if wanted else None)
    if without:
        line("iscsi-perf", "", f"skipped: {without}")


def exec_latency(programs: dict[str, Path], size: Size, line: Line) -> None:
    """What EXEC adds to a small request."""
    with scratch() as place, targets.drive(place / "ours", 64 * MIB) as (number, url):
        fleets.told([programs["exec_measure"], "fill", 16, url])
        targets.settle(number)
        told = [fleets.told([programs["exec_measure"], "latency", size.pairs, url]) for _ in range(max(1, size.turns // 2))]
    middle = {name: statistics.median(one[name] for one in told) for name in told[0]}
    print(f"\nEXEC of a CRC-32C of 4 KiB and READ of the same 4 KiB, {size.pairs} pairs over one connection")
    said = f"READ {middle['read_us']:.0f} us: {middle['more_us']:+.0f} us; 99%: {middle['exec_99_us']:.0f} and {middle['read_99_us']:.0f} us"
    line("EXEC of a small checksum", f"{middle['exec_us']:.0f} us", said, "<= +300 us", middle["more_us"] <= 300)


def search(programs: dict[str, Path], size: Size, line: Line) -> None:
    print(f"\nSearches of {size.text} MiB of text in memory: EXEC's operations over a device, ripgrep over a file in /dev/shm, {size.searches} turns")
    found = fleets.told([programs["rates"], "--searches", size.text, size.searches], seconds=1800)
    for one in found:
        title, ours = one["what"].removeprefix("search: "), statistics.median(one["ours"])
        if not one["ripgrep"]:
            line(title, f"{ours:,.0f} MB/s", f"skipped: {targets.missing('rg')}")
            continue
        share = statistics.median(a / b for a, b in zip(one["ours"], one["ripgrep"]))
        line(title, f"{ours:,.0f} MB/s", f"ripgrep {statistics.median(one['ripgrep']):,.0f} MB/s: {share:.2f}x", ">= 0.6x", share >= 0.6)


def links(programs: dict[str, Path], size: Size, line: Line) -> None:
    """Sums of one, two and four drives behind one link."""
    turns, counts = max(1, size.turns // 2), (1, 2, 4)
    found: dict[tuple[str, int], list[float]] = {}
    with scratch() as place:
        profile = place / "disk.toml"
        profile.write_text(PROFILE)
        places = [place / f"drive_{n}" for n in range(max(counts))]
        for one in places:
            with targets.drive(one, 2 * size.drive * MIB) as (number, url):
                fleets.told([programs["exec_measure"], "fill", size.drive, url])
                targets.settle(number)
        for _ in range(turns):
            for count in counts:
                sums = {}
                for way in ("there", "here"):
                    # New processes: their caches are empty, and all bytes come from the emulated disks.
                    with contextlib.ExitStack() as stack:
                        urls = [stack.enter_context(targets.drive(one, 2 * size.drive * MIB, str(profile)))[1] for one in places[:count]]
                        through = stack.enter_context(link(LINK))
                        told = fleets.told([programs["exec_measure"], "sums", way, size.drive, *map(through.through, urls)])
                        moved = through.moved
                    found.setdefault((way, count), []).append(told["mb_per_s"])
                    found.setdefault((f"{way} moved", count), []).append(moved / told["bytes"])
                    sums[way] = told["sums"]
                if sums["there"] != sums["here"]:
                    raise SystemExit(f"the drives and the client compute other sums: {sums}")
    middle = {key: statistics.median(values) for key, values in found.items()}
    rate = LINK / 1e6
    print(f"\nCRC-32C of {size.drive} MiB of each drive (disks of {DISK / 1e6:.0f} MB/s) behind one link of {rate:.0f} MB/s")
    for count in counts:
        here, there = middle["here", count], middle["there", count]
        said = f"by the client {here:.0f} MB/s; bytes moved {middle['there moved', count]:.3%} of all, by the client {middle['here moved', count]:.1%}"
        line(f"{count} drive{'s' * (count > 1)}, by EXEC", f"{there:.0f} MB/s", said)
    one, four = middle["there", 1], middle["there", 4]
    if one > 1.25 * DISK / 1e6:
        raise SystemExit(f"one drive computed at {one:.0f} MB/s, so the bytes did not come from its disk of {DISK / 1e6:.0f} MB/s")
    line("  four drives, in rates of one", f"{four / one:.2f}x", "", ">= 3.2x", four / one >= 3.2)
    line("  four drives, in rates of the link", f"{four / rate:.2f}x", f"by the client {middle['here', 4] / rate:.2f}x", "> 1x", four > rate)


def compare(size: Size, line: Line, parts: tuple[str, ...] = PARTS) -> None:
    """All rows, as `make bench` reports them with `line(what, value, compared, wanted, ok)`."""
    programs = fleets.built(EXAMPLES, SELECTION) if {"exec", "search", "links"} & set(parts) else {}
    if "iscsi" in parts:
        iscsi(size, line)
    if "exec" in parts:
        exec_latency(programs, size, line)
    if "search" in parts:
        search(programs, size, line)
    if "links" in parts:
        links(programs, size, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--quick", action="store_true", help="short turns and small volumes, to try it")
    parser.add_argument("--tiny", action="store_true", help="the least of all, to see that it runs; the figures mean nothing")
    options = parser.parse_args()

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<50} {value:>12}  {compared:<70} {wanted:<10} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    compare(TINY if options.tiny else QUICK if options.quick else FULL, line, tuple(options.parts) or PARTS)


if __name__ == "__main__":
    main()
