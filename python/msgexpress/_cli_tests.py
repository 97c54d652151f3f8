"""Options of tests in the shell, and the commands `msgx pairs` and `msgx pseudobulk`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable

from ._cli_help import described

_TRANSFORM = "log1p_cp10k for raw counts, none for values normalised already (required)"


def add_options(p: argparse.ArgumentParser) -> None:
    """What `de` and `pairs` take besides groups, method and transform."""
    which = p.add_argument_group("which genes, and which numbers")
    which.add_argument("--genes", metavar="NAME,...|@FILE", help="test just these genes; @FILE has one a line. P-values are corrected for these")
    which.add_argument(
        "--min-pct", type=float, metavar="SHARE", help="show genes that at least this share of cells has (0 to 1), in the group or in what it is compared with"
    )
    which.add_argument("--min-cells", type=int, metavar="N", help="show genes that at least N cells have, in the group or in what it is compared with")
    which.add_argument(
        "--min-logfc",
        type=float,
        metavar="X",
        help="show genes whose log2 fold change is at least X, up or down. These three leave p-values as they are: corrected for all genes",
    )
    which.add_argument(
        "--logfc",
        choices=("scanpy", "seurat", "seurat4"),
        default="scanpy",
        help="fold changes of means of logarithms (scanpy), or of means of normalised counts, as Seurat 5 (seurat) or 4 (seurat4) (default: %(default)s)",
    )
    which.add_argument("--gene-symbols", metavar="COLUMN", help="show this var column next to the genes' names")


def options(a: argparse.Namespace, listed: Callable[[str | None], list[str] | None]) -> dict[str, Any]:
    """The arguments of a test that the options of `add_options` mean."""
    return {"genes": listed(a.genes), "min_pct": a.min_pct, "min_cells": a.min_cells, "min_logfc": a.min_logfc, "logfc": a.logfc, "gene_symbols": a.gene_symbols}


def add(command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands; `command` and `cli` are as in `_cli_plots.add`."""
    p = described(
        command("pairs", _pairs, "rank the genes of each group against each other group"),
        cli,
        "Ranks the genes of each group against each other group. The drives look at the matrix once, for all pairs\n"
        "(wilcoxon: once more for each group).\n"
        "--summary shows, per gene and group, the least score over all other groups: genes that mark a group against each.",
        "msgx pairs blood/pbmc3k --groupby cell_type --transform log1p_cp10k --summary --top 5",
    )
    p.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
    p.add_argument("--groupby", required=True, metavar="COLUMN", help="the obs column that groups the cells")
    p.add_argument("--group", action="append", metavar="GROUP", help="compare just these groups with each other; repeat it for each")
    p.add_argument("--summary", action="store_true", help="a row per gene and group: what holds against every other group")
    p.add_argument(
        "--method",
        default="t-test",
        choices=("t-test", "t-test_overestim_var", "student", "wilcoxon"),
        help="Welch's test (default), scanpy's variant, Student's, or rank sums",
    )
    p.add_argument("--transform", choices=("log1p_cp10k", "none"), help=_TRANSFORM)
    p.add_argument(
        "--correction",
        default="benjamini-hochberg",
        choices=("benjamini-hochberg", "bonferroni"),
        help="how p-values are corrected for the number of genes (default: %(default)s)",
    )
    p.add_argument("--layer", metavar="NAME", help="another matrix than the main one")
    p.add_argument("--top", type=cli._top, metavar="N", help="the N best genes of each pair (or group), or all (default: 10 where a table goes to a terminal, else all)")
    p.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print it (default: %(default)s)")
    p.add_argument("--receipt", action="store_true", help="say on stderr what ran where")
    add_options(p)

    p = described(
        command("pseudobulk", _pseudobulk, "add up the cells of each sample, or of each sample and group, for DESeq2 and edgeR"),
        cli,
        "Adds up the stored values of the cells of each sample, or of each sample and group, next to the data.\n"
        "OUT.h5ad is an AnnData of a row each. OUT.csv has a column each and a row per gene, as DESeq2 and edgeR take it;\n"
        "OUT.obs.csv has what is known of them: sample, group, n_cells, and what is the same in all of a sample's cells.",
        "msgx pseudobulk lab/patients --sample donor --groupby cell_type --min-cells 10 -o bulk.h5ad",
    )
    p.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
    p.add_argument("--sample", required=True, metavar="COLUMN", help="the obs column with the samples")
    p.add_argument("--groupby", metavar="COLUMN", help="the obs column that groups the cells of a sample, such as cell types")
    p.add_argument("--func", choices=("sum", "mean"), default="sum", help="add up, or take the mean (default: %(default)s)")
    p.add_argument("--min-cells", type=int, default=0, metavar="N", help="leave out what has fewer cells")
    p.add_argument("--layer", metavar="NAME", help="another matrix than the main one: the raw counts")
    p.add_argument("-o", "--out", required=True, metavar="OUT", help="OUT.h5ad, or OUT.csv (with OUT.obs.csv)")
    p.add_argument("--force", action="store_true", help="overwrite what is there")


def _pairs(a: argparse.Namespace) -> int:
    from . import _progress
    from ._text import write_frame

    cli = a.cli
    if a.transform is None:
        cli._fleet_of(a)
        raise cli._UsageError(f"say --transform log1p_cp10k (each cell scaled to 10,000, then log1p) or --transform none{cli._what_values(a)}")
    with cli._open(a) as db:
        few = a.top is None and a.format == "table" and sys.stdout.isatty()
        with _progress.busy(f"pairs of {a.name}", "the drives look at the matrix"):
            res = db[a.name].pairwise(
                a.groupby,
                a.group or "all",
                method=a.method,
                transform=None if a.transform == "none" else a.transform,
                corr_method=a.correction,
                n_genes=cli._SHOWN if few else a.top or None,
                layer=a.layer,
                **options(a, cli._listed),
            )
        write_frame(res.summary() if a.summary else res.to_df(), a.format, sys.stdout)
        if few:
            print(f"The {cli._SHOWN} best genes of each: --top all shows all of them, --top N shows N.", file=sys.stderr)
        if a.receipt:
            for receipt in res.receipts:
                print(receipt, file=sys.stderr)
    return 0


def _pseudobulk(a: argparse.Namespace) -> int:
    cli = a.cli
    stem, ending = os.path.splitext(a.out)
    if ending not in (".h5ad", ".csv"):
        raise cli._UsageError(f"{a.out}: a pseudobulk is written as OUT.h5ad or OUT.csv")
    files = [a.out] if ending == ".h5ad" else [a.out, f"{stem}.obs.csv"]
    there = next((file for file in files if os.path.exists(file)), None)
    if there is not None and not a.force:
        raise cli._InTheWay(f"{there} exists already: choose another name, or --force")
    for file in files:
        cli._check_file(file)
    with cli._open(a) as db:
        found = db[a.name].pseudobulk(a.sample, a.groupby, layer=a.layer, func=a.func, min_cells=a.min_cells)
    if ending == ".h5ad":
        cli._write_h5ad(found, a.out)
    else:
        try:
            found.to_df().T.to_csv(files[0], index_label="gene", lineterminator="\n")
            found.obs.to_csv(files[1], index_label="row", lineterminator="\n")
        except OSError as e:
            raise cli._InTheWay(f"cannot write {e.filename or a.out}: {e.strerror or e}") from e
    print(f"wrote {', '.join(files)}: {found.n_obs:,} row{'' if found.n_obs == 1 else 's'} of cells x {found.n_vars:,} genes", file=sys.stderr)
    return 0
