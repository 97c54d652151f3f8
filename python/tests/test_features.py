"""Features that are no genes: antibodies, guides and genes of other genomes are kept apart, where scanpy drops them."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from conftest import command, counts, rich

import msgexpress
import skytether
from msgexpress import _features

CELLS, GENES = 45, 24
#: Antibodies between genes, so that numbers shift.
KINDS = ["Gene Expression"] * 10 + ["Antibody Capture"] * 3 + ["Gene Expression"] * 8 + ["CRISPR Guide Capture"] * 2 + ["Antibody Capture"]
NAMES = [f"{'G' if kind.startswith('Gene') else 'F'}{i}" for i, kind in enumerate(KINDS)]
GENOMES = ["GRCh38" if i % 3 else "mm10" if kind.startswith("Gene") else "" for i, kind in enumerate(KINDS)]
GENOMES = ["" if not kind.startswith("Gene") else genome for kind, genome in zip(KINDS, GENOMES)]
GROUPS = np.array(["A", "B", "C"])[np.arange(CELLS) % 3]


def values() -> np.ndarray:
    """Counts; those of antibodies are large, so that they rule each cell's total."""
    x = counts(CELLS, GENES, seed=7)
    x[:, [k != "Gene Expression" for k in KINDS]] *= 60
    return x


def write_h5(path: Path, kinds=KINDS, genomes=GENOMES) -> Path:
    """A file of Cell Ranger 3 and later."""
    columns = sp.csc_matrix(values().T).astype(np.int32)
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(columns, part)
        group["shape"] = np.array(columns.shape)
        group["barcodes"] = np.array([f"BC{i}-1" for i in range(CELLS)], "S")
        group["features/id"] = np.array([f"ENSG{i:04}" for i in range(GENES)], "S")
        group["features/name"] = np.array(NAMES, "S")
        group["features/feature_type"] = np.array(kinds, "S")
        group["features/genome"] = np.array(genomes, "S")
    return path


def write_mtx(place: Path, kinds=KINDS) -> Path:
    place.mkdir()
    entries = sp.coo_matrix(values().T)
    lines = [f"{i + 1} {j + 1} {int(v)}" for i, j, v in zip(entries.row, entries.col, entries.data)]
    head = f"%%MatrixMarket matrix coordinate integer general\n{GENES} {CELLS} {len(lines)}"
    for name, text in {
        "matrix.mtx": "\n".join([head, *lines]),
        "features.tsv": "\n".join(f"ENSG{i:04}\t{name}\t{kind}" for i, (name, kind) in enumerate(zip(NAMES, kinds))),
        "barcodes.tsv": "\n".join(f"BC{i}-1" for i in range(CELLS)),
    }.items():
        (place / f"{name}.gz").write_bytes(gzip.compress((text + "\n").encode()))
    return place


READ = {
    "h5": (lambda place: write_h5(place / "cite.h5"), sc.read_10x_h5),
    "mtx": (lambda place: write_mtx(place / "cite"), sc.read_10x_mtx),
}


@pytest.mark.parametrize("form", READ)
def test_genes_alone_are_the_matrix_as_in_scanpy(db, tmp_path, form):
    """Values, names and scores equal those of scanpy's reader, normalisation and test; nothing is lost."""
    write, read = READ[form]
    path = write(tmp_path)
    with pytest.warns(UserWarning, match=r"6 features .* kept apart \(4 of Antibody Capture, 2 of CRISPR Guide Capture\)"):
        ds = db.ingest(path, "t/cite")
    wanted = read(path)
    assert ds.shape == wanted.shape == (CELLS, 18) and list(ds.var_names) == list(wanted.var_names)
    assert set(ds.var["feature_types"]) == {"Gene Expression"} and list(ds.var["gene_ids"]) == list(wanted.var["gene_ids"])
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), wanted.X.toarray())

    sc.pp.normalize_total(wanted, target_sum=1e4)
    sc.pp.log1p(wanted)
    wanted.obs["g"] = pd.Categorical(GROUPS)
    sc.tl.rank_genes_groups(wanted, "g", groups=["A"], reference="B")
    theirs = sc.get.rank_genes_groups_df(wanted, "A").set_index("names")
    ours = ds.ttest(GROUPS == "A", GROUPS == "B", transform="log1p_cp10k").to_df().set_index("names").loc[theirs.index]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-4, atol=1e-4)

    # The others: each type with its own names, values and totals.
    whole = values()
    assert ds.other_features == ["Antibody Capture", "CRISPR Guide Capture"] and set(ds.other_features) <= set(ds.layers)
    for kind in ds.other_features:
        of_kind = np.array([k == kind for k in KINDS])
        other = ds.to_anndata(features=kind)
        np.testing.assert_array_equal(other.X.toarray(), whole[:, of_kind])
        assert list(other.var_names) == list(np.array(NAMES)[of_kind]) and list(other.obs_names) == list(ds.obs_names)
        assert set(other.var["feature_types"]) == {kind}
        alone = ad.AnnData(sp.csr_matrix(whole[:, of_kind]), var=pd.DataFrame(index=np.array(NAMES)[of_kind]))
        keep = np.asarray(alone.X.sum(1)).ravel() > 0
        sc.pp.normalize_total(alone, target_sum=1e4)
        sc.pp.log1p(alone)
        a, b = (GROUPS == "A") & keep, (GROUPS == "B") & keep
        found = ds.ttest(a, b, layer=kind, transform="log1p_cp10k").to_df().set_index("names").loc[alone.var_names]
        import scipy.stats

        due = scipy.stats.ttest_ind(alone.X.toarray().astype(float)[a], alone.X.toarray().astype(float)[b], equal_var=False).statistic
        np.testing.assert_allclose(found["scores"], np.nan_to_num(due), rtol=1e-4, atol=1e-4)
    some = ds.to_anndata(features="Antibody Capture", genes=["F23", "F11"], cells=[3, 1])
    np.testing.assert_array_equal(some.X.toarray(), whole[np.ix_([3, 1], [23, 11])])


@pytest.mark.parametrize("form", READ)
def test_types_of_features_are_chosen_by_name(db, tmp_path, form):
    path = READ[form][0](tmp_path)
    whole, kinds = values(), np.array(KINDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything = db.ingest(path, "t/all", feature_types="all")
    np.testing.assert_array_equal(everything.to_anndata().X.toarray(), whole)
    assert list(everything.var["feature_types"]) == KINDS and everything.other_features == []
    with pytest.warns(UserWarning, match="kept apart"):
        antibodies = db.ingest(path, "t/one", feature_types="Antibody Capture")
        two = db.ingest(path, "t/two", feature_types=["CRISPR Guide Capture", "Antibody Capture"])
    np.testing.assert_array_equal(antibodies.to_anndata().X.toarray(), whole[:, kinds == "Antibody Capture"])
    np.testing.assert_array_equal(two.to_anndata().X.toarray(), whole[:, kinds != "Gene Expression"])
    np.testing.assert_array_equal(two.to_anndata(features="Gene Expression").X.toarray(), whole[:, kinds == "Gene Expression"])
    for wrong, says in (("Antibody capture", "did you mean 'Antibody Capture'"), ([], "names no type"), (["Gene Expression", "Peaks"], "no features of type 'Peaks'")):
        with pytest.raises(skytether.InvalidError, match=says):
            db.ingest(path, "t/wrong", feature_types=wrong)
    with pytest.raises(skytether.InvalidError, match="feature_types='Antibody Capture'"):
        db.ingest(path, "t/wrong", layer="Antibody Capture")
    assert sorted(db.ls()) == ["t/all", "t/one", "t/two"]


def test_one_type_alone_is_the_matrix_whatever_its_name(db, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = db.ingest(write_h5(tmp_path / "a.h5", kinds=["Peaks"] * GENES), "t/a")
        assert db.ingest(write_mtx(tmp_path / "b", kinds=[""] * GENES), "t/b").shape == (CELLS, GENES)
    assert ds.shape == (CELLS, GENES) and ds.other_features == []
    with pytest.raises(skytether.InvalidError, match=r"no features of type 'Gene Expression': say with feature_types=.*'Peaks', 'Custom'"):
        db.ingest(write_h5(tmp_path / "c.h5", kinds=["Peaks"] * 20 + ["Custom"] * 4), "t/c")


def test_a_genome_of_a_mixed_file_is_chosen(db, tmp_path):
    """As `genome=` of scanpy's `read_10x_h5`; the other genome's genes are kept."""
    path = write_h5(tmp_path / "barnyard.h5")
    with pytest.warns(UserWarning, match=r"of Gene Expression \(GRCh38\)"):
        ds = db.ingest(path, "t/mouse", genome="mm10")
    wanted = sc.read_10x_h5(path, genome="mm10")
    assert list(ds.var_names) == list(wanted.var_names)
    np.testing.assert_array_equal(ds.to_anndata().X.toarray(), wanted.X.toarray())
    of_human = np.array([g == "GRCh38" for g in GENOMES])
    np.testing.assert_array_equal(ds.to_anndata(features="Gene Expression (GRCh38)").X.toarray(), values()[:, of_human])
    assert set(ds.other_features) == {"Gene Expression (GRCh38)", "Antibody Capture", "CRISPR Guide Capture"}
    with pytest.raises(skytether.InvalidError, match="no genome 'mm11'.*'GRCh38', 'mm10'.*did you mean 'mm10'"):
        db.ingest(path, "t/wrong", genome="mm11")


def test_other_sources_have_no_types_to_choose_from(db, tmp_path):
    with pytest.raises(skytether.InvalidError, match="leave feature_types= out"):
        db.ingest(rich(), "t/x", feature_types="Gene Expression")
    mixed = rich()
    mixed.var["feature_types"] = ["Gene Expression"] * 38 + ["Antibody Capture"] * 2
    for source in (mixed, tmp_path / "mixed.h5ad"):
        mixed.write_h5ad(tmp_path / "mixed.h5ad")
        with pytest.warns(UserWarning, match="2 Antibody Capture"):
            ds = db.ingest(source, "t/mixed", replace=True)
        assert ds.shape == mixed.shape


def test_damaged_indices_of_mixed_files_name_their_cell(db, tmp_path):
    path = write_h5(tmp_path / "cite.h5")
    with h5py.File(path, "r+") as file:
        first_of_cell_2 = int(file["matrix/indptr"][2])
        file["matrix/indices"][first_of_cell_2] = GENES
    with pytest.warns(UserWarning), pytest.raises(skytether.CorruptError, match=f"cell 2 has a value for feature {GENES}, but there are {GENES} features"):
        db.ingest(path, "t/x")
    assert db.ls() == []


def test_info_and_sql_show_features_that_were_kept_apart(tmp_path):
    write_h5(tmp_path / "cite.h5")
    fleet = tmp_path / "fleet"
    done = command("ingest", tmp_path / "cite.h5", "--to", "t/cite", "--drives", 3, "--fleet", fleet)
    assert done.returncode == 0 and "kept apart" in done.stderr and "--feature-types" in done.stderr, done.stderr
    shown = command("info", "t/cite", "--fleet", fleet).stdout
    assert "features that are no part of the matrix" in shown and "CRISPR Guide Capture" in shown
    about = json.loads(command("info", "t/cite", "--format", "json", "--fleet", fleet).stdout)
    assert about["other_features"] == ["Antibody Capture", "CRISPR Guide Capture"] and about["genes"] == 18
    done = command("ingest", tmp_path / "cite.h5", "--to", "t/two", "--feature-types", "Antibody Capture,CRISPR Guide Capture", "--fleet", fleet)
    assert done.returncode == 0 and "45 cells x 6 genes, other features Gene Expression" in done.stderr, done.stderr
    with msgexpress.open(fleet) as db:
        found = db.fleet.sql('SELECT gene, sum(value) AS n FROM t.cite.features_antibody_capture GROUP BY gene ORDER BY gene').to_pandas()
        of_kind = np.array([k == "Antibody Capture" for k in KINDS])
        due = dict(zip(np.array(NAMES)[of_kind], values()[:, of_kind].sum(0)))
        assert dict(zip(found["gene"], found["n"])) == due
        assert db.fleet.sql("SELECT count(*) AS n FROM t.cite.var_antibody_capture").to_pandas()["n"][0] == 4


def test_names_of_tables_of_features_differ():
    taken = {_features.slug("Antibody Capture", ())}
    assert taken == {"antibody_capture"} and _features.slug("antibody/capture", taken) == "antibody_capture_1"
    assert _features.slug("***", ()) == "other"
