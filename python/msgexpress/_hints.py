"""Hints for names that are not there, and the choice of one of several."""

from __future__ import annotations

import difflib
from typing import Any, Iterable

from skytether import InvalidError

#: What to do with columns of several levels.
JOIN_LEVELS = "join them (frame.columns = ['_'.join(map(str, column)) for column in frame.columns])"


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


def chosen_modality(what: str, asked: str | None, there: list[str] | None) -> str | None:
    """The modality that is meant of those that a file has (None: it has none, as it is no MuData); the only one, where
    none is asked for.

    Raises
    ------
    InvalidError
        There are none to choose from, or several and none is asked for, or none is called so.
    """
    if there is None:
        if asked is not None:
            raise InvalidError(f"{what} has no modalities to choose from: leave modality= out (it is for MuData: h5mu and zarr)")
        return None
    listed = ", ".join(map(repr, there)) or "none"
    if asked is None:
        if len(there) == 1:
            return there[0]
        raise InvalidError(
            f"{what} is a MuData file of several modalities ({listed}): say with modality= which one" if there else f"{what} is a MuData file without a modality"
        )
    if asked not in there:
        raise InvalidError(f"{what} has no modality {asked!r}: it has {listed}{instead(asked, there)}")
    return asked


def of_all_modalities(what: str, columns: Iterable[Any], there: list[str], known: Iterable[Any]) -> str | None:
    """A warning about obs columns that a MuData has for its modalities together, and that are in none of them; None
    where there are none. `columns` are those of its own obs, `known` those of the modality that is read."""
    own = [str(column) for column in columns]
    left = [column for column in own if not column.startswith(tuple(f"{name}:" for name in there)) and column not in set(map(str, known))]
    return f"{what}: obs columns of all modalities together are left out: {', '.join(left)}" if left else None
