"""What all plots share: the figure, its colours, and the object that a plot is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import InvalidError, Receipt

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas as pd

#: In place of a path: a figure that pyplot does not know, and that is not written either.
APART: Any = type("Apart", (), {"__repr__": lambda self: "<apart>"})()
#: Ink, small print, and what has no value.
INK, SMALL, NONE = "#2b2f36", "#6b7280", "#d5d9e0"


@dataclass(frozen=True)
class Look:
    """How a plot of values by colour looks, and where it is drawn."""

    #: Genes go down, groups or cells across.
    swap_axes: bool
    #: A colour map's name, or the map; None for ours.
    cmap: Any
    #: The values of the first and the last colour; None for the least and the largest of the data.
    vmin: float | None
    vmax: float | None
    #: Axes to draw on; None for a figure of its own.
    ax: matplotlib.axes.Axes | None
    #: The file that the figure is written to; None for none.
    path: str | os.PathLike[str] | None


class Plot:
    """A plot with its numbers: `data` is what it shows, as a data frame."""

    def __init__(self, axes: Sequence[matplotlib.axes.Axes], data: pd.DataFrame, receipt: Receipt | None = None) -> None:
        #: The axes with data, without those of legends and colour bars.
        self.axes: list[matplotlib.axes.Axes] = list(axes)
        #: The numbers that are drawn.
        self.data = data
        #: What the drives did for it, where it was one query; else None.
        self.receipt = receipt

    @property
    def ax(self) -> matplotlib.axes.Axes:
        """The first of `axes`."""
        return self.axes[0]

    @property
    def figure(self) -> matplotlib.figure.Figure:
        """The whole figure."""
        return self.ax.figure.figure  # type: ignore[return-value]

    def save(self, path: str | os.PathLike[str], dpi: float | None = None) -> None:
        """Writes the figure; the ending chooses the format (.png, .svg, .pdf, ...).

        Raises
        ------
        InvalidError
            matplotlib has no such format, or the file can't be written.
        """
        save(self.figure, path, dpi)

    def __repr__(self) -> str:
        rows, columns = self.data.shape
        return f"<msgexpress.{type(self).__name__} of {rows:,} x {columns:,} values: .data has them, .save(path) writes it>"


def shown(text: object) -> str:
    """A name as matplotlib draws it letter by letter: ``$`` begins no formula, and a leading ``_`` hides no entry of a
    legend."""
    name = str(text).replace("$", r"\$")
    return "\u200b" + name if name.startswith("_") else name


def save(figure: matplotlib.figure.Figure, path: str | os.PathLike[str], dpi: float | None = None) -> None:
    """Writes a figure, with everything that is around its axes."""
    name = os.fspath(path)
    known = figure.canvas.get_supported_filetypes()
    ending = os.path.splitext(name)[1].removeprefix(".").lower()
    if ending not in known:
        raise InvalidError(f"{name}: pictures end in one of {', '.join('.' + e for e in sorted(known))}")
    try:
        figure.savefig(name, dpi=dpi or "figure", bbox_inches="tight", pad_inches=0.12)
    except OSError as e:
        raise InvalidError(f"cannot write {name}: {e.strerror or e}") from e


def new_figure(width: float, height: float, path: str | os.PathLike[str] | None) -> matplotlib.figure.Figure:
    """An empty figure of a size in inches. pyplot knows it, unless it is for a file alone: then no window system is
    asked."""
    if path is None:
        import matplotlib.pyplot as plt

        return plt.figure(figsize=(width, height), dpi=150, layout="constrained")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def one_axes(ax: matplotlib.axes.Axes | None, width: float, height: float, path: str | os.PathLike[str] | None) -> matplotlib.axes.Axes:
    """`ax`, or the axes of a new figure."""
    return new_figure(width, height, path).add_subplot() if ax is None else ax


def plain(ax: matplotlib.axes.Axes, *, frame: bool = False) -> None:
    """The look of axes: no line at the top and the right, quiet ticks."""
    if not frame:
        ax.spines[["top", "right"]].set_visible(False)
    for spine in ax.spines.values():
        spine.set_color("#9aa1ac")
        spine.set_linewidth(0.8)
    ax.tick_params(colors="#4b5563", labelsize=9, width=0.8, length=3)


def titled(ax: matplotlib.axes.Axes, title: str, size: float = 11) -> None:
    """A title to the left."""
    if title:
        ax.set_title(shown(title), loc="left", fontsize=size, fontweight="bold", color=INK)


def inches(ax: matplotlib.axes.Axes) -> tuple[float, float]:
    """Width and height of axes, about, before the layout is settled."""
    figure: Any = ax.figure.figure
    at = ax.get_position()
    width, height = figure.get_size_inches()
    return max(at.width * width, 0.5), max(at.height * height, 0.5)


def colours(names: Sequence[str], own: Any = None) -> list[str]:
    """A colour per group: the data set's own, where it has one for each, else of a palette."""
    import matplotlib
    from matplotlib.colors import is_color_like, to_hex

    if own is not None and len(own) >= len(names) and all(is_color_like(str(c)) for c in own):
        return [to_hex(str(c)) for c in own[: len(names)]]
    if len(names) <= 20:
        twenty = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
        return [to_hex(twenty[(2 * i) % 20 + (i >= 10)]) for i in range(len(names))]
    # Around the circle of hues, neighbours of different lightness.
    around = matplotlib.colormaps["hsv"](np.linspace(0, 0.96, len(names)))[:, :3]
    return [to_hex(c * (0.62, 0.92, 0.78)[i % 3]) for i, c in enumerate(around)]


def sequential() -> Any:
    """Light grey to deep red: nothing is pale, much is dark."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("msgexpress", ["#eceef2", "#fbd5b5", "#f49b6c", "#d9543f", "#a01c3a", "#5b0a2e"])


def colour_map(name: Any) -> Any:
    """A colour map by its name in matplotlib, or the one of these plots.

    Raises
    ------
    InvalidError
        There is none of that name.
    """
    import matplotlib

    if name is None:
        return sequential()
    try:
        return matplotlib.colormaps.get_cmap(name)
    except (ValueError, TypeError) as e:
        raise InvalidError(f"there is no colour map {name!r}: use one of matplotlib's, such as 'viridis' or 'Reds'") from e


def png(figure: matplotlib.figure.Figure, dpi: float = 144, *, tight: bool = False, settled: bool = False) -> bytes:
    """The figure as a PNG. `tight`: without what is empty around it. `settled`: it was drawn once, and its layout
    stays."""
    import io

    out = io.BytesIO()
    if settled:
        figure.set_layout_engine("none")
    figure.savefig(out, format="png", dpi=dpi, **({"bbox_inches": "tight", "pad_inches": 0.1} if tight else {}))
    return out.getvalue()


def from_corner(ax: matplotlib.axes.Axes, x: float, y: float) -> Any:
    """Inches from a point of axes, given as shares of their width and height. What is placed so keeps its size,
    whatever the layout makes of the axes."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure.figure
    return figure.dpi_scale_trans + ScaledTranslation(x, y, ax.transAxes)


def colour_bar(
    mappable: Any, ax: matplotlib.axes.Axes, at: tuple[float, float, float, float], label: str, *, corner: tuple[float, float] = (1, 0), horizontal: bool = False
) -> None:
    """A small colour bar at a place (left, bottom, width, height) in inches from a corner of `ax`."""
    figure: Any = ax.figure.figure
    place = ax.inset_axes(at, transform=from_corner(ax, *corner))
    bar = figure.colorbar(mappable, cax=place, orientation="horizontal" if horizontal else "vertical")
    bar.outline.set_visible(False)
    place.tick_params(labelsize=7.5, colors="#4b5563", length=2, width=0.6)
    if horizontal:
        place.set_title(shown(label), fontsize=8, color=SMALL, loc="left")
    else:
        place.set_ylabel(shown(label), fontsize=8, color=SMALL)
