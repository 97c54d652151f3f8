"""What users of scanpy, pandas and AnnData write out of habit: it does what they expect, or the error says what to
write instead."""

from __future__ import annotations

import io
import json

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import assert_same, command, rich

import msgexpress
import skytether
from msgexpress import _hints

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    adata = rich()
    adata.raw = adata
    adata.layers["twice"] = adata.X * 2
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=3) as db:
        yield db.ingest(adata, "t/x")


@pytest.fixture(scope="module")
def res(ds):
    return ds.rank_genes_groups("type", transform="log1p_cp10k")


def normalised(adata):
    adata = adata.copy()
    # scanpy's test fails where a category has no cells.
    adata.obs["type"] = adata.obs["type"].cat.remove_unused_categories()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


# ---- results


def test_results_are_read_by_group(res):
    pd.testing.assert_frame_equal(res["B"], res.to_df("B"))
    assert "B" in res and "b" not in res and list(res) == res.groups and len(res) == 3
    with pytest.raises(skytether.NotFoundError, match="no group 'b' .*did you mean 'B'"):
        res["b"]
    with pytest.raises(KeyError, match="no group 'scores'"):
        res["scores"]


def test_a_result_of_one_group_is_read_by_column(ds):
    one = ds.rank_genes_groups("type", groups=["B"], transform="log1p_cp10k")
    pd.testing.assert_series_equal(one["scores"], one.to_df()["scores"])


def test_results_are_written_as_csv(ds, res, tmp_path):
    assert res.to_csv(tmp_path / "all.csv") is None
    back = pd.read_csv(tmp_path / "all.csv")
    assert list(back.columns) == list(res.to_df().columns) and len(back) == 120
    np.testing.assert_allclose(back["scores"], res.to_df()["scores"], rtol=1e-6)
    one = ds.rank_genes_groups("type", groups=["B"], transform="log1p_cp10k")
    text = one.to_csv(sep="\t")
    assert pd.read_csv(io.StringIO(text), sep="\t")["group"].unique().tolist() == ["B"]
    with pytest.raises(skytether.InvalidError, match="cannot write .*no/such.csv: Cannot save file into a non-existent directory"):
        res.to_csv(tmp_path / "no" / "such.csv")


def test_pts_are_left_out_on_request(ds):
    with_pts = ds.rank_genes_groups("type", transform="log1p_cp10k").to_uns()
    without = ds.rank_genes_groups("type", transform="log1p_cp10k", pts=False).to_uns()
    assert set(with_pts) - set(without) == {"pts", "pts_rest"}
    adata = normalised(rich())
    sc.tl.rank_genes_groups(adata, "type")
    assert set(without) == set(adata.uns["rank_genes_groups"])


# ---- data sets


@pytest.mark.parametrize(
    ("chosen", "cells", "genes"),
    [
        ((slice(None), "g3"), slice(None), [3]),
        ((slice(None), ["g7", "g2"]), slice(None), [7, 2]),
        ((slice(2, 9), slice(None)), slice(2, 9), slice(None)),
        ("cell-4", [4], slice(None)),
        ((["cell-4", "cell-1"], 5), [4, 1], [5]),
        (np.arange(60) % 2 == 0, np.arange(60) % 2 == 0, slice(None)),
    ],
    ids=str,
)
def test_a_data_set_is_indexed_as_an_anndata(ds, chosen, cells, genes):
    whole = ds.to_anndata()
    assert_same(ds[chosen], whole[cells, genes].copy())


def test_a_third_index_is_refused(ds):
    with pytest.raises(skytether.InvalidError, match="not with 3 indices"):
        ds[:, :, :]


def test_use_raw_means_what_it_means_in_scanpy(ds):
    frame = lambda **o: ds.rank_genes_groups("type", transform="log1p_cp10k", **o)
    assert frame(use_raw=True).params["use_raw"] is True and frame(use_raw=False).params["use_raw"] is False
    assert frame(use_raw=True, layer="raw").params["use_raw"] is True
    assert frame(layer="twice", use_raw=False).params["layer"] == "twice"
    with pytest.raises(skytether.InvalidError, match="use_raw=True and layer='twice' are different"):
        frame(use_raw=True, layer="twice")
    assert ds.ttest({"type": "T"}, {"type": "B"}, transform="log1p_cp10k", use_raw=True).params["use_raw"] is True


def test_use_raw_without_raw_says_so(db):
    with pytest.raises(skytether.InvalidError, match="t/y has no raw: leave use_raw= out"):
        db.ingest(rich(), "t/y").rank_genes_groups("type", transform="log1p_cp10k", use_raw=True)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"key_added": "mine"}, r"adata.uns\['mine'\] = res.to_uns\(\)"),
        ({"copy": True}, "the result is what the call returns"),
        ({"mask_var": "high"}, "genes= chooses"),
        ({"rankby_abs": True}, "sort_values"),
        ({"tie_correct": True}, "Wilcoxon"),
    ],
    ids=lambda a: next(iter(a)) if isinstance(a, dict) else "",
)
def test_arguments_of_scanpy_get_a_hint(ds, argument, says):
    for call in (lambda: ds.rank_genes_groups("type", transform=None, **argument), lambda: ds.ttest([0, 1], [2, 3], transform=None, **argument)):
        with pytest.raises(skytether.InvalidError, match=says):
            call()


def test_unknown_arguments_are_type_errors(ds):
    with pytest.raises(TypeError, match="unexpected keyword argument 'grupby'; did you mean 'groupby'"):
        ds.rank_genes_groups("type", grupby="type", transform=None)


def test_methods_that_are_not_offered_are_named(ds):
    with pytest.raises(skytether.UnsupportedError, match="'logreg' is not offered: use one of 't-test'"):
        ds.ttest({"type": "B"}, {"type": "T"}, method="logreg", transform=None)
    with pytest.raises(skytether.InvalidError, match="'wilcoxon' is no t-test: ds.wilcoxon"):
        ds.ttest({"type": "B"}, {"type": "T"}, method="wilcoxon", transform=None)
    with pytest.raises(skytether.InvalidError, match="'deseq2' does not exist: use one of 't-test'"):
        ds.rank_genes_groups("type", method="deseq2", transform=None)


# ---- parts of the cells and genes


@pytest.mark.parametrize("reference", ["rest", "B"])
def test_cells_restrict_groups_and_rest_as_a_subset_does(ds, reference):
    adata = rich()
    part = (np.arange(60) % 5 != 1) & (adata.obs["batch"] == "eins").to_numpy()
    res = ds.rank_genes_groups("type", transform="log1p_cp10k", cells=part, reference=reference)
    some = normalised(adata)[part].copy()
    sc.tl.rank_genes_groups(some, "type", reference=reference, pts=True)
    assert res.groups == list(some.uns["rank_genes_groups"]["names"].dtype.names)
    for group in res.groups:
        theirs = sc.get.rank_genes_groups_df(some, group).set_index("names")
        ours = res.to_df(group).set_index("names").loc[theirs.index]
        for column in ("scores", "logfoldchanges", "pvals_adj", "pct_nz_group"):
            np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4, atol=1e-5)
    by_dict = ds.rank_genes_groups("type", transform="log1p_cp10k", cells={"batch": "eins"})
    by_mask = ds.rank_genes_groups("type", transform="log1p_cp10k", cells=adata.obs["batch"] == "eins")
    pd.testing.assert_frame_equal(by_dict.to_df(), by_mask.to_df())
    with pytest.raises(skytether.InvalidError, match="no cells to test"):
        ds.rank_genes_groups("type", transform=None, cells=np.zeros(60, bool))


def test_all_cells_given_are_as_none_given(ds, res):
    pd.testing.assert_frame_equal(ds.rank_genes_groups("type", transform="log1p_cp10k", cells=np.ones(60, bool)).to_df(), res.to_df())


@pytest.mark.parametrize("genes", ["mask", "names", "numbers"])
def test_genes_restrict_what_is_tested_as_mask_var_does(ds, genes):
    adata = normalised(rich())
    mask = np.arange(40) % 3 == 1
    sc.tl.rank_genes_groups(adata, "type", mask_var=mask, pts=True)
    given = {"mask": mask, "names": list(adata.var_names[mask])[::-1], "numbers": np.flatnonzero(mask)}[genes]
    res = ds.rank_genes_groups("type", transform="log1p_cp10k", genes=given)
    for group in res.groups:
        theirs = sc.get.rank_genes_groups_df(adata, group).set_index("names")
        assert len(res.to_df(group)) == len(theirs) == 13
        ours = res.to_df(group).set_index("names").loc[theirs.index]
        for column in ("scores", "logfoldchanges", "pvals", "pvals_adj"):
            np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4, atol=1e-5)
    assert list(res.to_uns()["pts"].index) == list(adata.var_names[mask]) and "13 genes" in repr(res)
    two = ds.ttest({"type": "T"}, {"type": "B"}, transform="log1p_cp10k", genes=given)
    assert sorted(two.to_df()["names"]) == sorted(adata.var_names[mask])


def test_genes_of_raw_and_of_a_layer_are_chosen(ds):
    for layer in ("raw", "twice"):
        res = ds.rank_genes_groups("type", transform="log1p_cp10k", layer=layer, genes=["g5", "g9"])
        assert sorted(res.to_df("B")["names"]) == ["g5", "g9"]
    with pytest.raises(skytether.InvalidError, match="genes= chooses none"):
        ds.rank_genes_groups("type", transform=None, genes=[])


# ---- which test it was


def test_ttest_has_the_defaults_of_its_neighbour(ds):
    one = ds.rank_genes_groups("type", groups=["T"], reference="B", transform="log1p_cp10k")
    two = ds.ttest({"type": "T"}, {"type": "B"}, transform="log1p_cp10k")
    assert one.test == two.test == "Welch's t-test" and "Welch's t-test" in repr(two) and two.params["method"] == one.params["method"]
    np.testing.assert_allclose(one["T"].set_index("names")["scores"], two.to_df().set_index("names").loc[one["T"]["names"], "scores"], rtol=1e-5, atol=1e-6)
    student = ds.ttest({"type": "T"}, {"type": "B"}, equal_var=True, transform="log1p_cp10k")
    assert student.test == "Student's t-test" and "Student's t-test" in repr(student)
    pd.testing.assert_frame_equal(student.to_df(), ds.ttest({"type": "T"}, {"type": "B"}, method="student", transform="log1p_cp10k").to_df())
    with pytest.raises(skytether.InvalidError, match="different tests"):
        ds.ttest({"type": "T"}, {"type": "B"}, equal_var=False, method="student", transform=None)


# ---- names that are not there


def test_misspelt_names_get_suggestions(ds):
    for call, says in (
        (lambda: ds.to_anndata(genes=["G7"]), "no gene 'G7'; did you mean 'g7'"),
        (lambda: ds[:, "g-17"], "did you mean 'g17'"),
        (lambda: ds.rank_genes_groups("typ", transform=None), "no column 'typ'.*did you mean 'type'"),
        (lambda: ds.ttest({"tpye": "T"}, {"type": "B"}, transform="log1p_cp10k"), "no column 'tpye'.*did you mean 'type'"),
        (lambda: ds.ttest({"type": "nk"}, {"type": "B"}, transform="log1p_cp10k"), "has 'nk'.*did you mean 'NK'"),
        (lambda: ds.rank_genes_groups("type", reference="nk", transform="log1p_cp10k"), "no group \"nk\".*did you mean \"NK\""),
        (lambda: ds.rank_genes_groups("type", transform=None, layer="twicee"), "did you mean 'twice'"),
    ):
        with pytest.raises(skytether.NotFoundError, match=says):
            call()


def test_names_of_another_column_of_var_are_told(db):
    adata = rich()
    adata.var["symbol"] = [f"SYM{n // 2}" for n in range(adata.n_vars)]
    ds = db.ingest(adata, "t/symbols")
    for call in (lambda: ds[:, "SYM1"], lambda: ds.rank_genes_groups("type", transform="log1p_cp10k", genes=["SYM1"])):
        with pytest.raises(skytether.NotFoundError, match=r"no gene 'SYM1'; it is in var\['symbol'\], of the gene 'g2', 'g3'"):
            call()


def test_suggestions_are_names_that_look_alike():
    assert _hints.near("cd3e", ["CD3E", "CD3D", "MS4A1"])[0] == "CD3E"
    assert _hints.near("CD3E", ["GRCh38_CD3E", "X"]) == ["GRCh38_CD3E"]
    assert _hints.near("ENSG01", ["ENSG01.5", "Y"]) == ["ENSG01.5"]
    assert _hints.near("zzz", ["CD3E"]) == [] and _hints.instead("zzz", ["CD3E"]) == ""


def test_a_group_of_one_cell_says_how_to_go_on(db):
    adata = rich()
    adata.obs["g"] = pd.Categorical(["one"] + ["a", "b"] * 29 + ["a"])
    ds = db.ingest(adata, "t/one")
    with pytest.raises(skytether.InvalidError, match='group "one" has 1 cell: .*groups='):
        ds.rank_genes_groups("g", transform="log1p_cp10k")
    assert ds.rank_genes_groups("g", groups=["a", "b"], transform="log1p_cp10k").groups == ["a", "b"]


# ---- the shell


def test_info_shows_groups_genes_and_embeddings(tmp_path):
    rich().write_h5ad(tmp_path / "rich.h5ad")
    fleet = tmp_path / "fleet"
    assert command("ingest", tmp_path / "rich.h5ad", "--to", "t/x", "--fleet", fleet).returncode == 0
    shown = command("info", "t/x", "--fleet", fleet).stdout
    assert "T 20, B 20, NK 20, unused 0" in shown and "zwei 30, eins 30" in shown
    assert "var column" in shown and "symbol" in shown and "high" in shown
    for words in (["obsm", "X_pca", "60", "x", "3"], ["varm", "loadings"], ["obsp", "distances"], ["varp", "links"], ["uns", "title"]):
        assert any(line.split()[: len(words)] == words for line in shown.splitlines()), shown
    about = json.loads(command("info", "t/x", "--format", "json", "--fleet", fleet).stdout)
    types = next(c for c in about["obs"] if c["column"] == "type")
    assert types["groups"] == {"T": 20, "B": 20, "NK": 20, "unused": 0}
    assert [c["column"] for c in about["var"]] == ["symbol", "high"]
    assert {"in": "obsm", "name": "X_pca", "shape": [60, 3], "type": "float64"} in about["others"]


def test_groups_that_differ_in_signs_have_a_plot_each(tmp_path):
    names = ["T/NK", "T NK", "T-NK", "t-nk", "T-NK-2", "x" * 90 + "1", "x" * 90 + "2"]
    adata = rich(cells=70)
    adata.obs["g"] = pd.Categorical([names[i % 7] for i in range(70)])
    adata.write_h5ad(tmp_path / "odd.h5ad")
    fleet = tmp_path / "fleet"
    assert command("ingest", tmp_path / "odd.h5ad", "--to", "t/x", "--fleet", fleet).returncode == 0
    done = command("de", "t/x", "--groupby", "g", "--transform", "log1p_cp10k", "--top", 1, "--volcano", f"{tmp_path / 'plots'}/", "--fleet", fleet)
    assert done.returncode == 0, done.stderr
    files = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert len(files) == len({f.lower() for f in files}) == 7
    # Each line says whose plot it is, and a name that needs no change is kept.
    assert "volcano-T-NK.png\n" in done.stderr and "(T/NK)" in done.stderr and "(T NK)" in done.stderr
