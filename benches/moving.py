"""Work that moves, in real time: the adaptive cut beside the static ones, over drives that are made slow by device profiles.

Each point is a kind of query, a device, a link and a number of drives. Every choice runs in turn on the same fleet, several times, so that noise of the machine meets all of them; the answers are compared.
`python benches/moving.py [--points 12] [--repeat 3]` prints a table and writes bench-out/moving.csv for `regret real`, which puts the simulated times of the same points beside it.

The drives share this machine's cores with the host, so points are chosen whose drives together need less than a core of it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402

ROWS = 6_000_000
CUTS = ("adaptive", "full", "filter", "raw")

#: Kinds of queries: name, text; `{t}` is the table.
KINDS = {
    "select_0.001%": "SELECT id, x, y FROM {t} WHERE x < 0.00001",
    "select_1%": "SELECT id, x, y FROM {t} WHERE x < 0.01",
    "select_10%": "SELECT id, x, y FROM {t} WHERE x < 0.1",
    "select_100%": "SELECT id, x, y FROM {t} WHERE x < 2",
    "groups_10": "SELECT g10, count(*) AS n, sum(x) AS sx, avg(y) AS ay FROM {t} GROUP BY g10",
    "groups_1M": "SELECT g1m, count(*) AS n, sum(x) AS sx FROM {t} GROUP BY g1m",
}

#: Kind, drives, times slower than a core of this machine, Gb/s of each link.
POINTS = (
    ("select_0.001%", 1, 15, 1.0),
    ("select_1%", 4, 15, 1.0),
    ("select_100%", 4, 15, 1.0),
    ("groups_10", 1, 15, 1.0),
    ("groups_10", 4, 15, 1.0),
    ("groups_10", 4, 15, 0.1),
    ("groups_10", 1, 4, 0.1),
    ("groups_10", 4, 60, 2.5),
    ("groups_1M", 1, 15, 1.0),
    ("groups_1M", 4, 15, 0.1),
    ("select_10%", 1, 4, 0.1),
    ("select_0.001%", 4, 60, 0.1),
    ("select_1%", 1, 60, 2.5),
)


def profile(slower: float, link: float) -> str:
    """A device of two cores, so many times slower than this machine's, behind a link of so many Gb/s."""
    return (
        f"speed_per_core = {1 / slower}\ncores = 2\nmemory_bytes = 1073741824\ndisk_bytes_per_s = 261000000.0\ndisk_seek_s = 0.0\n"
        f"link_bits_per_s = {link * 1e9}\nlink_latency_s = 0.0002\n"
    )


def table(rows: int):
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(7)
    return pa.table(
        {
            "id": np.arange(rows),
            "g10": rng.integers(0, 10, rows).astype(np.int32),
            "g1m": rng.integers(0, 1_000_000, rows).astype(np.int32),
            "x": rng.random(rows),
            "y": rng.random(rows).astype(np.float32),
        }
    )


def fleet_of(drives: int, rows: int) -> Path:
    """A fleet with the table, filled at full speed."""
    import skytether

    path = data.OUT / f"fleet_moving_{drives}_{rows}"
    if not path.exists():
        fleet = skytether.open(path, drives=drives)
        fleet.ingest(table(rows), "bench.moving")
        fleet.close()
    return path


def measure(path: Path, drives: int, device: str, sql: str, repeat: int) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Seconds of each choice, and its last receipt."""
    import skytether

    fleet = skytether.open(path, drives=drives, profile=device)
    times: dict[str, list[float]] = {cut: [] for cut in CUTS}
    receipts, answers = {}, {}
    for _ in range(repeat):
        for cut in CUTS:
            began = time.perf_counter()
            result = fleet.sql(sql, cut=cut)
            rows = result.to_arrow()
            times[cut].append(time.perf_counter() - began)
            receipts[cut] = result.receipt.to_dict()
            answers[cut] = (rows.num_rows, rows.column_names)
    if len(set(map(str, answers.values()))) != 1:
        raise SystemExit(f"answers differ: {answers}")
    fleet.close()
    return times, receipts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=len(POINTS))
    parser.add_argument("--only", help="points whose kind contains this")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    points = [p for p in POINTS if not options.only or options.only in p[0]][: options.points]
    out = data.OUT / "moving.csv"
    regrets, over_raw = [], []
    print(f"{'kind':<14} {'drives':>6} {'slower':>6} {'Gb/s':>5} " + " ".join(f"{cut:>9}" for cut in CUTS) + f" {'regret':>8}  moved (MB, as the cuts)")
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "drives", "slower", "link_gbps", "cut", "seconds", "bytes_moved"])
        for kind, drives, slower, link in points:
            path = fleet_of(drives, options.rows)
            times, receipts = measure(path, drives, profile(slower, link), KINDS[kind].format(t="bench.moving"), options.repeat)
            middle = {cut: statistics.median(seconds) for cut, seconds in times.items()}
            best = min(middle[cut] for cut in CUTS[1:])
            regrets.append(middle["adaptive"] / best - 1)
            over_raw.append(middle["adaptive"] / middle["raw"] - 1)
            moved = [receipts[cut]["bytes_moved"] for cut in CUTS]
            print(
                f"{kind:<14} {drives:>6} {slower:>6} {link:>5} " + " ".join(f"{middle[cut]:>8.3f}s" for cut in CUTS)
                + f" {regrets[-1]:>+8.1%}  " + " / ".join(f"{b / 1e6:.1f}" for b in moved),
                flush=True,
            )
            for cut, bytes_moved in zip(CUTS, moved, strict=True):
                writer.writerow([kind, drives, slower, link, cut, middle[cut], bytes_moved])
    print(f"\nregret: median {statistics.median(regrets):+.1%}, worst {max(regrets):+.1%}; against all on the host: worst {max(over_raw):+.1%}; {out}")


if __name__ == "__main__":
    main()
