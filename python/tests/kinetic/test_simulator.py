"""That the tests of this directory are right: the Java simulator passes those that are marked for it. And that a fleet
on drives that are not ours works: on simulators (`test_strangers.py`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .alone import command
from .jars import need_java

HERE = Path(__file__).resolve().parent
SOAK = bool(os.environ.get("SKYTETHER_SOAK"))

#: In `make test`: one of each area. The simulator takes 100 s for all.
FEW = "greets or metadata or neighbours or applied or scopes or fenced or replayed or simulators"


@pytest.mark.timeout(600)
def test_simulator_passes_the_tests_that_are_marked_for_it(tmp_path: Path) -> None:
    """In a network namespace, because the simulator sends multicast messages."""
    need_java()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'tests'}", HERE / "test_wire.py"]
    words += [HERE / "test_strangers.py", *([HERE / "test_java.py"] if SOAK else ["-k", FEW])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"SKYTETHER_KINETIC": "simulator"}
    done = subprocess.run(command(*words), env=environment, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    told = done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= (42 if SOAK else 8) and "skipped" not in done.stdout, told
