"""`make bench`: every figure, against the tools that people would use instead, measured in one run on this machine.

Measurements of memory or of a first call run in a process of their own (benches/one.py). Contenders run in turn, so
that noise of the machine affects all of them. Prints a table and writes bench-out/results.json, part by part.
`python benches/run.py speed particles` runs only these parts; `--quick` takes a matrix of a tenth of the size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import block  # noqa: E402
import cells  # noqa: E402
import ceph  # noqa: E402
import data  # noqa: E402
import encode  # noqa: E402
import hosts  # noqa: E402
import hostile  # noqa: E402
import kinetic  # noqa: E402
import million  # noqa: E402
import moving  # noqa: E402
import parity  # noqa: E402
import particles  # noqa: E402
import regret  # noqa: E402
import relational  # noqa: E402
import repair  # noqa: E402
import storms  # noqa: E402
import wide  # noqa: E402
from processes import fleet_of, med, one  # noqa: E402

RESULTS: list[dict] = []

PARTS = (
    "parity", "speed", "cells", "million", "relational", "wide", "particles", "encode", "repair", "storms", "regret", "moving", "hosts", "hostile",
    "kinetic", "block", "ceph",
)


def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
    """One line of the report."""
    mark = "" if ok is None else ("ok" if ok else "MISSED")
    print(f"  {what:<58} {value:>12}  {compared:<34} {wanted:<18} {mark}", flush=True)
    RESULTS.append({"what": what, "value": value, "compared": compared, "wanted": wanted, "ok": ok})


def speed(cells: int, genes: int) -> None:
    """Ingest, one group against the rest for all groups, memory, movement."""
    source = data.h5ad(cells, genes)
    coo = data.coo_parquet(source)
    print(f"\n{cells:,} cells x {genes:,} genes, {data.GROUPS} groups, four drives")
    fleet, took = fleet_of(source)
    line("ingest from gzip h5ad", f"{took['seconds'][0]:.2f} s", "", "<= 8 s", took["seconds"][0] <= 8)
    line("  peak memory", f"{took['peak_mb']:.0f} MB", "", "<= 1024 MB", took["peak_mb"] <= 1024)
    line("  stored", f"{took['stored_bytes'] / 1e6:.1f} MB", f"gzip h5ad {source.stat().st_size / 1e6:.0f} MB, COO Parquet {coo.stat().st_size / 1e6:.0f} MB", "<= 90 MB", took["stored_bytes"] <= 90e6)

    rounds = [{m: one(m, *a) for m, a in (("skytether", (fleet, "bench/matrix", 7)), ("duckdb", (coo, 3)))} for _ in range(3)]
    ours = [r["skytether"] for r in rounds]
    duck = statistics.median([med(r["duckdb"]) for r in rounds])
    first = statistics.median([r["seconds"][0] for r in ours])
    again = statistics.median([med(r) for r in ours])
    duck_first = statistics.median([r["duckdb"]["seconds"][0] for r in rounds])
    line("t-test of all groups, first in a process", f"{first:.3f} s", f"DuckDB statistics {duck_first:.3f} s: {duck_first / first:.1f}x", ">= 8x", duck_first / first >= 8)
    line("  median of repeated calls", f"{again:.3f} s", f"DuckDB statistics {duck:.3f} s: {duck / again:.1f}x", ">= 8x", duck / again >= 8)
    cold = statistics.median(r["seconds"][0] / med(r) for r in ours)
    line("  first call, in repeated calls", f"{cold:.2f}x", "same process", "<= 1.5x", cold <= 1.5)
    memory = max(r["peak_mb"] for r in ours)
    line("  peak memory of the process", f"{memory:.0f} MB", f"DuckDB {max(r['duckdb']['peak_mb'] for r in rounds):.0f} MB", "<= 300 MB", memory <= 300)
    ready = statistics.median([r["ready"] for r in ours])
    line("  process start to data frame", f"{ready:.2f} s", "", "<= 1.0 s", ready <= 1.0)
    moved = ours[0]["bytes_moved"]
    line("  bytes moved", f"{moved / 1e6:.2f} MB", f"read {ours[0]['bytes_read'] / 1e6:.1f} MB on the drives", "<= 8 MB", moved <= 8e6)
    sc, beside = one("scanpy", source, 3), one("skytether", fleet, "bench/matrix", 7)
    factor = med(sc) / med(beside)
    line("  scanpy 1.11 t-test, in memory", f"{med(sc):.2f} s", f"{factor:.0f}x slower; peak {sc['peak_mb']:.0f} MB", ">= 25x", factor >= 25)
    agg = one("aggregate", source, 5)
    line("  scanpy.get.aggregate + Welch, in memory", f"{med(agg):.2f} s", f"{med(agg) / again:.1f}x slower; peak {agg['peak_mb']:.0f} MB", ">= 3x", med(agg) / again >= 3)

    contrast = one("cached", fleet, "bench/matrix", 7)
    read = f"read {contrast['bytes_read'] / 1e6:.1f} MB on the drives"
    line("another contrast of the same groups, from kept results", f"{med(contrast) * 1000:.0f} ms", read, "<= 50 ms", med(contrast) <= 0.05)
    # The same two groups; its test of all groups against the rest is another job.
    pair = one("scanpy_contrast", source, 3)
    factor = med(pair) / med(contrast)
    line("  scanpy 1.11 t-test of the same two groups, in memory", f"{med(pair):.2f} s", f"{factor:.0f}x slower", ">= 100x", factor >= 100)
    line("  scanpy 1.11 t-test of all groups, in memory", f"{med(sc):.2f} s", f"{med(sc) / med(contrast):.0f}x the time of the two groups")

    ranks = one("wilcoxon", fleet, "bench/matrix", 3)
    line("Wilcoxon of all groups", f"{med(ranks):.2f} s", f"first in a process {ranks['seconds'][0]:.2f} s")
    line("  peak memory of the process", f"{ranks['peak_mb']:.0f} MB", "", "<= 500 MB", ranks["peak_mb"] <= 500)
    for name, wanted in (("illico", 3), ("scanpy_wilcoxon", 20)):
        other = one(name, source, 1 if name == "scanpy_wilcoxon" else 3)
        factor = med(other) / med(ranks)
        said = f"{factor:.1f}x slower; peak {other['peak_mb']:.0f} MB"
        line(f"  {name.removesuffix('_wilcoxon')}, in memory", f"{med(other):.2f} s", said, f">= {wanted}x", factor >= wanted)

    big = data.h5ad(4 * cells, genes)
    big_fleet, big_took = fleet_of(big)
    print(f"\n{4 * cells:,} cells x {genes:,} genes")
    line("ingest from gzip h5ad", f"{big_took['seconds'][0]:.1f} s", f"peak {big_took['peak_mb']:.0f} MB")
    # In turn, as the machine is not the same from one minute to the next.
    pairs = [(one("skytether", big_fleet, "bench/matrix", 5), one("skytether", fleet, "bench/matrix", 7)) for _ in range(3)]
    four = pairs[-1][0]
    ratio = statistics.median(med(large) / med(small) for large, small in pairs)
    line("t-test of all groups", f"{statistics.median(med(large) for large, _ in pairs):.3f} s", f"{ratio:.2f}x the time for 4x the cells", "<= 4.5x", ratio <= 4.5)
    line("  peak memory of the process", f"{four['peak_mb']:.0f} MB", "", "<= 400 MB", four["peak_mb"] <= 400)
    change = four["bytes_moved"] / moved - 1
    line("  bytes moved", f"{four['bytes_moved'] / 1e6:.2f} MB", f"{change:+.1%} against a quarter of the cells", "within 5%", abs(change) <= 0.05)


def measured(part: str, quick: bool) -> None:
    """One part, a tenth of it where it is `quick`."""
    match part:
        case "parity":
            for row in parity.compare_all():
                line(*row)
        case "speed":
            speed(*((5_000, 20_000) if quick else (50_000, 20_000)))
        case "cells":
            cells.compare(*((5_000, 20_000) if quick else (50_000, 20_000)), line)
        case "million":
            large, small = (n // 10 if quick else n for n in (million.LARGE, million.SMALL))
            million.compare(large, 20_000, small, line)
        case "relational":
            relational.compare(data.OUT, 0.1 if quick else 1.0, line)
        case "wide":
            wide.compare(data.OUT, line)
        case "particles":
            particles.compare(2_000_000 if quick else particles.ROWS, 3, False, True, line)
            particles.compare(2_000_000 if quick else particles.ROWS, 3, True, False, line)
        case "encode":
            encode.compare(2_000_000 if quick else encode.ROWS, 5, line)
        case "repair":
            repair.compare(2_000_000 if quick else repair.ROWS, 3, line)
        case "hostile":
            print("\nSELECT 1 next to hostile queries, on a served host")
            longest = hostile.run("", hostile.SECONDS)
            line("longest wait for SELECT 1", f"{longest * 1000:.0f} ms", "", "<= 1000 ms", longest <= 1)
        case "storms":
            seeds = storms.SEEDS // 10 if quick else storms.SEEDS
            took, told = storms.run(0, seeds)
            line(f"{seeds} simulations of a fleet: nothing lost, nothing left behind", f"{took:.0f} s", told, "all", True)
        case "regret":
            regret.compare(40 if quick else 1, 1, line)
        case "hosts":
            hosts.compare(quick, line)
        case "kinetic":
            kinetic.compare(quick, line)
        case "block":
            block.compare(block.QUICK if quick else block.FULL, line)
        case "ceph":
            ceph.compare(quick, line)
        case "moving":
            moving.compare(600_000 if quick else 12_000_000, 1 if quick else 3, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="which parts (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the matrix, to try the benchmark itself")
    args = parser.parse_args()
    data.OUT.mkdir(exist_ok=True)
    for part in args.parts or PARTS:
        measured(part, args.quick)
        # What was measured is not lost where a later part ends early.
        (data.OUT / "results.json").write_text(json.dumps(RESULTS, indent=1))
    missed = [r["what"].strip() for r in RESULTS if r["ok"] is False]
    print(f"\n{sum(r['ok'] is True for r in RESULTS)} figures reached, {len(missed)} missed{': ' + '; '.join(missed) if missed else ''}")


if __name__ == "__main__":
    main()
