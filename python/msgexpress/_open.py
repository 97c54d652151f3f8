"""Determines the kind of a path or object, and opens it as a source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skytether import InvalidError, NotFoundError, SkytetherError

from ._source import ALL_LAYERS, Layers

if TYPE_CHECKING:
    from ._source import Source

#: Endings of what `skytether ingest` stores.
_TABLES = (".parquet", ".pq", ".arrow", ".ipc", ".feather", ".arrows", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def open_source(source: Any, genome: str | None = None, feature_types: Any = None, layers: Layers = ALL_LAYERS) -> Source:
    """`source` as what it is: an h5ad or 10x .h5 file, a 10x mtx directory, an EBI bundle, or an AnnData object. Of its
    layers it has those of `layers`.

    Raises
    ------
    NotFoundError
        There is no such file or directory.
    CorruptError
        It is cut short or damaged.
    InvalidError
        It is none of these; `genome` or `feature_types` is given, but there is nothing to choose from; what they name
        is not there; or it lacks a layer that `layers` names.
    """
    try:
        made = _opened(source, genome, feature_types, layers)
    except (MemoryError, SkytetherError):
        raise
    except Exception as e:  # of anndata, pandas, h5py and what else reads the input
        what = os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        raise InvalidError(f"{what} can't be read as an expression data set: {type(e).__name__}: {' '.join(str(e).split())}") from e
    if feature_types is not None and not made.typed:
        made.close()
        raise InvalidError(f"{made.what} is no file of 10x, whose features have types: leave feature_types= out, and choose genes of an AnnData with adata[:, adata.var[\"feature_types\"] == ...]")
    if genome is not None and not made.genomes:
        made.close()
        raise InvalidError(f"{made.what} has no genomes to choose from: leave genome= out (it is for 10x .h5 files)")
    try:
        layers.check(made.what, [*(m.origin for m in made.matrices), *made.left_out])
    except BaseException:
        made.close()
        raise
    made.matrices = [m for m in made.matrices if layers.keep(m.origin)]
    return made


def _opened(source: Any, genome: str | None, feature_types: Any, layers: Layers) -> Source:
    if not isinstance(source, (str, os.PathLike)):
        if type(source).__name__ == "AnnData" and hasattr(source, "obs"):
            from . import _memory

            return _memory.source(source, layers=layers)
        raise InvalidError(f"a {type(source).__name__} can't be ingested: give an AnnData, or the path of an h5ad or 10x .h5 file, a 10x mtx directory or an EBI bundle")
    path = os.fspath(source)
    if not os.path.exists(path):
        raise NotFoundError(f"there is no file or directory {path}")
    if os.path.isdir(path):
        return _directory(Path(path), feature_types)
    name = os.path.basename(path).removesuffix(".gz")
    if name.endswith((".mtx", ".mtx_rows", ".mtx_cols")):
        return _directory(Path(path), feature_types)
    if name.lower().endswith(_TABLES):
        raise InvalidError(f"{path} is a table by its name, and no expression matrix: store it with `skytether ingest` (in Python with skytether)")
    from . import _h5, _h5ad, _tenx

    with _h5.open_file(path) as file:
        with _h5.reading(path, "the file"):
            h5ad, tenx = _h5ad.is_h5ad(file), _tenx.is_tenx(file)
            parts = list(file["mod"]) if "mod" in file else None
    if parts is not None:
        one = parts[0] if parts else "rna"
        listed = ", ".join(map(repr, parts)) or "none"
        raise InvalidError(f"{path} is a MuData file (h5mu) of several modalities ({listed}): give one as an AnnData, mudata.read_h5mu(path)[{one!r}]")
    if h5ad:
        return _h5ad.source(path, layers)
    if tenx:
        return _tenx.h5_source(path, genome, feature_types)
    raise InvalidError(f"{path} is neither an h5ad file (obs, var) nor a 10x .h5 file (barcodes beside a matrix)")


def _directory(path: Path, feature_types: Any) -> Source:
    """A directory, or one of the files of a matrix in it."""
    from . import _ebi, _tenx

    directory = path if path.is_dir() else path.parent
    if _ebi.is_bundle(directory):
        return _ebi.source(directory)
    found = _tenx.mtx_files(path)
    if found is not None:
        return _tenx.mtx_source(found, feature_types)
    raise InvalidError(f"{directory} is neither a 10x mtx directory (matrix.mtx, barcodes.tsv, features.tsv or genes.tsv) nor an EBI bundle (*.mtx, *.mtx_rows, *.mtx_cols)")
