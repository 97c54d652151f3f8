"""Genes that differ between groups of cells of several data sets, aligned by identifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import InvalidError

from . import _across_moments, _progress, _select
from ._across import Receipts, names_of
from ._across_genes import Identifiers, known_ids, require_shared
from ._across_moments import Matrix, Moments, merged
from ._across_sql import Filter, columns_of, values_of
from ._arguments import check_n_genes, chosen_method
from ._dataset import Dataset
from ._group_moments import FEW_ENTRIES
from ._rank import RankResult
from ._testing import CORRECTIONS, T_TESTS, _check

if TYPE_CHECKING:
    import pandas as pd

    from ._across_genes import Identified
    from ._across_sql import Column

#: Groups of an obs column up to which the drives compute all of them, so that no cell's group moves.
_FEW_GROUPS = 64
_ON_BOTH = "cells are on both sides ({} {}), and a t-test compares independent ones: leave them out of one side"


class CompareResult(RankResult):
    """Genes by how differently the two sides express them, best score first. In addition to what `RankResult` has:

    - `matched`, `missing_in_a`, `missing_in_b`: identifiers. The first are the genes that were compared, unless
      `filtered` has them. The others are genes that the other side has, and that at least one data set of this side
      lacks. They have no numbers: a gene that was not measured is not one of zero counts.
    - `filtered`: genes that `min_pct` or `min_logfc` left out of the test.
    - `genes`: a row per gene of either side: `id`, `names_a`, `names_b` (missing where a side lacks it).
    - `means`: a row per gene that was tested: `id`, `mean_a`, `mean_b`, `std_a`, `std_b` (with n - 1).
    - `cells`: the cells of each side by data set.
    - `receipts`: what each data set's drives did; `receipt` is the same.
    """

    matched: list[str]
    missing_in_a: list[str]
    missing_in_b: list[str]
    filtered: list[str]
    genes: pd.DataFrame
    means: pd.DataFrame
    cells: dict[str, dict[str, int]]
    receipts: Receipts

    def to_df(self, group: Any = None, *, gene_symbols: str | None = None) -> pd.DataFrame:
        """As `RankResult.to_df`; `names` are those of side a, and `names_b` is there where side b has others."""
        frame = super().to_df(group, gene_symbols=gene_symbols)
        others = self._other_names[self._values(self.groups[0], "gene_id")]
        if (others != frame["names"].to_numpy(object)).any():
            frame.insert(1, "names_b", others)
        return frame

    _other_names: np.ndarray
    _said: str

    def _subtitle(self) -> str:
        return f"{self.test}, {self._said}, {self.params['corr_method']}"

    def __repr__(self) -> str:
        a, b = self.groups[0], self.params["reference"]
        lacking = f"{len(self.missing_in_a):,} missing in a, {len(self.missing_in_b):,} missing in b"
        return f"<msgexpress.CompareResult of {a} against {b}: {len(self._tested()):,} genes ({lacking}), {self._subtitle()}>"


@dataclass
class Side:
    """One side of a comparison: parts of data sets."""

    label: str
    parts: list[tuple[Dataset, Any]]


def compare(
    db: Any,
    a: Any,
    b: Any,
    on: Any,
    method: str,
    transform: Any,
    corr_method: str,
    n_genes: int | None,
    layer: Any,
    genes: Any,
    min_pct: float | None,
    min_logfc: float | None,
    id_versions: str | None,
    duplicates: str | None,
    progress: Any,
) -> CompareResult:
    """See `MsgExpress.compare`."""
    if method == "wilcoxon":
        raise InvalidError(
            "method 'wilcoxon' ranks the cells of both sides together, and they are in several data sets: ingest these as one "
            f"(db.ingest([...], name, batch=...)) and ask ds.wilcoxon(a, b); here, use one of {', '.join(map(repr, T_TESTS))}"
        )
    method = chosen_method(method, T_TESTS)
    _check(corr_method, CORRECTIONS, "corr_method")
    check_n_genes(n_genes)
    _check_filter(min_pct, "min_pct", "a share of cells, 0 to 1", 1.0)
    _check_filter(min_logfc, "min_logfc", "a log2 fold change that is not negative", math.inf)
    identifiers = Identifiers(on, id_versions, duplicates)
    opened: dict[str, Dataset] = {}
    sides = (_side(db, a, "a", opened), _side(db, b, "b", opened))
    _tell_apart(sides)
    datasets = list(dict.fromkeys(ds for side in sides for ds, _ in side.parts))
    matrices = _across_moments.matrices(datasets, layer, transform)
    identified = dict(zip(datasets, identifiers.of([(ds, matrices[ds].table) for ds in datasets])))
    of_side = [[identified[ds] for ds in dict.fromkeys(ds for ds, _ in side.parts)] for side in sides]
    matched = require_shared([*of_side[0], *(one for one in of_side[1] if one not in of_side[0])], on)
    wanted = None if genes is None else known_ids(genes, list(identified.values()))
    if wanted is not None:
        matched = [gene for gene in matched if gene in wanted]
        if not matched:
            raise InvalidError("none of the genes that genes= names is in all data sets: there is nothing to compare")
    asked: dict[Dataset, list[Moments]] = {}
    numbers = {ds: _numbers(identified[ds], matched) for ds in datasets}
    with _progress.stepper(progress, "comparing") as step:
        for i, ds in enumerate(datasets):
            step(i, len(datasets), ds.name)
            asked[ds] = _moments_of(matrices[ds], sides, None if wanted is None else np.unique(numbers[ds]), method)
    made = []
    base = {matrices[ds].log_base or math.e for ds in datasets}
    for s in (0, 1):
        parts = []
        for ds in dict.fromkeys(ds for ds, _ in sides[s].parts):
            found = asked[ds][s].among(numbers[ds])
            # Logarithms of several bases are compared as natural ones.
            scale = 1.0 if len(base) == 1 else math.log(matrices[ds].log_base or math.e)
            m2 = found.m2 if found.m2 is not None else np.zeros_like(found.mean)
            parts += [(int(found.n[g]), found.nnz[g], found.mean[g] * scale, m2[g] * scale**2) for g in range(len(found.groups))]
        made.append(merged(parts))
    cells = {side: {ds.name: int(asked[ds][s].n.sum()) for ds in dict.fromkeys(ds for ds, _ in sides[s].parts)} for s, side in enumerate("ab")}
    for s, side in enumerate(sides):
        if made[s][0] < 2:
            raise InvalidError(f"{side.label!r} has {made[s][0]} cells: a t-test needs at least two on each side")
    table = _tested(made[0], made[1], method, min_pct, min_logfc, corr_method, base.pop() if len(base) == 1 else math.e, sides[0].label)
    receipts = Receipts({ds.name: asked[ds][0].receipt for ds in datasets})
    said_of = {ds.name: matrices[ds].transform for ds in datasets}
    said = next(iter(said_of.values())) if len(set(said_of.values())) == 1 else said_of
    names = [_names(of_side[s][0], matched) for s in (0, 1)]
    res = CompareResult(
        " and ".join(ds.name for ds in datasets),
        table[0],
        receipts,  # type: ignore[arg-type]
        {
            "groupby": None,
            "reference": sides[1].label,
            "method": method,
            "use_raw": False,
            "layer": layer if isinstance(layer, str) or layer is None else dict(layer),
            "corr_method": corr_method,
            "transform": said,
            "on": on if isinstance(on, str) or on is None else dict(on),
        },
        n_genes,
        None,
        True,
        names[0],
        ids=None if on is None else (on if isinstance(on, str) else "id", np.array(matched, object)),
        var=None,
    )
    res.matched = matched
    res.missing_in_a, res.missing_in_b = (_missing(of_side[s], of_side[1 - s], wanted) for s in (0, 1))
    res.filtered = [matched[i] for i in np.flatnonzero(~table[1])]
    res.receipts, res.cells, res._other_names = receipts, cells, names[1]
    res._said = "values by data set" if isinstance(said, dict) else "values as stored" if said is None else "log1p of counts per 10,000"
    res.genes = _all_genes(of_side, wanted)
    res.means = _means(matched, made)
    return res


def _check_filter(value: Any, what: str, kind: str, most: float) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= most):
        raise InvalidError(f"{what} is {value!r}: give {kind}, or None")


# ---- which cells


def _side(db: Any, given: Any, which: str, opened: dict[str, Dataset]) -> Side:
    """The parts that a side of a comparison names."""
    each = given if isinstance(given, list) else [given]
    if not each:
        raise InvalidError(f"{which} names no cells: give {{\"dataset\": \"domain/dataset\", \"cell_type\": \"B\"}}")
    parts = [part for one in each for part in _parts(db, one, which, opened)]
    labels = list(dict.fromkeys(_select.label(chosen, "some cells") or "all cells" for _, chosen in parts))
    names = list(dict.fromkeys(ds.name for ds, _ in parts))
    return Side(f"{' or '.join(labels)} of {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}", parts)


def _parts(db: Any, one: Any, which: str, opened: dict[str, Dataset]) -> list[tuple[Dataset, Any]]:
    if isinstance(one, tuple) and len(one) == 2:
        named, chosen = one
    elif isinstance(one, dict) and "dataset" in one:
        named, chosen = one["dataset"], {column: wanted for column, wanted in one.items() if column != "dataset"}
    else:
        said = f"{which} does not say which data set" if isinstance(one, dict) else f"{which} is {type(one).__name__}, which names no cells of a data set"
        raise InvalidError(
            f"{said}: give {{\"dataset\": \"domain/dataset\", \"cell_type\": \"B\"}}, a pair of a data set and cells as ttest takes them "
            "or a condition of SQL, or a list of these"
        )
    names = [named] if isinstance(named, (str, Dataset)) else list(named) if isinstance(named, (list, tuple)) else None
    if not names or not all(isinstance(name, (str, Dataset)) for name in names):
        raise InvalidError(f"{which} names the data set {named!r}: write it as \"domain/dataset\", or give a domain, or a list of such names")
    found = []
    for name in (each for one in names for each in (names_of(db, one) if isinstance(one, str) else [one])):
        ds = opened.setdefault(name.name, name) if isinstance(name, Dataset) else opened.get(name) or opened.setdefault(name, db[name])
        found.append((ds, _select.settled(chosen)))
    return found


def _tell_apart(sides: Sequence[Side]) -> None:
    """Sides that are called alike get numbers."""
    if sides[0].label == sides[1].label:
        sides[0].label, sides[1].label = f"{sides[0].label} (first)", f"{sides[1].label} (second)"


def _moments_of(matrix: Matrix, sides: Sequence[Side], genes: np.ndarray | None, method: str) -> list[Moments]:
    """The moments of each side's cells of one data set, by one query."""
    ds = matrix.dataset
    columns = columns_of(ds)
    chosen = [[selector for one, selector in side.parts if one is ds] for side in sides]
    column = _one_column(columns, [selector for side in chosen for selector in side])
    if column is not None and _takes_all_groups(len(columns[column].categories or ()), matrix.n_genes if genes is None else len(genes)):
        groups = [_groups(ds, column, columns, side) for side in chosen]
        if set(groups[0]) & set(groups[1]):
            raise InvalidError(_ON_BOTH.format(f"those with {column} {min(set(groups[0]) & set(groups[1]))!r} of", ds.name))
        found = _across_moments.by_column(matrix, columns, column, None, genes, method=method)
        at = [[found.groups.index(group) for group in side] for side in groups]
        assert found.m2 is not None
        return [Moments([found.groups[i] for i in some], found.n[some], found.nnz[some], found.mean[some], found.m2[some], found.receipt) for some in at]
    masks = [np.zeros(ds.n_obs, bool), np.zeros(ds.n_obs, bool)]
    for mask, side in zip(masks, chosen):
        for selector in side:
            mask |= _mask(ds, columns, selector)
    both_sides = masks[0] & masks[1]
    if both_sides.any():
        raise InvalidError(_ON_BOTH.format(f"{int(both_sides.sum()):,} of", ds.name))
    found = _across_moments.by_codes(matrix, ["a", "b"], np.where(masks[0], 0, np.where(masks[1], 1, -1)), genes)
    assert found.m2 is not None
    return [Moments([name], found.n[i : i + 1], found.nnz[i : i + 1], found.mean[i : i + 1], found.m2[i : i + 1], found.receipt) for i, name in enumerate("ab")]


def _one_column(columns: Mapping[str, Column], selectors: Sequence[Any]) -> str | None:
    """The column of text by which all selectors choose, where it has few groups."""
    names = {tuple(selector) if isinstance(selector, dict) else () for selector in selectors}
    if len(names) != 1:
        return None
    (only,) = names
    known = columns.get(only[0]) if len(only) == 1 else None
    return only[0] if known is not None and known.categories is not None and len(known.categories) <= _FEW_GROUPS else None


def _takes_all_groups(groups: int, genes: int) -> bool:
    """Whether the drives are asked for the moments of all groups of a column, about 12 bytes an entry. Then no cell's
    group moves, and drives which have kept these moments need not look at the matrix."""
    return groups * genes <= FEW_ENTRIES


def _groups(ds: Dataset, column: str, columns: Mapping[str, Column], selectors: Sequence[Mapping[str, Any]]) -> list[str]:
    """The groups that are the values of an obs column; an error where no cell has one of them."""
    values = [value for selector in selectors for value in values_of(column, selector[column])]
    if values:
        Filter({column: values}, {ds: columns})
    return list(dict.fromkeys(str(value) for value in values))


def _mask(ds: Dataset, columns: Mapping[str, Column], selector: Any) -> np.ndarray:
    """The cells of a data set that a selector means: a bit for each moves, where it is a dict or a condition of SQL."""
    if isinstance(selector, dict) and not selector:
        return np.ones(ds.n_obs, bool)
    if isinstance(selector, (dict, str)):
        if isinstance(selector, dict):
            for name in selector:
                ds._column(name)  # says what is wrong with it
        chosen = Filter(selector, {ds: columns})
        with ds._unchanged():
            rows = chosen.asked(ds, chosen.grouped(ds, "TRUE"))
        return rows.column("g").fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    return _select.mask(selector, ds._shell.obs, f"the selector of {ds.name}")


# ---- genes


def _numbers(genes: Identified, ids: list[str]) -> np.ndarray:
    by_id = genes.numbers()
    return np.array([by_id[gene] for gene in ids], np.int64)


def _names(genes: Identified, ids: list[str]) -> np.ndarray:
    names = genes.names[_numbers(genes, ids)].astype(object)
    names.flags.writeable = False
    return names


def _missing(side: list[Identified], other: list[Identified], wanted: set[str] | None) -> list[str]:
    """Genes of the other side that at least one data set of this side lacks."""
    there = [set(one.numbers()) for one in side]
    found = dict.fromkeys(gene for one in (*other, *side) for gene in one.ids if gene is not None and not all(gene in ids for ids in there))
    return [gene for gene in found if wanted is None or gene in wanted]


def _all_genes(sides: list[list[Identified]], wanted: set[str] | None) -> pd.DataFrame:
    import pandas as pd

    ids = [gene for gene in dict.fromkeys(gene for side in sides for one in side for gene in one.ids if gene is not None) if wanted is None or gene in wanted]
    called = [{gene: str(name) for one in reversed(side) for gene, name in zip(one.ids, one.names) if gene is not None} for side in sides]
    return pd.DataFrame({"id": ids, "names_a": [called[0].get(gene) for gene in ids], "names_b": [called[1].get(gene) for gene in ids]}, dtype=object)


def _means(ids: list[str], sides: Sequence[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]) -> pd.DataFrame:
    import pandas as pd

    (n_a, _, mean_a, m2_a), (n_b, _, mean_b, m2_b) = sides
    return pd.DataFrame({"id": ids, "mean_a": mean_a, "mean_b": mean_b, "std_a": np.sqrt(m2_a / (n_a - 1)), "std_b": np.sqrt(m2_b / (n_b - 1))})


# ---- the test


def _tested(a: Any, b: Any, method: str, min_pct: float | None, min_logfc: float | None, corr_method: str, base: float, label: str) -> tuple[Any, np.ndarray]:
    """The genes in the form of `_internal.rank_genes`, best score first, and a mask of those that were tested."""
    import pyarrow as pa
    from scipy import stats

    (n1, nnz1, mean1, m2_1), (n2, nnz2, mean2, m2_2) = a, b
    pct1, pct2 = nnz1 / n1, nnz2 / n2
    # scanpy's: of the mean of logarithms (`rank_genes_groups`), with the logarithms' base.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        change = np.log2((np.expm1(mean1 * math.log(base)) + 1e-9) / (np.expm1(mean2 * math.log(base)) + 1e-9))
    some = np.ones(len(mean1), bool)
    if min_pct is not None:
        some &= np.maximum(pct1, pct2) >= min_pct
    if min_logfc is not None:
        some &= np.abs(change) >= min_logfc
    if not some.any():
        raise InvalidError(f"no gene of {len(some):,} passes min_pct={min_pct} and min_logfc={min_logfc}: there is nothing to test")
    std1, std2 = np.sqrt(m2_1 / (n1 - 1)), np.sqrt(m2_2 / (n2 - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        second = n1 if method == "t-test_overestim_var" else n2
        t, p = stats.ttest_ind_from_stats(mean1, std1, n1, mean2, std2, second, equal_var=method == "student")
    # Without any variance: equal means are no difference, and others an infinite one (as scanpy, and as scipy's own
    # ttest_ind).
    t, p = np.asarray(t, float), np.asarray(p, float)
    flat = (m2_1 == 0) & (m2_2 == 0)
    t = np.where(flat, np.where(mean1 == mean2, 0.0, np.copysign(np.inf, mean1 - mean2)), t)
    p = np.where(flat, np.where(mean1 == mean2, 1.0, 0.0), p)
    number = np.flatnonzero(some)
    order = number[np.argsort(-t[number], kind="stable")]
    adjusted = np.ones(len(t))
    adjusted[number] = np.minimum(p[number] * len(number), 1) if corr_method == "bonferroni" else stats.false_discovery_control(p[number], method="bh")
    columns = {
        "gene_id": order.astype(np.uint32),
        "scores": t[order],
        "logfoldchanges": change[order],
        "pvals": p[order],
        "pvals_adj": adjusted[order],
        "pct_nz_group": pct1[order],
        "pct_nz_reference": pct2[order],
    }
    return pa.table({"group": pa.array([label] * len(order), pa.string()), **columns}), some


