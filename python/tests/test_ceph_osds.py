"""Sub-plans that run next to the OSDs of a real Ceph cluster: docs/ceph.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ceph import Cluster, cluster
from ceph import slices_of_osds as osds

pytestmark = pytest.mark.timeout(600)

ROWS = 600_000
OSDS = range(3)


class Prepared:
    """A cluster, a fleet of two drives, a table of some 40 slices: each OSD has some. Tests add class and engines."""

    def __init__(self, ceph: Cluster, table: pa.Table) -> None:
        self.ceph, self.table = ceph, table
        self.url = ceph.url()
        self.engines: dict[int, subprocess.Popen[str]] = {}

    def ask(self, sql: str, more: str = "") -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Rows and receipt of a query, by a process of its own."""
        code = (
            "import json, skytether\n"
            f"with skytether.open({self.url + more!r}) as fleet:\n"
            f"    result = fleet.sql({sql!r})\n"
            "    rows = result.to_arrow().to_pylist()\n"
            "    print(json.dumps([rows, result.receipt.to_dict()]))\n"
        )
        rows, receipt = json.loads(self.ceph.python(code))
        return rows, receipt

    def groups(self) -> list[dict[str, Any]]:
        """What GROUPS asks for, by pyarrow."""
        kept = self.table.filter(pc.greater(self.table["a"], 0))
        groups = kept.group_by("zone").aggregate([("id", "count"), ("a", "sum")]).sort_by("zone").to_pylist()
        return [{"zone": one["zone"], "n": one["id_count"], "s": one["a_sum"]} for one in groups]

    def status(self) -> dict[str, Any]:
        listed = json.loads(self.ceph.run("ceph", "status", "--cluster", self.url, "--format", "json"))
        return {one["osd"]: one for one in listed}


GROUPS = "SELECT zone, count(*) AS n, sum(a) AS s FROM city.rides WHERE a > 0 GROUP BY zone ORDER BY zone"


def reasons(receipt: dict[str, Any]) -> str:
    return "; ".join(drive["reason"] or "" for drive in receipt["drives"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    noise = np.random.default_rng(1)
    columns = {c: noise.integers(-(2**40), 2**40, ROWS) for c in "abcdefg"}
    table = pa.table({"id": np.arange(ROWS), "zone": np.arange(ROWS) % 7, **columns})
    pq.write_table(table, path := tmp_path_factory.mktemp("rides") / "rides.parquet")
    with cluster(tmp_path_factory.mktemp("osds")) as ceph:
        own = Prepared(ceph, table)
        ceph.run("init", own.url, "--drives", 2)
        ceph.run("ingest", path, "--to", "city.rides", "--fleet", own.url)
        yield own


def test_without_class_sub_plans_run_in_the_client(prepared: Prepared) -> None:
    rows, receipt = prepared.ask(GROUPS)
    assert rows == prepared.groups() and osds(receipt) == {}
    assert "no such object class" in prepared.ceph.run("ls", "--fleet", prepared.url + "&osds=required", status=1)
    assert all("no such object class" in one["why"] for one in prepared.status().values())


def test_class_may_lack_on_one_osd(prepared: Prepared) -> None:
    ceph = prepared.ceph
    for osd in OSDS[:2]:
        assert "wrote" in ceph.install(osd)
        prepared.engines[osd] = ceph.engine(osd)
    # The OSDs of this cluster may load any class by their ceph.conf, which goes before the monitors' list.
    assert "now names skytether_1" in ceph.install(0, "--cluster", prepared.url)
    assert "needs no change" in ceph.install(1, "--cluster", prepared.url)
    status = prepared.status()
    assert [status[f"osd.{osd}"]["why"] is None for osd in OSDS] == [True, True, False], status
    rows, receipt = prepared.ask(GROUPS)
    assert rows == prepared.groups()
    ran = osds(receipt)
    # Where the index of the first drive is on the OSD without the class, the whole query runs in the client.
    if ran:
        assert set(ran) <= {"osd.0", "osd.1"} and "no such object class" in reasons(receipt), receipt


def test_osds_process_the_slices(prepared: Prepared) -> None:
    prepared.ceph.install(2)
    prepared.engines[2] = prepared.ceph.engine(2)
    assert all(one["why"] is None for one in prepared.status().values())
    rows, receipt = prepared.ask(GROUPS, "&osds=required")
    assert rows == prepared.groups()
    ran = osds(receipt)
    assert set(ran) == {"osd.0", "osd.1", "osd.2"} and sum(ran.values()) == receipt["drives"][0]["slices"] + receipt["drives"][1]["slices"], receipt
    assert reasons(receipt).strip("; ") == ""
    rows, receipt = prepared.ask("SELECT id, a, g FROM city.rides WHERE b < -1000000000000")
    kept = prepared.table.filter(pc.less(prepared.table["b"], -1000000000000)).select(["id", "a", "g"]).sort_by("id")
    assert sorted(rows, key=lambda row: row["id"]) == kept.to_pylist() and osds(receipt)
    rows, receipt = prepared.ask("SELECT id FROM city.rides ORDER BY a LIMIT 3")
    assert rows == prepared.table.sort_by("a").slice(0, 3).select(["id"]).to_pylist()
    assert osds(receipt) == {} and "not at OSDs" in reasons(receipt), receipt
    # Aggregates of all rows learn while they run, which the next query must not know.
    for _ in range(3):
        rows, receipt = prepared.ask("SELECT min(a) AS l, max(b) AS m, count(*) AS n FROM city.rides WHERE zone < 5")
        kept = prepared.table.filter(pc.less(prepared.table["zone"], 5))
        assert rows == [{"l": pc.min(kept["a"]).as_py(), "m": pc.max(kept["b"]).as_py(), "n": kept.num_rows}] and osds(receipt), receipt
    never, receipt = prepared.ask(GROUPS, "&osds=never")
    assert never == prepared.groups() and osds(receipt) == {}


def genes(prepared: Prepared, more: str) -> tuple[list[list[Any]], dict[str, Any], list[dict[str, Any]]]:
    """Differential expression of pbmc3k: the table and the receipt; and what SQL says of the dense view."""
    code = (
        "import json, msgexpress\n"
        f"with msgexpress.open({prepared.url + more!r}) as db:\n"
        "    result = db['blood/pbmc3k'].rank_genes_groups('cell_type', method='t-test', transform='log1p_cp10k')\n"
        "    table = result.to_df(None)[['group', 'names', 'scores', 'logfoldchanges', 'pct_nz_group']]\n"
        "    dense = db.fleet.sql(\"SELECT gene, count(*) AS n, sum(value) AS s FROM blood.pbmc3k.x \"\n"
        "        \"WHERE value > 0 AND gene IN ('NKG7', 'CD3D') GROUP BY gene ORDER BY gene\")\n"
        "    print(json.dumps([table.values.tolist(), result.receipt.to_dict(), dense.to_arrow().to_pylist()]))\n"
    )
    table, receipt, dense = json.loads(prepared.ceph.python(code))
    return table, receipt, dense


def test_matrices_are_processed_at_the_osds(prepared: Prepared) -> None:
    source = Path(__file__).resolve().parents[2] / "examples/data/pbmc3k.h5ad"
    prepared.ceph.python(f"import msgexpress\nwith msgexpress.open({prepared.url!r}) as db: db.ingest({str(source)!r}, 'blood/pbmc3k')\n")
    due, receipt, dense = genes(prepared, "&osds=never")
    assert osds(receipt) == {} and len(dense) == 2
    for _ in range(2):
        for _ in range(5):
            found, receipt, again = genes(prepared, "&osds=required")
            ran = osds(receipt)
            # An OSD has 2 s for a call, which a busy machine may exceed; the answer is the same.
            if not any(word in reasons(receipt) for word in ("longer than", "under way", "in time")):
                break
        assert sum(ran.values()) == sum(drive["slices"] for drive in receipt["drives"]) > 1 and set(ran) <= {"osd.0", "osd.1", "osd.2"}, receipt
        assert reasons(receipt).strip("; ") == "" and again == dense
        # States merge in the order of their arrival, which moves the last bits.
        key = lambda row: (row[0], row[1])  # noqa: E731
        for mine, theirs in zip(sorted(found, key=key), sorted(due, key=key), strict=True):
            assert mine[:2] == theirs[:2] and np.allclose(mine[2:], theirs[2:], rtol=1e-9, atol=1e-12, equal_nan=True), (mine, theirs)


def test_narrow_plans_over_wide_tables_run_at_the_osds(prepared: Prepared, tmp_path: Path) -> None:
    """A wide table has its columns in groups, each in slices of its own."""
    noise = np.random.default_rng(2)
    wide = pa.table({f"c{n}": noise.integers(0, 2**30, 3000) for n in range(300)})
    pq.write_table(wide, path := tmp_path / "wide.parquet")
    prepared.ceph.run("ingest", path, "--to", "city.wide", "--fleet", prepared.url)
    rows, receipt = prepared.ask("SELECT sum(c0) AS a, min(c1) AS b FROM city.wide WHERE c2 > 1000")
    kept = wide.filter(pc.greater(wide["c2"], 1000))
    assert rows == [{"a": pc.sum(kept["c0"]).as_py(), "b": pc.min(kept["c1"]).as_py()}] and osds(receipt), receipt
    rows, receipt = prepared.ask("SELECT sum(c0) AS a, max(c299) AS b FROM city.wide WHERE c150 > 1000")
    kept = wide.filter(pc.greater(wide["c150"], 1000))
    assert rows == [{"a": pc.sum(kept["c0"]).as_py(), "b": pc.max(kept["c299"]).as_py()}]
    assert osds(receipt) == {} and "several slices of a wide table" in reasons(receipt), receipt


def test_users_need_a_capability_for_the_class(prepared: Prepared) -> None:
    """As the guide says; plain `x` covers the classes of the OSDs' default list."""
    ceph = prepared.ceph
    for name, more, runs in (("plain", "", False), ("named", ", allow pool=sky class skytether_1", True)):
        conf = ceph.tell(f"user {name} " + json.dumps(["mon", "allow r", "osd", "allow rwx pool=sky" + more]))
        own = Prepared(ceph, prepared.table)
        own.url = f"rados://sky?conf={conf}&user={name}"
        rows, receipt = own.ask(GROUPS)
        assert rows == prepared.groups() and bool(osds(receipt)) == runs, receipt
        if not runs:
            assert "capability x" in ceph.run("ls", "--fleet", own.url + "&osds=required", status=1)


def test_dead_and_hanging_engines_cost_no_answer(prepared: Prepared) -> None:
    prepared.engines[0].kill()
    prepared.engines[0].communicate()
    rows, receipt = prepared.ask(GROUPS)
    assert rows == prepared.groups()
    # Without an engine next to the index of the first drive, no OSD is asked.
    assert not osds(receipt) or "engine" in reasons(receipt), receipt
    prepared.engines[0] = prepared.ceph.engine(0)
    rows, receipt = prepared.ask(GROUPS)
    assert rows == prepared.groups() and set(osds(receipt)) == {"osd.0", "osd.1", "osd.2"}


def test_osd_killed_amid_queries_costs_no_answer(prepared: Prepared) -> None:
    code = (
        "import skytether\n"
        f"with skytether.open({prepared.url!r}) as fleet:\n"
        "    print('open', flush=True)\n"
        f"    all = [fleet.sql({GROUPS!r}).to_arrow().to_pylist() for _ in range(10)]\n"
        f"    print(all == [{prepared.groups()!r}] * 10)\n"
    )
    query = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=prepared.ceph.environment)
    assert query.stdout.readline() == "open\n"
    prepared.ceph.tell("kill 1")
    assert query.communicate(timeout=150)[0] == "True\n" and query.returncode == 0
    prepared.ceph.tell("start 1")


def test_erasure_coded_values_are_evaluated_above(prepared: Prepared, tmp_path: Path) -> None:
    prepared.ceph.tell("coded coded")
    url = prepared.ceph.url("sky/coded", "&data=coded")
    pq.write_table(prepared.table, path := tmp_path / "rides.parquet")
    prepared.ceph.run("init", url, "--drives", 1)
    prepared.ceph.run("ingest", path, "--to", "city.rides", "--fleet", url)
    coded = Prepared(prepared.ceph, prepared.table)
    coded.url = url
    rows, receipt = coded.ask(GROUPS)
    assert rows == prepared.groups() and osds(receipt) == {}
    assert "erasure-coded" in reasons(receipt), receipt
    # Slices that statistics exclude are not read, wherever they are evaluated.
    rows, few = coded.ask("SELECT count(*) AS n, max(a) AS m FROM city.rides WHERE id BETWEEN 90000 AND 110000")
    assert rows == [{"n": 20_001, "m": pc.max(prepared.table["a"].slice(90_000, 20_001)).as_py()}] and osds(few) == {}
    assert few["drives"][0]["slices_pruned"] >= 10 and few["bytes_read"] < receipt["bytes_read"] / 3, (few, receipt)


def test_removal_leaves_an_ordinary_cluster(prepared: Prepared) -> None:
    for osd in OSDS:
        places = ("--class-dir", prepared.ceph.place / f"osd{osd}/classes", "--unit-dir", prepared.ceph.place / f"osd{osd}")
        said = prepared.ceph.run("ceph", "remove", *places, "--cluster", prepared.url)
        assert "removed" in said
        prepared.engines[osd].terminate()
        assert prepared.engines[osd].wait(timeout=20) == 0
    assert list((prepared.ceph.place / "sockets").iterdir()) == []
    rows, receipt = prepared.ask(GROUPS)
    assert rows == prepared.groups() and osds(receipt) == {}
