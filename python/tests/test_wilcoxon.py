"""Wilcoxon's rank sum test equals scanpy's and scipy's, in every option, over one block of cells and several."""

from __future__ import annotations

import shutil

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import scipy.stats
from conftest import PBMC3K, rich

import msgexpress
import msgexpress._rank_sums
import msgexpress.cli
import skytether


def normalised(adata: ad.AnnData) -> ad.AnnData:
    """As scanpy does, with logarithms that are rounded right: float32 ones of some C libraries are a bit off: some ties
    differ then."""
    adata = adata.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    adata.X.data = np.log1p(adata.X.data.astype(np.float64)).astype(np.float32)
    adata.uns["log1p"] = {"base": None}
    return adata


def scanpy_says(adata: ad.AnnData, groupby: str, **options) -> ad.AnnData:
    sc.tl.rank_genes_groups(adata, groupby, method="wilcoxon", pts=True, **{"use_raw": False, **options})
    return adata


def assert_agree(res: msgexpress.RankResult, adata: ad.AnnData, groups: list[str]) -> None:
    """Every column within 1e-6, gene by gene; the order but for equal scores."""
    assert res.groups == groups
    for group in groups:
        ours, theirs = res.to_df(group), sc.get.rank_genes_groups_df(adata, group=group)
        assert len(ours) == len(theirs)
        np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-6, atol=1e-6)
        by_gene = theirs.set_index("names").loc[ours["names"]].reset_index()
        for column in ("scores", "logfoldchanges", "pct_nz_group"):
            assert ours[column].dtype == by_gene[column].dtype
            np.testing.assert_allclose(ours[column], by_gene[column], rtol=1e-6, atol=1e-6, err_msg=f"{group} {column}")
        for column in ("pvals", "pvals_adj"):
            np.testing.assert_allclose(ours[column], by_gene[column], rtol=1e-6, atol=1e-300, err_msg=f"{group} {column}")


@pytest.fixture(scope="module")
def pbmc3k():
    return normalised(ad.read_h5ad(PBMC3K))


@pytest.mark.parametrize("tie_correct", [False, True])
@pytest.mark.parametrize("reference", ["rest", "B"])
def test_pbmc3k_agrees_with_scanpy(pbmc3k_fleet, pbmc3k, reference, tie_correct):
    groups = [g for g in pbmc3k.obs["cell_type"].cat.categories if g != reference]
    adata = scanpy_says(pbmc3k, "cell_type", reference=reference, tie_correct=tie_correct)
    with msgexpress.open(pbmc3k_fleet) as db:
        res = db["blood/pbmc3k"].rank_genes_groups("cell_type", "wilcoxon", reference, transform="log1p_cp10k", tie_correct=tie_correct)
    assert_agree(res, adata, groups)


@pytest.fixture(scope="module")
def stock():
    """pbmc3k as scanpy normalises it, with the logarithms of this machine's C library."""
    adata = ad.read_h5ad(PBMC3K)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


@pytest.fixture(scope="module")
def stock_fleet(stock, tmp_path_factory):
    path = tmp_path_factory.mktemp("stock") / "fleet"
    with msgexpress.open(path, drives=4) as db:
        db.ingest(stock, "blood/logs")
    return path


@pytest.mark.parametrize("tie_correct", [False, True])
@pytest.mark.parametrize("reference", ["rest", "B"])
def test_logarithms_of_scanpy_agree_as_they_are(stock_fleet, stock, reference, tie_correct):
    """Of the same values, ties are the same: nothing of scanpy is replaced here."""
    groups = [g for g in stock.obs["cell_type"].cat.categories if g != reference]
    theirs = scanpy_says(stock.copy(), "cell_type", reference=reference, tie_correct=tie_correct)
    with msgexpress.open(stock_fleet) as db:
        res = db["blood/logs"].rank_genes_groups("cell_type", "wilcoxon", reference, transform=None, tie_correct=tie_correct)
    assert_agree(res, theirs, groups)


@pytest.mark.parametrize("tie_correct", [False, True])
@pytest.mark.parametrize("corr_method", ["benjamini-hochberg", "bonferroni"])
@pytest.mark.parametrize(("reference", "groups"), [("rest", "all"), ("one", "all"), ("rest", ["ten", "two"]), ("two", ["ten"])])
def test_unlabelled_cells_references_and_choices(unlabelled, corr_method, reference, groups, tie_correct):
    adata, ds = unlabelled
    res = ds.rank_genes_groups("g", "wilcoxon", reference, groups, transform="log1p_cp10k", corr_method=corr_method, tie_correct=tie_correct)
    theirs = scanpy_says(normalised(adata), "g", reference=reference, groups=groups, corr_method=corr_method, tie_correct=tie_correct)
    assert_agree(res, theirs, [g for g in ("two", "one", "ten") if g != reference and (groups == "all" or g in groups)])


@pytest.mark.parametrize("reference", ["rest", "one"])
def test_some_cells_and_genes_as_a_part_of_an_anndata(unlabelled, reference):
    adata, ds = unlabelled
    chosen, genes = np.arange(60) % 7 != 0, np.arange(40) % 3 == 0
    res = ds.rank_genes_groups("g", "wilcoxon", reference, transform="log1p_cp10k", cells=chosen, genes=genes, tie_correct=True)
    part = normalised(adata)[chosen].copy()
    part.var["mask"] = genes
    theirs = scanpy_says(part, "g", reference=reference, tie_correct=True, mask_var="mask")
    assert_agree(res, theirs, [g for g in ("two", "one", "ten") if g != reference])


def test_n_genes_shows_the_best_and_corrects_for_all(unlabelled):
    adata, ds = unlabelled
    res = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", n_genes=5)
    assert_agree(res, scanpy_says(normalised(adata), "g", n_genes=5), ["two", "one", "ten"])


def test_layers_and_raw_are_tested_as_scanpy_does(db):
    adata = rich()
    adata.layers["logs"] = normalised(adata).X
    adata.raw = normalised(adata)[:, 5:25]
    adata.X = sp.csr_matrix(adata.X * 2)
    ds = db.ingest(adata, "t/x", layer="X")
    assert_agree(ds.rank_genes_groups("batch", "wilcoxon", transform=None, layer="logs"), scanpy_says(adata, "batch", layer="logs"), ["zwei", "eins"])
    assert_agree(ds.rank_genes_groups("batch", "wilcoxon", transform=None, use_raw=True), scanpy_says(adata, "batch", use_raw=True), ["zwei", "eins"])


def some_values(kind: str, cells: int = 90, genes: int = 25) -> np.ndarray:
    """Values with many ties and zeros; `kind` says their type and sign."""
    rng = np.random.default_rng(5)
    x = rng.integers(-3 if "negative" in kind else 0, 4, (cells, genes)) * (rng.random((cells, genes)) < 0.7)
    if "fractions" in kind:
        x = x + np.where(rng.random((cells, genes)) < 0.3, rng.normal(size=(cells, genes)), 0)
        x = x if "negative" in kind else np.abs(x)
    x[:, 0], x[:, 1] = 0, 2
    return x.astype(np.float64 if "double" in kind else np.float32)


@pytest.mark.parametrize("kind", ["counts", "negative", "fractions", "negative fractions", "negative fractions double"])
@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_any_values_equal_scipy_and_scanpy(db, kind):
    x = some_values(kind)
    g = np.array(["a", "b", "c"])[np.arange(90) % 3]
    adata = ad.AnnData(sp.csr_matrix(x), obs=pd.DataFrame({"g": pd.Categorical(g)}, index=[f"c{i}" for i in range(90)]))
    ds = db.ingest(adata, "t/x")
    with np.errstate(all="ignore"):
        for reference in ("rest", "b"):
            for tie_correct in (False, True):
                res = ds.rank_genes_groups("g", "wilcoxon", reference, transform=None, tie_correct=tie_correct)
                theirs = scanpy_says(adata.copy(), "g", reference=reference, tie_correct=tie_correct)
                for group in res.groups:
                    ours, other = res.to_df(group).set_index("names").sort_index(), sc.get.rank_genes_groups_df(theirs, group).set_index("names").sort_index()
                    np.testing.assert_allclose(ours["scores"], other["scores"], rtol=1e-6, atol=1e-6)
                    np.testing.assert_allclose(ours["pvals"], other["pvals"], rtol=1e-6)
    two = ds.wilcoxon({"g": "a"}, {"g": ["b", "c"]}, tie_correct=True, transform=None).to_df().set_index("names").loc[ds.var_names]
    wanted = [mannwhitney(x[g == "a", gene], x[g != "a", gene]) for gene in range(25)]
    np.testing.assert_allclose(two["pvals"], [p for _, p in wanted], rtol=1e-12)
    np.testing.assert_allclose(two["scores"], [z for z, _ in wanted], rtol=1e-12, atol=1e-12)


def mannwhitney(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """z and p of scipy; 0 and 1 where all values are equal."""
    # scipy computes in the type of its arguments.
    a, b = a.astype(np.float64), b.astype(np.float64)
    u = scipy.stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False)
    if np.isnan(u.pvalue) or len({*a, *b}) == 1:
        return 0.0, 1.0
    z = scipy.stats.norm.isf(u.pvalue / 2)
    return (z if u.statistic >= len(a) * len(b) / 2 else -z), u.pvalue


def test_two_sets_may_be_any_cells(unlabelled):
    adata, ds = unlabelled
    logs = normalised(adata).X.toarray()
    a, b = np.arange(60) % 5 == 0, np.arange(60) % 5 == 2
    for tie_correct in (False, True):
        res = ds.wilcoxon(a, b, tie_correct, transform="log1p_cp10k", genes=["g3", "g1", "g30"])
        assert sorted(res["names"]) == ["g1", "g3", "g30"] and res.to_df()["scores"].dtype == np.float64
        for _, row in res.to_df().iterrows():
            gene = int(row["names"][1:])
            both = np.concatenate([logs[a, gene], logs[b, gene]])
            ties = np.unique(both, return_counts=True)[1].astype(float)
            n = len(both)
            t = 1 - (ties**3 - ties).sum() / (n**3 - n) if tie_correct else 1
            z = (scipy.stats.rankdata(both)[: a.sum()].sum() - a.sum() * (n + 1) / 2) / np.sqrt(t * a.sum() * b.sum() * (n + 1) / 12)
            assert row["scores"] == pytest.approx(z, rel=1e-12)
            assert row["pvals"] == pytest.approx(2 * scipy.stats.norm.sf(abs(z)), rel=1e-12)
    assert res.test == "Wilcoxon rank sum test, corrected for ties"


def test_overlapping_sets_are_refused_or_ranked_twice(unlabelled):
    adata, ds = unlabelled
    logs = normalised(adata).X.toarray()
    a, b = np.arange(60) < 25, np.arange(60) > 15
    with pytest.raises(skytether.InvalidError, match="overlap=True"):
        ds.wilcoxon(a, b, transform="log1p_cp10k")
    res = ds.wilcoxon(a, b, True, transform="log1p_cp10k", overlap=True).to_df().set_index("names").loc[ds.var_names]
    wanted = [mannwhitney(logs[a, gene], logs[b, gene]) for gene in range(40)]
    np.testing.assert_allclose(res["pvals"], [p for _, p in wanted], rtol=1e-12)


def test_far_tails_keep_their_p_values(db):
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0, 1, (900, 3)), rng.normal([9.0, 2.0, 0.5], 1, (900, 3))]).astype(np.float32)
    ds = db.ingest(ad.AnnData(x), "t/x")
    a = np.arange(1800) >= 900
    found = ds.wilcoxon(a, ~a, transform=None).to_df()
    z = found["scores"].to_numpy()
    assert found["pvals"].min() < 1e-280
    np.testing.assert_allclose(found["pvals"], 2 * scipy.stats.norm.sf(np.abs(z)), rtol=1e-11)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """70,000 cells of few genes, which are two blocks, and the fleet that they are in."""
    rng = np.random.default_rng(11)
    x = sp.random(70_000, 30, 0.2, format="csr", random_state=3, data_rvs=lambda n: rng.integers(1, 40, n))
    x = sp.csr_matrix(x + sp.csr_matrix(([1.0] * 70_000, (np.arange(70_000), rng.integers(0, 30, 70_000))), (70_000, 30)), dtype=np.float32)
    labels = np.array(["a", "b", "c", None], dtype=object)[rng.integers(0, 4, 70_000)]
    adata = ad.AnnData(x, obs=pd.DataFrame({"g": pd.Categorical(labels)}, index=[f"c{i}" for i in range(70_000)]))
    path = tmp_path_factory.mktemp("large") / "fleet"
    with msgexpress.open(path, drives=3, redundancy="ec:2+1") as db:
        db.ingest(adata, "t/large")
    return path, normalised(adata)


@pytest.mark.parametrize("reference", ["rest", "c"])
def test_several_blocks_agree_with_scanpy(large, reference):
    path, logs = large
    with msgexpress.open(path) as db:
        ds = db["t/large"]
        res = ds.rank_genes_groups("g", "wilcoxon", reference, transform="log1p_cp10k", tie_correct=True)
        part = ds.wilcoxon({"g": "a"}, np.arange(70_000) >= 69_000, True, transform="log1p_cp10k", overlap=True).to_df().set_index("names").loc[ds.var_names]
    assert_agree(res, scanpy_says(logs, "g", reference=reference, tie_correct=True), [g for g in "abc" if g != reference])
    dense, a = logs.X.toarray(), (logs.obs["g"] == "a").to_numpy()
    np.testing.assert_allclose(part["pvals"], [mannwhitney(dense[a, gene], dense[69_000:, gene])[1] for gene in range(30)], rtol=1e-9)


def test_ranges_of_genes_give_the_bits_of_one_query(large, monkeypatch):
    with msgexpress.open(large[0]) as db:
        ds = db["t/large"]
        whole = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k")
        monkeypatch.setattr(msgexpress._rank_sums, "_MOST_BYTES", 100_000 * 6)
        parts = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k")
        some = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", genes=range(4, 29))
    pd.testing.assert_frame_equal(parts.to_df(), whole.to_df())
    columns = ["names", "scores", "pvals"]
    kept = whole.to_df("a")[columns]
    pd.testing.assert_frame_equal(some.to_df("a")[columns], kept[kept["names"].isin(ds.var_names[4:29])].reset_index(drop=True))
    told = parts.receipt.to_dict()
    assert told["queries"] > 4 and told["rows"] == 30 and len(told["drives"]) == 3
    assert "30 genes" in str(parts.receipt) and f"in {told['queries']} queries" in str(parts.receipt)
    # The column of counts is read as well, and the rest not much more than once.
    assert told["bytes_moved"] < 4 * whole.receipt.to_dict()["bytes_moved"] + 100_000


def test_scattered_genes_of_several_queries_come_once(large, monkeypatch):
    with msgexpress.open(large[0]) as db:
        ds = db["t/large"]
        genes = range(0, 30, 2)
        options = {"transform": "log1p_cp10k", "genes": genes}
        whole, pairs = ds.rank_genes_groups("g", "wilcoxon", **options), ds.pairwise("g", method="wilcoxon", tie_correct=True, **options)
        monkeypatch.setattr(msgexpress._rank_sums, "_MOST_BYTES", 200_000 * 6)
        # A query that can't name its genes reads all from its first to its last.
        monkeypatch.setattr(msgexpress._export, "_MOST_NAMED", 2)
        parts, of_parts = ds.rank_genes_groups("g", "wilcoxon", **options), ds.pairwise("g", method="wilcoxon", tie_correct=True, **options)
    pd.testing.assert_frame_equal(parts.to_df(), whole.to_df())
    pd.testing.assert_frame_equal(of_parts.to_df("a", "b"), pairs.to_df("a", "b"))
    assert parts.receipt.to_dict()["queries"] > 4


def test_ranges_have_every_gene_once_and_no_more_than_asked():
    rng = np.random.default_rng(3)
    nonzeros = rng.integers(0, 1000, 500)
    for drives in (1, 3, 7):
        parts = list(msgexpress._rank_sums.ranges(nonzeros, None, drives, 20_000))
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(500))
        assert len(parts) > 8 and max(nonzeros[part].sum() for part in parts) < 20_000 + 1000 * drives
    assert list(msgexpress._rank_sums.ranges(nonzeros, None, 3, 10**9)) == [None]


@pytest.mark.parametrize("cut", ["filter", "raw"])
@pytest.mark.parametrize("against", [None, "b"])
def test_other_cuts_give_the_same_bits(large, cut, against):
    from skytether import _internal

    spec = _internal.rank_sums_spec(_internal.moments_spec("t.large", "x", "log1p_cp10k", "g", None), against)
    sql = f"SELECT gene_id, rank_sums(idx, val, block, '{spec}') AS r FROM t.large.x_rows GROUP BY gene_id ORDER BY gene_id"
    with msgexpress.open(large[0]) as db:
        wanted, found = db.fleet.sql(sql).to_arrow(), db.fleet.sql(sql, cut=cut).to_arrow()
    assert wanted.num_rows == 30 and len(wanted.column("r")[0]) == 4
    assert wanted.equals(found)


def test_lost_drive_changes_no_bit(large, tmp_path):
    path = tmp_path / "fleet"
    shutil.copytree(large[0], path)
    with msgexpress.open(path) as db:
        whole = db["t/large"].rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k").to_df()
    shutil.rmtree(path / "drives" / "1")
    with msgexpress.open(path) as db:
        pd.testing.assert_frame_equal(db["t/large"].rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k").to_df(), whole)


def test_part_of_the_blocks_is_refused(large):
    from skytether import _internal

    spec = _internal.rank_sums_spec(_internal.moments_spec("t.large", "x", None, "g", None))
    with msgexpress.open(large[0]) as db, pytest.raises(skytether.InvalidError, match="of the [0-9]+ cells of a gene"):
        db.fleet.sql(f"SELECT gene_id, rank_sums(idx, val, block, '{spec}') AS r FROM t.large.x_rows WHERE block = 0 GROUP BY gene_id").to_arrow()


def test_results_say_which_test_they_are_of(unlabelled):
    adata, ds = unlabelled
    res = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", tie_correct=True)
    assert res.test == "Wilcoxon rank sum test, corrected for ties" and "Wilcoxon rank sum test" in repr(res)
    assert res.params["method"] == "wilcoxon" and res.params["tie_correct"] is True
    assert ds.wilcoxon({"g": "one"}, {"g": "two"}, transform="log1p_cp10k").test == "Wilcoxon rank sum test"
    theirs = normalised(adata)
    theirs.uns["rank_genes_groups"] = res.to_uns()
    assert_agree(res, theirs, ["two", "one", "ten"])
    assert len(res.receipt.to_dict()["drives"]) > 0


def test_options_of_other_tests_are_refused(unlabelled):
    _, ds = unlabelled
    with pytest.raises(skytether.InvalidError, match="method=\"wilcoxon\""):
        ds.rank_genes_groups("g", transform=None, tie_correct=True)
    with pytest.raises(skytether.InvalidError, match="ds.wilcoxon"):
        ds.ttest({"g": "one"}, {"g": "two"}, method="wilcoxon", transform=None)
    with pytest.raises(skytether.InvalidError, match="ds.wilcoxon"):
        ds.ttest({"g": "one"}, {"g": "two"}, transform=None, tie_correct=True)
    with pytest.raises(TypeError, match="equal_var"):
        ds.wilcoxon({"g": "one"}, {"g": "two"}, transform=None, equal_var=True)
    with pytest.raises(skytether.InvalidError, match="transform"):
        ds.wilcoxon({"g": "one"}, {"g": "two"})
    with pytest.raises(skytether.InvalidError, match="1 cells"):
        ds.wilcoxon(["cell-0"], {"g": "two"}, transform="log1p_cp10k")
    with pytest.raises(skytether.NotFoundError, match="'one'|\"one\""):
        ds.rank_genes_groups("g", "wilcoxon", "onne", transform="log1p_cp10k")


def test_command_has_the_test_and_its_ties(pbmc3k_fleet, capsys):
    call = ["de", "blood/pbmc3k", "--fleet", str(pbmc3k_fleet), "--groupby", "cell_type", "--transform", "log1p_cp10k", "--format", "csv", "--top", "3"]
    assert msgexpress.cli.main([*call, "--group", "B", "--method", "wilcoxon", "--tie-correct"]) == 0
    printed = capsys.readouterr().out
    with msgexpress.open(pbmc3k_fleet) as db:
        wanted = db["blood/pbmc3k"].rank_genes_groups("cell_type", "wilcoxon", groups=["B"], transform="log1p_cp10k", tie_correct=True, n_genes=3)
    assert [line.split(",")[1] for line in printed.splitlines()[1:]] == list(wanted["names"])
    assert msgexpress.cli.main([*call, "--tie-correct"]) == 2
    assert "--method wilcoxon" in capsys.readouterr().err


def test_keys_beyond_a_drives_memory_are_refused_by_name(tmp_path):
    # Several blocks of cells: a drive holds the keys of a gene until it has seen all blocks.
    rng = np.random.default_rng(3)
    cells = ad.AnnData(sp.csr_matrix(rng.random((70_000, 60), dtype=np.float32)))
    cells.obs["half"] = pd.Categorical(rng.choice(["a", "b"], len(cells)))
    with msgexpress.open(tmp_path / "f", drives=2, kept_per_drive=0) as db:
        whole = db.ingest(cells, "t.x").rank_genes_groups("half", method="wilcoxon", transform=None).to_df("a")
    with msgexpress.open(tmp_path / "f", memory_per_drive=8 << 20, kept_per_drive=0) as db:
        with pytest.raises(skytether.ExhaustedError, match=r"drive-[01]: its part of the query needs more than the 8\.0 MB of memory .* memory_per_drive="):
            db["t.x"].rank_genes_groups("half", method="wilcoxon", transform=None)
        # The drive goes on, with what fits.
        some = db["t.x"].rank_genes_groups("half", method="wilcoxon", transform=None, genes=["0", "1"]).to_df("a").set_index("names")
        pd.testing.assert_series_equal(some["scores"].sort_index(), whole.set_index("names").loc[["0", "1"], "scores"].sort_index())


FILTERS = {
    "min_pct": ({"min_pct": 0.25}, lambda f: f[["pct_nz_group", "pct_nz_reference"]].max(axis=1) >= 0.25),
    "min_logfc": ({"min_logfc": 0.5}, lambda f: f["logfoldchanges"].abs() >= 0.5),
    "min_cells": ({"min_cells": 9}, lambda f: np.maximum((f["pct_nz_group"] * 15).round(), (f["pct_nz_reference"] * 45).round()) >= 9),
    "fold changes": ({"logfc": "seurat4", "min_logfc": 0.5}, lambda f: f["logfoldchanges"].abs() >= 0.5),
}


@pytest.mark.parametrize("what", FILTERS)
def test_filters_leave_the_numbers_of_the_others(unlabelled, what):
    adata, ds = unlabelled
    options, keeps = FILTERS[what]
    whole = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", groups=["one"], **({"logfc": options["logfc"]} if "logfc" in options else {})).to_df()
    found = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", groups=["one"], **options).to_df()
    pd.testing.assert_frame_equal(found, whole[keeps(whole)].reset_index(drop=True))
    assert 0 < len(found) < len(whole)
    a = (adata.obs["g"].astype(object) == "one").to_numpy(bool)
    two = ds.wilcoxon(a, ~a, transform="log1p_cp10k", **options).to_df()
    assert two["names"].tolist() == found["names"].tolist()
    np.testing.assert_allclose(two["scores"], found["scores"], rtol=1e-6)


def test_seurats_fold_changes_go_with_rank_sums(unlabelled):
    """The fold changes are those of the t-test, and all other numbers those of the rank sums."""
    _, ds = unlabelled
    for logfc in ("seurat", "seurat4"):
        of = {"transform": "log1p_cp10k", "groups": ["one"], "logfc": logfc}
        ranks, t = ds.rank_genes_groups("g", "wilcoxon", **of).to_df(), ds.rank_genes_groups("g", **of).to_df().set_index("names")
        assert ranks["logfoldchanges"].tolist() == t.loc[ranks["names"], "logfoldchanges"].tolist()
        plain = ds.rank_genes_groups("g", "wilcoxon", transform="log1p_cp10k", groups=["one"]).to_df()
        pd.testing.assert_frame_equal(ranks.drop(columns="logfoldchanges"), plain.drop(columns="logfoldchanges"))
        assert (ranks["logfoldchanges"] - plain["logfoldchanges"]).abs().max() > 0.01
