"""Oracles over drawn queries: equal to DuckDB, partitions of a condition, WHERE against the select list, and the same
answer every way. `make soak` asks a hundred thousand queries; this asks a sample, and checks the parts."""

from __future__ import annotations

import datetime
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from conftest import PROJECT
from oracles import answers, engines, known, nodes, printing, records, sessions, shrinker
from oracles.checks import ORACLES, Case, Verdict, check, draw
from oracles.expressions import E
from oracles.queries import Queries
from oracles.tables import schema

import skytether

#: What the sample follows from. Another seed is a new search: `python -m oracles` is for that.
SEED, SESSIONS, QUERIES = 20, 2, 150


@pytest.fixture(scope="module")
def fleets(tmp_path_factory):
    started = sessions.start(tmp_path_factory.mktemp("oracles"), served=True)
    yield started
    started.close()


@pytest.fixture(scope="module")
def sample(fleets):
    total = sessions.Tally()
    for number in range(SESSIONS):
        total.add(sessions.run(fleets, SEED, number, QUERIES))
    return total


def test_a_sample_of_queries_is_answered_rightly(sample):
    assert not sample.found, "\n\n".join(sample.found.values())
    assert sample.queries == SESSIONS * QUERIES


def test_every_oracle_is_asked(sample):
    assert set(sample.checks) == set(ORACLES)
    assert sample.checks["duckdb"] > sample.queries / 3


def test_few_queries_of_the_sample_are_refused(sample):
    assert sample.unanswered < sample.queries / 10, sample.summary()
    # Nor are the ways there in name only.
    silent = sum(count for what, count in sample.skipped.items() if what.startswith(("prepared refuses", "substrait refuses", "duckdb refuses")))
    assert silent < sample.queries / 20, sample.summary()


# What is known.


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A fleet and DuckDB with the table that shows what is known."""
    table = known.shown_in()
    duck = engines.new_duck()
    duck.register("given", table)
    duck.execute("CREATE TABLE e.k AS SELECT * FROM given")
    with skytether.open(tmp_path_factory.mktemp("known"), drives=3, slice_rows=2) as fleet:
        fleet.ingest(table, "e.k")
        yield fleet, duck


@pytest.mark.parametrize("entry", [*known.OPEN, *known.KNOWN], ids=lambda entry: entry.name)
def test_a_known_entry_still_differs(shown, entry):
    """A kind that is mended has no entry any more: remove it from `known`, and the generator draws its queries."""
    fleet, duck = shown
    theirs = engines.ask_duck(duck, entry.theirs or entry.shows)
    assert isinstance(theirs, answers.Rows), theirs
    ours = engines.ask(fleet, entry.shows)
    assert isinstance(ours, answers.Refusal) or answers.difference(ours, theirs), f"{entry.name} is mended: remove its entry from python/tests/oracles/known.py"


def test_known_differences_have_a_row_in_the_docs():
    text = (PROJECT / "docs" / "sql.md").read_text()
    for entry in known.KNOWN:
        assert f"\n| {entry.row} |" in text, entry.name


# The parts of the oracles: a machine that finds nothing must be one that could.


class Wrong:
    """A fleet that leaves the first row of every answer out, or of those whose text has `only`."""

    def __init__(self, fleet, only: str = "") -> None:
        self.fleet, self.only = fleet, only

    def sql(self, text: str, cut: str):
        result = self.fleet.sql(text, cut=cut)
        return Short(result) if self.only in text else result


class Short:
    def __init__(self, result) -> None:
        self.result = result

    def __arrow_c_stream__(self, requested_schema=None):
        return self.result.to_arrow().slice(1).__arrow_c_stream__(requested_schema)


@pytest.fixture
def world(fleets):
    random = Random(5)
    tables = schema(random)
    fleets.fill(tables, random, ("main", "e"))
    return sessions.World(fleets, tables)


def drawn(world, oracle: str, count: int = 60) -> list[Case]:
    """Cases of an oracle."""
    found: list[Case] = []
    for at in range(5000):
        random = Random(f"{oracle} {at}")
        found += [case for case in draw(Queries(random, world.schema, known.without()), random, world.ways()) if case.oracle == oracle]
        if len(found) >= count:
            return found
    raise AssertionError(f"few cases of {oracle}")


@pytest.mark.parametrize("oracle", ["duckdb", "rows", "distinct", "aggregate", "groups", "having", "reference", "raw"])
def test_an_oracle_sees_a_row_that_is_missing(world, monkeypatch, oracle):
    cases = drawn(world, oracle, 15)
    assert not any(check(world, case).wrong for case in cases if known.known(case, check(world, case)) is None)
    # Only where a condition stands: the whole and the parts are not short of the same rows.
    monkeypatch.setattr(world.fleets, "main", Wrong(world.fleets.main, "(NOT " if oracle in ("rows", "distinct", "groups", "having", "aggregate") else ""))
    if oracle == "raw":
        real = world.fleets.main.fleet
        monkeypatch.setattr(engines, "ask", lambda fleet, sql, cut="full", ask=engines.ask: ask(real if cut == "full" else fleet, sql, cut))
    assert any(check(world, case).wrong for case in cases)


def test_a_failing_case_is_shrunk_and_is_a_record(world, monkeypatch):
    monkeypatch.setattr(world.fleets, "main", Less(world.fleets.main))
    case = next(case for case in drawn(world, "duckdb", 300) if nodes.size(case) > 12 and check(world, case).wrong)
    verdict = check(world, case)
    small, last, tables = sessions.smaller(world, case, verdict, Random(1))
    assert nodes.size(small) < nodes.size(case) and check(world, small).wrong
    assert " <= " in printing.text(small.query) and last.wrong
    theirs = engines.ask_duck(engines.duck(tables), printing.text(small.query, "duckdb"))
    assert isinstance(theirs, answers.Rows)
    text = records.written(tables, small, last, theirs, "here")
    assert text.count("\n") < 30 and ("\nquery " in text or "def test_duckdb_found_by_oracles" in text)


class Less:
    """A fleet that takes less or equal for less."""

    def __init__(self, fleet) -> None:
        self.fleet = fleet

    def __getattr__(self, name: str):
        return getattr(self.fleet, name)

    def sql(self, text: str, cut: str):
        return self.fleet.sql(text.replace(" <= ", " < "), cut=cut)


def test_a_record_in_python_is_python():
    random = Random(2)
    tables = schema(random)
    case = Case("lost raw", nodes.Select((nodes.Item(E("int", "count(*)"), "n"),), nodes.Table("t0", "a")))
    text = records.written(tables, case, Verdict("they differ\nhere"), None, "a place")
    scope: dict[str, object] = {"pa": pa, "skytether": skytether, "datetime": datetime, "Decimal": Decimal}
    exec(compile(text, "record", "exec"), scope)
    assert callable(scope["test_lost_raw_found_by_oracles"]) and "from_pylist" in text


def test_a_seed_draws_the_same_queries_again():
    def texts(seed: int) -> list[str]:
        random = Random(seed)
        tables = schema(random)
        return [printing.text(Queries(random, tables, known.without()).query()) for _ in range(50)]

    assert texts(3) == texts(3) and texts(3) != texts(4)


def test_shrinking_keeps_what_sorts_for_a_limit():
    items = tuple(nodes.Item(E("int", str(at)), f"c{at}") for at in range(2))
    query = nodes.Select(items, nodes.Table("t0", "a"), order=(nodes.Place(2), nodes.Place(1)), limit=3)
    for smaller in shrinker._smaller(Case("duckdb", query)):
        if isinstance(smaller.query, nodes.Select) and smaller.query.limit is not None:
            assert {place.at for place in smaller.query.order} == set(range(1, len(smaller.query.items) + 1))


def test_keys_of_joins_leave_no_ties():
    """A group of NULL has a row that no other row of a full join differs from, if both sides have one."""
    random = Random(4)
    tables = schema(random)
    duck, joined = engines.duck(tables), 0
    for at in range(1500):
        queries = Queries(Random(f"ties {at}"), tables, known.without())
        table = queries.random.choice(list(tables.values()))
        by = E("int", "CASE WHEN (a.u % 3) <> 0 THEN (a.u % 3) END", size=3, width=64)
        groups = nodes.Select((nodes.Item(by, "c0"),), nodes.Table(table.name, "a"), groups=nodes.Groups((by,)))
        queries.named = [("w0", queries.columns_of(groups), queries.keys_of(groups), 4)]
        source, scope = queries.source(2)
        if not isinstance(source, nodes.Join) or not scope.unique or scope.rows > 4000:
            continue
        joined += 1
        items = tuple(nodes.Item(key, f"c{at}") for at, key in enumerate(scope.unique))
        text = printing.text(nodes.Select(items, source, withs=(nodes.With("w0", groups),)), "duckdb")
        rows = engines.ask_duck(duck, text)
        assert isinstance(rows, answers.Refusal) or len(set(map(str, rows.rows))) == len(rows.rows), text
    assert joined > 100


def test_refusals_of_defects_are_told_apart():
    assert answers.Refusal("UnsupportedError", "internal error: x. This issue was likely caused by a bug in DataFusion's code").is_defect
    assert not answers.Refusal("InvalidError", "ambiguous reference to unqualified field k").is_defect
    assert answers.Refusal("InvalidError", "cannot cast 'x' to INT").of_data
    assert answers.Refusal("InvalidError", "no field a12.x of 17").template == answers.Refusal("InvalidError", "no field a3.x of 4").template


@pytest.mark.parametrize("a, b, same", [(1, 1.0, True), (None, 0, False), (float("nan"), float("nan"), True), (-0.0, 0.0, True), (1.0, 1.001, False), ([1, None], [1, None], True)])
def test_values_are_compared(a, b, same):
    assert answers.same(a, b) == same
    assert (answers.rows_difference([(a,)], [(b,)]) is None) == same


def test_kinds_of_columns_are_compared():
    ours, theirs = answers.Rows([(1,)], ("int",)), answers.Rows([("1",)], ("text",))
    assert answers.difference(ours, theirs) == "column 1 is int instead of text"
    assert answers.difference(answers.Rows([(None,)], ("int",)), answers.Rows([(None,)], ("text",))) is None


def test_a_tally_adds_up_and_travels():
    tally = sessions.Tally(queries=3, found={"a": "b"})
    tally.refused["x"] += 2
    total = sessions.Tally()
    total.add(sessions.Tally.of_json(tally.to_json()))
    total.add(tally)
    assert total.queries == 6 and total.refused["x"] == 4 and total.found == {"a": "b"}
    assert Verdict().wrong is None and "6 queries" in total.summary()


def test_large_answers_are_compared_by_column():
    """Beyond `LARGE` rows answers stay in Arrow. A value that is there once too often is seen, in views too."""
    many = [None, "a", "b"] * answers.LARGE
    one, other = (answers.of_table(pa.table({"t": pa.array(texts, pa.string_view())})) for texts in (many, [*many[:-1], "a"]))
    assert one.table is not None and answers.difference(one, one) is None
    assert "a 20001 times instead of 20000" in answers.difference(other, one)
    assert "rows instead of" in answers.difference(one, answers.of_table(pa.table({"t": many[1:]})))
