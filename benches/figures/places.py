"""Figure 6 of the Skytether paper: what a slice costs by where code and data are, first slices and later ones."""

from __future__ import annotations

import csv
import io
import statistics
import subprocess
from pathlib import Path
from typing import Callable

import paper
import published
import samples

#: Genes, columns, rows of a slice, and processes per configuration: the first slices of each are cold.
FULL = {"genes": 14_400, "cells": 2000, "rows": 480, "times": 7}
TINY = {"genes": 480, "cells": 60, "rows": 48, "times": 2}

#: Names as the paper has them, `<code>|<data>`: ours, what it is, and the paper's.
PLACES = {
    "host": ("host | host", "this machine's processor, a disk of its own", "Client | KineticVM"),
    "served": ("host | served drive", "the same, data at a drive that is served over loopback", "KineticVM | KineticVM (not the same: theirs was a virtual machine)"),
    "handed": ("host | Envoy", "the same, slices handed out by a drive like Envoy", "Client | Envoy"),
    "drive": ("Envoy | Envoy", "a drive like Envoy: its processor, its disk", "Envoy | Envoy"),
}


def _slices(program: Path, fleet: Path, place: str, query: str) -> list[dict[str, float]]:
    """What each slice took in a new process, in storage order."""
    ran = subprocess.run([str(program), str(fleet), "envoy", place, query], capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        raise SystemExit(f"{program.name} {place} failed:\n{ran.stderr[-2000:]}")
    return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(ran.stdout))]


def measure(out: Path, tiny: bool, say: Callable[[str], None], program: Path) -> paper.Result:
    size = TINY if tiny else FULL
    fleet = samples.expression_fleet(out, size["genes"], size["cells"], size["cells"], size["rows"])
    query, first = samples.moments(size["cells"]), published.WARM_UP_SLICES
    cold: dict[str, list[list[float]]] = {place: [] for place in PLACES}
    warm: dict[str, list[float]] = {place: [] for place in PLACES}
    wall: dict[str, list[float]] = {place: [] for place in PLACES}
    for run in range(size["times"]):
        say(f"where code and data are: process {run + 1} of {size['times']} each")
        for place in PLACES:
            slices = _slices(program, fleet, place, query)
            cold[place].append([slice_["cpu_s"] * 1e3 for slice_ in slices[:first]])
            warm[place] += [slice_["cpu_s"] * 1e3 for slice_ in slices[first:]]
            wall[place] += [slice_["wall_s"] * 1e3 for slice_ in slices[first:]]
    result = paper.Result(
        "figure6",
        "Skytether, Figure 6: where code and data are",
        f"Processor time of each slice ({size['rows']} genes of {size['cells']:,} cells) for decoding and Accumulate, on the processor that does it; {size['times']} processes per configuration, each with the sub-plan that a host would send, "
        f"run slice by slice in one lane of the engine (`crates/skytether/examples/slice_times.rs`). The first {first} slices of each process are shown apart, as in the paper. Envoy is a profile: this machine's processor time, times 15.",
    )
    rows, medians = [], {}
    for place, (name, what, theirs) in PLACES.items():
        figures, medians[place] = paper.spread(warm[place], cold[place])
        rows.append([name, theirs, *figures, statistics.median(wall[place])])
    columns = ["code | data", "in the paper", *paper.spread_columns(first), "median by the clock, reading included"]
    result.tables.append(paper.Table("figure6", "Milliseconds of processor time per slice", columns, rows))
    starts = {place: row[-2] for place, row in zip(PLACES, rows, strict=True)}
    result.says += [
        f"Median per slice by where the data are: {medians['host']:.3f} ms over a disk of the host's own, {medians['served']:.3f} over a drive that is served, {medians['handed']:.3f} over an Envoy. The paper finds no slowdown by the drive's disk.",
        f"On the Envoy a slice takes {medians['drive'] / medians['handed']:.1f} times the processor time (paper: {published.DRIVE_SLOWER:.0f}). The 15 is put in by the profile, and what differs from it is noise; by the clock, which nothing is put into, "
        f"a slice takes {rows[3][-1]:.2f} ms there and {rows[0][-1]:.2f} ms on the host, reading included.",
        "The first slice of a process takes " + ", ".join(f"{starts[place]:.1f} ({name})" for place, (name, _, _) in PLACES.items()) + " times the median. "
        "The paper saw slow first slices at Envoy only, five of them. The cost model gives the first five slices of a drive half weight for that.",
    ]
    result.plots.append(_draw(out, cold, warm, size))
    return result


def _draw(out: Path, cold: dict, warm: dict, size: dict) -> str:
    names = [name for name, _, _ in PLACES.values()]
    colours = (paper.CLIENT, paper.OTHER, paper.BOTH, paper.DRIVE)
    labels = [name.replace(" | ", "\n") for name in names]
    made = paper.first_and_others(names, labels, colours, list(cold.values()), list(warm.values()), "milliseconds of processor time", "worked off")
    caption = (
        f"Decoding and Accumulate of {size['rows']} genes by {size['cells']:,} cells; labels are <code>|<data>. Boxes are quartiles, whiskers least and most, dashed the mean. Envoy is this machine's processor time times 15, as its profile says. "
        "The paper's text gives the ratio of 15 between the two right boxes, and no milliseconds."
    )
    return paper.save(out, made, "figure6", "Figure 6: where code and data are", caption)
