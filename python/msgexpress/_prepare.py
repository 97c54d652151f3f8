"""From counts on: quality and highly variable genes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping

from ._arguments import REQUIRED, refuse_others
from ._qc import PERCENT_TOP
from ._sums import Part

if TYPE_CHECKING:
    import pandas as pd

    from ._picture import Plot
    from ._transforms import Transform


class Preparing:
    """What precedes clusters: quality and highly variable genes."""

    def _part_of(self) -> tuple[Any, Part]:
        """The data set with the matrices, and the cells and genes of it that this is."""
        raise NotImplementedError

    def qc_metrics(
        self,
        qc_vars: Mapping[str, Any] | Iterable[str] | None = None,
        layer: str | None = None,
        percent_top: Iterable[int] | None = PERCENT_TOP,
        log1p: bool = True,
        *,
        progress: Any = None,
        **others: Any,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Quality of cells and genes, with the columns and numbers of ``scanpy.pp.calculate_qc_metrics``: a frame with
        a row per cell and one with a row per gene. The drives count in one scan; a few numbers per cell move.

        Parameters
        ----------
        qc_vars
            Sets of genes by name, ``{"mt": "MT-"}``: each the beginning of names (capitals or not), a mask, names or
            numbers. As in scanpy, also names of var columns with a mask.
        layer
            Which matrix: None for the main one.
        percent_top
            For each n the share of counts in a cell's n largest genes. Left out: of 50, 100, 200 and 500 those that the
            matrix has genes for, if it holds counts. For values that are no counts, naming them reads the whole matrix.
        log1p
            Whether there are columns ``log1p_...``, too.
        progress
            As in `MsgExpress.ingest`.

        Sums of counts are scanpy's to the last bit. Other values are added up in doubles and then rounded, where scanpy
        adds in the type of the matrix: they may differ in the last digits.

        Raises
        ------
        InvalidError
            No gene's name begins so; `percent_top` names more genes than there are.
        NotFoundError
            No such layer, gene or var column.
        """
        from . import _qc

        refuse_others("qc_metrics", others)
        ds, part = self._part_of()
        return _qc.metrics(ds, part, qc_vars, layer, percent_top, log1p, progress)

    def highly_variable_genes(
        self,
        n_top_genes: int | None = 2000,
        flavor: Literal["seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper"] = "seurat",
        batch_key: str | None = None,
        *,
        layer: str | None = None,
        transform: Transform = REQUIRED,
        min_mean: float = 0.0125,
        max_mean: float = 3,
        min_disp: float = 0.5,
        max_disp: float = float("inf"),
        span: float = 0.3,
        n_bins: int = 20,
        keep: bool = True,
        **others: Any,
    ) -> pd.DataFrame:
        """Selects highly variable genes, as ``scanpy.pp.highly_variable_genes``: gives its frame, a row per gene with a
        column ``highly_variable``. The drives compute means and variances.

        Parameters
        ----------
        n_top_genes
            How many genes; None to select by the limits instead (not for ``"seurat_v3"``).
        flavor
            ``"seurat"`` and ``"cell_ranger"`` go by dispersions of logarithms; ``"seurat_v3"`` and
            ``"seurat_v3_paper"`` by variances of counts, which needs the package scikit-misc.
        batch_key
            An obs column: genes are selected in each of its groups, and those are preferred that many groups select.
        layer
            Which matrix: None for the main one.
        transform
            What is done to the stored values first, for ``"seurat"`` and ``"cell_ranger"``. Left out: what `normalize`
            has chosen, else ``"log1p_cp10k"`` for counts and None for others, with a warning that says so.
        min_mean, max_mean, min_disp, max_disp
            Limits of means and normalised dispersions, without `n_top_genes`.
        span
            The share of genes that each point of the trend is fitted to, for ``"seurat_v3"``.
        n_bins
            Bins of means for ``"seurat"``.
        keep
            Whether `var` gets the frame's columns, as a new version; `pca` takes its genes from there. Genes that a
            view leaves out are not marked.

        Raises
        ------
        InvalidError
            The values do not fit the flavor; cells without a batch; a value that the transform can't take.
        NotFoundError
            No such layer or column.
        UnsupportedError
            A package that the flavor needs is missing.
        """
        from . import _hvg

        refuse_others("highly_variable_genes", others)
        ds, part = self._part_of()
        asked = _hvg.Asked(n_top_genes, flavor, min_mean, max_mean, min_disp, max_disp, span, n_bins)
        found = _hvg.genes(ds, part, asked, batch_key, layer, self._settled(transform, layer))
        if keep:
            _keep_variable(ds, part, layer, flavor, found)
        return found

    def plot_highly_variable_genes(self, frame: pd.DataFrame | None = None, *, path: str | os.PathLike[str] | None = None, **options: Any) -> Plot:
        """Draws genes by mean and normalised dispersion or variance, those that are selected in colour.

        Parameters
        ----------
        frame
            What `highly_variable_genes` gave; left out, it is called with `options`.
        path
            Where to write the picture, too.

        Raises
        ------
        InvalidError
            The file can't be written; and as of `highly_variable_genes`.
        """
        from . import _draw_genes

        ds, _ = self._part_of()
        shown = self.highly_variable_genes(**{"keep": False, **options}) if frame is None else frame
        return ds._drawn(_draw_genes.variable(shown, title=f"{ds.name}: highly variable genes", path=path), path)

    def _settled(self, transform: Any, layer: str | None) -> Any:
        """`transform` for the cells and genes of this; `REQUIRED` where it is left out and none was chosen."""
        raise NotImplementedError


#: What `highly_variable_genes` keeps in `var`, as scanpy calls it.
_VARIABLE = (
    *("highly_variable", "highly_variable_rank", "highly_variable_nbatches", "highly_variable_intersection"),
    *("means", "dispersions", "dispersions_norm", "variances", "variances_norm"),
)


def _keep_variable(ds: Any, part: Part, layer: str | None, flavor: str, found: pd.DataFrame) -> None:
    """Keeps the frame of highly variable genes in `var`, if it is about the genes of `var`."""
    import numpy as np
    import pandas as pd

    from . import _versions

    kept = ds._kept["matrices"][ds._matrix(layer)]
    if kept["shape"][1] != len(ds._genes) or (kept["origin"] == "raw/X") != ds._swapped:
        return
    at = np.arange(len(ds._genes)) if part.genes is None else np.flatnonzero(part.genes)
    # Columns of a call before, with other arguments, say nothing of this one.
    columns: dict[str, Any] = {name: None for name in _VARIABLE if name in ds._genes.columns}
    for name, values in found.items():
        if pd.api.types.is_bool_dtype(values):
            whole: Any = np.zeros(len(ds._genes), bool)
        elif pd.api.types.is_numeric_dtype(values):
            whole = np.full(len(ds._genes), np.nan)
        else:
            continue
        whole[at] = values.to_numpy()
        columns[str(name)] = whole
    _versions.put(
        ds, var=columns, uns={"hvg": {"flavor": flavor}}, action="highly_variable_genes", params={"flavor": flavor, "genes": int(found["highly_variable"].sum())}
    )
