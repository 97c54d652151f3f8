"""Which clusters of other data sets are most like mine, and the genes that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import InvalidError, NotFoundError

from ._across import Receipts
from ._across_genes import Identifiers, known_ids, require_shared
from ._across_means import Clusters, bases_differ, clusters_of
from ._hints import instead
from ._names import slashed
from ._picture import Look

if TYPE_CHECKING:
    import os

    import matplotlib.axes
    import pandas as pd

    from ._dataset import Dataset
    from ._picture import Plot

METHODS = ("pearson", "spearman", "cosine")
#: What is taken away from each gene first: its mean over my clusters, over those of each data set, or nothing.
CENTERS = ("mine", "each", None)
#: Genes that a row of the result names.
_NAMED = 10


@dataclass
class _Pair:
    """My clusters and those of one other data set, over the genes that were compared. The similarity of a pair of
    clusters is the scalar product of their rows, so that each gene's product is its contribution."""

    ids: list[str]
    names: list[str]
    shared: int
    mine: np.ndarray
    theirs: np.ndarray
    #: The rows whose scalar products are the similarities.
    unit_mine: np.ndarray
    unit_theirs: np.ndarray
    groups: list[str]
    sizes: np.ndarray


class Similarities:
    """For each cluster of a data set, the clusters of others by how alike they are."""

    def __init__(
        self,
        dataset: str,
        groups: list[str],
        sizes: np.ndarray,
        pairs: dict[str, _Pair],
        shown: list[str],
        top: int,
        method: str,
        receipts: Receipts,
        params: dict[str, Any],
    ) -> None:
        #: The data set whose clusters were looked for, and those of its clusters.
        self.dataset, self.groups = dataset, shown
        self._all_groups, self._sizes, self._pairs, self._top = groups, sizes, pairs, top
        #: ``"pearson"``, ``"spearman"`` or ``"cosine"``.
        self.method = method
        #: What each data set's drives did.
        self.receipts = self.receipt = receipts
        #: What was asked for.
        self.params = params

    @property
    def matrix(self) -> pd.DataFrame:
        """All similarities: a row per cluster of mine, a column per cluster elsewhere (`dataset`, `group`). NaN where a
        cluster has the same value of all genes."""
        import pandas as pd

        rows = [self._all_groups.index(group) for group in self.groups]
        columns = pd.MultiIndex.from_tuples([(name, group) for name, pair in self._pairs.items() for group in pair.groups], names=["dataset", "group"])
        values = np.concatenate([_similarities(pair)[rows] for pair in self._pairs.values()], axis=1)
        return pd.DataFrame(values, index=pd.Index(self.groups, name="group", dtype=object), columns=columns)

    @property
    def shared(self) -> dict[str, int]:
        """How many genes each other data set shares with mine, by its name."""
        return {name: pair.shared for name, pair in self._pairs.items()}

    def to_df(self, group: Any = None, top: int | None = None) -> pd.DataFrame:
        """The best matches of each of my clusters, or of one: a row each, the most similar first.

        Columns: `group` (mine), `dataset` and `match` (the cluster there), `similarity`, `cells` and `match_cells`
        (sizes), `n_genes` (genes that were compared), and the names of those that contribute most, with commas between
        them: `genes` (both clusters have more of them than of other genes, after what `center` took away) and
        `genes_low` (both have less).

        Raises
        ------
        NotFoundError
            I have no such cluster.
        """
        import pandas as pd

        matrix = self.matrix
        rows: list[tuple[Any, ...]] = []
        for mine in self.groups if group is None else [self._known(group)]:
            values = matrix.loc[[mine]].to_numpy()[0]
            order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
            for at in order[: self._top if top is None else top]:
                dataset, match = matrix.columns[at]
                pair = self._pairs[dataset]
                other = pair.groups.index(match)
                high, low = self._best(pair, self._all_groups.index(mine), other)
                cells = int(self._sizes[self._all_groups.index(mine)])
                rows.append((mine, dataset, match, float(values[at]), cells, int(pair.sizes[other]), len(pair.ids), ", ".join(high), ", ".join(low)))
        return pd.DataFrame(rows, columns=["group", "dataset", "match", "similarity", "cells", "match_cells", "n_genes", "genes", "genes_low"])

    def genes(self, group: Any, dataset: str, match: Any) -> pd.DataFrame:
        """The genes that were compared for one pair of clusters, those that contribute most first: `id`, `names`,
        `mine` and `theirs` (means), `contribution`. The contributions add up to the similarity: a gene's is large where
        both clusters have much more of it than of others, or much less.

        Raises
        ------
        NotFoundError
            `dataset` was not compared, or has no cluster `match`, or I have no cluster `group`.
        """
        import pandas as pd

        mine = self._all_groups.index(self._known(group))
        dataset = slashed(dataset)
        if dataset not in self._pairs:
            raise NotFoundError(f"{dataset} was not compared: there are {', '.join(self._pairs)}{instead(dataset, self._pairs)}")
        pair = self._pairs[dataset]
        if str(match) not in pair.groups:
            raise NotFoundError(f"{dataset} has no cluster {match!r}: there are {', '.join(map(repr, pair.groups))}{instead(match, pair.groups)}")
        other = pair.groups.index(str(match))
        contribution = pair.unit_mine[mine] * pair.unit_theirs[other]
        frame = pd.DataFrame({"id": pair.ids, "names": pair.names, "mine": pair.mine[mine], "theirs": pair.theirs[other], "contribution": contribution})
        return frame.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)

    def plot(
        self,
        ax: matplotlib.axes.Axes | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        cmap: Any = None,
        vmin: float | None = None,
        vmax: float | None = None,
        swap_axes: bool = False,
    ) -> Plot:
        """A heat map of all similarities: my clusters down, those of other data sets across. `data` of the plot is
        `matrix`. Colours go from blue by white (0) to red where means were centered, else from the least to the largest
        similarity; `cmap`, `vmin` and `vmax` say otherwise. `InvalidError` if `path` can't be written."""
        from . import _draw_groups

        matrix = self.matrix
        values = matrix.to_numpy()
        seen = values[np.isfinite(values)]
        if self.params["center"] is not None and cmap is None and vmin is None and vmax is None and len(seen):
            cmap, vmax = "RdBu_r", float(np.abs(seen).max())
            vmin = -vmax
        low = float(seen.min()) if vmin is None and len(seen) else vmin
        sets, start = [], 0
        for name, pair in self._pairs.items():
            sets.append((name, start, start + len(pair.groups)))
            start += len(pair.groups)
        flat = matrix.copy()
        flat.columns = [group for _, group in matrix.columns]
        look = Look(swap_axes, cmap, low, vmax, ax, path)
        plot = _draw_groups.heat_of_groups(flat, sets, title=f"Clusters of {self.dataset}", colour_title=_SAID[self.method], receipt=None, look=look)
        plot.data = matrix
        if path is not None:
            plot.save(path)
        return plot

    def __len__(self) -> int:
        """The number of my clusters."""
        return len(self.groups)

    def __repr__(self) -> str:
        others = sum(len(pair.groups) for pair in self._pairs.values())
        count = len(self._pairs)
        return (
            f"<msgexpress.Similarities of {self.dataset}: {len(self.groups)} cluster{'' if len(self.groups) == 1 else 's'} with {others} of {count} "
            f"data set{'' if count == 1 else 's'}, {self.method}: .to_df(), .matrix, .genes(group, dataset, match), .plot()>"
        )

    def _known(self, group: Any) -> str:
        if str(group) not in self.groups:
            raise NotFoundError(f"there is no cluster {group!r} in this result: there are {', '.join(map(repr, self.groups))}{instead(group, self.groups)}")
        return str(group)

    @staticmethod
    def _best(pair: _Pair, mine: int, other: int) -> tuple[list[str], list[str]]:
        """The names of the genes that contribute most: of those that both clusters have more of, and less."""
        here, there = pair.unit_mine[mine], pair.unit_theirs[other]
        contribution = here * there
        order = np.argsort(-contribution, kind="stable")
        order = order[contribution[order] > 0]
        return [pair.names[at] for at in order[here[order] > 0][:_NAMED]], [pair.names[at] for at in order[here[order] < 0][:_NAMED]]


_SAID = {"pearson": "Pearson correlation", "spearman": "Spearman correlation", "cosine": "cosine similarity"}


def _similarities(pair: _Pair) -> np.ndarray:
    return pair.unit_mine @ pair.unit_theirs.T


def similar(
    ds: Dataset,
    others: Sequence[Dataset],
    groupby: Any,
    group: Any,
    top: int,
    method: str,
    transform: Any,
    genes: Any,
    n_genes: int,
    min_genes: int,
    center: str | None,
    on: Any,
    layer: Any,
    where: Any,
    id_versions: str | None,
    duplicates: str | None,
    progress: Any,
) -> Similarities:
    """See `MsgExpress.similar`."""
    if method not in METHODS:
        raise InvalidError(f"method {method!r} does not exist: use one of {', '.join(map(repr, METHODS))}{instead(method, METHODS)}")
    if center not in CENTERS:
        raise InvalidError(f"center is {center!r}: say \"mine\", \"each\" or None")
    for value, what in ((top, "top"), (n_genes, "n_genes"), (min_genes, "min_genes")):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < (1 if what == "top" else 2):
            raise InvalidError(f"{what} is {value!r}: give a whole number of at least {1 if what == 'top' else 2}")
    every = list({one.name: one for one in (ds, *others)}.values())
    clusters = clusters_of(every, groupby, transform, layer, where, Identifiers(on, id_versions, duplicates), progress, "similar clusters", genes)
    found = {one.dataset.name: one for one in clusters}
    mine = found[ds.name]
    groups = mine.moments.groups
    shown = groups if group is None else [str(g) for g in ([group] if isinstance(group, (str, int, float, bool, np.generic)) else group)]
    for one in shown:
        if one not in groups:
            raise NotFoundError(f"{ds.name} has no cluster {one!r} in obs column {groupby!r}: there are {', '.join(map(repr, groups[:20]))}{instead(one, groups)}")
    if not shown:
        raise InvalidError("there are no clusters to look for: group= names none")
    natural = bases_differ(list(found.values()))
    wanted = None if genes is None else known_ids(genes, [one.genes for one in found.values()])
    pairs = {one.name: _paired(mine, found[one.name], wanted, n_genes, center, method, natural, on) for one in others}
    few = [(name, pair) for name, pair in pairs.items() if len(pair.ids) < min_genes]
    if few:
        said = "; ".join(f"{name}: {len(pair.ids):,} of the {pair.shared:,} that it shares" for name, pair in few)
        raise InvalidError(
            f"a similarity over fewer than min_genes={min_genes} informative genes says little ({said}): identify genes by another column with on=, "
            "leave these data sets out with against=, or lower min_genes"
        )
    receipts = Receipts({name: one.moments.receipt for name, one in found.items()})
    params = {"groupby": groupby, "method": method, "transform": transform, "n_genes": n_genes, "center": center, "on": on, "layer": layer, "where": where}
    return Similarities(ds.name, groups, mine.moments.n, pairs, shown, int(top), method, receipts, params)


def _paired(mine: Clusters, other: Clusters, wanted: set[str] | None, n_genes: int, center: str | None, method: str, natural: bool, on: Any) -> _Pair:
    """Chooses the genes of a pair of data sets, and makes the rows whose products are the similarities."""
    ids = require_shared([mine.genes, other.genes], on) if mine is not other else list(mine.genes.numbers())
    count = len(ids)
    if wanted is not None:
        ids = [gene for gene in ids if gene in wanted]
    here, there = mine.means(ids, natural), other.means(ids, natural)
    if wanted is None:
        # Informative are the genes whose means differ most between my clusters: what all of them have alike says
        # nothing about which is which.
        if len(here) < 2:
            raise InvalidError(
                f"{mine.dataset.name} has one cluster only ({mine.moments.groups[0]!r}), and genes are chosen by how they differ between clusters: "
                "name genes=, or leave where= out so that there are others"
            )
        spread = here.var(axis=0)
        best = np.argsort(-spread, kind="stable")[:n_genes]
        best = np.sort(best[spread[best] > 0])
        ids, here, there = [ids[at] for at in best], here[:, best], there[:, best]
    by_id = mine.genes.numbers()
    names = [str(mine.genes.names[by_id[gene]]) for gene in ids]
    a, b = _centered(mine, other, here, there, center)
    return _Pair(ids, names, count, here, there, _unit(a, method), _unit(b, method), other.moments.groups, other.moments.n)


def _centered(mine: Clusters, other: Clusters, here: np.ndarray, there: np.ndarray, center: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The means as differences from what all clusters have in common."""
    if center is None or not here.size:
        return here, there
    for one, values in ((mine, here), (other, there)):
        if len(values) < 2 and (center == "each" or one is mine):
            raise InvalidError(
                f"{one.dataset.name} has one cluster only ({one.moments.groups[0]!r}), and center={center!r} compares differences from the mean over its clusters: "
                "say center=None to compare means as they are"
            )
    common = here.mean(axis=0)
    return here - common, there - (there.mean(axis=0) if center == "each" else common)


def _unit(values: np.ndarray, method: str) -> np.ndarray:
    """Rows of length 1 whose scalar product is the similarity: centred for Pearson's correlation, centred ranks for
    Spearman's, as they are for the cosine. NaN for a row without any difference."""
    from scipy import stats

    if method == "spearman":
        values = stats.rankdata(values, axis=1) if values.size else values
    if method != "cosine" and values.size:
        values = values - values.mean(axis=1, keepdims=True)
    length = np.sqrt((values**2).sum(axis=1, keepdims=True))
    # What rounding leaves of equal values is no difference.
    return np.divide(values, length, out=np.full(values.shape, np.nan), where=length > 1e-12)
