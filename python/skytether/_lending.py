"""Fleets that ``skytether://`` opens, each for as long as files of it are open.

A file ends where its reader drops it. That may be the garbage collector, on a thread that Python did not start (pyarrow
has a pool of them), while Python exits. A thread that releases Python's lock then never gets it again. pyarrow waits
for its threads, so the process would never end. That is why `_leave`, which a dropped file calls, waits for nothing:
neither for a lock nor for a fleet. An exit handler closes what is open before Python begins to exit.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from . import _internal
from .errors import UnavailableError

if TYPE_CHECKING:
    from ._fleet import Fleet

#: Seconds to wait for readers. They release their files in threads of their own, a moment after they returned their
#: result.
PATIENCE = 2.0

#: Seconds in which, when Python exits, such threads drop their files.
MOMENT = 0.1

#: Guards `_borrowed`. It is not reentrant: `_leave` may be called in the middle of the code under it, and only tries.
_lock = threading.Lock()

#: Fleets that were opened for reading, by location, each with the number of its users.
_borrowed: dict[str, tuple[Fleet, int]] = {}

#: A location for each user that left and is not counted yet.
_left: deque[str] = deque()

#: The fleet that was released last at each location. It may still be closing.
_released: dict[str, Fleet] = {}

#: A token for each call under way that releases Python's lock.
_working: set[object] = set()

_exiting = False


def take(location: str) -> tuple[Fleet, Callable[[], None]]:
    """The fleet at a location, and a function to call after the read. A fleet that the program has open stays open."""
    from . import _fleet

    try:
        with _lock:
            _count()
            if location in _borrowed:
                fleet, users = _borrowed[location]
            else:
                opened = _fleet.opened(location)
                if opened is not None:
                    return opened, nothing
                fleet, users = _open(location), 0
            _borrowed[location] = (fleet, users + 1)
    finally:
        _settle()
    return fleet, partial(_leave, location)


def nothing() -> None:
    """Called after the read of a fleet that stays open."""


def _open(location: str) -> Fleet:
    from . import _fleet

    wait(location)
    if _internal.is_host(location):
        return _fleet.connect_again(location)
    return _fleet.Fleet(_internal.Fleet.open(location, None, "none", "unlimited", False, None, None, None, None))


def _leave(location: str) -> None:
    """A user leaves. Called on any thread, in the middle of anything, also while Python exits."""
    _left.append(location)
    _settle()


def _settle() -> None:
    """Counts the users that left, unless another thread is at it: that one looks again after it released the lock."""
    while _left and _lock.acquire(blocking=False):
        try:
            _count()
        finally:
            _lock.release()


def _count() -> None:
    """Counts the users that left, under the lock. Fleets without users are closed by a thread of the Rust side."""
    while _left:
        location = _left.popleft()
        if location not in _borrowed:
            # The exit handler closed it.
            continue
        fleet, users = _borrowed[location]
        if users > 1:
            _borrowed[location] = (fleet, users - 1)
        else:
            _released[location] = fleet
            del _borrowed[location]
            fleet._inner.release()


def wait(location: str) -> None:
    """Waits until the fleet that was released at a location is closed."""
    fleet = _released.get(location)
    if fleet is not None:
        fleet._inner.close()


def wait_here(location: str) -> None:
    """Waits as `wait` does, unless on a daemon thread. The threads that Python did not start count as such."""
    if not threading.current_thread().daemon:
        wait(location)


def make_way(path: str) -> None:
    """Waits for a moment until ``skytether://`` has closed the fleet in a directory, which can't be opened twice."""
    location = os.path.realpath(path)
    until = time.monotonic() + PATIENCE
    while location in _borrowed and time.monotonic() < until:
        time.sleep(0.01)
    wait(location)


@contextmanager
def working() -> Iterator[None]:
    """Around a call that releases Python's lock: the exit handler waits for it, and other threads begin none then."""
    if _exiting and threading.get_ident() != threading.main_thread().ident:
        raise UnavailableError("Python exits: read the table before that")
    token = object()
    _working.add(token)
    try:
        yield
    finally:
        _working.discard(token)


@atexit.register
def _exit() -> None:
    """Closes what is open, while other threads still get Python's lock."""
    global _exiting
    _exiting = True
    began = time.monotonic()
    while (_borrowed and time.monotonic() < began + MOMENT) or (_working and time.monotonic() < began + PATIENCE):
        time.sleep(0.005)
    # Without the lock where a thread holds it for long: it opens a fleet that does not answer, and opens no other.
    held = _lock.acquire(timeout=PATIENCE)
    try:
        while _borrowed:
            location, (fleet, _) = _borrowed.popitem()
            _released[location] = fleet
    finally:
        if held:
            _lock.release()
    for fleet in list(_released.values()):
        fleet._inner.close()
