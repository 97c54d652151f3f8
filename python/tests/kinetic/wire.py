"""A client of Kinetic drives, written from the published protocol 4.0.1 and its branch for programs.

It shares no code with our server: fields are numbers here, as on the wire. `Client.send` and `Client.receive` are for
tests that need several requests under way, or wrong ones; the methods named like operations send one and wait.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from enum import IntEnum


class Type(IntEnum):
    """Requests; a response has the number before."""

    GET, PUT, DELETE, GETNEXT, GETPREVIOUS, GETKEYRANGE, GETVERSION = 2, 4, 6, 8, 10, 12, 16
    SETUP, GETLOG, SECURITY, PUSH, NOOP, FLUSH, PINOP, MEDIASCAN, MEDIAOPTIMIZE = 22, 24, 26, 28, 30, 32, 36, 38, 40
    START_BATCH, END_BATCH, ABORT_BATCH, POWER, APPLET = 42, 44, 46, 48, 50


class Code(IntEnum):
    """Of a status."""

    NOT_ATTEMPTED, SUCCESS, HMAC_FAILURE, NOT_AUTHORIZED, VERSION_FAILURE, INTERNAL_ERROR, HEADER_REQUIRED, NOT_FOUND = range(8)
    VERSION_MISMATCH, SERVICE_BUSY, EXPIRED, DATA_ERROR, PERM_DATA_ERROR, REMOTE_CONNECTION_ERROR, NO_SPACE = range(8, 15)
    NO_SUCH_HMAC_ALGORITHM, INVALID_REQUEST, NESTED_OPERATION_ERRORS, DEVICE_LOCKED, DEVICE_ALREADY_UNLOCKED = range(15, 20)
    CONNECTION_TERMINATED, INVALID_BATCH, HIBERNATE, SHUTDOWN, INVALID_EXECUTE, EXECUTE_COMPLETE = range(20, 26)


HMACAUTH, PINAUTH, UNSOLICITED = 1, 2, 3
WRITETHROUGH, WRITEBACK, FLUSH = 1, 2, 3
UNLOCK, LOCK, ERASE, SECURE_ERASE = 1, 2, 3, 4
READ, WRITE, DELETE, RANGE, SETUP, P2POP, GETLOG, SECURITY, POWER, MANAGE_APPLET = 0, 1, 2, 3, 4, 5, 7, 8, 9, 10
UTILIZATIONS, TEMPERATURES, CAPACITIES, CONFIGURATION, STATISTICS, MESSAGES, LIMITS, DEVICE = range(8)
EXECUTE, DEBUG, ABORT, PROCESS_STATUS, INSTALL, UPDATE, UNINSTALL, WATCH, UNWATCH = range(1, 10)
NATIVE, LLVM, JAVA, EBPF = 1, 2, 3, 4
ON_RECEIPT, ON_COMPLETION = 1, 2
SHA1 = 1

#: The identity of a drive as manufactured, and its key.
IDENTITY, KEY = 1, b"asdfasdf"
#: The erase PIN that `manufactured` uses on its way.
PIN = b"123"


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def message(fields: dict[int, object]) -> bytes:
    """A protobuf message: numbers as varints, texts and bytes with a length, lists repeated. None is absent."""
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                one = one.encode()
            if isinstance(one, bytes):
                out += varint(number << 3 | 2) + varint(len(one)) + one
            elif one is not None:
                out += varint(number << 3) + varint(int(one))
    return out


class Fields(dict[int, list[int | bytes]]):
    """A decoded protobuf message: the values of each field, in order."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        at = 0
        while at < len(data):
            tag, at = self._varint(data, at)
            match tag & 7:
                case 0:
                    value, at = self._varint(data, at)
                case 1:
                    value, at = data[at : at + 8], at + 8
                case 2:
                    length, at = self._varint(data, at)
                    value, at = data[at : at + length], at + length
                case 5:
                    value, at = data[at : at + 4], at + 4
                case kind:
                    raise ValueError(f"wire type {kind}")
            if at > len(data):
                raise ValueError("a field is longer than its message")
            self.setdefault(tag >> 3, []).append(value)

    @staticmethod
    def _varint(data: bytes, at: int) -> tuple[int, int]:
        number = 0
        for shift in range(0, 70, 7):
            number |= (data[at] & 127) << shift
            at += 1
            if data[at - 1] < 128:
                return number, at
        raise ValueError("a number of more than ten bytes")

    def int(self, number: int, default: int | None = None) -> int | None:
        """The field as a signed 64-bit number."""
        if number not in self:
            return default
        value = self[number][-1]
        return value - (1 << 64) if value >> 63 else value

    def ints(self, number: int) -> list[int]:
        """All numbers of a field, packed or not."""
        found = []
        for value in self.get(number, []):
            at = 0
            while isinstance(value, bytes) and at < len(value):
                one, at = self._varint(value, at)
                found.append(one)
            if not isinstance(value, bytes):
                found.append(value)
        return found

    def bytes(self, number: int) -> bytes:
        return self[number][-1] if number in self else b""

    def text(self, number: int) -> str:
        return self.bytes(number).decode()

    def float(self, number: int) -> float:
        return struct.unpack("<f", self[number][-1])[0]

    def all(self, number: int) -> list[bytes]:
        return self.get(number, [])

    def sub(self, number: int) -> Fields:
        """The message in a field; an empty one where there is none."""
        return Fields(self.bytes(number))

    def subs(self, number: int) -> list[Fields]:
        return [Fields(value) for value in self.all(number)]


def signature(key: bytes, command: bytes) -> bytes:
    """HMAC-SHA1 over the command's length (u32, big-endian) and the command."""
    return hmac.new(key, struct.pack(">I", len(command)) + command, hashlib.sha1).digest()


def frame(proto: bytes, value: bytes = b"") -> bytes:
    return b"F" + struct.pack(">II", len(proto), len(value)) + proto + value


@dataclass
class Response:
    """A message of the drive: a response, or an unsolicited status."""

    auth: int
    header: Fields
    body: Fields
    code: int
    text: str
    detail: bytes
    value: bytes
    signed_by: int | None

    @property
    def type(self) -> int | None:
        return self.header.int(7)

    @property
    def ack(self) -> int | None:
        return self.header.int(6)

    @property
    def entry(self) -> Fields:
        """The key and its version, tag and algorithm."""
        return self.body.sub(1)

    @property
    def key(self) -> bytes:
        return self.entry.bytes(3)

    @property
    def version(self) -> bytes:
        return self.entry.bytes(4)

    @property
    def log(self) -> Fields:
        return self.body.sub(6)

    @property
    def result(self) -> Result:
        return Result.parse(self.detail)

    def __repr__(self) -> str:
        return f"<{self.code}: {self.text!r}, type {self.type}, ack {self.ack}, value of {len(self.value)} bytes>"


@dataclass(frozen=True)
class Result:
    """How a program ended, as `kctl exec` reads it from the detailed message: `<rc>:<signal>:<message>:<stdout>`."""

    code: int
    signal: int
    message: str
    output: bytes

    @staticmethod
    def parse(detail: bytes) -> Result:
        """The message has no colon; the output may have any bytes. One NUL at the end is not of the output."""
        found = re.fullmatch(rb"(-?\d+):(-?\d+):([^:]*):(.*?)\0?", detail, re.S)
        if not found:
            raise ValueError(f"not the result of a program: {detail!r}")
        return Result(int(found[1]), int(found[2]), found[3].decode(), found[4])


class Closed(ConnectionError):
    """The drive closed the connection."""


class Client:
    """A connection. Reads the drive's greeting, unless told otherwise; each read has `timeout` seconds."""

    def __init__(self, host: str, port: int, *, tls: bool = False, identity: int = IDENTITY, key: bytes = KEY, timeout: float = 30, greeted: bool = True) -> None:
        self.identity, self.secret = identity, key
        self.sequence = 0
        self.cluster = 0
        self.connection: int | None = None
        #: Whether the drive's signatures are compared with ours. A client with a wrong key can't.
        self.checks = True
        self.socket = socket.create_connection((host, port), timeout=timeout)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                self.socket = context.wrap_socket(self.socket, server_hostname=host)
            if greeted:
                self.greet()
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def greet(self) -> Response:
        self.greeting = self.receive()
        self.connection = self.greeting.header.int(3)
        self.cluster = self.greeting.header.int(1, 0)
        return self.greeting

    # Messages.

    def command(self, kind: int, body: dict[int, object] | None = None, **header: int) -> bytes:
        """The bytes of a command with the next sequence. `header` may set cluster, connection, sequence, timeout,
        early_exit, priority, quanta and batch."""
        if "sequence" not in header:
            self.sequence += 1
        numbers = {"cluster": 1, "connection": 3, "sequence": 4, "timeout": 9, "early_exit": 10, "priority": 12, "quanta": 13, "batch": 14}
        fields = {1: self.cluster, 3: self.connection, 4: self.sequence, 7: kind}
        fields |= {numbers[name]: value for name, value in header.items()}
        return message({1: message(fields), 2: message(body) if body else None})

    def signed(self, command: bytes) -> bytes:
        return message({4: HMACAUTH, 5: message({1: self.identity, 2: signature(self.secret, command)}), 7: command})

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: int, body: dict[int, object] | None = None, value: bytes = b"", **header: int) -> int:
        """Sends a request; its sequence."""
        self.raw(frame(self.signed(self.command(kind, body, **header)), value))
        return header.get("sequence", self.sequence)

    def _read(self, length: int) -> bytes:
        out = bytearray()
        while len(out) < length:
            try:
                part = self.socket.recv(min(length - len(out), 1 << 20))
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError) as error:
                raise Closed(str(error)) from None
            if not part:
                raise Closed(f"{len(out)} of {length} bytes")
            out += part
        return bytes(out)

    def receive(self) -> Response:
        """The next message of the drive. Its signature must be right, if it has one."""
        magic, proto, value = struct.unpack(">cII", self._read(9))
        assert magic == b"F", magic
        outer = Fields(self._read(proto))
        data = self._read(value)
        command = Fields(outer.bytes(7))
        signed_by = None
        if outer.int(4) == HMACAUTH:
            signed_by = outer.sub(5).int(1)
            if self.checks and signed_by == self.identity:
                assert outer.sub(5).bytes(2) == signature(self.secret, outer.bytes(7)), "the drive's own signature is wrong"
        status = command.sub(3)
        return Response(outer.int(4), command.sub(1), command.sub(2), status.int(1), status.text(2), status.bytes(3), data, signed_by)

    def call(self, kind: int, body: dict[int, object] | None = None, value: bytes = b"", **header: int) -> Response:
        """Sends a request and waits for its response."""
        sequence = self.send(kind, body, value, **header)
        found = self.receive()
        assert found.auth != UNSOLICITED and found.ack == sequence, (found, found.auth, sequence)
        assert found.type == kind - 1, (found, kind)
        return found

    def closed(self) -> list[Response]:
        """Reads until the drive closes the connection; what it said until then."""
        said = []
        while True:
            try:
                said.append(self.receive())
            except Closed:
                return said

    # Keys and values.

    def put(self, key: bytes, value: bytes = b"", *, version: bytes | None = None, old: bytes | None = None, force: bool | None = None, tag: bytes = b"",
            algorithm: int = SHA1, sync: int | None = WRITEBACK, **header: int) -> Response:  # fmt: skip
        return self.call(Type.PUT, self.put_body(key, version, old, force, tag, algorithm, sync), value, **header)

    @staticmethod
    def put_body(key: bytes, version: bytes | None = None, old: bytes | None = None, force: bool | None = None, tag: bytes = b"", algorithm: int = SHA1,
                 sync: int | None = WRITEBACK) -> dict[int, object]:  # fmt: skip
        return {1: message({2: version, 3: key, 4: old, 5: tag, 6: algorithm, 8: force, 9: sync})}

    def delete(self, key: bytes, old: bytes | None = None, *, force: bool | None = None, sync: int | None = WRITEBACK, **header: int) -> Response:
        return self.call(Type.DELETE, {1: message({3: key, 4: old, 8: force, 9: sync})}, **header)

    def get(self, key: bytes, *, kind: int = Type.GET, metadata_only: bool | None = None, **header: int) -> Response:
        """GET, and with another `kind` GETNEXT, GETPREVIOUS and GETVERSION."""
        return self.call(kind, {1: message({3: key, 7: metadata_only})}, **header)

    def range(self, start: bytes, end: bytes, most: int = 100, *, reverse: bool = False, inclusive: tuple[bool, bool] = (True, True), **header: int) -> Response:
        return self.call(Type.GETKEYRANGE, {2: message({1: start, 2: end, 3: inclusive[0], 4: inclusive[1], 5: most, 6: reverse})}, **header)

    def keys(self, start: bytes, end: bytes, most: int = 100, **options: object) -> list[bytes]:
        found = self.range(start, end, most, **options)
        assert found.code == Code.SUCCESS, found
        return found.body.sub(2).all(8)

    # The device.

    def noop(self, **header: int) -> Response:
        return self.call(Type.NOOP, **header)

    def flush(self) -> Response:
        return self.call(Type.FLUSH)

    def get_log(self, *types: int, device: bytes | None = None) -> Response:
        return self.call(Type.GETLOG, {6: message({1: list(types), 9: message({1: device}) if device is not None else None})})

    def set_cluster(self, version: int, **header: int) -> Response:
        return self.call(Type.SETUP, {3: message({1: version, 6: 2})}, **header)

    def set_acls(self, *acls: bytes) -> Response:
        return self.call(Type.SECURITY, {7: message({2: list(acls), 7: 1})})

    def set_pin(self, old: bytes, new: bytes, *, erase: bool) -> Response:
        return self.call(Type.SECURITY, {7: message({5: old, 6: new, 7: 2} if erase else {3: old, 4: new, 7: 3})})

    def pin_operation(self, operation: int, pin: bytes) -> Response:
        """Lock, unlock, or one of the two ways to erase."""
        command = self.command(Type.PINOP, {8: message({1: operation})})
        self.raw(frame(message({4: PINAUTH, 6: message({1: pin}), 7: command})))
        found = self.receive()
        assert found.ack in (self.sequence, None), found
        return found

    def manufactured(self) -> None:
        """Makes the drive as manufactured, whichever PINs of these tests it has. Needs TLS."""
        for pin in (b"", PIN, b"lock"):
            self.pin_operation(UNLOCK, pin)
        for pin in (b"", PIN):
            if self.pin_operation(ERASE, pin).code == Code.SUCCESS:
                break
        else:
            raise AssertionError("the drive could not be erased")
        self.cluster = 0

    def push(self, host: str, port: int, operations: list[bytes], tls: bool = False) -> Response:
        return self.call(Type.PUSH, {4: message({1: message({1: host, 2: port, 3: tls}), 2: operations})})

    def media(self, kind: int, start: bytes, end: bytes) -> Response:
        return self.call(kind, {2: message({1: start, 2: end, 3: True, 4: True, 5: 100})})

    # Batches.

    def start_batch(self, batch: int) -> Response:
        return self.call(Type.START_BATCH, batch=batch)

    def batch_put(self, batch: int, key: bytes, value: bytes, **options: object) -> int:
        return self.send(Type.PUT, self.put_body(key, **options), value, batch=batch)

    def batch_delete(self, batch: int, key: bytes, old: bytes | None = None, force: bool | None = None) -> int:
        return self.send(Type.DELETE, {1: message({3: key, 4: old, 8: force, 9: WRITEBACK})}, batch=batch)

    def end_batch(self, batch: int, count: int) -> Response:
        return self.call(Type.END_BATCH, {9: message({1: count})}, batch=batch)

    def abort_batch(self, batch: int) -> Response:
        return self.call(Type.ABORT_BATCH, batch=batch)

    # Programs.

    def applet(self, kind: int, fields: dict[int, object] | None = None) -> Response:
        """MANAGE_APPLET of a kind, with more fields of its message."""
        return self.call(Type.APPLET, {11: message({1: kind, **(fields or {})})})

    def execute(self, keys: list[bytes], arguments: list[str] = (), *, lang: int = EBPF, output: bytes | None = None, inline: bool | None = None,
                most_ms: int | None = None, mode: int = ON_COMPLETION) -> Response:  # fmt: skip
        """EXECUTE as `kctl exec` sends it; it sets neither a longest time nor notifications."""
        fields = {2: lang, 3: list(keys), 4: most_ms, 7: list(arguments), 8: mode, 11: output, 12: inline}
        return self.applet(EXECUTE, fields)


def scope(*permissions: int, value: bytes | None = None, offset: int | None = None, tls: bool | None = None) -> bytes:
    return message({1: offset, 2: value, 3: list(permissions), 4: tls})


def acl(identity: int, key: bytes, *scopes: bytes, algorithm: int = 1, priority: int | None = None) -> bytes:
    return message({1: identity, 2: key, 3: algorithm, 4: list(scopes), 5: priority})


def pushed(key: bytes, *, version: bytes | None = None, new_key: bytes | None = None, force: bool | None = None) -> bytes:
    """An operation of a push."""
    return message({3: key, 4: version, 5: new_key, 6: force})
