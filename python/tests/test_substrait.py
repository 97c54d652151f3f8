"""Substrait plans that others wrote give what DuckDB gives: Isthmus' for TPC-H, and those of
the `substrait` package."""

from __future__ import annotations

from pathlib import Path

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import duckdb
import pyarrow as pa
import pytest
import substrait.dataframe as sub
from compare import assert_same
from edge_tables import mixed
from fleets import serving
from substrait import algebra_pb2 as algebra
from substrait import plan_pb2
from test_tpch import answers, files  # noqa: F401 - fixtures
from tpch import TABLES

import skytether

PLANS = Path(__file__).parent / "plans" / "isthmus"
MIXED = mixed()
DIM = pa.table({"k": pa.array([1, 2, 2, 7, None], pa.int32()), "name": ["one", "two", "zwei", "seven", None]})
SCHEMA = {"u": sub.i64, "k": sub.i32, "i": sub.i64, "f": sub.fp64, "s": sub.string, "b": sub.boolean, "d": sub.date, "m": sub.decimal(2, 12)}


def plan_of(number: int) -> bytes:
    return (PLANS / f"q{number:02}.plan").read_bytes()


def fill(fleet: skytether.Fleet, tables) -> None:
    for table in TABLES:
        fleet.ingest(str(tables / f"{table}.parquet"), f"tpch/{table}")
    fleet.ingest(MIXED, "t.mixed")
    fleet.ingest(DIM, "t.dim")


@pytest.fixture(scope="module")
def fleet(files, tmp_path_factory):  # noqa: F811
    with skytether.open(tmp_path_factory.mktemp("substrait"), drives=3) as fleet:
        fill(fleet, files)
        yield fleet


@pytest.fixture(scope="module")
def served(files, tmp_path_factory):  # noqa: F811
    with serving(tmp_path_factory.mktemp("substrait-served")) as processes:
        with skytether.connect(processes.url) as remote:
            fill(remote, files)
        yield processes


@pytest.fixture
def adbc(served):
    with flight_sql.connect(served.url.replace("grpc://", "grpc+tcp://"), autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def duck():
    con = duckdb.connect()
    con.register("mixed", MIXED)
    con.register("dim", DIM)
    return con


@pytest.mark.parametrize("cut", ["adaptive", "raw"])
@pytest.mark.parametrize("number", range(1, 23))
def test_isthmus_tpch(fleet, answers, number, cut):  # noqa: F811
    assert_same(fleet.substrait(plan_of(number), cut=cut).to_arrow(), answers[number], False, f"query {number}")


def test_a_plan_is_explained(fleet):  # noqa: F811
    text = fleet.explain(plan_of(6))
    assert "super-plan" in text and "lineitem" in text and "receipt" not in text
    assert "receipt" in fleet.explain(plan_pb2.Plan.FromString(plan_of(6)), analyze=True)
    with pytest.raises(skytether.InvalidError, match="no substrait plan"):
        fleet.explain(b"\xff\xff")
    with pytest.raises(skytether.InvalidError, match="int is no Substrait plan"):
        fleet.explain(7)


def test_isthmus_tpch_through_a_host(served, adbc, answers):  # noqa: F811
    with skytether.connect(served.url) as remote:
        for number in (1, 4, 13, 21):
            result = remote.substrait(plan_of(number))
            assert_same(result.to_arrow(), answers[number], False, f"query {number}")
            assert result.receipt.to_dict()["bytes_moved"] > 0
            assert "sub-plan" in remote.explain(plan_of(number))
            with adbc.cursor() as cursor:
                cursor.adbc_statement.set_substrait_plan(plan_of(number))
                stream, _ = cursor.adbc_statement.execute_query()
                found = pa.RecordBatchReader._import_from_c(stream.address).read_all()
            assert_same(found, answers[number], False, f"query {number} by ADBC")


def test_a_prepared_plan_is_run_again(adbc, duck):
    plan = people().filter(sub.col("u") < sub.parameter(0, sub.i64())).aggregate((), sub.f.count(sub.col("u")).alias("n")).to_plan()
    with adbc.cursor() as cursor:
        cursor.adbc_statement.set_substrait_plan(plan.SerializeToString())
        cursor.adbc_statement.prepare()
        for n in (10, 250):
            values = pa.record_batch({"0": pa.array([n], pa.int64())})
            cursor.adbc_statement.bind(values)
            stream, _ = cursor.adbc_statement.execute_query()
            assert pa.RecordBatchReader._import_from_c(stream.address).read_all().to_pydict() == {"n": [n]}


def by_steps(plan: plan_pb2.Plan) -> plan_pb2.Plan:
    """`plan` with references to outer queries by the steps out to them: anchors are newer than the format
    that DataFusion reads."""

    def visit(message) -> None:
        for field, value in message.ListFields():
            if field.type != field.TYPE_MESSAGE:
                continue
            for part in value if field.is_repeated else [value]:
                if isinstance(part, algebra.Expression.FieldReference.OuterReference):
                    part.steps_out = 1
                visit(part)

    visit(plan)
    return plan


def people(schema=SCHEMA, names=("t", "mixed")):
    return sub.read_named_table(list(names), schema)


def dim():
    return sub.read_named_table(["t", "dim"], {"k": sub.i32, "name": sub.string})


def keys():
    return sub.read_named_table(["t", "dim"], {"k": sub.i32, "name": sub.string}).select(sub.col("k").alias("key"), sub.col("name").alias("name"))


CASES = {
    "filter and computed": (
        lambda: people().filter((sub.col("i") > 0) & sub.col("s").is_not_null()).select(sub.col("u"), (sub.col("f") * 2.0).alias("x")),
        "SELECT u, f * 2 FROM mixed WHERE i > 0 AND s IS NOT NULL",
    ),
    "aggregate": (
        lambda: people().group_by("k").agg(sub.f.count(sub.col("i")).alias("n"), sub.f.sum(sub.col("i")).alias("t"), sub.f.avg(sub.col("f")).alias("a"), sub.f.max(sub.col("d")).alias("d")),
        "SELECT k, count(i), sum(i), avg(f), max(d) FROM mixed GROUP BY k",
    ),
    "aggregate of some, and of distinct": (
        lambda: people().group_by("b").agg(sub.f.sum(sub.col("i")).filter(sub.col("f") > 0.0).alias("t"), sub.f.count(sub.col("k")).distinct().alias("n")),
        "SELECT b, sum(i) FILTER (f > 0), count(DISTINCT k) FROM mixed GROUP BY b",
    ),
    "the same aggregate twice": (
        lambda: people().aggregate((), sub.f.count(sub.col("u")).alias("a"), sub.f.count(sub.col("u")).alias("b")),
        "SELECT count(u), count(u) FROM mixed",
    ),
    "top": (lambda: people().sort("u", descending=True).limit(7, offset=3).select("u"), "SELECT u FROM mixed ORDER BY u DESC LIMIT 7 OFFSET 3"),
    "rollup": (
        lambda: people().rollup("b", "k").agg(sub.f.count(sub.col("u")).alias("n")),
        "SELECT b, k, count(u) FROM mixed GROUP BY ROLLUP (b, k)",
    ),
    "case": (
        lambda: people().select(sub.col("u"), sub.when(sub.col("i") > 100).then(sub.lit("big")).when(sub.col("i") > 0).then(sub.lit("some")).otherwise(sub.lit("none")).alias("w")),
        "SELECT u, CASE WHEN i > 100 THEN 'big' WHEN i > 0 THEN 'some' ELSE 'none' END FROM mixed",
    ),
    "switch and list": (
        lambda: people().filter(sub.col("k").is_in([1, 2, 7])).select(sub.col("u"), sub.col("k").switch({1: sub.lit("a"), 2: sub.lit("b")}, sub.lit("c")).alias("w")),
        "SELECT u, CASE k WHEN 1 THEN 'a' WHEN 2 THEN 'b' ELSE 'c' END FROM mixed WHERE k IN (1, 2, 7)",
    ),
    "union": (lambda: people().select("k").union(dim().select("k"), distinct=True), "SELECT k FROM mixed UNION SELECT k FROM dim"),
    "except": (lambda: people().select("k").except_(dim().select("k")), "SELECT k FROM mixed EXCEPT SELECT k FROM dim"),
    "intersect": (lambda: people().select("k").intersect(dim().select("k")), "SELECT k FROM mixed INTERSECT SELECT k FROM dim"),
    "inner join": (
        lambda: people().join(keys(), on=sub.col("k") == sub.col("key"), how="inner").select("u", "name"),
        "SELECT u, name FROM mixed JOIN dim ON mixed.k = dim.k",
    ),
    "left join": (
        lambda: people().join(keys(), on=sub.col("k") == sub.col("key"), how="left").select("u", "name"),
        "SELECT u, name FROM mixed LEFT JOIN dim ON mixed.k = dim.k",
    ),
    "a table with itself, every column of both": (lambda: dim().cross_join(dim()), "SELECT a.k, a.name, b.k, b.name FROM dim a, dim b"),
    "subqueries": (
        lambda: people().filter((sub.col("i") == sub.scalar_subquery(people().aggregate((), sub.f.max(sub.col("i")).alias("m")))) | sub.col("k").in_subquery(dim().select("k"))).select("u"),
        "SELECT u FROM mixed WHERE i = (SELECT max(i) FROM mixed) OR k IN (SELECT k FROM dim)",
    ),
    "a correlated subquery over the same table": (
        lambda: dim().filter(sub.exists(dim().filter((sub.col("k") == sub.outer("k")) & (sub.col("name") != sub.outer("name"))))).select("name"),
        "SELECT name FROM dim a WHERE EXISTS (SELECT * FROM dim b WHERE a.k = b.k AND a.name <> b.name)",
    ),
    "rows that are spelt out": (
        lambda: sub.from_records([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], {"a": sub.i64, "b": sub.string}),
        "SELECT * FROM (VALUES (1, 'x'), (2, 'y'))",
    ),
    "functions by other names": (
        lambda: people().select(
            sub.col("u"), sub.f.concat(sub.col("s"), sub.lit("!")).alias("c"), sub.f.char_length(sub.col("s")).alias("l"), sub.f.sign(sub.col("f")).alias("g"),
            sub.f.extract(sub.enum("YEAR"), sub.col("d")).alias("y"), sub.f.coalesce(sub.col("i"), sub.lit(0, sub.i64)).alias("z"), ((sub.col("i") > 0) ^ sub.col("b")).alias("x"),
        ),
        "SELECT u, s || '!', length(s), CAST(sign(f) AS DOUBLE), year(d), coalesce(i, 0), xor(CAST(i > 0 AS INT), CAST(b AS INT)) = 1 FROM mixed",
    ),
    "aggregates by other names": (
        lambda: people().group_by("k").agg(sub.f.std_dev(sub.col("f"), distribution="SAMPLE").alias("s"), sub.f.std_dev(sub.col("f"), distribution="POPULATION").alias("p")),
        "SELECT k, stddev_samp(f), stddev_pop(f) FROM mixed GROUP BY k",
    ),
    "windows": (
        lambda: people().select(sub.col("u"), sub.f.row_number().over("b", "u").alias("n"), sub.f.rank().over(order_by="k").alias("r")),
        "SELECT u, row_number() OVER (PARTITION BY b ORDER BY u), rank() OVER (ORDER BY k NULLS LAST) FROM mixed",
    ),
    "names in other case, columns in other order": (
        lambda: people({"S": sub.varchar(30), "U": sub.i32, "i": sub.i32}, ("T", "MIXED")).filter(sub.col("U") < 50).select("i", "S", "U"),
        "SELECT i, s, u FROM mixed WHERE u < 50",
    ),
    "three names in one": (lambda: people(names=("t.mixed.data",)).select("u"), "SELECT u FROM mixed"),
    "a shared subtree": (
        lambda: (lambda some: some.union(some))(people().filter(sub.col("k") == 3).select("u").cache()),
        "SELECT u FROM mixed WHERE k = 3 UNION ALL SELECT u FROM mixed WHERE k = 3",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_dataframes(fleet, duck, case):
    build, sql = CASES[case]
    plan = by_steps(build().to_plan())
    wanted = duck.sql(sql).to_arrow_table()
    assert wanted.num_rows > 0
    for cut in ("adaptive", "filter", "raw"):
        assert_same(fleet.substrait(plan, cut=cut).to_arrow(), wanted, False, f"{case}, {cut}")
    assert fleet.substrait(plan.SerializeToString()).to_arrow().column_names == list(plan.relations[-1].root.names)


def test_the_number_of_a_grouping_set(fleet, duck):
    """Substrait's last column of grouping sets, which the `substrait` package does not count."""
    plan = people().rollup("b", "k").agg(sub.f.count(sub.col("u")).alias("n")).to_plan()
    plan.relations[-1].root.names.append("set")
    sql = "SELECT b, k, count(u), CASE WHEN grouping(b) = 1 THEN 2 WHEN grouping(k) = 1 THEN 1 ELSE 0 END FROM mixed GROUP BY ROLLUP (b, k)"
    assert_same(fleet.substrait(plan).to_arrow(), duck.sql(sql).to_arrow_table(), False, "grouping sets")


REFUSED = {
    "a write": (lambda: people().write_named_table(["t", "new"]), "Write"),
    "files": (lambda: sub.read_parquet(["/etc/passwd"], SCHEMA), "local files"),
    "a hash join": (lambda: dim().hash_join(keys(), left_on="k", right_on="key"), "HashJoin"),
    "a function": (lambda: people().select(sub.f.regexp_match_substring(sub.col("s"), sub.lit("a")).alias("x")), "regexp_match_substring"),
    "an option": (lambda: people().select(sub.f.add(sub.col("i"), sub.col("i"), overflow="SATURATE").alias("x")), "SATURATE"),
    "all of an intersection": (lambda: people().select("k").intersect(dim().select("k"), distinct=False), "MULTISET"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unknown_features_are_refused_by_name(fleet, adbc, case):
    build, named = REFUSED[case]
    plan = build().to_plan().SerializeToString()
    with pytest.raises(skytether.UnsupportedError, match=named):
        fleet.substrait(plan)
    with pytest.raises(adbc_driver_manager.NotSupportedError, match=named), adbc.cursor() as cursor:
        cursor.adbc_statement.set_substrait_plan(plan)
        cursor.adbc_statement.execute_query()


def test_bytes_that_are_no_plan_are_an_error(fleet, served):
    for wrong in ("SELECT 1", 7, None):
        with pytest.raises(skytether.InvalidError, match="Substrait"):
            fleet.substrait(wrong)
    with skytether.connect(served.url) as remote:
        for place in (fleet, remote):
            for bytes_ in (b"", b"\xff" * 100, plan_of(3)[:-100], plan_of(3)[:40], bytes(17 << 20)):
                with pytest.raises((skytether.InvalidError, skytether.UnsupportedError)):
                    place.substrait(bytes_)
            with pytest.raises(skytether.NotFoundError, match="t.nope"):
                place.substrait(people(names=("t", "nope")).to_plan())
            with pytest.raises(skytether.InvalidError, match="no column"):
                place.substrait(people({"nope": sub.i64}).to_plan())
            with pytest.raises(skytether.InvalidError, match="takes it for"):
                place.substrait(people({"s": sub.i64}).to_plan())
        assert remote.sql("SELECT count(*) AS n FROM t.dim").to_arrow().to_pydict() == {"n": [5]}
