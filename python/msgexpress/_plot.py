"""The volcano plot."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from . import _labels
from ._picture import shown

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

_UP, _DOWN, _REST, _INK = "#c8553d", "#2f6690", "#c9ced6", "#2b2f36"
#: -log10 of about the smallest p-value that a double holds with all its digits.
_SMALLEST = 308


def volcano(
    frame: pd.DataFrame, title: str, subtitle: str, ax: matplotlib.axes.Axes | None, path: str | os.PathLike[str] | None, label: int, lfc: float, p: float
) -> matplotlib.axes.Axes:
    """Draws `frame` (columns `names`, `scores`, `logfoldchanges`, `pvals_adj`, best score first); see
    `RankResult.plot_volcano`. The axes have the genes that are drawn as `data`."""
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
    # A fold change may be infinite, and is beyond the edge then; what was not tested is nowhere.
    seen = ~(np.isnan(change) | np.isnan(adjusted))
    change, adjusted, names = change[seen], adjusted[seen], names[seen]

    significant = adjusted < p
    up, down = significant & (change > lfc), significant & (change < -lfc)
    # A gene without any count on one side has a fold change of +-30 or so: it goes to the edge.
    limit = _reach(np.abs(change[significant] if significant.any() else change), lfc)
    outside = np.abs(change) > limit
    x = np.clip(change, -limit, limit)

    # Of a p-value too small for a double no more is known than that: it is at the upper edge, with a marker of its own.
    # So are artefacts that would press all others together. A gene that no cell of a small group has is one: it has no
    # variance there, and so the smallest p-values of all.
    vanished = adjusted == 0
    height = -np.log10(np.where(vanished, 1.0, adjusted))
    edge = _upper_end(height[~vanished], outside[~vanished], -np.log10(p))
    beyond = vanished | (height > edge)
    top, least = max(height[height <= edge].max(initial=0.0), -1.5 * np.log10(p), 0.1), _SMALLEST
    if beyond.any():
        least = edge if np.isfinite(edge) else _SMALLEST
        top = max(top, least) * 1.04
        height[beyond] = top

    for chosen, colour, usual, order in ((~(up | down), _REST, 8, 1), (down, _DOWN, 14, 2), (up, _UP, 14, 3)):
        for which, marker, size in ((~beyond & ~outside, "o", usual), (~beyond & outside, "D", usual), (beyond, "^", 2 * usual)):
            which = chosen & which
            if which.any():
                ax.scatter(x[which], height[which], s=size, c=colour, marker=marker, alpha=0.75, linewidths=0, zorder=order, rasterized=len(x) > 5000)
    for at in (-lfc, lfc):
        ax.axvline(at, color="#9aa1ac", lw=0.8, ls=(0, (4, 3)), zorder=0)
    ax.axhline(-np.log10(p), color="#9aa1ac", lw=0.8, ls=(0, (4, 3)), zorder=0)
    ax.set_xlim(-limit * 1.12, limit * 1.12)
    ax.set_ylim(-0.02 * top, top * 1.14)
    ax.set_xlabel("log$_2$ fold change" + (f"  (diamonds: beyond {limit:g})" if (outside & ~beyond).any() else ""), color=_INK)
    ax.set_ylabel("-log$_{10}$ adjusted p-value" + (f"  (triangles: p below 1e-{least:g})" if beyond.any() else ""), color=_INK)
    ax.set_title(shown(title), loc="left", fontsize=13, fontweight="bold", color=_INK, pad=22)
    ax.text(0, 1.015, subtitle, transform=ax.transAxes, fontsize=8.5, color="#6b7280", va="bottom")
    higher = ax.text(0.995, 0.985, f"{up.sum():,} higher", transform=ax.transAxes, ha="right", va="top", color=_UP, fontsize=9)
    lower = ax.text(0.005, 0.985, f"{down.sum():,} lower", transform=ax.transAxes, ha="left", va="top", color=_DOWN, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors="#4b5563", labelsize=9)

    by_score = np.arange(len(x))
    # In turn, so that neither side takes all the room.
    best, worst = by_score[up][:label], by_score[down][::-1][:label]
    _labels.name_points(ax, x, height, names, [i for pair in zip_longest(best, worst) for i in pair if i is not None], _INK, [higher, lower])
    # matplotlib's axes have no attribute of that name. A `Plot` would have one, but users draw on what this gives.
    sides = np.where(up, "higher", np.where(down, "lower", ""))
    setattr(ax, "data", frame[seen].assign(side=sides).reset_index(drop=True))
    if path is not None:
        ax.figure.savefig(os.fspath(path))
    return ax


def _reach(change: np.ndarray, lfc: float) -> float:
    """How far the x axis goes: all of the bulk, not the artefacts."""
    usual = change[change < 15]
    end = _usual_end(usual)
    reached = usual.max(initial=0.0) if not np.isfinite(end) else end
    return float(max(2 * lfc, np.ceil(reached * 2) / 2, 0.5))


#: Up to three points may be artefacts, where they are more than twice as far as the next one.
_FEW, _FARTHER = 3, 2.0
#: With fewer points there is no bulk to compare with.
_BULK = 20


def _usual_end(values: np.ndarray) -> float:
    """Where an axis ends for all of `values` (not negative) but a few that are much farther; infinity where there are
    none such, so that the axis has them all."""
    ordered = np.sort(values)[::-1]
    if len(ordered) < _BULK:
        return np.inf
    for few in range(1, _FEW + 1):
        if ordered[few - 1] > _FARTHER * ordered[few] > 0:
            return _rounded(ordered[few])
    return np.inf


def _upper_end(height: np.ndarray, outside: np.ndarray, threshold: float) -> float:
    """Where the y axis ends; infinity where it has all of `height`. What is `outside` the x axis does not rule it.
    Points above `threshold` are no artefacts where no others are: a few significant genes are the finding."""
    inside = height[~outside]
    if len(inside) < _BULK or not inside.max() > threshold:
        return np.inf
    end = _usual_end(inside)
    usual = inside.max() if not np.isfinite(end) else end
    return _rounded(usual) if usual > threshold and height.max() > _FARTHER * usual else np.inf


def _rounded(end: float) -> float:
    """`end` or a little more, of two digits."""
    step = 10.0 ** np.floor(np.log10(end)) / 10
    return float(np.ceil(end / step - 1e-9) * step)
