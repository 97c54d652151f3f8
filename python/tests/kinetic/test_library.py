"""`skytether.programs`, and the command of the same name."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from skytether import InvalidError, NotFoundError, programs
from fleets import PROGRAM

from .targets import Target

OBJECTS = Path(__file__).resolve().parents[3] / "crates" / "ebpf" / "tests" / "objects"
MODULES = OBJECTS.parents[2] / "wasm" / "tests" / "modules"


@pytest.fixture
def library(drive: Target) -> Iterator[programs.Drive]:
    yield programs.connect(f"kinetic://{drive.address.host}:{drive.address.port}")


def test_program_is_put_run_listed_and_removed(library: programs.Drive) -> None:
    library.write("text", "to be or not to be")
    assert library.read("text") == b"to be or not to be"
    put = library.put(OBJECTS / "words.o")
    assert (put.name, put.language, put.keys) == ("words", "ebpf", 1) and put.bytes == (OBJECTS / "words.o").stat().st_size
    ended = library.run("words", "text")
    assert (ended.code, ended.signal, ended.text) == (0, 0, "6\n")
    assert library.run("words", "absent").code == 1
    assert library.ls() == [put]
    library.rm("words")
    assert library.ls() == []
    with pytest.raises(NotFoundError, match="no program words"):
        library.run("words", "text")
    library.delete("text")
    assert library.read("text") is None


def test_module_is_put_listed_and_run(library: programs.Drive) -> None:
    library.write("text", "to be or not to be")
    put = library.put(MODULES / "words.wasm")
    assert (put.name, put.language) == ("words", "wasm") and library.ls() == [put]
    ended = library.run("words", "text")
    assert (ended.code, ended.signal, ended.text) == (0, 0, "6\n")


def test_program_that_cannot_run_replaces_no_other(library: programs.Drive) -> None:
    library.put(OBJECTS / "words.o")
    with pytest.raises(InvalidError, match="no ELF object"):
        library.put(b"#!/bin/sh", name="words")
    assert [found.language for found in library.ls()] == ["ebpf"]
    with pytest.raises(InvalidError, match="no name of a program"):
        library.put(b"x", name="a/b")


def test_longer_program_is_replaced_by_a_shorter_one(library: programs.Drive) -> None:
    """A custom section makes a module longer, and changes nothing of what it does."""
    words, mib = (MODULES / "words.wasm").read_bytes(), 1 << 20
    text = b"padding"

    def padded(to: int) -> bytes:
        # A section's number, its length in five bytes, the length of its name, the name, what it has.
        rest = to - len(words) - 6
        length = bytes([rest >> shift & 127 | (128 if shift < 28 else 0) for shift in range(0, 35, 7)])
        return words + b"\0" + length + bytes([len(text)]) + text + bytes(rest - 1 - len(text))

    library.write("text", "to be or not to be")
    library.write("program/words-2.0000", b"another program's")
    for length, parts in ((3 * mib + 5, 4), (2 * mib, 2), (mib, 1), (2 * mib + 1, 3), (len(words) + 100, 1)):
        put = library.put(padded(length), name="words")
        assert (put.bytes, put.keys) == (length, parts)
        assert [found for found in library.ls() if found.name == "words"] == [put]
        below = library.keys("program/", "program0")
        wanted = [b"program/words"] if parts == 1 else [b"program/words.%04d" % part for part in range(parts)]
        assert below == sorted([b"program/words-2.0000", *wanted])
        assert library.run("words", "text").text == "6\n"
    library.rm("words")
    assert library.keys("program/", "program0") == [b"program/words-2.0000"]


def test_keys_are_listed_in_their_order(library: programs.Drive) -> None:
    names = [b"key/%04d" % n for n in range(450)]
    for name in reversed(names):
        library.write(name, b"")
    assert library.keys(names[0], names[-1]) == names
    assert library.keys("key/0007", "key/0009") == names[7:10] and library.keys("key0", "z") == []


def command(*words: object, drive: Target, status: int | set[int] = 0) -> subprocess.CompletedProcess[str]:
    words = [PROGRAM, "program", *words, "--drive", f"kinetic://{drive.address.host}:{drive.address.port}"]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode in (status if isinstance(status, set) else {status}), (words, done.returncode, done.stdout, done.stderr)
    return done


def test_commands_put_and_run_and_exit_as_the_program(library: programs.Drive, drive: Target) -> None:
    library.write("text", "to be or not to be")
    command("put", OBJECTS / "words.o", drive=drive)
    command("put", MODULES / "words.wasm", "--name", "counts", drive=drive)
    assert [(found.name, found.language) for found in library.ls()] == [("counts", "wasm"), ("words", "ebpf")]
    for name in ("words", "counts"):
        assert command("run", name, "text", drive=drive).stdout == "6\n"
        # The program says that there is no such key, and returns 1; without an argument 2.
        assert command("run", name, "absent", drive=drive, status=1).stdout == "no such key\n"
        assert command("run", name, drive=drive, status=2).stdout == "no argument\n"
    refused = command("put", __file__, "--name", "python", drive=drive, status=1)
    assert "no ELF object" in refused.stderr and refused.stdout == ""
    assert "no program python" in command("run", "python", drive=drive, status=1).stderr
    # The drive ends it by a signal, for its time or its instructions; the status is a shell's for such an end.
    command("put", OBJECTS / "endless.o", drive=drive)
    stopped = command("run", "endless", "--timeout", 0.2, drive=drive, status={128 + 14, 128 + 24})
    assert "ended the program endless with signal" in stopped.stderr, stopped
    for wrong in ("0", "-1", "soon"):
        assert "seconds above 0" in command("run", "words", "text", f"--timeout={wrong}", drive=drive, status=2).stderr
    command("rm", "words", drive=drive)
    assert "no program words" in command("rm", "words", drive=drive, status=1).stderr


def test_endless_program_ends_at_its_timeout(library: programs.Drive) -> None:
    library.put(OBJECTS / "endless.o")
    ended = library.run("endless", timeout=0.2)
    assert ended.code == -1 and ended.signal in {14, 24}


def test_output_of_a_program_comes_back_and_is_kept(library: programs.Drive) -> None:
    library.put(OBJECTS / "filter.o")
    particles = b"".join(bytes(44) + struct.pack("<f", energy) for energy in (0.5, 2.5, 1.0, 9.0))
    library.write("particles", particles)
    ended = library.run("filter", "particles", struct.pack("<d", 1.5), output_key="found")
    assert ended.code == 0 and ended.output == particles[48:96] + particles[144:]
    assert library.read("found") == ended.output


def test_watched_keys_start_the_program(library: programs.Drive) -> None:
    library.put(OBJECTS / "note.o")
    with library.watch("note", "b", "c", "seen") as runs:
        library.write("a", "not watched")
        library.write("b", "watched")
        put = runs.next(timeout=30)
        assert put is not None and (put.key, put.change, put.ran, put.code, put.signal, put.text) == (b"b", "put", True, 0, 0, "PUT")
        library.delete("b")
        run = next(iter(runs))
        assert (run.key, run.change) == (b"b", "delete")
        assert runs.next(timeout=0.2) is None and runs.missed == 0
    assert library.read("seen/b") == b"DELETE"
    assert runs.next() is None and list(runs) == []
    with pytest.raises(NotFoundError, match="end the watches of the program note"):
        library.unwatch("note")


def test_watch_of_puts_sees_no_deletes(library: programs.Drive) -> None:
    library.put(OBJECTS / "note.o")
    runs = library.watch("note", "b", b"", "seen", on=["put"])
    library.delete("b")
    library.write("b", "v")
    run = runs.next(timeout=30)
    assert run is not None and run.change == "put"
    # It is the drive's: another connection ends it.
    library.unwatch("note")
    library.write("b", "w")
    assert runs.next(timeout=0.3) is None
    runs.end()


def test_another_thread_ends_a_watch(library: programs.Drive) -> None:
    library.put(OBJECTS / "note.o")
    runs = library.watch("note", "b")
    waiting = threading.Thread(target=lambda: list(runs))
    waiting.start()
    # It does not wait for the other thread.
    assert runs.missed == 0
    runs.end()
    waiting.join(timeout=30)
    assert not waiting.is_alive()


def test_watches_that_can_not_be_are_refused(library: programs.Drive) -> None:
    with pytest.raises(NotFoundError, match="no program note"):
        library.watch("note", "b")
    library.put(OBJECTS / "note.o")
    with pytest.raises(InvalidError, match="is no change of a key"):
        library.watch("note", "b", on="moved")
    with pytest.raises(InvalidError, match="no change starts the program"):
        library.watch("note", "b", on=[])


def test_watch_command_prints_runs_and_ends_the_watch(library: programs.Drive, drive: Target) -> None:
    library.put(OBJECTS / "note.o")
    url = f"kinetic://{drive.address.host}:{drive.address.port}"
    command = [sys.executable, "-m", "skytether._cli", "program", "watch", "note", "seen", "--first", "b", "--last", "c", "--format", "json", "--drive", url]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watching.stderr.readline() == "watching; Ctrl-C ends it\n"
        library.write("b", "v")
        assert json.loads(watching.stdout.readline()) == {"key": "b", "change": "put", "code": 0, "signal": 0, "message": "finished", "printed": "PUT"}
    finally:
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=30) == 0
    with pytest.raises(NotFoundError):
        library.unwatch("note")
