"""Quality of cells and genes: the frames of scanpy's `calculate_qc_metrics`, from sums that the drives make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Mapping

import numpy as np

from skytether import InvalidError

from . import _blocks, _progress, _select, _sums
from ._arguments import Missing
from ._hints import instead
from ._sums import Part

if TYPE_CHECKING:
    import pandas as pd

    from ._testing import Testing

#: How many of the largest genes scanpy's shares are about; as a default, those that there are genes for.
_TOPS = (50, 100, 200, 500)
PERCENT_TOP: Any = Missing(str(_TOPS))


def gene_set(ds: Testing, matrix: str, chosen: Any) -> np.ndarray:
    """A mask of the genes that `chosen` means: a prefix of names (capitals or not), a mask, names or numbers.

    Raises
    ------
    InvalidError
        No gene's name begins so; a mask of another length.
    NotFoundError
        A name that is not there.
    """
    import pandas as pd

    names = ds._names(matrix)
    if isinstance(chosen, str):
        found = np.fromiter((str(n).upper().startswith(chosen.upper()) for n in names), bool, len(names))
        if not found.any():
            raise InvalidError(f"no gene of {ds.name} has a name that begins with {chosen!r}{instead(chosen, names)}")
        return found
    mask = np.zeros(len(names), bool)
    mask[_select.positions(chosen, pd.Index(names), "gene", ds._genes if matrix == "x" else None)] = True
    return mask


def metrics(
    ds: Testing, part: Part, qc_vars: Mapping[str, Any] | Iterable[str] | None, layer: str | None, percent_top: Iterable[int] | None, log1p: bool, progress: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frames of the cells and of the genes of a part; see `Preparing.qc_metrics`."""
    import pandas as pd

    matrix = ds._matrix(layer)
    kept = ds._kept["matrices"][matrix]
    _sums.check_part(ds, matrix, part)
    names = pd.Index(ds._names(matrix))
    if part.genes is not None:
        names = names[part.genes]
    sets = {str(name): gene_set(ds, matrix, chosen) for name, chosen in _sets(ds, matrix, qc_vars).items()}
    counts = ds._is_counts(layer)
    top = _tops(percent_top, len(names), counts, ds.name)
    with _progress.stepper(progress, f"counting {ds.name}") as step:
        step(0, 2, "cells")
        asked: list[_sums.Sum] = [("nonzeros", None), ("values", None), *(("values", mask.astype(np.float32)) for mask in sets.values())]
        found = _sums.per_cell(ds, matrix, asked, top=top if counts else (), genes=part.genes)
        if part.cells is not None:
            found = found[:, part.cells]
        tops = found[len(asked) :] if counts or not top else _largest(ds, matrix, part, top)
        step(1, 2, "genes")
        in_cells, sums = _sums.gene_counts(ds, matrix, part)
        step(2, 2, "")
    total_type = _total_type(kept["dtype"])
    totals = found[1].astype(total_type)
    index = ds.obs_names if part.cells is None else ds.obs_names[part.cells]
    obs = pd.DataFrame(index=index)

    def add(frame: pd.DataFrame, name: str, values: np.ndarray) -> None:
        frame[name] = values
        if log1p:
            frame[f"log1p_{name}"] = np.log1p(frame[name])

    add(obs, "n_genes_by_counts", found[0].astype(np.int32 if kept["layout"] == "csr" else np.int64))
    add(obs, "total_counts", totals)
    with np.errstate(invalid="ignore", divide="ignore"):
        for n, largest in zip(top, tops):
            obs[f"pct_counts_in_top_{n}_genes"] = largest.astype(total_type) / totals.astype(np.float64) * 100
        for name, of in zip(sets, found[2:]):
            add(obs, f"total_counts_{name}", of.astype(total_type))
            obs[f"pct_counts_{name}"] = obs[f"total_counts_{name}"] / obs["total_counts"] * 100
    n_cells = len(index)
    var = pd.DataFrame(index=names)
    var["n_cells_by_counts"] = in_cells.astype(np.int32 if kept["layout"] == "csc" else np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        add(var, "mean_counts", sums / n_cells)
        var["pct_dropout_by_counts"] = (1 - var["n_cells_by_counts"] / n_cells) * 100
    add(var, "total_counts", sums.astype(total_type))
    return obs, var


def _sets(ds: Testing, matrix: str, qc_vars: Mapping[str, Any] | Iterable[str] | None) -> Mapping[str, Any]:
    """The sets of genes by name. As in scanpy, names alone are columns of var with a mask each."""
    if qc_vars is None or isinstance(qc_vars, Mapping):
        return qc_vars or {}
    columns = [qc_vars] if isinstance(qc_vars, str) else list(qc_vars)
    return {str(column): ds._var_column(matrix, column).astype(bool) for column in columns}


def _tops(percent_top: Iterable[int] | None, n_genes: int, counts: bool, name: str) -> list[int]:
    if percent_top is None:
        return []
    if percent_top is PERCENT_TOP:
        return [n for n in _TOPS if n <= n_genes] if counts else []
    top = sorted(dict.fromkeys(percent_top))
    for n in top:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 0 < n <= n_genes:
            raise InvalidError(f"percent_top has {n!r}: {name} has {n_genes:,} genes, so n is 1 to {n_genes:,}; percent_top=None adds no such columns")
    return [int(n) for n in top]


def _total_type(dtype: str) -> Any:
    """The type of sums of a matrix's values, as numpy has it."""
    kind = np.dtype(dtype).kind
    return np.float32 if dtype in ("float16", "float32") else np.float64 if kind == "f" else np.uint64 if kind == "u" else np.int64


def _largest(ds: Testing, matrix: str, part: Part, top: list[int]) -> np.ndarray:
    """Sums of each cell's largest values that are no counts: the cells are read, a block at a time."""
    n_cells = ds._kept["shape"][0]
    out = np.zeros((len(top), n_cells))
    for first in range(0, n_cells, _blocks.BLOCK):
        cells = np.arange(first, min(first + _blocks.BLOCK, n_cells))
        rows = ds._matrix_part(matrix, part.numbers(), cells)
        rows = rows.toarray() if not hasattr(rows, "indptr") and hasattr(rows, "toarray") else rows
        for i, row in enumerate(rows.tocsr() if hasattr(rows, "tocsr") else rows):
            values = np.sort(np.asarray(row.data if hasattr(row, "indptr") else row, np.float64).ravel())[::-1]
            # Zeros that are not stored come before values below zero.
            stored = np.cumsum(values[values > 0])
            for at, n in enumerate(top):
                out[at, first + i] = stored[min(n, len(stored)) - 1] if len(stored) else 0.0
    return out if part.cells is None else out[:, part.cells]
