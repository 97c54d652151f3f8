"""Counts, means and sums of squares per gene and group, asked from the drives of one data set: arrays of groups by
genes. No value of a matrix moves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import ExhaustedError, InvalidError, Receipt

from . import _group_moments
from ._across import per
from ._across_sql import Column, Filter, as_text
from ._arguments import one_name
from ._testing import _OF_COUNTS, _REQUIRED, _in_numbers, _of_genes, _say_transform
from ._transforms import check_transform

if TYPE_CHECKING:
    from ._dataset import Dataset

#: Groups of one data set, and entries (groups by genes) of one call: beyond these a column that does not group cells is
#: more likely than a use, and memory stays bounded (1 GiB for one array).
MOST_GROUPS, MOST_ENTRIES = 1000, 1 << 27


@dataclass
class Moments:
    """Of each group (rows) and gene (columns, by its number): cells with the gene, mean, and sum of squared differences
    from the mean; `n` has the cells of each group."""

    groups: list[str]
    n: np.ndarray
    nnz: np.ndarray
    mean: np.ndarray
    m2: np.ndarray | None
    receipt: Receipt

    def among(self, columns: np.ndarray) -> Moments:
        """Those of some genes (numbers), in that order."""
        return Moments(self.groups, self.n, self.nnz[:, columns], self.mean[:, columns], None if self.m2 is None else self.m2[:, columns], self.receipt)


@dataclass
class Matrix:
    """Which matrix of a data set is asked, and how its values are transformed."""

    dataset: Dataset
    #: Its table.
    table: str
    transform: str | None

    @property
    def log_base(self) -> float | None:
        """The base of the stored logarithms, where the data set names one and they are compared as they are; None for
        e."""
        return self.dataset._kept["log1p_base"] if self.transform is None else None

    @property
    def n_genes(self) -> int:
        return int(self.dataset._kept["matrices"][self.table]["shape"][1])


def matrices(datasets: Sequence[Dataset], layer: Any, transform: Any, stacklevel: int = 4) -> dict[Dataset, Matrix]:
    """The matrices that `layer` and `transform` mean, each one value or a dict by data set.

    Raises
    ------
    InvalidError
        transform is left out: the text has what the values of each data set look like.
    """
    names = [ds.name for ds in datasets]
    out = {}
    for ds in datasets:
        chosen = per(layer, ds.name, "layer=", names)
        table = ds._matrix(chosen)
        ds._check_not_empty(table)
        if transform is _REQUIRED:
            looks = "; ".join(f"{one.name}: {one._what_values(per(layer, one.name, 'layer=', names))}" for one in datasets)
            several = "" if len(datasets) == 1 else ". Data sets that differ get a dict: transform={\"a/x\": \"log1p_cp10k\", \"b/y\": None}"
            raise InvalidError(_say_transform(looks) + several)
        how = per(transform, ds.name, "transform=", names)
        check_transform(how)
        if how is None and ds._is_counts(chosen):
            warnings.warn(_OF_COUNTS.format(ds.name), stacklevel=stacklevel)
        ds._warn_of_logarithms(chosen, how)
        out[ds] = Matrix(ds, table, how)
    return out


def by_column(
    matrix: Matrix, columns: Mapping[str, Column], groupby: str, chosen: Filter | None, genes: np.ndarray | None = None, squares: bool = True,
    method: str = "t-test",
) -> Moments:
    """Moments of the groups of an obs column, of the cells that `chosen` means; groups in the order of the categories,
    else of numbers and texts. They are asked for as `rank_genes_groups` of this `method` asks, so that drives which
    have kept its result answer from that.

    Raises
    ------
    NotFoundError
        No such column.
    InvalidError
        No cell has a value there, or there are too many values.
    """
    ds = matrix.dataset
    one_name(groupby, "groupby", "obs column")
    ds._column(groupby)  # says what is wrong with it
    column = columns[groupby]
    if column.categories is None or len(column.categories) > MOST_GROUPS:
        with ds._unchanged():
            values = ds.fleet.sql(f"SELECT count(DISTINCT {as_text(column)}) AS n FROM {ds.table('obs')}").to_arrow().column(0)[0].as_py()
        if values > MOST_GROUPS:
            raise InvalidError(
                f"obs column {groupby!r} of {ds.name} has {values:,} values, and at most {MOST_GROUPS:,} groups are compared: choose a column that groups cells"
            )
    if chosen is None or chosen.where is None:
        found = _asked(matrix, column.sql, genes, squares, ds._squares_single(method, matrix.table))
    else:
        with ds._unchanged():
            coded = chosen.asked(ds, chosen.grouped(ds, as_text(column))).column(0).combine_chunks().dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        names = [str(v) for v in coded.dictionary.to_pylist()]
        if not names:
            raise InvalidError(f"there are no groups to compare: no cell of {ds.name} that where= chooses has a value in obs column {groupby!r}")
        found = _asked(matrix, (names, codes), genes, squares)
    if not found.groups:
        raise InvalidError(f"there are no groups to compare: no cell of {ds.name} has a value in obs column {groupby!r}")
    place = {name: i for i, name in enumerate(column.categories or sorted(found.groups, key=_in_numbers))}
    order = sorted(range(len(found.groups)), key=lambda i: place.get(found.groups[i], len(place)))
    return Moments(
        [found.groups[i] for i in order], found.n[order], found.nnz[order], found.mean[order], None if found.m2 is None else found.m2[order], found.receipt
    )


def by_codes(matrix: Matrix, names: list[str], codes: np.ndarray, genes: np.ndarray | None = None) -> Moments:
    """Moments of groups by the number of each cell's group (-1: in none); a group without cells has none."""
    found = _asked(matrix, (names, codes.astype(np.int32)), genes, True)
    order = [found.groups.index(name) for name in names]
    return Moments(names, found.n[order], found.nnz[order], found.mean[order], None if found.m2 is None else found.m2[order], found.receipt)


def _asked(matrix: Matrix, groups: _group_moments.Groups, genes: np.ndarray | None, squares: bool, single: bool = False) -> Moments:
    """What the drives say; `genes` are numbers, ascending, and the others are as if no cell had them."""
    found = _group_moments.moments(matrix.dataset, matrix.table, matrix.transform, groups, genes, single)
    # By column, a group without cells is none.
    kept = [at for at in range(len(found.names)) if found.n[at] or not isinstance(groups, str)]
    _check_size(len(kept), matrix)

    def whole(part: np.ndarray) -> np.ndarray:
        out = np.zeros((len(kept), matrix.n_genes), part.dtype)
        out[:, found.genes] = part[:, kept].T
        return out

    m2 = whole(found.m2) if squares else None
    return Moments([found.names[at] for at in kept], found.n[kept], whole(found.nnz), whole(found.mean), m2, _of_genes(found.receipt))


def _check_size(groups: int, matrix: Matrix) -> None:
    if groups * matrix.n_genes > MOST_ENTRIES:
        raise ExhaustedError(
            f"{matrix.dataset.name}: {groups:,} groups of {matrix.n_genes:,} genes are more than {MOST_ENTRIES:,} means: choose a column with fewer groups"
        )


def merged(parts: Sequence[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """One group of several: `n`, `nnz`, `mean` and `m2` of each, merged by Chan's update (Chan, Golub & LeVeque 1979:
    Updating Formulae and a Pairwise Algorithm for Computing Sample Variances)."""
    n, nnz, mean, m2 = parts[0]
    for n_b, nnz_b, mean_b, m2_b in parts[1:]:
        if not n_b:
            continue
        if not n:
            n, nnz, mean, m2 = n_b, nnz_b, mean_b, m2_b
            continue
        total, delta = n + n_b, mean_b - mean
        mean, m2 = mean + delta * (n_b / total), m2 + m2_b + delta**2 * (n * n_b / total)
        n, nnz = total, nnz + nnz_b
    return n, nnz, mean, m2
