"""Queries whose cost is out of proportion end in a bounded time and memory, and the host serves others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Iterator

import pyarrow as pa
import pytest

import skytether
from fleets import Served
from hostile_queries import QUERIES

#: These have an answer, or would have one after hours: they are cancelled.
ENDLESS = {
    "a cross product of four",
    "series of 10 billion rows",
    "a recursion without an end",
    "a recursion that doubles",
    "groups of a cross product",
    "a sort of a cross product",
    "array_agg of a cross product",
    "string_agg of a cross product",
    "a window over a cross product",
}

#: Refused before they run.
REFUSED = {
    "CTEs that double 14 times": "relations",
    "CTEs that double 39 times": "relations",
    "CTEs that are joined with themselves": "relations",
    "CUBE of 20 columns": "grouping sets",
    "10,000 ORs": "operators",
    "CASE 2,000 deep": "deep",
    "parentheses 100,000 deep": "deep",
    "repeat of 2 GB": "repeat: the results",
    "repeat of 1 MB in each row": "repeat: the results",
    "lpad of 1 GB": "lpad: the results",
    "|| of long texts": "the results",
    "two ROLLUPs of 60 columns": "grouping sets",
    "900 unions": "operators",
    "300 subqueries below one another": "nested too deeply",
    "100,000 values of IN": "at most 65536: ingest them as a data set",
    "a condition on a column of columns": "terms once its columns are written out",
    "a condition on a CASE of CASEs": "terms once its columns are written out",
    "columns of columns": "concat: the results",
    "a regular expression that backtracks": "regular expression",
    "IN below OR, 10 levels": "once its subqueries are written out",
    "NOT IN below NOT, 8 levels": "once its subqueries are written out",
    "NOT IN below NOT, 12 levels": "nested too deeply",
    "BETWEEN of subqueries, 10 levels": "once its subqueries are written out",
    "BETWEEN of subqueries, 15 levels": "nested too deeply",
    "concat_ws with a long separator": "concat_ws: the results",
    "array_to_string with a long separator": "array_to_string: the results",
    "regexp_replace of each letter": "regexp_replace: the results",
    "array_resize with a long text": "array_resize: the results",
    "array_repeat of a long list": "array_repeat: the results",
    "array_replace_all with a long text": "array_replace_all: the results",
    "lpad with wide letters": "lpad: the results",
    "translate to wide letters": "translate: the results",
    "|| of long lists": "the results",
    "range of 10 billion": "range: the results",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("hostile"), 3)
    try:
        with skytether.connect(served.url) as fleet:
            fleet.ingest(pa.table({"a": list(range(1000)), "s": [f"x{n}" for n in range(1000)]}), "lab.t")
        yield served
        served.stop()
    finally:
        served.kill()


def _highest(served: Served) -> int:
    """The most memory that the host had, in MiB."""
    status = Path(f"/proc/{served.processes[-1].pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in ENDLESS])
def test_a_hostile_query_is_answered_or_refused(served: Served, name: str) -> None:
    with skytether.connect(served.url) as fleet:
        if name in REFUSED:
            with pytest.raises(skytether.errors.SkytetherError, match=REFUSED[name]):
                fleet.sql(QUERIES[name]).to_arrow()
        else:
            assert fleet.sql(QUERIES[name]).to_arrow().num_rows > 0
        assert fleet.sql("SELECT count(*) AS n FROM lab.t").to_arrow().to_pydict() == {"n": [1000]}
    assert _highest(served) < 2048


def test_others_are_answered_beside_queries_without_an_end(served: Served) -> None:
    """All of them at once; each ends as an error or with its connection."""
    fleets = [skytether.connect(served.url) for _ in ENDLESS]

    def ask(fleet: skytether.Fleet, text: str) -> None:
        try:
            fleet.sql(text).to_arrow()
        except skytether.errors.SkytetherError:
            pass

    threads = [threading.Thread(target=ask, args=(fleet, QUERIES[name]), daemon=True) for fleet, name in zip(fleets, sorted(ENDLESS))]
    for thread in threads:
        thread.start()
    with skytether.connect(served.url) as fleet:
        for n in range(20):
            assert fleet.sql(f"SELECT {n} AS n").to_arrow().to_pydict() == {"n": [n]}
            assert fleet.sql("SELECT count(*) AS n FROM lab.t").to_arrow().to_pydict() == {"n": [1000]}
    assert _highest(served) < 2048
