"""Generated data sets for tests over several of them: two halves of pbmc3k that look like two experiments, and what
scanpy makes of them in memory."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, rich
from fleets import opened_or_connected

import msgexpress

#: Genes that only one half has.
ONLY_A, ONLY_B = 300, 500


def halves(genes: int = 2500) -> tuple[ad.AnnData, ad.AnnData]:
    """Two halves of the cells. Both lack genes of the other; the second has its genes in another order, under other
    names, and calls its cell types otherwise. `gene_ids` are the same."""
    whole = ad.read_h5ad(PBMC3K)
    # The genes that most cells have, so that tests are of genes with counts.
    often = np.argsort(-np.asarray((whole.X > 0).sum(axis=0)).ravel(), kind="stable")[:genes]
    whole = whole[:, np.sort(often)].copy()
    rng = np.random.default_rng(5)
    order = rng.permutation(genes)
    a = whole[::2, np.sort(order[ONLY_B:])].copy()
    b = whole[1::2, order[: genes - ONLY_A]].copy()
    b.var_names = ["symbol-" + name for name in b.var_names]
    b.obs = b.obs.rename(columns={"cell_type": "label"}).drop(columns="seurat_clusters")
    b.obs["label"] = b.obs["label"].cat.rename_categories({"B": "B cell"})
    b.obs["donor"] = pd.Categorical(np.where(np.arange(b.n_obs) % 3 == 0, "d1", "d2"))
    return a, b


def normalised(adata: ad.AnnData) -> pd.DataFrame:
    """log1p of counts per 10,000, in double precision; columns are `gene_ids`. scanpy normalises; logarithms are
    float32 as scanpy has them, rounded to the nearest whatever the machine."""
    made = ad.AnnData(X=adata.X.astype(np.float32), obs=adata.obs[[]])
    sc.pp.normalize_total(made, target_sum=1e4)
    dense = made.X.toarray() if sp.issparse(made.X) else made.X
    dense = np.log1p(dense.astype(np.float64)).astype(np.float32)
    return pd.DataFrame(dense.astype(np.float64), index=adata.obs_names, columns=adata.var["gene_ids"])


def small(cells: int = 40, seed: int = 1, first: int = 0, genes: int = 30, path: Path | None = None) -> ad.AnnData:
    """A small AnnData with genes g<first>, ...; types T, B and NK in turn."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(3.0, (cells, genes)) * (rng.random((cells, genes)) < 0.6)
    x[:, 0] += 1
    made = rich(sp.csr_matrix(x.astype(np.float32)), cells, genes)
    made.var_names = [f"g{first + i}" for i in range(genes)]
    made.var["gene_ids"] = [f"ENSG{first + i:011d}" for i in range(genes)]
    return made


@pytest.fixture(scope="module")
def pair() -> tuple[ad.AnnData, ad.AnnData]:
    """The two halves."""
    return halves()


@pytest.fixture(scope="module", params=["embedded", "connected"])
def two(request, pair, tmp_path_factory):
    """Both halves on a fleet of this process, and on a served one."""
    with opened_or_connected(request.param, tmp_path_factory.mktemp("across"), 4) as fleet:
        db = msgexpress.MsgExpress(fleet)
        for name, adata in zip("ab", pair):
            db.ingest(adata, f"blood/{name}")
        yield db
