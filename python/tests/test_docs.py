"""The documents' examples run, in order, as a reader would type them, and print what the documents say they print."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from conftest import command

import msgexpress

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str) -> list[tuple[str, str]]:
    """The language (empty where none is said) and the text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)


def free_port() -> int:
    """A port of loopback that no process has at the moment."""
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return line.getsockname()[1]


def test_calls_of_r_that_the_documents_name_are_exported() -> None:
    """Each function in the tables for R is one of the package; `ds$python` leads to Python's."""
    exported = set(re.findall(r"^export\((\w+)\)", (ROOT / "r/msgexpress/NAMESPACE").read_text(), re.M))
    text = (ROOT / "docs/from-scanpy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (.*) \|$", text[text.index("### In R") : text.index("## On a fleet")], re.M)
    called = {name for row in rows for name in re.findall(r"(?<![\w$])([a-z_]\w*)\(", row)} - {"list"}
    assert len(rows) > 15 and {"rank_genes_groups", "ttest", "pseudobulk", "as_seurat", "ingest"} <= called <= exported, called - exported
    python = {name for row in rows for name in re.findall(r"\$([a-z]+)\(", row)}
    assert python == {"neighbors", "umap", "leiden"} and all(hasattr(msgexpress.Dataset, name) for name in python)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the examples' data, as the project's root has them, and with our commands on the path. What is
    left in it, git ignores."""
    (tmp_path / "examples" / "data").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "data" / "pbmc3k.h5ad", tmp_path / "examples" / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PATH", os.fspath(Path(sys.executable).parent), prepend=os.pathsep)
    yield tmp_path
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert [left.name for left in tmp_path.iterdir() if left.name != "examples" and f"/{left.name}" not in ignored] == []


def in_the_shell(text: str) -> str:
    done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done.stdout


# Some sixty commands, each a process with its imports: minutes on a busy machine.
@pytest.mark.timeout(600)
def test_examples_for_biologists_run_after_the_readme(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for document in ("README.md", "docs/biologists.md"):
        run_the_examples(document, place, capsys)


@pytest.mark.timeout(600)
def test_examples_for_users_of_scanpy_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_the_examples("docs/from-scanpy.md", place, capsys)


def run_the_examples(document: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    ran = {"python": 0, "sh": 0}
    follows = None
    for number, (language, text) in enumerate(blocks(document), 1):
        if language == "python":
            capsys.readouterr()
            exec(compile(text, f"{document}, example {number}", "exec"), names)  # noqa: S102
            follows = capsys.readouterr().out
        elif language == "sh":
            follows = in_the_shell(text)
        elif language == "r":  # the R package's tests run these
            follows = None
        elif follows is not None:
            assert_begins(follows, text)
            follows = None
        ran.update({language: ran.get(language, 0) + 1})
    assert ran["python"] > 1 and (ran["sh"] > 0 or document == "README.md")
    db = names.get("db")
    if db is not None:
        db.close()  # type: ignore[attr-defined]
    if document == "docs/biologists.md":
        assert (place / "b.png").stat().st_size > 5000 and (place / "again.h5ad").exists()


def test_the_examples_for_arrow_tools_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints what stands below it, to the letter."""
    names: dict[str, object] = {}
    printed, compared = None, 0
    for number, (language, text) in enumerate(blocks("docs/arrow.md"), 1):
        if language == "python":
            capsys.readouterr()
            exec(compile(text, f"docs/arrow.md, example {number}", "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
        else:
            assert printed == text
            compared += 1
    assert compared == 7


def test_the_examples_for_physicists_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints what stands below it, to the letter."""
    names: dict[str, object] = {}
    printed, compared = "", 0
    for number, (language, text) in enumerate(blocks("docs/physicists.md"), 1):
        if language == "python":
            capsys.readouterr()
            exec(compile(text, f"docs/physicists.md, example {number}", "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
        elif language == "sh":
            printed = in_the_shell(text)
        else:
            assert printed.endswith(text), (number, printed)
            compared += 1
    assert compared == 8
    duckdb.unregister_filesystem("skytether")


def assert_begins(printed: str, shown: str) -> None:
    """That what was printed begins as the document shows; numbers may differ in their seventh digit."""
    lines = shown.rstrip("\n").splitlines()
    for found, wanted in zip(printed.splitlines(), lines, strict=False):
        for a, b in zip(found.split(), wanted.split(), strict=True):
            assert a == b or float(a) == pytest.approx(float(b), rel=1e-6), (found, wanted)
    assert len(printed.splitlines()) >= len(lines) > 1


def test_readme_shows_the_output_of_the_demo(place: Path) -> None:
    """The table of marker genes, and the receipt without times. An ellipsis in the document means omitted lines."""
    (_, shown), *more = [(language, text) for language, text in blocks("README.md") if text.startswith("cell type ")]
    assert not more
    done = command("demo")
    assert done.returncode == 0, done.stderr

    def timeless(text: str) -> list[str]:
        # Figures within metadata, such as times, have as many digits as they have.
        lines = [re.sub(r"metadata [\d.]+ KiB", "metadata SIZE", line) for line in text.splitlines()]
        return [re.sub(r"\b[\d.]+ (us|µs|ms|s)\b", "TIME", line) for line in lines]

    printed = timeless(done.stdout)
    at = next(i for i, line in enumerate(printed) if line.startswith("cell type "))
    skipping, compared = False, 0
    for line in timeless(shown):
        if line == "...":
            skipping = True
            continue
        at = printed.index(line, at) if skipping and line in printed[at:] else at
        assert printed[at] == line, (line, printed[at:])
        at, skipping, compared = at + 1, False, compared + 1
    assert compared >= 9
    assert len(pd.read_csv(place / "demo-out" / "markers.csv")) > 0


def scrubbed(text: str) -> list[str]:
    """Lines of a tree without times, sizes and the shares of single drives."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"[\d.]+ (µs|ms|s)\b", "TIME", re.sub(r"[\d.]+ (B|[KM]iB)\b", "SIZE", line))
        line = re.sub(r" *,? *TIME to TIME per drive", "", line)
        if "drive-" in line:
            line = re.sub(r"\d+", "#", re.sub(", SIZE of memory|; # slices? .*", "", line)).replace("slices", "slice")
        lines.append(re.sub(r"[\d.]+%", "PART", " ".join(line.split())))
    return lines


def test_the_examples_of_explain_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tree is printed as the document shows it, but for figures that no two runs share."""
    (_, first), (_, shown), (_, second), (_, printed) = blocks("docs/explain.md")
    names: dict[str, object] = {}
    exec(compile(first, "docs/explain.md, example 1", "exec"), names)  # noqa: S102
    text = capsys.readouterr().out
    ran = text[text.index("what ran where") :]
    # On which threads the host merges depends on the machine; what drives do, and what goes down to them, does not, but
    # for which drive has which part.
    tree, due = (
        sorted(line.lstrip("│├└─ ") for line in scrubbed(part[part.index("└─ Drives: taxi.trips") : part.index("not shown")])) for part in (ran, shown)
    )
    assert tree == due and len(due) > 12
    for said in ("it merges what the drives have aggregated", "it follows the merge of the drives' states"):
        assert said in ran and said in shown
    assert "on the host because" not in ran and "pruned" in shown and "Broadcast: __shipped_0" in shown
    exec(compile(second, "docs/explain.md, example 2", "exec"), names)  # noqa: S102
    assert capsys.readouterr().out == printed
    names["fleet"].close()  # type: ignore[attr-defined]


def test_the_examples_for_storage_run(place: Path) -> None:
    """Serving commands run in the background, also those for the SQL tools that follow them. The ports are this test's
    own."""
    ports: dict[str, int] = {}

    def ours(text: str) -> str:
        with contextlib.ExitStack() as taken:  # all at once, so that none is given twice
            for port in re.findall(r":(\d{4})\b", text):
                if port not in ports:
                    line = taken.enter_context(socket.socket())
                    line.bind(("127.0.0.1", 0))
                    ports[port] = line.getsockname()[1]
        return re.sub(r":(\d{4})\b", lambda m: f":{ports[m[1]]}", text)

    examples = [(language, text) for document in ("docs/storage.md", "docs/sql.md") for language, text in blocks(document) if language in ("sh", "python")]
    assert [language for language, _ in examples] == ["sh"] * 10 + ["python"] * 3
    serving: list[subprocess.Popen[str]] = []
    printed: list[str] = []
    try:
        for language, text in examples:
            if language == "python":
                printed.append(in_the_shell(f"{sys.executable} - <<'END'\n{ours(text)}END\n"))
                continue
            for line in ours(text).splitlines():
                if " serve " in line:
                    process = subprocess.Popen(["bash", "-c", f"exec {line}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    serving.append(process)
                    assert "127.0.0.1" in process.stdout.readline(), process.stderr.read()
                else:
                    printed.append(in_the_shell(line))
    finally:
        for process in serving:
            process.kill()
            process.communicate()
    assert len(serving) == 8
    # By the drives of a fleet, by those that are left of one that lost two, and of one that lost one, and then a whole
    # node and one of each other; and by those of an aggregator.
    assert sum("10.25" in text and "31" in text for text in printed) == 5, printed
    status = next(text for text in printed if "d0" in text)
    assert "d1" in status
    assert any("10.25" in text and "31" in text for text in printed), printed
    # Fares above 10, by the number of passengers.
    assert "12.5" in printed[-3] and "31" in printed[-3] and "10.25" not in printed[-3], printed[-3]
    # By parameters; and what tables there are.
    assert "31.0" in printed[-2] and "12.5" not in printed[-2] and "cities" in printed[-2] and "city" in printed[-2], printed[-2]
    # A join and a window whole on the drives: nothing of them is in what the host keeps.
    spent = next(text for text in printed if "spent" in text and "Ada" in text)
    assert [line.split() for line in spent.splitlines() if "32.0" in line or "35.5" in line], spent
    cut = next(text for text in printed if "super-plan" in text and "shop.orders" in text)
    assert "DriveScan: shop.orders with shop.customers" in cut or "DriveScan: o with c" in cut, cut
    assert any("data by customer" in text for text in printed)
    # A blank drive in the place of each lost one, and damage for a scrub.
    rebuilt, up, mended, clean = (next(text for text in printed if said in text) for said in ("drive-1, drive-3 rebuilt", "drive-4  up", "all mended", "nothing is damaged"))
    assert "left:" not in rebuilt and up.count(" up ") == 5 and ": mended" in mended and "mended" not in clean
    # The same where a node was lost, and a drive of each other.
    rebuilt, up = (next(text for text in printed if said in text) for said in ("drive-6, drive-7, drive-8 rebuilt", "drive-4  node-1  up"))
    assert "left:" not in rebuilt and up.count(" up ") == 9 and up.count("node-2") == 3
    # Drives that come, and one that leaves.
    assert all(any(said in text for text in printed) for said in ("drive-5, drive-6 added", "drive-0 retired"))
    (shown,) = (text for language, text in blocks("docs/storage.md") if not language and "all mended" in text)
    numberless = [[re.sub(r"[\d.]+ ([KM]iB|B|µs|ms|s)\b", "SIZE", line) for line in text.splitlines() if "mended:" not in line and ": mended" not in line] for text in (shown, mended)]
    assert [re.sub(r"\d+ values", "N values", line) for line in numberless[0]] == [re.sub(r"\d+ values", "N values", line) for line in numberless[1]]
    (shown,) = (text for language, text in blocks("docs/sql.md") if not language)
    assert printed[-1] == shown
