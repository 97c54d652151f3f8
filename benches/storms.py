"""Runs the deterministic simulation of the fleet (`crates/skytether/tests/fleet/dst.rs`) over ten thousand seeds.

A seed draws work (ingest, replacement, drop, scrub, repair, growth, retirement, a second host) and faults: hosts and
drives that die, drives that flap or are slow, lost answers, late changes, full disks.

`python benches/storms.py [--seeds 10000] [--from 0]`, or `python benches/run.py storms`. A seed that fails is printed
with the line that runs it alone. The file and `SKYTETHER_STORMS` keep their former names, as scripts contain them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = "dst::faults_leave_data_sets_old_or_new_and_nothing_leaks"

SEEDS = 10_000


def run(begin: int, seeds: int) -> tuple[float, str]:
    """Seconds that `seeds` simulations took from seed `begin` on, and their summary; exits where one fails."""
    # The program of `make test`; what cargo builds first takes as long as some thousand simulations.
    build = ["cargo", "test", "--profile", "dev", "-q", "--workspace", "--exclude", "skytether-python", "--test", "fleet"]
    environment = {**os.environ, "SKYTETHER_STORMS": f"{begin}..{begin + seeds}", "PROTOC": os.environ.get("PROTOC", str(ROOT / ".venv/bin/protoc"))}
    subprocess.run([*build, "--no-run"], cwd=ROOT, check=True, env=environment)
    began = time.perf_counter()
    done = subprocess.run([*build, TEST, "--", "--exact", "--nocapture"], cwd=ROOT, env=environment, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    lines = done.stdout.splitlines()
    told = [at for at, line in enumerate(lines) if "steps were hit by a fault" in line]
    if not told:
        raise SystemExit(f"no simulation was run:\n{done.stdout[-2000:]}")
    # The line, and the table of faults by work.
    return took, "\n".join(lines[told[-1] : told[-1] + 11])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--from", type=int, default=0, dest="begin", metavar="SEED")
    options = parser.parse_args()
    took, told = run(options.begin, options.seeds)
    print(f"{options.seeds} simulations in {took:.0f} s: nothing lost, nothing left behind; {told}")


if __name__ == "__main__":
    sys.exit(main())
