"""A small host of NVMe over TCP: connects, and sends admin and I/O commands one after the other."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

#: Types of units.
IC_REQUEST, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, READY = 0x00, 0x04, 0x05, 0x06, 0x07, 0x09

#: Opcodes.
IDENTIFY, GET_LOG_PAGE, SET_FEATURES, FABRICS = 0x06, 0x02, 0x09, 0x7F
FLUSH, WRITE, READ, EXEC_OUT, EXEC_IN = 0x00, 0x01, 0x02, 0xC1, 0xC2

DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"


class Completion(NamedTuple):
    status: int
    result: int
    data: bytes


class Queue:
    """A connection that is a queue of a controller."""

    def __init__(self, address: str, nqn: str, number: int = 0, controller: int = 0xFFFF) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._number = 0
        self._socket.sendall(struct.pack("<BBBBIHBBI", IC_REQUEST, 0, 128, 0, 128, 0, 0, 0, 0).ljust(128, b"\0"))
        kind, _, _, _ = self._unit()
        assert kind == 0x01, kind
        data = bytearray(1024)
        data[:16] = b"\x09" * 16
        data[16:18] = struct.pack("<H", controller)
        data[256 : 256 + len(nqn)] = nqn.encode()
        data[512:524] = b"nqn.of.a.hst"
        connected = self.fabrics(0x01, [number << 16, 31], bytes(data))
        assert connected.status == 0, hex(connected.status)
        self.controller = connected.result & 0xFFFF

    def close(self) -> None:
        self._socket.close()

    def _take(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._socket.recv(length - len(data))
            assert more, "the controller closed the connection"
            data += more
        return data

    def _unit(self) -> tuple[int, int, bytes, bytes]:
        """Type, flags, header and data of the next unit."""
        kind, flags, header, at, length = struct.unpack("<BBBBI", self._take(8))
        rest = self._take(length - 8)
        return kind, flags, rest[: header - 8], rest[max(at - 8, header - 8) :] if length > header else b""

    def fabrics(self, kind: int, words: list[int], data: bytes = b"") -> Completion:
        return self.command(FABRICS, kind, words, data, in_capsule=True)

    def enable(self) -> None:
        """Makes the controller ready."""
        done = self.fabrics(0x00, [0, 0x14, 0x460001])
        assert done.status == 0, hex(done.status)

    def ask_for_queues(self) -> None:
        """Asks the controller for an I/O queue."""
        done = self.command(SET_FEATURES, 0, [7, 0])
        assert done.status == 0, hex(done.status)

    def command(self, opcode: int, namespace: int, words: list[int], data: bytes = b"", *, wants: int = 0, in_capsule: bool = False) -> Completion:
        """Sends a command with these words from the tenth on; gives what came of it."""
        self._number += 1
        entry = bytearray(64)
        entry[0] = opcode
        entry[2:4] = struct.pack("<H", self._number)
        entry[4:8] = struct.pack("<I", namespace)
        entry[32:36] = struct.pack("<I", len(data) or wants)
        if data or wants:
            entry[39] = 0x01 if in_capsule else 0x5A
        for number, word in enumerate(words):
            entry[40 + 4 * number : 44 + 4 * number] = struct.pack("<I", word)
        inside = data if in_capsule else b""
        self._socket.sendall(struct.pack("<BBBBI", COMMAND, 0, 72, 72 if inside else 0, 72 + len(inside)) + bytes(entry) + inside)
        got = b""
        while True:
            kind, flags, header, part = self._unit()
            if kind == RESPONSE:
                result, _, _, _, status = struct.unpack("<QHHHH", header[:16])
                return Completion(status, result, got)
            if kind == C2H_DATA:
                got += part
                if flags & 8:
                    return Completion(0, 0, got)
            elif kind == READY:
                offset, length = struct.unpack("<II", header[4:12])
                sent = data[offset : offset + length]
                self._socket.sendall(struct.pack("<BBBBI", H2C_DATA, 4, 24, 24, 24 + length) + header[:4] + struct.pack("<III", offset, length, 0) + sent)
            else:
                raise AssertionError(f"a unit of the type {kind}: {header!r} {part!r}")


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit: descriptors and results are short."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def descriptor(operation: int, extents: list[tuple[int, int]], length: int) -> bytes:
    """A descriptor of one input object, as docs/internals/formats/exec-descriptor.md has it."""
    pairs = b"".join(struct.pack("<QQ", *extent) for extent in extents)
    body = struct.pack("<QQQQII", length, 0, 0, 0, len(extents), 0) + pairs
    head = bytearray(struct.pack("<4sBBHIIIIIIIIQQ", b"OASD", 1, 0, operation, 56 + len(body), 0, 0, 0, 1, 0, 0, 0, 0, 0))
    head[12:16] = struct.pack("<I", crc32c(bytes(head) + body))
    return bytes(head) + body
