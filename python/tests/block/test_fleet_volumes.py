"""Volumes over a fleet of served drives, as disks of clients that others wrote."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Callable, Iterator

import pytest
from fleets import PROGRAM

from .servers import Server, as_file, as_loop, mounted, needs, run, started
from .test_volumes import written


class Fleet:
    """Served drives, and a host over them that serves a volume."""

    def __init__(self, place: Path, drives: int, redundancy: str, stack: ExitStack) -> None:
        self.place, self.redundancy, self.stack = place, redundancy, stack
        self.drives: list[Server] = []
        for n in range(drives):
            self.drives.append(self.drive(n, "grpc://127.0.0.1:0"))
        self.addresses = [drive.addresses["grpc"] for drive in self.drives]

    def drive(self, n: int, listen: str) -> Server:
        return self.stack.enter_context(started(self.place / f"drive-{n}.log", "drive", "serve", "--data", self.place / f"drive-{n}", listen=[listen]))

    def back(self, n: int) -> None:
        """Starts a drive again, where it was."""
        self.drives[n] = self.drive(n, self.addresses[n])

    @contextmanager
    def host(self, *options: str, listen: tuple[str, ...] = ("grpc", "nbd")) -> Iterator[Server]:
        words = ["host", "serve", "--drives", ",".join(self.addresses), "--redundancy", self.redundancy, "--journals", self.place / "journals", *options]
        with started(self.place / "host.log", *words, listen=[f"{scheme}://127.0.0.1:0" for scheme in listen]) as host:
            yield host

    def stored(self, n: int) -> int:
        """How many parts of volumes a drive has, about."""
        return sum(path.is_file() and path.stat().st_size >= 64 << 10 for path in (self.place / f"drive-{n}" / "slices").rglob("*"))

    def until(self, done: Callable[[], bool], pause: float = 0.005) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline, (self.place / "host.log").read_text()[-3000:]
            time.sleep(pause)

    def merged(self) -> None:
        """Waits until nothing has come to the drives for longer than the host waits before it merges."""
        seen: list[int] = []

        def still() -> bool:
            seen.append(self.stored(0))
            return len(seen) > 40 and len(set(seen[-40:])) == 1

        self.until(still, 0.1)

    def program(self, *words: str | Path, code: int = 0) -> str:
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, (done, (self.place / "host.log").read_text()[-3000:])
        return done.stdout + done.stderr


@contextmanager
def fleet(place: Path, drives: int, redundancy: str) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(place, drives, redundancy, stack)


def check_files(place: Path, digests: dict[str, str]) -> None:
    for name, digest in digests.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize(("redundancy", "drives"), [("ec:2+1", 3), ("replicas:2", 3)])
def test_file_system_survives_a_drive_killed_while_written(tmp_path: Path, redundancy: str, drives: int) -> None:
    """A drive is killed in the middle of writes, then the host; then the drive is back, and another one is killed."""
    needs("nbdfuse", "losetup", "mkfs.ext4", "e2fsck", root=True)
    digests: dict[str, str] = {}
    with fleet(tmp_path, drives, redundancy) as served:
        with served.host("--volume", "disk=256MiB") as host:
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f0") as file, as_loop(file) as device:
                run("mkfs.ext4", "-q", "-F", device)
                with mounted(device, tmp_path / "m0") as place:
                    digests.update(written(place, 0, 40))
                    large = random.Random(7).randbytes(100 << 20)
                    (place / "large").write_bytes(large)
                    digests["large"] = hashlib.sha256(large).hexdigest()
                    os.sync()
                    # In the middle of a merge, while clients write.
                    served.until(lambda: served.stored(0) > 20)
                    before = served.stored(1)
                    served.drives[1].kill()
                    for seed in range(1, 20):
                        digests.update(written(place, seed, 10))
                    os.sync()
                    # Of 400 extents with two or three parts each. A busy host may rest for seconds between two merges.
                    served.until(lambda: served.stored(0) > 200)
                    served.merged()
                    assert before < 200, before
                run("e2fsck", "-f", "-n", device)
                with mounted(device, tmp_path / "m1") as place:
                    check_files(place, digests)
            host.kill()
        with served.host() as host:
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f2") as file, as_loop(file) as device:
                with mounted(device, tmp_path / "m2") as place:
                    check_files(place, digests)
                    digests.update(written(place, 1000, 10))
                    os.sync()
                run("e2fsck", "-f", "-n", device)
        # The end of the host does not merge. The drive is back, and gets what it missed.
        served.back(1)
        with served.host() as host:
            # After what is not there was written again, nothing is found.
            served.program("scrub", "--fleet", host.addresses["grpc"])
            assert "nothing is damaged" in served.program("scrub", "--fleet", host.addresses["grpc"])
            served.drives[0].kill()
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f3") as file, as_loop(file) as device:
                run("e2fsck", "-f", "-n", device)
                with mounted(device, tmp_path / "m3") as place:
                    check_files(place, digests)


def test_damaged_copies_are_named_and_repaired_while_served(tmp_path: Path) -> None:
    needs("qemu-img")
    image = tmp_path / "image"
    image.write_bytes(random.Random(2).randbytes(8 << 20) + bytes(8 << 20))
    with fleet(tmp_path, 3, "replicas:2") as served:
        with served.host("--volume", "disk=16MiB") as host:
            run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, host.volumes["nbd", "disk"])
        # Its journal is merged by the next host, some seconds after it began.
        with served.host() as host:
            for _ in range(200):
                extents = [path for path in (tmp_path / "drive-1" / "slices").rglob("*") if path.is_file() and path.stat().st_size >= 256 << 10]
                if len(extents) >= 3:
                    break
                threading.Event().wait(0.1)
            with extents[0].open("r+b") as file:
                file.seek(100_000)
                file.write(b"rot")
            checked = served.program("scrub", "--dry-run", "--fleet", host.addresses["grpc"], code=1)
            assert "drive-1 has shard" in checked and "~fvol/disk/x/" in checked and "not mended" in checked, checked
            assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, host.volumes["nbd", "disk"])
            assert "all mended" in served.program("scrub", "--fleet", host.addresses["grpc"])
            assert "nothing is damaged" in served.program("scrub", "--fleet", host.addresses["grpc"])
            assert "identical" in run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, host.volumes["nbd", "disk"])


def test_flushes_to_drives_survive_the_loss_of_the_hosts_disk(tmp_path: Path) -> None:
    needs("qemu-io")
    with fleet(tmp_path, 3, "ec:2+1") as served:
        with served.host("--volume", "disk=64MiB", "--flush-to-drives") as host:
            run("qemu-io", "-f", "raw", "-c", "write -P 7 4M 8M", "-c", "write -P 9 5M 4k", "-c", "flush", host.volumes["nbd", "disk"])
            host.kill()
        # The journals are gone with the disk, and a drive is lost as well.
        shutil.rmtree(tmp_path / "journals")
        served.drives[1].kill()
        with served.host("--discard-journal", "disk") as host:
            reads = ["-c", "read -P 7 4M 1M", "-c", "read -P 9 5M 4k", "-c", "read -P 7 5124k 6M", "-c", "read -P 0 0 4M"]
            printed = run("qemu-io", "-f", "raw", *reads, host.volumes["nbd", "disk"])
            assert "failed" not in printed, printed


def test_volumes_of_an_embedded_fleet_are_managed(tmp_path: Path) -> None:
    needs("qemu-io")
    place = tmp_path / "fleet"
    subprocess.run([PROGRAM, "init", place, "--drives", "3", "--redundancy", "ec:2+1"], check=True, capture_output=True)
    with started(tmp_path / "log", "host", "serve", "--fleet", place, "--volume", "disk=16MiB", listen=["nbd://127.0.0.1:0"]) as host:
        run("qemu-io", "-f", "raw", "-c", "write -P 5 0 4M", "-c", "flush", host.volumes["nbd", "disk"])
        host.kill()
    with started(tmp_path / "log", "host", "serve", "--fleet", place, listen=["nbd://127.0.0.1:0"]) as host:
        printed = run("qemu-io", "-f", "raw", "-c", "read -P 5 0 4M", "-c", "read -P 0 4M 12M", host.volumes["nbd", "disk"])
        assert "failed" not in printed, printed

    def volume(*words: str, code: int = 0) -> str:
        done = subprocess.run([PROGRAM, "volume", *words, "--fleet", place], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    assert "disk" in volume("ls")
    assert "0 damaged" in volume("scrub", "--repair")
    volume("snapshot", "disk", "monday")
    assert "there already" in volume("snapshot", "disk", "monday", code=1)
    with started(tmp_path / "log", "host", "serve", "--fleet", place, listen=["nbd://127.0.0.1:0"]) as host:
        run("qemu-io", "-f", "raw", "-c", "write -P 6 0 4M", "-c", "flush", host.volumes["nbd", "disk"])
    volume("clone", "disk@monday", "before")
    with started(tmp_path / "log", "host", "serve", "--fleet", place, listen=["nbd://127.0.0.1:0"]) as host:
        for name, pattern in [("disk", 6), ("before", 5)]:
            printed = run("qemu-io", "-f", "raw", "-c", f"read -P {pattern} 0 4M", "-c", "read -P 0 4M 12M", host.volumes["nbd", name])
            assert "failed" not in printed, printed
    volume("rm", "disk@monday")
    volume("rm", "disk")
    assert "0 damaged" in volume("scrub") and "before" in volume("ls")
    volume("rm", "before")
    assert "no volumes" in volume("ls")


def test_served_volume_is_snapshotted(tmp_path: Path) -> None:
    """A host keeps the content of a volume while it serves it, and a client writes to it."""
    needs("qemu-io")
    place = tmp_path / "fleet"
    run(PROGRAM, "init", place, "--drives", "3", "--redundancy", "ec:2+1")
    listen = ["nbd://127.0.0.1:0", "grpc://127.0.0.1:0"]
    with started(tmp_path / "log", "host", "serve", "--fleet", place, "--volume", "disk=16MiB", listen=listen) as host:
        disk, fleet = host.volumes["nbd", "disk"], host.addresses["grpc"]

        def volume(*words: str, code: int = 0) -> str:
            done = subprocess.run([PROGRAM, "volume", *words, "--fleet", fleet], capture_output=True, text=True, timeout=60)
            assert done.returncode == code, (words, done.stdout, done.stderr)
            return done.stdout + done.stderr

        # Not flushed: it was acknowledged.
        run("qemu-io", "-f", "raw", "-t", "writeback", "-c", "write -P 5 0 4M", disk)
        writing = subprocess.Popen(["qemu-io", "-f", "raw", *(word for at in range(8, 12) for word in ("-c", f"write -P 6 {at}M 1M", "-c", "flush")), disk])
        assert "disk@monday" in volume("snapshot", "disk", "monday")
        assert writing.wait(60) == 0
        run("qemu-io", "-f", "raw", "-c", "write -P 7 0 4M", disk)
        assert "disk@monday" in volume("ls") and "there already" in volume("snapshot", "disk", "monday", code=1)
        volume("snapshot", "disk", "later")
        volume("rm", "disk@later")
        assert "later" not in volume("ls") and "none" in volume("rm", "disk@later", code=1)
        assert "stop it" in volume("clone", "disk@monday", "before", code=2)
    run(PROGRAM, "volume", "clone", "disk@monday", "before", "--fleet", place)
    with started(tmp_path / "log", "host", "serve", "--fleet", place, listen=["nbd://127.0.0.1:0"]) as host:
        for name, pattern in [("disk", 7), ("before", 5)]:
            assert "failed" not in run("qemu-io", "-f", "raw", "-c", f"read -P {pattern} 0 4M", host.volumes["nbd", name])


def test_drive_with_a_volume_retires_while_it_is_written(tmp_path: Path) -> None:
    """A snapshot is kept, a drive leaves while a file system is written, and then another drive is lost."""
    needs("nbdfuse", "losetup", "mkfs.ext4", "e2fsck", root=True)
    digests: dict[str, str] = {}
    with fleet(tmp_path, 4, "ec:2+1") as served:
        drives = ",".join(served.addresses)
        with served.host("--volume", "disk=128MiB") as host, as_file(host.volumes["nbd", "disk"], tmp_path / "f0") as file, as_loop(file) as device:
            run("mkfs.ext4", "-q", "-F", device)
            with mounted(device, tmp_path / "m0") as place:
                digests.update(written(place, 0, 40))
        kept = dict(digests)
        served.program("volume", "snapshot", "disk", "monday", "--drives", drives, "--journals", tmp_path / "journals")
        with served.host() as host:
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f1") as file, as_loop(file) as device:
                with mounted(device, tmp_path / "m1") as place:
                    retiring = threading.Thread(target=lambda: told.append(served.program("fleet", "retire", "drive-1", "--fleet", host.addresses["grpc"])))
                    told: list[str] = []
                    retiring.start()
                    seed = 1
                    while retiring.is_alive() or seed < 4:
                        digests.update(written(place, 1 + seed % 20, 10))
                        seed += 1
                    retiring.join()
                    assert told and "of volumes" in told[0], (told, (tmp_path / "host.log").read_text()[-3000:])
                    os.sync()
                served.drives[1].kill()
                run("e2fsck", "-f", "-n", device)
            assert "nothing is damaged" in served.program("scrub", "--fleet", host.addresses["grpc"])
            served.drives[2].kill()
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f2") as file, as_loop(file) as device, mounted(device, tmp_path / "m2") as place:
                check_files(place, digests)
        served.back(2)
        del served.addresses[1]
        drives = ",".join(served.addresses)
        served.program("volume", "clone", "disk@monday", "before", "--drives", drives, "--journals", tmp_path / "journals")
        with served.host() as host, as_file(host.volumes["nbd", "before"], tmp_path / "f3") as file, as_loop(file) as device:
            with mounted(device, tmp_path / "m3") as place:
                check_files(place, kept)
                assert not {path.name for path in place.iterdir()} - kept.keys() - {"lost+found"}


def test_exec_computes_at_the_host_also_without_a_drive(tmp_path: Path) -> None:
    """EXEC over a fleet's volume: digests, counts, a sorted file and rows."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    chance = random.Random(11)
    with fleet(tmp_path, 3, "ec:2+1") as served:
        with served.host("--volume", "disk=128MiB", listen=("grpc", "nbd", "iscsi")) as host:
            target = host.volumes["iscsi", "disk"]
            with as_file(host.volumes["nbd", "disk"], tmp_path / "f0") as file, as_loop(file) as device:
                run("mkfs.ext4", "-q", "-F", device)
                with mounted(device, tmp_path / "m0") as place:
                    (place / "text").write_text("".join(f"{chance.randrange(10**6)} line {n}\n" for n in range(50_000)))
                    (place / "random").write_bytes(chance.randbytes(9_000_001))
                    (place / "t.csv").write_text("k,v\n" + "".join(f"{n % 5},{n}\n" for n in range(30_000)))
                    os.sync()

                    def oas(*words: str | Path) -> bytes:
                        done = subprocess.run([PROGRAM, "oas", *words, "--there", "--target", target], capture_output=True, timeout=120)
                        assert done.returncode == 0, done
                        return done.stdout + done.stderr

                    def check() -> None:
                        files = [place / "text", place / "random"]
                        assert oas("sum", "--md5", *files) == subprocess.run(["md5sum", *files], capture_output=True).stdout
                        assert oas("wc", "-l", files[0]).split()[0] == b"50000"
                        oas("sort", files[0], "--output", place / "sorted")
                        assert (place / "sorted").read_bytes().splitlines() == sorted(files[0].read_bytes().splitlines())
                        printed = oas("sql", "SELECT k, sum(v) AS v FROM files GROUP BY k ORDER BY k", place / "t.csv", "--format", "json").decode()
                        rows = json.loads(printed) if printed.startswith("[") else [json.loads(line) for line in printed.splitlines()]
                        assert rows == [{"k": k, "v": sum(range(k, 30_000, 5))} for k in range(5)]

                    check()
                    served.merged()
                    served.drives[1].kill()
                    check()
