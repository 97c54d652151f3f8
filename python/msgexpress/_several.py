"""Several sources as one: cells one after the other, genes joined, as anndata.concat does it.

obs, var and what else annotates them are joined by anndata itself, of AnnData whose matrices are empty. The values are
streamed: each source pushes its own, and a `_Part` between it and the drives moves cells and genes to their places.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, Sequence

import numpy as np

from skytether import InvalidError

from . import _features, _memory, _mtx, _open, _shell, _tenx
from ._clashes import check_columns
from ._hints import instead
from ._source import Encoding, Matrix, Source

if TYPE_CHECKING:
    import anndata
    import pandas as pd

#: Endings that are no part of a label.
_ENDINGS = re.compile(r"(\.(h5ad|h5mu|h5|loom|zarr|zip|csv|tsv|txt|tab|mtx|gz))+$", re.I)


@dataclass
class Joining:
    """How several sources become one: the arguments of `MsgExpress.ingest` of these names."""

    batch: Any = None
    join: str | None = None
    on: str | None = None
    fill_value: float | None = None
    clash: Mapping[str, str] | None = None
    #: Whether what only the first source has of uns and var stays; else only what all have alike.
    first: bool = False

    @property
    def merge(self) -> Literal["same", "first"]:
        """What anndata calls that."""
        return "first" if self.first else "same"

    def check(self, several: bool) -> None:
        """Refuses values that mean nothing, and any for a single source."""
        if not several:
            given = next((name for name in ("join", "on", "fill_value", "clash") if getattr(self, name) is not None), None)
            if given is not None:
                raise InvalidError(f"{given}= is for several sources: give a list of them, or leave it out")
        if self.join not in (None, "inner", "outer"):
            raise InvalidError(f'join is {self.join!r}: say "inner" for the genes that all sources have, or "outer" for all genes')
        if self.fill_value is not None and not (self.fill_value == 0 or self.fill_value != self.fill_value):
            raise InvalidError(f"fill_value is {self.fill_value!r}: genes that a source lacks are 0 or NaN there")


def open_sources(source: Any, choices: _open.Choices, prefix: Any, joining: Joining) -> Source:
    """What an ingest was given, as one source."""
    labels: list[str] | None = None
    if isinstance(source, Mapping):
        labels, source = [str(key) for key in source], list(source.values())
    if isinstance(source, (list, tuple)):
        if prefix is not None:
            raise InvalidError("prefix= chooses in one directory: leave it out for a list of sources")
        wanted = [(one, choices) for one in source]
    elif prefix is not None and not isinstance(prefix, str):
        labels = [str(one) for one in prefix]
        wanted = [(source, _with_prefix(choices, one)) for one in labels]
    elif (
        joining.batch is not None
        and prefix is None
        and isinstance(source, (str, os.PathLike))
        and os.path.isdir(source)
        and len(found := _tenx.matrices(Path(source))) > 1
    ):
        labels = [files.label for files in found]
        wanted = [(files.matrix, choices) for files in found]
    elif joining.batch is not None:
        wanted = [(source, _with_prefix(choices, prefix))]
    else:
        joining.check(False)
        return _open.open_source(source, _with_prefix(choices, prefix))
    joining.check(True)
    if not wanted:
        raise InvalidError("there are no sources to ingest: the list is empty")
    columns = _batches(joining.batch, [one for one, _ in wanted], labels)
    opened: list[Source] = []
    try:
        for one, chosen in wanted:
            opened.append(_open.open_source(one, chosen))
        if len({one.what for one in opened}) < len(opened):
            for number, one in enumerate(opened, 1):
                one.what = f"{one.what} number {number}"
        return joined(opened, columns, joining)
    except BaseException:
        for one in opened:
            one.close()
        raise


def _with_prefix(choices: _open.Choices, prefix: str | None) -> _open.Choices:
    import dataclasses

    return dataclasses.replace(choices, prefix=prefix)


def _batches(batch: Any, sources: Sequence[Any], labels: list[str] | None) -> dict[str, list[Any]]:
    """The obs columns that say which source a cell is from, with a value for each source."""
    if isinstance(batch, Mapping):
        columns = {str(name): list(values) for name, values in batch.items()}
        if not columns:
            raise InvalidError("batch names no obs column: leave it out, or give a name, labels, or a dict of both")
    elif batch is not None and not isinstance(batch, str):
        columns = {"batch": [str(label) for label in batch]}
    else:
        found = (
            labels
            if labels is not None
            else [_ENDINGS.sub("", os.path.basename(os.path.normpath(os.fspath(s)))) if isinstance(s, (str, os.PathLike)) else "" for s in sources]
        )
        if labels is None and (len(set(found)) < len(found) or "" in found):
            found = [str(number) for number in range(len(sources))]
        columns = {batch if isinstance(batch, str) else "batch": found}
    for name, values in columns.items():
        if len(values) != len(sources):
            raise InvalidError(f"batch has {len(values)} label{'' if len(values) == 1 else 's'} for {name!r}, but there are {len(sources)} sources: give one for each")
    return columns


# ---- joining


def joined(sources: list[Source], columns: dict[str, list[Any]], joining: Joining) -> Source:
    """One source of all cells of `sources`, which it closes with itself.

    Raises
    ------
    InvalidError
        Genes differ and `join` is not said; names of genes repeat; obs columns have other types in other sources; obs
        has a column of `columns` already; or the logarithms of the sources have different bases.
    """
    import anndata
    import pandas as pd

    notes = [source.note for source in sources if source.note]
    bare = [_shell.opened(source.shell, source.what) for source in sources]
    whats = [source.what for source in sources]
    for name in columns:
        taken = next((what for what, one in zip(whats, bare) if name in one.obs.columns), None)
        if taken is not None:
            raise InvalidError(f"obs of {taken} has a column {name!r} already: name another one with batch=")
    bases = {source.log1p_base for source in sources}
    logged = {"log1p" in one.uns for one in bare}
    if len(bases) > 1:
        raise InvalidError(f"the sources have logarithms of different bases ({', '.join(map(str, bases))}; None is e): bring them to one")
    if len(logged) > 1:
        notes.append("only some of the sources say that their values are logarithms (uns['log1p'])")
    obs = check_columns([one.obs for one in bare], whats, joining.clash)
    genes = _Genes(whats, [source.var for source in sources], joining, "genes")
    var = genes.var
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = []
        for one, frame, keys in zip(bare, obs, genes.keys):
            parts.append(anndata.AnnData(obs=frame, var=one.var.set_axis(keys, axis=0), uns=dict(one.uns), obsm=dict(one.obsm), varm=dict(one.varm), varp=dict(one.varp)))
        _leave_out_uneven(parts, notes, joining.first)
        names = pd.Index(np.concatenate([frame.index.astype(str).to_numpy(object) for frame in obs]))
        first = [str(label) for label in next(iter(columns.values()), ())] or [""] * len(sources)
        keys = first if len(set(first)) == len(first) else [str(number) for number in range(len(sources))]
        apart = [frame.index.is_unique for frame in obs]
        together = anndata.concat(
            parts, join=joining.join or "outer", merge=joining.merge, uns_merge=joining.merge, keys=keys,
            # An append leaves stored names as they are: others go by them.
            index_unique=None if joining.first or names.is_unique or not any(apart) else "-",
        )
    for name, values in columns.items():
        order = list(dict.fromkeys(values))
        codes = np.repeat([order.index(value) for value in values], [len(frame) for frame in obs])
        together.obs[name] = pd.Categorical.from_codes(codes, order)
    lost = sorted({str(column) for frame in obs for column in frame.columns if column not in together.obs.columns})
    if lost:
        notes.append(f'join="inner" leaves out obs columns that not all sources have ({", ".join(lost)})')
    if any(len(one.obsp) for one in bare):
        notes.append("obsp is of one source's cells and left out")
    together = together[:, genes.index].copy() if not together.var_names.equals(genes.index) else together
    together.var_names = pd.Index(var.index)
    origins = _common(sources, notes)
    matrices, raw = [], None
    for origin in origins:
        there = [next(m for m in source.matrices if m.origin == origin) for source in sources]
        own = genes
        if origin == "raw/X":
            raw = own = _Genes(whats, [source.raw_var for source in sources], joining, "genes of raw")
        elif origin.startswith(_features.ORIGIN):
            own = _Genes(whats, [m.var for m in there], joining, origin)
        made = _matrix(origin, there, own, [len(frame) for frame in obs], joining.fill_value)
        made.var = own.var if any(m.var is not None for m in there) else None
        matrices.append(made)
        notes += own.notes
        own.notes = []
    whole = _memory.empty(
        together.obs,
        together.var,
        uns=dict(together.uns),
        obsm=dict(together.obsm),
        varm=dict(together.varm),
        varp=dict(together.varp),
        has_x="X" in origins,
        raw_var=None if raw is None else raw.var,
    )
    what = f"{len(sources)} sources ({', '.join(os.path.basename(w) or w for w in whats[:3])}{', ...' if len(whats) > 3 else ''})"

    def close() -> None:
        for source in sources:
            source.close()

    made = Source(what, together.obs, together.var, matrices, _shell.of_anndata(whole, what), None if raw is None else raw.var, sources[0].log1p_base, close)
    made.renamed = any(source.renamed for source in sources)
    made.note = "; ".join(dict.fromkeys(notes)) or None
    return made


class _Genes:
    """The genes of several sources, joined."""

    #: For each source the keys of its genes, and the number of each among the joined ones, or -1.
    keys: list[pd.Index]
    maps: list[np.ndarray]
    #: The joined keys, and what is known of the genes.
    index: pd.Index
    var: pd.DataFrame

    def __init__(self, whats: list[str], frames: list[Any], joining: Joining, what: str) -> None:
        import anndata
        import scipy.sparse

        self.keys = [_keys(frame, joining.on, where, what) for frame, where in zip(frames, whats)]
        _check_same(self.keys, whats, joining, what)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            empty = [
                anndata.AnnData(X=scipy.sparse.csr_matrix((0, len(keys)), dtype=np.float32), var=frame.set_axis(keys, axis=0)) for frame, keys in zip(frames, self.keys)
            ]
            whole = anndata.concat(empty, join=joining.join or "inner", merge=joining.merge)
        self.index = whole.var_names
        self.maps = [self.index.get_indexer(keys).astype(np.int32) for keys in self.keys]
        self.var = whole.var
        if joining.on is not None:
            names = np.empty(len(self.index), object)
            for frame, to in reversed([*zip(frames, self.maps)]):
                names[to[to >= 0]] = frame.index.astype(str).to_numpy(object)[to >= 0]
            self.var = self.var.set_axis(names, axis=0)
        lacking = [len(self.index) - int((to >= 0).sum()) for to in self.maps]
        unused = [int((to < 0).sum()) for to in self.maps]
        self.notes = []
        if any(lacking):
            said = ", ".join(f"{where} lacks {n:,}" for where, n in zip(whats, lacking) if n)
            self.notes.append(f"of {len(self.index):,} {what}, {said}: their values there are {'NaN' if joining.fill_value != 0 else 'zero'}")
        if any(unused):
            said = ", ".join(f"{n:,} of {where}" for where, n in zip(whats, unused) if n)
            self.notes.append(f'join="inner" leaves out {what} that not all sources have: {said}')


def _keys(frame: pd.DataFrame, on: str | None, where: str, what: str) -> pd.Index:
    """By what a source's genes are told apart."""
    import pandas as pd

    if on is None:
        keys = pd.Index(frame.index.astype(str).to_numpy(object))
    elif on in frame.columns:
        column = frame[on]
        if column.isna().any():
            raise InvalidError(f"{where}: {int(column.isna().sum()):,} {what} have no {on!r}: join by another column, or by their names")
        keys = pd.Index(column.astype(str).to_numpy(object))
    else:
        raise InvalidError(
            f"{where} has no {'raw.var' if what == 'genes of raw' else 'var'} column {on!r} to join by: "
            f"it has {', '.join(map(repr, frame.columns)) or 'none'}{instead(on, frame.columns)}"
        )
    if not keys.is_unique:
        twice = keys[keys.duplicated()]
        ids = next((c for c in ("gene_ids", "gene_id", "feature_id", "Accession") if c in frame.columns and c != on and frame[c].is_unique), None)
        more = f"join by their ids with on={ids!r}" if ids else "make them unique, or join by a var column of ids with on="
        raise InvalidError(f"{where}: {len(twice):,} of the {what} repeat ({', '.join(map(repr, twice.unique()[:3]))}), so they can't be joined: {more}")
    return keys


def _check_same(keys: list[pd.Index], whats: list[str], joining: Joining, what: str) -> None:
    """Refuses genes that differ where it is not said what becomes of them."""
    sets = [set(one) for one in keys]
    every, some = set.intersection(*sets), set.union(*sets)
    if len(every) == len(some):
        return
    counts = ", ".join(f"{where} has {len(one):,} ({len(one - every):,} of them not in all)" for where, one in zip(whats, sets))
    told = f"the sources have different {what}: {counts}; {len(every):,} are in all, {len(some):,} in any"
    if joining.join is None:
        raise InvalidError(f'{told}: say join="inner" for those in all, or join="outer" for all of them')
    if joining.join == "outer" and joining.fill_value is None:
        raise InvalidError(f'{told}: with join="outer", say what a source has for those that it lacks: fill_value=0, as if none was found, or fill_value=float("nan")')
    if joining.join == "inner" and not every:
        raise InvalidError(f"{told}: join by another column with on=")


def _common(sources: list[Source], notes: list[str]) -> list[str]:
    """The matrices that all sources have; `notes` gets those that only some have."""
    there = [{m.origin for m in source.matrices} for source in sources]
    every = set.intersection(*there)
    some = list(dict.fromkeys(m.origin for source in sources for m in source.matrices if m.origin not in every))
    if "X" in some:
        without = next(source.what for source, origins in zip(sources, there) if "X" not in origins)
        raise InvalidError(f"{without} has no matrix X, which other sources have: leave it out, or make one of its matrices X")
    if some:
        notes.append(f"not all sources have {', '.join(some)}: left out")
    return [m.origin for m in sources[0].matrices if m.origin in every]


def _leave_out_uneven(parts: list[anndata.AnnData], notes: list[str], keep_first: bool) -> None:
    """Leaves out what obsm has of different widths: anndata would cut or widen it. With `keep_first` that of the first
    part stays, if it has one."""
    for key in {key for part in parts for key in part.obsm}:
        there = [part.obsm[key] for part in parts if key in part.obsm]
        if len({(type(one).__name__, one.shape[1:]) for one in there}) > 1 and not all(hasattr(one, "columns") for one in there):
            stays = keep_first and key in parts[0].obsm
            whose = "of the new cells has another width" if stays else "has other widths in other sources"
            notes.append(f"obsm[{key!r}] {whose} and is left out")
            for part in parts[1:] if stays else parts:
                if key in part.obsm:
                    del part.obsm[key]


# ---- values


def _matrix(origin: str, matrices: list[Matrix], genes: _Genes, cells: list[int], fill_value: float | None) -> Matrix:
    """The matrices of several sources below each other."""
    starts = np.concatenate([[0], np.cumsum(cells)]).astype(int)
    shape = (int(starts[-1]), len(genes.index))
    lacking = [np.setdiff1d(np.arange(shape[1]), to) for to in genes.maps]
    is_nan = fill_value is not None and fill_value != 0
    dense = all(m.encoding.layout == "dense" for m in matrices)
    values = sum(m.values for m in matrices)
    index = "int64" if values > np.iinfo(np.int32).max else "int32"
    encoding = Encoding("dense", "float32") if dense else Encoding("csr", "float32", "int32", index, any(m.encoding.array for m in matrices))

    def settle() -> None:
        # Readers of text know the type only when they have read all.
        dtype = np.result_type(*(np.dtype(m.encoding.dtype) for m in matrices))
        if is_nan and any(len(some) for some in lacking) and dtype.kind != "f":
            dtype = np.dtype("float64")
        encoding.dtype = dtype.name

    settle()

    def place(matrix: Matrix, start: int, n: int, to: np.ndarray, without: np.ndarray, sink: Any, step: Callable[[int], None]) -> None:
        matrix.push(_Part(sink, start, to, shape[1]), step)
        if is_nan and len(without):
            for gene in without.tolist():
                sink.push_columns(gene, np.array([0, n], np.int64), np.arange(start, start + n, dtype=np.int32), np.full(n, np.nan, np.float32))

    def push(sink: Any, step: Callable[[int], None]) -> None:
        for matrix, start, n, to, without in zip(matrices, starts, cells, genes.maps, lacking):
            place(matrix, int(start), n, to, without, sink, step)
        settle()

    def push_others(sink: Any, step: Callable[[int], None]) -> None:
        for matrix, start, n, to, without in [*zip(matrices, starts, cells, genes.maps, lacking)][1:]:
            place(matrix, int(start) - cells[0], n, to, without, sink, step)
        settle()

    made = Matrix(origin, shape, encoding, values, push)
    if len(genes.maps[0]) == shape[1] and not len(lacking[0]) and (genes.maps[0] == np.arange(shape[1])).all():
        made.push_others = push_others
    return made


class _Part:
    """What a source takes for the drives' writer: it gives cells and genes their places among those of all sources."""

    def __init__(self, sink: Any, start: int, to: np.ndarray, genes: int) -> None:
        self._sink, self._start, self._to, self._genes = sink, start, to, genes
        self._same = len(to) == genes and bool((to == np.arange(genes)).all())

    def push_rows(self, first: int, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray) -> None:
        if not self._same:
            ((_, indptr, indices, data),) = _features.of([(first, indptr, indices, data)], self._to, "a source", lambda _: None)
            indptr = indptr.astype(np.int64, copy=False)
        self._sink.push_rows(first + self._start, indptr, np.ascontiguousarray(indices), np.ascontiguousarray(data))

    def push_columns(self, first: int, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray) -> None:
        if not len(indptr) - 1:
            return
        indices = (indices.astype(np.int64, copy=False) + self._start).astype(np.int64, copy=False)
        base = int(indptr[0])
        to = self._to[first : first + len(indptr) - 1]
        # Runs of genes that are neighbours here and there.
        ends = [*(np.flatnonzero(np.diff(to) != 1) + 1).tolist(), len(to)]
        begin = 0
        for end in ends:
            # Genes that are left out are -1, each a run of its own.
            if to[begin] >= 0:
                low, high = int(indptr[begin]) - base, int(indptr[end]) - base
                self._sink.push_columns(int(to[begin]), indptr[begin : end + 1] - indptr[begin], indices[low:high], np.ascontiguousarray(data[low:high]))
            begin = end

    def push_dense(self, first: int, rows: int, data: np.ndarray) -> None:
        if not self._same:
            there = self._to >= 0
            moved = np.zeros((rows, self._genes), data.dtype)
            moved[:, self._to[there]] = data.reshape(rows, len(self._to))[:, there]
            data = moved.reshape(-1)
        self._sink.push_dense(first + self._start, rows, data)

    def push_mtx(self, path: str, step: Callable[[int], None], here: np.ndarray | None) -> None:
        """As the writer's own: `here` numbers the genes of this matrix among the file's, or is None for all."""
        to = self._to if here is None else np.where(here >= 0, self._to[np.maximum(here, 0)], -1) if len(self._to) else np.full(len(here), -1, np.int32)
        for genes, cells, values in _mtx.entries(path):
            step(len(values))
            gene = to[genes]
            stays = gene >= 0
            gene, cells, values = gene[stays], cells[stays], values[stays]
            if len(gene):
                self._push_entries(gene, cells, values)

    def _push_entries(self, genes: np.ndarray, cells: np.ndarray, values: np.ndarray) -> None:
        """Entries in any order: those of the cells from the first to the last of them, as rows."""
        if (np.diff(cells) < 0).any():
            order = np.argsort(cells, kind="stable")
            genes, cells, values = genes[order], cells[order], values[order]
        low, high = int(cells[0]), int(cells[-1])
        indptr = np.zeros(high - low + 2, np.int64)
        np.cumsum(np.bincount(cells - low, minlength=high - low + 1), out=indptr[1:])
        self._sink.push_rows(low + self._start, indptr, genes.astype(np.int32, copy=False), values)
