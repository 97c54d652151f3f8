"""Groups of cells beyond one test: every pair of them, and sums per sample and group for tests of samples."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Iterable, Literal

from skytether import ExhaustedError, InvalidError, NotFoundError

from . import _filters, _folds, _group_moments, _pairs, _pseudobulk, _rank_sums
from ._arguments import check_n_genes, chosen_layer, chosen_method, one_name, refuse_others
from ._asked import Asked
from ._hints import instead
from ._testing import _OF_COUNTS, _REQUIRED, CORRECTIONS, METHODS, Testing, _check, _group, _say_transform
from ._transforms import check_transform

if TYPE_CHECKING:
    from ._transforms import Transform
    import anndata


class Contrasts(Testing):
    """Every pair of groups, and pseudobulk."""

    def pairwise(
        self,
        groupby: str,
        groups: Literal["all"] | Iterable[str] = "all",
        *,
        method: Literal["t-test", "t-test_overestim_var", "student", "wilcoxon"] = "t-test",
        transform: Transform = _REQUIRED,
        corr_method: Literal["benjamini-hochberg", "bonferroni"] = "benjamini-hochberg",
        n_genes: int | None = None,
        layer: str | None = None,
        use_raw: bool | None = None,
        cells: Any = None,
        genes: Any = None,
        gene_symbols: str | None = None,
        min_pct: float | None = None,
        min_logfc: float | None = None,
        min_cells: int | None = None,
        logfc: Literal["scanpy", "seurat", "seurat4"] = "scanpy",
        tie_correct: bool = False,
        **others: Any,
    ) -> _pairs.PairwiseResult:
        """Compares each group with each other one. The drives look at the matrix once, however many pairs there are;
        for ``"wilcoxon"``, which ranks the cells of each pair, once more for each group.

        The numbers of a pair are those of ``rank_genes_groups(groupby, groups=[group], reference=reference)``, and
        arguments mean what they mean there. `groups` are those to compare with each other; others count nowhere.

        Raises
        ------
        InvalidError
            There are fewer than two groups, or one with fewer than two cells; and as in `rank_genes_groups`.
        NotFoundError
            No such column, group, gene or layer.
        ExhaustedError
            Genes times groups are more than a result holds; for ``"wilcoxon"``, genes times groups times groups.
        """
        refuse_others("pairwise", others)
        asked = Asked(logfc, gene_symbols, _filters.Filters(min_pct, min_logfc, min_cells))
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        transform = self._remembered(transform, layer)
        if transform is _REQUIRED:
            raise InvalidError(_say_transform(self._what_values(layer)))
        check_transform(transform)
        check_n_genes(n_genes)
        one_name(groupby, "groupby", "obs column")
        method = chosen_method(method, METHODS)
        if tie_correct and method != "wilcoxon":
            raise InvalidError(f"tie_correct belongs to the Wilcoxon test, and method={method!r} has no ranks: leave it out, or say method=\"wilcoxon\"")
        _check(corr_method, CORRECTIONS, "corr_method")
        matrix, column = self._matrix(layer), self._column(groupby)
        self._check_not_empty(matrix)
        names, codes = self._codes(groupby, column, cells)
        names = names[:-1]
        order = self._kept["categories"].get(groupby)
        shown = {"true": "True", "false": "False"} if order is None and {*names} <= {"true", "false"} and self._is_boolean(column) else {}
        chosen = names
        if not (isinstance(groups, str) and groups == "all"):
            wanted = [_group(g, order) for g in ([groups] if isinstance(groups, str) or not isinstance(groups, Iterable) else groups)]
            wanted = [g.lower() if shown else g for g in wanted]
            for g in wanted:
                if g not in names:
                    raise NotFoundError(f"there is no group {g!r}; the groups are {', '.join(map(repr, names[:50])) or 'none'}{instead(g, names)}")
            chosen = [name for name in names if name in wanted]
        if len(chosen) < 2:
            raise InvalidError(f"there are no pairs to compare: {len(chosen)} of the groups of obs column {groupby!r} is chosen and has cells; name at least two")
        codes = _pseudobulk.renumbered(codes, [names.index(g) for g in chosen], len(names) + 1)
        some = None if genes is None else self._some_genes(genes, self._names(matrix))
        count = self._kept["matrices"][matrix]["shape"][1] if some is None else len(some)
        if count * (len(chosen) + 1) > _group_moments.MOST_ENTRIES:
            raise ExhaustedError(
                f"{count:,} genes of {len(chosen):,} groups are more than a result of pairs holds "
                f"({_group_moments.MOST_ENTRIES:,} in all): choose some with groups= or genes="
            )
        if method == "wilcoxon" and count * len(chosen) ** 2 > _group_moments.MOST_ENTRIES:
            raise ExhaustedError(
                f"{count:,} genes of {len(chosen):,} groups, each ranked with each other one, are more than a result of pairs holds "
                f"({_group_moments.MOST_ENTRIES:,} in all): choose some with groups= or genes=, or say method=\"t-test\""
            )
        single = self._squares_single(method, matrix)
        if cells is None and (len(chosen) == len(names) or count * len(names) <= _group_moments.FEW_ENTRIES):
            # As `rank_genes_groups` asks for this column: the drives may have kept it.
            found = _group_moments.moments(self, matrix, transform, column, some, single).of(chosen)
        else:
            found = _group_moments.moments(self, matrix, transform, (chosen, codes), some, single)
        for g, n in zip(chosen, found.n):
            if n < 2:
                raise InvalidError(f"group {g!r} has {n} cells: a test needs at least two; name the others with groups=")
        if transform is None and self._is_counts(layer):
            warnings.warn(_OF_COUNTS.format(self.name), stacklevel=2)
        self._warn_of_logarithms(layer, transform)
        return _pairs.PairwiseResult(
            self.name,
            found,
            chosen,
            {
                "groupby": groupby, "reference": "pairwise", "method": method, **self._place(matrix), "corr_method": corr_method, "transform": transform,
                **asked.params, **({"tie_correct": bool(tie_correct)} if method == "wilcoxon" else {}),
            },
            n_genes,
            self._names(matrix),
            asked.filters,
            self._kept["log1p_base"] if transform is None else None,
            _folds.means(self, matrix, transform, (chosen, codes), found.genes, logfc) if logfc != "scanpy" else None,
            None if gene_symbols is None else (gene_symbols, self._var_column(matrix, gene_symbols)),
            shown,
            _rank_sums.against_each(self, matrix, transform, (chosen, codes), some, bool(tie_correct)) if method == "wilcoxon" else None,
        )

    def pseudobulk(
        self,
        sample: str,
        groupby: str | None = None,
        layer: str | None = None,
        func: Literal["sum", "mean"] = "sum",
        min_cells: int = 0,
        *,
        use_raw: bool | None = None,
        cells: Any = None,
        genes: Any = None,
    ) -> anndata.AnnData:
        """The stored values of each sample's cells added up, or of each sample's cells of each group: what tests of
        samples take, such as DESeq2, PyDESeq2 and edgeR. The drives do the work.

        Gives an AnnData with a row per sample (and group) that has cells, ordered by categories and named
        ``sample_group`` as by ``scanpy.get.aggregate``. Its X is dense: sums of counts are int64 and exact, others
        float64. obs has the columns `sample` and `groupby`, `n_cells`, and those that have one value in each row's
        cells (the donor's age, the condition); var is the matrix's. ``uns["pseudobulk"]`` says what was asked for.

        Parameters
        ----------
        sample
            The obs column with the samples. Cells without a value are in none.
        groupby
            The obs column that groups the cells within a sample, such as cell types; None for none.
        layer, use_raw
            Which matrix, as in `rank_genes_groups`. For DESeq2 and edgeR it must hold raw counts.
        func
            ``"sum"``, or ``"mean"`` of the cells.
        min_cells
            Leaves out rows of fewer cells.
        cells, genes
            Which take part, as in `rank_genes_groups`.

        Warns where values that are no counts are added up.

        Raises
        ------
        NotFoundError
            No such column, gene or layer.
        InvalidError
            No row is left; two rows would have one name; `func` is another.
        ExhaustedError
            Rows times genes are more than one result holds.
        """
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        matrix = self._matrix(layer)
        self._check_not_empty(matrix)
        if func == "sum" and not self._is_counts(layer):
            warnings.warn(
                f"{self._what_values(layer)}: sums of them are no counts, which tests of samples take; say layer= for the raw counts, or func=\"mean\"",
                stacklevel=2,
            )
        return _pseudobulk.pseudobulk(self, matrix, sample, groupby, func, min_cells, cells, genes)
