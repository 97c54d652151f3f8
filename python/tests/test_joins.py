"""Joins whose small side would travel to the drives: where it is large after all, or can't be read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import skytether

ROWS = 40_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("joins") / "fleet", drives=3) as fleet:
        k = np.arange(ROWS)
        fleet.ingest(pa.table({"k": k % 50, "v": k / ROWS}), "e.facts")
        fleet.ingest(pa.table({"k": range(1000), "text": [f"{n} " + "x" * 6_000 for n in range(1000)]}), "e.texts")
        fleet.ingest(pa.table({"k": range(40), "text": [f"t{n % 7}" for n in range(40)]}), "e.names")
        yield fleet


def test_long_texts_stay_on_the_host(fleet):
    query = "SELECT n.text, count(*) FROM e.facts f JOIN {} n ON f.k = n.k GROUP BY n.text"
    # Few rows, but 6 MB: no drive is sent them.
    result = fleet.sql(query.format("e.texts"))
    assert sorted(row["count(*)"] for row in result.to_arrow().to_pylist()) == [800] * 50
    assert all(drive["bytes_received"] < 100_000 for drive in result.receipt.to_dict()["drives"])
    # Nor texts of which nobody knows how long they are.
    made = fleet.sql(query.format("(SELECT k, repeat(text, 2000) AS text FROM e.names)"))
    assert sum(made.to_arrow()["count(*)"].to_pylist()) == 32_000
    assert all(drive["bytes_received"] < 100_000 for drive in made.receipt.to_dict()["drives"])


def test_a_small_side_that_fails_ends_the_query_with_its_error(fleet):
    query = "SELECT f.k, count(*) FROM e.facts f JOIN (SELECT k, 10 / (count(*) - 1) AS q FROM e.names GROUP BY k) n ON f.k = n.k AND f.v > n.q GROUP BY f.k"
    for _ in range(3):
        with pytest.raises(skytether.InvalidError, match="division by zero"):
            fleet.sql(query).to_arrow()
    # And the drives are well.
    assert fleet.sql("SELECT count(*) FROM e.facts f JOIN e.names n ON f.k = n.k").to_arrow().to_pylist() == [{"count(*)": 32_000}]
