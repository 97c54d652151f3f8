"""Runs queries and measures them by the clock, in processor time of this process, and by the receipts' operators."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

#: Names of operators that read slices, and of those that aggregate.
SCANS, AGGREGATES = ("SliceScanExec",), ("AggregateExec",)


@dataclass
class Took:
    """Seconds of one run."""

    #: From the query's text to its last row.
    wall: float
    #: Of this machine's processors, all threads of host and drives.
    cpu: float
    #: Of operators on the drives, by name, in processor time of this machine.
    operators: dict[str, float]
    receipt: dict[str, Any]

    def of(self, names: tuple[str, ...]) -> float:
        return sum(self.operators.get(name, 0.0) for name in names)


def once(fleet: Any, sql: str, cut: str = "full") -> Took:
    """Runs a query to its last row."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = fleet.sql(sql, cut=cut)
    result.to_arrow()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    receipt = result.receipt.to_dict()
    operators: dict[str, float] = {}
    for annotation in (a for scan in receipt["scans"] for a in scan["annotations"]):
        for note in annotation["operators"]:
            operators[note["name"]] = operators.get(note["name"], 0.0) + note["seconds"]
    return Took(wall, cpu, operators, receipt)


def middle(runs: list[Took]) -> Took:
    """Median of each figure; the receipt of the last run."""
    names = {name for run in runs for name in run.operators}
    operators = {name: statistics.median(run.operators.get(name, 0.0) for run in runs) for name in names}
    return Took(statistics.median(run.wall for run in runs), statistics.median(run.cpu for run in runs), operators, runs[-1].receipt)


def least(runs: list[Took]) -> Took:
    """The least of each figure, which other work on the machine disturbs least; the receipt of the last run."""
    names = {name for run in runs for name in run.operators}
    operators = {name: min(run.operators.get(name, 0.0) for run in runs) for name in names}
    return Took(min(run.wall for run in runs), min(run.cpu for run in runs), operators, runs[-1].receipt)
