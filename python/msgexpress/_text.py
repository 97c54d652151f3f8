"""Tables as text, the way people and programs read them."""

from __future__ import annotations

import json
import math
import shutil
import unicodedata
from typing import TYPE_CHECKING, Any, Iterable, Sequence, TextIO

if TYPE_CHECKING:
    import pandas as pd


#: Columns whose values span many powers of ten: they are written with exponents.
_BY_POWERS = ("pvals", "pvals_adj")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> str:
    """Columns of equal width below their heads; numbers to the right, those of a column with as
    many decimals as each other.

    Where the table would be wider than `width`, its longest texts are shortened.
    """
    rows = [list(row) for row in rows]
    columns = [[row[i] for row in rows] for i in range(len(head))]
    cells = [_cells(name, column) for name, column in zip(head, columns)]
    numeric = [bool(rows) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in column) for column in columns]
    widths = [max([_width(h), *map(_width, texts)]) for h, texts in zip(head, cells)]
    if width is not None:
        _narrow(widths, [n or _width(h) >= w for h, n, w in zip(head, numeric, widths)], [max(_width(h), _NARROWEST) for h in head], width)
    lines = ["  ".join(_pad(h, w, n) for h, w, n in zip(head, widths, numeric)).rstrip(), "  ".join("-" * w for w in widths)]
    lines += ["  ".join(_pad(_short(c, w), w, n) for c, w, n in zip(row, widths, numeric)).rstrip() for row in zip(*cells)]
    return "\n".join(lines)


#: A column of text is not made narrower than this.
_NARROWEST = 8


def _narrow(widths: list[int], fixed: list[bool], least: list[int], width: int) -> None:
    """Takes from the widest columns that are not `fixed` until all fit into `width`, or none has
    anything left to give."""
    while sum(widths) + 2 * (len(widths) - 1) > width:
        wide = [i for i in range(len(widths)) if not fixed[i] and widths[i] > least[i]]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def _short(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    while text and _width(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


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
        width = shutil.get_terminal_size().columns if out.isatty() else None
        out.write(table(list(map(str, frame.columns)), frame.itertuples(index=False, name=None), width) + "\n")


def human_bytes(size: float) -> str:
    """``512 B``, ``1.50 KiB``, ``80.6 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"


def _cells(name: str, column: Sequence[Any]) -> list[str]:
    """A column's values as text; numbers with a fraction all of them with as many decimals."""
    numbers = [abs(float(v)) for v in column if _fractional(v) and math.isfinite(v)]
    largest = max(numbers, default=0.0)
    if name in _BY_POWERS or largest >= 1e6 or 0 < largest < 1e-3:
        form = ".3e"
    else:
        form = ".2f" if largest >= 10 else ".4f"
    return [_cell(v, form) for v in column]


def _fractional(value: Any) -> bool:
    return isinstance(value, float) or (hasattr(value, "dtype") and value.dtype.kind == "f")


def _cell(value: Any, form: str) -> str:
    if value is None:
        return ""
    if _fractional(value):
        number = float(value)
        return "" if math.isnan(number) else "0" if number == 0 and form == ".3e" else format(number, form)
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
