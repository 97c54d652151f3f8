"""What a caller says about files besides their names."""

from __future__ import annotations

from typing import Any, Mapping

from .errors import InvalidError

#: What `Fleet.ingest` takes for granted.
_UNSAID: dict[str, Any] = {
    "format": None, "schema": "strict", "hive": True, "delimiter": None, "header": True, "quote": '"', "null": [], "types": [],
    "all_text": False,
}  # fmt: skip


def reading(**options: Any) -> dict[str, Any]:
    """The options as the Rust class takes them.

    Raises
    ------
    InvalidError
        One is of another Python type than it should be.
    """
    return {option: _plain(option, value) for option, value in options.items()}


def _plain(option: str, value: Any) -> Any:
    unsaid = _UNSAID[option]
    if option == "types":
        right, what = value is None or (isinstance(value, Mapping) and _are_texts([*value, *value.values()])), 'a dict of texts, as in {"zip": "text", "n": "int64"}'
        plain = list((value or {}).items()) if right else None
    elif option == "null":
        plain = [value] if isinstance(value, str) else list(value) if hasattr(value, "__iter__") else None
        right, what = plain is not None and _are_texts(plain), "a text, or a list of texts"
    elif isinstance(unsaid, bool):
        plain, right, what = value, isinstance(value, bool), "True or False"
    else:
        plain, right, what = value, isinstance(value, str) or value is unsaid, "a text"
    if not right:
        raise InvalidError(f"{option}={value!r}: give {what}")
    return plain


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def refuse(options: Mapping[str, Any]) -> None:
    """Refuses options of files for a table in memory."""
    said = sorted(option for option, value in options.items() if value != _UNSAID[option])
    if said:
        several = "of several files a directory or a pattern such as 'data/*.csv' is given"
        raise InvalidError(f"{', '.join(said)} can only be said of files: what is in memory has its columns and types, and {several}")
