"""Programs inside the drive, run as `kctl exec` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import wire
from .targets import Target
from .wire import Client, Code, Result, Type, message

OBJECTS = Path(__file__).resolve().parents[3] / "crates" / "ebpf" / "tests" / "objects"

#: The signals of programs that ended by a deadline or by the limit of instructions, and of those that were aborted.
LIMITS, ABORTED = {14, 24}, 9


@pytest.fixture
def client(drive: Target) -> Iterator[Client]:
    with drive.client() as connection:
        for name in ("words", "endless", "note"):
            assert connection.put(name.encode(), (OBJECTS / f"{name}.o").read_bytes()).code == Code.SUCCESS
        yield connection


def result(answer: wire.Response) -> Result:
    assert answer.code == Code.SUCCESS, answer
    return answer.result


def test_program_counts_words_and_prints_them(client: Client) -> None:
    client.put(b"text", b"to be or not to be")
    ended = result(client.execute([b"words"], ["text"]))
    assert (ended.code, ended.signal, ended.output) == (0, 0, b"6\n")
    assert result(client.execute([b"words"], ["absent"])).output == b"no such key\n"


def test_endless_program_ends_by_its_limits(drive: Target, client: Client) -> None:
    ended = result(client.execute([b"endless"], most_ms=300))
    assert ended.code != 0 and ended.signal in LIMITS, ended
    with drive.client() as other:
        assert other.put(b"k", b"v").code == Code.SUCCESS


def test_aborted_program_ends_and_is_named(drive: Target, client: Client) -> None:
    sequence = client.send(Type.APPLET, {11: message({1: wire.EXECUTE, 2: wire.EBPF, 3: [b"endless"], 8: wire.ON_COMPLETION})})
    with drive.client() as other:
        while not (listed := other.applet(wire.PROCESS_STATUS, {}).body.sub(11).subs(5)):
            pass
        assert [one.bytes(1) for one in listed] == [b"endless"]
        assert other.applet(wire.ABORT, {3: [b"endless"]}).code == Code.SUCCESS
        ended = client.receive()
        assert ended.ack == sequence and result(ended).signal == ABORTED
        assert other.applet(wire.PROCESS_STATUS, {}).body.sub(11).subs(5) == []


def test_native_program_is_refused_by_name(client: Client) -> None:
    client.put(b"native", b"\x7fELF" + bytes(60))
    refused = client.execute([b"native"], lang=wire.NATIVE)
    assert refused.code == 24 and "native programs are off" in refused.text


def test_watch_runs_a_program_and_tells_of_it(drive: Target, client: Client) -> None:
    watch = {2: wire.EBPF, 3: [b"note"], 6: message({1: b"a", 2: b"c", 3: [Type.PUT, Type.DELETE]}), 7: [b"seen"], 10: True}
    assert client.applet(wire.WATCH, watch).code == Code.SUCCESS
    sequence = client.sequence
    with drive.client() as other:
        for key in (b"Z", b"b", b"c0"):
            assert other.put(key, b"v").code == Code.SUCCESS
        assert other.delete(b"b", force=True).code == Code.SUCCESS
        changes = [(b"b", Type.PUT), (b"b", Type.DELETE)]
        told = [client.receive()]
        if told[0].body.sub(11).sub(9).int(3) == Type.PUT:
            # Else the second change came before the first one's run, and the two were one.
            told.append(client.receive())
        for said, (key, kind) in zip(reversed(told), reversed(changes), strict=False):
            applet = said.body.sub(11)
            assert (said.auth, said.code, said.ack, said.result.output) == (wire.UNSOLICITED, Code.EXECUTE_COMPLETE, sequence, kind.name.encode())
            assert (applet.all(3), applet.sub(9).bytes(2), applet.sub(9).int(3)) == ([b"note"], key, kind)
        assert other.get(b"seen/b").value == b"DELETE"
        assert [other.get(b"seen/" + key).code for key in (b"Z", b"c0")] == [Code.NOT_FOUND] * 2
    assert client.applet(wire.UNWATCH, {3: [b"note"]}).code == Code.SUCCESS
    assert client.applet(wire.UNWATCH, {3: [b"note"]}).code == Code.NOT_FOUND


def test_programs_that_wait_go_by_priority(drive: Target, client: Client) -> None:
    client.put(b"text", b"one")
    client.put(b"forever", (OBJECTS / "endless.o").read_bytes())
    # The endless programs end by their limits after seconds. On a machine that is too busy, that is before the others
    # have run: then both turns were free, and the order says nothing.
    for _ in range(5):
        sent, answered, held = _while_two_programs_run(drive, client)
        assert sorted(answered) == sorted(sent.values())
        if held:
            assert answered == [sent[priority] for priority in (9, 6, 5, 1)]
            return
    pytest.skip("this machine is too busy: endless programs ended before short ones had run, five times")


def _while_two_programs_run(drive: Target, client: Client) -> tuple[dict[int, int], list[int], bool]:
    """Sequences of programs by their priorities, the order of their ends, and whether one turn alone was free."""
    execute = {1: wire.EXECUTE, 2: wire.EBPF, 8: wire.ON_COMPLETION}
    with drive.client() as busy, drive.client() as other:
        for name in (b"endless", b"forever"):
            busy.send(Type.APPLET, {11: message({**execute, 3: [name]})})
        while len(other.applet(wire.PROCESS_STATUS, {}).body.sub(11).subs(5)) < 2:
            pass
        words = {11: message({**execute, 3: [b"words"], 7: [b"text"]})}
        sent = {priority: client.send(Type.APPLET, words, priority=priority) for priority in (5, 1, 9, 6)}
        # Each has its place when a later request is answered, or has run already.
        noop = client.send(Type.NOOP)
        answers = [client.receive()]
        while answers[-1].ack != noop:
            answers.append(client.receive())
        held = other.applet(wire.ABORT, {3: [b"endless"]}).code == Code.SUCCESS and len(answers) == 1
        answers = [answer for answer in answers if answer.ack != noop]
        while len(answers) < len(sent):
            answers.append(client.receive())
        assert all(result(answer).output == b"1\n" for answer in answers)
        held &= other.applet(wire.ABORT, {3: [b"forever"]}).code == Code.SUCCESS
        # The next time begins with both turns free.
        busy.receive(), busy.receive()
        return sent, [answer.ack for answer in answers], held
