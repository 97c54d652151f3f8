"""What plots show of a data set: means and shares of groups from the drives, and normalised values of a few genes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

from skytether import InvalidError, NotFoundError, Receipt

from . import _select
from ._arguments import one_name
from ._normalize import applied
from ._transforms import Settled, check_transform, written
from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

    from ._testing import Testing
    from ._transforms import Transform

#: A plot with more groups or genes than these shows none of them.
MOST_GROUPS, MOST_GENES = 200, 1000


@dataclass
class Grouping:
    """Groups of cells: their names, and for each cell the number of its group (-1: in none)."""

    by: str
    names: list[str]
    codes: np.ndarray
    #: The obs column as SQL calls it, where the drives can group by it themselves.
    column: str | None = None

    @property
    def sizes(self) -> np.ndarray:
        """Cells of each group."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))


@dataclass
class Genes:
    """The genes of a plot in its order: numbers in their matrix, names to show, and sets of neighbours with a name."""

    numbers: np.ndarray
    names: list[str]
    sets: list[tuple[str, int, int]]


def numbered(ds: Testing, obs: pd.DataFrame, column: str) -> tuple[np.ndarray, list[Any]]:
    """For each cell the number of its value in an obs column (int32, -1 for none), and the values: in the order of
    categories, or sorted.

    Raises
    ------
    NotFoundError
        No such column.
    InvalidError
        Its values group nothing.
    """
    import pandas as pd

    from ._testing import _in_numbers

    if column not in obs.columns:
        raise NotFoundError(f"obs of {ds.name} has no column {column!r}: it has {', '.join(map(repr, obs.columns)) or 'none'}{instead(column, obs.columns)}")
    values = obs[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(np.int32), list(values.cat.categories)
    try:
        codes, found = pd.factorize(values, sort=False)
    except TypeError as e:
        raise InvalidError(f"obs column {column!r} of {ds.name} holds values that group nothing: choose another column") from e
    order = sorted(range(len(found)), key=lambda i: _in_numbers(str(found[i])))
    place = np.empty(len(found) + 1, np.int32)
    place[order], place[-1] = np.arange(len(found)), -1
    return place[codes], [found[i] for i in order]


def grouping(ds: Testing, groupby: str, groups: Iterable[Any] | str | None = None, cells: Any = None) -> Grouping:
    """The groups of an obs column that have cells: in the order of its categories, or of `groups`.

    Raises
    ------
    NotFoundError
        No such column or group.
    InvalidError
        There are no groups, or too many to show.
    """
    one_name(groupby, "groupby", "obs column")
    obs = ds._shell.obs
    codes, found = numbered(ds, obs, groupby)
    names, texts = [str(value) for value in found], all(isinstance(value, str) for value in found)
    part = None if cells is None else _select.mask(_select.settled(cells), obs, "cells=")
    if part is not None:
        codes = np.where(part, codes, -1)
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(names)))
    if groups is not None and not (isinstance(groups, str) and groups == "all"):
        by_name = {names[i]: i for i in used}
        asked = [str(g) for g in ([groups] if isinstance(groups, str) or not isinstance(groups, Iterable) else groups)]
        for g in asked:
            if g not in by_name:
                raise NotFoundError(f"no cell has {g!r} in obs column {groupby!r}: there are {', '.join(map(repr, list(by_name)[:20]))}{instead(g, by_name)}")
        used = np.array([by_name[g] for g in dict.fromkeys(asked)], np.int64)
    if not len(used):
        raise InvalidError(f"there are no groups to show: no cell of {ds.name} has a value in obs column {groupby!r}")
    if len(used) > MOST_GROUPS:
        raise InvalidError(
            f"obs column {groupby!r} of {ds.name} has {len(used):,} values, and a plot shows at most {MOST_GROUPS} groups: "
            "name some with groups=, or choose another column"
        )
    new = np.full(len(names) + 1, -1, np.int32)
    new[used] = np.arange(len(used))
    known = ds._kept.get("obs_in_sql", {})
    column = known.get(groupby) if texts and part is None else None
    return Grouping(groupby, [names[i] for i in used], new[codes], column)


def genes_of(ds: Testing, matrix: str, genes: Any, gene_symbols: str | None = None) -> Genes:
    """The genes that are named: a name, several, numbers or a mask, or a dict of sets of them.

    Raises
    ------
    NotFoundError
        No such gene or var column.
    InvalidError
        There are none, or too many to show.
    """
    import pandas as pd

    names = ds._names(matrix) if gene_symbols is None else ds._var_column(matrix, gene_symbols).astype(str)
    index = pd.Index(names)
    about = ds._shell.var if gene_symbols is None else None
    numbers: list[np.ndarray] = []
    sets = []
    for label, some in genes.items() if isinstance(genes, Mapping) else [("", genes)]:
        found = _select.positions(some, index, "gene", about)
        start = sum(map(len, numbers))
        if isinstance(genes, Mapping) and len(found):
            sets.append((str(label), start, start + len(found)))
        numbers.append(found)
    flat = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    if not len(flat):
        raise InvalidError("there are no genes to show: name at least one")
    if len(flat) > MOST_GENES:
        raise InvalidError(f"a plot shows at most {MOST_GENES:,} genes, and these are {len(flat):,}: name fewer")
    return Genes(flat, [str(names[i]) for i in flat], sets)


@dataclass
class Moments:
    """Of each group (row) and gene (column): the mean over its cells, and the share of them above the cutoff, 0 to 1;
    `receipt` says what the drives did."""

    means: np.ndarray
    shares: np.ndarray
    receipt: Receipt | None


def moments(ds: Testing, matrix: str, transform: Transform, numbers: np.ndarray, groups: Grouping, cutoff: float = 0.0, only_expressed: bool = False) -> Moments:
    """Means and shares as scanpy's dot plot has them. The drives compute them, unless values below zero or a cutoff
    ask for the values themselves.

    `only_expressed`: the mean over the cells above the cutoff; 0 where there are none.
    """
    if cutoff == 0:
        found = _by_the_drives(ds, matrix, transform, numbers, groups, only_expressed)
        if found is not None:
            return found
    table = values(ds, matrix, transform, numbers).astype(np.float64)
    member = groups.codes >= 0
    codes, table = groups.codes[member], table[member]
    above = table > cutoff
    count = groups.sizes[:, None].astype(float)
    expressed = _sums(above.astype(float), codes, len(groups.names))
    total = _sums(np.where(above, table, 0) if only_expressed else table, codes, len(groups.names))
    over = expressed if only_expressed else count
    return Moments(np.divide(total, over, out=np.zeros_like(total), where=over > 0), expressed / count, None)


def _sums(table: np.ndarray, codes: np.ndarray, groups: int) -> np.ndarray:
    return np.stack([np.bincount(codes, weights=column, minlength=groups) for column in table.T], axis=1)


def _by_the_drives(ds: Testing, matrix: str, transform: Transform, numbers: np.ndarray, groups: Grouping, only_expressed: bool) -> Moments | None:
    """Moments from the drives; None where values are below zero, as shares count those above."""
    from . import _group_moments

    check_transform(transform)
    some = np.unique(numbers)
    of = groups.column or (groups.names, groups.codes.astype(np.int32))
    low = "" if transform is not None else ", min(array_min(val)) AS low"
    rows, receipt = _group_moments.rows_of(ds, matrix, transform, _group_moments.call(ds, matrix, transform, of) + low, some)
    if low and any(v is not None and v < 0 for v in rows.column("low").to_pylist()):
        return None
    found = _group_moments.decoded(ds, matrix, rows, receipt, some)
    place = {g: i for i, g in enumerate(found.names)}
    mean, share = np.zeros((len(groups.names), len(some))), np.zeros((len(groups.names), len(some)))
    for at, name in enumerate(groups.names):
        if name in place:
            n, nnz = found.n[place[name]], found.nnz[:, place[name]]
            share[at] = nnz / max(n, 1)
            mean[at] = found.mean[:, place[name]] * (n / np.maximum(nnz, 1) if only_expressed else 1.0)
    back = np.searchsorted(some, numbers)
    return Moments(mean[:, back], share[:, back], receipt)


def values(ds: Testing, matrix: str, transform: Transform, numbers: np.ndarray, cells: np.ndarray | None = None) -> np.ndarray:
    """Values of some genes (columns, in the order of `numbers`) in all cells, or in `cells` (numbers, ascending), as
    dense rows. Only these genes are read.

    Transforms are scanpy's, in float32, with the cell's total over all genes.

    Raises
    ------
    InvalidError
        A value that the transform can't take.
    """
    import scipy.sparse as sp

    check_transform(transform)
    some = np.unique(numbers)
    with ds._unchanged():
        found = ds._matrix_part(matrix, some, cells)
        total = None if transform is None else transform.totals if isinstance(transform, Settled) else totals(ds, matrix)
    sparse = sp.csc_matrix(found)
    if total is not None:
        sparse = _normalised(ds, transform, sparse, total if cells is None else total[cells], some, matrix, cells)
    return sparse.toarray()[:, np.searchsorted(some, numbers)]


def totals(ds: Testing, matrix: str) -> np.ndarray:
    """The sum over all genes of each cell (float32), as the drives keep it since the ingest."""
    return ds._totals(matrix)


def _normalised(ds: Testing, transform: Transform, sparse: Any, total: np.ndarray, numbers: np.ndarray, matrix: str, cells: np.ndarray | None) -> Any:
    data, of = sparse.data.astype(np.float32), total[sparse.indices]
    wrong = ~((data >= 0) & np.isfinite(data) & (of > 0) & np.isfinite(of))
    if wrong.any():
        at = int(np.argmax(wrong))
        gene = numbers[int(np.searchsorted(sparse.indptr, at, side="right")) - 1]
        cell = int(sparse.indices[at]) if cells is None else int(cells[sparse.indices[at]])
        raise InvalidError(
            f'{ds.name}: gene {str(ds._names(matrix)[gene])!r} has the value {sparse.data[at]:g} in cell {str(ds.obs_names[cell])!r}: '
            f"{written(transform)} is for counts, which are not negative, of cells with a positive total; use transform=None for values that are normalised already"
        )
    out = sparse.copy()
    out.data = applied(ds, matrix, transform, data, of)
    return out


def scaled(table: np.ndarray, standard_scale: str | None) -> np.ndarray:
    """Each gene (``"var"``, columns) or group (``"group"``, rows) from 0 to 1, as scanpy's `standard_scale`.

    Raises
    ------
    InvalidError
        It is neither of these, nor None.
    """
    if standard_scale is None:
        return table
    if standard_scale not in ("var", "group", "obs"):
        raise InvalidError(f"there is no standard_scale {standard_scale!r}: use 'var' (each gene from 0 to 1), 'group' (each group), or None")
    axis = 0 if standard_scale == "var" else 1
    low = table - table.min(axis=axis, keepdims=True)
    high = low.max(axis=axis, keepdims=True)
    return np.divide(low, high, out=np.zeros_like(low), where=high > 0)


def thinned(codes: np.ndarray, groups: int, most: int) -> np.ndarray:
    """At most about `most` cells of all groups, evenly from each group and in the order of groups: numbers of cells.
    Groups keep their shares, and small ones up to 20 cells."""
    member = np.flatnonzero(codes >= 0)
    share = min(1.0, most / max(len(member), 1))
    chosen: list[np.ndarray] = []
    for g in range(groups):
        cells = np.flatnonzero(codes == g)
        wanted = len(cells) if share == 1.0 else min(len(cells), max(20, int(len(cells) * share)))
        chosen.append(cells[np.linspace(0, len(cells) - 1, wanted).round().astype(np.int64)] if wanted else cells)
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


def names_of(values: Sequence[str] | str) -> list[str]:
    """One name or several, as a list."""
    return [values] if isinstance(values, str) else [str(v) for v in values]
