"""A fleet whose drives and host are processes, fleets whose disk is full, and drives of a newer version."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.flight
import pytest
from conftest import assert_same, rich
from fleets import PROGRAM, serving

import msgexpress
import skytether

@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    with serving(tmp_path_factory.mktemp("served")) as fleet:
        yield fleet


def test_expression_through_a_host_is_as_embedded(served, db):
    adata = rich(cells=200, genes=150)
    with msgexpress.connect(served.url) as remote:
        there, here = remote.ingest(adata, "t/x"), db.ingest(adata, "t/x")
        for options in ({"transform": "log1p_cp10k"}, {"transform": None, "method": "student", "reference": "B"}, {"transform": "log1p_cp10k", "groups": ["NK"], "n_genes": 9}):
            found, wanted = there.rank_genes_groups("type", **options), here.rank_genes_groups("type", **options)
            assert len(wanted.to_df()) > 0
            pd.testing.assert_frame_equal(found.to_df(), wanted.to_df(), check_exact=True)
        chosen = there.ttest({"type": "T", "ok": True}, list(range(50)), transform="log1p_cp10k", overlap=True)
        pd.testing.assert_frame_equal(chosen.to_df(), here.ttest({"type": "T", "ok": True}, list(range(50)), transform="log1p_cp10k", overlap=True).to_df(), check_exact=True)
        receipt = found.receipt.to_dict()
        assert {d["name"] for d in receipt["drives"]} <= {f"drive-{n}" for n in range(4)} and receipt["drives"]
        assert receipt["bytes_moved"] > 0 and all(d["rung"] == "full" for d in receipt["drives"])
        assert "drive-" in str(found.receipt)
        assert_same(there.to_anndata(), adata)
        pd.testing.assert_frame_equal(there.obs, here.obs)
        # Somebody else sees it, and sees it go.
        with msgexpress.connect(served.url) as other:
            assert list(other) == ["t/x"] and other["t/x"].shape == (200, 150)
            other.drop("t/x")
        assert list(remote) == []
        with pytest.raises(skytether.NotFoundError, match="t.x"):
            there.rank_genes_groups("type", transform=None)


def test_errors_have_the_same_detail_embedded_and_through_a_host(served, db):
    with skytether.connect(served.url) as remote:
        for fleet in (remote, db.fleet):
            fleet.ingest(pa.table({"v": range(10)}), "d.details")
            for sql, kind, detail in (
                ("SELECT * FROM d.nope", "not found", {"type": "missing_dataset", "dataset": "d.nope"}),
                ("SELECT * FROM nope", "not found", {"type": "missing_table", "table": "nope"}),
                ("SELECT * FROM d.details.other", "not found", {"type": "missing_table", "table": "other"}),
                ("SELECT nope FROM d.details", "invalid", {"type": "missing_column", "column": "nope"}),
                ("SELECT v / 0 FROM d.details", "invalid", None),
            ):
                with pytest.raises(skytether.SkytetherError) as told:
                    fleet.sql(sql).to_arrow()
                assert (told.value.kind, told.value.detail) == (kind, detail), (sql, told.value)
                again = pickle.loads(pickle.dumps(told.value))
                assert (type(again), again.detail, str(again)) == (type(told.value), detail, str(told.value))
            with pytest.raises(skytether.InvalidError) as told:
                fleet.describe("nope")
            assert told.value.detail == {"type": "invalid_dataset_name", "name": "nope"}
            fleet.drop("d.details")
    for kind, error in skytether.errors.BY_KIND.items():
        assert error.kind == kind and error("x").detail is None and error("x").detail_type is None


def test_errors_keep_their_kind_through_a_host(served):
    table = pa.table({"v": range(10)})
    with skytether.connect(served.url) as fleet:
        fleet.ingest(table, "d.kinds")
        with pytest.raises(skytether.ConflictError, match="d.kinds"):
            fleet.ingest(table, "d.kinds")
        with pytest.raises(skytether.NotFoundError, match="d.nope"):
            fleet.sql("SELECT * FROM d.nope")
        with pytest.raises(skytether.InvalidError, match="nope"):
            fleet.sql("SELECT nope FROM d.kinds")
        with pytest.raises(skytether.UnsupportedError):
            fleet.sql("DROP TABLE d.kinds")
        fleet.drop("d.kinds")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HOSTILE = {
    "random bytes": np.random.default_rng(5).bytes(70_000),
    "zeros": bytes(10_000),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: drive\r\nContent-Length: 99999999999\r\n\r\n",
    "a truncated preface": PREFACE[:11],
    "only a preface": PREFACE,
    "a frame that says it is 16 MiB": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100),
    "frames of every kind": PREFACE + bytes(9) + b"".join(b"\x00\x00\x04" + bytes([kind]) + b"\xff\x00\x00\x00\x03abcd" for kind in range(12)),
    "headers that are none": PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x20\x01\x05\x00\x00\x00\x01" + b"\x9d\xff" * 16,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_leave_drives_and_host_serving(served, what):
    host = served.url.removeprefix("grpc://").split(":")
    for address in (served.drives[1], (host[0], int(host[1]))):
        for closes in (True, False):
            with socket.create_connection(address, timeout=60) as line:
                try:
                    line.sendall(HOSTILE[what])
                    if closes:
                        line.shutdown(socket.SHUT_WR)
                        # Whatever it answers, it comes to an end.
                        while line.recv(65536):
                            pass
                except TimeoutError:
                    raise
                except OSError:
                    # It has hung up, which is an answer.
                    pass
    assert all(process.poll() is None for process in served.processes), served.errors.read_text()
    table = pa.table({"v": range(1000)})
    with skytether.connect(served.url) as fleet:
        fleet.ingest(table, "d.after", replace=True)
        assert fleet.sql("SELECT sum(v) AS s FROM d.after").to_arrow().to_pydict() == {"s": [499500]}
        assert all(drive["error"] is None for drive in fleet.status()) and len(fleet.status()) == 4


def test_flight_calls_that_mean_nothing_are_refused(served):
    host = served.url.removeprefix("grpc://").split(":")
    for address in (served.drives[0], (host[0], int(host[1]))):
        with pa.flight.connect(f"grpc://{address[0]}:{address[1]}") as client:
            for ticket in (b"", b"{}", b"\xff" * 1000, np.random.default_rng(6).bytes(100_000)):
                with pytest.raises(pa.ArrowException):
                    client.do_get(pa.flight.Ticket(ticket)).read_all()
            with pytest.raises(pa.ArrowException):
                list(client.do_action(pa.flight.Action("no such action", b"\x00" * 100)))
    assert all(process.poll() is None for process in served.processes), served.errors.read_text()


# ----------------------------------------------------------------------------------------------------------- full disks


def held(fleet: skytether.Fleet) -> list[tuple[int, int]]:
    return [(drive["usage"]["keys"], drive["usage"]["value_bytes"]) for drive in fleet.status()]


def kept(place: Path) -> set[Path]:
    return {path for path in place.rglob("slices/*/*") if path.is_file()}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MiB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here: test_a_file_that_may_not_grow tests the same by a limit on files")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk(small_disk):
    old = pa.table({"v": range(1000)})
    noise = np.random.default_rng(7)
    with skytether.open(small_disk / "fleet", drives=2) as fleet:
        fleet.ingest(old, "d.old")
        before, files = held(fleet), kept(small_disk)
        for attempt in range(2):
            for name, replace in (("d.new", False), ("d.old", True)):
                with pytest.raises(skytether.ExhaustedError, match="drive-"):
                    fleet.ingest(pa.table({"noise": noise.integers(-(2**63), 2**63 - 1, 5_000_000)}), name, replace=replace)
                # Earlier data sets stay, nothing of the new one does, and there is room again.
                assert [d["name"] for d in fleet.ls()] == ["d.old"]
                assert fleet.sql("SELECT v FROM d.old ORDER BY v").to_arrow().equals(old.cast(pa.schema([("v", pa.int64())])))
                assert held(fleet) == before and kept(small_disk) == files, attempt
        fleet.ingest(pa.table({"noise": noise.integers(-(2**63), 2**63 - 1, 500_000)}), "d.new")
        assert fleet.sql("SELECT count(*) AS n FROM d.new").to_arrow().to_pydict() == {"n": [500_000]}
    with skytether.open(small_disk / "fleet") as fleet:
        assert sorted(d["name"] for d in fleet.ls()) == ["d.new", "d.old"] and not list(small_disk.rglob("tmp/*"))


FILE_LIMIT = """
import os, resource, sys, json
import pyarrow as pa
import skytether

fleet = skytether.open(sys.argv[1], drives=2)
fleet.ingest(pa.table({"v": range(1000)}), "d.old")
held = lambda: [(drive["usage"]["keys"], drive["usage"]["value_bytes"]) for drive in fleet.status()]
before = held()
# One row is one slice at least: this one is longer than a file may be, and the index is not.
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, unlimited[1]))
try:
    fleet.ingest(pa.table({"blob": [b"small", os.urandom(6 << 20)]}), "d.new")
    said = "nothing"
except skytether.SkytetherError as e:
    said = f"{type(e).__name__}: {e}"
n = fleet.sql("SELECT sum(v) AS s FROM d.old").to_arrow().to_pydict()
after = held()
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
fleet.ingest(pa.table({"blob": [b"small", os.urandom(6 << 20)]}), "d.new")
lengths = sorted(len(blob.as_py()) for blob in fleet.sql("SELECT blob FROM d.new").to_arrow()["blob"])
fleet.close()
print(json.dumps({"said": said, "sum": n["s"], "before": before, "after": after, "lengths": lengths}))
"""


def test_a_file_that_may_not_grow(tmp_path):
    done = subprocess.run([sys.executable, "-c", FILE_LIMIT, str(tmp_path / "fleet")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["said"].startswith("ExhaustedError: ") and "drive-" in found["said"], found
    assert found["sum"] == [499500] and found["before"] == found["after"] and found["lengths"] == [5, 6 << 20], found


# ------------------------------------------------------------------------------------------------------- newer versions


@pytest.mark.parametrize(("which", "newer"), [("fleet.json", 3), ("drives/1/drive.json", 2)])
def test_a_store_of_a_newer_version_is_left_alone(tmp_path, which, newer):
    with skytether.open(tmp_path / "fleet", drives=2) as fleet:
        fleet.ingest(pa.table({"v": range(10)}), "d.t")
    about = tmp_path / "fleet" / which
    written = about.read_bytes()
    # A newer version may say more, too.
    about.write_text(json.dumps({**json.loads(written), "format": newer, "more": {"of": "it"}}))
    files = {path: path.read_bytes() for path in kept(tmp_path)}
    with pytest.raises(skytether.UnsupportedError, match=rf"newer.*format {newer}|format {newer}.*newer"):
        skytether.open(tmp_path / "fleet")
    assert {path: path.read_bytes() for path in kept(tmp_path)} == files
    about.write_bytes(written)
    with skytether.open(tmp_path / "fleet") as fleet:
        assert fleet.sql("SELECT count(*) AS n FROM d.t").to_arrow().to_pydict() == {"n": [10]}


def test_a_fleet_that_another_process_serves(tmp_path):
    skytether.open(tmp_path / "fleet", drives=2).close()
    process = subprocess.Popen([PROGRAM, "host", "serve", "--fleet", tmp_path / "fleet", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    try:
        url = process.stdout.readline().split()[-1]
        with pytest.raises(skytether.ConflictError, match=rf"\b{process.pid}\b"):
            msgexpress.open(tmp_path / "fleet")
        with msgexpress.connect(url) as db:
            assert db.ingest(rich(), "t/x").shape == (60, 40)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    # Killed, it holds nothing, and what it had committed is there.
    with msgexpress.open(tmp_path / "fleet") as db:
        assert db["t/x"].shape == (60, 40)
