"""Joins whose small side would travel to the drives, but is large after all or can't be read; and joins on the host by
keys of all types, with join filters for the drives where these can apply them."""

from __future__ import annotations

from decimal import Decimal

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
    # Few rows, but 6 MB: too much for a broadcast.
    result = fleet.sql(query.format("e.texts"))
    assert sorted(row["count(*)"] for row in result.to_arrow().to_pylist()) == [800] * 50
    assert all(drive["bytes_received"] < 100_000 for drive in result.receipt.to_dict()["drives"])
    # Nor is there a broadcast of texts of unknown length.
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


#: Values of 50 keys, and their type.
KEYS = {
    "int8": (range(50), pa.int8()),
    "uint64": ([2**63 + n for n in range(50)], pa.uint64()),
    "float": ([n / 3 for n in range(50)], pa.float64()),
    "decimal": ([Decimal(n) / 4 for n in range(50)], pa.decimal128(12, 2)),
    "decimal256": ([Decimal(n) / 4 for n in range(50)], pa.decimal256(50, 2)),
    "text": ([f"k{n}" for n in range(50)], pa.string()),
    "view": ([f"k{n} of some length" for n in range(50)], pa.string_view()),
    "dictionary": ([f"k{n}" for n in range(50)], pa.dictionary(pa.int32(), pa.string())),
    "binary": ([f"k{n}".encode() for n in range(50)], pa.binary()),
    "fixed": ([f"k{n:03}".encode() for n in range(50)], pa.binary(4)),
    "date": (range(50), pa.date32()),
    "date64": ([n * 86_400_000 for n in range(50)], pa.date64()),
    "time": (range(50), pa.time64("us")),
    "moment": (range(50), pa.timestamp("us")),
    "zoned": (range(50), pa.timestamp("ms", tz="Europe/Berlin")),
    "duration": (range(50), pa.duration("us")),
    "boolean": ([n % 2 == 0 for n in range(50)], pa.bool_()),
    "list": ([[n, n + 1] for n in range(50)], pa.list_(pa.int64())),
    "struct": ([{"a": n} for n in range(50)], pa.struct({"a": pa.int64()})),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_join_on_the_host_takes_keys_of_any_type(fleet, name):
    values, of = KEYS[name]
    keys = list(values)
    left = pa.table({"k": pa.array([keys[n % 50] for n in range(400)] + [None], of), "v": range(401)})
    right = pa.table({"k": pa.array([*keys[:7], None, None], of), "w": range(9)})
    for part, table in (("l", left), ("r", right)):
        fleet.ingest(table, f"keys.{name}_{part}", replace=True)
    expected = [(v, w) for v, k in enumerate(left["k"].to_pylist()) for w, key in enumerate(right["k"].to_pylist()) if k is not None and k == key]
    for query in (
        "SELECT l.v, r.w FROM keys.{0}_l l JOIN keys.{0}_r r ON l.k = r.k",
        "SELECT l.v, r.w FROM keys.{0}_r r JOIN keys.{0}_l l ON l.k = r.k AND l.v % 1 = r.w % 1",
    ):
        rows = fleet.sql(query.format(name)).to_arrow()
        assert sorted(zip(rows["v"].to_pylist(), rows["w"].to_pylist())) == sorted(expected)


def test_a_key_of_two_widths_is_found_through_a_union(fleet):
    # Far apart and negative: equal numbers of different widths have different bytes.
    keys = [700 * n - 20_000 for n in range(60)]
    fleet.ingest(pa.table({"k": pa.array(keys[:40], pa.int16()), "v": range(40)}), "keys.narrow")
    fleet.ingest(pa.table({"k": pa.array(keys[20:], pa.int64()), "v": range(40)}), "keys.wide")
    query = """SELECT k FROM (SELECT k, v FROM keys.narrow UNION ALL SELECT k, v FROM keys.wide) a
        WHERE EXISTS (SELECT 1 FROM keys.narrow b WHERE a.k = b.k AND b.v > {})"""
    for above in (30, 3):
        expected = sorted(keys[above + 1 : 40] + keys[max(above + 1, 20) : 40])
        for cut in ("full", "raw"):
            assert sorted(fleet.sql(query.format(above), cut=cut).to_arrow()["k"].to_pylist()) == expected


def test_columns_called_like_made_up_names(fleet):
    fleet.ingest(pa.table({"k": range(9), "k:3": range(9), "v": range(9)}), "keys.odd", partition_by=["k"])
    fleet.ingest(pa.table({"k": range(9), "w": range(9)}), "keys.odd_too", partition_by=["k"])
    query = 'SELECT a.k AS x1, a."k:3" AS x2, a.v, b.k AS x4, b.w FROM keys.odd a JOIN keys.odd_too b ON a.k = b.k LIMIT 2'
    assert all(len(set(row.values())) == 1 for row in fleet.sql(query).to_arrow().to_pylist())
