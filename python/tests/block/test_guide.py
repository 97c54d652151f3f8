"""The guide to volumes: its commands run, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import run_guide

from .servers import needs


def test_guide_to_volumes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("qemu-img", "qemu-io")
    serving, printed = run_guide("docs/block.md", tmp_path, monkeypatch)
    assert serving == 1 and "Images are identical" in "".join(printed) and "read 8388608/8388608 bytes" in printed[-1], printed
