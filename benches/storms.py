"""Ten thousand seeded storms: hosts and drives that die, drives that flap and are slow, answers that get lost, changes that come late, full disks and hosts that take the fleet from one another, at any step of ingest, replacement, drop, scrub, repair, growth and retirement (`crates/fleet/tests/fleet/storms.rs`).

`python benches/storms.py [--seeds 10000] [--from 0]`, or `python benches/run.py storms`. A seed that fails is printed with the line that runs it alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = "storms::after_every_storm_all_is_old_or_new_and_nothing_leaks"

SEEDS = 10_000


def run(begin: int, seeds: int) -> tuple[float, str]:
    """Seconds that so many storms took from seed `begin` on, and what they tell; exits where one fails."""
    # The program of `make test`; what cargo builds first takes as long as some thousand storms.
    build = ["cargo", "test", "--profile", "dev", "-q", "-p", "skytether-fleet", "--test", "fleet"]
    environment = {**os.environ, "SKYTETHER_STORMS": f"{begin}..{begin + seeds}", "PROTOC": os.environ.get("PROTOC", str(ROOT / ".venv/bin/protoc"))}
    subprocess.run([*build, "--no-run"], cwd=ROOT, check=True, env=environment)
    began = time.perf_counter()
    done = subprocess.run([*build, TEST, "--", "--exact", "--nocapture"], cwd=ROOT, env=environment, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    lines = done.stdout.splitlines()
    told = [at for at, line in enumerate(lines) if "steps were struck" in line]
    if not told:
        raise SystemExit(f"no storm was run:\n{done.stdout[-2000:]}")
    # The line, and the table of what befell which work.
    return took, "\n".join(lines[told[-1] : told[-1] + 11])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--from", type=int, default=0, dest="begin", metavar="SEED")
    options = parser.parse_args()
    took, told = run(options.begin, options.seeds)
    print(f"{options.seeds} storms in {took:.0f} s: nothing lost, nothing left behind; {told}")


if __name__ == "__main__":
    sys.exit(main())
