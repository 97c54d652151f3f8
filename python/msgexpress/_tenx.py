"""10x Genomics: .h5 files of Cell Ranger 3 and later and of 2, and mtx directories of both
(`genes.tsv` or `features.tsv`).

Genes are named and described as scanpy's `read_10x_h5` and `read_10x_mtx` do: by symbol, with the column `gene_ids`.
Values are float32, as there, or float64: where an .h5 file has these, or integers beyond 2^24. As in scanpy, only `Gene
Expression` is the matrix, unless the caller chooses other types of features: counts of antibodies or guides among those
of genes would change each cell's total, and with it every normalised value.
What is left out is kept as matrices of its own (`_features`).
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import numpy as np

from skytether import CorruptError, InvalidError, NotFoundError, _internal

from . import _tsv
from ._hints import instead
from ._source import Encoding, Matrix, Source, push_compressed

if TYPE_CHECKING:
    import h5py

    from . import _features


def _encoding(dtype: str) -> Encoding:
    return Encoding("csr", dtype, "int32", "int32")


def _widening(encoding: Encoding, parts: Iterable[_features.Part]) -> Iterator[_features.Part]:
    """The parts as they are; `encoding` becomes float64 where float32 does not hold an integer of theirs."""
    for part in parts:
        values = part[3]
        if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and len(values) and (int(values.max()) > 1 << 24 or int(values.min()) < -(1 << 24)):
            encoding.dtype = "float64"
        yield part


def is_tenx(file: h5py.File) -> bool:
    """Whether an open HDF5 file is one of Cell Ranger's."""
    return bool(_groups(file))


def h5_source(path: str, genome: str | None = None, feature_types: Any = None) -> Source:
    """A 10x .h5 file; `genome` chooses among several, and `feature_types` which features are the matrix.

    Raises
    ------
    CorruptError
        The file is cut short or damaged; the text names the data set.
    InvalidError
        `genome` is needed or not there, or features of the types given are not.
    """
    import pandas as pd

    from . import _features, _h5, _memory

    file = _h5.open_file(path)
    try:
        there = _groups(file)
        if not there:
            raise InvalidError(f"{path} is no 10x .h5 file: it has no barcodes beside a matrix")
        if genome is not None and genome not in there and there != ["matrix"]:
            raise InvalidError(f"{path} has no genome {genome!r}: it has {', '.join(there)}")
        if genome is None and len(there) > 1:
            raise InvalidError(f"{path} has several genomes: say which with genome= ({', '.join(there)})")
        group = file[there[0] if genome is None or there == ["matrix"] else genome]
        with _h5.reading(path, group.name.lstrip("/")):
            genes, cells = (int(n) for n in group["shape"][:])
            barcodes = _h5.strings(group["barcodes"], path)
            features = group.get("features")
            if features is None:
                names, columns = _h5.strings(group["gene_names"], path), {"gene_ids": _h5.strings(group["genes"], path)}
            else:
                names = _h5.strings(features["name"], path)
                columns = {"gene_ids": _h5.strings(features["id"], path), "feature_types": _h5.strings(features["feature_type"], path)}
                for more in ("genome", "pattern", "read", "sequence"):
                    if more in features:
                        columns[more] = _h5.strings(features[more], path)
            data, indices, pointers = (_h5.Vector(group[part], path) for part in ("data", "indices", "indptr"))
        indptr = pointers.read(0, pointers.size).astype(np.int64)
        _h5.check_indptr(indptr, cells, min(data.size, indices.size), path, there[0])
        if len(barcodes) != cells or len(names) != genes or any(len(c) != genes for c in columns.values()):
            raise CorruptError(f"{path}: {len(barcodes)} barcodes and {len(names)} genes are named, but the matrix is {cells} x {genes}")
        one = genome if there == ["matrix"] else None
        parts_of = _features.divided(path, genes, columns.get("feature_types"), columns.get("genome"), feature_types, one)
    except BaseException:
        file.close()
        raise

    def chosen(features: np.ndarray, encoding: Encoding) -> Callable[[Any, Callable[[int], None]], None]:
        """Pushes the values of some features, whose numbers are ascending."""
        here = _features.renumbered(features, genes)

        def push(sink: Any, step: Callable[[int], None]) -> None:
            with closing(_h5.prefetched(_h5.compressed(indptr, indices.read, data.read))) as ahead:
                if here is None:
                    push_compressed(sink, step, False, _widening(encoding, ahead))
                else:  # progress is in values of the file
                    push_compressed(sink, lambda _: None, False, _widening(encoding, _features.of(ahead, here, path, step)))

        return push

    var = pd.DataFrame(columns, index=names)
    matrices = []
    for part in parts_of:
        encoding = _encoding("float64" if data.dtype == np.float64 else "float32")
        matrices.append(Matrix(part.origin, (cells, len(part.at)), encoding, int(indptr[-1]), chosen(part.at, encoding), var=var.iloc[part.at].copy()))
    made = _memory.frames_source(path, pd.DataFrame(index=barcodes), matrices[0].var, matrices)
    made.close, made.genomes, made.typed = file.close, True, True
    made.note = _features.note(path, parts_of)
    return made


def _groups(file: h5py.File) -> list[str]:
    """The groups that hold a matrix: ``matrix``, or one per genome."""
    import h5py

    return [k for k in file if isinstance(file[k], h5py.Group) and {"barcodes", "data", "indices", "indptr", "shape"} <= set(file[k])]


@dataclass
class MtxFiles:
    """The files of one 10x matrix; `barcodes` and `features` are None where there is none next to the matrix."""

    matrix: Path
    barcodes: Path | None
    features: Path | None
    #: For messages: what stands in the names before and after ``matrix``, ``barcodes`` and ``features``.
    naming: tuple[str, str] = ("", "")

    @property
    def what(self) -> str:
        return str(self.matrix if any(self.naming) else self.matrix.parent)

    @property
    def label(self) -> str:
        """What tells it apart from other matrices of its directory."""
        return "_".join(part for part in (name.strip("_-. ") for name in self.naming) if part)


def mtx_files(path: Path, prefix: str | None = None) -> MtxFiles | None:
    """The 10x matrix at `path`, a directory or a Matrix Market file, or the only one in a directory right below it.
    `prefix` chooses among several, by how their files' names begin.

    Raises
    ------
    InvalidError
        There are several, or none with this prefix.
    """
    if path.is_file():
        return _with_partners(path)
    here = _matrices(path)
    if not here:
        below = {d.name: found for d in sorted(path.iterdir()) if d.is_dir() and (found := _matrices(d))}
        if len(below) > 1:
            raise InvalidError(f"{path} has several matrices: give one of {', '.join(below)}")
        here = next(iter(below.values()), [])
    if prefix is not None and here:
        here = _of_prefix(path, here, prefix)
    if len(here) > 1:
        names = ", ".join(files.matrix.name for files in here)
        raise InvalidError(
            f"{path} has several matrices: give the path of one of them ({names}), or say which with prefix= (as prefix={here[0].label!r}); "
            "a list of prefixes, or batch=, makes one data set of them"
        )
    return here[0] if here else None


def matrices(path: Path) -> list[MtxFiles]:
    """The 10x matrices of a directory whose files' names tell them apart."""
    return _matrices(path)


def _of_prefix(path: Path, there: list[MtxFiles], prefix: str) -> list[MtxFiles]:
    """The matrices whose files' names begin with `prefix`: the one that is called just so, or those that begin so."""
    exact = [files for files in there if prefix in (files.naming[0], files.label)]
    found = exact or [files for files in there if files.naming[0].startswith(prefix)]
    if not found:
        known = ", ".join(repr(files.label) for files in there if files.label) or "no prefixes"
        raise InvalidError(f"{path} has no matrix of prefix {prefix!r}: it has {known}{instead(prefix, [files.label for files in there])}")
    return found


#: Names of 10x files on GEO: GSM4157068_Sample_6_matrix.mtx.gz, GSM4411625_matrix_MH001.mtx.gz.
_MATRIX = re.compile(r"(.*)matrix(.*?)\.mtx(?:\.gz)?", re.I)


def _matrices(directory: Path) -> list[MtxFiles]:
    """The 10x matrices of a directory: the one that is called ``matrix.mtx``, or else those whose names only begin or
    end so and that have a list of cells or genes."""
    plain = _beside(directory, "matrix.mtx")
    if plain is not None:
        return [_with_partners(plain)]
    found = [_with_partners(p) for p in sorted(directory.iterdir()) if p.is_file() and _MATRIX.fullmatch(p.name)]
    # The same matrix packed and not packed is one.
    by_name = {files.naming: files for files in reversed(found) if files.barcodes or files.features}
    return sorted(by_name.values(), key=lambda files: files.matrix.name)


def _with_partners(matrix: Path) -> MtxFiles:
    found = _MATRIX.fullmatch(matrix.name)
    before, after = found.groups() if found else ("", "")

    def partner(*names: str) -> Path | None:
        return next((p for name in names if (p := _beside(matrix.parent, f"{before}{name}{after}.tsv")) is not None), None)

    return MtxFiles(matrix, partner("barcodes"), partner("features", "genes"), (before, after))


def mtx_source(files: MtxFiles, feature_types: Any = None) -> Source:
    """A 10x mtx directory, of version 2 (`genes.tsv`) or 3 (`features.tsv`), each file compressed with gzip or not;
    `feature_types` chooses which features are the matrix.

    Symbols that repeat are made unique as scanpy's `read_10x_mtx` makes them, with ``-1``, ``-2``, ...
    """
    import pandas as pd
    from anndata.utils import make_index_unique

    from . import _features, _memory

    if files.barcodes is None or files.features is None:
        before, after = files.naming
        missing = f"{before}barcodes{after}.tsv" if files.barcodes is None else f"{before}features{after}.tsv or {before}genes{after}.tsv"
        raise NotFoundError(f"{files.what} has no {missing} (.gz or not)")
    barcodes, _ = named(files.barcodes)
    ids, names, types = _internal.read_features(str(files.features))
    numbered = _has_row_names(files.features, ids, names, types)
    if numbered:
        ids, names, types = names, [t or n for t, n in zip(types or (), names)], _fourth(files.features)
    var = pd.DataFrame({"gene_ids": ids} if types is None else {"gene_ids": ids, "feature_types": types}, index=names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of suffixes that symbols have already
        # Among all features, and before some of them are chosen, as in scanpy.
        var.index = make_index_unique(var.index)
    parts = _features.divided(files.what, len(names), types, None, feature_types, None)
    matrices = [mtx_matrix(part.origin, files.matrix, len(barcodes), len(names), part.at) for part in parts]
    for matrix, part in zip(matrices, parts):
        matrix.var = var.iloc[part.at].copy()
    made = _memory.frames_source(files.what, pd.DataFrame(index=barcodes), matrices[0].var, matrices)
    made.renamed, made.typed = names != list(var.index), True
    said = f"{files.features}: its first column numbers the lines and is taken for R's row names: genes go by the third column, as {names[0]!r}" if numbered else None
    made.note = "; ".join(filter(None, [said, _features.note(files.what, parts)])) or None
    return made


def _has_row_names(path: Path, ids: list[str], names: list[str], thirds: list[str] | None) -> bool:
    """Whether the first column of a list of features has R's row names, so that ids and symbols are the second and
    third; `thirds` has the third column, None where there is none.

    Numbers in the first column may be ids as well. Then the third column has types of features, which repeat.

    Raises
    ------
    InvalidError
        The third column may be either.
    """
    if thirds is None or names == ids or not _are_numbers(ids) or any(map(_is_type, thirds)):
        return False
    different, fourths = len(set(thirds)), _fourth(path)
    if fourths is not None and all(map(_is_type, fourths)):
        return True
    if 2 * different <= len(thirds):
        return False
    if different < 3:
        raise InvalidError(
            f"{path}: its first column numbers the lines, and the third ({thirds[0]!r}) may have symbols or types of features: "
            "take the first column away where it has R's row names, or give the genes other ids"
        )
    return True


def _is_type(text: str) -> bool:
    """Whether a text is a type of features that Cell Ranger writes."""
    known = text.strip().lower()
    return known in ("gene expression", "peaks", "custom", "spike-in") or known.endswith(" capture")


def named(path: Path) -> tuple[list[str], list[str]]:
    """The names in a list of cells or genes, and what is in its second column (the names, where it has none). Old files
    of the EBI, and R by default, number their lines in the first column."""
    first, second, _ = _internal.read_features(str(path))
    return (second, second) if second != first and _are_numbers(first) else (first, second)


def _fourth(path: Path) -> list[str] | None:
    """The fourth column of a list of features, which has the types where R's row names are the first; None where no
    line has one."""
    found = [row[3].strip() if len(row) > 3 else "" for row in _tsv.rows(path)]
    return found if any(found) else None


def _are_numbers(names: list[str]) -> bool:
    return names == [str(number) for number in range(1, len(names) + 1)]


def mtx_matrix(origin: str, path: Path, cells: int, genes: int, features: np.ndarray | None = None) -> Matrix:
    """A Matrix Market file with a line per gene and cell, for `cells` cells and `genes` genes, or of some of its genes
    (their numbers, ascending)."""
    from . import _features

    rows, columns, entries = _internal.mtx_shape(str(path))
    if (rows, columns) != (genes, cells):
        raise CorruptError(f"{path} is {rows} genes x {columns} cells, but {genes} genes and {cells} cells are named beside it")

    here = None if features is None else _features.renumbered(features, genes)

    def push(sink: Any, step: Callable[[int], None]) -> None:
        sink.push_mtx(str(path), step, here)

    return Matrix(origin, (cells, genes if features is None else len(features)), _encoding("float32"), entries, push)


def _beside(directory: Path, name: str) -> Path | None:
    for candidate in (name, f"{name}.gz"):
        if os.path.isfile(directory / candidate):
            return directory / candidate
    return None
