"""Results that drives keep: the same as fresh ones, whatever happens in between."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

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
        moved = again.receipt.to_dict()
        assert moved["bytes_read"] < first.receipt.to_dict()["bytes_read"] or moved["bytes_read"] < 100_000
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
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_history_gives_a_stale_answer(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    place = tmp_path / "fleet"
    db = msgexpress.open(place, drives=3, redundancy="replicas:2" if seed == 3 else "none")
    there: dict[str, ad.AnnData] = {}
    cached = 0
    try:
        for step in range(60):
            name = f"t/{rng.choice(['x', 'y'])}"
            match rng.choice(["ingest", "drop", "reopen", "scrub", "ask", "ask", "ask", "ask", "ask"]):
                case "ingest":
                    there[name] = made(int(rng.integers(1 << 30)), int(rng.integers(40, 80)))
                    db.ingest(there[name], name, replace=True)
                case "drop" if name in there:
                    db.drop(name)
                    del there[name]
                case "reopen":
                    db.close()
                    db = msgexpress.open(place)
                case "scrub":
                    db.fleet.scrub()
                case "ask" if name in there:
                    groupby = str(rng.choice(["type", "batch"]))
                    res = ranked(db[name], groupby)
                    cached += any(drive["cached"] for drive in res.receipt.to_dict()["drives"])
                    x, labels = there[name].X.astype(np.float64), there[name].obs[groupby].astype(str).to_numpy()
                    for group in res.groups:
                        frame = res.to_df(group).set_index("names").loc[there[name].var_names]
                        mine = labels == group
                        share = (x[mine] > 0).mean(axis=0)
                        np.testing.assert_allclose(frame["pct_nz_group"], share, rtol=1e-6, err_msg=f"{step} {name} {groupby} {group}")
                        expected = x[mine].mean(axis=0) - x[~mine].mean(axis=0)
                        assert (np.sign(np.round(expected, 9)) == np.sign(np.round(frame["scores"].to_numpy(), 6))).mean() > 0.97
    finally:
        db.close()
    assert cached > 3, "the history must have answers of kept results"


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
