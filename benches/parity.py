"""Parity with scanpy and scipy on real data: every h5ad in ../shared/data where it is present, and
examples/data otherwise."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LABELS = {"pbmc3k": "cell_type", "pbmc_facs_zheng": "celltype", "kang_ifnb_ctrl_stim_2k": "condition", "cite_cbmc_8617_top2000": "label"}


def sources() -> list[Path]:
    shared = ROOT.parent / "shared" / "data"
    found = [shared / f"{name}.h5ad" for name in LABELS]
    return [p for p in found if p.exists()] or [ROOT / "examples" / "data" / "pbmc3k.h5ad"]


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, relative where |theirs| >= 1 and absolute below; equal infinities differ by 0."""
    same = ours == theirs
    with np.errstate(invalid="ignore"):
        d = np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1.0)
    d[same] = 0.0
    return float(np.nanmax(d)) if d.size else 0.0


def compare(path: Path, ds, method: str, transform: str | None = "log1p_cp10k") -> dict:
    """Largest distances between our result and scanpy's on one data set, over all groups and genes. `ds` holds the
    counts, or without a `transform` what scanpy makes of them."""
    import anndata
    import scanpy as sc

    label = LABELS[path.stem]
    adata = anndata.read_h5ad(path)
    adata.obs[label] = adata.obs[label].astype(str).astype("category")
    keep = [g for g, n in adata.obs[label].value_counts().items() if n >= 2]
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.tl.rank_genes_groups(adata, label, method=method, groups=keep, pts=False)
    ours = ds.rank_genes_groups(label, method=method, groups=keep, transform=transform)
    worst = {"scores": 0.0, "log pvals": 0.0, "logfoldchanges": 0.0, "order": 0, "genes": 0}
    for group in keep:
        want = sc.get.rank_genes_groups_df(adata, group)
        got = ours.to_df(group)
        assert len(want) == len(got)
        # Names may repeat: match by position in var through a stable key.
        w = want.assign(k=want.groupby("names").cumcount()).set_index(["names", "k"])
        g = got.assign(k=got.groupby("names").cumcount()).set_index(["names", "k"]).loc[w.index]
        worst["scores"] = max(worst["scores"], distance(g["scores"].to_numpy(float), w["scores"].to_numpy(float)))
        with np.errstate(divide="ignore"):
            lp_got, lp_want = np.log(g["pvals"].to_numpy(float)), np.log(w["pvals"].to_numpy(float))
        worst["log pvals"] = max(worst["log pvals"], distance(lp_got, lp_want))
        # 0/0 in both means gives 0 here and there; +-30 artefacts of absent genes are the same formula.
        worst["logfoldchanges"] = max(worst["logfoldchanges"], distance(g["logfoldchanges"].to_numpy(float), w["logfoldchanges"].to_numpy(float)))
        # Same order but for ties: our order must be sorted by scanpy's scores up to the float32 floor.
        theirs_in_our_order = w["scores"].loc[got.assign(k=got.groupby("names").cumcount()).set_index(["names", "k"]).index].to_numpy(float)
        drops = theirs_in_our_order[1:] - theirs_in_our_order[:-1]
        worst["order"] += int(np.sum(drops > 2e-6 * np.maximum(1.0, np.abs(theirs_in_our_order[1:]))))
        worst["genes"] += len(want)
    return worst


def normalised(path: Path, db):
    """The counts as scanpy normalises them, and a data set that holds these values."""
    import anndata
    import scanpy as sc

    adata = anndata.read_h5ad(path)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata, db.ingest(adata, f"parity/{path.stem}_log")


def student(path: Path, adata, ds) -> float:
    """Largest distance of Student's t from scipy.stats.ttest_ind on the same stored values (scanpy's normalised ones),
    largest group against second."""
    from scipy import stats

    label = LABELS[path.stem]
    names = adata.obs[label].astype(str)
    a, b = names.value_counts().index[:2]
    x = adata.X.toarray() if hasattr(adata.X, "toarray") else np.asarray(adata.X)
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = stats.ttest_ind(x[(names == a).to_numpy()].astype(np.float64), x[(names == b).to_numpy()].astype(np.float64), equal_var=True)
    (ranked,) = ds.ttest({label: a}, {label: b}, equal_var=True, transform=None)._ranked.values()
    # Gene by gene, by number: names may repeat.
    ours = np.full(adata.n_vars, np.nan)
    ours[ranked["gene_id"].to_numpy()] = ranked["scores"].to_numpy()
    t = np.nan_to_num(want.statistic, nan=0.0)
    finite = np.isfinite(t)
    return distance(np.nan_to_num(ours[finite], nan=np.inf), t[finite])


def compare_all():
    """Rows for run.line: one per data set, method and quantity."""
    import msgexpress

    warnings.simplefilter("ignore")
    fleet = ROOT / "bench-out" / "fleet_parity"
    shutil.rmtree(fleet, ignore_errors=True)
    print("\nparity (largest distance over all groups and genes)")
    with msgexpress.open(fleet, drives=4) as db:
        for path in sources():
            ds = db.ingest(path, f"parity/{path.stem}")
            adata, logs = normalised(path, db)
            # Ranks depend on the last bit of a logarithm, where values are tied: that test takes scanpy's own.
            for method, of, transform in (("t-test", ds, "log1p_cp10k"), ("t-test_overestim_var", ds, "log1p_cp10k"), ("wilcoxon", logs, None)):
                worst = compare(path, of, method, transform)
                what = f"{path.stem}, {method}"
                yield f"{what}: scores", f"{worst['scores']:.1e}", f"scanpy, {worst['genes']:,} scores", "<= 1e-6", worst["scores"] <= 1e-6
                yield f"{what}: log p-values", f"{worst['log pvals']:.1e}", "", "<= 1e-5", worst["log pvals"] <= 1e-5
                yield f"{what}: log fold changes", f"{worst['logfoldchanges']:.1e}", "", "<= 1e-5", worst["logfoldchanges"] <= 1e-5
                yield f"{what}: out of order", str(worst["order"]), "", "0", worst["order"] == 0
            d = student(path, adata, logs)
            yield f"{path.stem}, Student", f"{d:.1e}", "scipy.stats.ttest_ind, same values", "<= 1e-10", d <= 1e-10
