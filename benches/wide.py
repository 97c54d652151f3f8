"""Wide tables over a fleet of four drives, against pyarrow over a Parquet file of the same rows.

run.py calls `python benches/wide.py measure ENGINE SOURCE COLUMNS ROWS`, which prints the times of one engine as JSON,
in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from one import peak_mb

HERE = Path(__file__).resolve().parent
SHAPES = ((2_000, 12_000), (20_000, 1_000))

#: How often each query runs; the best counts.
TIMES = 3


def file_of(out: Path, columns: int, rows: int) -> Path:
    """The Parquet file, made where it is not there yet: an id, and numbers of a gamma distribution as float32,
    a third of them zero."""
    path = out / f"wide_{columns}x{rows}.parquet"
    if not path.exists():
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        random = np.random.default_rng(columns)
        table = {"id": np.arange(rows)}
        for n in range(columns - 1):
            values = random.gamma(2, 3, rows).astype(np.float32)
            values[random.random(rows) < 1 / 3] = 0
            table[f"c{n}"] = values
        pq.write_table(pa.table(table), path, compression="zstd")
    return path


def queries(columns: int) -> dict[str, tuple[str, list[str]]]:
    """By title: the SQL, and the columns that it needs."""
    some = [f"c{n}" for n in range(0, columns - 1, (columns - 1) // 1000)][:1000]
    return {
        "one column": ("SELECT sum(c77) FROM w.t", ["c77"]),
        "SELECT * with a filter": ("SELECT * FROM w.t WHERE c5 > 12", []),
        "1,000 aggregates": (f"SELECT {', '.join(f'sum({c})' for c in some)} FROM w.t", some),
    }


def _skytether(source: str, file: Path):
    # With what `to_arrow` would import in the first query: pyarrow's own first query has it as well.
    import pyarrow
    import skytether

    shutil.rmtree(source, ignore_errors=True)
    fleet = skytether.open(source, drives=4)
    begin = time.perf_counter()
    fleet.ingest(str(file), "w.t")
    return time.perf_counter() - begin, lambda sql, needed: fleet.sql(sql).to_arrow()


def _pyarrow(source: str, file: Path):
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    begin = time.perf_counter()
    pq.write_table(pq.read_table(file), source, compression="zstd")
    seconds = time.perf_counter() - begin

    def run(sql: str, needed: list[str]):
        table = ds.dataset(source)
        if not needed:
            return table.to_table(filter=pc.field("c5") > 12)
        read = table.to_table(columns=needed)
        return [pc.sum(read[c].cast("float64")).as_py() for c in needed]

    return seconds, run


def measure(engine: str, source: str, file: str, columns: str) -> None:
    """Ingest once, every query a few times; prints seconds, and a digest of the answers."""
    ingest, run = (_skytether if engine == "skytether" else _pyarrow)(source, Path(file))
    seconds, processor, answers = {}, {}, {}
    for title, (sql, needed) in queries(int(columns)).items():
        times, worked = [], []
        for _ in range(TIMES):
            begin, before = time.perf_counter(), time.process_time()
            answer = run(sql, needed)
            times.append(time.perf_counter() - begin)
            worked.append(time.process_time() - before)
        seconds[title], processor[title] = times, worked
        if isinstance(answer, list):
            answers[title] = answer
        elif needed:
            answers[title] = [answer.column(n)[0].as_py() for n in range(answer.num_columns)]
        else:
            answers[title] = [answer.num_rows, answer.num_columns, sum(answer["id"].to_pylist())]
    print(json.dumps({"ingest": ingest, "seconds": seconds, "processor": processor, "answers": answers, "peak_mb": peak_mb()}))


def compare(out: Path, line) -> None:
    """Runs both engines and prints a line per figure with `line` (see run.py)."""
    for columns, rows in SHAPES:
        file = file_of(out, columns, rows)
        done = {}
        for engine, source in (("skytether", out / f"fleet_wide_{columns}"), ("pyarrow", out / f"wide_{columns}_rewritten.parquet")):
            command = [sys.executable, __file__, "measure", engine, str(source), str(file), str(columns)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
            if ran.returncode != 0:
                raise SystemExit(f"{engine} failed:\n{ran.stderr[-3000:]}")
            done[engine] = json.loads(ran.stdout.splitlines()[-1])
        ours, theirs = done["skytether"], done["pyarrow"]
        print(f"\n{columns:,} columns x {rows:,} rows, four drives; pyarrow over one Parquet file")
        pairs = {"ingest of the Parquet file": (ours["ingest"], theirs["ingest"])}
        pairs |= {f"{title}, first": (times[0], theirs["seconds"][title][0]) for title, times in ours["seconds"].items()}
        pairs |= {f"{title}, best of {TIMES}": (min(times), min(theirs["seconds"][title])) for title, times in ours["seconds"].items()}
        for title, (mine, other) in pairs.items():
            line(title, f"{mine * 1e3:.0f} ms", f"pyarrow {other * 1e3:.0f} ms: {mine / other:.2f}x", "<= 2x", mine <= 2 * other)
        for title, times in ours["processor"].items():
            # Of all threads: on a machine with other work this says more than the clock.
            mine, other = min(times), min(theirs["processor"][title])
            line(f"{title}, processor time", f"{mine * 1e3:.0f} ms", f"pyarrow {other * 1e3:.0f} ms: {mine / other:.2f}x")
        line("peak memory of the process", f"{ours['peak_mb']:.0f} MB", f"pyarrow {theirs['peak_mb']:.0f} MB")
        near = all(
            len(a) == len(b) and all(abs(x - y) <= 1e-9 * max(abs(x), abs(y)) for x, y in zip(a, b)) for a, b in zip(ours["answers"].values(), theirs["answers"].values())
        )
        line("answers", "equal" if near else "DIFFER", "", "equal", near)


if __name__ == "__main__":
    measure(*sys.argv[2:])
