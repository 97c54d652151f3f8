"""From principal components to clusters: nearest neighbours, UMAP and Leiden, by the libraries that people use.

The steps and defaults are those of scanpy 1.11: `scanpy.pp.neighbors`, `scanpy.tl.umap` and `scanpy.tl.leiden`. They
work on the small result of `Dataset.pca`, in this process.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from skytether import InvalidError, UnsupportedError

#: Up to this many cells neighbours are exact (scikit-learn); beyond, they are found approximately (pynndescent).
EXACT = 4096
#: What the result of a step needs, and how to get it.
_PACKAGES = {"sklearn": "scikit-learn", "pynndescent": "pynndescent", "umap": "umap-learn", "leidenalg": "leidenalg", "igraph": "igraph"}


def _imported(module: str, for_what: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as e:
        package = _PACKAGES[module.split(".")[0]]
        raise UnsupportedError(f"{for_what} needs {package}, which is not installed: pip install {package}") from e


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and bool(np.isfinite(value))


def _check_seed(seed: Any, end: int = 1 << 32) -> None:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < end:
        raise InvalidError(f"seed is {seed!r}: a whole number from 0 to {end - 1}")


def neighbors(x: np.ndarray, n_neighbors: int, metric: str, seed: int) -> tuple[Any, Any]:
    """Nearest neighbours of each cell, itself among them.

    Parameters
    ----------
    x
        Cells by components.

    Returns
    -------
    Distances to the other neighbours, and weights of the graph (fuzzy simplicial set): cells by cells, CSR.
    """
    import scipy.sparse

    n = len(x)
    if not isinstance(n_neighbors, (int, np.integer)) or isinstance(n_neighbors, bool) or not 2 <= n_neighbors < n:
        raise InvalidError(f"n_neighbors is {n_neighbors!r}: a whole number from 2 to {n - 1:,}, as there are {n:,} cells")
    if not isinstance(metric, str):
        raise InvalidError(f"metric is {metric!r}: the name of a distance, such as 'euclidean' or 'cosine'")
    _check_seed(seed)
    try:
        indices, distances = _nearest(x, n_neighbors, metric, seed)
    except ValueError as e:
        # The libraries' texts list all metrics that they know; the cause has them.
        known = "'euclidean', 'cosine', 'manhattan' and 'correlation' are some that work"
        raise InvalidError(f"scikit-learn and pynndescent find no neighbours by metric {metric!r}: {known}") from e
    indices, distances = _itself_first(indices.astype(np.int64), distances.astype(np.float32))
    graph = _imported("umap.umap_", "neighbors").fuzzy_simplicial_set(
        scipy.sparse.coo_matrix((n, 1)), n_neighbors, None, None, knn_indices=indices, knn_dists=distances, set_op_mix_ratio=1.0, local_connectivity=1.0
    )[0]
    others = scipy.sparse.csr_matrix(
        (distances[:, 1:].ravel(), indices[:, 1:].ravel(), np.arange(0, n * (n_neighbors - 1) + 1, n_neighbors - 1)), shape=(n, n)
    )
    others.sort_indices()
    return others, graph.tocsr()


def _nearest(x: np.ndarray, n_neighbors: int, metric: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the nearest cells and their distances, cells by neighbours."""
    n = len(x)
    if n < EXACT:
        found = _imported("sklearn.neighbors", "neighbors").NearestNeighbors(n_neighbors=n_neighbors, metric=metric).fit(x)
        distances, indices = found.kneighbors(x)
    else:
        index = _imported("pynndescent", "neighbors of many cells").NNDescent(
            x, n_neighbors=n_neighbors, metric=metric, random_state=seed, n_trees=min(64, 5 + round(n**0.5 / 20)), n_iters=max(5, round(np.log2(n)))
        )
        indices, distances = index.neighbor_graph
    return indices, distances


def _itself_first(indices: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each cell as the first of its own neighbours: among equal cells another one may come first, or all but itself."""
    own = np.arange(len(indices))
    at = np.argmax(indices == own[:, None], axis=1)
    at[indices[own, at] != own] = indices.shape[1] - 1
    for array, first in ((indices, own), (distances, np.zeros(len(own), distances.dtype))):
        for row in np.flatnonzero(at):
            array[row, 1 : at[row] + 1] = array[row, : at[row]]
        array[:, 0] = first
    return indices, distances


def umap(x: np.ndarray, graph: Any, n_components: int, min_dist: float, spread: float, seed: int, metric: str) -> tuple[np.ndarray, dict[str, float]]:
    """The layout of the graph in `n_components` dimensions (float32), and the curve's parameters a and b."""
    if not isinstance(n_components, (int, np.integer)) or isinstance(n_components, bool) or not 1 <= n_components < graph.shape[0] - 1:
        raise InvalidError(f"n_components is {n_components!r}: a whole number from 1, below the number of cells ({graph.shape[0]:,})")
    _check_seed(seed)
    if not _is_number(min_dist) or not 0 <= min_dist:
        raise InvalidError(f"min_dist is {min_dist!r}: how close points may be, a number from 0 on, such as 0.5")
    if not _is_number(spread) or not min_dist <= spread or not spread > 0:
        raise InvalidError(f"min_dist is {min_dist!r} and spread is {spread!r}: how far apart clusters are is positive, and at least how close points may be")
    library = _imported("umap.umap_", "umap")
    random = _imported("sklearn.utils", "umap").check_random_state(seed)
    a, b = library.find_ab_params(spread, min_dist)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout, _ = library.simplicial_set_embedding(
            data=x,
            graph=graph.tocoo(),
            n_components=n_components,
            initial_alpha=1.0,
            a=a,
            b=b,
            gamma=1.0,
            negative_sample_rate=5,
            n_epochs=500 if graph.shape[0] <= 10_000 else 200,
            init="spectral",
            random_state=random,
            metric=metric,
            metric_kwds={},
            densmap=False,
            densmap_kwds={},
            output_dens=False,
            verbose=False,
        )
    return np.asarray(layout, np.float32), {"a": float(a), "b": float(b)}


def leiden(graph: Any, resolution: float, seed: int, n_iterations: int) -> Any:
    """Clusters of the graph as a categorical of texts ``"0"``, ``"1"``, ..., the largest first."""
    import pandas as pd

    _check_seed(seed, 1 << 31)
    library, igraph = _imported("leidenalg", "leiden"), _imported("igraph", "leiden")
    sources, targets = graph.nonzero()
    network = igraph.Graph(n=graph.shape[0], edges=np.column_stack([sources, targets]), directed=True)
    weights = np.asarray(graph[sources, targets], np.float64).ravel()
    found = library.find_partition(
        network, library.RBConfigurationVertexPartition, weights=weights, resolution_parameter=resolution, n_iterations=n_iterations, seed=seed
    )
    numbers = np.asarray(found.membership)
    return pd.Categorical(numbers.astype(str), categories=[str(i) for i in range(numbers.max() + 1)])
