"""The grid of the regret figures, on the simulated clock: how far adaptive runs are behind the best static policy
(`crates/sim`).

`python benches/regret.py [--every 1] [--seed 1]`, or `python benches/run.py regret`, takes some two minutes for all
points and writes bench-out/regret_SEED.csv. `regret grid` (the same binary) says more about the worst points.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402

ROOT = HERE.parent

#: Limits of the regret over all points (median, 95th percentile, worst), and of any run against one with everything on
#: the host.
MEDIAN, MOST_OF_THEM, WORST, OVER_RAW = 0.03, 0.10, 0.25, 0.10


def grid(every: int, seed: int) -> list[dict[str, str]]:
    """Every `every`-th point of the grid, in random numbers of `seed`: columns as in `crates/sim/src/bin/regret.rs`,
    seconds of the simulated clock."""
    cargo = ["cargo", "run", "--profile", "dev", "-q", "-p", "skytether-sim", "--bin", "regret", "--", "csv", str(every), str(seed)]
    environment = {**os.environ, "PROTOC": os.environ.get("PROTOC", str(ROOT / ".venv/bin/protoc"))}
    done = subprocess.run(cargo, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit("the simulator failed")
    out = data.OUT / (f"regret_{seed}.csv" if every == 1 else f"regret_{seed}_every_{every}.csv")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(done.stdout)
    return list(csv.DictReader(done.stdout.splitlines()))


def compare(every: int, seed: int, line: Callable[..., None]) -> None:
    """Reports the figures with `line(what, value, compared, wanted, ok)`."""
    rows = grid(every, seed)
    if len(rows) < 20:
        raise SystemExit(f"{len(rows)} points tell nothing of percentiles: take more of them, with --every of 50 at most")
    regrets = sorted(float(row["regret"]) for row in rows)
    most_of_them = statistics.quantiles(regrets, n=20, method="inclusive")[-1]
    worst = max(rows, key=lambda row: float(row["regret"]))
    name = "/".join(worst[part] for part in ("query", "slower", "gbit", "drives", "load"))
    print(f"\nThe grid of {len(rows)} points, simulated, seed {seed}")
    line("regret: median", f"{statistics.median(regrets):+.1%}", "best static choice", f"<= {MEDIAN:.0%}", statistics.median(regrets) <= MEDIAN)
    line("  95th percentile", f"{most_of_them:+.1%}", "best static choice", f"<= {MOST_OF_THEM:.0%}", most_of_them <= MOST_OF_THEM)
    line("  worst", f"{regrets[-1]:+.1%}", name, f"<= {WORST:.0%}", regrets[-1] <= WORST)
    behind = [row for row in rows if float(row["over_raw"]) > OVER_RAW]
    line(f"points more than {OVER_RAW:.0%} behind raw", f"{len(behind)}", "everything on the host", "none", not behind)
    changing = [row for row in rows if row["load"] == "Changes"]
    better = sum(float(row["regret"]) < 0 for row in changing)
    line("better than every static choice where the load changes", f"{better}", f"of {len(changing)}", "all", bool(changing) and better == len(changing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="every so manieth point only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compare(options.every, options.seed, lambda *told: print("  " + "  ".join(map(str, told[:4])) + ("" if told[4] else "  MISSED")))


if __name__ == "__main__":
    main()
