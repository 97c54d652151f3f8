"""What `msgx info` says of a data set."""

from __future__ import annotations

from typing import Any, Iterator

from ._text import table

#: A column with more values than this is no grouping.
_GROUPS = 200


def tables(ds: Any, width: int | None) -> Iterator[str]:
    """The columns of obs and var, with the sizes of groups, and what else there is; tables for people."""
    for kind, frame in (("obs", ds.obs), ("var", ds.var)):
        rows = [(name, str(column.dtype), _distinct(column), _some(column)) for name, column in _columns(frame)]
        if rows:
            yield table([f"{kind} column", "type", "values", "for example"], rows, width)
    others = _others(ds)
    if others:
        yield table(["besides", "name", "shape", "type"], [(o["in"], o["name"], " x ".join(map(str, o["shape"] or [])), o["type"]) for o in others], width)


def _columns(frame: Any) -> list[tuple[str, Any]]:
    # By position: names may repeat.
    return [(str(name), frame.iloc[:, at]) for at, name in enumerate(frame.columns)]


def about(ds: Any, stored: int) -> dict[str, Any]:
    """What `info` says, for programs."""
    return {
        "name": ds.name,
        "cells": ds.n_obs,
        "genes": ds.n_vars,
        "layers": ds.layers,
        "other_features": ds.other_features,
        "source": ds._kept["source"],
        "bytes_stored": stored,
        "matrices": [{"table": t, "from": m["origin"], "shape": m["shape"], "was": m["layout"], "type": m["dtype"]} for t, m in ds._kept["matrices"].items()],
        "obs": [_column(name, column) for name, column in _columns(ds.obs)],
        "var": [_column(name, column) for name, column in _columns(ds.var)],
        "others": _others(ds),
    }


def _column(name: str, column: Any) -> dict[str, Any]:
    sizes = _sizes(column)
    about = {"column": name, "type": str(column.dtype), "values": _distinct(column)}
    return about if sizes is None else {**about, "groups": sizes}


def _distinct(column: Any) -> int | None:
    """How many values a column has; None for values that can't be compared, such as lists."""
    try:
        return int(column.nunique())
    except TypeError:
        return None


def _sizes(column: Any) -> dict[str, int] | None:
    """The numbers of cells (or genes) of each group, if a column groups them: in the order of its categories, else the
    largest first."""
    import pandas as pd

    count = _distinct(column)
    if count is None or count > _GROUPS or pd.api.types.is_float_dtype(column.dtype):
        return None
    categories = isinstance(column.dtype, pd.CategoricalDtype)
    if not categories and count * 2 > len(column):
        return None
    counts = column.value_counts(sort=not categories)
    return {str(value): int(n) for value, n in counts.items()}


def _others(ds: Any) -> list[dict[str, Any]]:
    """What else there is: embeddings, graphs and the like."""
    shell = ds._shell
    found = []
    for kind in ("obsm", "varm", "obsp", "varp"):
        for name, value in getattr(shell, kind).items():
            found.append({"in": kind, "name": str(name), "shape": [int(n) for n in getattr(value, "shape", ())], "type": str(getattr(value, "dtype", type(value).__name__))})
    found += [{"in": "uns", "name": str(name), "shape": None, "type": type(value).__name__} for name, value in shell.uns.items()]
    return found


def _some(column: Any) -> str:
    """The groups of a column with their sizes, or the first values of one that groups nothing."""
    sizes = _sizes(column)
    if sizes is None:
        text = ", ".join(str(v) for v in column.dropna().iloc[:1000].astype(str).unique()[:3])
        return text if len(text) <= 40 else text[:37] + "..."
    told: list[str] = []
    for number, (name, n) in enumerate(sizes.items()):
        told.append(f"{name} {n:,}")
        if len(", ".join(told)) > 120 and number + 1 < len(sizes):
            return ", ".join(told[:-1] or told) + f", and {len(sizes) - len(told[:-1] or told)} more"
    return ", ".join(told)
