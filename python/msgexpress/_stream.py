"""A stored matrix in parts, gene by gene or cell by cell, in bounded memory."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

from . import _export

if TYPE_CHECKING:
    from ._stored import Stored

#: Values that are read at a time, and that a band of cells has: about 25 and 200 MB.
PART, BAND = 1 << 21, 1 << 23
#: Bytes of a band of a dense matrix.
_DENSE = 1 << 27


class Stream:
    """One matrix of a data set, or some genes and cells of it (numbers, in the order wanted; None for all)."""

    def __init__(self, ds: Stored, table: str, genes: np.ndarray | None, cells: np.ndarray | None) -> None:
        self._ds, self.table = ds, table
        self.kept: dict[str, Any] = ds._kept["matrices"][table]
        all_cells, all_genes = self.kept["shape"]
        self.genes = np.arange(all_genes) if genes is None else np.asarray(genes)
        self.cells = None if cells is None else np.asarray(cells)
        self.shape = (all_cells if cells is None else len(cells), len(self.genes))
        self.dtype = np.dtype(self.kept["dtype"])
        self._lengths: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Nonzeros of each gene, over all cells."""
        if self._lengths is None:
            found = self._ds.fleet.sql(f"SELECT gene_id, nnz FROM {self._ds.table(self.table + '_rows')}").to_arrow()
            per_gene = np.bincount(found.column(0).to_numpy(), found.column(1).to_numpy(), self.kept["shape"][1]).astype(np.int64)
            self._lengths = per_gene[self.genes]
        return self._lengths

    def by_gene(self) -> Iterator[tuple[int, Any]]:
        """The genes some at a time: the number of the first, and a CSC matrix of all cells and these genes. Cells
        ascend within a gene."""
        ends = np.cumsum(self.lengths)
        first = 0
        # Some of the cells are read among all of a gene, and given in their order.
        cell_set = None if self.cells is None else np.unique(self.cells)
        order = None if self.cells is None or np.array_equal(cell_set, self.cells) else np.searchsorted(cell_set, self.cells)
        while first < len(self.genes):
            begun = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begun + PART, side="right")))
            wanted = self.genes[first:last]
            gene_set = np.unique(wanted)
            kept = {**self.kept, "layout": "csc", "index": "int32", "indptr": "int32", "array": False}
            if kept["dtype"] == "float16":
                kept["dtype"] = "float32"
            part = _export.matrix(self._ds.fleet, self._ds.table(f"{self.table}_rows"), kept, gene_set, cell_set)
            if not np.array_equal(gene_set, wanted):
                part = part[:, np.searchsorted(gene_set, wanted)]
            if order is not None:
                part = part.tocsr()[order].tocsc()
            part.sort_indices()
            yield first, part
            first = last

    def nnz(self) -> int:
        """Nonzeros in all; where only some cells are wanted, all of it is read for that."""
        return int(self.lengths.sum()) if self.cells is None else sum(part.nnz for _, part in self.by_gene())

    def by_cell(self, place: str, dense: bool = False) -> Iterator[tuple[int, Any]]:
        """The cells some at a time: the number of the first, and a CSR matrix of these cells and all genes. What does
        not fit into memory is sorted by bands of cells in a file in the directory `place`."""
        import scipy.sparse

        cells, genes = self.shape
        bands = -(-int(self.lengths.sum()) // BAND)
        if dense:
            bands = max(bands, -(-cells * genes * self.dtype.itemsize // _DENSE))
        span = max(1, -(-cells // max(1, bands)))
        if span >= cells:
            parts = [part for _, part in self.by_gene()]
            whole = scipy.sparse.hstack(parts, format="csr") if parts else scipy.sparse.csr_matrix(self.shape, dtype=self.dtype)
            yield 0, whole
            return
        entry = np.dtype([("cell", np.int32), ("gene", np.int32), ("value", "f4" if self.dtype == np.float16 else self.dtype)])
        with tempfile.TemporaryDirectory(dir=place, prefix=".sorting-") as spill:

            def file(band: int) -> str:
                return os.path.join(spill, str(band))

            for first, part in self.by_gene():
                rows = part.indices
                entries = np.empty(part.nnz, entry)
                entries["cell"], entries["value"] = rows, part.data
                entries["gene"] = np.repeat(np.arange(first, first + part.shape[1], dtype=np.int32), np.diff(part.indptr))
                band = rows // span
                # Stable: genes still ascend within a band.
                order = np.argsort(band, kind="stable")
                entries = entries[order]
                bounds = np.searchsorted(band[order], np.arange(-(-cells // span) + 1))
                for number in np.flatnonzero(np.diff(bounds)).tolist():
                    with open(file(number), "ab") as out:
                        entries[bounds[number] : bounds[number + 1]].tofile(out)
            for number in range(-(-cells // span)):
                start, rows_here = number * span, min(span, cells - number * span)
                entries = np.fromfile(file(number), entry) if os.path.exists(file(number)) else np.empty(0, entry)
                at = (entries["cell"] - start, entries["gene"])
                yield start, scipy.sparse.coo_matrix((entries["value"], at), shape=(rows_here, genes)).tocsr()
                if os.path.exists(file(number)):
                    os.remove(file(number))
