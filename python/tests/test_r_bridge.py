"""The Python side of the R package: calls give outcomes, and columns and matrices cross as bytes. r/msgexpress tests
the R side, and both together."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import rich

import msgexpress
import skytether
from msgexpress import _r
from skytether import InvalidError, NotFoundError, UnsupportedError


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[msgexpress.MsgExpress]:
    with msgexpress.open(tmp_path_factory.mktemp("r") / "fleet", drives=2) as db:
        yield db


@pytest.fixture(scope="module")
def ds(db: msgexpress.MsgExpress) -> msgexpress.Dataset:
    made = rich()
    made.layers["dense"] = made.X.toarray()
    return db.ingest(made, "lab/rich")


def column(values: Any) -> dict[str, Any]:
    return _r.column(pd.Series(values), "c")


def numbers(described: dict[str, Any], dtype: Any) -> list[Any]:
    return np.frombuffer(described["data"], dtype).tolist()


def test_attempt_of_what_works_gives_value_and_warnings() -> None:
    def call(a: int, b: int) -> int:
        warnings.warn("careful", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return a + b

    assert _r.attempt(call, [1], {"b": 2}) == {"value": 3, "error": None, "warnings": ["careful"]}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (skytether.NotFoundError("no such gene"), "not found", "no such gene"),
        (skytether.ConflictError("taken"), "conflict", "taken"),
        (TypeError("f() got"), "invalid", "f() got"),
        (ValueError("odd"), "invalid", "odd"),
        (ImportError("no x"), "unsupported", "no x"),
        (MemoryError(), "exhausted", "MemoryError: "),
        (ZeroDivisionError("by zero"), "python", "ZeroDivisionError: by zero"),
    ],
)
def test_attempt_of_what_fails_tells_kind_and_text(error: Exception, kind: str, text: str) -> None:
    def call() -> None:
        raise error

    assert _r.attempt(call)["error"] == {"kind": kind, "text": text, "detail": None}


def test_attempt_gives_the_detail_of_an_error(db: msgexpress.MsgExpress) -> None:
    assert _r.attempt(db.__getitem__, ["lab/none"])["error"]["detail"] == {"type": "missing_dataset", "dataset": "lab.none"}


def test_method_that_is_not_there_is_unsupported(ds: msgexpress.Dataset) -> None:
    with pytest.raises(UnsupportedError, match="has no nothing: upgrade it"):
        _r.method(ds, "nothing")


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "wanted"),
    [
        ([True, False], "logical", np.uint8, [1, 0]),
        (np.array([1, -(2**31) + 1]), "integer", np.int32, [1, -(2**31) + 1]),
        # R's NA is the smallest integer of 32 bits.
        (np.array([1, -(2**31)]), "double", np.float64, [1.0, -(2.0**31)]),
        (np.array([2**53, -(2**53)]), "double", np.float64, [2.0**53, -(2.0**53)]),
        (np.array([2**53 + 1, 0]), "integer64", np.int64, [2**53 + 1, 0]),
        (np.array([7], np.uint16), "integer", np.int32, [7]),
        (np.array([], np.int64), "integer", np.int32, []),
        (np.array([0.1], np.float32), "double", np.float64, [float(np.float32(0.1))]),
        (pd.Categorical(["b", None, "a"], categories=["b", "a"]), "factor", np.int32, [0, -1, 1]),
        ([10**30, 1], "integer64", None, None),
    ],
)
def test_column_of_plain_values_has_r_kind(values: Any, kind: str, dtype: Any, wanted: Any) -> None:
    found = column(values)
    assert found["kind"] == kind and found["missing"] is None
    if wanted is None:
        assert found["data"] is None and found["text"] == ["1" + "0" * 30, "1"]
    else:
        assert numbers(found, dtype) == wanted


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.array([1, None], dtype="Int8"), "integer"),
        (pd.array([True, None], dtype="boolean"), "logical"),
        (pd.array([1.5, None], dtype="Float64"), "double"),
        ([1.5, np.nan], "double"),
        (["a", None], "text"),
        ([True, None], "logical"),
        (pd.array([2**60, None], dtype="Int64"), "integer64"),
        (pd.to_datetime(["2024-03-01", None]), "time"),
        (pd.to_timedelta(["1h", None]), "duration"),
    ],
)
def test_column_with_missing_values_marks_them(values: Any, kind: str) -> None:
    found = column(values)
    assert (found["kind"], list(found["missing"])) == (kind, [0, 1])


def test_column_of_text_with_nul_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="c: 'a.x00b' holds a NUL"):
        column(["a\0b"])


def test_counts_are_a_sparse_matrix_of_genes_by_cells(ds: msgexpress.Dataset) -> None:
    for layer in (None, "dense"):
        for genes, cells in ((None, None), ([5, 2, 5], None), (["g7"], [9, 3, 4]), ([], []), (None, [1])):
            parts = _r.counts(ds, layer, genes, cells)
            found = sp.csc_matrix((np.frombuffer(parts["x"]), np.frombuffer(parts["i"], np.int32), np.frombuffer(parts["p"], np.int32)), shape=parts["dim"])
            assert found.has_sorted_indices
            whole = ds.to_anndata()
            wanted = whole[slice(None) if cells is None else cells, slice(None) if genes is None else genes]
            assert (found.toarray() == wanted.X.toarray().T).all()
            assert parts["genes"] == wanted.var_names.tolist() and parts["cells"] == wanted.obs_names.tolist()


def test_counts_beyond_a_dgcmatrix_are_refused_unread(ds: msgexpress.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_r, "MOST_VALUES", 100)
    with pytest.raises(InvalidError, match="lab/rich: .* values are more than a dgCMatrix of R can hold .*: choose fewer"):
        _r.counts(ds, None, None, None)
    assert _r.counts(ds, None, ["g3"], None)["dim"] == [1, ds.n_obs]


def test_annotations_of_chosen_columns_or_an_error(ds: msgexpress.Dataset) -> None:
    assert list(_r.annotations(ds, "obs", ["n", "type"]).columns) == ["n", "type"]
    assert _r.annotations(ds, "var", None).shape == ds.var.shape
    with pytest.raises(NotFoundError, match="did you mean 'type'"):
        _r.annotations(ds, "obs", ["typ"])


def test_frames_from_r_become_those_of_pandas() -> None:
    def raw(values: Any, dtype: Any) -> bytearray:
        return bytearray(np.array(values, dtype).tobytes())

    gone = raw([0, 1], np.uint8)
    parts = {
        "f": {"kind": "factor", "data": raw([1, -1], np.int32), "levels": ["a", "b"], "ordered": True},
        "one": {"kind": "factor", "data": raw([0, 0], np.int32), "levels": "a", "ordered": False},
        "t": {"kind": "text", "data": ["x", ""], "missing": gone},
        "i": {"kind": "integer", "data": raw([1, 0], np.int32), "missing": gone},
        "w": {"kind": "integer", "data": raw([1, 2], np.int32)},
        "l": {"kind": "logical", "data": raw([1, 0], np.uint8), "missing": gone},
        "d": {"kind": "double", "data": raw([0.5, np.nan], np.float64)},
        "b": {"kind": "integer64", "data": raw([2**60, 1], np.int64)},
    }
    x = {"x": raw([1.0, 2.0], np.float64), "i": raw([0, 2], np.int32), "p": raw([0, 1, 2], np.int32), "dim": [3, 2]}
    obsm = {"X_umap": {"data": raw([1, 2, 3, 4], np.float64), "dim": [2, 2]}}
    made = _r.annotated(x, ["g", "h", "i"], ["a", "b"], {"names": [], "columns": []}, {"names": list(parts), "columns": list(parts.values())}, {"twice": x}, obsm)
    assert isinstance(made, ad.AnnData) and made.X.toarray().tolist() == [[1, 0, 0], [0, 0, 2]] == made.layers["twice"].toarray().tolist()
    assert made.obsm["X_umap"].tolist() == [[1, 3], [2, 4]] and made.var_names.tolist() == ["g", "h", "i"]
    obs = made.obs
    assert obs["f"].cat.ordered and obs["f"].tolist()[0] == "b" and obs["f"].isna().tolist() == [False, True]
    assert obs["one"].cat.categories.tolist() == ["a"] and obs["t"].tolist() == ["x", None]
    assert str(obs["i"].dtype) == "Int32" and str(obs["w"].dtype) == "int32" and str(obs["l"].dtype) == "boolean"
    assert obs["b"].tolist() == [2**60, 1] and obs["d"].isna().tolist() == [False, True]


def test_sql_keeps_integers_where_some_are_missing(db: msgexpress.MsgExpress) -> None:
    found = _r.sql(db, "SELECT a FROM (VALUES (9007199254740993), (CAST(NULL AS BIGINT))) AS t(a) ORDER BY a NULLS LAST")
    described = _r.frame(found)
    assert described["columns"][0]["text"][0] == "9007199254740993" and list(described["columns"][0]["missing"]) == [0, 1]


def test_the_package_exports_the_agreed_names() -> None:
    """Those that users and outside checks rely on; R's own tests call them."""
    exported = (Path(__file__).resolve().parents[2] / "r" / "msgexpress" / "NAMESPACE").read_text()
    agreed = "msgx_open msgx_connect ingest datasets obs var rank_genes_groups ttest qc_metrics highly_variable_genes pca counts as_sce as_seurat plot_volcano"
    assert [name for name in agreed.split() if f"export({name})" not in exported] == []


@pytest.mark.parametrize(("asked", "status"), [("", 0), ("required", 1)])
def test_without_r_its_tests_say_that_they_did_not_run(asked: str, status: int, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "grep", "tr"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    script = Path(__file__).resolve().parents[2] / "r" / "test.sh"
    done = subprocess.run([script], env={"PATH": str(tmp_path), "SKYTETHER_R": asked}, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert "DID NOT RUN: there is no R here" in done.stderr and "apt-get install --no-install-recommends r-base-core" in done.stderr


def test_sums_that_doubles_do_not_hold_are_refused(ds: msgexpress.Dataset) -> None:
    bulk = ds.pseudobulk("type")
    parts = _r.parts_of_bulk(bulk)
    assert parts["values"]["dim"] == [40, 3] and parts["values"]["columns"] == list(bulk.obs_names) and parts["obs"] is bulk.obs
    assert numbers(parts["values"], np.float64) == bulk.X.ravel().tolist()
    bulk.X[0, 0] = 2**53 + 1
    with pytest.raises(UnsupportedError, match="beyond 2\\^53"):
        _r.parts_of_bulk(bulk)
