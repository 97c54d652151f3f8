"""Measurements in processes of their own, for the parts of `make bench`: each prints a JSON line (one.py says what)."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import data

HERE = Path(__file__).resolve().parent
#: Seconds that one measurement may take.
LONGEST = 3 * 3600


class Failed(Exception):
    """A measurement that ended without a result; the text has the end of what it said."""


def run(script: str, method: str, *args: object, python: str | Path = sys.executable) -> dict:
    """Runs one measurement of a script of this directory; its JSON."""
    environment = {**os.environ, "BENCH_START": str(time.time())}
    command = [str(python), str(HERE / script), method, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=environment)
    if done.returncode != 0:
        raise Failed(f"{method} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def one(method: str, *args: object) -> dict:
    """Runs one measurement of one.py; its JSON."""
    try:
        return run("one.py", method, *args)
    except Failed as e:
        raise SystemExit(str(e)) from None


def med(measured: dict) -> float:
    """The median of the times of one measurement, in seconds."""
    return statistics.median(measured["seconds"])


def fleet_of(source: Path) -> tuple[Path, dict]:
    """A new fleet of four drives that holds `source`, with the measurement of its ingest."""
    fleet = data.OUT / f"fleet_{source.stem}"
    shutil.rmtree(fleet, ignore_errors=True)
    return fleet, one("ingest", fleet, "bench/matrix", source)
