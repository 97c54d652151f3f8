"""The exceptions of Skytether: one class per kind of failure, each saying what the caller can do.

They also derive from the built-in exception that fits, so ``except ValueError`` and ``except KeyError`` work as usual.
Texts are for people. Programs tell errors apart by their class, or `kind`, and by their `detail`.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar


class SkytetherError(Exception):
    """Base of all errors that Skytether raises. The text names the object and what to do."""

    #: The kind in a word, as the protocols and the Rust side have it.
    kind: ClassVar[str] = "internal"

    #: What a program may want to know, or None: ``{"type": "missing_dataset", "dataset": "city.trips"}``, for example.
    #: docs/internals/formats/flight-protocol.md has all types. Newer versions may have more.
    detail: dict[str, Any] | None = None

    @property
    def detail_type(self) -> str | None:
        """The type of the detail; None without one."""
        return None if self.detail is None else self.detail["type"]


class InvalidError(SkytetherError, ValueError):
    """The input or the call is wrong: correct it and call again."""

    kind = "invalid"


class NotFoundError(SkytetherError, KeyError):
    """The named object does not exist."""

    kind = "not found"

    # KeyError prints the repr of its argument; people want the sentence.
    __str__ = Exception.__str__


class ConflictError(SkytetherError):
    """Somebody else changed or holds the object: nothing was changed."""

    kind = "conflict"


class CorruptError(SkytetherError):
    """Stored or received bytes are not what was written."""

    kind = "corrupt"


class UnavailableError(SkytetherError, ConnectionError):
    """A drive, host or file can't be reached or did not answer in time."""

    kind = "unavailable"


class ExhaustedError(SkytetherError, OSError):
    """Memory, disk or a configured limit is used up."""

    kind = "exhausted"


class UnsupportedError(SkytetherError, NotImplementedError):
    """Written by a newer version, or a feature that this version does not have."""

    kind = "unsupported"


class InternalError(SkytetherError):
    """A defect of Skytether's own: please report it."""

    kind = "internal"


#: The exception for each error kind of the Rust side, by the kind's word.
BY_KIND = {
    error.kind: error
    for error in (InvalidError, NotFoundError, ConflictError, CorruptError, UnavailableError, ExhaustedError, UnsupportedError, InternalError)
}

E = TypeVar("E", bound=SkytetherError)


def of_kind(kind: str, text: str, detail: str | None = None) -> SkytetherError:
    """The exception for an error of `kind` (``Kind::as_str`` of the Rust side) that says `text`; `detail` is JSON."""
    error = BY_KIND.get(kind, InternalError)(text)
    if detail is not None:
        error.detail = json.loads(detail)
    return error


def reworded(error: E, text: str) -> E:
    """An exception like `error` that says `text`."""
    new = type(error)(text)
    new.detail = error.detail
    return new
