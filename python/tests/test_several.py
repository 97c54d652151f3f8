"""Several sources as one data set: what anndata.concat makes of them, and questions where it would guess."""

from __future__ import annotations

import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import assert_same, command, counts, rich
from test_gene_files import IDS, directory, plain

import skytether

pytestmark = pytest.mark.filterwarnings("ignore:obsp is of one source's cells", "ignore:of .* genes", "ignore:.*leaves out")


def parts(form: object = sp.csr_matrix) -> list[ad.AnnData]:
    """Three AnnData of the same genes in other orders, whose cells' names clash."""
    made = []
    for seed, cells, order in ((1, 20, slice(None)), (2, 7, slice(None, None, -1)), (3, 12, np.random.default_rng(3).permutation(40))):
        one = rich(np.asarray(counts(cells, 40, seed)), cells)[:, order].copy()
        one.layers["more"] = sp.csc_matrix(one.X * 2)
        one.X = form(one.X)
        del one.obsp, one.obsm["frame"]
        made.append(one)
    return made


def joined(adatas: list[ad.AnnData], **options: object) -> ad.AnnData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ad.concat(adatas, **{"label": "s", "keys": ["0", "1", "2"][: len(adatas)], "index_unique": "-", "merge": "same", "uns_merge": "same", **options})


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray])
def test_same_genes_in_any_order_join_as_in_anndata(db, form):
    adatas = parts(form)
    for one in adatas:
        one.raw = one[:, ::-1].copy()
    back = db.ingest(adatas, "t/x", batch="s").to_anndata()
    wanted = joined(adatas, join="inner")
    assert list(wanted.var_names) == list(adatas[0].var_names)
    # anndata drops what is known of raw's genes; what all sources say alike is kept here.
    wanted.raw = joined([one.raw.to_adata() for one in adatas], join="inner")
    assert_same(wanted, back)


@pytest.mark.parametrize("form", [sp.csr_matrix, np.asarray])
@pytest.mark.parametrize(("join", "fill"), [("inner", None), ("outer", 0), ("outer", float("nan"))])
def test_other_genes_join_as_in_anndata(db, form, join, fill):
    adatas = [one[:, some].copy() for one, some in zip(parts(form), (slice(0, 30), slice(5, None), slice(None)))]
    wanted = joined(adatas, join=join, **({} if fill is None else {"fill_value": fill}))
    back = db.ingest(adatas, "t/x", batch="s", join=join, fill_value=fill).to_anndata()
    assert list(back.var_names) == list(wanted.var_names) and list(back.obs_names) == list(wanted.obs_names)
    assert back.shape[1] == (len(set.intersection(*(set(one.var_names) for one in adatas))) if join == "inner" else 40)
    for a, b in ((wanted.X, back.X), (wanted.layers["more"], back.layers["more"])):
        a, b = (m.toarray() if sp.issparse(m) else m for m in (a, b))
        np.testing.assert_array_equal(a, b)
        assert (np.isnan(b).sum() > 0) == (fill is not None and fill != 0)
    pd.testing.assert_frame_equal(wanted.obs, back.obs)
    pd.testing.assert_frame_equal(wanted.var.astype(object), back.var.astype(object))


def test_other_genes_are_asked_about_with_their_counts(db):
    a, b, _ = parts()
    with pytest.raises(skytether.InvalidError, match=r"different genes: AnnData number 1 has 40 \(10 of them not in all\), AnnData number 2 has 30 \(0 .*; 30 are in all, 40 in any: say join=\"inner\" .* or join=\"outer\""):
        db.ingest([a, b[:, :30].copy()], "t/x", batch="s")
    with pytest.raises(skytether.InvalidError, match=r"with join=\"outer\", say what a source has for those that it lacks: fill_value=0"):
        db.ingest([a, b[:, :30].copy()], "t/x", batch="s", join="outer")
    with pytest.raises(skytether.InvalidError, match="0 are in all, 40 in any: join by another column with on="):
        db.ingest([a[:, :10].copy(), a[:, 10:].copy()], "t/x", batch="s", join="inner")
    with pytest.warns(UserWarning, match=r"of 40 genes, AnnData number 2 lacks 10: their values there are zero"):
        db.ingest([a, b[:, :30].copy()], "t/x", batch="s", join="outer", fill_value=0)
    assert list(db) == ["t/x"]


def test_files_of_all_kinds_join_with_their_names_as_labels(db, tmp_path):
    x = counts(12, 6)
    a = ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame(index=[f"AAAC{i}-1" for i in range(12)]), var=pd.DataFrame(index=[f"sym{i}" for i in range(6)]))
    a.write_h5ad(tmp_path / "first.h5ad")
    pd.DataFrame(x.T[::-1], list(a.var_names)[::-1], [f"AAACCCGGG{i}" for i in range(12)]).to_csv(tmp_path / "second.csv.gz")
    mtx = directory(tmp_path / "third", plain())
    ds = db.ingest([tmp_path / "first.h5ad", tmp_path / "second.csv.gz", mtx, a], "t/x", batch={"lane": ["p", "q", "r", "q"], "old": [True, False, True, True]})
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), np.vstack([x, x, x, x]))
    assert list(ds.obs["lane"].cat.categories) == ["p", "q", "r"] and list(ds.obs["old"])[::12] == [True, False, True, True]
    # The first column's labels repeat, so that numbers tell the cells apart.
    assert list(ds.obs_names)[::12] == ["AAAC0-1-0", "AAACCCGGG0-1", "AAAC0-1-2", "AAAC0-1-3"]
    assert list(db.ingest([tmp_path / "first.h5ad", tmp_path / "second.csv.gz"], "t/y").obs["batch"].cat.categories) == ["first", "second"]
    # Names that are different stay as they are.
    assert list(db["t/y"].obs_names)[::12] == ["AAAC0-1", "AAACCCGGG0"]
    assert list(db.ingest({"u": mtx, "v": a}, "t/z").obs["batch"])[::12] == ["u", "v"]


def test_genes_join_by_their_ids(db, tmp_path):
    x = counts(12, 6)
    mtx = directory(tmp_path / "m", plain())
    other = directory(tmp_path / "n", [f"{i}\tnew{n}\tGene Expression" for n, i in reversed(list(enumerate(IDS)))], x=x[:, ::-1])
    with pytest.raises(skytether.InvalidError, match="0 are in all, 12 in any"):
        db.ingest([mtx, other], "t/x")
    ds = db.ingest([mtx, other], "t/x", on="gene_ids")
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), np.vstack([x, x]))
    assert list(ds.var_names) == [f"sym{i}" for i in range(6)] and list(ds.var["gene_ids"]) == IDS
    with pytest.raises(skytether.InvalidError, match="has no var column 'gene_id' to join by: it has 'gene_ids', 'feature_types'; did you mean 'gene_ids'"):
        db.ingest([mtx, other], "t/x", on="gene_id", replace=True)
    twice = ad.AnnData(sp.csr_matrix(x), var=pd.DataFrame({"gene_ids": IDS}, index=["A", "A", "B", "C", "D", "E"]))
    with pytest.raises(skytether.InvalidError, match="1 of the genes repeat \\('A'\\), so they can't be joined: join by their ids with on='gene_ids'"):
        db.ingest([twice, twice], "t/x", replace=True)
    with pytest.warns(UserWarning, match="gene names repeat"):
        assert db.ingest([twice, twice], "t/y", on="gene_ids").shape == (24, 6)


def test_antibodies_join_apart_from_genes(db, tmp_path):
    x = counts(12, 6)
    lists = [[f"{i}\tsym{n}\t{'Gene Expression' if n < 4 else 'Antibody Capture'}" for n, i in enumerate(IDS)] for _ in range(2)]
    sources = [directory(tmp_path / name, lines if name == "a" else lines[::-1], x=x if name == "a" else x[:, ::-1]) for name, lines in zip("ab", lists)]
    with pytest.warns(UserWarning, match="kept apart"):
        ds = db.ingest(sources, "t/x")
    assert ds.shape == (24, 4) and ds.other_features == ["Antibody Capture"]
    back = ds.to_anndata(features="Antibody Capture")
    assert list(back.var_names) == ["sym4", "sym5"]
    np.testing.assert_array_equal(back.X.toarray(), np.vstack([x, x])[:, 4:])


def test_obs_columns_of_other_types_are_asked_about(db):
    a, b, _ = parts()
    b.obs["n"] = pd.Categorical([f"n{i}" for i in b.obs["n"]])
    with pytest.raises(skytether.InvalidError, match=r"obs column 'n' clashes: it is numbers in AnnData number 1, texts in AnnData number 2; say what it becomes with clash=\{'n': \"text\"\}"):
        db.ingest([a, b], "t/x", batch="s")
    ds = db.ingest([a, b], "t/x", batch="s", clash={"n": "text"})
    assert list(ds.obs["n"])[19:21] == ["19", "n0"]
    assert "n" not in db.ingest([a, b], "t/y", batch="s", clash={"n": "drop"}).obs
    with pytest.raises(skytether.InvalidError, match="obs column 'n' can't become numbers"):
        db.ingest([a, b], "t/z", batch="s", clash={"n": "number"})
    b.obs["n"] = [str(i) for i in range(7)]
    assert list(db.ingest([a, b], "t/z", batch="s", clash={"n": "number"}).obs["n"])[19:21] == [19.0, 0.0]
    with pytest.raises(skytether.InvalidError, match="clash names the obs column 'N', which no source has; did you mean 'n'"):
        db.ingest([a, b], "t/u", batch="s", clash={"N": "text"})
    b.obs["n"] = range(7)
    b.obs["batch"] = pd.Categorical(b.obs["batch"], ["eins", "zwei"], ordered=True)
    with pytest.raises(skytether.InvalidError, match="obs column 'batch' clashes: it is texts in the order zwei, eins in .*, texts in the order eins, zwei"):
        db.ingest([a, b], "t/u", batch="s")
    assert sorted(db) == ["t/x", "t/y", "t/z"]


def test_missing_obs_columns_stay_missing(db):
    a, b, _ = parts()
    del b.obs["ok"], b.obs["note"]
    ds = db.ingest([a, b], "t/x", batch="s")
    assert ds.obs["ok"].isna().sum() == 7 and ds.obs["note"].isna().sum() == 7
    with pytest.warns(UserWarning, match=r"join=\"inner\" leaves out obs columns that not all sources have \(note, ok\)"):
        assert "ok" not in db.ingest([a, b], "t/y", batch="s", join="inner").obs


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": "type"}, "obs of AnnData number 1 has a column 'type' already: name another one with batch="),
        ({"batch": ["a"]}, "batch has 1 label for 'batch', but there are 2 sources"),
        ({"batch": {}}, "batch names no obs column"),
        ({"batch": "s", "join": "left"}, "join is 'left': say"),
        ({"batch": "s", "fill_value": 3}, "fill_value is 3: genes that a source lacks are 0 or NaN there"),
        ({"batch": "s", "prefix": "a"}, "prefix= chooses in one directory"),
        ({"batch": "s", "clash": {"n": "int"}}, "clash says 'int' for obs column 'n'"),
    ],
)
def test_wrong_ways_to_join_are_refused(db, options, says):
    with pytest.raises(skytether.InvalidError, match=says):
        db.ingest(parts()[:2], "t/x", **options)
    assert list(db) == []


def test_join_of_one_source_or_none_is_refused(db):
    with pytest.raises(skytether.InvalidError, match="join= is for several sources"):
        db.ingest(rich(), "t/x", join="inner")
    with pytest.raises(skytether.InvalidError, match="the list is empty"):
        db.ingest([], "t/x")
    a, b, _ = parts()
    a.uns["log1p"], b.uns["log1p"] = {"base": 2}, {"base": None}
    with pytest.raises(skytether.InvalidError, match="logarithms of different bases"):
        db.ingest([a, b], "t/x", batch="s")
    del b.X
    a.uns["log1p"] = {"base": None}
    with pytest.raises(skytether.InvalidError, match="AnnData number 2 has no matrix X, which other sources have"):
        db.ingest([a, b], "t/x", batch="s")


# ---- directories of GEO


def geo(place: Path) -> Path:
    for number, before in enumerate(("GSM1_a_", "GSM2_b_", "GSM2_c_")):
        directory(place, plain(), [f"AAAC{number}{i}-1" for i in range(12)], before, x=counts(12, 6, number + 1))
    return place


def test_prefixes_choose_among_matrices_of_a_directory(db, tmp_path):
    place = geo(tmp_path / "geo")
    for prefix in ("GSM1", "GSM1_a", "GSM1_a_"):
        np.testing.assert_array_equal(db.ingest(place, "t/x", prefix=prefix, replace=True).to_anndata().X.toarray(), counts(12, 6, 1))
    ds = db.ingest(place, "t/y", prefix=["GSM2_c", "GSM1_a"])
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), np.vstack([counts(12, 6, 3), counts(12, 6, 1)]))
    assert list(ds.obs["batch"])[::12] == ["GSM2_c", "GSM1_a"]
    ds = db.ingest(place, "t/z", batch="sample")
    assert ds.shape == (36, 6) and list(ds.obs["sample"])[::12] == ["GSM1_a", "GSM2_b", "GSM2_c"]
    with pytest.raises(skytether.InvalidError, match=r"several matrices: give the path of one of them \(GSM2_b_matrix.mtx.gz, GSM2_c_matrix.mtx.gz\), or say which with prefix="):
        db.ingest(place, "t/u", prefix="GSM2")
    with pytest.raises(skytether.InvalidError, match="no matrix of prefix 'GSM3': it has 'GSM1_a', 'GSM2_b', 'GSM2_c'"):
        db.ingest(place, "t/u", prefix="GSM3")
    rich().write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(skytether.InvalidError, match="has no prefixes to choose from: leave prefix= out"):
        db.ingest(tmp_path / "a.h5ad", "t/u", prefix="GSM3")


def test_damaged_mtx_of_several_is_reported(db, tmp_path):
    place = directory(tmp_path / "a", plain(), packed=False)
    other = directory(tmp_path / "b", plain())
    text = (place / "matrix.mtx").read_text()
    for wrong, says in ((text[: len(text) // 2].rpartition("\n")[0] + "\n", "entries instead of the"), (text.rstrip("\n").rpartition("\n")[0] + "\n7 1 1\n", r"entry \d+ \(7 1 1\) is none of a matrix of 6 x 12"), (text.rstrip() + "x\n", "is no entry: 3 numbers are")):
        (place / "matrix.mtx").write_text(wrong)
        with pytest.raises(skytether.CorruptError, match=f"matrix.mtx: .*{says}"):
            db.ingest([other, place], "t/x")
    assert list(db) == []


def test_several_files_go_in_from_the_shell(tmp_path):
    geo(tmp_path / "geo")
    a, b = (tmp_path / f"{name}.h5ad" for name in "ab")
    rich(counts(20, 40), 20).write_h5ad(a)
    rich(counts(20, 40), 20)[:, :30].copy().write_h5ad(b)
    done = command("ingest", a, b, "--to", "t/x", "--batch", "s", "--fleet", tmp_path / "f")
    assert done.returncode == 1 and "say --join inner for those in all, or --join outer" in done.stderr, done.stderr
    done = command("ingest", a, b, "--to", "t/x", "--batch", "s", "--label", "A", "--label", "B", "--join", "outer", "--fill-value", "0", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "40 cells x 40 genes" in done.stderr, done.stderr
    done = command("ingest", tmp_path / "geo", "--prefix", "GSM1_a", "--prefix", "GSM2_b", "--to", "t/y", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "24 cells x 6 genes" in done.stderr, done.stderr
    done = command("ingest", tmp_path / "geo", "--prefix", "GSM1_a", "--to", "t/z", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "12 cells x 6 genes" in done.stderr, done.stderr
    import msgexpress

    with msgexpress.open(tmp_path / "f") as db:
        assert list(db["t/x"].obs["s"].cat.categories) == ["A", "B"] and list(db["t/y"].obs["batch"])[::12] == ["GSM1_a", "GSM2_b"]
