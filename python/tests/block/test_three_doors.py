"""One set of bytes: a data set's Parquet file that is exported onto a volume of a drive, below a mounted file system.
It answers as the fleet does, and the drive computes the digests that it has everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Iterator

import duckdb
import fsspec
import pyarrow.parquet as pq
import pytest
from compare import assert_same
from edge_tables import edges
from fleets import embedded

import skytether

from .servers import as_file, as_loop, mounted, needs, run, serve
from .test_oas import oas

#: Queries that name no table by one part only.
QUERIES = [
    "SELECT k, count(*), sum(i), avg(f), min(s), max(s), min(d), max(t), sum(m) FROM e.mixed GROUP BY k",
    "SELECT u, s, m FROM e.mixed WHERE s >= 'ä' AND m > 0 ORDER BY u LIMIT 50",
    "SELECT k, min(f), max(f), count(f) FROM e.floats GROUP BY k",
    "SELECT m.k, count(*) FROM e.mixed m JOIN e.facts f ON m.k = f.k WHERE f.v < 500 GROUP BY m.k",
]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[skytether.Fleet, str, Path]]:
    """A fleet, the address of a volume of another drive, and where its file system is mounted."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    tmp = tmp_path_factory.mktemp("doors")
    tables = {name: table for name, table in edges().items() if name in ("mixed", "floats", "facts", "empty")}
    sources = {f"e/{name}": (table, table.num_rows) for name, table in tables.items()}
    with embedded(tmp / "fleet", 3, sources) as fleet, serve(tmp / "d", "--volume", "disk=256MiB") as server:
        with as_file(server.volumes["nbd", "disk"], tmp / "f") as file, as_loop(file) as device:
            run("mkfs.ext4", "-q", "-F", device)
            with mounted(device, tmp / "m") as place:
                for name in tables:
                    fleet.export(f"e.{name}", place / f"{name}.parquet")
                yield fleet, server.volumes["iscsi", "disk"], place


def test_digests_in_the_drive_are_those_of_the_view(doors: tuple[skytether.Fleet, str, Path]) -> None:
    fleet, target, place = doors
    view = fsspec.filesystem("skytether", fleet=fleet)
    files = sorted(place.glob("*.parquet"))
    for option, name in [("--md5", "md5"), ("--sha256", "sha256")]:
        printed = oas("sum", option, *files, target=target).decode().splitlines()
        assert printed == [f"{hashlib.new(name, view.cat_file(f'e.{file.stem}')).hexdigest()}  {file}" for file in files]


def test_files_on_the_volume_answer_as_the_fleet(doors: tuple[skytether.Fleet, str, Path]) -> None:
    fleet, _, place = doors
    with duckdb.connect() as con:
        con.execute("CREATE SCHEMA e")
        for file in place.glob("*.parquet"):
            con.execute(f"CREATE VIEW e.{file.stem} AS SELECT * FROM '{file}'")
            assert pq.read_metadata(file).num_rows == fleet.sql(f"SELECT count(*) AS n FROM e.{file.stem}").to_arrow()["n"][0].as_py()
        for query in QUERIES:
            assert_same(fleet.sql(query).to_arrow(), con.sql(query).to_arrow_table(), "ORDER BY" in query, query)
