"""Differential expression equals scanpy's and scipy's."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import scipy.stats
from conftest import PBMC3K, rich

import msgexpress
import skytether

METHODS = ["t-test", "t-test_overestim_var"]


def normalised(adata: ad.AnnData, wide: bool = True) -> ad.AnnData:
    """Normalised in float32; `wide`: then made float64. scanpy squares values in their own type, and so do we."""
    adata = adata.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    if wide:
        adata.X = adata.X.astype(np.float64)
    return adata


def scanpy_says(adata: ad.AnnData, groupby: str, **options) -> ad.AnnData:
    sc.tl.rank_genes_groups(adata, groupby, pts=True, use_raw=False, **options)
    return adata


#: The largest relative distance of p-values that are no tail, and of the logarithms of the others, where counts are
#: normalised. Our logarithms differ from numpy's by an ulp of float32 at times, and scores by up to 9e-7. A tail
#: multiplies that: 1.3e-6 was measured for p-values, and 2.1e-6 for corrected ones.
LOG_P = 2.5e-6


def assert_agree(res: msgexpress.RankResult, adata: ad.AnnData, groups: list[str], reference: str = "rest", n_genes: int | None = None) -> None:
    """Scores and fold changes within 1e-6 (relative; absolute below 1), p-values within `LOG_P`, the same order but for
    ties."""
    assert res.groups == groups
    for group in groups:
        ours, theirs = res.to_df(group), sc.get.rank_genes_groups_df(adata, group=group)
        assert [c for c in theirs.columns if c != "pct_nz_reference"] == [c for c in ours.columns if c != "pct_nz_reference"]
        assert len(ours) == len(theirs) == (n_genes or adata.n_vars)
        if n_genes is None:
            assert list(ours["names"]) == list(ours["names"].unique())
            by_gene = theirs.set_index("names").loc[ours["names"]].reset_index()
        else:
            by_gene = theirs
        for column in ("scores", "logfoldchanges", "pvals", "pvals_adj"):
            assert ours[column].dtype == theirs[column].dtype
        scale = np.maximum(1, np.abs(by_gene["scores"]))
        assert (np.abs(ours["scores"] - by_gene["scores"]) / scale).max() < 1e-6
        for column in ("pvals", "pvals_adj"):
            assert_same_p(ours[column], by_gene[column])
        np.testing.assert_allclose(ours["logfoldchanges"], by_gene["logfoldchanges"], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ours["pct_nz_group"], by_gene["pct_nz_group"], rtol=1e-12)
        # The order: where it differs, the scores do not.
        assert (np.abs(ours["scores"].to_numpy() - theirs["scores"].to_numpy()) / np.maximum(1, np.abs(theirs["scores"]))).max() < 1e-6


def assert_same_p(ours: pd.Series, theirs: pd.Series, within: float = LOG_P) -> None:
    # Below, float64 has no room for 16 digits.
    some = theirs > 1e-290
    distance = np.abs(np.log(ours[some]) - np.log(theirs[some])) / np.maximum(1, np.abs(np.log(theirs[some])))
    assert distance.max() <= within
    np.testing.assert_allclose(ours[theirs > 0.01], theirs[theirs > 0.01], rtol=within)
    assert (ours[~some] < 1e-289).all()


@pytest.fixture(scope="module")
def pbmc3k():
    return normalised(ad.read_h5ad(PBMC3K), wide=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reference", ["rest", "B"])
def test_pbmc3k_agrees_with_scanpy(pbmc3k_fleet, pbmc3k, method, reference):
    groups = [g for g in pbmc3k.obs["cell_type"].cat.categories if g != reference]
    adata = scanpy_says(pbmc3k, "cell_type", method=method, reference=reference)
    with msgexpress.open(pbmc3k_fleet) as db:
        res = db["blood/pbmc3k"].rank_genes_groups("cell_type", method=method, reference=reference, transform="log1p_cp10k")
    assert_agree(res, adata, groups, reference)


@pytest.mark.parametrize("method", METHODS)
def test_p_values_of_the_same_logarithms_are_within_1e_6(db, pbmc3k, method):
    """Where both take the same logarithms, no tail multiplies an ulp of theirs."""
    adata = scanpy_says(ad.AnnData(pbmc3k.X[:, ::3], obs=pbmc3k.obs, var=pbmc3k.var[::3]), "cell_type", method=method)
    res = db.ingest(adata, "t/logs").rank_genes_groups("cell_type", method=method, transform=None)
    for group in res.groups:
        ours = res.to_df(group)
        theirs = sc.get.rank_genes_groups_df(adata, group).set_index("names").loc[ours["names"]].reset_index()
        for column in ("pvals", "pvals_adj"):
            some = theirs[column] > 1e-290
            np.testing.assert_allclose(ours[column][some], theirs[column][some], rtol=1e-6)
        np.testing.assert_allclose(ours["logfoldchanges"], theirs["logfoldchanges"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cut", ["full", "filter", "raw"])
def test_every_cut_gives_the_same(pbmc3k_fleet, cut):
    from skytether import _internal

    spec = _internal.moments_spec("blood.pbmc3k", "x", "log1p_cp10k", "cell_type", None)
    sql = f"SELECT gene_id, moments(idx, val, block, '{spec}') AS m FROM blood.pbmc3k.x_rows WHERE gene_id < 2000 GROUP BY gene_id ORDER BY gene_id"
    with msgexpress.open(pbmc3k_fleet) as db:
        wanted, found = db.fleet.sql(sql).to_arrow(), db.fleet.sql(sql, cut=cut).to_arrow()
    assert wanted.column(0).equals(found.column(0)) and wanted.num_rows == 2000
    for part in ("n", "nnz", "mean", "m2"):
        a, b = (np.array([[e[part] for e in row] for row in t.column(1).to_pylist()], float) for t in (wanted, found))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("corr_method", ["benjamini-hochberg", "bonferroni"])
@pytest.mark.parametrize(("reference", "groups"), [("rest", "all"), ("one", "all"), ("rest", ["ten", "two"]), ("two", ["ten"])])
def test_unlabelled_cells_references_and_choices(unlabelled, method, corr_method, reference, groups):
    adata, ds = unlabelled
    res = ds.rank_genes_groups("g", method, reference, groups, transform="log1p_cp10k", corr_method=corr_method)
    theirs = scanpy_says(normalised(adata), "g", method=method, reference=reference, groups=groups, corr_method=corr_method)
    wanted = [g for g in ("two", "one", "ten") if g != reference and (groups == "all" or g in groups)]
    assert_agree(res, theirs, wanted, reference)


def test_values_as_they_are_and_another_base(db):
    adata = rich()
    adata.layers["counts"] = adata.X.copy()
    adata = normalised(adata)
    adata.X = (adata.X / np.log(2)).astype(np.float64)
    adata.uns["log1p"] = {"base": 2.0}
    ds = db.ingest(adata, "t/x")
    assert_agree(ds.rank_genes_groups("batch", transform=None), scanpy_says(adata, "batch"), ["zwei", "eins"])
    counted = ds.rank_genes_groups("batch", transform="log1p_cp10k", layer="counts")
    del adata.uns["log1p"]
    plain = adata.copy()
    plain.X = adata.layers["counts"]
    assert_agree(counted, scanpy_says(normalised(plain), "batch"), ["zwei", "eins"])


@pytest.mark.parametrize("with_raw", [True, False])
def test_how_to_match_what_scanpy_does_by_default(db, with_raw):
    """scanpy's default is raw where there is one, and X where not; ours is X, and raw by `layer="raw"`."""
    adata = normalised(rich())
    if with_raw:
        adata.raw = adata.copy()
        adata = adata[:, 5:30].copy()
        adata.X = adata.X * 2
    ds = db.ingest(adata, "t/x")
    res = ds.rank_genes_groups("batch", transform=None, layer="raw" if with_raw else None)
    sc.tl.rank_genes_groups(adata, "batch", pts=True)
    params = adata.uns["rank_genes_groups"]["params"]
    assert {key: res.params[key] for key in params} == params and params["use_raw"] == with_raw
    theirs = adata.raw.to_adata() if with_raw else adata
    theirs.uns["rank_genes_groups"] = adata.uns["rank_genes_groups"]
    assert_agree(res, theirs, ["zwei", "eins"])


def test_the_result_works_in_scanpy(unlabelled):
    adata, ds = unlabelled
    theirs = scanpy_says(normalised(adata), "g", n_genes=7)
    res = ds.rank_genes_groups("g", transform="log1p_cp10k", n_genes=7)
    ours = normalised(adata)
    ours.uns["rank_genes_groups"] = res.to_uns()
    for key in ("names", "scores", "logfoldchanges", "pvals", "pvals_adj"):
        a, b = ours.uns["rank_genes_groups"][key], theirs.uns["rank_genes_groups"][key]
        assert type(a) is type(b) is np.recarray and a.dtype == b.dtype and a.shape == b.shape == (7,), key
    for key in ("pts", "pts_rest"):
        pd.testing.assert_frame_equal(ours.uns["rank_genes_groups"][key], theirs.uns["rank_genes_groups"][key])
    assert set(theirs.uns["rank_genes_groups"]["params"]) <= set(res.params) and res.params["transform"] == "log1p_cp10k"
    pd.testing.assert_frame_equal(sc.get.rank_genes_groups_df(ours, None)[["group", "names"]].astype(str), res.to_df()[["group", "names"]].astype(str))
    assert_agree(res, theirs, ["two", "one", "ten"], n_genes=7)
    assert res.top(3).shape == (3, 3) and list(res.top(3).columns) == res.groups
    import matplotlib

    matplotlib.use("Agg")
    sc.pl.rank_genes_groups(ours, show=False)
    sc.pl.rank_genes_groups_dotplot(ours, n_genes=2, dendrogram=False, show=False)
    assert "Welch" in repr(res) and "<table" in res._repr_html_()


@pytest.mark.parametrize("equal_var", [True, False])
def test_ttest_equals_scipy(db, equal_var):
    adata = normalised(rich())
    ds = db.ingest(adata, "t/x")
    kind = adata.obs["type"].to_numpy()
    n = np.arange(60)
    pairs = [
        ({"type": "T"}, {"type": "B"}, kind == "T", kind == "B"),
        ({"type": ["T", "NK"], "ok": True}, {"type": "B"}, (kind != "B") & (n % 2 == 0), kind == "B"),
        (n < 30, n >= 20, n < 30, n >= 20),  # they overlap
        (list(adata.obs_names[:10]), {"batch": "eins"}, n < 10, n % 2 == 1),  # they overlap
        ({"n": [1, 2, 3, 4]}, list(range(40, 60)), (n > 0) & (n < 5), n >= 40),
    ]
    for a, b, in_a, in_b in pairs:
        res = ds.ttest(a, b, equal_var=equal_var, transform=None, overlap=bool((in_a & in_b).any()))
        x, y = adata.X.toarray()[in_a], adata.X.toarray()[in_b]
        with np.errstate(invalid="ignore"):
            wanted = scipy.stats.ttest_ind(x, y, equal_var=equal_var)
        frame = res.to_df().set_index("names").loc[adata.var_names]
        t, p = np.nan_to_num(wanted.statistic, nan=0.0), np.where(np.isnan(wanted.pvalue), 1.0, wanted.pvalue)
        # Groups of one column have the numbers of rank_genes_groups, which squares in float32 as scanpy does.
        as_ranked = not equal_var and isinstance(a, dict) and {*a} == {*b}
        np.testing.assert_allclose(frame["scores"], t, rtol=1e-6 if as_ranked else 1e-10, atol=1e-10)
        np.testing.assert_allclose(frame["pvals"], p, rtol=2e-6 if as_ranked else 1e-8, atol=1e-12)
        np.testing.assert_allclose(frame["pct_nz_group"], (x > 0).mean(axis=0))
        np.testing.assert_allclose(frame["pct_nz_reference"], (y > 0).mean(axis=0))
        assert res.params["transform"] is None


def test_overlapping_sets_are_refused_unless_allowed(db):
    ds = db.ingest(normalised(rich()), "t/x")
    n = np.arange(60)
    with pytest.raises(skytether.InvalidError, match=r"10 cells of t/x are in both sets \('cell-20' is the first\).*overlap=True"):
        ds.ttest(n < 30, n >= 20, transform=None)
    with pytest.raises(skytether.InvalidError, match="cell 'cell-29' of t/x is in both sets, and"):
        ds.ttest(n < 30, n >= 29, transform=None)
    for overlap in (False, True):
        with pytest.raises(skytether.InvalidError, match="both sets are the same 30 cells of t/x: there is nothing to compare"):
            ds.ttest(n < 30, list(range(30)), transform=None, overlap=overlap)
    # Some in common with `rest` are none: a group's own cells are not in it.
    assert ds.rank_genes_groups("type", transform=None).groups


def test_student_of_groups_equals_scipy(db):
    adata = rich()
    frame = db.ingest(adata, "t/x").rank_genes_groups("type", "student", transform=None, groups=["B"]).to_df().set_index("names").loc[adata.var_names]
    x = adata.X.toarray().astype(np.float64)
    in_b = (adata.obs["type"] == "B").to_numpy()
    with np.errstate(invalid="ignore"):
        wanted = scipy.stats.ttest_ind(x[in_b], x[~in_b]).statistic
    np.testing.assert_allclose(frame["scores"], np.nan_to_num(wanted), rtol=1e-6, atol=1e-6)


def test_ttest_of_counts_as_they_are_warns(db):
    ds = db.ingest(rich(), "t/x")
    with pytest.warns(UserWarning, match="log1p_cp10k"):
        res = ds.ttest({"type": "T"}, {"type": "B"}, transform=None)
    assert res.params["transform"] is None
    with pytest.raises(skytether.InvalidError, match="say transform=: .* looks like raw counts"):
        ds.ttest({"type": "T"}, {"type": "B"})


def test_a_gene_of_zeros_is_no_difference(db):
    frame = db.ingest(rich(), "t/x").rank_genes_groups("type", transform="log1p_cp10k").to_df("B").set_index("names")
    gene = frame.loc["g20"]
    assert (gene["scores"], gene["logfoldchanges"], gene["pvals"], gene["pvals_adj"], gene["pct_nz_group"]) == (0, 0, 1, 1, 0)


def test_receipt_names_where_each_slice_ran(pbmc3k_fleet):
    with msgexpress.open(pbmc3k_fleet) as db:
        res = db["blood/pbmc3k"].rank_genes_groups("cell_type", transform="log1p_cp10k")
    receipt = res.receipt.to_dict()
    assert {"bytes_stored", "bytes_read", "bytes_moved", "seconds", "drives"} <= set(receipt)
    assert sorted(d["name"] for d in receipt["drives"]) == [f"drive-{i}" for i in range(4)]
    for drive in receipt["drives"]:
        assert {"name", "rung", "slices", "slices_pruned", "rows_out", "bytes_read", "bytes_sent", "seconds", "reason"} <= set(drive)
        assert drive["rung"] == "full" and drive["reason"] is None and drive["bytes_read"] > 0
    assert receipt["bytes_moved"] >= sum(d["bytes_sent"] for d in receipt["drives"]) > 0
    assert "drive-3" in str(res.receipt) and "├─" in str(res.receipt)


def test_the_dense_view_has_the_numbers_of_the_matrix(pbmc3k_fleet):
    genes = ["CD79A", "NKG7", "MALAT1"]
    asked = "SELECT gene, sum(value) AS s, sum(value * value) AS q, sum(CASE WHEN value > 0 THEN 1 ELSE 0 END) AS nz, count(*) AS n FROM blood.pbmc3k.x"
    with msgexpress.open(pbmc3k_fleet) as db:
        dense = db.fleet.sql(f"{asked} WHERE gene IN ('CD79A', 'NKG7', 'MALAT1') GROUP BY gene").to_pandas().set_index("gene").loc[genes]
    x = ad.read_h5ad(PBMC3K)[:, genes].X.toarray().astype(np.float64)
    assert dense["n"].tolist() == [2700] * 3
    # Counts: all sums are whole numbers, and exact.
    for column, wanted in (("s", x.sum(axis=0)), ("q", (x**2).sum(axis=0)), ("nz", (x > 0).sum(axis=0))):
        assert dense[column].tolist() == wanted.tolist(), column
    assert x.sum() > 1000 and 0 < (x > 0).mean() < 1


SCORES = """
    SELECT gene, t_test(cell_moments(cell, value, 'cell_type', 'log1p_cp10k'), 'B', 'rest', '{method}')['score'] AS score
    FROM blood.pbmc3k.x GROUP BY gene ORDER BY gene
"""


@pytest.mark.parametrize("method", METHODS)
def test_sql_over_the_dense_view_equals_rank_genes_groups(pbmc3k_fleet, method):
    with msgexpress.open(pbmc3k_fleet) as db:
        ranked = db["blood/pbmc3k"].rank_genes_groups("cell_type", method, transform="log1p_cp10k", groups=["B"]).to_df("B").set_index("names")
        result = db.fleet.sql(SCORES.format(method=method))
        scores = result.to_pandas().set_index("gene")["score"]
        rungs = {d["rung"] for d in result.receipt.to_dict()["drives"]}
    assert rungs == {"full"} and len(scores) == len(ranked) == 32738
    wanted = ranked["scores"].loc[scores.index].to_numpy(np.float64)
    assert (np.abs(scores.to_numpy() - wanted) / np.maximum(1, np.abs(wanted))).max() < 2e-6
    assert np.abs(wanted).max() > 10


def test_plain_sql_gives_the_same_scores(db):
    """Three ways to one number: rows of the dense view one by one, plain averages and variances,
    and `rank_genes_groups`."""
    from skytether import _internal

    ds = db.ingest(rich(), "t/x")
    ranked = ds.rank_genes_groups("type", transform="log1p_cp10k", groups=["B"]).to_df("B").set_index("names")["scores"].astype(np.float64)
    # A filter on values, even one that every value passes, keeps the call from being rewritten to sparse rows.
    spec = _internal.moments_spec("t.x", "x", "log1p_cp10k", "type", None)
    one_by_one = db.fleet.sql(
        f"SELECT gene, t_test(cell_moments(cell, value, '{spec}', 'log1p_cp10k'), 'B', 'rest', 't-test')['score'] AS score FROM t.x.x WHERE value >= 0 GROUP BY gene"
    )
    plain = db.fleet.sql("""
        WITH totals AS (SELECT cell, sum(value) AS total FROM t.x.x GROUP BY cell),
             logs AS (SELECT x.gene, o.type = 'B' AS inside, CAST(arrow_cast(ln(1 + x.value / t.total * 1e4), 'Float32') AS DOUBLE) AS v
                      FROM t.x.x x JOIN totals t ON x.cell = t.cell JOIN t.x.obs o ON x.cell = o.cell),
             sides AS (SELECT gene, inside, avg(v) AS m, var_samp(v) AS s, count(*) AS n FROM logs GROUP BY gene, inside)
        SELECT a.gene, (a.m - b.m) / sqrt(a.s / a.n + b.s / b.n) AS score
        FROM sides a JOIN sides b ON a.gene = b.gene WHERE a.inside AND NOT b.inside
    """)
    for result in (one_by_one, plain):
        scores = result.to_pandas().set_index("gene")["score"].reindex(ranked.index).to_numpy(np.float64)
        # A gene without any value has no score in plain SQL (0 / 0), and 0 in a t-test.
        assert np.isnan(scores).sum() <= 1
        scores = np.nan_to_num(scores)
        assert (np.abs(scores - ranked.to_numpy()) / np.maximum(1, np.abs(ranked.to_numpy()))).max() < 2e-6
    assert ranked.abs().max() > 1


def test_volcano(unlabelled, tmp_path):
    _, ds = unlabelled
    res = ds.rank_genes_groups("g", transform="log1p_cp10k")
    for ending in ("png", "svg"):
        res.plot_volcano("two", path=tmp_path / f"v.{ending}")
        assert (tmp_path / f"v.{ending}").stat().st_size > 5000
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert res.plot_volcano("one", ax=ax) is ax and "one against all other cells" in ax.get_title(loc="left")
    with pytest.raises(ValueError, match="say which group"):
        res.plot_volcano()
    nan = float("nan")
    for wrong in ({"p": 0}, {"p": -0.1}, {"p": 1.5}, {"p": nan}, {"lfc": -1}, {"lfc": nan}, {"lfc": float("inf")}):
        (name,) = wrong
        with pytest.raises(skytether.InvalidError, match=f"^{name} is "):
            res.plot_volcano("one", ax=ax, **wrong)
    for fine in ({"p": 1}, {"lfc": 0}):
        res.plot_volcano("one", ax=plt.subplots()[1], **fine)
    plt.close("all")


def test_names_in_the_plot_do_not_overlap(pbmc3k_fleet, tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with msgexpress.open(pbmc3k_fleet) as db:
        res = db["blood/pbmc3k"].rank_genes_groups("cell_type", transform="log1p_cp10k", groups=["B"])
    figure = Figure(figsize=(8, 6), dpi=150)
    canvas = FigureCanvasAgg(figure)
    ax = res.plot_volcano(ax=figure.add_subplot())
    frame, drawn = res.to_df(), ax.data
    pd.testing.assert_frame_equal(drawn.drop(columns="side")[["names", "pvals_adj"]], frame[["names", "pvals_adj"]])
    significant = frame["pvals_adj"] < 0.05
    assert (drawn["side"] == "higher").equals(significant & (frame["logfoldchanges"] > 1))
    assert (drawn["side"] == "lower").equals(significant & (frame["logfoldchanges"] < -1))
    canvas.draw()
    boxes = [t.get_window_extent() for t in ax.texts if t.get_text() in set(res.to_df()["names"])]
    assert len(boxes) >= 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_nothing_to_rank(db):
    no_genes = ad.AnnData(X=sp.csr_matrix((6, 0), dtype=np.float32), obs=pd.DataFrame({"g": list("aabbcc")}, index=list("123456")))
    with pytest.raises(skytether.InvalidError, match="t/genes has no genes: there is nothing to test"):
        db.ingest(no_genes, "t/genes").rank_genes_groups("g", transform=None)


def test_obs_column_named_like_a_sql_keyword(db):
    """`cell` is the cells' names in SQL, and the column of that name is called otherwise there."""
    adata = rich()
    adata.obs["cell"] = pd.Categorical(adata.obs["type"], categories=["NK", "T", "B"])
    ds = db.ingest(adata, "t/x")
    res = ds.rank_genes_groups("cell", transform="log1p_cp10k")
    assert res.groups == ["NK", "T", "B"] and res.params["groupby"] == "cell"
    pd.testing.assert_frame_equal(res.to_df("T"), ds.rank_genes_groups("type", transform="log1p_cp10k").to_df("T"))
    # Without such a column the cells' names are no groups, nor is what only SQL calls a column.
    ds = db.ingest(ad.AnnData(X=adata.X, obs=adata.obs[["type"]]), "t/x", replace=True)
    for name in ("cell", "cell_1"):
        with pytest.raises(skytether.NotFoundError, match=f"no column '{name}': it has 'type'"):
            ds.rank_genes_groups(name, transform=None)


def test_a_column_that_a_table_cannot_hold(db):
    adata = rich()
    adata.obs["span"] = pd.to_timedelta(np.arange(60), unit="s")
    from msgexpress import _memory

    # h5ad files have no such columns, but a source may.
    source = _memory.source(rich())
    source.obs = adata.obs
    source.arrange(None)
    ds = db._store(source, "t/x", False, False)
    with pytest.raises(skytether.UnsupportedError, match="'span'.*what a table can't"):
        ds.rank_genes_groups("span", transform=None)


def test_groups_that_are_no_text(db):
    adata = rich()
    adata.obs["level"] = np.arange(60) % 3
    adata.obs["yes"] = pd.Categorical(np.arange(60) % 2 == 0)
    ds = db.ingest(adata, "t/x")
    whole = ds.rank_genes_groups("ok", transform=None)
    assert whole.groups == ["False", "True"] and whole.to_df("true").equals(whole.to_df(True))
    for true in (True, np.True_, "true", "True"):
        for groups in ([true], true):
            pd.testing.assert_frame_equal(ds.rank_genes_groups("ok", transform=None, groups=groups).to_df(), whole.to_df("True"))
        pd.testing.assert_frame_equal(whole.to_df(true), whole.to_df("true"))
    against = ds.rank_genes_groups("ok", transform=None, reference=True)
    assert against.groups == ["False"] and against.params["reference"] == "True"
    assert ds.rank_genes_groups("ok", transform=None, reference="True").groups == ["False"]
    # As categories they are written as pandas writes them.
    assert ds.rank_genes_groups("yes", transform=None, groups=[True]).groups == ["True"]
    levels = ds.rank_genes_groups("level", transform=None, groups=range(2))
    assert levels.groups == ["0", "1"]
    pd.testing.assert_frame_equal(levels.to_df(1), levels.to_df("1"))
    pd.testing.assert_frame_equal(levels.to_df(range(2)), levels.to_df())
    with pytest.raises(KeyError, match="no group '3'"):
        levels.to_df(3)


def test_groups_of_nullable_columns_are_those_of_scanpy(db):
    """Numbers in their order, booleans as `True` and `False`; cells without a value are in no group."""
    adata = rich()
    number = np.arange(60) % 11
    adata.obs["level"] = pd.array([None if n % 7 == 0 else v for n, v in enumerate(number)], dtype="Int64")
    adata.obs["maybe so"] = pd.array([None if n % 7 == 0 else n % 2 == 0 for n in range(60)], dtype="boolean")
    ds = db.ingest(adata, "t/x")
    for column, names in (("level", [str(v) for v in range(11)]), ("maybe so", ["False", "True"])):
        again = normalised(adata)
        texts = adata.obs[column].astype("string")
        again.obs["g"] = pd.Categorical(texts.where(texts.notna(), None).astype(object), categories=names)
        assert_agree(ds.rank_genes_groups(column, transform="log1p_cp10k"), scanpy_says(again, "g"), names)
    assert ds.rank_genes_groups("maybe so", transform=None, reference=False).groups == ["True"]
    assert ds.rank_genes_groups("level", transform=None, groups=[1, 10], reference="3").groups == ["1", "10"]


def test_a_group_without_a_name(db, tmp_path):
    adata = rich()
    adata.obs["g"] = pd.Categorical(np.array(["", "x", "y"])[np.arange(60) % 3])
    ds = db.ingest(adata, "t/x")
    res = ds.rank_genes_groups("g", transform="log1p_cp10k")
    assert_agree(res, scanpy_says(normalised(adata), "g"), ["", "x", "y"])
    records = res.to_uns()["names"]
    assert [records[f].tolist() for f in records.dtype.names] == [res.to_df(g)["names"].tolist() for g in res.groups]
    assert ds.rank_genes_groups("g", transform=None, reference="").groups == ["x", "y"]
    assert ds.rank_genes_groups("g", transform=None, groups="").groups == [""]
    res.plot_volcano("", path=tmp_path / "v.png")
    assert (tmp_path / "v.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "wanted", [range(4), pd.Series([0, 1, 2, 3]), pd.Index([0, 1, 2, 3]), {0: "a", 1: "b", 2: "c", 3: "d"}.keys(), (i for i in range(4)), np.arange(4), {0, 1, 2, 3}], ids=lambda w: type(w).__name__
)
def test_sets_of_cells_by_several_values(db, wanted):
    adata = normalised(rich())
    res = db.ingest(adata, "t/x").ttest({"n": wanted}, {"type": "B", "ok": True}, equal_var=True, transform=None)
    assert res.groups == ["0, 1, 2, 3"] and res.params["reference"] == "B & True"
    x = adata.X.toarray()
    with np.errstate(invalid="ignore"):
        wanted_scores = scipy.stats.ttest_ind(x[:4], x[(adata.obs["type"] == "B") & adata.obs["ok"]]).statistic
    frame = res.to_df().set_index("names").loc[adata.var_names]
    np.testing.assert_allclose(frame["scores"], np.nan_to_num(wanted_scores), rtol=1e-9, atol=1e-9)


def test_masks_go_by_their_names(db):
    adata = ad.AnnData(np.random.default_rng(3).poisson(2, (40, 5)).astype(np.float32), obs=pd.DataFrame({"n": range(40)}, index=[f"c{n}" for n in range(40)]))
    ds = db.ingest(adata, "t/masks", replace=True)
    few = adata.obs["n"] < 13
    due = ds.ttest(few, ~few, transform=None).to_df()
    shuffled = ds.ttest(few.sample(frac=1, random_state=1), ~few.to_numpy(), transform=None).to_df()
    pd.testing.assert_frame_equal(shuffled, due)
    pd.testing.assert_frame_equal(ds.ttest(few.reset_index(drop=True), ~few, transform=None).to_df(), due)
    with pytest.raises(skytether.InvalidError, match="astype"):
        ds.ttest(few.astype(int), ~few, transform=None)
    with pytest.raises(skytether.InvalidError, match="to_numpy"):
        ds.ttest(few.rename(lambda name: name + "-1"), ~few, transform=None)
