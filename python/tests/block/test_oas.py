"""`skytether oas` computes in the volume below a mounted file system what the system's tools compute here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fleets import PROGRAM

from .servers import Disk


def oas(*words: str | Path, target: str, code: int = 0) -> bytes:
    """What the command prints; the target must have done it."""
    done = subprocess.run([PROGRAM, "oas", *words, "--there", "--target", target], capture_output=True, timeout=120)
    assert done.returncode == code and not done.stderr, done
    return done.stdout


def tool(*words: str | Path) -> bytes:
    return subprocess.run([*words], capture_output=True, timeout=120, env={**os.environ, "LC_ALL": "C"}).stdout


def test_digests_are_those_of_the_systems_tools(disk: Disk) -> None:
    target, place = disk.target, disk.place
    files = [place / name for name in ("text", "random", "holes", "empty")]
    assert oas("sum", "--md5", *files, target=target) == tool("md5sum", *files)
    assert oas("sum", *files, target=target) == tool("sha256sum", *files)


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


def test_sorted_files_are_those_of_sort(disk: Disk) -> None:
    target, place = disk.target, disk.place
    output = place / "sorted"
    oas("sort", place / "text", "--output", output, target=target)
    assert output.read_bytes() == tool("sort", place / "text")
    oas("sort", "-r", "-u", place / "text", "--output", output, target=target)
    assert output.read_bytes() == tool("sort", "-r", "-u", place / "text")


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
