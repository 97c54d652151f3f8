"""`make figures`: the figures of the Skytether, Skyhook and Virtual Objects papers, ours next to the published values.

Writes plots (PNG, SVG), tables (CSV) and one page (README.md) into figures-out/. One machine measures what it can
through the Python package. The simulator's clock measures what needs many machines, and the page says so.
`python benches/figures/run.py figure5 equal` makes only these parts and their page. `--tiny` tries everything on small
inputs.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import checksums  # noqa: E402
import doors  # noqa: E402
import measured  # noqa: E402
import operators  # noqa: E402
import osds  # noqa: E402
import paper  # noqa: E402
import places  # noqa: E402
import simulated  # noqa: E402
import slice_shape  # noqa: E402

#: Parts in the order of the page: the function of each, and the program that it needs besides the Python package.
PARTS: dict[str, tuple[Callable[..., paper.Result], str | None]] = {
    "figure5": (slice_shape.measure, None),
    "figure6": (places.measure, "slice_times"),
    "doors": (doors.measure, None),
    "figure7": (operators.measure, None),
    "clocks": (simulated.clocks, "regret"),
    "links": (simulated.links, "regret"),
    "link_measured": (measured.link, None),
    "equal": (simulated.equal, "regret"),
    "equal_measured": (measured.equal, None),
    "checksums": (checksums.measure, "checksums"),
    "osds": (osds.measure, None),
}

#: How cargo names what it builds.
BUILT = {"regret": ("--bin", "."), "slice_times": ("--example", "examples"), "checksums": ("--example", "examples")}


def program(name: str) -> Path:
    """The path of the Rust program `name`, which cargo builds unless it is up to date."""
    kind, below = BUILT[name]
    # As the Makefile has it, so that nothing is built twice.
    protoc = Path(sys.executable).parent / "protoc"
    environment = {"PROTOC": str(protoc), **os.environ} if protoc.exists() else None
    # The tests' selection: with the package alone, dependencies would have other features and be compiled again.
    selection = ["--workspace", "--exclude", "skytether-python"]
    subprocess.run(["cargo", "build", "--quiet", *selection, kind, name], cwd=ROOT, check=True, env=environment)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / below / name


class Progress:
    """A bar on a terminal, lines elsewhere; on the standard error."""

    def __init__(self, parts: int) -> None:
        self.parts, self.done, self.began = parts, 0, time.monotonic()

    def say(self, text: str) -> None:
        seconds = time.monotonic() - self.began
        if sys.stderr.isatty():
            filled = round(24 * self.done / self.parts)
            print(f"\r\x1b[K[{'#' * filled}{'.' * (24 - filled)}] {seconds:4.0f} s  {text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"[{self.done}/{self.parts}] {seconds:4.0f} s  {text}", file=sys.stderr, flush=True)

    def over(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)


def machine() -> str:
    """What it ran on, and how busy that was: figures of a busy machine say less."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = " **The machine was busy with other work when it began: figures by the clock are too high.**" if load > 0.5 * cores else ""
    return f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, {cores} cores ({platform.machine()}), load average {load:.1f} when it began.{busy}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"which parts (default: all): {', '.join(PARTS)}")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to try everything; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "figures-out", help="where to (default: figures-out)")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    chosen = {name: part for name, part in PARTS.items() if not options.parts or name in options.parts}
    options.out.mkdir(parents=True, exist_ok=True)
    progress, ran_on = Progress(len(chosen)), machine()
    results: list[paper.Result] = []
    for make, needs in chosen.values():
        extra: dict[str, Any] = {}
        if needs:
            progress.say(f"building {needs}")
            extra["program"] = program(needs)
        result = make(options.out, options.tiny, progress.say, **extra)
        for table in result.tables:
            paper.write_table(options.out, table)
        results.append(result)
        progress.done += 1
    progress.over()
    written = paper.page(options.out, results, ran_on)
    for result in results:
        print(result.title)
        print("\n".join(f"  {line}" for line in result.says))
    print(f"\n{sum(len(result.plots) for result in results)} plots and {sum(len(result.tables) for result in results)} tables; read {written}")


if __name__ == "__main__":
    main()
