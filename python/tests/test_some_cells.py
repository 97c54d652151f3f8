"""Some cells of a matrix: the drives pick their entries, and those of other cells do not move."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

import skytether
from msgexpress import _export, _pca

#: Two blocks of cells.
N_CELLS = 70_000


def matrix(dtype: str) -> sp.csr_matrix:
    """Counts or, as floats, numbers with digits."""
    x = sp.random(N_CELLS, 12, 0.05, format="csr", random_state=1)
    x.data = np.ceil(x.data * 2000) if np.dtype(dtype).kind == "u" else x.data
    return x.astype(dtype)


def chosen() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "neighbours": np.arange(65_500, 65_600),
        "random": np.sort(rng.choice(N_CELLS, 300, replace=False)),
        "one": np.array([69_999]),
        "runs": np.r_[0:50, 60:61, 40_000:40_700, 69_000:70_000],
        "none": np.zeros(0, np.int64),
        "many": np.arange(0, N_CELLS, 2),
    }


@pytest.mark.parametrize(("most", "share"), [(2048, 0.0), (2048, 1.0), (1, 1.0), (7, 1.0)], ids=["all move", "picked", "one range", "wide gaps"])
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "float32", "float64"])
def test_chosen_cells_are_the_rows_of_the_matrix(db, monkeypatch, dtype, most, share):
    monkeypatch.setattr(_export, "_MOST_RANGES", most)
    monkeypatch.setattr(_export, "_WORTH_IT", share)
    x = matrix(dtype)
    if dtype == "uint32":
        x.data[0] = 70_000
    ds = db.ingest(ad.AnnData(x), "t/x")
    for name, cells in chosen().items():
        for genes in (None, np.array([1, 2, 9])):
            found = ds.to_anndata(cells=cells, genes=genes).X
            wanted = x[cells] if genes is None else x[cells][:, genes]
            assert (found != wanted).nnz == 0, (name, genes)
            assert found.dtype == x.dtype


def test_entries_of_other_cells_do_not_move(db):
    ds = db.ingest(ad.AnnData(matrix("uint16")), "t/x")
    table = ds.table("x_rows")
    picked = db.fleet.sql(f"SELECT gene_id, {_export.picked(chosen()['random'], ds._kept['matrices']['x'])} FROM {table}")
    whole = db.fleet.sql(f"SELECT gene_id, idx, val FROM {table}")
    assert len(picked.to_arrow()) == len(whole.to_arrow())
    told, all_moved = picked.receipt.to_dict(), whole.receipt.to_dict()["bytes_moved"]
    assert {drive["rung"] for drive in told["drives"]} == {"full"}
    # 300 of 70,000 cells; the rest is what each message has besides.
    assert told["bytes_moved"] < all_moved / 5


def test_widest_gaps_stay_where_ranges_are_too_many(monkeypatch):
    monkeypatch.setattr(_export, "_MOST_RANGES", 3)
    call = _export.picked(np.array([1, 3, 100, 101, 104, 5000]), {"shape": [10_000, 3]})
    ranges = np.frombuffer(bytes.fromhex(call.split("X'")[1].split("'")[0]), "<u4")
    assert ranges.reshape(-1, 2).tolist() == [[1, 4], [100, 105], [5000, 5001]]
    assert _export.picked(np.arange(9000), {"shape": [10_000, 3]}) is None
    assert _export.picked(np.zeros(0, np.int64), {"shape": [10_000, 3]}) is None


def test_appended_cells_are_picked_where_they_are(db):
    x, more = matrix("uint16"), matrix("uint16")[:5_000]
    added = ad.AnnData(more)
    added.obs_names = [f"more-{i}" for i in range(added.n_obs)]
    db.ingest(ad.AnnData(x), "t/x").append(added)
    ds = db["t/x"]
    both = sp.vstack([x, more]).tocsr()
    for cells in (np.r_[3, 65_536, 69_999, 70_000, 74_999], np.arange(69_990, 70_010), np.arange(0, 75_000, 9)):
        assert (ds.to_anndata(cells=cells).X != both[cells]).nnz == 0


@pytest.mark.parametrize("asked", ["gene = 'c'", "gene_id = 2", "gene = 'c' OR gene = 'k'", "gene IN ('c', 'k') AND nnz > 0", "gene = 'none'"])
def test_rows_of_genes_by_name_or_number_are_the_same(db, asked):
    x = matrix("float32").tocsc()
    table = db.ingest(ad.AnnData(x.tocsr(), var={"gene": list("abcdefghijkl")}).copy(), "t/x").table("x_rows")
    var = db["t/x"].var_names
    asked = asked.replace("'c'", f"'{var[2]}'").replace("'k'", f"'{var[10]}'")
    rows = db.fleet.sql(f"SELECT gene_id, block, idx, val FROM {table} WHERE {asked} ORDER BY gene_id, block").to_arrow().to_pylist()
    genes = [] if "none" in asked else [2, 10] if var[10] in asked else [2]
    assert [(row["gene_id"], row["block"]) for row in rows] == [(gene, block) for gene in genes for block in (0, 1)]
    for gene in genes:
        mine = [row for row in rows if row["gene_id"] == gene]
        assert sum((row["idx"] for row in mine), []) == x[:, gene].indices.tolist()
        assert sum((row["val"] for row in mine), []) == x[:, gene].data.tolist()


def test_parts_of_components_move_their_own_cells(db, monkeypatch):
    ds = db.ingest(ad.AnnData(matrix("uint16")), "t/x")

    def moved() -> int:
        return sum(receipt.to_dict()["bytes_moved"] for receipt in ds.pca(3, genes=None, transform=None, keep=False).receipts)

    at_once = moved()
    # Several parts are read twice, and parts of one block are no reason to read the block again.
    monkeypatch.setattr(_pca, "PART", 4_000)
    assert moved() < 3 * at_once


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("idx, val, X'00'", "pairs of u32"),
        ("idx, val, X'0200000001000000'", "must ascend"),
        ("idx, val, 'text'", "does not take arguments of these types"),
        ("idx, val, NULL", "binary literal"),
        ("array_sort(idx, 'DESC'), val, X'0000000001000000'", "ascend"),
        ("idx, val", "does not take arguments of these types"),
        ("val, idx, X''", "does not take arguments of these types"),
    ],
)
def test_wrong_calls_of_entries_of_are_refused(db, arguments, says):
    table = db.ingest(ad.AnnData(matrix("float32")[:100]), "t/x").table("x_rows")
    with pytest.raises(skytether.InvalidError, match=says):
        db.fleet.sql(f"SELECT entries_of({arguments}) FROM {table}").to_arrow()
