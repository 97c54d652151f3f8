"""The sqllogictest files of the dialect expect DuckDB's answers, except for records that they mark with a reason.

`cargo test -p skytether dialect` runs the same files over fleets."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

import duckdb
import pytest

FILES = sorted((Path(__file__).resolve().parents[2] / "crates" / "skytether" / "tests" / "sqllogictest").glob("*.slt"))


@dataclass
class Record:
    line: int
    command: list[str]
    marks: list[list[str]]
    sql: str
    expected: list[str] = field(default_factory=list)

    @property
    def ours_alone(self) -> bool:
        return ["skipif", "duckdb"] in self.marks or ["onlyif", "skytether"] in self.marks


def records(path: Path) -> Iterator[Record]:
    """The records of a file of statements and queries; other kinds are not used in ours."""
    line = 1
    for paragraph in re.split(r"\n\n", path.read_text()):
        lines = paragraph.split("\n")
        at, marks = 0, []
        while at < len(lines) and (not lines[at] or lines[at].startswith(("#", "skipif", "onlyif"))):
            if lines[at].startswith(("skipif", "onlyif")):
                marks.append(lines[at].split())
            at += 1
        if at < len(lines):
            sql, bar, expected = "\n".join(lines[at + 1 :]).partition("\n----")
            yield Record(line + at, lines[at].split(), marks, sql, expected.strip("\n").split("\n") if bar and expected.strip("\n") else [])
        line += len(lines) + 1


def shown(value: Any) -> str:
    """A value as Arrow displays it in Rust."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case "":
            return "(empty)"
        case dt.datetime() | dt.time():
            return value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        case dt.date():
            return value.isoformat()
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{k}: {shown(v)}' for k, v in value.items())}}}"
    return str(value)


def same_form(token: str) -> str:
    """Numbers in one form, whatever their type and the last digit of their fraction."""
    try:
        number = float(token)
    except ValueError:
        return token
    return str(int(token)) if re.fullmatch(r"-?\d+", token) else f"{number + 0.0:.12g}"


def rows(lines: list[str], ordered: bool) -> list[list[str]]:
    of = [[same_form(token) for token in line.split()] for line in lines]
    return of if ordered else sorted(of)


def check(con: duckdb.DuckDBPyConnection, record: Record) -> None:
    ingest = re.match(r"INGEST (\w+)\.(\w+) AS (.*)", record.sql, re.DOTALL)
    if ingest:
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {ingest[1]}")
        con.execute(f"CREATE TABLE {ingest[1]}.{ingest[2]} AS {ingest[3]}")
    elif record.command[:2] == ["statement", "error"]:
        with pytest.raises(duckdb.Error):
            con.execute(record.sql).fetchall()
    else:
        assert record.command[0] == "query", record
        found = [" ".join(map(shown, row)) for row in con.execute(record.sql).fetchall()]
        ordered = "rowsort" not in record.command
        assert rows(found, ordered) == rows(record.expected, ordered), f"{record.sql}\nsays {found}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_as_duckdb(path):
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    failed = []
    for record in records(path):
        if record.ours_alone:
            continue
        try:
            check(con, record)
        except (AssertionError, duckdb.Error, pytest.fail.Exception) as e:
            failed.append(f"line {record.line}: {e}")
    assert not failed, "\n".join(failed)


def test_most_records_are_compared():
    every = [record for path in FILES for record in records(path)]
    ours = [record for record in every if record.ours_alone and record.command[0] == "query"]
    assert len(every) >= 150 and len(ours) < len(every) / 4, (len(every), len(ours))
