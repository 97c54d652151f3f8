"""Fold changes: scanpy's, of means of logarithms, and Seurat's, of means of what the logarithms are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, Receipt, _internal

from . import _group_moments, _values
from ._hints import instead

if TYPE_CHECKING:
    from ._testing import Testing

FOLDS = ("scanpy", "seurat")
#: What is added to a mean before its logarithm: Seurat's `pseudocount.use`, of one in all and not one per cell.
PSEUDOCOUNT = 1.0


def check(logfc: Any) -> None:
    """Refuses what is no kind of fold change.

    Raises
    ------
    InvalidError
        It is none of `FOLDS`.
    """
    if not isinstance(logfc, str) or logfc not in FOLDS:
        raise InvalidError(f"logfc is {logfc!r}: use 'scanpy' (of means of logarithms) or 'seurat' (of means of normalised counts){instead(logfc, FOLDS)}")


@dataclass
class Means:
    """Of each gene (row) and group (column; the last one has the cells in no group): sums of expm1 of the values."""

    names: list[str]
    genes: np.ndarray
    n: np.ndarray
    sums: np.ndarray
    receipt: Receipt

    def fold(self, first: list[int], second: list[int]) -> np.ndarray:
        """The log2 fold change of each gene between two sets of groups (numbers of columns).

        Seurat v5 (`FoldChange`, of its slot `data`): log2(mean(expm1(y)) + 1) of the one minus that of the other.
        """

        def level(columns: list[int]) -> np.ndarray:
            return np.log2(self.sums[:, columns].sum(axis=1) / self.n[columns].sum() + PSEUDOCOUNT)

        return level(first) - level(second)


def means(ds: Testing, matrix: str, transform: str | None, groups: tuple[list[str], np.ndarray], genes: np.ndarray | None) -> Means:
    """What Seurat's fold changes need of `genes` (numbers, ascending; None for all).

    The drives average counts per 10,000, where they know how to; otherwise values stream by, and are added here.

    Raises
    ------
    InvalidError
        A value is too large for the logarithm of anything, or no count where counts are asked for.
    """
    names, codes = groups
    if transform is not None and _drives_scale():
        found = _group_moments.moments(ds, matrix, _SCALED, groups, genes)
        return Means(found.names, found.genes, found.n, found.mean * found.n, found.receipt)
    if transform is not None:
        total = _values.totals(ds, matrix).astype(np.float64)

        def value(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
            # expm1(log1p(x / (total / 10000))): what normalisation gives before it takes the logarithm.
            return values / (total[cells] / 1e4)
    else:
        base = ds._kept["log1p_base"]
        factor = 1.0 if base is None else float(np.log(base))

        def value(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):
                return np.expm1(values * factor)

    sums, receipt = _group_moments.streamed(ds, matrix, codes, len(names), genes, value)
    if not np.isfinite(sums).all():
        gene = np.arange(len(sums)) if genes is None else genes
        name = str(ds._names(matrix)[gene[int(np.argmin(np.isfinite(sums).all(axis=1)))]])
        raise InvalidError(f"{ds.name}: values of gene {name!r} are too large to be logarithms: logfc=\"seurat\" takes exp of them; use transform=\"log1p_cp10k\" for counts, or logfc=\"scanpy\"")
    number = ds._kept["matrices"][matrix]["shape"][1]
    return Means(names, np.arange(number) if genes is None else genes, np.bincount(codes % (len(names) + 1), minlength=len(names) + 1), sums, receipt)


#: The transform that scales without a logarithm, where drives know it.
_SCALED = "cp10k"


def _drives_scale() -> bool:
    try:
        _internal.moments_spec("a/b", "x", _SCALED, "c", None)
    except InvalidError:
        return False
    return True
