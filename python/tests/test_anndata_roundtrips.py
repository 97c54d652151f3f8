"""AnnData objects of all kinds, made by seed, go into a fleet and come back equal, or are refused by an error of ours
that leaves nothing behind. `make soak` makes many more; ``SKYTETHER_ROUNDTRIPS=FROM..TO`` chooses the seeds."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata_maker import Maker

import msgexpress
import skytether
from msgexpress import MsgExpress

#: Seeds of one test: each shares a fleet.
STEP = 20


def seeds() -> list[range]:
    chosen = os.environ.get("SKYTETHER_ROUNDTRIPS")
    first, end = (int(n) for n in chosen.split("..")) if chosen else (0, 6000 if os.environ.get("SKYTETHER_SOAK") else 80)
    return [range(at, min(at + STEP, end)) for at in range(first, end, STEP)]


def missing(value: object) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value))


def plain(values: object) -> list[object]:
    """A column as Python's values, None where they are missing."""
    return [None if missing(v) else v.item() if isinstance(v, np.generic) else v for v in list(values)]


def equal_frames(got: pd.DataFrame, want: pd.DataFrame, where: str) -> None:
    assert list(got.columns) == list(want.columns) and got.index.name == want.index.name, where
    assert list(got.index.astype(str)) == list(want.index.astype(str)), where
    for number, label in enumerate(want.columns):
        a, b = got.iloc[:, number], want.iloc[:, number]
        found, wanted = plain(a), plain(b)
        assert found == wanted and [type(v) for v in found] == [type(v) for v in wanted], f"{where}[{label!r}]: {found[:5]} instead of {wanted[:5]}"
        if isinstance(b.dtype, pd.CategoricalDtype):
            assert list(a.cat.categories) == list(b.cat.categories) and a.cat.ordered == b.cat.ordered, f"{where}[{label!r}]"


def dense(values: object) -> np.ndarray:
    return values.toarray() if sp.issparse(values) else np.asarray(values)


def equal_matrices(got: object, want: object, where: str) -> None:
    assert type(got) is type(want) and got.dtype == want.dtype.newbyteorder("=") and got.shape == want.shape, f"{where}: {type(got)} {got.dtype} instead of {type(want)} {want.dtype}"
    np.testing.assert_array_equal(dense(got), dense(want), err_msg=where)


def equal_elements(got: object, want: object, where: str) -> None:
    if isinstance(want, pd.DataFrame):
        equal_frames(got, want, where)
    else:
        assert sp.issparse(got) == sp.issparse(want), where
        np.testing.assert_array_equal(dense(got), dense(want), err_msg=where)


def equal_nested(got: object, want: object, where: str) -> None:
    """`uns`: anndata makes arrays of lists, and numpy's numbers of Python's."""
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for key in want:
            equal_nested(got[key], want[key], f"{where}[{key!r}]")
    elif isinstance(want, pd.DataFrame):
        equal_frames(got, want, where)
    elif isinstance(want, list):
        # As Python's values: numpy would change those of the list as anndata does.
        assert kinds(got.tolist()) == kinds(want), where
    elif isinstance(want, np.ndarray) and want.dtype.names is not None:
        assert got.tolist() == want.tolist() and got.dtype.names == want.dtype.names, where
    elif want is None or isinstance(want, pd.Categorical):
        assert got is want or list(got) == list(want), where
    else:
        assert not np.ma.is_masked(want), where
        np.testing.assert_array_equal(dense(got), dense(want), err_msg=where)


def kinds(values: object) -> object:
    """Values of a list within lists, with whether they are texts, booleans or numbers."""
    if isinstance(values, list):
        return [kinds(value) for value in values]
    return (str if isinstance(values, str) else bool if isinstance(values, bool) else float), values


def equal(got: ad.AnnData, want: ad.AnnData, uns: bool = True) -> None:
    equal_matrices(got.X, want.X, "X")
    equal_frames(got.obs, want.obs, "obs")
    equal_frames(got.var, want.var, "var")
    for part in ("obsm", "varm", "obsp", "varp"):
        a, b = getattr(got, part), getattr(want, part)
        assert set(a) == set(b), part
        for key in b:
            equal_elements(a[key], b[key], f"{part}[{key!r}]")
    assert set(got.layers) == set(want.layers)
    for key in want.layers:
        equal_matrices(got.layers[key], want.layers[key], f"layers[{key!r}]")
    assert (got.raw is None) == (want.raw is None)
    if want.raw is not None:
        equal_matrices(got.raw.X, want.raw.X, "raw.X")
        equal_frames(got.raw.var, want.raw.var, "raw.var")
    if uns:
        equal_nested(dict(got.uns), dict(want.uns), "uns")


def check(db: MsgExpress, source: object, want: ad.AnnData, maker: Maker, may_refuse: bool) -> bool:
    """Whether `source` was kept; it has to come back as `want`."""
    try:
        ds = db.ingest(source, "t/x", progress=False)
    except skytether.SkytetherError as e:
        assert may_refuse, f"refused: {e}"
        assert isinstance(e, (skytether.InvalidError, skytether.UnsupportedError)) and len(str(e)) > 20, repr(e)
        assert list(db) == []
        return False
    equal(ds.to_anndata(), want)
    # A part of it, of cells and genes in any order.
    cells, genes = (maker.rng.permutation(n)[: n // 2 + 1] for n in want.shape)
    part = ds.to_anndata(cells=cells, genes=genes)
    np.testing.assert_array_equal(dense(part.X), dense(want.X)[cells][:, genes])
    assert db.fleet.sql("SELECT count(*) AS n FROM t.x.obs").to_arrow().to_pylist() == [{"n": want.n_obs}]
    db.drop("t/x")
    return True


@pytest.mark.parametrize("chunk", seeds(), ids=lambda c: f"{c.start}..{c.stop}")
@pytest.mark.timeout(1800)
def test_anndata_by_seed_comes_back_or_is_refused(tmp_path: Path, chunk: range) -> None:
    kept = 0
    with msgexpress.open(tmp_path / "fleet", drives=2) as db, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in chunk:
            maker = Maker(seed)
            adata = maker.anndata()
            try:
                kept += check(db, adata, adata, maker, maker.odd)
                kept += check_file(db, adata, maker, tmp_path / "a.h5ad")
            except Exception as e:
                e.add_note(f"seed {seed}: SKYTETHER_ROUNDTRIPS={seed}..{seed + 1}")
                raise
    assert kept >= len(chunk) // 2


def check_file(db: MsgExpress, adata: ad.AnnData, maker: Maker, path: Path) -> bool:
    """The same as the file that anndata makes of it, where it does. What anndata reads, is kept."""
    path.unlink(missing_ok=True)
    try:
        adata.write_h5ad(path, compression=maker.pick([None, "gzip"]), convert_strings_to_categoricals=maker.chance(0.5))
    except Exception:
        return False
    try:
        want = ad.read_h5ad(path)
    except Exception:
        want = None
    if want is None:  # anndata has written what it can't read
        with pytest.raises(skytether.SkytetherError):
            db.ingest(path, "t/x", progress=False)
        return False
    return check(db, path, want, maker, False)
