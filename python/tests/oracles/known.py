"""What is known to differ: kinds of queries that are not answered rightly yet, and differences that stay by design.

Both lists may only shrink. Each entry has a query that shows it; `test_oracles.py` fails when that query differs no
more, and the entry is then to be removed."""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import dataclass
from typing import Callable

import pyarrow as pa

from . import printing
from .checks import Case, Verdict


def shown_in() -> pa.Table:
    """The table `e.k` of the queries that show an entry."""
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc)
    return pa.table(
        {
            "u": pa.array(range(6), pa.int64()),
            "k": pa.array([1, 2, None, 1, 2, 3], pa.int32()),
            "s": ["a", "b", None, "a", "c", "d"],
            "f": [0.0, -0.0, 1.5, float("nan"), float("inf"), None],
            "t": pa.array([dt.time(1), None, dt.time(12, 30)] * 2, pa.time64("us")),
            "b": pa.array([b"a", b"b", None] * 2, pa.binary()),
            "st": pa.array([{"a": 1, "b": "x"}, None] * 3),
            "z": pa.array([moment, None] * 3, pa.timestamp("us", "Europe/Berlin")),
            "m": pa.array([dt.datetime(1970, 1, 1), dt.datetime(1960, 6, 15, 6, 30)] * 3, pa.timestamp("s")),
        }
    )


@dataclass(frozen=True)
class Open:
    """A kind of query that is answered wrongly, or refused by an error that is a defect, until it is mended.

    The generator leaves it out; if it can't, `verdict` and `tells` match failing cases, once they are shrunk."""

    name: str
    why: str
    #: A query that shows it, and DuckDB's text for it where it is another.
    shows: str
    theirs: str | None = None
    verdict: str | None = None
    tells: Callable[[Case], bool] = lambda case: True

    def matches(self, case: Case, verdict: Verdict) -> bool:
        return self.verdict is not None and bool(re.search(self.verdict, verdict.wrong or "")) and self.tells(case)


@dataclass(frozen=True)
class Known:
    """A difference by design: a failing case that it matches is counted, and is no failure."""

    name: str
    why: str
    #: The subject of its row in docs/sql.md.
    row: str
    shows: str
    #: Patterns of our text, and of what the oracle says.
    sql: str
    verdict: str
    theirs: str | None = None

    def matches(self, case: Case, verdict: Verdict) -> bool:
        text = printing.text(case.query) + (" " + printing.text(case.condition) if case.condition else "")
        return case.oracle == "duckdb" and bool(re.search(self.sql, text) and re.search(self.verdict, verdict.wrong or ""))


OPEN: list[Open] = []

KNOWN = [
    Known("reversed signs", "reverse goes by code points, as in PostgreSQL, and in DuckDB by signs as one sees them", "`reverse`", "SELECT reverse('e\u0301')", r"reverse\(", "."),
    Known("trimmed spaces", "trim takes the space alone, as PostgreSQL does", "`trim` without characters", "SELECT trim(chr(160))", r"trim\(", r"\\xa0"),
    Known(
        "variances of what is not finite", "they are NaN, as in PostgreSQL, and in DuckDB 0 for a single value", "`var_pop`, `stddev_pop` of one NaN or infinity",
        "SELECT stddev_pop(f) FROM e.k WHERE u = 4", r"\b(var|stddev)_pop\(", "nan",
    ),
    Known(
        "common type of decimals", "DuckDB cuts digits behind the point off, so that all fits into 38",
        "decimals whose common type would need more than 38 digits, as `greatest(sum(d), e)`",
        "SELECT greatest(sum(CAST(1 AS DECIMAL(5, 2))), CAST('1.0000000001' AS DECIMAL(38, 10))) > 1 FROM e.k WHERE u = 0",
        r"(?s)^(?=.*\bsum\()(?=.*\b(greatest|least|coalesce|nullif|CASE|IN)\b).*DECIMAL", ".",
    ),
    Known("letters of other length", "we follow Unicode's full mapping, DuckDB its simple one", "`lower`, `upper`", "SELECT lower('İ')", r"\b(lower|upper|initcap)\(", "i̇|SS|FI"),
]


def _drawn() -> set[str]:
    """Entries that the caller wants to see fail (SKYTETHER_ORACLE_DRAW, with commas): for those who mend them."""
    return set(os.environ.get("SKYTETHER_ORACLE_DRAW", "").split(","))


def without() -> frozenset[str]:
    """What the generator leaves out."""
    return frozenset(entry.name for entry in OPEN if entry.verdict is None) - _drawn()


def known(case: Case, verdict: Verdict) -> str | None:
    """The entry that a failing case matches."""
    entries: list[Open | Known] = [entry for entry in [*OPEN, *KNOWN] if entry.name not in _drawn()]
    return next((entry.name for entry in entries if entry.matches(case, verdict)), None)
