"""What the tests share: small data sets with everything that AnnData can hold, and fleets that vanish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import msgexpress
import msgexpress.cli
import skytether
import skytether._internal

#: A browser, where there is one. CI has one (`.ci/run` installs it); elsewhere its tests are none.
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
collect_ignore = [] if CHROMIUM or os.environ.get("CI") else ["test_report_browser.py"]

PROJECT = Path(__file__).resolve().parents[2]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says that tests of Java did not run (`kinetic/jars.py` skips them), which a number of skipped tests hides."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, (tuple, list))]
    why = [text.removeprefix("Skipped: ") for file, _, text in skipped if Path(file).name == "jars.py"]
    if why:
        terminalreporter.section("Java")
        terminalreporter.line(f"{len(why)} tests of Java did not run: {why[0]}")
        terminalreporter.line("SKYTETHER_JAVA=required makes that a failure.")


PBMC3K = PROJECT / "examples" / "data" / "pbmc3k.h5ad"


def counts(cells: int = 60, genes: int = 40, seed: int = 1, share: float = 0.3) -> np.ndarray:
    """Counts of about `share` nonzeros; one gene is zero everywhere, one cell has a high depth."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(2.0, (cells, genes)) * (rng.random((cells, genes)) < share)
    x[0] *= 50
    x[:, genes // 2] = 0
    return x.astype(np.float32)


def rich(x: object = None, cells: int = 60, genes: int = 40) -> ad.AnnData:
    """An AnnData with a bit of everything."""
    rng = np.random.default_rng(2)
    x = sp.csr_matrix(counts(cells, genes)) if x is None else x
    obs = pd.DataFrame(
        {
            "type": pd.Categorical(np.array(["T", "B", "NK"])[np.arange(cells) % 3], categories=["T", "B", "NK", "unused"]),
            "batch": pd.Categorical.from_codes(np.arange(cells) % 2, ["zwei", "eins"], ordered=True),
            "depth": rng.random(cells),
            "n": np.arange(cells, dtype=np.int32),
            "ok": np.arange(cells) % 2 == 0,
            "maybe": pd.array([None if i % 5 == 0 else i for i in range(cells)], dtype="Int64"),
            "note": [f"note {i}" for i in range(cells)],
            "cell": [f"inner {i}" for i in range(cells)],
        },
        index=[f"cell-{i}" for i in range(cells)],
    )
    var = pd.DataFrame({"symbol": [f"S{i}" for i in range(genes)], "high": np.arange(genes) % 2 == 0}, index=[f"g{i}" for i in range(genes)])
    return ad.AnnData(
        X=x,
        obs=obs,
        var=var,
        uns={"title": "a test", "nested": {"numbers": np.arange(3), "deep": {"x": 1.5}}, "type_colors": np.array(["#ff0000", "#00ff00", "#0000ff"])},
        obsm={"X_pca": rng.random((cells, 3)), "frame": pd.DataFrame({"a": np.arange(cells)}, index=obs.index)},
        varm={"loadings": rng.random((genes, 3))},
        obsp={"distances": sp.random(cells, cells, 0.1, format="csr", random_state=3)},
        varp={"links": sp.random(genes, genes, 0.1, format="csr", random_state=4)},
    )


def assert_same(a: ad.AnnData, b: ad.AnnData) -> None:
    """That two AnnData hold the same, of the same classes and types."""
    from anndata.tests.helpers import assert_equal

    same_matrix(a.X, b.X)
    assert set(a.layers) == set(b.layers)
    for name in a.layers:
        same_matrix(a.layers[name], b.layers[name])
    assert (a.raw is None) == (b.raw is None)
    if a.raw is not None:
        same_matrix(a.raw.X, b.raw.X)
        pd.testing.assert_frame_equal(a.raw.var, b.raw.var)
    assert_equal(a, b, exact=True)


def same_matrix(a: object, b: object) -> None:
    """That two matrices hold the same, of the same class and types; sparse ones the same stored values, zeros among
    them, in any order within a row."""
    if a is None or b is None:
        assert a is b
        return
    assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape, (type(a), type(b), a.dtype, b.dtype)
    if sp.issparse(a):
        assert a.indices.dtype == b.indices.dtype and a.indptr.dtype == b.indptr.dtype
        for of_a, of_b in zip(_stored(a), _stored(b)):
            np.testing.assert_array_equal(of_a, of_b)
    else:
        np.testing.assert_array_equal(a, b)


def _stored(matrix: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row pointers, indices and values of a CSR or CSC matrix, the indices ascending within a row. (scipy's own
    sorting refuses some types.)"""
    rows = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, rows))
    return matrix.indptr, matrix.indices[order], matrix.data[order]


@pytest.fixture
def db(tmp_path: Path):
    with msgexpress.open(tmp_path / "fleet", drives=3) as opened:
        yield opened


@pytest.fixture(scope="session")
def pbmc3k_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a closed fleet with pbmc3k in it."""
    path = tmp_path_factory.mktemp("pbmc3k") / "fleet"
    with msgexpress.open(path, drives=4) as opened:
        opened.ingest(PBMC3K, "blood/pbmc3k")
    return path


def command(*arguments: object, module: str = "msgexpress.cli", alone: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of ours: in this process, which spares the start of another, or `alone`, in one of its own."""
    words = [*map(str, arguments)]
    env = {"COLUMNS": "120", "MSGX_DEBUG": "", **environment}
    if alone:
        return subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, env={**os.environ, **env}, timeout=120)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), _Captured() as captured:
        for name, value in env.items():
            patch.setenv(name, value)
        # A file that HDF5 could not write ends the process at once (`msgexpress.cli`): here that would be the tests'.
        patch.setattr(os, "_exit", lambda status: pytest.fail(f"the command ends its process with status {status}: run it with alone=True"))
        try:
            if module == "skytether._cli":
                # `_cli.main` also gives ctrl-C back to the system, which would be this whole process's.
                status = skytether._internal.cli_main(["skytether", *words])
            else:
                status = msgexpress.cli.main(words)
        except SystemExit as stopped:
            # As Python ends a program: a text is an error.
            status = stopped.code or 0
            if not isinstance(status, int):
                print(status, file=sys.stderr)
                status = 1
        except Exception:
            # As Python ends a program.
            traceback.print_exc()
            status = 1
    return subprocess.CompletedProcess(words, status, captured.texts[0], captured.texts[1])


class _Captured:
    """What is written to the process's two outputs meanwhile, by Python and by Rust: `texts`."""

    def __enter__(self) -> _Captured:
        self.files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]
        self.python = sys.stdout, sys.stderr
        for stream in self.python:
            stream.flush()
        self.saved = [os.dup(1), os.dup(2)]
        for number, file in enumerate(self.files, 1):
            os.dup2(file.fileno(), number)
        self.streams = [open(os.dup(number), "w", buffering=1, encoding="utf-8") for number in (1, 2)]
        sys.stdout, sys.stderr = self.streams
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self.python
        try:
            for stream in self.streams:
                stream.close()
        finally:
            for number, saved in enumerate(self.saved, 1):
                os.dup2(saved, number)
                os.close(saved)
        self.texts = []
        for file in self.files:
            file.seek(0)
            self.texts.append(file.read())
            file.close()


@pytest.fixture(scope="module")
def counted() -> ad.AnnData:
    """Some genes of pbmc3k, rare ones among them."""
    adata = ad.read_h5ad(PBMC3K)
    found = np.asarray((adata.X > 0).sum(axis=0)).ravel()
    return adata[:, np.flatnonzero(found)[::14]].copy()


@pytest.fixture
def unlabelled(db):
    """Counts whose cells are not all labelled, with a category that sorts otherwise than its text; and the data set."""
    adata = rich()
    labels = pd.Series(np.array(["ten", "two", "one", None], dtype=object)[np.arange(60) % 4], index=adata.obs_names)
    adata.obs["g"] = pd.Categorical(labels, categories=["two", "one", "ten"])
    return adata, db.ingest(adata, "t/x")
