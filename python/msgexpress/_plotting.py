"""The plots of a data set. Each gives a `Plot`, which has the axes and the numbers that it draws."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping, Sequence

import numpy as np

from skytether import InvalidError, NotFoundError

from . import _draw_cells, _draw_groups, _picture, _quality, _select, _values
from ._arguments import chosen_layer
from ._hints import instead
from ._picture import Look, Plot
from ._testing import _REQUIRED, _say_transform
from ._transforms import check_transform, values_said
from ._wilcoxon import Wilcoxon

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

    from ._draw_groups import DotPlot
    from ._transforms import Transform
    from ._values import Genes, Grouping

    Path = str | os.PathLike[str] | None
    Axes = matplotlib.axes.Axes | None


class Plotting(Wilcoxon):
    """The plots of a data set.

    They read what they show and no more: dot plots and heat maps of groups take means and shares that the drives
    compute, the others read the genes that are named. Arguments that all of them share:

    - `transform`: what to do with the stored values, as in `rank_genes_groups`; it is required where genes are shown.
    - `layer`, `use_raw`, `cells`: which matrix and which cells, as in `rank_genes_groups`.
    - `gene_symbols`: a var column that has the names of `genes`, as in scanpy.
    - `ax`: where to draw; None for a new figure. `path`: a file to write; the ending chooses the format.
    """

    def plot_dotplot(
        self,
        genes: str | Iterable[Any] | Mapping[str, Iterable[Any]],
        groupby: str,
        *,
        transform: Transform = _REQUIRED,
        groups: Iterable[str] | None = None,
        expression_cutoff: float = 0.0,
        mean_only_expressed: bool = False,
        standard_scale: Literal["var", "group"] | None = None,
        swap_axes: bool = False,
        layer: str | None = None,
        use_raw: bool | None = None,
        cells: Any = None,
        gene_symbols: str | None = None,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> DotPlot:
        """A dot per group and gene, as ``scanpy.pl.dotplot``: its colour is the mean, its size the share of cells.

        The drives compute both, so that a million cells cost little.

        Parameters
        ----------
        genes
            Names, numbers or a mask; or a dict of names of sets to genes, which get brackets.
        groupby
            The obs column that groups the cells. Cells without a value are not shown.
        groups
            Which groups to show, in this order; None for all that have cells.
        expression_cutoff
            A cell has a gene if its value (after the transform) is above this.
        mean_only_expressed
            True: means are over the cells that have the gene.
        standard_scale
            ``"var"``: each gene's means from 0 to 1. ``"group"``: each group's.
        swap_axes
            True: genes go down, groups across.

        Raises
        ------
        NotFoundError
            No such gene, group, column or layer.
        InvalidError
            `transform` is left out; there are too many groups or genes to show; a value that the transform can't take.
        """
        transform = self._remembered(transform, layer, use_raw)
        matrix = self._shown_matrix(layer, use_raw, transform)
        chosen = _values.genes_of(self, matrix, genes, gene_symbols)
        grouped = _values.grouping(self, groupby, groups, cells)
        return self._dots(matrix, transform, chosen, grouped, expression_cutoff, mean_only_expressed, standard_scale, Look(swap_axes, cmap, vmin, vmax, ax, path))

    def plot_heatmap(
        self,
        genes: str | Iterable[Any] | Mapping[str, Iterable[Any]],
        groupby: str,
        *,
        by: Literal["cells", "groups"] = "cells",
        transform: Transform = _REQUIRED,
        groups: Iterable[str] | None = None,
        max_cells: int = 4000,
        standard_scale: Literal["var", "group"] | None = None,
        swap_axes: bool = False,
        layer: str | None = None,
        use_raw: bool | None = None,
        cells: Any = None,
        gene_symbols: str | None = None,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> Plot:
        """Values of genes: a line per cell as ``scanpy.pl.heatmap``, or a square per group with its mean as
        ``scanpy.pl.matrixplot``.

        Parameters
        ----------
        by
            ``"cells"``: a line per cell; `data` has cells as rows, the group first. ``"groups"``: means, which the
            drives compute; `data` has groups as rows.
        max_cells
            Of more cells than these, some of each group are shown, evenly chosen; the title says how many.
        genes, groupby, groups, standard_scale, swap_axes
            As in `plot_dotplot`.

        Raises
        ------
        NotFoundError, InvalidError
            As in `plot_dotplot`.
        """
        if by not in ("cells", "groups"):
            raise InvalidError(f"by is {by!r}: a heat map has a line for each of the 'cells', or one for each of the 'groups'")
        transform = self._remembered(transform, layer, use_raw)
        matrix = self._shown_matrix(layer, use_raw, transform)
        chosen = _values.genes_of(self, matrix, genes, gene_symbols)
        grouped = _values.grouping(self, groupby, groups, cells)
        return self._heat(matrix, transform, chosen, grouped, by, max_cells, standard_scale, Look(swap_axes, cmap, vmin, vmax, ax, path))

    def plot_violin(
        self,
        keys: str | Sequence[str],
        groupby: str | None = None,
        *,
        transform: Transform = _REQUIRED,
        groups: Iterable[str] | None = None,
        points: bool = True,
        log: bool = False,
        layer: str | None = None,
        use_raw: bool | None = None,
        cells: Any = None,
        gene_symbols: str | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> Plot:
        """The distribution of genes or obs columns by group, as ``scanpy.pl.violin``: a panel for each key.

        Parameters
        ----------
        keys
            Genes, or obs columns with numbers. A name that is both is the column.
        groupby
            The obs column that groups the cells; None for all cells together.
        points
            True: some cells are drawn as points (at most 300 of each violin).
        log
            True: the axis is logarithmic.

        The white point is the median, the line goes from the first to the third quartile. `data` has cells as rows, the
        group first.

        Raises
        ------
        NotFoundError, InvalidError
            As in `plot_dotplot`; an obs column that has no numbers.
        """
        names = list(dict.fromkeys(_values.names_of(keys)))
        if not names:
            raise InvalidError("there is nothing to show: name a gene or an obs column")
        if ax is not None and len(names) > 1:
            raise InvalidError(f"{len(names)} violins do not fit into one axes: leave ax= out, or name one key")
        grouped = self._everywhere(cells) if groupby is None else _values.grouping(self, groupby, groups, cells)
        table, labels = self._columns(names, transform, layer, use_raw, gene_symbols)
        return self._violins(names, labels, table, grouped, None if groupby is None else groupby, points, log, ax, path)

    def plot_embedding(
        self,
        basis: str = "umap",
        color: str | Sequence[str] | None = None,
        *,
        transform: Transform = _REQUIRED,
        components: tuple[int, int] = (1, 2),
        groups: Iterable[str] | None = None,
        size: float | None = None,
        legend_loc: Literal["right margin", "on data", "both", "none"] = "right margin",
        ncols: int = 3,
        layer: str | None = None,
        use_raw: bool | None = None,
        gene_symbols: str | None = None,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        ax: Axes = None,
        path: Path = None,
    ) -> Plot:
        """The cells in an embedding of `obsm`, as ``scanpy.pl.embedding``: a panel for each colour.

        Parameters
        ----------
        basis
            A key of obsm, with or without ``X_``: ``"umap"``, ``"X_pca"``.
        color
            Obs columns and genes; a name that is both is the column. Groups get the colours that ``uns`` has for them.
        components
            Which two columns of the embedding, counted from 1.
        groups
            Groups to colour; the others are grey.
        size
            The area of a point, in square points; None for one that fits the number of cells.
        legend_loc
            Where the names of groups are.

        `data` has the two coordinates and the colours, a row per cell.

        Raises
        ------
        NotFoundError
            No such embedding, gene or column.
        InvalidError
            The embedding lacks these components; `transform` is left out and a gene is named.
        """
        if legend_loc not in ("right margin", "on data", "both", "none"):
            raise InvalidError(f"there is no legend_loc {legend_loc!r}: use 'right margin', 'on data', 'both' or 'none'")
        names = [] if color is None else list(dict.fromkeys(_values.names_of(color)))
        if ax is not None and len(names) > 1:
            raise InvalidError(f"{len(names)} colours do not fit into one axes: leave ax= out, or name one colour")
        frame, axis_names = self._coordinates(basis, components)
        panels: list[dict[str, Any]] = []
        numbers = [n for n in names if n not in self._shell.obs.columns or self._is_numeric(n)]
        table, labels = self._columns(numbers, transform, layer, use_raw, gene_symbols)
        for name in names:
            if name in numbers:
                frame[name] = table[name].to_numpy()
                panels.append({"title": name, "values": table[name].to_numpy(), "label": labels[numbers.index(name)], "cmap": cmap, "vmin": vmin, "vmax": vmax})
            else:
                grouped = _values.grouping(self, name, groups)
                frame[name] = self._shell.obs[name].to_numpy()
                panels.append({"title": name, "codes": grouped.codes, "names": grouped.names, "colours": self._colours(grouped)})
        return self._drawn(
            _draw_cells.embedding_plot(frame, panels or [{"title": ""}], axis_names=axis_names, size=size, legend=legend_loc, columns=ncols, ax=ax, path=path), path
        )

    def plot_qc(
        self,
        obs: pd.DataFrame | None = None,
        var: pd.DataFrame | None = None,
        *,
        qc_vars: Mapping[str, Any] | None = None,
        path: Path = None,
    ) -> Plot:
        """Quality of cells: counts and genes of each, the share of mitochondrial counts, and the genes with most
        counts.

        Parameters
        ----------
        obs, var
            Frames with the columns of ``scanpy.pp.calculate_qc_metrics``: those of cells (``total_counts``,
            ``n_genes_by_counts``, ``pct_counts_mt``, ...) and, if wanted, those of genes. None: they are computed.
        qc_vars
            Sets of genes whose share to show, such as ``{"mt": "MT-"}``: the beginning of their names, a mask, names or
            numbers. None: mitochondrial genes (``MT-``), if there are any.

        `data` is the frame of cells, with the columns that are drawn.

        Raises
        ------
        InvalidError
            `obs` has none of these columns; no gene begins as a set says.
        """
        if obs is None:
            obs, counted = _quality.frames(self, qc_vars)
            var = counted if var is None else var
        elif qc_vars is not None:
            raise InvalidError("obs= has the shares of sets already, in its columns pct_counts_...: leave qc_vars= out")
        return self._drawn(_quality.quality_plot(obs, var, title=f"{self.name}: {len(obs):,} cells", path=path), path)

    def report(
        self,
        path: str | os.PathLike[str],
        groupby: str | None = None,
        *,
        transform: Transform = _REQUIRED,
        n_genes: int = 100,
        method: Literal["t-test", "t-test_overestim_var", "student", "wilcoxon"] = "t-test",
        layer: str | None = None,
        use_raw: bool | None = None,
        qc_vars: Mapping[str, Any] | None = None,
        progress: Any = None,
    ) -> None:
        """Writes one HTML page about the data set that needs nothing else: no network, no other files.

        It has what the data set holds, quality of cells, embeddings, groups, marker genes of each group with sorting
        and search, a volcano plot for each, and receipts. It reads well without JavaScript, too.

        Parameters
        ----------
        path
            Where to write it; a file that is there is replaced.
        groupby
            The obs column with the groups. None: the one that is called as cell types or clusters are, or the only one
            that groups cells.
        transform
            As in `rank_genes_groups`. Left out, the page has no marker genes, and says what to write.
        n_genes
            How many marker genes of each group the tables have.
        method, layer, use_raw
            As in `rank_genes_groups`.
        qc_vars
            As in `plot_qc`.
        progress
            As in `MsgExpress.ingest`: None for a bar where stderr is a terminal.

        Raises
        ------
        InvalidError
            `groupby` is left out, and several columns could be meant (the text lists them); `path` can't be written.
        NotFoundError
            No such column or layer.
        """
        from . import _report

        transform = self._remembered(transform, layer, use_raw)
        said, layer = transform is not _REQUIRED, chosen_layer(layer, use_raw, self._origins, self.name)
        asked = _report.Asked(said, transform if said else None, n_genes, method, layer, qc_vars)
        _report.write(self, path, groupby, asked, progress)

    # ---- inside

    def _shown_matrix(self, layer: str | None, use_raw: bool | None, transform: Any) -> str:
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        if transform is _REQUIRED:
            raise InvalidError(_say_transform(self._what_values(layer)))
        check_transform(transform)
        matrix = self._matrix(layer)
        self._check_not_empty(matrix)
        self._warn_of_logarithms(layer, transform)
        return matrix

    def _dots(
        self,
        matrix: str,
        transform: str | None,
        genes: Genes,
        groups: Grouping,
        cutoff: float,
        only_expressed: bool,
        standard_scale: str | None,
        look: Look,
    ) -> DotPlot:
        import pandas as pd

        found = _values.moments(self, matrix, transform, genes.numbers, groups, cutoff, only_expressed)
        index = pd.CategoricalIndex(groups.names, categories=groups.names, name=groups.by)
        colour = pd.DataFrame(_values.scaled(found.means, standard_scale), index=index, columns=genes.names)
        size = pd.DataFrame(found.shares, index=index, columns=genes.names)
        said = _said(transform) if standard_scale is None else "mean, scaled to 0 to 1"
        plot = _draw_groups.dot_plot(colour, size, groups.sizes, genes.sets, title=groups.by, colour_title=said, look=look, receipt=found.receipt)
        self._drawn(plot, look.path)
        return plot

    def _heat(
        self,
        matrix: str,
        transform: str | None,
        genes: Genes,
        groups: Grouping,
        by: str,
        max_cells: int,
        standard_scale: str | None,
        look: Look,
    ) -> Plot:
        import pandas as pd

        said = _said(transform)
        if by == "groups":
            found = _values.moments(self, matrix, transform, genes.numbers, groups)
            index = pd.CategoricalIndex(groups.names, categories=groups.names, name=groups.by)
            means = pd.DataFrame(_values.scaled(found.means, standard_scale), index=index, columns=genes.names)
            said = said if standard_scale is None else "mean, scaled to 0 to 1"
            return self._drawn(_draw_groups.heat_of_groups(means, genes.sets, title=groups.by, colour_title=said, receipt=found.receipt, look=look), look.path)
        if isinstance(max_cells, bool) or not isinstance(max_cells, (int, np.integer)) or max_cells < 1:
            raise InvalidError(f"max_cells is {max_cells!r}: show at least one cell, as a whole number")
        cells = _values.thinned(groups.codes, len(groups.names), int(max_cells))
        ascending = np.sort(cells)
        values = _values.values(self, matrix, transform, genes.numbers, None if len(cells) == self.n_obs else ascending)
        values = values[np.searchsorted(ascending, cells)]
        table = pd.DataFrame(_values.scaled(values, standard_scale), index=self.obs_names[cells], columns=genes.names)
        whole = int(groups.sizes.sum())
        title = groups.by if len(cells) == whole else f"{groups.by}: {len(cells):,} of {whole:,} cells, evenly chosen"
        said = said.removeprefix("mean ") if standard_scale is None else "scaled to 0 to 1"
        codes, colours = groups.codes[cells], self._colours(groups)
        plot = _draw_groups.heat_of_cells(table, codes, groups.names, colours, genes.sets, by=groups.by, title=title, colour_title=said, look=look)
        return self._drawn(plot, look.path)

    def _violins(self, names: list[str], labels: list[str], table: pd.DataFrame, groups: Grouping, by: str | None, points: bool, log: bool, ax: Axes, path: Path) -> Plot:
        import pandas as pd

        shown = groups.codes >= 0
        codes = groups.codes[shown]
        table = table[shown]
        plot = _draw_cells.violin_plot(
            table,
            names,
            codes,
            groups.names,
            self._colours(groups) if by is not None else ["#8fb8de"],
            by=by,
            title=by or "",
            labels=labels,
            points=points,
            log=log,
            ax=ax,
            path=path,
        )
        if by is not None:
            label = by if by not in table.columns else f"{by} (group)"
            plot.data = pd.concat([pd.Series(pd.Categorical.from_codes(codes, groups.names), index=table.index, name=label), table], axis=1)
        return self._drawn(plot, path)

    def _everywhere(self, cells: Any) -> Grouping:
        """All cells, or `cells`, as one group."""
        codes = np.zeros(self.n_obs, np.int32)
        if cells is not None:
            codes[~_select.mask(_select.settled(cells), self._shell.obs, "cells=")] = -1
        return _values.Grouping("", [""], codes)

    def _columns(self, names: Sequence[str], transform: Any, layer: str | None, use_raw: bool | None, gene_symbols: str | None) -> tuple[pd.DataFrame, list[str]]:
        """Obs columns and genes by name, in all cells, and for each what its values are."""
        import pandas as pd

        obs = self._shell.obs
        genes = [n for n in names if n not in obs.columns]
        values: dict[str, np.ndarray] = {}
        if genes:
            layer = chosen_layer(layer, use_raw, self._origins, self.name)
            try:
                chosen = _values.genes_of(self, self._matrix(layer), genes, gene_symbols)
            except NotFoundError as e:
                known = self._names(self._matrix(layer)) if gene_symbols is None else self._var_column(self._matrix(layer), gene_symbols)
                first = next((n for n in genes if n not in set(known)), genes[0])
                raise NotFoundError(f"{e}; obs has no column {first!r} either{instead(first, obs.columns)}") from e
            transform = self._remembered(transform, layer)
            matrix = self._shown_matrix(layer, None, transform)
            table = _values.values(self, matrix, transform, chosen.numbers)
            values = {n: table[:, i] for i, n in enumerate(genes)}
        for n in names:
            if n in values:
                continue
            if not self._is_numeric(n):
                raise InvalidError(f"obs column {n!r} of {self.name} has no numbers: choose a gene, or a column with numbers")
            values[n] = obs[n].astype("Float64").to_numpy(float, na_value=np.nan)
        labels = [_said(transform).removeprefix("mean ") if n in genes else "" for n in names]
        return pd.DataFrame({n: values[n] for n in names}, index=obs.index), labels

    def _is_numeric(self, column: str) -> bool:
        import pandas as pd

        kind = self._shell.obs[column].dtype
        return pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)

    def _coordinates(self, basis: str, components: tuple[int, int]) -> tuple[pd.DataFrame, tuple[str, str]]:
        import pandas as pd

        there = {str(k): k for k in self._shell.obsm}
        key = next((k for k in (f"X_{basis}", str(basis)) if k in there), None)
        if key is None:
            known = f"it has {', '.join(map(repr, there))}" if there else "it has none; ds.umap() makes one, after pca and neighbors (msgx cluster does all of it)"
            raise NotFoundError(f"obsm of {self.name} has no embedding {basis!r}: {known}{instead(basis, [k.removeprefix('X_') for k in there])}")
        found = self._shell.obsm[there[key]]
        array = np.asarray(found.toarray() if hasattr(found, "toarray") else found)
        try:
            first, second = (int(c) for c in components)
        except (TypeError, ValueError):
            raise InvalidError(f"components is {components!r}: name two columns of the embedding, such as (1, 2)") from None
        if array.ndim != 2 or min(first, second) < 1 or max(first, second) > array.shape[1]:
            raise InvalidError(f"obsm[{key!r}] of {self.name} has {array.shape[1] if array.ndim == 2 else 1} components: it has no {first} and {second}")
        short = key.removeprefix("X_")
        label = {"umap": "UMAP", "tsne": "tSNE", "pca": "PC", "diffmap": "DC"}.get(short, short)
        names = (f"{label}{first}", f"{label}{second}")
        return pd.DataFrame({names[0]: array[:, first - 1], names[1]: array[:, second - 1]}, index=self.obs_names), names

    def _colours(self, groups: Grouping) -> list[str]:
        """The colours of groups: those of ``uns``, which has one for each category in order, where it has them."""
        import pandas as pd

        own = self._shell.uns.get(f"{groups.by}_colors")
        column = self._shell.obs[groups.by] if groups.by in self._shell.obs.columns else None
        if own is None or column is None or not isinstance(column.dtype, pd.CategoricalDtype) or len(own) < len(column.cat.categories):
            every = [str(c) for c in column.cat.categories] if column is not None and isinstance(column.dtype, pd.CategoricalDtype) else groups.names
            # A group keeps its colour when others are left out.
            return _among(every, _picture.colours(every), groups.names)
        every = [str(c) for c in column.cat.categories]
        return _among(every, _picture.colours(every, list(own)), groups.names)

    def _drawn(self, plot: Plot, path: Path) -> Plot:
        if path is not None and path is not _picture.APART:
            plot.save(path)
        return plot


def _among(names: Sequence[str], colours: Sequence[str], some: Sequence[str]) -> list[str]:
    by_name = dict(zip(names, colours))
    return [by_name[n] for n in some] if all(n in by_name for n in some) else _picture.colours(some)


def _said(transform: Transform) -> str:
    """What colours and axes show, in words."""
    return f"mean {values_said(transform)}"
