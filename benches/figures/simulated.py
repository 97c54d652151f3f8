"""Figures that need many machines, on the simulator's clock: Skyhook's storage servers and links, and how many slow
drives equal one host."""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path
from typing import Callable

import paper
import published

#: Queries of the curve: the simulator's name, and how a title calls it.
CURVES = {"moments": "moments of two groups of cells", "10 groups": "sum and count by 10 groups", "filter 1%": "1% of the rows selected"}

#: Slices of each server where it must be quick; otherwise the paper's 1,840.
TINY_SLICES = 60

#: How much longer than the client servers may take and still count as its equals: what the seed of
#: the slices' costs changes.
SLACK = 0.02


def run(program: Path, *arguments: str) -> list[dict[str, float]]:
    """The rows that the simulator prints."""
    ran = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=900)
    if ran.returncode != 0:
        raise SystemExit(f"{program.name} {' '.join(arguments)} failed:\n{ran.stderr[-2000:]}")
    return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(ran.stdout))]


def enough(rows: list[dict[str, float]]) -> float | None:
    """The lowest clock rate down to which the servers keep up with the client."""
    found = None
    for row in sorted(rows, key=lambda row: -row["mhz"]):
        if row["full_s"] > row["client_s"] * (1 + SLACK):
            break
        found = row["mhz"]
    return found


def clocks(out: Path, tiny: bool, say: Callable[[str], None], program: Path) -> paper.Result:
    say("storage servers at clock rates (simulated)")
    rows = run(program, "clocks", *([str(TINY_SLICES)] if tiny else []))
    servers = [int(n) for n in sorted({row["servers"] for row in rows})]
    of = {n: [row for row in rows if row["servers"] == n] for n in servers}
    result = paper.Result(
        "skyhook_clocks",
        "Skyhook, Figure 3: slow processors at storage servers (simulated)",
        "1% of the rows of 1.4 million rows by 17 columns per file of 32 MB, 57.5 files on each server, so that data grow with servers; eight cores and 10 Gb/s each, the client with 2,000 MHz. Simulated: the decisions are ours, the cost of a row is put in "
        "(at 2,000 MHz what our filter of 1% takes per byte in memory, crates/sim/calibration.csv), and speed is proportional to the clock rate.",
    )
    result.tables.append(
        paper.Table("skyhook_clocks", "Seconds by clock rate of the servers", ["servers", "MHz", "all at the client (2,000 MHz)", "all at the servers", "adaptive"], [[int(r["servers"]), r["mhz"], r["client_s"], r["full_s"], r["adaptive_s"]] for r in rows], True)
    )
    found = {n: enough(of[n]) for n in servers}
    result.tables.append(
        paper.Table("skyhook_enough", "Lowest clock rate at which servers keep up with a client of 2,000 MHz", ["servers", "ours, MHz (of those tried)", "published, MHz"], [[n, found[n], published.ENOUGH_MHZ.get(n)] for n in servers], True)
    )
    always = max(row["adaptive_s"] / row["client_s"] for row in rows)
    result.says += [
        "Servers alone keep up with the client from " + ", ".join(f"{found[n] or 0:,.0f} MHz on with {n} (published: {published.ENOUGH_MHZ[n]:,.0f})" for n in servers) + ". "
        "The trend is the paper's. That theirs needed more has reasons that it does not give; the simulator takes speed as proportional to the clock rate and has no costs per request.",
        f"Adaptive, client and servers share the work: it takes at most {always:.2f} times what the client takes alone, however slow the servers are.",
    ]
    result.plots.append(_draw_clocks(out, of, found))
    return result


def _draw_clocks(out: Path, of: dict, found: dict) -> str:
    made, axes = paper.figure(11.0, 4.6, len(of))
    for ax, (n, rows) in zip(axes, of.items(), strict=True):
        rows = sorted(rows, key=lambda row: row["mhz"])
        mhz = [row["mhz"] for row in rows]
        ax.axhline(rows[0]["client_s"], color=paper.CLIENT, linewidth=1.8, linestyle="--", label="all at the client, 2,000 MHz")
        ax.plot(mhz, [row["full_s"] for row in rows], color=paper.DRIVE, marker="o", markersize=4, label="all at the servers")
        ax.plot(mhz, [row["adaptive_s"] for row in rows], color=paper.BOTH, marker="o", markersize=4, label="adaptive")
        ax.axvline(published.ENOUGH_MHZ[n], color=paper.PUBLISHED, linewidth=1.2, linestyle=":", label=f"published: {published.ENOUGH_MHZ[n]:,.0f} MHz keep up")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks([100, 200, 400, 800, 2000])
        for axis in (ax.xaxis, ax.yaxis):
            paper.plain_numbers(axis, steps=axis is ax.yaxis)
        ax.set_title(f"{n} server{'s' if n > 1 else ''}: ours keep up from {found[n]:,.0f} MHz" if found[n] else f"{n} servers", fontsize=10, color=paper.INK)
        ax.set_xlabel("MHz of each server")
        ax.legend(fontsize=7.5, **paper.BOX, loc="upper right")
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * 2.2)
    axes[0].set_ylabel("seconds (simulated)")
    caption = "Simulated. 1% of the rows selected; data grow with the servers (57.5 files of 32 MB each); eight cores and 10 Gb/s each. Below 800 MHz the paper's kernel could not go."
    return paper.save(out, made, "skyhook_clocks", "Skyhook: how slow storage servers may be (simulated)", caption)


def links(out: Path, tiny: bool, say: Callable[[str], None], program: Path) -> paper.Result:
    say("thinner links (simulated)")
    rows = sorted(run(program, "links", *([str(TINY_SLICES)] if tiny else [])), key=lambda row: -row["gbit"])
    whole = rows[0]
    result = paper.Result(
        "skyhook_links",
        "Skyhook, section 3.2: half of the network (simulated)",
        "Eight servers and the client as before, all of 2,000 MHz, 460 files; the interfaces of all of them at 10 Gb/s and less. Simulated.",
    )
    kinds = (("client_s", "all at the client"), ("full_s", "all at the servers"), ("adaptive_s", "adaptive"))
    result.tables.append(
        paper.Table("skyhook_links", "Seconds, and times those at 10 Gb/s", ["Gb/s", *[title for _, title in kinds], *[f"{title}: times" for _, title in kinds]], [[r["gbit"], *[r[k] for k, _ in kinds], *[r[k] / whole[k] for k, _ in kinds]] for r in rows], True)
    )
    half = next(row for row in rows if row["gbit"] == 5)
    result.says.append(
        f"From 10 to 5 Gb/s Skyhook took more than {published.HALF_LINK:.0f} times as long, which its authors could not explain. Ours takes {half['full_s'] / whole['full_s']:.2f} times as long with all work at the servers and "
        f"{half['adaptive_s'] / whole['adaptive_s']:.2f} times adaptively: what moves is 1% of the rows, for which half of the network is enough. The client alone, for which everything moves, takes {half['client_s'] / whole['client_s']:.2f} times as long."
    )
    result.plots.append(_draw_links(out, rows, kinds, "skyhook_links", "Skyhook: a thinner network (simulated)", "Simulated. Eight servers and a client, 1% of 644 million rows selected; all interfaces have the rate shown."))
    return result


def _draw_links(out: Path, rows: list, kinds: tuple, name: str, title: str, caption: str) -> str:
    made, ax = paper.figure(7.5, 4.8)
    gbit = [row["gbit"] for row in rows]
    for (key, label), colour in zip(kinds, (paper.CLIENT, paper.DRIVE, paper.BOTH), strict=True):
        ax.plot(gbit, [row[key] / rows[0][key] for row in rows], color=colour, marker="o", markersize=5, label=f"ours, {label} ({rows[0][key]:.3g} s at {gbit[0]:g} Gb/s)")
    ax.plot([gbit[0], gbit[0] / 2], [1, published.HALF_LINK], color=paper.PUBLISHED, linestyle=":", marker="s", label="published (Skyhook): more than 10 times at 5 Gb/s")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(gbit)
    ax.set_yticks([1, 2, 5, 10, 20])
    for axis in (ax.xaxis, ax.yaxis):
        paper.plain_numbers(axis)
    ax.invert_xaxis()
    ax.set_ylim(bottom=0.85, top=40)
    ax.set_xlabel("Gb/s of each interface")
    ax.set_ylabel(f"times the time at {gbit[0]:g} Gb/s")
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    return paper.save(out, made, name, title, caption)


def equal(out: Path, tiny: bool, say: Callable[[str], None], program: Path) -> paper.Result:
    curves = {}
    for query in list(CURVES)[: 1 if tiny else None]:
        say(f"how many slow drives equal one host: {query} (simulated)")
        curves[query] = run(program, "equal", query, "envoy")
    result = paper.Result(
        "equal",
        "Skytether, sections 6.3 and 7: how many slow drives equal one host (simulated)",
        "1,536 slices of 1 MiB over 1 to 96 drives like Envoy (two cores, each 15 times slower than the host's; 261 MB/s of disk; 2.5 Gb/s), and a host of four cores behind 10 Gb/s. The host's own times are of processor time alone, with all slices in its memory. Simulated.",
    )
    said = []
    for query, rows in curves.items():
        columns = ["drives", "one core of the host", "the host, four cores", "drives alone", "the host over the drives' links", "adaptive"]
        keys = ("one_core_s", "host_s", "full_s", "raw_s", "adaptive_s")
        result.tables.append(paper.Table(f"equal_{query.replace(' ', '_').replace('%', '')}", f"{CURVES[query].capitalize()}: seconds", columns, [[int(r["drives"]), *[r[k] for k in keys]] for r in rows], True))
        said.append(f"{CURVES[query]}: {_crossing(rows, 'one_core_s')} drives equal one core of the host, {_crossing(rows, 'host_s')} all four")
    late = max(row["adaptive_s"] / min(row["full_s"], row["raw_s"]) for rows in curves.values() for row in rows)
    more = max(after["adaptive_s"] / before["adaptive_s"] for rows in curves.values() for before, after in zip(rows, rows[1:]))
    result.says += [
        "; ".join(said).capitalize() + f" (between the numbers tried by interpolation). The paper reckons with {published.EQUAL_THROUGHPUT} drives for the throughput of one client processor and expects {published.EQUAL_LATENCY} for its latency: "
        "15 / 2 cores = 7.5 is what a core comes to, 30 what four do.",
        f"Drives and host together (adaptive) take at most {late:.2f} times as long as the better of the two alone, and with more drives at most {more:.2f} times as long as with fewer.",
    ]
    result.plots.append(_draw_equal(out, curves))
    return result


def _crossing(rows: list[dict[str, float]], key: str) -> str:
    """The number of drives that takes as long as `key`, between two that were tried along a
    straight line of logarithms."""
    import math

    for before, after in zip(rows, rows[1:]):
        if before["full_s"] > before[key] >= after["full_s"]:
            share = math.log(before["full_s"] / before[key]) / math.log(before["full_s"] / after["full_s"])
            return f"{before['drives'] * (after['drives'] / before['drives']) ** share:.1f}"
    return "none of the numbers tried of"


def _draw_equal(out: Path, curves: dict) -> str:
    made, axes = paper.figure(3.4 * len(curves) + 1.6, 4.9, len(curves))
    for ax, (query, rows) in zip([axes] if len(curves) == 1 else axes, curves.items(), strict=True):
        drives = [row["drives"] for row in rows]
        ax.axhline(rows[0]["one_core_s"], color=paper.CLIENT, linestyle=":", linewidth=1.5, label="one core of the host")
        ax.axhline(rows[0]["host_s"], color=paper.CLIENT, linestyle="--", linewidth=1.5, label="the host, four cores")
        ax.plot(drives, [row["full_s"] for row in rows], color=paper.DRIVE, marker="o", markersize=4, label="drives alone")
        ax.plot(drives, [row["raw_s"] for row in rows], color=paper.OTHER, marker="o", markersize=4, label="host over the drives' links")
        ax.plot(drives, [row["adaptive_s"] for row in rows], color=paper.BOTH, marker="o", markersize=4, label="adaptive")
        for number, text in ((published.EQUAL_THROUGHPUT, "8"), (published.EQUAL_LATENCY, "16")):
            ax.axvline(number, color=paper.PUBLISHED, linewidth=1, linestyle=":")
            ax.annotate(text, (number, 0.02), xycoords=("data", "axes fraction"), ha="right", fontsize=8, color=paper.PUBLISHED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks([1, 2, 4, 8, 16, 32, 96])
        for axis in (ax.xaxis, ax.yaxis):
            paper.plain_numbers(axis, steps=axis is ax.yaxis)
        ax.set_xlabel("drives like Envoy")
        ax.set_title(CURVES[query], fontsize=10, color=paper.INK)
    first = axes if len(curves) == 1 else axes[0]
    first.set_ylabel("seconds (simulated)")
    first.legend(fontsize=7.5, **paper.BOX, loc="upper right")
    caption = "Simulated: 1,536 slices of 1 MiB. Grey: the paper's 8 drives for the throughput of one client processor and 16 for its latency. The host's own lines are processor time alone."
    return paper.save(out, made, "equal", "How many slow drives equal one host (simulated)", caption)
