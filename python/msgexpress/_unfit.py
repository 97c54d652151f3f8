"""Values that a test can't take, by the names of their gene and cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from skytether import InvalidError, SkytetherError
from skytether.errors import reworded

from ._normalize import Transforming
from ._transforms import written


class Naming(Transforming):
    """Finds the names for a value that the drives know by its cell's number."""

    def _with_names(self, error: InvalidError, matrix: str, transform: Any) -> InvalidError:
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

    def _named(self, cell: int, value: float, total: float | None, matrix: str, transform: Any) -> str:
        """What is wrong with `value` in `cell`, whose values add up to `total`."""
        name = repr(str(self.obs_names[cell])) if cell < self.n_obs else str(cell)
        counts = f"{written(transform)} is for counts, which are not negative, of cells with a positive total; use transform=None for values that are normalised already"
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
            return f"{where}: a test needs finite numbers; leave such genes out of the test, or such cells out before the ingest, or test another matrix (layer=)"
        if transform is None:
            return f"{where}: it or its square is beyond the largest number; remove or scale it"
        return f"{where}: {counts}"

    def _gene_where(self, matrix: str, cell: int, condition: str, at: str) -> tuple[str, float] | None:
        """The first gene with an entry in `cell` that meets `condition`, and that entry, which is `at` in SQL."""
        has = f"array_has(idx, CAST({cell} AS INT UNSIGNED)) AND {condition}"
        found = self.fleet.sql(f"SELECT gene, {at} AS value FROM {self.table(matrix + '_rows')} WHERE {has} ORDER BY gene_id LIMIT 1").to_arrow().to_pylist()
        return (repr(found[0]["gene"]), found[0]["value"]) if found else None
