"""A progress bar of one line on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import Callable, Iterator

Report = Callable[[int, int], None]


@contextmanager
def reporter(progress: Report | bool | None, title: str) -> Iterator[Report]:
    """What an ingest reports to: `progress` itself where it is a function, else a bar (True; None if stderr is a
    terminal) or nothing."""
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done, total: None
    else:
        bar = Bar(title)
        try:
            yield bar.report
        finally:
            bar.end()


class Bar:
    """``title [#####.....]  52%  12.3 M values/s  0:03 left``, redrawn at most ten times a second."""

    def __init__(self, title: str) -> None:
        self.title, self.start, self.drawn = title, time.monotonic(), 0.0

    def report(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.drawn < 0.1 and 0 < done < total:
            return
        if not total:
            return  # Of nothing there are no shares.
        self.drawn = now
        share = done / total
        rate = done / (now - self.start) if done and now > self.start else 0.0
        left = f"{_clock((total - done) / rate)} left" if 0 < done < total and rate else "finishing" if done >= total else ""
        filled = round(share * 24)
        line = f"{self.title} [{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}  {rate / 1e6:.1f} M values/s  {left}"
        sys.stderr.write(f"\r{line:<78}")
        sys.stderr.flush()

    def end(self) -> None:
        """Wipes the line, so that what is printed next begins on a clean one."""
        if self.drawn:
            sys.stderr.write(f"\r{'':<78}\r")
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class Steps(Bar):
    """``title [#####.....]  52%  what is next``, for work in a few steps."""

    def step(self, done: int, total: int, what: str) -> None:
        """Shows that `done` of `total` steps are done, and what follows."""
        self.drawn = time.monotonic()
        share = done / total if total else 1.0
        filled = round(share * 24)
        line = f"{self.title} [{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}  {what}"
        sys.stderr.write(f"\r{line[:78]:<78}")
        sys.stderr.flush()


@contextmanager
def stepper(progress: Report | bool | None, title: str) -> Iterator[Callable[[int, int, str], None]]:
    """As `reporter`, for work in a few steps that have names."""
    if callable(progress):
        yield lambda done, total, what: progress(done, total)
    elif progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done, total, what: None
    else:
        bar = Steps(title)
        try:
            yield bar.step
        finally:
            bar.end()


@contextmanager
def busy(title: str, what: str) -> Iterator[None]:
    """Says on a terminal what one long step does, for as long as it does it: nothing tells how much of it is done."""
    with stepper(None, title) as step:
        step(0, 1, what)
        yield
