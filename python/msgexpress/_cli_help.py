"""What the help of commands in several modules shares."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any


def described(sub: argparse.ArgumentParser, cli: Any, description: str, example: str | None = None) -> argparse.ArgumentParser:
    """Gives a command its description, with its lines as they are, and an example; `cli` is the module of the other
    commands, which what the command runs finds among its arguments."""
    sub.set_defaults(cli=cli)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description = description if example is None else f"{description}\n\nfor example:\n  {example}"
    sub.epilog = wrapped(sub.epilog or "")
    return sub


def sentence(text: str) -> str:
    """The short help of a command as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def wrapped(*paragraphs: str) -> str:
    """Paragraphs as wide as argparse makes its own; empty ones are left out."""
    width = max(shutil.get_terminal_size().columns - 2, 20)
    return "\n\n".join(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) for text in paragraphs if text)
