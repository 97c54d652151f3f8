"""Quality control: the frames that scanpy's `calculate_qc_metrics` gives, and a picture of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

import numpy as np

from skytether import InvalidError

from . import _picture, _qc
from ._draw_cells import violins
from ._picture import INK, SMALL, Plot, shown

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

    from ._prepare import Preparing
    from ._testing import Testing

#: Columns that may have genes' symbols where the genes' names are identifiers.
_SYMBOLS = ("gene_symbols", "feature_name", "gene_name", "gene_names", "symbol", "symbols")
#: Columns of the frame of cells that are drawn, and what they are called.
_NAMES = {"n_genes_by_counts": "genes per cell", "total_counts": "counts per cell"}
#: How many genes the panel of the largest ones has, and how many cells are drawn as points.
_TOP, _MOST = 15, 20_000


def mitochondrial(ds: Testing, matrix: str = "x") -> np.ndarray:
    """A mask of the genes whose name or symbol begins with ``MT-``, in capitals or not."""
    candidates = [ds._names(matrix)]
    var = ds._genes if matrix == "x" else None
    candidates += [var[c].astype(str).to_numpy(object) for c in _SYMBOLS if var is not None and c in var.columns]
    for names in candidates:
        found = np.fromiter((str(n)[:3].upper() == "MT-" for n in names), bool, len(names))
        if found.any():
            return found
    return np.zeros(len(candidates[0]), bool)


def frames(of: Preparing, qc_vars: Mapping[str, Any] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frames of cells and genes of `qc_metrics`. `qc_vars` names sets of genes, each a prefix of names, a mask,
    names or numbers; None for ``mt``, if there are mitochondrial genes."""
    ds, _ = of._part_of()
    if qc_vars is None:
        found = mitochondrial(ds)
        qc_vars = {"mt": found} if found.any() else {}
    masks = {str(name): _qc.gene_set(ds, "x", chosen) for name, chosen in qc_vars.items()}
    return of.qc_metrics(qc_vars=masks, percent_top=None)


def quality_plot(obs: pd.DataFrame, var: pd.DataFrame | None, *, title: str, path: str | os.PathLike[str] | None) -> Plot:
    """Violins of totals, genes and shares of sets; genes and shares against totals; the genes with most counts.

    Raises
    ------
    InvalidError
        `obs` has none of the columns.
    """
    shares = [c for c in obs.columns if str(c).startswith("pct_counts_") and not str(c).startswith("pct_counts_in_top_")]
    there = [c for c in _NAMES if c in obs.columns]
    if not there and not shares:
        raise InvalidError("the frame of cells has no column total_counts, n_genes_by_counts or pct_counts_...: give one as scanpy's calculate_qc_metrics makes it")
    first = there + shares
    second: list[str] = []
    if len(there) == 2:
        second.append("genes")
    if "total_counts" in there and shares:
        second.append("share")
    if var is not None and "total_counts" in var.columns:
        second.append("top")
    figure = _picture.new_figure(max(3.1 * max(len(first), len(second)), 4), 5.6 if second else 3, path)
    rows = figure.subfigures(2, 1) if second else [figure]
    made: list[Any] = []
    above = rows[0].subplots(1, len(first), squeeze=False).ravel()
    for ax, column in zip(above, first):
        label = _NAMES.get(str(column), f"% of counts in {str(column).removeprefix('pct_counts_')}")
        violins(ax, [obs[column].to_numpy(float)], ["#8fb8de" if column in _NAMES else "#f0a58a"], points=True)
        median = float(np.nanmedian(obs[column].to_numpy(float))) if len(obs) else float("nan")
        _picture.titled(ax, label, 10)
        ax.set_xlabel(f"median {median:,.0f}" if column in _NAMES else f"median {median:.1f} %", fontsize=8.5, color=SMALL)
        ax.set_xticks([])
        ax.set_xlim(-0.6, 0.6)
        _picture.plain(ax)
        _thousands(ax)
        made.append(ax)
    if second:
        below = rows[1].subplots(1, len(second), squeeze=False).ravel()
        for ax, kind in zip(below, second):
            if kind == "top":
                _largest(ax, var)  # type: ignore[arg-type]
            else:
                _against_totals(ax, obs, "n_genes_by_counts" if kind == "genes" else shares[0], shares[0] if shares and kind == "genes" else None)
            made.append(ax)
    if title:
        figure.suptitle(shown(title), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    return Plot(made, obs[first])


def _against_totals(ax: matplotlib.axes.Axes, obs: pd.DataFrame, column: Any, shade: Any) -> None:
    some = obs.iloc[np.linspace(0, len(obs) - 1, min(len(obs), _MOST)).astype(int)] if len(obs) else obs
    if shade is not None:
        some = some.sort_values(shade)
    size = float(np.clip(18_000 / max(len(some), 1), 0.8, 10))
    fill = some[shade] if shade is not None else "#5b7fa6"
    high = max(float(np.nanpercentile(some[shade], 99)), 1e-9) if shade is not None and len(some) else None
    dots = ax.scatter(
        some["total_counts"],
        some[column],
        s=size,
        c=fill,
        cmap=_picture.sequential() if shade is not None else None,
        vmin=0 if shade is not None else None,
        vmax=high,
        linewidths=0,
        rasterized=True,
    )
    ax.set_xlabel("counts per cell", fontsize=9, color=INK)
    ax.set_ylabel(shown(_NAMES.get(str(column), f"% of counts in {str(column).removeprefix('pct_counts_')}")), fontsize=9, color=INK)
    _picture.plain(ax)
    _thousands(ax)
    if shade is not None:
        _picture.colour_bar(dots, ax, (0.18, -0.26, 0.8, 0.07), f"% {str(shade).removeprefix('pct_counts_')}", corner=(0, 1), horizontal=True)


def _largest(ax: matplotlib.axes.Axes, var: pd.DataFrame) -> None:
    whole = float(var["total_counts"].sum())
    top = var["total_counts"].nlargest(_TOP)
    share = 100 * top.to_numpy(float) / whole if whole else top.to_numpy(float)
    at = np.arange(len(top))
    ax.barh(at, share, color="#b9c4d4", height=0.72)
    ax.set_yticks(at, list(map(shown, top.index)))
    ax.invert_yaxis()
    ax.set_xlabel("% of all counts", fontsize=9, color=INK)
    _picture.plain(ax)
    ax.tick_params(axis="y", labelsize=7.5, length=0)
    _picture.titled(ax, "genes with most counts", 10)


def _thousands(ax: matplotlib.axes.Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_ticklocs().size and max(map(abs, axis.get_view_interval())) >= 1000:
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
