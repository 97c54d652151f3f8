"""A drive of MinIO: what a real server wrote (`crates/oas/tests/data/minio`), and larger objects of the same frames.

A frame has its own digest, so a file that repeats the frames of a file of MinIO's is one that MinIO could have written.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

#: The drive of a real server, with 15 shards of data: an object of 5 MiB has five frames here.
REAL = Path(__file__).resolve().parents[3] / "crates" / "oas" / "tests" / "data" / "minio"
SHARDS, BLOCK, FRAMES = 15, 1 << 20, 5

MASK = (1 << 64) - 1
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _turn(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & MASK


def xxh64(data: bytes) -> int:
    """XXH64 with the seed 0, as its specification has it."""
    first, second, third, fourth, fifth = PRIMES
    rest = data
    if len(data) >= 32:
        lanes = [(first + second) & MASK, second, 0, -first & MASK]
        for at in range(0, len(data) - 31, 32):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_turn((lane + word * second) & MASK, 31) * first & MASK for lane, word in zip(lanes, words)]
        rest = data[len(data) // 32 * 32 :]
        value = sum(_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            value = ((value ^ _turn(lane * second & MASK, 31) * first & MASK) * first + fourth) & MASK
    else:
        value = fifth
    value = (value + len(data)) & MASK
    while len(rest) >= 8:
        lane = _turn(struct.unpack_from("<Q", rest)[0] * second & MASK, 31) * first & MASK
        value, rest = (_turn(value ^ lane, 27) * first + fourth) & MASK, rest[8:]
    if len(rest) >= 4:
        value, rest = (_turn(value ^ struct.unpack_from("<I", rest)[0] * first & MASK, 23) * second + third) & MASK, rest[4:]
    for byte in rest:
        value = _turn(value ^ byte * fifth & MASK, 11) * first & MASK
    value = (value ^ value >> 33) * second & MASK
    value = (value ^ value >> 29) * third & MASK
    return value ^ value >> 32


def _text(text: str) -> bytes:
    return bytes([0xD9, len(text)]) + text.encode()


def _bytes(data: bytes) -> bytes:
    return b"\xc6" + struct.pack(">I", len(data)) + data


def _number(number: int) -> bytes:
    return b"\xcf" + struct.pack(">Q", number)


def _map(**entries: bytes) -> bytes:
    return bytes([0x80 | len(entries)]) + b"".join(_text(key) + value for key, value in entries.items())


def xl_meta(data_dir: bytes, size: int) -> bytes:
    """The metadata of an object of one part."""
    object_ = _map(
        ID=_bytes(bytes(16)), DDir=_bytes(data_dir), EcAlgo=_number(1), EcM=_number(SHARDS), EcN=_number(1), EcBSize=_number(BLOCK), CSumAlgo=_number(1),
        PartNums=b"\x91" + _number(1), PartSizes=b"\x91" + _number(size), Size=_number(size),
    )
    metadata = bytes([3, 3, 1]) + _bytes(b"\x90") + _bytes(_map(Type=_number(1), V2Obj=object_))
    return b"XL2 \x01\0\x03\0" + _bytes(metadata) + _number(xxh64(metadata) & 0xFFFFFFFF)


def make_drive(place: Path, objects: int, times: int) -> list[Path]:
    """Makes a drive with what the real server wrote, and objects of `times` times 5 MiB; the files of the latter."""
    shutil.copytree(REAL, place, dirs_exist_ok=True)
    real = next((REAL / "plain" / "large" / "parts").glob("*/part.1")).read_bytes()
    files = []
    for number in range(objects):
        data_dir = bytes([number + 1] * 16)
        name = data_dir.hex()
        directory = place / "large" / f"object-{number}"
        parts = directory / "-".join([name[:8], name[8:12], name[12:16], name[16:20], name[20:]])
        parts.mkdir(parents=True)
        (parts / "part.1").write_bytes(real * times)
        (directory / "xl.meta").write_bytes(xl_meta(data_dir, FRAMES * BLOCK * times))
        files.append(parts / "part.1")
    return files
