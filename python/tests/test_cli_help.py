"""Each command's --help teaches by examples, and these run as they are printed."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Iterator

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import PBMC3K, PROJECT, command

import msgexpress
from msgexpress import cli

#: Steps that take what the one before left: they run one after the other, in a test of their own.
STEPS = ("pca", "neighbors", "umap", "leiden", "cluster")
HEAD = "for example:"


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands by name, those below others as ``plot dotplot``; the program itself has none."""
    yield name.strip(), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, sub in action.choices.items():
                yield from parsers(sub, f"{name} {below}")


HELPS = {name: parser.description or "" for name, parser in parsers(cli._parser())}


def examples(text: str) -> list[str]:
    lines = text[text.index(HEAD) + len(HEAD) :].split("\n\n")[0].strip().splitlines()
    return [line.strip() for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all that the examples name."""
    path = tmp_path_factory.mktemp("help")
    (path / "examples").symlink_to(PROJECT / "examples")
    whole = ad.read_h5ad(PBMC3K)[::3].copy()
    for number in (1, 2, 3):
        whole[number::9].copy().write_h5ad(path / f"donor{number}.h5ad")
    pd.DataFrame({"leiden": [0, 1] * (whole.n_obs // 2)}, index=pd.Index(whole.obs_names, name="cell")).to_csv(path / "clusters.csv")
    whole.obs["donor"] = ["d1", "d2"] * (whole.n_obs // 2)
    with msgexpress.open(path / "cell-fleet", drives=2) as db:
        ds = db.ingest(whole, "blood/pbmc3k")
        ds.set_obsm("X_umap", np.zeros((whole.n_obs, 2)))
        ds.set_var(np.arange(whole.n_vars) % 30 == 0, name="highly_variable")
        db.ingest(whole, "lab/patients")
        db.ingest([path / "donor1.h5ad", path / "donor2.h5ad"], "lab/donors", batch={"donor": ["d1", "d2"]})
        db.ingest(whole[:500], "trial/left")
        db.ingest(whole[500:, 2000:], "trial/right")
    with msgexpress.open(path / "another-fleet", drives=2) as db:
        db.ingest(whole[:9], "blood/pbmc3k")
    return path


def test_every_help_has_an_example_of_its_command() -> None:
    for name, text in HELPS.items():
        assert HEAD in text, f"msgx {name} --help has no example"
        assert any(line.startswith(f"msgx {name}".strip()) for line in examples(text)), name
    assert len(HELPS) > 30


def test_help_is_no_wider_than_a_terminal_with_examples() -> None:
    for name in HELPS:
        done = command(*name.split(), "--help")
        assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 130, name


@pytest.mark.parametrize("name", [name for name in HELPS if name and name not in STEPS])
def test_the_examples_of_every_help_run(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(place)
    # What makes or removes data sets does so elsewhere, so that the other tests find theirs.
    fleet = {"ingest": "new-fleet", "drop": "another-fleet"}.get(name, "cell-fleet")
    for line in examples(HELPS[name]):
        words = shlex.split(line)[1:]
        done = command(*words, MSGX_FLEET=fleet)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_the_examples_of_steps_to_clusters_run_in_turn(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    whole = ad.read_h5ad(PBMC3K)[::9]
    with msgexpress.open(place / "steps-fleet", drives=2) as db:
        ds = db.ingest(whole[:, np.asarray(whole.X.sum(axis=0)).ravel() > 60].copy(), "blood/pbmc3k")
        ds.set_var(np.arange(ds.n_vars) % 3 == 0, name="highly_variable")
    for name in STEPS:
        for line in examples(HELPS[name]):
            done = command(*shlex.split(line)[1:], MSGX_FLEET="steps-fleet")
            assert done.returncode == 0, f"{line}: {done.stderr}"
    with msgexpress.open(place / "steps-fleet") as db:
        ds = db["blood/pbmc3k"]
        assert [*ds.history["action"]][:6] == ["ingest", "set_var", "pca", "neighbors", "umap", "leiden"]
        assert {"X_pca", "X_umap"} <= {*ds.to_anndata().obsm} and 1 < ds.obs["leiden"].nunique() < 100
