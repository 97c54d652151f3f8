"""Differential expression over a stored data set: tests of groups of cells, and of any two sets."""

from __future__ import annotations

import json
import re
import warnings
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Iterable, Literal

import numpy as np

from skytether import InvalidError, NotFoundError, Receipt, UnsupportedError, _internal
from skytether.errors import reworded

from . import _features, _group_moments, _values
from ._arguments import REQUIRED, check_n_genes, chosen_layer, chosen_method, one_name, refuse_others
from ._asked import Asked, Cells
from ._filters import Filters
from ._hints import instead
from ._normalize import moments_spec
from ._transforms import check_transform, parts, takes_logs, written
from ._unfit import Naming

if TYPE_CHECKING:
    from ._rank import RankResult
    from ._transforms import Transform

#: Tests that `rank_genes_groups` knows, by scanpy's names; `student` is what the t-test with equal variances is called.
T_TESTS = ("t-test", "t-test_overestim_var", "student")
METHODS = (*T_TESTS, "wilcoxon")
CORRECTIONS = ("benjamini-hochberg", "bonferroni")


_REQUIRED = REQUIRED
#: The warning where counts are tested as they are.
_OF_COUNTS = "{} holds counts, and they are compared as they are: their fold changes and scores mean little; use transform=\"log1p_cp10k\" to normalise them"


def _say_transform(values: str) -> str:
    return (
        f"say transform=: {values}. Use transform=\"log1p_cp10k\" for raw counts (scaled to 10,000 per cell, then log1p), "
        "transform=None for values that are normalised and logarithmic already"
    )


class Testing(Naming):
    """The tests of a data set."""

    def rank_genes_groups(
        self,
        groupby: str,
        method: Literal["t-test", "t-test_overestim_var", "student", "wilcoxon", "logreg"] = "t-test",
        reference: str = "rest",
        groups: Literal["all"] | Iterable[str] = "all",
        *,
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
        pts: bool = True,
        tie_correct: bool = False,
        **others: Any,
    ) -> RankResult:
        """Ranks genes by how differently groups of cells express them, like
        ``scanpy.tl.rank_genes_groups``. The drives do the work.

        Parameters
        ----------
        groupby
            The obs column that groups the cells. Cells without a value are in no group, but count as rest.
        method
            ``"t-test"`` (Welch), ``"t-test_overestim_var"`` (scanpy's, with the group's size for both),
            ``"student"`` (equal variances), ``"wilcoxon"`` (rank sums; scores are z), ``"logreg"`` (scanpy's
            logistic regression, of chosen `genes`: their values are read here, and further arguments are those of
            ``sklearn.linear_model.LogisticRegression``).
        reference
            ``"rest"`` (each group against all other cells), or the group to compare with.
        groups
            Which groups to test; all others still count as rest.
        transform
            Required, so that the caller decides, unless `normalize` has chosen one: ``"log1p_cp10k"`` for raw counts
            (each cell scaled to 10,000, then ``log1p``, done by the drives); a `Normalize` for other sums and bases;
            None where the matrix is normalised and logarithmic already.
        corr_method
            How p-values are corrected for the number of genes: ``"benjamini-hochberg"`` or ``"bonferroni"``.
        n_genes
            How many genes each group's tables show; None for all. All are tested in any case.
        layer
            Which matrix: None for the one that the data set is about, else one of `layers`.
        use_raw
            As in scanpy: True for ``layer="raw"``, False for X. Left out, `layer` says it.
        cells
            The cells that take part, as in `to_anndata` or as a dict of obs columns and values; None for all. Others
            are in no group and no rest. Missing values of a mask choose no cell.
        genes
            The genes to test, as in `to_anndata`; None for all. P-values are corrected for these, and cells are
            normalised with all genes, as where scanpy normalises first and gets ``mask_var=``.
        gene_symbols
            A var column whose names the tables have next to `names`, and plots instead of them.
        min_pct, min_logfc, min_cells
            Shows only genes that at least this share of the cells, and this many cells, have in the group or in the
            reference, and whose absolute log2 fold change is at least this: Seurat's ``min.pct``, ``logfc.threshold``
            and ``min.cells.feature``. None for all genes. Numbers are the same with and without: p-values are corrected
            for all genes that are tested, as in Seurat and as where scanpy filters after its test.
        logfc
            Which fold change: ``"scanpy"``, of means of logarithms; ``"seurat"``, of means of what these are logarithms
            of, with 1 added to the sum of each group (Seurat 5); ``"seurat4"``, with 1 added to each mean (Seurat 4).
        pts
            False: `RankResult.to_uns` leaves the shares of cells out, as scanpy does by default.
        tie_correct
            For ``"wilcoxon"``: whether ties, such as all cells without the gene, reduce the variance, as in scipy.
            scanpy's default is that they don't.

        Arguments of scanpy's that can mean nothing here (`key_added`, `copy`, ...) are an error with what to write
        instead. Warns where counts are tested as they are (``transform=None``).

        Raises
        ------
        NotFoundError
            No such column, group or layer.
        InvalidError
            A group of fewer than two cells; transform left out; a data set without cells or genes; no group to test; a
            value that the transform can't take (gene and cell are named).
        UnsupportedError
            The column holds what a table can't.
        ConflictError
            The data set was replaced.
        """
        if method != "logreg":
            refuse_others("rank_genes_groups", others)
        asked = Asked(logfc, gene_symbols, Filters(min_pct, min_logfc, min_cells))
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        transform = self._remembered(transform, layer)
        if transform is _REQUIRED:
            raise InvalidError(_say_transform(self._what_values(layer)))
        check_transform(transform)
        check_n_genes(n_genes)
        one_name(groupby, "groupby", "obs column")
        method = chosen_method(method, (*METHODS, "logreg"))
        if tie_correct and method != "wilcoxon":
            raise InvalidError(f"tie_correct belongs to the Wilcoxon test, and method={method!r} has no ranks: leave it out, or say method=\"wilcoxon\"")
        matrix, column = self._matrix(layer), self._column(groupby)
        self._check_not_empty(matrix)
        order = self._kept["categories"].get(groupby)
        several = not isinstance(groups, str) and isinstance(groups, Iterable)
        wanted = None if isinstance(groups, str) and groups == "all" else [_group(g, order) for g in (groups if several else [groups])]
        reference = _group(reference, order)
        # The drives call booleans true and false, and pandas True and False: both are known, and results have pandas'.
        booleans = order is None and {*(wanted or ()), reference} & {"True", "False"} and self._is_boolean(column)
        if booleans:
            wanted, reference = (None if wanted is None else [g.lower() for g in wanted]), reference.lower()
        if wanted is not None and not wanted:
            raise InvalidError("there are no groups to test: name at least one, or say groups=\"all\"")
        if wanted is not None and reference != "rest" and all(g == reference for g in wanted):
            raise InvalidError(f"group {reference!r} is the reference itself: name another group to compare with it")
        params = {"groupby": groupby, "reference": reference, "method": method, **self._place(matrix), "corr_method": corr_method, "transform": transform}
        if method == "wilcoxon":
            params["tie_correct"] = bool(tie_correct)
        if method == "logreg":
            from . import _logreg

            _check(corr_method, CORRECTIONS, "corr_method")
            res = _logreg.rank(self, matrix, params, asked, self._codes(groupby, column, cells), wanted, genes, n_genes, others)
        else:
            try:
                res = self._rank_groups(matrix, params, column, None if cells is None else self._codes(groupby, column, cells), wanted, n_genes, order, genes, pts)
            except NotFoundError as e:
                raise reworded(e, f"{e}; ds.pairwise({groupby!r}) compares every pair of groups") if reference == "pairwise" else e
            asked.apply(res, self, matrix, lambda: Cells.against(*self._codes(groupby, column, cells), None if reference == "rest" else reference, outside=True))
        if order is None and {*res.groups} <= {"true", "false"} and self._is_boolean(column):
            res._rename({"true": "True", "false": "False"})
        if not res.groups:
            raise InvalidError(f"there are no groups to test: no cell of {self.name} has a value in obs column {groupby!r}" + ("" if reference == "rest" else f" other than the reference {reference!r}"))
        self._warn_without_logarithms(layer, transform)
        self._warn_of_logarithms(layer, transform)
        res._n_cells = self.n_obs
        res._origin = self, matrix, partial(_values.grouping, self, groupby, None, cells)
        return res

    def ttest(
        self,
        a: Any,
        b: Any,
        equal_var: bool | None = None,
        *,
        method: Literal["t-test", "t-test_overestim_var", "student"] = "t-test",
        transform: Transform = _REQUIRED,
        corr_method: Literal["benjamini-hochberg", "bonferroni"] = "benjamini-hochberg",
        n_genes: int | None = None,
        layer: str | None = None,
        use_raw: bool | None = None,
        genes: Any = None,
        gene_symbols: str | None = None,
        min_pct: float | None = None,
        min_logfc: float | None = None,
        min_cells: int | None = None,
        logfc: Literal["scanpy", "seurat", "seurat4"] = "scanpy",
        overlap: bool = False,
        **others: Any,
    ) -> RankResult:
        """Compares two sets of cells gene by gene, like ``scipy.stats.ttest_ind``. The defaults are those of
        `rank_genes_groups`: Welch's test, unless `equal_var` or `method` says otherwise. `RankResult.test` and the
        result's text say which test it was.

        Parameters
        ----------
        a, b
            A dict of obs column to value or list of values (all must match), a boolean mask, a list of
            cell names or of numbers. Where each is one value of the same column, numbers are those of
            ``rank_genes_groups(column, groups=[a], reference=b)``, and drives that have kept the column's moments
            answer from these.
        equal_var
            True: Student's test. False: Welch's. None: the one that `method` says.
        method, transform, corr_method, n_genes, layer, use_raw, genes
        gene_symbols, min_pct, min_logfc, min_cells, logfc
            As in `rank_genes_groups`; `transform` is required here, too.
        overlap
            Whether cells may be in both sets. The test takes the sets for independent, which they are not then:
            p-values come out too large or too small.

        Raises
        ------
        InvalidError
            Cells are in both sets without `overlap`, or both sets are the same cells; `equal_var` and `method` say
            different tests; and as in `rank_genes_groups`.
        """
        method = chosen_method(method, T_TESTS)
        if equal_var is not None:
            if method != "t-test" and (method == "student") != bool(equal_var):
                raise InvalidError(f"equal_var={equal_var} and method={method!r} are different tests: give one of them")
            method = "student" if equal_var else method
        asked = Asked(logfc, gene_symbols, Filters(min_pct, min_logfc, min_cells))
        return self._two_sets("ttest", a, b, method, False, transform, corr_method, n_genes, layer, use_raw, genes, asked, overlap, others)

    # ---- inside

    def _two_sets(
        self,
        function: str,
        a: Any,
        b: Any,
        method: str,
        tie_correct: bool,
        transform: Any,
        corr_method: str,
        n_genes: int | None,
        layer: str | None,
        use_raw: bool | None,
        genes: Any,
        asked: Asked,
        overlap: bool,
        others: dict[str, Any],
    ) -> RankResult:
        """Compares two sets of cells, for the method `function`."""
        from . import _select

        for which, given in (("a", a), ("b", b)):
            if isinstance(given, str):
                example = f'{function}({{"cell_type": {given!r}}}, ...)'
                raise InvalidError(f"{which} is {given!r}, one text: cells are a dict of obs columns and values, a mask, or a list of names, as in {example}")
        a, b = _select.settled(a), _select.settled(b)
        refuse_others(function, others)
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        matrix = self._matrix(layer)
        self._check_not_empty(matrix)
        transform = self._remembered(transform, layer)
        if transform is _REQUIRED:
            raise InvalidError(_say_transform(self._what_values(layer)))
        check_transform(transform)
        check_n_genes(n_genes)
        self._warn_without_logarithms(layer, transform, 4)
        self._warn_of_logarithms(layer, transform, 4)
        label_a, label_b = _select.label(a, "first"), _select.label(b, "second")
        if label_a == label_b:
            label_a, label_b = f"{label_a} (first)", f"{label_b} (second)"
        in_a, in_b = _select.mask(a, self._shell.obs, "the first set"), _select.mask(b, self._shell.obs, "the second set")
        for label, chosen in ((label_a, in_a), (label_b, in_b)):
            if chosen.sum() < 2:
                raise InvalidError(f"{label!r} has {chosen.sum()} cells: a test needs at least two on each side")
        both = self._in_both(in_a, in_b, overlap)
        codes = np.where(in_a, 0, np.where(in_b, 1, -1)).astype(np.int32)
        names = [label_a, label_b]
        if both.any():  # a cell is in one group only: those in both sets get one of their own
            codes[both] = 2
            names = ["first alone", "second alone", "both"]
        of_column = None if both.any() else _group_moments.in_column(self, matrix, [a, b])
        if of_column is not None and of_column[1] != [[label_a], [label_b]]:
            of_column = None  # what is tested are single groups, each with another
        options: dict[str, Any] = {"method": method, "reference": label_b, "groups": [label_a], "correction": corr_method, "tie_correct": bool(tie_correct)}
        if of_column is not None:
            # As `rank_genes_groups` asks for this column: the drives may have kept it.
            spec = moments_spec(self, matrix, transform, self._column(of_column[0]), None, self._squares_single(method, matrix))
        else:
            spec = moments_spec(self, matrix, transform, None, (names, codes))
            options["overlap"] = [label_a, label_b] if both.any() else None
        res = self._rank(
            spec,
            matrix,
            options,
            {
                "groupby": None, "reference": label_b, "method": method, **self._place(matrix), "corr_method": corr_method, "transform": transform,
                **({"tie_correct": bool(tie_correct)} if method == "wilcoxon" else {}),
            },
            n_genes,
            None,
            double=True,
            genes=genes,
        )
        asked.apply(res, self, matrix, lambda: Cells(names, codes, lambda _: ([0, 2], [1, 2]) if both.any() else ([0], [1])))
        res._n_cells = self.n_obs
        res._origin = None if both.any() else (self, matrix, (names, codes))
        return res

    def _in_both(self, a: np.ndarray, b: np.ndarray, may_overlap: bool) -> np.ndarray:
        """A mask of the cells in both sets, which are an error unless there `may_overlap`."""
        both = a & b
        if not both.any():
            return both
        if both.sum() == a.sum() == b.sum():
            raise InvalidError(f"both sets are the same {int(both.sum()):,} cells of {self.name}: there is nothing to compare")
        if not may_overlap:
            count, first = int(both.sum()), str(self.obs_names[int(np.argmax(both))])
            told = f"cell {first!r} of {self.name} is" if count == 1 else f"{count:,} cells of {self.name} are"
            some = "" if count == 1 else f" ({first!r} is the first)"
            raise InvalidError(f"{told} in both sets{some}, and a test compares independent ones: leave such cells out of one of them, or say overlap=True to mean it")
        return both

    def _rank_groups(
        self,
        matrix: str,
        params: dict[str, Any],
        column: str,
        codes: tuple[list[str], np.ndarray] | None,
        wanted: list[str] | None,
        n_genes: int | None,
        order: list[str] | None,
        genes: Any,
        pts: bool,
    ) -> RankResult:
        """Tests the groups of the obs column that SQL calls `column`, or of `codes`, whose last group takes no part."""
        single = self._squares_single(params["method"], matrix)
        reference = None if params["reference"] == "rest" else params["reference"]
        options: dict[str, Any] = {"method": params["method"], "reference": reference, "groups": wanted, "correction": params["corr_method"]}
        options["tie_correct"] = params.get("tie_correct", False)
        if codes is not None:
            options["without_last"] = True
        spec = moments_spec(self, matrix, params["transform"], column if codes is None else None, codes, single)
        return self._rank(spec, matrix, options, params, n_genes, order, genes=genes, pts=pts)

    def _squares_single(self, method: str, matrix: str) -> bool:
        """Whether values are squared in float32: scanpy does so with float32 values. Student's test is compared with
        scipy, which works in doubles."""
        return bool(method != "student" and self._kept["matrices"][matrix]["dtype"] != "float64")

    def _rank(
        self,
        spec: str,
        matrix: str,
        options: dict[str, Any],
        params: dict[str, Any],
        n_genes: int | None,
        order: list[str] | None,
        double: bool = False,
        genes: Any = None,
        pts: bool = True,
    ) -> RankResult:
        from . import _rank_sums
        from ._rank import RankResult

        _check(options["correction"], CORRECTIONS, "corr_method")
        by_rank = options["method"] == "wilcoxon"
        selected = f"moments(idx, val, block, {_text(spec)}) AS moments"
        if by_rank:
            selected += f", rank_sums(idx, val, block, {_text(_rank_sums.literal(spec, options))}) AS ranks"
        of = parts(params["transform"])
        options["log_base"] = self._kept["log1p_base"] if of is None else of.base
        with self._unchanged():
            names = self._names(matrix)
            some = None
            if genes is not None:
                some = self._some_genes(genes, names)
                options["genes"] = some.tolist()
            queries = _rank_sums.Queries(self, matrix, selected, "gene_id", some, by_rank)
            try:
                ranked = _internal.rank_genes(queries, json.dumps(options))
            except InvalidError as e:
                raise self._with_names(e, matrix, params["transform"]) from e
        return RankResult(
            self.name,
            ranked,
            _of_genes(queries.receipt),
            params,
            n_genes,
            order,
            double,
            names,
            pts,
            ids=self._ids(matrix),
            var=lambda column: self._var_column(matrix, column),
        )

    def _ids(self, matrix: str) -> tuple[str, np.ndarray] | None:
        """The var column with the ids of genes whose names repeat, and the ids; None where names are enough."""
        column = self._kept.get("gene_ids", {}).get(matrix)
        try:
            return None if column is None else (column, self._var_column(matrix, column))
        except NotFoundError:  # a version has dropped it
            return None

    def _var_column(self, matrix: str, column: str) -> np.ndarray:
        """A var column of the genes of `matrix`, by number."""
        origin = self._kept["matrices"][matrix]["origin"]
        if origin.startswith(_features.ORIGIN):
            with self._unchanged():
                var = self._own_var(matrix)
        else:
            var = self._shell.raw.var if origin == "raw/X" else self._shell.var
        if column not in var.columns:
            raise NotFoundError(f"var of {self.name} has no column {column!r}: it has {', '.join(map(repr, var.columns)) or 'none'}{instead(column, var.columns)}")
        return var[column].astype(object).to_numpy()

    def _names(self, matrix: str) -> np.ndarray:
        """The names of a matrix's genes by number. They are asked for once, without the rest of var and obs, and apart
        from the test, whose result the drives can keep for other questions then."""
        if matrix not in self._gene_names:
            with self._unchanged():
                rows = self.fleet.sql(f"SELECT gene FROM {self.table(_features.var_table(matrix))}").to_arrow()
            array = rows.column("gene").to_pandas().to_numpy(object).copy()
            array.flags.writeable = False
            self._gene_names[matrix] = array
        return self._gene_names[matrix]

    def _some_genes(self, genes: Any, names: np.ndarray) -> np.ndarray:
        """The numbers of the genes that `genes` means, ascending, each once."""
        import pandas as pd

        from . import _select

        some = np.unique(_select.positions(genes, pd.Index(names), "gene", self._shell.var))
        if not len(some):
            raise InvalidError("there are no genes to test: genes= chooses none")
        return some

    def _codes(self, groupby: str, column: str, cells: Any) -> tuple[list[str], np.ndarray]:
        """Groups by number for `cells` alone (None for all): names, and for each cell the number of its group; the last
        group has the cells that take no part, and -1 are cells without a value."""
        from . import _select

        with self._unchanged():
            part = np.ones(self.n_obs, bool) if cells is None else _select.mask(_select.settled(cells), self._shell.obs, "cells=")
            if not part.any():
                raise InvalidError("there are no cells to test: cells= chooses none")
            values = self.fleet.sql(f"SELECT arrow_cast({_quoted(column)}, 'Utf8') AS g FROM {self.table('obs')}").to_arrow().column(0)
        named = values.combine_chunks().dictionary_encode()
        codes = named.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        # Groups without a cell among these are none, as after a selection in AnnData.
        used, here = np.unique(codes[part & (codes >= 0)], return_inverse=True)
        names = [str(named.dictionary[int(i)].as_py()) for i in used]
        order = {name: i for i, name in enumerate(self._kept["categories"].get(groupby) or sorted(names, key=_in_numbers))}
        ranks = sorted(range(len(names)), key=lambda i: order.get(names[i], len(order)))
        place = np.empty(len(names), np.int32)
        place[ranks] = np.arange(len(names), dtype=np.int32)
        numbers = np.full(len(part), -1, np.int32)
        numbers[part & (codes >= 0)] = place[here] if len(names) else -1
        numbers[~part] = len(names)
        outside = "cells that take no part"
        while outside in names:
            outside += "."
        return [*(names[i] for i in ranks), outside], numbers

    def _place(self, matrix: str) -> dict[str, Any]:
        """Where a matrix is in AnnData, as scanpy's parameters say it."""
        origin = self._kept["matrices"][matrix]["origin"]
        layer = next((origin.removeprefix(kind) for kind in ("layers/", _features.ORIGIN) if origin.startswith(kind)), None)
        return {"use_raw": origin == "raw/X", "layer": layer}

    def _column(self, groupby: str) -> str:
        """What the obs column `groupby` is called in SQL."""
        known = self._kept.get("obs_in_sql")
        if known is None:  # ingested before this was noted
            return groupby
        if groupby in known:
            return known[groupby]
        if groupby in self._kept["not_in_sql"]["obs"]:
            raise UnsupportedError(f"obs column {groupby!r} of {self.name} holds what a table can't: make it text, numbers or categories, and ingest it again")
        raise NotFoundError(f"obs of {self.name} has no column {groupby!r}: it has {', '.join(map(repr, known)) or 'none'}{instead(groupby, known)}")

    def _is_boolean(self, column: str) -> bool:
        import pyarrow as pa

        with self._unchanged():
            return pa.types.is_boolean(pa.schema(self.fleet.sql(f"SELECT {_quoted(column)} FROM {self.table('obs')} LIMIT 0")).field(0).type)

    def _check_not_empty(self, matrix: str) -> None:
        cells, genes = self._kept["matrices"][matrix]["shape"]
        if not cells or not genes:
            raise InvalidError(f"{self.name} has no {'cells' if not cells else 'genes'}: there is nothing to test")

    def _matrix(self, layer: str | None) -> str:
        tables = self._tables()
        if layer not in tables:
            there = ", ".join(repr(n) for n in self.layers)
            raise NotFoundError(f"{self.name} has no layer {layer!r}: " + (f"it has {there}, and None for the main one" if there else "it has only the main matrix (layer=None)") + instead(layer, self.layers))
        return tables[layer]

    def _is_counts(self, layer: str | None) -> bool:
        import pyarrow as pa

        rows = self.table(f"{self._matrix(layer)}_rows")
        with self._unchanged():
            field = pa.schema(self.fleet.sql(f"SELECT val FROM {rows} LIMIT 0")).field(0)
        return pa.types.is_integer(field.type.value_type)

    @cached_property
    def _known_as_counts(self) -> dict[str, bool]:
        """By matrix, whether it is stored as integers, where a test asked: it is asked once, as tests are repeated."""
        return {}

    def _warn_without_logarithms(self, layer: str | None, transform: Any, stacklevel: int = 3) -> None:
        if transform is None and self._is_counts(layer):
            warnings.warn(_OF_COUNTS.format(self.name), stacklevel=stacklevel)
        elif transform is not None and not takes_logs(transform):
            warnings.warn(f"{written(transform)} takes no logarithm, and fold changes are those of logarithms: they mean little here", stacklevel=stacklevel)

    def _warn_of_logarithms(self, layer: str | None, transform: Any, stacklevel: int = 3) -> None:
        if transform is None:
            return
        matrix = self._matrix(layer)
        if matrix not in self._known_as_counts:
            self._known_as_counts[matrix] = self._is_counts(layer)
        if not self._known_as_counts[matrix]:
            warnings.warn(
                f"{self._what_values(layer)}, and {written(transform)} normalises them"
                f"{' and takes their logarithm (once more, if they are logarithms)' if takes_logs(transform) else ''}: "
                "say transform=None to compare them as they are; estimated counts, which need not be integers, are right as it is",
                stacklevel=stacklevel,
            )

    def _what_values(self, layer: str | None) -> str:
        which = "its values" if layer is None else f"the values of layer {layer!r}"
        if self._is_counts(layer):
            return f"{which} are all non-negative integers, which looks like raw counts"
        return f"{which} are not all integers, which looks like normalised data"


def _of_genes(receipt: Receipt) -> Receipt:
    """The receipt of a query of a row per gene."""
    return Receipt(receipt._json, re.sub(r"\A([\d,]+) row(s?)\b", r"\1 gene\2", receipt._tree), receipt._operators)


def _group(group: Any, order: list[str] | None) -> str:
    """A group's name as the drives say it: booleans are ``true`` and ``false``, unless they are categories."""
    text = str(group)
    return text.lower() if isinstance(group, (bool, np.bool_)) and text not in (order or ()) else text


def _in_numbers(name: str) -> tuple[float, str]:
    """Orders texts of numbers as numbers, before others."""
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name


def _text(value: str) -> str:
    """A text in SQL."""
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check(value: str, allowed: tuple[str, ...], what: str) -> None:
    if value not in allowed:
        raise InvalidError(f"{what} {value!r} does not exist: use one of {', '.join(map(repr, allowed))}{instead(value, allowed)}")
