"""Bundles of EBI's Single Cell Expression Atlas: a Matrix Market file with its row and column names,
clusters, and cell metadata. The files may be in one directory, as in a bundle, or in one directory for each archive of
the website (``E-CURD-55-quantification-raw-files``, ``E-CURD-55-marker-genes-files``, ...)."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import CorruptError, InvalidError, NotFoundError

from . import _tsv
from ._source import Source
from ._tenx import mtx_matrix, named

if TYPE_CHECKING:
    import pandas as pd

#: Files of coordinates: E-MTAB-77.tsne_perplexity_25.tsv, E-MTAB-77.umap_n_neighbors_15.tsv.
_EMBEDDING = re.compile(r".*\.((?:tsne|umap)[^.]*)\.tsv(?:\.gz)?", re.I)
_COUNTS = "aggregated_filtered_counts"
#: Other matrices of the same genes and cells, and the layers that they become.
_OTHERS = {"aggregated_filtered_normalised_counts": "normalised", "expression_tpm": "tpm"}
#: Marker genes of a clustering by its number of clusters, or of an annotation by its name; and statistics of them.
_MARKERS = re.compile(r".*\.(marker_genes|marker_stats)_(.+?)\.tsv(?:\.gz)?", re.I)
#: Columns of these files that are numbers.
_NUMBERS = ("rank", "scores", "logfoldchanges", "pvals", "pvals_adj", "marker_p_value", "mean_expression", "median_expression")


def is_bundle(directory: Path) -> bool:
    """Whether a directory holds a bundle."""
    return any(".mtx_rows" in path.name for path in _there(directory))


def _there(directory: Path) -> list[Path]:
    """The files of a bundle: those of the directory, and of the directories that the website's archives unpack to."""
    found = sorted(directory.iterdir())
    inside = [path for sub in found if sub.is_dir() and re.match(r"E-[A-Z]+-\d+", sub.name) for path in sorted(sub.iterdir())]
    return [path for path in [*found, *inside] if path.is_file()]


def source(directory: Path) -> Source:
    """A bundle: counts as X, normalised counts and TPM (where they are there, for the same genes and cells) as the
    layers ``normalised`` and ``tpm``.

    obs gets the columns of ``cell_metadata.tsv`` and ``ExpDesign-*.tsv``, a categorical column ``clusters_<K>`` per row
    of ``clusters.tsv``, and ``clusters``, the clustering that the bundle marks as chosen. obsm gets the embeddings
    (``*.tsne_perplexity_25.tsv`` as ``X_tsne_perplexity_25``). uns gets the tables of marker genes:
    ``uns["marker_genes"]["17"]`` those of ``clusters_17``. Genes are named as in ``mtx_rows``.

    Raises
    ------
    InvalidError
        A file about cells names none of the matrix.
    CorruptError
        It says different things about a cell.
    """
    import pandas as pd

    from . import _memory

    there = _there(directory)
    files = next((found for stem in (_COUNTS, *_OTHERS, "") if (found := _files(directory, there, stem)) is not None), None)
    if files is None:
        raise NotFoundError(f"{directory} has no complete matrix: .mtx, .mtx_rows and .mtx_cols belong together")
    mtx, genes, cells = files
    names, second = named(genes)
    barcodes, _ = named(cells)
    var = pd.DataFrame(index=names)
    if second != names:
        var["gene_name"] = second
    obs = pd.DataFrame(index=barcodes)
    notes: list[str] = []
    for path in there:
        if re.match(r"(.*cell_metadata|ExpDesign-.*)\.tsv", path.name):
            _add_metadata(obs, path, notes)
    for path in there:
        if re.match(r".*clusters\.tsv", path.name):
            _add_clusters(obs, path, notes)
    matrices = [mtx_matrix("X", mtx, len(barcodes), len(names))]
    for stem, layer in _OTHERS.items():
        other = _files(directory, there, stem)
        if other is None or other[0] == mtx:
            continue
        if named(other[1])[0] == names and named(other[2])[0] == barcodes:
            matrices.append(mtx_matrix(f"layers/{layer}", other[0], len(barcodes), len(names)))
        else:
            warnings.warn(f"{other[0]} is for other genes or cells than {mtx} and is left out", stacklevel=4)
    made = _memory.frames_source(str(directory), obs, var, matrices, _embeddings(there, obs, notes), uns=_markers(there))
    made.note = "; ".join(notes) or None
    return made


def _markers(there: list[Path]) -> dict[str, dict[str, pd.DataFrame]]:
    """The tables of marker genes, by kind and by what they are of.

    Raises
    ------
    CorruptError
        A table has lines of other lengths, or a text where numbers are.
    """
    import pandas as pd

    found: dict[str, dict[str, pd.DataFrame]] = {}
    for path in there:
        kind = _MARKERS.fullmatch(path.name)
        if kind is None:
            continue
        rows = _tsv.rows(path)
        if not rows or any(len(row) != len(rows[0]) for row in rows) or len(set(rows[0])) < len(rows[0]):
            raise CorruptError(f"{path}: the lines do not all have the columns of the first, each of another name")
        table = pd.DataFrame(rows[1:], columns=rows[0], index=[str(i) for i in range(len(rows) - 1)])
        for column in set(_NUMBERS) & set(table.columns):
            try:
                table[column] = table[column].astype("float64")
            except ValueError as e:
                raise CorruptError(f"{path}: column {column!r} has what is no number: {e}") from e
        found.setdefault(kind[1], {})[kind[2]] = table
    return found


def _embeddings(there: list[Path], obs: pd.DataFrame, notes: list[str]) -> dict[str, np.ndarray]:
    """The coordinates of the cells in each file of an embedding, NaN for cells that it does not name."""
    found = {}
    for path in there:
        kind = _EMBEDDING.fullmatch(path.name)
        if kind is None:
            continue
        table = _by_cell(obs, path, notes)
        try:
            found[f"X_{kind[1]}"] = table.astype("float64").reindex(obs.index).to_numpy()
        except ValueError as e:
            raise CorruptError(f"{path}: a coordinate is no number: {e}") from e
    return found


def _files(directory: Path, there: list[Path], stem: str) -> tuple[Path, Path, Path] | None:
    """The matrix whose name ends in `stem` with its row and column names, each compressed or not."""
    found = []
    for ending in (".mtx", ".mtx_rows", ".mtx_cols"):
        hits = [p for p in there if p.name.removesuffix(".gz").endswith(stem + ending)]
        if not hits:
            return None
        if len({p.name.removesuffix(".gz") for p in hits}) > 1:
            raise InvalidError(f"{directory} has several matrices: {', '.join(p.name for p in hits)}")
        found.append(hits[0])
    return found[0], found[1], found[2]


def _by_cell(obs: pd.DataFrame, path: Path, notes: list[str]) -> pd.DataFrame:
    """The table at `path`, whose first column names cells of `obs`, by their names."""
    import pandas as pd

    rows = _tsv.rows(path)
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise CorruptError(f"{path}: the lines do not all have the columns of the first")
    table = pd.DataFrame([row[1:] for row in rows[1:]], columns=rows[0][1:], index=[row[0] for row in rows[1:]])
    return _of_matrix(obs, table, path, notes)


def _of_matrix(obs: pd.DataFrame, table: pd.DataFrame, path: Path, notes: list[str]) -> pd.DataFrame:
    """The rows of a table about cells of the matrix, one for each; `notes` gets how many cells have none.

    Raises
    ------
    InvalidError
        It names no cell of the matrix: all values would be missing, and no message would say why.
    CorruptError
        It says different things about a cell.
    """
    named = table.index
    known = int(obs.index.isin(named).sum())
    if len(obs) and not known:
        example = f"{named[0]!r}" if len(named) else "none"
        raise InvalidError(f"{path} names no cell of the matrix: it has {example} where mtx_cols has {obs.index[0]!r}; take the file away, or bring the one of this matrix")
    if known < len(obs):
        notes.append(f"{path} names {known:,} of the {len(obs):,} cells: the others have no value of it")
    table = table[named.isin(obs.index)]
    alike = table.reset_index().drop_duplicates()
    twice = alike.iloc[:, 0][alike.iloc[:, 0].duplicated()]
    if len(twice):
        rows = [number + 1 for number, cell in enumerate(named) if cell == twice.iloc[0]]
        raise CorruptError(f"{path} says different things about cell {twice.iloc[0]!r} (entries {', '.join(map(str, rows))} of its cells): leave one of them")
    return table[~table.index.duplicated()]


def _add_metadata(obs: pd.DataFrame, path: Path, notes: list[str]) -> None:
    table = _by_cell(obs, path, notes)
    for number, label in enumerate(table.columns):
        if label in obs.columns:
            continue  # the first file, or column, of a name has it
        values = table.iloc[:, number].reindex(obs.index)
        obs[label] = _typed(values.where(values != ""))


def _typed(values: pd.Series) -> Any:
    """A column of texts (missing where there is none) as numbers, if every one of them is how Python writes a
    number, else as categories.

    Whole numbers with gaps become ``Int64``, and next to fractions they become floats: ``1`` is 1.0 then. ``000``,
    ``1.50`` and ``nan`` are no numbers: they would come back as something else.
    """
    import pandas as pd

    there = values.dropna()
    if len(there) and all(map(_is_int, there)):
        return pd.array([None if pd.isna(v) else int(v) for v in values], dtype="Int64" if len(there) < len(values) else "int64")
    if len(there) and all(_is_int(v, 1 << 53) or _is_float(v) for v in there):
        return values.astype("float64")
    return pd.Categorical(values)


def _is_int(text: str, limit: int = 1 << 63) -> bool:
    digits = text.removeprefix("-")
    return len(digits) < 20 and digits.isascii() and digits.isdecimal() and str(int(text)) == text and abs(int(text)) < limit


def _is_float(text: str) -> bool:
    try:
        return repr(float(text)) == text and math.isfinite(float(text))
    except ValueError:
        return False


def _add_clusters(obs: pd.DataFrame, path: Path, notes: list[str]) -> None:
    import pandas as pd

    rows = _tsv.rows(path)
    if not rows or rows[0][:2] != ["sel.K", "K"] or any(len(row) != len(rows[0]) for row in rows):
        raise CorruptError(f"{path}: expected a line of 'sel.K', 'K' and the cells, then a line per clustering of the same length")
    table = _of_matrix(obs, pd.DataFrame([list(labels) for labels in zip(*(row[2:] for row in rows[1:]))], index=rows[0][2:], columns=range(len(rows) - 1)), path, notes)
    for number, (chosen, k, *_) in enumerate(rows[1:]):
        values = table[number].reindex(obs.index)
        values = values.where(~values.isin(["", "NA"]))
        order = sorted(values.dropna().unique(), key=lambda v: (not v.isdigit(), int(v) if v.isdigit() else 0, v))
        column = pd.Categorical(values, categories=order)
        obs[f"clusters_{k}"] = column
        if chosen.upper() == "TRUE":
            obs["clusters"] = column
