"""The commands from counts to clusters: `msgx pca`, `neighbors`, `umap`, `leiden` and `cluster`, which does all."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable

from ._cli_help import described, sentence

_EXAMPLES = {
    "pca": "msgx pca blood/pbmc3k --transform log1p_cp10k --components 30",
    "neighbors": "msgx neighbors blood/pbmc3k --neighbors 15",
    "umap": "msgx umap blood/pbmc3k",
    "leiden": "msgx leiden blood/pbmc3k --resolution 1.0 --key leiden",
    "cluster": "msgx cluster blood/pbmc3k --transform log1p_cp10k --variable 2000 --resolution 1.0",
}
_KEPT = "The result is kept in the data set, as a new version: `msgx history` lists them."


def add(commands: Any, command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands; arguments as of `_cli_plots.add`."""

    def one(kind: str, run: Callable[[argparse.Namespace], int], text: str, *more: str) -> argparse.ArgumentParser:
        sub = described(command(kind, run, text), cli, "\n".join([sentence(text), *more, _KEPT]), _EXAMPLES[kind])
        sub.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
        return sub

    def of_values(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--transform", choices=("log1p_cp10k", "none"), help="log1p_cp10k for raw counts, none for values normalised already (required)")
        sub.add_argument("--layer", metavar="NAME", help="another matrix than the main one")
        sub.add_argument("--components", type=cli._positive, metavar="N", help="how many components (default 50)")
        sub.add_argument("--scale", action="store_true", help="scale each gene to unit variance first")
        sub.add_argument("--max-value", type=float, metavar="X", help="with --scale, clip at X deviations above the mean")

    def of_graph(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--neighbors", type=cli._positive, default=15, metavar="N", help="neighbours of a cell, itself among them (default: %(default)s)")
        sub.add_argument("--metric", default="euclidean", metavar="NAME", help="how far cells are from each other (default: %(default)s)")

    def of_clusters(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--resolution", type=float, default=1.0, metavar="X", help="larger values give more clusters (default: %(default)s)")
        sub.add_argument("--key", default="leiden", metavar="COLUMN", help="the obs column of the clusters (default: %(default)s)")
        sub.add_argument("--seed", type=int, default=0, metavar="N", help="where random numbers begin (default: %(default)s)")

    p = one("pca", _pca, "principal components of the cells, made next to the data", "The genes are those that `msgx hvg` marked, unless --genes says otherwise.")
    of_values(p)
    p.add_argument("--genes", metavar="all|NAME,...|@FILE", help="the genes that count (default: the highly variable ones)")

    p = one("neighbors", _neighbors, "the graph of nearest neighbours, from the principal components")
    of_graph(p)
    p.add_argument("--components", type=cli._positive, metavar="N", help="just the first N components (default: all)")

    p = one("umap", _umap, "a layout of the graph of neighbours in two dimensions")
    p.add_argument("--min-dist", type=float, default=0.5, metavar="X", help="how close points may be (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="where random numbers begin (default: %(default)s)")

    of_clusters(one("leiden", _leiden, "clusters of the graph of neighbours"))

    p = one("cluster", _cluster, "all steps from counts to clusters: variable genes, components, neighbours, UMAP, Leiden")
    of_values(p)
    p.add_argument("--variable", type=cli._positive, default=2000, metavar="N", help="how many highly variable genes count (default: %(default)s)")
    of_graph(p)
    of_clusters(p)


def _transform(a: argparse.Namespace) -> str | None:
    if a.transform is None:
        a.cli._fleet_of(a)
        raise a.cli._UsageError(f"say --transform log1p_cp10k (each cell scaled to 10,000, then log1p) or --transform none{a.cli._what_values(a)}")
    return None if a.transform == "none" else str(a.transform)


def _components(ds: Any, a: argparse.Namespace, genes: Any, transform: str | None) -> Any:
    found = ds.pca(a.components, genes=genes, transform=transform, layer=a.layer, scale=a.scale, max_value=a.max_value)
    share = 100 * float(found.variance_ratio.sum())
    first = ", ".join(f"{100 * r:.1f}%" for r in found.variance_ratio[:5])
    print(f"{len(found.variance)} components of {len(found.genes):,} genes hold {share:.1f}% of the variance (the first: {first})")
    return found


def _say_clusters(found: Any, key: str) -> None:
    sizes = found.value_counts(sort=False)
    print(f"{len(sizes)} clusters in obs column {key!r}: " + ", ".join(f"{name} ({size:,} cells)" for name, size in sizes.items()))


def _pca(a: argparse.Namespace) -> int:
    transform = _transform(a)
    genes = "highly_variable" if a.genes is None else None if a.genes == "all" else a.cli._listed(a.genes)
    with a.cli._open(a) as db:
        _components(db[a.name], a, genes, transform)
    return 0


def _neighbors(a: argparse.Namespace) -> int:
    from . import _progress

    with a.cli._open(a) as db, _progress.busy(a.name, "looking for nearest neighbours"):
        graph = db[a.name].neighbors(a.neighbors, a.components, metric=a.metric)
    print(f"a graph of {graph.shape[0]:,} cells and {graph.nnz // 2:,} pairs of neighbours")
    return 0


def _umap(a: argparse.Namespace) -> int:
    from . import _progress

    with a.cli._open(a) as db, _progress.busy(a.name, "UMAP places the cells"):
        layout = db[a.name].umap(min_dist=a.min_dist, seed=a.seed)
    print(f"a layout of {len(layout):,} cells: msgx plot embedding {a.name} --basis umap draws it")
    return 0


def _leiden(a: argparse.Namespace) -> int:
    from . import _progress

    with a.cli._open(a) as db, _progress.busy(a.name, "Leiden looks for clusters"):
        found = db[a.name].leiden(a.resolution, seed=a.seed, key_added=a.key)
    _say_clusters(found, a.key)
    return 0


def _cluster(a: argparse.Namespace) -> int:
    from . import _progress

    transform = _transform(a)
    with a.cli._open(a) as db, _progress.stepper(None, f"clusters of {a.name}") as step:
        ds = db[a.name]
        step(0, 5, "highly variable genes")
        variable = ds.highly_variable_genes(n_top_genes=min(a.variable, ds.n_vars), transform=transform, layer=a.layer)
        step(1, 5, "principal components")
        _components(ds, a, variable["highly_variable"].to_numpy(bool), transform)
        step(2, 5, "neighbours")
        ds.neighbors(a.neighbors, metric=a.metric)
        step(3, 5, "UMAP")
        ds.umap(seed=a.seed)
        step(4, 5, "Leiden")
        _say_clusters(ds.leiden(a.resolution, seed=a.seed, key_added=a.key), a.key)
        step(5, 5, "done")
    print(f"msgx plot embedding {a.name} --basis umap --color {a.key} draws them; msgx de {a.name} --groupby {a.key} finds their genes", file=sys.stderr)
    return 0
