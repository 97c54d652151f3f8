"""Determines the kind of a path or object, and opens it as a source."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skytether import InvalidError, NotFoundError, SkytetherError

from ._source import ALL_LAYERS, Layers

if TYPE_CHECKING:
    from ._source import Source

#: Endings of what `skytether ingest` stores.
_TABLES = (".parquet", ".pq", ".arrow", ".ipc", ".feather", ".arrows", ".jsonl", ".ndjson", ".json")
#: What can be ingested, for messages.
KINDS = (
    "an AnnData, or the path of an h5ad, h5mu, loom or 10x .h5 file, a zarr directory or its .zip, a 10x mtx directory, "
    "an EBI bundle, or a text file of genes by cells (.csv, .tsv, .txt, .gz or not)"
)


@dataclass
class Choices:
    """What a caller chooses of a source that holds several things."""

    #: Which genome of a 10x .h5 file.
    genome: str | None = None
    #: Which features of a 10x file are the matrix.
    feature_types: Any = None
    #: Which layers of an AnnData are kept.
    layers: Layers = field(default_factory=lambda: ALL_LAYERS)
    #: Which AnnData of a MuData.
    modality: str | None = None
    #: Whether the rows of a text file are genes or cells.
    orientation: str | None = None
    #: How the names of the files of one 10x matrix begin, in a directory of several.
    prefix: str | None = None


def open_source(source: Any, choices: Choices | None = None) -> Source:
    """`source` as what it is, with what `choices` says of it: `KINDS` lists what it may be.

    Raises
    ------
    NotFoundError
        There is no such file or directory.
    CorruptError
        It is cut short or damaged.
    InvalidError
        It is none of these; a choice is given, but there is nothing to choose from; what it names is not there; or one
        is needed.
    """
    choices = choices or Choices()
    try:
        made = _opened(source, choices)
    except (MemoryError, SkytetherError):
        raise
    except Exception as e:  # of anndata, pandas, h5py and what else reads the input
        what = os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        raise InvalidError(f"{what} can't be read as an expression data set: {type(e).__name__}: {' '.join(str(e).split())}") from e
    try:
        _check(made, choices)
    except BaseException:
        made.close()
        raise
    made.matrices = [m for m in made.matrices if choices.layers.keep(m.origin)]
    return made


def _check(made: Source, choices: Choices) -> None:
    """Refuses choices where there is nothing to choose from."""
    if choices.feature_types is not None and not made.typed:
        raise InvalidError(
            f'{made.what} is no file of 10x, whose features have types: '
            'leave feature_types= out, and choose genes of an AnnData with adata[:, adata.var["feature_types"] == ...]'
        )
    if choices.genome is not None and not made.genomes:
        raise InvalidError(f"{made.what} has no genomes to choose from: leave genome= out (it is for 10x .h5 files)")
    if choices.modality is not None and not made.modal:
        raise InvalidError(f"{made.what} has no modalities to choose from: leave modality= out (it is for MuData: h5mu and zarr)")
    if choices.orientation is not None and not made.oriented:
        raise InvalidError(f"{made.what} says itself what its rows are: leave orientation= out (it is for text files)")
    if choices.prefix is not None and not made.prefixed:
        raise InvalidError(f"{made.what} has no prefixes to choose from: leave prefix= out (it is for directories of 10x mtx files)")
    choices.layers.check(made.what, [*(m.origin for m in made.matrices), *made.left_out])


def _opened(source: Any, choices: Choices) -> Source:
    if not isinstance(source, (str, os.PathLike)):
        if type(source).__name__ == "AnnData" and hasattr(source, "obs"):
            from . import _memory

            return _memory.source(source, layers=choices.layers)
        kind = type(source).__name__
        if kind in ("Dataset", "View"):
            raise InvalidError(f"a {kind} can't be ingested as it is: give its cells and genes as an AnnData, with .to_anndata() or [cells, genes]")
        if hasattr(source, "shape"):
            raise InvalidError(f"a {kind} can't be ingested without the names of its cells and genes: make it an AnnData, anndata.AnnData(matrix, obs=..., var=...)")
        raise InvalidError(f"a {kind} can't be ingested: give {KINDS}")
    path = os.fspath(source)
    if not os.path.exists(path):
        raise NotFoundError(f"there is no file or directory {path}")
    if os.path.isdir(path):
        return _directory(Path(path), choices)
    name = os.path.basename(path).removesuffix(".gz")
    if name.endswith((".mtx", ".mtx_rows", ".mtx_cols")):
        return _directory(Path(path), choices)
    if name.lower().endswith(_TABLES):
        raise InvalidError(f"{path} is a table by its name, and no expression matrix: store it with `skytether ingest` (in Python with skytether)")
    from . import _csv, _h5, _h5ad, _loom, _tenx, _zarr

    if name.lower().endswith(_csv.ENDINGS):
        return _csv.source(path, choices.orientation)
    if _zarr.is_store(path):
        return _zarr.source(path, choices.layers, choices.modality)
    with _h5.open_file(path) as file:
        with _h5.reading(path, "the file"):
            h5ad, loom, tenx = _h5ad.is_h5ad(file) or _h5ad.is_h5mu(file), _loom.is_loom(file), _tenx.is_tenx(file)
    if h5ad:
        return _h5ad.source(path, choices.layers, choices.modality)
    if loom:
        return _loom.source(path, choices.layers)
    if tenx:
        return _tenx.h5_source(path, choices.genome, choices.feature_types)
    raise InvalidError(
        f"{path} is neither an h5ad file (obs, var), nor an h5mu (mod), a loom (matrix, row_attrs, col_attrs) or a 10x .h5 file (barcodes next to a matrix)"
    )


def _directory(path: Path, choices: Choices) -> Source:
    """A directory, or one of the files of a matrix in it."""
    from . import _ebi, _tenx, _zarr

    directory = path if path.is_dir() else path.parent
    if path.is_dir() and _zarr.is_store(str(path)):
        return _zarr.source(str(path), choices.layers, choices.modality)
    if _ebi.is_bundle(directory):
        return _ebi.source(directory)
    found = _tenx.mtx_files(path, choices.prefix)
    if found is not None:
        made = _tenx.mtx_source(found, choices.feature_types)
        made.prefixed = True
        return made
    packed = [p.name for p in sorted(directory.iterdir()) if p.suffix == ".zip" and p.name.startswith("E-")]
    if packed:
        raise InvalidError(f"{directory} has archives of the Expression Atlas ({', '.join(packed)}): unpack them there")
    raise InvalidError(
        f"{directory} is neither a 10x mtx directory (matrix.mtx, barcodes.tsv, features.tsv or genes.tsv) nor an EBI bundle (*.mtx, *.mtx_rows, *.mtx_cols) "
        "nor AnnData in zarr"
    )
