"""TPC-H over a fleet of four drives, against DataFusion and DuckDB over the Parquet files of the same tables.

run.py calls `python benches/relational.py measure ENGINE SOURCE SCALE`, which prints the times of one engine as JSON,
in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from one import peak_mb

HERE = Path(__file__).resolve().parent
QUERIES = HERE / "tpch"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
sys.path.insert(0, str(HERE.parent / "python" / "tests"))


def query(number: int, scale: float) -> str:
    """The text of query `number`."""
    return (QUERIES / f"q{number:02}.sql").read_text().replace("{scale}", str(scale))


def files(out: Path, scale: float) -> Path:
    """The tables as Parquet, made where they are not there yet."""
    directory = out / f"tpch_{scale:g}"
    if not (directory / "supplier.parquet").exists():
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        subprocess.run([tool, "parquet", "-s", str(scale), "-o", directory], check=True, capture_output=True, timeout=1800)
    return directory


def column_bytes(directory: Path, scale: float) -> list[int]:
    """For each query: the bytes that the columns it names occupy as Arrow arrays. TPC-H's columns have names of
    their own across tables."""
    import pyarrow.parquet as pq

    size = {}
    for table in TABLES:
        file = pq.ParquetFile(directory / f"{table}.parquet")
        for name in file.schema_arrow.names:
            size[name] = file.read(columns=[name]).nbytes
    return [sum(size[name] for name in set(re.findall(r"\b[a-z]+_[a-z]+\b", query(n, scale))) & size.keys()) for n in range(1, 23)]


def _runner(engine: str, source: str, directory: Path):
    if engine == "skytether":
        import skytether

        fleet = skytether.open(source)

        def run(text: str):
            result = fleet.sql(text)
            table = result.to_arrow()
            return table, result.receipt.to_dict()["bytes_moved"]

        return run
    if engine == "datafusion":
        import datafusion

        # As many partitions as cores, as the fleet has.
        context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2))
        context.sql("CREATE SCHEMA tpch").collect()
        for table in TABLES:
            context.sql(f"CREATE EXTERNAL TABLE tpch.{table} STORED AS PARQUET LOCATION '{directory / table}.parquet'").collect()
        return lambda text: (context.sql(text).to_arrow_table(), 0)
    import duckdb

    con = duckdb.connect()
    con.execute("SET threads = 2; CREATE SCHEMA tpch")
    for table in TABLES:
        con.execute(f"CREATE VIEW tpch.{table} AS SELECT * FROM '{directory / table}.parquet'")
    return lambda text: (con.sql(text).to_arrow_table(), 0)


def measure(engine: str, source: str, directory: str, scale: str, answers: str) -> None:
    """Best of two runs of every query; answers go to files in `answers`."""
    import pyarrow as pa

    run = _runner(engine, source, Path(directory))
    seconds, moved = [], []
    for number in range(1, 23):
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            table, bytes_moved = run(query(number, float(scale)))
            times.append(time.perf_counter() - begin)
        seconds.append(min(times))
        moved.append(bytes_moved)
        with pa.OSFile(f"{answers}/{engine}_{number}.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    print(json.dumps({"seconds": seconds, "moved": moved, "peak_mb": peak_mb()}))


def ingest(source: str, directory: str) -> None:
    """The tables into a fleet of four drives."""
    import skytether

    begin = time.perf_counter()
    with skytether.open(source, drives=4) as fleet:
        for table in TABLES:
            fleet.ingest(f"{directory}/{table}.parquet", f"tpch/{table}")
    print(json.dumps({"seconds": time.perf_counter() - begin}))


def served(place: str, directory: str, scale: str) -> None:
    """Ingest and all queries with four drives and a host as processes of their own: what memory each takes at most."""
    import skytether
    from fleets import serving

    def peak(pid: int) -> float:
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024

    with serving(Path(place)) as fleet_of, skytether.connect(fleet_of.url) as fleet:
        for table in TABLES:
            fleet.ingest(f"{directory}/{table}.parquet", f"tpch/{table}")
        stored = [peak(process.pid) for process in fleet_of.processes]
        begin = time.perf_counter()
        for number in range(1, 23):
            fleet.sql(query(number, float(scale))).to_arrow()
        seconds = time.perf_counter() - begin
        peaks = [peak(process.pid) for process in fleet_of.processes]
    print(json.dumps({"seconds": seconds, "ingest_mb": stored, "peak_mb": peaks}))


def compare(out: Path, scale: float, line) -> None:
    """Runs everything and prints a line per figure with `line` (see run.py)."""
    import shutil

    import pyarrow as pa
    from compare import assert_same

    directory = files(out, scale)
    fleet, answers = out / f"fleet_tpch_{scale:g}", out / "tpch_answers"
    for old in (fleet, answers):
        shutil.rmtree(old, ignore_errors=True)
    answers.mkdir()

    def call(*args: object) -> dict:
        done = subprocess.run([sys.executable, __file__, *map(str, args)], capture_output=True, text=True, timeout=3600, env=os.environ)
        if done.returncode != 0:
            raise SystemExit(f"{args} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    print(f"\nTPC-H at scale factor {scale:g}, four drives")
    took = call("ingest", fleet, directory)
    line("ingest of eight Parquet files", f"{took['seconds']:.1f} s")
    results = {engine: call("measure", engine, fleet, directory, scale, answers) for engine in ("skytether", "datafusion", "duckdb")}
    place = out / "served_tpch"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    processes = call("served", place, directory, scale)
    shutil.rmtree(place)
    columns = sum(column_bytes(directory, scale))
    ours, theirs = results["skytether"], results["datafusion"]
    equal = 0
    for number in range(1, 23):
        tables = [pa.ipc.open_file(f"{answers}/{engine}_{number}.arrow").read_all() for engine in ("skytether", "duckdb")]
        try:
            assert_same(*tables, False, f"query {number}")
            equal += 1
        except AssertionError as e:
            print(f"  {e}")
        took, other = ours["seconds"][number - 1], theirs["seconds"][number - 1]
        beside = f"DataFusion {other:.2f} s: {took / other:.2f}x, DuckDB {results['duckdb']['seconds'][number - 1]:.2f} s"
        line(f"  query {number}", f"{took:.2f} s", f"{beside}; moved {ours['moved'][number - 1] / 1e6:.1f} MB")
    line("queries equal to DuckDB's answers", f"{equal} of 22", "", "22", equal == 22)
    total, other = sum(ours["seconds"]), sum(theirs["seconds"])
    line("total time", f"{total:.2f} s", f"DataFusion {other:.2f} s: {total / other:.2f}x", "<= 1.25x", total <= 1.25 * other)
    worst = max(range(22), key=lambda i: ours["seconds"][i] / theirs["seconds"][i])
    ratio = ours["seconds"][worst] / theirs["seconds"][worst]
    line(f"  the worst query ({worst + 1})", f"{ratio:.2f}x", "", "<= 2x", ratio <= 2)
    share = sum(ours["moved"]) / columns
    line("bytes moved, of the queries' columns", f"{share:.1%}", f"{sum(ours['moved']) / 1e6:.0f} MB", "<= 25%", share <= 0.25)
    line("peak memory of host and drives together", f"{ours['peak_mb']:.0f} MB", f"DataFusion {theirs['peak_mb']:.0f} MB", "<= 3072 MB", ours["peak_mb"] <= 3072)
    *drives, host = processes["peak_mb"]
    print("  drives and host as processes of their own")
    line("total time, first runs", f"{processes['seconds']:.1f} s")
    line("peak memory of a drive", f"{max(drives):.0f} MB", f"after the ingest {max(processes['ingest_mb'][:-1]):.0f} MB", "<= 512 MB", max(drives) <= 512)
    line("peak memory of the host", f"{host:.0f} MB", f"after the ingest {processes['ingest_mb'][-1]:.0f} MB", "<= 1024 MB", host <= 1024)


if __name__ == "__main__":
    {"measure": measure, "ingest": ingest, "served": served}[sys.argv[1]](*sys.argv[2:])
