"""The conformance suite of the Java client (protocol 3.0.6) against a drive.

`make test` runs the classes of `FAST`; `make soak` runs the suite's own runner's classes over plain connections, over
plain and TLS ones, and the classes beyond that runner.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .jars import need_java
from .suite import CONFORMANCE, Results, run
from .targets import Target

#: Classes that take some 12 s in all and cover every area: values and versions, ranges, asynchronous requests, batches,
#: and administration (security, PINs, setup, logs).
FAST = {
    "basicAPI.KineticBasicAPITest": 19,
    "boundary.AdvancedAPIBoundaryTest": 43,
    "asyncAPI.KineticAsyncAPITest": 19,
    "batchOp.BatchBasicAPITest": 28,
    "adminAPI.KineticAdminTest": 37,
}

#: Classes beyond the suite's runner. All but those for peers know one drive. FirmwareDownloadTest is left out: our
#: drive takes no firmware, which `test_wire` shows.
BEYOND = {
    "batchOp.BatchBasicAPITest": 28,
    "batchOp.BatchBoundaryTest": 6,
    "simulator.client.internal.KineticImplTest": 32,
    "simulator.client.admin.impl.PINTest": 5,
    "simulator.client.admin.SecurityOperationTest": 1,
    "simulator.client.admin.SecurityPersistTest": 3,
    "simulator.client.admin.impl.SecurityEraseTest": 6,
    "sanityAPI.BasicAPISanityTest": 7,
    "sanityAPI.AdminAPISanityTest": 5,
}
#: Two of PinOpTest's four cases restart the server, which they can't do with one from outside. `test_wire` has them.
PIN_CASES = {"simulator.client.admin.impl.PinOpTest": 4}
RESTARTS = {
    "testLockDevice_withUnNullOrEmptyLockPin_LockEnable",
    "testLockDevice_withUnNullOrEmptyLockPin_LockEnable_unLockDevice",
}
PEERS = {"simulator.client.internal.PeerToPeerPushTest": 1, "simulator.client.p2p.PeerToPeerOperationTest": 4}


@pytest.fixture(autouse=True, scope="module")
def java() -> None:
    need_java()


def check(results: Results, counts: dict[str, int] | None, total: int) -> None:
    """All tests passed, and all were there."""
    assert not results.failed and not results.skipped, results.told()
    assert len(results.passed) == total, results.counts
    assert counts is None or results.counts == counts


@pytest.mark.simulator
def test_fast_part_of_the_suite_passes(drive: Target, tmp_path: Path) -> None:
    check(run(list(FAST), tmp_path, drive.address), FAST, 146)


@pytest.mark.simulator
@pytest.mark.soak
def test_suite_passes_over_plain_connections(drive: Target, tmp_path: Path) -> None:
    check(run(list(CONFORMANCE), tmp_path, drive.address, deadline=600), CONFORMANCE, 251)


@pytest.mark.simulator
@pytest.mark.timeout(900)
@pytest.mark.soak
def test_suite_passes_over_plain_and_tls_connections(usual: Target, tmp_path: Path) -> None:
    check(run(list(CONFORMANCE), tmp_path, usual.address, transports=("NIO", "SSL"), deadline=600), None, 465)


@pytest.mark.simulator
@pytest.mark.timeout(900)
@pytest.mark.soak
def test_suite_passes_over_blocking_sockets_too(usual: Target, tmp_path: Path) -> None:
    check(run(list(CONFORMANCE), tmp_path, usual.address, transports=("NIO", "SSL", "TCP"), deadline=800), None, 679)


@pytest.mark.simulator
@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.soak
def test_class_beyond_the_runner_passes(drive: Target, tmp_path: Path, name: str) -> None:
    check(run([name], tmp_path, drive.address), {name: BEYOND[name]}, BEYOND[name])


@pytest.mark.simulator
@pytest.mark.soak
def test_pin_class_passes_but_for_cases_that_restart(drive: Target, tmp_path: Path) -> None:
    results = run(list(PIN_CASES), tmp_path, drive.address)
    others = {test: why for test, why in results.failed.items() if test.split(".")[-1].partition("(")[0] not in RESTARTS}
    assert not others and not results.skipped, results.told()
    assert results.counts == PIN_CASES and len(results.passed) >= 2


@pytest.mark.simulator
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.soak
def test_class_for_peers_passes(drive: Target, other: Target, tmp_path: Path, name: str) -> None:
    check(run([name], tmp_path, drive.address, other=other.address), {name: PEERS[name]}, PEERS[name])
