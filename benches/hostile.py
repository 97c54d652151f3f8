"""How long others wait while a host works on a hostile query (python/tests/hostile_queries.py).

A host over three drives, all of them processes on this machine. While a query runs, another connection asks
`SELECT 1` again and again. Each query has 15 s; then it is cancelled.

    python benches/hostile.py [--only TEXT] [--seconds 15]
    python benches/run.py hostile
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python" / "tests"))

import pyarrow as pa  # noqa: E402

import skytether  # noqa: E402
from fleets import Served  # noqa: E402
from hostile_queries import QUERIES  # noqa: E402


#: How long a query may run before it is cancelled.
SECONDS = 15.0


def _memory(process: object) -> int:
    """The most memory that the process had, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


def _asked(url: str, text: str, seconds: float) -> str:
    """What came of the query, in a few words. It runs in a thread that is left behind at the deadline; its connection
    is dropped, which cancels it."""
    said: list[str] = []

    def ask() -> None:
        try:
            with skytether.connect(url) as fleet:
                said.append(f"{fleet.sql(text).to_arrow().num_rows} rows")
        except Exception as error:  # Every kind is reported.
            said.append(f"{type(error).__name__}: {str(error)[:90]}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return said[0] if said else f"runs for more than {seconds:.0f} s"


def run(only: str, seconds: float) -> float:
    """Prints a line for each query; the longest wait of all, in seconds."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        for number, (name, text) in enumerate(QUERIES.items()):
            if only not in name:
                continue
            # A host of its own for each: what one leaves running is not counted for the next.
            here = Path(place) / str(number)
            here.mkdir()
            served = Served(here, 3)
            try:
                with skytether.connect(served.url) as fleet:
                    fleet.ingest(pa.table({"a": list(range(1000)), "s": [f"x{n}" for n in range(1000)]}), "lab.t")
                waits: list[float] = []
                done = threading.Event()

                def others() -> None:
                    with skytether.connect(served.url) as fleet:
                        while not done.is_set():
                            begun = time.perf_counter()
                            fleet.sql("SELECT 1 AS x").to_arrow()
                            waits.append(time.perf_counter() - begun)
                            time.sleep(0.02)

                asking = threading.Thread(target=others)
                asking.start()
                begun = time.perf_counter()
                came = _asked(served.url, text, seconds)
                took = time.perf_counter() - begun
                done.set()
                asking.join(60)
                longest = max(waits, default=float("inf"))
                worst = max(worst, longest)
                print(f"{name:<40} {took:6.2f} s  SELECT 1: {longest * 1000:6.0f} ms at most  host {_memory(served.processes[-1]):5} MiB  {came}", flush=True)
            finally:
                served.kill()
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only queries whose name has this text")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a query may run before it is cancelled")
    given = parser.parse_args()
    longest = run(given.only, given.seconds)
    print(f"the longest wait for SELECT 1: {longest * 1000:.0f} ms (wanted: 1000 ms)")
    sys.exit(longest > 1)
