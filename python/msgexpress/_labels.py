"""Names of points in a plot: each near its point and clear of everything else, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Sequence

import numpy as np

from ._picture import shown

if TYPE_CHECKING:
    import matplotlib.axes

#: Points (1/72 inch) between a point's middle and its name, and around other points and names.
_GAP, _CLEAR = 5.0, 2.0
#: How far away a name may be, at the end of a line, in points.
_FARTHEST = 36.0
_LINE = "#9aa1ac"

Box = tuple[float, float, float, float]


def name_points(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, names: Sequence[Any], chosen: Sequence[int], colour: str, avoid: Sequence[Any] = ()) -> list[int]:
    """Writes the names of the points `chosen` (the most important first) where they cover no point, no name
    and no artist of `avoid`.

    A name that does not fit next to its point is a little away, at the end of a line. A name that fits nowhere near is
    left out. Gives the points that got their names.
    """
    figure: Any = ax.figure
    # Only after the layout is settled do texts have their final size in pixels.
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    scale = figure.dpi / 72
    frame = ax.get_window_extent(renderer)
    pixels = ax.transData.transform(np.column_stack([x, y])) if len(x) else np.zeros((0, 2))
    points = _Points(pixels, (frame.x0, frame.y0, frame.x1, frame.y1))
    boxes: list[Box] = [artist.get_window_extent(renderer).extents for artist in avoid]
    lines: list[np.ndarray] = []
    named = []
    for i in chosen:
        text = ax.annotate(shown(names[i]), (x[i], y[i]), xytext=(0, 0), textcoords="offset points", ha="left", va="bottom", fontsize=8, color=colour, zorder=5)
        text.set_in_layout(False)
        extent = text.get_window_extent(renderer)
        for left, bottom, far in _places(extent.width, extent.height, x[i] >= 0, scale):
            at = pixels[i] + (left, bottom)
            box = (at[0], at[1], at[0] + extent.width, at[1] + extent.height)
            if not (frame.x0 <= box[0] and box[2] <= frame.x1 + 4 and frame.y0 <= box[1] and box[3] <= frame.y1):
                continue
            line = _line(pixels[i], box)
            if points.any_in(_padded(box, _CLEAR * scale)) or any(_overlap(box, other) for other in boxes) or any(_crosses(other, box) for other in lines):
                continue
            # A line over other points might be of any of them.
            if far and (any(_crosses(line, other) for other in boxes) or points.any_along(line, _CLEAR * scale)):
                continue
            text.xyann = (left / scale, bottom / scale)
            if far:
                end = (line[-1] - pixels[i]) / scale
                ax.annotate(
                    "", (x[i], y[i]), xytext=tuple(end), textcoords="offset points", zorder=4, arrowprops={"arrowstyle": "-", "color": _LINE, "lw": 0.5, "shrinkA": 0, "shrinkB": 2}
                ).set_in_layout(False)
                lines.append(line)
            boxes.append(_padded(box, 1.5 * scale))
            named.append(i)
            break
        else:
            text.remove()
    return named


class _Points:
    """Points in pixels, counted so that a box can be asked for its number of points at once."""

    def __init__(self, pixels: np.ndarray, frame: Box) -> None:
        self.x0, self.y0 = int(frame[0]), int(frame[1])
        self.shape = max(1, int(frame[2]) - self.x0 + 1), max(1, int(frame[3]) - self.y0 + 1)
        columns, rows = self._clipped(pixels[:, 0], pixels[:, 1])
        counts = np.zeros(self.shape, np.int32)
        np.add.at(counts, (np.minimum(columns, self.shape[0] - 1), np.minimum(rows, self.shape[1] - 1)), 1)
        self.below = np.zeros((self.shape[0] + 1, self.shape[1] + 1), np.int32)
        self.below[1:, 1:] = counts.cumsum(0).cumsum(1)

    def _clipped(self, x: Any, y: Any) -> tuple[Any, Any]:
        return np.clip(np.floor(x).astype(int) - self.x0, 0, self.shape[0]), np.clip(np.floor(y).astype(int) - self.y0, 0, self.shape[1])

    def any_in(self, box: Box) -> bool:
        (left, right), (bottom, top) = self._clipped(np.array([box[0], box[2] + 1]), np.array([box[1], box[3] + 1]))
        return bool(self.below[right, top] - self.below[left, top] - self.below[right, bottom] + self.below[left, bottom])

    def any_along(self, line: np.ndarray, clear: float) -> bool:
        """Whether there are points near `line`, except at its beginning."""
        begun = np.hypot(*(line - line[0]).T) > 2.5 * clear
        return any(self.any_in((at[0] - clear / 2, at[1] - clear / 2, at[0] + clear / 2, at[1] + clear / 2)) for at in line[begun])


def _places(width: float, height: float, right_first: bool, scale: float) -> Iterator[tuple[float, float, bool]]:
    """Where a name's lower left corner may be, in pixels from its point, nearest first; and whether it takes a line."""
    gap = _GAP * scale
    right, left = gap, -gap - width
    sides = (right, left) if right_first else (left, right)
    for side in sides:
        yield side, -height / 2, False
    for side in sides:
        yield side, gap * 0.4, False
        yield side, -gap * 0.4 - height, False
    yield -width / 2, gap, False
    yield -width / 2, -gap - height, False
    for distance in np.arange(12.0, _FARTHEST + 1, 6.0) * scale:
        # Upwards first: below a volcano's points there are more of them.
        for degrees in (45, 20, 70, 0, 90, -20, -45):
            dx, dy = distance * np.cos(np.radians(degrees)), distance * np.sin(np.radians(degrees))
            for sign in (1, -1) if right_first else (-1, 1):
                yield (dx if sign > 0 else -dx - width) if degrees < 90 else -width / 2, dy - height / 2 + (height / 2 if degrees == 90 else 0), True
                if degrees == 90:
                    break


def _line(point: np.ndarray, box: Box) -> np.ndarray:
    """Points along the line from `point` to the nearest place on `box`."""
    end = np.clip(point, (box[0], box[1]), (box[2], box[3]))
    return point + np.linspace(0.0, 1.0, 40)[:, None] * (end - point)


def _padded(box: Box, by: float) -> Box:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _overlap(a: Box, b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _crosses(line: np.ndarray, box: Sequence[float]) -> bool:
    return bool(((line[:, 0] > box[0]) & (line[:, 0] < box[2]) & (line[:, 1] > box[1]) & (line[:, 1] < box[3])).any())
