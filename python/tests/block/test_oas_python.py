"""`skytether.oas` computes in the volume below a mounted file system what Python computes here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import skytether
from skytether import oas

from .servers import Disk, as_file, as_loop, mounted, needs, run, serve


@pytest.fixture(scope="module")
def there(disk: Disk) -> oas.Session:
    """A session in which nothing is done here."""
    return oas.Session(disk.target, where="there")


def test_digests_are_those_of_hashlib(disk: Disk, there: oas.Session) -> None:
    files = [disk.place / name for name in ("text", "random", "holes", "empty")]
    for name, right in [("md5", hashlib.md5), ("sha256", hashlib.sha256)]:
        found = there.sum(files, name)
        assert [done.value for done in found] == [right(file.read_bytes()).digest() for file in files]
        assert all(done.where == "there" and done.reason is None for done in found)
        assert [done.file for done in found] == files
    one = there.sum(str(files[0]), "crc32")
    assert int.from_bytes(one.value, "big") == zlib.crc32(files[0].read_bytes()) and one.where == "there"
    with files[1].open("rb") as file:
        assert there.sum(file).value == hashlib.sha256(files[1].read_bytes()).digest()
    assert there.sum([]) == []


def test_digests_inside_files_are_verified(disk: Disk, there: oas.Session) -> None:
    chance, block = random.Random(3), 5000
    blocks = [chance.randbytes(block) for _ in range(9)] + [b"the last one"]
    right = b"".join(hashlib.md5(data).digest() + data for data in blocks)
    place = 4 * (block + 16) + 16 + 77
    wrong = right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :]
    for name, content in [("right", right), ("wrong", wrong)]:
        (disk.place / name).write_bytes(content)
    found = there.verify_framed([disk.place / "right", disk.place / "wrong"], block=block, digest="md5")
    assert [done.value for done in found] == [oas.Framed(None), oas.Framed(4)]
    assert found[0].value and not found[1].value and {done.where for done in found} == {"there"}


def test_matches_and_counts_are_those_of_python(disk: Disk, there: oas.Session) -> None:
    text = disk.place / "text"
    content = text.read_bytes()
    right = [(match.start(), match.group()) for match in re.finditer(rb"ab+c", content)]
    assert right and [(match.at, match.text) for match in there.grep("ab+c", text).value] == right
    assert there.grep_offsets(b"ABC", text, ignore_case=True).value == [match.start() for match in re.finditer(rb"abc", content)]
    found = there.grep_offsets("begin\nend", [disk.place / "holes", disk.place / "empty"], fixed=True)
    assert [done.value for done in found] == [[0, 3_000_000], []]
    assert there.grep_count("abc", text).value == sum(b"abc" in line for line in content.split(b"\n"))
    assert there.grep_count("abc", text, fixed=True, lines=False).value == content.count(b"abc")
    assert there.wc(text).value == oas.Counts(content.count(b"\n"), len(content.split()), len(content), len(content))


def test_outputs_are_written_by_the_target(disk: Disk, there: oas.Session) -> None:
    text, output = disk.place / "text", disk.place / "out"
    lines = text.read_bytes().splitlines(keepends=True)
    done = there.sort(text, output)
    assert done.where == "there" and done.value == output.stat().st_size and output.read_bytes() == b"".join(sorted(lines))
    done = there.sort([text], output, reverse=True, unique=True)
    assert done.where == "there" and output.read_bytes() == b"".join(sorted(set(lines), reverse=True))
    (disk.place / "a").write_bytes(b"a\nc\n")
    (disk.place / "b").write_bytes(b"b\nd")
    assert there.merge([disk.place / "a", disk.place / "b"]).value == b"a\nb\nc\nd\n"
    (disk.place / "records").write_bytes(b"3xa1yb2zc")
    assert there.sort(disk.place / "records", record=3, key_at=1).value == b"3xa1yb2zc"
    assert there.sort(disk.place / "records", record=3, key_length=1).value == b"1yb2zc3xa"
    for form in ("zstd", "lz4"):
        packed = there.compress(text, disk.place / f"text.{form}", format=form)
        assert packed.where == "there" and packed.value < text.stat().st_size
        there.decompress(disk.place / f"text.{form}", output, format=form, room=16 << 20)
        assert output.read_bytes() == text.read_bytes()


def test_work_is_done_here_with_the_reason(disk: Disk, tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm") / f"oas-python-{os.getpid()}"
    elsewhere.write_bytes(b"one two\n")
    try:
        done = oas.Session(disk.target).wc([elsewhere, disk.place / "empty"])
        assert [of.value.words for of in done] == [2, 0] and [of.where for of in done] == ["here", "there"]
        assert done[0].reason and done[1].reason is None
        with pytest.raises(skytether.UnsupportedError):
            oas.Session(disk.target, where="there").wc(elsewhere)
        # Without a target, the kernel is asked for the disk: this one is a loop device.
        done = oas.Session().wc(disk.place / "empty")
        assert done.where == "here" and "loop" in done.reason
        done = oas.Session(where="here").wc(elsewhere)
        assert (done.where, done.reason, done.value.words) == ("here", None, 2)
    finally:
        elsewhere.unlink()


def test_errors_are_those_of_skytether(disk: Disk, there: oas.Session, tmp_path: Path) -> None:
    found = there.wc([disk.place / "nowhere", disk.place / "text"])
    assert isinstance(found[0].error, skytether.NotFoundError) and "nowhere" in str(found[0].error) and found[1].error is None
    with pytest.raises(skytether.NotFoundError):
        found[0].value
    with pytest.raises(skytether.NotFoundError):
        there.wc(disk.place / "nowhere")
    with pytest.raises(skytether.InvalidError, match="md4"):
        there.sum(disk.place / "text", "md4")
    with pytest.raises(skytether.InvalidError):
        there.grep("(", disk.place / "text")
    with pytest.raises(skytether.InvalidError):
        oas.Session("ftp://127.0.0.1/x")
    with pytest.raises(skytether.UnavailableError):
        oas.Session("iscsi://127.0.0.1:1/iqn.x:y/1", where="there", timeout=10).wc(disk.place / "text")


def test_threads_and_forks_share_a_session(disk: Disk, there: oas.Session) -> None:
    right = hashlib.md5((disk.place / "random").read_bytes()).digest()
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(there.sum(disk.place / "random", "md5").value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [right] * 4
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if there.sum(disk.place / "random", "md5").value == right else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert there.sum(disk.place / "random", "md5").value == right


INTERRUPTED = """
import sys, time
from skytether import oas
session = oas.Session(sys.argv[1], where=sys.argv[2])
print("begun", flush=True)
try:
    while True:
        session.sum([sys.argv[3]] * 400, "md5")
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
"""


@pytest.mark.parametrize("where", ["there", "here"])
def test_interrupt_ends_a_call(disk: Disk, where: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, disk.target, where, disk.place / "random"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(1)
        sent = time.time()
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=30)
    finally:
        process.kill()
    word, when = printed.split()
    assert word == "interrupted" and float(when) - sent < 2 and process.returncode == 0, (printed, told)


def test_another_disk_is_never_written_nor_believed(tmp_path: Path) -> None:
    """A target whose disk is another one than that of the files."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    with serve(tmp_path / "d", "--volume", "a=64MiB", "--volume", "b=64MiB") as server, contextlib.ExitStack() as stack:
        places, images = [], []
        for name in ("a", "b"):
            images.append(stack.enter_context(as_file(server.volumes["nbd", name], tmp_path / f"f{name}")))
            device = stack.enter_context(as_loop(images[-1]))
            run("mkfs.ext4", "-q", "-F", device)
            places.append(stack.enter_context(mounted(device, tmp_path / f"m{name}")))
        lines = [f"{number * 7919 % 100_003}\n".encode() for number in range(100_000)]
        for place in places:
            (place / "text").write_bytes(b"".join(lines))
        os.sync()
        a, b = places
        right = hashlib.sha256(b"".join(lines)).digest()
        # The second file is on another disk than the first one.
        done = oas.Session(server.volumes["iscsi", "a"]).sum([a / "text", b / "text"])
        assert [of.value for of in done] == [right] * 2 and [of.where for of in done] == ["there", "here"]
        assert "disk" in done[1].reason, done[1].reason
        done = oas.Session(server.volumes["iscsi", "a"]).sort(a / "text", b / "sorted")
        assert done.where == "here" and "disk" in done.reason and (b / "sorted").read_bytes() == b"".join(sorted(lines))
        # The URL is wrong, and nothing tells it but the target's own bytes.
        os.sync()
        before = hashlib.sha256(images[0].read_bytes()).digest()
        done = oas.Session(server.volumes["iscsi", "a"]).sort(b / "text", b / "again")
        assert done.where == "here" and "check its URL" in done.reason and (b / "again").read_bytes() == b"".join(sorted(lines))
        with pytest.raises(skytether.UnsupportedError, match="check its URL"):
            oas.Session(server.volumes["iscsi", "a"], where="there").sort(b / "text", b / "again")
        assert hashlib.sha256(images[0].read_bytes()).digest() == before
        assert sorted(path.name for path in b.iterdir()) == ["again", "lost+found", "sorted", "text"]
