#!/usr/bin/env python3
"""Holds line widths and plain words in documents, comments and docstrings (CONTRIBUTING.md, "Style").

A file may have as many findings as tools/lint_words_allowed.txt says, and no more. A file that has fewer fails as well
until its number is lowered, so that numbers only shrink. `--update` writes the file; `--list FILE` shows the findings.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "lint_words_allowed.txt"
WIDTH = 120

#: Words of a dialect of our own, each with what to write instead.
WORDS = {
    "whoever": "name the actor",
    "nobody": "name the actor",
    "so many": "give the number",
    "what is to be": "name the object",
    "anew": "again",
    "stood for": "failed over",
    "stands for": "is a fallback for",
    "worked off": "processed",
    "handed out": "sent raw",
    "dealt": "distributed",
    "housed": "placed",
    "by and by": "give the time",
}
PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b", re.IGNORECASE)

#: A finding: the line's number and what is wrong with it.
Finding = tuple[int, str]


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced code and tables, each with its number."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith("|"):
            yield number, line


def comments_of_rust(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are comments as a whole."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//"):
            yield number, line


def comments_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, and strings that are statements: docstrings."""
    lines = text.splitlines()
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], lines[token.start[0] - 1]
            elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL):
                for number in range(token.start[0], token.end[0] + 1):
                    yield number, lines[number - 1]
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
    except (tokenize.TokenError, SyntaxError) as e:
        raise ValueError(f"Python cannot read this file: {e}") from e


READERS = {".md": prose_of_markdown, ".rs": comments_of_rust, ".py": comments_of_python}


def findings(name: str, text: str) -> list[Finding]:
    """What is wrong with the file `name` of that `text`, line by line."""
    found: list[Finding] = []
    for number, line in READERS[Path(name).suffix](text):
        if len(line) > WIDTH and " " in line.strip().lstrip("/#!*- ") and "](http" not in line and "<http" not in line:
            found.append((number, f"{len(line)} characters, at most {WIDTH}"))
        # What a program prints, or a name in the code, stands in backticks.
        for word in PATTERN.findall(re.sub(r"`[^`]*`", "", line)):
            found.append((number, f"'{word.lower()}': {WORDS[word.lower()]}"))
    return found


def tracked() -> list[str]:
    """The files of the project that are looked at, without what other programs wrote."""
    listed = subprocess.run(["git", "ls-files", "*.md", "*.rs", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and name != "tools/lint_words.py" and (ROOT / name).exists()]


def allowed() -> dict[str, int]:
    """How many findings each file may have."""
    if not ALLOWED.exists():
        return {}
    pairs = (line.rsplit(" ", 1) for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#"))
    return {name: int(number) for name, number in pairs}


def problems(found: dict[str, list[Finding]], may: dict[str, int]) -> list[str]:
    """Files with more or fewer findings than they may have, and what to do."""
    wrong = []
    for name in sorted({*found, *may}):
        has, limit = len(found.get(name, [])), may.get(name, 0)
        if has > limit:
            lines = "".join(f"\n  {name}:{number}: {what}" for number, what in found[name])
            wrong.append(f"{name}: {has} findings, {limit} allowed: mend those that you added.{lines}")
        elif has < limit:
            wrong.append(f"{name}: {has} findings, {limit} allowed: lower the number (tools/lint_words.py --update).")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the numbers of today into tools/lint_words_allowed.txt")
    parser.add_argument("--list", metavar="FILE", help="show the findings of one file")
    options = parser.parse_args()
    if options.list:
        for number, what in findings(options.list, (ROOT / options.list).read_text(encoding="utf-8")):
            print(f"{options.list}:{number}: {what}")
        return 0
    found = {name: some for name in tracked() if (some := findings(name, (ROOT / name).read_text(encoding="utf-8")))}
    if options.update:
        before, after = sum(allowed().values()), sum(map(len, found.values()))
        if ALLOWED.exists() and after > before:
            print(f"{after} findings, {before} allowed: the sum only shrinks. Mend what you added; `--list FILE` shows it.", file=sys.stderr)
            return 1
        head = "# Findings that each file may still have (tools/lint_words.py). Numbers only shrink.\n"
        ALLOWED.write_text(head + "".join(f"{name} {len(some)}\n" for name, some in sorted(found.items())))
        return 0
    wrong = problems(found, allowed())
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
