"""The drives that the tests of this directory run against.

`SKYTETHER_KINETIC` chooses: our own drive (`drive`, the default), the Java `simulator`, or a drive that runs already,
`HOST:PORT:TLSPORT`, which the tests erase.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from . import wire
from .alone import is_alone
from .jars import JAVA_OPTIONS, class_path, need_java
from .suite import Address

#: Seconds that a drive has to start or to end.
START = 60


def contains_programs() -> bool:
    """Whether this kernel contains native programs. A container without CAP_SYS_ADMIN does not."""
    return os.environ.get("SKYTETHER_NATIVE") == "required" or subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode == 0


def chosen() -> str:
    return os.environ.get("SKYTETHER_KINETIC", "drive")


class Target:
    """A drive that listens, plain and with TLS. `restart` works for those that this process started."""

    process: subprocess.Popen[str] | None = None
    address: Address

    def client(self, tls: bool = False, **options: object) -> wire.Client:
        return wire.Client(self.address.host, self.address.tls_port if tls else self.address.port, tls=tls, **options)

    def client_when_there_is_room(self) -> wire.Client:
        """A connection to a drive that had too many: it gives places back when it notices that others have ended."""
        deadline = time.monotonic() + START
        while True:
            try:
                client = self.client()
                if client.greeting.code == wire.Code.SUCCESS:
                    return client
                client.close()
            except wire.Closed:
                pass
            assert time.monotonic() < deadline, "the drive still has too many connections"
            time.sleep(0.01)

    def restart(self, kill: bool = False) -> None:
        """Ends the drive, by SIGKILL or as an operator would, and starts it on the same data."""
        self.stop(kill)
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def stop(self, kill: bool = False) -> None:
        if process := self.process:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(timeout=START)
            finally:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()
                self.process = None


class Drive(Target):
    """`skytether drive serve` with certificates of `skytether pki init`."""

    def __init__(self, place: Path, limits: str = "java", ports: tuple[int, int] = (0, 0), *options: str) -> None:
        from fleets import PROGRAM

        self.program, self.place, self.limits, self.ports, self.options = PROGRAM, place, limits, ports, options
        self.errors = place / "stderr"
        place.mkdir(parents=True, exist_ok=True)
        # One authority for all drives of a test run, so that they trust each other as peers.
        self.pki = place.parent.parent / "kinetic-pki"
        if not self.pki.exists():
            subprocess.run([PROGRAM, "pki", "init", self.pki], check=True, capture_output=True, timeout=START)
        self.start()

    def start(self) -> None:
        listen = (f"kinetic://127.0.0.1:{self.ports[0]}", f"kinetics://127.0.0.1:{self.ports[1]}")
        words = [self.program, "drive", "serve", "--data", self.place / "data", "--kinetic-limits", self.limits, *self.options]
        words += [word for url in listen for word in ("--listen", url)]
        words += ["--tls-cert", self.pki / "host.pem", "--tls-key", self.pki / "host.key"]
        trusting = os.environ | {"SKYTETHER_TLS_CA": os.fspath(self.pki / "ca.pem")}
        with open(self.errors, "a") as errors:
            self.process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=errors, text=True, stdin=subprocess.DEVNULL, env=trusting)
        ports = {}
        for _ in listen:
            # Empty where the process has ended.
            line = self.process.stdout.readline()
            if not (found := re.search(r"\b(kinetics?)://127\.0\.0\.1:(\d+)$", line.strip())):
                self.process.kill()
                raise AssertionError(f"{words}: printed {line!r}\n{self.errors.read_text()}")
            ports[found[1]] = int(found[2])
        self.address = Address("127.0.0.1", ports["kinetic"], ports["kinetics"])

    def stop(self, kill: bool = False) -> None:
        super().stop(kill)
        assert "panicked" not in self.errors.read_text(), self.errors.read_text()


class Simulator(Target):
    """The Java simulator. It sends multicast messages, and so must be in a network namespace of its own."""

    def __init__(self, place: Path, port: int = 8123) -> None:
        need_java()
        assert is_alone(), "the Java simulator sends multicast messages: run this with `python -m kinetic.alone`"
        self.place, self.address = place, Address("127.0.0.1", port, port + 320)
        self.log = place / "log"
        self.start()

    def start(self) -> None:
        home = self.place / "home"
        home.mkdir(parents=True, exist_ok=True)
        words = ["java", *JAVA_OPTIONS, "-Xmx512m", "-Djava.net.preferIPv4Stack=true", "-cp", class_path()]
        words += ["com.seagate.kinetic.simulator.internal.SimulatorRunner", "-home", str(home)]
        words += ["-port", str(self.address.port), "-tlsport", str(self.address.tls_port)]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(words, cwd=self.place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
        deadline = time.monotonic() + START
        for tls in (False, True):
            while True:
                try:
                    self.client(tls).close()
                    break
                except OSError as error:
                    ended = self.process.poll() is not None
                    if ended or time.monotonic() > deadline:
                        self.stop(kill=True)
                        raise AssertionError(f"the simulator does not answer ({error}):\n{self.log.read_text()[-4000:]}") from None
                    time.sleep(0.05)


    def stop(self, kill: bool = False) -> None:
        """Its own way to end may hang (seen here), and so has a few seconds."""
        if self.process and not kill:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                pass
        super().stop(kill=True)


class External(Target):
    """A drive that runs already."""

    def __init__(self, text: str) -> None:
        host, port, tls_port = text.rsplit(":", 2)
        self.address = Address(host, int(port), int(tls_port))

    def start(self) -> None:
        """The drive runs already."""


def open_target(place: Path, number: int = 0) -> Target:
    """The chosen kind of drive; `number` tells a second one from the first."""
    place = place / f"drive-{number}"
    match chosen():
        case "drive":
            return Drive(place)
        case "simulator":
            return Simulator(place, 8123 + number)
        case text:
            assert number == 0, "there is one drive"
            return External(text)
