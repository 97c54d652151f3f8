"""Text files of whole matrices, as GEO has them: what pandas and scanpy read comes in, anything unclear is refused."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import command, counts

import skytether
from msgexpress import _csv, _orientation

GENES = ["ACTB", "ENSG00000000003.15", *(f"G{i}" for i in range(10))]
CELLS = [f"{'ACGT' * 4}-{i}" for i in range(9)]
X = counts(9, 12)


def frame(x: np.ndarray = X) -> pd.DataFrame:
    """Genes by cells."""
    return pd.DataFrame(x.T, GENES, CELLS)


def text(x: np.ndarray = X, **options: object) -> str:
    return frame(x).to_csv(float_format="%.9g", **options)


def taken(db, path: Path, content: str | bytes, **options: object):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return db.ingest(path, "t/x", replace=True, **options)


def check(ds, x: np.ndarray = X, dtype: str = "float32") -> None:
    back = ds.to_anndata()
    assert list(back.obs_names) == CELLS and list(back.var_names) == GENES and back.X.dtype == dtype
    np.testing.assert_array_equal(back.X.toarray(), x.astype(dtype))


R_STYLE = "\t".join(f'"{c}"' for c in CELLS) + "\n" + "".join(f'"{g}"\t' + "\t".join(f"{int(v)}" for v in row) + "\n" for g, row in zip(GENES, X.T))

FORMS = {
    "a.csv": text(),
    "a.csv.gz": text(),
    "a.tsv.gz": text(sep="\t"),
    "a.txt": text(sep="\t"),
    "semicolons.csv": text(sep=";"),
    "tabs.csv": text(sep="\t"),
    "blanks.txt": text(sep=" "),
    "quoted.csv": text(quoting=1),
    "r.txt.gz": R_STYLE,
    "named.csv": text(index_label="gene"),
    "dos.csv": text(lineterminator="\r\n") + "\r\n\r\n",
    "open.csv": text().rstrip("\n"),
    "marked.csv": "\ufeff" + text(),
    "spaced.csv": text().replace(",", ", "),
}


@pytest.mark.parametrize("block", [1 << 21, 37])
def test_text_files_of_all_forms_give_one_matrix(db, tmp_path, monkeypatch, block):
    monkeypatch.setattr(_csv, "BLOCK", block)
    for name, content in FORMS.items():
        check(taken(db, tmp_path / name, content))


def test_text_matrix_is_what_scanpy_reads(db, tmp_path):
    x = np.log1p(X).astype(np.float32) * 1e-3
    x[2, 3], x[4, 5], x[0, 0] = -1.5e-12, 3e20, 0.0
    check(taken(db, tmp_path / "a.csv", text(x)), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sc.read_csv(tmp_path / "a.csv").T
    np.testing.assert_array_equal(db["t/x"].to_anndata().X.toarray(), theirs.X)
    assert list(theirs.obs_names) == list(db["t/x"].obs_names) and list(theirs.var_names) == list(db["t/x"].var_names)


def test_cells_as_rows_are_taken_by_their_names(db, tmp_path):
    check(taken(db, tmp_path / "a.csv", frame().T.to_csv()))
    check(taken(db, tmp_path / "a.csv", frame().T.to_csv(), orientation="cells_by_genes"))
    # Corners say it as well.
    other = frame().T.set_axis([f"c{i}" for i in range(9)], axis=0).set_axis([f"g{i}" for i in range(12)], axis=1)
    assert taken(db, tmp_path / "a.csv", other.to_csv(index_label="barcode")).shape == (9, 12)
    assert taken(db, tmp_path / "a.csv", other.T.to_csv(index_label="Gene Symbol")).shape == (9, 12)


def test_orientation_that_names_leave_open_is_asked_for(db, tmp_path):
    other = frame().set_axis([f"g{i}" for i in range(12)], axis=0).set_axis([f"c{i}" for i in range(9)], axis=1)
    with pytest.raises(skytether.InvalidError, match=r"a.csv: its names do not say whether a row is a gene or a cell \(rows are called 'g0', 'g1', .*: say orientation=\"genes_by_cells\" or"):
        taken(db, tmp_path / "a.csv", other.to_csv())
    for orientation, shape in (("genes_by_cells", (9, 12)), ("cells_by_genes", (12, 9))):
        assert taken(db, tmp_path / "a.csv", other.to_csv(), orientation=orientation).shape == shape
    with pytest.raises(skytether.InvalidError, match="its names contradict each other"):
        taken(db, tmp_path / "a.csv", frame().to_csv(index_label="barcode"))
    with pytest.raises(skytether.InvalidError, match="orientation is 'rows': say"):
        taken(db, tmp_path / "a.csv", text(), orientation="rows")
    with pytest.raises(skytether.InvalidError, match="AnnData says itself what its rows are: leave orientation= out"):
        db.ingest(db["t/x"].to_anndata(), "t/y", orientation="genes_by_cells")


@pytest.mark.parametrize(
    ("names", "are"),
    [
        (["mt-Nd1", "Xkr4"], "genes"),
        (["GRCh38_RPL3", "x"], "genes"),
        (["FBgn0000008", "FBgn0000014"], "genes"),
        (["AAACCTGAGAAACCAT-1", "AAACCTGAGAAACCGC-1"], "cells"),
        (["cell_1", "cell_2"], "cells"),
        (["s1_AAACCTGAGAAACCAT", "SRR123456"], "cells"),
        (["a", "b"], None),
        (["P1", "CELLO"], None),
        ([], None),
    ],
)
def test_names_tell_genes_from_cells(names, are):
    assert _orientation.kind(names) == are


def test_large_integers_keep_their_values(db, tmp_path):
    x = X.astype(np.float64)
    x[1, 1] = 2**24 + 1
    check(taken(db, tmp_path / "a.csv", text(x)), x, "float64")


def changed(line: int, old: str, new: str) -> str:
    lines = text().split("\n")
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    return "\n".join(lines)


WRONG = {
    "a text": (changed(2, ",0,", ",abc,"), r"row 'ENSG00000000003.15', column 'ACGTACGTACGTACGT-\d' has 'abc', which is no finite number"),
    "missing": (changed(1, ",0,", ",,"), r"row 'ACTB', column .* has no value \(write 0"),
    "NA": (changed(1, ",0,", ",NA,"), r"row 'ACTB', column .* has no value"),
    "infinite": (changed(1, ",0,", ",1e999,"), "has '1e999', which is no finite number"),
    "two signs": (changed(1, ",0,", ",1-2,"), "has '1-2', which is no finite number"),
    "underscore": (changed(1, ",0,", ",1_0,"), "has '1_0'"),
    "blank inside": (changed(1, ",0,", ",1 0,"), "has '1 0'"),
    "a value less": (changed(3, ",0,", ","), r"line 4 \(row 'G0'\) has 8 values instead of 9"),
    "a value more": (changed(12, ",0,", ",0,0,"), r"line 13 \(row 'G9'\) has 10 values instead of 9"),
    "no values": (text() + "G99\n", r"line 14 \('G99'\) has no values"),
    "an empty line": (text().replace("\nG3", "\n\nG3"), "line 7 .* has no values"),
    "an open mark": (changed(4, "G1", '"G1'), "line 5 begins with a quotation mark that is not closed"),
    "no names": ("1,2,2\n3,4,4\n", "its first line has numbers only, and some repeat"),
    "prose": ("something\nelse\n", "is no table of a matrix"),
    "one line": ("a,b\n", "only one line"),
    "nothing": ("", "no line"),
    "several columns of names": ("id,symbol,c1,c2\nENSG00000000003,ACTB,1,2\n", r"row 'ENSG00000000003', column 'symbol' has 'ACTB', which is no finite number; take out columns and rows that describe others"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_fields_are_named_by_row_and_column(db, tmp_path, what):
    content, says = WRONG[what]
    with pytest.raises(skytether.InvalidError, match=f"a.csv.*{says}"):
        taken(db, tmp_path / "a.csv", content)
    assert list(db) == []


def test_damaged_text_files_are_reported(db, tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text().encode())[:-30])
    with pytest.raises(skytether.CorruptError, match="cannot read .*a.csv.gz"):
        db.ingest(tmp_path / "a.csv.gz", "t/x")
    with pytest.raises(skytether.CorruptError, match="line 4 is no UTF-8"):
        taken(db, tmp_path / "a.csv", text().replace("\nG0", "\nGé").encode("latin1"))
    (tmp_path / "b.csv.gz").write_text(text())
    with pytest.raises(skytether.CorruptError, match="cannot read .*b.csv.gz"):
        db.ingest(tmp_path / "b.csv.gz", "t/x")


def test_text_matrix_goes_in_from_the_shell(tmp_path):
    frame().set_axis([f"g{i}" for i in range(12)], axis=0).set_axis([f"c{i}" for i in range(9)], axis=1).to_csv(tmp_path / "a.csv")
    done = command("ingest", tmp_path / "a.csv", "--to", "t/x", "--fleet", tmp_path / "f")
    assert done.returncode == 1 and "say --orientation" in done.stderr
    done = command("ingest", tmp_path / "a.csv", "--to", "t/x", "--orientation", "genes_by_cells", "--fleet", tmp_path / "f")
    assert done.returncode == 0 and "9 cells x 12 genes" in done.stderr, done.stderr
