"""Runs classes of the Java client's conformance suite against a drive."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from .jars import JAVA_OPTIONS, class_path

PACKAGE = "com.seagate.kinetic"

#: The classes of the suite's own `ConformanceTestRunner`, each with its cases over one plain transport.
CONFORMANCE = {
    "boundary.KineticBoundaryTest": 83,
    "advancedAPI.AdvancedAPITest": 48,
    "boundary.AdvancedAPIBoundaryTest": 43,
    "adminAPI.KineticAdminTest": 37,
    "asyncAPI.KineticAsyncAPITest": 19,
    "basicAPI.KineticBasicAPITest": 19,
    "concurrent.KineticClientConcurrentTest": 1,
    "concurrent.KineticPutConcurrentTest": 1,
}


@dataclass(frozen=True)
class Address:
    """Where a drive listens, plain and with TLS."""

    host: str
    port: int
    tls_port: int


@dataclass
class Results:
    """What a run of classes gave: seconds of each class, and for each test whether it passed."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    wall: float = 0.0

    def told(self) -> str:
        return "\n".join([*(f"FAILED  {name}: {why}" for name, why in self.failed.items()), *(f"SKIPPED {name}" for name in self.skipped)])


def run(
    classes: list[str], place: Path, drive: Address, *, other: Address | None = None, transports: tuple[str, ...] = ("NIO",), deadline: float = 170,
) -> Results:  # fmt: skip
    """Runs `classes` over `transports` (NIO, SSL and TCP), with `other` as the second drive. Leaves its output in
    `place`. The suite erases the drive."""
    place.mkdir(parents=True, exist_ok=True)
    settings = {"RUN_AGAINST_EXTERNAL": "true", "KINETIC_HOST": drive.host, "KINETIC_PORT": drive.port, "KINETIC_SSL_PORT": drive.tls_port}
    settings |= {f"RUN_{transport}_TEST": "true" for transport in transports}
    if other:
        settings |= {"KINETIC_ALTERNATE_HOST": other.host, "KINETIC_ALTERNATE_PORT": other.port, "KINETIC_ALTERNATE_SSL_PORT": other.tls_port}
    words = ["java", *JAVA_OPTIONS, "-cp", class_path(), *(f"-D{name}={value}" for name, value in settings.items())]
    words += ["org.testng.TestNG", "-usedefaultlisteners", "true", "-d", str(place / "output"), "-testclass", ",".join(f"{PACKAGE}.{name}" for name in classes)]
    start = time.monotonic()
    log = place / "log"
    with open(log, "w") as output:
        process = subprocess.Popen(words, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the suite did not end within {deadline} s; its last lines:\n{tail(log)}") from None
        finally:
            process.kill()
            process.wait()
    report = place / "output" / "testng-results.xml"
    assert report.is_file(), f"the suite left no results; its last lines:\n{tail(log)}"
    results = read(report)
    results.wall = time.monotonic() - start
    return results


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


def read(report: Path) -> Results:
    """The results in a file of TestNG. Methods that set up and tear down count if they fail: they void others."""
    results = Results()
    for of_class in ElementTree.parse(report).iter("class"):
        name = of_class.get("name", "").removeprefix(PACKAGE + ".")
        for method in of_class.iter("test-method"):
            parameters = [" ".join((value.text or "").split()) for value in method.iter("value")]
            test = f"{name}.{method.get('name')}({', '.join(parameters)})"
            results.seconds[name] = results.seconds.get(name, 0) + int(method.get("duration-ms", 0)) / 1000
            if method.get("is-config") != "true":
                results.counts[name] = results.counts.get(name, 0) + 1
            elif method.get("status") == "PASS":
                continue
            match method.get("status"):
                case "PASS":
                    results.passed.append(test)
                case "FAIL":
                    why = method.find("exception/message")
                    trace = method.findtext("exception/full-stacktrace", "").strip().splitlines()
                    results.failed[test] = (why.text or "").strip() if why is not None else (trace[0] if trace else "no reason given")
                case _:
                    results.skipped.append(test)
    return results
