"""What the tests of the R package compare with, and data sets for them."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp


def made(cells=60, genes=40):
    rng = np.random.default_rng(1)
    x = (rng.poisson(2.0, (cells, genes)) * (rng.random((cells, genes)) < 0.4)).astype(np.float32)
    x[0] *= 50
    x[:, genes // 2] = 0
    x[:, 1] += 1
    n = np.arange(cells)
    obs = pd.DataFrame(
        {
            "type": pd.Categorical(np.array(["T", "B", "NK"])[n % 3], categories=["T", "B", "NK", "unused"]),
            "stage": pd.Categorical.from_codes(np.where(n % 7 == 0, -1, n % 2), ["spät", "früh"], ordered=True),
            "leiden": pd.Categorical(n % 4),
            "depth": np.where(n % 9 == 0, np.nan, rng.random(cells)),
            "single": rng.random(cells).astype(np.float32),
            "n": n.astype(np.int64),
            "big": n.astype(np.int64) * 10**12,
            "unsigned": n.astype(np.uint8),
            "ok": n % 2 == 0,
            "maybe": pd.array([None if i % 5 == 0 else i for i in range(cells)], dtype="Int64"),
            "perhaps": pd.array([None if i % 5 == 0 else i % 2 == 0 for i in range(cells)], dtype="boolean"),
            "note": ["note é %d" % i for i in range(cells)],
            "gap": pd.Categorical([None if i % 4 == 0 else "x" for i in range(cells)]),
        },
        index=["cell-%d" % i for i in range(cells)],
    )
    var = pd.DataFrame({"gene_ids": ["ENSG%04d" % i for i in range(genes)], "known": np.arange(genes) % 3 == 0}, index=["gene_%d" % i for i in range(genes)])
    out = ad.AnnData(sp.csr_matrix(x), obs=obs, var=var)
    out.layers["spliced"] = sp.csc_matrix(x * (rng.random(x.shape) < 0.5))
    out.layers["dense"] = np.log1p(x).astype(np.float64)
    out.obsm["X_umap"] = rng.normal(size=(cells, 2))
    out.obsm["X_pca"] = rng.normal(size=(cells, 3)).astype(np.float32)
    out.raw = ad.AnnData(sp.csr_matrix(np.hstack([x, x[:, :5]])), var=pd.DataFrame(index=["raw_%d" % i for i in range(genes + 5)]))
    return out


def written(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made().write_h5ad(path)


def as_text(frame, path):
    frame.to_csv(path, index=True, float_format="%.17g", na_rep="NA")


def dense_text(matrix, path):
    np.savetxt(path, (matrix.toarray() if hasattr(matrix, "toarray") else matrix).T, fmt="%.17g")


def with_huge_integers(value):
    x = np.array([[int(value), 1], [0, 5]], dtype=np.int64)
    return ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame({"id": np.array([2**60, 3])}, index=["a", "b"]), var=pd.DataFrame(index=["g", "h"]))


def with_names_twice():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ad.AnnData(np.ones((3, 2), np.float32), obs=pd.DataFrame({"n": [1, 2, 3]}, index=["a", "a", "b"]), var=pd.DataFrame(index=["g", "h"]))


def timed():
    out = pd.DataFrame(index=["a", "b"])
    out["naive"] = pd.to_datetime(["2024-03-01T12:30:00.25", None])
    out["zoned"] = pd.to_datetime(["2024-07-01T12:00", None]).tz_localize("Europe/Berlin")
    out["span"] = pd.to_timedelta(["1h", None])
    out["day"] = np.array([datetime.date(1969, 12, 31), None], object)
    out["far"] = np.array(["2500-01-01", "NaT"], "datetime64[s]")
    out["z"] = [1 + 2j, 0]
    out["zeros"] = pd.arrays.SparseArray([0.0, 1.5])
    out["none"] = np.array([None, None], object)
    return out


class Host:
    """A host over the fleet in a directory, as a process of its own."""

    def __init__(self, fleet):
        command = [Path(sys.prefix) / "bin" / "skytether", "host", "serve", "--fleet", fleet, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = re.search(r"grpc://[\d.]+:\d+", self.process.stdout.readline())[0]

    def end(self):
        self.process.kill()
        self.process.communicate()


class Recorded:
    """The receipts of the queries of a data set: the real fleet answers."""

    def __init__(self, fleet):
        self.fleet, self.results = fleet, []

    def __getattr__(self, name):
        return getattr(self.fleet, name)

    def sql(self, *args, **kwargs):
        self.results.append(self.fleet.sql(*args, **kwargs))
        return self.results[-1]

    def bytes_read(self):
        return sum(result.receipt.to_dict()["bytes_read"] for result in self.results)
