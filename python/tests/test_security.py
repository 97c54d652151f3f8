"""TLS and tokens, as clients of other projects and our own packages use them."""

from __future__ import annotations

import base64
import os
import pickle
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import fsspec
import pyarrow as pa
import pyarrow.flight
import pyarrow.parquet
import pytest
from conftest import command, rich
from fleets import PROGRAM
from guides import run_guide
from test_docs import ROOT

import msgexpress
import skytether

OPTIONS = adbc_driver_flightsql.DatabaseOptions


def run(*arguments: object) -> str:
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout.strip()


class Secure:
    """A host over an embedded fleet, with TLS, that requires tokens."""

    def __init__(self, place: Path) -> None:
        self.fleet, self.pki = place / "fleet", place / "pki"
        run("pki", "init", self.pki)
        with skytether.open(self.fleet, drives=2) as fleet:
            fleet.ingest(pa.table({"v": range(100)}), "d.t")
        self.ca, self.errors = self.pki / "ca.pem", place / "stderr"
        options = ("--tls-cert", self.pki / "host.pem", "--tls-key", self.pki / "host.key", "--require-auth", "--listen", "grpc+tls://127.0.0.1:0")
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen([PROGRAM, "host", "serve", "--fleet", self.fleet, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"\(TLS, authentication required\) at (grpc\+tls://[\d.]+:\d+)$", line.strip())
        assert found, (line, self.errors.read_text())
        self.url = found[1]
        self.token = self.new_token("tests")

    def new_token(self, name: str, *options: str) -> str:
        return run("token", "create", name, "--fleet", self.fleet, *options)

    def adbc(self, **options: str) -> flight_sql.Connection:
        return flight_sql.connect(self.url, {OPTIONS.TLS_ROOT_CERTS.value: self.ca.read_text(), **options}, autocommit=True)

    def flight(self) -> pa.flight.FlightClient:
        return pa.flight.connect(self.url, tls_root_certs=self.ca.read_bytes())


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    host = Secure(tmp_path_factory.mktemp("secure"))
    yield host
    host.process.terminate()
    assert host.process.wait(timeout=30) == 0
    host.process.stdout.close()
    assert "panicked" not in host.errors.read_text()


def total(connection: flight_sql.Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(v) AS s FROM d.t")
        return cursor.fetchone()[0]


def test_fsspec_reads_over_the_tls_connection(secure: Secure) -> None:
    with skytether.connect(secure.url, token=secure.token, tls_ca=secure.ca):
        address = secure.url.removeprefix("grpc+tls://")
        with fsspec.open(f"skytether://{address}/d.t.parquet") as file:
            assert pyarrow.parquet.read_table(file).num_rows == 100


def test_adbc_asks_with_tls_and_a_token(secure: Secure) -> None:
    with secure.adbc(**{OPTIONS.AUTHORIZATION_HEADER.value: f"Bearer {secure.token}"}) as connection:
        assert total(connection) == 4950


def test_adbc_logs_in_with_the_name_of_a_token(secure: Secure) -> None:
    """The driver sends `Basic` without padding, and takes the token from the answer."""
    with secure.adbc(username="tests", password=secure.token) as connection:
        assert total(connection) == 4950


@pytest.mark.parametrize("header", [None, "Bearer sky_wrong", "Basic dGVzdHM6c2t5X3dyb25n", "nonsense"])
def test_adbc_without_a_valid_token_is_refused(secure: Secure, header: str | None) -> None:
    options = {} if header is None else {OPTIONS.AUTHORIZATION_HEADER.value: header}
    with pytest.raises(adbc_driver_manager.Error, match="(?i)unauthenticated|token"), secure.adbc(**options) as connection:
        total(connection)


def test_adbc_refuses_an_unknown_authority(secure: Secure, tmp_path: Path) -> None:
    run("pki", "init", tmp_path)
    other = (tmp_path / "ca.pem").read_text()
    options = {OPTIONS.AUTHORIZATION_HEADER.value: f"Bearer {secure.token}", OPTIONS.TLS_ROOT_CERTS.value: other}
    with pytest.raises(adbc_driver_manager.Error), flight_sql.connect(secure.url, options, autocommit=True) as connection:
        total(connection)


def test_pyarrow_logs_in_and_gets_unauthenticated_errors(secure: Secure) -> None:
    with secure.flight() as client:
        with pytest.raises(pa.flight.FlightUnauthenticatedError):
            list(client.do_action("list"))
        with pytest.raises(pa.flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("tests", "sky_wrong")
        with pytest.raises(pa.flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("another", secure.token)
        pair = client.authenticate_basic_token("tests", secure.token)
        assert pair == (b"authorization", f"Bearer {secure.token}".encode())
        options = pa.flight.FlightCallOptions(headers=[pair])
        assert b"d.t" in next(iter(client.do_action("list", options))).body.to_pybytes()


def test_revoked_and_expired_tokens_are_refused_at_once(secure: Secure) -> None:
    token = secure.new_token("brief")
    options = pa.flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    with secure.flight() as client:
        list(client.do_action("list", options))
        run("token", "revoke", "brief", "--fleet", secure.fleet)
        with pytest.raises(pa.flight.FlightUnauthenticatedError, match="revoked"):
            list(client.do_action("list", options))


def test_connect_takes_token_and_authority(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    with skytether.connect(secure.url, token=secure.token, tls_ca=secure.ca) as fleet:
        assert fleet.sql("SELECT sum(v) AS s FROM d.t").to_arrow().to_pydict() == {"s": [4950]}
        # A data set out of a pickle connects again with the same credentials, which are not in the pickle.
        pickled = pickle.dumps(fleet.dataset("d.t"))
        assert secure.token.encode() not in pickled and base64.b64encode(secure.token.encode()) not in pickled
        assert pickle.loads(pickled).count_rows() == 100
    with msgexpress.connect(secure.url, token=secure.token, tls_ca=os.fspath(secure.ca)) as db:
        assert db.fleet.sql("SELECT count(*) AS n FROM d.t").to_arrow().to_pydict() == {"n": [100]}
    with pytest.raises(skytether.InvalidError, match="requires authentication"):
        skytether.connect(secure.url, tls_ca=secure.ca)
    with pytest.raises(skytether.InvalidError, match="--tls-ca"):
        skytether.connect(secure.url, token=secure.token)
    monkeypatch.setenv("SKYTETHER_TOKEN", secure.token)
    monkeypatch.setenv("SKYTETHER_TLS_CA", os.fspath(secure.ca))
    with skytether.connect(secure.url) as fleet:
        assert fleet.sql("SELECT count(*) AS n FROM d.t").to_arrow().to_pydict() == {"n": [100]}


#: The calls of each command that takes a fleet. Each finds what the one before has left.
CALLS = [
    ("ingest", "a.h5ad", "--to", "t/x"),
    ("ls", "--format", "csv"),
    ("info", "t/x", "--format", "json"),
    ("de", "t/x", "--groupby", "type", "--transform", "log1p_cp10k", "--top", 1, "--format", "csv"),
    ("export", "t/x", "out.h5ad", "--force"),
    ("drop", "t/x"),
]


@pytest.mark.parametrize("from_environment", [False, True])
def test_msgx_reaches_a_host_with_tls_and_a_token(secure: Secure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_environment: bool) -> None:
    monkeypatch.chdir(tmp_path)
    rich().write_h5ad(tmp_path / "a.h5ad")
    options = () if from_environment else ("--token", secure.token, "--tls-ca", secure.ca)
    # Options win over the environment.
    environment = {"SKYTETHER_TOKEN": secure.token if from_environment else "sky_wrong", "SKYTETHER_TLS_CA": str(secure.ca if from_environment else tmp_path)}
    done = [command(*call, "--fleet", secure.url, *options, **environment) for call in CALLS]
    assert [each.returncode for each in done] == [0] * len(CALLS), [each.stderr for each in done]
    assert done[1].stdout.splitlines()[1].startswith("t/x,60,40") and '"cells": 60' in done[2].stdout
    assert len(done[3].stdout.splitlines()) == 4 and (tmp_path / "out.h5ad").stat().st_size > 5000
    assert not any(secure.token in each.stdout + each.stderr for each in done)


def test_msgx_without_valid_credentials_is_refused(secure: Secure, tmp_path: Path) -> None:
    run("pki", "init", tmp_path)
    for options, said in [
        (("--tls-ca", secure.ca), "requires authentication"),
        (("--tls-ca", secure.ca, "--token", "sky_wrong"), "token"),
        (("--tls-ca", tmp_path / "ca.pem", "--token", secure.token), "--tls-ca"),
        (("--token", secure.token), "--tls-ca"),
        (("--tls-ca", tmp_path / "none.pem", "--token", secure.token), "none.pem"),
    ]:
        done = command("ls", "--fleet", secure.url, *options)
        assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1, (options, done.stderr)
        assert secure.token not in done.stderr
    wrong = command("ls", "--fleet", secure.url, "--tls-ca", secure.ca, "--token", "two words")
    assert wrong.returncode == 2 and "--token" in wrong.stderr and "two words" not in wrong.stderr, wrong.stderr


def test_msgx_help_names_credentials_of_each_command() -> None:
    for name, *_ in CALLS:
        text = command(name, "--help").stdout
        assert all(said in text for said in ("--token TOKEN", "--tls-ca FILE", "SKYTETHER_TOKEN", "SKYTETHER_TLS_CA")), name


def test_the_guide_to_security_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands in order, those that serve in the background, on ports of this test's own."""
    serving, printed = run_guide("docs/security.md", tmp_path, monkeypatch)
    assert serving == 2 and sum("17.5" in text or "17.2" in text for text in printed) == 2, printed
    assert any("laptop" in text and "read:taxi" in text for text in printed), printed
    assert (ROOT / "docs" / "security.md").read_text().count("```") > 6
