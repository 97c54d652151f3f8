"""Lists of genes and cells as R, GEO and the EBI have them: quoted, with prefixes, with symbols that repeat."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
from conftest import counts, rich
from test_roundtrip import ebi_bundle

import skytether
from msgexpress import _tsv

X = counts(12, 6)
IDS = [f"ENSG{i}" for i in range(6)]


def directory(
    place: Path, genes: list[str], cells: list[str] | None = None, before: str = "", after: str = "", features: str = "features", packed: bool = True, x: np.ndarray = X
) -> Path:
    """A 10x directory of `x`; `before` and `after` stand around the files' names."""
    place.mkdir(exist_ok=True)
    scipy.io.mmwrite(place / "made.mtx", sp.coo_matrix(x.T.astype(np.int32)), field="integer")
    texts = {"matrix": (place / "made.mtx").read_text(), features: "\n".join(genes) + "\n", "barcodes": "\n".join(cells or [f"AAAC{i}-1" for i in range(12)]) + "\n"}
    (place / "made.mtx").unlink()
    for name, text in texts.items():
        path = place / f"{before}{name}{after}.{'mtx' if name == 'matrix' else 'tsv'}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return place


def plain(genes: list[str] = IDS) -> list[str]:
    return [f"{i}\tsym{n}\tGene Expression" for n, i in enumerate(genes)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("features", ["features", "genes"])
@pytest.mark.parametrize(("before", "after"), [("GSM4157068_Sample_6_", ""), ("GSM3674240_b2.", ""), ("GSM4411625_", "_MH001"), ("matrix_of_genes_", "")])
def test_names_of_geo_are_found(db, tmp_path, before, after, features, packed):
    place = directory(tmp_path / "d", plain(), None, before, after, features, packed)
    for source in (place, place / f"{before}matrix{after}.mtx{'.gz' if packed else ''}"):
        ds = db.ingest(source, "t/x", replace=True)
        np.testing.assert_array_equal(ds.to_anndata().X.toarray(), X)
        assert list(ds.var["gene_ids"]) == IDS and ds.obs_names[0] == "AAAC0-1"


def test_two_samples_in_one_directory_are_asked_for(db, tmp_path):
    for before in ("GSM1_a_", "GSM2_b_"):
        place = directory(tmp_path / "d", plain([f"{before}{i}" for i in range(6)]), None, before)
    with pytest.raises(skytether.InvalidError, match=r"several matrices: give the path of one of them \(GSM1_a_matrix.mtx.gz, GSM2_b_matrix.mtx.gz\)"):
        db.ingest(place, "t/x")
    for before in ("GSM1_a_", "GSM2_b_"):
        assert db.ingest(place / f"{before}matrix.mtx.gz", "t/x", replace=True).var["gene_ids"].iloc[0] == f"{before}0"
    (place / "GSM2_b_barcodes.tsv.gz").unlink()
    with pytest.raises(skytether.NotFoundError, match=r"GSM2_b_matrix.mtx.gz has no GSM2_b_barcodes.tsv"):
        db.ingest(place / "GSM2_b_matrix.mtx.gz", "t/x", replace=True)
    assert list(db) == ["t/x"]


def test_quoted_lists_of_r_are_read_without_their_marks(db, tmp_path):
    genes = [f'"{i}"\t"sym{n}"\t"Gene Expression"' for n, i in enumerate(IDS)]
    place = directory(tmp_path / "d", genes, [f'"AAAC{i}-1"' for i in range(12)])
    ds = db.ingest(place, "t/x")
    assert list(ds.var_names) == [f"sym{i}" for i in range(6)] and list(ds.var["gene_ids"]) == IDS
    assert list(ds.obs_names[:2]) == ["AAAC0-1", "AAAC1-1"] and set(ds.var["feature_types"]) == {"Gene Expression"}


def test_row_names_of_r_are_no_names_of_genes_or_cells(db, tmp_path):
    genes = [f'"{n + 1}"\t"{i}"\t"sym{n}"' for n, i in enumerate(IDS)]
    place = directory(tmp_path / "d", genes, [f'"{i + 1}"\t"AAAC{i}-1"' for i in range(12)])
    with pytest.warns(UserWarning, match="features.tsv.gz: its first column numbers the lines and is taken for R's row names: genes go by the third column, as 'sym0'"):
        ds = db.ingest(place, "t/x")
    assert list(ds.var_names) == [f"sym{i}" for i in range(6)] and list(ds.var["gene_ids"]) == IDS and list(ds.var.columns) == ["gene_ids"]
    # With types, there is a fourth column.
    place = directory(tmp_path / "f", [f'"{n + 1}"\t"{i}"\t"sym0"\t"Gene Expression"' for n, i in enumerate(IDS)])
    with pytest.warns(UserWarning, match="R's row names"):
        ds = db.ingest(place, "t/z")
    assert ds.var_names[0] == "sym0" and list(ds.var["gene_ids"]) == IDS and set(ds.var["feature_types"]) == {"Gene Expression"}
    assert list(ds.obs_names[:2]) == ["AAAC0-1", "AAAC1-1"]
    # Numbers that are the only names stay.
    place = directory(tmp_path / "e", [str(n) for n in range(1, 7)], [str(n) for n in range(1, 13)])
    ds = db.ingest(place, "t/y")
    assert list(ds.var_names) == [str(n) for n in range(1, 7)] and list(ds.obs_names) == [str(n) for n in range(1, 13)]


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("more", ["\tGene Expression", "\tAntibody Capture", "\tGene Expression\tchr1\t1\t9", ""])
def test_ids_that_are_numbers_stay_ids_as_in_scanpy(db, tmp_path, n, more):
    import scanpy as sc

    place = directory(tmp_path / "d", [f"{i + 1}\tsym{i}{more}" for i in range(n)], features="features" if more else "genes", packed=bool(more), x=X[:, :n])
    ds, scanpys = db.ingest(place, "t/x"), sc.read_10x_mtx(place, gex_only=False)
    pd.testing.assert_frame_equal(ds.var.astype(str), scanpys.var.astype(str))
    assert list(ds.var_names) == [f"sym{i}" for i in range(n)] and list(ds.var["gene_ids"]) == [str(i + 1) for i in range(n)]


def test_third_columns_that_may_be_either_are_refused(db, tmp_path):
    place = directory(tmp_path / "d", ["1\tA\tProtein"], x=X[:, :1])
    with pytest.raises(skytether.InvalidError, match=r"features.tsv.gz: its first column numbers the lines, and the third \('Protein'\) may have symbols or types"):
        db.ingest(place, "t/x")
    # A type of our own that repeats is one.
    place = directory(tmp_path / "e", [f"{i + 1}\tsym{i}\tProtein" for i in range(6)])
    assert db.ingest(place, "t/y").var_names[0] == "sym0"


def test_symbols_that_repeat_are_made_unique_as_scanpy_does(db, tmp_path):
    import scanpy as sc

    symbols = ["TBCE", "A", "TBCE", "A", "TBCE", "TBCE-1"]
    place = directory(tmp_path / "d", [f"{i}\t{s}\tGene Expression" for i, s in zip(IDS, symbols)])
    ds = db.ingest(place, "t/x")
    assert list(ds.var_names) == list(sc.read_10x_mtx(place).var_names) == ["TBCE", "A", "TBCE-2", "A-1", "TBCE-3", "TBCE-1"]
    for res in (ds.ttest(range(6), range(6, 12), transform="log1p_cp10k"),):
        frame = res.to_df()
        assert list(frame.columns)[:3] == ["names", "gene_ids", "scores"]
        by_id = dict(zip(frame["gene_ids"], frame["names"]))
        assert by_id == dict(zip(IDS, ds.var_names))
    # Where names repeat in AnnData itself, they stay, and the ids tell them apart.
    adata = ds.to_anndata()
    adata.var_names = symbols
    adata.obs["g"] = pd.Categorical(["a", "b"] * 6)
    with pytest.warns(UserWarning, match="gene names repeat"):
        ds = db.ingest(adata, "t/y")
    frame = ds.rank_genes_groups("g", transform="log1p_cp10k").to_df()
    assert list(frame.columns)[:4] == ["group", "names", "gene_ids", "scores"] and sorted(frame["gene_ids"]) == sorted(IDS * 2)
    for name, of in zip(frame["names"], frame["gene_ids"]):
        assert symbols[IDS.index(of)] == name


def test_results_have_any_var_column_next_to_the_names(db):
    adata = rich()
    adata.var["feature_name"] = pd.Categorical([f"SYM{i % 30}" for i in range(40)])
    adata.raw = adata[:, ::-1].copy()
    ds = db.ingest(adata, "t/x")
    symbols = dict(zip(adata.var_names, adata.var["feature_name"]))
    for layer in (None, "raw"):
        res = ds.rank_genes_groups("type", transform="log1p_cp10k", layer=layer)
        assert list(res.to_df("B").columns) == ["names", "scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference"]
        frame = res.to_df("B", gene_symbols="feature_name")
        assert list(frame.columns)[:3] == ["names", "feature_name", "scores"]
        assert [symbols[n] for n in frame["names"]] == list(frame["feature_name"])
        assert len(res.to_df(gene_symbols="symbol")) == 3 * 40
    with pytest.raises(skytether.NotFoundError, match="var of t/x has no column 'q': it has 'symbol', 'high', 'feature_name'"):
        res.to_df(gene_symbols="q")


def design(place: Path, cells: list[str], quote: str = "") -> None:
    head = ["Assay", "Sample Characteristic[organism]", "Factor Value[inferred cell type - authors labels]", "Sample Characteristic[age]"]
    lines = [head, *([c, "Mus musculus", ["T cell", "B cell"][i % 2], str(i)] for i, c in enumerate(cells))]
    (place / "ExpDesign-E-TEST-1.tsv").write_text("".join("\t".join(f"{quote}{f}{quote}" for f in line) + "\n" for line in lines))


@pytest.mark.parametrize("quote", ["", '"'])
def test_experiment_designs_of_the_ebi_are_obs_columns(db, tmp_path, quote):
    adata = rich()
    ebi_bundle(adata, tmp_path / "b")
    design(tmp_path / "b", list(adata.obs_names)[::-1], quote)
    ds = db.ingest(tmp_path / "b", "t/x")
    label = "Factor Value[inferred cell type - authors labels]"
    assert list(ds.obs["Sample Characteristic[age]"]) == list(range(60))[::-1] and ds.obs[label].iloc[-1] == "T cell"
    assert list(ds.obs["organ"]) == ["blood"] * 60
    assert ds.rank_genes_groups(label, transform="log1p_cp10k").groups == ["B cell", "T cell"]


@pytest.mark.parametrize("which", ["ExpDesign", "cell_metadata", "clusters", "tsne"])
def test_ebi_files_about_other_cells_are_an_error(db, tmp_path, which):
    adata = rich()
    ebi_bundle(adata, tmp_path / "b")
    others = [f"other-{i}" for i in range(60)]
    if which == "ExpDesign":
        design(tmp_path / "b", others)
    else:
        path = tmp_path / "b" / f"E-TEST-1.{'tsne_perplexity_5' if which == 'tsne' else which}.tsv"
        lines = {"cell_metadata": ["id\torgan", *(f"{c}\tblood" for c in others)], "clusters": ["sel.K\tK\t" + "\t".join(others), "TRUE\t2\t" + "\t".join("12" * 30)]}
        path.write_text("\n".join(lines.get(which, ["\ttSNE_1\ttSNE_2", *(f"{c}\t1\t2" for c in others)])) + "\n")
    with pytest.raises(skytether.InvalidError, match=f"{which}.*names no cell of the matrix: it has 'other-0' where mtx_cols has 'cell-0'"):
        db.ingest(tmp_path / "b", "t/x")
    assert list(db) == []


FILES = {"cell_metadata": ["id\torgan", "{}\tblood"], "ExpDesign": ["Assay\torgan", "{}\tblood"], "tsne": ["\ttSNE_1\ttSNE_2", "{}\t1\t2"]}


@pytest.mark.parametrize("which", [*FILES, "clusters"])
def test_ebi_files_about_some_cells_say_so_conflicts_fail(db, tmp_path, which):
    adata = rich()
    ebi_bundle(adata, tmp_path / "b")
    (tmp_path / "b" / "E-TEST-1.clusters.tsv").unlink()
    path = tmp_path / "b" / ("ExpDesign-E-TEST-1.tsv" if which == "ExpDesign" else f"E-TEST-1.{'tsne_perplexity_5' if which == 'tsne' else which}.tsv")

    def write(*more: tuple[str, str, str]) -> None:
        # Other cells may be there twice, and a cell twice the same.
        some = [(c, "", "") for c in [*adata.obs_names[:45], "other", "cell-1"]] + list(more)
        if which == "clusters":
            text = "\n".join("\t".join(line) for line in (["sel.K", "K", *(c for c, _, _ in some)], ["TRUE", "2", *("3" if new else "1" for _, _, new in some)]))
        else:
            head, line = FILES[which]
            text = "\n".join([head, *(line.format(c).replace(old or " ", new or " ") for c, old, new in some)])
        path.write_text(text + "\n")

    write(("other", "blood", "skin"))
    with pytest.warns(UserWarning, match=rf"{path.name} names 45 of the 60 cells: the others have no value of it"):
        db.ingest(tmp_path / "b", "t/x")
    write(("cell-2", "1" if which == "tsne" else "blood", "7"))
    with pytest.raises(skytether.CorruptError, match=rf"{path.name} says different things about cell 'cell-2' \(entries 3, 48 of its cells\): leave one"):
        db.ingest(tmp_path / "b", "t/x", replace=True)


def test_embeddings_and_numbered_rows_of_the_ebi_are_read(db, tmp_path):
    adata = rich()
    ebi_bundle(adata, tmp_path / "b")
    stem = tmp_path / "b" / "E-TEST-1.aggregated_filtered_counts"
    Path(f"{stem}.mtx_rows").write_text("".join(f"{i + 1}\t{n}\n" for i, n in enumerate(adata.var_names)))
    Path(f"{stem}.mtx_cols").write_text("".join(f"{i + 1}\t{n}\n" for i, n in enumerate(adata.obs_names)))
    (tmp_path / "b" / "E-TEST-1.tsne_perplexity_25.tsv").write_text("\ttSNE_1\ttSNE_2\n" + "".join(f"{c}\t{i}.5\t-1\n" for i, c in list(enumerate(adata.obs_names))[::-1][:-1]))
    back = db.ingest(tmp_path / "b", "t/x").to_anndata()
    assert list(back.obs_names) == list(adata.obs_names) and list(back.var_names) == list(adata.var_names)
    at = back.obsm["X_tsne_perplexity_25"]
    assert np.isnan(at[0]).all() and at[1:].tolist() == [[i + 0.5, -1.0] for i in range(1, 60)]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('"a"\t"b c"\t"d"', ["a", "b c", "d"]),
        ('a\t"tab\there"\tc', ["a", "tab\there", "c"]),
        ('"say \\"x\\""\t"say ""y"""', ['say "x"', 'say "y"']),
        ("5\" biopsy, 'left'\tb", ["5\" biopsy, 'left'", "b"]),
        ('"a" b\tc', ['"a" b', "c"]),
        ('""\t""\t', ["", "", ""]),
        ('"open\tb', ['"open', "b"]),
        ('"back\\slash"\t"', ["back\\slash", '"']),
        ("", [""]),
        ("a\t\tb\t", ["a", "", "b", ""]),
    ],
)
def test_fields_of_a_line_with_marks(line, fields):
    assert _tsv.fields(line) == fields


def test_row_names_of_r_have_no_head(tmp_path):
    (tmp_path / "a.tsv").write_bytes('\ufeff"organ"\t"n"\r\n"c1"\t"blood"\t1\r\n"c2"\t"skin"\t2\r\n\r\n'.encode())
    assert _tsv.rows(tmp_path / "a.tsv") == [["", "organ", "n"], ["c1", "blood", "1"], ["c2", "skin", "2"]]
