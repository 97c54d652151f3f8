"""The queries of `test_differential` on a fleet in a real Ceph cluster, compared with DuckDB: in the client, at the
OSDs, with the engine of one OSD gone, whose slices come back, and with an OSD lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ceph as cluster_of_tests
import pytest
import skytether
from ceph import Cluster
from compare import assert_same
from edge_tables import edges
from fleets import FEW, SMALL
from test_differential import QUERIES, answers, is_ordered

pytestmark = pytest.mark.timeout(300)

#: Some slices of each large table; every one is a call.
MANY = 2_000

OSDS = ("osd.0", "osd.1", "osd.2")


class Prepared:
    """A cluster with the tables, and an engine next to each OSD."""

    def __init__(self, ceph: Cluster) -> None:
        self.ceph = ceph
        self.engines: dict[int, subprocess.Popen[str]] = {}
        cluster_of_tests.load(ceph.environment["LD_LIBRARY_PATH"], ("librados.so.2",))
        self.tables = edges()
        for small, rows in ((True, FEW), (False, MANY)):
            with skytether.open(ceph.url(more="&osds=never"), drives=2 if small else None, slice_rows=rows) as fleet:
                for name, table in self.tables.items():
                    if (table.num_rows <= SMALL) == small:
                        fleet.ingest(table, f"e.{name}")
        for osd in range(3):
            ceph.install(osd)
            self.engines[osd] = ceph.engine(osd)


class Way:
    """A way of answering, with what its receipts said."""

    def __init__(self, name: str, fleet: skytether.Fleet) -> None:
        self.name, self.fleet = name, fleet
        self.ran: dict[str, int] = {}
        self.reasons: set[str] = set()

    def ask(self, query: str) -> Any:
        result = self.fleet.sql(query)
        answer = result.to_arrow()
        receipt = result.receipt.to_dict()
        self.reasons.update(drive["reason"] or "" for drive in receipt["drives"])
        for osd, slices in cluster_of_tests.slices_of_osds(receipt).items():
            self.ran[osd] = self.ran.get(osd, 0) + slices
        return answer


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with cluster_of_tests.cluster(tmp_path_factory.mktemp("ceph")) as running:
        yield Prepared(running)


@pytest.fixture(scope="module")
def theirs(prepared: Prepared) -> dict[str, Any]:
    return answers(prepared.tables)


@pytest.fixture(scope="module", params=["client", "osds", "pushed back", "osd lost"])
def way(request: pytest.FixtureRequest, prepared: Prepared) -> Iterator[Way]:
    with skytether.open(prepared.ceph.url(more="&osds=never" if request.param == "client" else "&osds=required")) as fleet:
        own = Way(request.param, fleet)
        if own.name == "pushed back":
            prepared.engines[0].kill()
            prepared.engines[0].communicate()
        if own.name == "osd lost":
            prepared.ceph.tell("kill 2")
        yield own
    if own.name == "pushed back":
        prepared.engines[0] = prepared.ceph.engine(0)


@pytest.mark.parametrize("query", QUERIES)
def test_as_duckdb(way: Way, theirs: dict[str, Any], query: str) -> None:
    assert_same(way.ask(query), theirs[query], is_ordered(query), query)


def test_each_way_is_taken(way: Way) -> None:
    """After its queries: who ran what."""
    if way.name == "client":
        assert way.ran == {}
    elif way.name == "osds":
        assert set(way.ran) == set(OSDS) and not any("engine" in why for why in way.reasons), (way.ran, way.reasons)
    elif way.name == "pushed back":
        assert set(way.ran) == {"osd.1", "osd.2"} and any("no engine listens" in why for why in way.reasons), (way.ran, way.reasons)
    else:
        assert {"osd.0", "osd.1"} <= set(way.ran), (way.ran, way.reasons)
