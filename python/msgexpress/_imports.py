"""Imports of packages that results are made with, while a fleet is opened.

pandas and pyarrow take about 0.2 s to import, longer than a test of a matrix. A program that only lists or removes
data sets does not need them. So `meanwhile` imports them in a thread, next to the opening of the fleet, and `finish`
waits for them where a data set is taken: its first test then takes about as long as the following ones.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import contextmanager
from typing import Iterator

#: In the order in which they need each other, so that a thread that is to stop has few of them to finish.
_NEEDED = ("pyarrow", "pyarrow.compute", "pandas")

_thread: threading.Thread | None = None
_stopped = threading.Event()


def begin() -> None:
    """Starts to import what results need, if that is not done or under way. Returns at once."""
    global _thread
    _stopped.clear()
    if (_thread is not None and _thread.is_alive()) or all(name in sys.modules for name in _NEEDED):
        return
    # No daemon: Python can't end a thread safely that is inside an extension's initialisation.
    _thread = threading.Thread(target=_import, name="msgexpress imports")
    _thread.start()


@contextmanager
def meanwhile() -> Iterator[None]:
    """Begins before a block, which may take a while; one that fails needs no results."""
    begin()
    try:
        yield
    except BaseException:
        stop()
        raise


def finish() -> None:
    """Waits until what `begin` started is done."""
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join()


def stop() -> None:
    """Lets the thread end after the package that it is at: the process may be about to end, which waits for it."""
    _stopped.set()


def _import() -> None:
    for name in _NEEDED:
        if _stopped.is_set():
            return
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - who needs the package gets the error where it is imported again
            return


# A child of `fork` would have the locks of a thread that is importing, and not the thread.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=finish)
