"""A session: one schema, some hundred queries over it, and what the oracles found, shrunk.

Everything follows from a seed and the session's number; `Tally` adds up sessions."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Callable

from . import engines, known, nodes, printing, records, shrinker
from .answers import Rows
from .checks import WAYS, Case, Verdict, World, check, draw
from .queries import Queries
from .tables import Schema, schema

#: Seconds for making one case smaller, and its tables.
SHRINKING, TABLES = 12.0, 8.0


@dataclass
class Tally:
    """What happened: queries drawn, statements that we answered, checks by oracle, refusals by text."""

    queries: int = 0
    statements: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    #: Queries that were refused.
    unanswered: int = 0
    #: Failing cases as tests, by what tells them apart.
    found: dict[str, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.queries += other.queries
        self.statements += other.statements
        self.unanswered += other.unanswered
        for of in ("checks", "refused", "skipped", "known", "times"):
            getattr(self, of).update(getattr(other, of))
        for key, text in other.found.items():
            self.found.setdefault(key, text)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def of_json(text: str) -> Tally:
        given = json.loads(text)
        return Tally(**{key: Counter(value) if key in ("checks", "refused", "skipped", "known", "times") else value for key, value in given.items()})

    def summary(self) -> str:
        """The counts in lines."""
        share = self.unanswered / max(self.queries, 1)
        lines = [f"{self.queries} queries, {self.statements} statements, {sum(self.checks.values())} checks, {share:.1%} of the queries refused"]
        for title, of in (("checks", self.checks), ("refused", self.refused), ("skipped", self.skipped), ("known differences", self.known)):
            lines += [f"{title}:", *[f"  {count:>7}  {what}" for what, count in of.most_common(60)]]
        return "\n".join(lines)


def run(fleets: engines.Fleets, seed: int, number: int, count: int, told: Callable[[str], None] = lambda text: None, shrink: bool = True, seen: set[str] | None = None) -> Tally:
    """One session. `told` is called with each query before it is asked, and with "" in between; `seen` has the kinds of
    failures that are reported already."""
    random = Random(f"{seed} {number}")
    tables = schema(random)
    fleets.fill(tables, random)
    world = World(fleets, tables)
    tally, seen = Tally(), set() if seen is None else seen
    for at in range(count):
        one = Random(f"{seed} {number} {at}")
        queries = Queries(one, tables, known.without())
        cases = draw(queries, one, world.ways())
        _query(world, tally, cases, f"--seed {seed} --session {number} --query {at}", told, shrink, seen, random)
    return tally


def only(fleets: engines.Fleets, seed: int, number: int, at: int) -> tuple[World, list[Case]]:
    """The world and the cases of one query of a session."""
    random = Random(f"{seed} {number}")
    tables = schema(random)
    fleets.fill(tables, random)
    world, one = World(fleets, tables), Random(f"{seed} {number} {at}")
    return world, draw(Queries(one, tables, known.without()), one, world.ways())


def _query(world: World, tally: Tally, cases: list[Case], place: str, told: Callable[[str], None], shrink: bool, seen: set[str], random: Random) -> None:
    tally.queries += 1
    base, answered = None, False
    for case in cases:
        told(f"{place} {case.oracle}: {printing.text(case.query)}")
        if base is None and (case.oracle in WAYS or case.oracle == "duckdb"):
            base = world.full(case.query)
        begun = time.monotonic()
        verdict = check(world, case, base)
        took = time.monotonic() - begun
        if took > 5:
            tally.skipped["slow: more than 5 s"] += 1
        told("")
        tally.checks[case.oracle] += 1
        tally.statements += verdict.statements
        answered = answered or verdict.refusal is None
        if verdict.refusal is not None:
            tally.refused[verdict.refusal.template] += 1
        if verdict.skipped is not None:
            tally.skipped[verdict.skipped] += 1
        if verdict.wrong is not None:
            _failed(world, tally, case, verdict, place, told, shrink, seen, random)
    tally.unanswered += not answered


def _failed(world: World, tally: Tally, case: Case, verdict: Verdict, place: str, told: Callable[[str], None], shrink: bool, seen: set[str], random: Random) -> None:
    name = known.known(case, verdict)
    rough = verdict.refusal.template[:60] if verdict.refusal is not None else None
    if name is None and rough is not None and rough in seen:
        tally.skipped[f"seen: {rough}"] += 1
        return
    if name is None and shrink:
        case, verdict, tables = smaller(world, case, verdict, random, told)
        name = known.known(case, verdict)
    else:
        tables = world.schema
    if name is not None:
        tally.known[name] += 1
        return
    if rough is not None:
        seen.add(rough)
    theirs = engines.ask_duck(engines.duck(tables), printing.text(case.query, "duckdb")) if nodes.is_comparable(case.query) else None
    key = _signature(case, verdict)
    if key in seen:
        tally.skipped[f"seen: {key[:100]}"] += 1
        return
    seen.add(key)
    tally.found[key] = records.written(tables, case, verdict, theirs if isinstance(theirs, Rows) and theirs.table is None else None, place)


def smaller(world: World, case: Case, verdict: Verdict, random: Random, told: Callable[[str], None] = lambda text: None) -> tuple[Case, Verdict, Schema]:
    """The case shrunk, what is wrong with it, and its tables, shrunk as well. The fleets hold the session's tables
    afterwards."""
    wanted = shrinker.manner(verdict)
    way = WAYS.get(case.oracle)
    last = verdict

    def still(candidate: Case, within: World = world) -> bool:
        nonlocal last
        told(f"shrinking {candidate.oracle}: {printing.text(candidate.query)}")
        found = check(within, candidate)
        if found.wrong is None or shrinker.manner(found) != wanted:
            return False
        last = found
        return True

    case = shrinker.shrunk(case, still, SHRINKING)
    if way is not None and way[0] == "lost":
        return case, last, world.schema

    def with_tables(tables: Schema) -> bool:
        world.fleets.fill(tables, random, ("main", "e") if way is None else (way[0], way[1]))
        return still(case, World(world.fleets, tables))

    tables = shrinker.shrunk_tables(world.schema, case, with_tables, TABLES)
    world.fleets.fill(world.schema, random, ("main", "e") if way is None else (way[0], way[1]))
    told("")
    return case, last, tables


def _signature(case: Case, verdict: Verdict) -> str:
    """What tells a failure apart from others: the oracle, its words, and the operators of the shrunk case."""
    forms = set()
    for _, part in nodes.walk(case):
        if isinstance(part, nodes.Expression) and (part.args or isinstance(part, (nodes.Aggregate, nodes.Window))):
            forms.add(part.form)
        elif isinstance(part, nodes.Join):
            forms.add(part.how)
        elif isinstance(part, nodes.SetOperation):
            forms.add(part.how)
    oracle = case.oracle if case.oracle not in WAYS else case.oracle.split(" ")[0]
    return f"{oracle}: {shrinker.manner(verdict)}: {sorted(forms)}"


def start(place: Path, served: bool) -> engines.Fleets:
    """Fleets in a directory."""
    return engines.Fleets(place, served)

