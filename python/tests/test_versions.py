"""Versions of a data set: each change equals the same change of the AnnData in memory, and matrices are not written
again."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import assert_same, command, counts, rich
from fleets import Served

import msgexpress
from msgexpress import _history, _versions
from skytether import ConflictError, InvalidError, NotFoundError


@pytest.fixture
def whole() -> ad.AnnData:
    adata = rich()
    adata.layers["twice"] = adata.X * 2
    return adata


@pytest.fixture
def ds(db, whole):
    return db.ingest(whole, "lab/a")


def stored(db, name: str = "lab.a") -> tuple[dict[str, int], int]:
    """The generation of each table, and the bytes of the matrices."""
    record = db.fleet.describe(name)
    tables = {table: kept.get("generation", record["generation"]) for table, kept in record["tables"].items()}
    return tables, sum(p["bytes"] for kept in record["tables"].values() if kept.get("matrix") for p in kept["partitions"])


# ---- obs and var


def test_obs_columns_equal_those_of_anndata(ds, whole, db) -> None:
    clusters = pd.Categorical.from_codes(np.arange(60) % 3, ["c", "a", "b"])
    ds.set_obs(clusters, name="cluster")
    ds.set_obs(pd.Series(np.arange(60)[::-1], index=whole.obs_names[::-1], name="order"))
    ds.set_obs(np.linspace(0, 1, 60), "depth")
    whole.obs["cluster"], whole.obs["order"], whole.obs["depth"] = clusters, np.arange(60), np.linspace(0, 1, 60)
    assert list(ds.obs["cluster"].cat.categories) == ["c", "a", "b"]
    assert_same(db["lab/a"].to_anndata(), whole)
    assert_same(ds.to_anndata(), whole)


def test_frame_is_aligned_by_names(ds, whole) -> None:
    frame = pd.DataFrame({"score": np.arange(20.0), "kind": pd.Categorical(["x", "y"] * 10)}, index=whole.obs_names[40:20:-1])
    ds.set_obs(frame)
    for column in frame:
        whole.obs[column] = frame[column]
    pd.testing.assert_frame_equal(ds.obs, whole.obs)
    assert ds.obs["score"].isna().sum() == 40


def test_sql_and_tests_see_the_new_columns(ds, db) -> None:
    labels = np.array(["one", "two", "three"])[np.arange(60) % 3]
    ds.set_obs(labels, name="cluster")
    counted = db.fleet.sql('SELECT cluster, count(*) AS n FROM "lab"."a"."obs" GROUP BY cluster ORDER BY cluster').to_pandas()
    assert dict(zip(counted["cluster"], counted["n"])) == {"one": 20, "two": 20, "three": 20}
    ranked = ds.rank_genes_groups("cluster", transform="log1p_cp10k").to_df()
    reference = rich()
    reference.obs["cluster"] = pd.Categorical(labels)
    import scanpy as sc

    sc.pp.normalize_total(reference, target_sum=1e4)
    sc.pp.log1p(reference)
    sc.tl.rank_genes_groups(reference, "cluster", method="t-test")
    expected = sc.get.rank_genes_groups_df(reference, None)
    merged = ranked.merge(expected, on=["group", "names"])
    np.testing.assert_allclose(merged["scores_x"], merged["scores_y"], rtol=1e-5, atol=1e-6)


def test_names_that_files_can_not_hold_are_kept(ds, whole, db) -> None:
    ds.set_obs(np.arange(60), name="a/b%")
    ds.set_obsm("X/umap", np.zeros((60, 2)))
    ds.set_uns("50%", {"a/b": 1, ".": 2})
    whole.obs["a/b%"], whole.obsm["X/umap"], whole.uns["50%"] = np.arange(60), np.zeros((60, 2)), {"a/b": 1, ".": 2}
    assert_same(ds.to_anndata(), whole)
    assert_same(db["lab/a"].to_anndata(), whole)


def test_replaced_column_keeps_its_place(ds, whole) -> None:
    ds.set_obs(np.zeros(60, np.int8), name="n")
    whole.obs["n"] = np.zeros(60, np.int8)
    pd.testing.assert_frame_equal(ds.obs, whole.obs)


def test_var_columns_equal_those_of_anndata(ds, whole, db) -> None:
    high = np.arange(40) % 3 == 0
    ds.set_var(high, name="highly_variable")
    whole.var["highly_variable"] = high
    assert_same(ds.to_anndata(), whole)
    assert db.fleet.sql('SELECT count(*) AS n FROM "lab"."a"."var" WHERE highly_variable').to_pandas()["n"][0] == high.sum()


def test_dropped_columns_are_gone(ds, whole, db) -> None:
    ds.drop_obs(["depth", "note"])
    ds.drop_var("high")
    whole.obs = whole.obs.drop(columns=["depth", "note"])
    whole.var = whole.var.drop(columns="high")
    assert_same(ds.to_anndata(), whole)
    with pytest.raises(NotFoundError, match="no column 'dept'"):
        ds.drop_obs("dept")


def test_var_of_raw_changes_where_the_data_set_is_about_it(db) -> None:
    adata = rich()
    adata.raw = adata.copy()
    adata = adata[:, :10].copy()
    ds = db.ingest(adata, "lab/raw", layer="raw")
    ds.set_var(np.arange(40), name="number")
    ds.set_obs(np.arange(60), name="number")
    back = ds.to_anndata()
    assert list(back.raw.var["number"]) == list(range(40)) and "number" not in back.var
    assert list(back.obs["number"]) == list(range(60))
    assert db.fleet.sql('SELECT max(number) AS n FROM "lab"."raw"."var"').to_pandas()["n"][0] == 39


# ---- the other parts


def test_obsm_and_uns_equal_those_of_anndata(ds, whole) -> None:
    points = np.random.default_rng(1).random((60, 5)).astype(np.float32)
    ds.set_obsm("X_umap", points)
    ds.set_obsm("X_pca", points[:, :2])
    ds.set_obsm("frame", None)
    ds.set_uns("leiden", {"params": {"resolution": 1.0}, "names": np.array(["a", "b"])})
    ds.set_uns("title", None)
    whole.obsm["X_umap"], whole.obsm["X_pca"] = points, points[:, :2]
    del whole.obsm["frame"], whole.uns["title"]
    whole.uns["leiden"] = {"params": {"resolution": 1.0}, "names": np.array(["a", "b"], object)}
    assert_same(ds.to_anndata(), whole)


def test_put_changes_all_parts_in_one_version(ds, whole, db) -> None:
    graph = sp.random(60, 60, 0.1, format="csr", random_state=5)
    loadings = np.arange(80.0).reshape(40, 2)
    report = _versions.put(
        ds,
        obs={"cluster": pd.Categorical(["a", "b"] * 30), "note": None},
        var={"mean": np.arange(40.0)},
        obsm={"X_pca": np.ones((60, 2))},
        varm={"PCs": loadings},
        obsp={"connectivities": graph, "distances": None},
        uns={"pca": {"variance": np.arange(2.0)}},
        action="pca",
        params={"n_comps": 2},
    )
    whole.obs["cluster"] = pd.Categorical(["a", "b"] * 30)
    whole.obs = whole.obs.drop(columns="note")
    whole.var["mean"] = np.arange(40.0)
    whole.obsm["X_pca"], whole.varm["PCs"], whole.obsp["connectivities"] = np.ones((60, 2)), loadings, graph
    del whole.obsp["distances"]
    whole.uns["pca"] = {"variance": np.arange(2.0)}
    assert_same(db["lab/a"].to_anndata(), whole)
    assert len(ds.history) == 2 and ds.history["action"].iloc[-1] == "pca"
    assert 0 < report["bytes_written"] < report["bytes_stored"]


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csc_matrix, np.asarray], ids=["csr", "csc", "dense"])
def test_layer_equals_that_of_anndata(ds, whole, db, make) -> None:
    values = make(counts(seed=7).astype(np.float64) / 3)
    before, _ = stored(db)
    ds.set_layer("scaled", values)
    ds.set_layer("twice", make(counts(seed=8)))
    whole.layers["scaled"], whole.layers["twice"] = values, make(counts(seed=8))
    assert_same(db["lab/a"].to_anndata(), whole)
    after, _ = stored(db)
    assert after["x"] == before["x"] and after["obs"] == before["obs"] and after["layer_twice"] != before["layer_twice"]
    # Tests of it need the totals of its cells.
    ours = ds.rank_genes_groups("type", layer="twice", transform="log1p_cp10k", groups=["B", "NK"]).to_df()
    theirs = db.ingest(whole, "lab/b").rank_genes_groups("type", layer="twice", transform="log1p_cp10k", groups=["B", "NK"]).to_df()
    pd.testing.assert_frame_equal(ours, theirs)


def test_logarithm_noted_in_uns_counts_for_fold_changes(ds, db) -> None:
    assert db.fleet.describe("lab.a")["application"]["msgexpress"].find('"log1p_base": null') > 0
    ds.set_uns("log1p", {"base": 2.0})
    assert ds._kept["log1p_base"] == 2.0


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_equals_that_of_anndata(db, whole, seed) -> None:
    rng = np.random.default_rng(seed)
    ds = db.ingest(whole, "lab/any")
    names = ["one", "two", "n", "type"]
    steps = 0
    for _ in range(12):
        name, what = str(rng.choice(names)), int(rng.integers(8))
        if what == 0:
            whole.obs[name] = rng.random(60)
            ds.set_obs(whole.obs[name])
        elif what == 1:
            whole.obs[name] = pd.Categorical.from_codes(rng.integers(-1, 3, 60), ["z", "a", "m"], ordered=bool(rng.integers(2)))
            ds.set_obs(whole.obs[[name]].sample(frac=1, random_state=seed))
        elif what == 2 and name in whole.obs:
            del whole.obs[name]
            ds.drop_obs(name)
        elif what == 3:
            whole.var[name] = rng.integers(0, 9, 40)
            ds.set_var(whole.var[name].to_numpy(), name)
        elif what == 4:
            whole.obsm[name] = rng.random((60, int(rng.integers(1, 4))))
            ds.set_obsm(name, whole.obsm[name])
        elif what == 5 and name in whole.obsm:
            del whole.obsm[name]
            ds.set_obsm(name, None)
        elif what == 6:
            whole.uns[name] = {"at": int(rng.integers(9)), "values": rng.random(3)}
            ds.set_uns(name, whole.uns[name])
        elif what == 7:
            whole.layers[name] = counts(seed=int(rng.integers(99)))
            ds.set_layer(name, whole.layers[name])
        else:
            continue
        steps += 1
        if rng.integers(3) == 0:
            ds = db["lab/any"]
    assert_same(ds.to_anndata(), whole)
    assert_same(db["lab/any"].to_anndata(), whole)
    assert len(ds.history) == steps + 1


# ---- what it costs, and what is kept


def test_matrices_are_not_written_again(ds, db) -> None:
    before, matrices = stored(db)
    report = _versions.put(ds, obs={"cluster": np.arange(60)}, action="leiden")
    after, still = stored(db)
    assert {table for table in after if after[table] != before.get(table)} == {"obs", "shell_0"}
    assert still == matrices and report["bytes_written"] == report["bytes_stored"] - sum(
        p["bytes"] for table, kept in db.fleet.describe("lab.a")["tables"].items() if after[table] == before.get(table) for p in kept["partitions"]
    )


def test_version_writes_only_the_elements_that_change(ds, whole, db) -> None:
    ds.set_obsm("X_big", np.random.default_rng(1).random((60, 2000)))
    large = stored(db)[0]
    report = _versions.put(ds, uns={"small": {"a": 1}}, obsm={"X_little": np.zeros((60, 2))}, action="x")
    after = stored(db)[0]
    assert {table for table in after if after[table] != large.get(table)} == {"shell_1", "shell_2"}
    assert report["bytes_written"] * 20 < report["bytes_stored"]
    # What is removed takes its table with it, and its number is free.
    ds.set_obsm("X_big", None)
    assert "shell_0" not in stored(db)[0]
    ds.set_obsm("X_other", np.ones((60, 1)))
    whole.uns["small"] = {"a": 1}
    whole.obsm["X_little"], whole.obsm["X_other"] = np.zeros((60, 2)), np.ones((60, 1))
    assert "shell_0" in stored(db)[0]
    assert_same(db["lab/a"].to_anndata(), whole)
    assert "shell_0" not in "".join(db.fleet.sql("SELECT table_name FROM information_schema.tables").to_pandas()["table_name"])


def test_older_programs_refuse_what_they_would_not_see(ds, db) -> None:
    import json

    described = lambda: json.loads(db.fleet.describe("lab.a")["application"]["msgexpress"])["format"]  # noqa: E731
    assert described() == 1
    ds.set_layer("scaled", counts())
    assert described() == 1
    ds.set_obs(np.arange(60), name="n")
    assert described() == 2


def test_version_of_a_large_matrix_writes_little(db) -> None:
    rng = np.random.default_rng(0)
    x = sp.csr_matrix(rng.poisson(1.0, (3000, 2000)).astype(np.float32))
    ds = db.ingest(ad.AnnData(x, obs=pd.DataFrame(index=[f"c{i}" for i in range(3000)])), "lab/large")
    report = _versions.put(ds, obs={"cluster": np.arange(3000) % 7}, action="leiden")
    assert report["bytes_written"] * 20 < report["bytes_stored"], report


def test_versions_survive_a_restart_and_a_drop(tmp_path, whole) -> None:
    with msgexpress.open(tmp_path / "f", drives=3) as db:
        ds = db.ingest(whole, "lab/a")
        for n in range(4):
            ds.set_obs(np.full(60, n), name="n")
    with msgexpress.open(tmp_path / "f") as db:
        whole.obs["n"] = np.full(60, 3)
        assert_same(db["lab/a"].to_anndata(), whole)
        assert len(db["lab/a"].history) == 5
        db.drop("lab/a")
        assert db.ls() == []


def test_other_objects_of_an_older_version_conflict(ds, db) -> None:
    other = db["lab/a"]
    assert "cluster" not in other.obs
    ds.set_obs(np.arange(60), name="cluster")
    with pytest.raises(ConflictError, match="replaced"):
        other.to_anndata()
    with pytest.raises(ConflictError, match="replaced"):
        other.set_obs(np.ones(60), name="cluster")
    # What changes something else follows on that version, and the object goes on from there.
    other.set_obs(np.arange(60), name="other")
    assert list(db["lab/a"].obs["cluster"]) == list(range(60)) == list(other.obs["other"])


# ---- history


def test_history_lists_what_was_done(ds) -> None:
    ds.set_obs(np.arange(60), name="cluster")
    ds.set_obsm("X_umap", np.zeros((60, 2)))
    history = ds.history
    assert list(history["version"]) == [1, 2, 3]
    assert list(history["action"]) == ["ingest", "set_obs", "set_obsm"]
    assert list(history["changed"]) == ["60 cells, 40 genes", "obs: cluster", "obsm: X_umap"]
    assert history["generation"].is_unique and history["generation"].iloc[-1] == ds._generation
    assert history["time"].is_monotonic_increasing and str(history["time"].dtype.tz) == "UTC"
    assert '"cluster"' in history["params"].iloc[1]


def test_history_keeps_the_latest_versions(monkeypatch, ds) -> None:
    monkeypatch.setattr(_history, "MOST_VERSIONS", 3)
    for n in range(4):
        ds.set_obs(np.full(60, n), name="x" * 400)
    assert list(ds.history["version"]) == [3, 4, 5]
    assert ds.history["changed"].str.len().max() == _history.MOST_TEXT


def test_ingest_that_replaces_begins_a_history(ds, db, whole) -> None:
    ds.set_obs(np.arange(60), name="cluster")
    assert list(db.ingest(whole, "lab/a", replace=True).history["action"]) == ["ingest"]


# ---- what is refused


@pytest.mark.parametrize(
    ("values", "name", "text"),
    [
        (np.arange(59), "n", "has 59 values"),
        (np.zeros((60, 2)), "n", "2 dimensions"),
        (np.arange(60), None, "needs a name"),
        (3, "n", "single value"),
        (pd.Series(np.arange(60), name="n"), None, "60 names that are no cells"),
        (pd.Series([1, 2], index=["cell-1", "cell-1"], name="n"), None, "more than once"),
        (pd.DataFrame({"a": [1]}, index=["cell-x"]), None, "did you mean"),
        (pd.DataFrame({1: [1]}, index=["cell-1"]), None, "no text"),
        (pd.DataFrame(index=["cell-1"]), None, "no columns"),
        ([object()] * 60, "n", "column 'n' holds a value of type object"),
        (np.arange(60), "_index", "rename the column"),
    ],
)
def test_unfit_columns_are_refused_and_change_nothing(ds, whole, db, values, name, text) -> None:
    with pytest.raises(InvalidError, match=text):
        ds.set_obs(values, name)
    assert len(db["lab/a"].history) == 1
    assert_same(ds.to_anndata(), whole)


def test_repeated_cell_names_need_an_array(db) -> None:
    adata = ad.AnnData(counts(), obs=pd.DataFrame(index=["same"] * 60))
    with pytest.warns(UserWarning, match="repeat"):
        ds = db.ingest(adata, "lab/same")
    ds.set_obs(np.arange(60), name="n")
    assert list(ds.obs["n"]) == list(range(60))
    with pytest.raises(InvalidError, match="more than once"):
        ds.set_obs(pd.Series([1], index=["same"], name="m"))


def test_arrays_of_other_shapes_are_refused(ds) -> None:
    with pytest.raises(InvalidError, match=r"X_umap.*needs 60 rows"):
        ds.set_obsm("X_umap", np.zeros((59, 2)))
    with pytest.raises(InvalidError, match="needs 60 x 60"):
        _versions.put(ds, obsp={"graph": sp.eye(59, format="csr")}, action="x")
    with pytest.raises(InvalidError, match="60 cells and 40 genes"):
        ds.set_layer("scaled", np.zeros((60, 39)))
    with pytest.raises(NotFoundError, match="no obsm"):
        ds.set_obsm("X_umap", None)


# ---- append


def more(cells: int = 25, seed: int = 11) -> ad.AnnData:
    """Other cells of the same genes."""
    adata = rich(sp.csr_matrix(counts(cells, seed=seed)), cells=cells)
    adata.obs_names = [f"new-{i}" for i in range(cells)]
    adata.layers["twice"] = adata.X * 2
    return adata


def test_appended_cells_equal_those_of_concat(ds, whole, db) -> None:
    new = more()
    with pytest.warns(UserWarning, match="obsp"):
        ds.append(new, batch={"donor": ("d1", "d2")}, progress=False)
    new.obs["donor"], whole.obs["donor"] = pd.Categorical(["d2"] * 25), pd.Categorical(["d1"] * 60)
    expected = ad.concat([whole, new], merge="first", uns_merge="first")
    back = db["lab/a"].to_anndata()
    assert ds.shape == (85, 40) and list(back.obs_names) == [*whole.obs_names, *new.obs_names]
    np.testing.assert_array_equal(back.X.toarray(), expected.X.toarray())
    np.testing.assert_array_equal(back.layers["twice"].toarray(), expected.layers["twice"].toarray())
    plain = lambda column: column.astype(object).where(column.notna(), None).tolist()  # noqa: E731
    for column in expected.obs:
        assert plain(back.obs[column]) == plain(expected.obs[column]), column
    pd.testing.assert_frame_equal(back.var, whole.var)
    np.testing.assert_array_equal(back.obsm["X_pca"], expected.obsm["X_pca"])
    assert back.uns["title"] == "a test"
    assert list(ds.history["action"]) == ["ingest", "append"] and ds.history["changed"].iloc[-1] == "25 cells, as part 2 of a matrix"


def test_tests_after_an_append_equal_those_of_one_ingest(ds, whole, db) -> None:
    new = more()
    ds.set_obs(np.arange(60) % 2 == 0, name="even")
    with pytest.warns(UserWarning):
        ds.append(new, batch=("old", "new"), progress=False) if "batch" not in ds.obs else ds.append(new, progress=False)
    with pytest.warns(UserWarning):
        both = db.ingest([whole, new], "lab/both", batch="source")
    ours = ds.rank_genes_groups("type", transform="log1p_cp10k", groups=["T", "B"]).to_df()
    pd.testing.assert_frame_equal(ours, both.rank_genes_groups("type", transform="log1p_cp10k", groups=["T", "B"]).to_df())


def test_append_asks_what_it_can_not_know(ds) -> None:
    new = more()
    with pytest.raises(InvalidError, match="no column 'donor' yet"):
        ds.append(new, batch={"donor": "d2"})
    with pytest.raises(InvalidError, match="different genes"):
        ds.append(new[:, :30].copy())
    clashing = more()
    clashing.obs["depth"] = "deep"
    with pytest.raises(InvalidError, match="'depth' clashes"):
        ds.append(clashing)
    twice = more()
    twice.obs_names = [f"cell-{i}" for i in range(25)]
    with pytest.raises(InvalidError, match="25 cells whose names"):
        ds.append(twice)
    assert len(ds.history) == 1


def test_append_of_a_file_and_again(tmp_path, db) -> None:
    first = ad.AnnData(sp.csr_matrix(counts()), obs=pd.DataFrame({"donor": pd.Categorical(["d1"] * 60)}, index=[f"a{i}" for i in range(60)]))
    ds = db.ingest(first, "lab/files")
    for n in (2, 3):
        new = ad.AnnData(sp.csr_matrix(counts(30, seed=n)), obs=pd.DataFrame(index=[f"{n}-{i}" for i in range(30)]))
        new.write_h5ad(tmp_path / f"{n}.h5ad")
        ds.append(tmp_path / f"{n}.h5ad", batch={"donor": f"d{n}"}, progress=False)
    assert ds.shape == (120, 40)
    assert ds.obs["donor"].value_counts().to_dict() == {"d1": 60, "d2": 30, "d3": 30}
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), np.vstack([counts(), counts(30, seed=2), counts(30, seed=3)]))


def test_append_fills_what_the_new_cells_lack(db) -> None:
    whole = rich()
    del whole.obsp["distances"], whole.obsm["frame"]
    ds = db.ingest(whole, "lab/gaps")
    ds.set_var(np.arange(40), name="number")
    new = ad.AnnData(sp.csr_matrix(counts(5, seed=3)), obs=pd.DataFrame(index=[f"n{i}" for i in range(5)]), var=pd.DataFrame(index=whole.var_names[::-1]))
    new.X[0, 0] = 77
    ds.append(new, progress=False)
    back = ds.to_anndata()
    assert back.obs["type"].isna().sum() == 5 and back.obs["depth"].isna().sum() == 5
    assert np.isnan(back.obsm["X_pca"][60:]).all() and np.isfinite(back.obsm["X_pca"][:60]).all()
    assert list(back.var["number"]) == list(range(40)) and back.uns["title"] == "a test"
    # Genes are joined by their names.
    assert back["n0", "g39"].X.toarray()[0, 0] == 77


# ---- elsewhere


def test_connection_makes_versions_too(tmp_path, whole) -> None:
    served = Served(tmp_path, 3)
    try:
        with msgexpress.connect(served.url) as db:
            ds = db.ingest(whole, "lab/a")
            for n in range(3):
                ds.set_obs(np.full(60, n), name="cluster")
            ds.set_layer("thrice", whole.X * 3)
            whole.obs["cluster"] = np.full(60, 2)
            whole.layers["thrice"] = whole.X * 3
            assert_same(ds.to_anndata(), whole)
            assert len(ds.history) == 5
        served.stop()
    finally:
        served.kill()


def test_commands_set_columns_and_show_history(tmp_path, whole) -> None:
    with msgexpress.open(tmp_path / "f", drives=2) as db:
        db.ingest(whole, "lab/a")
    frame = pd.DataFrame({"cluster": ["a", "b"] * 30, "score": np.arange(60.0)}, index=whole.obs_names)
    frame.to_csv(tmp_path / "clusters.csv")
    more().write_h5ad(tmp_path / "more.h5ad")
    done = command("set-obs", "lab/a", tmp_path / "clusters.csv", "--category", "cluster", "--fleet", tmp_path / "f")
    assert done.returncode == 0, done.stderr
    shown = command("history", "lab/a", "--fleet", tmp_path / "f")
    assert shown.returncode == 0 and "set_obs" in shown.stdout and "cluster, score" in shown.stdout, shown.stdout
    with msgexpress.open(tmp_path / "f") as db:
        assert list(db["lab/a"].obs["score"]) == list(range(60)) and list(db["lab/a"].obs["cluster"].cat.categories) == ["a", "b"]
    appended = command("append", "lab/a", tmp_path / "more.h5ad", "--column", "donor", "--label", "d2", "--first-label", "d1", "--fleet", tmp_path / "f")
    assert appended.returncode == 0 and "appended 25 cells" in appended.stderr, appended.stderr
    wrong = command("set-obs", "lab/a", tmp_path / "none.csv", "--fleet", tmp_path / "f")
    assert wrong.returncode == 1 and "none.csv" in wrong.stderr
