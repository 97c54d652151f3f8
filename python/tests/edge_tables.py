"""Small tables with values at the edges of what engines agree about."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa

NAN, INF = float("nan"), float("inf")
BIG = 2**63 - 1


def mixed(rows: int = 4000) -> pa.Table:
    """Every ordinary type, nulls in each column, repeated keys; the same numbers every time."""
    random = np.random.default_rng(11)
    k = random.integers(0, 40, rows)
    words = np.array(["", "a", "A", "ä", "é", "e\u0301", "ß", "日本", "🧬 gene", "tab\there", "quote's", "per%cent", "under_score", "NULL", " padded "], object)
    null = lambda share: random.random(rows) < share  # noqa: E731
    day = dt.date(1969, 12, 20)
    return pa.table(
        {
            "u": pa.array(np.arange(rows), pa.int64()),
            "k": pa.array(k, pa.int32(), mask=null(0.05)),
            "i": pa.array(random.integers(-1000, 1000, rows), pa.int64(), mask=null(0.1)),
            "f": pa.array(np.round(random.normal(0, 50, rows), 3), pa.float64(), mask=null(0.1)),
            "s": pa.array(words[random.integers(0, len(words), rows)], pa.string(), mask=null(0.1)),
            "b": pa.array(random.random(rows) < 0.4, pa.bool_(), mask=null(0.1)),
            "d": pa.array([day + dt.timedelta(days=int(n)) for n in random.integers(0, 40, rows)], pa.date32(), mask=null(0.1)),
            "t": pa.array([dt.datetime(2024, 2, 28) + dt.timedelta(minutes=int(n)) for n in random.integers(0, 5000, rows)], pa.timestamp("us"), mask=null(0.1)),
            "m": pa.array([Decimal(int(n)) / 100 for n in random.integers(-(10**6), 10**6, rows)], pa.decimal128(12, 2), mask=null(0.1)),
        }
    )


def edges() -> dict[str, pa.Table]:
    """The tables by name."""
    table = mixed()
    random = np.random.default_rng(5)
    return {
        "mixed": table,
        "empty": table.slice(0, 0),
        "nulls": pa.table({"k": pa.array([1, 1, 2, 3], pa.int32()), "i": pa.nulls(4, pa.int64()), "f": pa.nulls(4, pa.float64()), "s": pa.nulls(4, pa.string())}),
        "floats": pa.table(
            {"k": pa.array([1, 1, 1, 2, 2, 3, 3, 4, None, 5], pa.int32()), "f": pa.array([NAN, 1.0, -INF, 0.0, -0.0, INF, NAN, None, 2.5, 5e-324], pa.float64())}
        ),
        "extremes": pa.table({"k": pa.array([1, 1, 2, 2, 3], pa.int32()), "i": pa.array([BIG, -1, -BIG - 1, 1, 0], pa.int64()), "n": pa.array([127, -128, 0, 5, None], pa.int8())}),
        # Many more rows than `names`, so that joins of the two run on the drives.
        "facts": pa.table(
            {
                "k": pa.array([None if n % 11 == 0 else n % 60 for n in range(30_000)], pa.int32()),
                "x": pa.array(random.integers(0, 4, 30_000), pa.int32()),
                "y": pa.array(random.integers(0, 4, 30_000), pa.int32()),
                "s": pa.array([None if n % 7 == 0 else f"n{n % 25}" for n in range(30_000)]),
                "v": pa.array(np.arange(30_000), pa.int64()),
            }
        ),
        "names": pa.table(
            {
                "k": pa.array([None if n % 9 == 0 else n // 2 for n in range(100)], pa.int32()),
                "x": pa.array([n % 5 for n in range(100)], pa.int32()),
                "label": pa.array([None if n % 8 == 0 else f"n{n % 30}" for n in range(100)]),
            }
        ),
        "ties": pa.table({"k": pa.array([n % 3 for n in range(300)], pa.int32()), "v": pa.array([n // 100 for n in range(300)], pa.int32())}),
        "skew": pa.table({"k": pa.array(np.where(random.random(20_000) < 0.97, 7, random.integers(0, 1000, 20_000)), pa.int32()), "v": pa.array(random.integers(0, 10, 20_000), pa.int32())}),
        "groups": pa.table({"k": pa.array(random.permutation(60_000) // 2, pa.int64()), "v": pa.array(random.integers(0, 100, 60_000), pa.int32())}),
        "left": pa.table({"k": pa.array([1, 2, 2, None, 4, None], pa.int32()), "a": pa.array(["p", "q", "r", "s", "t", None])}),
        "right": pa.table({"k": pa.array([2, 2, 3, None, 4], pa.int64()), "c": pa.array([20.5, 21.5, 30.5, 0.5, None], pa.float64())}),
        "one": pa.table({"k": pa.array([1], pa.int32()), "s": pa.array(["only"])}),
    }
