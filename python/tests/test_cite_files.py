"""Mixed features in files as GEO and R have them, and tests that leave NaN out: names, types and layers together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import counts, rich
from test_gene_files import IDS, X, directory

import skytether

#: Two genes share a symbol, and an antibody has the symbol of a gene.
SYMBOLS = ["CD4", "A", "A", "CD4", "B", "IgG"]
TYPES = ["Gene Expression"] * 3 + ["Antibody Capture", "Gene Expression", "Antibody Capture"]
GENES = [t == "Gene Expression" for t in TYPES]


def cite(place: Path, quote: str = "", row_names: bool = False, before: str = "GSM1_a_") -> Path:
    lines = [[*([str(n + 1)] if row_names else []), *fields] for n, fields in enumerate(zip(IDS, SYMBOLS, TYPES))]
    return directory(place, ["\t".join(f"{quote}{field}{quote}" for field in line) for line in lines], before=before)


@pytest.mark.parametrize("layer", [None, "Antibody Capture"])
@pytest.mark.parametrize("gzipped_path", [False, True])
def test_mixed_features_of_geo_are_named_as_in_scanpy(db, tmp_path, layer, gzipped_path):
    """Names are made unique among all features, before those of one type are taken."""
    place = cite(tmp_path / "d")
    path = place / "GSM1_a_matrix.mtx.gz" if gzipped_path else place
    with pytest.warns(UserWarning, match=r"GSM1_a_matrix.mtx.gz: 2 features .* kept apart \(2 of Antibody Capture\)"):
        ds = db.ingest(path, "t/cite")
    theirs = sc.read_10x_mtx(place, prefix="GSM1_a_", gex_only=False)
    other = ds.to_anndata(features="Antibody Capture")
    assert list(ds.var_names) == list(theirs.var_names[GENES]) == ["CD4", "A", "A-1", "B"]
    assert list(other.var_names) == list(theirs.var_names[np.logical_not(GENES)]) == ["CD4-1", "IgG"]
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), X[:, GENES])
    np.testing.assert_array_equal(other.X.toarray(), X[:, np.logical_not(GENES)])

    # The ids are next to names that were changed, in the matrix and in that of the antibodies.
    var = ds.var if layer is None else other.var
    res = ds.ttest(range(6), range(6, 12), transform="log1p_cp10k", layer=layer)
    assert dict(zip(res["names"], res["gene_ids"])) == dict(zip(var.index, var["gene_ids"]))
    frame = res.to_df(gene_symbols="feature_types")
    assert list(frame.columns)[:3] == ["names", "gene_ids", "feature_types"] and set(frame["feature_types"]) == {TYPES[0] if layer is None else layer}
    text = res.to_csv(gene_symbols="feature_types").splitlines()
    assert text[0].startswith("group,names,gene_ids,feature_types,scores") and len(text) == 1 + len(var)
    some = ds.ttest(range(6), range(6, 12), transform="log1p_cp10k", layer=layer, genes=[var.index[1]])
    assert list(some["gene_ids"]) == [var["gene_ids"].iloc[1]]
    with pytest.raises(skytether.NotFoundError, match=r"var of t/cite has no column 'gene_idz'.*did you mean 'gene_ids'"):
        res.to_df(gene_symbols="gene_idz")


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("row_names", [False, True])
def test_types_of_features_are_found_in_files_of_r(db, tmp_path, quote, row_names):
    with pytest.warns(UserWarning, match=r"2 of Antibody Capture"):
        ds = db.ingest(cite(tmp_path / "d", quote, row_names, ""), "t/cite")
    assert list(ds.var["gene_ids"]) == [i for i, gene in zip(IDS, GENES) if gene] and set(ds.var["feature_types"]) == {"Gene Expression"}
    np.testing.assert_array_equal(ds.to_anndata(features="Antibody Capture").X.toarray(), X[:, np.logical_not(GENES)])


@pytest.mark.filterwarnings("ignore:.*kept apart")
def test_features_are_no_layers_to_keep_or_to_leave_out(db, tmp_path):
    place = cite(tmp_path / "d")
    for layers in (None, [], ["Antibody Capture"]):
        assert db.ingest(place, "t/cite", layers=layers, replace=True).other_features == ["Antibody Capture"]
    with pytest.raises(skytether.InvalidError, match="say feature_types='Antibody Capture' to make them the matrix"):
        db.ingest(place, "t/cite", layer="Antibody Capture", layers=None, replace=True)
    with pytest.raises(skytether.InvalidError, match="has no layer 'spliced' to keep"):
        db.ingest(place, "t/cite", layers=["spliced"], replace=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_genes_left_out_may_be_no_numbers(db, bad):
    """What an error about NaN advises works: the test is that of the rest."""
    adata = rich()
    adata.X = np.log1p(counts(adata.n_obs, adata.n_vars)).astype(np.float32)
    adata.obs["g"] = pd.Categorical(["a", "b"] * (adata.n_obs // 2))
    due = db.ingest(adata, "t/good").rank_genes_groups("g", transform=None, genes=slice(1, None)).to_df("a")
    adata.X[:, 0] = bad
    ds = db.ingest(adata, "t/bad")
    with pytest.raises(skytether.InvalidError, match=f"has the value {bad} in cell .*: a test needs finite numbers; leave such genes out"):
        ds.rank_genes_groups("g", transform=None)
    pd.testing.assert_frame_equal(ds.rank_genes_groups("g", transform=None, genes=slice(1, None)).to_df("a"), due)
