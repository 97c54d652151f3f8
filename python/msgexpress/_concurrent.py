"""Versions that two writers make at the same time: the later one follows on the earlier, unless both change the same.

A version is made of one generation. Where another one was committed since, the change goes on top of that, if it has
the same cells and genes, and if what the change writes is there as the writer knew it. Otherwise it would overwrite
somebody's change, and that is a `ConflictError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _history

if TYPE_CHECKING:
    import pandas as pd

    from ._versions import Change, Versions


def follow(ds: Versions, change: Change) -> bool:
    """Whether `ds` was moved on to the newest version, which `change` may follow. Otherwise it stays as it is.

    Raises
    ------
    NotFoundError
        The data set was dropped.
    """
    newest = type(ds)(ds.fleet, ds.name)
    if newest._generation == ds._generation or not _has_same_cells(ds, newest) or _overlaps(ds, newest, change):
        return False
    ds._renew()
    return True


def _has_same_cells(mine: Versions, newest: Versions) -> bool:
    """Whether the newest version came of that of `mine`, by versions that leave cells and genes as they are."""
    rows = _history.versions(newest._kept, newest._generation)
    last = _history.versions(mine._kept, mine._generation)[-1]
    since = next((rows[at + 1 :] for at, row in enumerate(rows) if (row["version"], row["generation"]) == (last["version"], last["generation"])), None)
    return since is not None and all(row["action"] != "append" for row in since) and newest._kept["shape"] == mine._kept["shape"]


def _overlaps(mine: Versions, newest: Versions, change: Change) -> bool:
    """Whether anything that `change` writes is other than it was."""
    # h5py comes with it, which takes a while to import.
    from . import _elements

    elements = [_elements.mapping_at(part, key, mine._swapped) for part, given in change.mappings.items() for key in given]
    layers = [f"layers/{name}" for name in change.layers]
    return (
        any(_element(mine, at) != _element(newest, at) for at in elements)
        or any(_matrix(mine, origin) != _matrix(newest, origin) for origin in layers)
        or any(mine._kept.get("views", {}).get(name) != newest._kept.get("views", {}).get(name) for name in change.views)
        or bool(change.obs) and _differ(mine._shell.obs, newest._shell.obs, change.obs)
        or bool(change.var) and _differ(mine._genes, newest._genes, change.var)
    )


def _element(ds: Versions, at: str) -> tuple[bool, str | None, int | None]:
    """What tells one content of an entry of obsm, varm, obsp or uns from another: the shell's, or its table."""
    elements = ds._kept.get("elements", {})
    table = elements.get(at)
    return at in elements, table, None if table is None else ds._written.get(table)


def _matrix(ds: Versions, origin: str) -> tuple[str | None, int | None]:
    table = next((table for table, kept in ds._kept["matrices"].items() if kept["origin"] == origin), None)
    return table, None if table is None else ds._written.get(table)


def _differ(before: pd.DataFrame, now: pd.DataFrame, columns: Any) -> bool:
    """Whether one of `columns` is there in one frame only, or has other values."""
    return any((name in before.columns) != (name in now.columns) or name in now.columns and not before[name].equals(now[name]) for name in columns)
