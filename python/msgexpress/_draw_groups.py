"""Draws genes by groups: the dot plot and the heat maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from . import _picture
from ._picture import INK, SMALL, Look, Plot, shown

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

    from skytether import Receipt

#: Inches of a row and a column of dots, and of a sign of a name.
_CELL, _SIGN = 0.3, 0.088
#: Dots grow with the share to this power: scanpy's.
_EXPONENT = 1.5


class DotPlot(Plot):
    """A dot plot. `data` has a row per group and gene: `group`, `gene`, `mean`, `fraction` (0 to 1) and `cells`, the
    size of the group. `dot_color_df` and `dot_size_df` are its frames of groups by genes, as scanpy's `DotPlot` has
    them."""

    dot_color_df: pd.DataFrame
    dot_size_df: pd.DataFrame


def dot_plot(
    colour: pd.DataFrame,
    size: pd.DataFrame,
    cells: np.ndarray,
    sets: Sequence[tuple[str, int, int]],
    *,
    title: str,
    colour_title: str,
    look: Look,
    receipt: Receipt | None,
) -> DotPlot:
    """Frames of groups (rows) by genes: means, and shares of cells."""
    import pandas as pd

    groups, genes = size.shape
    swap_axes = look.swap_axes
    ax = _picture.one_axes(look.ax, *_size(size, sets, swap_axes, 1.9, 1.7), look.path)
    mean, share = colour.to_numpy(float), size.to_numpy(float)
    largest = max(np.ceil(share.max(initial=0) * 10) / 10, 0.1)
    # The largest dot nearly fills its cell.
    biggest = (0.88 * 72 * _CELL) ** 2 / 1.15
    row, column = np.mgrid[0:groups, 0:genes]
    x, y = (row, column) if swap_axes else (column, row)

    def area(part: np.ndarray) -> np.ndarray:
        return biggest * (np.clip(part, 0, largest) / largest) ** _EXPONENT

    from matplotlib.colors import Normalize

    norm = Normalize(*_limits(mean, look))
    colours = {"c": mean.ravel(), "cmap": _picture.colour_map(look.cmap), "norm": norm}
    dots = ax.scatter(x.ravel(), y.ravel(), s=area(share).ravel(), **colours, linewidths=0.4, edgecolors="#4b556388", zorder=2)
    _ticks(ax, list(map(shown, size.index)), list(map(shown, size.columns)), swap_axes)
    ax.set_axisbelow(True)
    ax.grid(color="#eef0f3", lw=0.7)
    if sets:
        _brackets(ax, sets, swap_axes)
    _picture.plain(ax, frame=True)
    right = 0.2 + _beside(sets, swap_axes)
    legend = ax.inset_axes((right, -0.62, 1.45, 0.38), transform=_picture.from_corner(ax, 1, 1))
    steps = np.linspace(largest / 5, largest, 5)
    legend.scatter(np.arange(5), np.zeros(5), s=area(steps), c="#8a909b", linewidths=0, clip_on=False)
    legend.set(xlim=(-0.6, 4.6), ylim=(-0.6, 0.6), yticks=[], xticks=np.arange(5), xticklabels=[f"{100 * s:.0f}" for s in steps])
    legend.tick_params(labelsize=7.5, colors="#4b5563", length=0)
    legend.spines[:].set_visible(False)
    legend.set_facecolor("none")
    legend.set_title("Cells of the group with it, %", fontsize=8, color=SMALL, loc="left")
    _picture.colour_bar(dots, ax, (right, -1.24, 1.45, 0.1), colour_title, corner=(1, 1), horizontal=True)
    _headed(ax, title, bool(sets) and not swap_axes)
    long = pd.DataFrame(
        {
            "group": np.repeat(np.asarray(size.index, object), genes),
            "gene": np.tile(np.asarray(size.columns, object), groups),
            "mean": mean.ravel(),
            "fraction": share.ravel(),
            "cells": np.repeat(cells, genes),
        }
    )
    plot = DotPlot([ax], long, receipt)
    plot.dot_color_df, plot.dot_size_df = colour, size
    return plot


def heat_of_groups(
    means: pd.DataFrame,
    sets: Sequence[tuple[str, int, int]],
    *,
    title: str,
    colour_title: str,
    look: Look,
    receipt: Receipt | None,
) -> Plot:
    """A square per group (rows) and gene."""
    groups, genes = means.shape
    swap_axes = look.swap_axes
    across, down = (groups, genes) if swap_axes else (genes, groups)
    ax = _picture.one_axes(look.ax, *_size(means, sets, swap_axes, 0.9, 1.2), look.path)
    table = means.to_numpy(float)
    low, high = _limits(table, look)
    shade = {"cmap": _picture.colour_map(look.cmap), "vmin": low, "vmax": high}
    edges = {"edgecolors": "white", "linewidth": 0.6 if across < 120 else 0}
    squares = ax.pcolormesh(np.arange(across + 1) - 0.5, np.arange(down + 1) - 0.5, table.T if swap_axes else table, **shade, **edges)
    _ticks(ax, list(map(shown, means.index)), list(map(shown, means.columns)), swap_axes)
    if sets:
        _brackets(ax, sets, swap_axes)
    _picture.plain(ax, frame=True)
    _picture.colour_bar(squares, ax, (0.18 + _beside(sets, swap_axes), 0, 0.12, min(1.8, max(_CELL * down, 1.1))), colour_title)
    _headed(ax, title, bool(sets) and not swap_axes)
    return Plot([ax], means, receipt)


def heat_of_cells(
    table: pd.DataFrame,
    codes: np.ndarray,
    names: Sequence[str],
    group_colours: Sequence[str],
    sets: Sequence[tuple[str, int, int]],
    *,
    by: str,
    title: str,
    colour_title: str,
    look: Look,
) -> Plot:
    """A line per cell, and a bar that has its group. `table` has cells as rows, ordered by group; `codes` are the
    numbers of their groups."""
    import pandas as pd
    from matplotlib.colors import ListedColormap

    cells, genes = table.shape
    of_genes = max(0.16 * genes, 1.5)
    swap_axes = look.swap_axes
    ax = _picture.one_axes(look.ax, *((8.5, of_genes + 1.4) if swap_axes else (of_genes + 2.6, 6.5)), look.path)
    found = table.to_numpy(float)
    low, high = _limits(found, look)
    lines = ax.imshow(found.T if swap_axes else found, aspect="auto", interpolation="nearest", cmap=_picture.colour_map(look.cmap), vmin=low, vmax=high)
    at = np.arange(genes)
    size = 8 if genes <= 60 else 5
    starts = np.flatnonzero(np.r_[True, np.diff(codes) != 0]) if cells else np.zeros(0, int)
    middles = (starts + np.r_[starts[1:], cells]) / 2 - 0.5
    here = [shown(names[codes[s]]) for s in starts]
    if swap_axes:
        ax.set_yticks(at, list(map(shown, table.columns)), fontsize=size)
        ax.set_xticks([])
    else:
        ax.set_xticks(at, list(map(shown, table.columns)), rotation=90, fontsize=size)
        ax.set_yticks([])
    for start in starts[1:]:
        (ax.axvline if swap_axes else ax.axhline)(start - 0.5, color="white", lw=0.8)
    _picture.plain(ax, frame=True)
    ax.tick_params(labelsize=size)
    ax.spines[:].set_visible(False)
    width, height = _picture.inches(ax)
    bar = ax.inset_axes((0, 1 + 0.04 / height, 1, 0.13 / height) if swap_axes else (-0.17 / width, 0, 0.13 / width, 1))
    one_each = {"cmap": ListedColormap(list(group_colours)), "vmin": -0.5, "vmax": len(names) - 0.5}
    bar.imshow(codes[None, :] if swap_axes else codes[:, None], aspect="auto", interpolation="nearest", **one_each)
    bar.spines[:].set_visible(False)
    if swap_axes:
        bar.set_yticks([])
        bar.xaxis.tick_top()
        bar.set_xticks(_apart(middles, 0.17 * cells / width, cells), here, rotation=40, ha="left", va="bottom", rotation_mode="anchor", fontsize=8, color=INK)
    else:
        bar.set_xticks([])
        bar.set_yticks(_apart(middles, 0.145 * cells / height, cells), here, fontsize=8.5, color=INK)
    bar.tick_params(length=0)
    if sets:
        _brackets(ax, sets, swap_axes)
    _picture.colour_bar(lines, ax, (0.16 + _beside(sets, swap_axes), 0, 0.12, min(1.8, height)), colour_title)
    _headed(ax, title, swap_axes or bool(sets))
    data = pd.concat([pd.Series(np.asarray(names, object)[codes], index=table.index, name=by), table], axis=1)
    return Plot([ax], data)


def _beside(sets: Sequence[tuple[str, int, int]], swap_axes: bool) -> float:
    """Inches that brackets to the right of the axes take."""
    return 0.2 + _SIGN * max(len(label) for label, _, _ in sets) if sets and swap_axes else 0.0


def _size(frame: pd.DataFrame, sets: Sequence[tuple[str, int, int]], swap_axes: bool, right: float, least: float) -> tuple[float, float]:
    """Inches of a figure of groups (rows) and genes, with their names, brackets, and what is to the `right`; the axes
    are at least `least` inches high."""
    groups, genes = (max(map(len, map(str, names)), default=1) for names in (frame.index, frame.columns))
    label = max((len(label) for label, _, _ in sets), default=0)
    across, down = frame.shape if swap_axes else frame.shape[::-1]
    beside, below = (genes, groups) if swap_axes else (groups, genes)
    width = _CELL * across + _SIGN * beside + right + 0.4 + _beside(sets, swap_axes)
    height = max(_CELL * down, least) + _SIGN * below + 0.6 + (0 if swap_axes or not sets else 0.35 + 0.05 * label)
    return width, height


def _apart(places: np.ndarray, gap: float, end: float) -> np.ndarray:
    """Ascending places, moved as far apart as names need, and none beyond the end if there is room."""
    out = np.asarray(places, float).copy()
    for i in range(1, len(out)):
        out[i] = max(out[i], out[i - 1] + gap)
    last = max(end, 0.0)
    for i in range(len(out) - 1, -1, -1):
        out[i] = min(out[i], last)
        last = out[i] - gap
    return out


def _limits(table: np.ndarray, look: Look) -> tuple[float, float]:
    seen = table[np.isfinite(table)]
    low = (min(0.0, float(seen.min(initial=0))) if look.vmin is None else look.vmin) if len(seen) else 0.0
    high = float(seen.max(initial=low)) if look.vmax is None else look.vmax
    return low, high if high > low else low + 1


def _ticks(ax: matplotlib.axes.Axes, groups: list[str], genes: list[str], swap_axes: bool) -> None:
    across, down = (groups, genes) if swap_axes else (genes, groups)
    ax.set_xticks(np.arange(len(across)), across, rotation=90)
    ax.set_yticks(np.arange(len(down)), down)
    ax.set_xlim(-0.6, len(across) - 0.4)
    ax.set_ylim(len(down) - 0.4, -0.6)


def _brackets(ax: matplotlib.axes.Axes, sets: Sequence[tuple[str, int, int]], swap_axes: bool) -> None:
    """A line over the genes of each set, with its name."""
    from matplotlib.transforms import blended_transform_factory, offset_copy

    figure: Any = ax.figure.figure
    if swap_axes:
        base = blended_transform_factory(ax.transAxes, ax.transData)
        line, text = offset_copy(base, figure, 4, 0, "points"), offset_copy(base, figure, 8, 0, "points")
    else:
        base = blended_transform_factory(ax.transData, ax.transAxes)
        line, text = offset_copy(base, figure, 0, 4, "points"), offset_copy(base, figure, 0, 8, "points")
    upright = any(len(label) * 0.088 > _CELL * (stop - start) for label, start, stop in sets)
    for label, start, stop in sets:
        ends, middle = [start - 0.35, stop - 0.65], (start + stop - 1) / 2
        if swap_axes:
            ax.plot([1, 1], ends, color=INK, lw=1.1, transform=line, clip_on=False)
            ax.text(1, middle, shown(label), fontsize=8.5, color=INK, transform=text, va="center", ha="left")
        else:
            ax.plot(ends, [1, 1], color=INK, lw=1.1, transform=line, clip_on=False)
            ax.text(
                middle,
                1,
                shown(label),
                fontsize=8.5,
                color=INK,
                transform=text,
                va="bottom",
                ha="left" if upright else "center",
                rotation=40 if upright else 0,
                rotation_mode="anchor",
            )


def _headed(ax: matplotlib.axes.Axes, title: str, above: bool) -> None:
    """The title of the figure, or of the axes where these are one of several."""
    figure: Any = ax.figure.figure
    if title and above and len(figure.axes) == 1:
        figure.suptitle(shown(title), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    else:
        _picture.titled(ax, title)
