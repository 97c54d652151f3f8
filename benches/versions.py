"""Two versions of Skytether in one run: `python benches/versions.py OTHER_PYTHON [PART ...]`.

OTHER_PYTHON is the interpreter of another checkout's `.venv`, built as its `make bench` builds it. Both versions run
the same measurements over the same stored data, in turn. The order changes from round to round, so that noise of the
machine meets both. Prints the ratio of medians per part: above 1 this version is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

#: Slower than this is worth a look: noise of medians of five rounds on a machine of two cores is about 3%.
ALLOWED = 1.05

#: Drives with two cores, each 15 times slower than this machine's, behind a link of 1 Gb/s.
SLOW = (
    "speed_per_core = 0.0667\ncores = 2\nmemory_bytes = 1073741824\ndisk_bytes_per_s = 261000000.0\ndisk_seek_s = 0.0\n"
    "link_bits_per_s = 1000000000\nlink_latency_s = 0.0002\n"
)

#: Queries over particles: a search that statistics prune little of, an aggregate, and all rows.
SEARCHES = (
    "SELECT * FROM vpic.particles WHERE ke > 1.0",
    "SELECT count(*) AS n, sum(ke) AS s, avg(x) AS m FROM vpic.particles",
    "SELECT ke, x FROM vpic.particles",
)

Job = Callable[[], object]


def best(job: Job, times: int) -> float:
    """Seconds of the quickest of `times` calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


# Measurements, each in a process of its own, of the version whose interpreter runs it: the seconds of each of its jobs.


def expression(fleet: str) -> list[float]:
    """Welch's test of all groups against the rest."""
    import msgexpress

    with msgexpress.open(fleet) as db:
        ds = db["bench/matrix"]
        return [best(lambda: ds.rank_genes_groups("cell_type", method="t-test", transform="log1p_cp10k").to_df(), 7)]


def relational(fleet: str, scale: str) -> list[float]:
    """The 22 queries of TPC-H."""
    import skytether
    from relational import query

    with skytether.open(fleet) as opened:
        return [best(lambda n=n: opened.sql(query(n, float(scale))).to_arrow(), 2) for n in range(1, 23)]


def particles(fleet: str, profile: str = "") -> list[float]:
    """Searches and an aggregate; with drives of a profile, adaptive execution."""
    import skytether

    options = {"profile": profile} if profile else {}
    with skytether.open(fleet, **options) as opened:
        return [best(lambda text=text: opened.sql(text).to_arrow(), 2 if profile else 3) for text in SEARCHES]


def ingest(fleet: str, source: str) -> list[float]:
    """A Parquet file into an erasure-coded fleet of five drives."""
    import skytether

    with skytether.open(fleet, drives=5, redundancy="ec:4+1") as opened:
        return [best(lambda: opened.ingest(source, "vpic.particles", replace=True), 1)]


def repair(fleet: str, aside: str) -> list[float]:
    """Loses a drive, whose files go `aside`, and rebuilds it."""
    import skytether

    (Path(fleet) / "drives" / "2").rename(aside)
    with skytether.open(fleet) as opened:
        return [best(lambda: opened.repair("drive-2"), 1)]


JOBS = {job.__name__: job for job in (expression, relational, particles, ingest, repair)}


def run(python: str, job: str, *args: object) -> list[float]:
    """One measurement by one version."""
    done = subprocess.run([python, __file__, "--job", job, *map(str, args)], capture_output=True, text=True, timeout=3600, env=os.environ)
    if done.returncode != 0:
        raise SystemExit(f"{job} by {python} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def parts(rows: int, cells: int, scale: float, scratch: Path) -> dict[str, Callable[[str, str], list[float]]]:
    """What is measured, by its name: a function of an interpreter and a name that no other call has. Makes the data."""
    import data
    import repair as repairs
    from relational import TABLES, files

    import skytether

    matrix, source = data.OUT / f"versions_matrix_{cells}", data.h5ad(cells, 20_000)
    if not matrix.exists():
        import msgexpress

        with msgexpress.open(matrix, drives=4) as db:
            db.ingest(source, "bench/matrix")
    tables = data.OUT / f"versions_tpch_{scale:g}"
    if not tables.exists():
        directory = files(data.OUT, scale)
        with skytether.open(tables, drives=4) as fleet:
            for table in TABLES:
                fleet.ingest(f"{directory}/{table}.parquet", f"tpch/{table}")
    physics = repairs.fleet_of(rows)
    parquet = data.OUT / f"particles_{rows}.parquet"
    return {
        "differential expression": lambda python, _: run(python, "expression", matrix),
        "relational (TPC-H)": lambda python, _: run(python, "relational", tables, scale),
        "particles": lambda python, _: run(python, "particles", physics),
        "adaptive, slow drives": lambda python, _: run(python, "particles", physics, SLOW),
        "ingest, ec:4+1": lambda python, name: run(python, "ingest", scratch / f"fleet_{name}", parquet),
        "repair": lambda python, name: run(python, "repair", physics, scratch / f"lost_{name}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("other", help="interpreter of the other version's .venv")
    parser.add_argument("parts", nargs="*", help="parts by the beginning of their names (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000, help="particles")
    parser.add_argument("--cells", type=int, default=50_000)
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor of TPC-H")
    args = parser.parse_args()
    import data

    scratch = data.OUT / "versions_scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    versions = {"this": sys.executable, "other": args.other}
    results = {}
    print(f"{'':<26} {'this':>9} {'other':>9}  ratio, and that of each job")
    for name, job in parts(args.rows, args.cells, args.scale, scratch).items():
        if args.parts and not any(name.startswith(part) for part in args.parts):
            continue
        told: dict[str, list[list[float]]] = {version: [] for version in versions}
        for number in range(args.rounds):
            for version in sorted(versions, reverse=bool(number % 2)):
                told[version].append(job(versions[version], f"{version}_{number}"))
        median = {version: [statistics.median(job) for job in zip(*rounds, strict=True)] for version, rounds in told.items()}
        this, other = (sum(median[version]) for version in ("this", "other"))
        each = [a / b for a, b in zip(median["this"], median["other"], strict=True)]
        shown = " ".join(f"{ratio:.2f}" for ratio in each) if len(each) > 1 else ""
        print(f"{name:<26} {this:>8.3f}s {other:>8.3f}s  {this / other:.3f} {'' if this / other <= ALLOWED else 'SLOWER'} {shown}", flush=True)
        results[name] = {"this": told["this"], "other": told["other"]}
    (data.OUT / "versions.json").write_text(json.dumps(results, indent=1))
    shutil.rmtree(scratch)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(JOBS[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
