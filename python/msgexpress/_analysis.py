"""From counts to clusters: principal components, neighbours, UMAP and Leiden of a stored data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from skytether import InvalidError, NotFoundError

from ._arguments import chosen_layer
from ._plotting import Plotting
from ._testing import _REQUIRED, _say_transform
from ._transforms import check_transform, said

if TYPE_CHECKING:
    import pandas as pd

    from ._pca import PCA
    from ._transforms import Transform

Progress = Callable[[int, int], None]


class Analysis(Plotting):
    """The steps of a data set from counts to clusters. Each keeps its result in the data set, as a new version."""

    def pca(
        self,
        n_comps: int | None = None,
        genes: Any = "highly_variable",
        zero_center: bool = True,
        seed: int = 0,
        *,
        transform: Transform = _REQUIRED,
        layer: str | None = None,
        use_raw: bool | None = None,
        scale: bool = False,
        max_value: float | None = None,
        cells: Any = None,
        key_added: str | None = None,
        keep: bool = True,
        progress: Progress | bool | None = None,
    ) -> PCA:
        """Principal components of the cells, like ``scanpy.pp.pca``. The matrix never has to fit in memory.

        The drives send the values of the chosen genes once (twice beyond some 16 million). The products of the genes
        with each other are added up from these in doubles, and their eigenvectors are the components: exact, where
        scanpy iterates. Signs are scikit-learn's.

        Parameters
        ----------
        n_comps
            How many components; None for 50, or as many as there are.
        genes
            ``"highly_variable"``: those that `highly_variable_genes` chose, or var has marked. Else as in
            `to_anndata`; None for all. At most 6,000 genes, or as many cells.
        zero_center
            False: genes are not centred (truncated SVD).
        seed
            Is taken for scanpy's sake; nothing here is random.
        transform, layer, use_raw
            As in `rank_genes_groups`.
        scale, max_value
            True: each gene is scaled to unit variance first, and clipped to `max_value` deviations above its mean, as
            ``scanpy.pp.scale`` does.
        cells
            The cells that take part, as in `rank_genes_groups`; None for all. Others have missing values in what is
            kept, and no part in the steps that follow.
        key_added
            Another name than ``X_pca`` in obsm, and ``PCs`` in varm and ``pca`` in uns.
        keep
            False: the result is not kept in the data set.
        progress
            As in `MsgExpress.ingest`.

        Raises
        ------
        NotFoundError
            No such layer, gene or cell; no gene is marked.
        InvalidError
            Too few or too many genes or cells; `transform` left out; a value that the transform can't take.
        """
        from . import _pca, _progress

        transform = self._which_transform(transform, layer, use_raw)
        params = {"n_comps": n_comps, "zero_center": bool(zero_center), "transform": said(transform), "layer": layer, "scale": bool(scale), "max_value": max_value}
        with _progress.reporter(progress, f"components of {self.name}") as report:
            found = _pca.pca(
                self,
                n_comps,
                genes,
                bool(zero_center),
                layer=layer,
                use_raw=use_raw,
                transform=transform,
                scale=bool(scale),
                max_value=max_value,
                cells=cells,
                progress=report,
            )
        found.params = params
        if keep:
            self._keep_pca(found, key_added, layer, use_raw)
        return found

    def neighbors(
        self, n_neighbors: int = 15, n_pcs: int | None = None, *, use_rep: str = "X_pca", metric: str = "euclidean", seed: int = 0, key_added: str | None = None
    ) -> Any:
        """The graph of nearest neighbours among cells, like ``scanpy.pp.neighbors`` (method ``umap``).

        Up to 4,096 cells neighbours are exact (scikit-learn), beyond approximate (pynndescent). Kept as
        ``obsp["distances"]``, ``obsp["connectivities"]`` and ``uns["neighbors"]``.

        Parameters
        ----------
        n_neighbors
            How many, the cell itself among them.
        n_pcs
            How many components of `use_rep` count; None for all.
        use_rep
            The array of obsm to look in: ``X_pca`` is what `pca` keeps.
        metric, seed
            As in scanpy.
        key_added
            Another name than ``neighbors`` in uns; obsp has it before ``_distances`` and ``_connectivities``.

        Returns
        -------
        The weights of the graph, cells by cells (CSR).

        Raises
        ------
        NotFoundError
            obsm has no `use_rep`: `pca` was not called.
        InvalidError
            Fewer cells than neighbours; `n_pcs` or `metric` is none; the array holds no numbers.
        UnsupportedError
            A package is missing; the text has its name.
        """
        from . import _clusters

        x, cells = self._representation(use_rep, n_pcs)
        distances, graph = (_spread(made, cells, self.n_obs) for made in _clusters.neighbors(x, n_neighbors, metric, seed))
        prefix, name = ("", "neighbors") if key_added is None else (f"{key_added}_", key_added)
        params = {"n_neighbors": n_neighbors, "method": "umap", "random_state": seed, "metric": metric, "use_rep": use_rep, **({} if n_pcs is None else {"n_pcs": n_pcs})}
        about = {"connectivities_key": f"{prefix}connectivities", "distances_key": f"{prefix}distances", "params": params}
        self._keep("neighbors", params, obsp={f"{prefix}distances": distances, f"{prefix}connectivities": graph}, uns={name: about})
        return graph

    def umap(
        self, n_components: int = 2, *, min_dist: float = 0.5, spread: float = 1.0, seed: int = 0, neighbors_key: str = "neighbors", key_added: str | None = None
    ) -> np.ndarray:
        """A layout of the graph of neighbours, like ``scanpy.tl.umap``; kept as ``obsm["X_umap"]``.

        Parameters
        ----------
        n_components
            Dimensions of the layout.
        min_dist, spread
            How close points may be, and how far apart clusters are, as in scanpy.
        seed
            Where random numbers begin.
        neighbors_key
            What `neighbors` kept: its `key_added`.
        key_added
            Another name than ``X_umap`` in obsm.

        Returns
        -------
        Cells by `n_components` (float32).

        Raises
        ------
        NotFoundError
            There is no such graph: `neighbors` was not called.
        InvalidError
            The components are of other cells than the graph.
        UnsupportedError
            A package is missing; the text has its name.
        """
        from . import _clusters

        about, graph = self._graph(neighbors_key)
        params = about["params"]
        x, cells = self._representation(str(params.get("use_rep", "X_pca")), params.get("n_pcs"))
        if not np.array_equal(cells, np.flatnonzero(np.diff(graph.indptr))):
            raise InvalidError(f"the components of {self.name} were made again, of other cells than {neighbors_key!r}: call neighbors again")
        layout, curve = _clusters.umap(x, graph[cells][:, cells], n_components, min_dist, spread, seed, str(params.get("metric", "euclidean")))
        layout = _whole(layout, cells, self.n_obs)
        name = "X_umap" if key_added is None else key_added
        self._keep(
            "umap",
            {"n_components": n_components, "min_dist": min_dist, "spread": spread, "seed": seed},
            obsm={name: layout},
            uns={"umap" if key_added is None else key_added: {"params": {**curve, **({"random_state": seed} if seed else {})}}},
        )
        return layout

    def leiden(self, resolution: float = 1.0, *, seed: int = 0, n_iterations: int = -1, neighbors_key: str = "neighbors", key_added: str = "leiden") -> pd.Series:
        """Clusters of the graph of neighbours, like ``scanpy.tl.leiden`` (by leidenalg); kept as an obs column.

        Parameters
        ----------
        resolution
            Larger values give more clusters.
        seed
            Where random numbers begin.
        n_iterations
            How often the algorithm refines its clusters; -1 until nothing changes.
        neighbors_key
            What `neighbors` kept: its `key_added`.
        key_added
            The obs column.

        Returns
        -------
        A category for each cell, by name: ``"0"`` is the largest cluster.

        Raises
        ------
        NotFoundError
            There is no such graph: `neighbors` was not called.
        InvalidError
            `resolution` or `n_iterations` is none; no cell has a neighbour.
        UnsupportedError
            A package is missing; the text has its name.
        """
        import pandas as pd

        from . import _clusters

        if not isinstance(key_added, str) or not key_added:
            raise InvalidError(f"key_added is {key_added!r}: the name of the obs column that the clusters get")
        if not _is_number(resolution) or not resolution > 0:
            raise InvalidError(f"resolution is {resolution!r}: a positive number; larger ones give more clusters")
        if not isinstance(n_iterations, (int, np.integer)) or isinstance(n_iterations, bool) or n_iterations == 0:
            raise InvalidError(f"n_iterations is {n_iterations!r}: a whole number, or -1 until nothing changes")
        _, graph = self._graph(neighbors_key)
        # Cells without neighbours had no part in the components.
        cells = np.flatnonzero(np.diff(graph.indptr))
        if not len(cells):
            raise InvalidError(f"no cell of {self.name} has a neighbour in {neighbors_key!r}: there are no clusters to find")
        found = _clusters.leiden(graph[cells][:, cells], float(resolution), seed, n_iterations)
        codes = np.full(self.n_obs, -1)
        codes[cells] = found.codes
        series = pd.Series(pd.Categorical.from_codes(codes, found.categories), index=self.obs_names, name=key_added)
        params = {"resolution": resolution, "random_state": seed, "n_iterations": n_iterations}
        self._keep("leiden", params, obs=series.to_frame(), uns={key_added: {"params": params}})
        return series

    # ---- inside

    def _which_transform(self, transform: Any, layer: str | None, use_raw: bool | None) -> Any:
        layer = chosen_layer(layer, use_raw, self._origins, self.name)
        transform = self._remembered(transform, layer)
        if transform is _REQUIRED:
            raise InvalidError(_say_transform(self._what_values(layer)))
        check_transform(transform)
        return transform

    def _keep(self, action: str, params: dict[str, Any], **parts: Any) -> None:
        """Keeps parts of AnnData in the data set, as a new version that this object reads from now on."""
        from . import _versions

        _versions.put(self, action=action, params=params, **parts)

    def _keep_pca(self, found: PCA, key_added: str | None, layer: str | None, use_raw: bool | None) -> None:
        obsm, varm, uns = ("X_pca", "PCs", "pca") if key_added is None else (key_added, key_added, key_added)
        about = {"variance": found.variance, "variance_ratio": found.variance_ratio, "params": {k: v for k, v in found.params.items() if v is not None}}
        embedding = _whole(found.embedding, found.cell_numbers, self.n_obs)
        parts: dict[str, Any] = {"obsm": {obsm: embedding}, "uns": {uns: about}}
        matrix = self._matrix(chosen_layer(layer, use_raw, self._origins, self.name))
        # Those of the genes of `var` alone have a place in AnnData.
        if matrix == "x" or matrix.startswith("layer_") and not self._swapped:
            loadings = np.zeros((self.n_vars, found.loadings.shape[1]))
            loadings[found.gene_numbers] = found.loadings
            parts["varm"] = {varm: loadings}
        self._keep("pca", found.params, **parts)

    def _representation(self, use_rep: str, n_pcs: int | None) -> tuple[np.ndarray, np.ndarray]:
        """An array of obsm: the rows without missing values, and the numbers of their cells."""
        found = self._shell.obsm
        if use_rep not in found:
            more = ": call pca first" if use_rep == "X_pca" else f": it has {', '.join(map(repr, found)) or 'none'}"
            raise NotFoundError(f"obsm of {self.name} has no {use_rep!r}{more}")
        try:
            x = np.asarray(found[use_rep], np.float32)
        except (TypeError, ValueError) as e:
            raise InvalidError(f"obsm[{use_rep!r}] of {self.name} holds no numbers: choose another array with use_rep=") from e
        if x.ndim != 2 or not x.shape[1]:
            raise InvalidError(f"obsm[{use_rep!r}] of {self.name} is no array of cells by components: choose another one with use_rep=")
        if n_pcs is not None:
            if not isinstance(n_pcs, (int, np.integer)) or isinstance(n_pcs, bool) or not 1 <= n_pcs <= x.shape[1]:
                raise InvalidError(f"n_pcs is {n_pcs!r}: {use_rep!r} of {self.name} has {x.shape[1]} components")
            x = x[:, :n_pcs]
        cells = np.flatnonzero(np.isfinite(x).all(axis=1))
        return np.ascontiguousarray(x[cells]), cells

    def _graph(self, key: str) -> tuple[Any, Any]:
        """What `neighbors` kept under this name: its notes, and the weights."""
        uns = self._shell.uns
        if key not in uns or not hasattr(uns[key], "get") or uns[key].get("connectivities_key") not in self._shell.obsp:
            raise NotFoundError(f"{self.name} has no graph {key!r} of neighbours: call neighbors first")
        return uns[key], self._shell.obsp[uns[key]["connectivities_key"]].tocsr()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _whole(rows: np.ndarray, cells: np.ndarray, n: int) -> np.ndarray:
    """Rows of some cells among those of all `n`; others are missing."""
    if len(cells) == n:
        return rows
    whole = np.full((n, rows.shape[1]), np.nan, rows.dtype)
    whole[cells] = rows
    return whole


def _spread(graph: Any, cells: np.ndarray, n: int) -> Any:
    """A graph of some cells as one of all `n`, where others have no neighbours."""
    import scipy.sparse

    if len(cells) == n:
        return graph
    made = graph.tocoo()
    return scipy.sparse.csr_matrix((made.data, (cells[made.row], cells[made.col])), shape=(n, n))
