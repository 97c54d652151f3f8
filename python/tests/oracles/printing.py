"""The text of a query in the SQL of one engine.

`text` writes a tree for us or for DuckDB. `with_parameters` writes constants of conditions as parameters of a prepared
statement."""

from __future__ import annotations

import re
from typing import Any

from . import nodes as n

#: Words that are no names without quotes, as far as the generator uses them.
RESERVED = {"select", "from", "where", "order", "group", "all", "case"}


def name(of: str) -> str:
    """A name as SQL has it: in quotes unless it needs none."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", of) and of not in RESERVED
    return of if plain else '"' + of.replace('"', '""') + '"'


def text(query: n.Node, engine: str = "ours", domain: str = "e") -> str:
    """A query as `engine` (``ours`` or ``duckdb``) reads it, with its tables in `domain`."""
    return _Printer(engine, domain, None).of(query)


def with_parameters(query: n.Node, domain: str = "e", typed: bool = False) -> tuple[str, list[tuple[Any, str]]]:
    """Our text of a query with ``?`` for the constants of its conditions, and their values, each with its kind.

    With `typed` each parameter stands in a cast to the type of the constant."""
    values: list[tuple[Any, str]] = []
    return _Printer("ours", domain, values, typed).of(query), values


#: Types of constants in casts, by kind.
CASTS = {"int": "BIGINT", "float": "DOUBLE", "text": "VARCHAR", "bool": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}


class _Printer:
    def __init__(self, engine: str, domain: str, values: list[tuple[Any, str]] | None, typed: bool = False) -> None:
        self.engine, self.domain, self.values, self.typed = engine, domain, values, typed
        #: Whether constants are parameters here: only in conditions, as two parameters are two expressions to GROUP BY.
        self.in_condition = False

    def of(self, node: n.Node) -> str:
        return getattr(self, type(node).__name__.lower())(node)

    def list(self, nodes: tuple[n.Node, ...]) -> str:
        return ", ".join(map(self.of, nodes))

    def condition(self, node: n.Node) -> str:
        before, self.in_condition = self.in_condition, True
        written = self.of(node)
        self.in_condition = before
        return written

    def expression(self, node: n.Expression) -> str:
        form = node.theirs if self.engine == "duckdb" and node.theirs is not None else node.form
        if node.args:
            return re.sub(r"\{(\d+)\}", lambda found: self.of(node.args[int(found[1])]), form)
        if self.values is not None and self.in_condition and node.value is not None and node.kind in CASTS:
            self.values.append((node.value, node.kind))
            return f"CAST(? AS {CASTS[node.kind]})" if self.typed else "?"
        return form

    def key(self, node: n.Key) -> str:
        return self.of(node.by) + _direction(node)

    def place(self, node: n.Place) -> str:
        return str(node.at) + _direction(node)

    def aggregate(self, node: n.Aggregate) -> str:
        call = self.expression(node)
        if node.distinct:
            call = call.replace("(", "(DISTINCT ", 1)
        if node.order:
            call = f"{call[:-1]} ORDER BY {self.list(node.order)})"
        return call + (f" FILTER (WHERE {self.of(node.condition)})" if node.condition else "")

    def window(self, node: n.Window) -> str:
        call = self.expression(node) + (f" FILTER (WHERE {self.of(node.condition)})" if node.condition else "")
        over = [
            f"PARTITION BY {self.list(node.partition)}" if node.partition else "",
            f"ORDER BY {self.list(node.order)}" if node.order else "",
            node.frame,
        ]
        return f"{call} OVER ({' '.join(filter(None, over))})"

    def table(self, node: n.Table) -> str:
        return f"{self.domain}.{node.name} {node.alias}"

    def reference(self, node: n.Reference) -> str:
        return f"{node.name} {node.alias}"

    def derived(self, node: n.Derived) -> str:
        return f"({self.of(node.query)}) {node.alias}"

    def values_(self, node: n.Values) -> str:
        rows = ", ".join(f"({self.list(row)})" for row in node.rows)
        return f"(VALUES {rows}) {node.alias} ({', '.join(f'v{at}' for at in range(len(node.rows[0])))})"

    def join(self, node: n.Join) -> str:
        # In the order of the text, which is that of the parameters.
        left, right = self.source(node.left), self.source(node.right)
        if isinstance(node.right, n.Join):
            right = f"({right})"
        written = f"{left} {node.how} {right}"
        if node.using:
            return f"{written} USING ({', '.join(map(name, node.using))})"
        return f"{written} ON {self.condition(node.on)}" if node.on else written

    def source(self, node: n.Source) -> str:
        return self.values_(node) if isinstance(node, n.Values) else self.of(node)

    def groups(self, node: n.Groups) -> str:
        if node.how == "GROUPING SETS":
            sets = ", ".join(f"({', '.join(self.of(node.by[at]) for at in one)})" for one in node.sets)
            return f"GROUPING SETS ({sets})"
        return f"{node.how} ({self.list(node.by)})" if node.how else self.list(node.by)

    def item(self, node: n.Item) -> str:
        return f"{self.of(node.value)} AS {name(node.name)}"

    def with_(self, node: n.With) -> str:
        return f"{node.name} AS ({self.of(node.query)})"

    def select(self, node: n.Select) -> str:
        words = [
            _withs(self, node),
            f"SELECT DISTINCT ON ({self.of(node.items[0].value)})" if node.distinct_on else "SELECT DISTINCT" if node.distinct else "SELECT",
            self.list(node.items),
            f"FROM {self.source(node.source)}" if node.source else "",
            f"WHERE {self.condition(node.where)}" if node.where else "",
            f"GROUP BY {self.groups(node.groups)}" if node.groups else "",
            f"HAVING {self.of(node.having)}" if node.having else "",
        ]
        return " ".join(filter(None, [*words, *_end(self, node)]))

    def setoperation(self, node: n.SetOperation) -> str:
        return " ".join(filter(None, [_withs(self, node), self.branch(node.left), node.how, self.branch(node.right), *_end(self, node)]))

    def branch(self, node: n.Query) -> str:
        whole = isinstance(node, n.SetOperation) or node.order or node.limit is not None or node.offset or node.withs
        return f"({self.of(node)})" if whole else self.of(node)


def _direction(node: n.Key | n.Place) -> str:
    return f" {'DESC' if node.descending else 'ASC'} NULLS {'FIRST' if node.nulls_first else 'LAST'}"


def _withs(printer: _Printer, node: n.Query) -> str:
    return "WITH " + ", ".join(map(printer.with_, node.withs)) if node.withs else ""


def _end(printer: _Printer, node: n.Query) -> list[str]:
    return [
        f"ORDER BY {printer.list(node.order)}" if node.order else "",
        "" if node.limit is None else f"LIMIT {node.limit}",
        f"OFFSET {node.offset}" if node.offset else "",
    ]
