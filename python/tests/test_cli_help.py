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

#: Commands that need what others leave, in this order; `drop` and `demo` come last.
FIRST, LAST = ("ingest", "hvg"), ("history", "drop", "demo")
#: What compiles for half a minute: these are parsed here, and run by the tests of clusters and of the documentation.
COMPILED = ("neighbors", "umap", "leiden", "cluster")
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


def order(name: str) -> int:
    first = name.split()[0] if name else ""
    return FIRST.index(first) if first in FIRST else 2 * len(FIRST) + (1 + LAST.index(first) if first in LAST else 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all that the examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    whole = ad.read_h5ad(PBMC3K)
    for number in (1, 2, 3):
        whole[number::27].copy().write_h5ad(f"donor{number}.h5ad")
    pd.DataFrame({"leiden": [0, 1] * 1350}, index=pd.Index(whole.obs_names, name="cell")).to_csv("clusters.csv")
    patients = whole[::9].copy()
    patients.obs["donor"] = ["d1", "d2"] * (patients.n_obs // 2)
    with msgexpress.open("cell-fleet", drives=2) as db:
        db.ingest(patients, "lab/patients")
        db.ingest(whole[:1500], "trial/left")
        db.ingest(whole[1500:, 2000:], "trial/right")
    return tmp_path


def test_every_help_has_an_example_of_its_command() -> None:
    for name, text in HELPS.items():
        assert HEAD in text, f"msgx {name} --help has no example"
        assert any(line.startswith(f"msgx {name}".strip()) for line in examples(text)), name
    assert len(HELPS) > 30


def test_help_is_no_wider_than_a_terminal_with_examples() -> None:
    for name in HELPS:
        done = command(*name.split(), "--help")
        assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 130, name


def test_the_examples_of_every_help_run(place: Path) -> None:
    for name in sorted(HELPS, key=order):
        if not name:
            continue  # its examples are those of the commands
        for line in examples(HELPS[name]):
            words = shlex.split(line)[1:]
            if words[0] in COMPILED:
                assert cli._parser().parse_args(words).name == "blood/pbmc3k"
                continue
            if words[0] == "plot" and "umap" in words:
                with msgexpress.open("cell-fleet") as db:
                    db["blood/pbmc3k"].set_obsm("X_umap", np.zeros((2700, 2)))
            done = command(*words, MSGX_FLEET="cell-fleet")
            assert done.returncode == 0, f"{line}: {done.stderr}"
