"""One step from counts to clusters in a process of its own: `python benches/steps.py METHOD ...`. Run by cells.py.

Prints the JSON line of one.py. Where a step needs others before it, these are not measured.
"""

from __future__ import annotations

import sys

from one import logarithms, report, timed

#: Genes that principal components are made of, and how many components.
GENES, COMPONENTS = 2000, 50


def ours_pca(fleet: str, name: str, times: str) -> None:
    """Principal components of the most variable genes, from the fleet on disk to the embedding."""
    import msgexpress

    with msgexpress.open(fleet) as db:
        ds = db[name]
        genes = _variable(ds)
        seconds, ready, found = timed(lambda: ds.pca(COMPONENTS, genes=genes, transform="log1p_cp10k", keep=False), int(times))
        moved = sum(r.to_dict()["bytes_moved"] for r in found.receipts)
        report(seconds, ready, variance=float(found.variance.sum()), bytes_moved=moved)


def scanpy_pca(source: str, fleet: str, name: str, times: str) -> None:
    """scanpy's, in memory, of the same genes; reading and normalising are in `ready`."""
    import msgexpress
    import scanpy as sc

    with msgexpress.open(fleet) as db:
        genes = _variable(db[name])
    adata = logarithms(source)[:, genes].copy()
    seconds, ready, _ = timed(lambda: sc.pp.pca(adata, n_comps=COMPONENTS), int(times))
    report(seconds, ready, variance=float(adata.uns["pca"]["variance"].sum()))


def _variable(ds: object) -> object:
    """Genes with the largest variance of logarithms, from one query of moments."""
    import numpy as np

    from skytether import _internal

    spec = _internal.moments_spec(ds.name, "x", "log1p_cp10k", None, (["all"], np.zeros(ds.n_obs, np.int32)))
    found = ds.fleet.sql(f"SELECT gene_id, moments(idx, val, block, '{spec}') AS m FROM {ds.table('x_rows')} GROUP BY gene_id").to_arrow()
    lists = found.column("m").combine_chunks()
    squares = lists.values.field("m2").to_numpy()[lists.offsets.to_numpy()[:-1]]
    return np.sort(found.column("gene_id").to_numpy()[np.argsort(-squares, kind="stable")[:GENES]]).astype(np.int64)


METHODS = {f.__name__: f for f in (ours_pca, scanpy_pca)}

if __name__ == "__main__":
    METHODS[sys.argv[1]](*sys.argv[2:])
