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
        "many": np.arange(0, N_CELLS, 2),
    }


@pytest.mark.parametrize("most", [0, _export._MOST_RANGES], ids=["all move", "picked"])
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "float32", "float64"])
def test_chosen_cells_are_the_rows_of_the_matrix(db, monkeypatch, dtype, most):
    monkeypatch.setattr(_export, "_MOST_RANGES", most)
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
    table = db.ingest(ad.AnnData(matrix("uint16")), "t/x").table("x_rows")
    picked = db.fleet.sql(f"SELECT gene_id, {_export.picked(chosen()['random'])} FROM {table}")
    whole = db.fleet.sql(f"SELECT gene_id, idx, val FROM {table}")
    assert len(picked.to_arrow()) == len(whole.to_arrow())
    told, all_moved = picked.receipt.to_dict(), whole.receipt.to_dict()["bytes_moved"]
    assert {drive["rung"] for drive in told["drives"]} == {"full"}
    # 300 of 70,000 cells; the rest is what each message has besides.
    assert told["bytes_moved"] < all_moved / 5


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
        ("idx, val", "does not take arguments of these types"),
        ("val, idx, X''", "does not take arguments of these types"),
    ],
)
def test_wrong_calls_of_entries_of_are_refused(db, arguments, says):
    table = db.ingest(ad.AnnData(matrix("float32")[:100]), "t/x").table("x_rows")
    with pytest.raises(skytether.InvalidError, match=says):
        db.fleet.sql(f"SELECT entries_of({arguments}) FROM {table}").to_arrow()
