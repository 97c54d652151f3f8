"""The commands msgx qc and msgx hvg."""

from __future__ import annotations

import io

import anndata as ad
import pandas as pd
import pytest
import scipy.sparse as sp
from conftest import command, counts

import msgexpress


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    path = tmp_path_factory.mktemp("counts") / "fleet"
    x = counts(120, 60, seed=9)
    adata = ad.AnnData(
        sp.csr_matrix(x),
        obs=pd.DataFrame({"batch": pd.Categorical(["a", "b"] * 60)}, index=[f"c{i}" for i in range(120)]),
        var=pd.DataFrame(index=[f"MT-{i}" if i < 3 else f"g{i}" for i in range(60)]),
    )
    with msgexpress.open(path, drives=2) as db:
        db.ingest(adata, "t/x")
    return path


def test_qc_prints_the_spread_and_what_limits_leave(fleet, tmp_path):
    files = [tmp_path / name for name in ("cells.csv", "genes.csv", "qc.png")]
    limits = ("--min-genes", "18", "--max-counts", "900", "--min-cells", "35", "--max-pct", "mt=6")
    done = command("qc", "t/x", "--fleet", fleet, "--format", "csv", "--cells", files[0], "--genes", files[1], "-o", files[2], *limits)
    assert done.returncode == 0, done.stderr
    with msgexpress.open(fleet) as db:
        ds = db["t/x"]
        obs, var = ds.qc_metrics({"mt": "mt-"})
        view = ds.filter_cells(min_genes=18, max_counts=900, mask=obs["pct_counts_mt"] <= 6)
        genes = ds.filter_genes(min_cells=35)
    table = pd.read_csv(io.StringIO(done.stdout)).set_index("of cells")
    assert list(table.index) == ["n_genes_by_counts", "total_counts", "pct_counts_in_top_50_genes", "total_counts_mt", "pct_counts_mt"]
    assert table.loc["total_counts", "median"] == round(float(obs["total_counts"].median()), 2)
    assert 0 < view.n_obs < 120 and 0 < genes.n_vars < 60
    assert f"these limits leave {view.n_obs} of 120 cells and {genes.n_vars} of 60 genes" in done.stderr
    pd.testing.assert_frame_equal(pd.read_csv(files[0], index_col=0), obs, check_dtype=False, check_names=False, rtol=1e-5)
    pd.testing.assert_frame_equal(pd.read_csv(files[1], index_col=0), var, check_dtype=False, check_names=False, rtol=1e-5)
    assert files[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, more",
    [
        (("--transform", "log1p_cp10k"), {"transform": "log1p_cp10k"}),
        (("--target-sum", "median", "--base", "2", "--batch", "batch"), {"transform": msgexpress.Normalize("median", base=2), "batch_key": "batch"}),
        (("--flavor", "cell_ranger", "--target-sum", "500"), {"transform": msgexpress.Normalize(500), "flavor": "cell_ranger"}),
        (("--flavor", "seurat_v3", "--span", "0.7"), {"flavor": "seurat_v3", "span": 0.7}),
    ],
    ids=str,
)
def test_hvg_prints_the_genes_that_are_selected(fleet, tmp_path, options, more):
    done = command("hvg", "t/x", "--fleet", fleet, "--top", "12", "--format", "csv", "-o", tmp_path / "genes.svg", *options)
    assert done.returncode == 0, done.stderr
    with msgexpress.open(fleet) as db:
        frame = db["t/x"].highly_variable_genes(12, **more)
    found = pd.read_csv(io.StringIO(done.stdout))
    assert set(found["gene"]) == set(frame.index[frame["highly_variable"]])
    assert f"{int(frame['highly_variable'].sum())} of 60 genes are selected" in done.stderr
    assert (tmp_path / "genes.svg").read_text().count("<svg") == 1
    every = command("hvg", "t/x", "--fleet", fleet, "--top", "12", "--format", "csv", "--all", *options)
    assert len(pd.read_csv(io.StringIO(every.stdout))) == 60


def test_calls_that_are_wrong_in_themselves_end_with_2(fleet, tmp_path):
    for words, text in (
        (("qc", "t/x", "--max-pct", "ribo=5"), "there is no set ribo"), (("qc", "t/x", "--max-pct", "5"), "write NAME=PERCENT"),
        (("qc", "t/x", "--min-genes", "-1"), "no number from 0 on"), (("qc", "t/x", "-o", "a.txt"), "pictures end in one of"),
        (("hvg", "t/x", "--target-sum", "mean"), "give a number or median"), (("hvg", "t/x", "--base", "1"), "a logarithm needs a number above 1"),
        (("hvg", "t/x", "--transform", "none", "--base", "2"), "give one of them"), (("hvg", "t/x", "--top", "0"), "not a whole number"),
    ):
        done = command(*words, "--fleet", fleet)
        assert done.returncode == 2 and text in done.stderr, (words, done.stderr)


def test_hvg_says_which_transform_it_takes(fleet):
    done = command("hvg", "t/x", "--fleet", fleet, "--top", "5")
    assert done.returncode == 0 and "so genes are selected with --transform log1p_cp10k" in done.stderr


@pytest.mark.parametrize("name", ["qc", "hvg"])
def test_help_has_an_example(name):
    done = command(name, "--help")
    assert done.returncode == 0 and f"msgx {name} blood/pbmc3k" in done.stdout and max(map(len, done.stdout.splitlines())) <= 120
