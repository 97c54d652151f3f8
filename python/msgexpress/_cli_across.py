"""The commands over several data sets: `msgx domains`, `compare`, `centroids` and `similar`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable

from skytether import InvalidError

from ._cli_help import described, sentence, wrapped

#: What each command teaches by; the data sets are those of docs/biologists.md.
_EXAMPLES = {
    "domains": "msgx domains trial",
    "compare": "msgx compare trial/left:cell_type=B trial/right:cell_type=B --on gene_ids --transform log1p_cp10k --top 5",
    "centroids": "msgx centroids trial --groupby cell_type --on gene_ids --genes CD79A,NKG7 --transform log1p_cp10k",
    "similar": "msgx similar trial/left --groupby cell_type --against trial/right --on gene_ids --transform log1p_cp10k --top 1",
}
_CELLS = (
    "A and B name cells as DOMAIN/DATASET:COLUMN=VALUE. Several values have commas between them, several conditions '&': "
    '"trial/left:cell_type=B,NK&donor=d1". Without a condition all cells are meant. Values with these signs are written as JSON: '
    '\'{"dataset": "trial/left", "cell_type": "B, naive"}\', or a list of such objects, which are taken together.'
)
_EXPERIMENTS = (
    "Genes are the same where their names are, or where the var column of --on has the same identifier. A gene that one side lacks is missing, and not zero: "
    "--missing FILE lists such genes. Two experiments differ by more than biology: see docs/biologists.md."
)
_WHICH = "WHICH is a domain (trial), or data sets (trial/left trial/right)."
_BY = "Where data sets differ in their column or transform, repeat the option: --groupby trial/left=cell_type --groupby trial/right=label."


def add(commands: Any, command: Callable[..., argparse.ArgumentParser], cli: Any) -> None:
    """Adds the commands; arguments as of `_cli_plots.add`."""

    def one(kind: str, run: Callable[[argparse.Namespace], int], text: str, *more: str) -> argparse.ArgumentParser:
        return described(command(kind, run, text), cli, wrapped(sentence(text), *more), _EXAMPLES[kind])

    def printed(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print it (default: %(default)s)")

    def of_matrices(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--on", action="append", metavar="[DATASET=]COLUMN", help="the var column that identifies genes (default: their names)")
        sub.add_argument(
            "--transform",
            action="append",
            metavar="[DATASET=]log1p_cp10k|none",
            help="log1p_cp10k for raw counts, none for values normalised already (required); may be repeated for data sets that differ",
        )
        sub.add_argument("--layer", action="append", metavar="[DATASET=]NAME", help="another matrix than the main one")
        sub.add_argument("--id-versions", choices=("keep", "drop"), help="whether ENSG00000010610.9 is another gene than ENSG00000010610 (asked where it matters)")
        sub.add_argument("--duplicates", choices=("drop",), help="leave genes out whose identifier several genes have (default: that is an error)")
        sub.add_argument("--genes", metavar="NAME,...|@FILE", help="just these genes, by identifier or name; @FILE has one a line")
        sub.add_argument("--receipt", action="store_true", help="say on stderr what ran where")

    def of_clusters(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--groupby",
            required=True,
            action="append",
            metavar="[DATASET=]COLUMN",
            help="the obs column that groups the cells; may be repeated for data sets that differ",
        )
        sub.add_argument("--where", metavar="SQL", help="the cells that take part: a condition over obs, such as \"donor = 'd1'\"")

    p = one(
        "domains",
        _domains,
        "list the domains of a fleet, or the obs columns of one",
        "With a domain: a line for each obs column and data set, its type and number of values.",
    )
    p.add_argument("domain", nargs="?", metavar="DOMAIN", help="the domain whose columns to list")
    printed(p)

    p = one("compare", _compare, "compare cells of one data set with cells of another, gene by gene", _CELLS, _EXPERIMENTS)
    p.add_argument("a", type=_cells, metavar="A", help="the cells of one side")
    p.add_argument("b", type=_cells, metavar="B", help="the cells to compare with")
    p.add_argument("--method", default="t-test", choices=("t-test", "t-test_overestim_var", "student"), help="Welch's test (default), scanpy's variant, or Student's")
    p.add_argument("--correction", default="benjamini-hochberg", choices=("benjamini-hochberg", "bonferroni"), help="how p-values are corrected (default: %(default)s)")
    of_matrices(p)
    p.add_argument("--min-pct", type=float, metavar="SHARE", help="test genes alone that at least this share of cells has on one side (0 to 1)")
    p.add_argument("--min-logfc", type=float, metavar="X", help="test genes alone whose log2 fold change is at least this far from 0")
    p.add_argument("--top", type=cli._top, metavar="N", help="the N best genes, or all (default: all)")
    p.add_argument("--missing", metavar="FILE", help="write the genes of either side and which side lacks them, as CSV")
    p.add_argument("--volcano", metavar="FILE", help="draw a volcano plot (.png, .svg, .pdf)")
    printed(p)

    p = one("centroids", _centroids, "print or write the mean expression of the clusters of several data sets", _WHICH, _BY)
    p.add_argument("which", nargs="+", metavar="WHICH", help="a domain, or data sets")
    of_clusters(p)
    of_matrices(p)
    p.add_argument(
        "--join", default="inner", choices=("inner", "outer"), help="genes that all data sets have, or all, with no value where one is missing (default: %(default)s)"
    )
    p.add_argument("-o", "--out", metavar="FILE", help="write .h5ad (clusters as observations) or .csv; without it, --genes says what to print")
    printed(p)

    p = one(
        "similar",
        _similar,
        "find the clusters of other data sets that are most like mine, with the genes that say so",
        _BY,
        "Other clusters are those of the domain, unless --against says otherwise.",
    )
    p.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="my data set")
    of_clusters(p)
    p.add_argument("--group", action="append", metavar="GROUP", help="this cluster of mine alone; may be repeated")
    p.add_argument("--against", action="append", metavar="WHICH", help="a domain or a data set to look in; may be repeated (default: the others of my domain)")
    p.add_argument("--top", type=cli._positive, default=3, metavar="N", help="how many matches of each cluster (default: %(default)s)")
    p.add_argument("--method", default="pearson", choices=("pearson", "spearman", "cosine"), help="what similarity is (default: %(default)s)")
    p.add_argument(
        "--center",
        default="mine",
        choices=("mine", "each", "none"),
        help="take a gene's mean over my clusters away, over those of each data set, or nothing (default: %(default)s)",
    )
    p.add_argument(
        "--n-genes", type=cli._positive, default=2000, metavar="N", help="how many genes to compare: those that vary most between my clusters (default: %(default)s)"
    )
    p.add_argument("--min-genes", type=cli._positive, default=50, metavar="N", help="refuse to compare over fewer genes (default: %(default)s)")
    of_matrices(p)
    p.add_argument("--plot", metavar="FILE", help="draw a heat map of all similarities (.png, .svg, .pdf)")
    printed(p)


# ---- commands


def _domains(a: argparse.Namespace) -> int:
    from ._text import write_frame

    with a.cli._open(a) as db:
        write_frame(db.domains() if a.domain is None else db.domain(a.domain).columns, a.format, sys.stdout)
    return 0


def _compare(a: argparse.Namespace) -> int:
    from ._text import write_frame

    transform = _transform(a)
    for path in (a.volcano, a.missing):
        if path:
            a.cli._check_file(path)
    _check_picture(a, a.volcano)
    with a.cli._open(a) as db:
        res = db.compare(
            a.a,
            a.b,
            on=_by_dataset(a.on),
            method=a.method,
            transform=transform,
            corr_method=a.correction,
            n_genes=a.top or None,
            layer=_by_dataset(a.layer),
            genes=a.cli._listed(a.genes),
            min_pct=a.min_pct,
            min_logfc=a.min_logfc,
            id_versions=a.id_versions,
            duplicates=a.duplicates,
        )
        frame = res.to_df()
        frame.insert(0, "group", res.groups[0])
        write_frame(frame, a.format, sys.stdout)
        sizes = " and ".join(f"{sum(res.cells[side].values()):,}" for side in "ab")
        print(
            f"{len(res.matched):,} genes of {sizes} cells compared; {len(res.missing_in_a):,} are missing in A and {len(res.missing_in_b):,} in B"
            + (f"; {len(res.filtered):,} did not pass the filters" if res.filtered else ""),
            file=sys.stderr,
        )
        if a.missing:
            lacking = [*((gene, "a") for gene in res.missing_in_a), *((gene, "b") for gene in res.missing_in_b)]
            _write_csv(a, a.missing, res.genes.merge(_frame(lacking, ["id", "missing_in"]), on="id"))
        if a.volcano:
            res.plot_volcano(path=a.volcano)
            print(f"drew {a.volcano}", file=sys.stderr)
        if a.receipt:
            print(res.receipts, file=sys.stderr)
    return 0


def _centroids(a: argparse.Namespace) -> int:
    from ._text import write_frame

    transform = _transform(a)
    if a.out is None and a.genes is None:
        raise a.cli._UsageError("say -o FILE.h5ad or -o FILE.csv for the means of all genes, or --genes for those to print")
    if a.out is not None:
        a.cli._check_file(a.out)
        if not a.out.endswith((".h5ad", ".csv")):
            raise a.cli._UsageError(f"{a.out}: means are written as .h5ad or .csv")
    with a.cli._open(a) as db:
        found = db.centroids(
            a.which,
            _by_dataset(a.groupby),
            transform=transform,
            genes=a.cli._listed(a.genes),
            on=_by_dataset(a.on),
            join=a.join,
            layer=_by_dataset(a.layer),
            where=a.where,
            id_versions=a.id_versions,
            duplicates=a.duplicates,
        )
        named = found.to_df()
        names = list(found.var["name"])
        if len(set(names)) == len(names):
            named.columns = names
        frame = named.reset_index()
        frame.insert(2, "cells", found.sizes.to_numpy())
        if a.out is None:
            write_frame(frame, a.format, sys.stdout)
        elif a.out.endswith(".csv"):
            _write_csv(a, a.out, frame)
        else:
            a.cli._write_h5ad(found.to_anndata(), a.out)
            print(f"wrote {a.out}", file=sys.stderr)
        lacking = {name: len(genes) for name, genes in found.missing.items() if genes}
        if lacking:
            print("; ".join(f"{name} lacks {count:,} genes of others" for name, count in lacking.items()), file=sys.stderr)
        if a.receipt:
            print(found.receipts, file=sys.stderr)
    return 0


def _similar(a: argparse.Namespace) -> int:
    from ._text import write_frame

    transform = _transform(a)
    if a.plot:
        a.cli._check_file(a.plot)
    _check_picture(a, a.plot)
    with a.cli._open(a) as db:
        found = db.similar(
            a.name,
            _by_dataset(a.groupby),
            a.group,
            a.against,
            a.top,
            method=a.method,
            transform=transform,
            genes=a.cli._listed(a.genes),
            n_genes=a.n_genes,
            min_genes=a.min_genes,
            center=None if a.center == "none" else a.center,
            on=_by_dataset(a.on),
            layer=_by_dataset(a.layer),
            where=a.where,
            id_versions=a.id_versions,
            duplicates=a.duplicates,
        )
        write_frame(found.to_df(), a.format, sys.stdout)
        if a.plot:
            found.plot(path=a.plot)
            print(f"drew {a.plot}", file=sys.stderr)
        if a.receipt:
            print(found.receipts, file=sys.stderr)
    return 0


# ---- helpers


def _frame(rows: list[tuple[str, str]], columns: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns, dtype=object)


def _write_csv(a: argparse.Namespace, path: str, frame: Any) -> None:
    try:
        frame.to_csv(path, index=False, lineterminator="\n")
    except OSError as e:
        raise a.cli._InTheWay(f"cannot write {path}: {e.strerror or e}") from e
    print(f"wrote {path}", file=sys.stderr)


def _check_picture(a: argparse.Namespace, path: str | None) -> None:
    if path and not a.cli._is_picture(path):
        raise a.cli._UsageError(f"{path}: pictures end in one of {', '.join('.' + e for e in sorted(a.cli._pictures()))}")


def _transform(a: argparse.Namespace) -> Any:
    """What --transform says: required here as in Python."""
    if not a.transform:
        raise a.cli._UsageError("say --transform log1p_cp10k for raw counts, or --transform none for values that are normalised and logarithmic already")
    said = _by_dataset(a.transform)
    values = said.values() if isinstance(said, dict) else [said]
    for value in values:
        if value not in ("log1p_cp10k", "none"):
            raise a.cli._UsageError(f"--transform {value}: say log1p_cp10k or none")
    return {name: None if value == "none" else value for name, value in said.items()} if isinstance(said, dict) else None if said == "none" else said


def _by_dataset(given: list[str] | None) -> Any:
    """One value for all data sets, or a dict by data set of ``DATASET=VALUE``."""
    if not given:
        return None
    parts = [text.partition("=") for text in given]
    named = [bool(sign) and "/" in name for name, sign, _ in parts]
    if not any(named):
        return given[-1]
    if not all(named):
        alone = given[named.index(False)]
        raise InvalidError(f"{alone!r} names no data set, where others do: write DATASET=VALUE each time, or one value for all")
    return {name: value for name, _, value in parts}


def _cells(text: str) -> Any:
    """Cells as `MsgExpress.compare` takes them."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {e}") from e
    name, sign, conditions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} names no data set: write DOMAIN/DATASET:COLUMN=VALUE, for example trial/left:cell_type=B")
    selector: dict[str, Any] = {"dataset": name}
    for condition in conditions.split("&") if sign else []:
        column, equals, values = condition.partition("=")
        if not column or not equals:
            raise argparse.ArgumentTypeError(f"{text!r} names no cells: write DOMAIN/DATASET:COLUMN=VALUE, for example trial/left:cell_type=B")
        chosen = values.split(",")
        selector[column] = chosen if len(chosen) > 1 else values
    return selector
