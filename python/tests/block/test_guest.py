"""A real Linux kernel mounts volumes through its own SCSI layer (`make soak`; some minutes each)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from . import guest
from .servers import needs, serve, started

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("SKYTETHER_SOAK"), reason="a guest runs only where SKYTETHER_SOAK is set"),
]

VOLUMES = ("--volume", "a=320MiB", "--volume", "b=320MiB")


def booted(script: str, urls: list[str]) -> list[str]:
    """What a guest said; skipped where there can be none."""
    needs("qemu-system-x86_64")
    try:
        return guest.scsi_disk(script, urls)
    except guest.Missing as missing:
        pytest.skip(str(missing))


def test_linux_mounts_units_by_its_scsi_layer(tmp_path: Path) -> None:
    with serve(tmp_path / "d", *VOLUMES, schemes=("iscsi",)) as server:
        said = booted(guest.scsi_script(200), [server.volumes["iscsi", name] for name in "ab"])
    assert sum(line.startswith("DISK SKYTETHR SIZE 335544320 CACHE write back") for line in said) == 2, said
    # Two files, by the disk and by its generic device, on two file systems.
    for line, count in [("OK zeroes", 1), ("OK verify", 1), ("OK files", 2), ("OK scsi-exec", 2 * 2 * 2)]:
        assert sum(said_line.startswith(line) for said_line in said) == count, (line, said)


def test_linux_goes_on_when_a_killed_drive_comes_back(tmp_path: Path) -> None:
    data, over, restarts = tmp_path / "d", threading.Event(), 0
    said: list[str] = []
    with serve(data, *VOLUMES, schemes=("iscsi",)) as server:
        address, urls = server.addresses["iscsi"], [server.volumes["iscsi", name] for name in "ab"]

        def boot() -> None:
            try:
                said.extend(booted(guest.scsi_restarts_script(3000), urls))
            finally:
                over.set()

        booting = threading.Thread(target=boot)
        booting.start()
        over.wait(12)
        server.kill()
    while not over.is_set():
        with started(tmp_path / "d.log", "drive", "serve", "--data", data, *VOLUMES, listen=[address]) as server:
            over.wait(8)
            restarts += 1
            server.kill()
    booting.join()
    assert restarts > 1
    for line in ["OK verify", "OK files"]:
        assert any(said_line.startswith(line) for said_line in said), (line, said)
