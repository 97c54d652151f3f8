"""Highly variable genes, as scanpy 1.11 selects them, from moments that the drives compute."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, NotFoundError, UnsupportedError

from . import _sums
from ._arguments import REQUIRED, one_name
from ._hints import instead
from ._sums import GeneMoments, Part
from ._transforms import check_transform, said, takes_logs, written

if TYPE_CHECKING:
    import pandas as pd

    from ._testing import Testing

FLAVORS = ("seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper")
#: The median absolute deviation of a normal distribution with standard deviation 1: the quantile of 3/4.
_MAD = 0.6744897501960817


@dataclass(frozen=True)
class Asked:
    """What a selection of genes goes by; see `Preparing.highly_variable_genes`."""

    n_top_genes: int | None
    flavor: str
    min_mean: float
    max_mean: float
    min_disp: float
    max_disp: float
    span: float
    n_bins: int

    def check(self) -> None:
        """Refuses what is no such choice."""
        if self.flavor not in FLAVORS:
            raise InvalidError(f"flavor {self.flavor!r} does not exist: use one of {', '.join(map(repr, FLAVORS))}{instead(str(self.flavor), FLAVORS)}")
        n = self.n_top_genes
        if n is not None and (isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1):
            raise InvalidError(f"n_top_genes is {n!r}: select at least one gene, as a whole number, or None to select by min_mean, max_mean, min_disp and max_disp")
        if isinstance(self.n_bins, bool) or not isinstance(self.n_bins, (int, np.integer)) or self.n_bins < 1:
            raise InvalidError(f"n_bins is {self.n_bins!r}: give a whole number of at least 1")
        if not 0 < self.span <= 1:
            raise InvalidError(f"span is {self.span!r}: it is the share of genes that a point of the trend is fitted to, above 0 and up to 1")


def genes(ds: Testing, part: Part, asked: Asked, batch_key: str | None, layer: str | None, transform: Any) -> pd.DataFrame:
    """The frame of scanpy's `highly_variable_genes`; see `Preparing.highly_variable_genes`."""
    asked.check()
    matrix = ds._matrix(layer)
    ds._check_not_empty(matrix)
    _sums.check_part(ds, matrix, part)
    names = ds._names(matrix) if part.genes is None else ds._names(matrix)[part.genes]
    groups = _sums.of_part(ds, part) if batch_key is None else _batches(ds, part, batch_key)
    if not len(names) or not (groups[1] >= 0).any():
        raise InvalidError(f"there are no {'genes' if not len(names) else 'cells'} to select genes by: the view of {ds.name} has none")
    if batch_key is not None and len(set(map(str, names))) < len(names):
        raise InvalidError(f"genes of {ds.name} share names, and scanpy joins batches by name: ingest it with names that differ, or leave batch_key= out")
    single = ds._kept["matrices"][matrix]["dtype"] != "float64"
    if asked.flavor.startswith("seurat_v3"):
        if transform is not REQUIRED and transform is not None:
            raise InvalidError(f"flavor {asked.flavor!r} takes counts as they are: leave transform= out")
        if not ds._is_counts(layer):
            warnings.warn(f"flavor {asked.flavor!r} is for raw counts, and {ds._what_values(layer)}: choose a layer of counts with layer=", stacklevel=4)
        return _by_variance(ds, matrix, part, asked, names, groups, batch_key is not None, single)
    transform = _transform(ds, layer, transform, asked.flavor)
    found = _sums.per_gene(ds, matrix, transform, groups, genes=part.genes, single=single, back=asked.flavor == "seurat")
    frame = _batched(found, asked, names) if batch_key is not None else _of_batch(found, 0, asked, names, False)
    frame.attrs["transform"] = said(transform)
    return frame


def _transform(ds: Testing, layer: str | None, transform: Any, flavor: str) -> Any:
    """The transform of a call, else the one that was chosen once, else the one that fits the values, which is said."""
    if transform is REQUIRED:
        transform = "log1p_cp10k" if ds._is_counts(layer) else None
        warnings.warn(f"{ds.name}: {ds._what_values(layer)}, so genes are selected with {written(transform)}: say transform= or ds.normalize() to choose", stacklevel=5)
    check_transform(transform)
    if transform is None and ds._is_counts(layer):
        values = ds._what_values(layer)
        raise InvalidError(f'flavor {flavor!r} takes logarithms, and {values}: say transform="log1p_cp10k", or flavor="seurat_v3" for counts as they are')
    if transform is not None and not takes_logs(transform):
        raise InvalidError(f"flavor {flavor!r} takes logarithms, and {written(transform)} gives none: leave log1p=False out")
    return transform


def _batches(ds: Testing, part: Part, batch_key: str) -> tuple[list[str], np.ndarray]:
    """The batches of the cells: names, and for each cell the number of its batch, -1 for none."""
    import pandas as pd

    one_name(batch_key, "batch_key", "obs column")
    obs = ds._shell.obs
    if batch_key not in obs.columns:
        raise NotFoundError(f"obs of {ds.name} has no column {batch_key!r}: it has {', '.join(map(repr, obs.columns)) or 'none'}{instead(batch_key, obs.columns)}")
    values = obs[batch_key] if part.cells is None else obs[batch_key][part.cells]
    if values.isna().any():
        raise InvalidError(f"{int(values.isna().sum()):,} cells have no batch in obs column {batch_key!r}: leave them out with filter_cells(mask=...)")
    kinds = pd.Categorical(values)
    used = kinds.remove_unused_categories()
    codes = np.full(len(obs), -1, np.int32)
    codes[slice(None) if part.cells is None else part.cells] = used.codes
    return [str(name) for name in used.categories], codes


# ---- by dispersion


def _of_batch(found: GeneMoments, at: int, asked: Asked, names: np.ndarray, expressed: bool) -> pd.DataFrame:
    """The frame of one batch. `expressed`: genes that it has no value of take no part, and get zeros."""
    import pandas as pd

    part = found.nnz[at] > 0 if expressed else np.ones(len(names), bool)
    mean, variance = found.mean[at][part], found.variance[at][part]
    if not part.any():
        raise InvalidError("a batch has no gene with a value: leave it out with filter_cells(mask=...)")
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    if asked.flavor == "seurat":
        dispersion[dispersion == 0] = np.nan
        dispersion = np.log(dispersion)
        mean = np.log1p(mean)
    frame = pd.DataFrame({"means": mean, "dispersions": dispersion})
    bins: Any = asked.n_bins if asked.flavor == "seurat" else np.r_[-np.inf, np.percentile(mean, np.arange(10, 105, 5)), np.inf]
    try:
        frame["mean_bin"] = pd.cut(frame["means"], bins=bins)
    except ValueError as e:
        raise InvalidError(f'the means of the genes can\'t be put into bins, as many are equal ({e}): use flavor="seurat", or leave genes without values out') from e
    by_bin = frame.groupby("mean_bin", observed=True)["dispersions"]
    if asked.flavor == "seurat":
        stats = by_bin.agg(avg="mean", dev="std")
        # A bin of one gene has no deviation: that gene's normalised dispersion is 1.
        alone = stats["dev"].isnull()
        stats.loc[alone, "dev"] = stats.loc[alone, "avg"]
        stats.loc[alone, "avg"] = 0
    else:
        stats = by_bin.agg(avg="median", dev=lambda of: np.median(np.abs((of - np.median(of)) / _MAD)))
    stats = stats.loc[frame["mean_bin"]].set_index(frame.index)
    with np.errstate(invalid="ignore", divide="ignore"):
        frame["dispersions_norm"] = (frame["dispersions"] - stats["avg"]) / stats["dev"]
    frame["highly_variable"] = _selected(frame["means"].to_numpy(), frame["dispersions_norm"].to_numpy(), asked)
    frame.index = pd.Index(names[part])
    if part.all():
        return frame
    rest = pd.DataFrame(np.zeros((int((~part).sum()), len(frame.columns))), columns=frame.columns, index=names[~part])
    rest["highly_variable"] = False
    both = pd.concat([frame.drop(columns="mean_bin"), rest.drop(columns="mean_bin")])
    return both.iloc[np.argsort(np.r_[np.flatnonzero(part), np.flatnonzero(~part)])]


def _within(mean: np.ndarray, dispersion: np.ndarray, asked: Asked) -> np.ndarray:
    return (mean > asked.min_mean) & (mean < asked.max_mean) & (dispersion > asked.min_disp) & (dispersion < asked.max_disp)


def _selected(mean: np.ndarray, dispersion: np.ndarray, asked: Asked) -> np.ndarray:
    if asked.n_top_genes is None:
        return _within(mean, np.nan_to_num(dispersion), asked)
    there = np.sort(dispersion[~np.isnan(dispersion)])[::-1]
    n = min(asked.n_top_genes, len(there))
    if not n:
        return np.zeros(len(mean), bool)
    return np.nan_to_num(dispersion, nan=-np.inf) >= there[n - 1]


def _batched(found: GeneMoments, asked: Asked, names: np.ndarray) -> pd.DataFrame:
    """Each batch by itself; then by how many batches select a gene, and by the mean of its normalised dispersions."""
    import pandas as pd

    each = [_of_batch(found, at, asked, names, True) for at in range(len(found.n))]
    together = pd.concat([frame.drop(columns="mean_bin", errors="ignore") for frame in each])
    together["highly_variable"] = together["highly_variable"].astype(int)
    frame = together.groupby(together.index, observed=True).agg({"means": "mean", "dispersions": "mean", "dispersions_norm": "mean", "highly_variable": "sum"})
    frame["highly_variable_nbatches"] = frame["highly_variable"]
    frame["highly_variable_intersection"] = frame["highly_variable_nbatches"] == len(each)
    if asked.n_top_genes is None:
        frame["dispersions_norm"] = frame["dispersions_norm"].fillna(0)
        frame["highly_variable"] = _within(frame["means"].to_numpy(), frame["dispersions_norm"].to_numpy(), asked)
        return frame.loc[names]
    frame = frame.sort_values(["highly_variable_nbatches", "dispersions_norm"], ascending=False, na_position="last")
    frame["highly_variable"] = np.arange(len(frame)) < asked.n_top_genes
    return frame.loc[names]


# ---- by variance (Stuart et al., Cell 177:1888, 2019)


def _by_variance(
    ds: Testing, matrix: str, part: Part, asked: Asked, names: np.ndarray, groups: tuple[list[str], np.ndarray], batched: bool, single: bool
) -> pd.DataFrame:
    import pandas as pd

    n_top = 2000 if asked.n_top_genes is None else int(asked.n_top_genes)
    found = _sums.per_gene(ds, matrix, None, groups, genes=part.genes, single=single)
    if (found.n < 2).any():
        few = groups[0][int(np.argmax(found.n < 2))]
        what = f"batch {few!r} has {int(found.n.min())} cells" if batched else f"{ds.name} has one cell here"
        raise InvalidError(f"{what}: a variance needs two; leave it out with filter_cells(mask=...)")
    whole = found if not batched else _sums.per_gene(ds, matrix, None, _sums.of_part(ds, part), genes=part.genes, single=single)
    deviation = np.stack([_trend(found.mean[i], found.variance[i], asked.span) for i in range(len(found.n))])
    clips = np.zeros((len(found.n), ds._kept["matrices"][matrix]["shape"][1]))
    clips[:, slice(None) if part.genes is None else part.genes] = deviation * np.sqrt(found.n)[:, None] + found.mean
    clipped = _sums.per_gene(ds, matrix, None, groups, genes=part.genes, clips=clips)
    n = found.n[:, None].astype(float)
    sums = clipped.mean * n
    squares = clipped.m2 + sums * clipped.mean
    normalised = (1 / ((n - 1) * np.square(deviation))) * (n * np.square(found.mean) + squares - 2 * sums * found.mean)
    # Twice gives ranks: 0 for the most variable gene.
    ranks = np.argsort(np.argsort(-normalised, axis=1), axis=1).astype(np.float32)
    often = np.sum(ranks < n_top, axis=0)
    ranks[ranks >= n_top] = np.nan
    frame = pd.DataFrame(index=pd.Index(names))
    frame["means"], frame["variances"] = whole.mean[0], whole.variance[0]
    frame["gene_name"] = frame.index
    frame["highly_variable_nbatches"] = often
    frame["highly_variable_rank"] = np.ma.median(np.ma.masked_invalid(ranks), axis=0).filled(np.nan)
    frame["variances_norm"] = np.mean(normalised, axis=0)
    by = ["highly_variable_rank", "highly_variable_nbatches"]
    ascending = [True, False]
    if asked.flavor == "seurat_v3_paper":
        by, ascending = by[::-1], ascending[::-1]
    order = frame[by].reset_index(drop=True).sort_values(by, ascending=ascending, na_position="last").index
    chosen = np.zeros(len(names), bool)
    chosen[order[:n_top]] = True
    frame["highly_variable"] = chosen
    return frame if batched else frame.drop(columns="highly_variable_nbatches")


def _trend(mean: np.ndarray, variance: np.ndarray, span: float) -> np.ndarray:
    """The standard deviation that genes of such a mean have, by a local regression of the variances."""
    try:
        from skmisc.loess import loess
    except ImportError as e:
        raise UnsupportedError('flavor "seurat_v3" needs the package scikit-misc: pip install scikit-misc, or use flavor="seurat"') from e
    fitted = np.zeros(len(mean))
    varies = variance > 0
    if varies.any():
        model = loess(np.log10(mean[varies]), np.log10(variance[varies]), span=span, degree=2)
        try:
            model.fit()
        except ValueError as e:
            raise InvalidError(f"the trend of the variances can't be fitted to {int(varies.sum()):,} genes with span={span}: {e}; give a larger span=") from e
        fitted[varies] = model.outputs.fitted_values
    return np.sqrt(10**fitted)
