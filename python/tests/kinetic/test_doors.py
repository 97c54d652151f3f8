"""One process with all doors: Flight, Kinetic and Kinetic over TLS, at once and over one drive."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skytether
from fleets import PROGRAM

from . import wire
from .targets import START, chosen
from .wire import Client, Code

pytestmark = pytest.mark.skipif(chosen() != "drive", reason="it starts a drive of its own")

ROWS = pa.table({"city": ["Rome", "Oslo"] * 500, "fare": [12.5, 31.0] * 500})
BY_CITY = "SELECT city, sum(fare) AS fare FROM taxi.trips GROUP BY city ORDER BY city"
ANSWER = {"city": ["Oslo", "Rome"], "fare": [15500.0, 6250.0]}
SCHEMES = ("grpc", "kinetic", "kinetics")


def serve(place: Path, *words: object) -> tuple[subprocess.Popen[str], list[str]]:
    """Starts a command with `--listen` options; the addresses that it prints."""
    with open(place / "stderr", "a") as errors:
        process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=errors, text=True)
    urls = []
    for _ in range(words.count("--listen")):
        found = re.search(r"\w+://127\.0\.0\.1:\d+$", process.stdout.readline().strip())
        assert found, (words, (place / "stderr").read_text())
        urls.append(found[0])
    return process, urls


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The addresses of a drive's doors, by scheme, and of a host that reaches it over Flight."""
    subprocess.run([PROGRAM, "pki", "init", tmp_path / "pki"], check=True, capture_output=True, timeout=START)
    processes = []
    try:
        listen = [word for scheme in SCHEMES for word in ("--listen", f"{scheme}://127.0.0.1:0")]
        tls = ["--tls-cert", tmp_path / "pki" / "host.pem", "--tls-key", tmp_path / "pki" / "host.key"]
        process, urls = serve(tmp_path, "drive", "serve", "--data", tmp_path / "drive", *listen, *tls)
        processes.append(process)
        assert [url.split("://")[0] for url in urls] == list(SCHEMES)
        process, (host,) = serve(tmp_path, "host", "serve", "--drives", urls[0], "--listen", "127.0.0.1:0")
        processes.append(process)
        yield dict(zip(SCHEMES, urls, strict=True)) | {"host": host}
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=START) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def client(doors: dict[str, str], scheme: str) -> Client:
    return Client("127.0.0.1", int(doors[scheme].rsplit(":", 1)[1]), tls=scheme == "kinetics")


def at_once(*works: Callable[[], None]) -> None:
    """Does all of it in threads, and raises what one of them raised."""
    failed: list[BaseException] = []

    def noted(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=noted, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_one_process_serves_all_doors_at_once(doors: dict[str, str]) -> None:
    with skytether.connect(doors["host"]) as fleet, client(doors, "kinetic") as plain, client(doors, "kinetics") as secure:
        # Each door knows the other one's port, and the keys are the same.
        ports = [int(doors[scheme].rsplit(":", 1)[1]) for scheme in ("kinetic", "kinetics")]
        for on in (plain, secure):
            configuration = on.get_log(wire.CONFIGURATION).log.sub(5)
            assert [configuration.int(10), configuration.int(11)] == ports

        def ingest() -> None:
            for n in range(5):
                fleet.ingest(ROWS, "taxi.trips", replace=n > 0)
                assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER

        def put(on: Client, begin: bytes) -> None:
            for n in range(200):
                assert on.put(begin + b"%d" % n, begin * 1000, version=b"1").code == Code.SUCCESS
                assert on.get(begin + b"%d" % n).value == begin * 1000

        at_once(ingest, lambda: put(plain, b"plain"), lambda: put(secure, b"secure"))
        assert plain.get(b"secure199").value == b"secure" * 1000 and secure.get(b"plain0").version == b"1"
        # What Flight's host stored is read by its name over Kinetic, and no client's key changes it.
        for on in (plain, secure):
            assert on.get(b"taxi/trips").code == Code.SUCCESS and on.get(b"taxi/absent").code == Code.NOT_FOUND
        assert plain.put(b"taxi/trips", b"another").code == Code.SUCCESS
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER


def test_host_over_kinetic_leaves_a_fleet_of_flight_alone(doors: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide says so: a fleet belongs to the door by which it was founded."""
    with skytether.connect(doors["host"]) as fleet:
        fleet.ingest(ROWS, "taxi.trips")
        with pytest.raises(skytether.NotFoundError):
            skytether.open(doors["kinetic"], create=False)
        with pytest.raises(skytether.ConflictError, match="another client"):
            skytether.open(doors["kinetic"])
        assert fleet.sql(BY_CITY).to_arrow().to_pydict() == ANSWER
        fleet.ingest(ROWS, "taxi.more")
        assert fleet.sql("SELECT count(*) AS n FROM taxi.more").to_arrow().to_pydict() == {"n": [1000]}
