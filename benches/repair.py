"""Repair of a lost drive, against what links and disks allow; the bytes that a scrub moves; and the balance of drives.

Five drives like Envoy's compute module hold particles with ec:4+1. They have links of 2.5 Gb/s, and disks of 261 MB/s
with seeks of 8 ms. One drive is lost, and rebuilt on a blank one (`skytether repair`). Each of the other four reads all
of its content once, and the blank one writes the content of the lost one. So every link carries about as many bytes as
were lost, all at the same time: the links allow their rate. The same repair is measured without a profile (limits of
this machine's processor and disk), with links alone, with links and disks, and with the whole device.

The lost content is kept until all repairs are over (`data.kept`).

Then the whole fleet is scrubbed: bytes moved, against bytes read and verified. A copy of the fleet gets a drive, and
loses another one. After each step, the deviation of the fullest and the emptiest drive from the mean is printed.

`python benches/repair.py [--rows 50M] [--repeat 3]`, or `python benches/run.py repair`, prints seconds and rates.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402
import particles  # noqa: E402

DRIVES = 5
ROWS = 50_000_000
LOST = 2

#: What the drives are like: name, and profile if any.
DEVICES: tuple[tuple[str, str | None], ...] = (
    ("this machine", None),
    (
        "links of 2.5 Gb/s alone",
        f"speed_per_core = 1.0\ncores = 64\nmemory_bytes = 1073741824\ndisk_bytes_per_s = 1e12\ndisk_seek_s = 0.0\nlink_bits_per_s = {particles.LINK}\nlink_latency_s = {particles.LATENCY}\n",
    ),
    (
        "links, and disks with seeks",
        f"speed_per_core = 1.0\ncores = 64\nmemory_bytes = 1073741824\ndisk_bytes_per_s = {particles.DISK}\ndisk_seek_s = {particles.SEEK}\nlink_bits_per_s = {particles.LINK}\nlink_latency_s = {particles.LATENCY}\n",
    ),
    ("envoy drives with seeks", particles.PROFILE),
)

Line = Callable[..., None]


def fleet_of(rows: int) -> Path:
    """A fleet with the particles, filled at full speed."""
    import skytether

    path = data.OUT / f"fleet_repair_{rows}"
    if not path.exists():
        data.OUT.mkdir(exist_ok=True)
        source = data.OUT / f"particles_{rows}.parquet"
        if not source.exists():
            skytether.generate_particles(source, rows)
        with skytether.open(path, drives=DRIVES, redundancy="ec:4+1") as fleet:
            fleet.ingest(source, "vpic.particles")
    return path


def repaired(path: Path, profile: str | None, aside: Path) -> dict[str, Any]:
    """Loses a drive, whose files go `aside`, and rebuilds it; the report. The fleet is what it was afterwards."""
    import skytether

    (path / "drives" / str(LOST)).rename(aside)
    options = {} if profile is None else {"profile": profile}
    with skytether.open(path, **options) as fleet:
        report = fleet.repair(f"drive-{LOST}")
    assert report["bytes_read"] == report["bytes_least"] and not report["left"] and not report["lost"], report
    return report


def compare(rows: int, repeat: int, line: Line) -> None:
    """A line per device."""
    path = fleet_of(rows)
    allowed = particles.LINK / 8
    print(f"\nrepair of one of {DRIVES} drives, ec:4+1, {rows:,} particles")
    with data.kept("lost") as lost:
        told = [(what, profile, [repaired(path, profile, lost / f"{n}_{turn}") for turn in range(repeat)]) for n, (what, profile) in enumerate(DEVICES)]
    for what, profile, reports in told:
        written = reports[0]["bytes_written"]
        seconds = statistics.median(report["seconds"] for report in reports)
        share = written / seconds / allowed
        shown = f"{written / seconds / 1e6:.0f} MB/s"
        compared = f"{written / 1e6:.0f} MB in {seconds:.2f} s: {share:.0%} of the links"
        if profile is None:
            line(what, shown, compared)
        else:
            line(what, shown, compared, ">= 70%", share >= 0.7)
    tended(path, line)


def uneven(fleet: Any) -> float:
    """How far from their mean the drives are at most, in bytes stored."""
    stored = [drive["usage"]["value_bytes"] for drive in fleet.status()]
    mean = statistics.mean(stored)
    return max(max(stored) - mean, mean - min(stored)) / mean


def tended(path: Path, line: Line) -> None:
    """A scrub of the fleet; then a copy of it grows and shrinks."""
    import skytether

    aside = path.with_name(path.name + "_grown")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(path, aside, copy_function=lambda a, b: os.link(a, b) if "slices" in Path(a).parts else shutil.copy2(a, b))
    try:
        with skytether.open(aside) as fleet:
            report = fleet.scrub()
            assert not report["damaged"] and not report["skipped"] and report["bytes_verified"] > 0, report
            less = 1 - report["bytes_moved"] / report["bytes_verified"]
            line("scrub", f"{report['bytes_moved'] / 1e3:.0f} kB", f"moved of {report['bytes_verified'] / 1e6:,.0f} MB that were verified: {less:.3%} less", ">= 99%", less >= 0.99)
            for what, change in (("as ingested and repaired", None), ("one drive added", lambda: fleet.add_drives(1)), ("another one retired", lambda: fleet.retire("drive-0"))):
                told = change() if change else None
                moved = f"; {told['bytes_moved'] / 1e6:,.0f} MB moved" if told else ""
                off = uneven(fleet)
                line(f"balance, {what}", f"{off:.1%}", f"from the mean at most, over {len(fleet.status())} drives{moved}", "<= 5%", off <= 0.05)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<30} {value:>12}  {compared:<44} {wanted:<8} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    compare(args.rows, args.repeat, line)


if __name__ == "__main__":
    main()
