"""Queries for as long as asked: ``python -m oracles --queries 100000`` from `python/tests`, or `make soak`.

Several processes run sessions with numbers of their own. A progress line goes to stderr. The failing queries, shrunk
and written as tests, go to stdout at the end, and to ``--found FILE`` as they are found. The exit status is 1 with a
failing query, with a process that died or hung, or with refusals of more than a tenth of the queries.

`SKYTETHER_ORACLE_DRAW=unranged_order` draws this kind of `known.OPEN` as well, for those who mend them."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import printing, sessions
from .checks import check

#: Queries of a session, and seconds after which a process that tells nothing hangs.
SESSION, HANGS = 400, 300
#: The share of queries that may be refused.
REFUSED = 0.10


def main() -> int:
    given = _arguments()
    if given.worker is not None:
        return _work(given)
    if given.query is not None:
        return _again(given)
    return _soak(given)


def _arguments() -> argparse.Namespace:
    env = os.environ.get
    parser = argparse.ArgumentParser(prog="oracles", description=__doc__.split("\n\n")[0])
    parser.add_argument("--queries", type=int, default=int(env("SKYTETHER_ORACLE_QUERIES", "100000")), help="how many queries (SKYTETHER_ORACLE_QUERIES)")
    parser.add_argument("--seed", type=int, default=int(env("SKYTETHER_ORACLE_SEED", "1")), help="what all follows from (SKYTETHER_ORACLE_SEED)")
    parser.add_argument("--processes", type=int, default=int(env("SKYTETHER_ORACLE_PROCESSES", str(os.cpu_count() or 2))), help="processes (SKYTETHER_ORACLE_PROCESSES)")
    parser.add_argument("--found", type=Path, help="a file to which failing queries are appended as they are found")
    parser.add_argument("--session", type=int, default=0, help="the first session's number")
    parser.add_argument("--query", type=int, help="ask only this query of the session again, and shrink it")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(given: argparse.Namespace) -> int:
    """Sessions `given.session`, and every `given.processes`-th after it; a line of JSON for each."""
    out, at = os.fdopen(os.dup(1), "w"), Path(os.environ["SKYTETHER_ORACLE_AT"])
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="oracles-") as place, open(at, "w") as current:

        def told(text: str) -> None:
            current.seek(0)
            current.write(text)
            current.truncate()
            current.flush()

        fleets = sessions.start(Path(place), served=True)
        try:
            seen: set[str] = set()
            number, left = given.session, given.queries
            while left > 0:
                tally = sessions.run(fleets, given.seed, number, min(SESSION, left), told, seen=seen)
                left -= tally.queries
                number += given.processes
                print(tally.to_json(), file=out, flush=True)
        finally:
            fleets.close()
    return 0


def _stacks(group: int) -> str:
    """Where the threads of a process group stand, by gdb; nothing where there is no gdb."""
    if (gdb := shutil.which("gdb")) is None:
        return ""
    said = []
    for process in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(OSError):
            if os.getpgid(process) == group:
                command = [gdb, "-p", str(process), "-batch", "-ex", "set pagination off", "-ex", "thread apply all backtrace 40"]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said.append(subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False).stdout)
    return "\n".join(said)


class _Worker(threading.Thread):
    """A process and what it told; one that dies is started again behind the session in which it died."""

    def __init__(self, given: argparse.Namespace, index: int, queries: int, place: Path) -> None:
        super().__init__(daemon=True)
        self.given, self.index, self.left = given, index, queries
        self.at = place / f"at-{index}"
        self.number = given.session + index
        self.tally = sessions.Tally()
        self.fresh: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        # Of a process that hung: where its threads, its host's and its drives' stand.
        self.stacks = ""

    def run(self) -> None:
        while self.left > 0:
            command = [
                sys.executable, "-m", "oracles", "--worker", str(self.index), "--seed", str(self.given.seed), "--session", str(self.number), "--queries", str(self.left),
                "--processes", str(self.given.processes),
            ]
            self.at.write_text("")
            self.stacks = ""
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env={**os.environ, "SKYTETHER_ORACLE_AT": str(self.at)}
                )
                self.process = process
                hung = threading.Event()
                threading.Thread(target=self._watch, args=(process, hung), daemon=True).start()
                for line in process.stdout or ():
                    tally = sessions.Tally.of_json(line)
                    self.fresh += [text for key, text in tally.found.items() if key not in self.tally.found]
                    self.tally.add(tally)
                    self.left -= tally.queries
                    self.number += self.given.processes
                if process.wait() == 0:
                    continue
                self.end()
                errors.seek(0)
                what = "hung" if hung.is_set() else f"died with status {process.returncode}"
                text = f"# a process {what}\n# {self.at.read_text()}\n# " + (errors.read()[-3000:] + self.stacks).replace("\n", "\n# ")
                self.tally.found[f"{what} {self.number}"] = text
                self.fresh.append(text)
            self.left -= SESSION
            self.number += self.given.processes

    def _watch(self, process: subprocess.Popen[str], hung: threading.Event) -> None:
        """Ends a process that asks the same query for too long."""
        last, since = "", time.monotonic()
        while process.poll() is None:
            time.sleep(1)
            now = self.at.read_text() if self.at.exists() else ""
            if now != last or not now:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > HANGS:
                self.stacks = _stacks(process.pid)
                hung.set()
                self.end()

    def end(self) -> None:
        """Ends the process, and those that it started: its drives and its host."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _soak(given: argparse.Namespace) -> int:
    # Ending this ends the processes as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    workers: list[_Worker] = []
    place = Path(tempfile.mkdtemp(prefix="oracles-"))
    try:
        share = -(-given.queries // given.processes)
        workers = [_Worker(given, index, share, place) for index in range(given.processes)]
        for worker in workers:
            worker.start()
        written: set[str] = set()
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(10 / len(workers))
            _progress(given, workers, begun, written)
        _progress(given, workers, begun, written)
    finally:
        for worker in workers:
            worker.end()
        shutil.rmtree(place, ignore_errors=True)
    total = sessions.Tally()
    for worker in workers:
        total.add(worker.tally)
    print(total.summary())
    for text in total.found.values():
        print(f"\n{text}")
    share = total.unanswered / max(total.queries, 1)
    if share > REFUSED:
        print(f"\n{share:.1%} of the queries were refused; at most {REFUSED:.0%} may be")
    return int(bool(total.found) or share > REFUSED)


def _progress(given: argparse.Namespace, workers: list[_Worker], begun: float, written: set[str]) -> None:
    done, found = sum(worker.tally.queries for worker in workers), sum(len(worker.tally.found) for worker in workers)
    seconds = time.monotonic() - begun
    print(f"{done} of {given.queries} queries, {done / seconds:.0f} a second, {found} failed", file=sys.stderr, flush=True)
    for worker in workers:
        while worker.fresh:
            text = worker.fresh.pop(0)
            if given.found is not None and text not in written:
                written.add(text)
                with open(given.found, "a") as file:
                    file.write(f"\n{text}\n")


def _again(given: argparse.Namespace) -> int:
    """One query, as a session draws it."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="oracles-") as place:
        fleets = sessions.start(Path(place), served=True)
        try:
            world, cases = sessions.only(fleets, given.seed, given.session, given.query)
            for case in cases:
                verdict = check(world, case)
                print(f"{case.oracle}: {verdict}\n  {printing.text(case.query)}")
                if case.condition is not None:
                    print(f"  by {printing.text(case.condition)}")
                if verdict.wrong is not None:
                    failed = 1
                    tally = sessions.Tally()
                    sessions._failed(world, tally, case, verdict, f"--seed {given.seed} --session {given.session} --query {given.query}", lambda text: None, True, set(), sessions.Random(1))
                    print(*tally.found.values(), *tally.known, sep="\n")
        finally:
            fleets.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
