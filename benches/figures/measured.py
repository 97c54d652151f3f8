"""The questions of simulated.py, as far as one machine can answer them in real time: drives with device profiles, in
one process."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Callable

import paper
import published
import samples
from clocks import AGGREGATES, SCANS, least, once

#: Half of the link: drives, rows of the table, Gb/s of each drive's link, times.
LINK = {"drives": 8, "rows": 2_000_000, "gbit": (10.0, 5.0, 1.0), "times": 7}
LINK_TINY = {"drives": 2, "rows": 20_000, "gbit": (10.0, 5.0), "times": 1}

#: Drives that equal one core: drives, genes, cells, times.
EQUAL = {"drives": (1, 2, 4, 8), "genes": 20_000, "cells": 8_000, "times": 5}
EQUAL_TINY = {"drives": (1, 2), "genes": 400, "cells": 200, "times": 1}

CUTS = {"raw": "all at the host", "full": "all at the drives", "adaptive": "adaptive"}


def server(slower: float, gbit: float) -> str:
    """A device of one core, `slower` times slower than this machine's, behind a link of `gbit` Gb/s."""
    return (
        f"speed_per_core = {1 / slower}\ncores = 1\nmemory_bytes = 1073741824\ndisk_bytes_per_s = 2000000000.0\ndisk_seek_s = 0.0001\n"
        f"link_bits_per_s = {gbit * 1e9}\nlink_latency_s = 0.0001\n"
    )


def link(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    import skytether

    size = LINK_TINY if tiny else LINK
    # Together they take half of a core of this machine, so that the host has enough.
    slower = 2.0 * size["drives"]
    path = samples.trips_fleet(out, size["rows"], size["drives"])
    taken: dict[float, dict[str, list[float]]] = {gbit: {cut: [] for cut in CUTS} for gbit in size["gbit"]}
    opened = size["gbit"]
    for turn in range(size["times"] + 1):
        say(f"half of the link, measured: turn {turn + 1} of {size['times'] + 1}")
        for gbit in opened:
            with skytether.open(path, profile=server(slower, gbit)) as fleet:
                # The host learns of a drive's tables with the first query.
                once(fleet, "SELECT count(pick) FROM paper.trips WHERE pick < 0.5")
                for cut in CUTS:
                    took = once(fleet, "SELECT * FROM paper.trips WHERE pick < 0.01", cut)
                    taken[gbit][cut] += [took.wall] if turn else []
    middle = {gbit: {cut: statistics.median(times) for cut, times in of.items()} for gbit, of in taken.items()}
    whole = middle[size["gbit"][0]]
    result = paper.Result(
        "link_measured",
        "Skyhook, section 3.2: half of the network, measured",
        f"{size['drives']} drives of one core, each {slower:.0f} times slower than this machine's, {size['rows']:,} rows of 17 columns, 1% of them selected with all columns; links by device profiles. Real time, through the Python package; "
        f"medians of {size['times']} runs, in turn.",
    )
    result.tables.append(
        paper.Table(
            "link_measured",
            "Milliseconds, and times those at the widest link",
            ["Gb/s of each drive", *CUTS.values(), *[f"{title}: times" for title in CUTS.values()]],
            [[gbit, *[of[cut] * 1e3 for cut in CUTS], *[of[cut] / whole[cut] for cut in CUTS]] for gbit, of in middle.items()],
        )
    )
    half = middle[size["gbit"][1]]
    result.says.append(
        f"At half of the link the drives take {half['full'] / whole['full']:.2f} times as long, and the adaptive choice {half['adaptive'] / whole['adaptive']:.2f} times (Skyhook: more than {published.HALF_LINK:.0f})."
    )
    return result


def equal(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    import skytether

    size = EQUAL_TINY if tiny else EQUAL
    query, rows = samples.moments(size["cells"]), []
    core = None
    for drives in size["drives"]:
        say(f"how many slow drives equal one core, measured: {drives}")
        path = samples.expression_fleet(out, size["genes"], size["cells"], size["cells"], None, drives)
        if core is None:
            with skytether.open(path) as fleet:
                core = least([once(fleet, query) for _ in range(size["times"] + 1)][1:]).of(SCANS + AGGREGATES)
        with skytether.open(path, profile="envoy") as fleet:
            runs = {cut: [once(fleet, query, cut).wall for _ in range(size["times"] + 1)][1:] for cut in ("full", "adaptive")}
        rows.append([drives, core * 1e3, *[statistics.median(of) * 1e3 for of in runs.values()]])
    result = paper.Result(
        "equal_measured",
        "How many slow drives equal one core, measured",
        f"Accumulate over {size['genes']:,} genes by {size['cells']:,} cells on drives like Envoy (two cores, each 15 times slower than this machine's), real time, medians of {size['times']} runs. One core: processor time of reading, decoding and aggregating at "
        "this machine's speed, and nothing else. More drives than these have more cores together than this machine.",
    )
    result.tables.append(paper.Table("equal_measured", "Milliseconds", ["drives", "one core, processor time", "drives alone, by the clock", "adaptive, by the clock"], rows))
    last = rows[-1]
    result.says.append(
        f"{last[0]} drives take {last[2] / last[1]:.2f} times as long as one core works (paper, and the profile's arithmetic: 7.5 drives for a core). By the clock planning and the way to and fro count as well, {rows[0][2] / last[2]:.1f} times less time "
        f"with {last[0]} drives than with {rows[0][0]}."
    )
    return result
