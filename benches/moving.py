"""Adaptive execution in real time: the adaptive policy against the static ones, over drives with slow device profiles.

Each point is a kind of query, a device, a link and a number of drives. Every policy runs in turn on the same fleet,
several times, so that noise of the machine affects all of them. The answers are compared.
`python benches/moving.py [--points 12] [--repeat 3] [--moments]` prints a table and writes bench-out/moving.csv.
`regret real` reads that file and compares it with the simulated times of the same points. The simulator needs figures
of each query: costs per row, slices, selected rows. They come from other runs (`calibrate`): static policies over
drives behind a fast link, and a query that reads no slice. So the simulated times are predictions.

The drives share this machine's cores with the host, so the drives of a point together need less than one core.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    "moments": "SELECT g10, count(*) AS n, avg(x) AS ax, var_samp(x) AS vx, avg(y) AS ay, var_samp(y) AS vy FROM {t} GROUP BY g10",
}

#: The same queries over no slice, by statistics: only planning is left. If a filter alone excludes all rows, root
#: records say so, and the host asks no drive. If rows are aggregated, the host asks one drive. That one plans as each
#: of the others would.
NOTHING = {
    "select": "SELECT count(id) AS id, max(x) AS x, max(y) AS y FROM {t} WHERE x < -1",
    "groups_10": "SELECT g10, count(*) AS n, sum(x) AS sx, avg(y) AS ay FROM {t} WHERE x < -1 GROUP BY g10",
    "groups_1M": "SELECT g1m, count(*) AS n, sum(x) AS sx FROM {t} WHERE x < -1 GROUP BY g1m",
    "moments": "SELECT g10, count(*) AS n, avg(x) AS ax, var_samp(x) AS vx, avg(y) AS ay, var_samp(y) AS vy FROM {t} WHERE x < -1 GROUP BY g10",
}

#: How many times slower the drives are whose planning is measured.
PLANNED = 15

#: Slices of each drive that it plans for.
FIRST = 2

#: The simulator's names of them (`crates/sim/src/workload.rs`).
SIMULATED = {
    "select_0.001%": "filter 0.001%",
    "select_1%": "filter 1%",
    "select_10%": "filter 10%",
    "select_100%": "filter 100%",
    "groups_10": "10 groups",
    "groups_1M": "1e6 groups",
    # Of a plain table: its `moments` are those of a matrix, gene by gene.
    "moments": "10 groups",
}

#: Columns of moving.csv that are not measured times: those of `crates/sim/src/real.rs`.
CALIBRATED = (
    "slice_rows", "slice_bytes", "slices", "lower_s_per_row", "upper_s_per_row", "selected", "row_bytes", "groups", "state_bytes", "merge_s_per_state", "before_s", "session_s", "read_s_per_byte",
)  # fmt: skip

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
    ("select_10%", 1, 15, 1.0),
    ("select_100%", 1, 60, 1.0),
    ("select_0.001%", 1, 60, 1.0),
    ("groups_10", 1, 60, 1.0),
    ("select_1%", 1, 15, 0.1),
    ("moments", 4, 15, 1.0),
    ("groups_10", 16, 60, 10.0),
)

#: The same, of drives that another query keeps busy from some time after the beginning on, until the first is over.
LOADED = (
    ("groups_10", 4, 15, 1.0, 0.15),
    ("select_10%", 1, 15, 1.0, 0.5),
)

#: A query that keeps the drives busy.
LOAD = "SELECT g10, count(*) AS n, sum(x * y) AS sxy FROM {t} GROUP BY g10"


def profile(slower: float, link: float) -> str:
    """A device of two cores, `slower` times slower than this machine's, behind a link of `link` Gb/s."""
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
        # A half-made file of an interrupted run must not count as whole.
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with skytether.open(part, drives=drives) as fleet:
            fleet.ingest(table(rows), "bench.moving")
        part.rename(path)
    return path


def seconds(operators: list[dict], *names: str) -> float:
    """Seconds of the operators of these names, all threads added up."""
    return sum(operator["seconds"] for operator in operators if operator["name"] in names)


def calibrate(path: Path, one: Path, drives: int, kind: str, slower: float, repeat: int) -> dict[str, float | str]:
    """The simulator's figures of a query: medians of runs over the same fleet. These runs are not compared. They use
    drives behind a link of 10 Gb/s, and queries that read no slice.

    Seconds per row are of a core of this machine, for each row of a slice. They are those of scan and filter
    (`lower_s_per_row`) and of the drive's aggregate (`upper_s_per_row`) with `cut="full"`. The least of the runs
    counts, as other work of the machine only adds time. Bytes of a slice are those of the columns that are read. `one`
    is a fleet of one drive with the same rows.
    """
    import skytether

    # What is taken on a slow drive is this machine's processor time, which is more where cores idle in between (cold
    # caches): so the drives are as slow as those that are compared.
    fleet = skytether.open(path, drives=drives, profile=profile(slower, 10.0))
    sql, nothing = (text.format(t="bench.moving") for text in (KINDS[kind], NOTHING[kind if kind in NOTHING else "select"]))
    runs: list[dict[str, float]] = []
    # The first run reads from the disk and plans for the first time.
    for warm in range(-1, max(repeat, 2)):
        full, filtered = (fleet.sql(sql, cut=cut) for cut in ("full", "filter"))
        groups = full.to_arrow().num_rows
        filtered.to_arrow()
        if warm < 0:
            continue
        full, filtered = full.receipt.to_dict(), filtered.receipt.to_dict()
        notes = full["scans"][0]["annotations"]
        operators = [operator for note in notes for operator in note["operators"]]
        sent = filtered["scans"][0]["annotations"]
        rows, slices = (sum(note[key] for note in notes) for key in ("rows_read", "slices"))
        assert rows >= 1000 * slices, f"slices of {rows / slices} rows: what was counted are not the rows of slices"
        out, states = (sum(note["rows_out"] for note in of) for of in (sent, notes))
        run = {
            "slice_rows": rows / slices,
            "slice_bytes": sum(note["bytes_read"] for note in notes) / slices,
            # The drive with the most slices ends last.
            "slices": max(note["slices"] for note in notes),
            "lower_s_per_row": seconds(operators, "SliceScanExec", "FilterExec", "ProjectionExec") / rows,
            "upper_s_per_row": seconds(operators, "AggregateExec") / rows,
            "selected": out / rows,
            "row_bytes": sum(note["bytes_sent"] for note in sent) / max(out, 1),
        }
        if kind.startswith("groups") or kind == "moments":
            run |= {
                "groups": groups,
                "state_bytes": sum(note["bytes_sent"] for note in notes) / states,
                "merge_s_per_state": seconds(full["host"], "AggregateExec", "RepartitionExec") / states,
            }
        runs.append(run)
    fleet.close()
    found: dict[str, float | str] = dict.fromkeys(CALIBRATED, "")
    for key in runs[0]:
        found[key] = (min if "_s_per_" in key else statistics.median)(run[key] for run in runs)
    found["slice_rows"], found["slice_bytes"], found["slices"] = round(found["slice_rows"]), round(found["slice_bytes"]), int(found["slices"])
    found["read_s_per_byte"] = reading(one, kind, slower)
    # What a drive plans shows on slow ones, where nothing else of such a query is slow: of no slice, as all is planned
    # that `raw` needs, and of two, each on a core, what these cost left out.
    rows = int(drives * FIRST * found["slice_rows"] * 0.9)
    # Only by `id`, as a condition on `x` as well may leave no row, and no slice.
    first = sql.replace(" GROUP BY", f" WHERE id < {rows} GROUP BY") if "WHERE" not in sql else f"{sql[: sql.index('WHERE')]}WHERE id < {rows} AND x < 2"
    planned: dict[tuple[str, float], float] = {}
    for slower in (1, PLANNED):
        fleet = skytether.open(path, drives=drives, profile=profile(slower, 10.0))
        times: dict[str, list[float]] = {nothing: [], first: []}
        for _ in range(max(repeat, 5) + 2):
            for text, taken in times.items():
                began = time.perf_counter()
                result = fleet.sql(text, cut="full")
                result.to_arrow()
                taken.append(time.perf_counter() - began)
        for text, taken in times.items():
            planned[text, slower] = statistics.median(taken[2:])
        fleet.close()
    # `id` is read as well.
    notes = result.receipt.to_dict()["scans"][0]["annotations"]
    bytes_read = sum(note["bytes_read"] for note in notes) / sum(note["slices"] for note in notes)
    slice_s = (found["lower_s_per_row"] + found["upper_s_per_row"]) * found["slice_rows"] + found["read_s_per_byte"] * bytes_read
    for text, key, slices in ((nothing, "session_raw_s", 0.0), (first, "session_s", slice_s)):
        found[key] = max((planned[text, PLANNED] - planned[text, 1]) / (PLANNED - 1) - slices, 0.0)
    found["before_s"] = max(planned[nothing, 1] - found["session_raw_s"], 0.0)
    return found


@functools.cache
def reading(path: Path, kind: str, slower: float) -> float:
    """Seconds of a core of this machine for a drive to read a byte of a slice from its disk, and to verify it. The
    fleet's drives are so slow that nothing else counts. They send all slices raw, through fast links and from fast
    disks."""
    import skytether

    # A fast drive sends slices raw faster than the host processes them, which would count instead.
    slower = max(slower, PLANNED)
    fleet = skytether.open(path, drives=1, profile=profile(slower, 1000.0).replace("261000000.0", "1e11"))
    all_of_it, none, moved = [], [], 0
    for _ in range(4):
        # `raw` prunes nothing.
        for text, cut, times in ((KINDS[kind], "raw", all_of_it), (NOTHING[kind if kind in NOTHING else "select"], "full", none)):
            began = time.perf_counter()
            result = fleet.sql(text.format(t="bench.moving"), cut=cut)
            result.to_arrow()
            times.append(time.perf_counter() - began)
            moved = max(moved, result.receipt.to_dict()["bytes_moved"])
    fleet.close()
    # Two cores work side by side.
    return max(statistics.median(all_of_it[1:]) - statistics.median(none[1:]), 0.0) * 2 / slower / moved


def matrix_moments(out: Path, repeat: int) -> None:
    """What moments of a matrix's genes cost, for `regret calibrate`: a row as moving.csv has them. Slices are of a
    megabyte, 7% of 50,000 cells not zero. What reading and planning cost is taken from the other queries."""
    sys.path.insert(0, str(HERE / "figures"))
    import samples
    import skytether
    from clocks import AGGREGATES, SCANS, least, once

    genes, cells = 4_000, 50_000
    place = samples.expression_fleet(data.OUT, genes, cells, cells, None)
    with skytether.open(place, profile=profile(PLANNED, 10.0)) as fleet:
        query = samples.moments(cells)
        full = least([once(fleet, query) for _ in range(repeat + 1)][1:])
        filtered = once(fleet, query, "filter").receipt
    notes, sent = ([note for scan in receipt["scans"] for note in scan["annotations"]] for receipt in (full.receipt, filtered))
    rows, slices, states = (sum(note[key] for note in notes) for key in ("rows_read", "slices", "rows_out"))
    found = {
        "kind": "moments", "drives": 1, "slower": PLANNED, "link_bits_per_s": 10e9, "load": "idle", "policy": "full", "slice_rows": round(rows / slices),
        "slice_bytes": round(sum(note["bytes_read"] for note in notes) / slices), "slices": slices, "lower_s_per_row": full.of(SCANS) / rows, "upper_s_per_row": full.of(AGGREGATES) / rows, "selected": 1.0,
        "row_bytes": sum(note["bytes_sent"] for note in sent) / sum(note["rows_out"] for note in sent), "groups": genes, "state_bytes": sum(note["bytes_sent"] for note in notes) / states,
        "merge_s_per_state": seconds(full.receipt["host"], "AggregateExec", "RepartitionExec") / states, "read_s_per_byte": "", "session_s": "",
    }  # fmt: skip
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, found)
        writer.writeheader()
        writer.writerow(found)
    print("  ".join(f"{key} {value}" for key, value in found.items()), f"\n{out}")


def same(one: Any, other: Any) -> bool:
    """Whether two tables have the same rows, in any order; sums of floating-point numbers may differ by
    the order of adding up."""
    import numpy as np

    if one.num_rows != other.num_rows or one.schema != other.schema:
        return False
    # The first column tells rows apart: `id`, or what is grouped by.
    one, other = (table.sort_by(table.column_names[0]) for table in (one, other))
    pairs = ((a.combine_chunks().to_numpy(zero_copy_only=False), b.combine_chunks().to_numpy(zero_copy_only=False)) for a, b in zip(one.columns, other.columns, strict=True))
    return all(np.allclose(a, b, rtol=1e-9, atol=0.0) if a.dtype.kind == "f" else np.array_equal(a, b) for a, b in pairs)


def measure(path: Path, drives: int, device: str, sql: str, repeat: int) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Seconds of each choice, and its last receipt."""
    import skytether

    fleet = skytether.open(path, drives=drives, profile=device)
    times: dict[str, list[float]] = {cut: [] for cut in CUTS}
    receipts, answers = {}, {}
    # The first query of a process finds nothing in caches and plans for the first time: no choice is to pay for that.
    fleet.sql(sql).to_arrow()
    for _ in range(repeat):
        for cut in CUTS:
            began = time.perf_counter()
            result = fleet.sql(sql, cut=cut)
            rows = result.to_arrow()
            times[cut].append(time.perf_counter() - began)
            receipts[cut] = result.receipt.to_dict()
            answers[cut] = rows
    for cut, rows in answers.items():
        if not same(rows, answers[CUTS[0]]):
            raise SystemExit(f"the answers of {CUTS[0]} and {cut} differ: {answers[CUTS[0]]} and {rows}")
    fleet.close()
    return times, receipts


def busy(fleet: Any, after: float, over: threading.Event) -> None:
    """Keeps the drives of a fleet busy, from `after` seconds on, until it is over."""
    if over.wait(after):
        return
    while not over.is_set():
        fleet.sql(LOAD.format(t="bench.moving"), cut="full").to_arrow()


def loaded(rows: int, repeat: int) -> list[float]:
    """Points whose load changes in the middle: the same drives, and the same processor of them, work for another query
    from then on; the regrets."""
    import skytether

    regrets = []
    print(f"\n{'load changes':<14} {'drives':>6} {'slower':>6} {'Gb/s':>5} " + " ".join(f"{cut:>9}" for cut in CUTS) + f" {'regret':>8}  from (s)")
    for kind, drives, slower, link, after in LOADED:
        fleet = skytether.open(fleet_of(drives, rows), drives=drives, profile=profile(slower, link))
        sql = KINDS[kind].format(t="bench.moving")
        times: dict[str, list[float]] = {cut: [] for cut in CUTS}
        answers = {}
        fleet.sql(sql).to_arrow()
        fleet.sql(LOAD.format(t="bench.moving"), cut="full").to_arrow()
        for _ in range(repeat):
            for cut in CUTS:
                over = threading.Event()
                load = threading.Thread(target=busy, args=(fleet, after, over))
                load.start()
                began = time.perf_counter()
                answers[cut] = fleet.sql(sql, cut=cut).to_arrow()
                times[cut].append(time.perf_counter() - began)
                over.set()
                load.join()
        fleet.close()
        for cut, answer in answers.items():
            if not same(answer, answers[CUTS[0]]):
                raise SystemExit(f"the answers of {CUTS[0]} and {cut} differ")
        middle = {cut: statistics.median(seconds) for cut, seconds in times.items()}
        regrets.append(middle["adaptive"] / min(middle[cut] for cut in CUTS[1:]) - 1)
        print(f"{kind:<14} {drives:>6} {slower:>6} {link:>5} " + " ".join(f"{middle[cut]:>8.3f}s" for cut in CUTS) + f" {regrets[-1]:>+8.1%}  {after}", flush=True)
    return regrets


def run(points: Sequence[tuple[str, int, int, float]], rows: int, repeat: int, out: Path) -> tuple[list[float], list[float]]:
    """Measures `points` (kind, drives, how many times slower, Gb/s) over `rows` rows, `repeat` times each, into the CSV
    file `out`; prints a table. The regrets, and how far behind `raw`, as shares."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, int, float], dict] = {}
    regrets, over_raw = [], []
    print(f"{'kind':<14} {'drives':>6} {'slower':>6} {'Gb/s':>5} " + " ".join(f"{cut:>9}" for cut in CUTS) + f" {'regret':>8}  moved (MB, as the cuts)")
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ["kind", "drives", "slower", "link_bits_per_s", "load", "policy", *CALIBRATED, "disk_seek_s", "measured_s", "least_s", "most_s", "bytes_moved", "handed_out"]
        writer.writerow(columns)
        for kind, drives, slower, link in points:
            path = fleet_of(drives, rows)
            if (kind, drives, slower) not in known:
                known[kind, drives, slower] = calibrate(path, fleet_of(1, rows), drives, kind, slower, repeat)
            times, receipts = measure(path, drives, profile(slower, link), KINDS[kind].format(t="bench.moving"), repeat)
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
                happened = [drive for scan in receipts[cut]["scans"] for drive in scan.get("estimate", {}).get("happened", {}).get("drives", [])]
                # Statistics exclude no slice of a drive that must send all slices raw.
                of = known[kind, drives, slower]
                slices = math.ceil(rows / float(of["slice_rows"]) / drives) if cut == "raw" else of["slices"]
                row = {
                    "kind": SIMULATED[kind], "drives": drives, "slower": slower, "link_bits_per_s": link * 1e9, "load": "idle", "policy": cut, **of, "slices": slices, "disk_seek_s": 0.0,
                    "session_s": of["session_raw_s" if cut == "raw" else "session_s"],
                    "measured_s": middle[cut], "least_s": min(times[cut]), "most_s": max(times[cut]), "bytes_moved": bytes_moved,
                    "handed_out": sum(drive["handed_out"] for drive in happened),
                }  # fmt: skip
                writer.writerow([row[column] for column in columns])
            file.flush()
    return regrets, over_raw


def compare(rows: int, repeat: int, line: Callable[..., None]) -> None:
    """All points, as `make bench` reports them with `line(what, value, compared, wanted, ok)`; what was measured goes
    into bench-out/moving_ROWS.csv."""
    data.OUT.mkdir(parents=True, exist_ok=True)
    regrets, over_raw = run(POINTS, rows, repeat, data.OUT / f"moving_{rows}.csv")
    middle = statistics.median(regrets)
    line(f"regret in real time: median of {len(regrets)} points", f"{middle:+.1%}", "best static choice", "<= 3%", middle <= 0.03)
    line("  worst", f"{max(regrets):+.1%}", "best static choice", "<= 25%", max(regrets) <= 0.25)
    line("  farthest behind raw", f"{max(over_raw):+.1%}", "everything on the host", "<= 10%", max(over_raw) <= 0.10)
    changing = loaded(rows, repeat)
    line(f"  worst of {len(changing)} points whose load changes", f"{max(changing):+.1%}", "best static choice", "< 0%", max(changing) < 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=len(POINTS))
    parser.add_argument("--only", help="points whose kind contains this")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--out", type=Path, default=data.OUT / "moving.csv", help="where what was measured goes")
    parser.add_argument("--moments", action="store_true", help="only what moments of a matrix cost, into bench-out/moments.csv")
    options = parser.parse_args()
    data.OUT.mkdir(parents=True, exist_ok=True)
    if options.moments:
        return matrix_moments(data.OUT / "moments.csv", options.repeat)
    points = [p for p in POINTS if not options.only or options.only in p[0]][: options.points]
    regrets, over_raw = run(points, options.rows, options.repeat, options.out)
    if len(points) == len(POINTS):
        loaded(options.rows, options.repeat)
    print(f"\nregret: median {statistics.median(regrets):+.1%}, worst {max(regrets):+.1%}; against all on the host: worst {max(over_raw):+.1%}; {options.out}")


if __name__ == "__main__":
    main()
