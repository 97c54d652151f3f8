"""The result of a differential expression test, in the shapes that scanpy users know."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import numpy as np

from skytether import InvalidError, NotFoundError, Receipt

from . import _filters
from ._arguments import check_n_genes
from ._hints import instead
from ._rank_plots import RankPlots
from ._transforms import said, values_said

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

#: The tests in words.
TESTS = {
    "t-test": "Welch's t-test",
    "t-test_overestim_var": "t-test with overestimated variance",
    "student": "Student's t-test",
    "wilcoxon": "Wilcoxon rank sum test",
    "logreg": "logistic regression",
}

#: scanpy's columns and their types.
_COLUMNS = {
    "names": object,
    "scores": np.float32,
    "logfoldchanges": np.float32,
    "pvals": np.float64,
    "pvals_adj": np.float64,
}


class RankResult(RankPlots):
    """Genes ranked for one or more groups of cells; best score first."""

    def __init__(
        self,
        dataset: str,
        ranked: Any,
        receipt: Receipt,
        params: dict[str, Any],
        n_genes: int | None,
        order: list[str] | None,
        double: bool,
        genes: np.ndarray,
        pts: bool = True,
        ids: tuple[str, np.ndarray] | None = None,
        var: Callable[[str], np.ndarray] | None = None,
    ) -> None:
        import pyarrow as pa

        #: The data set's name.
        self.dataset = dataset
        #: What ran where, and how little moved.
        self.receipt = receipt
        #: That, and what ran after it where fold changes needed more than the test.
        self.receipts = [receipt]
        #: What was asked for, `transform` included; the keys of scanpy's
        #: ``uns["rank_genes_groups"]["params"]`` and ``transform``.
        self.params = params
        self._n_genes, self._double, self._pts = n_genes, double, pts
        # The genes' names by number; their ids and those ids' var column, where names are not enough; any var column.
        self._genes, self._ids, self._var = genes, ids, var
        #: The var column whose names tables and plots have, unless they are asked for another one.
        self._symbols: str | None = None
        table = pa.table(ranked)
        # A batch per group, all of them with every gene.
        self._ranked: dict[str, pa.RecordBatch] = {batch.column("group")[0].as_py(): batch for batch in table.to_batches()}
        #: Columns of tables: a regression has scores only.
        self._labels = [label for label in _COLUMNS if label == "names" or label in table.column_names]
        #: By group where genes are left out: places in its batch, and which of them are shown.
        self._picked: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        known = {g: i for i, g in enumerate(order or [])}
        #: The groups tested, in the order of the obs column's categories.
        self.groups: list[str] = sorted(self._ranked, key=lambda g: known.get(g, len(known)))

    def to_df(self, group: str | Iterable[str] | None = None, *, gene_symbols: str | None = None) -> pd.DataFrame:
        """One row per gene (and group), with the columns of ``scanpy.get.rank_genes_groups_df``.

        Columns: `group` (categorical; only if there are several), `names`, `scores`, `logfoldchanges` (base 2),
        `pvals`, `pvals_adj`, `pct_nz_group` and `pct_nz_reference` (shares of cells with the gene, 0 to 1). Scores are
        float32 as in scanpy, float64 from `Dataset.ttest` and `Dataset.wilcoxon`. Where genes share a name, or did
        before an ingest made their names unique, the var column with their ids (`gene_ids`) is next to `names`.

        `gene_symbols` is a var column to have next to `names`, for example `feature_name` of CELLxGENE's files; left
        out, it is the one that the test was asked for. It is read from the data set: `NotFoundError` if there is no
        such column, `ConflictError` if the data set was replaced.
        """
        import pandas as pd

        several = isinstance(group, Iterable) and not isinstance(group, str)
        chosen = self.groups if group is None else [self._name(g) for g in (group if several else [group])]
        lengths = [len(self._values(name, "gene_id")) for name in chosen]
        ends = np.cumsum([0, *lengths])

        def joined(label: str, kind: Any) -> np.ndarray:
            out = np.empty(ends[-1], kind)
            for name, start, stop in zip(chosen, ends[:-1], ends[1:]):
                if label == "names":
                    np.take(self._genes, self._values(name, "gene_id"), out=out[start:stop], mode="clip")
                else:
                    out[start:stop] = self._values(name, label)
            return out

        genes = np.concatenate([self._values(name, "gene_id") for name in chosen]) if chosen else np.zeros(0, np.int64)
        more = {} if self._ids is None else {self._ids[0]: self._ids[1][genes]}
        gene_symbols = gene_symbols or self._symbols
        if gene_symbols is not None:
            if self._var is None:
                raise InvalidError("this result has no data set to take gene_symbols from")
            more[gene_symbols] = self._var(gene_symbols)[genes]
        columns = {"names": joined("names", object), **more, **{label: joined(label, self._kind(label)) for label in self._labels if label != "names"}}
        if self._has_tests:
            columns["pct_nz_group"] = joined("pct_nz_group", np.float64)
            columns["pct_nz_reference"] = joined("pct_nz_reference", np.float64)
        if len(chosen) > 1:
            # In the type that pandas keeps codes in, so that it need not convert and check them.
            codes = np.repeat(np.arange(len(chosen), dtype=np.min_scalar_type(-len(chosen))), lengths)
            columns = {"group": pd.Categorical.from_codes(codes, categories=chosen), **columns}
        return pd.DataFrame(columns, copy=False)

    def __getitem__(self, group: Any) -> pd.DataFrame:
        """The genes of one group, as `to_df` gives them: ``res["B"]``. Of a result of one group a column, too:
        ``res["scores"]``.

        Raises
        ------
        NotFoundError
            There is no such group; the text lists those that there are.
        """
        columns = (*_COLUMNS, "pct_nz_group", "pct_nz_reference", *(() if self._ids is None else self._ids[:1]))
        if isinstance(group, str) and group not in self._ranked and len(self.groups) == 1 and group in columns:
            return self.to_df()[group]
        return self.to_df(group)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # It is there, and raised an error of its own, which is not to be hidden.
            return object.__getattribute__(self, name)
        if name in (*_COLUMNS, "pts"):
            raise AttributeError(f"a result has its columns in data frames: res.to_df(group)[{name!r}], or res[group][{name!r}]")
        if name in ("df", "head", "tail", "iloc", "loc", "columns", "sort_values", "query", "to_excel", "shape"):
            raise AttributeError(f"a result is no data frame, but res.to_df() and res[group] are: res.to_df().{'head()' if name == 'df' else name}")
        if name == "plot":
            raise AttributeError("a result has several plots: res.plot_volcano(group), plot_dotplot(), plot_heatmap() and plot_violin(group)")
        more = "" if name.startswith("_") else instead(name, (known for known in (*dir(type(self)), *self.__dict__) if not known.startswith("_")))
        raise AttributeError(f"a result has no attribute {name!r}{more}")

    def __contains__(self, group: object) -> bool:
        """Whether a group was tested."""
        return self._name(group) in self._ranked

    def __iter__(self) -> Iterator[str]:
        """The names of the groups, in the order of `groups`."""
        return iter(self.groups)

    def __len__(self) -> int:
        """The number of groups that were tested."""
        return len(self.groups)

    @property
    def test(self) -> str:
        """Which test it was, in words: ``Welch's t-test``."""
        return TESTS[self.params["method"]] + (", corrected for ties" if self.params.get("tie_correct") else "")

    def to_csv(self, path: Any = None, group: str | Iterable[str] | None = None, *, gene_symbols: str | None = None, **options: Any) -> str | None:
        """`to_df` as CSV, written to `path` or, without one, given as text. `gene_symbols` is as in `to_df`, and
        `options` are those of ``pandas.DataFrame.to_csv``; rows have no numbers in front unless ``index=True``.

        Raises
        ------
        InvalidError
            The file can't be written.
        NotFoundError
            There is no such group, or no such var column.
        """
        options.setdefault("index", False)
        options.setdefault("lineterminator", "\n")
        frame = self.to_df(group, gene_symbols=gene_symbols)
        if group is None and len(self.groups) == 1:
            # A file is read without this object.
            frame.insert(0, "group", self.groups[0])
        try:
            return frame.to_csv(path, **options)
        except OSError as e:
            raise InvalidError(f"cannot write {path}: {e.strerror or e}") from e

    def to_uns(self) -> dict[str, Any]:
        """What ``scanpy.tl.rank_genes_groups(..., pts=True)`` puts into ``adata.uns["rank_genes_groups"]``, so that
        scanpy's plots and getters work on it; without the shares of cells, if the test was asked for ``pts=False``.
        Genes that a filter left out have the name NaN, as ``scanpy.tl.filter_rank_genes_groups`` has it."""
        import pandas as pd

        out: dict[str, Any] = {"params": {**self.params, "transform": said(self.params["transform"])}}
        columns = {label: [self._record(g, label) for g in self.groups] for label in self._labels}
        length = max(map(len, columns["names"]), default=0)
        for label in self._labels:
            records = np.empty(length, dtype=[(g, _COLUMNS[label]) for g in self.groups])
            # By position: numpy has no fields without a name, but a group may have none.
            for called, values in zip(records.dtype.names or (), columns[label]):
                records[called] = values
            out[label] = records.view(np.recarray)
        if not self._pts or not self._has_tests:
            return out
        index = self._genes[self._tested()]
        out["pts"] = pd.DataFrame({g: self._in_gene_order(g, "pct_nz_group") for g in self.groups}, index=index)
        rest = pd.DataFrame({g: self._in_gene_order(g, "pct_nz_reference") for g in self.groups}, index=index)
        if self.params["reference"] == "rest":
            out["pts_rest"] = rest
        elif self.groups:
            out["pts"][self.params["reference"]] = rest[self.groups[0]]
        return out

    to_adata_uns = to_uns

    def top(self, n: int = 10) -> pd.DataFrame:
        """The names of the `n` best genes of each group: a column per group, a row per rank. They are those of
        `gene_symbols`, if the test was asked for these.

        Raises
        ------
        InvalidError
            `n` is no whole number from 1 on.
        """
        import pandas as pd

        check_n_genes(n)
        names = self._shown_names()
        return pd.DataFrame({g: pd.Series(names[self._values(g, "gene_id")[:n]], dtype=object) for g in self.groups})

    def filter(self, *, min_in_group_fraction: float = 0.25, max_out_group_fraction: float = 0.5, min_fold_change: float = 1, compare_abs: bool = False) -> RankResult:
        """The result without the genes that ``scanpy.tl.filter_rank_genes_groups`` leaves out, with its defaults. All
        numbers stay as they are, corrected p-values as well; of a result with `n_genes`, genes are left out of these.

        Parameters
        ----------
        min_in_group_fraction
            Genes stay that more than this share of the group's cells have (0 to 1).
        max_out_group_fraction
            Genes stay that fewer than this share of the reference's cells have. scanpy takes all other cells here, even
            where the reference is one group.
        min_fold_change
            Genes stay with a greater log2 fold change.
        compare_abs
            True: with a greater absolute one.

        Raises
        ------
        InvalidError
            A share is not within 0 and 1; the result is of a regression, which has neither shares nor fold changes.
        """
        self._check_tests("filter() compares")
        _filters.share("min_in_group_fraction", min_in_group_fraction)
        _filters.share("max_out_group_fraction", max_out_group_fraction)
        _filters.number("min_fold_change", min_fold_change, -np.inf)
        out = copy.copy(self)
        out._picked = {}
        for g in self.groups:
            rows, shown = self._picked.get(g) or (np.arange(len(self._values(g, "gene_id"))), True)
            folds = self._ranked[g].column("logfoldchanges").to_numpy().astype(_COLUMNS["logfoldchanges"])[rows]
            inside, outside = (self._ranked[g].column(f"pct_nz_{which}").to_numpy()[rows] for which in ("group", "reference"))
            stays = (inside > min_in_group_fraction) & (outside < max_out_group_fraction)
            out._picked[g] = rows, shown & stays & ((np.abs(folds) if compare_abs else folds) > min_fold_change)
        return out

    def plot_volcano(
        self, group: str | None = None, ax: matplotlib.axes.Axes | None = None, path: str | os.PathLike[str] | None = None, *, label: int = 12, lfc: float = 1.0, p: float = 0.05
    ) -> matplotlib.axes.Axes:
        """Log fold changes against p-values of one group. The axes that it gives have the genes that are drawn as
        `data`: a frame with the columns of `to_df` and `side`, which is ``"higher"``, ``"lower"`` or empty.

        Parameters
        ----------
        group
            Which group; may be left out if there is only one.
        ax
            Where to draw; None for a new figure.
        path
            Where to save it; the ending chooses the format (.png, .svg, .pdf).
        label
            How many genes to name on each side.
        lfc, p
            Where the lines are: genes beyond both in colour. `lfc` is not negative, `p` above 0 and at most 1.

        Raises
        ------
        InvalidError
            `lfc` or `p` is none of these; `group` is left out and there are several.
        NotFoundError
            There is no such group.
        """
        from ._plot import volcano

        if not 0 < p <= 1:
            raise InvalidError(f"p is {p!r}: the line of significance is at a p-value above 0 and at most 1")
        if not 0 <= lfc < np.inf:
            raise InvalidError(f"lfc is {lfc!r}: the lines of the fold change are at minus and plus a number that is not negative")
        self._check_tests("a volcano plot shows")
        if group is None:
            if len(self.groups) != 1:
                raise InvalidError(f"say which group: {', '.join(map(repr, self.groups))}")
            group = self.groups[0]
        group = self._name(group)
        frame = self._frame_of_all(group)
        reference = "all other cells" if self.params["reference"] == "rest" else str(self.params["reference"])
        return volcano(frame, f"{group} against {reference}", self._subtitle(), ax, path, label, lfc, p)

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} group{'' if len(self.groups) == 1 else 's'}"
        return f"<msgexpress.RankResult of {self.dataset}: {groups}, {len(self._tested()):,} genes, {self._subtitle()}>"

    def _repr_html_(self) -> str:
        import html

        return f"<p>{html.escape(self.dataset)}: {html.escape(self._subtitle())}</p>{self.top(10).to_html(na_rep='')}"

    # ---- inside

    def _rename(self, names: dict[str, str]) -> None:
        """Calls groups otherwise, and the reference, too."""
        self._ranked = {names.get(g, g): batch for g, batch in self._ranked.items()}
        self._picked = {names.get(g, g): picked for g, picked in self._picked.items()}
        self.groups = [names.get(g, g) for g in self.groups]
        self.params["reference"] = names.get(self.params["reference"], self.params["reference"])

    def _name(self, group: Any) -> str:
        """A group as `groups` names it: numbers are written out, also whole ones of a column of fractions, and booleans
        may be written as SQL does."""
        text = str(group)
        if text not in self._ranked:
            if isinstance(group, (int, np.integer)) and not isinstance(group, bool) and str(float(group)) in self._ranked:
                return str(float(group))
            if text.capitalize() in ("True", "False") and {*self.groups} <= {"True", "False"}:
                return text.capitalize()
        return text

    def _subtitle(self) -> str:
        return subtitle(self.params)

    @property
    def _has_tests(self) -> bool:
        """Whether there are p-values, fold changes and shares of cells: a regression has scores alone."""
        return len(self._labels) == len(_COLUMNS) or not self._ranked

    def _check_tests(self, does: str) -> None:
        if not self._has_tests:
            raise InvalidError(f"{does} p-values and fold changes, and a logistic regression has scores only: use a t-test")

    def _replace_folds(self, folds: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        """Other fold changes, by group: genes (numbers, ascending) and a value for each."""
        import pyarrow as pa

        for g, (genes, values) in folds.items():
            batch = self._ranked[g]
            at = np.searchsorted(genes, batch.column("gene_id").to_numpy())
            self._ranked[g] = batch.set_column(batch.schema.get_field_index("logfoldchanges"), batch.schema.field("logfoldchanges"), pa.array(values[at]))

    def _shown_names(self) -> np.ndarray:
        """What tables call the genes, by number."""
        return self._genes if self._symbols is None or self._var is None else self._var(self._symbols)

    def _keep(self, filters: _filters.Filters, cells: Callable[[str], tuple[int, int]]) -> None:
        """Shows only what passes `filters`, before `n_genes` cuts; `cells` gives the sizes of a group and its
        reference."""
        found = {}
        for g, batch in self._ranked.items():
            columns = (batch.column(label).to_numpy() for label in ("pct_nz_group", "pct_nz_reference", "logfoldchanges"))
            passed = filters.passed(*columns, cells=lambda g=g: cells(g))
            found[g] = np.flatnonzero(passed)[: self._n_genes], np.flatnonzero(~passed)
        # scanpy's records are of one length: those of groups with fewer genes end with genes that were left out.
        length = max((len(kept) for kept, _ in found.values()), default=0)
        self._picked = {g: (np.r_[kept, lost][:length], np.arange(min(length, len(kept) + len(lost))) < len(kept)) for g, (kept, lost) in found.items()}

    def _record(self, group: str, label: str) -> np.ndarray:
        """A column of scanpy's records, genes that are left out among them."""
        if group not in self._picked:
            return self._column(group, label)
        rows, shown = self._picked[group]
        values = self._ranked[group].column("gene_id" if label == "names" else label).to_numpy()[rows]
        return values.astype(self._kind(label), copy=False) if label != "names" else np.where(shown, self._genes[values], np.nan)

    def _values(self, group: str, column: str, everything: bool = False) -> np.ndarray:
        if group not in self._ranked:
            raise NotFoundError(f"there is no group {group!r} in this result: there are {', '.join(map(repr, self.groups)) or 'none'}{instead(group, self.groups)}")
        values = self._ranked[group].column(column).to_numpy()
        if everything:
            return values
        if group in self._picked:
            rows, shown = self._picked[group]
            return values[rows[shown]]
        return values[: self._n_genes]

    def _kind(self, label: str) -> Any:
        return object if label == "names" else np.float64 if self._double else _COLUMNS[label]

    def _column(self, group: str, label: str) -> np.ndarray:
        if label == "names":
            return self._genes[self._values(group, "gene_id")]
        return self._values(group, label).astype(self._kind(label), copy=False)

    def _frame_of_all(self, group: str) -> pd.DataFrame:
        import pandas as pd

        columns = {"names": self._shown_names()[self._values(group, "gene_id", True)]}
        for label in _COLUMNS:
            if label != "names":
                columns[label] = self._values(group, label, True)
        return pd.DataFrame(columns)

    def _in_gene_order(self, group: str, column: str) -> np.ndarray:
        out = np.empty(len(self._genes))
        out[self._values(group, "gene_id", True)] = self._values(group, column, True)
        return out[self._tested()]

    def _tested(self) -> np.ndarray:
        """The numbers of the genes that were tested, ascending."""
        return np.sort(self._values(self.groups[0], "gene_id", True)) if self.groups else np.arange(len(self._genes))


def subtitle(params: dict[str, Any]) -> str:
    """What was asked for, in words."""
    transform = params["transform"]
    values = "log1p of counts per 10,000" if transform == "log1p_cp10k" else "values as stored" if transform is None else values_said(transform)
    if params["method"] == "logreg":
        return f"{TESTS['logreg']}, {values}"
    folds = {"seurat": ", Seurat 5's fold changes", "seurat4": ", Seurat 4's fold changes"}.get(params.get("logfc", "scanpy"), "")
    least = "".join(f", {name} {params[name]:g}" for name in ("min_pct", "min_logfc", "min_cells") if params.get(name) is not None)
    return f"{TESTS[params['method']]}, {values}, {params['corr_method']}{folds}{least}"
