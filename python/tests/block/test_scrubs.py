"""Other people's object stores find rot in the target below their disks: the same as by reading, with less traffic."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Callable, Iterator

import pytest
from fleets import PROGRAM

from . import minio_store, swift_store
from .flips import flip, place_of
from .link import Link, link
from .servers import Server, as_file, as_loop, is_required, mounted, needs, run, serve


@contextmanager
def disk(server: Server, tmp: Path, way: Link | None = None) -> Iterator[Path]:
    """The file system of the volume, mounted again, so that nothing of it is cached. It may be behind a link."""
    url = server.volumes["nbd", "disk"]
    number = len(list(tmp.glob("fuse-*")))
    with as_file(way.to(url) if way else url, tmp / f"fuse-{number}") as file, as_loop(file) as device, mounted(device, tmp / "devices" / "d1") as place:
        yield place


@contextmanager
def rotten(tmp: Path, fill: Callable[[Path], list[tuple[Path, int]]], *others: str) -> Iterator[Server]:
    """A volume with a file system that `fill` fills; of the files and bytes that it gives, a bit is flipped each. The
    drive has empty volumes with the names `others`, too."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    (tmp / "devices" / "d1").mkdir(parents=True)
    with serve(tmp / "drive", *(word for name in ("disk", *others) for word in ("--volume", f"{name}=384MiB"))) as server:
        with as_file(server.volumes["nbd", "disk"], tmp / "device") as file:
            with as_loop(file) as device:
                run("mkfs.ext4", "-q", "-F", device)
        with disk(server, tmp) as place:
            places = [place_of(file, at) for file, at in fill(place)]
        with as_file(server.volumes["nbd", "disk"], tmp / "again") as file:
            flip(file, places)
        yield server


def test_swift_auditor_finds_the_same_rot_with_less_traffic(tmp_path: Path) -> None:
    """`swift-object-auditor CONF once`, as a process, with Swift's own disk-file class and with ours."""
    if importlib.util.find_spec("swift") is None:
        (pytest.fail if is_required() else pytest.skip)("not here: swift (PyPI: swift, requirements-dev.txt)")
    store = swift_store.Store(tmp_path / "swift", tmp_path / "devices")
    large = 12 << 20
    files: dict[str, Path] = {}

    def fill(_: Path) -> list[tuple[Path, int]]:
        files.update(store.write("d1", [large] * 10 + [large + 1, 70_000, 100, 0]))
        return [(files["object-3"], 7 << 20), (files["object-10"], large), (files["object-11"], 0)]

    found, carried = {}, {}
    with rotten(tmp_path, fill) as server:
        bad = {files[f"object-{number}"].parent.name for number in (3, 10, 11)}
        for diskfile in (swift_store.OFFLOADED, swift_store.PLAIN):
            with link() as way, disk(server, tmp_path, way):
                store.configure(diskfile, {"d1": way.to(server.volumes["iscsi", "disk"])} if diskfile == swift_store.OFFLOADED else None)
                before = way.bytes()
                printed = store.audit()
                carried[diskfile] = way.bytes() - before
                assert "Total errors: 0" in printed, printed
                found[diskfile] = store.quarantined("d1")
                store.restore("d1", files)
    assert found[swift_store.OFFLOADED] == found[swift_store.PLAIN] == bad
    # What is bad is read, too: two of the large objects.
    assert carried[swift_store.PLAIN] > 11 * large and carried[swift_store.OFFLOADED] < 2.1 * large + carried[swift_store.PLAIN] / 100, carried


def test_swift_auditor_with_a_wrong_target_puts_nothing_aside(tmp_path: Path) -> None:
    """The target of another volume computes other bytes: objects that are right stay."""
    if importlib.util.find_spec("swift") is None:
        (pytest.fail if is_required() else pytest.skip)("not here: swift (PyPI: swift, requirements-dev.txt)")
    store = swift_store.Store(tmp_path / "swift", tmp_path / "devices")
    files: dict[str, Path] = {}

    def fill(_: Path) -> list[tuple[Path, int]]:
        files.update(store.write("d1", [3 << 20, 70_000, 100, 0]))
        return []

    with rotten(tmp_path, fill, "other") as server, disk(server, tmp_path):
        store.configure(swift_store.OFFLOADED, {"d1": server.volumes["iscsi", "other"]})
        printed = store.audit()
        assert "Total errors: 0" in printed, printed
        assert "because the target says: its MD5 is" in printed, printed
        assert store.quarantined("d1") == set()
        assert all(path.exists() for path in files.values())


def scrub(place: Path, *options: str) -> tuple[list[tuple[str, object, object, object]], dict[str, int]]:
    """What `skytether oas scrub` finds bad, and its sums."""
    words = [PROGRAM, "oas", "scrub", "--layout", "minio", place, "--format", "json", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    *lines, last = [json.loads(line) for line in done.stdout.splitlines()]
    bad = [line for line in lines if line["state"] == "bad"]
    assert done.returncode == (1 if bad else 0), done
    return [(f"{line['bucket']}/{line['object']}", line["version"], line["part"], line.get("frame")) for line in bad], last["summary"]


def test_minio_drive_is_scrubbed_with_less_traffic(tmp_path: Path) -> None:
    """What a real server wrote, and larger objects, with flips in digests and data of files and inside `xl.meta`."""
    frame = -(-minio_store.BLOCK // minio_store.SHARDS) + 32
    files: list[Path] = []

    def fill(place: Path) -> list[tuple[Path, int]]:
        files.extend(minio_store.make_drive(place / "minio", objects=8, times=40))
        real = place / "minio" / "plain"
        inline = real / "small" / "inline.txt" / "xl.meta"
        parts = next((real / "large" / "parts").glob("*/part.2"))
        return [(files[2], 17 * frame + 5), (files[5], 199 * frame + 40_000), (parts, 73_398), (inline, inline.stat().st_size - 1)]

    found, carried, sums = {}, {}, {}
    with rotten(tmp_path, fill) as server:
        for where in ("there", "here"):
            with link() as way, disk(server, tmp_path, way) as place:
                target = ["--there", "--target", way.to(server.volumes["iscsi", "disk"])] if where == "there" else ["--here"]
                before = way.bytes()
                found[where], sums[where] = scrub(place / "minio", *target)
                carried[where] = way.bytes() - before
    # Reading ends with the first frame that is bad: early in one file.
    least = (len(files) - 1) * minio_store.FRAMES * 40 * frame
    assert found["there"] == found["here"] == [
        ("large/object-2", "null", 1, 17), ("large/object-5", "null", 1, 199), ("plain/large/parts", "null", 2, 1), ("plain/small/inline.txt", "null", 1, 0),
    ]
    assert (sums["there"]["there"], sums["there"]["here"], sums["there"]["ok"], sums["there"]["failed"]) == (12, 0, 16, 0), sums
    assert carried["here"] > least and carried["there"] < carried["here"] / 100, carried


def test_minio_scrub_reads_drives_that_the_target_does_not_have(tmp_path: Path) -> None:
    """One target for two drives on two disks: it has the places of the first one's files only."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    words = [PROGRAM, "oas", "scrub", "--layout", "minio", "--format", "json"]
    with serve(tmp_path / "drive", "--volume", "one=384MiB", "--volume", "two=384MiB") as server, ExitStack() as stack:
        drives = []
        for number, name in enumerate(("one", "two")):
            device = stack.enter_context(as_loop(stack.enter_context(as_file(server.volumes["nbd", name], tmp_path / f"fuse-{name}"))))
            run("mkfs.ext4", "-q", "-F", device)
            (tmp_path / "devices" / name).mkdir(parents=True)
            place = stack.enter_context(mounted(device, tmp_path / "devices" / name))
            # Files of the second drive are elsewhere on their disk.
            minio_store.make_drive(place / "minio", objects=2 + number, times=2 + 3 * number)
            drives.append(place / "minio")
        done = subprocess.run([*words, *drives, "--target", server.volumes["iscsi", "one"]], capture_output=True, text=True, timeout=120)
    sums = [line["summary"] for line in map(json.loads, done.stdout.splitlines()) if "summary" in line]
    assert done.returncode == 0 and [(of["bad"], of["failed"]) for of in sums] == [(0, 0), (0, 0)], done
    assert sums[0]["there"] > 0 and sums[0]["here"] == 0 and sums[1]["there"] == 0 and "a target has one disk" in sums[1]["why"], sums


def test_minio_scrub_prints_parts_and_refuses_other_directories(tmp_path: Path) -> None:
    minio_store.make_drive(tmp_path / "minio", objects=1, times=1)
    words = [PROGRAM, "oas", "scrub", "--layout", "minio", "--here"]
    done = subprocess.run([*words, tmp_path / "minio"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "ok     plain/large/parts part.2\n" in done.stdout and "ok     plain/folder/ part.1\n" in done.stdout, done
    assert "13 parts ok, 0 bad, 0 could not be verified" in done.stderr, done
    assert subprocess.run([*words, "--quiet", tmp_path / "minio"], capture_output=True, text=True, timeout=60).stdout == ""
    done = subprocess.run([*words, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "format.json" in done.stderr and "minio server" in done.stderr, done
    with next((tmp_path / "minio" / "plain" / "large" / "parts").glob("*/part.1")).open("r+b") as part:
        part.seek(70_000)
        part.write(b"rot")
    done = subprocess.run([*words, "--quiet", tmp_path / "minio"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout.startswith("bad    plain/large/parts part.1: frame 1, bytes 69938 to 139876 of it"), done
