"""A hundred hostile clients at once, and a thousand connections: the drive takes bounded memory, refuses what is too
much, and serves others."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from .targets import Drive, chosen
from .wire import Client, Code, Type, frame, message

pytestmark = pytest.mark.skipif(chosen() != "drive", reason="it looks at the memory of a process that it starts")

MIB = 1 << 20

#: What all of it may take beyond what the drive has before: batches 160 MiB, a value or an answer of 1 MiB for each of
#: 60 connections, and the same again for the store and for what was freed and is kept. It took 203 MiB.
MOST_MIB = 440


#: What a thousand connections may take that hold a part of a frame each: a block of 64 KiB for each of the 256 that a
#: door serves at a time, and as much again.
MOST_OF_A_THOUSAND_MIB = 32


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Drive]:
    """A drive with the limits of a real one: 100 connections."""
    drive = Drive(tmp_path / "real", limits="drive")
    yield drive
    drive.stop()


def peak_mib(drive: Drive) -> float:
    """The most memory that the drive's process had so far."""
    for line in Path(f"/proc/{drive.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say how much memory a process had")


def test_hostile_connections_take_bounded_memory(real: Drive) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(real.client())
        assert client.put(b"large", bytes(MIB)).code == Code.SUCCESS
        before = peak_mib(real)
        # Those that begin a value and do not end it.
        for n in range(30):
            slow = stack.enter_context(real.client())
            slow.raw(frame(slow.signed(slow.command(Type.PUT, Client.put_body(b"slow%d" % n))), bytes(MIB))[:-1])
        # Those that ask for much and read nothing.
        for _ in range(30):
            deaf = stack.enter_context(real.client())
            deaf.raw(b"".join(frame(deaf.signed(deaf.command(Type.GET, {1: message({3: b"large"})}))) for _ in range(100)))
        # Those that fill batches, of 240 MiB together, and do not end them.
        fillers = [stack.enter_context(real.client()) for _ in range(24)]
        for filler in fillers:
            assert filler.start_batch(1).code == Code.SUCCESS
            for n in range(10):
                filler.batch_put(1, b"batch%d" % n, bytes(MIB), force=True)
        # Those that announce a message of the greatest length, and send none of it.
        for _ in range(10):
            stack.enter_context(real.client()).raw(struct.pack(">cII", b"F", MIB, MIB))
        for n in range(50):
            assert client.put(b"k%d" % n, b"v" * 100).code == Code.SUCCESS
            assert client.get(b"k%d" % n).value == b"v" * 100
        ended = [filler.end_batch(1, 10).code for filler in fillers]
        # 160 MiB of batches fit, and further ones are told to come again.
        assert set(ended) == {Code.SUCCESS, Code.SERVICE_BUSY} and ended.count(Code.SUCCESS) <= 16, ended
        assert peak_mib(real) - before < MOST_MIB, f"{before:.0f} MiB before, {peak_mib(real):.0f} at most"
    with real.client() as after:
        assert after.get(b"k49").value == b"v" * 100
        assert [after.get(b"slow%d" % n).code for n in range(30)] == [Code.NOT_FOUND] * 30


@pytest.mark.parametrize("limits", ["drive", "java"])
def test_thousand_connections_take_bounded_memory(tmp_path: Path, limits: str) -> None:
    """`drive` announces 100 connections, and turns others away with a status. `java` announces no number; a door has
    256 places then, and closes further connections."""
    drive = Drive(tmp_path / "thousand", limits=limits)
    try:
        client = drive.client()
        assert client.put(b"before", b"v").code == Code.SUCCESS
        before = peak_mib(drive)
        begun = frame(client.signed(client.command(Type.PUT, Client.put_body(b"never"))), bytes(1000))[:-1]
        taken = []
        with ExitStack() as stack:
            for _ in range(1000):
                taken.append(stack.enter_context(socket.create_connection((drive.address.host, drive.address.port), timeout=30)))
                try:
                    taken[-1].sendall(begun)
                except (BrokenPipeError, ConnectionResetError):
                    # It was turned away.
                    assert limits == "drive"
            for n in range(50):
                assert client.put(b"k%d" % n, b"v").code == Code.SUCCESS
            if limits == "drive":
                # The last one finds no place, and is told so.
                with drive.client() as refused:
                    assert refused.greeting.code == Code.SERVICE_BUSY and "100 connections" in refused.greeting.text
            assert peak_mib(drive) - before < MOST_OF_A_THOUSAND_MIB, f"{before:.0f} MiB before, {peak_mib(drive):.0f} at most"
        with drive.client_when_there_is_room() as after:
            assert after.get(b"k49").value == b"v" and after.get(b"never").code == Code.NOT_FOUND
        client.close()
    finally:
        drive.stop()
