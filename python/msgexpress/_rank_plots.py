"""The plots of a ranking: its best genes, in the groups that were tested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterable, Literal

import numpy as np

from skytether import ConflictError, InvalidError

from ._picture import Look

if TYPE_CHECKING:
    import matplotlib.axes

    from ._draw_groups import DotPlot
    from ._picture import Plot
    from ._plotting import Plotting
    from ._values import Genes, Grouping

    Path = str | os.PathLike[str] | None
    Axes = matplotlib.axes.Axes | None


class RankPlots:
    """Plots of the best genes. Matrix, transform and cells are those of the test."""

    groups: list[str]
    params: dict[str, Any]
    _genes: np.ndarray
    _var: Any
    _symbols: str | None
    #: The data set, its matrix, and what groups its cells: an obs column with `cells`, or names and codes.
    _origin: tuple[Plotting, str, Any] | None = None
    #: How many cells the data set had then: an append gives it more, and their values are no part of the ranking.
    _n_cells: int | None = None

    def plot_dotplot(
        self,
        n_genes: int = 5,
        groups: Iterable[str] | str | None = None,
        *,
        min_logfoldchange: float | None = None,
        gene_symbols: str | None = None,
        expression_cutoff: float = 0.0,
        mean_only_expressed: bool = False,
        standard_scale: Literal["var", "group"] | None = None,
        swap_axes: bool = False,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> DotPlot:
        """The best genes of each group in all groups, as ``scanpy.pl.rank_genes_groups_dotplot``.

        Parameters
        ----------
        n_genes
            How many genes of each group.
        groups
            Whose genes; None for those of all groups that were tested. All groups of cells are shown in any case.
        min_logfoldchange
            Leaves out genes with a smaller log2 fold change.
        gene_symbols
            A var column with the names to show; left out, the one that the test was asked for.

        The others are those of `Dataset.plot_dotplot`.

        Raises
        ------
        NotFoundError
            No such group or var column.
        InvalidError
            Cells are in both sets of the test; no gene is left to show.
        """
        ds, matrix, grouped, genes = self._best(n_genes, groups, min_logfoldchange, gene_symbols)
        return ds._dots(
            matrix, self.params["transform"], genes, grouped, expression_cutoff, mean_only_expressed, standard_scale, Look(swap_axes, cmap, vmin, vmax, ax, path)
        )

    def plot_heatmap(
        self,
        n_genes: int = 5,
        groups: Iterable[str] | str | None = None,
        *,
        by: Literal["cells", "groups"] = "cells",
        min_logfoldchange: float | None = None,
        gene_symbols: str | None = None,
        max_cells: int = 4000,
        standard_scale: Literal["var", "group"] | None = None,
        swap_axes: bool = False,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> Plot:
        """The best genes of each group in the cells, or (``by="groups"``) their means in all groups. Arguments and
        errors are those of `plot_dotplot` and of `Dataset.plot_heatmap`."""
        if by not in ("cells", "groups"):
            raise InvalidError(f"by is {by!r}: a heat map has a line for each of the 'cells', or one for each of the 'groups'")
        ds, matrix, grouped, genes = self._best(n_genes, groups, min_logfoldchange, gene_symbols)
        return ds._heat(matrix, self.params["transform"], genes, grouped, by, max_cells, standard_scale, Look(swap_axes, cmap, vmin, vmax, ax, path))

    def plot_violin(
        self,
        group: str | None = None,
        n_genes: int = 5,
        *,
        min_logfoldchange: float | None = None,
        gene_symbols: str | None = None,
        points: bool = True,
        path: Path = None,
    ) -> Plot:
        """The values of the best genes of one group in all groups: a panel per gene. `group` may be left out if there
        is only one; the others are as in `plot_dotplot`, and so are errors. `points`: whether cells are drawn, too."""
        from . import _values

        if group is None:
            if len(self.groups) != 1:
                raise InvalidError(f"say which group: {', '.join(map(repr, self.groups))}")
            group = self.groups[0]
        ds, matrix, grouped, genes = self._best(n_genes, group, min_logfoldchange, gene_symbols)
        import pandas as pd

        from ._plotting import _said

        transform = self.params["transform"]
        table = pd.DataFrame(_values.values(ds, matrix, transform, genes.numbers), index=ds.obs_names, columns=_different(genes.names))
        said = _said(transform).removeprefix("mean ")
        return ds._violins(list(table.columns), [said] * len(table.columns), table, grouped, grouped.by, points, False, None, path)

    # ---- inside

    def _best(self, n_genes: int, groups: Iterable[str] | str | None, least: float | None, gene_symbols: str | None) -> tuple[Plotting, str, Grouping, Genes]:
        """The data set, its matrix, the groups of cells, and the best genes of each group."""
        from . import _values

        if isinstance(n_genes, bool) or not isinstance(n_genes, (int, np.integer)) or n_genes < 1:
            raise InvalidError(f"n_genes is {n_genes!r}: show at least one gene, as a whole number")
        if self._origin is None:
            raise InvalidError("cells are in both sets of this test, and a plot shows each cell once: use plot_volcano(), or plots of the data set")
        ds, matrix, how = self._origin
        if self._n_cells is not None and ds.n_obs != self._n_cells:
            raise ConflictError(f"{ds.name} has {ds.n_obs:,} cells now, and this ranking is of {self._n_cells:,}: rank its genes again")
        chosen = self.groups if groups is None else [self._name(g) for g in ([groups] if isinstance(groups, str) else groups)]
        gene_symbols = gene_symbols or self._symbols
        names = self._genes if gene_symbols is None else self._var(gene_symbols)
        numbers: list[np.ndarray] = []
        sets, start = [], 0
        for g in chosen:
            found = self._values(g, "gene_id")
            if least is not None:
                self._check_tests("min_logfoldchange compares")
                found = found[self._values(g, "logfoldchanges") >= least]
            found = np.asarray(found[:n_genes], np.int64)
            if len(found):
                sets.append((g, start, start + len(found)))
                start += len(found)
                numbers.append(found)
        if not numbers:
            raise InvalidError("there are no genes to show: name other groups, or a smaller min_logfoldchange")
        flat = np.concatenate(numbers)
        if len(flat) > _values.MOST_GENES:
            raise InvalidError(f"a plot shows at most {_values.MOST_GENES:,} genes, and these are {len(flat):,}: say a smaller n_genes, or fewer groups")
        if callable(how):
            grouped = how()
        else:
            grouped = _values.Grouping("cells", *how)
        return ds, matrix, grouped, _values.Genes(flat, [str(names[i]) for i in flat], sets)

    def _name(self, group: Any) -> str:
        raise NotImplementedError

    def _check_tests(self, does: str) -> None:
        raise NotImplementedError

    def _values(self, group: str, column: str, everything: bool = False) -> np.ndarray:
        raise NotImplementedError


def _different(names: list[str]) -> list[str]:
    """Names that may repeat, made different."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
