"""Programs inside Kinetic drives: they run next to the values, with the rights of who calls them.

>>> from skytether import programs                                # doctest: +SKIP
>>> drive = programs.connect("kinetic://127.0.0.1:8123")          # doctest: +SKIP
>>> drive.write("text", "to be or not to be")                     # doctest: +SKIP
>>> drive.put("words.o")                                          # doctest: +SKIP
>>> drive.run("words", "text").text                               # doctest: +SKIP
'6\\n'
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._internal import ProgramLibrary, ProgramWatch
from .errors import InvalidError, SkytetherError

__all__ = ["Drive", "Ended", "Program", "Run", "Watch", "connect"]


@dataclass(frozen=True)
class Program:
    """A program that a drive has."""

    name: str
    #: ``"ebpf"``, ``"wasm"``, ``"native"``, ``"query"`` (a sub-plan for the drive's query engine) or ``"unknown"``.
    language: str
    #: Its length in bytes.
    bytes: int
    #: How many keys of the drive have it.
    keys: int
    #: How often it runs at this moment.
    running: int


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    #: What it returned; 0 is success, -1 that the drive stopped it.
    code: int
    #: The POSIX signal for what ended it, or 0.
    signal: int
    #: A sentence about its end.
    message: str
    #: What it printed.
    printed: bytes
    #: What it gave as its output: that of the output key.
    output: bytes

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.printed.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Run:
    """A run that a drive began because a key had changed."""

    #: The key.
    key: bytes
    #: ``"put"`` or ``"delete"``.
    change: str
    #: Whether the drive ran the program; else ``message`` says why not.
    ran: bool
    #: What the program returned; -1 that the drive stopped it, or did not run it.
    code: int
    #: The POSIX signal for what ended it, or 0.
    signal: int
    #: A sentence about its end.
    message: str
    #: What it printed.
    printed: bytes

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.printed.decode("utf-8", errors="replace")


class Watch:
    """A watch of a drive. Iterate over it for its runs as they end; leave the ``with`` to end it.

    Without :meth:`end` the drive goes on watching when this object is gone: :meth:`Drive.unwatch` ends it then.
    """

    def __init__(self, watch: ProgramWatch, name: str) -> None:
        self._watch = watch
        self._name = name
        self._ended = False

    def __repr__(self) -> str:
        return f"<watch of the program {self._name}{', ended' if self._ended else ''}>"

    def next(self, timeout: float | None = None) -> Run | None:
        """The next run, or None if there is none within ``timeout`` seconds or the watch was ended.

        :param timeout: seconds (default: as long as the drive answers).
        :raises UnavailableError: where the drive has gone.
        """
        told = None if self._ended else self._watch.next(timeout)
        return None if told is None else Run(*told)

    def __iter__(self) -> Iterator[Run]:
        while (run := self.next()) is not None:
            yield run

    @property
    def missed(self) -> int:
        """How many runs came faster than they were taken. They took place, and are not told."""
        return self._watch.missed()

    def end(self) -> None:
        """End the watch. A run under way goes on. Ending it again does nothing."""
        if not self._ended:
            self._ended = True
            self._watch.end()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.end()
        except SkytetherError:
            # What ended the block is told, and not that the drive has gone, too.
            if kind is None:
                raise


class Drive:
    """The programs of one Kinetic drive. Make one by :func:`connect`."""

    def __init__(self, library: ProgramLibrary, url: str) -> None:
        self._library = library
        self._url = url

    def __repr__(self) -> str:
        return f"<programs of the drive at {self._url}>"

    def put(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> Program:
        """Put a program on the drive, and have the drive check it.

        :param program: the path of its file (an eBPF object, a WebAssembly module or an executable), or its bytes.
        :param name: its name (default: the file's name without its extension).
        :raises InvalidError: where the drive can't run it; the text says why.
        """
        if isinstance(program, bytes):
            if name is None:
                raise TypeError("a program given as bytes needs a name")
            content = program
        else:
            path = Path(program)
            content, name = path.read_bytes(), path.stem if name is None else name
        return Program(*self._library.put(name, content))

    def run(self, name: str, *arguments: str | bytes, output_key: str | bytes | None = None, timeout: float | None = None) -> Ended:
        """Run a program and wait for its end. Ctrl-C ends it.

        :param arguments: its arguments; often the keys that it reads. Bytes are given as they are.
        :param output_key: the key of the drive that its output is put under.
        :param timeout: seconds after which the drive ends it.
        :raises NotFoundError: where the drive has no such program.
        """
        key = None if output_key is None else _bytes(output_key)
        return Ended(*self._library.run(name, [_bytes(argument) for argument in arguments], key, timeout))

    def watch(
        self,
        name: str,
        first: str | bytes,
        last: str | bytes = b"",
        *arguments: str | bytes,
        on: Sequence[str] = ("put", "delete"),
        output_key: str | bytes | None = None,
        timeout: float | None = None,
    ) -> Watch:
        """Have the drive run a program after each change of some keys.

        The drive gives the program two more arguments: the key, and ``PUT`` or ``DELETE``. A watch of the same program
        and keys is replaced. The watch belongs to the drive, until it is ended or the drive restarts.

        >>> with drive.watch("words", "text/", "text0") as runs:        # doctest: +SKIP
        ...     for run in runs:
        ...         print(run.key, run.text)

        :param first: the first key that is watched.
        :param last: the last one, which is watched, too (default: there is no last one).
        :param arguments: the program's arguments in front of these two.
        :param on: which changes start it.
        :param output_key: the key of the drive that the output of each run is put under.
        :param timeout: seconds after which the drive ends a run.
        :raises NotFoundError: where the drive has no such program.
        """
        key = None if output_key is None else _bytes(output_key)
        kinds = [on] if isinstance(on, str) else list(on)
        if not kinds:
            raise InvalidError("no change starts the program: give on=(\"put\", \"delete\") or one of them")
        return Watch(self._library.watch(name, _bytes(first), _bytes(last), kinds, [_bytes(argument) for argument in arguments], key, timeout), name)

    def unwatch(self, name: str) -> None:
        """End all watches of a program that were set with this identity. A run under way goes on.

        :raises NotFoundError: where there is no such program, or no such watch.
        """
        self._library.unwatch(name)

    def ls(self) -> list[Program]:
        """The programs that the drive has, by name."""
        return [Program(*found) for found in self._library.list()]

    def rm(self, name: str) -> None:
        """Remove a program. Runs of it come to their end."""
        self._library.remove(name)

    def read(self, key: str | bytes) -> bytes | None:
        """The value of a key of the drive, or None where there is none."""
        return self._library.read(_bytes(key))

    def keys(self, first: str | bytes, last: str | bytes) -> list[bytes]:
        """The keys of the drive from the first to the last, which both belong to them, in the order of their bytes.

        Keys behind one that the identity may not see are left out. Slices are keys where a host put them there over
        Kinetic.
        """
        return self._library.keys(_bytes(first), _bytes(last))

    def write(self, key: str | bytes, value: str | bytes) -> None:
        """Write a value (1 MiB at most) that programs may read, in the place of the one that was there."""
        self._library.write(_bytes(key), _bytes(value))

    def delete(self, key: str | bytes) -> None:
        """Remove a key of the drive, if it is there."""
        self._library.delete(_bytes(key))

    def abort(self, name: str) -> None:
        """End the runs of a program."""
        self._library.abort(name)


def connect(url: str, *, identity: int | None = None, key: str | None = None, tls_ca: str | os.PathLike[str] | None = None) -> Drive:
    """Connect to a Kinetic drive.

    :param url: ``kinetic://host:port``, or ``kinetics://host:port`` with TLS.
    :param identity: the number of the identity (default: ``SKYTETHER_KINETIC_IDENTITY``, or 1).
    :param key: its key (default: ``SKYTETHER_KINETIC_KEY``, or that of new drives).
    :param tls_ca: the authorities whose certificates are trusted, a PEM file (default: ``SKYTETHER_TLS_CA``).
    :raises UnavailableError: where no drive answers.
    """
    return Drive(ProgramLibrary.connect(url, identity, key, None if tls_ca is None else os.fspath(tls_ca)), url)


def _bytes(given: str | bytes) -> bytes:
    return given.encode() if isinstance(given, str) else given
