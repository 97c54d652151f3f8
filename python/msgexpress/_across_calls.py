"""What `MsgExpress` can do with several data sets at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, Mapping

from skytether import Fleet, InvalidError, Result

from ._testing import _REQUIRED

if TYPE_CHECKING:
    import pandas as pd

    from ._across import Domain
    from ._across_compare import CompareResult
    from ._across_means import Centroids
    from ._across_similar import Similarities

    Progress = Callable[[int, int], None] | bool | None


class Across:
    """Calls over several data sets. `which` names them: a domain (``"blood"``), a data set (``"blood/pbmc3k"``), a list
    of these, or None for all of the fleet.

    The drives of each data set compute counts and moments, and these alone move. Genes are the same where their names
    are, or what `on` names: a column of var with identifiers. A gene that a data set lacks is missing there, and never
    zero.
    """

    fleet: Fleet

    def domains(self) -> pd.DataFrame:
        """A row per domain: `domain`, its number of `datasets`, and their `cells` in all. `domain` says more about
        one."""
        import pandas as pd

        from . import _across

        found = _across.domains(self)
        cells = [sum(self[name].n_obs for name in names) for names in found.values()]  # type: ignore[index]
        return pd.DataFrame({"domain": list(found), "datasets": [len(names) for names in found.values()], "cells": cells})

    def domain(self, name: str) -> Domain:
        """The data sets of a domain: names, shapes, obs columns with their types and numbers of values.

        Raises
        ------
        NotFoundError
            No expression data set is in it.
        """
        from . import _across

        return _across.domain(self, name)

    def sql(self, text: str, **options: Any) -> Result:
        """A query of SQL over all data sets of the fleet; options as of `skytether.Fleet.sql`. Those of
        ``blood/pbmc3k`` are the tables ``blood.pbmc3k.obs``, ``blood.pbmc3k.var``, ``blood.pbmc3k.x``. `Domain.sql`
        writes the union of one table of several. Errors as of `skytether.Fleet.sql`: `InvalidError` for what is no
        SQL, `NotFoundError` for tables and columns that are not there."""
        return self.fleet.sql(text, **options)

    def obs(
        self, which: Any = None, columns: Iterable[str] | str | None = None, *, where: Any = None, clash: Mapping[str, str] | None = None, label: str = "dataset"
    ) -> pd.DataFrame:
        """The cells of several data sets as one frame: the data set's name in a column `dataset`, the obs columns, and
        the cells' names as the index. Names of cells of several data sets may be the same.

        Parameters
        ----------
        which
            The data sets.
        columns
            The obs columns; None for all of all data sets. A column that a data set lacks is missing there, and a
            warning says so.
        where
            The cells: a dict of obs column to value or list of values (all must match), or a condition of SQL over the
            columns (``"n_counts > 500 AND cell_type = 'B'"``). Where a data set lacks a column, its cells miss the
            value, and so are not chosen by it. The drives filter.
        clash
            What an obs column becomes whose type differs between data sets, or the order of whose categories does:
            ``"text"``, ``"number"`` or ``"drop"``, by column. Without it, that is an error that names both.
        label
            What the column with the data set's name is called.

        Raises
        ------
        NotFoundError
            No such domain, data set or column, or no cell has a value of `where`.
        InvalidError
            Columns clash, or `where` is no condition.
        """
        from . import _across, _across_obs

        return _across_obs.obs(_across.chosen(self, which), columns, where, clash, label)

    def cells(self, which: Any = None, groupby: Iterable[str] | str | None = None, *, where: Any = None, clash: Mapping[str, str] | None = None) -> pd.DataFrame:
        """How many cells each data set has, or has in each group of one or several obs columns: columns `dataset`,
        those of `groupby`, and `cells`. Cells without a value are a group of their own, whose value is missing. Other
        arguments and errors as of `obs`; the drives count."""
        from . import _across, _across_obs

        return _across_obs.cells(_across.chosen(self, which), groupby, where, clash)

    def compare(
        self,
        a: Any,
        b: Any,
        on: str | Mapping[str, str | None] | None = None,
        method: Literal["t-test", "t-test_overestim_var", "student"] = "t-test",
        *,
        transform: Literal["log1p_cp10k"] | Mapping[str, str | None] | None = _REQUIRED,
        corr_method: Literal["benjamini-hochberg", "bonferroni"] = "benjamini-hochberg",
        n_genes: int | None = None,
        layer: str | Mapping[str, str | None] | None = None,
        genes: Iterable[str] | str | None = None,
        min_pct: float | None = None,
        min_logfc: float | None = None,
        id_versions: Literal["keep", "drop"] | None = None,
        duplicates: Literal["drop"] | None = None,
        progress: Progress = None,
    ) -> CompareResult:
        """Genes that differ between cells of one data set and cells of another, like ``scipy.stats.ttest_ind``.

        **Two experiments differ by more than biology.** Chemistry, depth, dissociation and donors shift thousands of
        genes, and each cell counts as a sample, so that p-values of such a test are tiny for reasons of technique. Read
        it as a description. For a claim, compare within each experiment and look for what agrees, or compare samples.

        Parameters
        ----------
        a, b
            The cells of each side: ``{"dataset": "blood/a", "cell_type": "B"}``, where `dataset` may be a domain or a
            list, and all other keys are obs columns with a value or a list of values, which each data set must have.
            Or a pair of a data set and cells as `Dataset.ttest` takes them or a condition of SQL: ``("blood/a",
            "n_counts > 500")``. A list of these is taken together.
        on
            The column of var that identifies genes (``"gene_ids"``), or a dict of one for each data set; None for
            their names.
        method, corr_method, n_genes
            As in `Dataset.rank_genes_groups`.
        transform
            Required: ``"log1p_cp10k"`` for raw counts, None for values that are normalised and logarithmic already; a
            dict where data sets differ. Stored logarithms of several bases are compared as natural ones.
        layer
            Which matrix: None for the main one, a layer's name, or a dict by data set.
        genes
            The genes to test, by identifier or name. P-values are corrected for these.
        min_pct, min_logfc
            Only genes that at least this share of cells has on one side, and whose log2 fold change is at least this
            far from 0, are tested. P-values are corrected for these.
        id_versions
            ``"drop"``: take ``ENSG00000010610.9`` for ``ENSG00000010610``. ``"keep"``: don't. Left out, it is asked
            where it would make more genes the same.
        duplicates
            ``"drop"``: leave genes out whose identifier another gene of the data set has. Left out, that is an error.
        progress
            As in `ingest`.

        Raises
        ------
        NotFoundError
            No such data set, column or gene, or no cell has a value.
        InvalidError
            transform is left out; a side has fewer than two cells; cells are on both sides; the data sets share no
            gene; identifiers repeat, or differ in versions only; a value that the transform can't take.
        ConflictError
            A data set was replaced meanwhile.
        """
        from . import _across_compare

        return _across_compare.compare(self, a, b, on, method, transform, corr_method, n_genes, layer, genes, min_pct, min_logfc, id_versions, duplicates, progress)

    def centroids(
        self,
        which: Any,
        groupby: str | Mapping[str, str],
        *,
        transform: Literal["log1p_cp10k"] | Mapping[str, str | None] | None = _REQUIRED,
        genes: Iterable[str] | str | None = None,
        on: str | Mapping[str, str | None] | None = None,
        join: Literal["inner", "outer"] = "inner",
        layer: str | Mapping[str, str | None] | None = None,
        where: Any = None,
        id_versions: Literal["keep", "drop"] | None = None,
        duplicates: Literal["drop"] | None = None,
        progress: Progress = None,
    ) -> Centroids:
        """The mean expression of each cluster of several data sets. Means, shares and sizes move, and no matrix.

        Parameters
        ----------
        which
            The data sets.
        groupby
            The obs column that groups the cells, or a dict of one for each data set. Cells without a value are in no
            group.
        genes
            Only these, by identifier or name.
        join
            ``"inner"``: the genes that all data sets have. ``"outer"``: all genes, with NaN where a data set lacks one.
            `Centroids.missing` lists them in either case.
        where
            The cells that take part, as in `obs`.
        transform, on, layer, id_versions, duplicates, progress
            As in `compare`.

        Raises
        ------
        InvalidError
            A data set has no column `groupby`; the data sets share no gene; and as in `compare`.
        ExhaustedError
            There would be more than 2^27 means.
        """
        from . import _across, _across_means

        return _across_means.centroids(_across.chosen(self, which), groupby, transform, genes, on, join, layer, where, id_versions, duplicates, progress)

    def similar(
        self,
        ds: Any,
        groupby: str | Mapping[str, str],
        group: Any = None,
        against: Any = None,
        top: int = 10,
        *,
        method: Literal["pearson", "spearman", "cosine"] = "pearson",
        transform: Literal["log1p_cp10k"] | Mapping[str, str | None] | None = _REQUIRED,
        genes: Iterable[str] | str | None = None,
        n_genes: int = 2000,
        min_genes: int = 50,
        center: Literal["mine", "each"] | None = "mine",
        on: str | Mapping[str, str | None] | None = None,
        layer: str | Mapping[str, str | None] | None = None,
        where: Any = None,
        id_versions: Literal["keep", "drop"] | None = None,
        duplicates: Literal["drop"] | None = None,
        progress: Progress = None,
    ) -> Similarities:
        """The clusters of other data sets that are most like each of mine, with the genes that say so.

        A cluster is its mean expression (`centroids`). Two are compared over informative genes that both data sets
        have: the `n_genes` whose means vary most between my clusters (variance of the means). All clusters of mine
        count there, whatever `group` says.

        Parameters
        ----------
        ds
            My data set, or its name.
        groupby
            The obs column with the clusters, or a dict of one for each data set: ``{"blood/a": "cell_type",
            "blood/b": "leiden"}``.
        group
            The cluster, or clusters, of mine to look for; None for all.
        against
            The data sets to look in; None for the others of my domain.
        top
            How many matches of each cluster `Similarities.to_df` shows.
        method
            ``"pearson"`` or ``"spearman"`` correlation, or ``"cosine"``.
        genes
            Compare over these genes, by identifier or name, and choose none.
        min_genes
            Fewer genes than this are refused.
        center
            What is taken away from each gene's means first. ``"mine"``: its mean over my clusters, so that genes speak
            by which clusters have more of them, and not those that all cells have. ``"each"``: its mean over the
            clusters of each data set, so that what two experiments differ by in all clusters plays no part; only for
            data sets with about the same kinds of cells. None: nothing; correlations are high for all pairs then, as
            cells have most of their expression in common.
        transform, on, layer, where, id_versions, duplicates, progress
            As in `compare` and `centroids`.

        Raises
        ------
        NotFoundError
            No such data set or cluster.
        InvalidError
            There is no other data set; too few genes are shared; and as in `centroids`.
        """
        from . import _across, _across_similar
        from ._dataset import Dataset

        mine = ds if isinstance(ds, Dataset) else self[ds]  # type: ignore[index]
        if against is None:
            others = [one for one in _across.domain(self, mine.name.partition("/")[0]).names if one != mine.name]
            if not others:
                raise InvalidError(f"domain {mine.name.partition('/')[0]} has no data set but {mine.name}: say with against= which data sets to look in")
            against = others
        found = [mine if one.name == mine.name else one for one in _across.chosen(self, against)]
        return _across_similar.similar(
            mine, found, groupby, group, top, method, transform, genes, n_genes, min_genes, center, on, layer, where, id_versions, duplicates, progress
        )
