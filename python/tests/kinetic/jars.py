"""The Java client of Kinetic drives, its simulator and its conformance suite, from the Maven registry.

Maven fetches them once into the user's cache (17 MB). `jars.sha256` names each with its checksum. Nothing of them is
shipped: their licences are the GPL and the LGPL.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

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


def need_java() -> None:
    """Skips a test where there is no Java, and fails it where there must be (`SKYTETHER_JAVA=required`)."""
    if why := missing():
        if os.environ.get("SKYTETHER_JAVA") == "required":
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
    """The class path of all jars. The first call on a machine fetches them; other processes wait for it."""
    place = cache()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir() or wrong(place):
            fetch(place)
    return f"{place}/*"


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
        why = f"{place}: Maven could not fetch the jars\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        if os.environ.get("SKYTETHER_JAVA") == "required":
            pytest.fail(why)
        pytest.skip(why)
    assert not (names := wrong(partial)), f"{partial}: not the jars of {SUMS.name}: {', '.join(names)}"
    partial.rename(place)
