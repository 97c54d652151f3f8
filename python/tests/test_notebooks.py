"""The notebooks of `examples/` run from top to bottom, and give the tables that they are stored with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest
from conftest import PROJECT

EXAMPLES = PROJECT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
#: How many tables and pictures each shows at least.
LEAST = {"markers": (5, 8), "across": (6, 2)}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A copy of `examples` without what was made there. What is left in it, git ignores."""
    shutil.copytree(EXAMPLES / "data", tmp_path / "data")
    # The inline backend of the notebook, whatever the other tests say; and no settings of this user.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setenv("IPYTHONDIR", os.fspath(tmp_path / "data" / "ipython"))
    yield tmp_path
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert [left.name for left in tmp_path.iterdir() if left.name != "data" and f"/examples/{left.name}" not in ignored] == []


def results(cell) -> list[str]:
    """The texts of what a cell gives, without the figures and what is printed."""
    return [o["data"]["text/plain"] for o in cell.get("outputs", []) if o["output_type"] == "execute_result"]


def pictures(cell) -> int:
    return sum("image/png" in o.get("data", {}) for o in cell.get("outputs", []))


def assert_alike(found: str, stored: str) -> None:
    """The same words, and numbers that may differ in their last digits."""
    pairs = list(zip(found.split(), stored.split(), strict=True))
    for a, b in pairs:
        assert a == b or float(a) == pytest.approx(float(b), rel=1e-4), (found, stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_is_stored_with(path: Path, place: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    stored = [(results(cell), pictures(cell)) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": os.fspath(place)}}).execute()
    for cell, (texts, drawn) in zip(notebook.cells, stored, strict=True):
        assert pictures(cell) == drawn, cell.source
        for a, b in zip(results(cell), texts, strict=True):
            assert_alike(a, b)
    tables, drawn = LEAST[path.stem]
    assert sum(len(texts) for texts, _ in stored) >= tables and sum(pictures for _, pictures in stored) >= drawn


def test_stored_notebooks_show_no_machine_and_no_error() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                assert output["output_type"] != "error" and output.get("name") != "stderr", (path, output)
        text = path.read_text(encoding="utf-8")
        assert not [word for word in ("/tmp/", "/home/", "/root/", "/work/", "Users\\\\") if word in text], path
