"""Volumes over NVMe/TCP, as the command serves them, to a host that is no part of the program."""

from __future__ import annotations

import hashlib
import random
import struct
from pathlib import Path

from .nvme import DISCOVERY, EXEC_IN, EXEC_OUT, FLUSH, GET_LOG_PAGE, IDENTIFY, READ, WRITE, Queue, crc32c, descriptor
from .servers import Server, serve

MIB = 1 << 20
#: The operation MD5.
MD5 = 0x0010


def queues(server: Server) -> tuple[Queue, Queue]:
    """The admin queue and an I/O queue of a controller of the drive."""
    address, nqn, number = server.volumes["nvme-tcp", "disk"].removeprefix("nvme-tcp://").split("/")
    assert number == "1"
    admin = Queue(address, nqn)
    admin.enable()
    admin.ask_for_queues()
    return admin, Queue(address, nqn, 1, admin.controller)


def text(data: bytes) -> str:
    return data.decode().rstrip("\0 ")


def test_served_volumes_are_discovered_and_identified(tmp_path: Path) -> None:
    with serve(tmp_path / "d", "--volume", "disk=16MiB", "--volume", "other=8MiB", schemes=("nvme-tcp",)) as server:
        address, nqn, _ = server.volumes["nvme-tcp", "disk"].removeprefix("nvme-tcp://").split("/")
        discovery = Queue(address, DISCOVERY)
        discovery.enable()
        page = discovery.command(GET_LOG_PAGE, 0, [0x70 | (2048 // 4 - 1) << 16], wants=2048).data
        assert text(page[1024 + 256 : 1024 + 512]) == nqn
        assert f"{text(page[1024 + 512 : 1024 + 768])}:{text(page[1024 + 32 : 1024 + 64])}" == address
        admin, _io = queues(server)
        controller = admin.command(IDENTIFY, 0, [1], wants=4096).data
        assert text(controller[768:1024]) == nqn and struct.unpack("<I", controller[516:520])[0] >= 2
        assert struct.unpack("<II", admin.command(IDENTIFY, 0, [2], wants=4096).data[:8]) == (1, 2)
        for namespace, size in [(1, 16 * MIB), (2, 8 * MIB)]:
            assert struct.unpack("<Q", admin.command(IDENTIFY, namespace, [0], wants=4096).data[:8])[0] * 512 == size


def test_blocks_are_read_written_and_computed_on(tmp_path: Path) -> None:
    """Also after a kill of the drive: what was flushed is there. EXEC is a pair of vendor commands."""
    content = random.Random(4).randbytes(MIB)
    data = tmp_path / "d"
    with serve(data, "--volume", "disk=16MiB", schemes=("nvme-tcp",)) as server:
        _admin, io = queues(server)
        # In a unit of its own, and in the capsule.
        assert io.command(WRITE, 1, [8, 0, 2048 - 1], content).status == 0
        assert io.command(WRITE, 1, [0, 0, 8 - 1], b"begin".ljust(4096, b"."), in_capsule=True).status == 0
        assert io.command(READ, 1, [8, 0, 2048 - 1], wants=MIB).data == content
        assert io.command(FLUSH, 1, []).status == 0
        # Beyond the end.
        assert io.command(READ, 1, [16 * MIB // 512, 0, 0], wants=512).status != 0
        server.kill()
    with serve(data, schemes=("nvme-tcp",)) as server:
        _admin, io = queues(server)
        assert io.command(READ, 1, [0, 0, 8 - 1], wants=4096).data.startswith(b"begin...")
        # The second half of the content, and then some of the first.
        places = [(4096 + MIB // 2, MIB // 2), (4096, 4096)]
        asked = descriptor(MD5, places, MIB // 2 + 3000)
        done = io.command(EXEC_OUT, 1, [7, len(asked)], asked, in_capsule=True)
        assert done.status == 0, hex(done.status)
        answer = io.command(EXEC_IN, 1, [7, 4096, 0, 1], wants=4096)
        result = answer.data[: answer.result]
        magic, version, status, operation, length, sum_, items, outputs, told = struct.unpack("<4sBBHIIIHH", result[:24])
        assert (magic, version, status, operation, items, outputs, told) == (b"OASR", 1, 0, MD5, 1, 0, 0), result
        assert length == len(result) and sum_ == crc32c(result[:12] + bytes(4) + result[16:])
        failed, _, _, of_data = struct.unpack("<BBHI", result[24:32])
        assert failed == 0 and result[40 : 40 + of_data] == hashlib.md5(content[MIB // 2 :] + content[:3000]).digest()
        # It is given once; a place beyond the volume, and bytes that are no descriptor, are refused.
        assert io.command(EXEC_IN, 1, [7, 4096, 0, 0], wants=4096).status != 0
        beyond = descriptor(MD5, [(16 * MIB, 4096)], 4096)
        assert io.command(EXEC_OUT, 1, [8, len(beyond)], beyond, in_capsule=True).status == 0
        assert io.command(EXEC_IN, 1, [8, 4096, 0, 1], wants=4096).data[5] == 1
        assert io.command(EXEC_OUT, 1, [9, 64], bytes(64), in_capsule=True).status != 0
