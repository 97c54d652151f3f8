"""Fleets that grow and shrink, as a part of `Fleet`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypeVar

from .errors import InvalidError

if TYPE_CHECKING:
    from . import _internal

T = TypeVar("T")


def either_name(name: str, value: T | None, former: str, former_value: T | None) -> T | None:
    """The value of a keyword that has a former name as well; InvalidError where both names are given."""
    if value is not None and former_value is not None:
        raise InvalidError(f"{former}= is the former name of {name}=: give {name}= alone")
    return former_value if value is None else value


def bytes_per_s(rate: float | None) -> int | None:
    """A rate in MB/s as bytes per second; InvalidError for what is none."""
    if rate is None:
        return None
    if not 1e-6 <= rate <= 1e9:
        raise InvalidError(f"{rate!r} is no rate: give MB/s, such as 50")
    return int(rate * 1e6)


class Growth:
    """Drives join and leave. A method reports the moves as a dict:

    - `added` and `retired` drives, and `datasets` with moved values;
    - `bytes_moved`, and `bytes_least`: the least number that had to move, if slices could be divided;
    - `moved` and `linked` values;
    - `drives`: a dict each with `drive`, and its bytes `before` and `after`;
    - `off_before` and `off_after`: the largest deviation of a drive from the mean, as a share;
    - `left` (texts about values that could not move), `notes`, `seconds`, and others.
    """

    _inner: _internal.Fleet

    def add_drives(
        self,
        count: int | None = None,
        *,
        addresses: str | Sequence[str] | None = None,
        node: str | None = None,
        rate: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        host: str | None = None,
    ) -> dict[str, Any]:
        """Takes blank drives into the fleet and gives them their share of every table, so that all drives are within 5%
        of the mean. Queries and ingests continue. `balance` continues an interrupted call.

        Parameters
        ----------
        count
            How many drives an embedded fleet gets, below its directory (default: 1).
        addresses
            Of a fleet behind a host: the address, or addresses, of the blank drives. They must be among the host's
            drives when it is started again.
        node
            The node of the new drives, in a fleet with nodes (default: the node named like the host part of their
            addresses, if the fleet has drives there; in an embedded fleet the node with the fewest drives).
        rate
            How fast slices may be moved, over all drives together, in MB/s (default: as fast as it goes).
        progress
            Called now and then with the bytes moved and those that are to be, so far as is known.
        host
            The former name of `node`.

        Returns
        -------
        dict
            See the class.

        Raises
        ------
        InvalidError
            A drive is not blank, or of another fleet, or has the name of another one.
        ConflictError
            Drives are being added, retired or repaired already.
        UnavailableError
            A drive is lost: repair it, or retire it.
        """
        node = either_name("node", node, "host", host)
        given = [addresses] if isinstance(addresses, str) else list(addresses or ())
        if given and count is not None:
            raise InvalidError("either a number of drives to make or addresses of drives, not both")
        if count is not None and count < 1:
            raise InvalidError(f"{count} drives can't be added: give 1 or more")
        return self._resize(0 if given else 1 if count is None else count, given, [], rate, progress, node)

    def retire(self, drives: str | Sequence[str], *, rate: float | None = None, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Moves all values of some drives to the others, reconstructs those of lost drives, and ends the membership of
        the drives. Drives that answer are wiped. Queries and ingests continue; an ingest that is under way at the end
        must begin again.

        Parameters
        ----------
        drives
            The drive, or drives, by name or id.
        rate, progress
            As `add_drives` has them.

        Returns
        -------
        dict
            See the class.

        Raises
        ------
        InvalidError
            There is no such drive, or too few would be left.
        ConflictError
            Drives are being added, retired or repaired already.
        UnavailableError
            Another drive is lost; or a value can't be moved, which the text names: a part of a table that is
            partitioned by key, without a drive to replace the old one, or a lost part of a table without redundancy.
        """
        return self._resize(0, [], [drives] if isinstance(drives, str) else list(drives), rate, progress)

    def balance(self, *, rate: float | None = None, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Moves slices so that every drive's load is within 5% of the mean, with no more moves than that takes.
        `add_drives` and `retire` end with this, and it continues them if they were interrupted.

        Parameters
        ----------
        rate, progress
            As `add_drives` has them.

        Returns
        -------
        dict
            See the class.
        """
        return self._resize(0, [], [], rate, progress)

    def _resize(
        self,
        count: int,
        addresses: list[str],
        retire: list[str],
        rate: float | None,
        progress: Callable[[int, int], None] | None,
        node: str | None = None,
    ) -> dict[str, Any]:
        return json.loads(self._inner.resize(count, addresses, retire, bytes_per_s(rate), progress, node))
