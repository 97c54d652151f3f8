"""Writes the h5ad files of this directory, one with each version of anndata (README.md). It runs with all of them.

The tests import `content`, which says what a file holds.
"""

import sys

import numpy as np
import pandas as pd
import scipy.sparse as sp

CELLS, GENES = 12, 5


def content():
    """What the files hold, by the names of AnnData's arguments; the same in every version."""
    cells, genes = np.arange(CELLS), np.arange(GENES)
    x = ((cells[:, None] * 7 + genes[None, :] * 3) % 5).astype(np.float32)
    obs = pd.DataFrame(
        {
            "cluster": pd.Categorical([["T", "B", "NK"][i % 3] for i in cells], categories=["NK", "T", "B"]),
            "stage": pd.Categorical([["late", "early"][i % 2] for i in cells], categories=["early", "late"], ordered=True),
            "gaps": pd.Categorical([None if i % 4 == 0 else "ab"[i % 2] for i in cells], categories=["a", "b"]),
            "level": pd.Categorical([str(i % 3) for i in cells]),
            "n_counts": x.sum(1),
            "n": cells.astype(np.int32),
            "doublet": cells % 5 == 0,
        },
        index=["cell-%d" % i for i in cells],
    )
    var = pd.DataFrame({"gene_ids": ["ENSG%03d" % i for i in genes], "high": genes % 2 == 0}, index=["Gene%d" % i for i in genes])
    uns = {"title": "a test", "cluster_colors": np.array(["#ff0000", "#00ff00", "#0000ff"]), "neighbors": {"params": {"n_neighbors": 15, "method": "umap"}}, "pca": {"variance": np.array([2.0, 1.0])}}
    return {"X": x, "obs": obs, "var": var, "uns": uns, "obsm": {"X_pca": (cells[:, None] * np.array([1.0, 0.5])[None, :])}, "varm": {"PCs": genes[:, None] / np.array([2.0, 4.0])[None, :]}}


def main(path, dense):
    import anndata

    parts = content()
    x = parts.pop("X")
    of = np.asarray if dense else sp.csr_matrix
    adata = anndata.AnnData(X=of(x), **parts)
    adata.raw = anndata.AnnData(X=of(x * 2), obs=parts["obs"], var=parts["var"])
    adata.layers["counts"] = of(x * 3)
    adata.write(path)
    print("anndata", anndata.__version__, path)


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
