"""Volumes of a drive as disks of clients that others wrote."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
from fleets import PROGRAM

from .servers import SEARCH, as_file, as_loop, mounted, needs, run, serve

#: What libiscsi's suites may leave out: the volumes are no removable media.
MOST_SKIPPED = 20


def suite(family: str, *urls: str) -> tuple[int, list[str], list[str]]:
    """Runs a family of libiscsi's suites: tests that ran, those that failed, and lines of what was left out."""
    command = ["iscsi-test-cu", "-d", "-S", "-n", "-t", family, *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    printed = done.stdout + done.stderr
    summary = re.search(r"^\s*tests\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", printed, re.MULTILINE)
    assert summary, printed[-3000:]
    failed = re.findall(r"Suite (\S+), Test (\S+) had failures", printed)
    assert len(failed) == int(summary[4]), printed[-3000:]
    return int(summary[2]), [".".join(of) for of in failed], [line for line in printed.splitlines() if "[SKIPPED]" in line]


# 241 cases, 10 s on an idle machine.
@pytest.mark.timeout(600)
def test_libiscsi_suites_pass_whole(tmp_path: Path) -> None:
    """With two URLs, the test before `Sanitize.Reset` leaves the second session's RESERVE(6), so that its commands are
    refused as they must be: that test has to pass with one URL."""
    needs("iscsi-test-cu")
    with serve(tmp_path / "d", "--volume", "disk=256MiB", schemes=("iscsi", "iscsi")) as server:
        first = server.volumes["iscsi", "disk"]
        ran, failed, skipped = suite("SCSI", first, first)
        assert ran == 215 and failed in ([], ["Sanitize.Reset"]), failed
        assert suite("SCSI.Sanitize", first)[:2] == (11, [])
        assert suite("iSCSI", first)[:2] == (15, [])
    assert len(skipped) <= MOST_SKIPPED, skipped


def test_images_are_equal_by_every_door_and_after_a_restart(tmp_path: Path) -> None:
    needs("qemu-img", "qemu-io")
    image = tmp_path / "image"
    image.write_bytes(random.Random(1).randbytes(24 << 20) + bytes(8 << 20))
    data = tmp_path / "d"
    with serve(data, "--volume", "disk=32MiB") as server:
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, server.volumes["iscsi", "disk"])
        for scheme in ("iscsi", "nbd"):
            assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, server.volumes[scheme, "disk"])
    with serve(data) as server:
        for scheme in ("iscsi", "nbd"):
            assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, server.volumes[scheme, "disk"])
        # What became zeros takes no space any more.
        run("qemu-io", "-f", "raw", "-c", "discard 0 16M", "-c", "flush", server.volumes["nbd", "disk"])
        mapped = json.loads(run("qemu-img", "map", "--output", "json", "-f", "raw", server.volumes["nbd", "disk"]))
        assert sum(extent["length"] for extent in mapped if extent["data"]) <= 9 << 20, mapped


def written(place: Path, seed: int, files: int, digests: dict[str, str] | None = None) -> dict[str, str]:
    """Files with random bytes, each on the disk before the next begins. `digests` gets their digests one by one."""
    digests = {} if digests is None else digests
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for n in range(files):
            write_one(place, directory, seed, n, digests)
    finally:
        os.close(directory)
    return digests


def write_one(place: Path, directory: int, seed: int, n: int, digests: dict[str, str]) -> None:
    """A file, and then its digest: only if the disk has the file and its name."""
    bytes_ = random.Random(f"{seed}/{n}").randbytes(random.Random(f"{seed}.{n}").randrange(1, 300_000))
    path = place / f"{seed}-{n}"
    with path.open("wb") as file:
        file.write(bytes_)
        file.flush()
        os.fsync(file.fileno())
    # A sync of a file does not cover the directory's entry on every file system.
    os.fsync(directory)
    digests[path.name] = hashlib.sha256(bytes_).hexdigest()


CHECKS = {
    # The journal is replayed by the mount; a forced check must find nothing after it.
    "ext4": (["mkfs.ext4", "-q", "-F"], ["e2fsck", "-f", "-n"]),
    "xfs": (["mkfs.xfs", "-q", "-f"], ["xfs_repair", "-n"]),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_file_system_is_whole_after_kill_9_while_written(tmp_path: Path, kind: str) -> None:
    make, check = CHECKS[kind]
    needs("nbdfuse", "losetup", make[0], check[0], root=True)
    data = tmp_path / "d"
    done: dict[str, str] = {}
    with serve(data, "--volume", "disk=512MiB") as server:
        with as_file(server.volumes["nbd", "disk"], tmp_path / "f0") as file, as_loop(file) as device:
            run(*make, device)
            with mounted(device, tmp_path / "m0") as place:
                (place / "sub").mkdir()
                written(place, 0, 20, done)
                os.sync()
                killer = threading.Timer(1.0, server.process.kill)
                killer.start()
                try:
                    for seed in range(1, 1000):
                        # What was synced before the kill must be there after it, file by file.
                        written(place, seed, 10, done)
                except OSError:
                    pass
                killer.join()
                assert len(done) > 20, "nothing was written while the killer waited"
        server.process.wait(10)
    with serve(data) as server, as_file(server.volumes["nbd", "disk"], tmp_path / "f1") as file, as_loop(file) as device:
        with mounted(device, tmp_path / "m1") as place:
            for name, digest in done.items():
                assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest, name
        run(*check, device)


def test_flushed_blocks_survive_kill_9(tmp_path: Path) -> None:
    needs("qemu-io")
    data = tmp_path / "d"
    with serve(data, "--volume", "disk=64MiB") as server:
        url = server.volumes["iscsi", "disk"]
        run("qemu-io", "-f", "raw", "-c", "write -P 7 4M 8M", "-c", "write -P 9 5M 4k", "-c", "flush", url)
        server.kill()
    with serve(data) as server:
        for scheme in ("iscsi", "nbd"):
            reads = ["-c", "read -P 7 4M 1M", "-c", "read -P 9 5M 4k", "-c", "read -P 7 5124k 6M", "-c", "read -P 0 0 4M"]
            printed = run("qemu-io", "-f", "raw", *reads, server.volumes[scheme, "disk"])
            assert "failed" not in printed, printed


def refused(*words: str | Path) -> str:
    done = subprocess.run([PROGRAM, "drive", "serve", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    return done.stderr


def test_volumes_that_make_no_sense_are_refused_by_name(tmp_path: Path) -> None:
    for wrong, told in [("disk", "NAME=SIZE"), ("disk=x", "no size"), ("a/b=1G", "a/b"), ("disk=1000", "4096")]:
        assert told in refused("--data", tmp_path / "d", "--volume", wrong)
    assert "--volume" in refused("--data", tmp_path / "e", "--listen", "nbd://127.0.0.1:0")


def test_chap_keeps_strangers_out(tmp_path: Path) -> None:
    needs("qemu-img")
    secrets = tmp_path / "secrets"
    secrets.write_text("initiator ann correct-horse-battery\n")
    secrets.chmod(0o600)
    with serve(tmp_path / "d", "--volume", "disk=16MiB", "--iscsi-secrets", str(secrets), schemes=("iscsi",)) as server:
        url = server.volumes["iscsi", "disk"]
        assert "virtual size: 16 MiB" in run("qemu-img", "info", url.replace("iscsi://", "iscsi://ann%correct-horse-battery@"))
        for wrong in (url, url.replace("iscsi://", "iscsi://ann%wrong-horse-battery@")):
            done = subprocess.run(["qemu-img", "info", wrong], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": SEARCH})
            assert done.returncode != 0 and "Authentication failure" in done.stderr, done


def volume(*words: str | Path, data: Path, code: int = 0) -> str:
    done = subprocess.run([PROGRAM, "volume", *words, "--data", data], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_snapshots_keep_what_was_there(tmp_path: Path) -> None:
    needs("qemu-io")
    data = tmp_path / "d"
    with serve(data, "--volume", "disk=16MiB", schemes=("nbd",)) as server:
        run("qemu-io", "-f", "raw", "-c", "write -P 1 0 8M", "-c", "flush", server.volumes["nbd", "disk"])
        assert "open" in volume("ls", data=data, code=1)
    volume("snapshot", "disk", "monday", data=data)
    with serve(data, schemes=("nbd",)) as server:
        run("qemu-io", "-f", "raw", "-c", "write -P 2 0 8M", "-c", "flush", server.volumes["nbd", "disk"])
    volume("clone", "disk@monday", "before", data=data)
    listed = json.loads(volume("ls", "--format", "json", data=data))
    assert [(found["name"], [of["name"] for of in found["snapshots"]]) for found in listed] == [("before", []), ("disk", ["monday"])]
    with serve(data, schemes=("nbd",)) as server:
        for name, pattern in [("disk", 2), ("before", 1)]:
            printed = run("qemu-io", "-f", "raw", "-c", f"read -P {pattern} 0 8M", "-c", "read -P 0 8M 8M", server.volumes["nbd", name])
            assert "failed" not in printed, printed
    assert "0 damaged" in volume("scrub", data=data)
    volume("rm", "disk@monday", data=data)
    volume("rm", "disk", data=data)
    assert "disk" not in volume("ls", data=data)


def test_scrub_names_damaged_extents(tmp_path: Path) -> None:
    needs("qemu-io")
    data = tmp_path / "d"
    with serve(data, "--volume", "disk=16MiB", schemes=("nbd",)) as server:
        run("qemu-io", "-f", "raw", "-c", "write -P 5 0 4M", "-c", "flush", server.volumes["nbd", "disk"])
    # A snapshot merges the journal.
    volume("snapshot", "disk", "s", data=data)
    extents = [path for path in (data / "slices").rglob("*") if path.is_file() and path.stat().st_size >= 256 << 10]
    with extents[0].open("r+b") as file:
        file.seek(100_000)
        file.write(b"rot")
    printed = volume("scrub", data=data, code=1)
    # The snapshot shares the extent.
    assert "2 damaged" in printed and " of disk at byte " in printed and " of disk@s at byte " in printed, printed
    with serve(data, schemes=("nbd",)) as server:
        done = subprocess.run(["qemu-io", "-f", "raw", "-c", "read 0 4M", server.volumes["nbd", "disk"]], capture_output=True, text=True, timeout=60)
        assert "error" in (done.stdout + done.stderr).lower(), done
