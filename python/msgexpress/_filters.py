"""Which genes a ranking shows: Seurat's filters of a test, and scanpy's of its result.

Filters leave every number as it is: p-values are corrected for all genes that were asked for, those that a filter
leaves out among them. scanpy does so, as its `filter_rank_genes_groups` comes after the test. Seurat does so, as its
`FindMarkers` leaves genes out before the test, and corrects for all of the object's (``p.adjust(n = nrow(object))``).
A filter by fold changes picks genes by what is tested: p-values corrected for the rest alone would be too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from skytether import InvalidError


@dataclass(frozen=True)
class Filters:
    """The least that a gene must have to be shown; None asks for nothing."""

    min_pct: float | None = None
    min_logfc: float | None = None
    min_cells: int | None = None

    def __post_init__(self) -> None:
        share("min_pct", self.min_pct)
        number("min_logfc", self.min_logfc)
        if self.min_cells is not None and (isinstance(self.min_cells, bool) or not isinstance(self.min_cells, (int, np.integer)) or self.min_cells < 0):
            raise InvalidError(f"min_cells is {self.min_cells!r}: give a number of cells, 0 or more, as a whole number, or None")

    def __bool__(self) -> bool:
        return any(least is not None for least in self.asked.values())

    @property
    def asked(self) -> dict[str, Any]:
        """The filters by the names of their arguments."""
        return {"min_pct": self.min_pct, "min_logfc": self.min_logfc, "min_cells": self.min_cells}

    def passed(self, pct: np.ndarray, other: np.ndarray, folds: np.ndarray, cells: Callable[[], tuple[int, int]]) -> np.ndarray:
        """Which genes pass, by their shares of cells in the group and in the reference and their fold changes. `cells`
        gives how many cells the two have; it is asked where a filter counts cells."""
        out = np.ones(len(pct), bool)
        if self.min_pct is not None:
            out &= np.maximum(pct, other) >= self.min_pct
        if self.min_logfc is not None:
            out &= np.abs(folds) >= self.min_logfc
        if self.min_cells is not None:
            of_group, of_reference = cells()
            # A share is the quotient of two whole numbers: times the second it is the first, but for the last bits.
            out &= np.maximum(np.rint(pct * of_group), np.rint(other * of_reference)) >= self.min_cells
        return out

    def __str__(self) -> str:
        return ", ".join(f"{name}={least:g}" for name, least in self.asked.items() if least is not None)


def share(what: str, value: Any) -> None:
    """Refuses what is no share of cells, from 0 to 1, and not None.

    Raises
    ------
    InvalidError
        It is something else.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1):
        percent = f", such as {value / 100:g}" if isinstance(value, (int, float)) and 1 < value <= 100 else ""
        raise InvalidError(f"{what} is {value!r}: give a share of cells from 0 to 1{percent}, or None")


def number(what: str, value: Any, least: float = 0.0) -> None:
    """Refuses what is no finite number of at least `least`, and not None.

    Raises
    ------
    InvalidError
        It is something else.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not least <= value < np.inf):
        raise InvalidError(f"{what} is {value!r}: give a number" + (f" of {least:g} or more" if least > -np.inf else "") + ", or None")
