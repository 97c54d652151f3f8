"""The cost of parities in an ingest.

The same particles (`skytether generate particles`, Parquet) are ingested into new embedded fleets of five drives, in
turn: without redundancy, with ec:4+1 and with ec:3+2, each time in a process of its own. Printed are seconds, processor
time of all threads, and bytes stored. An ingest with ec:4+1 writes a quarter more bytes, one with ec:3+2 two thirds
more; its seconds include that.

With `--envoy` the drives are like Envoy's compute module (`particles.PROFILE`): their processors verify values, and
their links carry the parities as well.

All output is kept until all ingests are over (`data.kept`): some 10 GB for 16M particles, and in proportion for more.

`python benches/encode.py [--rows 16M] [--repeat 7] [--envoy]`, or `python benches/run.py encode`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402
import particles  # noqa: E402

DRIVES = 5
ROWS = 16_000_000
SCHEMES = ("none", "ec:4+1", "ec:3+2")

#: One ingest, in a process of its own: seconds, processor seconds, bytes stored.
ONE = """
import json, os, sys, time, skytether
source, place, scheme, drives, profile = sys.argv[1:]
with skytether.open(place, drives=int(drives), redundancy=scheme, profile=profile) as fleet:
    began, used = time.perf_counter(), os.times()
    fleet.ingest(source, "vpic.particles")
    took, now = time.perf_counter() - began, os.times()
    stored = sum(drive["usage"]["value_bytes"] for drive in fleet.status())
print(json.dumps({"seconds": took, "cpu": now.user + now.system - used.user - used.system, "stored": stored}))
"""


def ingested(source: Path, place: Path, scheme: str, profile: str = "unlimited") -> dict[str, float]:
    """One ingest into a fleet at `place` that did not exist before."""
    # Write back the output of one run before the next is measured.
    os.sync()
    done = subprocess.run([sys.executable, "-c", ONE, str(source), str(place), scheme, str(DRIVES), profile], capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise SystemExit(f"ingest with {scheme} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(rows: int, repeat: int, line: Callable[..., None], profile: str = "unlimited") -> None:
    """A line per scheme."""
    import skytether

    data.OUT.mkdir(exist_ok=True)
    source = data.OUT / f"particles_{rows}_encode.parquet"
    if not source.exists():
        skytether.generate_particles(source, rows)
    print(f"\ningest of {rows:,} particles ({source.stat().st_size / 1e6:,.0f} MB of Parquet) into {DRIVES} drives{' like Envoy' if profile == particles.PROFILE else ''}")
    runs: dict[str, list[dict[str, float]]] = {scheme: [] for scheme in SCHEMES}
    with data.kept("encode") as fleets:
        ingested(source, fleets / "first", SCHEMES[0], profile)
        for turn in range(repeat):
            for scheme, told in runs.items():
                told.append(ingested(source, fleets / f"{turn}_{SCHEMES.index(scheme)}", scheme, profile))

    def median(scheme: str, what: str) -> float:
        return statistics.median(run[what] for run in runs[scheme])

    for scheme in SCHEMES:
        seconds, cpu, stored = (median(scheme, what) for what in ("seconds", "cpu", "stored"))
        shown = f"CPU {cpu:.2f} s, {stored / 1e6:,.0f} MB stored"
        if scheme == SCHEMES[0]:
            line(scheme, f"{seconds:.2f} s", shown)
            continue
        # Of each turn: what else the machine does meets neighbours alike.
        ratio = statistics.median(run["seconds"] / plain["seconds"] for run, plain in zip(runs[scheme], runs[SCHEMES[0]], strict=True))
        line(scheme, f"{seconds:.2f} s", f"{ratio:.2f}x without; {shown} ({cpu / median(SCHEMES[0], 'cpu'):.2f}x)", "<= 1.10x" if scheme == "ec:4+1" else "", ratio <= 1.1 if scheme == "ec:4+1" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--envoy", action="store_true", help="drives like Envoy's compute module")
    args = parser.parse_args()

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<10} {value:>10}  {compared:<70} {wanted:<8} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    compare(args.rows, args.repeat, line, particles.PROFILE if args.envoy else "unlimited")


if __name__ == "__main__":
    main()
