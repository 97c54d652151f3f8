"""`fleet.dataset()`: a pyarrow Dataset whose scans give what pyarrow gives on the same table in
memory, and move less."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pyarrow.substrait  # noqa: F401
import pytest
from compare import assert_same
from edge_tables import BIG, INF, NAN, mixed

import skytether

f = pc.field
UTC = dt.timezone.utc


def typed() -> pa.Table:
    """A column of each type that Substrait or a drive could trip over, with nulls; floats with all
    that is odd about them."""
    random = np.random.default_rng(3)
    rows = 3000
    null = lambda: random.random(rows) < 0.1  # noqa: E731
    pick = lambda values: [values[i] for i in random.integers(0, len(values), rows)]  # noqa: E731
    numbers = random.integers(-50, 50, rows)
    odd = [NAN, -NAN, np.copysign(NAN, -1), 0.0, -0.0, INF, -INF, 1.5, -1.5, 0.1, 5e-324]
    moments = [dt.datetime(2024, 3, 31) + dt.timedelta(minutes=30 * n) for n in range(100)]
    words = ["", "a", "A", "ab", "ä", "日本", "per%cent", "under_score", "🧬"]
    columns = {
        "n": pa.array(range(rows), pa.int32()),
        "f64": pa.array(pick(odd), pa.float64(), mask=null()),
        "g64": pa.array(pick(odd), pa.float64(), mask=null()),
        "f32": pa.array(pick([NAN, 0.0, -0.0, 1.5, 0.1]), pa.float32(), mask=null()),
        "t_s": pa.array(pick(moments), pa.timestamp("s"), mask=null()),
        "t_ms": pa.array(pick(moments), pa.timestamp("ms"), mask=null()),
        "t_ns": pa.array(pick(moments), pa.timestamp("ns"), mask=null()),
        "t_utc": pa.array(pick(moments), pa.timestamp("us", "UTC"), mask=null()),
        "t_zone": pa.array(pick(moments), pa.timestamp("ms", "Europe/Berlin"), mask=null()),
        "time": pa.array([dt.time(int(n) % 24) for n in numbers], pa.time64("us"), mask=null()),
        "date": pa.array([dt.date(2024, 1, 1) + dt.timedelta(int(n)) for n in numbers], pa.date32(), mask=null()),
        "d128": pa.array([Decimal(int(n)) / 100 for n in numbers], pa.decimal128(12, 2), mask=null()),
        "d_long": pa.array(pick([Decimal("0.29"), Decimal("0.3"), Decimal("1.005")]), pa.decimal128(38, 20), mask=null()),
        "d256": pa.array([Decimal(int(n)) / 100 for n in numbers], pa.decimal256(50, 2), mask=null()),
        "text": pa.array(pick(words), pa.string(), mask=null()),
        "large": pa.array(pick(words), pa.large_string(), mask=null()),
        "view": pa.array(pick(words), pa.string_view(), mask=null()),
        "word": pa.array(pick(words), pa.string(), mask=null()).dictionary_encode(),
        "bytes": pa.array([w.encode() for w in pick(words)], pa.binary(), mask=null()),
        "flag": pa.array(numbers > 0, pa.bool_(), mask=null()),
        "list": pa.array([[int(n)] * (int(n) % 3) for n in numbers], pa.list_(pa.int64()), mask=null()),
        "struct": pa.array([{"a": int(n), "inner": {"b": w}} if n % 7 else None for n, w in zip(numbers, pick(words))]),
        "u64": pa.array(pick([0, 3, 2**63, 2**64 - 1]), pa.uint64(), mask=null()),
        "i64": pa.array(pick([0, 3, BIG, -BIG - 1]), pa.int64(), mask=null()),
        "j64": pa.array(numbers, pa.int64(), mask=null()),
    }
    for width in (8, 16, 32):
        columns[f"i{width}"] = pa.array(numbers, pa.int64(), mask=null()).cast(f"int{width}")
        columns[f"u{width}"] = pa.array(abs(numbers), pa.int64(), mask=null()).cast(f"uint{width}")
    return pa.table(columns)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("dataset") / "fleet", drives=3) as opened:
        opened.ingest(typed(), "d.typed")
        opened.ingest(mixed(), "d.mixed")
        # Apart from each other, so that slices can be pruned.
        opened.ingest(pa.table({"k": range(300_000), "x": np.random.default_rng(1).random(300_000), "s": [f"text {n % 1000}" for n in range(300_000)]}), "d.long")
        yield opened


@pytest.fixture(scope="module")
def memory(fleet) -> pa.Table:
    """The table as it is stored (dictionaries are written out), in memory; but for views, which
    pyarrow can't filter."""
    schema = fleet.dataset("d.typed").schema
    return typed().cast(schema.set(schema.get_field_index("view"), pa.field("view", pa.string())))


TIME = dt.datetime(2024, 4, 1, 10)
TIMES = [f(name) >= TIME for name in ("t_s", "t_ms", "t_ns")] + [
    f("t_utc") < TIME.replace(tzinfo=UTC),
    f("t_zone") < pa.scalar(TIME, pa.timestamp("us", "Europe/Berlin")),
]
WHOLE = [f(name) > 3 for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32")] + [f("u64") > pa.scalar(3, pa.uint64())]
FRACTION = [f(name) > 3.5 for name in ("i8", "i16", "i32", "j64", "u8", "u16", "u32")] + [f("j64") == 4.0]
COMPARISONS = [lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b]
COMPARED = [compare(f("f64"), value) for value in (0.0, -0.0, 1.5, INF, -INF, 0.1) for compare in COMPARISONS]
COLUMNS = [compare(f("f64"), f("g64")) for compare in COMPARISONS]

PUSHED = [
    *TIMES,
    *WHOLE,
    *FRACTION,
    *COMPARED,
    *COLUMNS,
    ~(f("f64") > 1.0),
    ~(f("f64") == f("g64")),
    pc.scalar(0.0) >= f("f64"),
    f("f32") == 0.0,
    f("f32") == 0.1,
    f("f32") == pa.scalar(0.1, pa.float32()),
    f("f32") > f("f64"),
    f("i32") < f("f64"),
    f("i8") == f("i32"),
    f("u8") == f("i32"),
    f("f64").is_nan(),
    ~f("f64").is_nan(),
    f("f64").is_null(nan_is_null=True),
    f("f64") * 2 + 1 > f("g64"),
    f("f64") - f("g64") == 0,
    *[f(name).is_null() for name in ("text", "list", "struct", "d256", "t_zone", "word", "u64")],
    *[f(name).is_valid() & (f("n") > 100) for name in ("text", "list", "struct")],
    f("time") > dt.time(12),
    f("date") == dt.date(2024, 1, 5),
    f("date") > dt.datetime(2024, 1, 5),
    f("d128") > Decimal("0.17"),
    f("d128") == pa.scalar(0, pa.int8()),
    f("d_long") == Decimal("0.29"),
    *[f(name) == "ä" for name in ("text", "large", "view", "word")],
    *[f(name) > "a" for name in ("text", "large", "view", "word")],
    f("bytes") == b"ab",
    f("flag"),
    ~f("flag"),
    f("flag") == True,  # noqa: E712
    f("flag") & (f("i8") > 3) | ~f("flag") & (f("i8") < 3),
    (f("i8") > 3) & ((f("text") == "a") | (f("u32") == 7)),
    f("i32").isin([1, 2, 3]),
    ~f("i32").isin([1, 2, 3]),
    f("i32").isin(pa.array([1, None], pa.int32())),
    ~f("i32").isin(pa.array([1, None], pa.int32())),
    f("i32").isin(pa.array([], pa.int32())),
    f("i32").isin(pa.array([None], pa.int32())),
    f("u64").isin(pa.array([3, 0], pa.uint64())),
    pc.is_in(f("i32"), options=pc.SetLookupOptions(pa.array([1, None], pa.int32()), skip_nulls=True)),
    f("text").isin(["a", "日本", "none"]),
    f("view").isin(["a", "ä"]),
    f("date").isin(pa.array([dt.date(2024, 1, 5)], pa.date32())),
    f("t_utc").isin(pa.array([TIME], pa.timestamp("us", "UTC"))),
    pc.if_else(f("text").is_valid(), f("text").isin(["a", "ab"]), pa.scalar(None, pa.bool_())),
    ~pc.if_else(f("text").is_valid(), f("text").isin(["a", "ab"]), pa.scalar(None, pa.bool_())),
    pc.starts_with(f("text"), "a"),
    pc.ends_with(f("large"), "b"),
    pc.match_substring(f("text"), "%"),
    pc.match_substring(f("text"), "_"),
    pc.starts_with(f("text"), ""),
    f("i8").cast(pa.float64()) > 3.5,
    f("struct", "a") > 3,
    f("struct", "inner", "b") == "ä",
    f("struct", "a").is_null(),
    pc.scalar(True) & (f("i8") > 3),
]

KEPT = [
    pc.utf8_upper(f("text")) == "A",
    pc.match_substring_regex(f("text"), "^[ab]+$"),
    pc.match_like(f("text"), "a%"),
    pc.starts_with(f("text"), "a", ignore_case=True),
    pc.utf8_length(f("text")) > 1,
    f("i32") + 1 > 3,
    f("i32") % 2 == 1 if hasattr(pc.Expression, "__mod__") else pc.bit_wise_and(f("i32"), 1) == 1,
    f("f64") == NAN,
    f("f64").isin([NAN, 1.5, 0.0]),
    f("f64") / 2 > 1,
    f("d256") > Decimal("0.17"),
    # pyarrow compares decimals and floats as doubles.
    f("d128") > 0.17,
    f("d_long") == 0.29,
    f("d_long") > 1.005,
    f("d_long").isin(pa.array([Decimal("0.29"), Decimal("0.3")], pa.decimal256(60, 20))),
    f("j64") < f("f64"),
    f("j64") < 2.0**63,
    f("j64") < INF,
    pc.list_value_length(f("list")) > 1,
    pc.year(f("t_utc")) == 2024,
    pc.coalesce(f("i8"), 4) > 3,
    f("u64") > pa.scalar(2**63, pa.uint64()),
    f("i32").isin(range(20_000)),
    f("text").cast(pa.binary()) == b"a",
    pc.xor(f("flag"), f("i8") > 3),
    f("i8") == pa.scalar(None, pa.int8()),
    pc.if_else(f("flag"), f("i8"), f("i16")) > 3,
]


@pytest.mark.parametrize("condition", PUSHED, ids=str)
def test_filters_that_travel(fleet, memory, condition):
    scan = fleet.dataset("d.typed").scanner(["n"], condition)
    expected = pads.dataset(memory).to_table(["n"], condition)
    found = scan.to_table()
    assert_same(found, expected, False, str(condition))
    assert scan.local is None
    assert scan.count_rows() == expected.num_rows
    # Neither the columns of the filter nor rows that don't pass it have moved.
    assert scan.receipt.to_dict()["bytes_moved"] < 3000
    scan.to_table()
    assert sum(drive["rows_out"] for drive in scan.receipt.to_dict()["drives"]) == expected.num_rows


@pytest.mark.parametrize("condition", KEPT, ids=lambda e: str(e)[:80])
def test_filters_that_stay(fleet, memory, condition):
    scan = fleet.dataset("d.typed").scanner(["n"], condition)
    assert_same(scan.to_table(), pads.dataset(memory).to_table(["n"], condition), False, str(condition))
    assert scan.local
    # All rows have moved, but only of the columns that are needed: less than a tenth of the table.
    receipt = scan.receipt.to_dict()
    assert sum(drive["rows_out"] for drive in receipt["drives"]) == 3000 and receipt["bytes_moved"] < memory.nbytes / 4
    assert scan.count_rows() == memory.filter(condition).num_rows


def test_integer_and_float_comparisons_are_exact_or_raise(fleet):
    """They raise only where pyarrow raises as well."""
    # Each column has all that is odd about it in rows of its own: pyarrow raises for a column
    # that does not fit a float.
    whole = {
        "i64": (pa.int64(), [2**53, 2**53 + 1, 2**62, 2**62 + 1, BIG - 511, BIG, -BIG - 1, 5]),
        "u64": (pa.uint64(), [2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63, 2**64 - 1, 0, 5]),
        "i32": (pa.int32(), [2**24, 2**24 + 1, 2**24 + 2, 2**31 - 1, -(2**31), -(2**24) - 1, 0, 5]),
        "u32": (pa.uint32(), [2**24, 2**24 + 1, 2**24 + 2, 2**32 - 1, 2**31, 1, 0, 5]),
    }
    floats = [2.0**53, 2.0**53, 2.0**62, 2.0**62, 2.0**63, 2.0**63, 2.0**24, 5.0]
    rows = pa.table({name: pa.array(values, t) for name, (t, values) in whole.items()})
    rows = rows.append_column("f64", pa.array(floats)).append_column("f32", pa.array([2.0**24] * 6 + [2.0**31, 5.0], pa.float32()))
    fleet.ingest(rows, "d.exact")
    dataset, pushed = fleet.dataset("d.exact"), 0
    for name, (t, values) in whole.items():
        beside = [(value, [value] * len(values)) for value in (*floats, 3.5, -3.5, -(2.0**63), 1e300, INF, -INF)]
        beside += [(pa.scalar(value, pa.float32()), [value] * len(values)) for value in (2.0**24, 3.5)]
        beside += [(f(other), rows[other].to_pylist()) for other in ("f64", "f32")]
        for right, theirs in beside:
            for compare in COMPARISONS:
                condition = compare(f(name), right)
                scan = dataset.scanner([name], condition)
                # Python compares whole numbers and floats exactly.
                expected = sorted(a for a, b in zip(values, theirs) if compare(a, b))
                try:
                    assert sorted(scan.to_table()[name].to_pylist()) == expected, str(condition)
                except pa.ArrowInvalid:
                    with pytest.raises(pa.ArrowInvalid):
                        pads.dataset(rows).to_table(filter=condition)
                pushed += scan.local is None
    assert pushed > 200


def test_values_without_a_python_form_have_a_reason(fleet, memory):
    far = pa.scalar(2**44, pa.timestamp("s"))
    for condition in (f("t_ns") < far, f("t_s") < far, f("t_s").isin(pa.array([2**40, 2**44], pa.timestamp("s"))), f("t_s").isin(pa.array([2**40], pa.timestamp("s")))):
        try:
            expected = pads.dataset(memory).to_table(["n"], condition)
        except pa.ArrowInvalid:
            with pytest.raises(pa.ArrowInvalid):
                fleet.dataset("d.typed").to_table(["n"], condition)
        else:
            assert_same(fleet.dataset("d.typed").to_table(["n"], condition), expected, False, str(condition))


# ------------------------------------------------------------------------------------------------ what else a scan does


def moved(receipt: skytether.Receipt) -> int:
    return receipt.to_dict()["bytes_moved"]


def test_only_unsupported_parts_of_a_filter_run_locally(fleet, memory):
    both = (f("i8") > 40) & (pc.utf8_upper(f("text")) == "A")
    scan = fleet.dataset("d.typed").scanner(["n", "f64"], both)
    assert_same(scan.to_table(), pads.dataset(memory).to_table(["n", "f64"], both), False, "both")
    assert scan.local == "the function utf8_upper stays here"
    sent = sum(drive["rows_out"] for drive in scan.receipt.to_dict()["drives"])
    assert sent == memory.filter(f("i8") > 40).num_rows < 300


OUTPUTS = [
    {"a": f("n"), "b": f("n")},
    {"a": f("f64") * 2, "view": f("view"), "list": f("list")},
    {"big": f("i32") > 3, "is": f("text").isin(["a"])},
    {"a": f("struct", "a"), "b": f("struct", "inner", "b"), "n": f("n")},
    {"upper": pc.utf8_upper(f("view")), "n": f("n")},
    {"sum": f("i32") + 1, "n": f("n")},
    {"one": pc.scalar(1)},
    {},
    [],
    ["n", "n", "i8"],
    ["i8", "n"],
    ["view", "list", "struct", "d256", "t_zone"],
    None,
]


@pytest.mark.parametrize("columns", OUTPUTS, ids=lambda c: "all" if c is None else " ".join(c) or str(c))
@pytest.mark.parametrize("condition", [None, f("i8") > 20, (f("i8") > 20) & (pc.utf8_upper(f("text")) == "A")], ids=["all", "pushed", "kept"])
def test_columns_and_expressions(fleet, memory, columns, condition):
    dataset = fleet.dataset("d.typed")
    scan, wanted = dataset.scanner(columns, condition), pads.dataset(memory).to_table(columns, condition)
    found = scan.to_table()
    assert found.column_names == wanted.column_names == scan.projected_schema.names and found.num_rows == wanted.num_rows == scan.count_rows()
    assert_same(found, wanted, False, str(columns))
    for field, theirs in zip(found.schema, wanted.schema):
        assert field.type == (dataset.schema.field("view").type if field.name == "view" else theirs.type)


def test_filtered_rows_are_neither_moved_nor_read(fleet):
    dataset = fleet.dataset("d.long")
    dataset.to_table()
    whole = dataset.receipt.to_dict()
    dataset.to_table(["x"])
    column = dataset.receipt.to_dict()
    assert column["bytes_moved"] < 0.4 * whole["bytes_moved"]
    found = dataset.to_table(["x"], f("k") >= 299_990)
    few = dataset.receipt.to_dict()
    assert found.num_rows == 10 and few["bytes_moved"] < 0.01 * column["bytes_moved"]
    assert sum(drive["slices_pruned"] for drive in few["drives"]) > 0 and few["bytes_read"] < column["bytes_read"]
    assert dataset.count_rows() == 300_000 and moved(dataset.receipt) < 3000
    assert dataset.filter(f("s") == "text 5").filter(f("k") < 100_000).count_rows() == 100


def test_heads_of_few_and_of_all_rows(fleet):
    dataset = fleet.dataset("d.long")
    assert dataset.head(5, ["k"]).num_rows == 5 and moved(dataset.receipt) < 5000
    assert dataset.scanner(["k"], pc.utf8_upper(f("s")) == "TEXT 5", batch_size=1000).head(3).num_rows == 3
    assert dataset.head(0).num_rows == 0 and dataset.head(10**9, ["k"], f("k") < 7).num_rows == 7


def test_each_run_is_one_of_its_own(fleet):
    scan = fleet.dataset("d.long").scanner(batch_size=500)
    sizes = [batch.num_rows for batch in scan.to_batches()]
    assert sum(sizes) == 300_000 and max(sizes) <= 500
    batches = scan.to_batches()
    next(batches)
    batches.close()
    assert scan.to_reader().read_all().num_rows == 300_000 == scan.to_table().num_rows
    assert sum(tagged.record_batch.num_rows for tagged in scan.scan_batches()) == 300_000


def test_dataset_raises_after_a_replacement_by_other_columns(fleet):
    """After a replacement by other rows of the same columns, the data set reads these rows."""
    first = pa.table({"k": pa.array([1, 2, 3], pa.int32()), "t": ["a", "b", "c"], "gone": [1.5, 2.5, 3.5]})
    fleet.ingest(first, "d.changing")
    dataset = fleet.dataset("d.changing")
    scan = dataset.scanner(["k"], f("k") > 1)
    fleet.ingest(first.slice(1), "d.changing", replace=True)
    # The name now means other rows with the same columns.
    assert scan.to_table().num_rows == 2 == dataset.count_rows()
    other = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "t": [1, 2, 3], "new": [0.5, 0.5, 0.5]})
    fleet.ingest(other, "d.changing", replace=True)
    for run in (
        scan.to_table,
        lambda: next(scan.to_batches()),
        dataset.to_table,
        lambda: dataset.to_table(["gone"]),
        lambda: dataset.to_table({"n": f("k"), "big": f("k") > 1}),
        lambda: dataset.to_table(["k"], pc.utf8_upper(f("t")) == "A"),
        lambda: dataset.count_rows(f("gone") > 1),
        lambda: dataset.count_rows(f("t") == "a"),
        lambda: dataset.head(1),
    ):
        with pytest.raises(skytether.ConflictError, match=r"d\.changing was replaced.*take fleet\.dataset\('d\.changing'\) again"):
            run()
    assert fleet.dataset("d.changing").to_table(["new"]).num_rows == 3


def test_calls_that_only_files_support_are_refused_by_name(fleet):
    dataset = fleet.dataset("d.mixed")
    for columns, condition in ((["u", "__filename"], None), ({"at": f("__fragment_index")}, None), (["u"], f("__last_in_fragment"))):
        with pytest.raises(skytether.UnsupportedError, match="^__(filename|fragment_index|last_in_fragment) "):
            dataset.to_table(columns, condition)
    # pyarrow can't read a column of that name either.
    named = pa.table({"__filename": ["a"]})
    fleet.ingest(named, "d.files")
    with pytest.raises(skytether.UnsupportedError, match="^__filename .*Fleet.sql"):
        fleet.dataset("d.files").to_table()
    with pytest.raises(pa.ArrowInvalid, match="__filename"):
        pads.dataset(named).to_table()
    assert fleet.sql('SELECT "__filename" AS f FROM d.files').to_arrow().to_pydict() == {"f": ["a"]}


def test_it_is_a_dataset_in_all_its_parts(fleet):
    dataset = fleet.dataset("d.mixed")
    assert isinstance(dataset, pads.Dataset) and dataset.schema.equals(mixed().schema)
    # What is not overridden would look into a C++ object that has no rows.
    theirs = {name for name in dir(pads.Dataset) if not name.startswith("__") and name not in ("_scan_options", "_scanner_options")}
    assert theirs <= set(vars(type(dataset)))
    assert {name for name in dir(pads.Scanner) if not name.startswith("__")} - {"from_batches", "from_dataset", "from_fragment", "dataset_schema"} <= set(
        vars(type(dataset.scanner()))
    )
    (fragment,) = dataset.get_fragments(f("u") < 10)
    assert fragment.count_rows() == 4000 == fragment.to_table(schema=dataset.schema, columns=["u"]).num_rows and len(fragment.head(20)) == 20
    assert dataset.sort_by([("u", "descending")]).head(1)["u"].to_pylist() == [3999]
    small = pads.dataset(pa.table({"u": pa.array([5, 7], pa.int64()), "new": ["a", "b"]}))
    assert dataset.filter(f("u") < 6).join(small, "u", join_type="inner").to_table()["new"].to_pylist() == ["a"]
    assert dataset.replace_schema(dataset.schema) is dataset and str(dataset.partition_expression) == "true"


def test_unsupported_calls_are_refused_by_name(fleet, tmp_path):
    dataset = fleet.dataset("d.mixed")
    with pytest.raises(skytether.UnsupportedError, match="no fixed order"):
        dataset.take([0, 5])
    with pytest.raises(skytether.UnsupportedError, match="can't be replaced"):
        dataset.replace_schema(pa.schema([("u", pa.int32())]))
    with pytest.raises(skytether.UnsupportedError, match="skytether.connect"):
        pickle.dumps(dataset)
    with pytest.raises(skytether.InvalidError, match="no option 'colums'"):
        dataset.to_table(colums=["u"])
    with pytest.raises(skytether.InvalidError, match=r"\['u'\]"):
        dataset.to_table("u")
    with pytest.raises(skytether.InvalidError, match="pyarrow expression"):
        dataset.to_table(filter="u > 3")
    with pytest.raises(skytether.InvalidError, match="at least one row"):
        dataset.to_table(batch_size=0)
    # pyarrow says itself what is wrong with columns and expressions.
    for columns, condition in ((["no"], None), (None, f("no") > 1), (None, f("s") > 1), ({"a": f("no")}, None), (None, f("u"))):
        with pytest.raises((pa.ArrowException, TypeError)) as ours:
            dataset.to_table(columns, condition)
        with pytest.raises(type(ours.value)):
            pads.dataset(mixed()).to_table(columns, condition)
    with pytest.raises(skytether.NotFoundError, match="d.no"):
        fleet.dataset("d.no")
    with pytest.raises(skytether.NotFoundError, match="plain table"):
        fleet.dataset("d.mixed.other")
    assert fleet.dataset("d.mixed.data").count_rows() == 4000
    # Functions that go past its methods get an error, and not a crash.
    with pytest.raises(OSError, match=r"d\.mixed are on a fleet.*to_reader"):
        pads.Scanner.from_dataset(dataset).to_table()
    with pytest.raises(TypeError):
        pads.write_dataset(dataset, tmp_path / "out", format="parquet")
    pads.write_dataset(dataset.scanner(["u"]).to_reader(), tmp_path / "out", format="parquet")
    assert pq.read_table(tmp_path / "out").num_rows == 4000


def test_long_and_deep_filters(fleet, memory):
    dataset = fleet.dataset("d.typed")
    for joined in (lambda a, b: a | b, lambda a, b: a & b):
        for terms in (60, 200):
            condition = f("n") >= 0
            for number in range(terms):
                condition = joined(condition, f("n") != number)
            scan = dataset.scanner(["n"], condition)
            assert (scan.local is None) == (terms == 60) and scan.count_rows() == memory.filter(condition).num_rows
    some = f("n").isin(range(0, 6000, 2))
    assert dataset.scanner(filter=some).local is None and dataset.count_rows(some) == 1500
    nested = f("f64")
    for _ in range(60):
        nested = nested * 1.0
    assert dataset.count_rows(nested > 1) == memory.filter(f("f64") > 1).num_rows


def test_slices_are_pruned_by_floats_only_where_no_row_passes(fleet):
    # Slices of nothing but one value, so that their statistics say all of them.
    values = np.repeat([0.0, -0.0, NAN, np.copysign(NAN, -1), 1.0, INF, -INF], 30_000)
    noise = np.random.default_rng(0).random((5, len(values)))
    table = pa.table({"f": values, **{f"noise_{n}": column for n, column in enumerate(noise)}})
    fleet.ingest(table, "d.floats")
    dataset, pruned = fleet.dataset("d.floats"), 0
    for value in (0.0, -0.0, 1.0, -INF):
        for condition in (f("f") == value, f("f") != value, f("f") < value, f("f") <= value, f("f") > value, f("f") >= value):
            assert dataset.count_rows(condition) == table.filter(condition).num_rows, str(condition)
            pruned += sum(drive["slices_pruned"] for drive in dataset.receipt.to_dict()["drives"])
    assert pruned > 0


def test_texts_that_polars_stores_as_views(fleet):
    fleet.ingest(pl.DataFrame({"s": ["a", "b", None] * 100, "n": range(300)}), "d.views")
    dataset = fleet.dataset("d.views")
    assert dataset.schema.field("s").type == pa.string_view()
    assert dataset.scanner(filter=f("s") == "a").local is None and dataset.count_rows(f("s").isin(["a", "b"])) == 200
    assert dataset.to_table(filter=pc.utf8_upper(f("s")) == "A").schema.equals(dataset.schema)


def test_references_by_number_are_resolved_here(fleet, memory):
    scan = fleet.dataset("d.typed").scanner({"n": pc.field(0)}, pc.field(0) < 5)
    assert sorted(scan.to_table()["n"].to_pylist()) == [0, 1, 2, 3, 4] and "apart" in scan.local


def test_hostile_expressions(fleet, capfd):
    conditions = [(f("i8") > 3) & f("text").isin(["a", "b"]), f("struct", "a") > 3, pc.starts_with(f("text"), "a") | (f("t_utc") > TIME.replace(tzinfo=UTC)), f("f64") * 2 > 1]
    schema = pa.schema([(field.name, field.type) for field in fleet.dataset("d.typed").schema if field.name in ("i8", "text", "struct", "t_utc", "f64")])
    seeds = [bytes(condition.to_substrait(schema)) for condition in conditions]
    dice = np.random.default_rng(4)
    refused = 0
    for round in range(800):
        hostile = bytearray(seeds[round % len(seeds)])
        for _ in range(dice.integers(1, 4)):
            hostile[dice.integers(len(hostile))] = dice.integers(256)
        if round % 5 == 0:
            del hostile[dice.integers(len(hostile)) :]
        try:
            pa.table(fleet._inner.scan("d.typed", ["n"], None, bytes(hostile), None, False, None, "adaptive"))
        except (skytether.InvalidError, skytether.UnsupportedError, skytether.NotFoundError):
            refused += 1
    assert 100 < refused < 800
    assert "panicked" not in capfd.readouterr().err
    with pytest.raises(skytether.InvalidError, match="one expression"):
        fleet._inner.scan("d.typed", None, None, bytes(pa.substrait.serialize_expressions([f("i8") > 1, f("i8") < 9], ["a", "b"], schema)), None, False, None, "adaptive")
    with pytest.raises(skytether.NotFoundError, match='no column "no"'):
        fleet._inner.scan("d.typed", ["no"], None, None, None, False, None, "adaptive")
