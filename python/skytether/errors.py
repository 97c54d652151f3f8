"""The exceptions of Skytether: one class per kind of failure, each saying what the caller can do.

They also derive from the built-in exception that fits, so ``except ValueError`` and ``except KeyError`` work as usual.
"""

from __future__ import annotations


class SkytetherError(Exception):
    """Base of all errors that Skytether raises. The text names the object and what to do."""


class InvalidError(SkytetherError, ValueError):
    """The input or the call is wrong: mend it and call again."""


class NotFoundError(SkytetherError, KeyError):
    """The named object does not exist."""

    # KeyError prints the repr of its argument; people want the sentence.
    __str__ = Exception.__str__


class ConflictError(SkytetherError):
    """Somebody else changed or holds the object: nothing was changed."""


class CorruptError(SkytetherError):
    """Stored or received bytes are not what was written."""


class UnavailableError(SkytetherError, ConnectionError):
    """A drive, host or file can't be reached or did not answer in time."""


class ExhaustedError(SkytetherError, OSError):
    """Memory, disk or a configured limit is used up."""


class UnsupportedError(SkytetherError, NotImplementedError):
    """Written by a newer version, or a feature that this version does not have."""


class InternalError(SkytetherError):
    """A defect of Skytether's own: please report it."""


#: The exception for each error kind of the Rust side, by the kind's name.
BY_KIND = {
    "invalid": InvalidError,
    "not found": NotFoundError,
    "conflict": ConflictError,
    "corrupt": CorruptError,
    "unavailable": UnavailableError,
    "exhausted": ExhaustedError,
    "unsupported": UnsupportedError,
    "internal": InternalError,
}


def of_kind(kind: str, text: str) -> SkytetherError:
    """The exception for an error of `kind` (``Kind::as_str`` of the Rust side) that says `text`."""
    return BY_KIND.get(kind, InternalError)(text)
