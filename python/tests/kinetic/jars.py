"""The Java client of Kinetic drives, its simulator and its conformance suite, from the Maven registry.

Maven fetches them once into the user's cache (17 MB). `jars.sha256` names each with its checksum. Nothing of them is
shipped: their licences are the GPL and the LGPL.

As a program it prints the directory of the jars, for the Rust tests that use the simulator. Where they can't be had it
prints nothing and says why; with `SKYTETHER_JAVA=required` it fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
SUMS = HERE / "jars.sha256"

#: What the classes need of a JDK from 9 on. The first gives a NullPointerException no text, as the suite expects.
JAVA_OPTIONS = (
    "-XX:-ShowCodeDetailsInExceptionMessages",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "java.lang", "java.util")),
)

#: Seconds that Maven has.
FETCH = 400


def missing() -> str | None:
    """Why Java's tests can't run here; none where they can."""
    packages = {"java": "default-jre-headless", "mvn": "maven"}
    return next((f"{program} is missing (Debian: {package})" for program, package in packages.items() if not shutil.which(program)), None)


class NoJarsError(Exception):
    """Java's tests can't run here, and why."""


def required() -> bool:
    return os.environ.get("SKYTETHER_JAVA") == "required"


def need_java() -> None:
    """Skips a test where there is no Java, and fails it where there must be (`SKYTETHER_JAVA=required`)."""
    if why := missing():
        leave(why)


def need_compiler() -> None:
    """Skips a test that runs a source file, where Java can't compile one. Debian's default-jre-headless can."""
    need_java()
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout
    if "jdk.compiler@" not in modules:
        leave("this Java has no compiler (module jdk.compiler); Debian's default-jre-headless and every JDK have it")


def leave(why: str) -> NoReturn:
    """Skips the test, or fails it where Java is required."""
    import pytest

    if required():
        pytest.fail(f"SKYTETHER_JAVA=required: {why}")
    pytest.skip(why)


def wanted() -> dict[str, str]:
    """The checksum of each jar, by name."""
    return {name: digest for digest, name in (line.split() for line in SUMS.read_text().splitlines())}


def wrong(directory: Path) -> list[str]:
    """The jars that `directory` lacks or has with other bytes, and those that should not be there."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.jar")}
    expected = wanted()
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "skytether" / f"kinetic-jars-{hashlib.sha256(SUMS.read_bytes()).hexdigest()[:16]}"


def class_path() -> str:
    """The class path of all jars."""
    try:
        return f"{directory()}/*"
    except NoJarsError as why:
        leave(str(why))


def directory() -> Path:
    """Where all jars are. The first call on a machine fetches them; other processes wait for it."""
    place = cache()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir() or wrong(place):
            fetch(place)
    return place


def fetch(place: Path) -> None:
    """Fetches all jars into `place`, or leaves nothing there."""
    partial = place.with_suffix(".partial")
    for old in (place, partial):
        shutil.rmtree(old, ignore_errors=True)
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"],
        capture_output=True, text=True, timeout=FETCH, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise NoJarsError(f"{place}: Maven could not fetch the jars\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    assert not (names := wrong(partial)), f"{partial}: not the jars of {SUMS.name}: {', '.join(names)}"
    partial.rename(place)


def main() -> None:
    try:
        if why := missing():
            raise NoJarsError(why)
        print(directory())
    except NoJarsError as why:
        if required():
            sys.exit(f"SKYTETHER_JAVA=required: {why}")
        print(f"Rust tests against the Java simulator of Kinetic drives do not run: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
