"""Versions that several writers make at the same time: they follow each other, unless both change the same."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import anndata as ad
import numpy as np
import pytest
from conftest import assert_same, rich
from fleets import serving

import msgexpress
from skytether import ConflictError

T = "log1p_cp10k"


def whole() -> ad.AnnData:
    adata = rich()
    adata.layers["twice"] = adata.X * 2
    return adata


@pytest.fixture(scope="module", params=["embedded", "served"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[msgexpress.MsgExpress, msgexpress.MsgExpress]]:
    """Mine and a colleague's way to one fleet: the same one embedded, two connections to a host."""
    place = tmp_path_factory.mktemp("fleet")
    if request.param == "embedded":
        with msgexpress.open(place / "fleet", drives=2) as db:
            yield db, db
        return
    with serving(place, 2) as served, msgexpress.connect(served.url) as mine, msgexpress.connect(served.url) as other:
        yield mine, other


@pytest.fixture
def fleets(both: tuple[Any, Any]) -> tuple[Any, Any]:
    both[0].ingest(whole(), "lab/a", replace=True)
    return both


def test_components_are_kept_beside_a_colleagues_change(fleets: tuple[Any, Any]) -> None:
    """The change comes between the answer and its version."""
    mine, other = fleets
    ds = mine["lab/a"]
    found = ds.pca(3, None, transform=T, keep=False)
    other["lab/a"].set_obs(np.arange(60), name="number")
    ds._keep_pca(found, "mine", None, None)
    now = mine["lab/a"]
    assert list(now.history["action"]) == ["ingest", "set_obs", "pca"]
    back = now.to_anndata()
    np.testing.assert_array_equal(back.obsm["mine"], found.embedding)
    assert list(back.obs["number"]) == list(range(60)) and ds._generation == now._generation
    assert list(ds.obs["number"]) == list(range(60)), "this object goes on to the newest version"


def test_changes_of_other_things_follow_each_other(fleets: tuple[Any, Any]) -> None:
    mine, other = fleets
    kept = whole()
    ds, theirs = mine["lab/a"], other["lab/a"]
    assert len(ds.obs) == len(theirs.obs) == 60, "both have looked at what they change"
    theirs.set_obs(np.arange(60), name="theirs")
    ds.set_obs(np.arange(60)[::-1], name="mine")
    theirs.set_obsm("X_theirs", np.ones((60, 2)))
    ds.set_obsm("X_mine", np.zeros((60, 2)))
    theirs.set_layer("theirs", kept.X * 5)
    ds.set_layer("mine", kept.X * 7)
    theirs.set_var(np.arange(40), "theirs")
    ds.set_uns("mine", {"a": 1})
    kept.obs["theirs"], kept.obs["mine"] = np.arange(60), np.arange(60)[::-1]
    kept.obsm["X_theirs"], kept.obsm["X_mine"] = np.ones((60, 2)), np.zeros((60, 2))
    kept.layers["theirs"], kept.layers["mine"] = kept.X * 5, kept.X * 7
    kept.var["theirs"] = np.arange(40)
    kept.uns["mine"] = {"a": 1}
    assert_same(ds.to_anndata(), kept)
    assert_same(other["lab/a"].to_anndata(), kept)
    assert len(ds.history) == 9


OVERLAPS: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "a column": (lambda ds: ds.set_obs(np.arange(60), name="type"), lambda ds: ds.set_obs(np.ones(60), name="type")),
    "a new column": (lambda ds: ds.set_obs(np.arange(60), name="new"), lambda ds: ds.set_obs(np.ones(60), name="new")),
    "a column that is gone": (lambda ds: ds.drop_obs("depth"), lambda ds: ds.set_obs(np.ones(60), name="depth")),
    "an embedding": (lambda ds: ds.set_obsm("X_pca", np.zeros((60, 2))), lambda ds: ds.set_obsm("X_pca", np.ones((60, 2)))),
    "a layer": (lambda ds: ds.set_layer("twice", np.zeros((60, 40), np.float32)), lambda ds: ds.set_layer("twice", np.ones((60, 40), np.float32))),
    "a column of var": (lambda ds: ds.set_var(np.arange(40), "symbol"), lambda ds: ds.set_var(np.ones(40), "symbol")),
    "a view": (lambda ds: ds.filter_cells(mask=np.arange(60) > 3).save("v"), lambda ds: ds.filter_cells(mask=np.arange(60) > 9).save("v")),
}


@pytest.mark.parametrize("what", OVERLAPS)
def test_change_of_the_same_is_a_conflict(fleets: tuple[Any, Any], what: str) -> None:
    mine, other = fleets
    ds = mine["lab/a"]
    OVERLAPS[what][0](other["lab/a"])
    kept = other["lab/a"].to_anndata()
    with pytest.raises(ConflictError, match="lab/a"):
        OVERLAPS[what][1](ds)
    assert len(mine["lab/a"].history) == 2
    assert_same(mine["lab/a"].to_anndata(), kept)


@pytest.mark.filterwarnings("ignore")
def test_change_after_an_append_is_a_conflict(fleets: tuple[Any, Any]) -> None:
    mine, other = fleets
    ds = mine["lab/a"]
    more = whole()
    more.obs_names = [f"new-{i}" for i in range(60)]
    other["lab/a"].append(more, progress=False)
    with pytest.raises(ConflictError, match="lab/a"):
        ds.set_obs(np.arange(60), name="mine")
    with pytest.raises(ConflictError, match="lab/a"):
        ds.append(more, progress=False)
    assert list(mine["lab/a"].history["action"]) == ["ingest", "append"]
    assert mine["lab/a"].shape == (120, 40)
