"""Runs a command in a network namespace that has nothing but the loopback interface: `python -m kinetic.alone COMMAND`.

The Java simulator sends its heartbeat to a multicast address. From such a namespace it reaches no network.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def command(*words: object) -> list[str]:
    """The command line that runs `words` in such a namespace; without root also in a user namespace."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    return [*unshare, "--", sys.executable, __file__, *map(str, words)]


def is_alone() -> bool:
    """Whether this process can reach no network."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16xH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16s16x", b"lo")))[0]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


if __name__ == "__main__":
    if not is_alone():
        sys.exit("this process is not in a network namespace of its own")
    raise_loopback()
    os.execvp(sys.argv[1], sys.argv[1:])
