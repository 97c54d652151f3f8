"""The shell of `skytether sql`, on a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pyarrow as pa
import pytest

import skytether


def session(fleet, history, typed: list[bytes]) -> str:
    """What the shell shows while `typed` is typed: each when the prompt before it is there."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "skytether._cli", "sql", "--format", "csv", "--fleet", str(fleet)]
    env = {**os.environ, "SKYTETHER_HISTORY": str(history), "TERM": "xterm"}
    shell = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 100

    def until(prompts: int) -> None:
        nonlocal shown
        while len(re.findall(rb"(?:sql|\.\.\.)> \r\x1b\[5C", shown)) < prompts:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65536)

    try:
        for number, keys in enumerate(typed, 1):
            until(number)
            os.write(ours, keys)
        assert shell.wait(timeout=60) == 0
        while select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    return shown.decode()


@pytest.fixture
def fleet(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=2) as opened:
        opened.ingest(pa.table({"a": [1, 2, 3]}), "lab.t")
    return tmp_path / "fleet"


def test_queries_commands_and_errors_in_one_session(fleet, tmp_path):
    typed = [b"SELECT sum(a)\r", b"AS s FROM lab.t;\r", b"SELECT nope FROM lab.t;\r", b"\\d lab.t\r", b"\\x\r", b"SELECT ';' AS t; SELECT 41 + 1;\r", b"\x04"]
    shown = session(fleet, tmp_path / "history", typed)
    assert "\r\ns\r\n6\r\n" in shown and "no field named nope" in shown and "lab.t: 3 rows, 1 column" in shown
    assert "there is no command \\x" in shown and "\r\nt\r\n;\r\n" in shown and "\r\n42\r\n" in shown


def test_history_outlives_a_session(fleet, tmp_path):
    session(fleet, tmp_path / "history", [b"SELECT 7 * 6 AS answer;\r", b"\\q\r"])
    # Up twice: the command to leave, and then the query.
    shown = session(fleet, tmp_path / "history", [b"\x1b[A\x1b[A\r", b"exit\r"])
    assert "answer\r\n42\r\n" in shown
