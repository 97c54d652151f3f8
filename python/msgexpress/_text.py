"""Tables as text, the way people and programs read them."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import TYPE_CHECKING, Any, Iterable, Sequence, TextIO

if TYPE_CHECKING:
    import pandas as pd


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns of equal width below their heads; numbers to the right."""
    cells = [[_cell(v) for v in row] for row in rows]
    numeric = [all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in column) for column in zip(*rows)] if cells else [False] * len(head)
    widths = [max([_width(h), *(_width(row[i]) for row in cells)]) for i, h in enumerate(head)]
    lines = ["  ".join(_pad(h, w, n) for h, w, n in zip(head, widths, numeric)).rstrip(), "  ".join("-" * w for w in widths)]
    lines += ["  ".join(_pad(c, w, n) for c, w, n in zip(row, widths, numeric)).rstrip() for row in cells]
    return "\n".join(lines)


def write_frame(frame: pd.DataFrame, form: str, out: TextIO) -> None:
    """A data frame as ``table``, ``csv``, ``json`` (a list of objects) or ``arrow`` (an IPC stream)."""
    if form == "csv":
        frame.to_csv(out, index=False, lineterminator="\n")
    elif form == "json":
        rows = [{k: _jsonable(v) for k, v in zip(frame.columns, row)} for row in frame.itertuples(index=False, name=None)]
        json.dump(rows, out, ensure_ascii=False, indent=1, allow_nan=False)
        out.write("\n")
    elif form == "arrow":
        import pyarrow as pa

        content = pa.Table.from_pandas(frame, preserve_index=False)
        with pa.ipc.new_stream(out.buffer, content.schema) as writer:  # type: ignore[attr-defined]
            writer.write_table(content)
    else:
        out.write(table(list(map(str, frame.columns)), [list(row) for row in frame.itertuples(index=False, name=None)]) + "\n")


def human_bytes(size: float) -> str:
    """``512 B``, ``1.50 KiB``, ``80.6 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) or hasattr(value, "dtype") and value.dtype.kind == "f":
        number = float(value)
        if math.isnan(number):
            return ""
        return f"{number:.3e}" if number != 0 and (abs(number) < 1e-3 or abs(number) >= 1e6) else f"{number:.4g}"
    return str(value)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(text))
    return gap + text if right else text + gap
