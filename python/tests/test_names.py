"""Names of tests have at most 60 characters ("Style" in CONTRIBUTING.md). The story of a test is in its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

#: The longest name, in characters, with its `test_`.
LONGEST = 60


def long_names(text: str) -> list[tuple[int, str]]:
    """The tests of a Python file whose names are too long, with their lines."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return sorted((node.lineno, node.name) for node in functions if node.name.startswith("test_") and len(node.name) > LONGEST)


def test_names_have_at_most_60_characters() -> None:
    files = sorted(Path(__file__).parent.glob("**/test_*.py"))
    assert Path(__file__) in files and len(files) > 20
    found = [f"{file.name}:{line}: {name}" for file in files for line, name in long_names(file.read_text(encoding="utf-8"))]
    assert not found, f"use at most {LONGEST} characters:\n" + "\n".join(found)


def test_long_names_are_found() -> None:
    long = "test_" + "a" * (LONGEST - 4)
    text = f"def {long[:-1]}(): pass\nclass A:\n    async def {long}(self): pass\ndef a{long}(): pass\n"
    assert long_names(text) == [(3, long)]
