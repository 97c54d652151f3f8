"""obs columns of several sources: their types must say the same, or the caller says what they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Sequence

from skytether import InvalidError

from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

#: What a column may become.
_ANSWERS = ("text", "number", "drop")


def check_columns(frames: Sequence[pd.DataFrame], whats: Sequence[str], clash: Mapping[str, str] | None) -> list[pd.DataFrame]:
    """The frames with columns changed as `clash` says.

    Raises
    ------
    InvalidError
        A column has other types in other frames, and `clash` does not say what it becomes; or `clash` names no column,
        or asks for numbers where a text is none.
    """
    answers = dict(clash or {})
    there = list(dict.fromkeys(str(column) for frame in frames for column in frame.columns))
    for name, answer in answers.items():
        if name not in there:
            raise InvalidError(f"clash names the obs column {name!r}, which no source has{instead(name, there)}")
        if answer not in _ANSWERS:
            raise InvalidError(f"clash says {answer!r} for obs column {name!r}: say one of {', '.join(map(repr, _ANSWERS))}")
    made = [frame.copy(deep=False) for frame in frames]
    for name in there:
        having = [(frame, what) for frame, what in zip(made, whats) if name in frame.columns]
        if name in answers:
            for frame, what in having:
                _answer(frame, name, answers[name], what)
            continue
        kinds = {what: kind for frame, what in having if (kind := _kind(frame[name])) is not None}
        if len(set(kinds.values())) > 1:
            said = ", ".join(f"{kind} in {what}" for what, kind in kinds.items())
            raise InvalidError(f"obs column {name!r} clashes: it is {said}; say what it becomes with clash={{{name!r}: \"text\"}}, \"number\" or \"drop\"")
    return made


def _answer(frame: pd.DataFrame, name: str, answer: str, what: str) -> None:
    """Changes a column in place."""
    import pandas as pd

    if answer == "drop":
        del frame[name]
        return
    column = frame[name]
    missing = column.isna()
    if answer == "text":
        texts = column.astype(object)
        frame[name] = pd.Categorical([None if gone else str(value) for value, gone in zip(texts, missing)])
        return
    try:
        frame[name] = pd.to_numeric(column.astype(object).where(~missing, None)).astype("float64")
    except (ValueError, TypeError) as e:
        raise InvalidError(f"{what}: obs column {name!r} can't become numbers ({' '.join(str(e).split())}): say \"text\" or \"drop\" for it") from e


def _kind(column: pd.Series) -> str | None:
    """What a column holds, as far as other columns of its name must hold the same; None where it holds nothing."""
    import pandas as pd

    if column.isna().all():
        return None
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        inner = _of_values(dtype.categories.dtype)
        if dtype.ordered:
            return f"{inner} in the order {', '.join(map(str, dtype.categories[:5]))}{', ...' if len(dtype.categories) > 5 else ''}"
        return inner if inner == "texts" else f"categories of {inner}"
    return _of_values(dtype)


def _of_values(dtype: object) -> str:
    import pandas as pd

    if pd.api.types.is_bool_dtype(dtype):
        return "booleans"
    return "numbers" if pd.api.types.is_numeric_dtype(dtype) else "texts"
