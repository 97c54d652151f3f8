"""Results that drives keep: the same as fresh ones, whatever happens in between."""

from __future__ import annotations

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


@pytest.mark.filterwarnings("ignore:.*holds counts")
def test_rank_sums_and_pairs_are_answered_from_what_is_kept(tmp_path: Path) -> None:
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made(1), "t/x")
        for ask in (
            lambda: ranked(ds, method="wilcoxon"),
            lambda: ranked(ds, method="wilcoxon", reference="B"),
            lambda: ds.wilcoxon({"type": "T"}, {"type": "B"}, transform=None),
            lambda: ds.pairwise("type", transform=None),
        ):
            first, again = asked_until_cached(ask)
            pd.testing.assert_frame_equal(first.to_df(), again.to_df())
        # Corrections for ties and of p-values are made of the same sums.
        assert is_cached(ranked(ds, method="wilcoxon", tie_correct=True, corr_method="bonferroni"))


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
            case "set_layer" if there is not None:
                there.layers["more"] = there.X * float(self.rng.integers(2, 5))
                self.db[name].set_layer("more", there.layers["more"])
            case "append" if there is not None and not there.layers:
                more = made(int(self.rng.integers(1 << 30)), 20)
                more.obs_names = [f"{name}-{there.n_obs + i}" for i in range(20)]
                self.db[name].append(more)
                both = ad.concat([there, more])
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
        """Every column of the answer is that of scipy and numpy, over what should be there."""
        there = self.there[name]
        ds = self.db[name]
        method = str(self.rng.choice(["t-test", "wilcoxon"]))
        res = ds.rank_genes_groups(groupby, method, transform=None, layer=layer, tie_correct=method == "wilcoxon")
        self.cached += any(drive["cached"] for drive in res.receipt.to_dict()["drives"])
        x = np.asarray(there.X if layer is None else there.layers[layer], np.float64)
        labels = there.obs[groupby].astype(str).to_numpy()
        assert sorted(res.groups) == sorted(set(labels))
        for group in res.groups:
            frame = res.to_df(group).set_index("names").loc[there.var_names]
            mine = labels == group
            where = f"{name} {groupby} {group} {layer}"
            wanted = by_scipy(x[mine], x[~mine], method)
            for column in ("pct_nz_group", "pct_nz_reference", "scores", "logfoldchanges", "pvals", "pvals_adj"):
                np.testing.assert_allclose(frame[column], wanted[column], rtol=2e-5, atol=1e-6, err_msg=f"{where} {column}")


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


CHANGES = ["ingest", "drop", "set_obs", "set_layer", "append", "reopen", "scrub", "grow", "lose a drive"]


@pytest.mark.filterwarnings("ignore:.*holds counts")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_history_gives_a_stale_answer(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "fleet", seed)
    try:
        history.step("ingest", "t/x")
        # Each change comes once in each of two rounds, in another order, with questions before and after.
        for _ in range(2):
            for what in history.rng.permutation(CHANGES):
                for step in ("ask", "ask", what, "ask"):
                    history.step(str(step), f"t/{history.rng.choice(['x', 'x', 'y'])}")
                if not history.there:
                    history.step("ingest", "t/x")
    finally:
        history.db.close()
    assert history.cached > 3, "the history must have answers of kept results"
    assert len(history.done) >= 8, history.done


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
        # The first question of an object also asks for the genes' names, and so is another result than later ones.
        before = kept_soon(db["t/x"]).to_df()
        for _ in range(2):
            kept_soon(db["t/x"], "batch")
        if change == "growth":
            db.fleet.add_drives(2)
        elif change == "leave":
            db.fleet.add_drives(1)
            db.fleet.retire("drive-0")
        # Drives write what they keep in the background.
        time.sleep(2)
    if change == "repair":
        shutil.rmtree(place / "drives" / "1")
        with msgexpress.open(place) as db:
            db.fleet.repair(["drive-1"])
            time.sleep(2)
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
