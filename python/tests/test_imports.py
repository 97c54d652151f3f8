"""Packages that results are made with are imported while a fleet is opened, and not before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import rich

import msgexpress

#: What each program begins with: a fleet in the directory that is its argument.
HEAD = """
import os, sys, threading
import msgexpress
from msgexpress import _imports
assert not {"pandas", "pyarrow", "anndata", "scipy", "matplotlib"} & {*sys.modules}, "importing msgexpress imports too much"
fleet = sys.argv[1]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("imports") / "fleet"
    with msgexpress.open(path, drives=2) as db:
        db.ingest(rich(), "t/x")
    return path


def run(place, program: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", HEAD + program, str(place)], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr


def test_data_set_comes_with_what_its_results_need(place) -> None:
    run(
        place,
        """
with msgexpress.open(fleet) as db:
    ds = db["t/x"]
    assert {"pandas", "pyarrow", "pyarrow.compute"} <= {*sys.modules}
    assert not {"anndata", "scipy", "matplotlib"} & {*sys.modules}
    before = {*sys.modules}
    ds.rank_genes_groups("type", transform="log1p_cp10k").to_df()
    foreign = {name.partition(".")[0] for name in {*sys.modules} - before} - {"msgexpress"}
    assert not foreign & {"anndata", "scipy", "h5py", "matplotlib"}, foreign
""",
    )


def test_closed_fleet_stops_imports_that_are_not_needed(place) -> None:
    run(
        place,
        """
_imports._NEEDED = ("first", "second")
at_first, go_on = threading.Event(), threading.Event()
def slow(name):
    assert name == "first", name
    at_first.set()
    go_on.wait()
_imports.importlib.import_module = slow
db = msgexpress.open(fleet)
at_first.wait()
db.close()
go_on.set()
_imports.finish()
assert "pandas" not in sys.modules
""",
    )


def test_package_that_fails_is_no_error_of_opening(place) -> None:
    run(
        place,
        """
_imports._NEEDED = ("no_such_package", "pandas")
with msgexpress.open(fleet) as db:
    assert db["t/x"].shape == (60, 40)
    assert "pandas" not in sys.modules
with msgexpress.open(fleet) as db:
    # Another opening tries again.
    _imports._NEEDED = ("pandas",)
    _imports.begin()
    assert db["t/x"].shape == (60, 40) and "pandas" in sys.modules
""",
    )


def test_forked_process_has_whole_packages(place) -> None:
    run(
        place,
        """
db = msgexpress.open(fleet)
child = os.fork()
if not child:
    import pandas
    os._exit(0 if len(pandas.DataFrame({"a": [1]})) == 1 else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
db.close()
""",
    )
