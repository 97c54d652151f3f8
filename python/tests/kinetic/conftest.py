"""The drives of these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .targets import Drive, Target, chosen, open_target


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: this test is for `make soak`")
    config.addinivalue_line("markers", "simulator: the Java simulator passes this test as well")
    config.addinivalue_line("markers", "strangers: this test is about drives that are not ours, and runs in the name space of simulators only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against the simulator, the tests are those that are marked for it. Those of `make soak` are none elsewhere."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    out = [item for item in mine if item.get_closest_marker("soak") and not os.environ.get("SKYTETHER_SOAK")]
    if chosen() != "simulator":
        out += [item for item in mine if item.get_closest_marker("strangers")]
    else:
        out += [item for item in mine if {"drive", "usual"} & set(getattr(item, "fixturenames", ())) and not item.get_closest_marker("simulator")]
    if out:
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A drive for all tests of a module."""
    target = open_target(tmp_path_factory.mktemp("kinetic"))
    yield target
    target.stop()


@pytest.fixture
def usual(tmp_path: Path) -> Iterator[Target]:
    """A drive of its own on the usual ports, 8123 and 8443: over TLS, the suite knows no others."""
    target = Drive(tmp_path / "usual", ports=(8123, 8443)) if chosen() == "drive" else open_target(tmp_path / "usual")
    with target.client(tls=True) as client:
        client.manufactured()
    yield target
    target.stop()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A second drive, for peers."""
    target = open_target(tmp_path_factory.mktemp("kinetic"), 1)
    yield target
    target.stop()


@pytest.fixture
def drive(served: Target) -> Target:
    """The module's drive, as manufactured: erased, with no PINs, and with the one identity."""
    if served.process is None:
        served.start()
    with served.client(tls=True) as client:
        client.manufactured()
    return served
