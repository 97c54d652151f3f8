"""The commands `msgx set-obs`, `msgx append` and `msgx history`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from skytether import InvalidError

from ._cli_help import EXAMPLES, described, sentence, wrapped

if TYPE_CHECKING:
    import pandas as pd


def add(command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands. `command` makes one with the options of a fleet; `cli` is the module of the other commands."""

    def one(kind: str, run: Callable[[argparse.Namespace], int], text: str, more: str = "") -> argparse.ArgumentParser:
        sub = described(command(kind, run, text), cli, wrapped(f"{sentence(text)} {more}"), *EXAMPLES[kind])
        sub.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
        return sub

    p = one(
        "set-obs",
        _set_obs,
        "add columns to the cells of a data set, such as clusters",
        "The matrix is not written again. The file's first column has the cells' names, in any order; cells that it lacks have missing values.",
    )
    p.add_argument("file", metavar="FILE", help="a .csv, or a .tsv or .txt with tabs; its first line names the columns")
    p.add_argument("--columns", metavar="NAME,...", help="just these columns of the file (default: all)")
    p.add_argument("--category", action="append", metavar="NAME", help="a column whose values are names, also where they are numbers, as of clusters; may be repeated")

    p = one(
        "append",
        _append,
        "add cells to a data set",
        "The matrices stay where they are, unless genes or types of values differ.",
    )
    p.add_argument("file", metavar="FILE", help="what ingest takes")
    p.add_argument("--column", default="batch", metavar="NAME", help="the obs column that tells the batches apart (default: %(default)s)")
    p.add_argument("--label", metavar="NAME", help="what that column has for the new cells (default: none is written)")
    p.add_argument("--first-label", metavar="NAME", help="what it has for the cells that are there, where there is no such column yet")
    p.add_argument("--join", choices=("inner", "outer"), help="where genes differ: those that both have, or all of them")
    p.add_argument("--on", metavar="COLUMN", help="the var column by which genes are the same (default: their names)")
    p.add_argument("--fill-value", type=float, metavar="0|nan", help="with --join outer, what cells have for genes that their file lacks")
    p.add_argument("--clash", action="append", type=cli._answer, metavar="COLUMN=text|number|drop", help="what an obs column becomes whose type differs")

    p = one("history", _history, "list the versions of a data set: what was done to it, and when", "The latest 200 are kept.")
    p.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print it (default: %(default)s)")


def _set_obs(a: argparse.Namespace) -> int:
    frame = _read(a.file, a.category or [], a.cli)
    wanted = a.cli._listed(a.columns)
    if wanted is not None:
        lacks = next((name for name in wanted if name not in frame.columns), None)
        if lacks is not None:
            raise InvalidError(f"{a.file} has no column {lacks!r}: it has {', '.join(map(repr, frame.columns)) or 'none'}")
        frame = frame[wanted]
    if not len(frame.columns):
        raise InvalidError(f"{a.file} has one column, the cells' names, and so there is nothing to set: give it a column with values")
    with a.cli._open(a) as db:
        ds = db[a.name]
        ds.set_obs(frame)
        print(f"set {', '.join(frame.columns)} of {len(frame):,} of {ds.n_obs:,} cells", file=sys.stderr)
    return 0


def _read(path: str, categories: list[str], cli: Any) -> pd.DataFrame:
    """The table in a file; its first column is the index."""
    import pandas as pd

    ending = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if ending not in (".csv", ".tsv", ".txt"):
        raise cli._UsageError(f"{path}: columns of cells come from a .csv, or a .tsv or .txt with tabs")
    try:
        head = pd.read_csv(path, sep="," if ending == ".csv" else "\t", nrows=0)
        lacks = next((name for name in categories if name not in head.columns[1:]), None)
        if lacks is not None:
            known = ", ".join(map(repr, head.columns[1:])) or "none"
            more = " (the first has the cells' names)" if lacks in head.columns else ""
            raise cli._InTheWay(f"{path} has no column {lacks!r} of values{more}: it has {known}")
        texts = {head.columns[0]: str, **dict.fromkeys(categories, str)} if len(head.columns) else {}
        frame = pd.read_csv(path, sep="," if ending == ".csv" else "\t", dtype=texts)
    except (ValueError, UnicodeError) as e:
        raise InvalidError(f"{path} can't be read as a table: {' '.join(str(e).split())}") from e
    except cli._InTheWay:
        raise
    except OSError as e:
        raise InvalidError(f"{path} can't be read: {e.strerror or e}") from e
    frame = frame.set_index(frame.columns[0])
    for name in categories:
        frame[name] = pd.Categorical(frame[name], sorted(frame[name].dropna().unique(), key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text)))
    return frame


def _append(a: argparse.Namespace) -> int:
    batch = None
    if a.label is None and a.first_label is not None:
        raise InvalidError("--first-label says what the cells that are there get in a new column: say --label for the new cells, too")
    if a.label is not None:
        batch = {a.column: a.label if a.first_label is None else (a.first_label, a.label)}
    clash = dict(answer.split("=", 1) for answer in a.clash) if a.clash else None
    with a.cli._open(a) as db:
        ds = db[a.name]
        before = ds.n_obs
        if a.label is not None and a.first_label is None and a.column not in ds.obs.columns:
            raise InvalidError(f"obs of {ds.name} has no column {a.column!r} yet: say what the cells that are there get with --first-label, or name another --column")
        ds.append(a.file, batch, join=a.join, on=a.on, fill_value=a.fill_value, clash=clash)
        print(f"appended {ds.n_obs - before:,} cells: {a.cli._summary(ds)}", file=sys.stderr)
        print(f"{ds.history['changed'].iloc[-1]}", file=sys.stderr)
    return 0


def _history(a: argparse.Namespace) -> int:
    from ._text import write_frame

    with a.cli._open(a) as db:
        frame = db[a.name].history
    frame["time"] = frame["time"].dt.strftime("%Y-%m-%d %H:%M:%S")
    frame["generation"] = [f"{generation:016x}" for generation in frame["generation"]]
    write_frame(frame, a.format, sys.stdout)
    return 0
