"""A million cells in one fleet of four drives, against limits of time and memory: part `million` of run.py.

Each measurement is a process of its own (one.py, steps.py). Host and drives are in this process, so its peak memory is
that of all. The smaller matrix, whose ingest gives the rate to compare with, is ingested in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import data
from processes import Failed, fleet_of, med, run

#: Cells of the smaller matrix, and of the large one.
SMALL, LARGE = 50_000, 1_000_000
#: MB that ingest, tests and components may take at most.
MOST_MB = 1024
#: The share of the smaller matrix's rate that counts as the same: runs differ by so much.
SAME = 0.9

Line = Callable[..., None]


def nonzeros(source: Path) -> int:
    """How many values of a file's X are not zero."""
    import h5py

    with h5py.File(source, "r") as file:
        return int(file["X/data"].shape[0])


def tried(line: Line, what: str, wanted: str, script: str, method: str, *args: object) -> dict | None:
    """A measurement; one that fails is a line of the report that misses what is wanted, and others follow."""
    try:
        return run(script, method, *args)
    except Failed as e:
        print(e, flush=True)
        line(what, "failed", "", wanted, False)
        return None


def memory(line: Line, measured: dict, most: int | None = MOST_MB) -> None:
    """The line about a process's peak memory."""
    peak = measured["peak_mb"]
    line("  peak memory of the process", f"{peak:.0f} MB", "host and four drives", "" if most is None else f"<= {most} MB", None if most is None else peak <= most)


def compare(cells: int, genes: int, small: int, line: Line) -> None:
    """Every figure of `cells` cells, and the ingest of `small` to compare with."""
    source, less = data.h5ad(cells, genes), data.h5ad(small, genes)
    values = nonzeros(source)
    print(f"\n{cells:,} cells x {genes:,} genes, {values / 1e6:,.0f} M nonzeros, {data.GROUPS} groups, four drives")
    _, other = fleet_of(less)
    fleet, took = fleet_of(source)
    rate, beside = values / took["seconds"][0], nonzeros(less) / other["seconds"][0]
    line("ingest from gzip h5ad", f"{took['seconds'][0]:.1f} s", f"{rate / 1e6:.1f} M nonzeros/s")
    line("  rate", f"{rate / beside:.2f}x", f"{small:,} cells: {beside / 1e6:.1f} M nonzeros/s", f">= {SAME}x", rate / beside >= SAME)
    line("  peak memory of the process", f"{took['peak_mb']:.0f} MB", f"{small:,} cells: {other['peak_mb']:.0f} MB", f"<= {MOST_MB} MB", took["peak_mb"] <= MOST_MB)
    line("  stored", f"{took['stored_bytes'] / 1e6:.0f} MB", f"gzip h5ad {source.stat().st_size / 1e6:.0f} MB")
    queries(cells, fleet, line)


def queries(cells: int, fleet: Path, line: Line) -> None:
    """The figures of a fleet that holds the matrix."""
    at = (fleet, "bench/matrix")
    what = f"t-test of all {data.GROUPS} groups, repeated calls"
    if test := tried(line, what, "<= 4 s", "one.py", "skytether", *at, 5):
        line(what, f"{med(test):.2f} s", f"first {test['seconds'][0]:.2f} s; read {test['bytes_read'] / 1e6:.0f} MB", "<= 4 s", med(test) <= 4)
        line("  process start to data frame", f"{test['ready']:.2f} s", f"moved {test['bytes_moved'] / 1e6:.1f} MB")
        memory(line, test)
    what = "another contrast of the same groups, from kept results"
    if contrast := tried(line, what, "<= 50 ms", "one.py", "cached", *at, 7):
        line(what, f"{med(contrast) * 1000:.0f} ms", f"read {contrast['bytes_read'] / 1e6:.1f} MB on the drives", "<= 50 ms", med(contrast) <= 0.05)
        memory(line, contrast)
    # Through a lazy AnnData, where the gene alone is read; and as an AnnData, with all that is known of the cells.
    what = "one gene of all cells, as values: lazy.obs_vector(gene)"
    if gene := tried(line, what, "<= 30 ms", "one.py", "gene", *at, 15):
        line(what, f"{med(gene) * 1000:.1f} ms", f"first {gene['seconds'][0] * 1000:.0f} ms", "<= 30 ms", med(gene) <= 0.03)
        memory(line, gene, None)
    what = "  as an AnnData: ds[:, gene]"
    if gene := tried(line, what, "", "one.py", "gene_anndata", *at, 7):
        line(what, f"{med(gene) * 1000:.0f} ms", f"first {gene['seconds'][0] * 1000:.0f} ms; peak {gene['peak_mb']:.0f} MB")
    for how in ("random", "first"):
        what = f"1,000 {'random' if how == 'random' else 'neighbouring'} cells as an AnnData: ds[cells]"
        if some := tried(line, what, "<= 1 s", "one.py", "some_cells", *at, 3, how, min(1000, cells)):
            line(what, f"{med(some):.2f} s", f"first {some['seconds'][0]:.2f} s", "<= 1 s", med(some) <= 1)
            memory(line, some, None)
    what = "PCA, 50 components of 2,000 genes"
    if parts := tried(line, what, "", "steps.py", "ours_pca", *at, 1):
        line(what, f"{med(parts):.1f} s", f"moved {parts['bytes_moved'] / 1e6:.0f} MB")
        memory(line, parts)
