"""The commands `msgx qc` and `msgx hvg`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from ._cli_help import described

if TYPE_CHECKING:
    import pandas as pd

_QC = """Counts and genes of each cell, shares of sets of genes, and what limits would leave.

The drives count in one scan; the numbers are those of scanpy's calculate_qc_metrics. The table on stdout has the
spread of each number over the cells: look for the tails. Limits are tried, and nothing is removed: the last line says
how many cells and genes they leave. In Python, ds.filter_cells(...) is the view of these.

for example:
  msgx qc blood/pbmc3k --set mt=MT- --out qc.png
  msgx qc blood/pbmc3k --min-genes 200 --min-cells 3 --cells cells.csv"""
_HVG = """Genes that vary more between cells than others of their mean, as scanpy's highly_variable_genes selects them.

Flavours: seurat and cell_ranger take logarithms (say --transform, or --target-sum and --base), seurat_v3 takes counts
as they are and needs the package scikit-misc. With --batch, genes are preferred that many batches select, so that
differences between batches do not rule. The drives compute means and variances.

for example:
  msgx hvg blood/pbmc3k --transform log1p_cp10k --out genes.png
  msgx hvg blood/pbmc3k --top 500 --target-sum median --all --format csv"""


def add(commands: Any, command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands; as of `_cli_plots.add`."""
    from . import _cli_views

    def one(kind: str, run: Callable[[argparse.Namespace], int], text: str, more: str) -> argparse.ArgumentParser:
        sub = described(command(kind, run, text), cli, more)
        sub.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
        sub.add_argument("--layer", metavar="NAME", help="another matrix than the main one")
        sub.add_argument("-o", "--out", metavar="FILE", help="draw a picture (.png, .svg, .pdf), too")
        sub.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print the table (default: %(default)s)")
        return sub

    p = one("qc", _qc, "show the quality of cells and genes, and what filters would leave", _QC)
    p.add_argument("--cells", metavar="FILE", help="write the numbers of each cell as CSV")
    p.add_argument("--genes", metavar="FILE", help="write the numbers of each gene as CSV")
    _add_limits(p)
    _cli_views.add(command, cli, _add_limits)

    p = one("hvg", _hvg, "select highly variable genes", _HVG)
    p.add_argument("--top", type=cli._positive, default=2000, metavar="N", help="how many genes (default: %(default)s)")
    p.add_argument("--flavor", choices=("seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper"), default="seurat", help="how to select them (default: %(default)s)")
    p.add_argument("--batch", metavar="COLUMN", help="the obs column of the batches")
    p.add_argument("--transform", choices=("log1p_cp10k", "none"), help="log1p_cp10k for raw counts, none for logarithms that are stored")
    p.add_argument("--target-sum", metavar="N|median", help="scale each cell to this sum, or to the median of the cells' sums, then take log1p")
    p.add_argument("--base", type=float, metavar="B", help="the base of that logarithm (default: e)")
    p.add_argument("--span", type=float, default=0.3, metavar="S", help="for seurat_v3, the share of genes that the trend is fitted to (default: %(default)s)")
    p.add_argument("--all", action="store_true", help="print all genes, not only those that are selected")


def _add_limits(p: argparse.ArgumentParser) -> None:
    """Limits of cells and genes, and the sets of genes that they name."""
    from ._cli_plots import add_sets

    add_sets(p)
    limits = p.add_argument_group("limits")
    for name, what in (("genes", "genes per cell"), ("counts", "counts per cell"), ("cells", "cells per gene")):
        limits.add_argument(f"--min-{name}", type=_number, metavar="N", help=f"at least N {what}")
        limits.add_argument(f"--max-{name}", type=_number, metavar="N", help=f"at most N {what}")
    share = "at most PCT %% of a cell's counts in a set, for example mt=5; may be repeated"
    limits.add_argument("--max-pct", action="append", type=_share, metavar="NAME=PCT", help=share)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    # Views say their limits: 200, not 200.0.
    return int(number) if number.is_integer() else number


def _share(text: str) -> tuple[str, float]:
    name, sign, share = text.partition("=")
    if not sign or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no limit of a set: write NAME=PERCENT, for example mt=5")
    return name.strip(), _number(share)


def _check_files(a: argparse.Namespace, *paths: str | None) -> None:
    if a.out and os.path.splitext(a.out)[1].lower().removeprefix(".") not in a.cli._pictures():
        raise a.cli._UsageError(f"{a.out}: pictures end in one of {', '.join('.' + e for e in sorted(a.cli._pictures()))}")
    for path in (a.out, *paths):
        if path:
            a.cli._check_file(path)


def _qc(a: argparse.Namespace) -> int:
    from . import _quality
    from ._text import write_frame

    _check_files(a, a.cells, a.genes)
    with a.cli._open(a) as db:
        ds = db[a.name]
        sets: Any = dict(a.sets) if a.sets else None
        if sets is None:
            found = _quality.mitochondrial(ds, ds._matrix(a.layer))
            sets = {"mt": found} if found.any() else {}
        unknown = next((name for name, _ in a.max_pct or [] if name not in sets), None)
        if unknown is not None:
            raise a.cli._UsageError(f"--max-pct {unknown}=...: there is no set {unknown}; name its genes with --set {unknown}=PREFIX")
        obs, var = ds.qc_metrics(sets, a.layer)
        write_frame(_spread(obs), a.format, sys.stdout)
        _left(a, obs, var)
        for path, frame in ((a.cells, obs), (a.genes, var)):
            if path:
                _write(frame, path)
        if a.out:
            ds._drawn(_quality.quality_plot(obs, var, title=f"{ds.name}: {len(obs):,} cells", path=a.out), a.out)
            print(f"drew {a.out}", file=sys.stderr)
    return 0


def _spread(obs: pd.DataFrame) -> pd.DataFrame:
    """The spread of each number over the cells, without logarithms."""
    import pandas as pd

    columns = [c for c in obs.columns if not str(c).startswith("log1p_")]
    shares = {"least": 0.0, "1%": 0.01, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "most": 1.0}
    found = {label: obs[columns].quantile(share).to_numpy(float).round(2) for label, share in shares.items()}
    return pd.DataFrame({"of cells": columns, **found})


def _left(a: argparse.Namespace, obs: pd.DataFrame, var: pd.DataFrame) -> None:
    """Says what the limits would leave."""
    import numpy as np

    cells, genes = np.ones(len(obs), bool), np.ones(len(var), bool)
    tried = False
    for mask, column, least, most in (
        (cells, obs["n_genes_by_counts"], a.min_genes, a.max_genes), (cells, obs["total_counts"], a.min_counts, a.max_counts),
        (genes, var["n_cells_by_counts"], a.min_cells, a.max_cells),
    ):  # fmt: skip
        for limit, holds in ((least, np.greater_equal), (most, np.less_equal)):
            if limit is not None:
                mask &= holds(column.to_numpy(), limit)
                tried = True
    for name, share in a.max_pct or []:
        cells &= np.nan_to_num(obs[f"pct_counts_{name}"].to_numpy()) <= share
        tried = True
    if tried:
        print(f"these limits leave {int(cells.sum()):,} of {len(cells):,} cells and {int(genes.sum()):,} of {len(genes):,} genes", file=sys.stderr)


def _write(frame: pd.DataFrame, path: str) -> None:
    from skytether import InvalidError

    try:
        frame.to_csv(path, lineterminator="\n")
    except OSError as e:
        raise InvalidError(f"cannot write {path}: {e.strerror or e}") from e
    print(f"wrote {path}", file=sys.stderr)


def _hvg(a: argparse.Namespace) -> int:
    from . import _draw_genes, _progress
    from ._text import write_frame

    _check_files(a)
    transform = _transform(a)
    with a.cli._open(a) as db:
        ds = db[a.name]
        with _progress.busy(f"genes of {a.name}", "the drives look at how they vary"):
            frame = ds.highly_variable_genes(a.top, a.flavor, a.batch, layer=a.layer, span=a.span, **transform)
        shown = frame.drop(columns=["mean_bin", "gene_name"], errors="ignore")
        by = "variances_norm" if "variances_norm" in shown else "dispersions_norm"
        if not a.all:
            shown = shown[shown["highly_variable"]].drop(columns="highly_variable")
        shown = shown.sort_values(by, ascending=False, kind="stable").rename_axis("gene").reset_index()
        write_frame(shown, a.format, sys.stdout)
        print(f"{int(frame['highly_variable'].sum()):,} of {len(frame):,} genes are selected", file=sys.stderr)
        if a.out:
            ds._drawn(_draw_genes.variable(frame, title=f"{ds.name}: highly variable genes ({a.flavor})", path=a.out), a.out)
            print(f"drew {a.out}", file=sys.stderr)
    return 0


def _transform(a: argparse.Namespace) -> dict[str, Any]:
    """The argument that says which values."""
    from skytether import InvalidError

    from ._transforms import Normalize

    if a.target_sum is None and a.base is None:
        return {} if a.transform is None else {"transform": None if a.transform == "none" else a.transform}
    if a.transform is not None:
        raise a.cli._UsageError("--transform is one choice, and --target-sum and --base are another: give one of them")
    target: Any = a.target_sum if a.target_sum is not None else 1e4
    if target != "median":
        try:
            target = float(target)
        except ValueError:
            raise a.cli._UsageError(f"--target-sum {target}: give a number or median") from None
    try:
        return {"transform": Normalize(target, base=a.base)}
    except InvalidError as e:
        raise a.cli._UsageError(a.cli._cli_words.in_the_shell(str(e))) from e
