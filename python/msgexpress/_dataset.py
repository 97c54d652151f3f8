"""One expression data set."""

from __future__ import annotations

import copy
import json
import re
import warnings
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Literal

import numpy as np

from skytether import ConflictError, CorruptError, Fleet, InvalidError, NotFoundError, Receipt, SkytetherError, UnsupportedError, _internal
from skytether.errors import reworded

from ._names import missing, naming
from ._source import APPLICATION, FORMAT, labels

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    from ._rank import RankResult

#: Tests that `rank_genes_groups` knows, by scanpy's names; `student` is what the t-test with equal variances is called.
METHODS = ("t-test", "t-test_overestim_var", "student")
CORRECTIONS = ("benjamini-hochberg", "bonferroni")


class _Missing:
    """A default that is told apart from all that callers may give; `text` is what help() shows of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


_REQUIRED: Any = _Missing("<required>")
_AS_STORED: Any = _Missing("<as stored>")


class Dataset:
    """A data set on a fleet: a matrix of cells and genes with all annotations that AnnData has.

    An object reads one generation of its data set: the one of its creation. After another ingest under that name, its
    methods raise `ConflictError` rather than mix the two: take ``db[name]`` again.
    """

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        with naming(name), missing(fleet, name):
            found = fleet.describe(name)
        if found["kind"] != "expression":
            raise InvalidError(f"{name} is a {found['kind']}, not an expression data set: use skytether's sql")
        self.name: str = found["name"].replace(".", "/", 1)
        self._generation: int = found["generation"]
        # Of each matrix that was ranked, its genes' names by number.
        self._gene_names: dict[str, np.ndarray] = {}
        try:
            self._kept: dict[str, Any] = json.loads(found["application"][APPLICATION])
            written = int(self._kept["format"])
        except (ValueError, TypeError) as e:
            raise CorruptError(f"{self.name}: what msgexpress keeps with it can't be read: {e}") from e
        except KeyError as e:
            raise UnsupportedError(f"{self.name} was not ingested with msgexpress: it lacks what is needed to read it as AnnData") from e
        if written > FORMAT:
            raise UnsupportedError(f"{self.name} was ingested with a newer msgexpress (format {written}, this one knows {FORMAT}): upgrade this one")

    # ---- what it holds

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of cells and genes."""
        cells, genes = self._kept["shape"]
        return cells, genes

    @property
    def n_obs(self) -> int:
        """Number of cells."""
        return self.shape[0]

    @property
    def n_vars(self) -> int:
        """Number of genes."""
        return self.shape[1]

    @property
    def layers(self) -> list[str]:
        """Values for `layer=` besides None: the names of the other matrices."""
        return [label for label in self._tables() if label is not None]

    @property
    def obs(self) -> pd.DataFrame:
        """The cells, as AnnData's obs; a copy."""
        return self._shell.obs.copy()

    @property
    def var(self) -> pd.DataFrame:
        """The genes, as AnnData's var (that of `raw` where the data set is about `raw`); a copy."""
        return self._genes.copy()

    @property
    def obs_names(self) -> pd.Index:
        """The cells' names."""
        return self._shell.obs.index.copy()

    @property
    def var_names(self) -> pd.Index:
        """The genes' names."""
        return self._genes.index.copy()

    def table(self, name: str) -> str:
        """The quoted SQL name of one of its tables: ``x``, ``x_rows``, ``obs``, ``var``, ..."""
        domain, dataset = self.name.split("/", 1)
        return ".".join('"' + part.replace('"', '""') + '"' for part in (domain, dataset, name))

    def __repr__(self) -> str:
        more = f", layers {', '.join(self.layers)}" if self.layers else ""
        return f"<msgexpress.Dataset {self.name}: {self.n_obs:,} cells x {self.n_vars:,} genes{more}>"

    # ---- back to AnnData

    def to_anndata(self, genes: Any = None, cells: Any = None) -> anndata.AnnData:
        """The data set as an AnnData in memory: what went in, or the given genes and cells of it.

        Zeros that a sparse matrix stored explicitly are not stored, and so do not come back as such.

        Parameters
        ----------
        genes, cells
            A boolean mask, names, or numbers, in the order wanted; None for all. Genes are chosen among `var_names`.
            `raw` keeps its own genes, as in AnnData. Where the data set is about `raw`, though, the genes are raw's:
            what comes back for some of them is an AnnData of raw's values and genes, without X's and the layers.

        Raises
        ------
        NotFoundError
            A name that is not there.
        InvalidError
            A name that is there twice, a number out of range, a mask of another length.
        ConflictError
            The data set was replaced.
        """
        from . import _select

        with self._unchanged():
            gene_at = None if genes is None else _select.positions(genes, self._genes.index, "gene")
            cell_at = None if cells is None else _select.positions(cells, self._shell.obs.index, "cell")
            gene_set = None if gene_at is None else np.unique(gene_at)
            cell_set = None if cell_at is None else np.unique(cell_at)
            whole = self._raw_part(gene_set, cell_set) if self._swapped and gene_set is not None else self._part(gene_set, cell_set)
        # In the order and as often as asked for.
        cell_order = slice(None) if cell_at is None else np.searchsorted(cell_set, cell_at)
        gene_order = slice(None) if gene_at is None else np.searchsorted(gene_set, gene_at)
        if _ascending(cell_order, whole.n_obs) and _ascending(gene_order, whole.n_vars):
            return whole
        return whole[cell_order, gene_order].copy()

    def _part(self, genes: np.ndarray | None, cells: np.ndarray | None) -> anndata.AnnData:
        """Everything of the given genes and cells, and `raw` whole."""
        import anndata

        # Callers get copies, which they may change.
        bare = self._shell_part(cells, genes)
        matrices = {kept["origin"]: self._matrix_part(table, None if kept["origin"] == "raw/X" else genes, cells) for table, kept in self._kept["matrices"].items()}
        raw = None
        if "raw/X" in matrices and bare.raw is not None:
            raw = {"X": matrices["raw/X"], "var": bare.raw.var.copy(), "varm": {k: copy.deepcopy(v) for k, v in bare.raw.varm.items()}}
        return anndata.AnnData(
            X=matrices.get("X", bare.X if "X" not in self._origins and bare.X is not None else None),
            obs=bare.obs,
            var=bare.var,
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            varm=dict(bare.varm),
            obsp=dict(bare.obsp),
            varp=dict(bare.varp),
            layers={**dict(bare.layers), **{o.removeprefix("layers/"): m for o, m in matrices.items() if o.startswith("layers/")}},
            raw=raw,
        )

    def _raw_part(self, genes: np.ndarray, cells: np.ndarray | None) -> anndata.AnnData:
        """Raw's values of the given genes of raw, with everything about the cells."""
        import anndata

        bare = self._shell_part(cells, None)
        raw = self._shell.raw
        return anndata.AnnData(
            X=self._matrix_part("x", genes, cells),
            obs=bare.obs,
            var=raw.var.iloc[genes].copy(),
            uns=copy.deepcopy(dict(bare.uns)),
            obsm=dict(bare.obsm),
            varm={k: copy.deepcopy(v.iloc[genes] if hasattr(v, "iloc") else v[genes]) for k, v in raw.varm.items()},
            obsp=dict(bare.obsp),
        )

    def _shell_part(self, cells: np.ndarray | None, genes: np.ndarray | None) -> anndata.AnnData:
        """A copy of the shell, or of some cells and genes of it (and then without unused categories, as in AnnData)."""
        return self._shell.copy() if cells is None and genes is None else self._shell[_all(cells), _all(genes)].copy()

    def _matrix_part(self, table: str, genes: np.ndarray | None, cells: np.ndarray | None) -> Any:
        from . import _export

        return _export.matrix(self.fleet, self.table(f"{table}_rows"), self._kept["matrices"][table], genes, cells)

    # ---- differential expression

    def rank_genes_groups(
        self,
        groupby: str,
        method: Literal["t-test", "t-test_overestim_var", "student"] = "t-test",
        reference: str = "rest",
        groups: Literal["all"] | Iterable[str] = "all",
        *,
        transform: Literal["log1p_cp10k"] | None = _REQUIRED,
        corr_method: Literal["benjamini-hochberg", "bonferroni"] = "benjamini-hochberg",
        n_genes: int | None = None,
        layer: str | None = None,
    ) -> RankResult:
        """Ranks genes by how differently groups of cells express them, like
        ``scanpy.tl.rank_genes_groups``. The drives do the work.

        Parameters
        ----------
        groupby
            The obs column that groups the cells. Cells without a value are in no group, but count as rest.
        method
            ``"t-test"`` (Welch), ``"t-test_overestim_var"`` (scanpy's, with the group's size for both),
            ``"student"`` (equal variances).
        reference
            ``"rest"`` (each group against all other cells), or the group to compare with.
        groups
            Which groups to test; all others still count as rest.
        transform
            Required, so that the caller decides: ``"log1p_cp10k"`` for raw counts (each cell scaled to 10,000, then
            ``log1p``, done by the drives); None where the matrix is normalised and logarithmic already.
        corr_method
            How p-values are corrected for the number of genes: ``"benjamini-hochberg"`` or ``"bonferroni"``.
        n_genes
            How many genes each group's tables show; None for all. All are tested in any case.
        layer
            Which matrix: None for the one that the data set is about, else one of `layers`.

        Warns where counts are tested as they are (``transform=None``).

        Raises
        ------
        NotFoundError
            No such column, group or layer.
        InvalidError
            A group of fewer than two cells; transform left out; a data set without cells or genes; no group to test; a
            value that the transform can't take (gene and cell are named).
        UnsupportedError
            The column holds what a table can't.
        ConflictError
            The data set was replaced.
        """
        if transform is _REQUIRED:
            raise InvalidError(
                f"say transform=: {self._what_values(layer)}. Use transform=\"log1p_cp10k\" for raw counts (scaled to 10,000 per cell, then log1p), "
                "transform=None for values that are normalised and logarithmic already"
            )
        _check(method, METHODS, "method")
        matrix, column = self._matrix(layer), self._column(groupby)
        self._check_not_empty(matrix)
        order = self._kept["categories"].get(groupby)
        several = not isinstance(groups, str) and isinstance(groups, Iterable)
        wanted = None if isinstance(groups, str) and groups == "all" else [_group(g, order) for g in (groups if several else [groups])]
        reference = _group(reference, order)
        if wanted is not None and not wanted:
            raise InvalidError("there are no groups to test: name at least one, or say groups=\"all\"")
        if wanted is not None and reference != "rest" and all(g == reference for g in wanted):
            raise InvalidError(f"group {reference!r} is the reference itself: name another group to compare with it")
        # scanpy squares float32 values in float32; Student's test is compared with scipy, which works in doubles.
        single = method != "student" and self._kept["matrices"][matrix]["dtype"] != "float64"
        spec = _internal.moments_spec(self.name, matrix, transform, column, None, single)
        res = self._rank(
            spec,
            matrix,
            {"method": method, "reference": None if reference == "rest" else reference, "groups": wanted, "correction": corr_method},
            {"groupby": groupby, "reference": reference, "method": method, **self._place(matrix), "corr_method": corr_method, "transform": transform},
            n_genes,
            order,
        )
        if not res.groups:
            raise InvalidError(f"there are no groups to test: no cell of {self.name} has a value in obs column {groupby!r}" + ("" if reference == "rest" else f" other than the reference {reference!r}"))
        if transform is None and self._is_counts(layer):
            warnings.warn(f"{self.name} holds counts, and they are compared as they are: their fold changes and scores mean little; use transform=\"log1p_cp10k\" to normalise them", stacklevel=2)
        self._warn_of_logarithms(layer, transform)
        return res

    def ttest(
        self,
        a: Any,
        b: Any,
        equal_var: bool = True,
        *,
        transform: Literal["log1p_cp10k"] | None = _AS_STORED,
        corr_method: Literal["benjamini-hochberg", "bonferroni"] = "benjamini-hochberg",
        layer: str | None = None,
        overlap: bool = False,
    ) -> RankResult:
        """Compares two sets of cells gene by gene, like ``scipy.stats.ttest_ind``.

        Parameters
        ----------
        a, b
            A dict of obs column to value or list of values (all must match), a boolean mask, a list of
            cell names or of numbers.
        equal_var
            True: Student's test. False: Welch's.
        transform
            As in `rank_genes_groups`. Left out, the values are compared as they are stored, with a
            warning if they are counts.
        corr_method, layer
            As in `rank_genes_groups`.
        overlap
            Whether cells may be in both sets. The test takes the sets for independent, which they are not then:
            p-values come out too large or too small.

        Raises
        ------
        InvalidError
            Cells are in both sets without `overlap`, or both sets are the same cells; and as in `rank_genes_groups`.
        """
        from . import _select

        a, b = _select.settled(a), _select.settled(b)
        self._check_not_empty(self._matrix(layer))
        if transform is _AS_STORED:
            transform = None
            if self._is_counts(layer):
                warnings.warn(f"{self.name} holds counts, and they are compared as they are: pass transform=\"log1p_cp10k\" to normalise them, or transform=None to mean it", stacklevel=2)
        self._warn_of_logarithms(layer, transform)
        matrix = self._matrix(layer)
        method = "student" if equal_var else "t-test"
        label_a, label_b = _select.label(a, "first"), _select.label(b, "second")
        if label_a == label_b:
            label_a, label_b = f"{label_a} (first)", f"{label_b} (second)"
        in_a, in_b = _select.mask(a, self._shell.obs, "the first set"), _select.mask(b, self._shell.obs, "the second set")
        for label, chosen in ((label_a, in_a), (label_b, in_b)):
            if chosen.sum() < 2:
                raise InvalidError(f"{label!r} has {chosen.sum()} cells: a t-test needs at least two on each side")
        both = self._in_both(in_a, in_b, overlap)
        codes = np.where(in_a, 0, np.where(in_b, 1, -1)).astype(np.int32)
        names = [label_a, label_b]
        if both.any():  # a cell is in one group only: those in both sets get one of their own
            codes[both] = 2
            names = ["first alone", "second alone", "both"]
        spec = _internal.moments_spec(self.name, matrix, transform, None, (names, codes))
        return self._rank(
            spec,
            matrix,
            {"method": method, "reference": label_b, "groups": [label_a], "correction": corr_method, "overlap": [label_a, label_b] if both.any() else None},
            {"groupby": None, "reference": label_b, "method": method, **self._place(matrix), "corr_method": corr_method, "transform": transform},
            None,
            None,
            double=True,
        )

    # ---- inside

    def _in_both(self, a: np.ndarray, b: np.ndarray, may_overlap: bool) -> np.ndarray:
        """A mask of the cells in both sets, which are an error unless there `may_overlap`."""
        both = a & b
        if not both.any():
            return both
        if both.sum() == a.sum() == b.sum():
            raise InvalidError(f"both sets are the same {int(both.sum()):,} cells of {self.name}: there is nothing to compare")
        if not may_overlap:
            count, first = int(both.sum()), str(self.obs_names[int(np.argmax(both))])
            told = f"cell {first!r} of {self.name} is" if count == 1 else f"{count:,} cells of {self.name} are"
            some = "" if count == 1 else f" ({first!r} is the first)"
            raise InvalidError(f"{told} in both sets{some}, and a t-test compares independent ones: leave such cells out of one of them, or say overlap=True to mean it")
        return both

    def _rank(
        self, spec: str, matrix: str, options: dict[str, Any], params: dict[str, Any], n_genes: int | None, order: list[str] | None, double: bool = False
    ) -> RankResult:
        from ._rank import RankResult

        _check(options["correction"], CORRECTIONS, "corr_method")
        if n_genes is not None and n_genes < 1:
            raise InvalidError(f"n_genes is {n_genes}: show at least one gene, or None for all")
        literal = spec.replace("'", "''")
        options["log_base"] = self._kept["log1p_base"] if params["transform"] is None else None
        with self._unchanged():
            # Names that are known from an earlier call are not asked for again.
            by = "gene_id" if matrix in self._gene_names else "gene_id, gene"
            query = self.fleet.sql(f"SELECT {by}, moments(idx, val, block, '{literal}') AS moments FROM {self.table(matrix + '_rows')} GROUP BY {by}")
            try:
                ranked = _internal.rank_genes(query._inner, json.dumps(options))
            except InvalidError as e:
                raise self._with_names(e, matrix, params["transform"]) from e
        if matrix not in self._gene_names:
            self._gene_names[matrix] = _names_of(ranked)
        column = self._kept.get("gene_ids", {}).get(matrix)
        return RankResult(
            self.name,
            ranked,
            _of_genes(query.receipt),
            params,
            n_genes,
            order,
            double,
            self._gene_names[matrix],
            ids=None if column is None else (column, self._var_column(matrix, column)),
            var=lambda column: self._var_column(matrix, column),
        )

    def _var_column(self, matrix: str, column: str) -> np.ndarray:
        """A var column of the genes of `matrix`, by number."""
        var = self._shell.raw.var if self._kept["matrices"][matrix]["origin"] == "raw/X" else self._shell.var
        if column not in var.columns:
            raise NotFoundError(f"var of {self.name} has no column {column!r}: it has {', '.join(map(repr, var.columns)) or 'none'}")
        return var[column].astype(object).to_numpy()

    def _with_names(self, error: InvalidError, matrix: str, transform: str | None) -> InvalidError:
        """`error`, with the gene's and the cell's names where it is about one value."""
        about = error.detail
        if about is None or about["type"] != "unfit_value":
            return error
        total = about.get("total")
        try:
            text = self._named(about["cell"], float(about["value"]), None if total is None else float(total), matrix, transform)
            return reworded(error, text)
        except SkytetherError:
            # Without names it says no less.
            return error

    def _named(self, cell: int, value: float, total: float | None, matrix: str, transform: str | None) -> str:
        """What is wrong with `value` in `cell`, whose values add up to `total`."""
        name = repr(str(self.obs_names[cell])) if cell < self.n_obs else str(cell)
        counts = f"transform=\"{transform}\" is for counts, which are not negative, of cells with a positive total; use transform=None for values that are normalised already"
        # The drives know the value by cell and place, and not by gene: one look for it, which they do themselves.
        at = f"CAST(val[CAST(array_position(idx, CAST({cell} AS INT UNSIGNED)) AS BIGINT)] AS DOUBLE)"
        infinite = "CAST('Infinity' AS DOUBLE)"
        if np.isfinite(value) and total is not None and not np.isfinite(total):
            # Another gene's value leaves the cell without a total.
            found = self._gene_where(matrix, cell, f"(isnan({at}) OR abs({at}) = {infinite})", at)
            if found is None:
                return f"{self.name}: the values of cell {name} add up to more than a 32-bit float holds: scale the matrix down"
            gene, value = found
        elif total is not None and value >= 0 and np.isfinite(value):
            # The gene has no part in it.
            return f"{self.name}: cell {name} has the total {total:g}: {counts}"
        else:
            is_it = f"isnan({at})" if np.isnan(value) else f"{at} = {'-' if value < 0 else ''}{infinite}" if np.isinf(value) else f"{at} = {value!r}"
            gene = (self._gene_where(matrix, cell, is_it, at) or ("a gene", value))[0]
        where = f"{self.name}: gene {gene} has the value {value:g} in cell {name}"
        if not np.isfinite(value):
            return f"{where}: a test needs finite numbers; leave such genes or cells out, or test another matrix (layer=)"
        if transform is None:
            return f"{where}: it or its square is beyond the largest number; remove or scale it"
        return f"{where}: {counts}"

    def _gene_where(self, matrix: str, cell: int, condition: str, at: str) -> tuple[str, float] | None:
        """The first gene with an entry in `cell` that meets `condition`, and that entry, which is `at` in SQL."""
        has = f"array_has(idx, CAST({cell} AS INT UNSIGNED)) AND {condition}"
        found = self.fleet.sql(f"SELECT gene, {at} AS value FROM {self.table(matrix + '_rows')} WHERE {has} ORDER BY gene_id LIMIT 1").to_arrow().to_pylist()
        return (repr(found[0]["gene"]), found[0]["value"]) if found else None

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Around reads that belong together: all of them are of this object's generation, or a `ConflictError` is
        raised."""
        with naming(self.name):
            self._check_generation()
            try:
                yield
            except Exception as e:
                # It may have gone wrong because half of it was of another data set.
                try:
                    self._check_generation()
                except ConflictError as replaced:
                    raise replaced from e
                except SkytetherError:
                    pass
                raise
            self._check_generation()

    def _check_generation(self) -> None:
        if self.fleet.describe(self.name)["generation"] != self._generation:
            raise ConflictError(f"{self.name} was replaced since this object was made: take db[{self.name!r}] again")

    @property
    def _origins(self) -> dict[str, str]:
        return {m["origin"]: table for table, m in self._kept["matrices"].items()}

    @property
    def _swapped(self) -> bool:
        """Whether the data set is about `raw`, so that its genes are raw's."""
        return self._kept["matrices"]["x"]["origin"] == "raw/X"

    def _tables(self) -> dict[str | None, str]:
        """The matrices' tables by what `layer=` says."""
        there = self._origins
        found: dict[str | None, str] = {None: "x"}
        found.update((label, there[origin]) for label, origin in labels(there).items() if there[origin] != "x")
        return found

    def _place(self, matrix: str) -> dict[str, Any]:
        """Where a matrix is in AnnData, as scanpy's parameters say it."""
        origin = self._kept["matrices"][matrix]["origin"]
        return {"use_raw": origin == "raw/X", "layer": origin.removeprefix("layers/") if origin.startswith("layers/") else None}

    def _column(self, groupby: str) -> str:
        """What the obs column `groupby` is called in SQL."""
        known = self._kept.get("obs_in_sql")
        if known is None:  # ingested before this was noted
            return groupby
        if groupby in known:
            return known[groupby]
        if groupby in self._kept["not_in_sql"]["obs"]:
            raise UnsupportedError(f"obs column {groupby!r} of {self.name} holds what a table can't: make it text, numbers or categories, and ingest it again")
        raise NotFoundError(f"obs of {self.name} has no column {groupby!r}: it has {', '.join(map(repr, known)) or 'none'}")

    def _check_not_empty(self, matrix: str) -> None:
        cells, genes = self._kept["matrices"][matrix]["shape"]
        if not cells or not genes:
            raise InvalidError(f"{self.name} has no {'cells' if not cells else 'genes'}: there is nothing to test")

    def _matrix(self, layer: str | None) -> str:
        tables = self._tables()
        if layer not in tables:
            there = ", ".join(repr(n) for n in self.layers)
            raise NotFoundError(f"{self.name} has no layer {layer!r}: " + (f"it has {there}, and None for the main one" if there else "it has only the main matrix (layer=None)"))
        return tables[layer]

    def _is_counts(self, layer: str | None) -> bool:
        import pyarrow as pa

        rows = self.table(f"{self._matrix(layer)}_rows")
        with self._unchanged():
            field = pa.schema(self.fleet.sql(f"SELECT val FROM {rows} LIMIT 0")).field(0)
        return pa.types.is_integer(field.type.value_type)

    @cached_property
    def _known_as_counts(self) -> dict[str, bool]:
        """By matrix, whether it is stored as integers, where a test asked: it is asked once, as tests are repeated."""
        return {}

    def _warn_of_logarithms(self, layer: str | None, transform: str | None) -> None:
        if transform is None:
            return
        matrix = self._matrix(layer)
        if matrix not in self._known_as_counts:
            self._known_as_counts[matrix] = self._is_counts(layer)
        if not self._known_as_counts[matrix]:
            warnings.warn(
                f"{self._what_values(layer)}, and transform=\"{transform}\" normalises them and takes their logarithm (once more, if they are logarithms): "
                "say transform=None to compare them as they are; estimated counts, which need not be integers, are right as it is",
                stacklevel=3,
            )

    def _what_values(self, layer: str | None) -> str:
        which = "its values" if layer is None else f"the values of layer {layer!r}"
        if self._is_counts(layer):
            return f"{which} are all non-negative integers, which looks like raw counts"
        return f"{which} are not all integers, which looks like normalised data"

    @cached_property
    def _shell(self) -> anndata.AnnData:
        from . import _shell

        with self._unchanged():
            rows = self.fleet.sql(f"SELECT part, bytes FROM {self.table('shell')}").to_arrow()
        parts = dict(zip(rows.column("part").to_pylist(), rows.column("bytes").to_pylist()))
        shell = _shell.opened(b"".join(parts[i] for i in sorted(parts)), self.name)
        if shell.n_obs != self.n_obs:
            raise CorruptError(f"{self.name}: its shell is of {shell.n_obs} cells instead of {self.n_obs}")
        return shell

    @property
    def _genes(self) -> pd.DataFrame:
        return self._shell.raw.var if self._swapped else self._shell.var


def _names_of(ranked: Any) -> np.ndarray:
    """The genes' names by number; any group has them all."""
    import pyarrow as pa

    for batch in pa.table(ranked).to_batches()[:1]:
        names = np.empty(len(batch), object)
        names[batch.column("gene_id").to_numpy()] = batch.column("names").to_pandas().to_numpy(object)
        # Results share it.
        names.flags.writeable = False
        return names
    return np.zeros(0, object)


def _of_genes(receipt: Receipt) -> Receipt:
    """The receipt of a query of a row per gene."""
    return Receipt(receipt._json, re.sub(r"\A([\d,]+) row(s?)\b", r"\1 gene\2", receipt._tree), receipt._operators)


def _group(group: Any, order: list[str] | None) -> str:
    """A group's name as the drives say it: booleans are ``true`` and ``false``, unless they are categories."""
    text = str(group)
    return text.lower() if isinstance(group, (bool, np.bool_)) and text not in (order or ()) else text


def _check(value: str, allowed: tuple[str, ...], what: str) -> None:
    if value not in allowed:
        raise InvalidError(f"{what} {value!r} does not exist: use one of {', '.join(map(repr, allowed))}")


def _all(chosen: np.ndarray | None) -> Any:
    return slice(None) if chosen is None else chosen


def _ascending(order: Any, n: int) -> bool:
    return isinstance(order, slice) or np.array_equal(order, np.arange(n))
