"""A picture of highly variable genes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from skytether import InvalidError

from . import _labels, _picture
from ._picture import INK, SMALL, Plot

if TYPE_CHECKING:
    import pandas as pd

#: How many of the genes have their names in the picture.
_NAMED = 30


def variable(frame: pd.DataFrame, *, title: str, path: str | os.PathLike[str] | None) -> Plot:
    """Each gene by its mean and its normalised dispersion or variance; those that are selected in colour, those of
    the highest with their names that have room.

    Raises
    ------
    InvalidError
        The frame is none of `highly_variable_genes`.
    """
    of_counts = "variances_norm" in frame.columns
    y_column = "variances_norm" if of_counts else "dispersions_norm"
    if not {"means", y_column, "highly_variable"} <= {*frame.columns}:
        raise InvalidError("the frame has no columns means, highly_variable and dispersions_norm or variances_norm: give one of highly_variable_genes")
    ax = _picture.one_axes(None, 6.4, 4.6, path)
    chosen = frame["highly_variable"].to_numpy(bool)
    x, y = frame["means"].to_numpy(float), frame[y_column].to_numpy(float)
    size = float(np.clip(20_000 / max(len(frame), 1), 1.5, 12))
    for part, colour, label in ((~chosen, "#b9c4d4", "other genes"), (chosen, "#d9543f", "highly variable")):
        ax.scatter(x[part], y[part], s=size, c=colour, linewidths=0, rasterized=True, label=f"{int(part.sum()):,} {label}")
    if of_counts:
        ax.set_xscale("log")
        if (y > 0).any():
            ax.set_yscale("log")
    ax.set_xlabel("mean of counts" if of_counts else "mean", fontsize=9, color=INK)
    ax.set_ylabel("normalised variance" if of_counts else "normalised dispersion", fontsize=9, color=INK)
    legend = ax.legend(frameon=False, fontsize=8.5, labelcolor=SMALL, loc="upper right", markerscale=2.5)
    _picture.plain(ax)
    _picture.titled(ax, title)
    there = chosen & np.isfinite(x) & np.isfinite(y) & ((x > 0) & (y > 0) if of_counts else True)
    best = np.argsort(np.where(there, -y, np.inf), kind="stable")[: min(_NAMED, int(there.sum()))]
    _labels.name_points(ax, np.where(np.isfinite(x), x, 0), np.where(np.isfinite(y), y, 0), list(frame.index), [int(i) for i in best], INK, [legend])
    return Plot([ax], frame)
