"""What single-cell tools do with one matrix of 50,000 cells, in one run with ours: part `cells` of run.py.

Principal components against scanpy's in memory (steps.py), and the ingest against other stores (ingests.py).
"""

from __future__ import annotations

import statistics

import data
import ingests
from million import Line
from processes import fleet_of, med, run


def compare(cells: int, genes: int, line: Line) -> None:
    """Components, then ingests."""
    source = data.h5ad(cells, genes)
    print(f"\n{cells:,} cells x {genes:,} genes: principal components and ingest")
    fleet, _ = fleet_of(source)
    # In turn, as the machine is not the same from one minute to the next.
    pairs = [(run("steps.py", "ours_pca", fleet, "bench/matrix", 2), run("steps.py", "scanpy_pca", source, fleet, "bench/matrix", 2)) for _ in range(3)]
    ours, theirs = (statistics.median(med(pair[i]) for pair in pairs) for i in (0, 1))
    ratio = statistics.median(med(b) / med(a) for a, b in pairs)
    line("PCA, 50 components of 2,000 genes", f"{ours:.2f} s", f"scanpy in memory {theirs:.2f} s: {ratio:.2f}x", ">= 1x", ratio >= 1)
    line("  peak memory of the process", f"{max(a['peak_mb'] for a, _ in pairs):.0f} MB", f"scanpy {max(b['peak_mb'] for _, b in pairs):.0f} MB")
    line("  process start to components", f"{statistics.median(a['ready'] for a, _ in pairs):.2f} s", f"scanpy {statistics.median(b['ready'] for _, b in pairs):.2f} s")
    ingests.compare(source, line)
