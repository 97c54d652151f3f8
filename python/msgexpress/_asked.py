"""What a test is asked to show of its numbers: which fold changes, which genes, under which names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Literal

import numpy as np

from . import _folds
from ._arguments import one_name
from ._filters import Filters

if TYPE_CHECKING:
    from ._rank import RankResult
    from ._testing import Testing

#: Columns of a group and of what it is compared with, among those of its `Cells`.
Sets = Callable[[str], tuple[list[int], list[int]]]


@dataclass
class Cells:
    """The groups of a test's cells: names, for each cell the number of its group (-1: in none), and the groups that
    make up each compared set (numbers; the one after the last has the cells in none)."""

    names: list[str]
    codes: np.ndarray
    sets: Sets

    @classmethod
    def against(cls, names: list[str], codes: np.ndarray, reference: str | None, outside: bool = False) -> Cells:
        """Each group against a `reference`, or (None) against all other cells; without the last group's, if these take
        no part (`outside`)."""
        part = [i for i in range(len(names) + 1) if not (outside and i == len(names) - 1)]

        def sets(group: str) -> tuple[list[int], list[int]]:
            at = names.index(group)
            return [at], [names.index(reference)] if reference is not None else [i for i in part if i != at]

        return cls(names, codes, sets)

    def sizes(self, group: str) -> tuple[int, int]:
        """How many cells a group has, and how many it is compared with."""
        n = np.bincount(self.codes % (len(self.names) + 1), minlength=len(self.names) + 1)
        first, second = self.sets(group)
        return int(n[first].sum()), int(n[second].sum())


@dataclass
class Asked:
    """Checked when it is made; `logfc` is one of `_folds.FOLDS`, `gene_symbols` a var column."""

    logfc: Literal["scanpy", "seurat", "seurat4"] = "scanpy"
    gene_symbols: str | None = None
    filters: Filters = field(default_factory=Filters)

    def __post_init__(self) -> None:
        _folds.check(self.logfc)
        if self.gene_symbols is not None:
            one_name(self.gene_symbols, "gene_symbols", "var column")

    @property
    def params(self) -> dict[str, Any]:
        """What results say of it."""
        return {"logfc": self.logfc, **{name: least for name, least in self.filters.asked.items() if least is not None}}

    def apply(self, result: RankResult, ds: Testing, matrix: str, cells: Callable[[], Cells]) -> None:
        """Makes `result` show what is asked for. `cells` is called where fold changes or filters need it."""
        result.params.update(self.params)
        found: list[Cells] = []

        def known() -> Cells:
            if not found:
                found.append(cells())
            return found[0]

        self.name(result, ds, matrix)
        if self.logfc != "scanpy" and result.groups:
            at = known()
            means = _folds.means(ds, matrix, result.params["transform"], (at.names, at.codes), result._tested(), self.logfc)
            result.receipts.append(means.receipt)
            result._replace_folds({g: (means.genes, means.fold(*at.sets(g))) for g in result.groups})
        if self.filters:
            result._keep(self.filters, lambda g: known().sizes(g))

    def name(self, result: RankResult, ds: Testing, matrix: str) -> None:
        """Makes `result` call genes as is asked for: `NotFoundError` if there is no such column."""
        if self.gene_symbols is not None:
            ds._var_column(matrix, self.gene_symbols)
            result._symbols = self.gene_symbols
