"""Exports: what scanpy, pandas and scipy read of the files is what to_anndata gives, whole and in part."""

from __future__ import annotations

import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import scanpy as sc
import scipy.io
import scipy.sparse as sp
from conftest import assert_same, command, counts, rich

import msgexpress
import skytether
from msgexpress import _stream, _write


def whole(form: object = sp.csr_matrix) -> ad.AnnData:
    """An AnnData with raw and layers of all layouts, and ids."""
    adata = rich(form(counts()))
    adata.var["gene_ids"] = [f"ENSG{i}" for i in range(40)]
    adata.layers["lattice"] = np.log1p(counts(seed=3))
    adata.layers["columns"] = sp.csc_matrix(np.log1p(counts(seed=5)).astype(np.float64))
    adata.raw = ad.AnnData(X=sp.csr_matrix(counts(60, 45, 9)), obs=adata.obs[[]], var=rich(None, 60, 45).var)
    return adata


@pytest.fixture(params=["at once", "in parts"])
def sizes(request, monkeypatch):
    """Everything fits into one part; or parts are of a few genes and bands of a few cells."""
    if request.param == "in parts":
        monkeypatch.setattr(_stream, "PART", 50)
        monkeypatch.setattr(_stream, "BAND", 120)
        monkeypatch.setattr(_stream, "_DENSE", 40 * 4 * 7)


CELLS, GENES = [f"cell-{i}" for i in (5, 3, 59, 17)], ["g7", "g2", "g30"]


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray, lambda x: x.astype(np.float16)])
def test_h5ad_is_what_to_anndata_gives(db, tmp_path, sizes, form):
    ds = db.ingest(whole(form), "t/x")
    assert ds.export(tmp_path / "a.h5ad") == [str(tmp_path / "a.h5ad")]
    assert_same(ad.read_h5ad(tmp_path / "a.h5ad"), whole(form))
    for number, (genes, cells) in enumerate(((GENES, None), (None, CELLS), (ds.var["high"], ds.obs["type"] == "B"), (GENES, CELLS))):
        ds.export(tmp_path / f"{number}.h5ad", genes=genes, cells=cells)
        back, wanted = ad.read_h5ad(tmp_path / f"{number}.h5ad"), ds.to_anndata(genes=genes, cells=cells)
        for part in (back, wanted):
            for name in part.obs.columns:
                if part.obs[name].dtype == object:
                    part.obs[name] = part.obs[name].astype(str)
        if form is np.asarray or form is sp.csr_matrix or form is sp.csc_matrix:
            assert_same(back, wanted)
        np.testing.assert_array_equal(*(m.toarray() if sp.issparse(m) else m for m in (back.X, wanted.X)))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") or path.name.endswith(".part")]


def test_h5ad_of_a_data_set_about_raw(db, tmp_path, sizes):
    ds = db.ingest(whole(), "t/x", layer="raw")
    ds.export(tmp_path / "a.h5ad")
    assert_same(ad.read_h5ad(tmp_path / "a.h5ad"), whole())
    ds.export(tmp_path / "b.h5ad", genes=["g44", "g1"], cells=CELLS)
    back = ad.read_h5ad(tmp_path / "b.h5ad")
    np.testing.assert_array_equal(back.X.toarray(), counts(60, 45, 9)[[5, 3, 59, 17]][:, [44, 1]])
    assert list(back.var_names) == ["g44", "g1"] and back.raw is None


@pytest.mark.parametrize(("genes", "cells"), [(None, None), (GENES, CELLS)])
def test_mtx_directory_is_read_by_scanpy(db, tmp_path, sizes, genes, cells):
    ds = db.ingest(whole(), "t/x")
    files = ds.export(f"{tmp_path}/out/", genes=genes, cells=cells)
    assert sorted(files) == sorted(str(p) for p in (tmp_path / "out").iterdir()) and len(files) == 3
    back, wanted = sc.read_10x_mtx(tmp_path / "out"), ds.to_anndata(genes=genes, cells=cells)
    np.testing.assert_array_equal(back.X.toarray(), wanted.X.toarray())
    assert list(back.obs_names) == list(wanted.obs_names) and list(back.var_names) == list(wanted.var_names)
    assert list(back.var["gene_ids"]) == list(wanted.var["gene_ids"]) and set(back.var["feature_types"]) == {"Gene Expression"}
    # Counts are written as such, for readers that take integers for counts.
    assert scipy.io.mminfo(tmp_path / "out" / "matrix.mtx.gz")[4] == "integer"
    ours = db.ingest(tmp_path / "out", "t/again").to_anndata()
    np.testing.assert_array_equal(ours.X.toarray(), wanted.X.toarray())


def test_layers_go_into_mtx_with_all_their_digits(db, tmp_path, sizes):
    ds = db.ingest(whole(), "t/x")
    for layer, dtype in (("columns", np.float64), ("lattice", np.float32), ("raw", np.float32)):
        ds.export(tmp_path / layer, format="mtx", layer=layer)
        back = scipy.io.mmread(tmp_path / layer / "matrix.mtx.gz").T.toarray().astype(dtype)
        wanted = ds.to_anndata()
        wanted = wanted.raw.X if layer == "raw" else wanted.layers[layer]
        np.testing.assert_array_equal(back, wanted.toarray() if sp.issparse(wanted) else wanted)


@pytest.mark.parametrize(("genes", "cells"), [(None, None), (GENES, CELLS)])
def test_parquet_has_a_row_for_each_value(db, tmp_path, sizes, genes, cells):
    ds = db.ingest(whole(), "t/x")
    files = ds.export(tmp_path / "a.parquet", genes=genes, cells=cells)
    assert [Path(f).name for f in files] == ["a.parquet", "a.obs.parquet", "a.var.parquet"]
    wanted = ds.to_anndata(genes=genes, cells=cells)
    table = pq.read_table(files[0])
    assert table.column_names == ["gene", "cell", "value"] and str(table.schema.field("value").type) == "float"
    frame = table.to_pandas()
    dense = frame.pivot(index="cell", columns="gene", values="value").reindex(index=wanted.obs_names, columns=wanted.var_names).fillna(0)
    np.testing.assert_array_equal(dense.to_numpy(), wanted.X.toarray())
    assert len(frame) == wanted.X.nnz and (frame["value"] != 0).all()
    obs, var = (pd.read_parquet(f) for f in files[1:])
    assert list(obs["cell"]) == list(wanted.obs_names) and list(var["gene"]) == list(wanted.var_names)
    assert list(obs["type"]) == list(wanted.obs["type"].astype(str)) and list(var["gene_ids"]) == list(wanted.var["gene_ids"])


def test_antibodies_are_exported_by_their_name(db, tmp_path):
    from test_gene_files import IDS, directory

    x = counts(12, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = db.ingest(directory(tmp_path / "in", [f"{i}\ts{n}\t{'Gene Expression' if n < 4 else 'Antibody Capture'}" for n, i in enumerate(IDS)]), "t/x")
    ds.export(tmp_path / "out", format="mtx", layer="Antibody Capture")
    back = sc.read_10x_mtx(tmp_path / "out", gex_only=False)
    np.testing.assert_array_equal(back.X.toarray(), x[:, 4:])
    assert set(back.var["feature_types"]) == {"Antibody Capture"}


def test_nothing_is_a_good_export_too(db, tmp_path):
    ds = db.ingest(whole(), "t/x")
    none = np.zeros(60, bool)
    for path in ("a.h5ad", "a.parquet", "out/"):
        ds.export(f"{tmp_path}/{path}", cells=none)
    assert ad.read_h5ad(tmp_path / "a.h5ad").shape == (0, 40) and pq.read_table(tmp_path / "a.parquet").num_rows == 0
    assert scipy.io.mminfo(tmp_path / "out" / "matrix.mtx.gz")[:3] == (40, 0, 0)


@pytest.mark.parametrize(
    ("path", "options", "kind", "says"),
    [
        ("out", {}, skytether.InvalidError, "does not say its format: call it .*out.h5ad or .*out.parquet, or .*out/ for a directory"),
        ("out.h5ad", {"format": "loom"}, skytether.InvalidError, "there is no format 'loom': use one of 'h5ad'"),
        ("out.h5ad", {"format": "mtx"}, skytether.InvalidError, "out.h5ad is no name of the format 'mtx': it is a directory"),
        ("out", {"format": "parquet"}, skytether.InvalidError, "its files end in .parquet"),
        ("out.h5ad", {"layer": "columns"}, skytether.InvalidError, "an h5ad file has all layers"),
        ("out.parquet", {"layer": "columnz"}, skytether.NotFoundError, "has no layer 'columnz'.*did you mean 'columns'"),
        ("out.parquet", {"genes": ["g1", "q"]}, skytether.NotFoundError, "no gene .*'q'|'q'"),
        ("no/out.parquet", {}, skytether.NotFoundError, "there is no directory .*no to put out.parquet into"),
        ("there.obs.parquet", {}, skytether.ConflictError, "there.obs.parquet exists already"),
        ("there.parquet", {}, skytether.ConflictError, "there.obs.parquet exists already: choose another name, or say replace=True"),
    ],
)
def test_wrong_exports_are_refused(db, tmp_path, path, options, kind, says):
    ds = db.ingest(whole(), "t/x")
    (tmp_path / "there.obs.parquet").write_text("mine")
    with pytest.raises(kind, match=says):
        ds.export(tmp_path / path, **options)
    assert {p.name for p in tmp_path.iterdir()} == {"fleet", "there.obs.parquet"} and (tmp_path / "there.obs.parquet").read_text() == "mine"


def test_values_and_names_that_mtx_cannot_hold(db, tmp_path):
    adata = whole()
    adata.layers["lattice"][3, 4] = np.nan
    ds = db.ingest(adata, "t/x")
    with pytest.raises(skytether.InvalidError, match="gene 'g4' has the value nan in cell 'cell-3', which an mtx file can't hold"):
        ds.export(tmp_path / "out", format="mtx", layer="lattice")
    adata.obs_names = ["a\tb", *adata.obs_names[1:]]
    with pytest.raises(skytether.InvalidError, match=r"has the name 'a\\tb', with a tab"):
        db.ingest(adata, "t/y").export(tmp_path / "out", format="mtx")
    assert not (tmp_path / "out").exists() and {p.name for p in tmp_path.iterdir()} == {"fleet"}


def test_a_failed_export_leaves_what_was_there(db, tmp_path, monkeypatch):
    ds = db.ingest(whole(), "t/x")
    ds.export(f"{tmp_path}/out/")
    before = (tmp_path / "out" / "matrix.mtx.gz").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_write, "_rows", full)
    with pytest.raises(skytether.ExhaustedError, match="cannot write .*matrix.mtx.gz: No space left on device"):
        ds.export(f"{tmp_path}/out/", replace=True, genes=GENES)
    assert (tmp_path / "out" / "matrix.mtx.gz").read_bytes() == before and {p.name for p in tmp_path.iterdir()} == {"fleet", "out"}


def test_exports_from_the_shell(tmp_path):
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        db.ingest(whole(), "t/x")

    def export(*more: object):
        return command("export", "t/x", *more, "--fleet", tmp_path / "fleet")

    done = export(f"{tmp_path}/out/", "--genes", "g7,g2")
    assert done.returncode == 0 and "matrix.mtx.gz" in done.stderr and "60 cells x 2 genes" in done.stderr, done.stderr
    assert export(f"{tmp_path}/out/").returncode == 1 and export(f"{tmp_path}/out/", "--force").returncode == 0
    (tmp_path / "cells.txt").write_text("cell-5\ncell-3\n")
    done = export(tmp_path / "a.parquet", "--cells", f"@{tmp_path / 'cells.txt'}", "--layer", "raw")
    assert done.returncode == 0 and list(pd.read_parquet(tmp_path / "a.obs.parquet")["cell"]) == ["cell-5", "cell-3"], done.stderr
    assert len(pd.read_parquet(tmp_path / "a.var.parquet")) == 45
    done = export(tmp_path / "b.h5ad", "--format", "mtx")
    assert done.returncode == 2 and "no name of the format" in done.stderr
