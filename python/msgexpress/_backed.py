"""Matrices that an AnnData has in a file (``anndata.read_h5ad(path, backed="r")``), streamed from there.

obs, var and the rest of a backed AnnData are in memory; they may differ from the file's, and are taken from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator

import h5py
import numpy as np

from skytether import UnsupportedError

from . import _h5, _h5ad
from ._source import Encoding, Matrix, push_compressed, push_dense

if TYPE_CHECKING:
    import anndata


def has_x(adata: anndata.AnnData) -> bool:
    """Whether an AnnData has X. That of a view of a file is not read for it."""
    return "X" in adata.file if adata.isbacked else adata.X is not None


def matrices(adata: anndata.AnnData, what: str) -> list[Matrix]:
    """X and raw of a backed AnnData, or of a view of one."""
    if not adata.file.is_open:
        adata.file.open()
    base = adata._adata_ref if adata.is_view else adata
    # anndata makes no views of views of files: parts are views of the whole.
    cells, genes = (np.arange(n)[at] for n, at in zip(base.shape, (adata._oidx, adata._vidx) if adata.is_view else (slice(None),) * 2))
    found = []
    if has_x(adata):
        there = stored("X", base.X, what)
        assert there is not None
        found.append(_viewed(there, base.X, adata.shape, lambda a, b, c, d: base[cells[a:b], genes[c:d]].X) if adata.is_view else there)
    if base.raw is not None:
        there = stored("raw/X", base.raw.X, what)
        assert there is not None
        shape = (adata.n_obs, base.raw.n_vars)
        found.append(_viewed(there, base.raw.X, shape, lambda a, b, _c, _d: base[cells[a:b]].raw.X) if adata.is_view else there)
    return found


def stored(origin: str, values: Any, what: str) -> Matrix | None:
    """A matrix of h5py or of anndata that stays in its file; None where `values` is none."""
    element = getattr(values, "group", values)
    if not isinstance(element, (h5py.Group, h5py.Dataset)):
        return None
    found = _h5ad.element(element, what, origin)
    if found is None:
        raise UnsupportedError(f"{what}: {origin} is no matrix of numbers: ingest adata.to_memory()")
    return found


def _viewed(whole: Matrix, values: Any, shape: tuple[int, int], read: Callable[[int, int, int, int], Any]) -> Matrix:
    """Some rows and columns of a matrix in a file, as `read` gives them."""
    layout, total = whole.encoding.layout, max(1, whole.shape[0] * whole.shape[1])
    # Values that are read at a time, if those of the view lie as in the whole.
    share = 1.0 if layout == "dense" else max(whole.values / total, 1e-6)
    by_gene = layout == "csc" and whole.origin == "X"
    lines, length = (shape[1], shape[0]) if by_gene else shape
    span = max(1, int(_h5.BATCH / max(1.0, length * share)))

    def parts() -> Iterator[tuple[int, Any]]:
        for first in range(0, lines, span):
            last = min(first + span, lines)
            yield first, read(0, shape[0], first, last) if by_gene else read(first, last, 0, shape[1])

    def push(sink: Any, step: Callable[[int], None]) -> None:
        for first, block in parts():
            if isinstance(block, np.ndarray):
                push_dense(sink, step, iter([(first, block)]))
            else:
                block = block.tocsc() if by_gene else block.tocsr()
                push_compressed(sink, step, by_gene, iter([(first, block.indptr, block.indices, block.data)]))

    encoding = Encoding(layout, whole.encoding.dtype, whole.encoding.index, whole.encoding.indptr)
    return Matrix(whole.origin, shape, encoding, max(1, int(shape[0] * shape[1] * share)), push)
