"""Constants of every kind, as SQL writes them: edges, and values that the tables hold."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from random import Random
from typing import Any

from . import tables
from .nodes import Expression

#: The type that a NULL of a kind is cast to, for us and for DuckDB.
TYPES = {
    "int": ("BIGINT", None), "float": ("DOUBLE", None), "decimal": ("DECIMAL(12, 2)", None), "text": ("VARCHAR", None), "bool": ("BOOLEAN", None),
    "date": ("DATE", None), "timestamp": ("TIMESTAMP", None), "zoned": ("TIMESTAMP WITH TIME ZONE", None), "time": ("TIME", None), "binary": ("BYTEA", "BLOB"),
    "ints": ("BIGINT[]", None), "texts": ("VARCHAR[]", None),
}


def null(kind: str) -> Expression:
    """A NULL of a kind."""
    if kind == "struct":
        return Expression(kind, "CASE WHEN FALSE THEN named_struct('a', CAST(1 AS BIGINT), 'b', 'x') END", theirs="CAST(NULL AS STRUCT(a BIGINT, b VARCHAR))")
    ours, theirs = TYPES[kind]
    return Expression(kind, f"CAST(NULL AS {ours})", theirs=theirs and f"CAST(NULL AS {theirs})", size=0)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def of_value(kind: str, value: Any) -> Expression:
    """A value of a kind as a constant."""
    if value is None:
        return null(kind)
    match kind:
        case "int":
            # The least BIGINT is no negated literal: its positive does not exist.
            form = str(value) if value > -(2**63) else "(-9223372036854775807 - 1)"
            return Expression(kind, form, size=abs(value) if abs(value) < 2**31 else None, value=value if abs(value) < 2**63 else None)
        case "float":
            if not math.isfinite(value):
                return Expression(kind, f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS DOUBLE)", value=value)
            plain = f"{value!r}e0" if "e" not in repr(value) else repr(value)
            tame = abs(value) < 1000 and value * 4 == int(value * 4)
            return Expression(kind, plain, size=abs(value) if tame else None, exact=tame, value=value)
        case "decimal":
            scale = max(0, -value.as_tuple().exponent)
            digits = max(len(value.as_tuple().digits), scale + 1)
            return Expression(kind, f"CAST('{value}' AS DECIMAL({digits}, {scale}))", size=float(abs(value)) if digits < 10 else None)
        case "text":
            return Expression(kind, quoted(value), value=value if "\x00" not in value else None)
        case "bool":
            return Expression(kind, str(value).upper(), value=value)
        case "date":
            return Expression(kind, f"DATE '{value.isoformat()}'", size=1 if 1700 < value.year < 2200 else None, value=value)
        case "timestamp":
            return Expression(kind, f"TIMESTAMP '{value.isoformat(sep=' ')}'", size=1, value=value)
        case "zoned":
            return Expression(kind, f"TIMESTAMP WITH TIME ZONE '{value.isoformat(sep=' ')}'", size=1)
        case "time":
            return Expression(kind, f"TIME '{value.isoformat()}'")
        case "binary":
            return Expression(kind, f"X'{value.hex()}'", theirs="'" + "".join(f"\\x{b:02X}" for b in value) + "'::BLOB")
        case "struct":
            a, b = of_value("int", value["a"]).form, of_value("text", value["b"]).form
            return Expression(kind, f"named_struct('a', {a}, 'b', {b})", theirs=f"{{'a': {a}, 'b': {b}}}")
    one = kind.removesuffix("s")
    inner = ", ".join("NULL" if item is None else of_value(one, item).form for item in value)
    empty = f"CAST([] AS {TYPES[kind][0]})"
    return Expression(kind, f"[{inner}]" if any(item is not None for item in value) else empty)


PATTERNS = ["%", "a%", "%a", "%a%", "_", "__", "a_", "", "%\\%%", "%\\_%", "A%", "ä", "%日%", "_ gene", "%''%", "per\\%cent", "%e%e%", " %", "%\\\\%"]

_DRAWS = {
    "int": [0, 1, -1, 2, 3, 5, 7, 10, 42, 127, 300, -20],
    "float": tables.TAME_FLOATS,
    "decimal": [Decimal(0), Decimal("1.00"), Decimal("-0.50"), Decimal("1.5"), Decimal("99999"), Decimal("123.45")],
    "text": tables.WORDS,
    "bool": [True, False],
    "date": tables.DATES,
    "timestamp": [*tables.MOMENTS, *tables.WHOLE_MOMENTS],
    "zoned": [moment.replace(tzinfo=dt.timezone.utc) for moment in tables.MOMENTS],
    "time": tables.TIMES,
    "binary": tables.BYTES,
    "ints": [[], [1], [1, 2], [None, 3], [2, 2]],
    "texts": [[], ["a"], ["a", "ä"], [None, "b"]],
    "struct": [{"a": 1, "b": "a"}, {"a": None, "b": ""}, {"a": 7, "b": None}],
}
_EDGES = {"int": [2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**53 + 1, 255, -128], "float": tables.WILD_FLOATS}


class Constants:
    """Draws constants; `schema` gives values that its tables hold, so that conditions hold for some rows."""

    def __init__(self, random: Random, schema: tables.Schema) -> None:
        self.random = random
        self.held: dict[str, list[Any]] = {}
        for table in schema.values():
            for at, column in enumerate(table.columns):
                if column.type.size is not None or column.type.kind in ("text", "bool", "time", "binary"):
                    self.held.setdefault(column.type.kind, []).extend(row[at] for row in table.rows[:40] if row[at] is not None)

    def draw(self, kind: str, edges: bool = True) -> Expression:
        """A constant that is no NULL; without `edges` one that can be computed with."""
        value = self._value(kind, edges)
        if kind == "float" and not edges and not math.isfinite(value):
            value = 2.0
        return of_value(kind, value)

    def _value(self, kind: str, edges: bool) -> Any:
        chance = self.random.random()
        if edges and kind in _EDGES and chance < 0.08:
            return self.random.choice(_EDGES[kind])
        if self.held.get(kind) and chance < 0.6:
            return self.random.choice(self.held[kind])
        return self.random.choice(_DRAWS[kind])

    def pattern(self) -> str:
        return self.random.choice(PATTERNS)
