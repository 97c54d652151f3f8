"""The fleets of `msgx demo`: four drives in this process, or four Kinetic drives as processes under a host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

#: How long a server may take to begin, in seconds.
_PATIENCE = 60.0

_SERVES = re.compile(r" at ([a-z+]+://[^\s,]+)")


class Failed(Exception):
    """A server of the demo did not begin; the text says what it printed."""


@contextlib.contextmanager
def kinetic_fleet(directory: str, drives: int) -> Iterator[str]:
    """Serve `drives` Kinetic drives below `directory`, and a host over them; gives the host's address.

    All processes end with the block. Logs are in the directory.
    """
    os.makedirs(directory, exist_ok=True)
    with contextlib.ExitStack() as running:
        urls = []
        for n in range(drives):
            data = os.path.join(directory, f"drive-{n}")
            urls.append(running.enter_context(_serving(data + ".log", "drive", "serve", "--data", data, "--listen", "kinetic://127.0.0.1:0")))
        yield running.enter_context(_serving(os.path.join(directory, "host.log"), "host", "serve", "--drives", ",".join(urls), "--listen", "127.0.0.1:0"))


@contextlib.contextmanager
def _serving(log: str, *arguments: str) -> Iterator[str]:
    """Run a server; gives the address that it prints."""
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "skytether._cli", *arguments], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            # Ctrl-C is for the demo, which ends its servers itself.
            start_new_session=True,
        )
    try:
        yield _address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: str) -> str:
    late = time.monotonic() + _PATIENCE
    while True:
        with open(log, encoding="utf-8", errors="replace") as file:
            printed = file.read()
        if found := _SERVES.search(printed):
            return found[1]
        if process.poll() is not None or time.monotonic() > late:
            raise Failed(f"a server of the demo did not begin; {log} has: {printed.strip() or 'nothing'}")
        time.sleep(0.02)
