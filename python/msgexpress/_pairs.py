"""Each group against each other one, from one look at the matrix: the tests are computed here, of moments.

The formulas are those of the drives (docs/internals/grouped-moments.md); scipy gives Student's distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

import numpy as np

from skytether import InvalidError, NotFoundError, Receipt

from . import _filters, _folds
from ._arguments import check_n_genes
from ._group_moments import GroupMoments
from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

#: What scanpy adds to both sides of a fold change, so that there is no division by zero.
_NEARLY_ZERO = 1e-9


class PairwiseResult:
    """Genes ranked for every ordered pair of groups, best score first. Tables are made when they are asked for: what is
    kept are the moments of each gene and group."""

    def __init__(
        self,
        dataset: str,
        moments: GroupMoments,
        groups: list[str],
        params: dict[str, Any],
        n_genes: int | None,
        genes: np.ndarray,
        filters: _filters.Filters,
        log_base: float | None,
        means: _folds.Means | None = None,
        symbols: tuple[str, np.ndarray] | None = None,
        names: dict[str, str] | None = None,
        ranks: tuple[dict[str, tuple[np.ndarray, np.ndarray | None]], list[Receipt]] | None = None,
    ) -> None:
        #: The data set's name.
        self.dataset = dataset
        #: What ran where, and how little moved.
        self.receipt: Receipt = moments.receipt
        #: That, and what ran after it: rank sums, and where fold changes needed more than the tests.
        self.receipts = [moments.receipt] + ([] if ranks is None else ranks[1]) + ([] if means is None else [means.receipt])
        #: The groups, in the order of the obs column's categories; each is compared with each other one.
        self.groups = [(names or {}).get(g, g) for g in groups]
        #: What was asked for.
        self.params = params
        self._moments, self._n_genes, self._filters, self._means, self._symbols = moments, n_genes, filters, means, symbols
        self._names = genes
        self._factor = 1.0 if log_base is None else float(np.log(log_base))
        self._at = {name: moments.names.index(g) for name, g in zip(self.groups, groups)}
        # By number of the reference.
        self._ranks = None if ranks is None else {moments.names.index(g): found for g, found in ranks[0].items()}

    @property
    def test(self) -> str:
        """Which test it was, in words: ``Welch's t-test``."""
        from ._rank import TESTS

        return TESTS[self.params["method"]] + (", corrected for ties" if self.params.get("tie_correct") else "")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The ordered pairs: a group, and the reference that it is compared with."""
        return [(a, b) for a in self.groups for b in self.groups if a != b]

    def to_df(self, group: str | Iterable[str] | None = None, reference: str | Iterable[str] | None = None) -> pd.DataFrame:
        """One row per gene and pair, best score of a pair first; pairs in the order of `pairs`. Left out, `group` and
        `reference` are all; n groups and g genes make n (n - 1) g rows.

        Columns: `group`, `reference` (categorical), `names`, then those of `RankResult.to_df`: `scores` and
        `logfoldchanges` (float32), `pvals`, `pvals_adj` (corrected for the genes of one pair), `pct_nz_group`,
        `pct_nz_reference`.

        Raises
        ------
        NotFoundError
            There is no such group.
        InvalidError
            The group is the reference itself.
        """
        import pandas as pd

        firsts, seconds = self._chosen(group), self._chosen(reference)
        frames = [self._frame(a, b) for a in firsts for b in seconds if a != b]
        if not frames:
            raise InvalidError(f"group {firsts[0]!r} is the reference itself: name another group to compare with it")
        return pd.concat(frames, ignore_index=True)

    def __getitem__(self, pair: tuple[str, str]) -> pd.DataFrame:
        """The genes of a pair, as `to_df` gives them: ``res["B", "NK"]``. Errors as of `to_df`, and an `InvalidError`
        for what is no pair."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidError(f"{pair!r} is no pair of groups: write res[group, reference]")
        return self.to_df(*pair)

    def top(self, n: int = 10) -> pd.DataFrame:
        """The names of the `n` best genes of each pair: a column per pair (`group`, `reference`), a row per rank.
        `InvalidError` if `n` is no whole number from 1 on."""
        import pandas as pd

        check_n_genes(n)
        column = "names" if self._symbols is None else self._symbols[0]
        found = {pair: pd.Series(self._frame(*pair)[column].to_numpy(object)[:n], dtype=object) for pair in self.pairs}
        out = pd.DataFrame(found)
        out.columns = pd.MultiIndex.from_tuples(list(found), names=["group", "reference"])
        return out

    def summary(self, group: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Per gene and group what holds against every other group, best first: genes that mark a group against each one
        and not only against most of them.

        Columns: `group`, `names`, `min_score` (the least score over all references) and `min_reference` (the group that
        has it; the first of equal ones), `min_logfoldchange`, `max_pval_adj`, `pct_nz_group`, `max_pct_nz_reference`.
        Genes that a filter leaves out against any reference are left out; `n_genes` counts for each group.

        Raises
        ------
        NotFoundError
            There is no such group.
        """
        import pandas as pd

        frames = []
        for g in self._chosen(group):
            others = [other for other in self.groups if other != g]
            tests = [self._tested(g, other) for other in others]
            scores = np.stack([t["scores"] for t in tests])
            worst = scores.argmin(axis=0)
            columns = {
                "min_score": scores.min(axis=0).astype(np.float32),
                "min_reference": pd.Categorical.from_codes(np.array([self.groups.index(o) for o in others])[worst], categories=self.groups),
                "min_logfoldchange": np.stack([t["logfoldchanges"] for t in tests]).min(axis=0).astype(np.float32),
                "max_pval_adj": np.stack([t["pvals_adj"] for t in tests]).max(axis=0),
                "pct_nz_group": tests[0]["pct_nz_group"],
                "max_pct_nz_reference": np.stack([t["pct_nz_reference"] for t in tests]).max(axis=0),
            }
            kept = np.logical_and.reduce([self._passed(g, other, t) for other, t in zip(others, tests)])
            frames.append(self._table({"group": g}, columns, scores.min(axis=0), kept))
        return pd.concat(frames, ignore_index=True)

    def to_csv(self, path: Any = None, group: str | Iterable[str] | None = None, reference: str | Iterable[str] | None = None, **options: Any) -> str | None:
        """`to_df` as CSV, written to `path` or, without one, given as text; `options` are those of
        ``pandas.DataFrame.to_csv``. Errors as of `to_df`, and an `InvalidError` if the file can't be written."""
        options.setdefault("index", False)
        options.setdefault("lineterminator", "\n")
        try:
            return self.to_df(group, reference).to_csv(path, **options)
        except OSError as e:
            raise InvalidError(f"cannot write {path}: {e.strerror or e}") from e

    def __len__(self) -> int:
        """The number of ordered pairs."""
        return len(self.groups) * (len(self.groups) - 1)

    def __repr__(self) -> str:
        return f"<msgexpress.PairwiseResult of {self.dataset}: {len(self)} pairs of {len(self.groups)} groups, {len(self._moments.genes):,} genes, {self._subtitle()}>"

    # ---- inside

    def _subtitle(self) -> str:
        from ._rank import subtitle

        return subtitle(self.params)

    def _chosen(self, group: Any) -> list[str]:
        several = isinstance(group, Iterable) and not isinstance(group, str)
        chosen = self.groups if group is None else [str(g) for g in (group if several else [group])]
        for g in chosen:
            if g not in self._at:
                raise NotFoundError(f"there is no group {g!r} in this result: there are {', '.join(map(repr, self.groups))}{instead(g, self.groups)}")
        return chosen

    def _tested(self, group: str, reference: str) -> dict[str, np.ndarray]:
        """The test of every gene, in the order of genes."""
        m, (a, b) = self._moments, (self._at[group], self._at[reference])
        if self._ranks is not None:
            sums, ties = self._ranks[b]
            scores, pvals = rank_sum_test(m.n[a], m.n[b], sums[:, a], ties[:, a] if self.params["tie_correct"] else None)
        else:
            scores, pvals = t_test(self.params["method"], (m.n[a], m.mean[:, a], m.m2[:, a]), (m.n[b], m.mean[:, b], m.m2[:, b]))
        if self._means is not None:
            folds = self._means.fold([a], [b])
        else:
            folds = np.log2((np.expm1(m.mean[:, a] * self._factor) + _NEARLY_ZERO) / (np.expm1(m.mean[:, b] * self._factor) + _NEARLY_ZERO))
        return {
            "scores": scores,
            "logfoldchanges": folds,
            "pvals": pvals,
            "pvals_adj": corrected(pvals, self.params["corr_method"]),
            "pct_nz_group": m.nnz[:, a] / m.n[a],
            "pct_nz_reference": m.nnz[:, b] / m.n[b],
        }

    def _passed(self, group: str, reference: str, tested: dict[str, np.ndarray]) -> np.ndarray:
        sizes = int(self._moments.n[self._at[group]]), int(self._moments.n[self._at[reference]])
        return self._filters.passed(tested["pct_nz_group"], tested["pct_nz_reference"], tested["logfoldchanges"], lambda: sizes)

    def _frame(self, group: str, reference: str) -> pd.DataFrame:
        tested = self._tested(group, reference)
        columns = {**tested, "scores": tested["scores"].astype(np.float32), "logfoldchanges": tested["logfoldchanges"].astype(np.float32)}
        return self._table({"group": group, "reference": reference}, columns, tested["scores"], self._passed(group, reference, tested))

    def _table(self, of: dict[str, str], columns: dict[str, Any], scores: np.ndarray, kept: np.ndarray) -> pd.DataFrame:
        """A frame of the genes that are `kept`, the highest of `scores` first; equal ones in the order of genes."""
        import pandas as pd

        order = np.argsort(-scores, kind="stable")
        order = order[kept[order]][: self._n_genes]
        genes = self._moments.genes[order]
        groups = {label: pd.Categorical.from_codes(np.full(len(order), self.groups.index(g)), categories=self.groups) for label, g in of.items()}
        symbols = {} if self._symbols is None else {self._symbols[0]: self._symbols[1][genes]}
        return pd.DataFrame({**groups, "names": self._names[genes], **symbols, **{label: values[order] for label, values in columns.items()}})


#: A sample: its size, and per gene the mean and the sum of squared differences from it.
Sample = tuple[Any, np.ndarray, np.ndarray]


def t_test(method: str, first: Sample, second: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Statistics and two-sided p-values of `first` against `second`: Welch's test, scanpy's with overestimated
    variance, or Student's (scipy's `ttest_ind_from_stats`, scanpy's `rank_genes_groups`).

    Equal means without variance give 0 and 1; others without variance an infinite statistic and 0.
    """
    from scipy.special import stdtr

    (n1, mean1, sum1), (n2, mean2, sum2) = first, second
    n1, n2 = float(n1), float(n2)
    v1, v2 = sum1 / (n1 - 1), sum2 / (n2 - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        if method == "student":
            df: Any = n1 + n2 - 2
            error = (sum1 + sum2) / df * (1 / n1 + 1 / n2)
        else:
            of = n1 if method == "t-test_overestim_var" else n2
            a, b = v1 / n1, v2 / of
            error = a + b
            df = error**2 / (a**2 / (n1 - 1) + b**2 / (of - 1))
        t = (mean1 - mean2) / np.sqrt(error)
        p = 2 * stdtr(df, -np.abs(t))
    same = np.isnan(t)
    p = np.where(np.isinf(t), 0.0, p)
    return np.where(same, 0.0, t), np.where(same, 1.0, p)


def rank_sum_test(n1: Any, n2: Any, sums: np.ndarray, ties: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """z and two-sided p-values of Wilcoxon's test of `n1` cells with these sums of midranks against `n2` others. `ties`
    are the sums of t^3 - t over all ties of t cells, or None for a variance as without any. Equal cells give 0 and 1.
    """
    from scipy.special import erfc

    n1, n2 = float(n1), float(n2)
    n = n1 + n2
    of_ties = 1.0 if ties is None else 1 - ties / (n**3 - n)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (sums - n1 * (n + 1) / 2) / np.sqrt(of_ties * n1 * n2 * (n + 1) / 12)
    z = np.where(np.isnan(z), 0.0, z)
    return z, erfc(np.abs(z) / np.sqrt(2))


def corrected(p: np.ndarray, corr_method: str) -> np.ndarray:
    """p-values corrected for their number: Benjamini & Hochberg's false discovery rate, or Bonferroni's."""
    if corr_method == "bonferroni":
        return np.minimum(p * len(p), 1.0)
    from scipy.stats import false_discovery_control

    return false_discovery_control(p) if len(p) else p
