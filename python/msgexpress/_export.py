"""From the drives back to AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import CorruptError

if TYPE_CHECKING:
    from skytether import Fleet


def matrix(fleet: Fleet, rows_table: str, kept: dict[str, Any], genes: np.ndarray | None, cells: np.ndarray | None) -> Any:
    """One matrix as it was ingested, or just the given genes and cells of it (numbers, in the order wanted, each at most once).

    Gives a numpy array or a scipy sparse matrix or array, cells as rows, of the class and type that went in. Takes about twice the memory of
    the result where that is CSR, once where it is CSC.
    """
    import scipy.sparse

    n_cells, n_genes = kept["shape"]
    gene_to = _renumber(genes, n_genes)
    cell_to = _renumber(cells, n_cells)
    shape = (n_cells if cells is None else len(cells), n_genes if genes is None else len(genes))
    where = _where(genes)
    csc = _compressed(fleet, rows_table, where, kept, gene_to, cell_to, shape)
    layout = kept["layout"]
    if layout == "dense":
        return csc.toarray()
    out: Any = csc.tocsr() if layout == "csr" else csc
    if layout == "csc":
        out.sort_indices()
    if kept["array"]:
        out = (scipy.sparse.csr_array if layout == "csr" else scipy.sparse.csc_array)(out)
    # scipy picks the narrowest index type; give back what went in.
    out.indices = out.indices.astype(kept["index"], copy=False)
    out.indptr = out.indptr.astype(kept["indptr"], copy=False)
    return out


def _compressed(
    fleet: Fleet, table: str, where: str, kept: dict[str, Any], gene_to: np.ndarray | None, cell_to: np.ndarray | None, shape: tuple[int, int]
) -> Any:
    import pyarrow as pa
    import scipy.sparse

    # How long each row is tells where it goes, so that rows may come in any order.
    lengths = fleet.sql(f"SELECT gene_id, block, nnz FROM {table}{where}").to_arrow()
    gene, block, nnz = (lengths.column(i).to_numpy() for i in range(3))
    column = gene.astype(np.int64) if gene_to is None else gene_to[gene]
    gene, block, nnz, column = (a[column >= 0] for a in (gene, block, nnz, column))
    blocks = int(block.max()) + 1 if len(block) else 1
    per_row = np.zeros(shape[1] * blocks + 1, np.int64)
    per_row[column * blocks + block + 1] = nnz
    starts = np.cumsum(per_row)
    indices = np.empty(int(starts[-1]), np.int32)
    data = np.empty(int(starts[-1]), kept["dtype"])

    stream = pa.RecordBatchReader.from_stream(fleet.sql(f"SELECT gene_id, block, idx, val FROM {table}{where}"))
    for batch in stream:
        if gene_to is not None:
            batch = batch.filter(pa.array(gene_to[batch.column(0).to_numpy()] >= 0))
        gene, block = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        idx, val = batch.column(2), batch.column(3)
        bounds = idx.offsets.to_numpy().astype(np.int64)
        of_idx, of_val = idx.values.to_numpy(zero_copy_only=False), val.values.to_numpy(zero_copy_only=False)
        shift = int(val.offsets[0].as_py()) - int(bounds[0]) if len(bounds) else 0
        column = gene.astype(np.int64) if gene_to is None else gene_to[gene]
        at = starts[column * blocks + block]
        # A row's entries are consecutive here and there: where each begins, plus the place within.
        lengths_here = np.diff(bounds)
        if len(lengths_here) == 0:
            continue
        if (at + lengths_here > starts[column * blocks + block + 1]).any():
            raise CorruptError(f"{table} changed while it was read")
        target = np.repeat(at - bounds[:-1], lengths_here) + np.arange(bounds[0], bounds[-1])
        indices[target] = of_idx[bounds[0] : bounds[-1]]
        data[target] = of_val[bounds[0] + shift : bounds[-1] + shift]
    indptr = starts[::blocks]
    if cell_to is not None:
        new = cell_to[indices]
        stays = new >= 0
        indptr = np.concatenate([[0], np.cumsum(stays)])[indptr]
        indices, data = new[stays].astype(np.int32), data[stays]
    return scipy.sparse.csc_matrix((data, indices, indptr), shape=shape)


def _renumber(chosen: np.ndarray | None, n: int) -> np.ndarray | None:
    if chosen is None:
        return None
    to = np.full(n, -1, np.int64)
    to[chosen] = np.arange(len(chosen))
    return to


def _where(genes: np.ndarray | None) -> str:
    if genes is None:
        return ""
    if len(genes) == 0:
        return " WHERE FALSE"
    ordered = np.unique(genes)
    # Runs of neighbours become ranges, which keeps the query short and lets drives skip slices.
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts, lasts = ordered[np.r_[0, breaks + 1]], ordered[np.r_[breaks, len(ordered) - 1]]
    if len(firsts) > 2000:  # too scattered to say: read the span and drop the rest
        return f" WHERE gene_id BETWEEN {ordered[0]} AND {ordered[-1]}"
    terms = [f"gene_id = {a}" if a == b else f"gene_id BETWEEN {a} AND {b}" for a, b in zip(firsts, lasts)]
    return " WHERE " + " OR ".join(terms)
