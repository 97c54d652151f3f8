"""Draws cells: violins and embeddings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from . import _picture
from ._picture import INK, NONE, SMALL, Plot, shown

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

#: Points of a violin's outline, and how many cells are drawn as points at most.
_OUTLINE, _POINTS = 128, 300
#: Bins that values are sorted into before they are smoothed, so that a million cells cost what a thousand do.
_BINS = 1024
#: Labels on the groups of an embedding, up to this many; with more there is a legend alone.
_LABELS = 40


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Gaussian kernel density of values with Scott's bandwidth, as ``scipy.stats.gaussian_kde``: places from the
    smallest to the largest value, and densities there. It is computed from a histogram, so that it takes bounded time
    and memory. Of values that are all the same there is no density: one place."""
    low, high = float(values.min()), float(values.max())
    width = float(values.std(ddof=1)) * len(values) ** -0.2 if len(values) > 1 else 0.0
    if not width > 0 or not high > low:
        return np.array([low]), np.ones(1)
    count, edges = np.histogram(values, _BINS, (low, high))
    middle = (edges[:-1] + edges[1:]) / 2
    places = np.linspace(low, high, _OUTLINE)
    kernel = np.exp(-0.5 * ((places[:, None] - middle[None, :]) / width) ** 2)
    return places, kernel @ count / (len(values) * width * np.sqrt(2 * np.pi))


def violins(ax: matplotlib.axes.Axes, sets: Sequence[np.ndarray], fill: Sequence[str], *, points: bool) -> None:
    """A violin per set of values, all of the same width, with median and quartiles."""
    for at, (values, colour) in enumerate(zip(sets, fill)):
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        places, dense = density(values)
        half = 0.42 * dense / dense.max()
        if len(places) == 1:
            ax.plot([at - 0.42, at + 0.42], [places[0]] * 2, color=colour, lw=1.6, solid_capstyle="butt", zorder=2)
        else:
            ax.fill_betweenx(places, at - half, at + half, facecolor=colour, edgecolor=INK, linewidth=0.5, alpha=0.85, zorder=2)
        if points:
            some = values[np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int)]
            # Next to the middle, never at the same place twice: the golden ratio spreads them evenly.
            aside = (
                ((np.arange(len(some)) * 0.6180339887) % 1 - 0.5) * 2 * np.interp(some, places, half) * 0.9
                if len(places) > 1
                else ((np.arange(len(some)) * 0.6180339887) % 1 - 0.5) * 0.7
            )
            ax.scatter(at + aside, some, s=2.2, c="#1f2328", alpha=0.35, linewidths=0, zorder=3, rasterized=True)
        lower, median, upper = np.percentile(values, (25, 50, 75))
        ax.plot([at, at], [lower, upper], color=INK, lw=3, solid_capstyle="butt", zorder=4)
        ax.scatter([at], [median], s=13, c="white", edgecolors=INK, linewidths=0.8, zorder=5)


def violin_plot(
    table: pd.DataFrame,
    keys: Sequence[str],
    codes: np.ndarray,
    names: Sequence[str],
    fill: Sequence[str],
    *,
    by: str | None,
    title: str,
    labels: Sequence[str],
    points: bool,
    log: bool,
    ax: matplotlib.axes.Axes | None,
    path: str | os.PathLike[str] | None,
) -> Plot:
    """A panel per key, one above the other where cells are grouped, next to each other where they are not."""
    sets = [[table[key].to_numpy(float)[codes == g] for g in range(len(names))] for key in keys]
    if ax is not None:
        panels = [ax]
    else:
        grouped = by is not None
        longest = max(map(len, names), default=1)
        size = (max(0.5 * len(names) + 1.2, 3.2), 1.55 * len(keys) + 0.35 + 0.055 * longest) if grouped else (2.1 * len(keys) + 0.4, 3.2)
        figure = _picture.new_figure(*size, path)
        made = figure.subplots(len(keys), 1, sharex=True, squeeze=False) if grouped else figure.subplots(1, len(keys), squeeze=False)
        panels = list(made.ravel())
    for panel, key, label, values in zip(panels, keys, labels, sets):
        violins(panel, values, fill, points=points)
        if log:
            panel.set_yscale("symlog")
        _picture.plain(panel)
        panel.set_xlim(-0.6, len(names) - 0.4)
        panel.grid(axis="y", color="#eef0f3", lw=0.7)
        panel.set_axisbelow(True)
        if by is None:
            panel.set_xticks([])
            _picture.titled(panel, str(key), 10)
            panel.set_ylabel(label, fontsize=8, color=SMALL)
        else:
            panel.set_ylabel(shown(key), fontsize=10, color=INK, fontweight="bold")
    if by is not None:
        panels[-1].set_xticks(
            np.arange(len(names)),
            list(map(shown, names)),
            rotation=45 if max(map(len, names), default=0) > 4 else 0,
            ha="right" if max(map(len, names), default=0) > 4 else "center",
            rotation_mode="anchor",
            fontsize=9,
        )
        said = list(dict.fromkeys(label for label in labels if label))
        panels[0].set_title(shown(title) + (f"   {'; '.join(said)}" if said else ""), loc="left", fontsize=9, color=SMALL)
    return Plot(panels, table)


def embedding_plot(
    frame: pd.DataFrame,
    panels: Sequence[dict[str, Any]],
    *,
    axis_names: tuple[str, str],
    size: float | None,
    legend: str,
    columns: int,
    ax: matplotlib.axes.Axes | None,
    path: str | os.PathLike[str] | None,
) -> Plot:
    """A panel per colour. `frame` has the coordinates in its first two columns; a panel is a dict with `title`, and
    either `codes`, `names` and `colours`, or `values`, `label`, `cmap`, `vmin` and `vmax`, or nothing of these."""
    x, y = frame.iloc[:, 0].to_numpy(float), frame.iloc[:, 1].to_numpy(float)
    if ax is not None:
        axes = [ax]
    else:
        across = min(len(panels), columns)
        down = -(-len(panels) // across)
        figure = _picture.new_figure(5.6 * across if len(panels) > 1 else 6.6, 4.7 * down, path)
        axes = list(figure.subplots(down, across, squeeze=False).ravel())
    for empty in axes[len(panels) :]:
        empty.set_visible(False)
    labelled: list[tuple[Any, dict[str, Any]]] = []
    area = size if size is not None else float(np.clip(90_000 / max(len(frame), 1), 0.4, 26))
    for at, panel in zip(axes, panels):
        if "codes" in panel:
            _groups_of_cells(at, x, y, area, panel, legend)
            if legend == "on data" or (legend == "both" and len(panel["names"]) <= _LABELS):
                labelled.append((at, panel))
        else:
            _values_of_cells(at, x, y, area, panel)
        at.set_xticks([])
        at.set_yticks([])
        at.set_xlabel(shown(axis_names[0]), fontsize=9, color=SMALL, loc="left")
        at.set_ylabel(shown(axis_names[1]), fontsize=9, color=SMALL, loc="bottom")
        _picture.plain(at)
        at.margins(0.04)
        _picture.titled(at, panel["title"])
    # Where names are depends on the layout, which legends and titles change.
    for at, panel in labelled:
        _labels_on_groups(at, x, y, panel["codes"], panel["names"])
    return Plot(axes[: len(panels)], frame)


def _groups_of_cells(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, area: float, panel: dict[str, Any], legend: str) -> None:
    codes, names = panel["codes"], panel["names"]
    missing = codes < 0
    ax.scatter(x[missing], y[missing], s=area, c=NONE, linewidths=0, rasterized=True, zorder=1)
    # Mixed, so that a group does not cover the others because it comes last; the golden ratio mixes in the same way
    # each time.
    order = np.argsort((np.arange(len(x)) * 0.6180339887) % 1, kind="stable")
    order = order[~missing[order]]
    shades = np.asarray(panel["colours"], object)
    ax.scatter(x[order], y[order], s=area, c=list(shades[codes[order]]), linewidths=0, alpha=0.9, rasterized=True, zorder=2)
    if legend in ("right margin", "both"):
        handles = [ax.scatter([], [], s=34, c=[colour], linewidths=0, label=shown(name)) for name, colour in zip(names, panel["colours"])]
        if missing.any():
            handles.append(ax.scatter([], [], s=34, c=NONE, linewidths=0, label="(no value)"))
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.01),
            frameon=False,
            fontsize=8.5 if len(names) <= 20 else 6.5,
            labelcolor=INK,
            ncols=-(-len(handles) // 20),
            handletextpad=0.3,
            columnspacing=0.9,
            borderpad=0.1,
        )


def _labels_on_groups(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, codes: np.ndarray, names: Sequence[str]) -> None:
    """Each group's name at the middle of its cells, moved up or down where two names would cover each other."""
    from matplotlib.patheffects import withStroke

    figure: Any = ax.figure.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    boxes: list[Any] = []
    finite = np.isfinite(x) & np.isfinite(y)
    for g, name in enumerate(names):
        cells = (codes == g) & finite
        if not cells.any():
            continue
        at = np.median(x[cells]), np.median(y[cells])
        text = ax.annotate(shown(name), at, xytext=(0, 0), textcoords="offset points", fontsize=8.5, fontweight="bold", color=INK, ha="center", va="center", zorder=6)
        text.set_path_effects([withStroke(linewidth=2.6, foreground="white", alpha=0.9)])
        text.set_in_layout(False)
        for up in (0, 10, -10, 20, -20, 30, -30, 40, -40):
            text.xyann = (0, up)
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in boxes):
                break
        boxes.append(box)


def _values_of_cells(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, area: float, panel: dict[str, Any]) -> None:
    values = panel.get("values")
    if values is None:
        ax.scatter(x, y, s=area, c="#8a909b", linewidths=0, rasterized=True)
        return
    values = np.asarray(values, float)
    known = np.isfinite(values)
    ax.scatter(x[~known], y[~known], s=area, c=NONE, linewidths=0, rasterized=True, zorder=1)
    # The highest on top, as in scanpy.
    order = np.argsort(values[known], kind="stable")
    dots = ax.scatter(
        x[known][order],
        y[known][order],
        s=area,
        c=values[known][order],
        cmap=_picture.colour_map(panel["cmap"]),
        vmin=panel["vmin"],
        vmax=panel["vmax"],
        linewidths=0,
        rasterized=True,
        zorder=2,
    )
    _picture.colour_bar(dots, ax, (0.1, 0, 0.12, min(1.8, 0.6 * _picture.inches(ax)[1])), panel["label"])
