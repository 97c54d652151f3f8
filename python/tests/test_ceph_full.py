"""A Ceph cluster whose OSDs are full: a clear error, nothing lost, and it goes on when there is room again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ceph import Cluster, cluster

pytestmark = pytest.mark.timeout(300)

ROWS = 200_000


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("full")) as running:
        yield running


def full(ceph: Cluster, wanted: bool) -> None:
    """Has OSDs count as full from nearly no bytes on, or as usual; until the monitor says so."""
    # Each ratio counts as at least that of the level below.
    for level, usual in (("nearfull", 0.85), ("backfillfull", 0.9), ("full", 0.95)):
        ceph.tell("mon " + json.dumps({"prefix": f"osd set-{level}-ratio", "ratio": 0.000001 if wanted else usual}))
    while True:
        told = json.loads(ceph.tell('mon {"prefix": "osd dump", "format": "json"}'))
        states = ["full" in osd["state"] for osd in told["osds"]]
        pools = ["full" in pool["flags_names"].split(",") for pool in told["pools"]]
        if all(one == wanted for one in states + pools):
            return
        time.sleep(0.05)


def count(ceph: Cluster, url: str, name: str) -> str:
    return ceph.run("sql", f"SELECT count(*) AS n, sum(a) AS a FROM {name}", "--fleet", url, "--format", "json")


def test_full_osds_are_an_error_and_lose_nothing(ceph: Cluster, tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    table = pa.table({c: noise.integers(-(2**40), 2**40, ROWS) for c in "abcdefg"})
    pq.write_table(table, path := tmp_path / "rides.parquet")
    url = ceph.url("sky/full")
    ceph.run("init", url, "--drives", 2)
    for name in ("city.rides", "city.other"):
        ceph.run("ingest", path, "--to", name, "--fleet", url)
    before, due = ceph.values("sky", "full"), count(ceph, url, "city.rides")
    assert json.loads(due) == {"n": ROWS, "a": int(np.sum(table["a"].to_numpy()))}

    full(ceph, True)
    said = ceph.run("ingest", path, "--to", "city.late", "--fleet", url, status=1)
    assert "the pool is full; delete something, or add disks" in said and "Traceback" not in said
    assert count(ceph, url, "city.rides") == due
    assert "city.late" not in ceph.run("ls", "--fleet", url)
    # What was said helps: dropping works, and frees what was stored.
    ceph.run("drop", "city.other", "--fleet", url)
    assert ceph.values("sky", "full") < before

    full(ceph, False)
    ceph.run("ingest", path, "--to", "city.late", "--fleet", url)
    assert count(ceph, url, "city.late") == count(ceph, url, "city.rides") == due
    ceph.run("scrub", "--fleet", url)
    assert ceph.values("sky", "full") == before


def test_osds_full_amid_an_ingest_leave_no_part_of_it(ceph: Cluster, tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    pq.write_table(pa.table({c: noise.integers(-(2**40), 2**40, 2 * ROWS) for c in "abcdefg"}), path := tmp_path / "rides.parquet")
    url = ceph.url("sky/amid")
    ceph.run("init", url, "--drives", 2)
    ingest = ceph.start("ingest", path, "--to", "city.rides", "--fleet", url)
    while ceph.values("sky", "amid") < 3:
        assert ingest.poll() is None, ingest.communicate()
    full(ceph, True)
    said = ingest.communicate(timeout=150)
    full(ceph, False)
    if ingest.returncode == 0:
        # It was quicker than the monitor.
        assert count(ceph, url, "city.rides")
    else:
        assert ingest.returncode == 1 and "the pool is full" in said[1], said
        assert "city.rides" not in ceph.run("ls", "--fleet", url)
    ceph.run("ingest", path, "--to", "city.rides", "--replace", "--fleet", url)
    assert json.loads(count(ceph, url, "city.rides"))["n"] == 2 * ROWS
