"""Numbers of groups of cells for every gene: moments from one look at a matrix, and sums of values that stream by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Sequence

import numpy as np

from skytether import CorruptError, InvalidError, Receipt, _internal

from . import _export
from ._normalize import moments_spec
from ._transforms import Transform

if TYPE_CHECKING:
    import pyarrow as pa

    from ._testing import Testing

#: Groups by the obs column that SQL knows, or names and for each cell the number of its group (-1: in none).
Groups = str | tuple[list[str], np.ndarray]
#: Entries (genes times groups) up to which the drives give all groups of an obs column, where some are asked for: about
#: 25 MB. Drives keep the moments of a column, and every contrast of its groups is answered from these.
FEW_ENTRIES = 1 << 21
#: Entries (genes times groups) that one query computes; more are computed in several queries of fewer genes each.
MOST_ENTRIES = 1 << 24


@dataclass
class GroupMoments:
    """Of each gene (row) and group (column; the last one has the cells in no group), over the group's cells."""

    names: list[str]
    #: The genes' numbers, ascending.
    genes: np.ndarray
    #: Cells of each group.
    n: np.ndarray
    #: Cells with a value other than zero.
    nnz: np.ndarray
    mean: np.ndarray
    #: Sums of squared differences from the mean.
    m2: np.ndarray
    receipt: Receipt

    def of(self, names: list[str]) -> GroupMoments:
        """Those of some groups, in this order."""
        at = [*(self.names.index(name) for name in names), len(self.names)]
        return GroupMoments(list(names), self.genes, self.n[at], self.nnz[:, at], self.mean[:, at], self.m2[:, at], self.receipt)


def rows_of(ds: Testing, matrix: str, transform: Transform, results: str, genes: np.ndarray | None = None, by: str = "gene_id") -> tuple[pa.Table, Receipt]:
    """A row for each value of `by` with the `results` (SQL), over the rows of `genes` (numbers, ascending; None for
    all). Beyond some thousand genes there are others among them.

    Raises
    ------
    InvalidError
        A value that the transform can't take; gene and cell are named.
    """
    with ds._unchanged():
        try:
            query = ds.fleet.sql(f"SELECT {by}, {results} FROM {ds.table(matrix + '_rows')}{_export._where(genes)} GROUP BY {by}")
            return query.to_arrow(), query.receipt
        except InvalidError as e:
            raise ds._with_names(e, matrix, transform) from e


def moments(
    ds: Testing,
    matrix: str,
    transform: Transform,
    groups: Groups,
    genes: np.ndarray | None = None,
    single: bool = False,
    back: bool = False,
    clips: np.ndarray | None = None,
) -> GroupMoments:
    """Moments of `genes` (numbers, ascending; None for all), computed by the drives in one look at the matrix.

    `single`: values are squared in float32, as scanpy does. `back`: of what the transform's logarithms, or those that
    are stored, are logarithms of. `clips` has for each group (row) and gene of the matrix the number above which values
    are cut.

    Raises
    ------
    InvalidError
        A value that the transform can't take.
    """
    rows, receipt = rows_of(ds, matrix, transform, call(ds, matrix, transform, groups, single, back, clips), genes)
    return decoded(ds, matrix, rows, receipt, genes)


def call(
    ds: Testing, matrix: str, transform: Transform, groups: Groups, single: bool = False, back: bool = False, clips: np.ndarray | None = None
) -> str:
    """The call of the aggregate, as the column `moments`; arguments as of `moments`."""
    column, codes = (groups, None) if isinstance(groups, str) else (None, groups)
    spec, arguments = moments_spec(ds, matrix, transform, column, codes, single, back), "moments(idx, val, block"
    if clips is not None:
        # The last is for cells in no group.
        per_gene = np.column_stack([clips.T, np.zeros(clips.shape[1])])
        spec, arguments = _internal.clipped_spec(spec, np.ascontiguousarray(per_gene, np.float64).ravel()), "clipped_moments(idx, val, block, gene_id"
    literal = spec.replace("'", "''")
    return f"{arguments}, '{literal}') AS moments"


def decoded(ds: Testing, matrix: str, rows: pa.Table, receipt: Receipt, genes: np.ndarray | None) -> GroupMoments:
    """The moments of rows with the columns `gene_id` and `moments`."""
    numbers = rows.column("gene_id").to_numpy().astype(np.int64)
    entries = rows.column("moments").combine_chunks()
    flat = entries.flatten()
    width = len(flat) // max(len(numbers), 1)
    if (np.diff(entries.offsets.to_numpy()) != width).any():
        raise CorruptError(f"{ds.name}: genes of {matrix} have different groups")
    order = np.argsort(numbers)
    if genes is not None:
        # Of many genes a query names the first and the last only.
        order = order[np.isin(numbers[order], genes)]

    def part(name: str, kind: Any) -> np.ndarray:
        return flat.field(name).to_numpy(zero_copy_only=False).reshape(len(numbers), width)[order].astype(kind, copy=False)

    n = part("n", np.int64)
    return GroupMoments(
        [str(name) for name in flat.field("group")[: max(width - 1, 0)].to_pylist()],
        numbers[order],
        n[0] if len(n) else np.zeros(width, np.int64),
        part("nnz", np.int64),
        part("mean", np.float64),
        part("m2", np.float64),
        receipt,
    )


def in_column(ds: Testing, matrix: str, sets: Sequence[Any]) -> tuple[str, list[list[str]]] | None:
    """The obs column whose values all `sets` of cells are (dicts as `_select.mask` takes them), and the values of each
    set as the drives call these groups. None where they are other sets, or the column has many groups."""
    import pandas as pd

    if not all(isinstance(one, dict) and len(one) == 1 for one in sets) or len({next(iter(one)) for one in sets}) != 1:
        return None
    (column,) = sets[0]
    values = ds._shell.obs[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        there = values.cat.categories[np.unique(values.cat.codes[values.cat.codes >= 0])]
    else:
        there = pd.Index(values.dropna().unique())
    # Of other types the drives' texts are not surely Python's.
    if not (there.inferred_type == "string" or there.inferred_type == "integer" and not isinstance(values.dtype, pd.CategoricalDtype)):
        return None
    names = {str(value) for value in there}
    if len(names) * ds._kept["matrices"][matrix]["shape"][1] > FEW_ENTRIES or column not in ds._kept.get("obs_in_sql", {column: column}):
        return None
    found = [list(dict.fromkeys(str(value) for value in (wanted if isinstance(wanted, list) else [wanted]))) for one in sets for wanted in one.values()]
    return (column, found) if all(name in names for one in found for name in one) else None


def streamed(
    ds: Testing, matrix: str, codes: np.ndarray, groups: int, genes: np.ndarray | None, value: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
) -> tuple[np.ndarray, Receipt]:
    """Sums of each gene (row) over each group's cells (column; the last one has the cells whose code is -1).

    The values move here, batch by batch, and only the sums are kept. `value` makes of stored values (float64) and their
    cells what is added up, in float64; without it, integers are added as they are, and exactly.
    """
    import pyarrow as pa

    shape = ds._kept["matrices"][matrix]["shape"][1] if genes is None else len(genes)
    to = _export._renumber(genes, ds._kept["matrices"][matrix]["shape"][1])
    width = groups + 1
    # The number -1 is the last column's.
    sums = np.zeros(shape * width, np.int64 if value is None else np.float64)
    with ds._unchanged():
        query = ds.fleet.sql(f"SELECT gene_id, block, idx, val FROM {ds.table(matrix + '_rows')}{_export._where(genes)}")
        for batch in pa.RecordBatchReader.from_stream(query):
            row, batch = _export._wanted(batch, to)
            bounds, cells, values = _export._entries(batch.column(2), batch.column(3))
            if not len(cells):
                continue
            first = int(row.min())
            at = np.repeat((row - first) * width, np.diff(bounds)) + codes[cells] % width
            weights = values.astype(np.float64) if value is None else value(values.astype(np.float64), cells)
            found = np.bincount(at, weights=weights)
            # Sums of integers are exact in a float64 up to 2^53.
            if value is None and found.max() >= 2**53:
                np.add.at(sums, first * width + at, values.astype(np.int64))
                continue
            sums[first * width : first * width + len(found)] += found.astype(sums.dtype, copy=False)
    return sums.reshape(shape, width), query.receipt
