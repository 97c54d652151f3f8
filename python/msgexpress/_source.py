"""Sources of an ingest, in one form for all kinds of input, and writing them to the drives."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import numpy as np

from skytether import InvalidError
from skytether.errors import reworded

from . import _features, _history, _tables
from ._arguments import names_of, one_name
from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

    from skytether import Fleet

#: Version of the JSON that is kept with a data set (below `APPLICATION`), as an ingest writes it.
FORMAT = 1
#: The same where versions have put elements in the place of the shell's: an older msgexpress would not see them.
NEWEST = 2
#: The key of that JSON among the data set's application metadata.
APPLICATION = "msgexpress"
#: Bytes of the shell per row of its table.
SHELL_ROW = 1 << 18
#: Bytes of the longest name of a table.
LONGEST_TABLE = 200


@dataclass
class Encoding:
    """How a matrix was represented, so that it can be given back the same."""

    #: ``csr``, ``csc`` or ``dense``.
    layout: str
    #: numpy name of the values' type.
    dtype: str
    #: numpy name of the type of the indices, and of the row pointers; None where dense.
    index: str | None = None
    indptr: str | None = None
    #: True: a scipy sparse array rather than a sparse matrix.
    array: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"layout": self.layout, "dtype": self.dtype, "index": self.index, "indptr": self.indptr, "array": self.array}


@dataclass
class Matrix:
    """One matrix of a source: cells as rows, genes as columns."""

    #: Where it is in AnnData: ``X``, ``raw/X`` or ``layers/<name>``; or ``features/<type>``, of features that AnnData
    #: has no place for.
    origin: str
    shape: tuple[int, int]
    encoding: Encoding
    #: Values that will be pushed, for the progress bar.
    values: int
    #: Pushes all of it into the writer given, calling the second argument with the number of values after each part.
    push: Callable[[Any, Callable[[int], None]], None]
    #: The table it is stored as; `Source.arrange` decides.
    table: str = ""
    #: Its features, where they are not those of the source's `var` or `raw_var`.
    var: pd.DataFrame | None = None
    #: Of several sources whose genes are those of the first, in its order: as `push`, of the cells of the others alone,
    #: counted from 0.
    push_others: Callable[[Any, Callable[[int], None]], None] | None = None


@dataclass
class Added:
    """What an append adds to matrices that stay where they are."""

    #: How many cells.
    cells: int
    #: The values of these cells, for the progress.
    values: int
    #: The table `cells` of those that are there, in their order.
    totals: Any
    #: For each matrix the first cells of its parts, with the new one.
    parts: dict[str, list[int]]


class Layers:
    """Which layers of an AnnData an ingest keeps: all of them, or those that are named."""

    def __init__(self, names: Iterable[str] | None = None, all: bool = False) -> None:  # noqa: A002
        self._names, self._all = [] if names is None else list(names), all

    @classmethod
    def chosen(cls, layers: Any, layer: str | None) -> Layers:
        """What a caller's `layers` means: names, one name, or None; and `layer`, which the data set is about."""
        if layer is not None:
            one_name(layer, "layer", "matrix")
        if isinstance(layers, cls):
            return layers
        return cls([*names_of(layers, "layers", "layer"), *([] if layer is None else [layer])])

    def __repr__(self) -> str:
        return "<all>" if self._all else repr(self._names)

    def keep(self, origin: str) -> bool:
        """Whether the matrix at `origin` is kept; X and raw always are."""
        name = origin.removeprefix("layers/")
        return self._all or name == origin or name in self._names or origin in self._names

    def check(self, what: str, there: Iterable[str]) -> None:
        """Refuses a name that is none of the origins `there`."""
        origins = list(there)
        for name in self._names:
            if name not in ("X", "raw") and not {name, f"layers/{name}", f"{_features.ORIGIN}{name}"} & {*origins}:
                known = ", ".join(repr(o.removeprefix("layers/")) for o in origins if o.startswith("layers/"))
                raise InvalidError(f"{what} has no layer {name!r} to keep: it has {known or 'none'}")


#: What an ingest keeps if its caller chooses nothing.
ALL_LAYERS = Layers(all=True)


@dataclass
class Source:
    """Everything that is stored of one file or object."""

    #: For messages: the path, or ``AnnData``.
    what: str
    obs: pd.DataFrame
    var: pd.DataFrame
    matrices: list[Matrix]
    #: An h5ad file with everything but the matrices' values.
    shell: bytes
    #: var of ``raw``, where there is one.
    raw_var: pd.DataFrame | None = None
    #: ``uns["log1p"]["base"]``, where there is one.
    log1p_base: float | None = None
    close: Callable[[], None] = field(default=lambda: None)
    #: Whether there are genomes to choose from.
    genomes: bool = False
    #: Whether genes' names were changed to make them unique.
    renamed: bool = False
    #: The origins of layers that are not stored, because the caller did not choose them.
    left_out: set[str] = field(default_factory=set)
    #: Whether types of features were chosen from.
    typed: bool = False
    #: Whether there were modalities to choose from.
    modal: bool = False
    #: Whether rows and columns are told apart by `orientation=`.
    oriented: bool = False
    #: Whether it is one of the matrices of a directory that `prefix=` tells apart.
    prefixed: bool = False
    #: A warning about what is in the file, for the ingest.
    note: str | None = None

    def arrange(self, layer: str | None) -> None:
        """Gives each matrix its table: `layer` (None: X) becomes ``x``."""
        others = [m.origin.removeprefix(_features.ORIGIN) for m in self.matrices if m.origin.startswith(_features.ORIGIN)]
        if layer in others:
            raise InvalidError(f"{self.what} has {layer!r} as features of their own type: say feature_types={layer!r} to make them the matrix")
        there = labels(m.origin for m in self.matrices if not m.origin.startswith(_features.ORIGIN))
        wanted = "X" if layer is None else there.get(layer)
        if wanted not in there.values():
            if not there:
                raise InvalidError(f"{self.what} holds no matrix: neither X nor raw nor a layer")
            known = ", ".join(map(repr, there))
            if layer is None:
                raise InvalidError(f"{self.what} has no matrix X: say with layer= which of its matrices is meant ({known})")
            raise InvalidError(f"{self.what} has no layer {layer!r}: it has {known}{instead(layer, there)}")
        if wanted == "raw/X":
            # raw has genes of its own: it changes places with X.
            assert self.raw_var is not None
            self.var, self.raw_var = self.raw_var, self.var
        taken: set[str] = set()
        for matrix in self.matrices:
            if matrix.origin.startswith(_features.ORIGIN):
                names = {table.removeprefix(_features.TABLE) for table in taken}
                matrix.table = _features.TABLE + _features.slug(matrix.origin.removeprefix(_features.ORIGIN), names)
            else:
                matrix.table = table_for(matrix.origin, wanted, taken)
            taken.add(matrix.table)

    def write(
        self,
        fleet: Fleet,
        name: str,
        replace: bool,
        progress: Callable[[int, int], None],
        version: _history.Version | None = None,
        added: Added | None = None,
    ) -> dict[str, Any]:
        """Stores everything under `name`, all or nothing; `progress` is called with values done and values in all. With
        `version` it takes the place of that version, if this is still the newest one. With `added` matrices stay as
        they are, and get the cells of all sources but the first."""
        self._warn()
        n_cells = len(self.obs)
        total, done = sum(m.values for m in self.matrices) if added is None else added.values, 0

        def step(values: int) -> None:
            nonlocal done
            done += values
            progress(done, total)

        progress(0, total)
        version = version or _history.Version("ingest", {"source": self.what}, f"{n_cells:,} cells, {len(self.var):,} genes")
        before = version.before
        import pyarrow as pa

        obs, obs_names, obs_skipped = _tables.to_arrow(self.obs, "cell")
        var, _, var_skipped = _tables.to_arrow(self.var, "gene")
        writer = fleet._inner.writer(name, "expression", replace) if before is None else fleet._inner.version(name, before)
        try:
            totals = {}
            for matrix in sorted(self.matrices, key=lambda m: m.table != "x"):
                sink = writer.matrix(matrix.table, *matrix.shape) if added is None else writer.part(matrix.table, added.cells, matrix.shape[1])
                push = matrix.push if added is None else matrix.push_others
                assert push is not None
                try:
                    push(sink, step)
                    totals[f"total_{matrix.table}"] = pa.table(sink.finish()).column(0)
                except InvalidError as e:
                    raise reworded(e, f"{self.what}: {matrix.origin}: {self._with_names(e, matrix, 0 if added is None else n_cells - added.cells)}") from e
            if added is not None:
                totals = {column: pa.chunked_array([*added.totals.column(column).chunks, *new.chunks]) for column, new in totals.items()}

            written = {"obs": obs, "var": var}
            if self.raw_var is not None:
                written["raw_var"] = _tables.to_arrow(self.raw_var, "gene")[0]
            for matrix in self.matrices:
                if matrix.table.startswith(_features.TABLE) and matrix.var is not None:
                    # The engine looks for the names of a matrix's features there.
                    written["var_" + matrix.table.removeprefix(_features.TABLE)] = _tables.to_arrow(matrix.var, "gene")[0]
            written["cells"] = pa.table(list(totals.values()), names=list(totals))
            for table, rows in written.items():
                writer.table(table, "everywhere", rows)
            writer.table("shell", "spread", shell_rows(self.shell))
            written |= dict.fromkeys([*(matrix.table for matrix in self.matrices), "shell"])
            kept = self._kept(n_cells, obs_names, obs_skipped, var_skipped, version.history(writer.generation()))
            for table, parts in ({} if added is None else added.parts).items():
                kept["matrices"][table]["parts"] = parts
            for table in version.tables:
                if table not in written:
                    writer.leave_out(table)
            writer.application(APPLICATION, json.dumps(kept, ensure_ascii=False))
            return json.loads(writer.commit())
        except BaseException:
            writer.abort()
            raise

    def _kept(self, n_cells: int, obs_names: dict[str, str], obs_skipped: list[str], var_skipped: list[str], history: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "source": self.what,
            "shape": [n_cells, len(self.var)],
            "matrices": {m.table: {"origin": m.origin, "shape": list(m.shape), **m.encoding.to_json()} for m in self.matrices},
            "log1p_base": self.log1p_base,
            "categories": _tables.category_orders(self.obs),
            "ordered": _tables.ordered(self.obs),
            "obs_in_sql": obs_names,
            "not_in_sql": {"obs": obs_skipped, "var": var_skipped},
            "gene_ids": {matrix.table: column for matrix in self.matrices if (column := self._ids(matrix)) is not None},
            "history": history,
        }

    def _ids(self, matrix: Matrix) -> str | None:
        """The var column that tells the genes of `matrix` apart, where their names don't, or were changed so that they
        do."""
        var = self._var_of(matrix)
        if not self.renamed and var.index.is_unique:
            return None
        return next((column for column in ("gene_ids", "gene_id", "feature_id", "Accession") if column in var.columns), None)

    def _var_of(self, matrix: Matrix) -> pd.DataFrame:
        """X and raw differ in their genes; `arrange` may have exchanged them. Other features have their own."""
        if matrix.var is not None:
            return matrix.var
        return self.raw_var if self.raw_var is not None and (matrix.origin == "raw/X") != self._swapped else self.var

    def _with_names(self, error: InvalidError, matrix: Matrix, first: int = 0) -> str:
        """What `error` says, with the gene's and the cell's names where it is about one entry. `first` is the cell that
        it numbers 0."""
        text, about = str(error), error.detail
        if about is None or about["type"] != "unfit_entry":
            return text
        gene, cell = about["gene"], about["cell"]
        var = self._var_of(matrix)
        if gene >= len(var) or first + cell >= len(self.obs):
            return text
        return f"gene {var.index[gene]}, cell {self.obs.index[first + cell]}: {text.removeprefix(f'gene {gene}, cell {cell}: ')}"

    @property
    def _swapped(self) -> bool:
        """Whether the data set is about `raw`, so that `var` is raw's."""
        return any(m.origin == "raw/X" and m.table == "x" for m in self.matrices)

    def _warn(self) -> None:
        if self.note is not None:
            warnings.warn(self.note, stacklevel=5)
        for what, frame in (("cells", self.obs), ("genes", self.var)):
            if not len(frame):
                warnings.warn(f"{self.what} has no {what}", stacklevel=5)
        for what, names in (("cell", self.obs.index), ("gene", self.var.index)):
            twice = names[names.duplicated()]
            if len(twice):
                some = ", ".join(repr(str(n)) for n in twice.unique()[:3])
                warnings.warn(f"{self.what}: {len(twice)} {what} names repeat ({some}{', ...' if len(twice.unique()) > 3 else ''}); they are kept apart by their numbers", stacklevel=5)


def labels(origins: Iterable[str]) -> dict[str, str]:
    """What `layer=` calls each of a data set's matrices, and where that is in AnnData.

    ``X`` and ``raw`` are AnnData's own where it has them, and a layer goes by its name. A layer whose name is taken so
    is called ``layers/<name>``. Features of other types go by their type.
    """
    there = list(origins)
    found = {label: origin for label, origin in (("X", "X"), ("raw", "raw/X")) if origin in there}
    layers = [origin for origin in there if origin.startswith("layers/")]
    for origin in sorted(layers, key=lambda o: o.removeprefix("layers/") in found):  # those that keep their names first
        label = origin.removeprefix("layers/")
        while label in found:
            label = f"layers/{label}"
        found[label] = origin
    for origin in there:
        if origin.startswith(_features.ORIGIN):
            label = origin.removeprefix(_features.ORIGIN)
            found[origin if label in found else label] = origin
    return found


def table_for(origin: str, wanted: str, taken: set[str]) -> str:
    """A table name for the matrix at `origin` that neither is taken nor looks like the sparse rows of
    another (``<matrix>_rows``)."""
    if origin == wanted:
        return "x"
    of_raw = wanted == "raw/X"
    if origin == "raw/X":
        name = "raw_x"
    elif origin == "X":
        name = "raw_x" if of_raw else "layer_X"
    else:
        name = ("raw_layer_" if of_raw else "layer_") + origin.removeprefix("layers/")
    # The name becomes a part of the drives' keys, with three bytes for a byte that is no letter or digit.
    if len(name.encode()) > LONGEST_TABLE:
        name = name.encode()[:LONGEST_TABLE].decode(errors="ignore")
    number, free = 0, name
    while free in taken or free.removesuffix("_rows") in taken or f"{free}_rows" in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def shell_rows(shell: bytes) -> Any:
    import pyarrow as pa

    rows = [shell[i : i + SHELL_ROW] for i in range(0, len(shell), SHELL_ROW)]
    return pa.table([pa.array(range(len(rows)), pa.uint32()), pa.array(rows, pa.binary())], names=["part", "bytes"])


def plain(values: np.ndarray) -> np.ndarray:
    """`values` as the transposition takes them: contiguous, in this machine's byte order, bool and float16 widened."""
    kind = values.dtype
    if kind == np.bool_:
        values = values.view(np.uint8)
    elif kind == np.float16:
        values = values.astype(np.float32)
    elif kind.kind not in "iuf" or kind.itemsize > 8:
        raise InvalidError(f"values of type {kind} are no expression values: use integers or floats of at most 64 bits")
    return _native(values)


def _native(values: np.ndarray) -> np.ndarray:
    """`values` contiguous and in this machine's byte order, said the way the buffer protocol says it
    (h5py's types spell it out)."""
    if values.dtype.isnative:
        return np.ascontiguousarray(values).view(values.dtype.newbyteorder("="))
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))


def push_compressed(sink: Any, step: Callable[[int], None], by_gene: bool, parts: Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """Pushes parts of a CSR (or, `by_gene`, CSC) matrix: the first row, row pointers from 0, indices, values."""
    push = sink.push_columns if by_gene else sink.push_rows
    for first, indptr, indices, data in parts:
        if indices.dtype.itemsize < 4:
            indices = indices.astype(np.int32)
        push(first, indptr.astype(np.int64, copy=False), _native(indices), plain(data))
        step(len(data))


def push_dense(sink: Any, step: Callable[[int], None], parts: Iterator[tuple[int, np.ndarray]]) -> None:
    """Pushes runs of whole rows of a dense matrix."""
    for first, block in parts:
        sink.push_dense(first, len(block), plain(block).reshape(-1))
        step(block.size)
