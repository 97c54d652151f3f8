"""Mean expression of the clusters of several data sets, over genes aligned by identifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from skytether import ExhaustedError, InvalidError

from . import _across_moments, _progress
from ._across import Receipts, per
from ._across_genes import Identified, Identifiers, known_ids, require_shared
from ._across_moments import MOST_ENTRIES, Matrix, Moments
from ._across_sql import Column, Filter, columns_of
from ._hints import instead

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    from ._dataset import Dataset


class Centroids:
    """Mean expression of clusters. `to_df` has clusters as rows and genes as columns; `to_anndata` has everything."""

    def __init__(
        self, means: pd.DataFrame, fractions: pd.DataFrame, sizes: pd.Series, var: pd.DataFrame, missing: dict[str, list[str]], receipts: Receipts, params: dict[str, Any]
    ) -> None:
        #: Rows are clusters (`dataset`, `group`), columns are genes by identifier; NaN where a data set lacks a gene.
        self.means = means
        #: The shares of cells with the gene, 0 to 1, in the same form.
        self.fractions = fractions
        #: Cells of each cluster.
        self.sizes = sizes
        #: A row per gene: its name in the first data set that has it, and how many data sets have it (`datasets`).
        self.var = var
        #: For each data set, the identifiers of genes that others have, and that it lacks.
        self.missing = missing
        #: What each data set's drives did.
        self.receipts = self.receipt = receipts
        #: What was asked for.
        self.params = params

    def to_df(self) -> pd.DataFrame:
        """The means, clusters by genes; a copy."""
        return self.means.copy()

    def to_anndata(self) -> anndata.AnnData:
        """Clusters as observations (obs has `dataset`, `group` and `cells`, a number), genes as variables (`var`),
        means as X, and shares of cells as the layer ``fractions``: float64, NaN where a data set lacks the gene."""
        import anndata
        import pandas as pd

        dataset, group = (self.means.index.get_level_values(i) for i in (0, 1))
        names = [f"{d}: {g}" for d, g in zip(dataset, group)]
        obs = pd.DataFrame({"dataset": pd.Categorical(dataset), "group": pd.Categorical(group), "cells": self.sizes.to_numpy()}, index=names)
        return anndata.AnnData(X=self.means.to_numpy(), obs=obs, var=self.var.copy(), layers={"fractions": self.fractions.to_numpy()})

    def __len__(self) -> int:
        """The number of clusters."""
        return len(self.means)

    def __repr__(self) -> str:
        count = len(self.missing)
        of = f"{count} data set{'' if count == 1 else 's'}"
        return f"<msgexpress.Centroids: {len(self.means):,} clusters of {of}, {self.means.shape[1]:,} genes: .to_df(), .sizes, .to_anndata()>"


@dataclass(eq=False)
class Clusters:
    """The moments of one data set's clusters, by the numbers of its genes."""

    dataset: Dataset
    matrix: Matrix
    genes: Identified
    moments: Moments

    def means(self, ids: Sequence[str], natural: bool) -> np.ndarray:
        """Means over the cells, clusters by genes; `natural` has logarithms of any base as natural ones. NaN where the
        data set lacks a gene."""
        scale = math.log(self.matrix.log_base or math.e) if natural else 1.0
        return self._of(ids, self.moments.mean) * scale

    def fractions(self, ids: Sequence[str]) -> np.ndarray:
        """Shares of cells with the gene."""
        return self._of(ids, self.moments.nnz) / self.moments.n[:, None]

    def _of(self, ids: Sequence[str], values: np.ndarray) -> np.ndarray:
        by_id = self.genes.numbers()
        at = np.array([by_id.get(gene, -1) for gene in ids], np.int64)
        return np.where(at >= 0, values[:, at], np.nan)


def clusters_of(
    datasets: Sequence[Dataset], groupby: Any, transform: Any, layer: Any, where: Any, identifiers: Identifiers, progress: Any, title: str, genes: Any = None
) -> list[Clusters]:
    """The clusters of several data sets; each is asked for its moments once. With `genes`, the drives look at these
    only.

    Raises
    ------
    InvalidError
        A data set has no such column: the text has what to say instead.
    """
    names = [ds.name for ds in datasets]
    columns = {ds: columns_of(ds) for ds in datasets}
    by = {ds: per(groupby, ds.name, "groupby=", names) for ds in datasets}
    _check_columns(by, columns)
    chosen = Filter(where, columns)
    matrices = _across_moments.matrices(datasets, layer, transform, stacklevel=5)
    identified = identifiers.of([(ds, matrices[ds].table) for ds in datasets])
    wanted = None if genes is None else known_ids(genes, identified)
    made = []
    entries = 0
    with _progress.stepper(progress, title) as step:
        for i, (ds, known) in enumerate(zip(datasets, identified)):
            step(i, len(datasets), ds.name)
            numbers = None if wanted is None else np.array(sorted(number for gene, number in known.numbers().items() if gene in wanted), np.int64)
            if numbers is not None and not len(numbers):
                # It has none of the genes; its clusters are looked for all the same.
                numbers = np.zeros(1, np.int64)
            found = _across_moments.by_column(matrices[ds], columns[ds], by[ds], chosen, numbers, squares=False)
            entries += found.mean.size
            if entries > MOST_ENTRIES:
                raise ExhaustedError(f"the clusters of {len(made) + 1} data sets have more than {MOST_ENTRIES:,} means: compare fewer data sets at a time")
            made.append(Clusters(ds, matrices[ds], known, found))
    return made


def _check_columns(by: Mapping[Dataset, Any], columns: Mapping[Dataset, Mapping[str, Column]]) -> None:
    lacking = [ds for ds, name in by.items() if isinstance(name, str) and name not in columns[ds] and name not in ds._kept["not_in_sql"]["obs"]]
    if not lacking:
        return
    first, name = lacking[0], by[lacking[0]]
    raise InvalidError(
        f"{', '.join(ds.name for ds in lacking)} {'has' if len(lacking) == 1 else 'have'} no obs column {name!r}: "
        f"{first.name} has {', '.join(map(repr, columns[first])) or 'none'}"
        f"{instead(name, columns[first])}; say which column groups each data set with groupby={{{first.name!r}: ..., ...}}, or leave these data sets out"
    )


def bases_differ(clusters: Sequence[Clusters]) -> bool:
    """Whether stored logarithms are of several bases."""
    return len({one.matrix.log_base or math.e for one in clusters}) > 1


def centroids(
    datasets: Sequence[Dataset],
    groupby: Any,
    transform: Any,
    genes: Any,
    on: Any,
    join: str,
    layer: Any,
    where: Any,
    id_versions: str | None,
    duplicates: str | None,
    progress: Any,
) -> Centroids:
    """See `MsgExpress.centroids`."""
    import pandas as pd

    if join not in ("inner", "outer"):
        raise InvalidError(f"join is {join!r}: say \"inner\" for the genes that all data sets have, or \"outer\" for all genes, with NaN where one is missing")
    found = clusters_of(datasets, groupby, transform, layer, where, Identifiers(on, id_versions, duplicates), progress, "centroids", genes)
    parts = [one.genes for one in found]
    every = list(dict.fromkeys(gene for part in parts for gene in part.ids if gene is not None))
    ids = require_shared(parts, on) if join == "inner" else every
    if genes is not None:
        wanted = known_ids(genes, parts)
        ids, every = [gene for gene in ids if gene in wanted], [gene for gene in every if gene in wanted]
        if not ids:
            raise InvalidError("none of the genes that genes= names is in all data sets: say join=\"outer\" to have them with missing values")
    rows = sum(len(one.moments.groups) for one in found)
    if rows * len(ids) > MOST_ENTRIES:
        raise ExhaustedError(f"{rows:,} clusters of {len(ids):,} genes are more than {MOST_ENTRIES:,} means: name genes=, or fewer data sets")
    natural = bases_differ(found)
    clusters = [(one.dataset.name, group) for one in found for group in one.moments.groups]
    index = pd.MultiIndex.from_tuples(clusters, names=["dataset", "group"])
    columns = pd.Index(ids, dtype=object)
    means = pd.DataFrame(np.concatenate([one.means(ids, natural) for one in found]), index=index, columns=columns)
    fractions = pd.DataFrame(np.concatenate([one.fractions(ids) for one in found]), index=index, columns=columns)
    sizes = pd.Series(np.concatenate([one.moments.n for one in found]), index=index, name="cells")
    called: dict[str, str] = {}
    having: dict[str, int] = {}
    for part in parts:
        for gene, name in zip(part.ids, part.names):
            if gene is not None:
                called.setdefault(gene, str(name))
                having[gene] = having.get(gene, 0) + 1
    var = pd.DataFrame({"name": [called[gene] for gene in ids], "datasets": [having[gene] for gene in ids]}, index=columns)
    missing = {part.dataset: [gene for gene in every if gene not in there] for part in parts for there in [part.numbers()]}
    receipts = Receipts({one.dataset.name: one.moments.receipt for one in found})
    params = {"groupby": groupby, "transform": transform, "layer": layer, "on": on, "join": join, "where": where}
    return Centroids(means, fractions, sizes, var, missing, receipts, params)
