"""The Java client where its conformance suite is silent: `Beyond.java` against a drive.

The suite calls neither noop, flush nor getVersion, compares no statistics and few limits, has batches of 15 requests
at most, and knows no programs. `java Beyond.java` compiles the source and runs it, so no JDK is needed: a Java runtime
whose modules include the compiler (as Debian's default-jre-headless has it) will do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jars import JAVA_OPTIONS, class_path, need_compiler
from .targets import Drive, Target, chosen, open_target

HERE = Path(__file__).resolve().parent
OBJECTS = HERE.parents[2] / "crates" / "ebpf" / "tests" / "objects"

#: The Java simulator passes these as well.
COMMON = (
    "noop is answered",
    "version is read alone",
    "force goes over versions in each mode",
    "counting by versions loses no count",
    "requests beyond the announced depth are answered",
    "writes under way take effect in their order",
    "flushed writes survive kill",
    "every log is told",
    "secure erase leaves nothing",
)
#: What the simulator does otherwise, or does not have.
OURS = (
    "headers of a scan are understood",
    "statistics count requests and bytes",
    "limits are those of a real drive",
    "batch of thousands is one",
    "batch of too many deletes ends its connection",
    "connections beyond the announced are turned away",
    "push goes to a peer over TLS",
    "sleeping drive wakes",
    "program is stored, run and its output read",
    "endless program is listed and aborted",
)
#: The client logs each connection; a configuration without handlers has it log nothing.
QUIET = ("-Djava.util.logging.config.file=/dev/null",)
#: Seconds for all of them.
DEADLINE = 160


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Target]:
    """A drive with the limits of a real one."""
    target = Drive(tmp_path / "real", limits="drive") if chosen() == "drive" else open_target(tmp_path / "real", 1)
    yield target
    target.stop()


def place(target: Target) -> str:
    return f"{target.address.host}:{target.address.port}:{target.address.tls_port}"


@pytest.mark.simulator
def test_java_client_is_served_beyond_its_suite(drive: Target, real: Target) -> None:
    need_compiler()
    checks = COMMON if chosen() == "simulator" else COMMON + OURS
    words = ["java", *JAVA_OPTIONS, *QUIET, "-cp", class_path(), str(HERE / "Beyond.java"), place(drive), place(real), str(OBJECTS), *checks]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(DEADLINE, program.kill)
    timer.start()
    told: list[str] = []
    try:
        for line in program.stdout:
            told.append(line)
            if line == "kill\n":
                drive.restart(kill=True)
                print(place(drive), file=program.stdin, flush=True)
        program.wait()
    finally:
        timer.cancel()
        program.kill()
        program.wait()
    text = "".join(told)
    assert program.returncode == 0, text[-6000:]
    assert [line.removeprefix("ok ") for line in text.splitlines() if line.startswith("ok ")] == list(checks), text[-6000:]


def test_summary_names_tests_of_java_that_did_not_run(tmp_path: Path) -> None:
    """A run without Java succeeds: that it was without Java must not be lost among other skipped tests."""
    (tmp_path / "test_two.py").write_text("from kinetic.jars import need_java\n\n\ndef test_one():\n    need_java()\n\n\ndef test_other():\n    need_java()\n")
    environment = {name: value for name, value in os.environ.items() if name != "SKYTETHER_JAVA"}
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and "2 skipped" in done.stdout, (done.stdout, done.stderr)
    assert "2 tests of Java did not run: java is missing (Debian: default-jre-headless)" in done.stdout, done.stdout
    required = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment | {"SKYTETHER_JAVA": "required"}, cwd=tmp_path)
    assert required.returncode == 1 and "2 failed" in required.stdout, (required.stdout, required.stderr)
