"""Figure 7 of the Skytether paper: what selection and projection cost."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import paper
import published
import samples
from clocks import Took, middle, once

FULL = {"columns": 2000, "rows": 12_000, "times": 10}
TINY = {"columns": 200, "rows": 600, "times": 2}


def measure(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    import skytether

    size = TINY if tiny else FULL
    path = samples.dense_fleet(out, size["columns"], size["rows"])
    shares = [(round(size["columns"] * share), share) for share in published.PROJECTED]
    kinds = {"projection": "", "selection and projection": " WHERE c0 > 10"}
    taken: dict[tuple[str, str, int], Took] = {}
    for where, profile in (("client", "unlimited"), ("drive", "envoy")):
        say(f"selection and projection: {where}")
        with skytether.open(path, profile=profile) as fleet:
            runs: dict[tuple[str, int], list[Took]] = {(kind, n): [] for kind in kinds for n, _ in shares}
            for run in range(size["times"] + 1):
                for (kind, n), of in runs.items():
                    took = once(fleet, f"SELECT {', '.join(f'c{i}' for i in range(1, n + 1))} FROM paper.dense{kinds[kind]}")
                    of += [took] if run else []
        taken |= {(where, kind, n): middle(of) for (kind, n), of in runs.items()}
    result = paper.Result(
        "figure7",
        "Skytether, Figure 7: selection and projection",
        f"A dense table of {size['columns']:,} whole numbers by {size['rows']:,} rows on one drive; {published.SELECTED:.1%} of the rows selected by one column; all asked of the drive (`cut=\"full\"`). The paper has the table in the drive's memory and its "
        f"answer stays there; ours reads, decodes and sends, files in the page cache. Median of {size['times']} runs. *Client* and *drive* as in Figure 5.",
    )
    rows = []
    for where in ("client", "drive"):
        for n, share in shares:
            one, both = taken[where, "projection", n], taken[where, "selection and projection", n]
            rows.append([where, n, share, one.wall * 1e3, both.wall * 1e3, one.wall / both.wall, published.PROJECTION_SHARE, one.receipt["bytes_moved"] / 1e6, both.receipt["bytes_moved"] / 1e6])
    result.tables.append(
        paper.Table(
            "figure7",
            "Milliseconds by the clock, and megabytes moved",
            ["where", "columns", "share", "projection", "selection and projection", "projection / both", "published", "MB of projection", "MB of both"],
            rows,
        )
    )
    slower = [taken["drive", "projection", n].wall / taken["client", "projection", n].wall for n, _ in shares]
    shares_found = [row[5] for row in rows]
    less = [row[8] / row[7] for row in rows]
    result.says += [
        f"In the paper projection is {published.PROJECTION_SHARE:.0%} of the time of both. Here it is {min(shares_found):.0%} to {max(shares_found):.0%}: reading, decoding and sending are in both of ours and in none of theirs. "
        f"Selecting as well moves {min(less):.0%} to {max(less):.0%} of the bytes.",
        f"The drive takes {min(slower):.1f} to {max(slower):.1f} times as long as the client (paper: {published.DRIVE_SLOWER:.0f} per core; the drive works with two).",
    ]
    result.plots.append(_draw(out, taken, shares, size))
    return result


def _draw(out: Path, taken: dict, shares: list, size: dict) -> str:
    made, axes = paper.figure(9.0, 4.6, 2)
    for ax, where in zip(axes, ("client", "drive"), strict=True):
        for at, (n, _) in enumerate(shares):
            one, both = (taken[where, kind, n].wall * 1e3 for kind in ("projection", "selection and projection"))
            for offset, value, colour, label in ((-0.2, one, paper.OTHER, "projection"), (0.2, both, paper.CLIENT, "selection and projection")):
                ax.bar(at + offset, value, 0.38, color=colour, label=label if at == 0 else None)
                ax.annotate(f"{value:.3g}", (at + offset, value), ha="center", va="bottom", fontsize=8, color=paper.INK)
        ax.set_xticks(range(len(shares)), [f"{n} columns\n({share:.0%})" for n, share in shares])
        ax.grid(False, axis="x")
        ax.set_title({"client": "client", "drive": "drive (Envoy's profile)"}[where], fontsize=10, color=paper.INK)
        ax.set_ylim(top=ax.get_ylim()[1] * 1.2)
    axes[0].set_ylabel("milliseconds by the clock")
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    caption = (
        f"{size['columns']:,} columns by {size['rows']:,} rows, {published.SELECTED:.1%} of them selected; reading, decoding and sending included. The paper's bars have no numbers in its text but that projection is "
        f"{published.PROJECTION_SHARE:.0%} of both, and that the drive is 15 times slower."
    )
    return paper.save(out, made, "figure7", "Figure 7: selection and projection", caption)
