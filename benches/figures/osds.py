"""Skyhook's experiment inside a Ceph cluster: files like those of the NYC taxi data over 1, 8 and 16 OSDs, 1% of the
rows selected, at the OSDs and by client-side pyarrow, behind a link of 1 Gb/s and of half of it."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

import paper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import ceph_clusters as clusters  # noqa: E402

#: Files and rows of each for one OSD (the data grow with the OSDs), OSDs, and repetitions.
FULL = {"files": 2, "rows": 350_000, "osds": (1, 8, 16), "times": 5}
TINY = {"files": 2, "rows": 20_000, "osds": (1, 2), "times": 2}

#: Gb/s of the client's link.
RATES = (1.0, 0.5)

WAYS = {"pushed": "at the OSDs", "pyarrow": "client-side pyarrow"}

COLUMNS = ["OSDs", "Gb/s", "where the filter runs", "seconds", "MB over the link", "processor seconds of the client", "of OSDs and engines", "estimate with a core each"]


def _rows(osds: int, size: dict[str, Any], link: clusters.Link, library: Path, say: Callable[[str], None]) -> list[list[Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as place, clusters.cluster(Path(place), osds, link, library) as ceph:
        at = f"rados://sky/trips/?conf={ceph.conf}&namespace=files"
        link.rate(10e9)
        ceph.client("ceph_client.py", "files", at, size["files"] * osds, size["rows"], linked=False)
        for rate in RATES:
            link.rate(rate * 1e9)
            for way, name in WAYS.items():
                say(f"{osds} OSDs at {rate:g} Gb/s, {name}")
                before, moved = ceph.processors(), link.moved()
                told = ceph.client("ceph_client.py", way, at, "0.01", size["times"])
                there = (ceph.processors() - before) / size["times"]
                seconds, client = statistics.median(told["seconds"]), statistics.median(told["processor"])
                mb = (link.moved() - moved) / size["times"] / 1e6
                # Whatever takes longest decides, when each OSD and the client have a core of their own.
                rows.append([osds, rate, name, seconds, mb, client, there, max(client, there / osds, mb * 8e6 / (rate * 1e9))])
    return rows


def measure(out: Path, tiny: bool, say: Callable[[str], None]) -> paper.Result:
    size = TINY if tiny else FULL
    result = paper.Result(
        "osds",
        "Skyhook's experiment inside a Ceph cluster",
        f"Parquet files of {size['rows']:,} rows with 17 columns, {size['files']} for each OSD, each an object; `pick < 0.01`, all columns. "
        "Ceph 16.2 with OSDs in memory on one machine. "
        "The client is a process behind a link that the kernel bounds. OSDs, engines and client share this machine's cores. "
        "So the last column says what each had taken on a core of its own: the longest of the client's work, an OSD's share of the servers' work, and the link.",
    )
    try:
        # As the tests have it, so that nothing is built twice.
        library = clusters.object_class("dev")
        rows: list[list[Any]] = []
        for osds in size["osds"]:
            with clusters.link() as link:
                rows += _rows(osds, size, link, library, say)
    except clusters.Skipped as why:
        result.says.append(f"Not measured here: {why}.")
        return result
    result.tables.append(paper.Table("osds", "Seconds of a scan that selects 1%", COLUMNS, rows))
    found = {(row[0], row[1], row[2]): row for row in rows}
    for osds in size["osds"]:
        mine, theirs = (found[osds, 1.0, name] for name in WAYS.values())
        halved = found[osds, 0.5, WAYS["pushed"]][3] / mine[3]
        result.says.append(
            f"{osds} OSDs: {mine[3]:.2f} s at the OSDs and {theirs[3]:.2f} s in the client, {theirs[3] / mine[3]:.1f} times; "
            f"with a core each {mine[7]:.2f} and {theirs[7]:.2f} s. "
            f"With half of the link the scan at the OSDs takes {halved:.2f} times as long (Skyhook, from 10 to 5 Gb/s: more than 10 times)."
        )
    result.plots.append(_draw(out, rows, size))
    return result


def _draw(out: Path, rows: list[list[Any]], size: dict[str, Any]) -> str:
    made, axes = paper.figure(9.5, 4.8, 2)
    for ax, column, title in zip(axes, (3, 7), ("measured, all on this machine's cores", "with a core for each OSD and the client"), strict=True):
        for name, colour in zip(WAYS.values(), (paper.DRIVE, paper.CLIENT), strict=True):
            for rate, style in zip(RATES, ("-", "--"), strict=True):
                points = [(row[0], row[column]) for row in rows if (row[1], row[2]) == (rate, name)]
                ax.plot(*zip(*points), style, color=colour, marker="o", markersize=4, label=f"{name}, {rate:g} Gb/s")
        ax.set_title(title, fontsize=10, color=paper.INK)
        ax.set_xticks(list(size["osds"]))
        ax.set_xlabel("OSDs; the data grow with them")
        ax.set_yscale("log")
        paper.plain_numbers(ax.yaxis)
    axes[0].set_ylabel("seconds")
    axes[0].legend(fontsize=8, frameon=False)
    caption = f"1% of the rows of {size['files']} files for each OSD, {size['rows']:,} rows and 17 columns each. Medians of {size['times']} scans."
    return paper.save(out, made, "osds", "Selecting 1% inside a Ceph cluster", caption)
