"""The guide to volumes: its commands run, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import run_guide

from .servers import needs


def test_guide_to_volumes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("qemu-img", "qemu-io")
    serving, printed = run_guide("docs/block.md", tmp_path, monkeypatch)
    assert serving == 1 and "Images are identical" in "".join(printed) and "read 8388608/8388608 bytes" in "".join(printed), printed
    # The example in Python.
    lines = printed[-1].splitlines()
    assert lines[0].startswith("3b805e5ed0d65f1cdaa40914dedc918c here") and lines[1:] == [
        "[(14, b'7.5'), (20, b'3'), (24, b'2.5')]",
        "4",
        "[{'vendor': 'a', 'fares': 10.0}, {'vendor': 'b', 'fares': 3.0}] here",
    ], lines
