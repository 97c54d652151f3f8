"""The guide to volumes: its commands run, in order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from fleets import PROGRAM
from guides import run_guide
from test_docs import blocks

from .servers import SEARCH, Disk, needs, run, serve


def test_guide_to_volumes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("qemu-img", "qemu-io")
    serving, printed = run_guide("docs/block.md", tmp_path, monkeypatch)
    assert serving == 1 and "Images are identical" in "".join(printed) and "read 8388608/8388608 bytes" in "".join(printed), printed
    # The example in Python.
    lines = printed[-1].splitlines()
    assert lines[0].startswith("3b805e5ed0d65f1cdaa40914dedc918c here") and lines[1:] == [
        "[(14, b'7.5'), (20, b'3'), (24, b'2.5')]",
        "4",
        "[{'vendor': 'a', 'fares': 10.0}, {'vendor': 'b', 'fares': 3.0}] here",
    ], lines


def lines(beginning: str) -> list[str]:
    """The commands of the guide's blocks that begin so. They need what a reader has: files, a target."""
    texts = [text for language, text in blocks("docs/block.md") if language == "text"]
    found = [line.split("  #")[0].strip() for text in texts for line in text.replace("\\\n", " ").splitlines() if line.startswith(beginning)]
    assert found, beginning
    return found


def execute(line: str, place: Path, code: int = 0) -> str:
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{SEARCH}"}
    done = subprocess.run(["bash", "-eu", "-c", line], cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (line, done)
    return done.stdout + done.stderr


def test_examples_of_exec_run_in_a_served_target(disk: Disk) -> None:
    """Each command of the guide, over files of a mounted file system, with --there: the target does it."""
    (disk.place / "trips.csv").write_text("vendor,fare\n" + "".join(f"{'ab'[n % 2]},{n / 4}\n" for n in range(10_000)))
    os.sync()
    ran = []
    for line in [*lines("skytether oas "), *lines("skytether locate FILE")]:
        words = line.split()
        if words[2] == "scrub" or words[-1].endswith(".toml") or ".toml" in line:
            continue
        line = line.replace("FILE.zst", "packed").replace("--output FILE", "--output written").replace("PATTERN", "ab+c")
        line = line.replace("FILE...", "trips.csv" if words[2] == "sql" else "text").replace("FILE", "text")
        line = re.sub(r"(URL|iscsi://\S+)", disk.target, line) + (" --there" if words[1] == "oas" else "")
        printed = execute(line, disk.place)
        ran.append(words[2])
        assert printed or words[2] in ("sort", "compress"), line
        assert "done here" not in printed, printed
    assert {"sum", "grep", "wc", "sort", "compress", "sql", "FILE"} <= set(ran), ran
    assert (disk.place / "written").read_bytes() == subprocess.run(["sort", disk.place / "text"], capture_output=True, env={"LC_ALL": "C"}).stdout


def test_examples_of_snapshots_run(tmp_path: Path) -> None:
    needs("qemu-io")
    with serve(tmp_path / "b0", "--volume", "disk=16MiB", schemes=("nbd",)) as server:
        run("qemu-io", "-f", "raw", "-c", "write -P 1 0 8M", "-c", "flush", server.volumes["nbd", "disk"])
    commands = [line for line in lines("skytether volume ") if "--data b0" in line]
    assert len(commands) == 5
    printed = [execute(line, tmp_path) for line in commands]
    assert "disk@monday" in printed[2] and "disk2" in printed[2] and "0 damaged" in printed[3], printed
    with serve(tmp_path / "b0", schemes=("nbd",)) as server:
        assert "failed" not in run("qemu-io", "-f", "raw", "-c", "read -P 1 0 8M", server.volumes["nbd", "disk2"])


def test_example_of_secrets_lets_its_initiator_in(tmp_path: Path) -> None:
    needs("qemu-img")
    [secrets] = [text for language, text in blocks("docs/block.md") if language == "text" and text.startswith("initiator ")]
    (tmp_path / "secrets").write_text(secrets)
    (tmp_path / "secrets").chmod(0o600)
    _, name, secret = secrets.splitlines()[0].split()
    with serve(tmp_path / "d", "--volume", "disk=16MiB", "--iscsi-secrets", str(tmp_path / "secrets"), schemes=("iscsi",)) as server:
        url = server.volumes["iscsi", "disk"]
        assert "virtual size: 16 MiB" in run("qemu-img", "info", url.replace("iscsi://", f"iscsi://{name}%{secret}@"))
        done = subprocess.run(["qemu-img", "info", url], capture_output=True, timeout=60, env={**os.environ, "PATH": SEARCH})
        assert done.returncode != 0
