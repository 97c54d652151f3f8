"""One expression data set."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from skytether import InvalidError, NotFoundError

from . import _features
from ._analysis import Analysis
from ._habits import Habits
from ._hints import instead
from ._sums import WHOLE, Part
from ._versions import Versions
from ._view import Filtering

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    #: Gives a matrix: its table, and the genes and cells wanted (None for all).
    Reader = Callable[[str, np.ndarray | None, np.ndarray | None], Any]


class Dataset(Habits, Filtering, Analysis, Versions):
    """A data set on a fleet: a matrix of cells and genes with all annotations that AnnData has.

    An object reads one generation of its data set: the one of its creation. After another ingest under that name, its
    methods raise `ConflictError` rather than mix the two: take ``db[name]`` again.
    """

    def __getitem__(self, chosen: Any) -> anndata.AnnData:
        """Some cells and genes as an AnnData in memory, as in AnnData: ``ds[cells]`` or ``ds[cells, genes]``, each a
        mask, names, numbers or a slice, ``ds[:, "CD3E"]``. A copy. Errors as of `to_anndata`, and an `InvalidError`
        for more than two indices."""
        cells, genes = chosen if isinstance(chosen, tuple) and len(chosen) == 2 else (chosen, slice(None))
        if any(isinstance(one, dict) for one in (cells, genes)):
            raise InvalidError('a dict of obs columns and values chooses cells in tests; as an index write a mask: ds[ds.obs["cell_type"] == "B"]')
        if any(one is None for one in (cells, genes)):
            raise InvalidError("None chooses no cells or genes: write : for all, ds[:, genes]")
        if isinstance(chosen, tuple) and len(chosen) != 2:
            raise InvalidError(f"a data set has cells and genes: choose with ds[cells, genes], not with {len(chosen)} indices")
        cells, genes = (slice(None) if one is ... else one for one in (cells, genes))
        whole = [isinstance(one, slice) and one == slice(None) for one in (cells, genes)]
        one = [[c] if isinstance(c, (str, int, np.integer)) and not isinstance(c, (bool, np.bool_)) else c for c in (cells, genes)]
        return self.to_anndata(cells=None if whole[0] else one[0], genes=None if whole[1] else one[1])

    def to_anndata(self, genes: Any = None, cells: Any = None, *, features: str | None = None, lazy: bool = False) -> anndata.AnnData:
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
        lazy
            True: X, layers and raw stay on the drives, each as a matrix that is read when it is sliced:
            ``adata[cells, genes].X``, ``adata.obs_vector(gene)``. ``adata[cells, genes].to_memory(copy=True)`` is an
            AnnData that all of scanpy works on; its functions do not take the lazy one itself.

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
            # What is lazy is put in order when it is read.
            gene_set = gene_at if gene_at is None or lazy else np.unique(gene_at)
            cell_set = cell_at if cell_at is None or lazy else np.unique(cell_at)
            if lazy:
                from . import _lazy

                read: Reader = lambda table, genes, cells: _lazy.of(self, table, genes, cells)  # noqa: E731
            else:
                read = self._matrix_part
            if own is not None and features is not None:
                whole = self._features_part(self._feature_table(features), own, gene_set, cell_set, read)
            else:
                whole = self._raw_part(gene_set, cell_set, read) if self._swapped and gene_set is not None else self._part(gene_set, cell_set, read)
        if lazy:
            return whole
        # In the order and as often as asked for.
        cell_order = slice(None) if cell_at is None else np.searchsorted(cell_set, cell_at)
        gene_order = slice(None) if gene_at is None else np.searchsorted(gene_set, gene_at)
        if _ascending(cell_order, whole.n_obs) and _ascending(gene_order, whole.n_vars):
            return whole
        return whole[cell_order, gene_order].copy()

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002
        genes: Any = None,
        cells: Any = None,
        layer: str | None = None,
        replace: bool = False,
    ) -> list[str]:
        """Writes the data set, or the given genes and cells of it, as files for other programs; gives the files' names.
        They are whole or not there. Memory stays bounded: matrices are read and written in parts.

        Parameters
        ----------
        path
            ``x.h5ad``: everything that `to_anndata` gives. ``x.parquet``: a row for each value above or below zero
            (gene, cell, value), with ``x.obs.parquet`` and ``x.var.parquet`` next to it. A directory (``x/``): the
            files of Cell Ranger 3, ``matrix.mtx.gz``, ``barcodes.tsv.gz`` and ``features.tsv.gz``.
        format
            ``"h5ad"``, ``"parquet"`` or ``"mtx"``, where the path alone does not say it.
        genes, cells
            A boolean mask, names or numbers, in the order wanted; None for all.
        layer
            For Parquet and mtx, which matrix: None for the main one, or one of `layers`.
        replace
            True: overwrite what is there. False: that is a `ConflictError`.

        Raises
        ------
        InvalidError
            The format is not said; or there are names or values that it can't hold.
        NotFoundError
            A gene, a cell, a layer or the parent directory is not there.
        ExhaustedError
            There is no room on the disk.
        """
        from . import _write

        if not isinstance(path, (str, os.PathLike)):
            raise InvalidError(f"path is {path!r}: name a file that ends in .h5ad or .parquet, or a directory for mtx")
        return _write.export(self, os.fspath(path), format, genes, cells, layer, replace)[0]

    def _part_of(self) -> tuple[Any, Part]:
        return self, WHOLE

    def _settled(self, transform: Any, layer: str | None) -> Any:
        return self._remembered(transform, layer)

    def _part(self, genes: np.ndarray | None, cells: np.ndarray | None, read: Reader) -> anndata.AnnData:
        """Everything of the given genes and cells, and `raw` whole."""
        import anndata

        # Callers get copies, which they may change.
        bare = self._shell_part(cells, genes)
        stored = {table: kept for table, kept in self._kept["matrices"].items() if not kept["origin"].startswith(_features.ORIGIN)}
        matrices = {kept["origin"]: read(table, None if kept["origin"] == "raw/X" else genes, cells) for table, kept in stored.items()}
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

    def _raw_part(self, genes: np.ndarray, cells: np.ndarray | None, read: Reader) -> anndata.AnnData:
        """Raw's values of the given genes of raw, with everything about the cells."""
        import anndata

        bare = self._shell_part(cells, None)
        raw = self._shell.raw
        return anndata.AnnData(
            X=read("x", genes, cells),
            obs=bare.obs,
            var=raw.var.iloc[genes].copy(),
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            varm={k: copy.deepcopy(v.iloc[genes] if hasattr(v, "iloc") else v[genes]) for k, v in raw.varm.items()},
            obsp=dict(bare.obsp),
        )

    def _features_part(self, table: str, var: pd.DataFrame, features: np.ndarray | None, cells: np.ndarray | None, read: Reader) -> anndata.AnnData:
        """Features of another type, with everything about the cells."""
        import anndata

        bare = self._shell_part(cells, None)
        return anndata.AnnData(
            X=read(table, features, cells),
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
