"""Indexes from Python: created, used, listed and dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import skytether


@pytest.fixture
def table() -> pa.Table:
    rows = range(30_000)
    return pa.table({"id": list(rows), "x": [(i * 7919 % 10_007) / 16 for i in rows], "word": [None if i % 9 == 0 else f"word-{i % 613:03}" for i in rows]})


def test_an_index_is_built_used_and_dropped(tmp_path: Path, table: pa.Table) -> None:
    sql = "SELECT id, x FROM lab.t WHERE x BETWEEN 100 AND 101 AND word > 'word-500' ORDER BY id"
    wanted = table.filter((pc.field("x") >= 100) & (pc.field("x") <= 101) & (pc.field("word") > "word-500")).select(["id", "x"]).sort_by("id")
    assert wanted.num_rows > 3
    with skytether.open(tmp_path / "fleet", drives=2, slice_rows=500) as fleet:
        fleet.ingest(table, "lab.t")
        told: list[tuple[int, int]] = []
        assert fleet.create_index("lab.t", ["x", "word"], include="id", name="both", wait=True, progress=lambda done, of: told.append((done, of))) == "both"
        assert told[-1] == (1000, 1000)
        (index,) = fleet.list_indexes("lab.t")
        assert (index["name"], index["columns"], index["include"], index["state"], index["rows"]) == ("both", ["x", "word"], ["id"], "ready", 30_000)
        assert set(index["drives"].values()) == {"ready"} and index["bytes"] > 30_000
        found = fleet.sql(sql)
        assert found.to_arrow().to_pydict() == wanted.to_pydict()
        assert "index both: " in str(found.receipt)
        # The table that takes its place has it as well.
        fleet.ingest(table.slice(0, 10_000), "lab.t", replace=True)
        assert fleet.list_indexes()[0]["columns"] == ["x", "word"]
        fleet.drop_index("lab.t", "both")
        assert fleet.list_indexes() == []
        with pytest.raises(skytether.NotFoundError, match="no index 'both'|no index \"both\""):
            fleet.drop_index("lab.t", "both")
        with pytest.raises(skytether.NotFoundError, match="nothing"):
            fleet.create_index("lab.t", "nothing")
        with pytest.raises(skytether.InvalidError, match="twice"):
            fleet.create_index("lab.t", "x", include="x")
