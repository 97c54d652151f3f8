"""What the help of commands in several modules shares."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any


#: Calls of the commands in `cli`; the data sets and the fleet are those of docs/biologists.md.
EXAMPLES = {
    "": (
        "export MSGX_FLEET=cell-fleet",
        "msgx ingest examples/data/pbmc3k.h5ad --to blood/pbmc3k",
        "msgx de blood/pbmc3k --groupby cell_type --transform log1p_cp10k --top 5",
    ),
    "ingest": (
        "msgx ingest examples/data/pbmc3k.h5ad --to blood/pbmc3k",
        "msgx ingest donor1.h5ad donor2.h5ad --to lab/donors --batch donor --label d1 --label d2",
    ),
    "ls": ("msgx ls",),
    "info": ("msgx info blood/pbmc3k",),
    "de": (
        "msgx de blood/pbmc3k --groupby cell_type --transform log1p_cp10k --top 5",
        "msgx de blood/pbmc3k --groupby cell_type --group B --reference NK --transform log1p_cp10k --format csv",
    ),
    "export": ("msgx export blood/pbmc3k all.h5ad", "msgx export blood/pbmc3k part.parquet --genes CD79A,NKG7"),
    "history": ("msgx history blood/pbmc3k",),
    "set-obs": ("msgx set-obs blood/pbmc3k clusters.csv --category leiden",),
    "append": ("msgx append lab/donors donor3.h5ad --column donor --label d3",),
    "drop": ("msgx drop blood/pbmc3k",),
    "demo": ("msgx demo --out demo-out", "msgx demo --drives kinetic"),
}


def described(sub: argparse.ArgumentParser, cli: Any, description: str, *examples: str) -> argparse.ArgumentParser:
    """Gives a command its description, with its lines as they are, and examples; `cli` is the module of the other
    commands, which what the command runs finds among its arguments."""
    sub.set_defaults(cli=cli)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description = "\n  ".join([f"{description}\n\nfor example:", *examples]) if examples else description
    sub.epilog = wrapped(sub.epilog or "")
    return sub


def sentence(text: str) -> str:
    """The short help of a command as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def wrapped(*paragraphs: str) -> str:
    """Paragraphs as wide as argparse makes its own; empty ones are left out."""
    width = max(shutil.get_terminal_size().columns - 2, 20)
    return "\n\n".join(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) for text in paragraphs if text)
