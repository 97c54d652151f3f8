"""What a query gives: its rows, how it was split, and what it cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import _internal
from .errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Result:
    """The result of a query. It runs when first asked for rows, and again each time `__arrow_c_stream__` is called."""

    def __init__(self, inner: _internal.Result) -> None:
        self._inner = inner
        self._table: pyarrow.Table | None = None
        self._finished: tuple[str, str, str] | None = None

    def __arrow_c_schema__(self) -> object:
        return self._inner.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """An Arrow C stream of the rows, as they arrive: nothing is kept."""
        return self._inner.__arrow_c_stream__(requested_schema)

    def __datafusion_table_provider__(self, session: object | None = None) -> object:
        """Not offered: a table of DataFusion's own kind is shared between programs only through its FFI crate, which
        this build does not have.

        Raises
        ------
        UnsupportedError
            Always, with both versions and with what works instead.
        """
        from importlib import metadata

        try:
            installed = metadata.version("datafusion")
        except metadata.PackageNotFoundError:
            installed = "not installed"
        raise UnsupportedError(
            f"a result is no table provider of DataFusion (Skytether was built with DataFusion {_internal.DATAFUSION_VERSION}, without its FFI; the datafusion package is "
            f"{installed}): read its rows with SessionContext.from_arrow(result), or register a table that takes filters with register_table(name, fleet.dataset(...))"
        )

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a pyarrow Table. The query runs once, however often this is called."""
        if self._table is None:
            import pyarrow

            # `pyarrow.table` would import pandas first, to see whether it is given a data frame.
            self._table = pyarrow.RecordBatchReader.from_stream(self._inner.collect()).read_all()
            self._finished = self._inner.receipt()
        return self._table

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars DataFrame (needs polars)."""
        import polars

        return polars.from_arrow(self.to_arrow())  # type: ignore[return-value]

    @property
    def receipt(self) -> Receipt:
        """The receipt of the last run that was read to its end: what ran where, and how little moved. Runs the query if
        there was none yet."""
        self._finished = self._inner.receipt() or self._finished
        if self._finished is None:
            self.to_arrow()
        if self._finished is None:
            raise InvalidError("the result was not read to its end: there is no receipt for half a query")
        return Receipt(*self._finished)

    @property
    def receipt_so_far(self) -> Receipt | None:
        """The receipt of the last run, which may be under way or given up; None if there was none. Runs nothing.

        ``to_dict()["finished"]`` says whether it was read to its end. Over a connection the host sends its receipt with
        the last row. Until then this has the rows that came from the host, their bytes as `bytes_moved`, the seconds,
        and nothing of the drives.
        """
        found = self._inner.receipt(True)
        return None if found is None else Receipt(*found)

    def __repr__(self) -> str:
        return f"<skytether.Result {self._inner.describe()}>"


class Explanation(str):
    """How a query is split between host and drives, as text; `to_dict` has the same as data."""

    _json: str

    def __new__(cls, text: str, json_text: str) -> Explanation:
        explanation = super().__new__(cls, text)
        explanation._json = json_text
        return explanation

    def to_dict(self) -> dict[str, Any]:
        """`query`, `super_plan`, `physical`: plans as text; `sub_plans`: a dict each with `table`, `rung`,
        `every_drive` and `plan`; `notes`: for what stayed on the host a dict each with `operator`, `node` and `reason`;
        `receipt`: as `Receipt.to_dict`, None unless the query was run."""
        return json.loads(self._json)

    def __repr__(self) -> str:
        return str(self)


class Receipt:
    """What a query cost: where each part ran, what was read, what moved. Prints as a small tree."""

    def __init__(self, json_text: str, tree: str, operators: str) -> None:
        self._json, self._tree, self._operators = json_text, tree, operators

    def operators(self) -> str:
        """What ran where, operator by operator, as `Fleet.explain` with `analyze` shows it."""
        return self._operators

    def to_dict(self) -> dict[str, Any]:
        """At least `bytes_stored`, `bytes_read`, `bytes_moved`, `seconds` and `drives`: a dict per CSE with `name`,
        `rung` (``full``, ``filter``, ``raw``), `slices`, `slices_pruned`, `rows_out`, `bytes_read`, `bytes_sent`,
        `seconds`, `reason`.

        `host` are the operators that ran on the host, from the root down, each with its `depth`, `rows_out`, `seconds`
        and the `reason` why it is there. `host_work` is the host's work on slices that drives sent raw: `slices`,
        `rows_read`, `bytes_read`, and `seconds`, which the operators' seconds include. `above` of a drive is the part
        of that for its slices. `scans` are the sub-plans, each with an annotation per drive, which has the drive's own
        `operators`."""
        return json.loads(self._json)

    def __str__(self) -> str:
        return self._tree

    def __repr__(self) -> str:
        return self._tree

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self._tree)}</pre>"
