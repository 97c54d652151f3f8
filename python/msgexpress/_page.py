"""HTML that needs nothing from anywhere: style, script and pictures are in the page, and all texts are escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import struct
from importlib import resources
from typing import Any, Iterable, Sequence


class Html(str):
    """Text that is HTML already; all other text is escaped where it goes into a page."""


def escaped(value: Any) -> Html:
    """A value as HTML text, also for the inside of an attribute in double quotes. Characters that HTML forbids become
    the replacement character."""
    if isinstance(value, Html):
        return value
    text = "".join(c if c in "\t\n" or (ord(c) >= 32 and not 0x7F <= ord(c) < 0xA0 and not 0xD800 <= ord(c) < 0xE000) else "\ufffd" for c in str(value))
    return Html(html.escape(text, quote=True))


def tag(name: str, /, *inside: Any, **attributes: Any) -> Html:
    """An element: ``tag("td", 5, class_="n", data_v=5.0)``. Attributes that are None are left out, and True stands
    alone."""
    said = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        said += f" {key}" if value is True else f' {key}="{escaped(value)}"'
    if name in ("img", "input", "meta"):
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(inside)}</{name}>")


def joined(parts: Iterable[Any]) -> Html:
    """Several texts or elements, one after the other."""
    return Html("".join(escaped(part) for part in parts))


def picture(data: bytes, text: str, caption: Any = None, dense: float = 1.35) -> Html:
    """A PNG as a figure; `text` is read where pictures are not seen, and `dense` pixels are shown as one."""
    width, height = struct.unpack(">II", data[16:24])
    source = Html("data:image/png;base64," + base64.b64encode(data).decode("ascii"))
    image = tag("img", src=source, alt=text, width=round(width / dense), height=round(height / dense), loading="lazy")
    return tag("figure", image, tag("figcaption", caption) if caption else "")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], numeric: Sequence[bool] | None = None, **attributes: Any) -> Html:
    """A table; cells may be elements (`tag("td", ...)`) or values."""
    right = numeric or [False] * len(head)
    heads = [h if isinstance(h, Html) else tag("th", h, scope="col", class_="n" if r else None) for h, r in zip(head, right)]
    lines = []
    for row in rows:
        cells = [c if isinstance(c, Html) and c.startswith("<td") else tag("td", c, class_="n" if r else None) for c, r in zip(row, right)]
        lines.append(tag("tr", *cells))
    return tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *lines), **attributes), class_="box")


def number(value: Any) -> str:
    """A number as JavaScript reads it; empty where there is none."""
    value = float(value)
    if math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def page(title: str, parts: Sequence[Any]) -> str:
    """The whole page. It may run its own script and no other, and load nothing."""
    style = Html(_asset("page.css"))
    script = Html(_asset("page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            tag("style", style),
        ]
    )
    return f"<!DOCTYPE html>\n<html lang=\"en\">\n<head>{head}</head>\n<body>{joined(parts)}{tag('script', script)}</body>\n</html>\n"


def _asset(name: str) -> str:
    return (resources.files(__package__ or "msgexpress") / "page" / name).read_text(encoding="utf-8")
