"""Dense matrices of chunked files, read in whole chunks and in bounded memory.

Programs cut dense matrices into chunks of any shape: whole rows, whole columns, squares. A chunk is decompressed once.
Where a band of whole rows is too large, it is read in parts, and each part gives its nonzeros.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import numpy as np

from . import _h5
from ._source import plain, push_compressed, push_dense

#: A part of a matrix: its first row, its first column, its values.
Tile = tuple[int, int, np.ndarray]


def spans(shape: tuple[int, int], chunks: Sequence[int] | None, budget: int = _h5.BATCH) -> tuple[int, int]:
    """Rows and columns of the parts to read: whole chunks of about `budget` values, as wide as possible.

    A single chunk above the budget is a part of its own: a file can't be read in less.
    """
    rows, columns = (max(1, n) for n in shape)
    high, wide = (min(max(1, int(c)), n) for c, n in zip(chunks or (1, columns), (rows, columns)))
    if high * columns <= budget:
        return min(rows, max(high, budget // columns // high * high)), columns
    return high, min(columns, max(wide, budget // high // wide * wide))


def tiles(shape: tuple[int, int], span: tuple[int, int], read: Callable[[int, int, int, int], np.ndarray]) -> Iterator[Tile]:
    """The parts of a matrix in the order of its rows; `read` takes the first row, the row after the last, and so the
    columns."""
    for row in range(0, shape[0], span[0]):
        for column in range(0, shape[1], span[1]):
            yield row, column, read(row, min(row + span[0], shape[0]), column, min(column + span[1], shape[1]))


def push(sink: Any, step: Callable[[int], None], width: int, by_gene: bool, parts: Iterator[Tile]) -> None:
    """Pushes the parts of a matrix of `width` columns, whose rows are cells (or, `by_gene`, genes)."""
    for row, column, block in parts:
        if not by_gene and block.shape[1] == width:
            push_dense(sink, step, iter([(row, block)]))
            continue
        # Before zeros are looked for: float16 and booleans are widened.
        block = plain(block)
        at, across = np.nonzero(block)
        indptr = np.zeros(len(block) + 1, np.int64)
        np.cumsum(np.bincount(at, minlength=len(block)), out=indptr[1:])
        push_compressed(sink, lambda _: None, by_gene, iter([(row, indptr, across + column, block[at, across])]))
        step(block.size)
