"""One expression data set."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, NotFoundError

from . import _features
from ._hints import instead
from ._plotting import Plotting

if TYPE_CHECKING:
    import anndata
    import pandas as pd


class Dataset(Plotting):
    """A data set on a fleet: a matrix of cells and genes with all annotations that AnnData has.

    An object reads one generation of its data set: the one of its creation. After another ingest under that name, its
    methods raise `ConflictError` rather than mix the two: take ``db[name]`` again.
    """

    def __getitem__(self, chosen: Any) -> anndata.AnnData:
        """Some cells and genes as an AnnData in memory, as in AnnData: ``ds[cells]`` or ``ds[cells, genes]``, each a
        mask, names, numbers or a slice, ``ds[:, "CD3E"]``. A copy: `to_anndata` says what it raises."""
        cells, genes = chosen if isinstance(chosen, tuple) and len(chosen) == 2 else (chosen, slice(None))
        if isinstance(chosen, tuple) and len(chosen) != 2:
            raise InvalidError(f"a data set has cells and genes: choose with ds[cells, genes], not with {len(chosen)} indices")
        whole = [isinstance(one, slice) and one == slice(None) for one in (cells, genes)]
        one = [[c] if isinstance(c, (str, int, np.integer)) and not isinstance(c, (bool, np.bool_)) else c for c in (cells, genes)]
        return self.to_anndata(cells=None if whole[0] else one[0], genes=None if whole[1] else one[1])

    def to_anndata(self, genes: Any = None, cells: Any = None, *, features: str | None = None) -> anndata.AnnData:
        """The data set as an AnnData in memory: what went in, or the given genes and cells of it.

        Zeros that a sparse matrix stored explicitly are not stored, and so do not come back as such.

        Parameters
        ----------
        genes, cells
            A boolean mask (missing values choose none), names, or numbers, in the order wanted; None for all. Genes are
            chosen among `var_names`.
            `raw` keeps its own genes, as in AnnData. Where the data set is about `raw`, though, the genes are raw's:
            what comes back for some of them is an AnnData of raw's values and genes, without X's and the layers.
        features
            One of `other_features`: an AnnData of these, with everything about the cells; `genes` chooses among them.

        Raises
        ------
        NotFoundError
            A name that is not there.
        InvalidError
            A name that is there twice, a number out of range, a mask of another length.
        ConflictError
            The data set was replaced.
        """
        from . import _select

        with self._unchanged():
            own = None if features is None else self._own_var(self._feature_table(features))
            names = self._genes.index if own is None else own.index
            gene_at = None if genes is None else _select.positions(genes, names, "gene" if own is None else "feature", self._genes if own is None else own)
            cell_at = None if cells is None else _select.positions(cells, self._shell.obs.index, "cell")
            gene_set = None if gene_at is None else np.unique(gene_at)
            cell_set = None if cell_at is None else np.unique(cell_at)
            if own is not None and features is not None:
                whole = self._features_part(self._feature_table(features), own, gene_set, cell_set)
            else:
                whole = self._raw_part(gene_set, cell_set) if self._swapped and gene_set is not None else self._part(gene_set, cell_set)
        # In the order and as often as asked for.
        cell_order = slice(None) if cell_at is None else np.searchsorted(cell_set, cell_at)
        gene_order = slice(None) if gene_at is None else np.searchsorted(gene_set, gene_at)
        if _ascending(cell_order, whole.n_obs) and _ascending(gene_order, whole.n_vars):
            return whole
        return whole[cell_order, gene_order].copy()

    def _part(self, genes: np.ndarray | None, cells: np.ndarray | None) -> anndata.AnnData:
        """Everything of the given genes and cells, and `raw` whole."""
        import anndata

        # Callers get copies, which they may change.
        bare = self._shell_part(cells, genes)
        stored = {table: kept for table, kept in self._kept["matrices"].items() if not kept["origin"].startswith(_features.ORIGIN)}
        matrices = {kept["origin"]: self._matrix_part(table, None if kept["origin"] == "raw/X" else genes, cells) for table, kept in stored.items()}
        raw = None
        if "raw/X" in matrices and bare.raw is not None:
            raw = {"X": matrices["raw/X"], "var": bare.raw.var.copy(), "varm": {k: copy.deepcopy(v) for k, v in bare.raw.varm.items()}}
        return anndata.AnnData(
            X=matrices.get("X", bare.X if "X" not in self._origins and bare.X is not None else None),
            obs=bare.obs,
            var=bare.var,
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            varm=dict(bare.varm),
            obsp=dict(bare.obsp),
            varp=dict(bare.varp),
            layers={**dict(bare.layers), **{o.removeprefix("layers/"): m for o, m in matrices.items() if o.startswith("layers/")}},
            raw=raw,
        )

    def _raw_part(self, genes: np.ndarray, cells: np.ndarray | None) -> anndata.AnnData:
        """Raw's values of the given genes of raw, with everything about the cells."""
        import anndata

        bare = self._shell_part(cells, None)
        raw = self._shell.raw
        return anndata.AnnData(
            X=self._matrix_part("x", genes, cells),
            obs=bare.obs,
            var=raw.var.iloc[genes].copy(),
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            varm={k: copy.deepcopy(v.iloc[genes] if hasattr(v, "iloc") else v[genes]) for k, v in raw.varm.items()},
            obsp=dict(bare.obsp),
        )

    def _features_part(self, table: str, var: pd.DataFrame, features: np.ndarray | None, cells: np.ndarray | None) -> anndata.AnnData:
        """Features of another type, with everything about the cells."""
        import anndata

        bare = self._shell_part(cells, None)
        return anndata.AnnData(
            X=self._matrix_part(table, features, cells),
            obs=bare.obs,
            var=var if features is None else var.iloc[features].copy(),
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            obsp=dict(bare.obsp),
        )

    def _feature_table(self, features: str) -> str:
        """The table of the matrix of other features that are called so."""
        origin = features if features.startswith(_features.ORIGIN) else _features.ORIGIN + features
        table = self._origins.get(origin)
        if table is None:
            there = self.other_features
            known = f"it has {', '.join(map(repr, there))}" if there else "it has none but its genes"
            raise NotFoundError(f"{self.name} has no other features {features!r}: {known}{instead(features, there)}")
        return table

    def _shell_part(self, cells: np.ndarray | None, genes: np.ndarray | None) -> anndata.AnnData:
        """A copy of the shell, or of some cells and genes of it (and then without unused categories, as in AnnData)."""
        return self._shell.copy() if cells is None and genes is None else self._shell[_all(cells), _all(genes)].copy()

    def _matrix_part(self, table: str, genes: np.ndarray | None, cells: np.ndarray | None) -> Any:
        from . import _export

        return _export.matrix(self.fleet, self.table(f"{table}_rows"), self._kept["matrices"][table], genes, cells)


def _all(chosen: np.ndarray | None) -> Any:
    return slice(None) if chosen is None else chosen


def _ascending(order: Any, n: int) -> bool:
    return isinstance(order, slice) or np.array_equal(order, np.arange(n))
