"""What the drives add up over a matrix: sums over genes for each cell, and moments for each gene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import CorruptError, InvalidError, _internal

from . import _blocks, _group_moments
from ._normalize import resolved

if TYPE_CHECKING:
    from ._testing import Testing

#: A sum over genes: "values" or "nonzeros", and a weight for each gene (None for 1 each).
Sum = tuple[str, "np.ndarray | None"]


@dataclass(frozen=True)
class Part:
    """Some cells and genes of a data set, each a mask over all of them; None for all."""

    cells: np.ndarray | None = None
    genes: np.ndarray | None = None

    def numbers(self) -> np.ndarray | None:
        """The numbers of the genes, ascending."""
        return None if self.genes is None else np.flatnonzero(self.genes)


WHOLE = Part()


def per_cell(ds: Testing, matrix: str, sums: Sequence[Sum], *, top: Sequence[int] = (), transform: Any = None, genes: np.ndarray | None = None) -> np.ndarray:
    """Sums for each cell (float64): a row for each of `sums`, then for each n of `top` the sum of the n largest values.
    `genes` is a mask of those that take part; others have the weight 0. One scan gives all.

    Raises
    ------
    InvalidError
        A value that the transform can't take.
    """
    weighted = [(of, _weights(weights, genes)) for of, weights in sums]
    literal, totals = resolved(ds, matrix, transform)
    spec = _internal.cell_sums_spec(ds.name, matrix, weighted, [int(n) for n in top], literal, totals).replace("'", "''")
    n_cells, count = ds._kept["matrices"][matrix]["shape"][0], len(sums) + len(top)
    out = np.zeros((count, n_cells))
    chosen = None if genes is None else np.flatnonzero(genes)
    if not n_cells:
        return out
    rows, _ = _group_moments.rows_of(ds, matrix, transform, f"cell_sums(idx, val, block, gene_id, '{spec}') AS sums", chosen, "block")
    kept = ds._kept["matrices"][matrix]
    starts, widths = _blocks.starts(kept), _blocks.sizes(kept)
    for batch in rows.to_batches():
        numbers = batch.column("sums")
        for i, block in enumerate(batch.column("block").to_numpy()):
            if not numbers[i].is_valid:
                continue
            first, width = int(starts[block]), int(widths[block])
            found = numbers[i].values.to_numpy()
            if len(found) != count * width:
                raise CorruptError(f"{ds.name}: the drives gave {len(found)} sums for {width} cells")
            out[:, first : first + width] = found.reshape(count, width)
    return out


def _weights(weights: np.ndarray | None, genes: np.ndarray | None) -> np.ndarray | None:
    if genes is None:
        return None if weights is None else np.ascontiguousarray(weights, np.float32)
    if weights is None:
        return genes.astype(np.float32)
    return np.where(genes, weights, 0).astype(np.float32)


@dataclass(frozen=True)
class GeneMoments:
    """Of groups of cells (rows) and genes (columns, in their order): how many cells, nonzeros, mean, sum of squared
    differences from the mean."""

    n: np.ndarray
    nnz: np.ndarray
    mean: np.ndarray
    m2: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """The unbiased variance; of a single cell 0, as scanpy has it."""
        return self.m2 / np.maximum(self.n - 1, 1)[:, None]


def per_gene(
    ds: Testing,
    matrix: str,
    transform: Any,
    groups: tuple[list[str], np.ndarray],
    *,
    genes: np.ndarray | None = None,
    single: bool = False,
    back: bool = False,
    clips: np.ndarray | None = None,
) -> GeneMoments:
    """Moments of all genes, or of a mask of them, in groups of cells: names, and for each cell the number of its group,
    -1 for none.

    `single`: values are squared in float32; `back`: logarithms are taken back first; `clips` has for each group (row)
    and gene of the matrix the number above which values are cut.
    """
    names, codes = groups
    codes = np.ascontiguousarray(codes, np.int32)
    counts = np.bincount(codes[codes >= 0], minlength=len(names)).astype(np.int64)
    chosen = None if genes is None else np.flatnonzero(genes)
    n_genes = ds._kept["matrices"][matrix]["shape"][1] if chosen is None else len(chosen)
    if not n_genes or not len(codes):
        empty = np.zeros((len(names), n_genes))
        return GeneMoments(counts, empty.astype(np.int64), empty, empty)
    found = _group_moments.moments(ds, matrix, transform, (names, codes), chosen, single, back, clips)
    # Without the cells in no group.
    return GeneMoments(counts, found.nnz[:, :-1].T, found.mean[:, :-1].T, found.m2[:, :-1].T)


def check_part(ds: Testing, matrix: str, part: Part) -> None:
    """Refuses a matrix with other genes than those that a part chooses among.

    Raises
    ------
    InvalidError
        It is raw, or of other features.
    """
    if part.genes is not None and matrix != "x" and not matrix.startswith("layer_"):
        origin = ds._kept["matrices"][matrix]["origin"]
        raise InvalidError(f"a view of {ds.name} with some genes says nothing of {origin}, which has others: use the data set itself, or filter cells only")


def of_part(ds: Testing, part: Part) -> tuple[list[str], np.ndarray]:
    """The cells of a part as one group."""
    n_cells = ds._kept["shape"][0]
    return ["cells"], np.zeros(n_cells, np.int32) if part.cells is None else np.where(part.cells, 0, -1).astype(np.int32)


def gene_counts(ds: Testing, matrix: str, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Of each gene of a part: in how many of its cells it is not zero, and the sum of its values (float64)."""
    if part.cells is not None:
        found = per_gene(ds, matrix, None, of_part(ds, part), genes=part.genes)
        return found.nnz[0], found.mean[0] * found.n[0]
    n_genes = ds._kept["matrices"][matrix]["shape"][1]
    cells, sums = np.zeros(n_genes, np.int64), np.zeros(n_genes)
    with ds._unchanged():
        rows = ds.fleet.sql(f"SELECT gene_id, sum(nnz) AS n, sum(sum) AS s FROM {ds.table(matrix + '_rows')} GROUP BY gene_id").to_arrow()
    at = rows.column("gene_id").to_numpy()
    cells[at], sums[at] = rows.column("n").to_numpy(), rows.column("s").to_numpy()
    return (cells, sums) if part.genes is None else (cells[part.genes], sums[part.genes])
