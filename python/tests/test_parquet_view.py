"""Tables as plain Parquet files: exported, and read where they are through `skytether://`, by
pyarrow, pandas and DuckDB."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from arrow_columns import columns
from conftest import rich
from fleets import PROGRAM, serving

import msgexpress
import skytether

COLUMNS = columns()

#: Types that Parquet does not have.
NUMBERS = ("timestamp s", "timestamp s UTC", "date64", "time32 s")


def every_type(rows: int = 4) -> pa.Table:
    table = pa.table({name: column.values for name, column in COLUMNS.items()})
    table = pa.concat_tables([table] * (rows // 4))
    return table.append_column("k", pa.array(range(table.num_rows), pa.int64()))


def events(rows: int = 5000) -> pa.Table:
    k = np.arange(rows)
    name = pa.array([None if i % 11 == 0 else f"name {i * 7919 % 997}" for i in k])
    x = pa.array(np.where(k % 13 == 0, np.nan, k / 16.0), mask=k % 7 == 0)
    return pa.table({"k": pa.array(k), "name": name, "group": pa.array([f"g{i % 4}" for i in k]), "x": x})


def wide(rows: int = 700, width: int = 300) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table({f"c{c}": pa.array([f"t{i % 17}" for i in numbers]) if c % 50 == 3 else pa.array(numbers * 31 + c, mask=(numbers + c) % 11 == 0) for c in range(width)})


TABLES = {"lab.types": every_type, "lab.events": events, "lab.wide": wide, "lab.none": lambda: events().slice(0, 0), "lab.keyed": events}


def fill(fleet: skytether.Fleet) -> None:
    for name, make in TABLES.items():
        fleet.ingest(make(), name, partition_by="k" if name == "lab.keyed" else None)


@pytest.fixture(scope="module", params=["1 drive", "3 drives", "2 processes"])
def fleet(request, tmp_path_factory):
    """Few rows are a slice, so that all tables are on several drives."""
    place, drives = tmp_path_factory.mktemp("fleet"), int(request.param[0])
    if "processes" not in request.param:
        with skytether.open(place, drives=drives, slice_rows=150) as opened:
            fill(opened)
            yield opened
        return
    with serving(place, drives, "--slice-rows", 150) as served, skytether.connect(served.url) as connected:
        fill(connected)
        yield connected


def url(fleet: skytether.Fleet, table: str) -> str:
    location = fleet._inner.location()
    return f"skytether://{location.removeprefix('grpc://')}/{table}.parquet"


def alike(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Equal values; a NaN is as another."""
    return a.to_pylist() == b.to_pylist() or str(a.to_pylist()) == str(b.to_pylist())


def same(found: pa.Table, given: pa.Table, name: str) -> None:
    """That the file has the values that went in, in the order in which they did, and in the types in
    which they are stored."""
    if name == "lab.keyed":
        found = found.sort_by("k")
    assert found.column_names == given.column_names
    for column in given.column_names:
        if column in NUMBERS:
            # Parquet has no seconds, and no dates in milliseconds: others see the numbers.
            assert found[column].to_pylist() == given[column].cast(found[column].type).to_pylist(), column
            continue
        assert alike(found[column], given[column]), column
        if name == "lab.types" and column != "k":
            assert found[column].type == COLUMNS[column].out, column


@pytest.mark.parametrize("name", TABLES)
def test_pyarrow_reads_the_ingested_rows(fleet, name, tmp_path):
    given = TABLES[name]()
    told = []
    report = fleet.export(name, tmp_path / "t.parquet", progress=lambda done, total: told.append((done, total)))
    assert report["rows"] == given.num_rows and report["bytes"] == os.path.getsize(tmp_path / "t.parquet") == told[-1][0] == told[-1][1]
    same(pq.read_table(tmp_path / "t.parquet"), given, name)
    fs = fsspec.filesystem("skytether")
    same(pq.read_table(url(fleet, name).removeprefix("skytether://"), filesystem=fs), given, name)
    with fs.open(url(fleet, name)) as file:
        same(pq.read_table(file), given, name)
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    assert metadata.num_row_groups == report["row_groups"] and metadata.num_rows == given.num_rows
    assert (metadata.num_row_groups > 3) == (given.num_rows > 600)


@pytest.mark.parametrize("name", TABLES)
def test_the_file_where_it_is_is_the_exported_one_byte_for_byte(fleet, name, tmp_path):
    fleet.export(name, tmp_path / "t.parquet")
    written = (tmp_path / "t.parquet").read_bytes()
    fs = fsspec.filesystem("skytether")
    assert fs.cat_file(url(fleet, name)) == written
    assert fs.info(url(fleet, name))["size"] == len(written)
    with fs.open(url(fleet, name)) as file:
        assert file.read(4) == b"PAR1"
        for start, end in [(0, 1), (len(written) // 3, len(written) // 2), (len(written) - 8, len(written)), (5, 5)]:
            file.seek(start)
            assert file.read(end - start) == written[start:end] and file.tell() == end
        file.seek(-8, os.SEEK_END)
        assert file.read() == written[-8:] and file.read() == b""
    assert fs.cat_file(url(fleet, name), start=-8) == written[-8:] and fs.cat_file(url(fleet, name), 2, 9) == written[2:9]
    for start in range(0, len(written), max(1, len(written) // 37)):
        assert fs.cat_file(url(fleet, name), start, start + 777) == written[start : start + 777]


@pytest.mark.parametrize("name", ["lab.events", "lab.wide", "lab.none", "lab.keyed"])
def test_duckdb_reads_the_ingested_rows(fleet, name, tmp_path):
    given = TABLES[name]()
    fleet.export(name, tmp_path / "t.parquet")
    with duckdb.connect() as db:
        db.register_filesystem(fsspec.filesystem("skytether"))
        order = "ORDER BY k" if "k" in given.column_names else ""
        for at in (tmp_path / "t.parquet", url(fleet, name)):
            found = db.sql(f"SELECT * FROM read_parquet('{at}') {order}").to_arrow_table()
            assert found.column_names == given.column_names
            for column in given.column_names:
                assert alike(found[column], given[column]), (at, column)
            column = given.column_names[0]
            ((count, least),) = db.sql(f"SELECT count(*), min({column}) FROM read_parquet('{at}') WHERE {column} >= 300").fetchall()
            due = given.filter(pc.field(column) >= 300)
            assert (count, least) == (due.num_rows, pc.min(due[column]).as_py())


def test_duckdb_reads_every_type_that_it_has(fleet, tmp_path):
    fleet.export("lab.types", tmp_path / "t.parquet")
    given = every_type()
    # What DuckDB has no type for, or shows in one of its own.
    other = ("decimal256", "many hundreds", "time32", "time64", "duration", "date64", "timestamp s", "float", "binary", "map", "list of structs")
    kept = [name for name in given.column_names if not any(part in name for part in other)]
    listed = ", ".join(f'"{name}"' for name in kept)
    with duckdb.connect() as db:
        db.sql("SET TimeZone = 'UTC'")
        found = db.sql(f"SELECT {listed} FROM '{tmp_path / 't.parquet'}'").to_arrow_table()
    assert len(kept) > 30
    for name in kept:
        a, b = found[name].to_pylist(), given[name].to_pylist()
        if name.startswith("timestamp"):
            a, b = ([None if v is None else pd.Timestamp(v).value // 1000 for v in values] for values in (a, b))
        assert a == b, name


def test_readers_skip_row_groups_by_the_footer(fleet, tmp_path):
    fleet.export("lab.events", tmp_path / "t.parquet")
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    names = metadata.schema.names
    last = 0
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        k, x, name = (group.column(names.index(column)).statistics for column in ("k", "x", "name"))
        assert (k.min, k.max, k.null_count) == (last, last + group.num_rows - 1, 0)
        last += group.num_rows
        # A NaN is in each row group, so that no reader may skip it by x.
        assert not x.has_min_max and x.null_count > 0 and name.has_min_max and name.null_count > 0
    fragment = next(iter(ds.dataset(tmp_path / "t.parquet").get_fragments()))
    assert 0 < len(fragment.split_by_row_group(pc.field("k") < 10)) < metadata.num_row_groups
    assert ds.dataset(tmp_path / "t.parquet").to_table(filter=pc.field("k") < 10).num_rows == 10


def test_pandas_and_arrow_datasets_take_the_address(fleet):
    found = pd.read_parquet(url(fleet, "lab.events"), columns=["k", "group"])
    pd.testing.assert_frame_equal(found, events().select(["k", "group"]).to_pandas())
    fs = fsspec.filesystem("skytether")
    dataset = ds.dataset(url(fleet, "lab.events").removeprefix("skytether://"), filesystem=fs, format="parquet")
    assert dataset.to_table(filter=pc.field("k") >= 4990, columns=["k"]).num_rows == 10
    # pyarrow has its own list of schemes, and a prefix for the others.
    same(pq.read_table("fsspec+" + url(fleet, "lab.events")), events(), "lab.events")


def test_reading_one_column_moves_little_of_the_file(tmp_path):
    """Bytes that come from the drives: those of the column's sections and the footers."""
    with skytether.open(tmp_path / "fleet", drives=2) as fleet:
        rows = 200_000
        rng = np.random.default_rng(1)
        fleet.ingest(pa.table({f"c{n}": rng.random(rows) for n in range(10)}), "lab.t")
        fs = fsspec.filesystem("skytether", fleet=fleet)
        read = []

        with fs.open("lab.t") as file:
            fetch = file.cache.fetcher
            file.cache.fetcher = lambda start, end: read.append(end - start) or fetch(start, end)
            found = pq.read_table(file, columns=["c3"], pre_buffer=False)
        assert found.num_rows == rows and sum(read) < 0.2 * fs.info("lab.t")["size"]


def test_file_system_lists_files_and_names_missing_ones(fleet):
    fs = fsspec.filesystem("skytether")
    at = url(fleet, "x").rsplit("/", 1)[0]
    bare = at.removeprefix("skytether://")
    assert fs.ls(at, detail=False) == sorted(f"{bare}/{name}.parquet" for name in TABLES)
    assert all(entry["type"] == "file" for entry in fs.ls(at))
    assert fs.isdir(at) and fs.isfile(f"{at}/lab.events.parquet") and fs.isfile(f"{at}/lab.events") and not fs.exists(f"{at}/lab.nothing.parquet")
    assert sorted(fs.glob(f"{at}/lab.*e*.parquet")) == sorted(f"{bare}/{name}.parquet" for name in TABLES if "e" in name[4:])
    assert fs.find(at) == sorted(f"{bare}/{name}.parquet" for name in TABLES)
    for wrong in ("lab.nothing.parquet", "nonsense", "lab.events.rows.parquet"):
        with pytest.raises(FileNotFoundError):
            fs.open(f"{at}/{wrong}")
        with pytest.raises(FileNotFoundError):
            fs.info(f"{at}/{wrong}")
    with pytest.raises(OSError, match="ingest"):
        fs.open(f"{at}/lab.events.parquet", "wb")
    with pytest.raises(IsADirectoryError):
        fs.open(at)
    with pytest.raises(FileNotFoundError, match="no fleet"):
        fs.ls("skytether:///nowhere/at/all")
    with pytest.raises(ConnectionError):
        fs.info("skytether://127.0.0.1:1/lab.events.parquet")


def test_unsupported_exports_are_refused_by_name(fleet, tmp_path):
    to = tmp_path / "t.parquet"
    with pytest.raises(skytether.NotFoundError, match="lab.nothing"):
        fleet.export("lab.nothing", to)
    fleet.export("lab.events", to)
    before = to.read_bytes()
    with pytest.raises(skytether.ConflictError, match="exists already"):
        fleet.export("lab.wide", to)
    assert to.read_bytes() == before
    fleet.export("lab.wide", to, replace=True)
    assert pq.read_metadata(to).num_columns == 300
    with pytest.raises(skytether.NotFoundError):
        fleet.export("lab.events", tmp_path / "none" / "t.parquet")

    def enough(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(skytether.InvalidError, match="progress"):
        fleet.export("lab.events", tmp_path / "u.parquet", progress=enough)
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_closing_a_fleet_closes_no_other_handle(tmp_path):
    """Fleets of one place are told apart, readers share what they opened, and let go of no more than that."""
    place = tmp_path / "fleet"
    with skytether.open(place, drives=2) as fleet:
        fleet.ingest(events(1000), "lab.t")
        first = fsspec.filesystem("skytether", fleet=fleet)
        whole = first.cat_file("lab.t")
    with skytether.open(place) as fleet:
        assert fsspec.filesystem("skytether", fleet=fleet).cat_file("lab.t") == whole
        at = f"skytether://{place}/lab.t.parquet"
        theirs = fsspec.open(at).open()
    # The fleet that it read through is closed; this one is opened for reading, and stays so when
    # the other file is closed.
    with fsspec.open(at) as ours:
        theirs.close()
        assert ours.read() == whole
    with skytether.open(place):
        pass


def test_threads_share_a_fleet_that_is_not_open(tmp_path):
    place = tmp_path / "fleet"
    with skytether.open(place, drives=2) as fleet:
        for n in range(4):
            fleet.ingest(events(1000 + n), f"lab.t{n}")
    together = threading.Barrier(4)

    def rows(n: int) -> int:
        with fsspec.open(f"skytether://{place}/lab.t{n}.parquet") as file:
            together.wait(60)
            return pq.read_table(file).num_rows

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(rows, range(4))) == [1000, 1001, 1002, 1003]


def test_files_follow_their_tables(tmp_path):
    """A file system that keeps footers sees a new generation, and who has the old one open is told."""
    with skytether.open(tmp_path / "fleet", drives=2, slice_rows=100) as fleet:
        fs = fsspec.filesystem("skytether", fleet=fleet)
        fleet.ingest(events(1000), "lab.t")
        first, stamp, key = fs.cat_file("lab.t"), fs.modified("lab.t"), fs.ukey("lab.t")
        assert (fs.modified("lab.t"), fs.ukey("lab.t.parquet").rsplit("@")[1]) == (stamp, key.rsplit("@")[1])
        with fsspec.filesystem("skytether", fleet=fleet).open("lab.t") as file:
            assert file.read(4) == b"PAR1"
            fleet.ingest(events(2000), "lab.t", replace=True)
            file.seek(0)
            with pytest.raises(OSError, match="open it again"):
                file.read()
        assert pq.read_table("lab.t", filesystem=fs).num_rows == 2000
        assert fs.cat_file("lab.t") != first and fs.modified("lab.t") != stamp and fs.ukey("lab.t") != key
        fleet.drop("lab.t")
        assert not fs.exists("lab.t")


def test_a_fleet_is_open_only_while_it_is_read(tmp_path):
    place = tmp_path / "fleet"
    with skytether.open(place, drives=2) as fleet:
        fleet.ingest(events(), "lab.t")
        # Open here: used as it is.
        assert pd.read_parquet(f"skytether://{place}/lab.t.parquet").shape == (5000, 4)
    assert pd.read_parquet(f"skytether://{place}/lab.t.parquet").shape == (5000, 4)
    # No process has the fleet open now.
    with skytether.open(place) as fleet:
        assert fleet.sql("SELECT count(*) AS n FROM lab.t").to_arrow()["n"].to_pylist() == [5000]
    fs = fsspec.filesystem("skytether")
    file = fs.open(f"skytether://{place}/lab.t.parquet")
    with pytest.raises(skytether.ConflictError):
        skytether.open(place)
    file.close()
    skytether.open(place).close()
    # What another process has open is not there for us.
    with serving_fleet(place), pytest.raises(OSError, match="open"):
        fs.info(f"skytether://{place}/lab.t.parquet")
    # A relative path is one of this directory.
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert pd.read_parquet("skytether://fleet/lab.t.parquet").shape == (5000, 4)
    finally:
        os.chdir(before)


class serving_fleet:  # noqa: N801 - a context
    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> None:
        self.process = subprocess.Popen([PROGRAM, "host", "serve", "--fleet", self.place], stdout=subprocess.PIPE, text=True)
        assert "127.0.0.1" in self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def test_tables_of_expression_data_sets_are_files(tmp_path):
    given = rich()
    with msgexpress.open(tmp_path / "cells", drives=3) as db:
        db.ingest(given, "blood/few")
        fleet = db.fleet
        for table, rows in [("obs", 60), ("var", 40), ("cells", 60), ("x_rows", 40)]:
            fleet.export(f"blood.few.{table}", tmp_path / f"{table}.parquet")
            found = pq.read_table(tmp_path / f"{table}.parquet")
            assert found.num_rows == rows
            fs = fsspec.filesystem("skytether", fleet=fleet)
            assert fs.cat_file(f"blood.few.{table}.parquet") == (tmp_path / f"{table}.parquet").read_bytes()
        x = pq.read_table(tmp_path / "x_rows.parquet")
        dense = np.zeros((60, 40), np.float32)
        for gene, idx, val in zip(x["gene_id"].to_pylist(), x["idx"].to_pylist(), x["val"].to_pylist()):
            dense[idx, gene] = val
        np.testing.assert_array_equal(dense, given.X.toarray())
        with duckdb.connect() as duck:
            assert duck.sql(f"SELECT sum(nnz) FROM '{tmp_path / 'x_rows.parquet'}'").fetchall() == [(given.X.nnz,)]
        names = fs.ls("", detail=False)
        assert "blood.few.obs.parquet" in names and "blood.few.x_rows.parquet" in names and "blood.few.x.parquet" not in names
        assert all(fs.isfile(name) for name in names)
        with pytest.raises(skytether.UnsupportedError, match="x_rows"):
            fleet.export("blood.few.x", tmp_path / "no.parquet")


def test_a_lost_drive_makes_no_difference(tmp_path):
    place = tmp_path / "fleet"
    with skytether.open(place, drives=3, redundancy="ec:2+1", slice_rows=150) as fleet:
        fill(fleet)
        for name in TABLES:
            fleet.export(name, tmp_path / f"{name}.parquet")
    shutil.rmtree(place / "drives" / "1")
    with skytether.open(place) as fleet:
        fs = fsspec.filesystem("skytether", fleet=fleet)
        for name, make in TABLES.items():
            fleet.export(name, tmp_path / "again.parquet", replace=True)
            whole = (tmp_path / f"{name}.parquet").read_bytes()
            assert (tmp_path / "again.parquet").read_bytes() == whole == fs.cat_file(name), name
            same(pq.read_table(name, filesystem=fs), make(), name)
            with duckdb.connect() as db:
                assert db.sql(f"SELECT count(*) FROM '{tmp_path / 'again.parquet'}'").fetchall() == [(make().num_rows,)]


@pytest.fixture(scope="module")
def particles(tmp_path_factory):
    """1.5 M particles as Parquet and as raw records, by the command."""
    place = tmp_path_factory.mktemp("particles")
    for name in ("p.parquet", "p.vpic"):
        done = subprocess.run([PROGRAM, "generate", "particles", "--rows", "1500k", "--seed", "3", "--out", place / name], capture_output=True, text=True)
        assert done.returncode == 0 and "1,500,000 particles" in done.stdout, (done.stdout, done.stderr)
    return place


def test_particles_follow_their_seed_and_energy_distribution(particles, tmp_path):
    table = pq.read_table(particles / "p.parquet")
    assert table.schema.names == ["ID", "x", "y", "z", "ke"] and table.schema.field("ID").type == pa.uint64() and table.schema.field("ke").type == pa.float32()
    # Another program reads the raw records as their text says.
    record = np.dtype([("ID", "<u8"), ("pad", "<u8"), ("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("i", "<i4"), ("u", "<f4", 3), ("ke", "<f4")])
    assert record.itemsize == 48
    raw = np.fromfile(particles / "p.vpic", record)
    for name in table.column_names:
        np.testing.assert_array_equal(raw[name], table[name].to_numpy())
    gamma = np.sqrt(1 + (raw["u"].astype(np.float64) ** 2).sum(axis=1))
    np.testing.assert_allclose(gamma - 1, raw["ke"], atol=1e-6)
    assert sorted(raw["ID"].tolist()) == list(range(1_500_000))
    for t, share in [(0.3, 1.1e6 / 5e8), (0.4, 63e3 / 5e8), (0.5, 2.5e3 / 5e8), (0.6, 80 / 5e8), (0.7, 0)]:
        found, due = int((raw["ke"] > t).sum()), share * len(raw)
        assert abs(found - due) <= 5 * due**0.5 + 3 * (due > 0), (t, found, due)
    done = subprocess.run([PROGRAM, "generate", "particles", "--rows", "1500k", "--seed", "3", "--out", tmp_path / "q.vpic", "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows: list[int] = []
    assert skytether.generate_particles(tmp_path / "r", 1_500_000, 3, format="vpic", progress=rows.append) == 72_000_000 and rows[-1] == 1_500_000
    with pytest.raises(skytether.ConflictError):
        skytether.generate_particles(tmp_path / "r", 1, format="vpic")
    with pytest.raises(skytether.UnsupportedError):
        skytether.generate_particles(tmp_path / "r.csv", 1)
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()  # noqa: E731
    assert digest(tmp_path / "q.vpic") == digest(tmp_path / "r") == digest(particles / "p.vpic")


def test_particles_go_in_raw_and_come_out_as_parquet(particles, tmp_path):
    source = pq.read_table(particles / "p.parquet")
    shutil.copy(particles / "p.vpic", tmp_path / "dump.0001")
    with skytether.open(tmp_path / "fleet", drives=5) as fleet:
        rows = []
        fleet.ingest(particles / "p.vpic", "physics.raw", progress=rows.append)
        assert rows[-1] == 1_500_000 and len(rows) > 10
        fleet.ingest(tmp_path / "dump.0001", "physics.named", format="vpic")
        with pytest.raises(skytether.UnsupportedError, match="input-format"):
            fleet.ingest(tmp_path / "dump.0001", "physics.other")
        with pytest.raises(skytether.InvalidError, match="no format"):
            fleet.ingest(tmp_path / "dump.0001", "physics.other", format="hdf5")
        fleet.ingest(particles / "p.parquet", "physics.parquet")
        for name in ("raw", "named", "parquet"):
            fleet.export(f"physics.{name}", tmp_path / f"{name}.parquet")
            assert pq.read_table(tmp_path / f"{name}.parquet").equals(source)
        # A data set may be called as files end.
        fs = fsspec.filesystem("skytether", fleet=fleet)
        assert fs.cat_file("physics.parquet") == fs.cat_file("physics.parquet.parquet") == (tmp_path / "parquet.parquet").read_bytes()
        due = source.filter(pc.field("ke") > 0.4).sort_by("ID")
        assert fleet.sql('SELECT * FROM physics.raw WHERE ke > 0.4 ORDER BY "ID"').to_arrow()["ID"].to_pylist() == due["ID"].to_pylist()
        with duckdb.connect() as db:
            found = db.sql(f"SELECT * FROM '{tmp_path / 'raw.parquet'}' WHERE ke > 0.4 ORDER BY ID").to_arrow_table()
        assert found["ID"].to_pylist() == due["ID"].to_pylist()
        # Slices are a mebibyte at most, and the format costs little.
        metadata = pq.read_metadata(tmp_path / "raw.parquet")
        chunks = sum(metadata.row_group(g).column(c).total_compressed_size for g in range(metadata.num_row_groups) for c in range(5))
        stored = fleet.describe("physics.raw")["bytes"]
        assert 0 < stored - chunks <= 0.004 * chunks
        assert max(sum(metadata.row_group(g).column(c).total_compressed_size for c in range(5)) for g in range(metadata.num_row_groups)) <= 1 << 20


def test_malformed_dumps_are_refused(tmp_path):
    with skytether.open(tmp_path / "fleet", drives=1) as fleet:
        (tmp_path / "cut.vpic").write_bytes(bytes(100))
        with pytest.raises(skytether.CorruptError, match="cut.vpic has 100 bytes, which are 2 records of 48 bytes and 4 bytes more"):
            fleet.ingest(tmp_path / "cut.vpic", "physics.cut")
        record = bytearray(96)
        record[48 + 44 : 48 + 48] = np.float32("nan").tobytes()
        (tmp_path / "nan.vpic").write_bytes(record)
        with pytest.raises(skytether.InvalidError, match=r"ke of record 1 \(at byte 48\) is NaN"):
            fleet.ingest(tmp_path / "nan.vpic", "physics.nan")
        (tmp_path / "none.vpic").write_bytes(b"")
        fleet.ingest(tmp_path / "none.vpic", "physics.none")
        assert [d["name"] for d in fleet.ls()] == ["physics.none"]


#: As in docs/physicists.md: each drops its file where pyarrow does, on a thread of pyarrow's.
SCRIPTS = {
    "pandas": "import pandas as pd; print(len(pd.read_parquet('skytether://{place}/lab.t.parquet', columns=['x'], filters=[('k', '>', 4000)])))",
    "pyarrow": "import fsspec, pyarrow.parquet as pq; print(pq.read_table('{place}/lab.t.parquet', filesystem=fsspec.filesystem('skytether')).num_rows)",
    # A reader that is dropped while pyarrow reads ahead.
    "half": "import fsspec, pyarrow.dataset as ds; d = ds.dataset('{place}/lab.t.parquet', filesystem=fsspec.filesystem('skytether'), format='parquet');"
    " next(iter(d.to_batches(batch_size=10))); print('begun')",
    # A file that is open at the end.
    "open": "import fsspec; file = fsspec.open('skytether://{place}/lab.t.parquet').open(); print(file.read(4))",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    place = tmp_path_factory.mktemp("filled") / "fleet"
    with skytether.open(place, drives=5, redundancy="ec:4+1", slice_rows=500) as opened:
        opened.ingest(events(20_000), "lab.t")
    return place


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_reads_the_view_ends(filled, script):
    """The last file of a fleet is dropped while Python exits, or a moment before. Five times, as that is a race."""
    printed = {"pandas": "15999", "pyarrow": "20000", "half": "begun", "open": "b'PAR1'"}[script]
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", SCRIPTS[script].format(place=filled)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == printed
    skytether.open(filled).close()


def test_a_dropped_file_closes_its_fleet(filled):
    """Without a call to `close`, as pyarrow drops its files; also on a thread that waits for nothing."""
    file = fsspec.open(f"skytether://{filled}/lab.t.parquet").open()
    with pytest.raises(skytether.ConflictError):
        skytether.open(filled)
    del file
    skytether.open(filled).close()
    files = [fsspec.open(f"skytether://{filled}/lab.t.parquet").open() for _ in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: files.pop().read(4), range(8)))
    skytether.open(filled).close()
