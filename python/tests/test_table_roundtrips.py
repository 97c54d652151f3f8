"""Made-up tables through every reader and writer: what is ingested comes out equal, or is refused by name.

``make soak`` makes 2,000 tables for each (SKYTETHER_SOAK); SKYTETHER_TABLES=FROM..TO makes those of these seeds."""

from __future__ import annotations

import json
import os
import random
import warnings
import zlib

import pyarrow as pa
import pytest
from tables.carry import CARRIERS, carried
from tables.compare import difference
from tables.make import ORDER, leaf, some_type, table

import skytether


def seeds(each: int) -> range:
    said = os.environ.get("SKYTETHER_TABLES")
    if said:
        begin, end = said.split("..")
        return range(int(begin), int(end))
    return range(2000 if os.environ.get("SKYTETHER_SOAK") else each)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with skytether.open(tmp_path_factory.mktemp("fleet"), drives=2, slice_rows=13) as opened:
        yield opened


def refused_types(of: pa.DataType) -> bool:
    """Whether a type may be refused: docs/sql.md lists these."""
    t = pa.types
    if t.is_interval(of) or t.is_union(of) or (t.is_struct(of) and of.num_fields == 0):
        return True
    if t.is_dictionary(of) or t.is_run_end_encoded(of):
        return refused_types(of.value_type)
    return any(refused_types(of.field(at).type) for at in range(of.num_fields))


def told(carrier: str, seed: int, given: pa.Table) -> str:
    return f"{carrier}, seed {seed}: {given.schema.to_string(show_field_metadata=False)}"


def is_named(name: str, text: str) -> bool:
    """Whether a text has a name in quotes, as Python, Rust or SQL write it. (`a` alone is in any text.)"""
    return any(form in text for form in (repr(name), json.dumps(name), json.dumps(name, ensure_ascii=False), f"'{name}'", f'"{name}"'))


def check(fleet, carrier: str, seed: int, place) -> bool:
    """Takes one table there and back; whether it was refused."""
    rng = random.Random(f"{carrier}{seed}")
    made = carried(carrier, rng, table(rng), place)
    if made is None:
        return False
    wanted = made.wanted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fleet.ingest(made.source, "made.table", replace=True, **made.options)
    except skytether.SkytetherError as error:
        text = str(error)
        # Of refused types, one of their columns has to be named.
        blamed = [field.name for field in wanted.schema if refused_types(field.type)] or wanted.column_names
        assert "t.json" in text or any(is_named(name, text) for name in blamed), f"{told(carrier, seed, wanted)}\n{text}"
        assert not isinstance(error, skytether.errors.InternalError), text
        assert "panicked" not in text, text
        return True
    order = wanted.column_names[-1]
    found = fleet.sql(f'SELECT * FROM made."table" ORDER BY "{order}"').to_arrow()
    wrong = difference(found, wanted)
    assert wrong is None, f"{told(carrier, seed, wanted)}\n{wrong}"
    return False


@pytest.mark.timeout(10_800 if os.environ.get("SKYTETHER_SOAK") else 180)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_made_tables_come_out_equal_or_are_refused(fleet, tmp_path, carrier):
    refused = sum(check(fleet, carrier, seed, tmp_path) for seed in seeds(12))
    # A generator whose tables are mostly refused would prove nothing.
    assert refused <= max(2, len(seeds(12)) // 4)


def test_columns_are_named_in_quotes(fleet):
    assert not is_named("a", "the table can't be stored") and is_named("a", "column 'a'") and is_named("two\nlines", 'column "two\\nlines"')
    odd = pa.table({"a": [1], "b": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(skytether.SkytetherError) as caught:
        fleet.ingest(odd, "made.odd")
    assert is_named("b", str(caught.value)) and not is_named("a", str(caught.value))


def test_the_generator_is_seeded_and_makes_every_type():
    one, two = (table(random.Random(7)) for _ in range(2))
    assert one.equals(two, check_metadata=True) or difference(one, two) is None
    assert one.column_names[-1] == ORDER
    rng = random.Random(1)
    kinds = {str(leaf(rng)).split("[")[0].split("(")[0] for _ in range(2000)}
    assert {"null", "bool", "halffloat", "decimal256", "timestamp", "string_view", "fixed_size_binary"} <= kinds
    nested = {zlib.crc32(str(some_type(rng)).encode()) for _ in range(500)}
    assert len(nested) > 100
