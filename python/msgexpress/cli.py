"""The command `msgx`: differential expression from the shell.

Exit status:

- 0: done.
- 2: the call is wrong in itself, whatever the fleet and the disk hold: an option, a name's spelling, an ending.
- 1: everything else: what the call names is missing, exists already, is damaged, or holds values that can't be used.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable

from . import _cli_words

if TYPE_CHECKING:
    from ._db import MsgExpress

_EPILOG = (
    "DIR is an embedded fleet (`ingest` makes it where there is none), URL a host, for example grpc://127.0.0.1:5300 (or just 127.0.0.1:5300),"
    " or with TLS grpc+tls://HOST:PORT. MSGX_FLEET is the default of --fleet, SKYTETHER_TOKEN that of --token, SKYTETHER_TLS_CA that of --tls-ca;"
    " MSGX_DEBUG=1 shows tracebacks. Exit status: 0 done, 1 something went wrong at work, 2 the call was wrong in itself."
)


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    arguments = _parser().parse_args(argv)
    warnings.showwarning = lambda message, *_: print(f"msgx: warning: {_cli_words.in_the_shell(str(message))}", file=sys.stderr)
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # The reader of our output has closed it: `head` has its lines.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("msgx: interrupted", file=sys.stderr)
        return 130
    except _UsageError as e:
        print(f"msgx: {e}", file=sys.stderr)
        return 2
    except Exception as e:
        if os.environ.get("MSGX_DEBUG"):
            raise
        print(f"msgx: {_cli_words.sentence(e)}", file=sys.stderr)
        if type(e).__name__ == "NotWritten":  # see `_write_h5ad`
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        return 1


class _UsageError(Exception):
    """The call is wrong in itself, in a way that argparse can't see."""


class _InTheWay(OSError):
    """What is on the disk does not allow what the call asks for."""


#: Genes of each group that `de` shows on a terminal.
_SHOWN = 10


# ---- commands


def _ingest(a: argparse.Namespace) -> int:
    from ._open import Choices
    from ._several import Joining, open_sources
    from ._source import ALL_LAYERS, Layers

    _fleet_of(a)
    # The source first: where it is no good, no fleet is made.
    layers = Layers.chosen(a.layers, a.layer) if a.layers or a.no_layers else ALL_LAYERS
    batch = a.batch if not a.label else {a.batch or "batch": a.label}
    prefix = a.prefix[0] if a.prefix and len(a.prefix) == 1 and batch is None else a.prefix
    clash = dict(answer.split("=", 1) for answer in a.clash) if a.clash else None
    sources = a.file if len(a.file) > 1 else a.file[0]
    source = open_sources(sources, Choices(a.genome, a.feature_types, layers, a.modality, a.orientation), prefix, Joining(batch, a.join, a.on, a.fill_value, clash))
    try:
        source.arrange(a.layer)
        with _open(a, create=True) as db:
            print(_summary(db._store(source, a.to, a.replace, None)), file=sys.stderr)
    finally:
        source.close()
    return 0


def _ls(a: argparse.Namespace) -> int:
    import pandas as pd

    from ._text import write_frame

    with _open(a) as db:
        rows = [_row(db, entry) for entry in sorted(db.fleet.ls(), key=lambda e: e["name"]) if entry.get("kind") == "expression" or entry.get("error")]
    columns = ["name", "cells", "genes", "layers", "error"]
    # A column of errors only where there is one.
    shown = columns if any(row["error"] for row in rows) else columns[:-1]
    write_frame(pd.DataFrame(rows, columns=shown, dtype=object), a.format, sys.stdout)
    return 0


def _row(db: MsgExpress, entry: dict[str, Any]) -> dict[str, Any]:
    """What `ls` says of a data set; of one that can't be read, why."""
    from skytether import SkytetherError

    name = entry["name"].replace(".", "/", 1)
    error = entry.get("error")
    if not error:
        try:
            ds = db[name]
            return {"name": name, "cells": ds.n_obs, "genes": ds.n_vars, "layers": ", ".join(ds.layers), "error": None}
        except SkytetherError as e:
            error = str(e)
    return {"name": name, "cells": None, "genes": None, "layers": None, "error": " ".join(str(error).split())}


def _info(a: argparse.Namespace) -> int:
    from . import _details
    from ._text import human_bytes, table

    with _open(a) as db:
        ds = db[a.name]
        about = ds.fleet.describe(ds.name)
        kept = ds._kept
        if a.format == "json":
            json.dump(_details.about(ds, about["bytes"]), sys.stdout, ensure_ascii=False, indent=1)
            print()
            return 0
        print(_summary(ds))
        print(f"from {kept['source']}; {human_bytes(about['bytes'])} stored")
        if ds.other_features:
            print(f"features that are no part of the matrix, each a matrix of its own (--layer): {', '.join(ds.other_features)}")
        print()
        matrices = [(t, m["origin"], f"{m['shape'][0]:,} x {m['shape'][1]:,}", m["layout"], m["dtype"]) for t, m in kept["matrices"].items()]
        print(table(["matrix", "from", "cells x genes", "was", "type"], matrices))
        print()
        for part in _details.tables(ds, _width()):
            print(part)
            print()
    return 0


def _de(a: argparse.Namespace) -> int:
    from . import _cli_tests, _progress
    from ._text import write_frame

    if a.volcano:
        _check_volcano(a.volcano, a.group or [])
    if a.tie_correct and a.method != "wilcoxon":
        raise _UsageError("--tie-correct belongs to --method wilcoxon: leave it out, or say both")
    if a.transform is None:
        _fleet_of(a)
        raise _UsageError(f"say --transform log1p_cp10k (each cell scaled to 10,000, then log1p) or --transform none{_what_values(a)}")
    with _open(a) as db:
        ds = db[a.name]
        few = a.top is None and a.format == "table" and sys.stdout.isatty()
        shown = _SHOWN if few else a.top or None
        with _progress.busy(f"markers of {a.name}", "the drives rank the genes"):
            res = ds.rank_genes_groups(
                a.groupby,
                method=a.method,
                reference=a.reference,
                groups=a.group or "all",
                corr_method=a.correction,
                n_genes=shown,
                layer=a.layer,
                transform=None if a.transform == "none" else a.transform,
                tie_correct=a.tie_correct,
                **_cli_tests.options(a, _listed),
            )
        if a.volcano and _is_picture(a.volcano) and len(res.groups) != 1:
            raise _InTheWay(f"{len(res.groups)} groups do not fit into one plot: give a directory to --volcano, or one --group")
        frame = res.to_df()
        if "group" not in frame and res.groups:
            frame.insert(0, "group", res.groups[0])
        write_frame(frame, a.format, sys.stdout)
        if a.top is None and shown is not None and ds.n_vars > shown:
            print(f"The {shown} best genes of each group: --top all shows all of them, --top N shows N.", file=sys.stderr)
        if a.receipt:
            for receipt in res.receipts:
                print(receipt, file=sys.stderr)
        if a.volcano:
            for path in _volcanoes(res, a.volcano):
                print(f"drew {path}", file=sys.stderr)
    return 0


def _what_values(a: argparse.Namespace) -> str:
    """What is known of the values to test; a hint where they can't be read, as the call is wrong in any case."""
    from skytether import SkytetherError

    try:
        with _open(a) as db:
            return f": {db[a.name]._what_values(a.layer)}"
    except (SkytetherError, OSError):
        return ": the one is for raw counts, the other for values that are normalised and logarithmic already"


def _export(a: argparse.Namespace) -> int:
    from skytether import InvalidError

    from . import _write

    try:
        kind = _write.format_of(a.out, a.format)
    except InvalidError as e:
        raise _UsageError(str(e)) from e
    there = next((file for file in _write.targets(a.out, kind) if os.path.exists(file)), None)
    if there is not None and not a.force:
        raise _InTheWay(f"{there} exists already: choose another name, or --force")
    _check_parent(a.out.rstrip("/" + os.sep))
    with _open(a) as db:
        files, (cells, genes) = _write.export(db[a.name], a.out, kind, _listed(a.genes), _listed(a.cells), a.layer, True)
    print(f"wrote {', '.join(files)}: {cells:,} cells x {genes:,} genes", file=sys.stderr)
    return 0


def _listed(given: str | None) -> list[str] | None:
    """The names that an option gives: with commas between them, or the lines of a file (``@FILE``)."""
    if given is None:
        return None
    if not given.startswith("@"):
        names = [name.strip() for name in given.split(",") if name.strip()]
        if not names:
            raise _UsageError(f"there is no name in {given!r}: write names with commas between them, or @FILE for a file with one a line")
        return names
    path = given[1:]
    try:
        with open(path, encoding="utf-8") as lines:
            names = [line.strip() for line in lines if line.strip()]
    except OSError as e:
        raise _InTheWay(f"cannot read names from {path or 'a file without a name'}: {_cli_words.reason(e)}; @FILE is a file with one name a line") from e
    except UnicodeDecodeError as e:
        raise _InTheWay(f"cannot read names from {path}: it is no text in UTF-8; @FILE is a file with one name a line") from e
    if not names:
        raise _InTheWay(f"{path} names none: @FILE is a file with one name a line")
    return names


def _drop(a: argparse.Namespace) -> int:
    with _open(a) as db:
        db.drop(a.name)
    print(f"dropped {a.name}", file=sys.stderr)
    return 0


def _demo(a: argparse.Namespace) -> int:
    from . import connect
    from . import open as open_fleet
    from ._demo_fleet import Failed, kinetic_fleet
    from ._open import open_source
    from ._text import table

    if not os.path.exists(a.data):
        raise _InTheWay(f"{a.data} is not here: run this where the project is, or give --data")
    source = open_source(a.data)
    source.close()
    if "cell_type" not in source.obs.columns:
        raise _InTheWay(f"obs of {a.data} has no column cell_type, which the demo groups by: use `msgx ingest` and `msgx de --groupby COLUMN`")
    try:
        os.makedirs(a.out, exist_ok=True)
    except OSError as e:
        raise _InTheWay(f"cannot make the directory {a.out}: {_cli_words.reason(e)}; choose another one with --out") from e
    fleet = os.path.join(a.out, "fleet")
    with contextlib.ExitStack() as opened:
        if a.drives == "kinetic":
            print(f"4 Kinetic drives in {fleet}-kinetic begin, and a host over them ...", file=sys.stderr)
            try:
                address = opened.enter_context(kinetic_fleet(f"{fleet}-kinetic", 4))
            except Failed as e:
                raise _InTheWay(str(e)) from e
            db = opened.enter_context(connect(address))
        else:
            print(f"A fleet of 4 drives in {fleet}; {a.data} goes in ...", file=sys.stderr)
            db = opened.enter_context(open_fleet(fleet, drives=4))
        ds = db.ingest(a.data, "blood/pbmc3k", replace=True)
        print(f"{_summary(ds)}.\nEach cell type against all other cells, tested where the data are ...\n", file=sys.stderr)
        res = ds.rank_genes_groups("cell_type", transform="log1p_cp10k")
        types = [g for g in res.groups if g != "unassigned"]
        cells = ds.obs["cell_type"].value_counts()
        rows = []
        for g in types:
            best = res.to_df(g).iloc[0]
            rows.append((g, int(cells[g]), "  ".join(f"{n:<8}" for n in res.top(6)[g]).rstrip(), float(best["scores"])))
        print(f"Marker genes of {ds.name}, best first ({res._subtitle()})\n")
        print(table(["cell type", "cells", "marker genes", "best score"], rows, _width()))
        if "unassigned" in res.groups:
            print(f"{int(cells['unassigned']):,} cells 'unassigned' count as other cells and are not listed.")
        print(f"\n{res.receipt}")
        for g, name in _file_names(types).items():
            res.plot_volcano(g, path=os.path.join(a.out, f"volcano-{name}.png"))
        res.to_df().to_csv(os.path.join(a.out, "markers.csv"), index=False)
    print(f"\nVolcano plots ({len(types)}) and markers.csv are in {a.out}.")
    return 0


# ---- helpers


def _open(a: argparse.Namespace, create: bool = False) -> MsgExpress:
    from skytether import NotFoundError, _internal

    from . import connect, open as open_fleet

    where, is_host = _fleet_of(a)
    if is_host:
        # Where an option is absent, the environment's value counts: `skytether.connect` reads it.
        return connect(where, token=a.token, tls_ca=a.tls_ca)
    if os.path.isfile(where):
        raise _InTheWay(f"{where} is a file, and a fleet is a directory: name another one with --fleet")
    if not create and not _internal.is_store(where) and not os.path.exists(os.path.join(where, "fleet.json")) and not os.path.exists(os.path.join(where, "drives")):
        raise NotFoundError(f"there is no fleet at {where}: `msgx ingest` makes one")
    return open_fleet(where, drives=getattr(a, "drives", None), create=create)


def _fleet_of(a: argparse.Namespace) -> tuple[str, bool]:
    """Which fleet is meant, and whether it is a host: a URL, or host:port where no directory is called so."""
    from skytether import _internal

    where = a.fleet or os.environ.get("MSGX_FLEET")
    if not where:
        raise _UsageError("say which fleet: --fleet DIR, or --fleet URL of a host")
    is_host = _internal.is_host(where)
    if is_host and getattr(a, "drives", None) is not None:
        raise _UsageError("--drives is for a fleet in a directory; a host has its drives")
    return where, is_host


def _width() -> int | None:
    """How wide a table may be: as wide as the terminal, if it goes to one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _summary(ds: Any) -> str:
    layers = [layer for layer in ds.layers if layer not in ds.other_features]
    more = f", layers {', '.join(layers)}" if layers else ""
    if ds.other_features:
        more += f", other features {', '.join(ds.other_features)}"
    return f"{ds.name}: {ds.n_obs:,} cells x {ds.n_vars:,} genes{more}"


def _volcanoes(res: Any, target: str) -> list[str]:
    """One file for one group, else a file per group in a directory."""
    if _is_picture(target):
        res.plot_volcano(res.groups[0], path=target)
        return [target]
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as e:
        raise _InTheWay(f"cannot make the directory {target}: {_cli_words.reason(e)}") from e
    paths = []
    for g, name in _file_names(res.groups).items():
        path = os.path.join(target, f"volcano-{name}.png")
        res.plot_volcano(g, path=path)
        # The name alone does not tell groups apart that differ in signs.
        paths.append(path if name == g else f"{path} ({g})")
    return paths


def _is_picture(target: str) -> bool:
    """Whether the target of `--volcano` is a file: it ends as pictures do, and no directory is called so."""
    return os.path.splitext(target)[1].lower().removeprefix(".") in _pictures() and not os.path.isdir(target)


def _pictures() -> dict[str, str]:
    """The endings of the pictures that matplotlib can write."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg.get_supported_filetypes()


def _check_volcano(target: str, groups: list[str]) -> None:
    """Refuses a target of `--volcano` that could not be drawn to, before any work is done for it."""
    if _is_picture(target):
        if len(groups) > 1:
            raise _UsageError(f"{len(groups)} groups do not fit into one plot: give a directory to --volcano, or one --group")
        _check_parent(target)
    elif os.path.isdir(target) or target.endswith(os.sep):
        pass
    elif os.path.exists(target):
        raise _InTheWay(f"{target} is a file, and no picture by its name: give --volcano a directory, or a file that ends in .png, .svg or .pdf")
    elif os.path.splitext(target)[1]:
        raise _UsageError(f"{target}: pictures end in one of {', '.join('.' + e for e in sorted(_pictures()))}; for a directory of that name, put {os.sep} behind it")


def _check_parent(path: str) -> None:
    """Refuses a file in a directory that is not there or can't be written to, before any work is done for it."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        raise _InTheWay(f"there is no directory {parent} to put {os.path.basename(path)} into")
    if not os.access(parent or ".", os.W_OK):
        raise _InTheWay(f"cannot write to {parent or 'the current directory'}: choose another directory for {os.path.basename(path)}")


def _check_file(path: str) -> None:
    """As `_check_parent`, and refuses a directory that is called like the file."""
    _check_parent(path)
    if os.path.isdir(path):
        raise _InTheWay(f"{path} is a directory: choose another name for the file")


def _write_h5ad(adata: Any, path: str) -> None:
    try:
        adata.write_h5ad(path)
    except OSError as e:
        raise _InTheWay(f"cannot write {path}: {_cli_words.reason(e)}") from e


def _file_names(groups: list[str]) -> dict[str, str]:
    """A part of a file's name for each group, all of them different, also for systems that don't tell capitals from
    small letters. A group whose name can be one as it is keeps it."""
    plain = {g: "".join(c if c.isalnum() or c in "-_+" else "-" for c in g)[:80] or "group" for g in groups}
    names: dict[str, str] = {}
    taken: set[str] = set()
    for g in sorted(groups, key=lambda g: plain[g] != g):  # the sort is stable
        number, name = 1, plain[g]
        while name.casefold() in taken:
            number += 1
            name = f"{plain[g]}-{number}"
        taken.add(name.casefold())
        names[g] = name
    return {g: names[g] for g in groups}


def _parser() -> argparse.ArgumentParser:
    from . import _cli_across, _cli_counts, _cli_plots, _cli_steps, _cli_tests, _cli_versions
    from ._cli_help import EXAMPLES, described, sentence, wrapped

    parser = argparse.ArgumentParser(prog="msgx", epilog=_EPILOG)
    described(parser, sys.modules[__name__], "Differential expression over single-cell data on a fleet of drives.", *EXAMPLES[""])
    parser.add_argument("-V", "--version", action="version", version=f"msgx {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, fleet: bool = True, among: Any = commands) -> argparse.ArgumentParser:
        sub = among.add_parser(name, help=text, description=sentence(text), epilog=_EPILOG if fleet else None)
        sub.set_defaults(run=run)
        if among is commands and name in EXAMPLES:
            described(sub, sys.modules[__name__], wrapped(sentence(text)), *EXAMPLES[name])
        if fleet:
            sub.add_argument("--fleet", metavar="DIR|URL", help="where the data are")
            sub.add_argument(
                "--token",
                type=_token,
                metavar="TOKEN",
                help="the token that a host asks for (default: SKYTETHER_TOKEN, which other users of this machine can't see)",
            )
            sub.add_argument(
                "--tls-ca",
                metavar="FILE",
                help="a PEM file with the authority of the host's certificate (default: SKYTETHER_TLS_CA, or else those that the system trusts)",
            )
        return sub

    p = command("ingest", _ingest, "store an expression matrix: h5ad, h5mu, loom, zarr, 10x .h5 or mtx, an EBI bundle, or text of genes by cells")
    p.add_argument("file", metavar="FILE", nargs="+", help="the file, or the directory of files; several become one data set")
    p.add_argument("--to", required=True, type=_name, metavar="DOMAIN/DATASET", help="its name on the fleet")
    p.add_argument("--drives", type=_positive, metavar="N", help="how many drives a new fleet gets (default 4)")
    p.add_argument("--layer", metavar="NAME", help="the matrix that the data set is about: a layer, or raw (default X)")
    kept = p.add_mutually_exclusive_group()
    kept.add_argument("--layers", action="append", metavar="NAME", help="keep this layer, and no other one that is not named; may be repeated (default: all are kept)")
    kept.add_argument("--no-layers", action="store_true", help="keep no layer but the one of --layer")
    p.add_argument("--genome", metavar="NAME", help="which genome of a 10x .h5 file with several")
    p.add_argument("--modality", metavar="NAME", help="which AnnData of a MuData (h5mu, zarr) with several")
    p.add_argument("--orientation", choices=("genes_by_cells", "cells_by_genes"), help="what the rows of a text file are, where names do not say it")
    p.add_argument("--feature-types", type=_types, metavar="TYPE,...|all", help="which features of a 10x file are the matrix (default: Gene Expression); others are kept apart")
    several = p.add_argument_group("several files as one data set")
    several.add_argument("--batch", metavar="COLUMN", help="the obs column that says which file a cell is from (default batch)")
    several.add_argument("--label", action="append", metavar="NAME", help="what that column calls a file, once for each (default: the files' names)")
    several.add_argument("--prefix", action="append", metavar="TEXT", help="of a directory of several 10x matrices, the one whose files' names begin so; may be repeated")
    several.add_argument("--join", choices=("inner", "outer"), help="where genes differ: those that all files have, or all of them")
    several.add_argument("--on", metavar="COLUMN", help="the var column by which genes are the same (default: their names)")
    several.add_argument("--fill-value", type=float, metavar="0|nan", help="with --join outer, what a file has for genes that it lacks")
    several.add_argument("--clash", action="append", type=_answer, metavar="COLUMN=text|number|drop", help="what an obs column becomes whose type differs between files")
    p.add_argument("--replace", action="store_true", help="put it in the place of a data set of that name")

    p = command("ls", _ls, "list the expression data sets")
    p.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print it (default: %(default)s)")

    p = command("info", _info, "describe a data set")
    p.add_argument("name", type=_name, metavar="DOMAIN/DATASET", help="the data set")
    p.add_argument("--format", choices=("table", "json"), default="table", help="how to print it (default: %(default)s)")

    p = command("de", _de, "rank the genes of groups of cells by differential expression")
    p.add_argument("name", type=_name, metavar="DOMAIN/DATASET", help="the data set")
    p.add_argument("--groupby", required=True, metavar="COLUMN", help="the obs column that groups the cells")
    p.add_argument("--reference", default="rest", metavar="GROUP", help="the group to compare with (default: all other cells)")
    p.add_argument("--group", action="append", metavar="GROUP", help="test just this group; may be repeated")
    p.add_argument(
        "--method",
        default="t-test",
        choices=("t-test", "t-test_overestim_var", "student", "wilcoxon", "logreg"),
        help="Welch's test (default), scanpy's variant, Student's, Wilcoxon's rank sum test, or a logistic regression of --genes",
    )
    p.add_argument("--tie-correct", action="store_true", help="for --method wilcoxon: ties reduce the variance, as in scipy (scanpy's default is that they don't)")
    p.add_argument("--transform", choices=("log1p_cp10k", "none"), help="log1p_cp10k for raw counts, none for values normalised already (required)")
    p.add_argument("--correction", default="benjamini-hochberg", choices=("benjamini-hochberg", "bonferroni"), help="how p-values are corrected for the number of genes (default: %(default)s)")
    p.add_argument("--layer", metavar="NAME", help="another matrix than the main one")
    p.add_argument("--top", type=_top, metavar="N", help=f"the N best genes of each group, or all (default: {_SHOWN} where a table goes to a terminal, else all)")
    p.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print it (default: %(default)s)")
    p.add_argument("--receipt", action="store_true", help="say on stderr what ran where")
    p.add_argument("--volcano", metavar="DIR|FILE", help="draw volcano plots: FILE (.png, .svg, .pdf, .jpg and what else matplotlib writes) for one group, else one per group in DIR")

    _cli_tests.add_options(p)
    _cli_tests.add(command, sys.modules[__name__])
    _cli_counts.add(commands, command, sys.modules[__name__])
    _cli_plots.add(commands, command, sys.modules[__name__])
    _cli_steps.add(commands, command, sys.modules[__name__])
    _cli_across.add(commands, command, sys.modules[__name__])
    _cli_versions.add(command, sys.modules[__name__])

    p = command("export", _export, "write a data set as an h5ad file, as Parquet, or as a 10x mtx directory")
    p.add_argument("name", type=_name, metavar="DOMAIN/DATASET", help="the data set")
    p.add_argument("out", metavar="OUT", help="OUT.h5ad, OUT.parquet (with OUT.obs.parquet and OUT.var.parquet), or OUT/ for a 10x mtx directory")
    p.add_argument("--format", choices=("h5ad", "parquet", "mtx"), help="where OUT does not say it")
    p.add_argument("--genes", metavar="NAME,...|@FILE", help="just these genes, in this order; @FILE has one a line")
    p.add_argument("--cells", metavar="NAME,...|@FILE", help="just these cells")
    p.add_argument("--layer", metavar="NAME", help="for Parquet and mtx, another matrix than the main one")
    p.add_argument("--force", action="store_true", help="overwrite what is there")

    p = command("drop", _drop, "remove a data set")
    p.add_argument("name", type=_name, metavar="DOMAIN/DATASET", help="the data set")

    p = command("demo", _demo, "marker genes of 2,700 blood cells, found by four drives", fleet=False)
    p.add_argument("--data", default=os.path.join("examples", "data", "pbmc3k.h5ad"), metavar="FILE", help="an h5ad file of raw counts with an obs column cell_type (default: %(default)s)")
    p.add_argument("--out", default="demo-out", metavar="DIR", help="where fleet, plots and markers.csv go (default: %(default)s)")
    where = "drives in this process, or Kinetic drives as processes of their own, which run the tests as programs (default: %(default)s)"
    p.add_argument("--drives", choices=("embedded", "kinetic"), default="embedded", help=where)
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def _token(text: str) -> str:
    """A token as far as it can be checked without a host. The message does not repeat it: it is a secret."""
    if not re.fullmatch(r"[!-~]+", text):
        raise argparse.ArgumentTypeError("a token has no spaces and no special characters")
    return text


def _answer(text: str) -> str:
    if text.partition("=")[2] not in ("text", "number", "drop"):
        raise argparse.ArgumentTypeError(f"{text!r} does not say what an obs column becomes: write COLUMN=text, COLUMN=number or COLUMN=drop")
    return text


def _types(text: str) -> list[str] | str:
    """Types of features, with commas between them, or ``all``."""
    return "all" if text == "all" else [kind.strip() for kind in text.split(",") if kind.strip()]


def _top(text: str) -> int:
    """How many genes; 0 for all."""
    return 0 if text == "all" else _positive(text)


def _name(text: str) -> str:
    """A data set's name as far as it can be checked without a fleet, in our spelling."""
    from ._names import slashed

    text = slashed(text)
    if not re.fullmatch(r"[A-Za-z0-9_][\w-]*[./][A-Za-z0-9_][\w-]*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no data set's name: write DOMAIN/DATASET, of letters, digits, '_' and '-', for example blood/pbmc3k")
    return text


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("skytether")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
