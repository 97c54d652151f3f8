"""Ingest of one h5ad into ours, SLAF and TileDB-SOMA: time, memory, and the size of the result.

The others are installed into an environment of their own in bench-out/, as their versions of packages differ from ours.
One that can't be installed or fails is said, and the others go on. `python ingests.py METHOD SOURCE TARGET`, with that
environment's Python, is one measurement (one.py says what it prints). It imports nothing of ours.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from one import report, timed

#: What is compared, and the packages that were tried. SLAF takes any boto3 and any aiobotocore. Few versions of these
#: fit together, and pip tries hundreds, unless it is told which one to choose first.
STORES = {"slaf": ("SLAF", ["aiobotocore>=3", "slafdb>=0.5,<0.6"]), "tiledbsoma": ("TileDB-SOMA", ["tiledbsoma>=2.3,<3"])}
#: How many times ours is to be faster.
FASTER = 2
ROUNDS = 3


def size(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def installed(store: str) -> Path | None:
    """The Python of an environment that has a store, made where it is absent; None, with a line why, if it can't be."""
    import data

    home = data.OUT / "environments" / store
    python, stamp = home / "bin" / "python", home / ".installed"
    if stamp.exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    label, packages = STORES[store]
    print(f"installing {packages[-1]} (once) ...", file=sys.stderr)
    for command in ([sys.executable, "-m", "venv", str(home)], [str(python), "-m", "pip", "install", "-q", *packages]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"  {label} can't be installed, and is left out: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
            return None
    stamp.touch()
    return python


def compare(source: Path, line: Callable[..., None]) -> None:
    """All stores in turn, several rounds."""
    import data
    from processes import Failed, fleet_of, run

    pythons = {store: python for store in STORES if (python := installed(store)) is not None}
    ours: list[dict] = []
    others: dict[str, list[dict]] = {store: [] for store in pythons}
    with data.kept("ingests") as place:
        for turn in range(ROUNDS):
            fleet, took = fleet_of(source)
            # Of the last round's fleet only the size is needed; the next round makes it again.
            ours.append({**took, "bytes": size(fleet)})
            for store, python in list(pythons.items()):
                target = place / f"{store}_{turn}"
                try:
                    others[store].append({**run("ingests.py", store, source, target, python=python), "bytes": size(target)})
                except Failed as e:
                    print(e)
                    line(f"ingest by {STORES[store][0]}", "failed")
                    del pythons[store], others[store]
    took = statistics.median(m["seconds"][0] for m in ours)
    line("ingest from gzip h5ad", f"{took:.2f} s", f"{ours[0]['bytes'] / 1e6:.0f} MB; peak {max(m['peak_mb'] for m in ours):.0f} MB")
    for store, measured in others.items():
        ratio = statistics.median(b["seconds"][0] / a["seconds"][0] for a, b in zip(ours, measured))
        theirs = statistics.median(m["seconds"][0] for m in measured)
        peak = max(m["peak_mb"] for m in measured)
        line(f"  {STORES[store][0]}", f"{theirs:.1f} s", f"{ratio:.1f}x slower; peak {peak:.0f} MB", f">= {FASTER}x", ratio >= FASTER)
        smaller = ours[-1]["bytes"] / measured[-1]["bytes"]
        line("    size of the result", f"{measured[-1]['bytes'] / 1e6:.0f} MB", f"ours {smaller:.2f} of it", "< 1", smaller < 1)


def slaf(source: str, target: str) -> None:
    """SLAF's converter, as its documents call it."""
    from slaf.data import SLAFConverter

    seconds, ready, _ = timed(lambda: SLAFConverter().convert(source, target), 1)
    report(seconds, ready)


def tiledbsoma(source: str, target: str) -> None:
    """TileDB-SOMA's reader of h5ad files."""
    import tiledbsoma.io

    seconds, ready, _ = timed(lambda: tiledbsoma.io.from_h5ad(target, source, measurement_name="RNA"), 1)
    report(seconds, ready)


METHODS = {f.__name__: f for f in (slaf, tiledbsoma)}

if __name__ == "__main__":
    METHODS[sys.argv[1]](*sys.argv[2:])
