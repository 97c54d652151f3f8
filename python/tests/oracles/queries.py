"""Whole queries: sources, joins, groups, windows, set operations, common table expressions and subqueries.

A query that has a LIMIT sorts by all its columns, so that its rows are the same everywhere."""

from __future__ import annotations

import dataclasses
from random import Random

from . import nodes as n
from .calls import Calls
from .constants import Constants
from .expressions import E, Scope
from .printing import name
from .tables import Schema

#: The pairs of rows that a join may compare at most.
PAIRS = 4_000


class Queries(Calls):
    """Draws queries over a schema."""

    def __init__(self, random: Random, schema: Schema, without: frozenset[str]) -> None:
        super().__init__(random, Constants(random, schema), without)
        self.schema, self.subquery = schema, self._subquery
        self.aliases = 0
        #: Keys and rows of sources by their ids; they are kept, so that their ids stay theirs.
        self._uniques: dict[int, tuple[E, ...] | None] = {}
        self._rows: dict[int, int] = {}
        self._kept: list[n.Source] = []
        #: Common table expressions that may be referred to here: name, columns, keys of them, and rows.
        self.named: list[tuple[str, list[tuple[str, E]], tuple[str, ...] | None, int]] = []

    def query(self, depth: int = 3) -> n.Query:
        """A query of any form."""
        self.named = []
        if self.random.random() < 0.18:
            return self._with(depth)
        return self.ended(self.body(depth, top=True))

    def _with(self, depth: int) -> n.Query:
        withs = []
        for at in range(self.random.choice([1, 1, 2])):
            query = self.ended(self.body(depth - 1), 0.2)
            columns, keys = self.columns_of(query), self.keys_of(query)
            withs.append(n.With(f"w{at}", query))
            self.named.append((f"w{at}", columns, keys, self.rows_of(query)))
        query = self.ended(self.body(depth, top=True))
        return dataclasses.replace(query, withs=tuple(withs))

    def body(self, depth: int, top: bool = False, kinds: list[str] | None = None, outer: list[E] | None = None) -> n.Query:
        """A query without an end."""
        if depth > 1 and self.random.random() < 0.12 and outer is None:
            return self._set_operation(depth, kinds)
        return self.select(depth, top, kinds, outer)

    def _set_operation(self, depth: int, kinds: list[str] | None) -> n.Query:
        kinds = kinds or [self.random.choice(["int", "text", "date", "bool", "float", "timestamp"]) for _ in range(self.small(1, 3))]
        hows = ["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"]
        branches = [self.body(depth - 1, kinds=kinds) for _ in range(2)]
        if self.random.random() < 0.2:
            branches[0] = self.ended(branches[0], 0.8)
        return n.SetOperation(self.random.choice(hows), *branches)

    def ended(self, query: n.Query, chance: float = 0.45) -> n.Query:
        """The query with an ORDER BY of all its columns, and perhaps a LIMIT; unchanged where columns have no order."""
        columns = self.columns_of(query)
        unordered = any(value.kind in n.NESTED or "loose" in n.tags(value) for _, value in columns)
        if unordered or self.random.random() > chance:
            return query
        places = [n.Place(at + 1, self.random.random() < 0.4, self.random.random() < 0.5) for at in range(len(columns))]
        if self._may_be_distinct_on(query) and self.random.random() < 0.08:
            rest = places[1:]
            self.random.shuffle(rest)
            return dataclasses.replace(query, distinct_on=True, order=(places[0], *rest))
        self.random.shuffle(places)
        computed = self._computed_key(query) if self.random.random() < 0.25 else None
        if computed is not None:
            places = [computed, *places]
        limit = self.random.choice([None, 1, 2, 3, 5, 10, 50, *([0] if self.random.random() < 0.1 else [])])
        offset = self.random.choice([None, None, None, 1, 3]) if limit is not None else None
        return dataclasses.replace(query, order=tuple(places), limit=limit, offset=offset)

    def _computed_key(self, query: n.Query) -> n.Key | None:
        """A key computed from a computed value, if the query is a plain SELECT."""
        if not isinstance(query, n.Select) or query.distinct or query.groups is not None or query.source is None:
            return None
        if any(isinstance(part, (n.Aggregate, n.Window)) for item in query.items for _, part in n.walk(item)):
            return None
        value = self.random.choice(query.items).value
        forms = ["NOT ({0} IS NULL)", "({0} IS NULL) = ({0} IS NULL)"]
        if value.kind == "text":
            forms += ["-length({0})", "(length({0}) > 1)", "upper(lower({0}))"]
        elif value.kind == "float" or value.kind == "int" and value.size is not None and value.size < 2**30:
            forms += ["-abs({0})", "(abs({0}) > 1)", "(-({0}) - 1)"]
        return n.Key(E("bool", self.random.choice(forms), (value,)), self.random.random() < 0.4, self.random.random() < 0.5)

    @staticmethod
    def _may_be_distinct_on(query: n.Query) -> bool:
        """Whether the first column is one of a table, and nothing is grouped or distinct."""
        return isinstance(query, n.Select) and not query.distinct and query.groups is None and not query.items[0].value.args and "." in query.items[0].value.form and query.items[0].value.value is None \
            and not any(isinstance(part, n.Aggregate) for item in query.items for _, part in n.walk(item))

    # Selects.

    def select(self, depth: int, top: bool = False, kinds: list[str] | None = None, outer: list[E] | None = None) -> n.Select:
        source, scope = self.source(depth)
        scope.outer = outer or []
        where = self.where(scope, depth) if self.random.random() < 0.6 else None
        inner = 2 if depth > 1 else 1
        if self.random.random() < 0.35:
            return self._grouped(source, scope, where, inner, top, kinds)
        items = []
        for at in range(len(kinds) if kinds else self.random.randint(1, 4)):
            kind = kinds[at] if kinds else self.any_kind(scope)
            value = self.window(kind, scope, 1, top) if self.random.random() < 0.16 else None
            items.append(value or self.of(kind, scope, self.random.choice([0, 1, inner])))
        if kinds is None and scope.unique and self.random.random() < 0.5:
            items += [key for key in scope.unique if key not in items]
        select = n.Select(_items(items), source, where)
        distinct = self.random.random() < 0.12 and not any("loose" in n.tags(item) for item in items)
        return dataclasses.replace(select, distinct=distinct)

    def partitioned(self, grouped: bool, sized: bool) -> tuple[n.Select, E]:
        """A SELECT without DISTINCT and LIMIT, and a condition over its source, or over its groups; `sized` has columns
        that aggregates merge."""
        self.named = []
        source, scope = self.source(3)
        where = self.condition(scope, 1) if self.random.random() < 0.3 else None
        if grouped:
            select = dataclasses.replace(self._grouped(source, scope, where, 1, False, None, windows=False), having=None)
            values = [*(select.groups.by if select.groups else ()), *[item.value for item in select.items if isinstance(item.value, n.Aggregate)]]
            return select, self.condition(Scope(values, subqueries=False), 2)
        kinds = [self.any_kind(scope, n.SCALARS if sized else n.KINDS) for _ in range(self.small(1, 3))]
        values = [self.of(kind, scope, self.random.choice([0, 0, 1])) for kind in kinds]
        return n.Select(_items(values), source, where), self.condition(scope, 3)

    def where(self, scope: Scope, depth: int) -> E:
        """A condition; now and then a comparison with a subquery's rows that has no NULL among them."""
        made = self.condition(scope, min(depth, 2))
        if scope.subqueries and depth > 1 and self.random.random() < 0.15:
            member = self._guarded_member(scope, depth - 1)
            made = E("bool", "({0} AND {1})", (made, member)) if self.random.random() < 0.5 else member
        return made

    def _grouped(self, source: n.Source, scope: Scope, where: E | None, depth: int, top: bool, kinds: list[str] | None, windows: bool = True) -> n.Select:
        by = []
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 2, 3])):
            # DuckDB takes a constant for a position, and so do others.
            made = self.of(self.any_kind(scope, n.SCALARS), dataclasses.replace(scope, subqueries=False, outer=[]), self.random.choice([0, 0, 1]))
            if _has_column(made, scope) and made not in by and "loose" not in n.tags(made):
                by.append(made)
        how, sets = "", ()
        if len(by) > 1 and self.random.random() < 0.3:
            how = self.random.choice(["ROLLUP", "CUBE", "GROUPING SETS"])
            if how == "GROUPING SETS":
                subsets = [tuple(at for at in range(len(by)) if self.random.random() < 0.6) for _ in range(self.small(1, 3))]
                sets = tuple(dict.fromkeys([tuple(range(len(by))), *subsets]))
        groups = n.Groups(tuple(by), how, sets) if by else None
        wanted = kinds or [self.random.choice(["int", "int", "float", "decimal", "text", "bool", "date", "timestamp", "ints"]) for _ in range(self.random.randint(1, 3))]
        calls = []
        for kind in wanted:
            made = self.aggregate(kind, scope, depth - 1, top and kinds is None)
            if made is not None:
                calls.append(made)
        over = Scope([*by, *[made for made in calls if "loose" not in n.tags(made)]], rows=scope.rows, subqueries=False, unique=None if how else tuple(by) or None)
        if how:
            calls.append(E("int", "grouping({0})", (self.random.choice(by),), size=1, width=32))
        having = self.condition(over, 1) if over.columns and self.random.random() < 0.25 else None
        if kinds:
            items = []
            for kind in kinds:
                fitting = [value for value in over.columns if value.kind == kind]
                items.append(self.random.choice(fitting) if fitting and self.random.random() < 0.8 else self.constants.draw(kind) if not fitting else self.of(kind, over, 1))
        else:
            items = [value for value in by if self.random.random() < 0.8] + calls
            if over.columns and self.random.random() < 0.3:
                items.append(self.of(self.any_kind(over, n.SCALARS), over, 1))
            if windows and over.columns and over.unique and self.random.random() < 0.1 and (made := self.window("int", over, 0)):
                items.append(made)
            items = items or [n.Aggregate("int", "count(*)", size=1e6, width=64)]
        return n.Select(_items(items), source, where, groups, having)

    # What a query gives.

    def columns_of(self, query: n.Query) -> list[tuple[str, E]]:
        """Names of the columns, each with an expression that has its kind and bounds."""
        if isinstance(query, n.Select):
            return [(item.name, item.value) for item in query.items]
        pairs = zip(self.columns_of(query.left), self.columns_of(query.right))
        return [(of, dataclasses.replace(E(a.kind, ""), size=None if None in (a.size, b.size) else max(a.size, b.size), width=min(a.width, b.width), exact=a.exact and b.exact)) for (of, a), (_, b) in pairs]

    def keys_of(self, query: n.Query) -> tuple[str, ...] | None:
        """Names of columns that together differ from row to row."""
        if not isinstance(query, n.Select):
            return None
        if query.distinct:
            return tuple(item.name for item in query.items) if all(item.value.kind in n.SCALARS for item in query.items) else None
        if query.groups is None:
            keys = self._unique_of(query.source)
        else:
            keys = None if query.groups.how else query.groups.by
        if keys is None or any(item.value.kind == "float" for item in query.items if item.value in keys):
            return None
        names = {item.value: item.name for item in query.items}
        return tuple(names[key] for key in keys) if all(key in names for key in keys) else None

    def _unique_of(self, source: n.Source | None) -> tuple[E, ...] | None:
        return self._uniques.get(id(source)) if source is not None else None

    def rows_of(self, query: n.Query) -> int:
        if isinstance(query, n.SetOperation):
            rows = self.rows_of(query.left) + self.rows_of(query.right)
        else:
            rows = self._rows.get(id(query.source), 1)
        return rows if query.limit is None else min(rows, query.limit)

    # Sources.

    def source(self, depth: int) -> tuple[n.Source, Scope]:
        """What a SELECT reads, and its columns."""
        chance = self.random.random()
        if depth <= 1 or chance < 0.5:
            source, scope = self._single(depth)
        else:
            source, scope = self._joined_sources(depth)
        self._uniques[id(source)], self._rows[id(source)] = scope.unique, scope.rows
        self._kept.append(source)
        return source, scope

    def _alias(self) -> str:
        self.aliases += 1
        return f"a{self.aliases}"

    def _single(self, depth: int) -> tuple[n.Source, Scope]:
        chance = self.random.random()
        if self.named and chance < 0.7:
            of, columns, keys, rows = self.random.choice(self.named)
            alias = self._alias()
            return n.Reference(of, alias), _scope_of(alias, columns, keys, rows)
        if depth > 1 and chance < 0.2:
            query = self.ended(self.body(depth - 1), 0.25)
            alias = self._alias()
            return n.Derived(query, alias), _scope_of(alias, self.columns_of(query), self.keys_of(query), self.rows_of(query))
        if chance > 0.97:
            return self._values()
        if chance > 0.92 and depth > 1 and (unnested := self._unnested()):
            return unnested
        table = self.random.choice(list(self.schema.values()))
        alias = self._alias()
        columns = [E(c.type.kind, f"{alias}.{name(c.name)}", size=c.type.size, width=c.type.width, exact=c.type.exact) for c in table.columns]
        return n.Table(table.name, alias), Scope(columns, unique=(columns[0],), filled=True, rows=max(len(table.rows), 1))

    def _unnested(self) -> tuple[n.Source, Scope] | None:
        """The elements of a table's lists."""
        lists = [(table, column) for table in self.schema.values() for column in table.columns if column.type.kind in ("ints", "texts")]
        if not lists:
            return None
        table, column = self.random.choice(lists)
        inner, alias = self._alias(), self._alias()
        kind = column.type.kind.removesuffix("s")
        elements = E(kind, "unnest({0})", (E(column.type.kind, f"{inner}.{name(column.name)}"),))
        query = n.Select(_items([E("int", f"{inner}.u", width=64), elements]), n.Table(table.name, inner))
        columns = [E("int", f"{alias}.c0", size=1000, width=64), E(kind, f"{alias}.c1", size=10 if kind == "int" else None, width=64)]
        return n.Derived(query, alias), Scope(columns, rows=3 * max(len(table.rows), 1))

    def _natural(self, left: n.Table, of_left: Scope, right: n.Table, of_right: Scope) -> tuple[n.Source, Scope]:
        """Two tables whose only column of one name is `k`."""
        sides, columns = [], []
        for side, scope, letter in ((left, of_left, "l"), (right, of_right, "r")):
            key = next(column for column in scope.columns if column.form.endswith(".k"))
            others = [column for column in scope.columns if column is not key and column.kind in n.SCALARS][:3]
            alias = self._alias()
            items = (n.Item(key, "k"), *[n.Item(value, f"{letter}{at}") for at, value in enumerate(others)])
            sides.append(n.Derived(n.Select(items, side), alias))
            columns += [dataclasses.replace(value, form=f"{alias}.{letter}{at}") for at, value in enumerate(others)]
            if letter == "l":
                columns.append(dataclasses.replace(key, form="k"))
        hows = ["NATURAL JOIN", "NATURAL LEFT JOIN", "NATURAL RIGHT JOIN", "NATURAL FULL JOIN"]
        return n.Join(self.random.choice(hows), *sides), Scope(columns, rows=of_left.rows * of_right.rows, subqueries=False)

    def _values(self) -> tuple[n.Source, Scope]:
        kinds = [self.random.choice(["int", "text", "bool", "date"]) for _ in range(self.small(1, 2))]
        rows = tuple(tuple(self.constants.draw(kind, edges=False) for kind in kinds) for _ in range(self.small(1, 4)))
        alias = self._alias()
        columns = [E(kind, f"{alias}.v{at}", size=None, width=32) for at, kind in enumerate(kinds)]
        return n.Values(rows, alias), Scope(columns, rows=len(rows))

    def _joined_sources(self, depth: int) -> tuple[n.Source, Scope]:
        left, of_left = self._single(depth)
        right, of_right = self._single(depth)
        source, scope = self._join(left, of_left, right, of_right, depth)
        if self.random.random() < 0.2 and not (isinstance(source, n.Join) and (source.using or "NATURAL" in source.how)):
            third, of_third = self._single(depth - 1)
            source, scope = self._join(source, scope, third, of_third, depth)
        return source, scope

    def _join(self, left: n.Source, of_left: Scope, right: n.Source, of_right: Scope, depth: int) -> tuple[n.Source, Scope]:
        source, both = self._pair(left, of_left, right, of_right, depth)
        if both is of_left or not isinstance(source, n.Join):
            return source, both
        filled = of_left.filled, of_right.filled
        if "FULL" in source.how and not any(filled):
            # A row of NULLs from the left and one from the right are the same keys.
            both.unique = None
        sides = {"LEFT": filled[0], "RIGHT": filled[1], "FULL": all(filled)}
        both.filled = next((of_side for side, of_side in sides.items() if side in source.how), any(filled))
        return source, both

    def _pair(self, left: n.Source, of_left: Scope, right: n.Source, of_right: Scope, depth: int) -> tuple[n.Source, Scope]:
        both = Scope(of_left.columns + of_right.columns, rows=of_left.rows * of_right.rows, subqueries=False)
        if of_left.unique and of_right.unique:
            both.unique = of_left.unique + of_right.unique
        hows = ["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
        few = both.rows <= PAIRS
        chance = self.random.random()
        if isinstance(left, n.Table) and isinstance(right, n.Table) and chance < 0.15:
            how = self.random.choice(hows)
            merged = next(column for column in of_left.columns if column.form.endswith(".k"))
            both.columns = [column for column in both.columns if not column.form.endswith(".k")]
            both.columns.append(dataclasses.replace(merged, form="k"))
            return n.Join(how, left, right, using=("k",)), both
        if isinstance(left, n.Table) and isinstance(right, n.Table) and chance < 0.2:
            return self._natural(left, of_left, right, of_right)
        if few and chance < 0.28:
            how = self.random.choice(["CROSS JOIN", "JOIN"])
            return n.Join(how, left, right, None if how == "CROSS JOIN" else self.condition(both, 1)), both
        pairs = [(a, b) for a in of_left.columns for b in of_right.columns if a.kind == b.kind and a.kind in n.SCALARS]
        short = [(a, b) for a, b in pairs if a.form.endswith(".k") and b.form.endswith(".k")]
        if not pairs:
            return (n.Join("CROSS JOIN", left, right), both) if few else (left, of_left)
        a, b = self.random.choice(short if short and self.random.random() < 0.6 else pairs)
        operator = "IS NOT DISTINCT FROM" if self.random.random() < 0.12 else "="
        on = E("bool", f"({{0}} {operator} {{1}})", (a, b) if self.random.random() < 0.5 else (b, a))
        if self.random.random() < 0.4:
            more = self.condition(both, 1) if self.random.random() < 0.6 else E("bool", "({0} = {1})", self.random.choice(pairs))
            on = E("bool", "({0} AND {1})", (on, more) if self.random.random() < 0.7 else (more, on))
        if few and self.random.random() < 0.1:
            on = E("bool", "({0} OR {1})", (on, self.condition(both, 1)))
        how = self.random.choice(hows)
        return n.Join(how, left, right, on), both

    # Subqueries.

    def _subquery(self, kind: str, scope: Scope, depth: int) -> E | None:
        if depth < 0 or scope.depth > 1:
            return None
        if kind != "bool":
            return self._scalar_subquery(kind, scope, depth)
        chance = self.random.random()
        if chance < 0.45:
            return self._exists(scope, depth)
        if chance < 0.8:
            return self._member(scope, depth)
        return None

    def _inner(self, scope: Scope, correlated: bool) -> tuple[n.Source, Scope, E | None]:
        """A table for a subquery, and the condition that ties it to the outer row."""
        source, inner = self._single(1)
        inner.depth, inner.subqueries = scope.depth + 1, False
        # A column that USING merged has no table's name, and so would be one of the subquery's.
        pairs = [(a, b) for a in inner.columns for b in scope.columns if a.kind == b.kind and a.kind in ("int", "text", "date", "bool") and "." in b.form]
        tie = None
        if correlated and pairs:
            a, b = self.random.choice([pair for pair in pairs if pair[0].form.endswith(".k")] or pairs)
            # A tie by a value that several rows share.
            form = "({0} % 3 = {1})" if a.kind == "int" and self.random.random() < 0.2 else "({0} = {1})"
            tie = E("bool", form, (a, b))
        return source, inner, tie

    def _conditions(self, tie: E | None, inner: Scope, chance: float = 0.6) -> E | None:
        more = self.condition(inner, 1) if self.random.random() < chance else None
        if tie and more:
            return E("bool", "({0} AND {1})", (tie, more))
        return tie or more

    def _scalar_subquery(self, kind: str, scope: Scope, depth: int) -> E | None:
        source, inner, tie = self._inner(scope, self.random.random() < 0.6)
        value = self.aggregate(kind, inner, 0)
        if value is None or n.tags(value) & {"loose"}:
            return None
        select = n.Select(self._selected(value), source, self._conditions(tie, inner), having=self._row_condition())
        return E(kind, "({0})", (select,), size=value.size, width=value.width, exact=value.exact, tags=frozenset({"subquery"}))

    def _row_condition(self) -> E | None:
        """A condition on the one row of an aggregate, which may hold where there is nothing to aggregate."""
        if self.random.random() < 0.75:
            return None
        operator = self.random.choice(["=", "<>", ">", "<="])
        return E("bool", f"({{0}} {operator} {self.random.choice([0, 1, 2])})", (n.Aggregate("int", "count(*)"),))

    def _selected(self, value: E) -> tuple[n.Item, ...]:
        """The one column of a subquery."""
        return (n.Item(value, "q0" if self.random.random() < 0.7 else "c0"),)

    def _exists(self, scope: Scope, depth: int) -> E:
        source, inner, tie = self._inner(scope, self.random.random() < 0.8)
        if tie and self.random.random() < 0.3:
            inner.outer = [column for column in scope.columns if column.kind in n.SCALARS and "." in column.form]
        select = n.Select(self._selected(E("int", "1", value=1)), source, self._conditions(tie, inner))
        if self.random.random() < 0.2:
            # A limit, an offset, and an aggregate, which gives a row for none.
            counted = {"items": self._selected(n.Aggregate("int", "count(*)")), "having": self._row_condition()}
            changed = self.random.choice([{"limit": 0}, {"offset": 1}, counted])
            select = dataclasses.replace(select, **changed)
        word = self.random.choice(["EXISTS", "NOT EXISTS"])
        return E("bool", f"({word} ({{0}}))", (select,), tags=frozenset({"subquery"}))

    def _member(self, scope: Scope, depth: int) -> E | None:
        kind = self.any_kind(scope, ("int", "text", "date", "bool", "float", "decimal"))
        source, inner, tie = self._inner(scope, self.random.random() < 0.3)
        select = n.Select(self._selected(self.of(kind, inner, 0)), source, self._conditions(tie, inner))
        return E("bool", f"({{0}} {self.random.choice(['IN', 'NOT IN'])} ({{1}}))", (self.of(kind, scope, 0), select), tags=frozenset({"subquery"}))

    def _guarded_member(self, scope: Scope, depth: int) -> E:
        """Membership without a NULL among the rows."""
        source, inner, _ = self._inner(scope, False)
        kinds = tuple(kind for kind in ("int", "text", "date", "float", "decimal") if any(c.kind == kind for c in inner.columns) and any(c.kind == kind for c in scope.columns))
        kind = self.random.choice(kinds) if kinds else None
        if kind is None:
            return self.condition(scope, 1)
        value = self.column(kind, inner)
        guard = E("bool", "({0} IS NOT NULL)", (value,))
        where = E("bool", "({0} AND {1})", (guard, self.condition(inner, 0))) if self.random.random() < 0.5 else guard
        select = n.Select(self._selected(value), source, where)
        outer = self.column(kind, dataclasses.replace(scope, outer=[]))
        if self.random.random() < 0.25:
            operator = self.random.choice(["<", ">", ">=", "<>"])
            return E("bool", f"({{0}} {operator} ALL ({{1}}))", (outer, select), tags=frozenset({"subquery"}))
        return E("bool", f"({{0}} {self.random.choice(['IN', 'NOT IN'])} ({{1}}))", (outer, select), tags=frozenset({"subquery"}))


def _items(values: list[E]) -> tuple[n.Item, ...]:
    return tuple(n.Item(value, f"c{at}") for at, value in enumerate(values))


def _scope_of(alias: str, columns: list[tuple[str, E]], keys: tuple[str, ...] | None, rows: int) -> Scope:
    made = {of: E(value.kind, f"{alias}.{name(of)}", size=value.size, width=value.width, exact=value.exact) for of, value in columns if "loose" not in n.tags(value)}
    unique = tuple(made[key] for key in keys) if keys and all(key in made for key in keys) else None
    return Scope(list(made.values()), unique=unique, rows=max(rows, 1))


def _has_column(value: E, scope: Scope) -> bool:
    forms = {column.form for column in scope.columns}
    return any(isinstance(part, E) and part.form in forms for _, part in n.walk(value))
