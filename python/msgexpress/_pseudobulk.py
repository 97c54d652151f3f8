"""Sums or means of cells per sample and group, as an AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import ExhaustedError, InvalidError

from . import _blocks, _features, _group_moments, _values
from ._arguments import one_name
from ._hints import instead

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    from ._testing import Testing

FUNCTIONS = ("sum", "mean")
#: Rows times genes of one result: 1 GiB.
MOST_VALUES = 1 << 27


def pseudobulk(ds: Testing, matrix: str, sample: str, groupby: str | None, func: str, min_cells: int, cells: Any, genes: Any) -> anndata.AnnData:
    """See `Contrasts.pseudobulk`."""
    import anndata
    import pandas as pd

    from . import _select

    one_name(sample, "sample", "obs column")
    if groupby is not None:
        one_name(groupby, "groupby", "obs column")
    if func not in FUNCTIONS:
        raise InvalidError(f"func is {func!r}: use 'sum' or 'mean'{instead(func, FUNCTIONS)}")
    if isinstance(min_cells, bool) or not isinstance(min_cells, (int, np.integer)) or min_cells < 0:
        raise InvalidError(f"min_cells is {min_cells!r}: give a number of cells, 0 or more, as a whole number")
    obs = ds._shell.obs
    by = [sample] if groupby is None else [sample, groupby]
    if "n_cells" in by:
        raise InvalidError("n_cells is what the numbers of cells are called in the result: rename that obs column to group by it")
    if groupby == sample:
        raise InvalidError(f"sample and groupby are both {sample!r}: leave groupby= out, or name another obs column")
    part = np.ones(len(obs), bool) if cells is None else _select.mask(_select.settled(cells), obs, "cells=")
    columns = [_values.numbered(ds, obs, column) for column in by]
    codes = np.zeros(len(obs), np.int64)
    for of, found in columns:
        part &= of >= 0
        codes = codes * max(len(found), 1) + of
    rows, first, place, n_cells = np.unique(codes[part], return_index=True, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(n_cells >= min_cells)
    if not len(kept):
        of = f"obs column {sample!r}" if groupby is None else f"obs columns {sample!r} and {groupby!r}"
        why = f"min_cells={min_cells}, and the largest row has {n_cells.max():,} cells" if len(rows) else f"no cell of {ds.name} has a value in {of}"
        raise InvalidError(f"there is nothing to add up: {why}")
    numbers = np.full(len(obs), -1, np.int32)
    numbers[part] = renumbered(place, kept, len(rows))
    some = np.arange(ds._kept["matrices"][matrix]["shape"][1]) if genes is None else ds._some_genes(genes, ds._names(matrix))
    if len(kept) * len(some) > MOST_VALUES:
        raise ExhaustedError(
            f"{len(kept):,} rows of {len(some):,} genes are more than one result holds ({MOST_VALUES:,} values): choose some with cells=, genes= or min_cells="
        )
    cells_of = np.flatnonzero(part)[first[kept]]
    values = _sums(ds, matrix, numbers, len(kept), some)
    if func == "mean":
        values = values / n_cells[kept, None]
    about = obs.iloc[cells_of]
    names = ["_".join(map(str, keys)) for keys in zip(*(about[column] for column in by))]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidError(f"two rows would be called {twice!r}: values of obs columns {' and '.join(map(repr, by))} with '_' in them can't be told apart; rename them")
    grouped = {column: about[column].array if isinstance(about[column].dtype, pd.CategoricalDtype) else about[column].to_numpy() for column in by}
    frame = pd.DataFrame(grouped, index=names)
    frame["n_cells"] = n_cells[kept]
    for column in _constant(obs, numbers, len(kept)):
        if column not in frame:
            frame[column] = about[column].array
    var = _var(ds, matrix).iloc[some].copy()
    asked = {"sample": sample, "groupby": groupby, "func": func, "min_cells": int(min_cells), **ds._place(matrix)}
    return anndata.AnnData(X=values, obs=frame, var=var, uns={"pseudobulk": {key: value for key, value in asked.items() if value is not None}})


def renumbered(codes: np.ndarray, chosen: Any, count: int) -> np.ndarray:
    """`codes` (below `count`, -1 for none) by their place in `chosen`; -1 for others."""
    to = np.full(count + 1, -1, np.int32)
    to[np.asarray(chosen)] = np.arange(len(chosen))
    return to[codes]


def _sums(ds: Testing, matrix: str, codes: np.ndarray, rows: int, genes: np.ndarray) -> np.ndarray:
    """Sums of the stored values of `genes` (columns) over the cells of each row: of integers int64 and exact, else
    float64."""
    import pyarrow as pa

    with ds._unchanged():
        whole = pa.types.is_integer(pa.schema(ds.fleet.sql(f"SELECT val FROM {ds.table(matrix + '_rows')} LIMIT 0")).field(0).type.value_type)
    out = np.empty((rows, len(genes)), np.int64 if whole else np.float64)
    blocks = len(_blocks.starts(ds._kept["matrices"][matrix]))
    names = [str(i) for i in range(rows)]
    step = max(1, _group_moments.MOST_ENTRIES // (rows + 1))
    for start in range(0, len(genes), step):
        some = genes[start : start + step]
        found = _group_moments.moments(ds, matrix, None, (names, codes), some)
        mean, n = found.mean[:, :-1], found.n[:-1].astype(np.float64)
        sums = mean * n
        if whole:
            exact = _rounds_to_the_sum(mean, found.m2[:, :-1], n, blocks)
            # A sum that is not sure to be the nearest integer is added up here, of the values themselves.
            unsure = np.flatnonzero(~exact.all(axis=1))
            sums = np.rint(sums).astype(np.int64)
            if len(unsure):
                sums[unsure] = _group_moments.streamed(ds, matrix, codes, rows, some[unsure])[0][:, :-1]
        out[:, start : start + step] = sums.T
    return out


def _rounds_to_the_sum(mean: np.ndarray, m2: np.ndarray, n: np.ndarray, blocks: int) -> np.ndarray:
    """Where ``rint(mean * n)`` is the exact sum of values that are whole numbers and not negative.

    A block's sum is exact, as a float64 holds whole numbers up to 2^53. Its mean is rounded once, and each merge of two
    means (Chan's update) rounds four times. No such mean is above the largest value, which is at most mean + sqrt(M2).
    So the mean is off by less than 4 (blocks + 1) roundings of 2^-53 of that, and n times as much must be below a half.
    Half of that bound is asked for, as mean and M2 are rounded themselves.
    """
    largest = (mean + np.sqrt(m2)) * n
    return largest * (8.0 * (blocks + 1)) * 2.0**-53 < 0.5


def _constant(obs: pd.DataFrame, rows: np.ndarray, count: int) -> list[str]:
    """The columns with one value, or none, in all cells of each row (-1: a cell of no row)."""
    import pandas as pd

    member = np.flatnonzero(rows >= 0)
    of = rows[member]
    first = np.empty(count, np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]
    found = []
    for column in obs.columns:
        try:
            codes, _ = pd.factorize(obs[column].iloc[member], sort=False)
        except TypeError:
            continue  # lists and the like
        if (codes == codes[first[of]]).all():
            found.append(column)
    return found


def _var(ds: Testing, matrix: str) -> pd.DataFrame:
    """The genes of a matrix, as AnnData's var."""
    origin = ds._kept["matrices"][matrix]["origin"]
    if origin.startswith(_features.ORIGIN):
        with ds._unchanged():
            return ds._own_var(matrix)
    return ds._shell.raw.var if origin == "raw/X" else ds._shell.var
