"""Hints for names that are not there."""

from __future__ import annotations

import difflib
from typing import Any, Iterable


def near(name: Any, there: Iterable[Any], most: int = 3) -> list[str]:
    """The names in `there` that look like `name`: in another case, with other signs, misspelt; the nearest first."""
    asked = str(name)
    known = list(dict.fromkeys(str(t) for t in there))
    same = [t for t in known if _plain(t) == _plain(asked)]
    # Of many names the like ones are looked for among those of about the same length only: it takes long.
    likely = known if len(known) <= 5000 else [t for t in known if abs(len(t) - len(asked)) <= 2 and t[:1].lower() == asked[:1].lower()]
    lower = {t.lower(): t for t in reversed(likely)}
    close = [lower[t] for t in difflib.get_close_matches(asked.lower(), list(lower), most, 0.7)]
    # Symbols with a version or a prefix: GRCh38_CD3E, ENSG00000198851.5.
    parts = [t for t in known if len(asked) > 2 and (t.lower().endswith(("_" + asked.lower(), "-" + asked.lower())) or t.lower().startswith(asked.lower() + "."))]
    return [t for t in dict.fromkeys([*same, *close, *parts]) if t != asked][:most]


def instead(name: Any, there: Iterable[Any], most: int = 3) -> str:
    """``; did you mean 'x' or 'y'?``, or nothing where no name in `there` is like `name`."""
    found = near(name, there, most)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
