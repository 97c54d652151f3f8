"""A fleet on drives that are not ours: Java simulators, which know no programs and take batches of 15 operations.

`test_simulator.py` runs this in a network namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anndata
import msgexpress
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import skytether
from scipy import sparse

from .targets import Simulator
from .wire import Code

pytestmark = [pytest.mark.simulator, pytest.mark.strangers]

ROWS = pa.table({"id": range(2000), "city": ["Rome", "Oslo", "Rome", "Bern"] * 500, "fare": [12.5, 31.0, 8.0, 0.5] * 500})
BY_CITY = "SELECT city, count(*) AS n, sum(fare) AS fare FROM taxi.trips WHERE id >= 0 GROUP BY city ORDER BY city"
ANSWER = {"city": ["Bern", "Oslo", "Rome"], "n": [500, 500, 1000], "fare": [250.0, 15500.0, 10250.0]}


def cells() -> anndata.AnnData:
    """60 cells of two types, 40 genes; gene n tells the types apart the more, the larger n is."""
    random = np.random.default_rng(26)
    types = np.arange(60) % 2
    counts = random.poisson(1 + np.outer(types, np.arange(40)) / 8)
    obs = pd.DataFrame({"cell_type": pd.Categorical(np.where(types, "late", "early"))}, index=[f"cell-{n}" for n in range(60)])
    return anndata.AnnData(sparse.csr_matrix(counts.astype(np.float32)), obs=obs, var=pd.DataFrame(index=[f"gene-{n}" for n in range(40)]))


def ranked(fleet: skytether.Fleet) -> pd.DataFrame:
    return msgexpress.MsgExpress(fleet)["blood/few"].rank_genes_groups("cell_type", transform="log1p_cp10k").to_df("late")


@pytest.fixture
def simulators(tmp_path: Path) -> Iterator[list[Simulator]]:
    """Three of a fleet, and a blank one."""
    started: list[Simulator] = []
    try:
        for n in range(4):
            started.append(Simulator(tmp_path / f"simulator-{n}", 8123 + n))
        yield started
    finally:
        for simulator in started:
            simulator.stop(kill=True)


def damage(drive: Simulator) -> bytes:
    """Changes a byte of the longest value, with the version that it has; its key."""
    with drive.client() as client:
        keys, after = [], b""
        while some := client.keys(after, b"\xff" * 8, 200, inclusive=(False, True)):
            keys, after = keys + some, some[-1]
        key = max(keys, key=lambda key: len(client.get(key).value))
        found = client.get(key)
        value = bytearray(found.value)
        value[len(value) // 2] ^= 1
        entry = found.entry
        put = client.put(key, bytes(value), version=found.version, force=True, tag=entry.bytes(5), algorithm=entry.int(6))
        assert put.code == Code.SUCCESS
        return key


def test_fleet_on_simulators_is_asked_mended_and_rebuilt(simulators: list[Simulator], tmp_path: Path) -> None:
    address = "kinetic://" + ",".join(f"127.0.0.1:{drive.address.port}" for drive in simulators[:3])
    with skytether.open(tmp_path / "embedded", drives=3) as embedded:
        msgexpress.MsgExpress(embedded).ingest(cells(), "blood/few")
        expected = ranked(embedded)
    with skytether.open(address, redundancy="ec:2+1", slice_rows=100) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        msgexpress.MsgExpress(fleet).ingest(cells(), "blood/few")
        result = fleet.sql(BY_CITY)
        assert result.to_arrow().to_pydict() == ANSWER
        # They only store, so the host computes, and the receipt says so.
        ran = result.receipt.to_dict()["drives"]
        assert len(ran) == 3 and {drive["rung"] for drive in ran} == {"raw"} and all("only stores" in drive["reason"] for drive in ran), ran
        assert result.receipt.to_dict()["bytes_moved"] > sum(drive["bytes_read"] for drive in ran) > 0, ran
        pd.testing.assert_frame_equal(ranked(fleet), expected)

        damage(simulators[0])
        report = fleet.scrub()
        assert report["damaged"] == 1 and report["unverified"] == 0, report
        report = fleet.scrub()
        assert (report["damaged"], report["unverified"], report["skipped"]) == (0, 0, {}), report

        lost = fleet.status()[1]["info"]
        simulators[1].stop(kill=True)
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
    # A host that begins without it takes another one for it.
    with skytether.open(address, create=False) as fleet:
        blank = simulators[3].address
        report = fleet.repair(lost["name"], address=f"kinetic://{blank.host}:{blank.port}?id={lost['id']}")
        assert len(report["drives"]) == 1 and not report["lost"] and report["rebuilt"] > 0, report
        simulators[0].stop(kill=True)
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
        pd.testing.assert_frame_equal(ranked(fleet), expected)
