"""The command `msgx views`: views of a data set are listed, saved by limits, and dropped."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable

from ._cli_help import described

_VIEWS = """Views of a data set: cells and genes that limits leave, kept by name. Nothing is copied.

Without --save or --drop the views are listed. In Python, ds.view("clean") is one, and its methods work on these cells
and genes alone. Limits are those of `msgx qc`, which tries them; cells first, then genes in the cells that are left."""
_EXAMPLES = (
    "msgx views blood/pbmc3k",
    "msgx views blood/pbmc3k --save clean --min-genes 200 --min-cells 3 --replace",
    "msgx views blood/pbmc3k --drop clean",
)


def add(command: Callable[..., argparse.ArgumentParser], cli: Any, add_limits: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds the command; `add_limits` gives it the limits of `msgx qc`."""
    p = described(command("views", _views, "list, save and drop views: cells and genes that limits leave"), cli, _VIEWS, *_EXAMPLES)
    p.add_argument("name", type=cli._name, metavar="DOMAIN/DATASET", help="the data set")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--save", metavar="VIEW", help="save what the limits leave under this name")
    what.add_argument("--drop", metavar="VIEW", help="drop the view of this name; no cell and no gene is removed")
    p.add_argument("--replace", action="store_true", help="with --save: in place of a view of that name")
    p.add_argument("--format", choices=("table", "csv", "json", "arrow"), default="table", help="how to print the list (default: %(default)s)")
    add_limits(p)


def _views(a: argparse.Namespace) -> int:
    import pandas as pd

    from ._text import write_frame

    cells = {f"{side}_{what}": getattr(a, f"{side}_{what}") for side in ("min", "max") for what in ("genes", "counts")}
    genes = {f"{side}_cells": getattr(a, f"{side}_cells") for side in ("min", "max")}
    limited = [limit for limit in (*cells.values(), *genes.values(), a.max_pct) if limit is not None]
    if not a.save and (limited or a.replace):
        raise a.cli._UsageError("limits and --replace belong to --save VIEW: name the view")
    if a.save and not limited:
        raise a.cli._UsageError("--save needs a limit, such as --min-genes 200")
    with a.cli._open(a) as db:
        ds = db[a.name]
        if a.drop:
            ds.drop_view(a.drop)
            print(f"dropped view {a.drop} of {ds.name}", file=sys.stderr)
        elif a.save:
            view: Any = ds
            if a.max_pct:
                view = view.filter_cells(mask=_within(ds, a))
            if any(limit is not None for limit in cells.values()):
                view = view.filter_cells(**cells)
            if any(limit is not None for limit in genes.values()):
                view = view.filter_genes(**genes)
            view.save(a.save, replace=a.replace)
            print(f"view {a.save} has {view.n_obs:,} of {ds.n_obs:,} cells and {view.n_vars:,} of {ds.n_vars:,} genes of {ds.name}", file=sys.stderr)
        else:
            found = [(name, ds.view(name)) for name in ds.views]
            rows = [{"view": name, "cells": view.n_obs, "genes": view.n_vars, "filters": ", ".join(view.filters)} for name, view in found]
            write_frame(pd.DataFrame(rows, columns=["view", "cells", "genes", "filters"]), a.format, sys.stdout)
    return 0


def _within(ds: Any, a: argparse.Namespace) -> Any:
    """A mask of the cells whose shares of sets of genes are within --max-pct."""
    import numpy as np

    sets = dict(a.sets or {"mt": "MT-"})
    unknown = next((name for name, _ in a.max_pct if name not in sets), None)
    if unknown is not None:
        raise a.cli._UsageError(f"--max-pct {unknown}=...: there is no set {unknown}; name its genes with --set {unknown}=PREFIX")
    obs, _ = ds.qc_metrics(sets)
    return np.logical_and.reduce([np.nan_to_num(obs[f"pct_counts_{name}"].to_numpy()) <= share for name, share in a.max_pct])
