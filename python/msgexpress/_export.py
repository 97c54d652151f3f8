"""Reads a data set from the drives into AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from skytether import CorruptError, UnsupportedError

from . import _blocks

if TYPE_CHECKING:
    from skytether import Fleet

#: How many genes a query names one by one; with more it reads all from the first to the last, and
#: the rest is dropped here.
_MOST_NAMED = 20_000
#: How many runs of neighbouring genes a query names by their ends, and how long a run must be to be worth it.
_MOST_RUNS, _LONG_RUN = 100, 16
#: Up to this number of genes are read by one query. For more, a query of lengths says first where each value belongs.
_FEW_GENES = 16
#: How many ranges of cells a query names (8 bytes each for each drive), and up to what share of the cells in their
#: blocks it does.
_MOST_RANGES, _WORTH_IT = 1 << 11, 0.8


def matrix(fleet: Fleet, rows_table: str, kept: dict[str, Any], genes: np.ndarray | None, cells: np.ndarray | None) -> Any:
    """One matrix as it was ingested, or just the given genes and cells of it (numbers, ascending, each once).

    Gives a numpy array or a scipy sparse matrix or array, cells as rows, of the class and type that went in. Zeros that
    were stored explicitly are gone, as zeros are never stored. Takes about twice the memory of the result where that is
    CSR, some of the cells or a few genes, once where it is CSC.
    """
    import scipy.sparse

    n_cells, n_genes = kept["shape"]
    gene_to = _renumber(genes, n_genes)
    cell_to = _renumber(cells, n_cells)
    shape = (n_cells if cells is None else len(cells), n_genes if genes is None else len(genes))
    where = of_blocks(_where(genes), cells, kept)
    # scipy can't work with float16, which float32 holds exactly.
    dtype = np.dtype("float32" if kept["dtype"] == "float16" else kept["dtype"])
    if cells is not None and cell_to is not None:
        csc = _of_some_cells(fleet, rows_table, where, dtype, gene_to, cells, cell_to, picked(cells, kept), shape)
    else:
        csc = (_of_few_genes if shape[1] <= _FEW_GENES else _of_all_cells)(fleet, rows_table, where, dtype, gene_to, shape)
    layout = kept["layout"]
    if layout == "dense":
        return csc.toarray().astype(kept["dtype"], copy=False)
    out: Any = csc.tocsr() if layout == "csr" else csc
    if layout == "csc":
        out.sort_indices()
    if kept["array"]:
        out = (scipy.sparse.csr_array if layout == "csr" else scipy.sparse.csc_array)(out)
    # scipy picks the narrowest index type; give back what went in.
    out.indices = out.indices.astype(kept["index"], copy=False)
    out.indptr = out.indptr.astype(kept["indptr"], copy=False)
    out.data = out.data.astype(kept["dtype"], copy=False)
    return out


def _of_all_cells(fleet: Fleet, table: str, where: str, dtype: np.dtype, gene_to: np.ndarray | None, shape: tuple[int, int]) -> Any:
    """The CSC matrix of some or all genes, written straight to where each value belongs."""
    import pyarrow as pa
    import scipy.sparse

    # How long each row is tells where it goes, so that rows may come in any order.
    lengths = fleet.sql(f"SELECT gene_id, block, nnz FROM {table}{where}").to_arrow()
    gene, block, nnz = (lengths.column(i).to_numpy() for i in range(3))
    column = gene.astype(np.int64) if gene_to is None else gene_to[gene].astype(np.int64)
    block, nnz, column = (a[column >= 0] for a in (block, nnz, column))
    blocks = int(block.max()) + 1 if len(block) else 1
    per_row = np.zeros(shape[1] * blocks + 1, np.int64)
    per_row[column * blocks + block + 1] = nnz
    starts = np.cumsum(per_row)
    indices = np.empty(int(starts[-1]), np.int32)
    data = np.empty(int(starts[-1]), dtype)

    stream = pa.RecordBatchReader.from_stream(fleet.sql(f"SELECT gene_id, block, idx, val FROM {table}{where}"))
    for batch in stream:
        column, batch = _wanted(batch, gene_to)
        if not batch.num_rows:
            continue
        slot = column * blocks + batch.column(1).to_numpy()
        bounds, of_idx, of_val = _entries(batch.column(2), batch.column(3))
        at, lengths_here = starts[slot], np.diff(bounds)
        if (at + lengths_here > starts[slot + 1]).any():
            raise CorruptError(f"{table} changed while it was read")
        # A row's entries are consecutive here and there: where each begins, plus the place within.
        target = np.repeat(at - bounds[:-1], lengths_here) + np.arange(bounds[-1])
        indices[target] = of_idx
        data[target] = _cast(of_val, dtype, table)
    return scipy.sparse.csc_matrix((data, _within(indices, shape[0], table), starts[::blocks]), shape=shape)


def _of_few_genes(fleet: Fleet, table: str, where: str, dtype: np.dtype, gene_to: np.ndarray | None, shape: tuple[int, int]) -> Any:
    """The CSC matrix of a few genes, from their rows put in order: a second query would take longer than that."""
    import pyarrow as pa
    import scipy.sparse

    rows: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    for batch in pa.RecordBatchReader.from_stream(fleet.sql(f"SELECT gene_id, block, idx, val FROM {table}{where}")):
        column, batch = _wanted(batch, gene_to)
        bounds, of_idx, of_val = _entries(batch.column(2), batch.column(3))
        for at, (gene, block) in enumerate(zip(column.tolist(), batch.column(1).to_pylist())):
            entries = slice(bounds[at], bounds[at + 1])
            rows.append((gene, block, of_idx[entries], of_val[entries]))
    rows.sort(key=lambda row: row[:2])
    lengths = np.bincount([gene for gene, *_ in rows], [len(idx) for _, _, idx, _ in rows], shape[1]).astype(np.int64)
    indices = np.concatenate([np.zeros(0, np.uint32), *(idx for _, _, idx, _ in rows)]).view(np.int32)
    data = np.concatenate([np.zeros(0, dtype), *(_cast(val, dtype, table) for *_, val in rows)])
    return scipy.sparse.csc_matrix((data, _within(indices, shape[0], table), np.r_[0, np.cumsum(lengths)]), shape=shape)


def _within(indices: np.ndarray, n_cells: int, table: str) -> np.ndarray:
    """The numbers of cells, checked: scipy writes where they say."""
    if len(indices) and int(indices.view(np.uint32).max()) >= n_cells:
        raise CorruptError(f"{table} has cell {int(indices.view(np.uint32).max())}, but {n_cells} cells were there when it was described: take the data set again")
    return indices


def _of_some_cells(
    fleet: Fleet,
    table: str,
    where: str,
    dtype: np.dtype,
    gene_to: np.ndarray | None,
    cells: np.ndarray,
    cell_to: np.ndarray,
    entries: str | None,
    shape: tuple[int, int],
) -> Any:
    """The CSC matrix of some cells, whose values the drives pick where there are `entries` (`picked`)."""
    import pyarrow as pa
    import scipy.sparse

    chosen = _chooser(cells, cell_to)
    columns, rows, values = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], [np.zeros(0, dtype)]
    for batch in pa.RecordBatchReader.from_stream(fleet.sql(f"SELECT gene_id, {entries or 'idx, val'} FROM {table}{where}")):
        column, batch = _wanted(batch, gene_to)
        bounds, of_idx, of_val = _entries(*(batch.column(1).flatten() if entries else batch.columns[1:]))
        at = chosen(of_idx)
        columns.append(column[np.searchsorted(bounds, at, side="right") - 1].astype(np.int32))
        rows.append(cell_to[of_idx[at]])
        values.append(_cast(of_val[at], dtype, table))
    return scipy.sparse.coo_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape, dtype=dtype).tocsc()


def picked(cells: np.ndarray, kept: dict[str, Any]) -> str | None:
    """The call by which drives give the entries of `cells` (ascending, each once) of a row, a struct of idx and val.

    Cells between two of them may come as well, where these are in more than `_MOST_RANGES` ranges of neighbours. None
    where that would be nearly all cells of their blocks."""
    if not len(cells):
        return None
    gaps = np.diff(cells)
    breaks = np.flatnonzero(gaps > 1)
    if len(breaks) >= _MOST_RANGES:
        # The widest gaps stay.
        breaks = np.sort(breaks[np.argsort(-gaps[breaks], kind="stable")[: _MOST_RANGES - 1]])
    ranges = np.column_stack([cells[np.r_[0, breaks + 1]], cells[np.r_[breaks, len(cells) - 1]] + 1])
    if (ranges[:, 1] - ranges[:, 0]).sum() > _WORTH_IT * _blocks.sizes(kept)[np.unique(_blocks.of(kept, cells))].sum():
        return None
    return f"entries_of(idx, val, X'{ranges.astype('<u4').tobytes().hex()}') AS entries"


def _chooser(cells: np.ndarray, cell_to: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Gives the places of the chosen cells (ascending, each once) among cell numbers: this looks at every value that is
    stored, so it counts how."""
    if len(cells) and cells[-1] - cells[0] + 1 == len(cells):
        first, n = np.uint32(cells[0]), np.uint32(len(cells))
        # Numbers below the first one wrap around, and so are beyond the last.
        return lambda of: np.flatnonzero(of - first < n)
    member = cell_to >= 0
    # Half the time of `member[of]`.
    return lambda of: np.flatnonzero(np.take(member, of))


def _cast(values: np.ndarray, dtype: np.dtype, table: str) -> np.ndarray:
    """`values` in the type of the matrix. Texts of an mtx file may be numbers that it does not hold."""
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    if dtype.kind == "f" and (wrong := np.isinf(found) & np.isfinite(values)).any():
        raise UnsupportedError(
            f"{table}: the value {values[wrong][0]} is beyond {dtype}, in which AnnData gets this matrix: "
            "read it with SQL, or scale the file's values and ingest them again"
        )
    return found


def _wanted(batch: Any, gene_to: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """The rows of a batch whose genes are wanted, and the columns that they become."""
    import pyarrow as pa

    gene = batch.column(0).to_numpy()
    if gene_to is None:
        return gene.astype(np.int64), batch
    column = gene_to[gene].astype(np.int64)
    stays = column >= 0
    return (column, batch) if stays.all() else (column[stays], batch.filter(pa.array(stays)))


def _entries(idx: Any, val: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each row's entries begin and end, and all of the rows' indices and values."""
    bounds, of_val = idx.offsets.to_numpy().astype(np.int64), val.offsets.to_numpy()
    if not len(bounds):
        bounds, of_val = np.zeros(1, np.int64), np.zeros(1, np.int64)
    first, last, shift = int(bounds[0]), int(bounds[-1]), int(of_val[0]) - int(bounds[0])
    indices = idx.values.to_numpy(zero_copy_only=False)[first:last]
    return bounds - first, indices, val.values.to_numpy(zero_copy_only=False)[first + shift : last + shift]


def _renumber(chosen: np.ndarray | None, n: int) -> np.ndarray | None:
    if chosen is None:
        return None
    to = np.full(n, -1, np.int32)
    to[chosen] = np.arange(len(chosen))
    return to


def of_blocks(where: str, cells: np.ndarray | None, kept: dict[str, Any]) -> str:
    """The condition `where`, and that rows are of the blocks with the given cells (ascending): others need not be
    read."""
    if cells is None:
        return where
    if not len(cells):
        return f"{where}{' AND' if where else ' WHERE'} FALSE"
    blocks = np.unique(_blocks.of(kept, cells))
    if len(blocks) == len(_blocks.starts(kept)):
        return where
    first, last = int(blocks[0]), int(blocks[-1])
    # A list of blocks is for few cells that are far from each other.
    condition = f"BETWEEN {first} AND {last}" if last - first + 1 == len(blocks) or len(blocks) > _MOST_RUNS else f"IN ({', '.join(map(str, blocks))})"
    return f"{where}{' AND' if where else ' WHERE'} block {condition}"


def _where(genes: np.ndarray | None) -> str:
    """The condition on `gene_id` (ascending) that lets drives skip slices and send little more than what is wanted."""
    if genes is None:
        return ""
    if len(genes) == 0:
        return " WHERE FALSE"
    span = f"gene_id BETWEEN {genes[0]} AND {genes[-1]}"
    if genes[-1] - genes[0] + 1 == len(genes):
        return f" WHERE {span}"
    # Long runs of neighbours by their ends, all others in one list: a planner counts operators, and a list is one.
    breaks = np.flatnonzero(np.diff(genes) > 1)
    firsts, stops = np.r_[0, breaks + 1], np.r_[breaks, len(genes) - 1] + 1
    runs = np.argsort(firsts - stops, kind="stable")[:_MOST_RUNS]
    runs = runs[(stops - firsts)[runs] >= _LONG_RUN]
    single = np.ones(len(genes), bool)
    terms = []
    for run in np.sort(runs):
        single[firsts[run] : stops[run]] = False
        terms.append(f"gene_id BETWEEN {genes[firsts[run]]} AND {genes[stops[run] - 1]}")
    named = genes[single]
    if len(named) > _MOST_NAMED:
        return f" WHERE {span}"
    if len(named):
        terms.append(f"gene_id IN ({', '.join(map(str, named))})")
    return f" WHERE {span} AND ({' OR '.join(terms)})"
