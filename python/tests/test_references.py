"""What the project's texts refer to exists: paths in all of them, links, headings and names of tests in documents."""

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


def functions(sources: dict[str, str]) -> set[str]:
    """The functions of Rust files, alone and as `module::function`.

    Modules called `tests` are left out, as in `unknown_tests`.
    """
    modules = {name: Path(name).parent.name if name.endswith(("/mod.rs", "/tests.rs")) else Path(name).stem for name in sources}
    pairs = {(modules[name], function) for name, text in sources.items() for function in re.findall(r"\bfn (\w+)", text)}
    return {function for _, function in pairs} | {f"{module}::{function}" for module, function in pairs}


def unknown_tests(text: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """Names of tests in a document that are not `known`: in backticks, of five words or behind the name of a module."""
    for number, line in enumerate(text.splitlines(), 1):
        for path in re.findall(r"`((?:[a-z]\w*::)*[a-z]+(?:_[a-z0-9]+){2,})`", line):
            name = "::".join([part for part in path.split("::") if part != "tests"][-2:])
            if name not in known and ("::" in name or name.count("_") >= 4):
                yield number, path


def dangling(name: str, text: str, known: set[str], read: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    """References of the file `name` to what does not exist, with their lines. `read` gives the text of another file."""
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


def test_references_name_existing_files() -> None:
    files = tracked()
    known = with_directories(files)
    looked_at = [name for name in files if name.endswith(TEXTS) and name != os.path.relpath(__file__, ROOT)]
    assert {"README.md", "Makefile", "crates/house/src/lib.rs", "requirements-dev.txt"} <= set(looked_at)

    def read(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    found = [f"{name}:{number}: {what}" for name in looked_at for number, what in dangling(name, read(name), known, read)]
    assert not found, "these do not exist:\n" + "\n".join(found)


def test_documents_name_tests_that_exist() -> None:
    files = tracked()
    known = functions({name: (ROOT / name).read_text(encoding="utf-8") for name in files if name.endswith(".rs")})
    documents = {name: (ROOT / name).read_text(encoding="utf-8") for name in files if name.endswith(".md")}
    assert "::readers_see_" in documents["ARCHITECTURE.md"]
    found = [f"{name}:{number}: {what}" for name, text in documents.items() for number, what in unknown_tests(text, known)]
    assert not found, "these tests do not exist:\n" + "\n".join(found)


def test_unknown_tests_are_found() -> None:
    known = functions({"crates/x/tests/a.rs": "async fn reader_meets_writer_and_waits() {}", "crates/x/src/b/mod.rs": "fn it_is_so() {}"})
    text = "`a::reader_meets_writer_and_waits` `x::b::tests::it_is_so`, `b::reader_meets_writer_and_waits`\n`a::gone_for_ever` `cut::walk`"
    assert list(unknown_tests(text, known)) == [(1, "b::reader_meets_writer_and_waits"), (2, "a::gone_for_ever")]
    assert list(unknown_tests("`reader_meets_writer_and_waits` `tls_root_certs`\n`reader_meets_nothing_at_all`", known)) == [(2, "reader_meets_nothing_at_all")]


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
