"""What executing through Kinetic costs next to Flight, in the columns of the Skytether paper's Figure 6."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import paper
import published
import samples

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import kinetic_fleets as fleets  # noqa: E402

#: Genes, columns, rows of a slice as in Figure 6, and processes per door: the first slices of each are cold.
FULL = {"genes": 14_400, "cells": 2000, "rows": 480, "times": 5}
TINY = {"genes": 480, "cells": 60, "rows": 48, "times": 2}

#: Which door: what it is, and the paper's.
DOORS = {
    "grpc": ("drive, through Flight", "not in the paper"),
    "kinetic": ("drive, through Kinetic", "KineticVM for both (not the same: theirs was a virtual machine)"),
}

#: What the door may add at most, in milliseconds.
WANTED_MS = 1.0


def _slices(size: dict[str, int]) -> dict[str, list[tuple[float, float]]]:
    """Per door the slices in storage order, each asked for by a query of its own: seconds of the drive's processor, and
    by the clock at the client. The drives and hosts are new processes."""
    import msgexpress
    import skytether

    query, took = samples.moments(size["cells"]), {door: [] for door in DOORS}
    with tempfile.TemporaryDirectory() as place, fleets.both_doors(Path(place), "--slice-rows", size["rows"]) as (numbers, hosts), contextlib.ExitStack() as stack:
        connected = {door: stack.enter_context(skytether.connect(url)) for door, url in hosts.items()}
        for fleet in connected.values():
            msgexpress.MsgExpress(fleet).ingest(samples.expression(size["genes"], size["cells"]).copy(), "paper/matrix")
        for first in range(0, size["genes"], size["rows"]):
            text = query.replace(" GROUP BY", f" WHERE gene_id >= {first} AND gene_id < {first + size['rows']} GROUP BY")
            for door, fleet in connected.items():
                cpu, wall = fleets.processor_seconds(numbers[door]), time.perf_counter()
                rows = fleet.sql(text, cut="full").to_arrow().num_rows
                wall, cpu = time.perf_counter() - wall, fleets.processor_seconds(numbers[door]) - cpu
                if rows != min(size["rows"], size["genes"] - first):
                    raise SystemExit(f"{door}: genes from {first} on: {rows} rows")
                took[door].append((cpu, wall))
    fleets.must_execute({door: sum(cpu for cpu, _ in slices) for door, slices in took.items()})
    return took


def measure(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    size = TINY if tiny else FULL
    first = published.WARM_UP_SLICES
    cold: dict[str, list[list[float]]] = {door: [] for door in DOORS}
    cpu: dict[str, list[float]] = {door: [] for door in DOORS}
    wall: dict[str, list[float]] = {door: [] for door in DOORS}
    for run in range(size["times"]):
        say(f"slices through Flight and through Kinetic: processes {run + 1} of {size['times']}")
        for door, slices in _slices(size).items():
            cold[door].append([wall_s * 1e3 for _, wall_s in slices[:first]])
            cpu[door] += [cpu_s * 1e3 for cpu_s, _ in slices[first:]]
            wall[door] += [wall_s * 1e3 for _, wall_s in slices[first:]]
    result = paper.Result(
        "doors",
        "Executing through Kinetic, next to Flight",
        f"The slices of Figure 6 ({size['rows']} genes of {size['cells']:,} cells), each by a query of its own that a host hands to the drive "
        "(`cut=\"full\"`): as a sub-plan over Flight, or by Kinetic's EXECUTE, whose program is the query engine. "
        f"Drive and host are processes of this machine, {size['times']} of each; the doors take turns with each slice. The first {first} slices of each "
        "process are apart. The times are those by the clock at the client: planning, both ways and the drive's work; "
        "the last column is the processor time of the drive's whole process. The figure refuses a host that executes the sub-plans itself.",
    )
    rows, medians = [], {}
    for door, (name, theirs) in DOORS.items():
        figures, medians[door] = paper.spread(wall[door], cold[door])
        rows.append([name, theirs, *figures, statistics.median(cpu[door])])
    columns = ["code and data", "in the paper", *paper.spread_columns(first), "median processor time of the drive"]
    result.tables.append(paper.Table("doors", "Milliseconds per slice, by the clock at the client", columns, rows))
    more = statistics.median(b - a for a, b in zip(wall["grpc"], wall["kinetic"]))
    work = rows[1][-1] - rows[0][-1]
    result.says += [
        f"Through Kinetic a slice takes {medians['kinetic']:.2f} ms, through Flight {medians['grpc']:.2f}: the median difference is {more:+.2f} ms "
        f"(wanted: at most {WANTED_MS:g}). The drive's processor works {abs(work):.2f} ms {'more' if work > 0 else 'less'}.",
        f"The first slice of a process takes {rows[0][-2]:.1f} (Flight) and {rows[1][-2]:.1f} (Kinetic) times the median. "
        "The paper has no figures in its text for what its drives' protocol costs.",
    ]
    result.plots.append(_draw(out, cold, wall, size))
    return result


def _draw(out: Path, cold: dict, wall: dict, size: dict) -> str:
    names = [name for name, _ in DOORS.values()]
    labels, colours = ["Flight", "Kinetic"], (paper.CLIENT, paper.DRIVE)
    made = paper.first_and_others(names, labels, colours, list(cold.values()), list(wall.values()), "milliseconds by the clock", "asked for")
    caption = (
        f"A query for each slice of {size['rows']} genes by {size['cells']:,} cells, executed on the drive. Boxes are quartiles, whiskers least and "
        "most, dashed the mean. Flight and Kinetic hand the same sub-plan to the same engine."
    )
    return paper.save(out, made, "doors", "Executing through Kinetic, next to Flight", caption)
