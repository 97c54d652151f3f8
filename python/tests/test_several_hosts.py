"""Super-plans that several hosts run: drives, workers and a host, each a process. The 22 queries of TPC-H equal DuckDB,
also when a worker is killed or hangs in the middle of a query, and where one host alone has too little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight
import pytest
import tpch
from compare import assert_same
from fleets import Served

import skytether

SCALE = 0.05


def text(number: int) -> str:
    return tpch.text(number, SCALE)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tpch.generated(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def duck(files):
    return tpch.in_duckdb(files)


class Hosts(Served):
    """Drives, a host, and workers, whose processes come last."""

    def __init__(self, place: Path, drives: int, files: Path | None, rows: int = 20_000) -> None:
        place.mkdir(exist_ok=True)
        super().__init__(place, drives, "--slice-rows", rows)
        if files is not None:
            with skytether.connect(self.url) as fleet:
                for table in tpch.TABLES:
                    fleet.ingest(files / f"{table}.parquet", f"tpch/{table}")
        self.workers: list[str] = []
        self.at: list[subprocess.Popen[str]] = []

    @property
    def addresses(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.drives)

    def worker(self, *options: object, listen: str = "127.0.0.1:0") -> str:
        host, port = self.start("host", "worker", "--drives", self.addresses, *options, listen=listen)
        self.at.append(self.processes.pop())
        return f"grpc://{host}:{port}"

    def spread(self, workers: int, *options: object, of_worker: tuple[object, ...] = ()) -> None:
        """The host again, over this number of workers."""
        self.workers = [self.worker(*of_worker) for _ in range(workers)]
        self.another_host("--workers", ",".join(self.workers), "--spread-from", 0, *options)

    def kill(self) -> None:
        for process in self.at:
            process.kill()
            process.wait()
            process.stdout.close()
        super().kill()


@contextmanager
def hosts(place: Path, drives: int, files: Path | None, *args: int):
    served = Hosts(place, drives, files, *args)
    try:
        yield served
        assert "panicked" not in served.errors.read_text()
    finally:
        served.kill()


@pytest.fixture(scope="module")
def several(files, tmp_path_factory):
    with hosts(tmp_path_factory.mktemp("several"), 4, files) as served:
        served.spread(3, "--worker-timeout", 20)
        yield served


def test_every_query_on_three_workers_equals_duckdb(several, duck):
    spread = 0
    with skytether.connect(several.url) as fleet:
        for number in range(1, 23):
            result = fleet.sql(text(number))
            assert_same(result.to_arrow(), duck.sql(text(number)).to_arrow_table(), False, f"query {number}")
            receipt = result.receipt.to_dict()
            assert "workers" not in receipt, (number, receipt["workers"])
            tasks = [task for stage in receipt.get("stages", []) for task in stage["tasks"]]
            spread += len({task["worker"] for task in tasks}) == 3
            if tasks:
                # The drives' figures come from the workers that read from them.
                assert receipt["bytes_read"] > 0 and {d["name"] for d in receipt["drives"]} <= {f"drive-{n}" for n in range(4)}
    assert spread >= 16, f"{spread} of 22 queries ran on all workers"


def test_explain_and_receipt_show_stages_and_workers(several):
    with skytether.connect(several.url) as fleet:
        shown = str(fleet.explain(text(3)))
        assert "stage 2 (3 tasks)" in shown and "StageReadExec: stage=" in shown, shown
        result = fleet.sql(text(3))
        result.to_arrow()
        receipt = result.receipt.to_dict()
        assert [stage["stage"] for stage in receipt["stages"]] == list(range(1, len(receipt["stages"]) + 1))
        assert {task["worker"] for stage in receipt["stages"] for task in stage["tasks"]} == set(several.workers)
        assert "stage 2 on 3 workers" in str(result.receipt)


def test_keys_of_joins_reach_the_drives(several):
    """Several hosts get about as much from the drives as one does, which sends the keys of its joins down."""
    with skytether.connect(several.url) as spread, skytether.connect(several.workers[0]) as alone:
        for number in (3, 5, 7, 8, 9, 17):
            moved = []
            for fleet in (spread, alone):
                result = fleet.sql(text(number))
                result.to_arrow()
                moved.append(result.receipt.to_dict()["bytes_moved"])
            assert moved[0] <= 2 * moved[1] + 200_000, (number, moved)


@pytest.mark.parametrize("workers", range(1, 8))
def test_no_row_is_lost_for_any_number_of_drives_and_workers(tmp_path, workers):
    """A share of partitions that workers do not divide must not fall out."""
    for drives in (1, 3, 4, 7):
        with hosts(tmp_path / f"{drives}", drives, None, 500) as served:
            table = pa.table({"k": [n % 1009 for n in range(20_000)], "v": list(range(20_000))})
            with skytether.connect(served.url) as fleet:
                fleet.ingest(table, "d.t")
            served.spread(workers)
            with skytether.connect(served.url) as fleet:
                result = fleet.sql("SELECT count(*) AS n, sum(v) AS s, sum(c) AS c FROM (SELECT a.v, count(b.v) AS c FROM d.t a JOIN d.t b ON a.k = b.k GROUP BY a.v)")
                pairs = sum(len(range(k, 20_000, 1009)) ** 2 for k in range(1009))
                assert result.to_arrow().to_pylist() == [{"n": 20_000, "s": 19_999 * 10_000, "c": pairs}]
                assert {t["worker"] for s in result.receipt.to_dict()["stages"] for t in s["tasks"]} == set(served.workers)


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


#: Seconds of work for three workers, in little memory: every row meets some hundred others.
LONG = (
    "SELECT count(*) AS n, sum(CAST(a.l_linenumber * b.l_linenumber AS BIGINT)) AS s, max(a.l_quantity * b.l_discount) AS m "
    "FROM tpch.lineitem a JOIN tpch.lineitem b ON a.l_suppkey = b.l_suppkey AND a.l_partkey <> b.l_partkey"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_query_runs_again_without_a_lost_worker(several, duck, how):
    wanted = duck.sql(LONG).to_arrow_table()
    victim = several.at[1]
    url = several.workers[1]
    done = {}

    def ask() -> None:
        with skytether.connect(several.url) as fleet:
            result = fleet.sql(LONG)
            done["table"], done["receipt"] = result.to_arrow(), result.receipt.to_dict()

    asking = threading.Thread(target=ask)
    before = cpu_seconds(victim)
    asking.start()
    # The query is under way once the victim works at it.
    while asking.is_alive() and cpu_seconds(victim) < before + 0.3:
        time.sleep(0.02)
    assert asking.is_alive(), "the query is over before the worker is lost"
    victim.send_signal(how)
    asking.join(timeout=90)
    try:
        assert not asking.is_alive(), "the query hangs"
        assert_same(done["table"], wanted, True, "a query that lost a worker")
        told = done["receipt"]["workers"]
        assert len(told) == 1 and f"ran again without {url}" in told[0], told
        assert {t["worker"] for s in done["receipt"]["stages"] for t in s["tasks"]} == set(several.workers) - {url}
        # The next query does not wait for it, and says nothing of it.
        with skytether.connect(several.url) as fleet:
            result = fleet.sql(text(1))
            result.to_arrow()
        assert "workers" not in result.receipt.to_dict()
    finally:
        if how == signal.SIGSTOP:
            victim.send_signal(signal.SIGCONT)
        else:
            victim.wait()
            victim.stdout.close()
            several.at[1:2] = []
            several.worker(listen=url.removeprefix("grpc://"))
            several.at.insert(1, several.at.pop())
    # It takes part again once it answers, and no query runs on the host alone.
    again = 0
    for _ in range(40):
        with skytether.connect(several.url) as fleet:
            result = fleet.sql(text(3))
            result.to_arrow()
        receipt = result.receipt.to_dict()
        assert "workers" not in receipt, receipt["workers"]
        again += url in {t["worker"] for s in receipt["stages"] for t in s["tasks"]}
        if again == 5:
            return
        time.sleep(0.0 if again else 0.5)
    raise AssertionError("the worker takes no part any more")


#: MiB of a host that runs out of memory in some queries at this scale.
LITTLE, LARGER = 24, 0.5


def test_three_workers_finish_what_one_host_can_not(tmp_path):
    files = tpch.generated(tmp_path / "files", LARGER)
    duck = tpch.in_duckdb(files)
    little = ("--memory", LITTLE)
    with hosts(tmp_path / "fleet", 4, files, 60_000) as served:
        served.another_host(*little)
        with skytether.connect(served.url) as fleet, pytest.raises(skytether.ExhaustedError, match="24.0 MiB"):
            fleet.sql(tpch.text(9, LARGER)).to_arrow()
        served.spread(3, *little, "--worker-timeout", 30, of_worker=little)
        with skytether.connect(served.url) as fleet:
            for number in range(1, 23):
                result = fleet.sql(tpch.text(number, LARGER))
                wanted = duck.sql(tpch.text(number, LARGER)).to_arrow_table()
                assert_same(result.to_arrow(), wanted, False, f"query {number}")
                assert "workers" not in result.receipt.to_dict(), (number, result.receipt.to_dict()["workers"])


def test_without_any_worker_the_host_works_alone(files, duck, tmp_path):
    with hosts(tmp_path, 2, files) as served:
        served.spread(1, "--worker-timeout", 2)
        served.at[0].kill()
        with skytether.connect(served.url) as fleet:
            result = fleet.sql(text(3))
            assert_same(result.to_arrow(), duck.sql(text(3)).to_arrow_table(), False, "query 3")
            receipt = result.receipt.to_dict()
            assert "stages" not in receipt and "left out" in receipt["workers"][0] and "alone" in receipt["workers"][-1], receipt["workers"]


def test_workers_change_nothing(several):
    with skytether.connect(several.workers[0]) as fleet:
        assert fleet.sql("SELECT count(*) AS n FROM tpch.region").to_arrow().to_pylist() == [{"n": 5}]
        with pytest.raises(skytether.UnsupportedError, match="is a worker and only reads"):
            fleet.ingest(pa.table({"v": [1]}), "d.new")
        with pytest.raises(skytether.UnsupportedError, match="is a worker and only reads"):
            fleet.drop("tpch/region")
    with skytether.connect(several.url) as fleet:
        fleet.ingest(pa.table({"v": [1]}), "d.new")
        fleet.drop("d/new")


def test_a_query_with_a_value_of_each_host_runs_on_one(several):
    with skytether.connect(several.url) as fleet:
        result = fleet.sql("SELECT l_suppkey, now() AS t, count(*) AS n FROM tpch.lineitem GROUP BY l_suppkey, now() ORDER BY l_suppkey LIMIT 3")
        assert result.to_arrow().num_rows == 3
        told = result.receipt.to_dict()["workers"]
        assert len(told) == 1 and "alone: now may have another value" in told[0], told
        for unsteady in ("random()", "uuid()"):
            result = fleet.sql(f"SELECT count(*) AS n FROM (SELECT l_suppkey, {unsteady} AS r FROM tpch.lineitem) GROUP BY l_suppkey")
            result.to_arrow()
            receipt = result.receipt.to_dict()
            assert "stages" not in receipt and "alone" in receipt["workers"][0], receipt


def test_a_side_with_a_limit_is_computed_once(several):
    """Workers that computed it each for itself would take other rows."""
    with skytether.connect(several.url) as fleet:
        result = fleet.sql(
            "SELECT count(DISTINCT s.o_orderkey) AS n FROM tpch.lineitem l JOIN (SELECT o_orderkey FROM tpch.orders LIMIT 7) s ON l.l_orderkey = s.o_orderkey"
        )
        assert result.to_arrow().to_pylist() == [{"n": 7}]


def test_figures_of_a_part_survive_a_repeated_end(several):
    """The answer to the call that ends a part may get lost. The call is repeated then, and gives the same figures."""
    url = several.workers[0]
    query = str(uuid.uuid4())
    with pa.flight.connect(url.replace("grpc://", "grpc+tcp://")) as worker:

        def act(action: str, **body: object) -> dict:
            (answer,) = worker.do_action(pa.flight.Action(action, json.dumps(body).encode()))
            return json.loads(answer.body.to_pybytes())

        sql = "SELECT l_shipmode, count(*) AS n FROM tpch.lineitem GROUP BY l_shipmode ORDER BY l_shipmode"
        act("stage_begin", query=query, sql=sql, options={}, partitions=2, workers=[url], own=0)
        rows = 0
        for partition in range(2):
            ticket = {"stage": {"query": query, "stage": 1, "task": 0, "partition": partition}}
            rows += worker.do_get(pa.flight.Ticket(json.dumps(ticket).encode())).read_all().num_rows
        first = act("stage_end", query=query)
        assert first["known"] and sum(task["rows"] for _, task in first["tasks"]) == rows > 0
        assert any(first["scans"]) and act("stage_end", query=query) == first
        assert not act("stage_beat", query=query)["known"]
        never = act("stage_end", query=str(uuid.uuid4()))
        assert (never["known"], never["tasks"]) == (False, [])
