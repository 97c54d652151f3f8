"""AnnData whose matrices stay on the drives: slices are those of AnnData in memory, and read what they need."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import PBMC3K, assert_same, counts, rich

import msgexpress
import skytether
from msgexpress import _export
from msgexpress._lazy import LazyMatrix


def whole(form: object = sp.csr_matrix) -> ad.AnnData:
    adata = rich(form(counts()))
    adata.layers["more"] = np.asarray(counts(seed=4))
    adata.raw = ad.AnnData(X=sp.csr_matrix(counts(60, 45, 9)), obs=adata.obs[[]], var=rich(None, 60, 45).var)
    return adata


@pytest.fixture
def reads(monkeypatch):
    """How many genes and cells each read of a matrix names."""
    seen, real = [], _export.matrix

    def noted(fleet, table, kept, genes, cells):
        seen.append((None if genes is None else len(genes), None if cells is None else len(cells)))
        return real(fleet, table, kept, genes, cells)

    monkeypatch.setattr(_export, "matrix", noted)
    return seen


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray, sp.csr_array])
def test_lazy_anndata_in_memory_is_the_whole_one(db, reads, form):
    ds = db.ingest(whole(form), "t/x")
    lazy = ds.to_anndata(lazy=True)
    assert isinstance(lazy.X, LazyMatrix) and isinstance(lazy.layers["more"], LazyMatrix) and reads == []
    assert lazy.X.shape == (60, 40) and lazy.X.dtype == np.float32 and "read when it is sliced" in repr(lazy.X)
    assert_same(whole(form), lazy.to_memory())
    assert len(reads) == 3


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, np.asarray])
def test_slices_of_lazy_anndata_are_those_of_anndata(db, reads, form):
    lazy, known = db.ingest(whole(form), "t/x").to_anndata(lazy=True), whole(form)
    for cells, genes in (
        (slice(3, 20, 4), slice(None)),
        (slice(None), ["g7", "g2"]),
        ([5, 3, 59], [1, 0]),
        (known.obs["type"] == "B", known.var["high"]),
        (slice(None, None, -1), slice(None)),
        (7, slice(None)),
        (slice(0, 0), slice(None)),
    ):
        reads.clear()
        part, wanted = lazy[cells, genes], known[cells, genes].copy()
        assert reads == [] and part.shape == wanted.shape
        a, b = (m.toarray() if sp.issparse(m) else np.asarray(m) for m in (part.X, wanted.X))
        np.testing.assert_array_equal(a, b)
        assert len(reads) == 1
        np.testing.assert_array_equal(part.layers["more"], wanted.layers["more"])
        assert len(reads) == 2
        assert_same(wanted, part.to_memory(copy=True))


def test_a_lazy_part_stays_lazy_in_its_order(db, reads):
    ds = db.ingest(whole(), "t/x")
    lazy = ds.to_anndata(genes=["g7", "g2", "g7"], cells=[9, 2], lazy=True)
    wanted = whole()[[9, 2], [7, 2, 7]]
    assert reads == [] and list(lazy.var_names) == ["g7", "g2", "g7"] and list(lazy.obs_names) == ["cell-9", "cell-2"]
    np.testing.assert_array_equal(lazy[:, 1:].X.toarray(), wanted.X.toarray()[:, 1:])
    np.testing.assert_array_equal(lazy.X.to_memory().toarray(), wanted.X.toarray())
    assert reads == [(2, 2), (2, 2)]
    assert lazy.X[1, 0] == wanted.X[1, 0] and lazy.X[-1, -1] == wanted.X[-1, -1]


def test_lazy_anndata_serves_scanpys_readers_of_genes(db, reads):
    lazy, known = db.ingest(whole(), "t/x").to_anndata(lazy=True), whole()
    np.testing.assert_array_equal(lazy.obs_vector("g7"), known.obs_vector("g7"))
    np.testing.assert_array_equal(sc.get.obs_df(lazy, ["g7", "n"]).to_numpy(), sc.get.obs_df(known, ["g7", "n"]).to_numpy())
    assert all(genes == 1 for genes, _ in reads)


def test_raw_of_lazy_anndata_is_lazy_too(db, reads):
    lazy = db.ingest(whole(), "t/x").to_anndata(lazy=True)
    assert isinstance(lazy.raw.X, LazyMatrix) and reads == []
    part = lazy[[5, 1]]
    assert reads == []
    np.testing.assert_array_equal(part.raw.X.toarray(), counts(60, 45, 9)[[5, 1]])
    np.testing.assert_array_equal(lazy.raw[:, ["g44"]].X.toarray(), counts(60, 45, 9)[:, [44]])
    assert reads == [(None, 2), (1, None)]
    np.testing.assert_array_equal(sc.get.obs_df(lazy, ["g44"], use_raw=True)["g44"], counts(60, 45, 9)[:, 44])
    np.testing.assert_array_equal(lazy.raw.obs_vector("g3"), counts(60, 45, 9)[:, 3])
    assert set(reads[2:]) == {(1, None)}


def test_scanpy_works_on_the_part_that_was_read(pbmc3k_fleet):
    with msgexpress.open(pbmc3k_fleet) as db:
        lazy = db["blood/pbmc3k"].to_anndata(lazy=True)
        part = lazy[lazy.obs["cell_type"].isin(["B", "NK"])].to_memory(copy=True)
    known = ad.read_h5ad(PBMC3K)
    known = known[known.obs["cell_type"].isin(["B", "NK"])].copy()
    for adata in (part, known):
        sc.pp.normalize_total(adata, target_sum=1e4)
        sc.pp.log1p(adata)
        sc.tl.rank_genes_groups(adata, "cell_type", method="t-test")
    assert list(sc.get.rank_genes_groups_df(part, "B")["names"][:50]) == list(sc.get.rank_genes_groups_df(known, "B")["names"][:50])


@pytest.mark.parametrize(
    ("index", "says"),
    [((slice(None), 40), "there is no gene 40: there are 40"), (np.zeros(59, bool), "a mask of 59 cells can't choose among 60"), ((["a"], 1), "names no cell"), ((1, 2, 3), "not with 3 indices"), (-61, "there is no cell -61")],
)
def test_wrong_indices_of_lazy_matrices_are_refused(db, index, says):
    lazy = db.ingest(whole(), "t/x").to_anndata(lazy=True)
    with pytest.raises(skytether.InvalidError, match=says):
        lazy.X[index]


def test_lazy_matrix_of_a_replaced_data_set_is_refused(db):
    lazy = db.ingest(whole(), "t/x").to_anndata(lazy=True)
    db.ingest(whole(), "t/x", replace=True)
    with pytest.raises(skytether.ConflictError, match="t/x was replaced"):
        lazy[:, :2].X  # noqa: B018


def test_blocks_without_the_cells_are_not_read():
    where, million = " WHERE gene_id BETWEEN 1 AND 2", {"shape": [1_000_000, 3]}
    assert _export.of_blocks(where, np.array([70_000, 200_000]), million) == f"{where} AND block IN (1, 3)"
    assert _export.of_blocks(where, np.array([70_000, 140_000, 200_000]), million) == f"{where} AND block BETWEEN 1 AND 3"
    assert _export.of_blocks("", np.array([5]), {"shape": [70_000, 3]}) == " WHERE block BETWEEN 0 AND 0"
    assert _export.of_blocks("", np.array([5]), {"shape": [60_000, 3]}) == _export.of_blocks("", None, {"shape": [70_000, 3]}) == ""


def test_cells_of_several_blocks_are_read_where_they_are(db):
    x = sp.random(140_000, 3, 0.001, format="csr", random_state=1, dtype=np.float32)
    ds = db.ingest(ad.AnnData(x), "t/x")
    for cells in ([3, 70_000], [139_999, 66_000], [65_535, 65_536], [0]):
        np.testing.assert_array_equal(ds.to_anndata(cells=cells).X.toarray(), x[cells].toarray())
    some = np.flatnonzero(np.diff(x.indptr))[-20:]
    assert ds.to_anndata(lazy=True)[some].X.nnz == x[some].nnz > 0
    assert ds.to_anndata(cells=np.arange(65_000, 132_000)).X.nnz == x[65_000:132_000].nnz > 0


@pytest.mark.parametrize("few", [0, 16])
def test_genes_of_several_blocks_are_read_in_order(db, monkeypatch, few):
    """By one query, and where that is for none by two."""
    monkeypatch.setattr(_export, "_FEW_GENES", few)
    x = sp.random(140_000, 4, 0.001, format="csr", random_state=1, dtype=np.float32)
    ds = db.ingest(ad.AnnData(x), "t/x")
    for genes in ([1], [3, 0]):
        found = ds.to_anndata(genes=genes).X
        assert found.has_canonical_format and (found != x[:, genes]).nnz == 0
        np.testing.assert_array_equal(ds.to_anndata(lazy=True).obs_vector(str(genes[0])), x[:, genes[0]].toarray()[:, 0])
