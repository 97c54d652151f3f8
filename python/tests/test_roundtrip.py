"""What goes in comes out: every source, every representation of a matrix."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
from conftest import PBMC3K, assert_same, counts, rich, same_matrix

import skytether

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
LAYOUTS = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}


def through_file(db, adata, path: Path, **options):
    adata.write_h5ad(path, **options)
    return db.ingest(path, "t/x", replace=True).to_anndata(), ad.read_h5ad(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_h5ad_of_every_layout_and_compression(db, tmp_path, layout, compression):
    back, wanted = through_file(db, rich(LAYOUTS[layout](counts())), tmp_path / "a.h5ad", compression=compression)
    assert_same(back, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_survive(db, layout, dtype):
    x = np.minimum(counts(), 100).astype(dtype)
    if dtype == "float16" and layout != "dense":
        # scipy makes no sparse matrix of float16 itself, but anndata reads one where a file has it.
        x = LAYOUTS[layout](x.astype(np.float32))
        x.data = x.data.astype(np.float16)
    else:
        x = LAYOUTS[layout](x)
    adata = ad.AnnData(X=x)
    same_matrix(db.ingest(adata, "t/x").to_anndata().X, adata.X)


@pytest.mark.parametrize("values", [np.float32([[0, 1.5, -2]]), np.float64([[0, 1 / 3, 1e30]]), np.int64([[0, 2**40, -5]]), np.uint32([[0, 70_000, 4_000_000_000]])])
def test_values_are_exact(db, values):
    for kind in (sp.csr_matrix, sp.csc_array, np.asarray):
        adata = ad.AnnData(X=kind(values))
        same_matrix(db.ingest(adata, "t/x", replace=True).to_anndata().X, adata.X)


def test_long_indices_and_sparse_arrays_survive(db):
    x = sp.csr_array(counts())
    x.indices, x.indptr = x.indices.astype(np.int64), x.indptr.astype(np.int64)
    adata = ad.AnnData(X=x)
    assert adata.X.indices.dtype == np.int64
    same_matrix(db.ingest(adata, "t/x").to_anndata().X, adata.X)


def test_anndata_in_memory_with_raw_and_layers_is_left_alone(db):
    adata = rich()
    adata.raw = adata.copy()
    adata = adata[:, :25].copy()
    adata.layers["log"] = adata.X.copy().log1p()
    adata.layers["dense é/%"] = adata.X.toarray()
    before = adata.copy()
    ds = db.ingest(adata, "t/x")
    assert_same(adata, before)
    assert_same(ds.to_anndata(), adata)
    assert set(ds.layers) == {"raw", "log", "dense é/%"}


def test_h5ad_with_raw_and_layers_shuffled_and_chunked(db, tmp_path):
    adata = rich()
    adata.raw = adata.copy()
    adata.layers["counts"] = sp.csc_matrix(adata.X)
    path = tmp_path / "a.h5ad"
    adata.write_h5ad(path)
    with h5py.File(path, "a") as f:
        for part in ("data", "indices"):
            values = f["X"][part][:]
            del f["X"][part]
            f["X"].create_dataset(part, data=values, chunks=(37,), compression="gzip", shuffle=True)
    assert_same(db.ingest(path, "t/x").to_anndata(), ad.read_h5ad(path))


def test_another_matrix_can_be_the_main_one(db):
    adata = rich()
    adata.raw = adata.copy()
    adata = adata[:, :25].copy()
    adata.layers["double"] = adata.X * 2
    for layer, genes in ((None, 25), ("double", 25), ("raw", 40)):
        ds = db.ingest(adata, "t/x", layer=layer, replace=True)
        assert ds.shape == (60, genes) and len(ds.var) == genes
        wanted = adata.X if layer is None else adata.raw.X if layer == "raw" else adata.layers[layer]
        total = db.fleet.sql("SELECT sum(value) FROM t.x.x").to_arrow().column(0)[0].as_py()
        assert total == pytest.approx(wanted.sum())
        assert_same(ds.to_anndata(), adata)


def old_h5ad(adata: ad.AnnData, path: Path) -> None:
    """As anndata 0.6 wrote it: records instead of columns, categories in uns, h5sparse attributes."""
    strings = h5py.string_dtype()
    with h5py.File(path, "w") as f:
        x = f.create_group("X")
        x.attrs["h5sparse_format"], x.attrs["h5sparse_shape"] = "csr", np.array(adata.shape)
        for part in ("data", "indices", "indptr"):
            x[part] = getattr(adata.X, part)
        codes = adata.obs["type"].cat.codes.to_numpy()
        f["obs"] = np.array(list(zip(adata.obs_names, codes)), dtype=[("index", strings), ("type", "i1")])
        f["var"] = np.array([(n,) for n in adata.var_names], dtype=[("index", strings)])
        f["uns/type_categories"] = adata.obs["type"].cat.categories.to_numpy(object)


def test_h5ad_of_old(db, tmp_path):
    adata = rich()
    old_h5ad(adata, tmp_path / "old.h5ad")
    ds = db.ingest(tmp_path / "old.h5ad", "t/x")
    back = ds.to_anndata()
    same_matrix(back.X, adata.X)
    assert list(back.obs_names) == list(adata.obs_names) and list(back.obs["type"]) == list(adata.obs["type"])
    assert db.fleet.sql("SELECT type, count(*) AS n FROM t.x.obs GROUP BY type ORDER BY type").to_pandas().values.tolist() == [["B", 20], ["NK", 20], ["T", 20]]


def test_parts_by_name_mask_and_number(db):
    adata = rich()
    adata.raw = adata.copy()
    adata.layers["twice"] = adata.X * 2
    ds = db.ingest(adata, "t/x")
    cells, genes = ["cell-7", "cell-3", "cell-59"], np.arange(40) % 3 == 0
    assert_same(ds.to_anndata(genes=genes, cells=cells), adata[cells, genes].copy())
    assert_same(ds.to_anndata(cells=[5, 1, 5][:2]), adata[[5, 1]].copy())
    assert_same(ds.to_anndata(genes=["g39", "g0"]), adata[:, ["g39", "g0"]].copy())
    none = ds.to_anndata(genes=[], cells=[])
    assert none.shape == (0, 0)
    with pytest.raises(KeyError, match="no gene 'nope'"):
        ds.to_anndata(genes=["nope"])
    with pytest.raises(ValueError, match="60"):
        ds.to_anndata(cells=[60])
    with pytest.raises(ValueError, match="3 genes"):
        ds.to_anndata(genes=[True, False, True])


def test_obs_and_var_in_sql(db):
    adata = rich()
    ds = db.ingest(adata, "t/x")
    obs = db.fleet.sql("SELECT * FROM t.x.obs ORDER BY n").to_pandas()
    assert list(obs.columns) == ["cell", "type", "batch", "depth", "n", "ok", "maybe", "note", "cell_1"]
    assert obs["cell"].tolist() == list(adata.obs_names) and obs["cell_1"][3] == "inner 3"
    assert obs["type"].tolist() == list(adata.obs["type"]) and obs["maybe"].isna().sum() == 12
    pd.testing.assert_frame_equal(ds.obs, adata.obs)
    pd.testing.assert_frame_equal(ds.var, adata.var)
    totals = db.fleet.sql("SELECT total_x FROM t.x.cells").to_pandas()["total_x"]
    np.testing.assert_array_equal(totals, np.asarray(adata.X.sum(axis=1)).ravel())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, np.asarray])
def test_empty_matrices(db, shape, kind):
    adata = ad.AnnData(X=kind(np.zeros(shape, np.float32)), obs=pd.DataFrame({"g": pd.Categorical(["a"] * shape[0])}, index=[f"c{i}" for i in range(shape[0])]))
    ds = db.ingest(adata, "t/x")
    assert ds.shape == shape
    same_matrix(ds.to_anndata().X, adata.X)


def test_any_unicode_in_names(db):
    names = ["α-синуклеин", "基因 1", "ge'ne \"q\"", "a/b\\c", "e\u0301", "🧬"]
    adata = ad.AnnData(X=sp.csr_matrix(counts(12, 6)), obs=pd.DataFrame({"Zelltyp é 'x'": pd.Categorical(["Ж", "B'\"%"] * 6)}, index=[f"細胞{i}" for i in range(12)]), var=pd.DataFrame(index=names))
    adata.layers["Schicht ü"] = adata.X * 2
    ds = db.ingest(adata, "t/x")
    assert_same(ds.to_anndata(genes=names[::-1]), adata[:, names[::-1]].copy())
    res = ds.rank_genes_groups("Zelltyp é 'x'", transform="log1p_cp10k", layer="Schicht ü")
    assert res.groups == ["B'\"%", "Ж"] and set(res.to_df("Ж")["names"]) == set(names)


def test_duplicate_names_are_kept_apart_and_warned_of(db):
    adata = ad.AnnData(X=sp.csr_matrix(counts(8, 4)), obs=pd.DataFrame({"g": list("aabbaabb")}, index=["c"] * 8), var=pd.DataFrame(index=["x", "y", "x", "z"]))
    with pytest.warns(UserWarning, match="gene names repeat \\('x'\\)"):
        ds = db.ingest(adata, "t/x")
    back = ds.to_anndata()
    same_matrix(back.X, adata.X)
    assert sorted(ds.rank_genes_groups("g", transform=None).to_df("a")["names"]) == ["x", "x", "y", "z"]
    with pytest.raises(ValueError, match="2 genes are called 'x'"):
        ds.to_anndata(genes=["x"])


# ---- 10x and EBI


def tenx_h5(adata: ad.AnnData, path: Path, version: int) -> None:
    columns = sp.csc_matrix(adata.X.T).astype(np.int32)
    with h5py.File(path, "w") as f:
        g = f.create_group("matrix" if version == 3 else "hg19")
        for part in ("data", "indices", "indptr"):
            g.create_dataset(part, data=getattr(columns, part), compression="gzip", shuffle=True)
        g["shape"] = np.array(columns.shape, np.int32)
        g["barcodes"] = np.array(adata.obs_names, dtype="S")
        ids, names = np.array([f"ENSG{i}" for i in range(adata.n_vars)], dtype="S"), np.array(adata.var_names, dtype="S")
        if version == 3:
            g["features/id"], g["features/name"] = ids, names
            g["features/feature_type"] = np.array([b"Gene Expression"] * adata.n_vars)
            g["features/genome"] = np.array([b"GRCh38"] * adata.n_vars)
        else:
            g["genes"], g["gene_names"] = ids, names


@pytest.mark.parametrize("version", [2, 3])
def test_tenx_h5_reads_as_scanpy_does(db, tmp_path, version):
    import scanpy as sc

    path = tmp_path / "filtered.h5"
    tenx_h5(rich(), path, version)
    back, wanted = db.ingest(path, "t/x").to_anndata(), sc.read_10x_h5(path)
    same_matrix(back.X, wanted.X)
    assert list(back.obs_names) == list(wanted.obs_names) and list(back.var_names) == list(wanted.var_names)
    pd.testing.assert_frame_equal(back.var, wanted.var, check_dtype=False)


def test_a_genome_is_for_sources_with_genomes(db, tmp_path):
    tenx_h5(rich(), tmp_path / "3.h5", 3)
    rich().write_h5ad(tmp_path / "a.h5ad")
    for source, says in ((tmp_path / "a.h5ad", "a.h5ad has no genomes"), (rich(), "AnnData has no genomes"), (tmp_path / "3.h5", "has no genome 'mm10': its genes are of 'GRCh38'")):
        with pytest.raises(ValueError, match=says):
            db.ingest(source, "t/x", genome="mm10")
    assert list(db) == []
    assert db.ingest(tmp_path / "3.h5", "t/x", genome="GRCh38").shape == (60, 40)


@pytest.mark.parametrize("feature_types", [None, "all"])
def test_tenx_h5_keeps_values_that_float32_does_not_hold(db, tmp_path, feature_types):
    import scanpy as sc

    path = tmp_path / "a.h5"
    for values, dtype in (([1e39, 0.1], np.float64), ([2**24 + 1, 1], np.float64), ([2**24, 0.5], np.float32)):
        values = np.array(values, np.int32 if values[1] == 1 else dtype)
        tenx_h5(rich(), path, 3)
        with h5py.File(path, "a") as file:
            data = np.resize(values, file["matrix/data"].shape)
            del file["matrix/data"]
            file["matrix/data"] = data
        back = db.ingest(path, "t/x", replace=True, feature_types=feature_types).to_anndata().X
        assert back.dtype == dtype and set(back.data) == set(values.tolist())
        if values.dtype.kind == "f":
            same_matrix(back, sc.read_10x_h5(path).X.astype(dtype))


def test_mtx_values_beyond_float32_are_not_infinite(db, tmp_path):
    adata = rich()
    x = sp.coo_matrix(adata.X.T.astype(np.float64))
    x.data[3] = 1e39
    scipy.io.mmwrite(tmp_path / "matrix.mtx", x)
    (tmp_path / "genes.tsv").write_text("".join(f"ENS{g}\t{g}\n" for g in adata.var_names))
    (tmp_path / "barcodes.tsv").write_text("".join(f"{c}\n" for c in adata.obs_names))
    ds = db.ingest(tmp_path, "t/x")
    for chosen in ({}, {"cells": list(ds.obs_names[::-1])}):
        with pytest.raises(skytether.UnsupportedError, match=r"the value 1e\+39 is beyond float32"):
            ds.to_anndata(**chosen)


def test_tenx_h5_with_two_genomes_asks_which(db, tmp_path):
    path = tmp_path / "two.h5"
    tenx_h5(rich(), path, 2)
    with h5py.File(path, "a") as f:
        f.copy("hg19", "mm10")
    with pytest.raises(ValueError, match="genome="):
        db.ingest(path, "t/x")
    assert db.ingest(path, "t/x", genome="mm10").shape == (60, 40)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_tenx_mtx_reads_as_scanpy_does(db, tmp_path, version, packed):
    import scanpy as sc

    adata, place = rich(), tmp_path / "out" / "hg19"
    place.mkdir(parents=True)
    scipy.io.mmwrite(place / "matrix.mtx", sp.coo_matrix(adata.X.T.astype(np.int32)), field="integer")
    genes = "".join(f"ENSG{i}\t{n}" + ("\tGene Expression" if version == 3 else "") + "\n" for i, n in enumerate(adata.var_names))
    (place / ("features.tsv" if version == 3 else "genes.tsv")).write_text(genes)
    (place / "barcodes.tsv").write_text("".join(f"{n}\n" for n in adata.obs_names))
    if packed:
        for file in list(place.iterdir()):
            with open(file, "rb") as plain, gzip.open(f"{file}.gz", "wb") as zipped:
                shutil.copyfileobj(plain, zipped)
            file.unlink()
    back = db.ingest(tmp_path / "out", "t/x").to_anndata()
    assert list(back.var["gene_ids"]) == [f"ENSG{i}" for i in range(40)] and list(back.obs_names) == list(adata.obs_names)
    same_matrix(back.X, adata.X)
    if (version, packed) in ((2, False), (3, True)):  # the two forms that Cell Ranger writes
        wanted = sc.read_10x_mtx(place, cache=False)
        same_matrix(back.X, wanted.X.tocsr())
        pd.testing.assert_frame_equal(back.var, wanted.var, check_dtype=False)


def ebi_bundle(adata: ad.AnnData, place: Path) -> None:
    place.mkdir()
    stem = place / "E-TEST-1.aggregated_filtered_counts"
    scipy.io.mmwrite(f"{stem}.mtx", sp.coo_matrix(adata.X.T), field="real")
    Path(f"{stem}.mtx_rows").write_text("".join(f"{n}\t{n}\n" for n in adata.var_names))
    Path(f"{stem}.mtx_cols").write_text("".join(f"{n}\n" for n in adata.obs_names))
    cells = list(adata.obs_names)[::-1][:-2]
    lines = [["sel.K", "K", *cells], ["FALSE", "2", *(str(i % 2 + 1) for i in range(len(cells)))], ["TRUE", "11", *(str(i % 11 + 1) for i in range(len(cells)))]]
    (place / "E-TEST-1.clusters.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    rows = [["id", "organ", "age"], *([c, "blood", str(i)] for i, c in enumerate(adata.obs_names))]
    (place / "E-TEST-1.cell_metadata.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


def test_ebi_bundle(db, tmp_path):
    adata = rich()
    ebi_bundle(adata, tmp_path / "bundle")
    ds = db.ingest(tmp_path / "bundle", "t/x")
    same_matrix(ds.to_anndata().X, adata.X)
    assert list(ds.obs.columns) == ["organ", "age", "clusters_2", "clusters_11", "clusters"]
    assert list(ds.obs["clusters"].cat.categories) == [str(i) for i in range(1, 12)]
    assert ds.obs["clusters"].isna().tolist() == [True, True] + [False] * 58
    assert ds.obs["age"].tolist() == list(range(60)) and ds.obs["clusters_2"]["cell-59"] == "1"
    assert len(ds.rank_genes_groups("clusters_2", transform="log1p_cp10k").groups) == 2


def test_ebi_metadata_is_not_changed(db, tmp_path):
    adata = rich()
    ebi_bundle(adata, tmp_path / "bundle")
    n = range(60)
    columns = {
        "plate": [f"{i % 3:03}" for i in n],  # 000 is no number
        "whole": [str(i - 5) for i in n],
        "gaps": ["" if i % 4 == 0 else str(i) for i in n],
        "share": [repr(i / 7) for i in n],
        "mixed": [str(i) if i % 2 else repr(i + 0.5) for i in n],
        "holes": ["" if i % 4 == 0 else repr(i / 7) for i in n],
        "cents": [f"{i / 100:.2f}" for i in n],  # 0.10 would come back as 0.1
        "word": ["nan", "NA", "inf", "1"] * 15,
        "long": [str(10**18 + i) for i in n],
        "longer": [str(10**20 + i) for i in n],
        "none": [""] * 60,
    }
    lines = [["id", *columns], *([c, *(column[i] for column in columns.values())] for i, c in enumerate(adata.obs_names) if i != 59)]
    (tmp_path / "bundle" / "E-TEST-1.cell_metadata.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    obs = db.ingest(tmp_path / "bundle", "t/x").to_anndata().obs
    kinds = {c: str(obs[c].dtype) for c in columns}
    assert kinds == {
        "plate": "category", "whole": "Int64", "gaps": "Int64", "share": "float64", "mixed": "float64", "holes": "float64",
        "cents": "category", "word": "category", "long": "Int64", "longer": "category", "none": "category",
    }  # fmt: skip
    for label, column in columns.items():
        found = obs[label][:59]
        missing = [v == "" for v in column[:59]]
        assert found.isna().tolist() == missing and pd.isna(obs[label].iloc[59]), label
        there = [v for v in column[:59] if v != ""]
        number = {"Int64": int, "float64": float}.get(kinds[label], str)
        assert found.dropna().tolist() == [number(v) for v in there], label
        if label != "mixed":
            assert [str(v) for v in found.dropna()] == there


def test_pbmc3k_comes_back_whole(pbmc3k_fleet):
    import msgexpress

    with msgexpress.open(pbmc3k_fleet) as db:
        assert list(db) == ["blood/pbmc3k"] and "blood/pbmc3k" in db and "blood.pbmc3k" in db
        assert_same(db["blood.pbmc3k"].to_anndata(), ad.read_h5ad(PBMC3K))


def test_texts_and_booleans_may_be_missing(db):
    obs = pd.DataFrame({"type": ["B", None, np.nan, "T"], "seen": [True, None, False, True], "note": pd.array(["x", pd.NA, "y", "x"], "string")}, index=list("abcd"))
    before = obs.copy()
    adata = ad.AnnData(np.arange(8, dtype=np.float32).reshape(4, 2), obs=obs)
    ds = db.ingest(adata, "t/missing")
    back = ds.to_anndata().obs
    assert [None if pd.isna(v) else v for v in back["type"]] == ["B", None, None, "T"]
    assert [None if pd.isna(v) else bool(v) for v in back["seen"]] == [True, None, False, True]
    assert [None if pd.isna(v) else v for v in back["note"]] == ["x", None, "y", "x"]
    pd.testing.assert_frame_equal(adata.obs, before)
    assert db.fleet.sql("SELECT count(type) AS n FROM t.missing.obs").to_arrow().to_pylist() == [{"n": 2}]
