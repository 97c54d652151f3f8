"""The volcano plot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

_UP, _DOWN, _REST, _INK = "#c8553d", "#2f6690", "#c9ced6", "#2b2f36"


def volcano(
    frame: pd.DataFrame, title: str, subtitle: str, ax: matplotlib.axes.Axes | None, path: str | os.PathLike[str] | None, label: int, lfc: float, p: float
) -> matplotlib.axes.Axes:
    """Draws `frame` (columns `names`, `scores`, `logfoldchanges`, `pvals_adj`, best score first); see `RankResult.plot_volcano`."""
    if ax is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        if path is None:
            import matplotlib.pyplot as plt

            figure, ax = plt.subplots(figsize=(8, 6), dpi=150, layout="constrained")
        else:  # for a file alone no window system is asked
            figure = Figure(figsize=(8, 6), dpi=150, layout="constrained")
            FigureCanvasAgg(figure)
            ax = figure.add_subplot()
    change = frame["logfoldchanges"].to_numpy(float)
    adjusted = frame["pvals_adj"].to_numpy(float)
    names = frame["names"].to_numpy(object)
    seen = np.isfinite(change)
    change, adjusted, names = change[seen], adjusted[seen], names[seen]

    # A p-value too small for a double is drawn a little above the smallest that is not.
    positive = adjusted[adjusted > 0]
    smallest = positive.min() if len(positive) else 1.0
    height = -np.log10(np.where(adjusted > 0, adjusted, smallest))
    top = height.max(initial=1.0)
    height[adjusted == 0] = top * 1.04

    significant = adjusted < p
    up, down = significant & (change > lfc), significant & (change < -lfc)
    # A gene without any count on one side has a fold change of +-30 or so: it goes to the edge.
    limit = _reach(np.abs(change[significant] if significant.any() else change), lfc)
    outside = np.abs(change) > limit
    x = np.clip(change, -limit, limit)

    for chosen, colour, size, order in ((~(up | down), _REST, 8, 1), (down, _DOWN, 14, 2), (up, _UP, 14, 3)):
        for beyond, marker in ((False, "o"), (True, "D")):
            which = chosen & (outside == beyond)
            if which.any():
                ax.scatter(x[which], height[which], s=size, c=colour, marker=marker, alpha=0.75, linewidths=0, zorder=order, rasterized=len(x) > 5000)
    for at in (-lfc, lfc):
        ax.axvline(at, color="#9aa1ac", lw=0.8, ls=(0, (4, 3)), zorder=0)
    ax.axhline(-np.log10(p), color="#9aa1ac", lw=0.8, ls=(0, (4, 3)), zorder=0)
    ax.set_xlim(-limit * 1.12, limit * 1.12)
    ax.set_ylim(-0.02 * top, top * 1.14)
    ax.set_xlabel("log$_2$ fold change" + (f"  (diamonds: beyond {limit:.0f})" if outside.any() else ""), color=_INK)
    ax.set_ylabel("-log$_{10}$ adjusted p-value", color=_INK)
    ax.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=22)
    ax.text(0, 1.015, subtitle, transform=ax.transAxes, fontsize=8.5, color="#6b7280", va="bottom")
    ax.text(0.995, 0.985, f"{up.sum():,} higher", transform=ax.transAxes, ha="right", va="top", color=_UP, fontsize=9)
    ax.text(0.005, 0.985, f"{down.sum():,} lower", transform=ax.transAxes, ha="left", va="top", color=_DOWN, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors="#4b5563", labelsize=9)

    by_score = np.arange(len(x))
    _name_genes(ax, x, height, names, [*by_score[up][:label], *by_score[down][::-1][:label]])
    if path is not None:
        ax.figure.savefig(os.fspath(path))
    return ax


def _reach(change: np.ndarray, lfc: float) -> float:
    """How far the x axis goes: all of the bulk, not the artefacts."""
    if not len(change):
        return 2 * lfc
    usual = change[change < 15]
    return float(max(2 * lfc, np.ceil(usual.max(initial=0.0) * 2) / 2 if len(usual) else 2 * lfc))


def _name_genes(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, names: np.ndarray, chosen: list[int]) -> None:
    """Writes names beside their points, each at the first of a few places where it covers no other name; else not at all."""
    figure: Any = ax.figure
    # Only after the layout is settled do texts have their final size in pixels.
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    frame = ax.get_window_extent(renderer)
    pixels = ax.transData.transform(np.column_stack([x[chosen], y[chosen]])) if chosen else np.zeros((0, 2))
    taken: list[Any] = []
    for number, i in enumerate(chosen):
        right = x[i] >= 0
        places = [(5, 0), (-5, 0), (5, 9), (5, -9), (-5, 9), (-5, -9), (5, 18), (5, -18), (14, 27), (14, -27), (-14, 27), (24, 40), (24, -40)]
        for dx, dy in places if right else [(-a, b) for a, b in places]:
            far = abs(dy) > 10
            text = ax.annotate(
                str(names[i]),
                (x[i], y[i]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha="left" if dx > 0 else "right",
                va="center",
                fontsize=8,
                color=_INK,
                zorder=5,
                arrowprops={"arrowstyle": "-", "color": "#9aa1ac", "lw": 0.5, "shrinkA": 0, "shrinkB": 1} if far else None,
            )
            text.set_in_layout(False)
            box = text.get_window_extent(renderer).padded(1)
            inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 + 4 and box.y1 <= frame.y1 + 4 and box.y0 >= frame.y0
            hides = (pixels[:, 0] > box.x0) & (pixels[:, 0] < box.x1) & (pixels[:, 1] > box.y0) & (pixels[:, 1] < box.y1)
            hides[number] = False
            if inside and not hides.any() and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
