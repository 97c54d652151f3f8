"""Writes the tables, plots and page of `make figures`."""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Colours by what is drawn, readable by who sees no red and green: drive, client, both, published, and two more.
DRIVE, CLIENT, BOTH, PUBLISHED, OTHER, LIGHT = "#5b3a8c", "#d9822b", "#2f8f6b", "#8a8f98", "#2f6690", "#c9ced6"
INK = "#2b2f36"

#: Legends over lines.
BOX = {"frameon": True, "framealpha": 0.92, "edgecolor": "none"}


@dataclass
class Table:
    """A table of figures: `name` is its file's name, `rows` have a value per column. Numbers are written to CSV as they
    are, and rounded on the page."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    #: Whether it comes from the simulator's clock.
    simulated: bool = False


@dataclass
class Result:
    """What one part has made: text in plain words, tables, and plots by the names of their files."""

    name: str
    title: str
    #: What was measured, and how.
    how: str
    #: What agrees with the paper, and what does not.
    says: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)


def shown(value: Any) -> str:
    """A value of a table for people: three digits that count."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or float(value).is_integer() and abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_table(out: Path, table: Table) -> Path:
    path = out / f"{table.name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows([["" if value is None else value for value in row] for row in table.rows])
    return path


def figure(width: float = 8.0, height: float = 5.0, columns: int = 1, sharey: bool = False) -> tuple[Any, Any]:
    """A figure and its axes, without a window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(1, columns, sharey=sharey)
    for ax in [axes] if columns == 1 else axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#e6e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
    return made, axes


#: The columns of [`spread`].
SPREAD = ["slices", "mean", "deviation", "least", "lower quartile", "median", "upper quartile", "most"]


def spread(warm: list[float], cold: list[list[float]]) -> tuple[list[Any], float]:
    """The figures of some slices: a value per column of `SPREAD`, the medians of each process's first slices, and the
    first of these in terms of the median; and the median."""
    values = sorted(warm)
    quarter = statistics.quantiles(values, n=4)
    early = [statistics.median(times) for times in zip(*cold)]
    figures = [len(values), statistics.fmean(values), statistics.pstdev(values), values[0], *quarter, values[-1], *early, early[0] / quarter[1]]
    return figures, quarter[1]


def spread_columns(first: int) -> list[str]:
    """The columns of [`spread`] for this number of first slices."""
    return [*SPREAD, *[f"slice {n + 1}, median" for n in range(first)], "slice 1 / median"]


def first_and_others(
    names: list[str], labels: list[str], colours: tuple[str, ...], cold: list[list[list[float]]], warm: list[list[float]], time: str, order: str,
) -> Any:
    """A figure of slices: on the left the first ones of each process in their order, on the right boxes of all others.
    `names` are for the legend, `labels` for the boxes; `time` says what is measured, `order` the order of the first."""
    made, axes = figure(9.5, 4.8, 2)
    left, right = axes
    first = len(cold[0][0])
    for processes, name, colour in zip(cold, names, colours, strict=True):
        for at, times in enumerate(processes):
            left.plot(range(1, first + 1), times, color=colour, alpha=0.55, linewidth=1, marker="o", markersize=3.5, label=name if at == 0 else None)
    left.set_xticks(range(1, first + 1))
    left.set_xlabel(f"slice, in the order in which they are {order}")
    left.set_ylabel(time)
    left.set_title(f"the first {first} slices of each process", fontsize=10, color=INK)
    left.legend(fontsize=8, frameon=False)
    drawn = right.boxplot(warm, tick_labels=labels, whis=(0, 100), patch_artist=True, widths=0.5, showmeans=True, meanline=True)
    for box, colour in zip(drawn["boxes"], colours, strict=True):
        box.set(facecolor=colour, alpha=0.35, edgecolor=colour)
    for line in (*drawn["medians"], *drawn["means"], *drawn["whiskers"], *drawn["caps"]):
        line.set(color=INK, linewidth=1)
    right.set_title("all others", fontsize=10, color=INK)
    for ax in axes:
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
    return made


def save(out: Path, made: Any, name: str, title: str, caption: str) -> str:
    """Writes a figure as PNG and SVG, its title above and below it in small print what was measured how."""
    import textwrap

    made.suptitle(title, fontsize=12.5, color=INK, x=0.02, ha="left")
    made.supxlabel(textwrap.fill(caption, int(15.5 * made.get_figwidth())), fontsize=7.5, color="#5a606b", x=0.02, ha="left")
    for ending in ("png", "svg"):
        made.savefig(out / f"{name}.{ending}")
    return f"{name}.png"


def plain_numbers(axis: Any, steps: bool = True) -> None:
    """Labels of a logarithmic axis as plain numbers; `steps`: at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if steps:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def page(out: Path, results: list[Result], machine: str) -> Path:
    """`README.md` with every part, its plots and its tables."""
    lines = [
        "# The papers' figures, redone",
        "",
        f"Made by `make figures`: {machine}",
        "",
        "What says *simulated* ran on the simulator's clock, with the decisions that drives and hosts make and costs that were put in. All else ran for real, through the Python package.",
        "Values of the papers are those that their text gives; what is only drawn there was not guessed from the drawing.",
    ]
    for result in results:
        lines += ["", f"## {result.title}", "", result.how]
        lines += ["", *[f"- {line}" for line in result.says]]
        for plot in result.plots:
            lines += ["", f"![{result.title}]({plot})"]
        for table in result.tables:
            lines += ["", f"**{table.title}**" + (" (simulated)" if table.simulated else "") + f" ([CSV]({table.name}.csv))", ""]
            lines += ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
            lines += ["| " + " | ".join(shown(value) for value in row) + " |" for row in table.rows]
    path = out / "README.md"
    path.write_text("\n".join(lines) + "\n")
    return path
