"""The downloads of the Single Cell Expression Atlas, as its website has them: raw and normalised counts, TPM, clusters,
the experiment's design and marker genes, in one directory or one for each archive."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.io
import scipy.sparse as sp
from conftest import counts

import skytether

GENES = [f"ENSG{i:011}" for i in range(40)]
CELLS = [f"SAMEA123-{'ACGT' * 4}{i}" for i in range(60)]
X = counts()
LABELS = "Factor Value[inferred cell type - ontology labels]"


def matrix(place: Path, stem: str, x: np.ndarray, genes: list[str] = GENES, packed: bool = False) -> None:
    place.mkdir(exist_ok=True, parents=True)
    path = place / f"E-TEST-7.{stem}.mtx"
    scipy.io.mmwrite(path, sp.coo_matrix(x.T), field="real")
    Path(f"{path}_rows").write_text("".join(f"{g}\t{g}\n" for g in genes))
    Path(f"{path}_cols").write_text("".join(f"{c}\n" for c in CELLS))
    for part in ("", "_rows", "_cols") if packed else ():
        one = Path(f"{path}{part}")
        Path(f"{one}.gz").write_bytes(gzip.compress(one.read_bytes()))
        one.unlink()


def markers(of: dict[str, list[str]]) -> pd.DataFrame:
    """A table as the Atlas has it."""
    rows = [(cluster, "rest", rank, gene, 9.5 - rank, 1.25, 10.0 ** -(9 - rank), 1e-3) for cluster, genes in of.items() for rank, gene in enumerate(genes)]
    return pd.DataFrame(rows, columns=["cluster", "ref", "rank", "genes", "scores", "logfoldchanges", "pvals", "pvals_adj"])


def download(place: Path, apart: bool, packed: bool = False) -> Path:
    """A whole download; `apart`, each archive in a directory of its own."""

    def of(archive: str) -> Path:
        inside = place / f"E-TEST-7-{archive}-files" if apart else place
        inside.mkdir(exist_ok=True, parents=True)
        return inside

    matrix(of("quantification-raw"), "aggregated_filtered_counts", X, packed=packed)
    matrix(of("normalised"), "aggregated_filtered_normalised_counts", np.log1p(X), packed=packed)
    matrix(of("normalised"), "expression_tpm", X * 2)
    lines = [["sel.K", "K", *CELLS], ["FALSE", "2", *(str(i % 2 + 1) for i in range(60))], ["TRUE", "3", *(str(i % 3 + 1) for i in range(60))]]
    (place / "E-TEST-7.clusters.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    head = ["Assay", "Sample Characteristic[organism]", "Sample Characteristic Ontology Term[organism]", LABELS]
    lines = [head, *([c, "Homo sapiens", "http://purl.obolibrary.org/obo/NCBITaxon_9606", ["T cell", "B cell"][i % 2]] for i, c in enumerate(CELLS[::-1]))]
    (place / "ExpDesign-E-TEST-7.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    (place / "E-TEST-7.umap_n_neighbors_15.tsv").write_text("\tUMAP_1\tUMAP_2\n" + "".join(f"{c}\t{i}\t-{i}.5\n" for i, c in enumerate(CELLS)))
    for name, of_clusters in (("3", {"1": GENES[:3], "2": GENES[5:7]}), ("inferred_cell_type_-_ontology_labels", {"T cell": GENES[:2]})):
        markers(of_clusters).to_csv(of("marker-genes") / f"E-TEST-7.marker_genes_{name}.tsv", sep="\t", index=False)
    stats = pd.DataFrame({"gene_id": GENES[:2], "grouping_where_marker": "3", "group_where_marker": "1", "cluster_id": ["1", "2"], "marker_p_value": [0.01, 0.02], "mean_expression": [1.5, 0], "median_expression": [1, 0]})
    stats.to_csv(of("marker-genes") / "E-TEST-7.marker_stats_filtered_normalised.tsv", sep="\t", index=False)
    return place


@pytest.mark.parametrize(("apart", "packed"), [(False, True), (True, False)])
def test_downloads_of_the_atlas_come_in_whole(db, tmp_path, apart, packed):
    place = download(tmp_path / "E-TEST-7", apart, packed)
    ds = db.ingest(place, "atlas/x")
    assert ds.layers == ["normalised", "tpm"] and ds.shape == (60, 40)
    back = ds.to_anndata()
    # scanpy reads the same files, genes as rows.
    if not packed:
        stem = next(place.rglob("*aggregated_filtered_counts.mtx"))
        np.testing.assert_array_equal(sc.read_mtx(stem).T.X.toarray(), back.X.toarray())
    np.testing.assert_array_equal(back.X.toarray(), X)
    np.testing.assert_allclose(back.layers["normalised"].toarray(), np.log1p(X), rtol=1e-6)
    np.testing.assert_array_equal(back.layers["tpm"].toarray(), X * 2)
    assert list(back.obs_names) == CELLS and list(back.var_names) == GENES
    assert list(back.obs[LABELS][-2:]) == ["B cell", "T cell"] and list(back.obs["clusters"]) == list(back.obs["clusters_3"])
    assert back.obsm["X_umap_n_neighbors_15"][3].tolist() == [3.0, -3.5]
    assert set(back.uns["marker_genes"]) == {"3", "inferred_cell_type_-_ontology_labels"}
    pd.testing.assert_frame_equal(back.uns["marker_genes"]["3"].reset_index(drop=True), markers({"1": GENES[:3], "2": GENES[5:7]}).astype({"rank": float}))
    assert list(back.uns["marker_stats"]["filtered_normalised"]["mean_expression"]) == [1.5, 0]
    assert ds.rank_genes_groups(LABELS, transform="log1p_cp10k").groups == ["B cell", "T cell"]


def test_atlas_matrices_of_other_genes_are_left_out(db, tmp_path):
    place = download(tmp_path / "E-TEST-7", False)
    matrix(place, "expression_tpm", X, GENES[::-1])
    with pytest.warns(UserWarning, match="expression_tpm.mtx is for other genes or cells than .*aggregated_filtered_counts.mtx and is left out"):
        assert db.ingest(place, "atlas/x").layers == ["normalised"]


def test_normalised_counts_alone_are_the_matrix(db, tmp_path):
    matrix(tmp_path / "d" / "E-TEST-7-normalised-files", "aggregated_filtered_normalised_counts", np.log1p(X))
    np.testing.assert_allclose(db.ingest(tmp_path / "d", "atlas/x").to_anndata().X.toarray(), np.log1p(X), rtol=1e-6)


def test_two_experiments_in_one_directory_are_refused(db, tmp_path):
    place = download(tmp_path / "d", True)
    for path in place.rglob("*counts.mtx*"):
        (path.parent / path.name.replace("TEST-7", "TEST-8")).write_bytes(path.read_bytes())
    with pytest.raises(skytether.InvalidError, match="has several matrices: E-TEST-7.aggregated_filtered_counts.mtx, E-TEST-8"):
        db.ingest(place, "atlas/x")


def test_damaged_marker_tables_are_named(db, tmp_path):
    place = download(tmp_path / "d", True)
    path = next(place.rglob("*marker_genes_3.tsv"))
    text = path.read_text()
    path.write_text(text.replace("\t9.5", "\tmuch"))
    with pytest.raises(skytether.CorruptError, match="marker_genes_3.tsv: column 'scores' has what is no number"):
        db.ingest(place, "atlas/x")
    path.write_text(text.replace("\t9.5", ""))
    with pytest.raises(skytether.CorruptError, match="marker_genes_3.tsv: the lines do not all have the columns"):
        db.ingest(place, "atlas/x")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "E-TEST-7-normalised-files.zip").write_bytes(b"PK")
    with pytest.raises(skytether.InvalidError, match=r"has archives of the Expression Atlas \(E-TEST-7-normalised-files.zip\): unpack them there"):
        db.ingest(tmp_path / "packed", "atlas/x")
