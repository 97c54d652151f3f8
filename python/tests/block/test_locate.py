"""`skytether locate` tells where the bytes of a file lie: read there, they are the file's."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from fleets import PROGRAM

from .servers import Disk, as_loop, mounted, needs, run


def locate(*words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("SKYTETHER_FLEET", "SKYTETHER_TARGET")}
    done = subprocess.run([PROGRAM, "locate", *words], capture_output=True, text=True, timeout=60, cwd=cwd, env=environment)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def at_places(image: Path, extents: list[dict[str, object]]) -> bytes:
    """The bytes of extents in the image; those of holes and of unwritten room are zeros."""
    with image.open("rb") as file:
        read = b""
        for extent in extents:
            if extent["kind"] == "data":
                file.seek(extent["place"])
                read += file.read(extent["length"])
            else:
                read += bytes(extent["length"])
    return read


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An image of a file system, and where it is mounted."""
    needs("losetup", f"mkfs.{request.param}", root=True)
    tmp = tmp_path_factory.mktemp("locate")
    file = tmp / "image"
    file.touch()
    os.truncate(file, 400 << 20)
    with as_loop(file) as device:
        run(f"mkfs.{request.param}", *(["-q", "-F"] if request.param == "ext4" else ["-q"]), device)
        with mounted(device, tmp / "m") as place:
            yield file, place


def test_bytes_are_where_the_extents_say(image: tuple[Path, Path]) -> None:
    disk, place = image
    content = random.Random(1).randbytes(3_000_001)
    (place / "whole").write_bytes(content)
    with (place / "holes").open("wb") as sparse:
        sparse.write(content[:5000])
        sparse.seek(1_000_000)
        sparse.write(content[:70_000])
        os.posix_fallocate(sparse.fileno(), 2_000_000, 100_000)
    (place / "empty").touch()
    os.sync()
    for name in ("whole", "holes", "empty"):
        found = json.loads(locate(place / name, "--format", "json", "--target", "iscsi://h/iqn.x:y/1"))
        assert (found["bytes"], found["device"]["kind"], found["target"]) == ((place / name).stat().st_size, "loop", "iscsi://h/iqn.x:y/1")
        assert found["device"]["behind"] == str(disk)
        ends = [extent["byte"] + extent["length"] for extent in found["extents"]]
        assert [extent["byte"] for extent in found["extents"]] == [0, *ends][: len(ends)]
        assert at_places(disk, found["extents"]) == (place / name).read_bytes(), name
    kinds = {extent["kind"] for extent in json.loads(locate(place / "holes", "--format", "json"))["extents"]}
    assert kinds == {"data", "hole", "unwritten"}
    printed = locate(place / "holes")
    assert "2,100,000 bytes" in printed and str(disk) in printed and "unwritten" in printed and "hole" in printed, printed


def test_striped_files_are_located_by_their_description(image: tuple[Path, Path], tmp_path: Path) -> None:
    disk, place = image
    chunk, whole = 4096, random.Random(2).randbytes(10 * 4096 + 123)
    chunks = [whole[at : at + chunk] for at in range(0, len(whole), chunk)]
    for member in range(2):
        (place / f"m{member}").write_bytes(b"".join(chunks[member::2]))
    os.sync()
    description = tmp_path / "stripes.toml"
    members = "".join(f'[[members]]\npath = "{place}/m{member}"\ntarget = "iscsi://h/iqn.x:y/{member}"\n' for member in range(2))
    description.write_text(f"length = {len(whole)}\nchunk = {chunk}\n{members}")
    found = json.loads(locate(description, "--format", "json"))
    assert [member["target"] for member in found["members"]] == ["iscsi://h/iqn.x:y/0", "iscsi://h/iqn.x:y/1"]
    assert b"".join(at_places(disk, of["extents"]) for of in found["chunks"]) == whole
    assert [of["byte"] for of in found["chunks"]] == list(range(0, len(whole), chunk))
    assert f"{place}/m1" in locate(description) and "redundancy none" in locate(description)
    assert len(locate(description, "--values").splitlines()) >= 1 + len(chunks)
    # A member that is gone is told; the description itself is a file, too.
    (place / "m1").unlink()
    lost = json.loads(locate(description, "--format", "json"))
    assert "lost" in lost["members"][1] and not lost["chunks"][1]["extents"] and lost["chunks"][2]["extents"]
    copy = place / "stripes.toml"
    copy.write_text(description.read_text())
    assert json.loads(locate(copy, "--itself", "--format", "json"))["bytes"] == copy.stat().st_size


def test_files_and_data_sets_are_told_apart(tmp_path: Path) -> None:
    subprocess.run([PROGRAM, "init", tmp_path / "fleet", "--drives", "2"], check=True, capture_output=True, timeout=60)
    (tmp_path / "lab.csv").write_text("a\n1\n")
    subprocess.run([PROGRAM, "ingest", tmp_path / "lab.csv", "--to", "lab.csv", "--fleet", tmp_path / "fleet"], check=True, capture_output=True, timeout=60)
    told = locate("lab.csv", "--fleet", "fleet", code=2, cwd=tmp_path)
    assert "./lab.csv" in told and "--dataset" in told, told
    assert "slice" in locate("lab.csv", "--dataset", "--fleet", "fleet", cwd=tmp_path)
    assert "slice" in locate("lab.csv", "--fleet", tmp_path / "fleet", cwd=tmp_path / "fleet")
    assert "--fleet" in locate("lab.other", code=2, cwd=tmp_path)
    assert "no name of a data set" in locate("nothing", code=2, cwd=tmp_path)
    assert "nowhere" in locate("./nowhere.csv", code=1, cwd=tmp_path)
    shm = Path("/dev/shm") / f"locate-{os.getpid()}"
    shm.write_bytes(b"x")
    try:
        assert "block device" in locate(shm, code=1)
    finally:
        shm.unlink()


def test_target_of_a_volume_is_shown(disk: Disk) -> None:
    printed = locate(disk.place / "text", "--target", disk.target)
    assert disk.target in printed and "loop device over" in printed, printed
