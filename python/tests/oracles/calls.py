"""Calls over many rows: aggregates with DISTINCT, FILTER and ORDER BY, and windows with frames.

What depends on the order of rows gets a total order from `Scope.unique`, or is left out."""

from __future__ import annotations

import dataclasses

from . import nodes as n
from .expressions import E, Expressions, Scope

#: The bound of a count or a sum, so that sums of sums stay within a type.
MANY = 1e9


class Calls(Expressions):
    """Draws aggregates and windows."""

    def keys(self, scope: Scope, depth: int, most: int = 2) -> tuple[n.Key, ...]:
        """Terms of an ORDER BY inside a call."""
        kinds = [self.any_kind(scope, ("int", "text", "date", "float", "timestamp", "bool", "decimal")) for _ in range(self.random.randint(1, most))]
        return tuple(self.key(self.of(kind, scope, depth if self.random.random() < 0.3 else 0)) for kind in kinds)

    def key(self, by: E) -> n.Key:
        return n.Key(by, self.random.random() < 0.4, self.random.random() < 0.5)

    def total(self, scope: Scope) -> tuple[n.Key, ...] | None:
        """Terms that leave no ties; None where there are none."""
        if scope.unique is None:
            return None
        first = self.keys(scope, 0, 1) if self.random.random() < 0.5 else ()
        # A constant in an ORDER BY would be a position.
        first = tuple(key for key in first if key.by.value is None)
        return first + tuple(map(self.key, scope.unique))

    def aggregate(self, kind: str, scope: Scope, depth: int, top: bool = False) -> E | None:
        """An aggregate that gives a value of `kind`; one that is only nearly the same elsewhere at the `top` alone."""
        made = self._aggregate(kind, dataclasses.replace(scope, subqueries=False), depth, top)
        if made is None:
            return None
        if self.random.random() < 0.2:
            made = dataclasses.replace(made, condition=self.condition(dataclasses.replace(scope, subqueries=False), depth))
        return made

    def _aggregate(self, kind: str, scope: Scope, depth: int, top: bool) -> n.Aggregate | None:
        A = n.Aggregate
        choice = self.random.random()
        distinct = self.random.random() < 0.2
        if kind in n.SCALARS and kind != "bool" and choice < 0.35:
            value = self.of(kind, scope, depth)
            return A(kind, f"{self.random.choice(['min', 'max'])}({{0}})", (value,), size=value.size, width=value.width, exact=value.exact, distinct=distinct)
        if choice > 0.93 and (order := self.total(scope)):
            value = self.of(kind, scope, depth)
            name = self.random.choice(["first", "last"])
            return A(kind, f"{name}_value({{0}})", (value,), f"{name}({{0}})", size=value.size, width=value.width, exact=value.exact, order=order)
        match kind:
            case "int":
                if choice < 0.5:
                    return A("int", "count(*)", size=MANY, width=64)
                if choice < 0.7:
                    return A("int", "count({0})", (self.of(self.any_kind(scope, n.SCALARS), scope, depth),), size=MANY, width=64, distinct=distinct)
                if choice < 0.85:
                    value = self.sized("int", scope, depth)
                    # Sums of sums grow; those of more than 64 bits are an error.
                    size = value.size * scope.rows
                    return A("int", "sum({0})", (value,), size=size if size < 1e15 else None, width=64, distinct=distinct) if size < 2**62 else None
                value = self.of("int", scope, depth)
                return A("int", f"bit_{self.random.choice(['and', 'or', 'xor'])}({{0}})", (value,), width=value.width) if value.size is not None else None
            case "float":
                value = self.sized(self.random.choice(["float", "float", "int"]), scope, depth)
                if not value.exact:
                    return None
                if choice < 0.6:
                    return A("float", "sum({0})", (E("float", "CAST({0} AS DOUBLE)", (value,)),), size=value.size * scope.rows, distinct=distinct)
                if choice < 0.75:
                    return A("float", "avg({0})", (value,), exact=False, distinct=distinct)
                if choice < 0.9 or not top:
                    as_double = E("float", "CAST({0} AS DOUBLE)", (value,))
                    form, theirs = self.random.choice([("median({0})", None), ("percentile_cont(0.25) WITHIN GROUP (ORDER BY {0})", "quantile_cont({0}, 0.25)")])
                    return A("float", form, (as_double,), theirs, exact=False)
                if self.random.random() < 0.3:
                    other = self.sized("int", scope, 0)
                    return A("float", f"{self.random.choice(['covar_pop', 'covar_samp'])}({{0}}, {{1}})", (value, other), tags=frozenset({"loose"}))
                name = self.random.choice(["stddev_samp", "stddev_pop", "var_samp", "var_pop"])
                return A("float", f"{name}({{0}})", (value,), tags=frozenset({"loose"}))
            case "decimal":
                value = self.sized("decimal", scope, 0)
                return A("decimal", "sum({0})", (value,), size=None, distinct=distinct)
            case "bool":
                return A("bool", f"bool_{self.random.choice(['and', 'or'])}({{0}})", (self.of("bool", scope, depth),))
            case "text":
                order = self.total(scope)
                return order and A("text", "string_agg({0}, ',')", (self.of("text", scope, depth),), order=order)
            case "ints" | "texts":
                order = self.total(scope)
                value = self.of(kind.removesuffix("s"), scope, depth)
                if kind == "ints":
                    value = self._element("int", scope)
                if self.random.random() < 0.3:
                    return A(kind, "array_agg({0})", (value,), order=(self.key(value),), distinct=True) if value.value is None else None
                return order and A(kind, "array_agg({0})", (value,), order=order)
        return None

    def window(self, kind: str, scope: Scope, depth: int, top: bool = False) -> E | None:
        """A window call that gives a value of `kind`."""
        scope = dataclasses.replace(scope, subqueries=False)
        partition = tuple(self.of(self.any_kind(scope, ("int", "text", "bool", "date")), scope, depth if self.random.random() < 0.3 else 0) for _ in range(self.random.choice([0, 1, 1, 1, 2])))
        total = self.total(scope)
        peers = self.keys(scope, depth)
        if any(key.by.value is not None for key in peers):
            peers = tuple(key for key in peers if key.by.value is None) or (total or ())
        choice = self.random.random()
        W = n.Window
        if kind == "int" and choice < 0.3:
            if total and choice < 0.15:
                call = self.random.choice(["row_number()", f"ntile({self.small(1, 4)})"])
                return W("int", call, size=MANY, width=32, partition=partition, order=total)
            return peers and W("int", self.random.choice(["rank()", "dense_rank()"]), size=MANY, width=32, partition=partition, order=peers) or None
        if kind == "float" and choice < 0.2 and peers:
            return W("float", self.random.choice(["percent_rank()", "cume_dist()"]), partition=partition, order=peers, exact=False)
        if choice < 0.6 and total:
            value = self.of(kind, scope, depth)
            like = {"size": value.size, "width": value.width, "exact": value.exact}
            form = self.random.choice([
                "lag({0})", "lead({0})", f"lag({{0}}, {self.small(0, 3)})", f"lead({{0}}, {self.small(0, 3)})", "first_value({0})", "last_value({0})", f"nth_value({{0}}, {self.small(1, 3)})",
            ])
            frame = "" if form.startswith("l") and not form.startswith("last") else self.frame(total, rows_only=True)
            theirs = None
            if self.random.random() < 0.2:
                form, theirs = f"{form} IGNORE NULLS", form.replace("{0}", "{0} IGNORE NULLS") if "," not in form else f"{form[:-1]} IGNORE NULLS)"
            return W(kind, form, (value,), theirs, partition=partition, order=total, frame=frame, **like)
        made = self._aggregate(kind, scope, depth, top)
        if made is None or made.distinct or made.order or kind in n.NESTED or "WITHIN GROUP" in made.form:
            return None
        order = self.random.choice([(), peers, total or ()])
        frame = self.frame(order, rows_only=False) if order else ""
        if frame.startswith("ROWS") and order != total:
            frame = ""
        condition = self.condition(scope, 0) if self.random.random() < 0.15 else None
        return W(kind, made.form, made.args, made.theirs, made.size, made.width, made.exact, tags=made.tags, partition=partition, order=order, frame=frame, condition=condition)

    def frame(self, order: tuple[n.Key, ...], rows_only: bool) -> str:
        """A frame whose ends do not cross, or none."""
        if self.random.random() < 0.3:
            return ""
        ranged = len(order) == 1 and order[0].by.kind in ("int", "date", "timestamp") and order[0].by.size is not None and not rows_only
        unit = self.random.choice(["ROWS", "ROWS", *(["RANGE"] if ranged else []), *([] if rows_only else ["GROUPS"])])
        if unit == "RANGE" and order[0].by.kind != "int":
            steps = [f"INTERVAL '{self.small(1, 40)}' {self.random.choice(['DAY', 'MONTH', 'HOUR'])}" for _ in range(2)]
            ends = [self.random.choice([f"{steps[0]} PRECEDING", "UNBOUNDED PRECEDING"]), self.random.choice([f"{steps[1]} FOLLOWING", "CURRENT ROW"])]
            return f"RANGE BETWEEN {ends[0]} AND {ends[1]}"
        places = ["UNBOUNDED PRECEDING", f"{self.small(1, 3)} PRECEDING", "CURRENT ROW", f"{self.small(1, 3)} FOLLOWING", "UNBOUNDED FOLLOWING"]
        start = self.random.randint(0, 3)
        end = self.random.randint(max(start, 1), 4)
        ends = [places[start], places[end]]
        if start == end != 2:
            # The same side twice: the farther one first.
            far, near = self.small(2, 4), self.small(0, 1)
            ends = [f"{far} PRECEDING", f"{near} PRECEDING"] if start == 1 else [f"{near} FOLLOWING", f"{far} FOLLOWING"]
        return f"{unit} BETWEEN {ends[0]} AND {ends[1]}"
