"""Wilcoxon's rank sum test of any two sets of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ._asked import Asked
from ._contrasts import Contrasts
from ._filters import Filters
from ._testing import _REQUIRED

if TYPE_CHECKING:
    from ._transforms import Transform
    from ._rank import RankResult


class Wilcoxon(Contrasts):
    """The rank sum test of a data set; that of groups is a method of `Testing.rank_genes_groups`."""

    def wilcoxon(
        self,
        a: Any,
        b: Any,
        tie_correct: bool = False,
        *,
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
        """Compares two sets of cells gene by gene by the ranks of their values (Wilcoxon, or Mann and Whitney).

        Scores are z, positive where the first set has the higher values; p-values are two-sided, by the normal
        distribution, without a correction for continuity.

        Parameters
        ----------
        a, b
            As in `ttest`.
        tie_correct
            Whether ties, such as all cells without the gene, reduce the variance. True is
            ``scipy.stats.mannwhitneyu(method="asymptotic", use_continuity=False)``; False, as in scanpy, gives scores
            nearer to 0.
        transform, corr_method, n_genes, layer, use_raw, genes
        gene_symbols, min_pct, min_logfc, min_cells, logfc
            As in `rank_genes_groups`; `transform` is required here, too.
        overlap
            Whether cells may be in both sets. They are ranked once in each. The test takes the sets for independent,
            which they are not then.

        Raises
        ------
        InvalidError
            As in `ttest`.
        """
        asked = Asked(logfc, gene_symbols, Filters(min_pct, min_logfc, min_cells))
        return self._two_sets("wilcoxon", a, b, "wilcoxon", tie_correct, transform, corr_method, n_genes, layer, use_raw, genes, asked, overlap, others)
