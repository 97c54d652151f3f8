"""What users of AnnData type at a data set: it answers, or an error says what to write instead."""

from __future__ import annotations

import copy
import pickle

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import rich

import msgexpress
from msgexpress import _habits
from skytether import InvalidError, NotFoundError


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    adata = rich()
    adata.layers["counts"] = adata.X * 2
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=2) as db:
        yield db.ingest(adata, "lab/a")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("X", r"ds\[cells, genes\].X reads those that are chosen, ds.to_anndata\(\).X all"),
        ("raw", 'layer="raw" or use_raw=True'),
        ("obsm", r"ds.to_anndata\(lazy=True\).obsm has it.*ds.set_obsm"),
        ("uns", r"ds.to_anndata\(lazy=True\).uns has it.*ds.set_uns"),
        ("obsp", r"ds.to_anndata\(lazy=True\).obsp has it"),
        ("write", r'ds.export\("x.h5ad"\)'),
        ("write_h5ad", r'ds.export\("x.h5ad"\)'),
        ("copy", r"ds.history.*ds.to_anndata\(\) is a copy in memory"),
        ("T", "cells are rows here"),
        ("obs_vector", r'ds\[:, "CD3D"\].X'),
        ("obs_keys", "ds.obs.columns"),
        ("concatenate", "db.ingest.*ds.append"),
        ("normalize_total", r'ds.normalize\("median"\)'),
        ("louvain", "ds.leiden"),
        ("rank_gene_groups", "did you mean 'rank_genes_groups'"),
        ("nobs", "did you mean 'n_obs'"),
        ("frobnicate", "a data set has no attribute 'frobnicate'$"),
    ],
)
def test_attributes_of_anndata_get_a_hint(ds, name, says) -> None:
    assert not hasattr(ds, name)
    with pytest.raises(AttributeError, match=says):
        getattr(ds, name)


@pytest.mark.parametrize("name", sorted({name for name in _habits._INSTEAD if hasattr(ad.AnnData, name)}))
def test_what_hints_name_is_there(ds, name) -> None:
    # Each hint is of something that AnnData has and a data set has not, and names calls that exist.
    text = _habits._INSTEAD[name]
    for call in pd.Series([text]).str.findall(r"\bds\.(\w+)").explode().dropna():
        assert hasattr(ds, call), (name, call)
    for call in pd.Series([text]).str.findall(r"\bto_anndata\((?:lazy=True)?\)\.(\w+)").explode().dropna():
        assert hasattr(ad.AnnData, call), (name, call)


@pytest.mark.parametrize(
    ("name", "says"),
    [("obs", r"ds.set_obs\(frame\)"), ("var", r"ds.set_var\(frame\)"), ("X", "ds.set_layer"), ("layers", "ds.set_layer"), ("obsm", "ds.set_obsm"), ("uns", "ds.set_uns")],
)
def test_assigned_parts_are_refused(ds, name, says) -> None:
    with pytest.raises(AttributeError, match=f"{name} of a data set can't be assigned: {says}"):
        setattr(ds, name, None)


def test_data_set_has_the_length_of_an_anndata(ds) -> None:
    assert len(ds) == ds.n_obs == 60 and bool(ds) and ds.shape == (60, 40)
    with pytest.raises(TypeError, match="not iterable"):
        iter(ds)


def test_scanpy_is_told_that_this_is_no_anndata(ds) -> None:
    with pytest.raises(AttributeError, match="a data set has no "):
        sc.tl.rank_genes_groups(ds, "type")
    with pytest.raises(AttributeError, match="scanpy's functions do not take it: its own methods do their work"):
        sc.pp.normalize_total(ds)


def test_layers_by_name_say_where_values_are(ds) -> None:
    assert ds.layers == ["counts"] and ds.layers[0] == "counts" and "counts" in ds.layers and list(ds.layers) == ["counts"]
    with pytest.raises(InvalidError, match=r"layer='counts' of a test chooses that matrix, and ds.to_anndata\(\).layers\['counts'\]"):
        ds.layers["counts"]
    with pytest.raises(InvalidError, match=r"ds.set_layer\('mine', matrix\) keeps a matrix"):
        ds.layers["mine"] = np.zeros((60, 40))


# ---- copies of obs and var


def test_columns_that_would_be_lost_are_refused(ds) -> None:
    view = ds.filter_cells(mask=np.arange(60) < 30)
    with pytest.raises(InvalidError, match=r"\.obs is a copy, in which 'new' would be lost: ds.set_obs\(values, name='new'\) keeps it in lab/a"):
        ds.obs["new"] = 1
    with pytest.raises(InvalidError, match=r"'type' would be lost: ds.set_obs"):
        ds.obs.type = "T"
    with pytest.raises(InvalidError, match=r"\.var is a copy, in which 'new' would be lost: ds.set_var"):
        ds.var["new"] = 1
    with pytest.raises(InvalidError, match=r"'new' would be lost: view.dataset.set_obs"):
        view.obs["new"] = 1
    assert "new" not in ds.obs and "new" not in ds.var


def test_copies_that_a_variable_has_can_be_changed(ds) -> None:
    frame = ds.obs
    frame["new"] = range(60)
    frame.depth = 0.0
    frame.loc["cell-1", "n"] = 7
    assert list(frame["new"]) == list(range(60)) and (frame["depth"] == 0).all() and frame["n"].iloc[1] == 7
    held = {"obs": ds.obs}
    held["obs"]["new"] = 1

    def changed(given: pd.DataFrame) -> pd.DataFrame:
        given["new"] = 2
        return given

    assert set(changed(ds.obs)["new"]) == {2} and set(held["obs"]["new"]) == {1}
    assert "new" not in ds.obs


def test_copies_are_plain_frames_for_others(ds, tmp_path) -> None:
    plain = pd.DataFrame(ds.obs)
    for made in (ds.obs.copy(), ds.obs[["n"]], ds.obs.head(), ds.obs[ds.obs["n"] > 3], copy.deepcopy(ds.obs), pickle.loads(pickle.dumps(ds.obs)), pd.concat([ds.obs])):
        assert type(made) is pd.DataFrame
    pd.testing.assert_frame_equal(ds.obs, plain)
    pd.testing.assert_frame_equal(plain, ds.obs)
    adata = ad.AnnData(np.zeros((60, 2)), obs=ds.obs)
    adata.uns["frame"], adata.obsm["frame"] = ds.obs, ds.obs
    adata.obs = ds.obs
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = ad.read_h5ad(tmp_path / "a.h5ad")
    assert back.obs.shape == back.uns["frame"].shape == back.obsm["frame"].shape == plain.shape


# ---- parts


def test_parts_are_chosen_as_of_an_anndata(ds) -> None:
    whole = ds.to_anndata()
    chosen = ds.obs["type"] == "B"
    assert ds[chosen].shape == whole[chosen].shape == (20, 40)
    assert ds[chosen, "g3"].shape == (20, 1) and ds[:, "g3"].X.shape == (60, 1)
    assert ds[:, ds.var["high"]].shape == (60, 20)
    np.testing.assert_array_equal(ds[..., "g3"].X.toarray(), ds[:, "g3"].X.toarray())
    with pytest.raises(NotFoundError, match="there is no gene 'CD3D'"):
        ds[:, "CD3D"]
    assert dict(ds.obs["type"].value_counts()) == {"T": 20, "B": 20, "NK": 20, "unused": 0}


# ---- calls


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda ds: ds[{"type": "B"}], InvalidError, r'ds\[ds.obs\["cell_type"\] == "B"\]'),
        (lambda ds: ds[None], InvalidError, "None chooses no cells or genes"),
        (lambda ds: ds.ttest("B", "NK", transform=None), InvalidError, r"a is 'B', one text: .* as in ttest\({\"cell_type\": 'B'}, ...\)"),
        (lambda ds: ds.rank_genes_groups(ds.obs["type"], transform=None), InvalidError, "groupby is of type Series, .*: give the column's name; ds.set_obs"),
        (lambda ds: ds.filter_cells(ds.obs["type"] == "B"), InvalidError, "min_genes is of type Series, .*: a mask or names are given as mask="),
        (lambda ds: ds.filter_genes(ds.var_names[:3]), InvalidError, "min_cells is of type Index, .* mask="),
        (lambda ds: ds.export(None), InvalidError, "path is None: name a file that ends in .h5ad"),
        (lambda ds: ds.highly_variable_genes(subset=True), InvalidError, r"subset is none of .*: ds.filter_genes\(mask=frame\[\"highly_variable\"\]\)"),
        (lambda ds: ds.highly_variable_genes(inplace=True), InvalidError, "the result is what the call returns"),
        (lambda ds: ds.qc_metrics(inplace=True), InvalidError, "the result is what the call returns"),
        (lambda ds: ds.qc_metrics(layr="x"), TypeError, "unexpected keyword argument 'layr'; did you mean 'layer'"),
    ],
    ids=range(11),
)
def test_calls_of_habit_get_a_hint(ds, call, kind, says) -> None:
    with pytest.raises(kind, match=says):
        call(ds)


def test_names_of_data_sets_are_suggested(db) -> None:
    db.ingest(rich(), "blood/pbmc3k")
    for name, says in (("pbmc3k", "such as blood/pbmc3k"), ("blood", "such as blood/pbmc3k"), ("liver", "for example blood/pbmc3k")):
        with pytest.raises(InvalidError, match=f"'{name}' is no data set name: write it as domain/dataset, {says}"):
            db[name]
    with pytest.raises(InvalidError, match="3 is no data set name, which is text"):
        db[3]
    with pytest.raises(InvalidError, match="'mine' is no data set name: write it as domain/dataset, for example blood/mine"):
        db.ingest(rich(), "mine")
    with pytest.raises(InvalidError, match=r"a Dataset can't be ingested as it is: .* with .to_anndata\(\)"):
        db.ingest(db["blood/pbmc3k"], "t/y")
    with pytest.raises(InvalidError, match=r"a csr_matrix can't be ingested without the names .*: make it an AnnData"):
        db.ingest(rich().X, "t/y")


def test_views_have_the_habits_of_data_sets(ds) -> None:
    view = ds.filter_cells(mask=np.arange(60) < 30)
    assert len(view) == 30 and bool(view)
    with pytest.raises(TypeError, match="not iterable"):
        iter(view)
    with pytest.raises(AttributeError, match=r"a view has no X: values stay on the drives: view\[cells, genes\].X"):
        view.X
    with pytest.raises(AttributeError, match=r"view.export\(\"x.h5ad\"\)"):
        view.write("x.h5ad")
    with pytest.raises(AttributeError, match="set_obs is not offered of a view: use it on view.dataset"):
        view.set_obs([1], "x")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("names", r"res.to_df\(group\)\['names'\]"),
        ("df", r"res.to_df\(\).head"),
        ("sort_values", r"res.to_df\(\).sort_values"),
        ("plot", r"res.plot_volcano\(group\)"),
        ("group", "did you mean 'groups'"),
    ],
)
def test_results_say_where_their_columns_are(ds, name, says) -> None:
    res = ds.rank_genes_groups("type", transform="log1p_cp10k")
    with pytest.raises(AttributeError, match=says):
        getattr(res, name)
    assert copy.copy(res).groups == res.groups


@pytest.mark.parametrize(("name", "says"), [("read_h5ad", "db.ingest"), ("tl", "methods of a data set"), ("frobnicate", "no attribute 'frobnicate'$")])
def test_functions_of_scanpy_are_methods_here(name, says) -> None:
    with pytest.raises(AttributeError, match=says):
        getattr(msgexpress, name)


def test_errors_inside_properties_are_not_hidden(ds, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("what went wrong inside")

    monkeypatch.setattr(type(ds), "history", property(broken))
    with pytest.raises(AttributeError, match="what went wrong inside"):
        ds.history
