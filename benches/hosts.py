"""A super-plan on three workers against one host, in two ways.

`memory`: the 22 queries of TPC-H over four drives, on three workers of little memory each and on one host of as little.
All answers of the workers are compared with DuckDB's.

`links`: queries whose rows come to the host, and each host behind a link of its own. What drives send passes a link in
front of the host, and what a worker sends to others passes a link behind it. One host and three workers run in turn.

`python benches/hosts.py memory|links [--scale 1] [--memory 96] [--rate 6e6] [--repeat 3]`
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python" / "tests")]
import data  # noqa: E402
import relational  # noqa: E402
from link import Link, link  # noqa: E402

WORKERS, DRIVES = 3, 4

#: Queries that send much to the host: groups of most rows, joins of two large sides, windows.
LINKED = {
    "groups of most rows": "SELECT count(*) AS n, max(s) AS m FROM "
    "(SELECT l_orderkey, l_partkey, sum(l_quantity) AS s FROM tpch.lineitem GROUP BY l_orderkey, l_partkey)",
    "join of two large tables": "SELECT o_orderpriority, count(*) AS n, sum(l_extendedprice) AS s "
    "FROM tpch.orders JOIN tpch.lineitem ON o_orderkey = l_orderkey WHERE l_shipdate > o_orderdate + INTERVAL '60' DAY "
    "GROUP BY o_orderpriority ORDER BY o_orderpriority",
    "window over all rows": "SELECT count(*) AS n, sum(r) AS s FROM (SELECT rank() OVER (PARTITION BY l_suppkey ORDER BY l_shipdate) AS r FROM tpch.lineitem)",
    "query 18": "",
}


class Hosts:
    """Processes of drives, hosts and workers, over the tables of TPC-H."""

    def __init__(self, place: Path, files: Path) -> None:
        from fleets import PROGRAM

        self.program, self.place, self.processes = PROGRAM, place, []
        self.drives = [self.start("drive", "serve", "--data", place / f"drive-{n}") for n in range(DRIVES)]
        if not (place / "filled").exists():
            import skytether

            host = self.start("host", "serve", "--drives", ",".join(self.drives))
            with skytether.connect(f"grpc://{host}") as fleet:
                for table in relational.TABLES:
                    fleet.ingest(files / f"{table}.parquet", f"tpch/{table}")
            self.end(1)
            (place / "filled").touch()

    def start(self, *arguments: object) -> str:
        """Starts a process; its HOST:PORT."""
        command = [self.program, *map(str, arguments), "--listen", "127.0.0.1:0"]
        with open(self.place / "stderr", "a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.processes.append(process)
        line = process.stdout.readline().strip()
        if "grpc://" not in line:
            raise SystemExit(f"{arguments[0]} {arguments[1]} did not start: see {self.place / 'stderr'}")
        return line.rsplit("grpc://", 1)[1]

    def end(self, count: int) -> None:
        """Ends the last `count` processes."""
        for _ in range(count):
            process = self.processes.pop()
            process.terminate()
            process.wait(timeout=60)
            process.stdout.close()

    def behind(self, links: Link | None) -> str:
        """The drives' addresses, through a link perhaps."""
        return ",".join(self.drives if links is None else map(links.to, self.drives))

    def alone(self, links: Link | None, *options: object) -> str:
        """A host without workers; its URL."""
        return "grpc://" + self.start("host", "serve", "--drives", self.behind(links), *options)

    def spread(self, links: list[tuple[Link, Link]] | None, *options: object) -> tuple[str, int]:
        """A host with three workers; its URL, and how many processes they are. Each worker has a link to the drives and
        one to other hosts."""
        workers = []
        for n in range(WORKERS):
            incoming, outgoing = links[n] if links else (None, None)
            address = self.start("host", "worker", "--drives", self.behind(incoming), *options)
            workers.append("grpc://" + (outgoing.to(address) if outgoing else address))
        # What the coordinator reads by itself comes through a link, too.
        own = links[0][0] if links else None
        return self.alone(own, "--workers", ",".join(workers), "--spread-from", 0, "--worker-timeout", 60, *options), WORKERS + 1


@contextmanager
def served(scale: float) -> Iterator[tuple[Hosts, Path]]:
    files = relational.files(data.OUT, scale)
    place = data.OUT / f"hosts_{scale:g}"
    if not (place / "filled").exists():
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(exist_ok=True)
    hosts = Hosts(place, files)
    try:
        yield hosts, files
    finally:
        hosts.end(len(hosts.processes))


def _asked(url: str, text: str):
    """The seconds, the rows and the receipt of a query; the error in the place of the rows."""
    import skytether

    with skytether.connect(url) as fleet:
        begun = time.perf_counter()
        try:
            result = fleet.sql(text)
            table = result.to_arrow()
            receipt = result.receipt.to_dict()
        except skytether.ExhaustedError as error:
            table, receipt = error, {}
        return time.perf_counter() - begun, table, receipt


def memory(scale: float, mebibytes: int, line: Callable) -> None:
    """All queries on one host and on three workers, each of this memory."""
    import duckdb
    import pyarrow as pa
    from compare import assert_same

    print(f"\nTPC-H at scale {scale:g}, hosts of {mebibytes} MiB each, {DRIVES} drives")
    with served(scale) as (hosts, files):
        con = duckdb.connect()
        con.execute("CREATE SCHEMA tpch")
        for table in relational.TABLES:
            con.execute(f"CREATE VIEW tpch.{table} AS SELECT * FROM '{files / table}.parquet'")
        options = ("--memory", mebibytes)
        done: dict[str, dict[int, float]] = {"one": {}, "three": {}}
        failed: dict[str, list[int]] = {"one": [], "three": []}
        notes = []
        for name in ("one", "three"):
            url, count = (hosts.alone(None, *options), 1) if name == "one" else hosts.spread(None, *options)
            for number in range(1, 23):
                text = relational.query(number, scale)
                seconds, rows, receipt = _asked(url, text)
                if not isinstance(rows, pa.Table):
                    failed[name].append(number)
                    continue
                done[name][number] = seconds
                assert_same(rows, con.sql(text).to_arrow_table(), False, f"query {number} on {name}")
                notes += [f"query {number}: {note}" for note in receipt.get("workers", [])]
            hosts.end(count)
    both = done["one"].keys() & done["three"].keys()
    slower = sum(done["three"][n] for n in both) / max(sum(done["one"][n] for n in both), 1e-9)
    line("queries of TPC-H that one host finishes", f"{len(done['one'])} of 22", f"too little memory for {failed['one']}")
    told = f"too little memory for {failed['three']}" if failed["three"] else "equal to DuckDB's answers"
    line("  that three workers finish", f"{len(done['three'])} of 22", told, "22", not failed["three"])
    line("  of them on the coordinator alone", f"{len(notes)}", "; ".join(notes)[:200], "0", not notes)
    line("  time of the queries that both finish", f"{sum(done['three'][n] for n in both):.1f} s", f"{slower:.2f}x of one host's")


def links(scale: float, bytes_per_s: float, repeat: int, line: Callable) -> None:
    """Queries on one host and on three workers, each behind links of this rate."""
    print(f"\nHosts behind links of {bytes_per_s * 8 / 1e6:.0f} Mb/s, TPC-H at scale {scale:g}, {DRIVES} drives")
    queries = {name: text or relational.query(18, scale) for name, text in LINKED.items()}
    ratios = []
    with ExitStack() as stack, served(scale) as (hosts, _):
        single = stack.enter_context(link(bytes_per_s))
        several = [(stack.enter_context(link(bytes_per_s)), stack.enter_context(link(bytes_per_s))) for _ in range(WORKERS)]
        one = hosts.alone(single)
        three, _ = hosts.spread(several)
        for name, text in queries.items():
            taken: dict[str, list[float]] = {"one": [], "three": []}
            answers = {}
            for _ in range(repeat):
                for which, url in (("one", one), ("three", three)):
                    seconds, answers[which], receipt = _asked(url, text)
                    taken[which].append(seconds)
                    if receipt.get("workers"):
                        raise SystemExit(f"{name}: {receipt['workers']}")
            if sorted(map(str, answers["one"].to_pylist())) != sorted(map(str, answers["three"].to_pylist())):
                raise SystemExit(f"{name}: three workers gave other rows than one host")
            alone, together = statistics.median(taken["one"]), statistics.median(taken["three"])
            ratios.append(alone / together)
            line(f"{name}, three workers", f"{together:.2f} s", f"one host {alone:.2f} s: {alone / together:.2f}x", "> 1x", alone > together)
    line("  geometric mean", f"{statistics.geometric_mean(ratios):.2f}x", "of one host's speed", "> 1x", statistics.geometric_mean(ratios) > 1)


def compare(quick: bool, line: Callable) -> None:
    """Both measurements."""
    scale = 0.1 if quick else 1.0
    memory(scale, 16 if quick else 64, line)
    links(scale, 3e6 if quick else 12.5e6, 1 if quick else 3, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["memory", "links"])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--memory", type=int, default=64, help="MiB of each host")
    parser.add_argument("--rate", type=float, default=12.5e6, help="bytes per second of each link")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    data.OUT.mkdir(exist_ok=True)

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<42} {value:>10}  {compared}  {wanted} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    if options.what == "memory":
        memory(options.scale, options.memory, line)
    else:
        links(options.scale, options.rate, options.repeat, line)


if __name__ == "__main__":
    main()
