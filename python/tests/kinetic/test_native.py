"""Native programs inside the drive, run as `kctl exec` runs them; the guide's example is one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import ROOT, blocks

from . import wire
from .targets import Drive, chosen, contains_programs
from .wire import Client, Code, Result

pytestmark = [
    pytest.mark.skipif(chosen() != "drive", reason="other drives run no native programs of ours"),
    pytest.mark.skipif(not contains_programs(), reason="this kernel refuses user name spaces, so drives run no native programs"),
]

#: What they do with what they must not do, each as one program.
HOSTILE = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **arguments) {
    char which = count > 1 ? arguments[1][0] : 0;
    if (which == 'l') for (;;) __asm__ volatile("");
    if (which == 'c') return *(volatile int *)8;
    if (which == 'm') { char *more; while ((more = malloc(1 << 20))) memset(more, 1, 1 << 20); return 12; }
    if (which == 'f') return fork() < 0 ? errno : 0;
    if (which == 'w') return open("/tmp/outside", O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
    if (which == 'n') return socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;
    if (which == 'o') for (;;) puts("a line of a flood");
    return 99;
}
"""

EPERM, ENOMEM = 1, 12


def compiled(source: str, place: Path) -> bytes:
    (place / "program.c").write_text(source)
    include = ROOT / "crates" / "native" / "include"
    subprocess.run(["cc", "-O2", "-s", "-w", "-static", "-I", include, "-o", place / "program", place / "program.c"], check=True, timeout=60)
    return (place / "program").read_bytes()


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    drive = Drive(tmp_path_factory.mktemp("native") / "drive", "drive", (0, 0), "--kinetic-native-programs")
    yield drive
    drive.stop()


@pytest.fixture
def client(native: Drive) -> Iterator[Client]:
    with native.client() as connection:
        yield connection


def run(client: Client, *arguments: str, most_ms: int | None = None) -> Result:
    answer = client.execute([b"program"], list(arguments), lang=wire.NATIVE, most_ms=most_ms)
    assert answer.code == Code.SUCCESS, answer
    return answer.result


def test_program_of_the_guide_counts_words(client: Client, tmp_path: Path) -> None:
    [source] = [text for language, text in blocks("docs/kinetic.md") if language == "c"]
    assert client.put(b"program", compiled(source, tmp_path)).code == Code.SUCCESS
    client.put(b"text", b"to be or not to be")
    ended = run(client, "text", "words")
    assert (ended.code, ended.signal, ended.output) == (0, 0, b"6 words\n")
    assert client.get(b"words").value == b"6"
    assert run(client, "absent", "words").code == 1


def test_hostile_programs_end_and_are_named(native: Drive, client: Client, tmp_path: Path) -> None:
    assert client.put(b"program", compiled(HOSTILE, tmp_path)).code == Code.SUCCESS
    for argument, code, signal, message in [
        ("loop", -1, 14, "deadline"),
        ("crash", -1, 11, "segmentation fault"),
        ("memory", ENOMEM, 0, "finished"),
        ("fork", EPERM, 0, "finished"),
        ("write", EPERM, 0, "finished"),
        ("network", EPERM, 0, "finished"),
        ("output", -1, 25, "output limit"),
    ]:
        ended = run(client, argument, most_ms=1000 if argument == "loop" else None)
        assert (ended.code, ended.signal) == (code, signal) and message in ended.message, (argument, ended)
        with native.client() as other:
            assert other.put(b"k", b"v").code == Code.SUCCESS
