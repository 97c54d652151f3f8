"""A link of a given rate: TCP connections through it share the rate, in each direction apart.

Several drives behind one `Link` are drives behind one network card. The bucket holds the bytes of a few milliseconds,
so that short transfers do not pass the rate either. `python benches/link.py RATE ADDRESS...` serves one by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

#: Bytes that one call moves.
CHUNK = 64 << 10

#: Seconds of the rate that may pass at once.
BURST = 0.005


class Bucket:
    """Bytes that may pass, of one direction."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate, self.lock = bytes_per_s, threading.Lock()
        #: When all that was let through has passed.
        self.free_at = 0.0
        self.passed = 0

    def take(self, count: int) -> None:
        """Waits until `count` bytes may pass. Who comes first goes first."""
        with self.lock:
            now = time.monotonic()
            self.free_at = max(self.free_at, now - BURST) + count / self.rate
            self.passed += count
            wait = self.free_at - now
        if wait > 0:
            time.sleep(wait)


class Link:
    """See the module. `close` ends all connections."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        #: From the servers to the clients, and the other way.
        self.down, self.up = Bucket(bytes_per_s), Bucket(bytes_per_s)
        self.lock, self.closed, self.open = threading.Lock(), False, set()

    @property
    def moved(self) -> int:
        """Bytes that have passed, in both directions."""
        return self.down.passed + self.up.passed

    def to(self, address: str) -> str:
        """An address of this machine that leads through the link to `address`, both as HOST:PORT."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._keep(listener)
        host, port = address.rsplit(":", 1)
        threading.Thread(target=self._accept, args=(listener, (host.strip("[]"), int(port))), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def through(self, url: str) -> str:
        """`url` with its HOST:PORT replaced by the way through the link."""
        return re.sub(r"(?<=://)[^/]+", lambda found: self.to(found[0]), url, count=1)

    def _keep(self, one: socket.socket) -> None:
        with self.lock:
            if not self.closed:
                self.open.add(one)
                return
        one.close()

    def _accept(self, listener: socket.socket, server: tuple[str, int]) -> None:
        while True:
            try:
                client = listener.accept()[0]
                there = socket.create_connection(server, timeout=30)
            except OSError:
                # The listener is closed, or the server is gone: its clients are told the same way.
                with self.lock:
                    if self.closed:
                        return
                with contextlib.suppress(UnboundLocalError):
                    client.close()
                continue
            there.settimeout(None)
            for one in (client, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keep(one)
            for source, sink, bucket in ((client, there, self.up), (there, client, self.down)):
                threading.Thread(target=self._move, args=(source, sink, bucket), daemon=True).start()

    def _move(self, source: socket.socket, sink: socket.socket, bucket: Bucket) -> None:
        buffer = memoryview(bytearray(CHUNK))
        with contextlib.suppress(OSError):
            while count := source.recv_into(buffer):
                bucket.take(count)
                sink.sendall(buffer[:count])
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with self.lock:
            self.closed, ends = True, list(self.open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def link(bytes_per_s: float) -> Iterator[Link]:
    """A link until the block ends."""
    made = Link(bytes_per_s)
    try:
        yield made
    finally:
        made.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rate", type=float, help="bytes per second")
    parser.add_argument("addresses", nargs="+", help="HOST:PORT, or URLs")
    options = parser.parse_args()
    with link(options.rate) as made:
        for address in options.addresses:
            print(made.through(address) if "://" in address else made.to(address), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
