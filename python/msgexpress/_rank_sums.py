"""Queries of grouped moments and rank sums, a range of genes at a time where all at once would take too much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

from skytether import InvalidError, Receipt, _internal

from . import _blocks, _export
from ._normalize import moments_spec
from ._receipts import together

if TYPE_CHECKING:
    from ._testing import Testing
    from ._transforms import Transform

#: Bytes of nonzeros that one query keeps, and bytes of one: its value and its group, for values of 32 and of 64 bits.
_MOST_BYTES, _BYTES, _WIDE_BYTES = 192 << 20, 6, 10


def literal(moments: str, options: dict[str, Any]) -> str:
    """The argument of ``rank_sums`` that goes with `moments`, the one of ``moments``, and a ranking's `options`."""
    overlap = options.get("overlap") is not None
    against = "second alone" if overlap else options["reference"]
    return _internal.rank_sums_spec(moments, against, bool(options.get("without_last")), overlap)


class Queries:
    """The queries of one test, each made when its turn comes; afterwards their receipts."""

    def __init__(self, ds: Testing, matrix: str, selected: str, by: str, some: np.ndarray | None, by_rank: bool) -> None:
        """`selected` is what is asked of each gene of `some` (numbers, ascending; None for all), which the columns `by`
        tell apart."""
        self._ds, self._matrix, self._selected, self._by = ds, matrix, selected, by
        self._some, self._by_rank = some, by_rank
        self._done: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return (query._inner for query in self.asked())

    def asked(self) -> Iterator[Any]:
        """Each query as it is asked."""
        rows = self._ds.table(self._matrix + "_rows")
        for genes in self._ranges():
            query = self._ds.fleet.sql(f"SELECT {self._by}, {self._selected} FROM {rows}{_export._where(genes)} GROUP BY {self._by}")
            self._done.append(query)
            yield query

    def _ranges(self) -> list[np.ndarray | None]:
        kept = self._ds._kept["matrices"][self._matrix]
        # A gene's ranks need all its blocks: where there are several, its nonzeros are kept until then.
        if not self._by_rank or len(_blocks.starts(kept)) <= 1:
            return [self._some]
        rows = self._ds.table(self._matrix + "_rows")
        # Only the column of counts is read, and the drives add it up.
        query = self._ds.fleet.sql(f"SELECT gene_id, sum(nnz) AS nnz FROM {rows} GROUP BY gene_id")
        counted = query.to_arrow()
        nonzeros = np.zeros(kept["shape"][1], np.int64)
        nonzeros[counted.column("gene_id").to_numpy()] = counted.column("nnz").to_numpy().astype(np.int64)
        self._done.append(query)
        wide = np.dtype(kept["dtype"]).itemsize > 4
        return list(ranges(nonzeros, self._some, len(query.receipt.to_dict()["drives"]), _MOST_BYTES // (_WIDE_BYTES if wide else _BYTES)))

    @property
    def receipt(self) -> Receipt:
        """What all of them cost."""
        return together([query.receipt for query in self._done])


def against_each(
    ds: Testing, matrix: str, transform: Transform, groups: tuple[list[str], np.ndarray], genes: np.ndarray | None, with_ties: bool
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray | None]], list[Receipt]]:
    """By reference, which is each of `groups` in turn: the sums of midranks and, `with_ties`, the ties of each gene
    (row, by number) and group (column), of the cells of the two groups. A query, or one for each range of genes, serves
    a reference; it has a receipt.

    Raises
    ------
    InvalidError
        A value that the transform can't take; gene and cell are named.
    """
    names, _ = groups
    spec = moments_spec(ds, matrix, transform, None, groups)
    out, receipts = {}, []
    for reference in names:
        text = _internal.rank_sums_spec(spec, reference).replace("'", "''")
        queries = Queries(ds, matrix, f"rank_sums(idx, val, block, '{text}') AS ranks", "gene_id", genes, True)
        numbers, sums, ties = [], [], []
        with ds._unchanged():
            try:
                for query in queries.asked():
                    rows = query.to_arrow()
                    numbers.append(rows.column("gene_id").to_numpy())
                    flat = rows.column("ranks").combine_chunks().flatten()
                    for field, found in (("sum", sums), *([("ties", ties)] if with_ties else [])):
                        found.append(flat.field(field).to_numpy(zero_copy_only=False).reshape(rows.num_rows, -1)[:, : len(names)])
            except InvalidError as e:
                raise ds._with_names(e, matrix, transform) from e
        number = np.concatenate(numbers)
        order = np.argsort(number)
        if genes is not None:
            # Of many genes a query names the first and the last only.
            order = order[np.isin(number[order], genes)]
        out[reference] = np.concatenate(sums)[order], np.concatenate(ties)[order] if with_ties else None
        receipts.append(queries.receipt)
    return out, receipts


def ranges(nonzeros: np.ndarray, some: np.ndarray | None, drives: int, most: int) -> Iterator[np.ndarray | None]:
    """Genes for one query each, with at most about `most` nonzeros: None for all genes. Every query has a part of the
    genes of each of the `drives`, so that all of them work at the same time: an ingest gives each a range of genes of
    the same weight, which is the number of nonzeros and 1 for each gene."""
    genes = np.arange(len(nonzeros)) if some is None else some
    count = int(-(-int(nonzeros[genes].sum()) // max(most, 1)))
    if count <= 1:
        yield some
        return
    ends = np.cumsum(nonzeros + 1)
    before = ends - (nonzeros + 1)
    # Where a gene begins, in shares of a drive: the whole part is the drive, the rest the place within it.
    place = before[genes] * max(drives, 1) / ends[-1]
    which = np.minimum(((place % 1) * count).astype(np.int64), count - 1)
    for number in range(count):
        part = genes[which == number]
        # A condition on more genes than it can name has others among them: here they are another query's.
        for start in range(0, len(part), _export._MOST_NAMED):
            yield part[start : start + _export._MOST_NAMED]
