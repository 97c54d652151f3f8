"""Tables like those of the NYC taxi data, as Skyhook's experiment has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def trips(rows: int, seed: int) -> pa.Table:
    """17 columns; `pick < 0.01` selects 1% of the rows. The same seed gives the same values."""
    random = np.random.default_rng(seed)
    table = {"pick": random.random(rows)}
    for n in range(8):
        table[f"whole{n}"] = random.integers(0, 1000, rows)
    for n in range(8):
        table[f"number{n}"] = np.round(random.gamma(2, 5, rows), 2)
    return pa.table(table)
