"""A network link to a server, between two sockets: it counts what it carries, and may be slow.

Also for `make figures`, so it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Iterator

#: What is read at a time. A slow link sends it in smaller parts, so that connections take turns.
READ, PART = 1 << 18, 1 << 16

#: Seconds that a slow link may be ahead, as a queue in a switch is.
AHEAD = 0.002


class Link:
    """A link that connections share. `rate`: bits per second in each direction; None: as fast as it is."""

    def __init__(self, rate: float | None = None) -> None:
        self._seconds_a_byte = 8 / rate if rate else 0.0
        self._lock = threading.Lock()
        self._free = {"up": 0.0, "down": 0.0}
        #: Bytes that were carried to servers, and from them.
        self.carried = {"up": 0, "down": 0}
        self._sockets: list[socket.socket] = []

    def bytes(self) -> int:
        """What was carried so far, in both directions."""
        with self._lock:
            return sum(self.carried.values())

    def to(self, url: str) -> str:
        """The same URL by way of this link: `SCHEME://HOST:PORT/REST`."""
        scheme, rest = url.split("://", 1)
        address, slash, path = rest.partition("/")
        host, port = address.rsplit(":", 1)
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, (host, int(port))), daemon=True).start()
        return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}{slash}{path}"

    def close(self) -> None:
        """Ends all connections."""
        for each in self._sockets:
            # Wakes threads that wait for it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket, server: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                ends = client, socket.create_connection(server)
                self._sockets += ends
                for end in ends:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink, direction in ((*ends, "up"), (*reversed(ends), "down")):
                    threading.Thread(target=self._carry, args=(source, sink, direction), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while read := source.recv(READ):
                for at in range(0, len(read), PART if self._seconds_a_byte else READ):
                    part = memoryview(read)[at : at + PART] if self._seconds_a_byte else read
                    self._wait(direction, len(part))
                    sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)

    def _wait(self, direction: str, length: int) -> None:
        """Until these bytes are through."""
        with self._lock:
            self.carried[direction] += length
            now = time.monotonic()
            free = max(self._free[direction], now) + length * self._seconds_a_byte
            self._free[direction] = free
        if free - now > AHEAD:
            time.sleep(free - now)


@contextlib.contextmanager
def link(rate: float | None = None) -> Iterator[Link]:
    """A link until the block ends."""
    made = Link(rate)
    try:
        yield made
    finally:
        made.close()
