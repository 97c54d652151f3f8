"""Work of several threads, whose results come in the order of the work."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: How long a thread waits for room before it looks whether its results are still wanted, in seconds.
LOOK = 0.1

#: Results of one piece of work that wait to be taken.
WAITING = 4


class _Stopped(Exception):
    """The results are not wanted any more."""


def ordered(work: Iterable[Callable[[], Iterator[T]]], threads: int) -> Iterator[T]:
    """The results of each piece of work, in order. At most `threads` pieces run at a time; an error ends all."""
    stop = threading.Event()
    # A caller may leave the iterator where it is, until the program ends. Python waits for the threads of a pool then,
    # and these wait for room. It does not wait for daemon threads.
    started: list[threading.Thread] = []
    running: deque[queue.Queue[tuple[str, object]]] = deque()
    left = iter(work)

    def put(to: queue.Queue[tuple[str, object]], item: tuple[str, object]) -> None:
        while not stop.is_set():
            try:
                return to.put(item, timeout=LOOK)
            except queue.Full:
                pass
        raise _Stopped

    def run(piece: Callable[[], Iterator[T]], to: queue.Queue[tuple[str, object]]) -> None:
        try:
            for result in piece():
                put(to, ("result", result))
            put(to, ("end", None))
        except _Stopped:
            pass
        except BaseException as error:  # noqa: B902 - raised again where the results are taken
            try:
                put(to, ("error", error))
            except _Stopped:
                pass

    def start() -> None:
        piece = next(left, None)
        if piece is not None:
            running.append(queue.Queue(WAITING))
            started.append(threading.Thread(target=run, args=(piece, running[-1]), daemon=True))
            started[-1].start()

    try:
        for _ in range(threads):
            start()
        while running:
            kind, item = running[0].get()
            if kind == "result":
                yield item  # type: ignore[misc]
            elif kind == "error":
                raise item  # type: ignore[misc]
            else:
                running.popleft()
                start()
    finally:
        stop.set()
        for thread in started:
            thread.join()
