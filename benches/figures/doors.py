"""What executing through Kinetic costs next to Flight: the columns of the Skytether paper's Figure 6 over both."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, NamedTuple

import paper
import published
import samples

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import kinetic_fleets as fleets  # noqa: E402

#: Genes, columns, rows of a slice as in Figure 6, and processes per column and door: the first slices of each are cold.
FULL = {"genes": 14_400, "cells": 2000, "rows": 480, "times": 3}
TINY = {"genes": 480, "cells": 60, "rows": 48, "times": 2}

#: The columns, named `<code> | <data>` as in the paper: the drive's profile, which pushdown level puts the code there,
#: and the paper's name.
COLUMNS = {
    "host | drive": ("unlimited", "raw", "Client | KineticVM"),
    "drive | drive": ("unlimited", "full", "KineticVM | KineticVM (theirs was a virtual machine)"),
    "host | Envoy": ("envoy", "raw", "Client | Envoy"),
    "Envoy | Envoy": ("envoy", "full", "Envoy | Envoy"),
}

#: The doors of a drive: its scheme, and how it is called.
DOORS = {"grpc": "Flight", "kinetic": "Kinetic"}

#: What executing through Kinetic may add to Flight's time at most, in milliseconds.
WANTED_MS = 1.0


class Took(NamedTuple):
    """What one slice took: seconds by the clock at the client, and of the processor of drive and host."""

    wall: float
    drive: float
    host: float


def _slices(place: Path, column: str, size: dict[str, int]) -> dict[str, list[Took]]:
    """Per door the slices in storage order, each asked for by a query of its own, the doors in turn. The drives and
    hosts are new processes over the data in `place`."""
    import skytether

    profile, cut, _ = COLUMNS[column]
    query, took = samples.moments(size["cells"]), {door: [] for door in DOORS}
    with fleets.both_doors(place, profile=profile) as (drives, hosts, numbers), contextlib.ExitStack() as stack:
        connected = {door: stack.enter_context(skytether.connect(url)) for door, url in hosts.items()}
        for first in range(0, size["genes"], size["rows"]):
            text = query.replace(" GROUP BY", f" WHERE gene_id >= {first} AND gene_id < {first + size['rows']} GROUP BY")
            for door, fleet in connected.items():
                before = Took(time.perf_counter(), fleets.processor_seconds(drives[door]), fleets.processor_seconds(numbers[door]))
                result = fleet.sql(text, cut=cut)
                rows = result.to_arrow().num_rows
                after = Took(time.perf_counter(), fleets.processor_seconds(drives[door]), fleets.processor_seconds(numbers[door]))
                if rows != min(size["rows"], size["genes"] - first):
                    raise SystemExit(f"{column} through {DOORS[door]}: genes from {first} on: {rows} rows")
                levels = {one["rung"] for one in result.receipt.to_dict()["drives"]}
                if levels != {cut}:
                    raise SystemExit(f"{column} through {DOORS[door]}: the code ran elsewhere: pushdown level {levels} instead of {cut}")
                took[door].append(Took(*(b - a for a, b in zip(before, after, strict=True))))
    return took


def _ingest(place: Path, size: dict[str, int]) -> None:
    """Puts the same matrix on the drive behind each door."""
    import msgexpress
    import skytether

    with fleets.both_doors(place, "--slice-rows", size["rows"]) as (_, hosts, _):
        for url in hosts.values():
            with skytether.connect(url) as fleet:
                msgexpress.MsgExpress(fleet).ingest(samples.expression(size["genes"], size["cells"]).copy(), "paper/matrix")


def measure(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    size, first = TINY if tiny else FULL, published.WARM_UP_SLICES
    boxes = [(column, door) for column in COLUMNS for door in DOORS]
    cold: dict[tuple[str, str], list[list[float]]] = {box: [] for box in boxes}
    warm: dict[tuple[str, str], list[Took]] = {box: [] for box in boxes}
    with tempfile.TemporaryDirectory() as place:
        say("slices through Flight and through Kinetic: storing them")
        _ingest(Path(place), size)
        for run in range(size["times"]):
            for column in COLUMNS:
                say(f"slices through Flight and through Kinetic: {column}, processes {run + 1} of {size['times']}")
                for door, slices in _slices(Path(place), column, size).items():
                    cold[column, door].append([took.wall * 1e3 for took in slices[:first]])
                    warm[column, door] += slices[first:]
    result = paper.Result(
        "doors",
        "Executing through Kinetic, next to Flight",
        f"The columns of Figure 6 over drives behind Flight and behind Kinetic: each slice ({size['rows']} genes of {size['cells']:,} cells) by a query of its own. "
        "Where the code is the drive's, the host hands it a sub-plan, over Flight or by Kinetic's EXECUTE, whose program is the query engine (`cut=\"full\"`). "
        "Where the code is the host's, the drive sends the columns of the slice, through the same door (`cut=\"raw\"`). "
        f"Drive and host are processes of this machine, {size['times']} of each, and the doors take turns with each slice. "
        f"The first {first} slices of each process are apart. "
        "Times are those by the clock at the client: planning, both ways and all work. "
        "Envoy is a profile: this machine's processor time, times 15, its disk, and its link, "
        "to which Flight keeps and Kinetic does not. "
        "The part refuses a query whose receipt says that the code ran elsewhere.",
    )
    rows, walls = [], {box: [took.wall * 1e3 for took in warm[box]] for box in boxes}
    medians: dict[tuple[str, str], float] = {}
    for box in boxes:
        column, door = box
        figures, medians[box] = paper.spread(walls[box], cold[box])
        processors = [statistics.median(getattr(took, who) * 1e3 for took in warm[box]) for who in ("drive", "host")]
        rows.append([column, DOORS[door], COLUMNS[column][2], *figures, *processors])
    columns = ["code | data", "through", "in the paper", *paper.spread_columns(first), "median processor time of the drive", "median processor time of the host"]
    result.tables.append(paper.Table("doors", "Milliseconds per slice, by the clock at the client", columns, rows))
    more = {column: statistics.median(b - a for a, b in zip(walls[column, "grpc"], walls[column, "kinetic"], strict=True)) for column in COLUMNS}
    result.says += [
        f"Executing on the drive, a slice takes {medians['drive | drive', 'kinetic']:.2f} ms through Kinetic and {medians['drive | drive', 'grpc']:.2f} through Flight: "
        f"the median difference is {more['drive | drive']:+.2f} ms (wanted: at most {WANTED_MS:+g}). On an Envoy it is {more['Envoy | Envoy']:+.2f} ms "
        f"of {medians['Envoy | Envoy', 'grpc']:.1f}.",
        f"Computing on the host over what the drive sends, the difference is {more['host | drive']:+.2f} ms of {medians['host | drive', 'grpc']:.2f} over a drive, "
        f"and {more['host | Envoy']:+.2f} of {medians['host | Envoy', 'grpc']:.2f} over an Envoy.",
        "The paper finds that its Kinetic drive's software does not introduce much overhead, and has no figures in its text for that; "
        f"it finds the Envoy {published.DRIVE_SLOWER:.0f} times slower than the client. "
        f"Here it is {medians['Envoy | Envoy', 'kinetic'] / medians['drive | drive', 'kinetic']:.1f} times "
        "a drive without a profile through Kinetic, planning and both ways included, which no profile slows.",
    ]
    result.plots.append(_draw(out, cold, walls, size))
    return result


def _draw(out: Path, cold: dict, walls: dict, size: dict) -> str:
    names = [f"{column}, {DOORS[door]}" for column, door in walls]
    labels = [f"{column.replace(' | ', chr(10))}\n{DOORS[door]}" for column, door in walls]
    colours = tuple(colour for _ in COLUMNS for colour in (paper.CLIENT, paper.DRIVE))
    made = paper.first_and_others(names, labels, colours, list(cold.values()), list(walls.values()), "milliseconds by the clock", "asked for")
    for ax in made.axes:
        ax.tick_params(axis="x", labelsize=7)
    made.axes[0].get_legend().remove()
    caption = (
        f"A query for each slice of {size['rows']} genes by {size['cells']:,} cells; labels are <code>, <data> and the door. "
        "Orange is Flight, violet Kinetic. Boxes are quartiles, "
        "whiskers least and most, dashed the mean. Envoy is this machine's processor time times 15, as its profile says."
    )
    return paper.save(out, made, "doors", "Figure 6's columns: executing through Kinetic, next to Flight", caption)
