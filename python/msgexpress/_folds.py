"""Fold changes: scanpy's, of means of logarithms, and Seurat's, of means of what the logarithms are of.

Seurat's two formulas differ in where the pseudocount goes (`FoldChange.Assay` of R/differential_expression.R, slot
`data`, in satijalab/seurat 4.4.0 and 5.0.0): version 4 adds it to the mean of a group, version 5 to its sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, Receipt
from skytether.errors import reworded

from . import _group_moments
from ._hints import instead
from ._transforms import Transform, takes_logs

if TYPE_CHECKING:
    from ._testing import Testing

FOLDS = ("scanpy", "seurat", "seurat4")
#: Seurat's default of `pseudocount.use`, in both versions.
PSEUDOCOUNT = 1.0


def check(logfc: Any) -> None:
    """Refuses what is no kind of fold change.

    Raises
    ------
    InvalidError
        It is none of `FOLDS`.
    """
    if not isinstance(logfc, str) or logfc not in FOLDS:
        raise InvalidError(
            f"logfc is {logfc!r}: use 'scanpy' (of means of logarithms), "
            f"'seurat' (version 5, of means of normalised counts) or 'seurat4' (version 4){instead(logfc, FOLDS)}"
        )


@dataclass
class Means:
    """Of each gene (row) and group (column; the last one has the cells in no group): sums of expm1 of the values."""

    names: list[str]
    genes: np.ndarray
    n: np.ndarray
    sums: np.ndarray
    receipt: Receipt
    #: `"seurat"` or `"seurat4"`.
    kind: str

    def fold(self, first: list[int], second: list[int]) -> np.ndarray:
        """The log2 fold change of each gene between two sets of groups (numbers of columns).

        It is a difference of levels. For n cells whose expm1 have the sum S, Seurat 5's level is log2((S + 1) / n),
        and Seurat 4's is log2(S / n + 1).
        """

        def level(columns: list[int]) -> np.ndarray:
            sums, n = self.sums[:, columns].sum(axis=1), self.n[columns].sum()
            return np.log2(sums / n + PSEUDOCOUNT if self.kind == "seurat4" else (sums + PSEUDOCOUNT) / n)

        return level(first) - level(second)


def means(ds: Testing, matrix: str, transform: Transform, groups: tuple[list[str], np.ndarray], genes: np.ndarray | None, kind: str) -> Means:
    """What Seurat's fold changes need of `genes` (numbers, ascending; None for all): the drives take logarithms back.
    `kind` is one of `FOLDS` that is Seurat's.

    Raises
    ------
    InvalidError
        A value is too large for the logarithm of anything, or no count where counts are asked for.
    """
    logs = transform is None or takes_logs(transform)
    try:
        found = _group_moments.moments(ds, matrix, transform, groups, genes, back=logs)
    except InvalidError as e:
        if transform is not None or e.detail is None or e.detail["type"] != "unfit_value":
            raise
        raise reworded(
            e, f"{e}: such values are too large to be logarithms, and logfc=\"{kind}\" takes exp of them; use transform=\"log1p_cp10k\" for counts, or logfc=\"scanpy\""
        ) from e
    return Means(found.names, found.genes, found.n, found.mean * found.n, found.receipt, kind)
