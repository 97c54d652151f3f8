"""TPC-H for tests: the queries of the benchmarks, and tables by a generator from PyPI."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import duckdb

QUERIES = Path(__file__).resolve().parents[2] / "benches" / "tpch"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def text(number: int, scale: float) -> str:
    """Query `number`, from 1 to 22."""
    return (QUERIES / f"q{number:02}.sql").read_text().replace("{scale}", str(scale))


def generated(directory: Path, scale: float) -> Path:
    """The tables as Parquet files in `directory`."""
    tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    subprocess.run([tool, "parquet", "-s", str(scale), "-o", directory], check=True, capture_output=True, timeout=120)
    return directory


def in_duckdb(files: Path) -> duckdb.DuckDBPyConnection:
    """The tables in DuckDB, in the schema `tpch`."""
    con = duckdb.connect()
    con.execute("CREATE SCHEMA tpch")
    for table in TABLES:
        con.execute(f"CREATE VIEW tpch.{table} AS SELECT * FROM '{files / table}.parquet'")
    return con
