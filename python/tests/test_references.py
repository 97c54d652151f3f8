"""What the project's texts refer to exists: paths in all of them, links and headings in documents."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Files that this looks at, by how their names end.
TEXTS = (".md", ".rs", ".py", ".pyi", ".toml", ".txt", ".sh", ".snap", "Makefile", ".ci/run")

#: Directories whose names begin a path. A word with a slash that begins with another name may be anything.
BELOW = ("benches", "crates", "docs", "examples", "fuzz", "python", "tools", r"\.ci", r"\.config")

PATH = re.compile(rf"(?<![\w/.$}}-])((?:{'|'.join(BELOW)})/[\w./-]*\w/?)")
LINK = re.compile(r"\]\(([^)\s]*)\)")


def tracked() -> list[str]:
    """All files of the project, by their paths below its root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def with_directories(files: list[str]) -> set[str]:
    """The files and all directories that they lie in."""
    return {"", *files, *(os.fspath(parent) for name in files for parent in Path(name).parents)}


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#{1,6} (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-") for heading in headings}


def dangling(name: str, text: str, known: set[str], read: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    """References of the file `name` to what does not exist, each with its line. `read` gives the text of another file."""
    for number, line in enumerate(text.splitlines(), 1):
        for path in PATH.findall(line):
            if path.rstrip("/") not in known:
                yield number, path
        for target in LINK.findall(line) if name.endswith(".md") else ():
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            if path not in known or (anchor and anchor not in anchors(text if path == name else read(path))):
                yield number, target


def test_references_name_what_exists() -> None:
    files = tracked()
    known = with_directories(files)
    looked_at = [name for name in files if name.endswith(TEXTS) and name != os.path.relpath(__file__, ROOT)]
    assert {"README.md", "Makefile", "crates/house/src/lib.rs", "requirements-dev.txt"} <= set(looked_at)

    def read(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    found = [f"{name}:{number}: {what}" for name in looked_at for number, what in dangling(name, read(name), known, read)]
    assert not found, "these do not exist:\n" + "\n".join(found)


def test_dangling_references_are_found() -> None:
    texts = {"docs/a.md": "# A `b`, c\n```\n# no heading\n```\n", "crates/x/src/lib.rs": "", "README.md": ""}
    known = with_directories(list(texts))
    assert {"docs", "crates/x"} <= known

    def found(name: str, text: str) -> list[tuple[int, str]]:
        return list(dangling(name, text, known, texts.__getitem__))

    assert found("README.md", "[a](docs/a.md#a-b-c) `crates/x/src/lib.rs` crates/x/ and\n[b](docs/b.md) https://x/docs/no target/docs/no") == [
        (2, "docs/b.md"),
        (2, "docs/b.md"),
    ]
    assert found("docs/a.md", "[up](../README.md) [a](a.md#no-heading)\n[own](#own) [gone](../GONE.md)\n# Own\n") == [(1, "a.md#no-heading"), (2, "../GONE.md")]
    assert found("crates/x/src/lib.rs", "//! See docs/a.md.\n//! See docs/parity.md, `crates/wire/src/lib.rs`.") == [(2, "docs/parity.md"), (2, "crates/wire/src/lib.rs")]
