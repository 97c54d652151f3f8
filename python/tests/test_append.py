"""Cells that were appended as parts of the matrices: every answer is that of a data set with the same cells from one
ingest, and the matrices that were there stay where they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from conftest import counts

import msgexpress
import skytether
from msgexpress import _append, _blocks, _open, _several

pytestmark = pytest.mark.filterwarnings("ignore:.*holds counts", "ignore:.*not all sources have", "ignore:.*highly_variable")

GENES = 40
T = "log1p_cp10k"


def cells(first: int, end: int, seed: int = 1) -> ad.AnnData:
    """Cells `first` to `end` of a study: counts, a layer of floats, raw with more genes, and obs."""
    n = end - first
    x = counts(n, GENES, seed=seed + first)
    number = np.arange(first, end)
    obs = pd.DataFrame(
        {
            "type": pd.Categorical(np.array(["T", "B", "NK"])[number % 3], categories=["T", "B", "NK"]),
            "donor": pd.Categorical(np.array(["d1", "d2", "d3", "d4"])[number % 4], categories=["d1", "d2", "d3", "d4"]),
            "depth": number / 7,
        },
        index=[f"cell-{i}" for i in number],
    )
    more = np.hstack([x, counts(n, 5, seed=seed + first + 50)])
    whole = ad.AnnData(sp.csr_matrix(more), obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(GENES + 5)]))
    adata = ad.AnnData(sp.csr_matrix(x), obs=obs, var=pd.DataFrame({"symbol": [f"S{i}" for i in range(GENES)]}, index=[f"g{i}" for i in range(GENES)]))
    adata.raw = whole
    adata.layers["half"] = sp.csr_matrix(x / 2)
    adata.obsm["X_pca"] = np.outer(number, [1.0, 2.0])
    return adata


PIECES = [(0, 60), (60, 85), (85, 130)]


def filled(db: msgexpress.MsgExpress) -> tuple[msgexpress.Dataset, msgexpress.Dataset]:
    """Cells that came one after the other, and the same cells from one ingest."""
    ds = db.ingest(cells(*PIECES[0]), "t/parts")
    for piece in PIECES[1:]:
        assert added(ds, cells(*piece))["rewritten"] is None
    whole = ad.concat([cells(*piece) for piece in PIECES], merge="first")
    whole.raw = ad.concat([cells(*piece).raw.to_adata() for piece in PIECES], merge="first")
    return ds, db.ingest(whole, "t/whole")


def added(ds: msgexpress.Dataset, source: ad.AnnData, **joining: object) -> dict[str, object]:
    """The report of an append."""
    choices = _open.Choices(None, None, msgexpress._source.ALL_LAYERS, None, None)
    return _append.append(ds, source, None, choices, None, _several.Joining(**joining), False)  # type: ignore[arg-type]


def near(a: object, b: object) -> None:
    if isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b, rtol=1e-6, atol=1e-9)
    else:
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.fixture(params=[1, 3], ids=["1 drive", "3 drives"])
def both(request: pytest.FixtureRequest, tmp_path: Path):
    with msgexpress.open(tmp_path / "fleet", drives=request.param) as db:
        yield filled(db)


def test_ranked_genes_equal_those_of_one_ingest(both) -> None:
    ds, whole = both
    for options in (
        {"method": "t-test"},
        {"method": "t-test", "reference": "B"},
        {"method": "student"},
        {"method": "wilcoxon"},
        {"method": "wilcoxon", "reference": "B", "tie_correct": True},
        {"method": "wilcoxon", "cells": {"donor": "d1"}},
        {"method": "t-test", "layer": "half"},
        {"method": "wilcoxon", "use_raw": True},
        {"method": "t-test", "genes": ["g3", "g7", "g30"]},
        {"method": "logreg", "max_iter": 50},
    ):
        options = {"transform": T, **options}
        a, b = (one.rank_genes_groups("type", **options).to_df() for one in (ds, whole))
        near(a, b)


def test_scores_of_genes_and_cells_equal_those_of_one_ingest(both) -> None:
    ds, whole = both
    for a, b in zip(*(one.qc_metrics(percent_top=[5, 10]) for one in both)):
        near(a, b)
    for flavor in ("seurat", "cell_ranger", "seurat_v3"):
        transform = None if flavor == "seurat_v3" else T
        a, b = (one.highly_variable_genes(n_top_genes=12, flavor=flavor, transform=transform, keep=False) for one in both)
        # Half of the dispersions are one median off the median: which of these are chosen is a matter of rounding.
        near(*(one.drop(columns="highly_variable") if flavor == "cell_ranger" else one for one in (a, b)))
    a, b = (one.pca(5, genes=None, transform=T, keep=False) for one in both)
    near(a.embedding, b.embedding)
    near(a.loadings, b.loadings)
    a, b = (one.pca(5, genes=None, transform=T, keep=False, cells={"type": "T"}) for one in both)
    near(a.embedding, b.embedding)
    a, b = (one.pseudobulk("donor", "type") for one in both)
    np.testing.assert_array_equal(a.X, b.X)
    near(a.obs, b.obs)
    a, b = (one.ttest({"type": "T"}, {"type": "B"}, transform=T).to_df() for one in both)
    near(a, b)


def test_anndata_equals_that_of_one_ingest(both) -> None:
    ds, whole = both
    some, few = ["g9", "g1", "g30"], np.r_[3, 59, 60, 84, 85, 129]
    for options in ({}, {"genes": some}, {"cells": few}, {"genes": some, "cells": few[::-1]}, {"cells": np.array([70])}):
        for lazy in (False, True):
            a, b = (one.to_anndata(lazy=lazy, **options) for one in both)
            a, b = (one.to_memory() if lazy else one for one in (a, b))
            for x, y in ((a.X, b.X), (a.layers["half"], b.layers["half"]), (a.raw.X, b.raw.X)):
                np.testing.assert_array_equal(x.toarray(), y.toarray())
            assert list(a.obs_names) == list(b.obs_names) and list(a.obs["type"]) == list(b.obs["type"])
            np.testing.assert_array_equal(a.obsm["X_pca"], b.obsm["X_pca"])
    lazy = ds.to_anndata(lazy=True)
    np.testing.assert_array_equal(lazy[50:90, :3].X.toarray(), whole.to_anndata().X[50:90, :3].toarray())


@pytest.mark.parametrize("cut", ["adaptive", "full", "filter", "raw"])
def test_sql_equals_that_of_one_ingest(both, cut: str) -> None:
    ds = both[0]
    spec = json.dumps({"dataset": "t.NAME", "matrix": "x", "groups": {"obs": "type"}, "transform": T})
    for sql in (
        "SELECT count(*) AS n, sum(value) AS s, max(value) AS m FROM t.NAME.x",
        "SELECT gene, cell, value FROM t.NAME.x WHERE gene IN ('g3', 'g4') AND cell IN ('cell-2', 'cell-60', 'cell-129') ORDER BY gene, cell",
        "SELECT gene, sum(nnz) AS n, sum(sumsq) AS s FROM t.NAME.x_rows GROUP BY gene ORDER BY gene",
        "SELECT cell, sum(value) AS s FROM t.NAME.layer_half WHERE gene < 'g2' GROUP BY cell ORDER BY cell",
        "SELECT gene, cell, value FROM t.NAME.raw_x WHERE value > 0 ORDER BY gene, cell LIMIT 7",
        "SELECT total_x, total_raw_x FROM t.NAME.cells ORDER BY total_x, total_raw_x",
        f"SELECT gene, m['group'] AS g, m['n'] AS n, m['nnz'] AS z, m['mean'] AS a, m['m2'] AS v FROM "
        f"(SELECT gene, unnest(moments(idx, val, block, '{spec}')) AS m FROM t.NAME.x_rows GROUP BY gene) ORDER BY gene, g",
        f"SELECT gene, r['sum'] AS s, r['ties'] AS t FROM (SELECT gene, unnest(rank_sums(idx, val, block, '{{\"of\": {spec}}}')) AS r "
        f"FROM t.NAME.x_rows GROUP BY gene) ORDER BY gene, s, t",
        "SELECT a.cell, a.value FROM t.NAME.x a JOIN t.NAME.obs o ON a.cell = o.cell WHERE o.type = 'NK' AND a.gene = 'g3' ORDER BY a.cell",
    ):
        a, b = (ds.fleet.sql(sql.replace("NAME", name), cut=cut).to_pandas() for name in ("parts", "whole"))
        near(a, b)


def test_files_and_lists_have_all_cells(both, tmp_path: Path) -> None:
    ds, whole = both
    fleet = ds.fleet
    for one in both:
        fleet.export(f"t.{one.name.split('/')[1]}.x_rows", tmp_path / "rows.parquet", **({} if one is ds else {"replace": True}))
        rows = pq.read_table(tmp_path / "rows.parquet").to_pandas()
        assert (rows["nnz"].sum(), rows["gene_id"].nunique()) == (whole.to_anndata().X.nnz, GENES)
        assert max(cell for row in rows["idx"] for cell in row) == 129
    described = fleet.describe("t.parts")
    assert not [table for table in described["tables"] if table.startswith("part/")]
    assert described["tables"]["x"]["parts"] == 3 and described["tables"]["x"]["matrix"]["cells"] == 130
    listed = fleet.sql("SELECT table_name FROM t.information_schema.tables WHERE table_schema = 'parts'").to_pandas()
    assert not listed["table_name"].str.startswith("part/").any()
    for path in ("a.h5ad", "b.h5ad"):
        both[path == "b.h5ad"].export(tmp_path / path)
    a, b = (ad.read_h5ad(tmp_path / path) for path in ("a.h5ad", "b.h5ad"))
    np.testing.assert_array_equal(a.X.toarray(), b.X.toarray())


def test_history_says_what_an_append_wrote(both) -> None:
    ds = both[0]
    assert ds.history["changed"].tolist()[1:] == ["25 cells, as part 2 of a matrix", "45 cells, as part 3 of a matrix"]
    assert ds.shape == (130, GENES) and len(ds.obs) == 130


def test_across_data_sets_with_parts(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        filled(db)
        a, b = ({"dataset": f"t/{name}", "type": "T"} for name in ("parts", "whole"))
        other = {"dataset": "t/whole", "type": "B"}
        near(db.compare(a, other, transform=T).to_df(), db.compare(b, other, transform=T).to_df())


def test_lost_drive_of_parts_is_made_up_for(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=4, redundancy="ec:2+1") as db:
        ds, whole = filled(db)
        wanted = whole.rank_genes_groups("type", "wilcoxon", transform=T).to_df()
        values = whole.to_anndata().X.toarray()
    for lost in range(4):
        place = tmp_path / "fleet" / "drives" / str(lost)
        shutil.move(place, tmp_path / "away")
        with msgexpress.open(tmp_path / "fleet") as db:
            near(db["t/parts"].rank_genes_groups("type", "wilcoxon", transform=T).to_df(), wanted)
            np.testing.assert_array_equal(db["t/parts"].to_anndata().X.toarray(), values)
        shutil.move(tmp_path / "away", place)


def test_nothing_kept_is_answered_after_an_append(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(cells(0, 60), "t/parts")
        for _ in range(3):
            before = ds.rank_genes_groups("type", transform=T).to_df()
        added(ds, cells(60, 85))
        first, again = (ds.rank_genes_groups("type", transform=T).to_df() for _ in range(2))
        near(first, again)
        assert not np.allclose(first["scores"], before["scores"])
        both = db.ingest([cells(0, 60), cells(60, 85)], "t/both", batch="source")
        near(first, both.rank_genes_groups("type", transform=T).to_df())


@pytest.mark.parametrize("first", [65_536, 65_500, 65_537])
def test_part_begins_anywhere_in_a_block(tmp_path: Path, first: int) -> None:
    rng = np.random.default_rng(first)
    x = sp.csr_matrix(rng.poisson(0.02, (first + 70_000, 3)).astype(np.float32))
    obs = pd.DataFrame({"type": pd.Categorical(np.array(["a", "b"])[rng.integers(0, 2, x.shape[0])])}, index=[f"c{i}" for i in range(x.shape[0])])
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        whole = ad.AnnData(x, obs=obs)
        ds = db.ingest(whole[:first].copy(), "t/parts")
        assert added(ds, whole[first:].copy())["rewritten"] is None
        other = db.ingest(whole, "t/whole")
        for method in ("t-test", "wilcoxon"):
            a, b = (one.rank_genes_groups("type", method, transform=None).to_df() for one in (ds, other))
            near(a, b)
        kept = ds._kept["matrices"]["x"]
        assert _blocks.starts(kept).tolist() == [*range(0, first, 65_536), first, first + 65_536]
        for some in (np.array([first - 1, first]), np.array([first + 69_999]), np.arange(first + 65_530, first + 65_540)):
            np.testing.assert_array_equal(ds.to_anndata(cells=some).X.toarray(), x[some].toarray())
        assert (ds.to_anndata().X != x).nnz == 0
        a, b = (one.pca(2, genes=None, transform=None, keep=False).embedding for one in (ds, other))
        near(a, b)
        np.testing.assert_array_equal(*(msgexpress._sums.per_cell(one, "x", [("values", None)]) for one in (ds, other)))
        dense = "SELECT count(*) AS n, sum(value) AS s, sum(CASE WHEN value = 0 THEN 1 ELSE 0 END) AS z FROM t.{}.x"
        near(*(db.fleet.sql(dense.format(name)).to_pandas() for name in ("parts", "whole")))


def test_append_writes_as_much_as_the_new_cells_take(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)

    def some(n: int, first: int) -> ad.AnnData:
        x = sp.csr_matrix(rng.poisson(1.0, (n, 200)).astype(np.float32))
        return ad.AnnData(x, obs=pd.DataFrame(index=[f"c{first + i}" for i in range(n)]))

    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(some(20_000, 0), "t/x")
        matrix = sum(p["bytes"] for p in db.fleet.describe("t.x")["tables"]["x"]["partitions"])
        report = added(ds, some(200, 20_000))
        record = json.loads(db.fleet._inner.describe("t.x"))
        now = sum(p["bytes"] for p in record["tables"]["x"]["partitions"])
        assert 0 < now - matrix < matrix / 20, (matrix, now)
        assert report["bytes_written"] < matrix / 2, report
        assert report["rewritten"] is None


def test_what_can_not_be_a_part_is_written_again(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:

        def one(n: int, first: int, genes: int = 6, value: float = 1.0) -> ad.AnnData:
            x = np.arange(n * genes).reshape(n, genes) % 5 * value
            return ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame(index=[f"c{first + i}" for i in range(n)]), var=pd.DataFrame(index=[f"g{i}" for i in range(genes)]))

        wanted = [one(10, 0)]
        ds = db.ingest(wanted[0], "t/x")

        def append(more: ad.AnnData, why: str | None, **joining: object) -> None:
            wanted.append(more)
            rewritten = added(ds, more, **joining)["rewritten"]
            assert rewritten is None if why is None else why in str(rewritten), rewritten
            both = ad.concat(wanted, join="outer", fill_value=0)
            np.testing.assert_array_equal(ds.to_anndata().X.toarray(), both.X.toarray())
            found = db.fleet.sql("SELECT count(*) AS n, sum(value) AS s FROM t.x.x").to_pandas().iloc[0]
            assert (found["n"], found["s"]) == (both.shape[0] * both.shape[1], both.X.sum())

        append(one(3, 10), None)
        append(one(3, 20, value=0.5), "stores values as UInt16")
        assert "written again" in ds.history["changed"].iloc[-1] and "parts" not in ds._kept["matrices"]["x"]
        append(one(3, 30), None)
        append(one(3, 40, genes=7), "other genes", join="outer", fill_value=0)
        assert ds.shape == (22, 7)
        append(one(3, 50), None, join="outer", fill_value=0)
        for n in range(6):
            append(one(2, 60 + 10 * n), None, join="outer", fill_value=0)
        append(one(2, 200), "at most 8 parts", join="outer", fill_value=0)
        append(one(2, 210), None, join="outer", fill_value=0)


def test_layer_set_after_an_append_has_one_part(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(cells(0, 60), "t/x")
        added(ds, cells(60, 85))
        x = ds.to_anndata().X
        ds.set_layer("twice", x * 2)
        with pytest.warns(UserWarning, match="layers/twice"):
            assert added(ds, cells(85, 130))["rewritten"] is not None
        ds.set_layer("twice", ds.to_anndata().X * 2)
        more = cells(130, 140)
        more.layers["twice"] = more.X * 2
        assert added(ds, more)["rewritten"] is None
        back = ds.to_anndata()
        np.testing.assert_array_equal(back.layers["twice"].toarray(), back.X.toarray() * 2)
        a, b = (ds.rank_genes_groups("type", "wilcoxon", layer=layer, transform=None).to_df() for layer in (None, "twice"))
        near(a["scores"], b["scores"])
        # A spec may be about another matrix than the rows: their blocks count.
        spec = json.dumps({"dataset": "t.x", "matrix": "x", "groups": {"obs": "type"}, "transform": None})
        asked = f"SELECT gene, moments(idx, val, block, '{spec}')[1]['n'] AS n FROM t.x.layer_twice_rows GROUP BY gene ORDER BY gene"
        assert set(db.fleet.sql(asked).to_pandas()["n"]) == {int((back.obs["type"] == "B").sum())}


def test_raw_that_is_the_matrix_gets_parts(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(cells(0, 60), "t/x", layer="raw")
        assert added(ds, cells(60, 85))["rewritten"] is None
        back = ds.to_anndata()
        assert back.raw.shape == (85, GENES + 5) and ds.shape[1] == GENES + 5
        expected = sp.vstack([cells(0, 60).raw.X, cells(60, 85).raw.X]).toarray()
        np.testing.assert_array_equal(back.raw.X.toarray(), expected)


def test_append_of_a_stale_object_is_a_conflict(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        db.ingest(cells(0, 60), "t/x")
        first, second = db["t/x"], db["t/x"]
        added(first, cells(60, 85))
        with pytest.raises(skytether.ConflictError):
            added(second, cells(85, 90))
        assert db["t/x"].shape == (85, GENES)
