"""`skytether oas` computes in the volume below a mounted file system what the system's tools compute here."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

from fleets import PROGRAM

from .servers import Disk


def oas(*words: str | Path, target: str, code: int = 0) -> bytes:
    """What the command prints; the target must have done it."""
    done = subprocess.run([PROGRAM, "oas", *words, "--there", "--target", target], capture_output=True, timeout=120)
    assert done.returncode == code and not done.stderr, done
    return done.stdout


def tool(*words: str | Path, locale: str = "C") -> bytes:
    return subprocess.run([*words], capture_output=True, timeout=120, env={**os.environ, "LC_ALL": locale}).stdout


def test_digests_are_those_of_the_systems_tools(disk: Disk) -> None:
    target, place = disk.target, disk.place
    files = [place / name for name in ("text", "random", "holes", "empty")]
    assert oas("sum", "--md5", *files, target=target) == tool("md5sum", *files)
    assert oas("sum", *files, target=target) == tool("sha256sum", *files)


def crc(polynomial: int, bits: int, data: bytes) -> int:
    """A CRC that is computed from the lowest bit on, of the inverted polynomial."""
    ones = (1 << bits) - 1
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    value = ones
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ ones


def test_digests_without_a_tool_are_those_of_their_definitions(disk: Disk) -> None:
    """No program of Debian's prints them. Checked values are those that each algorithm's authors give."""
    target, files = disk.target, [disk.place / name for name in ("check", "text", "empty")]
    files[0].write_bytes(b"123456789")
    os.sync()
    assert crc(0x82F63B78, 32, b"123456789") == 0xE3069283 and crc(0x9A6C9329AC4BC9B5, 64, b"123456789") == 0xAE8B14860A799888
    for option, right in [
        ("--crc32", lambda data: f"{zlib.crc32(data):08x}"),
        ("--crc32c", lambda data: f"{crc(0x82F63B78, 32, data):08x}"),
        ("--crc64", lambda data: f"{crc(0x9A6C9329AC4BC9B5, 64, data):016x}"),
    ]:
        assert oas("sum", option, *files, target=target).decode() == "".join(f"{right(file.read_bytes())}  {file}\n" for file in files)
    # Known answers: BLAKE3 of nothing.
    blake3 = oas("sum", "--blake3", disk.place / "empty", target=target).decode().split()
    assert blake3[0] == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    # Of the same bytes here and there, and 32 bytes long; the scrub tests compare it with digests that MinIO wrote.
    highway = oas("sum", "--highwayhash", disk.place / "text", target=target)
    here = subprocess.run([PROGRAM, "oas", "sum", "--highwayhash", disk.place / "text", "--here"], capture_output=True, timeout=120)
    assert highway == here.stdout and len(highway.split()[0]) == 64


def test_matches_and_counts_are_those_of_grep_and_wc(disk: Disk) -> None:
    target, place = disk.target, disk.place
    files = [place / "text", place / "holes"]
    assert oas("grep", "ab+c|de$", files[0], target=target) == tool("grep", "-a", "-o", "-b", "-E", "ab+c|de$", files[0])
    # Lines of any length are searched for strings.
    assert oas("grep", "-F", "end", *files, target=target) == tool("grep", "-a", "-o", "-b", "-F", "end", *files)
    assert oas("grep", "-c", "abc", files[0], target=target) == tool("grep", "-a", "-c", "abc", files[0])
    assert oas("grep", "nowhere at all", files[0], target=target, code=1) == b""
    assert oas("wc", *files, target=target) == tool("wc", *files)
    assert oas("wc", "-l", files[0], target=target) == tool("wc", "-l", files[0])
    assert oas("grep", "-i", "AB+C|dE$", files[0], target=target) == tool("grep", "-a", "-o", "-b", "-i", "-E", "AB+C|dE$", files[0])
    assert oas("grep", "-i", "-c", "-F", "ABC", files[0], target=target) == tool("grep", "-a", "-c", "-i", "-F", "ABC", files[0])
    (place / "words").write_text("Zürich\n€ 5\n\n" * 1000, "utf-8")
    os.sync()
    for options in (["-m"], ["-l", "-w", "-m", "-c"]):
        assert oas("wc", *options, place / "words", *files, target=target) == tool("wc", *options, place / "words", *files, locale="C.UTF-8")


def test_sorted_files_are_those_of_sort(disk: Disk) -> None:
    target, place = disk.target, disk.place
    output = place / "sorted"
    oas("sort", place / "text", "--output", output, target=target)
    assert output.read_bytes() == tool("sort", place / "text")
    oas("sort", "-r", "-u", place / "text", "--output", output, target=target)
    assert output.read_bytes() == tool("sort", "-r", "-u", place / "text")


def test_merged_files_are_those_of_sort(disk: Disk) -> None:
    target, place = disk.target, disk.place
    lines = (place / "text").read_bytes().splitlines(keepends=True)
    parts = [place / f"part{n}" for n in range(3)]
    for n, part in enumerate(parts):
        part.write_bytes(b"".join(sorted(lines[n::3])))
    os.sync()
    output = place / "merged"
    oas("merge", *parts, "--output", output, target=target)
    assert output.read_bytes() == tool("sort", "-m", *parts)
    oas("merge", "-u", *parts, "--output", output, target=target)
    assert output.read_bytes() == tool("sort", "-m", "-u", *parts)
    small = [place / f"small{n}" for n in range(2)]
    for n, file in enumerate(small):
        file.write_bytes(b"".join(sorted(lines[n : 2000 : 2], reverse=True)))
    os.sync()
    assert oas("merge", "-r", *small, target=target) == tool("sort", "-m", "-r", *small)
    # What is not sorted is refused.
    done = subprocess.run([PROGRAM, "oas", "merge", place / "text", "--there", "--target", target], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "sorted" in done.stderr, done


def test_sorted_records_are_in_the_order_of_their_keys(disk: Disk) -> None:
    target, place = disk.target, disk.place
    content = (place / "random").read_bytes()[:64_000]
    records = [content[at : at + 16] for at in range(0, len(content), 16)]
    (place / "records").write_bytes(content)
    os.sync()
    output = place / "sorted.records"
    oas("sort", "--record", "16", "--key-at", "3", "--key-length", "1", place / "records", "--output", output, target=target)
    assert output.read_bytes() == b"".join(sorted(records, key=lambda record: record[3]))
    assert oas("sort", "--record", "16", "-r", place / "records", target=target) == b"".join(sorted(records, reverse=True))


def test_compressed_files_come_back(disk: Disk) -> None:
    target, place = disk.target, disk.place
    packed, unpacked = place / "text.zst", place / "text.again"
    oas("compress", place / "text", "--output", packed, target=target)
    assert packed.stat().st_size < (place / "text").stat().st_size
    oas("decompress", packed, "--output", unpacked, "--room", "16MiB", target=target)
    assert unpacked.read_bytes() == (place / "text").read_bytes()


def test_files_elsewhere_are_done_here_with_the_reason(disk: Disk) -> None:
    target = disk.target
    file = Path("/dev/shm") / f"oas-{os.getpid()}"
    file.write_bytes(b"one two\n")
    try:
        done = subprocess.run([PROGRAM, "oas", "wc", file, "--target", target], capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stdout == tool("wc", file) and b"done here" in done.stderr, done
        done = subprocess.run([PROGRAM, "oas", "wc", file, "--there", "--target", target], capture_output=True, timeout=60)
        assert done.returncode == 1 and done.stderr, done
    finally:
        file.unlink()
