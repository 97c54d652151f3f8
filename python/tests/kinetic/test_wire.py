"""What a drive does, byte by byte, as the published protocol and the Java simulator have it.

Tests marked `simulator` pass against the Java simulator as well (`test_simulator.py` runs them there), which shows that
the test is right. Others are for what the simulator leaves out.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Iterator

import pytest

from . import wire
from .targets import Target
from .wire import Client, Code, Type, acl, frame, message, pushed, scope

simulator = pytest.mark.simulator


@pytest.fixture
def client(drive: Target) -> Iterator[Client]:
    with drive.client() as client:
        yield client


@pytest.fixture
def secure(drive: Target) -> Iterator[Client]:
    with drive.client(tls=True) as client:
        yield client


def fill(client: Client, *keys: bytes) -> None:
    for key in keys:
        assert client.put(key, b"value of " + key, version=b"1").code == Code.SUCCESS


# Greeting, logs.


@simulator
def test_drive_greets_with_configuration_and_limits(drive: Target) -> None:
    with drive.client() as one, drive.client(tls=True) as other:
        for greeting in (one.greeting, other.greeting):
            assert (greeting.auth, greeting.code, greeting.signed_by) == (wire.UNSOLICITED, Code.SUCCESS, None)
            configuration, limits = greeting.log.sub(5), greeting.log.sub(8)
            assert configuration.text(15)[0] in "34" and configuration.bytes(7)
            assert (configuration.int(10), configuration.int(11)) == (drive.address.port, drive.address.tls_port)
            assert limits.int(1) >= 1024 and limits.int(2) == 1 << 20 and limits.int(3) == 2048 and limits.int(9) >= 200
        assert one.connection != other.connection and one.connection is not None


@simulator
def test_log_has_every_type_that_was_asked_for(client: Client) -> None:
    fill(client, b"a", b"b")
    log = client.get_log(*range(7)).log
    assert all(0 <= one.float(2) <= 1 for one in log.subs(2)) and log.subs(2)
    assert all(one.bytes(1) for one in log.subs(3)) and log.subs(3)
    assert log.sub(4).int(4) > 0 and 0 <= log.sub(4).float(5) <= 1
    puts = [one for one in log.subs(6) if one.int(1) in (Type.PUT, Type.PUT - 1)]
    assert sum(one.int(4, 0) for one in puts) >= 2, log.subs(6)
    assert log.bytes(7) and log.sub(8).int(1)
    alone = client.get_log(wire.CAPACITIES).log
    assert alone.ints(1) == [wire.CAPACITIES] and set(alone) == {1, 4}


@simulator
def test_log_of_an_unknown_device_is_not_found(client: Client) -> None:
    assert client.get_log(wire.DEVICE, device=b"com.example.none").code == Code.NOT_FOUND


# Values and versions.


@simulator
def test_value_comes_back_with_its_metadata(client: Client) -> None:
    assert client.put(b"k", b"v" * 1000, version=b"v1", tag=b"\1\2\3", algorithm=4).code == Code.SUCCESS
    found = client.get(b"k")
    entry = found.entry
    assert (found.code, found.value, found.version, entry.bytes(5), entry.int(6)) == (Code.SUCCESS, b"v" * 1000, b"v1", b"\1\2\3", 4)
    found = client.get(b"k", metadata_only=True)
    assert (found.code, found.value, found.version) == (Code.SUCCESS, b"", b"v1")
    found = client.get(b"k", kind=Type.GETVERSION)
    assert (found.code, found.value, found.version) == (Code.SUCCESS, b"", b"v1")
    assert client.get(b"none").code == Code.NOT_FOUND


@simulator
def test_largest_and_smallest_value_come_back(client: Client) -> None:
    value = bytes(range(256)) * 4096
    assert client.put(b"k", value).code == Code.SUCCESS
    assert client.get(b"k").value == value
    assert client.put(b"empty").code == Code.SUCCESS
    assert client.get(b"empty").value == b""


def test_value_too_long_is_refused_and_the_connection_stays(client: Client) -> None:
    assert client.put(b"k", bytes((1 << 20) + 1)).code == Code.INVALID_REQUEST
    assert client.get(b"k").code == Code.NOT_FOUND


@simulator
def test_put_needs_the_version_that_is_stored(client: Client) -> None:
    assert client.put(b"k", b"1", version=b"v1", old=b"v0").code == Code.VERSION_MISMATCH
    assert client.put(b"k", b"1", version=b"v1").code == Code.SUCCESS
    assert client.put(b"k", b"2", version=b"v2").code == Code.VERSION_MISMATCH
    assert client.put(b"k", b"2", version=b"v2", old=b"v0").code == Code.VERSION_MISMATCH
    assert client.get(b"k").value == b"1"
    assert client.put(b"k", b"2", version=b"v2", old=b"v1").code == Code.SUCCESS
    assert client.put(b"k", b"3", version=b"v3", force=True).code == Code.SUCCESS
    assert (client.get(b"k").value, client.get(b"k").version) == (b"3", b"v3")


@simulator
def test_delete_needs_the_version_that_is_stored(client: Client) -> None:
    fill(client, b"k", b"l")
    assert client.delete(b"k", b"2").code == Code.VERSION_MISMATCH
    assert client.delete(b"k", b"1").code == Code.SUCCESS
    assert client.delete(b"k", b"1").code == Code.NOT_FOUND
    assert client.delete(b"k", force=True).code == Code.SUCCESS
    assert client.delete(b"l", force=True).code == Code.SUCCESS
    assert client.keys(b"", b"\xff") == []


@simulator
def test_put_without_synchronization_is_refused(client: Client) -> None:
    assert client.put(b"k", b"v", sync=None).code == Code.INVALID_REQUEST
    assert client.get(b"k").code == Code.NOT_FOUND


# Order.


@simulator
def test_neighbours_are_found_in_the_order_of_bytes(client: Client) -> None:
    fill(client, b"a", b"a\0", b"b", b"\x80", b"\xff")
    for key, kind, expected in [
        (b"", Type.GETNEXT, b"a"), (b"a", Type.GETNEXT, b"a\0"), (b"aa", Type.GETNEXT, b"b"), (b"b", Type.GETNEXT, b"\x80"),
        (b"\xff\xff", Type.GETPREVIOUS, b"\xff"), (b"\x80", Type.GETPREVIOUS, b"b"), (b"b", Type.GETPREVIOUS, b"a\0"),
    ]:  # fmt: skip
        found = client.get(key, kind=kind)
        assert (found.code, found.key, found.value) == (Code.SUCCESS, expected, b"value of " + expected), (key, kind)
    assert client.get(b"\xff", kind=Type.GETNEXT).code == Code.NOT_FOUND
    assert client.get(b"a", kind=Type.GETPREVIOUS).code == Code.NOT_FOUND


@simulator
def test_ranges_have_ends_limits_and_both_directions(client: Client) -> None:
    keys = [b"k%02d" % n for n in range(30)]
    fill(client, *keys)
    assert client.keys(b"k05", b"k09") == keys[5:10]
    assert client.keys(b"k05", b"k09", inclusive=(False, True)) == keys[6:10]
    assert client.keys(b"k05", b"k09", inclusive=(True, False)) == keys[5:9]
    assert client.keys(b"k05", b"k09", inclusive=(False, False)) == keys[6:9]
    assert client.keys(b"k05", b"k09", 2) == keys[5:7]
    assert client.keys(b"k05", b"k09", 2, reverse=True) == [b"k09", b"k08"]
    assert client.keys(b"k", b"l", 30, reverse=True) == keys[::-1]
    assert client.keys(b"x", b"z") == []


@simulator
def test_range_that_asks_for_too_many_keys_is_refused(client: Client) -> None:
    most = client.greeting.log.sub(8).int(9)
    assert client.range(b"a", b"b", most).code == Code.SUCCESS
    assert client.range(b"a", b"b", most + 1).code in (Code.INVALID_REQUEST, Code.INTERNAL_ERROR)


# Batches.


@simulator
def test_batch_is_applied_as_a_whole_when_it_ends(drive: Target, client: Client) -> None:
    fill(client, b"old")
    assert client.start_batch(7).code == Code.SUCCESS
    members = [client.batch_put(7, b"a", b"1", version=b"1"), client.batch_put(7, b"b", b"2", version=b"1"), client.batch_delete(7, b"old", b"1")]
    with drive.client() as reader:
        assert reader.keys(b"", b"\xff") == [b"old"]
    # The next message answers the end of the batch: members have none.
    ended = client.end_batch(7, 3)
    assert ended.code == Code.SUCCESS and ended.body.sub(9).ints(2) == members
    assert client.keys(b"", b"\xff") == [b"a", b"b"]


@simulator
def test_batch_with_a_wrong_version_changes_nothing(client: Client) -> None:
    fill(client, b"k")
    assert client.start_batch(1).code == Code.SUCCESS
    client.batch_put(1, b"a", b"1")
    wrong = client.batch_put(1, b"k", b"2", version=b"3", old=b"2")
    client.batch_put(1, b"z", b"3")
    ended = client.end_batch(1, 3)
    # The simulator says that the batch is invalid, the published text that it is the first failure's status.
    assert ended.code in (Code.VERSION_MISMATCH, Code.INVALID_BATCH) and ended.body.sub(9).int(3) == wrong
    assert client.keys(b"", b"\xff") == [b"k"] and client.get(b"k").version == b"1"


@simulator
def test_aborted_batch_and_that_of_a_closed_connection_vanish(drive: Target, client: Client) -> None:
    with drive.client() as leaver:
        assert leaver.start_batch(1).code == Code.SUCCESS
        leaver.batch_put(1, b"left", b"1")
    assert client.start_batch(1).code == Code.SUCCESS
    client.batch_put(1, b"aborted", b"1")
    assert client.abort_batch(1).code == Code.SUCCESS
    assert client.keys(b"", b"\xff") == []


@simulator
def test_batches_of_two_connections_are_apart(drive: Target, client: Client) -> None:
    with drive.client() as other:
        for one, key in ((client, b"a"), (other, b"b")):
            assert one.start_batch(5).code == Code.SUCCESS
            one.batch_put(5, key, b"")
        assert client.end_batch(5, 1).code == Code.SUCCESS
        assert client.keys(b"", b"\xff") == [b"a"]
        assert other.end_batch(5, 1).code == Code.SUCCESS
    assert client.keys(b"", b"\xff") == [b"a", b"b"]


@simulator
def test_member_of_an_unknown_batch_closes_the_connection(drive: Target, client: Client) -> None:
    client.batch_put(99, b"k", b"v")
    said = client.closed()
    assert [one.auth for one in said] == [wire.UNSOLICITED] and said[0].code == Code.INVALID_REQUEST
    with drive.client() as reader:
        assert reader.get(b"k").code == Code.NOT_FOUND


# Security.

EVERYTHING = acl(wire.IDENTITY, wire.KEY, scope(0, 1, 2, 3, 4, 5, 7, 8))


def unknown(drive: Target, identity: int, key: bytes) -> bool:
    """Whether the drive refuses this identity."""
    with drive.client(identity=identity, key=key) as user:
        user.send(Type.NOOP)
        return user.receive().code in (Code.HMAC_FAILURE, None)


@simulator
def test_scopes_limit_an_identity_to_its_keys(drive: Target, secure: Client) -> None:
    fill(secure, b"ours/a", b"theirs/a")
    code = secure.set_acls(EVERYTHING, acl(2, b"second", scope(wire.READ, wire.RANGE, value=b"ours/"), scope(wire.WRITE, value=b"new", offset=5))).code
    assert code == Code.SUCCESS
    with drive.client(identity=2, key=b"second") as user:
        assert user.get(b"ours/a").value == b"value of ours/a"
        assert user.get(b"theirs/a").code == Code.NOT_AUTHORIZED
        assert user.put(b"ours/old1", b"", force=True).code == Code.NOT_AUTHORIZED
        assert user.put(b"ours/new1", b"x").code == Code.SUCCESS
        assert user.delete(b"ours/old1", force=True).code == Code.NOT_AUTHORIZED
        assert user.keys(b"ours/", b"ours/z") == [b"ours/a", b"ours/new1"]
        assert user.range(b"a", b"z").code == Code.NOT_AUTHORIZED or user.keys(b"a", b"z") == []
        # The key that is found counts.
        assert user.get(b"ours/new1", kind=Type.GETNEXT).code == Code.NOT_AUTHORIZED
        for answer in (user.get_log(wire.LIMITS), user.set_cluster(3)):
            assert answer.code == Code.NOT_AUTHORIZED


def test_scope_that_requires_tls_is_none_on_a_plain_port(drive: Target, secure: Client) -> None:
    """The simulator serves such a read."""
    fill(secure, b"k")
    assert secure.set_acls(EVERYTHING, acl(2, b"second", scope(wire.READ, tls=True))).code == Code.SUCCESS
    with drive.client(identity=2, key=b"second") as plain, drive.client(tls=True, identity=2, key=b"second") as encrypted:
        assert plain.get(b"k").code == Code.NOT_AUTHORIZED
        assert encrypted.get(b"k").code == Code.SUCCESS


@simulator
def test_security_on_a_plain_port_is_refused(drive: Target, client: Client) -> None:
    assert client.set_acls(EVERYTHING, acl(2, b"x", scope(wire.READ))).code == Code.INVALID_REQUEST
    assert unknown(drive, 2, b"x")


@simulator
@pytest.mark.parametrize(
    ("wrong", "codes"),
    [
        (acl(2, b"x", scope()), {Code.INVALID_REQUEST}),
        (acl(2, b"x", scope(wire.READ, offset=-1)), {Code.INVALID_REQUEST}),
        (acl(2, b"x", scope(wire.READ), algorithm=-1), {Code.NO_SUCH_HMAC_ALGORITHM}),
    ],
    ids=["no permission", "negative offset", "unknown algorithm"],
)
def test_wrong_acl_refuses_the_whole_request(drive: Target, secure: Client, wrong: bytes, codes: set[int]) -> None:
    assert secure.set_acls(EVERYTHING, acl(3, b"third", scope(wire.READ)), wrong).code in codes
    assert unknown(drive, 3, b"third")


@simulator
def test_wrong_key_is_refused_and_the_connection_stays(drive: Target, client: Client) -> None:
    with drive.client(key=b"wrong") as user:
        user.checks = False
        assert user.put(b"k", b"v").code == Code.HMAC_FAILURE
        user.secret = wire.KEY
        assert user.get(b"k").code == Code.NOT_FOUND


def test_unknown_identity_is_refused_with_a_status(drive: Target) -> None:
    """The simulator answers with a message without a command."""
    with drive.client(identity=12345) as user:
        user.send(Type.NOOP)
        answer = user.receive()
        # It is not signed: the drive has no key of that identity.
        assert (answer.code, answer.auth) == (Code.HMAC_FAILURE, wire.UNSOLICITED)


@simulator
def test_changed_command_with_an_old_signature_is_refused(client: Client) -> None:
    signed = client.command(Type.NOOP)
    changed = client.command(Type.PUT, Client.put_body(b"k"))
    client.raw(frame(message({4: 1, 5: message({1: 1, 2: wire.signature(wire.KEY, signed)}), 7: changed})))
    assert client.receive().code == Code.HMAC_FAILURE
    # Without the length before the command, as a published description has it.
    plain = client.command(Type.NOOP)
    client.raw(frame(message({4: 1, 5: message({1: 1, 2: hmac.new(wire.KEY, plain, hashlib.sha1).digest()}), 7: plain})))
    assert client.receive().code == Code.HMAC_FAILURE
    assert client.get(b"k").code == Code.NOT_FOUND


# PINs, erasure, cluster version.


@simulator
def test_pin_is_changed_only_by_those_who_know_it(secure: Client) -> None:
    assert secure.set_pin(b"", wire.PIN, erase=True).code == Code.SUCCESS
    assert secure.set_pin(b"wrong", b"other", erase=True).code == Code.NOT_AUTHORIZED
    assert secure.pin_operation(wire.ERASE, b"wrong").code == Code.NOT_AUTHORIZED
    assert secure.pin_operation(wire.ERASE, wire.PIN).code == Code.SUCCESS


@simulator
@pytest.mark.parametrize("operation", [wire.ERASE, wire.SECURE_ERASE], ids=["instant", "secure"])
def test_erase_makes_a_drive_as_manufactured(drive: Target, secure: Client, operation: int) -> None:
    fill(secure, b"a", b"b")
    assert secure.set_acls(EVERYTHING, acl(2, b"second", scope(wire.READ))).code == Code.SUCCESS
    assert secure.set_pin(b"", wire.PIN, erase=True).code == Code.SUCCESS
    assert secure.set_cluster(5).code == Code.SUCCESS
    secure.cluster = 5
    assert secure.pin_operation(operation, wire.PIN).code == Code.SUCCESS
    with drive.client() as client:
        assert client.cluster == 0 and client.keys(b"", b"\xff") == []
    assert unknown(drive, 2, b"second")
    # The PIN is gone as well.
    with drive.client(tls=True) as again:
        assert again.set_pin(b"", wire.PIN, erase=True).code == Code.SUCCESS


@simulator
def test_locked_drive_does_nothing_until_unlocked(drive: Target, secure: Client) -> None:
    fill(secure, b"k")
    assert secure.set_pin(b"", b"lock", erase=False).code == Code.SUCCESS
    assert secure.pin_operation(wire.LOCK, b"wrong").code == Code.NOT_AUTHORIZED
    assert secure.pin_operation(wire.LOCK, b"lock").code == Code.SUCCESS
    with drive.client() as client:
        for answer in (client.get(b"k"), client.put(b"l", b"v"), client.noop(), client.get_log(wire.CAPACITIES)):
            assert answer.code == Code.DEVICE_LOCKED, answer
    assert secure.pin_operation(wire.UNLOCK, b"wrong").code == Code.NOT_AUTHORIZED
    assert secure.pin_operation(wire.UNLOCK, b"lock").code == Code.SUCCESS
    with drive.client() as client:
        assert client.keys(b"", b"\xff") == [b"k"]


def test_locked_drive_sees_through_a_disguised_request(drive: Target, secure: Client) -> None:
    """A request that is no PIN operation, with the body of one. The simulator lets it pass."""
    fill(secure, b"k")
    assert secure.set_pin(b"", b"lock", erase=False).code == Code.SUCCESS
    assert secure.pin_operation(wire.LOCK, b"lock").code == Code.SUCCESS
    with drive.client() as client:
        assert client.call(Type.GET, {1: message({3: b"k"}), 8: message({1: wire.UNLOCK})}).code == Code.DEVICE_LOCKED
    assert secure.pin_operation(wire.UNLOCK, b"lock").code == Code.SUCCESS


@simulator
def test_drive_with_a_lock_pin_is_locked_after_a_restart(drive: Target, secure: Client) -> None:
    fill(secure, b"k")
    assert secure.set_pin(b"", b"lock", erase=False).code == Code.SUCCESS
    drive.restart()
    with drive.client(tls=True) as again:
        assert again.get(b"k").code == Code.DEVICE_LOCKED
        assert again.pin_operation(wire.UNLOCK, b"lock").code == Code.SUCCESS
        assert again.get(b"k").code == Code.SUCCESS


def test_pin_operation_on_a_plain_port_does_nothing(drive: Target, client: Client) -> None:
    fill(client, b"k")
    command = client.command(Type.PINOP, {8: message({1: wire.ERASE})})
    client.raw(frame(message({4: wire.PINAUTH, 6: message({1: b""}), 7: command})))
    try:
        assert client.receive().code == Code.INVALID_REQUEST
    except wire.Closed:
        pass
    with drive.client() as reader:
        assert reader.get(b"k").code == Code.SUCCESS


@simulator
def test_request_of_another_cluster_version_is_fenced(drive: Target, client: Client) -> None:
    assert client.set_cluster(11).code == Code.SUCCESS
    refused = client.put(b"k", b"v")
    assert (refused.code, refused.header.int(1)) == (Code.VERSION_FAILURE, 11)
    client.cluster = 11
    assert client.put(b"k", b"v").code == Code.SUCCESS
    with drive.client() as other:
        assert other.cluster == 11 and other.get(b"k").code == Code.SUCCESS


def test_firmware_is_refused_and_the_drive_goes_on(drive: Target, client: Client) -> None:
    for kind in ({5: 1}, {6: 1}):  # of protocol 3.0.6, and of 4.0
        refused = client.call(Type.SETUP, {3: message(kind)})
        assert (refused.code, client.noop().code) == (Code.INVALID_REQUEST, Code.SUCCESS)


# Peers, media.


@simulator
def test_push_copies_keys_to_a_peer(drive: Target, other: Target, client: Client) -> None:
    fill(client, b"a", b"b")
    with other.client(tls=True) as peer:
        peer.manufactured()
        found = client.push("127.0.0.1", other.address.port, [pushed(b"a", force=True), pushed(b"b", new_key=b"c", force=True)])
        assert found.code == Code.SUCCESS and found.body.sub(4).int(3) == 1
        assert [one.sub(7).int(1) for one in found.body.sub(4).subs(2)] == [Code.SUCCESS] * 2
        assert (peer.get(b"a").value, peer.get(b"c").value, peer.get(b"b").code) == (b"value of a", b"value of b", Code.NOT_FOUND)


@simulator
def test_push_says_which_of_its_operations_failed(drive: Target, other: Target, client: Client) -> None:
    fill(client, b"a")
    with other.client(tls=True) as peer:
        peer.manufactured()
        found = client.push("127.0.0.1", other.address.port, [pushed(b"none", force=True), pushed(b"a", force=True)])
        assert found.code in (Code.SUCCESS, Code.NESTED_OPERATION_ERRORS) and not found.body.sub(4).int(3)
        assert found.body.sub(4).subs(2)[0].sub(7).int(1) == Code.NOT_FOUND


@simulator
def test_push_without_a_listening_peer_tells_so(client: Client) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fill(client, b"a")
        assert client.push("127.0.0.1", unused.getsockname()[1], [pushed(b"a")]).code == Code.REMOTE_CONNECTION_ERROR


@simulator
def test_media_operations_and_flush_succeed(client: Client) -> None:
    fill(client, b"a", b"b")
    for kind in (Type.MEDIASCAN, Type.MEDIAOPTIMIZE):
        assert client.media(kind, b"a", b"z").code == Code.SUCCESS
    assert client.flush().code == Code.SUCCESS and client.noop().code == Code.SUCCESS


# Connections.


@simulator
def test_pipelined_requests_are_all_answered_in_order(client: Client) -> None:
    sent = [client.send(Type.PUT, Client.put_body(b"k%03d" % n), b"%d" % n) for n in range(200)]
    answers = [client.receive() for _ in sent]
    assert sorted(one.ack for one in answers) == sent and {one.code for one in answers} == {Code.SUCCESS}
    sent = [client.send(Type.GET, {1: message({3: b"k%03d" % n})}) for n in range(200)]
    found = {one.ack: one.value for one in (client.receive() for _ in sent)}
    assert [found[sequence] for sequence in sent] == [b"%d" % n for n in range(200)]


@simulator
def test_replayed_sequence_is_refused_and_the_connection_stays(client: Client) -> None:
    client.sequence = 10
    assert client.noop().code == Code.SUCCESS
    for sequence in (11, 5):
        client.send(Type.PUT, Client.put_body(b"k"), b"v", sequence=sequence)
        assert client.receive().code == Code.INVALID_REQUEST
    assert client.noop().code == Code.SUCCESS and client.get(b"k").code == Code.NOT_FOUND


@pytest.mark.parametrize(
    "data",
    [b"G" + bytes(8), struct.pack(">cII", b"F", (1 << 20) + 1, 0), struct.pack(">cII", b"F", 0xFFFFFFFF, 0xFFFFFFFF), struct.pack(">cII", b"F", 10, (16 << 20) + 1)],
    ids=["magic", "protobuf", "both", "value"],
)
def test_wrong_frame_closes_the_connection_with_a_status(drive: Target, client: Client, data: bytes) -> None:
    client.raw(data)
    said = client.closed()
    assert [one.auth for one in said] == [wire.UNSOLICITED] and said[0].code != Code.SUCCESS
    with drive.client() as other:
        assert other.noop().code == Code.SUCCESS


@pytest.mark.parametrize("kind", [0, 3, 77, -1])
def test_unknown_kind_of_authentication_closes_the_connection(drive: Target, client: Client, kind: int) -> None:
    command = client.command(Type.PUT, Client.put_body(b"k"))
    client.raw(frame(message({4: kind, 5: message({1: 1, 2: wire.signature(wire.KEY, command)}), 7: command})))
    assert all(one.code != Code.SUCCESS for one in client.closed())
    with drive.client() as other:
        assert other.get(b"k").code == Code.NOT_FOUND


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\x3a\xff\xff\xff\xff\x0f", b"\x20\x01\x3a\x02\x0a\x7f", b""], ids=["tags", "length", "nested", "empty"])
def test_garbage_in_a_frame_harms_no_other_connection(drive: Target, client: Client, garbage: bytes) -> None:
    with drive.client() as other:
        client.raw(frame(garbage))
        client.socket.shutdown(socket.SHUT_WR)
        assert all(one.code != Code.SUCCESS for one in client.closed())
        assert other.noop().code == Code.SUCCESS


def test_half_closed_connection_gets_its_answers(client: Client) -> None:
    sent = [client.send(Type.PUT, Client.put_body(b"k%d" % n), b"v") for n in range(10)]
    client.socket.shutdown(socket.SHUT_WR)
    # Writes keep their order; their answers come as they are ready.
    assert sorted((one.ack, one.code) for one in client.closed()) == [(sequence, Code.SUCCESS) for sequence in sent]


@simulator
def test_request_that_comes_byte_by_byte_is_served(drive: Target, client: Client) -> None:
    whole = frame(client.signed(client.command(Type.PUT, Client.put_body(b"slow"))), b"a value")
    with drive.client() as other:
        for n in range(len(whole)):
            client.raw(whole[n : n + 1])
            assert n % 50 or other.noop().code == Code.SUCCESS
        assert client.receive().code == Code.SUCCESS
        assert other.get(b"slow").value == b"a value"


def test_reader_that_never_reads_delays_no_other(drive: Target, client: Client) -> None:
    """It asks for 256 MiB and reads nothing; the drive goes on with others, and answers in part."""
    assert client.put(b"large", bytes(1 << 20)).code == Code.SUCCESS
    with drive.client() as lazy:
        lazy.socket.settimeout(1)
        try:
            for _ in range(256):
                lazy.send(Type.GET, {1: message({3: b"large"})})
        except TimeoutError:
            pass
        for n in range(50):
            assert client.put(b"k%d" % n, b"v").code == Code.SUCCESS


def test_thousand_connections_leave_one_that_is_served(drive: Target, client: Client) -> None:
    idle: list[socket.socket] = []
    try:
        for _ in range(1000):
            idle.append(socket.create_connection((drive.address.host, drive.address.port), timeout=30))
        for n in range(50):
            assert client.put(b"k%d" % n, b"v").code == Code.SUCCESS
        # Each was greeted, or turned away.
        for one in idle:
            assert one.recv(1) in (b"F", b"")
    finally:
        for one in idle:
            one.close()
    with drive.client_when_there_is_room() as after:
        assert after.get(b"k7").value == b"v"


# Durability.


@simulator
def test_values_survive_a_restart(drive: Target, client: Client) -> None:
    fill(client, *(b"k%d" % n for n in range(20)))
    assert client.flush().code == Code.SUCCESS
    drive.restart()
    with drive.client() as again:
        assert len(again.keys(b"", b"\xff")) == 20 and again.get(b"k7").version == b"1"


@simulator
def test_written_through_values_survive_kill(drive: Target, client: Client) -> None:
    """The drive dies by SIGKILL amid pipelined puts; each that it acknowledged is there."""
    sent = {client.send(Type.PUT, Client.put_body(b"k%04d" % n, version=b"1", sync=wire.WRITETHROUGH), b"%d" % n * 100): n for n in range(400)}
    acknowledged = [client.receive() for _ in range(150)]
    assert {one.code for one in acknowledged} == {Code.SUCCESS}
    drive.restart(kill=True)
    with drive.client() as again:
        for n in (sent[one.ack] for one in acknowledged):
            found = again.get(b"k%04d" % n)
            assert (found.code, found.value, found.version) == (Code.SUCCESS, b"%d" % n * 100, b"1")


@simulator
def test_batch_survives_kill_as_a_whole(drive: Target, client: Client) -> None:
    assert client.start_batch(1).code == Code.SUCCESS
    for n in range(10):
        client.batch_put(1, b"k%d" % n, b"v", sync=wire.WRITETHROUGH)
    assert client.end_batch(1, 10).code == Code.SUCCESS
    drive.restart(kill=True)
    with drive.client() as again:
        assert len(again.keys(b"", b"\xff")) == 10


# The client itself.


def test_signature_is_that_of_the_published_vector() -> None:
    command = bytes.fromhex("0a0c08001880ddceae04200038181210320e0800080108020803080408050806")
    assert wire.signature(wire.KEY, command).hex() == "787c3c91d40b9d26835a8b55ce3d51a279fdad63"


def test_result_of_a_program_is_read_as_kctl_does() -> None:
    found = wire.Result.parse(b"0:0:Applet success:Args: /mnt/util/applets/4234354357\nHello World!\0")
    assert found == wire.Result(0, 0, "Applet success", b"Args: /mnt/util/applets/4234354357\nHello World!")
    assert wire.Result.parse(b"-1:9:killed:") == wire.Result(-1, 9, "killed", b"")
    assert wire.Result.parse(b"3:0:ended:a:b\xff\n").output == b"a:b\xff\n"
    for wrong in (b"", b"0:0:no output", b"x:0:a:b"):
        with pytest.raises(ValueError, match="not the result"):
            wire.Result.parse(wrong)
