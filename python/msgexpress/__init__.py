"""MSG Express: differential expression over single-cell data that lives on a fleet of drives.

>>> import msgexpress                                                       # doctest: +SKIP
>>> db = msgexpress.open("fleet", drives=4)                                 # doctest: +SKIP
>>> ds = db.ingest("pbmc3k.h5ad", "blood/pbmc3k")                           # doctest: +SKIP
>>> res = ds.rank_genes_groups("cell_type", transform="log1p_cp10k")        # doctest: +SKIP
>>> res.to_df("B").head(); print(res.receipt); res.plot_volcano("B")        # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

# One package on the index has both modules, and so one version.
from skytether import __version__

from ._across import Domain, Receipts
from ._across_compare import CompareResult
from ._across_means import Centroids
from ._across_similar import Similarities
from ._dataset import Dataset
from ._db import MsgExpress, connect, open
from ._draw_groups import DotPlot
from ._picture import Plot
from ._rank import RankResult
from ._transforms import Normalize
from ._view import View

__all__ = [
    "Centroids",
    "CompareResult",
    "Dataset",
    "Domain",
    "DotPlot",
    "MsgExpress",
    "Normalize",
    "Plot",
    "RankResult",
    "Receipts",
    "Similarities",
    "View",
    "__version__",
    "connect",
    "open",
]

#: What users of scanpy look for here, and what there is.
_ELSEWHERE = {
    **dict.fromkeys(("read", "read_h5ad", "read_10x_h5", "read_10x_mtx", "read_loom"), 'db = msgexpress.open("fleet"), then db.ingest("file.h5ad", "domain/name")'),
    **dict.fromkeys(("pp", "tl", "pl", "get"), "methods of a data set and of results: ds.pca(), ds.rank_genes_groups(...), res.to_df(), ds.plot_dotplot(...)"),
    "AnnData": "anndata.AnnData; ds.to_anndata() gives one",
}


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'msgexpress' has no attribute {name!r}" + (f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""))
