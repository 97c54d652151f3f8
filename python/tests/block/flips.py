"""Rot: bits that change on the device, below a file system that does not know."""

from __future__ import annotations

import array
import fcntl
import os
import struct
from pathlib import Path

#: `linux/fiemap.h`: the request, and its flag to write what is cached first.
FS_IOC_FIEMAP, SYNC = 0xC020660B, 1

BLOCK = 4096


def place_of(file: Path, at: int) -> int:
    """Where a byte of a file is on the device that carries its file system."""
    room = 64
    request = array.array("B", struct.pack("=QQLLLL", 0, (1 << 64) - 1, SYNC, 0, room, 0) + bytes(56 * room))
    with file.open("rb") as opened:
        fcntl.ioctl(opened, FS_IOC_FIEMAP, request)
    for number in range(struct.unpack_from("=L", request, 20)[0]):
        logical, physical, length = struct.unpack_from("=QQQ", request, 32 + 56 * number)
        if logical <= at < logical + length:
            return physical + at - logical
    raise AssertionError(f"{file}: byte {at} is in none of {room} extents")


def flip(device: Path, places: list[int]) -> None:
    """Changes one bit at each of these places of a device."""
    with device.open("r+b", buffering=0) as opened:
        for place in places:
            # Devices take whole blocks.
            first = place // BLOCK * BLOCK
            block = bytearray(os.pread(opened.fileno(), BLOCK, first))
            block[place - first] ^= 0x20
            os.pwrite(opened.fileno(), block, first)
        os.fsync(opened.fileno())
