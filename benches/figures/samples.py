"""Data sets of the papers' shapes and the fleets that hold them, made once and kept below figures-out/data."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import data  # noqa: E402
from trips import trips  # noqa: E402

SEED = 20261122


@lru_cache(maxsize=1)
def expression(genes: int, cells: int) -> Any:
    """`genes` x `cells` counts as an AnnData (cells x genes) with two groups of cells, as benches/data.py makes
    them: 7% are not zero."""
    import anndata
    import pandas as pd
    from scipy import sparse

    chunks, groups = zip(*data.matrix(cells, genes))
    x = sparse.vstack(chunks, format="csr")
    cluster = pd.Categorical.from_codes(np.concatenate(groups) % 2, ["one", "two"])
    obs = pd.DataFrame({"cluster": cluster}, index=[f"CELL{i:05d}" for i in range(cells)])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"GENE{i:05d}" for i in range(genes)]))


def expression_fleet(out: Path, genes: int, cells: int, of: int, slice_rows: int | None, drives: int = 1) -> Path:
    """A fleet with the first `cells` columns of `expression(genes, of)` as `paper.matrix`; slices have at most
    `slice_rows` genes (`None`: as many as fit a megabyte)."""
    import msgexpress
    import skytether

    path = out / "data" / f"expression_{genes}x{cells}_{slice_rows or 'whole'}_{drives}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with skytether.open(path.with_suffix(".part"), drives=drives, slice_rows=slice_rows) as fleet:
            msgexpress.MsgExpress(fleet).ingest(expression(genes, of)[:cells].copy(), "paper/matrix")
        path.with_suffix(".part").rename(path)
    return path


def moments(cells: int) -> str:
    """The text of the query that is the paper's Accumulate: for each gene number, mean and sum of squares
    of each group of cells."""
    from skytether import _internal

    spec = _internal.moments_spec("paper.matrix", "x", None, "cluster").replace("'", "''")
    return f"SELECT gene_id, moments(idx, val, block, '{spec}') AS moments FROM paper.matrix.x_rows GROUP BY gene_id"


def dense_fleet(out: Path, columns: int, rows: int, slice_rows: int | None = None, drives: int = 1) -> Path:
    """A fleet with a table `paper.dense` of `columns` whole numbers as int32, as the paper's Arrow tables have them;
    the first column is above 10 in 16.9% of the rows."""
    import pyarrow as pa
    import skytether

    from published import SELECTED

    path = out / "data" / f"dense_{columns}x{rows}_{slice_rows or 'whole'}_{drives}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(SEED)
        first = random.integers(0, 11, rows)
        first[random.permutation(rows)[: round(rows * SELECTED)]] += 11
        table = {"c0": first.astype(np.int32)}
        for n in range(1, columns):
            table[f"c{n}"] = random.poisson(random.gamma(0.3, 20.0, rows)).astype(np.int32)
        with skytether.open(path.with_suffix(".part"), drives=drives, slice_rows=slice_rows) as fleet:
            fleet.ingest(pa.table(table), "paper.dense")
        path.with_suffix(".part").rename(path)
    return path


def trips_fleet(out: Path, rows: int, drives: int) -> Path:
    """A fleet with `paper.trips`."""
    import skytether

    path = out / "data" / f"trips_{rows}_{drives}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with skytether.open(path.with_suffix(".part"), drives=drives) as fleet:
            fleet.ingest(trips(rows, SEED), "paper.trips")
        path.with_suffix(".part").rename(path)
    return path
