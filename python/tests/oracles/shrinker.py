"""Makes a failing case small: drops clauses, replaces expressions by their parts, then takes rows and columns away.

A step counts if the same oracle still fails in the same manner. No step may make an answer depend on the order of rows:
what sorts for a LIMIT or inside a call stays."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Iterator

from . import nodes as n
from .checks import Case, Verdict
from .constants import null, of_value
from .tables import Schema, Stored

#: Plain values by kind, for which an expression is tried to be replaced.
PLAIN: dict[str, Any] = {"int": 1, "float": 1.5, "text": "a", "bool": True}


def manner(verdict: Verdict) -> str:
    """How a case fails, as far as a smaller one must fail as well."""
    if verdict.refusal is not None and verdict.refusal.is_defect:
        return verdict.refusal.template[:60]
    return (verdict.wrong or "")[:34]


def shrunk(case: Case, still: Callable[[Case], bool], seconds: float) -> Case:
    """The smallest case found in some seconds for which `still` holds."""
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for smaller in _smaller(case):
            if time.monotonic() > end:
                break
            if still(smaller):
                case, again = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are a step smaller, the large steps first."""
    fixed = any(isinstance(part, n.Window) or isinstance(part, n.Aggregate) and part.order for _, part in n.walk(case))
    for path, part in sorted(n.walk(case), key=lambda found: -n.size(found[1])):
        if "order" in path:
            continue
        # Keys of a query below may be what a call sorts by without ties.
        below = fixed and path.count("query") > 1
        for new in _instead(part, path, below):
            made = n.put(case, path, new)
            if made != case:
                yield made


def _instead(part: n.Node, path: n.Path, below: bool) -> Iterator[n.Node]:
    if isinstance(part, n.Select):
        yield from _selects(part, below)
    elif isinstance(part, n.SetOperation):
        yield from (part.left, part.right)
        yield from _ends(part)
    elif isinstance(part, n.Join):
        yield from (part.left, part.right)
        if part.on is None and not part.using and "NATURAL" not in part.how:
            return
        if part.how != "JOIN":
            yield dataclasses.replace(part, how="JOIN")
    elif isinstance(part, n.Derived) and isinstance(part.query, n.Select) and isinstance(part.query.source, (n.Table, n.Reference)):
        yield dataclasses.replace(part.query.source, alias=part.alias)
    elif isinstance(part, n.Values) and len(part.rows) > 1:
        yield dataclasses.replace(part, rows=part.rows[:1])
    elif isinstance(part, n.Groups):
        if part.how:
            yield dataclasses.replace(part, how="", sets=())
        elif len(part.by) > 1 and not below:
            for at in range(len(part.by)):
                yield dataclasses.replace(part, by=part.by[:at] + part.by[at + 1 :])
        for at in range(len(part.sets)):
            if len(part.sets) > 1:
                yield dataclasses.replace(part, sets=part.sets[:at] + part.sets[at + 1 :])
    elif isinstance(part, n.Expression) and not (below and "items" in path):
        yield from _expressions(part)


def _selects(part: n.Select, below: bool) -> Iterator[n.Node]:
    for _, inner in n.walk(part):
        if isinstance(inner, (n.Select, n.SetOperation)) and inner is not part:
            yield inner
    yield from _ends(part)
    for field in ("having", "where", "source", *(() if below else ("groups",))):
        if getattr(part, field) is not None:
            yield dataclasses.replace(part, **{field: None})
    if part.distinct and not below:
        yield dataclasses.replace(part, distinct=False)
    for at in range(len(part.items)):
        if len(part.items) > 1 and not (at == 0 and part.distinct_on):
            kept = [place for place in part.order if isinstance(place, n.Key) or place.at != at + 1]
            moved = tuple(place if isinstance(place, n.Key) else dataclasses.replace(place, at=place.at - (place.at > at + 1)) for place in kept)
            if any(isinstance(place, n.Place) for place in moved) or not part.order:
                yield dataclasses.replace(part, items=part.items[:at] + part.items[at + 1 :], order=moved)


def _ends(part: Any) -> Iterator[n.Node]:
    for at in range(len(part.withs)):
        yield dataclasses.replace(part, withs=part.withs[:at] + part.withs[at + 1 :])
    if part.order:
        yield dataclasses.replace(part, order=(), limit=None, offset=None, **({"distinct_on": False} if isinstance(part, n.Select) else {}))
    if part.limit is not None:
        yield dataclasses.replace(part, limit=None, offset=None)
    if part.offset is not None:
        yield dataclasses.replace(part, offset=None)


def _expressions(part: n.Expression) -> Iterator[n.Node]:
    if isinstance(part, n.Aggregate):
        if part.condition:
            yield dataclasses.replace(part, condition=None)
        if part.distinct:
            yield dataclasses.replace(part, distinct=False)
        if len(part.order) > 1:
            for at in range(len(part.order) - 1):
                yield dataclasses.replace(part, order=part.order[:at] + part.order[at + 1 :])
    if isinstance(part, n.Window):
        if part.condition:
            yield dataclasses.replace(part, condition=None)
        if part.frame:
            yield dataclasses.replace(part, frame="")
        for at in range(len(part.partition)):
            yield dataclasses.replace(part, partition=part.partition[:at] + part.partition[at + 1 :])
        if part.order and part.form.split("(")[0] in ("count", "sum", "min", "max", "avg", "bool_and", "bool_or") and not part.frame:
            yield dataclasses.replace(part, order=())
    if not part.args and not isinstance(part, (n.Aggregate, n.Window)):
        return
    # Parts of the same kind, the smallest first, then a constant.
    inner = [found for _, found in n.walk(part) if found is not part and isinstance(found, n.Expression) and found.kind == part.kind and not isinstance(found, (n.Aggregate, n.Window))]
    seen: set[n.Node] = set()
    for found in sorted(inner, key=n.size):
        if found not in seen:
            seen.add(found)
            yield found
    if part.kind in PLAIN:
        yield of_value(part.kind, PLAIN[part.kind])
    yield null(part.kind)


def shrunk_tables(schema: Schema, case: Case, still: Callable[[Schema], bool], seconds: float) -> Schema:
    """The smallest tables found in some seconds for which `still` holds, without those that the case does not read."""
    end = time.monotonic() + seconds
    names = n.tables(case)
    kept = {name: table for name, table in schema.items() if name in names}
    if not kept or (kept != schema and not still(kept)):
        return schema
    schema = kept
    for name in sorted(names, key=lambda name: -len(schema[name].rows)):
        narrow = _without_columns(schema[name], case)
        if narrow is not None and time.monotonic() < end and still({**schema, name: narrow}):
            schema = {**schema, name: narrow}
        step = max(len(schema[name].rows) // 2, 1)
        while time.monotonic() < end:
            rows, at = schema[name].rows, 0
            while at < len(schema[name].rows) and time.monotonic() < end:
                rows = schema[name].rows
                fewer = dataclasses.replace(schema[name], rows=rows[:at] + rows[at + step :])
                if still({**schema, name: fewer}):
                    schema = {**schema, name: fewer}
                else:
                    at += step
            if step == 1:
                break
            step //= 2
    return schema


def _without_columns(table: Stored, case: Case) -> Stored | None:
    """The table with `u`, `k` and the columns whose names the case has."""
    forms = " ".join(part.form for _, part in n.walk(case) if isinstance(part, n.Expression))
    keep = [at for at, column in enumerate(table.columns) if column.name in ("u", "k") or column.name in forms.replace('""', '"')]
    if len(keep) == len(table.columns):
        return None
    return Stored(table.name, tuple(table.columns[at] for at in keep), tuple(tuple(row[at] for at in keep) for row in table.rows))
