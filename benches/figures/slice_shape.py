"""Figure 5 of the Skytether paper: what the shape of slices costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import paper
import published
import samples
from clocks import AGGREGATES, SCANS, Took, least, once

#: Genes, columns of slices, rows of slices (`None`: as many as fit a megabyte), and runs of each query; the quickest
#: run counts.
FULL = {"genes": 14_400, "cells": (400, 800, 1200, 1600, 2000), "rows": (48, 480, None), "times": 7}
TINY = {"genes": 480, "cells": (60, 120), "rows": (48, 240, None), "times": 2}


def measure(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    import skytether

    size = TINY if tiny else FULL
    widest, genes = max(size["cells"]), size["genes"]
    taken: dict[tuple[str, int, int | None], Took] = {}
    for cells in size["cells"]:
        say(f"slices of {cells} columns")
        fleets = {rows: samples.expression_fleet(out, genes, cells, widest, rows) for rows in size["rows"]}
        for where, profile in (("client", "unlimited"), ("drive", "envoy")):
            runs: dict[int | None, list[Took]] = {rows: [] for rows in size["rows"]}
            opened = {rows: skytether.open(path, profile=profile) for rows, path in fleets.items()}
            try:
                # In turn, so that whatever else goes on on the machine meets all of them; the first run warms up.
                for run in range(size["times"] + 1):
                    for rows, fleet in opened.items():
                        took = once(fleet, samples.moments(cells))
                        runs[rows] += [took] if run else []
            finally:
                for fleet in opened.values():
                    fleet.close()
            taken |= {(where, cells, rows): least(of) for rows, of in runs.items()}
    small, large = size["rows"][:2]
    result = paper.Result(
        "figure5",
        "Skytether, Figure 5: the shape of slices",
        f"Accumulate (number, mean and sum of squares of two groups of cells, for each of {genes:,} genes) over a sparse matrix of which 7% are not zero, one drive, slices of {small} and of {large} rows and as large as they come "
        f"(1 MiB). *Client*: an embedded drive at this machine's speed. *Drive*: the same like Envoy, whose cores the profile makes 15 times slower than this machine's. The least of {size['times']} runs each, in turn.",
    )
    result.tables.append(
        paper.Table(
            "figure5",
            "Milliseconds for all rows: by the clock; of this process's processor time; of the operators on the drive",
            ["where", "columns", "rows of a slice", "slices", "clock", "processor", "aggregate alone", "scan alone (reading, decoding)"],
            [
                [where, cells, rows or "1 MiB", took.receipt["drives"][0]["slices"], took.wall * 1e3, took.cpu * 1e3, took.of(AGGREGATES) * 1e3, took.of(SCANS) * 1e3]
                for (where, cells, rows), took in sorted(taken.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or 1 << 30))
            ],
        )
    )
    result.tables.append(_overhead(taken, widest, small, large))
    result.says += _says(result.tables[-1], taken, widest, small, large)
    result.plots += _draw(out, taken, size)
    return result


def _overhead(taken: dict[Any, Took], cells: int, small: int, large: int) -> paper.Table:
    rows = []
    for what, of in (("aggregate alone, as the paper measures it", lambda t: t.of(AGGREGATES)), ("reading, decoding and aggregate", lambda t: t.of(AGGREGATES + SCANS)), ("all processor time of host and drive", lambda t: t.cpu)):
        a, b = of(taken["client", cells, small]), of(taken["client", cells, large])
        rows.append([f"ours, client: {what}", a * 1e3, b * 1e3, a / b if b else None])
    a, b = taken["drive", cells, small].wall, taken["drive", cells, large].wall
    rows.append(["ours, drive: by the clock", a * 1e3, b * 1e3, a / b])
    for where in ("client", "drive"):
        a, b = published.SLICE_SHAPE_MS[48, where], published.SLICE_SHAPE_MS[480, where]
        rows.append([f"the prototype, {where}: aggregate alone", a, b, a / b])
    rows.insert(4, ["ours, drive: all processor time of host and drive, this machine's", *(taken["drive", cells, r].cpu * 1e3 for r in (small, large)), taken["drive", cells, small].cpu / taken["drive", cells, large].cpu])
    return paper.Table("figure5_overhead", f"{small}-row against {large}-row slices of {cells:,} columns, milliseconds for all rows", ["what", f"{small} rows", f"{large} rows", "times"], rows)


def _says(table: paper.Table, taken: dict[Any, Took], cells: int, small: int, large: int) -> list[str]:
    alone, all_of_it, drive = table.rows[0][3] or 0.0, table.rows[2][3], table.rows[3][3]
    wanted = published.SLICE_OVERHEAD_WANTED
    slower = taken["drive", cells, large].wall / taken["client", cells, large].wall
    return [
        f"Overhead of slices of {small} rows instead of {large}, where the prototype paid {published.SLICE_OVERHEAD:.0f} times (8.8 and 8.9 by its own figures): {alone:.2f} times for the aggregate alone, "
        f"{all_of_it:.2f} times for everything, {drive:.2f} times on the drive. Wanted: at most {wanted}.",
        "Levels are not comparable: the prototype's rows are dense and its processors of 2013 and 2012; ours are sparse, 7% not zero.",
        f"The drive takes {slower:.1f} times as long as the client with {large}-row slices (paper: 13; 15 for a core, of which it has two, is what the profile says).",
    ]


def _draw(out: Path, taken: dict[Any, Took], size: dict[str, Any]) -> list[str]:
    made, axes = paper.figure(9.5, 5.2, 2)
    small, large = size["rows"][:2]
    titles = ("by the clock, everything", "aggregate alone, on the processor that does it")
    # A drive's operators tell this machine's processor time.
    slower = {"client": 1.0, "drive": published.DRIVE_SLOWER}
    for ax, title, of in zip(axes, titles, (lambda t, _: t.wall, lambda t, where: t.of(AGGREGATES) * slower[where]), strict=True):
        for where, colour in (("drive", paper.DRIVE), ("client", paper.CLIENT)):
            for rows, style, marker in ((small, ":", "s"), (large, "-", "D"), (None, "--", "o")):
                values = [of(taken[where, cells, rows], where) * 1e3 for cells in size["cells"]]
                ax.plot(size["cells"], values, style, color=colour, marker=marker, markersize=4.5, linewidth=1.6, label=f"{f'{rows} rows' if rows else 'slices of 1 MiB'}, {where}")
        ax.set_yscale("log")
        paper.plain_numbers(ax.yaxis)
        ax.set_xlabel("columns (cells)")
        ax.set_title(title, fontsize=10, color=paper.INK)
    axes[0].set_ylabel("milliseconds for all rows")
    for (rows, where), value in published.SLICE_SHAPE_MS.items():
        colour = paper.DRIVE if where == "drive" else paper.CLIENT
        axes[1].plot([2000], [value], marker="s" if rows == 48 else "D", color=colour, markerfacecolor="white", markersize=7, linestyle="none")
        axes[1].annotate(f"prototype, {rows} rows, {where}", (2000, value), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=7.5, color=paper.PUBLISHED)
    axes[0].legend(fontsize=7.5, frameon=False, ncols=2, loc="upper left", handlelength=3.5)
    top = axes[0].get_ylim()[1]
    axes[0].set_ylim(top=top * 5)
    caption = (
        f"Accumulate over {size['genes']:,} genes, 7% of the counts not zero. Drive: two cores, each 15 times slower than this machine's (Envoy's profile). Prototype (outlined): its own times for a dense table of 14,400 rows by 2,000 columns, "
        "without reading and decoding: other data and other processors, so that levels say little and distances between 48 and 480 rows much."
    )
    return [paper.save(out, made, "figure5", "Figure 5: the shape of slices", caption)]
