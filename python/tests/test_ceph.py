"""Fleets in a real Ceph cluster, by the command and from Python: docs/ceph.md."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ceph import Cluster, cluster

pytestmark = pytest.mark.timeout(600)

ROWS = 200_000


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("ceph")) as running:
        yield running


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that nothing packs: some 13 slices."""
    noise = np.random.default_rng(1)
    table = pa.table({"id": np.arange(ROWS), "zone": np.arange(ROWS) % 7, **{c: noise.integers(-(2**40), 2**40, ROWS) for c in "abcdefg"}})
    pq.write_table(table, path := tmp_path_factory.mktemp("rides") / "rides.parquet")
    return path


def count(ceph: Cluster, url: str, name: str = "city.rides") -> list[dict[str, int]]:
    lines = ceph.run("sql", f"SELECT count(*) AS n, sum(id) AS s, sum(a) AS a FROM {name}", "--fleet", url, "--format", "json")
    return [json.loads(line) for line in lines.splitlines()]


def due(rides: Path) -> list[dict[str, int]]:
    table = pq.read_table(rides)
    return [{"n": ROWS, "s": ROWS * (ROWS - 1) // 2, "a": int(np.sum(table["a"].to_numpy()))}]


def test_command_works_end_to_end(ceph: Cluster, rides: Path) -> None:
    url = ceph.url()
    made = ceph.run("init", url, "--drives", 3)
    assert "made a fleet of 3 drives" in made and "pool sky keeps 3 copies, and the fleet has redundancy none" in made
    assert "there is a fleet at" in ceph.run("init", url, "--drives", 3, status=1)
    ceph.run("ingest", rides, "--to", "city.rides", "--fleet", url)
    assert count(ceph, url) == due(rides)
    assert "city.rides" in ceph.run("ls", "--fleet", url)
    drives = json.loads(ceph.run("status", "--fleet", url, "--format", "json"))
    assert len(drives) == 3
    scrubbed = json.loads(ceph.run("scrub", "--fleet", url, "--format", "json"))
    assert scrubbed, scrubbed
    ceph.run("drop", "city.rides", "--fleet", url)
    assert "city.rides" not in ceph.run("ls", "--fleet", url)


def test_python_opens_a_fleet_in_pools(ceph: Cluster, rides: Path) -> None:
    ceph.tell("pool other 3")
    url = ceph.url("other")
    printed = ceph.python(
        "import skytether, pyarrow.parquet as pq\n"
        f"with skytether.open({url!r}, drives=2) as fleet:\n"
        f"    fleet.ingest(pq.read_table({str(rides)!r}), 'city.rides')\n"
        "    print(fleet.sql('SELECT zone, count(*) AS n FROM city.rides GROUP BY zone ORDER BY zone').to_pandas().n.sum())\n"
        "    try:\n"
        "        fleet.ingest(pq.read_table(" + repr(str(rides)) + "), 'city.coded', redundancy='replicas:2')\n"
        "    except skytether.errors.InvalidError as error:\n"
        "        print('no redundancy of its own' in str(error))\n"
    )
    assert printed.split() == [str(ROWS), "True"]


def test_wrong_pools_and_options_are_refused(ceph: Cluster) -> None:
    ceph.tell("pool single 1")
    assert "size 1" in ceph.run("init", ceph.url("single"), status=1)
    assert "no redundancy of its own" in ceph.run("init", ceph.url("single"), "--redundancy", "replicas:2", status=1)
    assert "no pool absent" in ceph.run("ls", "--fleet", ceph.url("absent"), status=1)
    assert "skytether init" in ceph.run("ls", "--fleet", ceph.url("sky/empty"), status=1)


def test_osds_killed_amid_ingest_and_queries_cost_nothing(ceph: Cluster, rides: Path) -> None:
    url = ceph.url("sky/failures")
    ceph.run("init", url, "--drives", 2)
    ingest = ceph.start("ingest", rides, "--to", "city.rides", "--fleet", url)
    ceph.tell("kill 0")
    said = ingest.communicate(timeout=150)
    assert ingest.returncode == 0, said
    query = ceph.start("sql", "SELECT count(*), sum(a), sum(b), sum(g) FROM city.rides", "--fleet", url)
    ceph.tell("start 0")
    ceph.tell("kill 1")
    said = query.communicate(timeout=150)
    assert query.returncode == 0 and str(ROWS) in said[0], said
    ceph.tell("start 1")
    assert count(ceph, url) == due(rides)


def test_killed_ingest_leaves_nothing_and_can_be_repeated(ceph: Cluster, rides: Path) -> None:
    url = ceph.url("sky/killed")
    ceph.run("init", url, "--drives", 2)
    ingest = ceph.start("ingest", rides, "--to", "city.rides", "--fleet", url)
    while ceph.values("sky", "killed") < 3:
        assert ingest.poll() is None, ingest.communicate()
    ingest.send_signal(signal.SIGKILL)
    ingest.communicate()
    # At once: the lock's holder ran on this machine, and has ended.
    listed = ceph.run("ls", "--fleet", url)
    ceph.run("ingest", rides, "--to", "city.rides", "--replace", "--fleet", url)
    assert count(ceph, url) == due(rides), listed
    status = json.loads(ceph.run("status", "--fleet", url, "--format", "json"))
    stored = sum(drive["usage"]["value_bytes"] for drive in status)
    assert stored < 1.3 * rides.stat().st_size + 2_000_000, status
