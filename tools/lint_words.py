#!/usr/bin/env python3
"""Holds line widths and plain words in documents, comments and docstrings (CONTRIBUTING.md, "Style").

It reads Markdown, and the comments of Rust, Python, TOML, R, shell scripts, Makefiles and requirements files. Code,
fenced code and tables of documents, and what is in backticks, may have any words.

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
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "lint_words_allowed.txt"
WIDTH = 120

#: Words that we don't use, each with what to write instead. Rule 2 of "Style" lists the same ones.
WORDS = {
    "whoever": "name the actor",
    "nobody": "name the actor",
    "so many": "give the number",
    "what is to be": "name the object",
    "of which": "begin a sentence",
    "anew": "again",
    "beside": "next to, besides, with",
    "by and by": "give the time",
    "stood for": "failed over",
    "stands for": "means; is a fallback for",
    "worked off": "processed",
    "handed out": "sent raw",
    "dealt": "distributed",
    "housed": "placed",
}
PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b", re.IGNORECASE)

#: A finding: the line's number and what is wrong with it.
Finding = tuple[int, str]


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced code and tables, each with its number."""
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})(.*)", line)
        if fence:
            # A fence ends with one of its own kind that is at least as long.
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        elif not line.lstrip().startswith("|"):
            yield number, line


def found_by(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """Each line of the groups `comment` in `text`. The pattern matches literals as well, and so skips their content."""
    number, at = 1, 0
    for match in pattern.finditer(text):
        number, at = number + text.count("\n", at, match.start()), match.start()
        if match["comment"]:
            yield from enumerate(match["comment"].split("\n"), number)


RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |\b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)
    |"(?:\\.|[^"\\])*"
    |'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'""",
    re.S | re.X,
)
TOML = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3}
    |"(?:\\.|[^"\\\n])*"|'[^'\n]*'""",
    re.S | re.X,
)
R = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |\b[rR]"(?P<dashes>-*)(?:\(.*?\)|\[.*?\]|\{.*?\})(?P=dashes)"
    |"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`""",
    re.S | re.X,
)
#: In shells `#` begins a comment only at the beginning of a word. What is between `<<WORD` and `WORD` is text.
SHELL = re.compile(
    r"""(?P<comment>(?:(?<=[\s;(&|])|^)\#[^\n]*)
    |(?<!<)<<-?[ ]*(?P<quote>["']?)(?P<end>\w+)(?P=quote)[^\n]*\n.*?^\t*(?P=end)$
    |\\.|"(?:\\.|[^"\\])*"|'[^']*'""",
    re.S | re.M | re.X,
)
#: Strings of a Makefile end on their line, and `#` in a word is a comment only in what is not a command.
MAKE = re.compile(r"""(?P<comment>(?:(?<=\s)|^)\#[^\n]*)|\\.|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""", re.M | re.X)


def comments_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, and strings that are statements: docstrings."""
    lines = text.split("\n")
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
            elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL):
                for number in range(token.start[0], token.end[0] + 1):
                    yield number, lines[number - 1]
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
    except (tokenize.TokenError, SyntaxError) as e:
        raise ValueError(f"Python cannot read this file: {e}") from e


#: By the ending of a file's name, or by the name.
READERS = {
    ".md": prose_of_markdown,
    ".py": comments_of_python,
    ".pyi": comments_of_python,
    ".rs": partial(found_by, RUST),
    ".toml": partial(found_by, TOML),
    ".R": partial(found_by, R),
    ".sh": partial(found_by, SHELL),
    ".ci/run": partial(found_by, SHELL),
    "Makefile": partial(found_by, MAKE),
    "requirements.txt": partial(found_by, SHELL),
    "requirements-build.txt": partial(found_by, SHELL),
    "requirements-dev.txt": partial(found_by, SHELL),
}


def findings(name: str, text: str) -> list[Finding]:
    """What is wrong with the file `name` of that `text`, line by line."""
    found: list[Finding] = []
    lines = text.split("\n")
    read = READERS.get(name) or READERS.get(Path(name).name) or READERS[Path(name).suffix]
    for number, prose in read(text):
        line = lines[number - 1]
        if len(line) > WIDTH and " " in line.strip().lstrip("/#!*- ") and "](http" not in line and "<http" not in line:
            found.append((number, f"{len(line)} characters, at most {WIDTH}"))
        # What a program prints, or a name in the code, stands in backticks.
        for word in PATTERN.findall(re.sub(r"`[^`]*`", "", prose)):
            found.append((number, f"'{word.lower()}': {WORDS[word.lower()]}"))
    return found


def tracked() -> list[str]:
    """The files of the project that are looked at, without what other programs wrote."""
    patterns = [f"*{name}" if name.startswith(".") and "/" not in name else name for name in READERS]
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
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
