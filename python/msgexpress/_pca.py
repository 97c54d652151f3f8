"""Principal components of a data set: the drives filter genes and cells, and one look at these gives them exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from skytether import InvalidError, NotFoundError, Receipt, _internal

from . import _blocks, _export, _group_moments, _select, _values
from ._arguments import chosen_layer
from ._normalize import resolved

if TYPE_CHECKING:
    import pandas as pd

    from ._testing import Testing

#: The most genes (or cells, where these are fewer) whose products with each other are kept in memory: 288 MB.
MOST = 6_000
#: Entries that are in memory at a time, about 14 bytes each: 230 MB. If there are more, they are read twice.
PART = 1 << 24
#: The var column that scanpy marks highly variable genes in, and the word that asks for them.
HIGHLY_VARIABLE = "highly_variable"


@dataclass
class PCA:
    """Principal components.

    Attributes
    ----------
    embedding
        Cells by components: where each cell is (float32).
    loadings
        Genes by components: what each gene adds, with length 1 for each component (float64). The largest number of a
        component, in absolute terms, is positive.
    variance, variance_ratio
        For each component its variance, and its share of the variance of all chosen genes.
    genes, cells
        The names of the genes and cells, in the order of the rows.
    params
        What was asked for.
    receipts
        What ran where, of each query.
    """

    embedding: np.ndarray
    loadings: np.ndarray
    variance: np.ndarray
    variance_ratio: np.ndarray
    genes: np.ndarray
    cells: np.ndarray
    params: dict[str, Any]
    receipts: list[Receipt] = field(repr=False, default_factory=list)
    #: The numbers of the genes in their matrix, and of the cells.
    gene_numbers: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))
    cell_numbers: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))

    @property
    def receipt(self) -> Receipt:
        """What ran where, of the query that read most of the matrix."""
        return self.receipts[-1]

    def to_df(self) -> pd.DataFrame:
        """The embedding as a frame: a row per cell, columns ``PC1``, ``PC2``, ..."""
        import pandas as pd

        return pd.DataFrame(self.embedding, index=pd.Index(self.cells), columns=self._labels())

    def loadings_df(self) -> pd.DataFrame:
        """The loadings as a frame: a row per gene, columns ``PC1``, ``PC2``, ..."""
        import pandas as pd

        return pd.DataFrame(self.loadings, index=pd.Index(self.genes), columns=self._labels())

    def _labels(self) -> list[str]:
        return [f"PC{i + 1}" for i in range(len(self.variance))]

    def __repr__(self) -> str:
        share = f"{100 * float(self.variance_ratio.sum()):.1f}% of the variance"
        return f"<msgexpress.PCA: {len(self.embedding):,} cells x {len(self.variance)} components of {len(self.loadings):,} genes, {share}>"


@dataclass
class _Asked:
    """The part of a matrix that is meant, and how its values count."""

    ds: Testing
    matrix: str
    genes: np.ndarray
    cells: np.ndarray
    transform: str | None
    #: The least and the largest value of each gene, if they are clipped.
    bounds: np.ndarray | None
    progress: Callable[[int, int], None]
    receipts: list[Receipt] = field(default_factory=list)

    def products(self) -> Any:
        literal, totals = resolved(self.ds, self.matrix, self.transform)
        if literal is not None and totals is None:
            totals = np.ascontiguousarray(_values.totals(self.ds, self.matrix), np.float32)
        return _internal.Products(self.genes.astype(np.uint32), self.cells.astype(np.uint32), literal, totals, self.bounds)

    def read(self, products: Any, first: int, end: int) -> None:
        """Reads the chosen cells `first` to `end`."""
        kept = self.ds._kept["matrices"][self.matrix]
        where = _export.of_blocks(_export._where(self.genes), self.cells[first:end], kept)
        # A range is often a part of a block of cells, and the rest of the block stays on the drives.
        entries = _export.picked(self.cells[first:end], kept) or "idx, val"
        query = self.ds.fleet.sql(f"SELECT gene_id, {entries} FROM {self.ds.table(self.matrix + '_rows')}{where}")
        try:
            products.read(query._inner, first, end)
        except InvalidError as e:
            raise self.ds._with_names(e, self.matrix, self.transform) from e
        self.receipts.append(query.receipt)

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of the chosen cells that have at most about `PART` entries each."""
        where = _export._where(self.genes)
        rows = self.ds.fleet.sql(f"SELECT block, sum(nnz) AS n FROM {self.ds.table(self.matrix + '_rows')}{where} GROUP BY block ORDER BY block")
        found = rows.to_arrow()
        self.receipts.append(rows.receipt)
        kept = self.ds._kept["matrices"][self.matrix]
        sizes = _blocks.sizes(kept)
        entries = np.zeros(len(sizes), np.int64)
        entries[found.column("block").to_numpy()] = found.column("n").to_numpy()
        # Where cells are left out, their entries count as if they were evenly spread.
        each = (entries / np.maximum(sizes, 1))[_blocks.of(kept, self.cells)]
        number = np.floor(np.r_[0, np.cumsum(each)[:-1]] / PART).astype(np.int64)
        cuts = np.r_[0, np.flatnonzero(np.diff(number)) + 1, len(self.cells)]
        return list(zip(cuts[:-1].tolist(), cuts[1:].tolist()))


def pca(
    ds: Testing,
    n_comps: int | None,
    genes: Any,
    zero_center: bool,
    *,
    layer: str | None,
    use_raw: bool | None,
    transform: str | None,
    scale: bool,
    max_value: float | None,
    cells: Any,
    progress: Callable[[int, int], None],
) -> PCA:
    """`Dataset.pca` without keeping the result; the arguments are checked here."""
    layer = chosen_layer(layer, use_raw, ds._origins, ds.name)
    matrix = ds._matrix(layer)
    ds._check_not_empty(matrix)
    names = ds._names(matrix)
    numbers = _chosen_genes(ds, matrix, genes, names)
    part = np.arange(ds.n_obs) if cells is None else np.flatnonzero(_select.mask(_select.settled(cells), ds._shell.obs, "cells="))
    n, m = len(part), len(numbers)
    if n < 2 or m < 2:
        raise InvalidError(f"principal components of {ds.name} need at least two cells and two genes, and these are {n} and {m}")
    most_comps = min(n, m) - 1
    k = min(50, most_comps) if n_comps is None else n_comps
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= most_comps:
        raise InvalidError(f"n_comps is {n_comps!r}: a whole number from 1 to {most_comps:,}, as there are {n:,} cells and {m:,} genes")
    if min(n, m) > MOST:
        raise InvalidError(f"principal components of {m:,} genes and {n:,} cells are too large: choose at most {MOST:,} genes (genes=), for example highly variable ones")
    if max_value is not None and (not scale or not isinstance(max_value, (int, float, np.integer, np.floating)) or not max_value > 0):
        raise InvalidError("max_value= is for scale=True, and positive" if not scale else f"max_value is {max_value!r}: a positive number of standard deviations")
    asked = _Asked(ds, matrix, numbers, part, transform, None, progress)
    with ds._unchanged():
        ranges = asked.parts()
        deviations = None
        if max_value is not None:
            # What is clipped depends on mean and deviation before.
            mean, deviations = _mean_and_deviation(asked)
            centre = mean if zero_center else np.zeros(m)
            least = centre - max_value * deviations if zero_center else np.full(m, -np.inf)
            asked.bounds = np.ascontiguousarray(np.column_stack([least, centre + max_value * deviations])).ravel()
        by_genes = m <= MOST
        found = (_by_genes if by_genes else _by_cells)(asked, ranges, int(k), zero_center, scale, deviations)
    embedding, loadings, variance, ratio = found
    return PCA(embedding, loadings, variance, ratio, names[numbers], ds.obs_names[part].to_numpy(object), {}, asked.receipts, numbers, part)


def highly_variable(ds: Testing, matrix: str) -> np.ndarray:
    """A mask of the genes of a matrix that are marked as highly variable.

    Raises
    ------
    NotFoundError
        There is no such column.
    InvalidError
        It marks none.
    """
    var = ds._shell.raw.var if ds._kept["matrices"][matrix]["origin"] == "raw/X" else ds._shell.var
    if HIGHLY_VARIABLE not in var.columns:
        raise NotFoundError(f"var of {ds.name} has no column {HIGHLY_VARIABLE!r}: call highly_variable_genes first, or choose genes with genes= (genes=None for all)")
    mask = var[HIGHLY_VARIABLE].fillna(False).to_numpy(bool)
    if not mask.any():
        raise InvalidError(f"no gene of {ds.name} is marked in {HIGHLY_VARIABLE!r}: choose genes with genes=")
    return mask


def _chosen_genes(ds: Testing, matrix: str, genes: Any, names: np.ndarray) -> np.ndarray:
    """The numbers of the chosen genes, ascending."""
    import pandas as pd

    if isinstance(genes, str) and genes == HIGHLY_VARIABLE:
        return np.flatnonzero(highly_variable(ds, matrix))
    if genes is None:
        return np.arange(len(names))
    return np.unique(_select.positions(genes, pd.Index(names), "gene", ds._genes))


def _mean_and_deviation(asked: _Asked) -> tuple[np.ndarray, np.ndarray]:
    """Of each chosen gene over the chosen cells; the deviation of a gene that does not vary is 1, as in scanpy."""
    mean, square = _moments(asked, asked.genes)
    deviation = np.sqrt(square / (len(asked.cells) - 1))
    return mean, np.where(deviation == 0, 1.0, deviation)


def _moments(asked: _Asked, genes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each gene (numbers, ascending) over the chosen cells, and its sum of squared differences from it."""
    codes = np.full(asked.ds.n_obs, -1, np.int32)
    codes[asked.cells] = 0
    found = _group_moments.moments(asked.ds, asked.matrix, asked.transform, (["chosen"], codes), genes)
    asked.receipts.append(found.receipt)
    return found.mean[:, 0], found.m2[:, 0]


def _column(table: Any) -> np.ndarray:
    import pyarrow as pa

    return pa.table(table).column(0).combine_chunks().to_numpy()


def _largest(products: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The `k` largest eigenvalues of a symmetric matrix, largest first, and their vectors as columns."""
    import scipy.linalg

    n = len(products)
    values, vectors = scipy.linalg.eigh(products, subset_by_index=[n - k, n - 1], overwrite_a=True, check_finite=False)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _signs(loadings: np.ndarray) -> np.ndarray:
    """For each component the sign that makes its largest loading positive."""
    largest = loadings[np.argmax(np.abs(loadings), axis=0), np.arange(loadings.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


def _check_precision(asked: _Asked, squares: np.ndarray, centred: np.ndarray) -> None:
    """Refuses genes whose values are a thousand times as large as their deviation: values count as float32, so that
    components would be off in the fourth digit. A gene that does not vary has no part in them, whatever its values.

    Raises
    ------
    InvalidError
        There is such a gene.
    """
    share = np.divide(centred, squares, out=np.ones_like(squares), where=squares > 0)
    wrong = np.flatnonzero((share < 1e-6) & (share > 1e-13))
    still = np.flatnonzero(share <= 1e-13)
    if not len(wrong) and len(still):
        # As float32 these do not vary; the drives know whether they do.
        wrong = still[_moments(asked, asked.genes[still])[1] > 0]
    if len(wrong):
        gene = str(asked.ds._names(asked.matrix)[asked.genes[wrong[0]]])
        raise InvalidError(
            f"{asked.ds.name}: the values of gene {gene!r} are more than 1,000 times as large as they vary, and components need them in more digits than float32 has: "
            "store differences from a mean, or leave such genes out"
        )


def _by_genes(
    asked: _Asked, ranges: list[tuple[int, int]], k: int, zero_center: bool, scale: bool, deviations: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """From the products of the genes: X^T X, then X times its eigenvectors."""
    n, m = len(asked.cells), len(asked.genes)
    products = asked.products()
    twice = len(ranges) > 1  # a single part is still there when it is projected
    steps = 2 * len(ranges) if twice else 2
    for done, (first, end) in enumerate(ranges):
        asked.read(products, first, end)
        products.add()
        asked.progress(done + 1, steps)
    made, sums = products.gram()
    gram, mean = _column(made).reshape(m, m).copy(), _column(sums) / n
    diagonal = np.maximum(np.diag(gram) - n * mean**2, 0.0)
    _check_precision(asked, np.diag(gram), diagonal)
    by = np.ones(m)
    if scale:
        by = np.sqrt(diagonal / (n - 1)) if deviations is None else deviations
        by = np.where(by == 0, 1.0, by)
        gram /= by[:, None]
        gram /= by
    whole = float(np.sum(diagonal / by**2)) / (n - 1)
    scaled = mean / by
    if zero_center:
        gram -= n * np.outer(scaled, scaled)
    values, vectors = _largest(gram, k)
    vectors = vectors * _signs(vectors)
    back = np.ascontiguousarray(vectors / by[:, None])
    shift = scaled @ vectors if zero_center else np.zeros(k)
    embedding = np.empty((n, k), np.float32)
    for done, (first, end) in enumerate(ranges):
        if twice:
            asked.read(products, first, end)
            products.keep()
        embedding[first:end] = _column(products.project(back.ravel(), shift)).reshape(end - first, k)
        asked.progress(len(ranges) + done + 1, steps)
    # scikit-learn's variances divide by n - 1 (PCA), or by n (TruncatedSVD).
    if zero_center:
        variance = values / (n - 1)
    else:
        variance, whole = embedding.var(axis=0, dtype=np.float64), whole * (n - 1) / n
    return embedding, vectors, variance, variance / whole if whole else np.zeros(k)


def _by_cells(
    asked: _Asked, ranges: list[tuple[int, int]], k: int, zero_center: bool, scale: bool, deviations: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """From the products of the cells: X X^T, then X^T times its eigenvectors. For few cells of many genes."""
    n = len(asked.cells)
    if scale:
        raise InvalidError(f"scale=True takes at most {MOST:,} genes: choose some with genes=, for example highly variable ones")
    products = asked.products()
    for done, (first, end) in enumerate(ranges):
        if len(ranges) > 1:
            raise InvalidError(f"{asked.ds.name} has too many values for principal components of all its genes: choose at most {MOST:,} genes with genes=")
        asked.read(products, first, end)
        products.add_cells()
        asked.progress(done + 1, 2)
    made, _ = products.gram()
    gram = _column(made).reshape(n, n).copy()
    of_cells = gram.mean(axis=0)
    of_all = float(of_cells.mean())
    centred = gram - of_cells[:, None] - of_cells + of_all
    whole = float(np.trace(centred)) / (n - 1)
    values, vectors = _largest(centred if zero_center else gram, k)
    lengths = np.sqrt(values)
    embedding = vectors * lengths
    # Cells that depend on others leave eigenvalues that are only rounding: their components are nothing.
    real = values > n * np.finfo(np.float64).eps * values[0]
    embedding[:, ~real] = 0
    inverse = np.divide(1.0, lengths, out=np.zeros(k), where=real)
    # The mean of the genes falls away: a centred component's cells add up to zero.
    loadings = _column(products.project(np.ascontiguousarray(vectors * inverse).ravel(), np.zeros(k))).reshape(-1, k).astype(np.float64)
    signs = _signs(loadings)
    embedding = (embedding * signs).astype(np.float32)
    if zero_center:
        variance = values / (n - 1)
    else:
        variance, whole = embedding.var(axis=0, dtype=np.float64), whole * (n - 1) / n
    asked.progress(2, 2)
    return embedding, loadings * signs, variance, variance / whole if whole else np.zeros(k)
