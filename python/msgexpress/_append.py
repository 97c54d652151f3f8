"""More cells for a data set: its own and the new ones as several sources that become one.

Matrices are stored by gene, so new cells are new values of every gene. They become a part of their own of each matrix,
which stays as it is. What belongs to cells and is small is written again: obs, obsm, totals. Where a matrix can't take
them as a part, all of it is written again, streamed from the drives and back in bounded memory. The commit exchanges
all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from skytether import InvalidError, UnsupportedError

from . import _features, _history, _open, _progress, _several, _shell
from ._names import naming
from ._source import Added, Encoding, Matrix, Source, labels, push_compressed
from ._stream import Stream

if TYPE_CHECKING:
    import pandas as pd

    from ._versions import Versions

#: Parts of a matrix, at most: the drives' writer has the same limit.
MOST_PARTS = 8


def append(
    ds: Versions, source: Any, batch: Any, choices: _open.Choices, prefix: str | None, joining: _several.Joining, progress: Callable[[int, int], None] | bool | None
) -> dict[str, Any]:
    """Makes a version of `ds` with the cells of `source` behind its own; the report of the commit. Its `rewritten` says
    why matrices were written again, and is None where the new cells are a part of their own."""
    opened = _open.open_source(source, dataclasses.replace(choices, prefix=prefix))
    try:
        if not len(opened.obs):
            raise InvalidError(f"{opened.what} has no cells: there is nothing to append to {ds.name}")
        with ds._unchanged():
            own = _own(ds)
            _check_names(ds, own.obs, opened)
            column, here, there = _batches(ds, batch)
            if column is not None:
                _mark(own, column, here)
                _mark(opened, column, there)
            joining.first = True
            whole = _several.joined([own, opened], {}, joining)
            cells = len(opened.obs)
            origin = ds._kept["matrices"]["x"]["origin"]
            whole.arrange(None if origin == "X" else next(label for label, at in labels(ds._origins).items() if at == origin))
            whole.what = ds._kept["source"]
            params = {"source": opened.what, **({} if batch is None else {"batch": batch})}
            tables = list(_stored(ds))
            version = _history.Version("append", params, f"{cells:,} cells", ds._generation, _history.versions(ds._kept, ds._generation), tables)
            name, (added, why) = ds.name.replace("/", ".", 1), _part(ds, whole, opened)
            with naming(ds.name), _progress.reporter(progress, f"appending to {ds.name}") as report:
                if added is not None:
                    number = max(len(parts) for parts in added.parts.values())
                    as_part = dataclasses.replace(version, changed=f"{version.changed}, as part {number} of a matrix")
                    try:
                        told = whole.write(ds.fleet, name, True, report, as_part, added)
                    except UnsupportedError as e:
                        added, why, whole.note = None, str(e), None
                if added is None:
                    again = _history.short(f"{version.changed}; matrices were written again: {why}")
                    told = whole.write(ds.fleet, name, True, report, dataclasses.replace(version, changed=again))
            ds._renew()
        return {**told, "rewritten": why or None}
    finally:
        opened.close()


def _part(ds: Versions, whole: Source, opened: Source) -> tuple[Added | None, str]:
    """What the new cells add to matrices that stay as they are; or None, and why they can't stay."""
    kept = ds._kept["matrices"]
    if {(m.table, m.origin) for m in whole.matrices} != {(table, known["origin"]) for table, known in kept.items()}:
        return None, "the new cells don't have all matrices"
    if any(m.push_others is None for m in whole.matrices):
        return None, "the new cells have other genes"
    parts = {table: [*known.get("parts", [0]), int(known["shape"][0])] for table, known in kept.items()}
    if any(len(firsts) > MOST_PARTS for firsts in parts.values()):
        return None, f"a matrix has at most {MOST_PARTS} parts"
    if not len(opened.obs) or not ds.n_obs or any(not m.shape[1] for m in whole.matrices):
        return None, "there are no cells or genes"
    return Added(len(opened.obs), sum(m.values for m in opened.matrices), ds._ordered("cells"), parts), ""


def _stored(ds: Versions) -> dict[str, Any]:
    """The tables of a data set, by their names."""
    tables: dict[str, Any] = ds.fleet.describe(ds.name)["tables"]
    return tables


def _own(ds: Versions) -> Source:
    """A stored data set as a source."""
    shell, stored = ds._shell, _stored(ds)
    matrices = []
    for table, kept in ds._kept["matrices"].items():
        var = ds._own_var(table) if kept["origin"].startswith(_features.ORIGIN) else None
        encoding = Encoding(kept["layout"], kept["dtype"], kept["index"], kept["indptr"], kept["array"])
        stream = Stream(ds, table, None, None)
        matrices.append(Matrix(kept["origin"], tuple(kept["shape"]), encoding, int(stored[table]["matrix"]["nonzeros"]), _pushes(stream), table, var))
    raw = None if shell.raw is None or "raw/X" not in ds._origins else shell.raw.var
    made = Source(ds.name, shell.obs.copy(), shell.var.copy(), matrices, _shell.of_anndata(shell, ds.name), raw, ds._kept.get("log1p_base"))
    made.renamed = bool(ds._kept.get("gene_ids"))
    return made


def _pushes(stream: Stream) -> Callable[[Any, Callable[[int], None]], None]:
    def push(sink: Any, step: Callable[[int], None]) -> None:
        push_compressed(sink, step, True, ((first, part.indptr, part.indices, part.data) for first, part in stream.by_gene()))

    return push


def _check_names(ds: Versions, own: pd.DataFrame, opened: Source) -> None:
    """Refuses cells that are there already, by their names: more likely the same file twice than other cells."""
    names = opened.obs.index.astype(str)
    twice = names[names.isin(own.index.astype(str))]
    if len(twice):
        some = ", ".join(map(repr, twice[:3]))
        raise InvalidError(
            f"{opened.what} has {len(twice):,} cells whose names {ds.name} has already ({some}{', ...' if len(twice) > 3 else ''}): "
            "give them other names first, for example with a suffix (adata.obs_names += \"-2\")"
        )


def _batches(ds: Versions, batch: Any) -> tuple[str | None, Any, Any]:
    """The obs column that tells the batches apart, what the cells that are there get (None: what they have), and what
    the new ones get."""
    if batch is None:
        return None, None, None
    column, label = next(iter(batch.items())) if isinstance(batch, Mapping) and len(batch) == 1 else ("batch", batch)
    pair = [str(one) for one in label] if isinstance(label, (list, tuple)) else None
    if isinstance(batch, Mapping) and len(batch) != 1 or pair is not None and len(pair) != 2:
        raise InvalidError(f"batch is {batch!r}: say one label, or a pair for the cells that are there and the new ones, or a dict of a column and these")
    is_there = column in ds._shell.obs.columns
    if is_there and pair is not None:
        raise InvalidError(f"obs has a column {column!r} already: say only what the new cells get, batch={pair[1]!r}")
    if not is_there and pair is None:
        raise InvalidError(f"obs has no column {column!r} yet: say what the cells that are there get as well, for example batch=(\"first\", {str(label)!r})")
    return column, None if pair is None else pair[0], str(label) if pair is None else pair[1]


def _mark(source: Source, column: str, label: str | None) -> None:
    """Gives all cells of a source a label; None leaves them as they are."""
    import pandas as pd

    if label is None:
        return
    bare = _shell.opened(source.shell, source.what)
    if column in bare.obs.columns:
        raise InvalidError(f"obs of {source.what} has a column {column!r} already: rename it, or name another one with batch={{column: label}}")
    bare.obs[column] = pd.Categorical([label] * bare.n_obs)
    source.shell = _shell.of_anndata(bare, source.what)
    source.obs = bare.obs
