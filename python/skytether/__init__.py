"""Skytether: tables on a fleet of drives that run the queries themselves.

>>> import skytether                                              # doctest: +SKIP
>>> fleet = skytether.open("fleet", drives=4)                     # doctest: +SKIP
>>> fleet.ingest("trips.parquet", "city.trips")                   # doctest: +SKIP
>>> result = fleet.sql("SELECT vendor, avg(fare) FROM city.trips GROUP BY vendor")   # doctest: +SKIP
>>> result.to_pandas(); print(result.receipt)                     # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    ConflictError,
    CorruptError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    SkytetherError,
    UnavailableError,
    UnsupportedError,
)
from ._fleet import Explanation, Fleet, Receipt, Result, calibrate, connect, generate_particles, open

if TYPE_CHECKING:
    from ._ceph import FileDataset, dataset, write_dataset

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "CorruptError",
    "ExhaustedError",
    "Explanation",
    "FileDataset",
    "Fleet",
    "InternalError",
    "InvalidError",
    "NotFoundError",
    "Receipt",
    "Result",
    "SkytetherError",
    "UnavailableError",
    "UnsupportedError",
    "calibrate",
    "connect",
    "dataset",
    "generate_particles",
    "open",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    # pyarrow.dataset takes longer to import than all of this package.
    if name in ("FileDataset", "dataset", "write_dataset"):
        from . import _ceph

        return getattr(_ceph, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
