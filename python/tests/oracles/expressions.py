"""Typed expressions over the columns of a scope: arithmetic, texts, dates, nested values, CASE, casts and conditions.

Numbers carry bounds (`Expression.size`, `width`), so that no sum or product leaves its type: what overflows is an error
here and elsewhere, at rows that no engine promises to visit. See also `subqueries` and `calls`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Callable

from . import nodes as n
from .constants import Constants, null, quoted

E = n.Expression

#: Kinds that have an order, so that they are compared, sorted and have a least value.
ORDERED = n.SCALARS


@dataclass
class Scope:
    """What an expression may refer to."""

    columns: list[E]
    #: Columns of outer queries.
    outer: list[E] = field(default_factory=list)
    #: Columns that together differ from row to row; None if there are none.
    unique: tuple[E, ...] | None = None
    #: Whether in each row one of `unique` is not NULL.
    filled: bool = False
    #: Rows that there may be at most.
    rows: int = 1000
    #: Whether subqueries may stand here.
    subqueries: bool = True
    #: Outer columns per subquery.
    depth: int = 0


def call(kind: str, form: str, *args: n.Node, theirs: str | None = None, **more: object) -> E:
    return E(kind, form, tuple(args), theirs, **more)


def sized_call(kind: str, form: str, *args: E, size: float | None, **more: object) -> E:
    """A call whose value is as wide as its widest argument; its bound is left out where that may not hold it."""
    width = max(arg.width for arg in args)
    fits = size is not None and size < (2 ** (width - 1) if kind == "int" else 1e12)
    return E(kind, form, tuple(args), size=size if fits else None, width=width, exact=all(arg.exact for arg in args), **more)


def alike(values: list[E]) -> dict[str, object]:
    """The bounds of a value that is one of `values`."""
    sizes = [value.size for value in values]
    return {"size": None if None in sizes else max(sizes), "width": min(value.width for value in values), "exact": all(value.exact for value in values)}


class Expressions:
    """Draws expressions."""

    def __init__(self, random: Random, constants: Constants, without: frozenset[str]) -> None:
        self.random, self.constants, self.without = random, constants, without
        #: What gives conditions and values with subqueries; set by `queries`.
        self.subquery: Callable[[str, Scope, int], E | None] = lambda kind, scope, depth: None

    # What is chosen.

    def of(self, kind: str, scope: Scope, depth: int) -> E:
        """An expression of a kind."""
        if depth <= 0 or self.random.random() < 0.3:
            return self.leaf(kind, scope)
        makers = self._makers(kind)
        for _ in range(4):
            made = self.random.choice(makers)(scope, depth - 1)
            if made is not None:
                return made
        return self.leaf(kind, scope)

    def _makers(self, kind: str) -> list[Callable[[Scope, int], E | None]]:
        if kind in ("ints", "texts"):
            return self._lists(kind)
        if kind == "text":
            return [*self._general("text"), *self._scalar("text"), *[self._texts_of] * 4, self._texts_cast, self._text_of_list, self._field("b", "text")]
        return getattr(self, f"_{kind}s_")()

    def leaf(self, kind: str, scope: Scope) -> E:
        """A column, or else a constant."""
        column = self.column(kind, scope)
        if column is not None and self.random.random() < 0.85:
            return column
        if kind == "time":
            # Constants have another unit than columns: they are compared, and have no common type (docs/sql.md).
            return column or null(kind)
        return null(kind) if self.random.random() < 0.06 else self.constants.draw(kind)

    def column(self, kind: str, scope: Scope) -> E | None:
        """A column of a kind, now and then of an outer query."""
        pool = scope.outer if scope.outer and self.random.random() < 0.3 else scope.columns
        fitting = [column for column in pool if column.kind == kind]
        return self.random.choice(fitting) if fitting else None

    def sized(self, kind: str, scope: Scope, depth: int) -> E:
        """A number that can be computed with."""
        for _ in range(3):
            made = self.of(kind, scope, depth)
            if made.size is not None:
                return made
        fitting = [column for column in scope.columns if column.kind == kind and column.size is not None]
        return self.random.choice(fitting) if fitting else self.constants.draw(kind, edges=False)

    def any_kind(self, scope: Scope, kinds: tuple[str, ...] = n.KINDS) -> str:
        """A kind, more likely one that columns have."""
        held = [column.kind for column in scope.columns if column.kind in kinds]
        return self.random.choice(held) if held and self.random.random() < 0.85 else self.random.choice([k for k in kinds if k not in self.without])

    def small(self, low: int = 0, high: int = 5) -> int:
        return self.random.randint(low, high)

    # What all kinds have.

    def _general(self, kind: str) -> list[Callable[[Scope, int], E | None]]:
        def case(scope: Scope, depth: int) -> E:
            arms = self.small(1, 2)
            values = [self.of(kind, scope, depth) for _ in range(arms)]
            otherwise = [self.of(kind, scope, depth)] if self.random.random() < 0.7 else []
            args: list[E] = []
            form = "CASE"
            for value in values:
                form += f" WHEN {{{len(args)}}} THEN {{{len(args) + 1}}}"
                args += [self.of("bool", scope, depth), value]
            if otherwise:
                form += f" ELSE {{{len(args)}}}"
                args += otherwise
            return E(kind, form + " END", tuple(args), **alike(values + otherwise))

        def simple_case(scope: Scope, depth: int) -> E:
            of = self.any_kind(scope, ("int", "text", "bool", "date"))
            values = [self.of(kind, scope, depth) for _ in range(3)]
            operand = [self.of(of, scope, 0), self.constants.draw(of, edges=False), self.constants.draw(of, edges=False)]
            return E(kind, "CASE {0} WHEN {1} THEN {2} WHEN {3} THEN {4} ELSE {5} END", (operand[0], operand[1], values[0], operand[2], values[1], values[2]), **alike(values))

        def coalesce(scope: Scope, depth: int) -> E:
            values = [self.of(kind, scope, depth) for _ in range(self.small(2, 3))]
            return E(kind, f"coalesce({_listed(values)})", tuple(values), **alike(values))

        def nullif(scope: Scope, depth: int) -> E:
            value = self.of(kind, scope, depth)
            return E(kind, "nullif({0}, {1})", (value, self.leaf(kind, scope)), size=value.size, width=value.width, exact=value.exact)

        def most(scope: Scope, depth: int) -> E:
            values = [self.of(kind, scope, depth) for _ in range(self.small(2, 3))]
            return E(kind, f"{self.random.choice(['greatest', 'least'])}({_listed(values)})", tuple(values), **alike(values))

        return [case, simple_case, coalesce, *([nullif, most] if kind in ORDERED else [])]

    def _scalar(self, kind: str) -> list[Callable[[Scope, int], E | None]]:
        return [lambda scope, depth: self.subquery(kind, scope, depth) if scope.subqueries else None]

    # Numbers.

    def _ints_(self) -> list[Callable[[Scope, int], E | None]]:
        return [*self._general("int"), *self._scalar("int"), *[self._arithmetic] * 3, self._bits, self._quotient, self._cast_int, self._of_text, self._of_date, self._of_list, self._field("a", "int")]

    def _arithmetic(self, scope: Scope, depth: int, kind: str = "int") -> E:
        a, b = self.sized(kind, scope, depth), self.sized(kind, scope, depth)
        match self.random.choice("+-*n|"):
            case "+":
                return sized_call(kind, "({0} + {1})", a, b, size=a.size + b.size)
            case "-":
                return sized_call(kind, "({0} - {1})", a, b, size=a.size + b.size)
            case "*":
                product = sized_call(kind, "({0} * {1})", a, b, size=a.size * b.size)
                return product if product.size is not None else a
            case "n":
                return sized_call(kind, "(- {0})", a, size=a.size)
            case _:
                return sized_call(kind, "abs({0})", a, size=a.size)

    def _bits(self, scope: Scope, depth: int) -> E:
        a, b = self.sized("int", scope, depth), self.sized("int", scope, depth)
        form = self.random.choice(["({0} & {1})", "({0} | {1})", "(- ({0} & {1}))", "(- ({0} | {1}))", "({0} & (- {0}))", "({0} | (- {0}))"])
        return sized_call("int", form, a, b, size=2 * (a.size + b.size))

    def _quotient(self, scope: Scope, depth: int) -> E:
        a, b = self.sized("int", scope, depth), self.sized("int", scope, depth)
        form, size = self.random.choice([("({0} / nullif({1}, 0))", a.size), ("({0} % nullif({1}, 0))", b.size)])
        return sized_call("int", form, a, b, size=size)

    def _cast_int(self, scope: Scope, depth: int) -> E:
        choice = self.random.randint(0, 4)
        if choice == 4:
            return E("int", "TRY_CAST({0} AS TINYINT)", (self.of("int", scope, depth),), size=127, width=8)
        if choice == 0:
            value = self.sized("int", scope, depth)
            to, width = self.random.choice([("BIGINT", 64), ("INT", 32), *([("SMALLINT", 16)] if value.size < 30000 else [])])
            return E("int", f"CAST({{0}} AS {to})", (value,), size=value.size if value.size < 2 ** (width - 1) else None, width=width)
        if choice == 1:
            return E("int", "CAST({0} AS INT)", (self.of("bool", scope, depth),), size=1, width=32)
        if choice == 2:
            return E("int", "CAST(signum({0}) AS BIGINT)", (self.of("int", scope, depth),), theirs="CAST(sign({0}) AS BIGINT)", size=1, width=32)
        digits = self.random.choice(["12", "-7", "0", "x", "", " 5"])
        return E("int", "TRY_CAST({0} AS BIGINT)", (self.random.choice([E("text", quoted(digits), value=digits), self.of("text", scope, 0)]),), theirs="")

    def _of_text(self, scope: Scope, depth: int) -> E:
        a, b = self.of("text", scope, depth), self.of("text", scope, 0)
        form, theirs, args = self.random.choice([
            ("length({0})", None, (a,)), ("char_length({0})", "length({0})", (a,)), ("octet_length({0})", "strlen({0})", (a,)), ("strpos({0}, {1})", None, (a, b)),
            ("position({1} IN {0})", None, (a, b)), ("ascii({0})", None, (a,)), ("bit_length({0})", None, (a,)),
        ])
        return E("int", form, args, theirs, size=2000, width=32)

    def _of_date(self, scope: Scope, depth: int) -> E:
        kind = self.random.choice(["date", "timestamp"])
        value = self.sized(kind, scope, depth)
        part = self.random.choice(["YEAR", "MONTH", "DAY", "QUARTER", "WEEK", "DOY", "DOW", *(["HOUR", "MINUTE"] if kind == "timestamp" else [])])
        form = self.random.choice([f"EXTRACT({part} FROM {{0}})", f"date_part('{part.lower()}', {{0}})"])
        # DuckDB's part of a constant NULL is a DOUBLE.
        return E("int", form, (value,), f"CAST({form} AS BIGINT)", size=10000, width=32)

    def _of_list(self, scope: Scope, depth: int) -> E:
        a, b = self.of("ints", scope, depth), self.of("texts", scope, depth)
        form, theirs, args, size = self.random.choice([
            ("array_length({0})", "len({0})", (a,), 100), ("cardinality({0})", "len({0})", (b,), 100), ("{0}[1]", None, (a,), None), ("{0}[2]", None, (a,), None),
            ("array_position({0}, 2)", "list_position({0}, 2)", (a,), 100), ("array_element({0}, -1)", "{0}[-1]", (a,), None),
        ])
        return E("int", form, args, theirs, size=size, width=32)

    def _field(self, name: str, kind: str) -> Callable[[Scope, int], E | None]:
        def made(scope: Scope, depth: int) -> E | None:
            value = self.column("struct", scope)
            return value and E(kind, f"{{0}}['{name}']", (value,), size=10 if kind == "int" else None, width=64, tags=frozenset({"field"}))

        return made

    def _floats_(self) -> list[Callable[[Scope, int], E | None]]:
        def quotient(scope: Scope, depth: int) -> E:
            form = "(CAST({0} AS DOUBLE) / nullif({1}, 0e0))"
            return E("float", form, (self.sized("float", scope, depth), self.of("float", scope, depth)), exact=False)

        def cast(scope: Scope, depth: int) -> E:
            value = self.sized(self.random.choice(["int", "int", "decimal"]), scope, depth)
            return E("float", "CAST({0} AS DOUBLE)", (value,), size=value.size if value.kind == "int" else None, exact=value.kind == "int")

        def function(scope: Scope, depth: int) -> E:
            name = self.random.choice(["floor", "ceil", "trunc", "abs", "round", "sqrt(abs"])
            value = self.sized("float", scope, depth)
            # A function of a REAL is a REAL here, and a DOUBLE elsewhere.
            form = f"{name}(CAST({{0}} AS DOUBLE)){')' if '(' in name else ''}"
            return E("float", form, (value,), size=value.size + 1, exact="(" not in name and value.exact)

        return [*self._general("float"), *self._scalar("float"), *[lambda s, d: self._arithmetic(s, d, "float")] * 2, quotient, cast, function]

    def _decimals_(self) -> list[Callable[[Scope, int], E | None]]:
        def arithmetic(scope: Scope, depth: int) -> E:
            a, b = self.sized("decimal", scope, 0), self.sized("decimal", scope, 0)
            return E("decimal", f"({{0}} {self.random.choice('+-')} {{1}})", (a, b), size=None)

        def cast(scope: Scope, depth: int) -> E:
            value = self.sized("int", scope, depth)
            return E("decimal", "CAST({0} AS DECIMAL(20, 2))", (value,), size=None)

        def fraction(scope: Scope, depth: int) -> E:
            return E("decimal", "({0} % 1)", (self.sized("decimal", scope, 0),), size=None)

        return [*self._general("decimal"), *self._scalar("decimal"), arithmetic, cast, fraction]

    # Texts.

    def _texts_of(self, scope: Scope, depth: int) -> E:
        a, b = self.of("text", scope, depth), self.of("text", scope, 0)
        i, j = self.small(-3, 5), self.small(0, 4)
        form, theirs = self.random.choice([
            ("lower({0})", None), ("upper({0})", None), ("trim({0})", None), ("ltrim({0})", None), ("rtrim({0})", None), ("({0} || {1})", None), ("concat({0}, {1})", None),
            ("replace({0}, {1}, '-')", None), (f"substr({{0}}, {max(i, 1)}, {j})", None), (f"substring({{0}} FROM {max(i, 1)} FOR {j})", None), (f"left({{0}}, {i})", None),
            (f"right({{0}}, {i})", None), (f"repeat({{0}}, {j})", None), (f"lpad({{0}}, {j + 2}, 'xy')", None), (f"rpad({{0}}, {j + 2}, 'xy')", None),
            (f"split_part({{0}}, 'a', {max(i, 1)})", None), ("reverse({0})", None), ("translate({0}, 'ab', 'xy')", None), ("concat_ws('-', {0}, {1})", None), ("md5({0})", None),
            ("regexp_replace({0}, '[a-c]', 'X')", None), ("initcap({0})", ""), ("btrim({0}, 'a')", "trim({0}, 'a')"), ("chr(97)", None), ("regexp_replace({0}, 'a+', '', 'g')", None),
        ])
        return E("text", form, (a, b), theirs)

    def _texts_cast(self, scope: Scope, depth: int) -> E:
        kind = self.random.choice(["int", "bool", "date", "decimal"])
        # The scale of a computed decimal is another in DuckDB, and so is its text.
        value = self.of(kind, scope, depth) if kind != "decimal" else self.leaf(kind, scope)
        return E("text", "CAST({0} AS VARCHAR)", (value,))

    def _text_of_list(self, scope: Scope, depth: int) -> E:
        form, theirs = self.random.choice([("{0}[1]", None), ("array_to_string({0}, ',')", ""), ("array_element({0}, -1)", "{0}[-1]")])
        return E("text", form, (self.of("texts", scope, depth),), theirs)

    # Dates and times.

    def _dates_(self) -> list[Callable[[Scope, int], E | None]]:
        def shifted(scope: Scope, depth: int) -> E:
            step = f"INTERVAL '{self.small(1, 40)}' {self.random.choice(['DAY', 'MONTH', 'YEAR', 'WEEK'])}"
            return E("date", f"CAST(({{0}} {self.random.choice('+-')} {step}) AS DATE)", (self.sized("date", scope, depth),), size=1)

        def truncated(scope: Scope, depth: int) -> E:
            value = self.sized(self.random.choice(["date", "timestamp"]), scope, depth)
            unit = self.random.choice(["year", "quarter", "month", "week", "day"])
            return E("date", f"CAST(date_trunc('{unit}', {{0}}) AS DATE)", (value,), size=1)

        def cast(scope: Scope, depth: int) -> E:
            return E("date", "CAST({0} AS DATE)", (self.sized("timestamp", scope, depth),), size=1)

        def made(scope: Scope, depth: int) -> E:
            return E("date", f"make_date({self.small(1990, 2030)}, {self.small(1, 12)}, {self.small(1, 28)})", size=1)

        return [*self._general("date"), *self._scalar("date"), shifted, truncated, cast, made]

    def _timestamps_(self) -> list[Callable[[Scope, int], E | None]]:
        def shifted(scope: Scope, depth: int) -> E:
            step = f"INTERVAL '{self.small(1, 40)}' {self.random.choice(['SECOND', 'MINUTE', 'HOUR', 'DAY', 'MONTH', 'YEAR'])}"
            return E("timestamp", f"({{0}} {self.random.choice('+-')} {step})", (self.sized("timestamp", scope, depth),), size=1)

        def truncated(scope: Scope, depth: int) -> E:
            unit = self.random.choice(["year", "quarter", "month", "week", "day", "hour", "minute", "second"])
            return E("timestamp", f"date_trunc('{unit}', {{0}})", (self.sized("timestamp", scope, depth),), size=1)

        def cast(scope: Scope, depth: int) -> E:
            return E("timestamp", "CAST({0} AS TIMESTAMP)", (self.sized("date", scope, depth),), size=1)

        return [*self._general("timestamp"), *self._scalar("timestamp"), shifted, truncated, cast]

    def _times_(self) -> list[Callable[[Scope, int], E | None]]:
        return self._general("time")

    def _zoneds_(self) -> list[Callable[[Scope, int], E | None]]:
        return self._general("zoned")

    def _binarys_(self) -> list[Callable[[Scope, int], E | None]]:
        return self._general("binary")

    # Nested values.

    def _lists(self, kind: str) -> list[Callable[[Scope, int], E | None]]:
        one = kind.removesuffix("s")

        def function(scope: Scope, depth: int) -> E:
            a, b, x = self.of(kind, scope, depth), self.of(kind, scope, 0), self._element(one, scope)
            form, theirs = self.random.choice([
                ("array_append({0}, {2})", "list_append({0}, {2})"), ("array_concat({0}, {1})", ""), ("array_slice({0}, 1, 2)", "{0}[1:2]"),
                ("array_prepend({2}, {0})", "list_prepend({2}, {0})"), ("make_array({2}, {2})", "[{2}, {2}]"), ("array_reverse({0})", "list_reverse({0})"),
            ])
            return E(kind, form, (a, b, x), theirs)

        return [*self._general(kind), function]

    def _element(self, kind: str, scope: Scope) -> E:
        """A value of the type that lists of a kind have."""
        if kind != "int":
            return self.of(kind, scope, 0)
        value = self.sized(kind, scope, 0)
        return E("int", "CAST({0} AS BIGINT)", (value,), size=value.size, width=64)

    def _structs_(self) -> list[Callable[[Scope, int], E | None]]:
        def made(scope: Scope, depth: int) -> E:
            args = (E("int", "CAST({0} AS BIGINT)", (self.sized("int", scope, depth),)), self.of("text", scope, depth))
            return E("struct", "named_struct('a', {0}, 'b', {1})", args, "{'a': {0}, 'b': {1}}")

        return [*self._general("struct"), made]

    # Conditions.

    def _bools_(self) -> list[Callable[[Scope, int], E | None]]:
        return [
            *self._general("bool")[:3], *[self._compared] * 4, self._between, self._in_list, *[self._is_null] * 2, self._is_true, *[self._like] * 2, *[self._joined] * 4, self._not,
            *[lambda s, d: self.subquery("bool", s, d) if s.subqueries else None] * 2, self._distinct_from, self._has, self._guarded,
        ]

    def condition(self, scope: Scope, depth: int) -> E:
        """A condition that is seldom a plain column or constant."""
        for _ in range(3):
            made = self.of("bool", scope, depth)
            if made.args:
                return made
        return self._compared(scope, depth)

    def _compared(self, scope: Scope, depth: int) -> E:
        kind = self.any_kind(scope, ORDERED)
        a = self.of(kind, scope, depth)
        chance = self.random.random()
        if chance < 0.5:
            b = self.constants.draw(kind)
        elif chance < 0.6 and kind in ("int", "float", "decimal", "date", "timestamp"):
            others = {"int": ["float"], "float": ["int", "decimal"], "decimal": ["int", "float"], "date": ["timestamp"], "timestamp": ["date"]}
            other = self.random.choice(others[kind])
            b = self.sized(other, scope, depth)
        else:
            b = self.of(kind, scope, depth)
        if self.random.random() < 0.3:
            a, b = b, a
        return E("bool", f"({{0}} {self.random.choice(['=', '<>', '<', '<=', '>', '>='])} {{1}})", (a, b))

    def _guarded(self, scope: Scope, depth: int) -> E:
        """A division that a condition keeps away from zero."""
        args = (self.sized("int", scope, depth), self.sized("int", scope, 0), self.of("bool", scope, 0))
        form = self.random.choice([
            "CASE WHEN {1} <> 0 THEN ({0} / {1}) > 1 END", "CASE WHEN {1} = 0 THEN {2} ELSE ({0} % {1}) = 1 END", "coalesce(CASE WHEN {1} = 0 THEN false END, ({0} / {1}) > 1)",
            "(CASE WHEN {1} = 0 THEN 'z' WHEN ({0} / {1}) > 1 THEN 'p' ELSE 'n' END = 'p')",
        ])
        return E("bool", form, args)

    def _between(self, scope: Scope, depth: int) -> E:
        kind = self.any_kind(scope, ("int", "float", "decimal", "text", "date", "timestamp"))
        word = self.random.choice(["BETWEEN", "NOT BETWEEN"])
        return E("bool", f"({{0}} {word} {{1}} AND {{2}})", (self.of(kind, scope, depth), self.constants.draw(kind), self.of(kind, scope, 0)))

    def _in_list(self, scope: Scope, depth: int) -> E:
        kind = self.any_kind(scope, ("int", "float", "decimal", "text", "date", "timestamp", "bool"))
        values = [self.constants.draw(kind) for _ in range(self.small(1, 4))]
        if self.random.random() < 0.2:
            values.append(null(kind))
        if self.random.random() < 0.2:
            values.append(self.of(kind, scope, 0))
        word = "NOT IN" if self.random.random() < 0.4 else "IN"
        listed = ", ".join(f"{{{at + 1}}}" for at in range(len(values)))
        return E("bool", f"({{0}} {word} ({listed}))", (self.of(kind, scope, depth), *values))

    def _is_null(self, scope: Scope, depth: int) -> E:
        return E("bool", f"({{0}} {self.random.choice(['IS NULL', 'IS NOT NULL'])})", (self.of(self.any_kind(scope), scope, depth),))

    def _is_true(self, scope: Scope, depth: int) -> E:
        return self._is_form(self.of("bool", scope, depth))

    def _is_form(self, value: E) -> E:
        word = self.random.choice(["TRUE", "FALSE", "UNKNOWN"])
        no = self.random.choice(["", "NOT "])
        return E("bool", f"({{0}} IS {no}{word})", (value,), f"({{0}} IS {no}NULL)" if word == "UNKNOWN" else None)

    def _like(self, scope: Scope, depth: int) -> E:
        a, pattern = self.of("text", scope, depth), quoted(self.constants.pattern())
        word = self.random.choice(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
        chance = self.random.random()
        if chance < 0.75:
            return E("bool", f"({{0}} {word} {pattern})", (a,), f"({{0}} {word} {pattern} ESCAPE '\\')")
        if chance < 0.9:
            form, theirs = self.random.choice([("starts_with({0}, {1})", None), ("ends_with({0}, {1})", None), ("contains({0}, {1})", None)])
            return E("bool", form, (a, self.of("text", scope, 0)), theirs)
        word = self.random.choice(["~", "!~"])
        of = self.random.choice(["^[a-c]", "\\\\", "a\\\\|b", ".*"])
        return E("bool", f"({{0}} {word} '{of}')", (a,), f"({'' if word == '~' else 'NOT '}regexp_matches({{0}}, '{of}'))")

    def _joined(self, scope: Scope, depth: int) -> E:
        return E("bool", f"({{0}} {self.random.choice(['AND', 'OR'])} {{1}})", (self.of("bool", scope, depth), self.of("bool", scope, depth)))

    def _not(self, scope: Scope, depth: int) -> E:
        return E("bool", "(NOT {0})", (self.of("bool", scope, depth),))

    def _distinct_from(self, scope: Scope, depth: int) -> E | None:
        kind = self.any_kind(scope, ORDERED)
        no = self.random.choice(["", "NOT "])
        values = (self.of(kind, scope, depth), self.of(kind, scope, 0))
        if self.random.random() < 0.4:
            # It binds like a comparison.
            return E("bool", f"({{0}} IS {no}DISTINCT FROM {{1}} {self.random.choice(['AND', 'OR'])} {{2}})", (*values, self.of("bool", scope, depth)))
        return E("bool", f"({{0}} IS {no}DISTINCT FROM {{1}})", values)

    def _has(self, scope: Scope, depth: int) -> E:
        kind = self.random.choice(["ints", "texts"])
        a = self.of(kind, scope, depth)
        element = self._element(kind.removesuffix("s"), scope)
        word = f"{self.random.choice(['=', '<>', '<', '<=', '>', '>='])} {self.random.choice(['ANY', 'ALL'])}"
        form, theirs, args = self.random.choice([
            ("array_has({0}, {1})", "list_contains({0}, {1})", (a, element)),
            # ANY of no list at all is false in DuckDB.
            (f"CASE WHEN {{0}} IS NOT NULL THEN ({{1}} {word}({{0}})) END", None, (a, element)),
            ("({0} = {1})", None, (a, self.of(kind, scope, 0))), ("isnan({0})", None, (self.of("float", scope, depth),)),
        ])
        return E("bool", form, args, theirs)


def _listed(values: list[E]) -> str:
    return ", ".join(f"{{{at}}}" for at in range(len(values)))
