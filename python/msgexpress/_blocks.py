"""Blocks of cells: which cells a row of `x_rows` is about (docs/internals/formats/slice.md).

A matrix has a part for each append that left its other cells where they are. Each part divides its own cells into
blocks, and the blocks of all parts are numbered on.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

#: Cells of a block, at most.
BLOCK = 1 << 16


def starts(kept: Mapping[str, Any]) -> np.ndarray:
    """The first cell of each block, by what the application metadata keep of a matrix."""
    cells = int(kept["shape"][0])
    firsts = [*kept.get("parts", [0]), cells]
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, end, BLOCK, dtype=np.int64) for first, end in zip(firsts, firsts[1:]))])


def sizes(kept: Mapping[str, Any]) -> np.ndarray:
    """How many cells each block has."""
    return np.diff(np.r_[starts(kept), int(kept["shape"][0])])


def of(kept: Mapping[str, Any], cells: np.ndarray) -> np.ndarray:
    """The number of each cell's block."""
    return np.searchsorted(starts(kept), cells, side="right") - 1
