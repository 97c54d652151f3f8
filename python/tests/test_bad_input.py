"""Bad input gives one clear error, or a defined answer, and nothing is lost."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse as sp
from conftest import counts, rich

import msgexpress
import skytether
from skytether.errors import of_kind

GENES = "".join(f"E{i}\tg{i}\n" for i in range(3))


@pytest.fixture
def h5ad(tmp_path) -> Path:
    path = tmp_path / "good.h5ad"
    big = ad.AnnData(X=sp.csr_matrix(counts(300, 400)), obs=pd.DataFrame({"type": ["a", "b"] * 150}, index=[f"c{i}" for i in range(300)]))
    big.write_h5ad(path, compression="gzip")
    return path


def test_truncated_h5ad_is_corrupt_and_keeps_the_old_data_set(db, h5ad, tmp_path):
    db.ingest(h5ad, "t/x")
    whole = h5ad.read_bytes()
    for share in (0.02, 0.3, 0.6, 0.99):
        cut = tmp_path / "cut.h5ad"
        cut.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(skytether.CorruptError, match=r"cut\.h5ad is truncated or not an HDF5 file \(.*fetch"):
            db.ingest(cut, "t/x", replace=True)
    assert db["t/x"].to_anndata().X.sum() == counts(300, 400).sum()


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_a_damaged_chunk_names_file_and_data_set(db, h5ad, part):
    with h5py.File(h5ad) as f:
        where = f["X"][part].id.get_chunk_info(0)
    with open(h5ad, "r+b") as f:
        f.seek(where.byte_offset + where.size // 2)
        f.write(b"\xa5" * 8)
    with pytest.raises(skytether.CorruptError, match=f"good.h5ad.*X/{part}"):
        db.ingest(h5ad, "t/x")
    assert list(db) == []


def test_an_h5ad_that_contradicts_itself(db, h5ad):
    with h5py.File(h5ad, "a") as f:
        f["X/indptr"][5] = 10**6
    with pytest.raises(skytether.CorruptError, match="indptr"):
        db.ingest(h5ad, "t/x")
    with h5py.File(h5ad, "a") as f:
        f["X/indptr"][5] = f["X/indptr"][4]
        f["X/indices"][7] = 400
    with pytest.raises(skytether.SkytetherError, match="good.h5ad.*400"):
        db.ingest(h5ad, "t/x")
    with h5py.File(h5ad, "a") as f:
        del f["X/indices"]
    with pytest.raises(skytether.CorruptError, match="no indices"):
        db.ingest(h5ad, "t/x")


def test_files_that_are_something_else(db, tmp_path):
    (tmp_path / "text.h5ad").write_text("not hdf5")
    (tmp_path / "empty.h5ad").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["a"] = 1
    with pytest.raises(skytether.InvalidError, match="no HDF5 file"):
        db.ingest(tmp_path / "text.h5ad", "t/x")
    with pytest.raises(skytether.CorruptError, match="empty"):
        db.ingest(tmp_path / "empty.h5ad", "t/x")
    with pytest.raises(skytether.InvalidError, match="neither an h5ad"):
        db.ingest(tmp_path / "other.h5", "t/x")
    with pytest.raises(skytether.InvalidError, match="neither a 10x mtx directory"):
        db.ingest(tmp_path / "nothing", "t/x")
    with pytest.raises(skytether.NotFoundError, match="there is no file or directory"):
        db.ingest(tmp_path / "missing.h5ad", "t/x")
    with pytest.raises(skytether.InvalidError, match="int can't be ingested"):
        db.ingest(3, "t/x")


def mtx_directory(place: Path, mtx: bytes, packed: bool = False) -> Path:
    place.mkdir()
    (place / ("matrix.mtx.gz" if packed else "matrix.mtx")).write_bytes(mtx)
    (place / "genes.tsv").write_text(GENES)
    (place / "barcodes.tsv").write_text("A\nB\n")
    return place


HEAD = b"%%MatrixMarket matrix coordinate integer general\n3 2 3\n"


@pytest.mark.parametrize(
    ("mtx", "says"),
    [
        (HEAD + b"1 1 5\n2 2 1\n", "2 of 3 entries"),
        (HEAD + b"1 1 5\n2 2 1\n4 1 1\n", "row 4 does not exist"),
        (HEAD + b"1 1 5\n2 2 x\n3 1 1\n", "line 4"),
        (HEAD + b"1 1 5\n1 1 5\n3 1 1\n", "more than one entry"),
        (b"hello\n", "not a Matrix Market file"),
        (b"", "not a Matrix Market file"),
        (HEAD.replace(b"3 2 3", b"4 2 3") + b"1 1 5\n2 2 1\n3 1 1\n", "4 genes x 2 cells"),
    ],
)
def test_bad_mtx(db, tmp_path, mtx, says):
    with pytest.raises(skytether.SkytetherError, match=says):
        db.ingest(mtx_directory(tmp_path / "d", mtx), "t/x")
    assert list(db) == []


def test_truncated_gzip_mtx(db, tmp_path):
    import random

    body = HEAD.replace(b"3 2 3", b"3 2 6") + b"".join(b"%d %d %d\n" % (g, c, random.Random(g * c).randrange(10**6)) for g in (1, 2, 3) for c in (1, 2))
    packed = gzip.compress(body)
    with pytest.raises(skytether.CorruptError, match="matrix.mtx.gz"):
        db.ingest(mtx_directory(tmp_path / "d", packed[:-14], packed=True), "t/x")
    (tmp_path / "d" / "barcodes.tsv").unlink()
    with pytest.raises(skytether.NotFoundError, match="barcodes.tsv"):
        db.ingest(tmp_path / "d", "t/x")


def test_values_that_no_double_holds_name_their_place(db):
    x = counts().astype(np.int64)
    x[7, 3] = 2**53 + 1
    for kind in (sp.csr_matrix, sp.csc_matrix, np.asarray):
        with pytest.raises(skytether.InvalidError, match=r"^AnnData: X: gene 3, cell 7: the value 9007199254740993 is not exact"):
            db.ingest(ad.AnnData(X=kind(x)), "t/x")
    named = rich(sp.csr_matrix(x))
    named.raw = named[:, 3:].copy()
    named.X = sp.csr_matrix(counts())
    for layer in (None, "raw"):
        with pytest.raises(skytether.InvalidError, match=r"^AnnData: raw/X: gene g3, cell cell-7: "):
            db.ingest(named, "t/x", layer=layer)
    assert list(db) == []


def test_negative_values_are_fine_until_they_are_to_be_counts(db):
    x = counts()
    x[7, 3] = -1.5
    adata = ad.AnnData(X=sp.csr_matrix(x), obs=pd.DataFrame({"g": ["a", "b"] * 30}, index=[f"cell-{i}" for i in range(60)]))
    adata.var_names = [f"gene-{i}" for i in range(40)]
    ds = db.ingest(adata, "t/x")
    assert ds.to_anndata().X[7, 3] == -1.5
    assert len(ds.rank_genes_groups("g", transform=None).to_df("a")) == 40
    with pytest.raises(skytether.InvalidError, match=r"^t/x: gene 'gene-3' has the value -1\.5 in cell 'cell-7': .*not negative.*transform=None"):
        ds.rank_genes_groups("g", transform="log1p_cp10k")


def test_a_cell_without_a_positive_total_is_named_and_no_gene(db, monkeypatch):
    # Each cell has one positive and one negative value; only the latter is a gene's fault.
    x = np.zeros((60, 2))
    x[:, 0], x[:, 1] = 3, 5
    x[7, 1] = -5
    adata = ad.AnnData(X=sp.csr_matrix(x), obs=pd.DataFrame({"g": ["a", "b"] * 30}, index=[f"cell-{i}" for i in range(60)]))
    ds = db.ingest(adata, "t/x")

    def unfit(value):
        return of_kind("invalid", "x", json.dumps({"type": "unfit_value", "cell": 7, "value": str(value), "total": "-2.0"}))

    with_names = lambda value: ds._with_names(unfit(value), "x", "log1p_cp10k")  # noqa: E731
    assert str(with_names(3)).startswith("t/x: cell 'cell-7' has the total -2: transform=\"log1p_cp10k\" is for counts") and "gene" not in str(with_names(3))
    assert str(with_names(-5)).startswith("t/x: gene '1' has the value -5 in cell 'cell-7': ")
    with pytest.raises(skytether.InvalidError, match=r"^t/x: (cell 'cell-7' has the total -2|gene '1' has the value -5 in cell 'cell-7'): "):
        ds.rank_genes_groups("g", transform="log1p_cp10k")

    # What can't be asked for does not hide what is wrong.
    def fails(*_, **__):
        raise skytether.UnavailableError("a drive is away")

    monkeypatch.setattr(ds.fleet, "sql", fails)
    error = unfit(-5)
    assert ds._with_names(error, "x", "log1p_cp10k") is error


def test_only_expression_data_sets_are_suggested(db):
    with pytest.raises(skytether.NotFoundError, match="^there is no data set t/y; this fleet has no expression data sets$"):
        db["t/y"]
    db.fleet.ingest(pa.table({"v": [1]}), "t.plain")
    db.ingest(rich(), "t/x")
    for wrong, says in (("t/y", "; did you mean t/x?"), ("u/X", "; did you mean t/x?"), ("t.plane", "; there are t/x"), ('"t"."plane"', "; there are t/x"), ("other/data", "; there are t/x")):
        with pytest.raises(skytether.NotFoundError) as told:
            db[wrong]
        assert str(told.value).endswith(says) and "t/plain" not in str(told.value), told.value
    for wrong in ("x", ""):
        with pytest.raises(skytether.InvalidError, match="domain/dataset") as told:
            db[wrong]
        assert "domain.dataset" not in str(told.value)
    with pytest.raises(skytether.InvalidError, match="t/plain is a table"):
        db["t/plain"]
    with pytest.raises(skytether.NotFoundError, match="did you mean t/x?"):
        db.drop("t/xx")


def test_values_of_no_number_type(db, tmp_path):
    with pytest.raises(skytether.InvalidError, match="complex"):
        db.ingest(ad.AnnData(X=np.zeros((2, 2), np.complex64)), "t/x")


def test_a_value_given_twice(db, tmp_path):
    path = tmp_path / "twice.h5ad"
    ad.AnnData(X=sp.csr_matrix(counts(5, 5, share=1.0))).write_h5ad(path)
    with h5py.File(path, "a") as f:
        f["X/indices"][1] = f["X/indices"][0]
    with pytest.raises(skytether.InvalidError, match="twice"):
        db.ingest(path, "t/x")


def test_unknown_names_are_refused(db):
    ds = db.ingest(rich(), "t/x")
    with pytest.raises(skytether.NotFoundError, match="no data set t/nope; there are t/x"):
        db["t/nope"]
    assert db['t."x"'].name == "t/x" and "t.x" in db and "t/nope" not in db
    with pytest.raises(skytether.NotFoundError, match="no_column"):
        ds.rank_genes_groups("no_column", transform=None)
    with pytest.raises(skytether.NotFoundError, match='"X".*"B"'):
        ds.rank_genes_groups("type", transform=None, groups=["X"])
    with pytest.raises(skytether.NotFoundError, match="there is no group"):
        ds.rank_genes_groups("type", transform=None, reference="X")
    with pytest.raises(skytether.NotFoundError, match="layer 'x'"):
        ds.rank_genes_groups("type", transform=None, layer="x")
    with pytest.raises(skytether.InvalidError, match="method 'wilcox'"):
        ds.rank_genes_groups("type", "wilcox", transform=None)
    with pytest.raises(skytether.InvalidError, match="corr_method"):
        ds.rank_genes_groups("type", transform=None, corr_method="fdr")
    with pytest.raises(skytether.InvalidError, match="transform"):
        ds.rank_genes_groups("type", transform="log")
    with pytest.raises(skytether.NotFoundError, match="no cell has 'X'.*B, NK, T"):
        ds.ttest({"type": "X"}, {"type": "B"}, transform=None)
    with pytest.raises(skytether.NotFoundError, match="no column 'x'"):
        ds.ttest({"x": 1}, {"type": "B"}, transform=None)
    with pytest.raises(skytether.InvalidError, match="at least two"):
        ds.ttest([0], {"type": "B"}, transform=None)
    res = ds.rank_genes_groups("type", transform=None)
    with pytest.raises(KeyError, match="no group 'X'"):
        res.to_df("X")
    assert not str(pytest.raises(KeyError, lambda: db["t/nope"]).value).startswith("'")


def test_a_transform_must_be_said_and_the_error_shows_the_data(db):
    ds = db.ingest(rich(), "t/counts")
    with pytest.raises(skytether.InvalidError, match="raw counts.*log1p_cp10k"):
        ds.rank_genes_groups("type")
    logged = rich()
    logged.X = logged.X.log1p()
    with pytest.raises(skytether.InvalidError, match="not all integers"):
        db.ingest(logged, "t/logged").rank_genes_groups("type")


def test_help_says_whether_a_transform_must_be_said():
    for test in (msgexpress.Dataset.rank_genes_groups, msgexpress.Dataset.ttest, msgexpress.Dataset.wilcoxon, msgexpress.Dataset.pairwise, msgexpress.Dataset.pca):
        assert str(inspect.signature(test).parameters["transform"]) == "transform: 'Transform' = <required>", test


def test_a_group_of_one_cell(db):
    adata = rich()
    adata.obs["g"] = ["lonely"] + ["many"] * 59
    ds = db.ingest(adata, "t/x")
    for options in ({}, {"groups": ["many"]}, {"reference": "lonely"}):
        with pytest.raises(skytether.InvalidError, match="at least two"):
            ds.rank_genes_groups("g", transform=None, **options)


def test_there_is_nothing_to_test(db):
    for shape, what in (((0, 3), "cells"), ((3, 0), "genes")):
        adata = ad.AnnData(X=np.zeros(shape, np.float32), obs=pd.DataFrame({"g": pd.Categorical(["a", "b", "b"][: shape[0]])}, index=[f"c{i}" for i in range(shape[0])]))
        with pytest.warns(UserWarning, match=f"AnnData has no {what}"):
            ds = db.ingest(adata, f"t/no{what}")
        with pytest.raises(skytether.InvalidError, match=f"t/no{what} has no {what}"):
            ds.rank_genes_groups("g", transform="log1p_cp10k")
        with pytest.raises(skytether.InvalidError, match=f"t/no{what} has no {what}"):
            ds.ttest([], [], transform="log1p_cp10k")
    adata = rich()
    adata.obs["one"], adata.obs["none"] = "same", pd.Categorical([None] * 60, categories=["a"])
    ds = db.ingest(adata, "t/x")
    for column, options, says in (
        ("type", {"groups": []}, "no groups to test"),
        ("type", {"groups": ["B"], "reference": "B"}, "group 'B' is the reference itself"),
        ("one", {"reference": "same"}, "no cell of t/x has a value in obs column 'one' other than the reference 'same'"),
        ("none", {}, "no cell of t/x has a value in obs column 'none'"),
    ):
        with pytest.raises(skytether.InvalidError, match=says):
            ds.rank_genes_groups(column, transform="log1p_cp10k", **options)


def test_logarithms_that_are_taken_twice_give_a_warning(db):
    adata = rich()
    adata.X = adata.X.astype("float32").log1p()
    ds = db.ingest(adata, "t/logs")
    says = 'not all integers.*transform="log1p_cp10k".*once more'
    with pytest.warns(UserWarning, match=says):
        ds.rank_genes_groups("type", transform="log1p_cp10k")
    with pytest.warns(UserWarning, match=says):
        ds.ttest(ds.obs["type"] == "B", ds.obs["type"] == "T", transform="log1p_cp10k")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.rank_genes_groups("type", transform=None)
        db.ingest(rich(), "t/counts").rank_genes_groups("type", transform="log1p_cp10k")


def test_counts_that_are_compared_as_they_are_give_a_warning(db):
    ds = db.ingest(rich(), "t/x")
    with pytest.warns(UserWarning, match="t/x holds counts.*log1p_cp10k"):
        ds.rank_genes_groups("type", transform=None)
    logged = rich()
    logged.X = logged.X.log1p()
    ds = db.ingest(logged, "t/logged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.rank_genes_groups("type", transform=None)


def test_ingest_to_a_name_that_is_taken_or_wrong(db):
    db.ingest(rich(), "t/x")
    with pytest.raises(skytether.ConflictError, match="t/x exists already.*replace=True"):
        db.ingest(rich(), "t/x")
    db.ingest(rich(cells=30), "t/x", replace=True)
    assert db["t/x"].n_obs == 30
    for name in ("x", "t/", "../x", "t x/y"):
        with pytest.raises(skytether.InvalidError, match=re.escape(name) + ".* is no (data set|domain) name"):
            db.ingest(rich(), name)


def test_an_ingest_that_fails_leaves_nothing(db, tmp_path):
    db.ingest(rich(), "t/x")
    before = {p for p in (tmp_path / "fleet").rglob("*") if p.is_file() and "slices" in p.parts}
    x = counts().astype(np.int64)
    x[50, 3] = 2**53 + 1
    bad = rich(sp.csr_matrix(x))
    with pytest.raises(skytether.InvalidError, match="gene g3, cell cell-50: "):
        db.ingest(bad, "t/x", replace=True)

    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        db.ingest(rich(), "t/x", replace=True, progress=stop)
    assert {p for p in (tmp_path / "fleet").rglob("*") if p.is_file() and "slices" in p.parts} == before
    assert db["t/x"].shape == (60, 40)


def test_two_processes_with_one_fleet(db, tmp_path):
    code = "import sys, skytether\ntry:\n    skytether.open(sys.argv[1])\nexcept skytether.ConflictError as e:\n    print(e)"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "fleet")], capture_output=True, text=True, timeout=60)
    assert f"process {os.getpid()} has the fleet" in other.stdout and other.returncode == 0, other


def test_a_fleet_of_a_newer_version(tmp_path):
    msgexpress.open(tmp_path / "fleet", drives=2).close()
    about = json.loads((tmp_path / "fleet" / "fleet.json").read_text())
    (tmp_path / "fleet" / "fleet.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(skytether.UnsupportedError, match="99"):
        msgexpress.open(tmp_path / "fleet")
    with pytest.raises(skytether.NotFoundError):
        msgexpress.open(tmp_path / "nowhere", create=False)


@pytest.mark.parametrize(("which", "where", "bit"), [(0, 0.0, 0), (0, 0.5, 3), (1, 0.999, 7), (2, 0.25, 5)])
def test_a_flipped_bit_on_a_drive_is_found_and_named(db, tmp_path, which, where, bit):
    adata = ad.AnnData(X=sp.csr_matrix(counts(3000, 300)), obs=pd.DataFrame({"type": ["a", "b", "c"] * 1000}, index=[f"c{i}" for i in range(3000)]))
    db.ingest(adata, "t/x")
    db.close()
    # The largest files are the matrix's slices, one on each drive here.
    path = sorted((tmp_path / "fleet" / "drives").rglob("slices/*/*"), key=lambda p: p.stat().st_size)[-1 - which]
    drive = path.relative_to(tmp_path / "fleet" / "drives").parts[0]
    whole = path.read_bytes()
    content = bytearray(whole)
    content[int(len(content) * where)] ^= 1 << bit
    path.write_bytes(content)
    with msgexpress.open(tmp_path / "fleet") as again:
        for work in (lambda: again["t/x"].to_anndata(), lambda: again["t/x"].rank_genes_groups("type", transform="log1p_cp10k").to_df()):
            with pytest.raises(skytether.CorruptError, match=r"t/x/\w+\.x\.\d+;\d+") as caught:
                work()
            assert f"drive-{drive}" in str(caught.value), caught.value
        # It was that bit: put right, everything is as it was.
        path.write_bytes(whole)
        assert (again["t/x"].to_anndata().X != adata.X).nnz == 0


def test_anndata_that_cannot_be_kept(db):
    adata = rich()
    adata.uns["bad"] = object()
    with pytest.raises(skytether.InvalidError, match="can't be kept"):
        db.ingest(adata, "t/x")
    without = rich()
    without.X = None
    with pytest.raises(skytether.InvalidError, match="holds no matrix"):
        db.ingest(without, "t/x")
    with pytest.raises(skytether.InvalidError, match="no layer 'q'"):
        db.ingest(rich(), "t/x", layer="q")


@pytest.mark.parametrize(("part", "names"), [("obs", 60), ("var", 40)])
@pytest.mark.parametrize("values", [lambda n: [b"x"] * n, lambda n: ["y"] * (n - 1) + [b"x"]], ids=["bytes", "text and bytes"])
def test_columns_of_bytes_are_refused_by_place(db, part, names, values):
    """anndata would write them as text."""
    db.ingest(rich(), "t/x")
    adata = rich()
    frame = getattr(adata, part)
    frame["the column"] = pd.Series(values(names), index=frame.index, dtype=object)
    with pytest.raises(skytether.InvalidError, match=rf"{part}\['the column'\].*text"):
        db.ingest(adata, "t/x", replace=True)
    assert "the column" not in getattr(db["t/x"], part)


def test_no_warning_is_given_for_good_input(db):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = db.ingest(rich(), "t/x")
        ds.rank_genes_groups("type", transform="log1p_cp10k").to_df()
        ds.to_anndata()


def test_scipy_mtx_reads_as_ours(db, tmp_path):
    place = mtx_directory(tmp_path / "d", HEAD + b"1 1 5\n2 2 1\n3 1 7\n")
    assert (db.ingest(place, "t/x").to_anndata().X.T != scipy.io.mmread(place / "matrix.mtx").tocsr()).nnz == 0
