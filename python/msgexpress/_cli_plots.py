"""The commands `msgx plot ...` and `msgx report`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from ._cli_help import described, sentence, wrapped

if TYPE_CHECKING:
    from ._picture import Plot

#: What each plot is, and a call of it; the data set and the fleet are those of docs/biologists.md.
_EXAMPLES = {
    "dotplot": "msgx plot dotplot blood/pbmc3k --groupby cell_type --genes CD79A,NKG7,LYZ --transform log1p_cp10k -o dots.png",
    "heatmap": "msgx plot heatmap blood/pbmc3k --groupby cell_type --top 5 --transform log1p_cp10k -o heat.png",
    "violin": "msgx plot violin blood/pbmc3k --groupby cell_type --keys CD79A,NKG7 --transform log1p_cp10k -o violin.png",
    "embedding": "msgx plot embedding blood/pbmc3k --basis umap --color cell_type -o umap.png",
    "qc": "msgx plot qc blood/pbmc3k -o qc.png",
    "volcano": "msgx plot volcano blood/pbmc3k --groupby cell_type --group B --transform log1p_cp10k -o b.png",
    "report": "msgx report blood/pbmc3k --transform log1p_cp10k -o page.html",
}
_TRANSFORM = "log1p_cp10k for raw counts (each cell scaled to 10,000, then log1p), none for values normalised already; required where genes are shown"
_GENES = (
    "Genes are named by --genes, with commas between them, or chosen by --top: the N best marker genes of each group, as `msgx de` ranks them."
    ' A set of genes gets a bracket: --genes "B:CD79A,MS4A1" --genes "T:CD3D,IL7R".'
)


def add(commands: Any, command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands. `command` makes one with the options of a fleet; `cli` is the module of the other commands: as
    it may be the main module, it can't be imported by its name."""
    name, positive = cli._name, cli._positive
    plot = commands.add_parser(
        "plot",
        help="draw a plot of a data set into a file",
    )
    described(plot, cli, wrapped("Draws a plot of a data set into a file. Each plot has a --help of its own; its numbers are scanpy's."), _EXAMPLES["dotplot"])
    plots = plot.add_subparsers(title="plots", required=True, metavar="PLOT")

    def one(
        kind: str,
        run: Callable[[argparse.Namespace], int],
        text: str,
        more: str = "",
        among: Any = plots,
        out: str = "-o FILE writes a picture; the ending chooses the format (.png, .svg, .pdf).",
    ) -> argparse.ArgumentParser:
        sub = described(command(kind, run, text, among=among), cli, wrapped(" ".join(filter(None, (sentence(text), more, out)))), _EXAMPLES[kind])
        sub.add_argument("name", type=name, metavar="DOMAIN/DATASET", help="the data set")
        sub.add_argument("-o", "--out", required=True, metavar="FILE", help="where to write it")
        return sub

    def of_matrix(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--transform", choices=("log1p_cp10k", "none"), help=_TRANSFORM)
        sub.add_argument("--layer", metavar="NAME", help="another matrix than the main one")

    def of_plot(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--csv", metavar="FILE", help="write the numbers of the plot, too, as CSV")

    def of_genes(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--groupby", required=True, metavar="COLUMN", help="the obs column that groups the cells")
        which = sub.add_mutually_exclusive_group(required=True)
        which.add_argument("--genes", action="append", type=_genes, metavar="[SET:]GENE,...", help="the genes; may be repeated")
        which.add_argument("--top", type=positive, metavar="N", help="the N best marker genes of each group")
        sub.add_argument("--gene-symbols", metavar="COLUMN", help="the var column that has the names of the genes")
        sub.add_argument("--scale", choices=("var", "group"), help="each gene (var) or each group from 0 to 1")
        sub.add_argument("--swap-axes", action="store_true", help="genes go down, groups across")

    p = one("dotplot", _dotplot, "draw a dot per group and gene: its colour is the mean, its size the share of cells", _GENES)
    of_genes(p)
    of_matrix(p)
    of_plot(p)

    p = one("heatmap", _heatmap, "draw a line per cell and gene, or a square per group and gene", _GENES)
    of_genes(p)
    p.add_argument("--by", choices=("cells", "groups"), default="cells", help="lines of cells, or means of groups (default: %(default)s)")
    p.add_argument("--max-cells", type=positive, default=4000, metavar="N", help="of more cells than these, some of each group are shown (default: %(default)s)")
    of_matrix(p)
    of_plot(p)

    p = one("violin", _violin, "draw the distribution of genes or obs columns by group")
    p.add_argument("--keys", required=True, action="append", type=_list, metavar="KEY,...", help="genes, or obs columns with numbers; may be repeated")
    p.add_argument("--groupby", metavar="COLUMN", help="the obs column that groups the cells (default: all cells together)")
    p.add_argument("--gene-symbols", metavar="COLUMN", help="the var column that has the names of the genes")
    p.add_argument("--log", action="store_true", help="a logarithmic axis")
    of_matrix(p)
    of_plot(p)

    p = one("embedding", _embedding, "draw the cells in an embedding, such as UMAP, with colours")
    p.add_argument("--basis", default="umap", metavar="NAME", help="a key of obsm, with or without X_ (default: %(default)s)")
    p.add_argument("--color", action="append", type=_list, metavar="KEY,...", help="obs columns and genes, a panel for each; may be repeated")
    p.add_argument("--gene-symbols", metavar="COLUMN", help="the var column that has the names of the genes")
    p.add_argument("--legend", choices=("right margin", "on data", "both", "none"), default="right margin", help="where the names of groups are (default: %(default)s)")
    of_matrix(p)
    of_plot(p)

    p = one("qc", _qc, "draw the quality of cells: counts and genes of each, and the share of mitochondrial counts")
    add_sets(p)
    of_plot(p)

    p = one("volcano", _volcano, "draw fold changes against p-values of one group of cells")
    p.add_argument("--groupby", required=True, metavar="COLUMN", help="the obs column that groups the cells")
    p.add_argument("--group", required=True, metavar="GROUP", help="the group")
    p.add_argument("--reference", default="rest", metavar="GROUP", help="the group to compare with (default: all other cells)")
    p.add_argument("--label", type=positive, default=12, metavar="N", help="how many genes to name on each side (default: %(default)s)")
    of_matrix(p)
    of_plot(p)

    page = "-o FILE writes one HTML page that needs no network and no other file."
    more = (
        "The page has what the data set holds, quality of cells, embeddings, groups, their marker genes with sorting and search, volcano plots and receipts. "
        "Without --transform it has no marker genes."
    )
    p = one("report", _report, "write a page about a data set: quality, groups, marker genes", more, commands, page)
    p.add_argument("--groupby", metavar="COLUMN", help="the obs column with the groups (default: cell_type, leiden and the like, or the only one that groups cells)")
    p.add_argument("--top", type=positive, default=100, metavar="N", help="how many marker genes of each group (default: %(default)s)")
    p.add_argument(
        "--method",
        default="t-test",
        choices=("t-test", "t-test_overestim_var", "student", "wilcoxon"),
        help="the test: Welch's (default), scanpy's variant, Student's, or Wilcoxon's rank sum test",
    )
    add_sets(p)
    of_matrix(p)


# ---- commands


def _dotplot(a: argparse.Namespace) -> int:
    return _draw(
        a,
        lambda ds: (
            _ranked(ds, a).plot_dotplot(a.top, path=a.out, **_look(a)) if a.top else ds.plot_dotplot(_sets(a.genes), a.groupby, path=a.out, **_matrix(a), **_look(a))
        ),
    )


def _heatmap(a: argparse.Namespace) -> int:
    more = {"by": a.by, "max_cells": a.max_cells, "path": a.out, **_look(a)}
    return _draw(a, lambda ds: _ranked(ds, a).plot_heatmap(a.top, **more) if a.top else ds.plot_heatmap(_sets(a.genes), a.groupby, **_matrix(a), **more))


def _violin(a: argparse.Namespace) -> int:
    keys = [key for some in a.keys for key in some]
    return _draw(
        a,
        lambda ds: ds.plot_violin(keys, a.groupby, log=a.log, gene_symbols=a.gene_symbols, path=a.out, **_matrix(a)),
        lambda ds: any(k not in ds.obs.columns for k in keys),
    )


def _embedding(a: argparse.Namespace) -> int:
    colours = [key for some in a.color or [] for key in some]
    return _draw(
        a,
        lambda ds: ds.plot_embedding(a.basis, colours or None, legend_loc=a.legend, gene_symbols=a.gene_symbols, path=a.out, **_matrix(a)),
        lambda ds: any(k not in ds.obs.columns for k in colours),
    )


def _qc(a: argparse.Namespace) -> int:
    return _draw(a, lambda ds: ds.plot_qc(qc_vars=dict(a.sets) if a.sets else None, path=a.out), lambda ds: False)


def _volcano(a: argparse.Namespace) -> int:
    from ._picture import Plot

    def draw(ds: Any) -> Plot:
        res = ds.rank_genes_groups(a.groupby, groups=[a.group], reference=a.reference, **_matrix(a))
        return Plot([res.plot_volcano(path=a.out, label=a.label)], res.to_df(), res.receipt)

    return _draw(a, draw)


def _report(a: argparse.Namespace) -> int:
    cli = a.cli
    if not a.out.lower().endswith((".html", ".htm")):
        raise cli._UsageError(f"a page ends in .html: say {a.out.rstrip('.')}.html")
    cli._check_file(a.out)
    with cli._open(a) as db:
        ds = db[a.name]
        ds.report(
            a.out,
            a.groupby,
            n_genes=a.top,
            method=a.method,
            layer=a.layer,
            qc_vars=dict(a.sets) if a.sets else None,
            **({} if a.transform is None else {"transform": _value(a.transform)}),
        )
        if a.transform is None:
            print(
                f"msgx: the page has no marker genes: say --transform log1p_cp10k ("
                f"each cell scaled to 10,000, then log1p) or --transform none: {ds._what_values(a.layer)}",
                file=sys.stderr,
            )
    print(f"wrote {a.out}", file=sys.stderr)
    return 0


# ---- helpers


def _draw(a: argparse.Namespace, draw: Callable[[Any], Plot], shows_genes: Callable[[Any], bool] | None = None) -> int:
    """Draws into the file that the call names. `shows_genes`: whether it needs a transform; None if it does in any
    case."""
    from skytether import InvalidError

    cli = a.cli
    if os.path.splitext(a.out)[1].lower().removeprefix(".") not in cli._pictures():
        raise cli._UsageError(f"{a.out}: pictures end in one of {', '.join('.' + e for e in sorted(cli._pictures()))}")
    cli._check_file(a.out)
    if a.csv:
        cli._check_file(a.csv)
    say = "say --transform log1p_cp10k (each cell scaled to 10,000, then log1p) or --transform none"
    unsaid = getattr(a, "transform", "none") is None
    if unsaid and shows_genes is None:
        cli._fleet_of(a)
        raise cli._UsageError(f"{say}{cli._what_values(a)}")
    with cli._open(a) as db:
        ds = db[a.name]
        if unsaid and shows_genes is not None and shows_genes(ds):
            raise cli._UsageError(f"{say}: {ds._what_values(a.layer)}")
        plot = draw(ds)
    print(f"drew {a.out}", file=sys.stderr)
    if a.csv:
        try:
            plot.data.to_csv(a.csv, index=plot.data.index.dtype.kind not in "iu", lineterminator="\n")
        except OSError as e:
            raise InvalidError(f"cannot write {a.csv}: {e.strerror or e}") from e
        print(f"wrote {a.csv}", file=sys.stderr)
    return 0


def _ranked(ds: Any, a: argparse.Namespace) -> Any:
    return ds.rank_genes_groups(a.groupby, n_genes=a.top, **_matrix(a))


def _matrix(a: argparse.Namespace) -> dict[str, Any]:
    """The arguments that say which values; without a transform where none was said."""
    return {"layer": a.layer, **({} if a.transform is None else {"transform": _value(a.transform)})}


def _look(a: argparse.Namespace) -> dict[str, Any]:
    return {"standard_scale": a.scale, "swap_axes": a.swap_axes, "gene_symbols": a.gene_symbols}


def _value(transform: str) -> str | None:
    return None if transform == "none" else transform


def _list(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("there is no name in it: write names with commas between them")
    return found


def _genes(text: str) -> tuple[str, list[str]]:
    label, colon, names = text.partition(":")
    return (label.strip(), _list(names)) if colon else ("", _list(text))


def _sets(named: list[tuple[str, list[str]]]) -> Any:
    """The genes in a list, or in sets where one has a name."""
    if not any(label for label, _ in named):
        return [gene for _, genes in named for gene in genes]
    sets: dict[str, list[str]] = {}
    for label, genes in named:
        sets.setdefault(label, []).extend(genes)
    return sets


def add_sets(p: argparse.ArgumentParser) -> None:
    """The option that names sets of genes."""
    which = "genes whose names begin so, for their share of a cell's counts; may be repeated (default: mt=MT-, if there are such)"
    p.add_argument("--set", action="append", type=_set, metavar="NAME=PREFIX", dest="sets", help=which)


def _set(text: str) -> tuple[str, str]:
    name, sign, prefix = text.partition("=")
    if not sign or not name.strip() or not prefix.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no set: write NAME=PREFIX, for example mt=MT-")
    return name.strip(), prefix.strip()
