"""More cells for a data set: its own and the new ones as several sources that become one.

Matrices are stored by gene, so new cells are new values of every gene. They are written again, streamed from the drives
and back in bounded memory; the commit exchanges all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from skytether import InvalidError

from . import _features, _history, _open, _progress, _several, _shell
from ._names import naming
from ._source import Encoding, Matrix, Source, labels, push_compressed
from ._stream import Stream

if TYPE_CHECKING:
    import pandas as pd

    from ._versions import Versions


def append(
    ds: Versions, source: Any, batch: Any, choices: _open.Choices, prefix: str | None, joining: _several.Joining, progress: Callable[[int, int], None] | bool | None
) -> dict[str, Any]:
    """Makes a version of `ds` with the cells of `source` behind its own; the report of the commit."""
    import dataclasses

    opened = _open.open_source(source, dataclasses.replace(choices, prefix=prefix))
    try:
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
            tables = list(ds.fleet.describe(ds.name)["tables"])
            version = _history.Version("append", params, f"{cells:,} cells", ds._generation, _history.versions(ds._kept, ds._generation), tables)
            with naming(ds.name), _progress.reporter(progress, f"appending to {ds.name}") as report:
                told = whole.write(ds.fleet, ds.name.replace("/", ".", 1), True, report, version)
            ds._renew()
        return told
    finally:
        opened.close()


def _own(ds: Versions) -> Source:
    """A stored data set as a source."""
    shell = ds._shell
    matrices = []
    for table, kept in ds._kept["matrices"].items():
        var = ds._own_var(table) if kept["origin"].startswith(_features.ORIGIN) else None
        encoding = Encoding(kept["layout"], kept["dtype"], kept["index"], kept["indptr"], kept["array"])
        stream = Stream(ds, table, None, None)
        matrices.append(Matrix(kept["origin"], tuple(kept["shape"]), encoding, int(stream.lengths.sum()), _pushes(stream), table, var))
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
