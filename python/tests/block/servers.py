"""Drives with volumes, as processes, and the programs of others that use them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import pytest
from fleets import PROGRAM

#: Debian packages of programs.
PACKAGES = {
    "iscsi-test-cu": "libiscsi-bin",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
    "nbdinfo": "libnbd-bin",
    "nbdfuse": "libnbd-bin",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "xfs_repair": "xfsprogs",
    "losetup": "mount",
}

#: Administrators' programs are not in everybody's search path.
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def is_required() -> bool:
    """Whether tests with programs of others must run."""
    return os.environ.get("SKYTETHER_BLOCK") == "required"


def needs(*programs: str, root: bool = False) -> None:
    """Skips the test where a program is missing, or fails where it is required."""
    missing = [f"{program} (Debian: {PACKAGES.get(program, program)})" for program in programs if shutil.which(program, path=SEARCH) is None]
    if root and os.geteuid() != 0:
        missing.append("root, who may mount")
    if missing:
        (pytest.fail if is_required() else pytest.skip)(f"not here: {', '.join(missing)}")


def run(*command: str | os.PathLike[str], timeout: float = 120, **more: object) -> str:
    """What a command prints. It must succeed."""
    environment = {**os.environ, "PATH": SEARCH}
    done = subprocess.run([os.fspath(word) for word in command], capture_output=True, text=True, timeout=timeout, env=environment, **more)
    assert done.returncode == 0, (command, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@dataclass(frozen=True)
class Disk:
    """A mounted file system on a volume."""

    #: The address of the volume.
    target: str
    place: Path


class Server:
    """A drive or a host that serves volumes."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process = process
        #: Its addresses, by scheme.
        self.addresses = {line.rsplit(" ", 1)[1].split("://")[0]: line.rsplit(" ", 1)[1] for line in lines if " serves " in line}
        #: The address of each volume, by scheme and name.
        self.volumes = {(found[2].split("://")[0], found[1]): found[2] for line in lines if (found := re.fullmatch(r"volume (\S+) at (\S+)", line))}

    def kill(self) -> None:
        """Ends it at once, as `kill -9` does."""
        self.process.kill()
        self.process.wait(30)


@contextmanager
def serve(data: Path, *options: str, schemes: tuple[str, ...] = ("iscsi", "nbd")) -> Iterator[Server]:
    """Serves the drive in `data` on free ports until the block ends."""
    with started(data.parent / f"{data.name}.log", "drive", "serve", "--data", data, *options, listen=[f"{scheme}://127.0.0.1:0" for scheme in schemes]) as server:
        yield server


@contextmanager
def started(logged: Path, *words: str | Path, listen: list[str]) -> Iterator[Server]:
    """A drive or a host that listens at these addresses, until the block ends."""
    log = logged.open("a")
    command = [PROGRAM, *words, *(word for at in listen for word in ("--listen", at))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        lines: list[str] = []
        while sum(" serves " in line for line in lines) < len(listen):
            line = process.stdout.readline()
            assert line, logged.read_text()[-2000:]
            lines.append(line.strip())
        yield Server(process, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()
        log.close()


@contextmanager
def as_file(url: str, place: Path) -> Iterator[Path]:
    """The volume at an NBD address as a file, by FUSE."""
    place.mkdir()
    fuse = subprocess.Popen(["nbdfuse", place / "disk", url], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not (place / "disk").exists():
            assert fuse.poll() is None and time.monotonic() < deadline, fuse.stderr.read() if fuse.poll() is not None else "nbdfuse is silent"
            time.sleep(0.05)
        yield place / "disk"
    finally:
        subprocess.run(["fusermount3", "-uz", place], capture_output=True)
        subprocess.run(["fusermount", "-uz", place], capture_output=True)
        try:
            fuse.wait(10)
        except subprocess.TimeoutExpired:
            fuse.kill()
        fuse.communicate()


@contextmanager
def as_loop(file: Path) -> Iterator[str]:
    """A loop device over a file."""
    device = run("losetup", "--find", "--show", file).strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], capture_output=True, env={**os.environ, "PATH": SEARCH})


@contextmanager
def mounted(device: str, place: Path) -> Iterator[Path]:
    """The file system of a device."""
    place.mkdir(exist_ok=True)
    run("mount", device, place)
    try:
        yield place
    finally:
        # Lazily where the device is gone.
        if subprocess.run(["umount", place], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", place], capture_output=True)
