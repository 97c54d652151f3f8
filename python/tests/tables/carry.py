"""Takes tables through files and libraries. Each carrier gives what is ingested, with what options, and the table that
should come out, as the carrier's own library reads it."""

from __future__ import annotations

import csv
import json
import math
import random
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from tables.compare import difference
from tables.texts import csv_texts, csv_type, csv_values, inferred, near
from tables.make import ORDER

#: What the libraries raise for types that they do not write.
UNWRITTEN = (pa.ArrowException, OSError, KeyError, NotImplementedError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError, pl.exceptions.PanicException, duckdb.Error)


@dataclass
class Carried:
    """What is ingested, and what should come out."""

    source: Any
    wanted: pa.Table
    options: dict[str, Any] = field(default_factory=dict)


Carrier = Callable[[random.Random, pa.Table, Path], Carried]


def memory(rng: random.Random, table: pa.Table, _: Path) -> Carried:
    if rng.random() < 0.5:
        return Carried(table, table)
    batches = table.to_batches(max_chunksize=rng.randint(1, 50))
    return Carried(pa.RecordBatchReader.from_batches(table.schema, batches), table)


def parquet(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    path = place / "t.parquet"
    options = {
        "compression": rng.choice(["none", "snappy", "zstd", "gzip", "lz4"]), "version": rng.choice(["1.0", "2.4", "2.6"]), "use_dictionary": rng.random() < 0.5,
        "data_page_version": rng.choice(["1.0", "2.0"]), "row_group_size": rng.choice([1, 7, 1000]), "store_schema": rng.random() < 0.7,
        "data_page_size": rng.choice([64, None]), "write_page_checksum": rng.random() < 0.2,
    }  # fmt: skip
    if rng.random() < 0.3:
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, **options)
        # pyarrow wraps around where a unit does not hold a time, in writing as well.
        for unit in ("ns", "us", "ms", "s"):
            found = pq.read_table(path, coerce_int96_timestamp_unit=unit)
            if difference(found, table) is None:
                return Carried(path, table)
    pq.write_table(table, path, **options)
    return Carried(path, pq.read_table(path))


def arrow(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    path = place / rng.choice(["t.arrow", "t.arrows"])
    options = ipc.IpcWriteOptions(compression=rng.choice([None, "lz4", "zstd"]), emit_dictionary_deltas=rng.random() < 0.3, use_legacy_format=rng.random() < 0.1)
    opened = ipc.new_file if path.suffix == ".arrow" else ipc.new_stream
    with opened(path, table.schema, options=options) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=rng.randint(1, 100))
    return Carried(path, table)


def feather_file(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    path = place / "t.feather"
    feather.write_feather(table.unify_dictionaries(), path, compression=rng.choice(["lz4", "zstd", "uncompressed"]))
    return Carried(path, table)


def _in_pandas(of: pa.DataType) -> bool:
    """Whether pandas holds all values of the type. pyarrow may end the process where it makes dates of others."""
    t = pa.types
    if t.is_dictionary(of):
        return _in_pandas(of.value_type)
    return t.is_boolean(of) or t.is_integer(of) or t.is_floating(of) or t.is_string(of) or t.is_large_string(of) or t.is_binary(of) or t.is_decimal128(of) or of == pa.timestamp("ns")


def pandas(rng: random.Random, table: pa.Table, _: Path) -> Carried:
    import pandas as pd

    table = table.select([name for name in table.column_names if _in_pandas(table[name].type)])
    if rng.random() < 0.3:
        return Carried(table.to_pandas(types_mapper=pd.ArrowDtype), table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Carried(table.to_pandas(), pa.table([_of_numpy(column) for column in table.columns], names=table.column_names))


def _of_numpy(column: pa.ChunkedArray) -> pa.Array:
    """What is left of a column in pandas: NaN is a missing value there, and integers with missing values are floats."""
    of = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    values = [None if value != value else value for value in column.to_pylist()]
    if pa.types.is_integer(column.type) and column.null_count:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else np.float16(value) for value in values] if pa.types.is_float16(of) else values, of)


def _in_polars(of: pa.DataType) -> bool:
    """Whether Polars takes the type and gives it again; it panics for some others."""
    t = pa.types
    if t.is_dictionary(of):
        return t.is_string(of.value_type) or t.is_large_string(of.value_type)
    if t.is_list(of) or t.is_large_list(of) or t.is_fixed_size_list(of):
        return not t.is_dictionary(of.value_type) and _in_polars(of.value_type)
    if t.is_struct(of):
        return all(not t.is_dictionary(field.type) and _in_polars(field.type) for field in of)
    if t.is_decimal128(of):
        return of.scale >= 0
    if t.is_nested(of) or t.is_run_end_encoded(of) or t.is_decimal(of) or t.is_fixed_size_binary(of):
        return False
    return of not in (pa.float16(), pa.date64()) and not str(getattr(of, "tz", "")).startswith("+")


def polars(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    table = table.select([name for name in table.column_names if _in_polars(table[name].type)])
    frame = pl.from_arrow(table)
    wanted = frame.to_arrow()
    kind = rng.randrange(3)
    if kind == 1:
        frame.write_parquet(place / "t.parquet", row_group_size=rng.choice([7, None]))
        return Carried(place / "t.parquet", pq.read_table(place / "t.parquet"))
    if kind == 2:
        frame.write_ipc(place / "t.arrow", compression=rng.choice(["uncompressed", "lz4", "zstd"]))
        return Carried(place / "t.arrow", wanted)
    return Carried(frame, wanted)


def duck(_: random.Random, table: pa.Table, place: Path) -> Carried:
    path = place / "t.parquet"
    # DuckDB writes durations as intervals, and pyarrow shows none.
    table = table.select([name for name in table.column_names if "duration" not in str(table[name].type)])
    with duckdb.connect() as database:
        database.register("given", table)
        database.execute(f"COPY (SELECT * FROM given) TO '{path}' (FORMAT parquet)")
    return Carried(path, pq.read_table(path))


def as_text(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    """CSV. Its columns say their types when they are ingested, or the values do."""
    asked = rng.random() < 0.5
    kept = [name for name in table.column_names if csv_type(table[name].type)]
    table = table.select(kept)
    options = {"delimiter": rng.choice([",", ";", "|", "tab"]), "quote": rng.choice(['"', "'"]), "header": rng.random() < 0.8 or not table.num_rows, "null": "<nothing>"}
    path = place / "t.csv"
    texts = [csv_texts(rng, table[name]) for name in kept]
    if not asked:
        # The last column says the order of rows.
        texts[:-1] = [near(rng, column) if rng.random() < 0.3 else column for column in texts[:-1]]
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(
            out, delimiter={"tab": "\t"}.get(options["delimiter"], options["delimiter"]), quotechar=options["quote"], lineterminator=rng.choice(["\n", "\r\n"]),
            quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        )  # fmt: skip
        if options["header"]:
            writer.writerow(kept)
        for row in zip(*texts):
            writer.writerow(["<nothing>" if value is None else value for value in row])
    names = kept if options["header"] else [f"column_{at + 1}" for at in range(len(kept))]
    if asked:
        options["types"] = {name: csv_type(table[at].type) for at, name in enumerate(names)}
        wanted = [csv_values(column, table[at].type) for at, column in enumerate(texts)]
    else:
        wanted = [inferred(column) for column in texts]
    return Carried(path, pa.table(wanted, names=names), options)


def as_json(rng: random.Random, table: pa.Table, place: Path) -> Carried:
    """JSON, in lines or as one array; numbers, texts, truth values, and lists and objects of them."""
    kept = [name for name in table.column_names if _in_json(table[name].type)]
    table = table.select(kept) if table.num_rows else pa.table({ORDER: [0]})
    # JSON has no infinite numbers.
    given = [{name: _finite(value) for name, value in row.items()} for row in table.to_pylist()]
    table = pa.Table.from_pylist(given, table.schema)
    # The first row has all keys: columns come in the order of their first keys.
    rows = [{name: value for name, value in row.items() if at == 0 or value is not None or rng.random() < 0.5} for at, row in enumerate(given)]
    ascii_ = rng.random() < 0.5
    path = place / "t.json"
    rows = [_signed(rng, row) for row in rows]
    if rng.random() < 0.5:
        text = json.dumps(rows, ensure_ascii=ascii_, indent=rng.choice([None, 2]))
    else:
        text = "".join(json.dumps(row, ensure_ascii=ascii_) + "\n" for row in rows)
    path.write_text(text.replace(f'"{ZERO}"', "-0"), encoding="utf-8")
    return Carried(path, table)


def _in_json(of: pa.DataType) -> bool:
    t = pa.types
    if t.is_list(of) or t.is_large_list(of):
        return _in_json(of.value_type)
    if t.is_struct(of):
        return all(_in_json(field.type) for field in of)
    return t.is_boolean(of) or t.is_integer(of) or of in (pa.float64(), pa.float32(), pa.string(), pa.large_string())


#: Where JSON has a zero with a sign, which Python does not write.
ZERO = "<-0>"


def _signed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list):
        return [_signed(rng, item) for item in value]
    if isinstance(value, dict):
        return {name: _signed(rng, item) for name, item in value.items()}
    return ZERO if type(value) is int and value == 0 and rng.random() < 0.5 else value


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


CARRIERS: dict[str, Carrier] = {
    "memory": memory, "parquet": parquet, "arrow": arrow, "feather": feather_file, "pandas": pandas, "polars": polars, "duckdb": duck,
    "csv": as_text, "json": as_json,
}  # fmt: skip


def carried(name: str, rng: random.Random, table: pa.Table, place: Path) -> Carried | None:
    """The table by a carrier, without the columns that its library does not write; None where none are left."""
    state = rng.getstate()
    while True:
        rng.setstate(state)
        try:
            return CARRIERS[name](rng, table, place)
        except UNWRITTEN:
            kept = []
            for column in table.column_names:
                rng.setstate(state)
                try:
                    CARRIERS[name](rng, table.select([column] if column == ORDER else [column, ORDER]), place)
                    kept.append(column)
                except UNWRITTEN:
                    pass
            if kept in ([], [ORDER]) or len(kept) == table.num_columns:
                return None
            table = table.select(kept)
