"""SQL over files of a mounted file system, in the volume below: as DuckDB answers, and as the fleet over a data set."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import skytether
from fleets import PROGRAM
from skytether import oas

from .servers import Disk

QUERIES = [
    "SELECT count(*) AS n, sum(k) AS k, min(price) AS low, max(city) AS last FROM files",
    "SELECT city, count(*) AS n, avg(price) AS price, count(DISTINCT k) AS ks FROM files WHERE price > 20 GROUP BY city ORDER BY city",
    "SELECT id, city, price FROM files WHERE city IN ('Bern', 'Zug') AND k BETWEEN 3 AND 5 ORDER BY price DESC NULLS LAST, id LIMIT 7",
    "SELECT k, sum(price) AS total FROM files GROUP BY k HAVING count(*) > 10 ORDER BY total DESC, k",
    "WITH top AS (SELECT city, max(id) AS id FROM files GROUP BY city) SELECT f.city, f.k FROM files f JOIN top ON f.id = top.id ORDER BY f.city",
    "SELECT v.name, count(*) AS n FROM files JOIN (VALUES (1, 'one'), (2, 'two')) AS v(k, name) ON files.k = v.k GROUP BY v.name ORDER BY v.name",
]


def rows(seed: int, first: int, count: int) -> pyarrow.Table:
    chance = random.Random(seed)
    cities = ["Basel", "Bern", "Zug", "Zürich", "a, \"quoted\" one", None]
    columns = {
        "id": range(first, first + count),
        "k": [chance.randrange(0, 9) for _ in range(count)],
        # Sums of quarters are exact, in any order.
        "price": [None if chance.random() < 0.1 else chance.randrange(0, 400) / 4 for _ in range(count)],
        "city": [chance.choice(cities) for _ in range(count)],
    }
    return pyarrow.table({name: pyarrow.array(list(values)) for name, values in columns.items()})


def write(table: pyarrow.Table, path: Path) -> None:
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()))
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=700)


@pytest.fixture(scope="module", params=["csv", "jsonl", "parquet"])
def files(request: pytest.FixtureRequest, disk: Disk) -> tuple[list[Path], pyarrow.Table]:
    """Three files of one format on the volume, and all of their rows."""
    parts = [rows(1, 0, 5000), rows(2, 5000, 500), rows(3, 5500, 2500)]
    paths = [disk.place / f"part{number}.{request.param}" for number in range(len(parts))]
    for part, path in zip(parts, paths):
        write(part, path)
    os.sync()
    return paths, pyarrow.concat_tables(parts)


def right(query: str, files: pyarrow.Table) -> list[dict[str, Any]]:
    """What DuckDB answers."""
    connection = duckdb.connect()
    connection.register("files", files)
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def test_answers_are_those_of_duckdb(disk: Disk, files: tuple[list[Path], pyarrow.Table]) -> None:
    paths, table = files
    session = oas.Session(disk.target)
    for query in QUERIES:
        found = session.sql(query, paths)
        assert found.to_arrow().to_pylist() == right(query, table), query
        drives = found.receipt.to_dict()["drives"]
        assert {drive["name"] for drive in drives} == {str(path) for path in paths}, drives
        # Rows that come with a part of a query have no place in a descriptor.
        assert found.where == "there" or "rows of other parts" in found.reason, (query, found.reason)
    assert oas.sql(QUERIES[0], paths[0], disk.target, where="there").where == "there"


def test_answers_are_those_of_a_data_set(disk: Disk, files: tuple[list[Path], pyarrow.Table], tmp_path: Path) -> None:
    paths, _ = files
    with skytether.open(tmp_path / "fleet", drives=2) as fleet:
        fleet.ingest(disk.place / f"part*{paths[0].suffix}", "lab.t")
        for query in QUERIES:
            ours = oas.Session(disk.target).sql(query, paths).to_arrow()
            theirs = fleet.sql(query.replace("files", "lab.t")).to_arrow()
            assert ours.to_pylist() == theirs.to_pylist() and ours.schema.types == theirs.schema.types, query


def command(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([PROGRAM, "oas", "sql", *words], capture_output=True, timeout=120)
    assert done.returncode == code, done
    return done


def test_command_prints_every_format(disk: Disk, files: tuple[list[Path], pyarrow.Table]) -> None:
    paths, table = files
    expected = right(QUERIES[1], table)
    # The query may come first or last.
    for words in [(QUERIES[1], *paths), (*paths, QUERIES[1])]:
        done = command(*words, "--format", "json", "--there", "--target", disk.target)
        assert [json.loads(line) for line in done.stdout.splitlines()] == expected and not done.stderr
    done = command(QUERIES[1], *paths, "--format", "arrow", "--target", disk.target)
    assert pyarrow.ipc.open_stream(io.BytesIO(done.stdout)).read_all().to_pylist() == expected
    done = command(QUERIES[1], *paths, "--format", "csv", "--target", disk.target)
    assert done.stdout.decode().splitlines()[0] == "city,n,price,ks" and len(done.stdout.splitlines()) == 1 + len(expected)
    done = command("SELECT count(*) AS n FROM files", *paths, "--receipt", "--target", disk.target)
    assert b"8000" in done.stdout and str(paths[2]).encode() in done.stderr, done


def test_what_is_too_large_or_elsewhere_is_done_here(disk: Disk, tmp_path: Path) -> None:
    large = disk.place / "large.csv"
    write(rows(7, 0, 300_000), large)
    # More rows than a result has room for.
    found = oas.Session(disk.target).sql("SELECT * FROM files ORDER BY id", large)
    assert found.where == "both" and found.reason and found.to_arrow().num_rows == 300_000
    with pytest.raises(skytether.ExhaustedError):
        oas.Session(disk.target, where="there").sql("SELECT * FROM files", large)
    elsewhere = Path("/dev/shm") / f"oas-sql-{os.getpid()}.csv"
    elsewhere.write_text("a\n1\n2\n")
    try:
        done = command("SELECT sum(a) AS a FROM files", elsewhere, "--format", "csv", "--target", disk.target)
        assert done.stdout == b"a\n3\n" and b"done here" in done.stderr
        assert b"block device" in command("SELECT 1 FROM files", elsewhere, "--there", "--target", disk.target, code=1).stderr
        assert command("SELECT sum(a) AS a FROM files", elsewhere, "--here", "--format", "csv").stderr == b""
    finally:
        elsewhere.unlink()


def test_wrong_queries_and_files_are_refused(disk: Disk) -> None:
    good, bad = disk.place / "good.csv", disk.place / "bad.csv"
    good.write_text("a,b\n1,2\n")
    bad.write_text("a,b\n1,2\n3\n")
    session = oas.Session(disk.target)
    with pytest.raises(skytether.NotFoundError, match="files"):
        session.sql("SELECT * FROM trips", good)
    with pytest.raises(skytether.InvalidError, match="nothing"):
        session.sql("SELECT nothing FROM files", good)
    with pytest.raises(skytether.InvalidError, match="bad.csv"):
        session.sql("SELECT * FROM files", [good, bad])
    with pytest.raises(ValueError, match="no file"):
        session.sql("SELECT 1", [])
    assert b"SELECT ... FROM files" in command(good, bad, code=2).stderr
