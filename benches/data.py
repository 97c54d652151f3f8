"""Synthetic expression matrices that look like single-cell counts, made once and kept in bench-out/.

Counts are Poisson with rate depth(cell) * mean(gene) * fold(group, gene): gene means are log-normal over five orders of
magnitude, depths log-normal, each group has its own marker genes. About 7% of the entries are not zero, most of them 1
to 3. The seed is fixed, so that every run measures the same matrix.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

#: Where benchmarks keep their data and results: bench-out/, or the directory that SKYTETHER_BENCH_OUT names.
OUT = Path(os.environ.get("SKYTETHER_BENCH_OUT") or Path(__file__).resolve().parent.parent / "bench-out")
GROUPS = 12
SEED = 20261121
#: The share of the values that are not zero.
DENSITY = 0.071


@contextlib.contextmanager
def kept(name: str) -> Iterator[Path]:
    """A directory in bench-out/ whose files are removed when all measurements are over, and those that a
    killed run has left now.

    ext4 looks at every file that was removed in the last minutes before it makes a new one, which took a seventh of the
    processor time of an ingest that followed on the removal of another's files.
    """
    OUT.mkdir(exist_ok=True)
    for left in OUT.glob(f"{name}_*.kept"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"{name}_", suffix=".kept", dir=OUT) as path:
        yield Path(path)


def _rates(n_genes: int, density: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean count per gene at depth 1, scaled so that the expected share of nonzeros is `density`; fold
    change per group and gene."""
    mean = np.exp(rng.normal(0.0, 2.0, n_genes))
    fold = np.ones((GROUPS, n_genes), dtype=np.float32)
    for group in range(GROUPS):
        markers = rng.choice(n_genes, n_genes // 50, replace=False)
        fold[group, markers] = np.exp(rng.normal(1.0, 0.6, markers.size))
    depth = np.exp(rng.normal(0.0, 0.45, 2000))
    low, high = 1e-6, 1e3
    for _ in range(60):
        scale = np.sqrt(low * high)
        share = float(np.mean(1.0 - np.exp(-scale * depth[:, None] * mean[None, ::7])))
        low, high = (scale, high) if share < density else (low, scale)
    return (mean * scale).astype(np.float32), fold


def matrix(n_cells: int, n_genes: int, density: float = DENSITY):
    """A CSR matrix (cells x genes, float32 whole numbers), its group per cell, as a generator
    of (csr chunk, groups)."""
    from scipy import sparse

    rng = np.random.default_rng(SEED)
    mean, fold = _rates(n_genes, density, rng)
    group_rates = fold * mean
    for start in range(0, n_cells, 1000):
        n = min(1000, n_cells - start)
        groups = rng.integers(0, GROUPS, n)
        depth = np.exp(rng.normal(0.0, 0.45, n)).astype(np.float32)
        rate = group_rates[groups] * depth[:, None]
        none = np.exp(-rate)
        draw = rng.random((n, n_genes), dtype=np.float32)
        rows, cols = np.nonzero(draw > none)
        rate, draw, p = rate[rows, cols].astype(np.float64), draw[rows, cols].astype(np.float64), none[rows, cols].astype(np.float64)
        value, below = np.zeros(rows.size), p.copy()
        open_ = np.arange(rows.size)
        for k in range(1, 5000):  # inverse transform: walk up the distribution until the draw is covered
            p[open_] *= rate[open_] / k
            value[open_] = k
            below[open_] += p[open_]
            open_ = open_[(draw[open_] > below[open_]) & (p[open_] > 1e-12)]
            if open_.size == 0:
                break
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
        yield sparse.csr_matrix((value.astype(np.float32), cols.astype(np.int32), indptr), shape=(n, n_genes)), groups


def h5ad(n_cells: int, n_genes: int) -> Path:
    """Path of the gzip h5ad of that size, as `anndata.write_h5ad(compression="gzip")` writes it; made where absent.

    Values are written while they are made, so that memory does not grow with the cells.
    """
    path = OUT / f"synthetic_{n_cells}x{n_genes}.h5ad"
    if path.exists():
        return path
    import anndata
    import h5py
    import pandas as pd
    from scipy import sparse

    print(f"making {path.name} (once) ...", file=sys.stderr)
    OUT.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    obs = pd.DataFrame(index=[f"CELL{i:08d}-1" for i in range(n_cells)])
    var = pd.DataFrame(index=[f"GENE{i:05d}" for i in range(n_genes)])
    labels = np.zeros(n_cells, np.int8)
    counts = np.zeros(n_cells, np.int64)
    # anndata writes all but the values, which it could write only whole.
    types = pd.Categorical.from_codes(labels, [f"type {g:02d}" for g in range(GROUPS)])
    empty = sparse.csr_matrix((n_cells, n_genes), dtype=np.float32)
    anndata.AnnData(empty, obs=obs.assign(cell_type=types), var=var).write_h5ad(part, compression="gzip")
    with h5py.File(part, "r+") as file:
        x = file["X"]
        # The lengths expected, from which h5py takes its chunks as it does from those of whole arrays.
        expected = int(DENSITY * n_cells * n_genes)
        for name, dtype in (("data", np.float32), ("indices", np.int32)):
            del x[name]
            x.create_dataset(name, (expected,), dtype, maxshape=(None,), compression="gzip")
        done = cells = 0
        for chunk, groups in matrix(n_cells, n_genes):
            end = done + chunk.nnz
            for name, values in (("data", chunk.data), ("indices", chunk.indices)):
                if end > x[name].shape[0]:
                    x[name].resize((end + expected // 50,))
                x[name][done:end] = values
            labels[cells : cells + len(groups)] = groups
            counts[cells : cells + len(groups)] = np.diff(chunk.indptr)
            done, cells = end, cells + len(groups)
            if cells % 50_000 == 0:
                print(f"  {cells:,} of {n_cells:,} cells", file=sys.stderr)
        for name in ("data", "indices"):
            x[name].resize((done,))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        x["indptr"][...] = offsets
        file["obs/cell_type/codes"][...] = labels
    part.rename(path)
    return path


def coo_parquet(source: Path) -> Path:
    """Path of (gene, cell, value) and (cell, grp, total) as ZSTD Parquet, sorted by gene, made where absent:
    what DuckDB is given."""
    path = source.with_suffix(".coo.parquet")
    if path.exists():
        return path
    import anndata
    import pyarrow as pa
    import pyarrow.parquet as pq

    print(f"making {path.name} (once) ...", file=sys.stderr)
    adata = anndata.read_h5ad(source)
    total = np.asarray(adata.X.sum(axis=1)).ravel()
    group = adata.obs["cell_type"].cat.codes.to_numpy().astype(np.uint8)
    pq.write_table(
        pa.table({"cell": np.arange(adata.n_obs, dtype=np.uint32), "grp": group, "total": total.astype(np.float32)}),
        source.with_suffix(".cells.parquet"),
        compression="zstd",
    )
    csc = adata.X.tocsc()
    del adata
    schema = pa.schema({"gene": pa.uint32(), "cell": pa.uint32(), "value": pa.uint16()})
    with pq.ParquetWriter(path.with_suffix(".part"), schema, compression="zstd") as writer:
        for first in range(0, csc.shape[1], 500):
            last = min(first + 500, csc.shape[1])
            lo, hi = csc.indptr[first], csc.indptr[last]
            gene = np.repeat(np.arange(first, last, dtype=np.uint32), np.diff(csc.indptr[first : last + 1]))
            writer.write_table(pa.table({"gene": gene, "cell": csc.indices[lo:hi].astype(np.uint32), "value": csc.data[lo:hi].astype(np.uint16)}, schema=schema))
    path.with_suffix(".part").rename(path)
    return path
