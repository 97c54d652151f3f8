"""Results that drives keep: the same as fresh ones, whatever happens in between."""

from __future__ import annotations

import json
import re
import shutil
import time
import warnings
from pathlib import Path
from typing import Any, Callable

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import msgexpress
import skytether
from msgexpress import Normalize

from conftest import counts


def made(seed: int, cells: int = 60) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    obs = pd.DataFrame({"type": pd.Categorical(rng.choice(["T", "B", "NK"], cells)), "batch": rng.choice(["one", "two"], cells)}, index=[f"c{i}" for i in range(cells)])
    return ad.AnnData(counts(cells, seed=seed), obs=obs)


def is_cached(res: msgexpress.RankResult) -> bool:
    drives = res.receipt.to_dict()["drives"]
    assert {drive["cached"] for drive in drives} in ({True}, {False}), "all drives or none"
    return bool(drives[0]["cached"])


def ranked(ds: msgexpress.Dataset, groupby: str = "type", **options: object) -> msgexpress.RankResult:
    return ds.rank_genes_groups(groupby, transform=None, **options)  # type: ignore[arg-type]


def kept_soon(ds: msgexpress.Dataset, groupby: str = "type") -> msgexpress.RankResult:
    """Asks until drives answer from what they kept, which they write in the background."""
    for _ in range(400):
        res = ranked(ds, groupby)
        if all(drive["cached"] for drive in res.receipt.to_dict()["drives"]):
            return res
        time.sleep(0.01)
    raise AssertionError("nothing was kept")


def kept_at(place: Path, db: msgexpress.MsgExpress, name: str) -> dict[str, set[str]]:
    """For each drive with a part of the main matrix, the ids of the results that its index names: keys are there as
    they are (docs/internals/formats/keys.md)."""
    record = db.fleet.describe(name)
    generations = {table.get("generation", record["generation"]) for table in record["tables"].values()}
    keys = re.compile(b"(?:%s)[.]kept%%2F([0-9a-f]{32})%%2F" % b"|".join(b"%016x" % generation for generation in sorted(generations)))
    here = {json.loads((drive / "drive.json").read_text())["id"]: drive for drive in (place / "drives").iterdir() if (drive / "drive.json").exists()}
    wanted = {partition["drive"] for partition in record["tables"]["x"]["partitions"]}
    return {drive: {found.decode() for found in keys.findall((here[drive] / "index.redb").read_bytes())} for drive in wanted}


def wait_until_kept(place: Path, db: msgexpress.MsgExpress, name: str, results: int) -> None:
    """Waits until each drive has written that many results, without asking for any."""
    for _ in range(1000):
        found = kept_at(place, db, name)
        if all(len(ids) >= results for ids in found.values()):
            return
        time.sleep(0.01)
    raise AssertionError(f"{results} results should be kept by each drive, and there are {found}")


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_every_contrast_of_kept_groups_is_cached(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made(1), "t/x")
        first = ranked(ds)
        assert not is_cached(first)
        again = kept_soon(ds)
        pd.testing.assert_frame_equal(first.to_df(), again.to_df())
        for options in ({"reference": "B"}, {"groups": ["T"]}, {"method": "t-test_overestim_var"}, {"corr_method": "bonferroni"}):
            assert is_cached(ranked(ds, **options)), options
        assert 0 < again.receipt.to_dict()["bytes_read"] < first.receipt.to_dict()["bytes_read"]
        assert "kept results" in str(again.receipt)
        assert not is_cached(ranked(ds, "batch")), "other groups are another result"


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_kept_results_survive_reopening(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2, redundancy="none") as db:
        before = kept_soon(db.ingest(made(1), "t/x")).to_df()
    with msgexpress.open(tmp_path / "fleet") as db:
        res = ranked(db["t/x"])
        assert is_cached(res)
        pd.testing.assert_frame_equal(res.to_df(), before)


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_query_with_a_policy_runs_afresh(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(made(1), "t/x")
        kept_soon(ds)
        spec = '{"dataset":"t.x","matrix":"x","groups":{"obs":"type"},"transform":null}'
        text = f"SELECT gene_id, moments(idx, val, block, '{spec}') AS m FROM t.x.x_rows GROUP BY gene_id ORDER BY gene_id"
        for cut in ("full", "filter", "raw"):
            fresh = db.fleet.sql(text, cut=cut)
            fresh.to_arrow()
            assert not any(drive["cached"] for drive in fresh.receipt.to_dict()["drives"]), cut


#: Questions about groups of the column "type", each the first of its kind. They need the moments of all groups.
CONTRASTS: dict[str, Callable[[msgexpress.MsgExpress, msgexpress.Dataset], Any]] = {
    "two groups": lambda db, ds: ds.ttest({"type": "B"}, {"type": "NK"}, transform=None),
    "pairs": lambda db, ds: ds.pairwise("type", transform=None),
    "some pairs": lambda db, ds: ds.pairwise("type", ["NK", "B"], transform=None),
    "two sides": lambda db, ds: db.compare({"dataset": "t/x", "type": "B"}, {"dataset": "t/x", "type": ["NK", "T"]}, transform=None),
    "centroids": lambda db, ds: db.centroids("t/x", "type", transform=None),
    "a group of a ranking": lambda db, ds: ranked(db["t/x"], groups=["NK"], reference="B"),
}


def numbers(found: Any) -> pd.DataFrame:
    frame = found.means if isinstance(found, msgexpress.Centroids) else found.to_df()
    return frame.reset_index(drop=True)


def drives_of(found: Any) -> list[dict[str, Any]]:
    return found.receipt.to_dict()["drives"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", CONTRASTS)
def test_first_contrast_after_a_ranking_is_cached(tmp_path: Path, what: str) -> None:
    with msgexpress.open(tmp_path / "none", drives=3, kept_per_drive=0) as db:
        ds = db.ingest(made(1), "t/x")
        assert not is_cached(ranked(ds))
        fresh = CONTRASTS[what](db, ds)
        assert not any(drive["cached"] for drive in drives_of(fresh))
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made(1), "t/x")
        assert not is_cached(ranked(ds))
        wait_until_kept(tmp_path / "fleet", db, "t/x", 1)
        found = CONTRASTS[what](db, ds)
        drives = drives_of(found)
        assert len(drives) == 3 and all(drive["cached"] for drive in drives), str(found.receipt)
        pd.testing.assert_frame_equal(numbers(found), numbers(fresh), check_exact=True)
        assert all(len(ids) == 1 for ids in kept_at(tmp_path / "fleet", db, "t/x").values()), "one result serves them all"


@pytest.mark.filterwarnings("ignore")
def test_kept_contrasts_equal_the_test_of_their_cells(tmp_path: Path) -> None:
    """Sets of groups are merged from the groups' moments; the same cells as a mask are a group of their own."""
    adata = made(3)
    adata.obs["number"] = np.arange(60) % 4
    with msgexpress.open(tmp_path / "fleet", drives=2) as db:
        ds = db.ingest(adata, "t/x")
        for column, a, b in (("type", ["T", "NK"], ["B"]), ("number", [1], [0, 3]), ("batch", ["one"], ["two"])):
            for options in ({"method": "student"}, {}, {"method": "t-test_overestim_var", "logfc": "seurat", "min_pct": 0.1}, {"genes": ["3", "5", "7"]}):
                found = ds.ttest({column: a}, {column: b}, transform="log1p_cp10k", **options).to_df()
                masks = [adata.obs[column].isin(chosen).to_numpy() for chosen in (a, b)]
                wanted = ds.ttest(*masks, transform="log1p_cp10k", **options).to_df()
                both = [frame.drop(columns="group", errors="ignore").set_index("names") for frame in (found, wanted)]
                assert sorted(both[0].index) == sorted(both[1].index)
                pd.testing.assert_frame_equal(both[0], both[1].loc[both[0].index], check_exact=False, rtol=2e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_new_contrasts_of_kept_rank_sums_are_cached(tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    with msgexpress.open(tmp_path / "none", drives=3, kept_per_drive=0) as none, msgexpress.open(place, drives=3) as db:
        ds, fresh = (one.ingest(made(1), "t/x") for one in (db, none))
        assert not is_cached(ranked(ds, method="wilcoxon"))
        wait_until_kept(place, db, "t/x", 1)
        # Other groups, corrections for ties and of p-values are made of the same sums.
        for options in ({"groups": ["NK"]}, {"tie_correct": True, "corr_method": "bonferroni"}):
            found = ranked(ds, method="wilcoxon", **options)
            assert is_cached(found), options
            pd.testing.assert_frame_equal(found.to_df(), ranked(fresh, method="wilcoxon", **options).to_df())
        assert not is_cached(ranked(ds, method="wilcoxon", reference="B"))
        wait_until_kept(place, db, "t/x", 2)
        for ask in (
            lambda ds: ds.wilcoxon({"type": "NK"}, {"type": "B"}, transform=None),
            lambda ds: ds.wilcoxon({"type": "T"}, {"type": "B"}, transform=None, tie_correct=True),
            lambda ds: ranked(ds, method="wilcoxon", groups=["T"], reference="B"),
        ):
            assert is_cached(ask(ds))
            pd.testing.assert_frame_equal(ask(ds).to_df(), ask(fresh).to_df())
        # Pairs rank each group with each other one: that is another result, kept in turn.
        first, again = asked_until_cached(lambda: ds.pairwise("type", method="wilcoxon", transform=None))
        pd.testing.assert_frame_equal(first.to_df(), again.to_df())


def test_qc_totals_are_answered_from_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[Any] = []
    sql = skytether.Fleet.sql

    def watched(self: skytether.Fleet, query: str, *args: Any, **kwargs: Any) -> Any:
        found = sql(self, query, *args, **kwargs)
        if "cell_sums(" in query:
            queries.append(found)
        return found

    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made(1), "t/x")
        monkeypatch.setattr(skytether.Fleet, "sql", watched)

        def ask() -> tuple[pd.DataFrame, pd.DataFrame, list[bool]]:
            queries.clear()
            obs, var = ds.qc_metrics({"some": [1, 2]})
            return obs, var, [drive["cached"] for query in queries for drive in query.receipt.to_dict()["drives"]]

        first = again = ask()
        assert first[2] and not any(first[2])
        for _ in range(400):
            again = ask()
            if all(again[2]):
                break
            time.sleep(0.01)
        assert again[2] and all(again[2]), "nothing was kept"
        pd.testing.assert_frame_equal(first[0], again[0])
        pd.testing.assert_frame_equal(first[1], again[1])


def asked_until_cached(ask: Callable[[], Any]) -> tuple[Any, Any]:
    """The first answer, which is none of kept results, and the first that is."""
    first = ask()
    assert not any(drive["cached"] for drive in first.receipt.to_dict()["drives"])
    for _ in range(400):
        again = ask()
        if all(drive["cached"] for drive in again.receipt.to_dict()["drives"]):
            return first, again
        time.sleep(0.01)
    raise AssertionError("nothing was kept")


class History:
    """A fleet, what should be in it, and changes that a seed draws."""

    def __init__(self, place: Path, seed: int) -> None:
        self.rng, self.place = np.random.default_rng(seed), place
        self.db = msgexpress.open(place, drives=3, redundancy="replicas:2")
        self.there: dict[str, ad.AnnData] = {}
        self.cached, self.done = 0, set[str]()
        self.asked: set[tuple[str, str, str]] = set()

    def step(self, what: str, name: str) -> None:
        there = self.there.get(name)
        match what:
            case "ingest":
                self.there[name] = made(int(self.rng.integers(1 << 30)), int(self.rng.integers(40, 80)))
                self.db.ingest(self.there[name], name, replace=True)
            case "drop" if there is not None:
                self.db.drop(name)
                del self.there[name]
            case "set_obs" if there is not None:
                # The column that groups cells has other values, and the matrix is the one before.
                there.obs["batch"] = self.rng.choice(["one", "two", "three"], there.n_obs)
                self.db[name].set_obs(there.obs["batch"].to_numpy(), name="batch")
            case "set_var" if there is not None:
                there.var["number"] = self.rng.integers(0, 99, there.n_vars)
                self.db[name].set_var(there.var["number"].to_numpy(), "number")
            case "set_layer" if there is not None:
                there.layers["more"] = there.X * float(self.rng.integers(2, 5))
                self.db[name].set_layer("more", there.layers["more"])
            case "append" if there is not None and not there.layers:
                more = made(int(self.rng.integers(1 << 30)), 20)
                more.obs_names = [f"{name}-{there.n_obs + i}" for i in range(20)]
                self.db[name].append(more)
                both = ad.concat([there, more], merge="first")
                both.obs["type"] = pd.Categorical(both.obs["type"].astype(str))
                self.there[name] = both
            case "reopen":
                self.reopen()
            case "scrub":
                self.db.fleet.scrub()
            case "grow" if len(self.drives()) < 6:
                self.db.fleet.add_drives(1)
            case "lose a drive":
                self.db.close()
                lost = str(self.rng.choice(self.drives()))
                shutil.rmtree(self.place / "drives" / lost)
                self.db = msgexpress.open(self.place)
                for each in self.there:
                    self.ask(each, "type")
                self.db.fleet.repair([f"drive-{lost}"])
            case "ask" if there is not None:
                self.ask(name, str(self.rng.choice(["type", "batch"])))
                if there.layers:
                    self.ask(name, "type", "more")
            case _:
                return
        self.done.add(what)

    def drives(self) -> list[str]:
        return sorted(path.name for path in (self.place / "drives").iterdir() if path.name.isdigit())

    def reopen(self) -> None:
        self.db.close()
        self.db = msgexpress.open(self.place)

    def ask(self, name: str, groupby: str, layer: str | None = None) -> None:
        """Every column of the answer is that of scipy and numpy, over what should be there: of all or some cells, or of
        a view, after any transform. It is asked twice, so that one answer may come from what is kept."""
        there = self.there[name]
        ds = self.db[name]
        method, way = str(self.rng.choice(["t-test", "wilcoxon"])), str(self.rng.choice(["all", "all", "cells", "view"]))
        # Ties depend on the last bit of a logarithm, which numpy's is not.
        transform = TRANSFORMS[int(self.rng.integers(3 if method == "wilcoxon" else len(TRANSFORMS)))]
        labels = there.obs[groupby].astype(str).to_numpy()
        part = np.ones(there.n_obs, bool)
        if way != "all":
            while (part := self.rng.random(there.n_obs) < 0.8).all() or min(np.unique(labels[part], return_counts=True)[1]) < 2:
                pass
        asked = ds.filter_cells(mask=part) if way == "view" else ds
        options = {"cells": part} if way == "cells" else {}
        x = np.asarray(there.X if layer is None else there.layers[layer], np.float32)
        x, labels = transformed(x, transform, part if way == "view" else np.ones(len(x), bool))[part], labels[part]
        for _ in range(2):
            res = asked.rank_genes_groups(groupby, method, transform=transform, layer=layer, tie_correct=method == "wilcoxon", **options)
            self.cached += any(drive["cached"] for drive in res.receipt.to_dict()["drives"])
            self.asked.add((method, way, str(transform)))
            assert sorted(res.groups) == sorted(set(labels))
            for group in res.groups:
                frame = res.to_df(group).set_index("names").loc[there.var_names]
                mine = labels == group
                where = f"{name} {groupby} {group} {layer} {method} {way} {transform}"
                wanted = by_scipy(x[mine], x[~mine], method)
                for column in ("pct_nz_group", "pct_nz_reference", "scores", "pvals", "pvals_adj", "logfoldchanges"):
                    # A fold change takes exp of means, which are beyond it without a logarithm.
                    if column == "logfoldchanges" and transform not in (None, "log1p_cp10k"):
                        continue
                    np.testing.assert_allclose(frame[column], wanted[column], rtol=2e-5 if transform is None else 2e-4, atol=1e-6, err_msg=f"{where} {column}")
        if "number" in there.var:
            assert list(ds.var["number"]) == list(there.var["number"])


#: What is asked for: as it is, scaled by sums over genes, by the median of cells, and logarithms.
TRANSFORMS: list[Any] = [None, "cp10k", Normalize("median", log1p=False), "log1p_cp10k", Normalize("median"), Normalize(500, base=2)]


def transformed(x: np.ndarray, transform: Any, of: np.ndarray) -> np.ndarray:
    """`x` as scanpy normalises it in float32; the median is that of the cells `of`."""
    if transform is None:
        return x.astype(np.float64)
    totals = x.sum(axis=1)
    known = {"cp10k": (1e4, None), "log1p_cp10k": (1e4, np.e)}
    if isinstance(transform, str):
        target, base = known[transform]
    else:
        target = float(np.median(totals[of])) if transform.target_sum == "median" else transform.target_sum
        base = None if not transform.log1p else transform.base or np.e
    scaled = x / (totals / np.float32(target))[:, None]
    if base is not None:
        scaled = np.log1p(scaled) / np.float32(np.log(base))
    return scaled.astype(np.float64)


def by_scipy(a: np.ndarray, b: np.ndarray, method: str) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "wilcoxon":
            found = stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False)
            n, m = len(a), len(b)
            pooled = np.concatenate([a, b])
            ties = np.array([(c**3 - c).sum() for c in (np.unique(g, return_counts=True)[1].astype(float) for g in pooled.T)])
            deviation = np.sqrt(n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1))))
            scores, p = (found.statistic - n * m / 2) / deviation, found.pvalue
        else:
            found = stats.ttest_ind(a, b, equal_var=False)
            scores, p = found.statistic, found.pvalue
        flat = ~np.isfinite(np.asarray(scores))
        scores, p = np.where(flat, 0.0, scores), np.where(flat, 1.0, p)
        change = np.log2((np.expm1(a.mean(axis=0)) + 1e-9) / (np.expm1(b.mean(axis=0)) + 1e-9))
    return {
        "pct_nz_group": (a != 0).mean(axis=0),
        "pct_nz_reference": (b != 0).mean(axis=0),
        "scores": scores,
        "logfoldchanges": change,
        "pvals": p,
        "pvals_adj": stats.false_discovery_control(p),
    }


CHANGES = ["ingest", "drop", "set_obs", "set_var", "set_layer", "append", "reopen", "scrub", "grow", "lose a drive"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_history_gives_a_stale_answer(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "fleet", seed)
    try:
        history.step("ingest", "t/x")
        # Each change comes once in each of two rounds, in another order, with questions before and after.
        for _ in range(2):
            for what in history.rng.permutation(CHANGES):
                name = f"t/{history.rng.choice(['x', 'x', 'y'])}"
                # What is to change is there, and takes cells.
                if name not in history.there or (what == "append" and history.there[name].layers):
                    history.step("ingest", name)
                for step, of in (("ask", name), ("ask", "t/x"), (what, name), ("ask", name), ("ask", "t/x")):
                    history.step(str(step), of)
    finally:
        history.db.close()
    assert history.cached > 3, "the history must have answers of kept results"
    assert history.done == {*CHANGES, "ask"}
    for at, all_of in enumerate(({"t-test", "wilcoxon"}, {"all", "cells", "view"}, {str(transform) for transform in TRANSFORMS})):
        assert {one[at] for one in history.asked} == all_of, "each is asked for"


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_repaired_drive_answers_right_and_keeps_again(tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    with msgexpress.open(place, drives=3, redundancy="replicas:2") as db:
        before = kept_soon(db.ingest(made(5), "t/x")).to_df()
    lost = next(iter(sorted((place / "drives").iterdir())))
    for path in sorted(lost.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    lost.rmdir()
    with msgexpress.open(place) as db:
        pd.testing.assert_frame_equal(ranked(db["t/x"]).to_df(), before)
        db.fleet.repair([f"drive-{lost.name}"])
        pd.testing.assert_frame_equal(kept_soon(db["t/x"]).to_df(), before)


@pytest.mark.filterwarnings("ignore:.*holds counts")
@pytest.mark.parametrize("change", ["growth", "leave", "repair"])
def test_kept_results_survive_growth_and_repair(tmp_path: Path, change: str) -> None:
    place = tmp_path / "fleet"
    with msgexpress.open(place, drives=3, redundancy="replicas:2") as db:
        db.ingest(made(6), "t/x")
        before = kept_soon(db["t/x"]).to_df()
        kept_soon(db["t/x"], "batch")
        if change == "growth":
            db.fleet.add_drives(2)
        elif change == "leave":
            db.fleet.add_drives(1)
            db.fleet.retire("drive-0")
        wait_until_kept(place, db, "t/x", 2)
    if change == "repair":
        shutil.rmtree(place / "drives" / "1")
        with msgexpress.open(place) as db:
            db.fleet.repair(["drive-1"])
            wait_until_kept(place, db, "t/x", 2)
    with msgexpress.open(place) as db:
        for groupby in ("type", "batch"):
            res = ranked(db["t/x"], groupby)
            assert is_cached(res), "the first question after the change is answered from kept results"
        pd.testing.assert_frame_equal(ranked(db["t/x"]).to_df(), before)


def test_receipts_of_other_queries_are_not_cached(tmp_path: Path) -> None:
    with skytether.open(tmp_path / "fleet", drives=2) as fleet:
        fleet.ingest(pd.DataFrame({"k": [1, 2, 2], "v": [1.0, 2.0, 3.0]}), "t.data")
        for _ in range(3):
            result = fleet.sql("SELECT k, sum(v) FROM t.data GROUP BY k")
            result.to_arrow()
            assert all(drive["cached"] is False for drive in result.receipt.to_dict()["drives"])


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_fleet_without_room_for_results_keeps_none(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=2, kept_per_drive=0) as db:
        ds = db.ingest(made(1), "t/x")
        for _ in range(4):
            assert not is_cached(ranked(ds))
            time.sleep(0.05)
