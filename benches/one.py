"""One measurement in a process of its own: `python benches/one.py METHOD ...` prints a JSON line. Run by run.py.

`seconds` is the list of times of the job itself (the first is the first in this process), `ready` the seconds from
process start to the first result, `peak_mb` the process's peak resident memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path


def timed(job, times: int) -> tuple[list[float], float, object]:
    """Seconds of each of `times` calls, seconds from process start to the first result, the last result."""
    seconds, ready, result = [], 0.0, None
    for n in range(times):
        begin = time.perf_counter()
        result = job()
        seconds.append(time.perf_counter() - begin)
        if n == 0:
            ready = time.time() - float(os.environ["BENCH_START"])
    return seconds, ready, result


def peak_mb() -> float:
    """The peak resident memory of this process. Linux gives a child the `ru_maxrss` of the process that started it,
    where that is larger, so only other systems are asked for it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def report(seconds, ready, **more) -> None:
    peak = peak_mb()
    print(json.dumps({"seconds": seconds, "ready": ready, "peak_mb": peak, **more}))


def logarithms(source: str):
    """The matrix of a file in memory, normalised by scanpy: log1p of counts per 10,000."""
    import scanpy as sc

    adata = sc.read_h5ad(source)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


def skytether(fleet: str, name: str, times: str) -> None:
    """One group against the rest, all groups, from the fleet on disk to a data frame; nothing is answered from results
    that drives kept."""
    import msgexpress

    with msgexpress.open(fleet, kept_per_drive=0) as db:
        ds = db[name]

        def job():
            res = ds.rank_genes_groups("cell_type", method="t-test", transform="log1p_cp10k")
            return res, res.to_df()

        seconds, ready, (res, frame) = timed(job, int(times))
        receipt = res.receipt.to_dict()
        report(seconds, ready, rows=len(frame), bytes_moved=receipt["bytes_moved"], bytes_read=receipt["bytes_read"], bytes_stored=receipt["bytes_stored"])


def cached(fleet: str, name: str, times: str) -> None:
    """Another contrast of the same groups, from what the drives kept of the first one, to a data frame."""
    import msgexpress

    with msgexpress.open(fleet) as db:
        ds = db[name]

        def job(reference: str = "type 00"):
            res = ds.rank_genes_groups("cell_type", groups=["type 01"], reference=reference, transform="log1p_cp10k")
            return res, res.to_df()

        until = time.monotonic() + 60
        while not all(drive["cached"] for drive in job()[0].receipt.to_dict()["drives"]) and time.monotonic() < until:
            time.sleep(0.1)
        seconds, ready, (res, _) = timed(lambda: job("type 02"), int(times))
        assert all(drive["cached"] for drive in res.receipt.to_dict()["drives"])
        report(seconds, ready, bytes_read=res.receipt.to_dict()["bytes_read"])


def ingest(fleet: str, name: str, source: str) -> None:
    """gzip h5ad to a fleet of four drives."""
    import msgexpress

    with msgexpress.open(fleet, drives=4) as db:
        seconds, ready, _ = timed(lambda: db.ingest(source, name, replace=True), 1)
    stored = sum(p.stat().st_size for p in Path(fleet).rglob("*") if p.is_file())
    report(seconds, ready, stored_bytes=stored)


def gene(fleet: str, name: str, times: str) -> None:
    """The values of one gene in all cells, another gene at each call: of a lazy AnnData."""
    import msgexpress

    with msgexpress.open(fleet) as db:
        lazy = db[name].to_anndata(lazy=True)
        names = iter(_some_genes(lazy.var_names, int(times)))
        seconds, ready, values = timed(lambda: lazy.obs_vector(next(names)), int(times))
        report(seconds, ready, values=len(values))


def gene_anndata(fleet: str, name: str, times: str) -> None:
    """One gene of all cells as an AnnData, with all that is known of the cells; another gene at each call."""
    import msgexpress

    with msgexpress.open(fleet) as db:
        ds = db[name]
        names = iter(_some_genes(ds.var_names, int(times)))
        seconds, ready, found = timed(lambda: ds[:, next(names)], int(times))
        report(seconds, ready, values=found.n_obs)


def _some_genes(names, times: int):
    """Names of genes all over the matrix, so that all drives have their turn."""
    return names[[(i * 7919 + 13) % len(names) for i in range(times)]]


def some_cells(fleet: str, name: str, times: str, how: str, count: str) -> None:
    """Some cells with all genes as an AnnData, others at each call: ``random`` ones, or ``first``, neighbours."""
    import msgexpress
    import numpy as np

    with msgexpress.open(fleet) as db:
        ds = db[name]
        rng, n = np.random.default_rng(1), int(count)

        def job():
            at = np.sort(rng.choice(ds.n_obs, n, replace=False)) if how == "random" else np.arange(n) + rng.integers(ds.n_obs - n + 1)
            return ds[at]

        seconds, ready, found = timed(job, int(times))
        report(seconds, ready, cells=found.n_obs, values=int(found.X.nnz))


def duckdb(coo: str, times: str) -> None:
    """Read, normalise, sums per gene and group; no test, no p-values."""
    import duckdb as db

    con = db.connect()
    con.execute("SET threads = 2")
    cells = coo.replace(".coo.parquet", ".cells.parquet")
    query = f"""
        SELECT gene, grp, count(*) AS nnz, sum(y) AS s, sum(y * y) AS q
        FROM (SELECT x.gene, c.grp, ln(1 + x.value / (c.total / 1e4)) AS y FROM '{coo}' x JOIN '{cells}' c ON x.cell = c.cell)
        GROUP BY gene, grp
    """
    seconds, ready, frame = timed(lambda: con.execute(query).fetchnumpy(), int(times))
    report(seconds, ready, rows=len(frame["gene"]))


def scanpy(source: str, times: str) -> None:
    """scanpy's t-test in memory: the test alone (reading and normalising are in `ready`)."""
    import scanpy as sc

    adata = logarithms(source)
    seconds, ready, _ = timed(lambda: sc.tl.rank_genes_groups(adata, "cell_type", method="t-test"), int(times))
    report(seconds, ready)


def scanpy_contrast(source: str, times: str) -> None:
    """scanpy's t-test of the two groups that `cached` compares, in memory: the test alone."""
    import scanpy as sc

    adata = logarithms(source)
    seconds, ready, _ = timed(lambda: sc.tl.rank_genes_groups(adata, "cell_type", groups=["type 01"], reference="type 02", method="t-test"), int(times))
    report(seconds, ready)


def aggregate(source: str, times: str) -> None:
    """scanpy.get.aggregate and Welch's test, what scanpy 1.12.3 does: the test alone, in memory."""
    import numpy as np
    import scanpy as sc
    from scipy import stats

    adata = logarithms(source)
    n = adata.obs["cell_type"].value_counts(sort=False).to_numpy()[:, None].astype(float)

    def job():
        agg = sc.get.aggregate(adata, by="cell_type", func=["mean", "var"])
        mean, var = agg.layers["mean"], agg.layers["var"]
        total = n.sum()
        rest = total - n
        s, q = mean * n, var * (n - 1) + mean**2 * n
        m2 = (s.sum(0) - s) / rest
        v2 = (q.sum(0) - q - rest * m2**2) / (rest - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return stats.ttest_ind_from_stats(mean, np.sqrt(var), n, m2, np.sqrt(v2), rest, equal_var=False)

    seconds, ready, _ = timed(job, int(times))
    report(seconds, ready)


def wilcoxon(fleet: str, name: str, times: str) -> None:
    """Rank sums of each group against the rest, from the fleet on disk to a data frame; nothing is kept."""
    import msgexpress

    with msgexpress.open(fleet, kept_per_drive=0) as db:
        ds = db[name]
        seconds, ready, frame = timed(lambda: ds.rank_genes_groups("cell_type", method="wilcoxon", transform="log1p_cp10k").to_df(), int(times))
        report(seconds, ready, rows=len(frame))


def scanpy_wilcoxon(source: str, times: str) -> None:
    """scanpy's rank sum test in memory: the test alone."""
    import scanpy as sc

    adata = logarithms(source)
    seconds, ready, _ = timed(lambda: sc.tl.rank_genes_groups(adata, "cell_type", method="wilcoxon"), int(times))
    report(seconds, ready)


def illico(source: str, times: str) -> None:
    """illico's rank sum test in memory, on two threads: the test alone."""
    from illico import asymptotic_wilcoxon

    adata = logarithms(source)
    options = {"is_log1p": True, "group_keys": "cell_type", "n_threads": 2, "use_continuity": False, "tie_correct": False}
    seconds, ready, frame = timed(lambda: asymptotic_wilcoxon(adata, **options), int(times))
    report(seconds, ready, rows=len(frame))


METHODS = {f.__name__: f for f in (skytether, cached, ingest, gene, gene_anndata, some_cells, duckdb, scanpy, scanpy_contrast, aggregate, wilcoxon, scanpy_wilcoxon, illico)}

if __name__ == "__main__":
    METHODS[sys.argv[1]](*sys.argv[2:])
