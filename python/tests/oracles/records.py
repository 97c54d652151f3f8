"""A failing case as a test: a record of sqllogictest where DuckDB's answer is the right one, and else a test in Python.

The text is ready for `crates/skytether/tests/sqllogictest` or for `python/tests`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from . import nodes as n, printing
from .answers import Rows
from .checks import PARTITIONS, TRUE_FALSE_NULL, WAYS, Case, Verdict, _and, _of_oracle
from .constants import of_value
from .expressions import E
from .printing import name
from .tables import Schema, Stored

#: Types of columns in `INGEST`, by what `tables.Type.name` begins with.
SQL_TYPES = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "uint8": "TINYINT UNSIGNED", "uint16": "SMALLINT UNSIGNED", "uint32": "INT UNSIGNED",
    "uint64": "BIGINT UNSIGNED", "double": "DOUBLE", "float": "REAL", "string": "VARCHAR", "large_string": "VARCHAR", "string_view": "VARCHAR", "bool": "BOOLEAN",
    "date32[day]": "DATE", "timestamp[us]": "TIMESTAMP",
}
LETTERS = {"int": "I", "float": "R", "decimal": "R", "text": "T"}


#: What a test of a way must do besides.
WAYS_IN_WORDS = {
    "partitioned": 'ingest the tables as p.NAME as well, with partition_by="k"', "indexed": "ingest the tables as x.NAME as well, and create indexes",
    "lost": "close the fleet, remove the directory of a drive, and open it again", "moving": "open the fleet with profiles of several speeds", "served": "connect to a served fleet",
    "prepared": "prepare the text over Flight SQL, with its constants as parameters", "substrait": "let the datafusion package write the plan of the text",
}


def written(schema: Schema, case: Case, verdict: Verdict, theirs: Rows | None, place: str) -> str:
    """The case as a test; `place` says where it was found."""
    used = [schema[of] for of in sorted(n.tables(case))]
    told = f"# {(verdict.wrong or '')[:400]}".replace("\n", " ")
    if case.oracle == "duckdb" and theirs is not None and all(_sql_type(c.type.arrow) for table in used for c in table.columns):
        return "\n".join([told, f"# {place}", "", *[_ingest(table) for table in used], _record(case.query, theirs)])
    return "\n".join([told, _python(used, case, theirs, place)])


def _sql_type(of: Any) -> str | None:
    if str(of).startswith("decimal"):
        return f"DECIMAL({of.precision}, {of.scale})"
    return SQL_TYPES.get(str(of))


def _ingest(table: Stored) -> str:
    columns = ", ".join(f"CAST(v{at} AS {_sql_type(c.type.arrow)}) AS {name(c.name)}" for at, c in enumerate(table.columns))
    rows = ", ".join("(" + ", ".join("NULL" if v is None else of_value(c.type.kind, v).form for v, c in zip(row, table.columns)) + ")" for row in table.rows)
    names = ", ".join(f"v{at}" for at in range(len(table.columns)))
    none = "(" + ", ".join("NULL" for _ in table.columns) + ")"
    source = f"(VALUES {rows or none}) AS v ({names})" + ("" if rows else " WHERE FALSE")
    return f"statement ok\nINGEST e.{table.name} AS SELECT {columns} FROM {source}\n"


def _record(query: n.Query, theirs: Rows) -> str:
    letters = "".join(LETTERS.get(kind, "?") for kind in theirs.kinds)
    lines = [" ".join(map(_shown, row)) for row in theirs.rows]
    sort = "" if n.is_ordered(query) else " rowsort"
    return f"query {letters}{sort}\n{printing.text(query)}\n----\n" + "\n".join(lines if sort == "" else sorted(lines))


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return "(empty)" if value == "" else str(value)


def _python(used: list[Stored], case: Case, theirs: Rows | None, place: str) -> str:
    lines = [
        f"def test_{case.oracle.replace(' ', '_')}_found_by_oracles(tmp_path):", f'    """{place}."""', *_fleet(case), *[line for table in used for line in _given(table)],
    ]
    lines += [f"        {line}" for line in _asked(case, theirs)]
    return "\n".join(lines)


def _fleet(case: Case) -> list[str]:
    fleet, _, _ = WAYS.get(case.oracle, ("main", "e", "full"))
    more = ', redundancy="ec:2+1"' if fleet == "lost" else ""
    return [f"    with skytether.open(tmp_path, drives=3, slice_rows=7{more}) as fleet:"]


def _given(table: Stored) -> list[str]:
    fields = ", ".join(f"({c.name!r}, pa.{_arrow(c.type.arrow)})" for c in table.columns)
    rows = [dict(zip([c.name for c in table.columns], row)) for row in table.rows]
    return [f"        {table.name} = pa.Table.from_pylist({_literal(rows)}, schema=pa.schema([{fields}]))", f'        fleet.ingest({table.name}, "e.{table.name}")']


def _literal(value: Any) -> str:
    """A value as Python reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(each)}, ' for each in value)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(each)}" for key, each in value.items()) + "}"
    return repr(value)


def _arrow(of: Any) -> str:
    text = str(of)
    if text.startswith("timestamp"):
        return f'timestamp({of.unit!r}, {of.tz!r})' if of.tz else f"timestamp({of.unit!r})"
    if text.startswith("list"):
        return f"list_(pa.{_arrow(of.value_type)})"
    if text.startswith("struct"):
        return "struct([" + ", ".join(f"({of.field(at).name!r}, pa.{_arrow(of.field(at).type)})" for at in range(of.num_fields)) + "])"
    if text.startswith("decimal"):
        return f"decimal128({of.precision}, {of.scale})"
    if text.startswith("time64"):
        return f"time64({of.unit!r})"
    if text.startswith("dictionary"):
        return "string()"
    return {"double": "float64()", "float": "float32()", "bool": "bool_()", "date32[day]": "date32()"}.get(text, f"{text}()")


def _asked(case: Case, theirs: Rows | None) -> list[str]:
    if case.oracle in PARTITIONS and isinstance(case.query, n.Select) and case.condition is not None:
        asked = _of_oracle(case.oracle, case.query)
        if asked is None:
            return []
        clause = "having" if case.oracle == "having" else "where"
        parts = [dataclasses.replace(asked, **{clause: _and(getattr(asked, clause), E("bool", form, (case.condition,)))}) for form in TRUE_FALSE_NULL]
        words = ("met", "not_met", "null")
        lines = [f"whole = fleet.sql({printing.text(asked)!r})", *[f"{word} = fleet.sql({printing.text(part)!r})" for word, part in zip(words, parts)]]
        if case.oracle in ("rows", "having"):
            return [*lines, f"assert sorted(map(str, {' + '.join(f'rows({word}.to_arrow())' for word in words)})) == {_rows('whole')}"]
        return [*lines, "# the parts, merged, are the whole"]
    if case.oracle == "reference" and isinstance(case.query, n.Select) and case.condition is not None:
        kept = dataclasses.replace(case.query, where=_and(case.query.where, case.condition))
        shown = dataclasses.replace(case.query, items=(*case.query.items, n.Item(case.condition, "q")))
        return [f"kept = fleet.sql({printing.text(kept)!r})", f"shown = fleet.sql({printing.text(shown)!r})",
                f"assert {_rows('kept')} == sorted(str(row[:-1]) for row in rows(shown.to_arrow()) if row[-1])"]
    _, domain, cut = WAYS.get(case.oracle, ("main", "e", "full"))
    lines = [f"text = {printing.text(case.query)!r}"]
    if case.oracle == "duckdb":
        return [*lines, f"# in DuckDB: {printing.text(case.query, 'duckdb')}", f"assert {_rows('fleet.sql(text)')} == {_sorted(theirs)}"]
    text = "text" if domain == "e" else repr(printing.text(case.query, domain=domain))
    full, other = 'fleet.sql(text, cut="full")', f"fleet.sql({text}, cut={cut or 'full'!r})"
    return [*lines, f"# {case.oracle}: {WAYS_IN_WORDS.get(case.oracle.split()[0], 'as it says')}", f"assert {_rows(full)} == {_rows(other)}"]


def _rows(result: str) -> str:
    """Python for the rows of a result in some order (`rows` is that of `compare`)."""
    return f"sorted(map(str, rows({result}.to_arrow())))"


def _sorted(theirs: Rows | None) -> str:
    return repr(sorted(map(str, theirs.rows))) if theirs else "[]"
