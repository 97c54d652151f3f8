"""The four oracles. Each takes a case and says whether the answers agree.

1. `duckdb`: the answer equals DuckDB's, where it has the operators.
2. `rows`, `distinct`, `aggregate`, `groups`, `having`: ternary logic partitioning (Rigger and Su, OOPSLA 2020). What
   meets a condition, what does not, and where it is NULL, together are the whole.
3. `reference`: a non-optimizing reference engine (Rigger and Su, ESEC/FSE 2020). The rows that WHERE keeps are those
   for which the same condition in the select list is true.
4. A way (`WAYS`): the answer is the same at every cut, over every form of the tables, prepared, and as a Substrait
   plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random
from typing import Any

from . import answers, engines, nodes as n, printing
from .answers import Refusal, Rows
from .expressions import E
from .queries import Queries
from .tables import Schema

#: Ways to the same answer: which fleet, which form of the tables, which cut.
WAYS = {
    "filter": ("main", "e", "filter"), "raw": ("main", "e", "raw"), "adaptive": ("main", "e", "adaptive"),
    "partitioned": ("main", "p", "full"), "partitioned filter": ("main", "p", "filter"), "partitioned raw": ("main", "p", "raw"),
    "indexed": ("main", "x", "full"), "indexed filter": ("main", "x", "filter"), "indexed adaptive": ("main", "x", "adaptive"),
    "lost": ("lost", "e", "full"), "lost raw": ("lost", "e", "raw"), "moving": ("moving", "e", "adaptive"), "moving full": ("moving", "e", "full"),
    "served": ("served", "e", "full"), "prepared": ("served", "e", ""), "prepared typed": ("served", "e", ""), "substrait": ("main", "e", ""),
}
PARTITIONS = ("rows", "distinct", "aggregate", "groups", "having")
ORACLES = ("duckdb", *PARTITIONS, "reference", *WAYS)


@dataclass(frozen=True)
class Case(n.Node):
    """What an oracle checks."""

    oracle: str
    query: n.Query
    #: The condition of a partition or a reference; for `having` over groups.
    condition: E | None = None


@dataclass(frozen=True)
class Verdict:
    """`wrong` says how answers differ; `refusal` is what kept the oracle from an answer."""

    wrong: str | None = None
    refusal: Refusal | None = None
    #: Why the oracle says nothing: ``duckdb refuses``, ``depends on rows``, ``not comparable``.
    skipped: str | None = None
    statements: int = 1


class World:
    """A schema in all engines."""

    def __init__(self, fleets: engines.Fleets, schema: Schema) -> None:
        self.fleets, self.schema = fleets, schema
        self.duck = engines.duck(schema)
        self._datafusion: engines.DataFusion | None = None

    @property
    def datafusion(self) -> engines.DataFusion:
        if self._datafusion is None:
            self._datafusion = engines.DataFusion(self.schema)
        return self._datafusion

    def full(self, query: n.Query) -> answers.Answer:
        return engines.ask(self.fleets.main, printing.text(query))

    def ways(self) -> list[str]:
        """The ways that this world has."""
        return [way for way, (fleet, _, _) in WAYS.items() if getattr(self.fleets, fleet) is not None]


def draw(queries: Queries, random: Random, ways: list[str]) -> list[Case]:
    """The cases of one drawn query: mostly DuckDB's answer and a way, else a partition or a reference."""
    chance = random.random()
    if chance < 0.62:
        query = queries.query()
        first = [Case("duckdb", query)] if n.is_comparable(query) else []
        return [*first, Case(random.choice(ways), query), *([] if first else [Case(random.choice(ways), query)])]
    oracle = random.choice(PARTITIONS) if chance < 0.82 else "reference"
    query, condition = queries.partitioned(grouped=oracle == "having", sized=oracle in ("aggregate", "groups"))
    return [Case(oracle, query, condition)]


def check(world: World, case: Case, base: answers.Answer | None = None) -> Verdict:
    """What the case's oracle finds. `base` spares asking for the answer at the full cut again."""
    if case.oracle == "duckdb":
        return _as_duckdb(world, case, base)
    if case.oracle == "reference":
        return _reference(world, case)
    if case.oracle in PARTITIONS:
        return _partition(world, case)
    return _way(world, case, base)


def _refused(refusal: Refusal, statements: int) -> Verdict:
    wrong = f"an error that is a defect: {refusal.text}" if refusal.is_defect else None
    return Verdict(wrong, refusal, statements=statements)


def _as_duckdb(world: World, case: Case, base: answers.Answer | None) -> Verdict:
    ours = base if base is not None else world.full(case.query)
    if isinstance(ours, Refusal):
        return _refused(ours, 1)
    if not n.is_comparable(case.query):
        return Verdict(skipped="not comparable")
    theirs = engines.ask_duck(world.duck, printing.text(case.query, "duckdb"))
    if isinstance(theirs, Refusal):
        return Verdict(skipped=f"duckdb refuses: {theirs.template[:70]}")
    ordered, loose = n.is_ordered(case.query), "loose" in n.tags(case.query)
    found = answers.difference(ours, theirs, ordered, loose)
    if found:
        plain = engines.ask_plain_duck(world.duck, printing.text(case.query, "duckdb"))
        if isinstance(plain, Rows) and answers.difference(ours, plain, ordered, loose) is None:
            return Verdict(skipped="duckdb differs from itself without its optimizer")
    return Verdict(found and f"ours and DuckDB's answers differ: {found}")


def _way(world: World, case: Case, base: answers.Answer | None) -> Verdict:
    first = base if base is not None else world.full(case.query)
    fleet, domain, cut = WAYS[case.oracle]
    text = printing.text(case.query, domain=domain)
    lenient = False
    if case.oracle.startswith("prepared"):
        second = world.fleets.prepared(case.query, case.oracle.endswith("typed"))
        lenient = True
    elif case.oracle == "substrait":
        plan = world.datafusion.plan(text) if _is_written(case.query) else None
        second = None if plan is None else engines.ask(world.fleets.main, plan)
        lenient = True
    else:
        second = engines.ask(getattr(world.fleets, fleet), text, cut)
    if second is None:
        return Verdict(skipped=f"{case.oracle}: nothing to ask", statements=1)
    verdict = _compared(case, first, second, lenient)
    if verdict.wrong and case.oracle == "substrait" and isinstance(second, Rows):
        if isinstance(first, Rows) and ("zoned" in first.kinds) != ("zoned" in second.kinds):
            return Verdict(skipped="substrait: the producer leaves zones out", statements=2)
        # The producer may have left something out of the plan: what it reads from it itself counts.
        own = world.datafusion.run(plan)
        if isinstance(own, Refusal) or answers.difference(second, own, n.is_ordered(case.query), kinds=False) is None:
            return Verdict(skipped="substrait: the producer reads the plan so", statements=2)
    return verdict


def _is_written(query: n.Query) -> bool:
    """Whether the package's plans say all of a query: they lose FILTER and IGNORE NULLS of a window, and number the
    columns behind grouping sets as the format does not."""
    return not any(isinstance(part, n.Window) and (part.condition or "IGNORE NULLS" in part.form) or isinstance(part, n.Groups) and part.how for _, part in n.walk(query))


def _compared(case: Case, first: answers.Answer, second: answers.Answer, lenient: bool) -> Verdict:
    for refusal in (first, second):
        if isinstance(refusal, Refusal) and refusal.is_defect:
            return _refused(refusal, 2)
    if isinstance(first, Rows) and isinstance(second, Rows):
        found = answers.difference(second, first, n.is_ordered(case.query), "loose" in n.tags(case.query))
        return Verdict(found and f"{case.oracle} and the full cut differ: {found}", statements=2)
    if isinstance(first, Refusal) and isinstance(second, Refusal):
        return Verdict(refusal=first, statements=2)
    refusal = first if isinstance(first, Refusal) else second
    assert isinstance(refusal, Refusal)
    if refusal.of_data:
        return Verdict(skipped="depends on rows", statements=2)
    if lenient:
        return Verdict(skipped=f"{case.oracle} refuses: {refusal.template}", statements=2)
    return Verdict(f"{'the full cut' if refusal is first else case.oracle} refuses what the other answers: {refusal.text}", statements=2)


# Conditions.

TRUE_FALSE_NULL = ("{0}", "(NOT {0})", "({0} IS NULL)")


def _and(where: E | None, condition: E) -> E:
    return E("bool", "({0} AND {1})", (where, condition)) if where else condition


def _reference(world: World, case: Case) -> Verdict:
    query = case.query
    if not isinstance(query, n.Select) or case.condition is None:
        return Verdict(skipped="not comparable")
    kept = world.full(dataclasses.replace(query, where=_and(query.where, case.condition)))
    shown = world.full(dataclasses.replace(query, items=(*query.items, n.Item(case.condition, "q"))))
    for refusal in (kept, shown):
        if isinstance(refusal, Refusal):
            return _refused(refusal, 2)
    assert isinstance(kept, Rows) and isinstance(shown, Rows)
    if shown.table is not None:
        return Verdict(skipped="large answer", statements=2)
    found = answers.rows_difference(kept.rows, [row[:-1] for row in shown.rows if row[-1] is True])
    return Verdict(found and f"WHERE keeps other rows than those for which the condition is true: {found}", statements=2)


def _partition(world: World, case: Case) -> Verdict:
    query = case.query
    if not isinstance(query, n.Select) or case.condition is None:
        return Verdict(skipped="not comparable")
    asked = _of_oracle(case.oracle, query)
    if asked is None:
        return Verdict(skipped="not comparable")
    parts = [E("bool", form, (case.condition,)) for form in TRUE_FALSE_NULL]
    clause = "having" if case.oracle == "having" else "where"
    split = [dataclasses.replace(asked, **{clause: _and(getattr(asked, clause), part)}) for part in parts]
    answered = [world.full(each) for each in [asked, *split]]
    for refusal in answered:
        if isinstance(refusal, Refusal):
            return _refused(refusal, 4)
    if any(isinstance(each, Rows) and each.table is not None for each in answered):
        return Verdict(skipped="large answer", statements=4)
    whole, *pieces = [each.rows for each in answered if isinstance(each, Rows)]
    merged = _merged(case.oracle, asked, [row for piece in pieces for row in piece])
    found = answers.rows_difference(merged, whole)
    return Verdict(found and f"the parts by the condition are not the whole: {found}", statements=4)


def _of_oracle(oracle: str, query: n.Select) -> n.Select | None:
    """The query whose parts are merged."""
    if oracle in ("rows", "having"):
        return query if not query.distinct and (oracle == "having") == (query.groups is not None) else None
    if query.groups is not None:
        return None
    if oracle == "distinct":
        scalars = tuple(item for item in query.items if item.value.kind in n.SCALARS)
        return dataclasses.replace(query, items=scalars, distinct=True) if scalars else None
    values = [item.value for item in query.items if item.value.kind in n.SCALARS and item.value.kind != "bool"]
    if not values:
        return None
    by = values[:1] if oracle == "groups" and values[0].args + tuple([values[0].value] if values[0].value is None else []) else []
    if oracle == "groups" and not by:
        return None
    calls: list[E] = [n.Aggregate("int", "count(*)")]
    for value in values[len(by) :] or values:
        calls += [n.Aggregate(value.kind, "min({0})", (value,)), n.Aggregate(value.kind, "max({0})", (value,)), n.Aggregate("int", "count({0})", (value,))]
        if value.size is not None and value.exact and value.kind in ("int", "float", "decimal"):
            calls.append(n.Aggregate(value.kind, "sum({0})", (value,)))
    items = tuple(n.Item(value, f"c{at}") for at, value in enumerate([*by, *calls]))
    return n.Select(items, query.source, query.where, n.Groups(tuple(by)) if by else None)


def _merged(oracle: str, query: n.Select, rows: list[answers.Row]) -> list[answers.Row]:
    """The rows of all parts, as the whole has them."""
    if oracle in ("rows", "having"):
        return rows
    if oracle == "distinct":
        return list({tuple(map(_hashed, row)): row for row in rows}.values())
    forms = [item.value.form.split("(")[0] if isinstance(item.value, n.Aggregate) else "" for item in query.items]
    groups: dict[Any, list[answers.Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_hashed(value) for value, form in zip(row, forms) if not form), []).append(row)
    return [tuple(_fold(form, [row[at] for row in group]) for at, form in enumerate(forms)) for group in groups.values()]


def _hashed(value: Any) -> Any:
    """A value by which rows are told apart: NaN is itself, and zeros are one."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def _fold(form: str, values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    if form == "":
        return values[0]
    if form == "count":
        return sum(present)
    if not present:
        return None
    if form == "sum":
        return sum(present)
    # NaN is above all numbers.
    return (min if form == "min" else max)(present, key=lambda value: (value != value, value))
