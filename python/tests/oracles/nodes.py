"""The tree of a query: what the generator makes, the printer writes and the shrinker cuts down.

Main types: `Expression` (a value of some kind), `Aggregate` and `Window` (calls with clauses of their own), `Select`
and `SetOperation` (queries), and the sources of a `FROM`. All are immutable: `put` gives a tree with one part replaced.

See also `printing`, which turns a tree into the text of one engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Iterator, Union

#: The kinds of values: what operators tell apart. Integers of all widths are one kind.
SCALARS = ("int", "float", "decimal", "text", "bool", "date", "timestamp", "zoned", "time", "binary")
NESTED = ("ints", "texts", "struct")
KINDS = SCALARS + NESTED


@dataclass(frozen=True)
class Node:
    """Any part of a query."""


@dataclass(frozen=True)
class Expression(Node):
    """A value. `form` is its SQL, with ``{0}`` for the first of `args`; without `args` it is written as it is."""

    kind: str
    form: str
    args: tuple[Node, ...] = ()
    #: The form for DuckDB, where it is another; "" where DuckDB has none.
    theirs: str | None = None
    #: Bound of a number's absolute value; None: the number may be anything, so nothing is computed with it.
    size: float | None = None
    #: Bits that a sum or product of it has at least, in either engine.
    width: int = 8
    #: Sums of it are the same in any order.
    exact: bool = True
    #: A constant, which a prepared statement can take as a parameter: its value in Python.
    value: Any = dataclasses.field(default=None, compare=False)
    #: What an answer must be compared with care for: `loose` (a tolerance), or the name of an open kind.
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Key(Node):
    """One term of an ORDER BY."""

    by: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class Aggregate(Expression):
    """A call such as ``sum({0})``; `form` and `args` are the call without its clauses."""

    distinct: bool = False
    condition: Expression | None = None
    order: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Window(Expression):
    """A call over a window; `form` and `args` are the call."""

    partition: tuple[Expression, ...] = ()
    order: tuple[Key, ...] = ()
    #: "ROWS BETWEEN ..." or "".
    frame: str = ""
    condition: Expression | None = None


@dataclass(frozen=True)
class Table(Node):
    """A stored table under an alias."""

    name: str
    alias: str


@dataclass(frozen=True)
class Reference(Node):
    """A common table expression under an alias."""

    name: str
    alias: str


@dataclass(frozen=True)
class Derived(Node):
    """A query under an alias."""

    query: Query
    alias: str


@dataclass(frozen=True)
class Values(Node):
    """Rows that the query spells out; columns are called ``v0``, ``v1`` and so on."""

    rows: tuple[tuple[Expression, ...], ...]
    alias: str


@dataclass(frozen=True)
class Join(Node):
    """Two sources; `how` is ``JOIN``, ``LEFT JOIN``, ``CROSS JOIN``, ``NATURAL JOIN`` and so on."""

    how: str
    left: Source
    right: Source
    on: Expression | None = None
    using: tuple[str, ...] = ()


@dataclass(frozen=True)
class Groups(Node):
    """GROUP BY: plain (`sets` empty, `how` ""), ``ROLLUP``, ``CUBE``, or ``GROUPING SETS`` by positions in `by`."""

    by: tuple[Expression, ...]
    how: str = ""
    sets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Item(Node):
    """One column of a result."""

    value: Expression
    name: str


@dataclass(frozen=True)
class Place(Node):
    """A term of an ORDER BY at the end of a query: the column at position `at`, from 1."""

    at: int
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class With(Node):
    """One common table expression."""

    name: str
    query: Query


@dataclass(frozen=True)
class Select(Node):
    items: tuple[Item, ...]
    source: Source | None = None
    where: Expression | None = None
    groups: Groups | None = None
    having: Expression | None = None
    distinct: bool = False
    #: DISTINCT ON the first item; the order begins with it.
    distinct_on: bool = False
    order: tuple[Place | Key, ...] = ()
    limit: int | None = None
    offset: int | None = None
    withs: tuple[With, ...] = ()


@dataclass(frozen=True)
class SetOperation(Node):
    """`how` is ``UNION``, ``UNION ALL``, ``EXCEPT`` and so on."""

    how: str
    left: Query
    right: Query
    order: tuple[Place | Key, ...] = ()
    limit: int | None = None
    offset: int | None = None
    withs: tuple[With, ...] = ()


Query = Union[Select, SetOperation]
Source = Union[Table, Reference, Derived, Values, Join]

#: The way from a tree to one of its parts: names of fields, and positions in tuples.
Path = tuple[Union[str, int], ...]


def parts(node: Node) -> Iterator[tuple[Path, Node]]:
    """The direct parts of a node, each with the way to it."""
    for field in dataclasses.fields(node):
        if field.name != "value" or isinstance(node, Item):
            yield from _within(getattr(node, field.name), (field.name,))


def _within(value: Any, path: Path) -> Iterator[tuple[Path, Node]]:
    if isinstance(value, Node):
        yield path, value
    elif isinstance(value, tuple):
        for at, each in enumerate(value):
            yield from _within(each, (*path, at))


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """A node and all that is below it, from the top."""
    yield path, node
    for way, part in parts(node):
        yield from walk(part, path + way)


def put(node: Any, path: Path, new: Any) -> Any:
    """`node` with `new` at the end of `path`."""
    if not path:
        return new
    at, rest = path[0], path[1:]
    if isinstance(at, int):
        return (*node[:at], put(node[at], rest, new), *node[at + 1 :])
    return dataclasses.replace(node, **{at: put(getattr(node, at), rest, new)})


def size(node: Node) -> int:
    """The number of nodes of a tree."""
    return sum(1 for _ in walk(node))


def tags(node: Node) -> frozenset[str]:
    """All tags of the expressions of a tree."""
    return frozenset(tag for _, part in walk(node) if isinstance(part, Expression) for tag in part.tags)


def tables(node: Node) -> set[str]:
    """Names of the stored tables that a tree reads."""
    return {part.name for _, part in walk(node) if isinstance(part, Table)}


def is_comparable(node: Node) -> bool:
    """Whether DuckDB has a form for all of a tree."""
    return all(part.theirs != "" for _, part in walk(node) if isinstance(part, Expression))


def is_ordered(query: Query) -> bool:
    """Whether the rows come in an order: the generator's final ORDER BY is by all columns."""
    return bool(query.order)
