"""The guide to Kinetic drives: its commands run, in order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from guides import run_guide

from .targets import contains_programs

OBJECTS = Path(__file__).resolve().parents[3] / "crates" / "ebpf" / "tests" / "objects"
MODULES = OBJECTS.parents[2] / "wasm" / "tests" / "modules"


@pytest.mark.skipif(not contains_programs(), reason="the guide has native programs, and this kernel refuses user name spaces")
def test_guide_to_kinetic_drives_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("words.o", "note.o"):
        shutil.copy(OBJECTS / name, tmp_path)
    shutil.copy(MODULES / "words.wasm", tmp_path)
    serving, printed = run_guide("docs/kinetic.md", tmp_path, monkeypatch)
    assert serving == 4
    assert "0 3\n3\n" in printed and "3\n" in printed, printed
    assert any("b'sample/1' put 0 PUT\nb'PUT'\n" in text for text in printed), printed
    assert "17.25" in printed[-3] and printed[-2] == "34.5\n{'full'} 1 slice\n", printed
    # One of the drives has the slice; the other one has no partition, or one without rows.
    assert printed[-1].count("0 {'fare': [22.0]}\n") == 1 and "22.0" not in printed[-1].replace("[22.0]", "", 1), printed
