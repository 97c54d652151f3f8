"""`skytether.programs`, and the command of the same name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from skytether import InvalidError, NotFoundError, programs

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
