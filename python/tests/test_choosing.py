"""Masks that miss values, and arguments of types that are none of an argument's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import rich

import skytether


def maybe() -> pd.Series:
    """A nullable column of 60 cells; every fifth has no value."""
    return rich().obs["maybe"]


CHOSEN = [bool(i % 5 and i > 20) for i in range(60)]
MASKS = {
    "Int64": lambda: maybe() > 20,
    "reversed": lambda: (maybe() > 20)[::-1],
    "array": lambda: (maybe() > 20).array,
    "arrow": lambda: (maybe() > 20).astype("bool[pyarrow]"),
    "objects": lambda: np.array([None if i % 5 == 0 else i > 20 for i in range(60)], object),
    "a list": lambda: [pd.NA if i % 5 == 0 else np.bool_(i > 20) for i in range(60)],
    "categories": lambda: pd.Categorical(maybe().array > 20),
    "text": lambda: pd.Series(pd.array([None if i % 5 == 0 else "abc"[i > 20] for i in range(60)], "string"), index=maybe().index) == "b",
    "numbers": lambda: pd.array(np.flatnonzero(CHOSEN), "Int64"),
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    import msgexpress

    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=1) as db:
        yield db.ingest(rich(), "t/x")


@pytest.mark.parametrize("kind", MASKS)
def test_missing_values_of_a_mask_choose_no_cell(ds, kind):
    wanted = [f"cell-{i}" for i in range(60) if CHOSEN[i]]
    mask = MASKS[kind]()
    assert list(ds[mask].obs_names) == list(ds.to_anndata(cells=mask).obs_names) == wanted
    by_mask = ds.rank_genes_groups("type", transform=None, cells=mask).to_df()
    pd.testing.assert_frame_equal(by_mask, ds.rank_genes_groups("type", transform=None, cells=wanted).to_df())
    assert len(ds.ttest(mask, ~np.array(CHOSEN), transform=None).to_df()) == 40


WRONG = {
    "a set": (lambda ds: ds[{"cell-1"}], "a set has no order to give cells in: choose them with a list"),
    "a dict": (lambda ds: ds[{"type": "B"}], "a dict of obs columns and values chooses cells in tests"),
    "a set of genes": (lambda ds: ds[:, {"g1"}], "a set has no order to give genes in"),
    "booleans and numbers": (lambda ds: ds[[True, 1]], "booleans and other values together choose no cells"),
    "a missing number": (lambda ds: ds[pd.array([1, None], "Int64")], "the number of the cell at place 2 is missing"),
    "a short mask": (lambda ds: ds[pd.array([True, None], "boolean")], "the mask is for 2 cells, but there are 60"),
    "lists in lists": (lambda ds: ds.ttest({"type": [["B"]]}, {"type": "T"}, transform=None), r"\['B'\] is no value of obs column 'type'"),
    "several columns": (lambda ds: ds.rank_genes_groups(["type"], transform=None), r"groupby is \['type'\], which is no text: it names one obs column: say groupby='type'"),
    "several layers": (lambda ds: ds.rank_genes_groups("type", transform=None, layer=["x"]), r"layer is \['x'\].*say layer='x'"),
    "several layers of ttest": (lambda ds: ds.ttest([0, 1], [2, 3], transform=None, layer=["x"]), r"layer is \['x'\]"),
    "half a gene": (lambda ds: ds.rank_genes_groups("type", transform=None, n_genes=2.5), "n_genes is 2.5: show at least one gene, as a whole number"),
    "half a gene of ttest": (lambda ds: ds.ttest([0, 1], [2, 3], transform=None, n_genes=True), "n_genes is True"),
    "a transform": (lambda ds: ds.rank_genes_groups("type", transform="log"), "there is no transform 'log': use \"log1p_cp10k\" for raw counts .*, or None for"),
    "a transform of ttest": (lambda ds: ds.ttest([0, 1], [2, 3], transform=["log1p_cp10k"]), "there is no transform"),
}


@pytest.mark.parametrize("what", WRONG)
def test_arguments_of_other_types_are_told(ds, what):
    call, says = WRONG[what]
    with pytest.raises(skytether.InvalidError, match=says):
        call(ds)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": 3}, "layers is 3: give the name of a layer, or a list of names"),
        ({"layers": [3]}, r"layers is \[3\]"),
        ({"layer": ["x"]}, r"layer is \['x'\], which is no text: it names one matrix: say layer='x'"),
        ({"feature_types": 3}, "feature_types"),
    ],
)
def test_arguments_of_ingest_of_other_types_are_told(db, options, says):
    with pytest.raises(skytether.InvalidError, match=says):
        db.ingest(rich(), "t/x", **options)
    assert list(db) == []
