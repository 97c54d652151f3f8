"""Some cells and genes of a data set as an object with its methods: filters that copy nothing."""

from __future__ import annotations

import base64
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import ConflictError, Fleet, InvalidError, NotFoundError

from . import _select, _sums
from ._arguments import REQUIRED, chosen_layer, one_name
from ._habits import Sized, copied, of_view
from ._hints import instead
from ._normalize import median
from ._prepare import Preparing
from ._sums import WHOLE, Part
from ._transforms import CP10K, Normalize, Settled, canonical, chosen, parts, said

if TYPE_CHECKING:
    import anndata
    import pandas as pd

    from ._dataset import Dataset
    from ._pca import PCA
    from ._picture import Plot
    from ._rank import RankResult
    from ._transforms import Transform

#: By matrix, the transform that was chosen, and the cells and genes that there were then.
Chosen = dict[str, tuple[Any, Part]]


class Filtering(Preparing):
    """Filters of cells and genes."""

    def filter_cells(
        self, min_genes: int | None = None, max_genes: int | None = None, min_counts: float | None = None, max_counts: float | None = None, *, mask: Any = None
    ) -> View:
        """A view of the cells within limits, as ``scanpy.pp.filter_cells``, and of `mask`: a boolean mask, names,
        numbers, or a dict of obs columns and values. It copies nothing; filters may follow each other.

        Parameters
        ----------
        min_genes, max_genes
            Limits of the number of genes that a cell has a value of, themselves included.
        min_counts, max_counts
            Limits of the sum of a cell's stored values.

        Raises
        ------
        InvalidError
            No limit is given, or no cell is left.
        """
        return filtered_cells(self, min_genes, max_genes, min_counts, max_counts, mask)

    def filter_genes(
        self, min_cells: int | None = None, max_cells: int | None = None, min_counts: float | None = None, max_counts: float | None = None, *, mask: Any = None
    ) -> View:
        """A view of the genes within limits, as ``scanpy.pp.filter_genes``, and of `mask`: a boolean mask, names or
        numbers. It copies nothing; filters may follow each other.

        A transform that is said, or chosen by `normalize`, after this scales cells by the sums of the genes that are
        left, as ``scanpy.pp.normalize_total`` after ``filter_genes``. One that was chosen before keeps its sums.

        Parameters
        ----------
        min_cells, max_cells
            Limits of the number of cells that have a value of a gene, themselves included.
        min_counts, max_counts
            Limits of the sum of a gene's stored values.

        Raises
        ------
        InvalidError
            No limit is given, or no gene is left.
        """
        return filtered_genes(self, min_cells, max_cells, min_counts, max_counts, mask)

    def view(self, name: str) -> View:
        """The view that was saved under `name`.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return saved(self, name)

    def drop_view(self, name: str) -> None:
        """Drops the view that was saved under `name`, as a new version; no cell and no gene is removed.

        Raises
        ------
        NotFoundError
            There is none.
        """
        ds = saved(self, name).dataset
        _keep(ds, name, None, "drop_view")

    @property
    def views(self) -> list[str]:
        """The names of the views that were saved."""
        return names(self)


class View(Sized, Filtering):
    """Some cells and genes of a data set. It is made by `filter_cells` and `filter_genes`, which may follow each other;
    it holds masks, and copies nothing. Tests, quality, highly variable genes and exports are those of its cells and
    genes alone, as those of an AnnData that was filtered."""

    def __init__(self, ds: Dataset, part: Part, filters: tuple[str, ...], chosen: Chosen) -> None:
        self._of, self._shape, self._part, self._chosen = ds, ds.shape, part, chosen
        #: The filters that made it, in order.
        self.filters = filters

    # ---- what it holds

    @property
    def _ds(self) -> Dataset:
        """The data set. Versions do not move its cells and genes; cells that are appended may."""
        if self._of.shape != self._shape:
            raise ConflictError(f"{self._of.name} has got other cells or genes since this view was made: make it again")
        return self._of

    @property
    def dataset(self) -> Dataset:
        """The data set that it is of. `ConflictError` if that has got other cells or genes since."""
        return self._ds

    @property
    def name(self) -> str:
        """The data set's name."""
        return self._ds.name

    @property
    def fleet(self) -> Fleet:
        """The fleet that has the data set."""
        return self._ds.fleet

    @property
    def cells(self) -> np.ndarray:
        """A mask of its cells over all of the data set; a copy."""
        n = self._ds.n_obs
        return np.ones(n, bool) if self._part.cells is None else self._part.cells.copy()

    @property
    def genes(self) -> np.ndarray:
        """A mask of its genes over all of the data set; a copy."""
        n = self._ds.n_vars
        return np.ones(n, bool) if self._part.genes is None else self._part.genes.copy()

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of cells and genes."""
        return int(self.cells.sum()), int(self.genes.sum())

    @property
    def n_obs(self) -> int:
        """Number of cells."""
        return self.shape[0]

    @property
    def n_vars(self) -> int:
        """Number of genes."""
        return self.shape[1]

    @property
    def obs(self) -> pd.DataFrame:
        """Its cells, as AnnData's obs; a copy, without categories that no cell has."""
        return copied(_chosen_rows(self._ds._shell.obs, self._part.cells), "obs", self.name, "view.dataset")

    @property
    def var(self) -> pd.DataFrame:
        """Its genes, as AnnData's var; a copy."""
        return copied(_chosen_rows(self._ds._genes, self._part.genes), "var", self.name, "view.dataset")

    @property
    def obs_names(self) -> pd.Index:
        """The names of its cells."""
        names = self._ds.obs_names
        return names if self._part.cells is None else names[self._part.cells]

    @property
    def var_names(self) -> pd.Index:
        """The names of its genes."""
        names = self._ds.var_names
        return names if self._part.genes is None else names[self._part.genes]

    @property
    def layers(self) -> list[str]:
        """Values for `layer=` besides None, as of the data set."""
        return self._ds.layers

    def __repr__(self) -> str:
        cells, genes = self.shape
        by = f": {', '.join(self.filters)}" if self.filters else ""
        return f"<msgexpress.View of {self.name}, {cells:,} of {self._ds.n_obs:,} cells x {genes:,} of {self._ds.n_vars:,} genes{by}>"

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # It is there, and raised an error of its own, which is not to be hidden.
            return object.__getattribute__(self, name)
        if of_view(name) is not None:
            raise AttributeError(f"a view has no {name}: {of_view(name)}")
        if not name.startswith("_") and hasattr(type(self._ds), name):
            raise AttributeError(f"{name} is not offered of a view: use it on view.dataset, with cells=view.cells where it takes cells, or on view.to_anndata()")
        raise AttributeError(f"a view has no attribute {name!r}{instead(name, dir(type(self)))}")

    # ---- the same as of a data set

    def __getitem__(self, chosen: Any) -> anndata.AnnData:
        """As `Dataset.__getitem__`, among its cells and genes."""
        return type(self._ds).__getitem__(self, chosen)  # type: ignore[arg-type]

    def to_anndata(self, genes: Any = None, cells: Any = None, *, lazy: bool = False) -> anndata.AnnData:
        """Its cells and genes as an AnnData, or some of them: arguments and errors as of `Dataset.to_anndata`."""
        return self._ds.to_anndata(self._gene_numbers(genes), self._cell_numbers(cells), lazy=lazy)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002
        genes: Any = None,
        cells: Any = None,
        layer: str | None = None,
        replace: bool = False,
    ) -> list[str]:
        """Writes its cells and genes as files: arguments, result and errors as of `Dataset.export`."""
        if layer is not None:
            layer = self._layer(layer)
        return self._ds.export(path, format=format, genes=self._gene_numbers(genes), cells=self._cell_numbers(cells), layer=layer, replace=replace)

    def rank_genes_groups(
        self,
        groupby: str,
        *args: Any,
        transform: Any = REQUIRED,
        layer: str | None = None,
        use_raw: bool | None = None,
        cells: Any = None,
        genes: Any = None,
        **others: Any,
    ) -> RankResult:
        """As `Dataset.rank_genes_groups`, of its cells and genes. Where genes were filtered, a transform scales cells
        by the sums of those that are left. Arguments and errors are those of `Dataset.rank_genes_groups`."""
        layer = self._layer(layer, use_raw)
        settled = self._settled(transform, layer)
        part = self._mask_of(cells)
        where = {"cells": part if part is not None and not part.all() else None, "genes": self._gene_numbers(genes)}
        return self._ds.rank_genes_groups(groupby, *args, transform=settled, layer=layer, **where, **others)

    def ttest(
        self, a: Any, b: Any, *args: Any, transform: Any = REQUIRED, layer: str | None = None, use_raw: bool | None = None, genes: Any = None, **others: Any
    ) -> RankResult:
        """As `Dataset.ttest`, of its cells and genes: arguments and errors are the same."""
        layer = self._layer(layer, use_raw)
        a, b = _select.settled(a), _select.settled(b)
        labels = _select.label(a, "first"), _select.label(b, "second")
        res = self._ds.ttest(self._mask_of(a), self._mask_of(b), *args, transform=self._settled(transform, layer), layer=layer, genes=self._gene_numbers(genes), **others)
        if labels[0] != labels[1]:
            res._rename(dict(zip(("first", "second"), labels)))
        return res

    def normalize(self, target_sum: Any = CP10K, log1p: bool = True, base: float | None = None, *, layer: str | None = None, transform: Any = REQUIRED) -> View:
        """As `Dataset.normalize`, for this view and those that are made from it: cells are scaled by the sums of the
        genes that it has now, and a median is that of its cells. Changes this view, and gives it again."""
        asked = chosen(target_sum, log1p, base, transform)
        self._chosen = {**self._chosen, self._ds._matrix(self._layer(layer)): (asked, self._part)}
        return self

    def plot_qc(self, qc_vars: Any = None, *, path: str | os.PathLike[str] | None = None) -> Plot:
        """As `Dataset.plot_qc`, of its cells and genes: arguments and errors are the same."""
        from . import _quality

        obs, var = _quality.frames(self, qc_vars)
        return self._ds._drawn(_quality.quality_plot(obs, var, title=f"{self.name}: {len(obs):,} of {self._ds.n_obs:,} cells", path=path), path)

    def pca(
        self, n_comps: int | None = None, genes: Any = "highly_variable", zero_center: bool = True, seed: int = 0, *, transform: Transform = REQUIRED, **options: Any
    ) -> PCA:
        """Principal components of its cells, of highly variable genes among its own: as `Dataset.pca`. Kept in the data
        set, where other cells have missing values. Arguments and errors are those of `Dataset.pca`."""
        layer = self._layer(options.pop("layer", None), options.pop("use_raw", None))
        transform = self._settled(transform, layer)
        own = self._part.genes
        if own is not None:
            if isinstance(genes, str) and genes == "highly_variable":
                from . import _pca

                genes = _pca.highly_variable(self._ds, self._ds._matrix(layer)) & own
            else:
                genes = self._gene_numbers(genes)
        return self._ds.pca(n_comps, genes, zero_center, seed, transform=transform, layer=layer, cells=self._mask_of(options.pop("cells", None)), **options)

    def neighbors(self, *arguments: Any, **options: Any) -> Any:
        """As `Dataset.neighbors`, of its cells. `InvalidError` where the components are of other cells: call `pca` of
        the view first."""
        use_rep = options.get("use_rep", "X_pca")
        self._check_cells(self._ds._representation(use_rep, None)[1], f"obsm[{use_rep!r}]", "pca")
        return self._ds.neighbors(*arguments, **options)

    def umap(self, *arguments: Any, **options: Any) -> np.ndarray:
        """As `Dataset.umap`, of its cells. `InvalidError` where the neighbours are of other cells: call `neighbors` of
        the view first."""
        self._check_graph(options)
        return self._ds.umap(*arguments, **options)

    def leiden(self, *arguments: Any, **options: Any) -> pd.Series:
        """As `Dataset.leiden`, of its cells. `InvalidError` where the neighbours are of other cells: call `neighbors`
        of the view first."""
        self._check_graph(options)
        return self._ds.leiden(*arguments, **options)

    def save(self, name: str, *, replace: bool = False) -> View:
        """Keeps it under a name in the data set, with its filters and masks, as a new version: ``ds.view(name)`` gives
        it again, also in another process. Gives the view itself. When cells are appended, views are dropped.

        Raises
        ------
        ConflictError
            There is a view of that name, and `replace` is False.
        """
        one_name(name, "name", "view")
        if not name:
            raise InvalidError("a view is saved under a name: this one is empty")
        kept = _kept(self._ds)
        if name in kept and not replace:
            raise ConflictError(f"{self.name} has a view {name!r} already: choose another name, or say replace=True")
        _keep(self._ds, name, _record(self))
        return self

    # ---- inside

    def _check_graph(self, options: dict[str, Any]) -> None:
        key = options.get("neighbors_key", "neighbors")
        self._check_cells(np.flatnonzero(np.diff(self._ds._graph(key)[1].indptr)), f"the graph {key!r}", "pca and neighbors")

    def _check_cells(self, there: np.ndarray, what: str, first: str) -> None:
        if not np.array_equal(there, np.flatnonzero(self.cells)):
            raise InvalidError(f"{what} of {self.name} is of other cells than this view: call {first} of this view first")

    def _part_of(self) -> tuple[Any, Part]:
        return self._ds, self._part

    def _layer(self, layer: str | None, use_raw: bool | None = None) -> str | None:
        layer = chosen_layer(layer, use_raw, self._ds._origins, self.name)
        _sums.check_part(self._ds, self._ds._matrix(layer), self._part)
        return layer

    def _settled(self, transform: Any, layer: str | None) -> Any:
        matrix = self._ds._matrix(layer)
        if transform is not REQUIRED:
            return _settle(self._ds, matrix, canonical(transform), self._part)
        if matrix not in self._chosen:
            return REQUIRED
        return _settle(self._ds, matrix, *self._chosen[matrix])

    def _cell_numbers(self, cells: Any) -> np.ndarray | None:
        numbers = None if self._part.cells is None else np.flatnonzero(self._part.cells)
        if cells is None:
            return numbers
        found = _select.positions(_among(cells, self.obs_names), self.obs_names, "cell")
        return found if numbers is None else numbers[found]

    def _gene_numbers(self, genes: Any) -> np.ndarray | None:
        numbers = self._part.numbers()
        # The data set knows the genes of each of its matrices; where some are chosen, it is always those of `var`.
        if genes is None or numbers is None:
            return numbers if genes is None else genes
        return _chosen_genes(self, genes)

    def _mask_of(self, cells: Any) -> np.ndarray | None:
        """A mask over the data set of its cells, or of those that a selector means among them."""
        if cells is None:
            return None if self._part.cells is None else self._part.cells
        found = _select.mask(_among(_select.settled(cells), self.obs_names), self.obs, "cells=")
        if self._part.cells is None:
            return found
        mask = np.zeros(self._ds.n_obs, bool)
        mask[np.flatnonzero(self._part.cells)[found]] = True
        return mask


def _among(chosen: Any, names: pd.Index) -> Any:
    """`chosen`, or of a pandas mask by more names the part that is about `names`."""
    import pandas as pd

    if not isinstance(chosen, pd.Series) or not pd.api.types.is_bool_dtype(chosen.dtype) or len(chosen) <= len(names):
        return chosen
    return chosen.loc[names] if chosen.index.is_unique and names.isin(chosen.index).all() else chosen


def _chosen_rows(frame: pd.DataFrame, mask: np.ndarray | None) -> pd.DataFrame:
    import pandas as pd

    if mask is None:
        return frame
    some = frame[mask].copy()
    for column in some.columns:
        if isinstance(some[column].dtype, pd.CategoricalDtype):
            some[column] = some[column].cat.remove_unused_categories()
    return some


def _settle(ds: Dataset, matrix: str, transform: Any, part: Part) -> Any:
    """A transform for a part: with sums of its genes, and with the median of its cells."""
    of = parts(transform)
    if of is None or isinstance(transform, Settled) or part.genes is None and (of.target_sum != "median" or part.cells is None):
        return transform
    known = ds.__dict__.setdefault("_settled_transforms", {})
    key = (matrix, transform, id(part))
    if key not in known:
        _sums.check_part(ds, matrix, part)
        if part.genes is None:
            totals = ds._totals(matrix)
        else:
            totals = _sums.per_cell(ds, matrix, [("values", None)], genes=part.genes)[0].astype(np.float32)
        target = of.target_sum
        if target == "median":
            with ds._unchanged():
                target = median(totals if part.cells is None else totals[part.cells], ds._kept["matrices"][matrix]["layout"], f"a view of {ds.name}")
        # The part is kept with it, so that no other has its id.
        known[key] = Settled(transform, float(target), totals), part  # type: ignore[arg-type]
        while len(known) > _MOST_SETTLED:
            known.pop(next(iter(known)))
    return known[key][0]


#: How many settled transforms a data set remembers: 4 bytes for each cell.
_MOST_SETTLED = 8


# ---- filters


def filtered_cells(of: Any, min_genes: Any, max_genes: Any, min_counts: Any, max_counts: Any, mask: Any) -> View:
    """See `Filtering.filter_cells`."""
    limits = _limits({"min_genes": min_genes, "max_genes": max_genes, "min_counts": min_counts, "max_counts": max_counts}, mask)
    ds, part = of._part_of()
    view = _view_of(of)
    left = view.cells
    if mask is not None:
        left &= view._mask_of(mask)  # type: ignore[arg-type]
    if limits:
        genes, counts = _of_cells(ds, part)
        left &= _inside(genes, min_genes, max_genes) & _inside(counts, min_counts, max_counts)
    if not left.any():
        raise InvalidError(f"no cell of {ds.name} is left by {', '.join(_said(limits, mask))}: choose other limits")
    return View(ds, Part(left, part.genes), (*view.filters, *_said(limits, mask)), view._chosen)


def _chosen_genes(view: View, mask: Any) -> np.ndarray:
    """The numbers of the genes of `var` that a mask, names or numbers mean among those of a view."""
    found = _select.positions(_among(mask, view.var_names), view.var_names, "gene", view.var)
    numbers = view._part.numbers()
    return found if numbers is None else numbers[found]


def filtered_genes(of: Any, min_cells: Any, max_cells: Any, min_counts: Any, max_counts: Any, mask: Any) -> View:
    """See `Filtering.filter_genes`."""
    limits = _limits({"min_cells": min_cells, "max_cells": max_cells, "min_counts": min_counts, "max_counts": max_counts}, mask)
    ds, part = of._part_of()
    view = _view_of(of)
    left = view.genes
    if mask is not None:
        wanted = np.zeros(ds.n_vars, bool)
        wanted[_chosen_genes(view, mask)] = True
        left &= wanted
    if limits:
        cells, counts = _sums.gene_counts(ds, "x", part)
        inside = np.zeros(ds.n_vars, bool)
        inside[slice(None) if part.genes is None else part.genes] = _inside(cells, min_cells, max_cells) & _inside(counts, min_counts, max_counts)
        left &= inside
    if not left.any():
        raise InvalidError(f"no gene of {ds.name} is left by {', '.join(_said(limits, mask))}: choose other limits")
    return View(ds, Part(part.cells, left), (*view.filters, *_said(limits, mask)), view._chosen)


def _view_of(of: Any) -> View:
    """A view as it is; a data set as a view of all of it."""
    return of if isinstance(of, View) else View(of, WHOLE, (), {matrix: (transform, WHOLE) for matrix, transform in of._chosen_once.items()})


def _limits(limits: dict[str, Any], mask: Any) -> dict[str, Any]:
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given and mask is None:
        raise InvalidError(f"a filter needs a limit: give {', '.join(f'{name}=' for name in limits)} or mask=")
    for name, limit in given.items():
        if hasattr(limit, "__len__") and not isinstance(limit, str):
            raise InvalidError(f"{name} is of type {type(limit).__name__}, and a limit is a number: a mask or names are given as mask=")
        if isinstance(limit, bool) or not isinstance(limit, (int, float, np.integer, np.floating)) or not limit >= 0:
            raise InvalidError(f"{name} is {limit!r}: give a number from 0 on")
    return given


def _said(limits: dict[str, Any], mask: Any) -> tuple[str, ...]:
    return (*(f"{name}={limit:,}" for name, limit in limits.items()), *(() if mask is None else ("mask",)))


def _inside(numbers: np.ndarray, least: Any, most: Any) -> np.ndarray:
    return (numbers >= (-np.inf if least is None else least)) & (numbers <= (np.inf if most is None else most))


def _of_cells(ds: Dataset, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Of each cell: the number of genes of the part that it has, and the sum of its values of them."""
    known = ds.__dict__.setdefault("_counted_cells", {})
    key = None if part.genes is None else part.genes.tobytes()
    if key not in known:
        known.clear()
        known[key] = _sums.per_cell(ds, "x", [("nonzeros", None), ("values", None)], genes=part.genes)
    genes, counts = known[key]
    return genes, counts.astype(np.float32) if ds._kept["matrices"]["x"]["dtype"] == "float32" else counts


# ---- kept views


def _kept(ds: Dataset) -> dict[str, dict[str, Any]]:
    """The records of the views that are kept with a data set, by name."""
    found: dict[str, dict[str, Any]] = ds._kept.get("views", {})
    return found


def _keep(ds: Dataset, name: str, record: dict[str, Any] | None, action: str = "save_view") -> None:
    """Keeps the record of a view under a name, as a new version of the data set; None drops it."""
    from . import _versions

    _versions.put(ds, views={name: record}, action=action, params={"name": name})


def _record(view: View) -> dict[str, Any]:
    """A view in JSON's types."""
    transforms = {m: {"asked": _plain(asked), **_part_record(part)} for m, (asked, part) in view._chosen.items()}
    return {"filters": list(view.filters), **_part_record(view._part), "transforms": transforms}


def _part_record(part: Part) -> dict[str, Any]:
    return {"cells": _packed(part.cells), "genes": _packed(part.genes)}


def _packed(mask: np.ndarray | None) -> dict[str, Any] | None:
    return None if mask is None else {"n": len(mask), "bits": base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()}


def _unpacked(kept: dict[str, Any] | None) -> np.ndarray | None:
    return None if kept is None else np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(kept["bits"])), np.uint8), count=kept["n"]).astype(bool)


def _plain(transform: Any) -> Any:
    return {"target_sum": transform.target_sum, "log1p": transform.log1p, "base": transform.base} if isinstance(transform, Normalize) else said(transform)


def saved(of: Any, name: str) -> View:
    """See `Filtering.view`."""
    ds, _ = of._part_of()
    kept = _kept(ds)
    if name not in kept:
        raise NotFoundError(f"{ds.name} has no view {name!r}: it has {', '.join(map(repr, kept)) or 'none'}{instead(str(name), kept)}")
    record = kept[name]

    def part(of: dict[str, Any]) -> Part:
        return Part(_unpacked(of["cells"]), _unpacked(of["genes"]))

    transforms = {m: (Normalize(**t["asked"]) if isinstance(t["asked"], dict) else t["asked"], part(t)) for m, t in record["transforms"].items()}
    return View(ds, part(record), tuple(record["filters"]), transforms)


def names(of: Any) -> list[str]:
    """See `Filtering.views`."""
    return list(_kept(of._part_of()[0]))
