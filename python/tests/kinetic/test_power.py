"""Power levels, which came with protocol 4."""

from __future__ import annotations

import pytest

from . import wire
from .targets import Target, chosen
from .wire import Client, Code, Type, acl, message, scope

pytestmark = pytest.mark.skipif(chosen() != "drive", reason="the Java simulator speaks protocol 3, which has no power levels")

OPERATIONAL, HIBERNATE, SHUTDOWN = 1, 2, 3

#: In the log CONFIGURATION.
CURRENT_LEVEL = 18


def set_level(client: Client, level: int) -> wire.Response:
    return client.call(Type.POWER, {10: message({1: level})})


def test_hibernating_drive_answers_little_and_wakes(drive: Target) -> None:
    with drive.client() as client, drive.client(tls=True) as secure:
        assert client.put(b"k", b"v").code == Code.SUCCESS
        assert set_level(client, HIBERNATE).code == Code.SUCCESS
        for refused in (client.get(b"k"), client.put(b"l", b"v"), client.delete(b"k", force=True), client.flush(), secure.set_pin(b"", b"1", erase=True)):
            assert refused.code == Code.HIBERNATE, refused
        assert client.noop().code == Code.SUCCESS
        assert client.get_log(wire.CONFIGURATION).log.sub(5).int(CURRENT_LEVEL) == HIBERNATE
        assert set_level(client, OPERATIONAL).code == Code.SUCCESS
        assert client.get_log(wire.CONFIGURATION).log.sub(5).int(CURRENT_LEVEL) == OPERATIONAL
        assert (client.get(b"k").value, client.get(b"l").code) == (b"v", Code.NOT_FOUND)


def test_power_level_is_for_those_who_may_and_no_shutdown(drive: Target) -> None:
    everything = acl(wire.IDENTITY, wire.KEY, scope(*range(6), *range(7, 11)))
    with drive.client(tls=True) as secure:
        assert secure.set_acls(everything, acl(2, b"second", scope(wire.READ, wire.WRITE))).code == Code.SUCCESS
        assert set_level(secure, SHUTDOWN).code == Code.INVALID_REQUEST
    with drive.client(identity=2, key=b"second") as user:
        assert set_level(user, HIBERNATE).code == Code.NOT_AUTHORIZED
        assert user.put(b"k", b"v").code == Code.SUCCESS
