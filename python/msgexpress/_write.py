"""Writes a data set, or a part of it, as files for other programs: h5ad, Parquet, or a 10x mtx directory."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Iterator, Sequence

import numpy as np

from skytether import ConflictError, ExhaustedError, InvalidError, NotFoundError

from . import _features, _select, _tables, _write_h5ad
from ._stream import Stream

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from ._dataset import Dataset

try:  # faster than zlib
    from isal import igzip
except ImportError:
    igzip = gzip  # type: ignore[assignment]

#: Formats by the endings of their files; a directory is the third one.
_ENDINGS = {".h5ad": "h5ad", ".parquet": "parquet"}
FORMATS = ("h5ad", "parquet", "mtx")


def format_of(path: str, format: str | None) -> str:  # noqa: A002
    """The format that is written to `path`.

    Raises
    ------
    InvalidError
        There is no such format; or neither it nor the name of the file says one.
    """
    if format is not None and format not in FORMATS:
        raise InvalidError(f"there is no format {format!r}: use one of {', '.join(map(repr, FORMATS))}")
    by_name = _ENDINGS.get(os.path.splitext(path)[1].lower())
    if by_name is None and (path.endswith(("/", os.sep)) or os.path.isdir(path)):
        by_name = "mtx"
    found = format or by_name
    if found is None:
        bare = path.rstrip(".")
        raise InvalidError(f"{path} does not say its format: call it {bare}.h5ad or {bare}.parquet, or {bare}{os.sep} for a directory of 10x mtx files")
    if by_name not in (None, found) or (found != "mtx" and by_name is None):
        raise InvalidError(f"{path} is no name of the format {found!r}: {'it is a directory' if found == 'mtx' else f'its files end in .{found}'}")
    return found


def targets(path: str, format: str) -> list[str]:  # noqa: A002
    """The files that are written."""
    if format == "h5ad":
        return [path]
    if format == "parquet":
        stem = os.path.splitext(path)[0]
        return [path, f"{stem}.obs.parquet", f"{stem}.var.parquet"]
    return [os.path.join(path, name) for name in ("matrix.mtx.gz", "barcodes.tsv.gz", "features.tsv.gz")]


def export(ds: Dataset, path: str, wanted: str | None, genes: Any, cells: Any, layer: str | None, replace: bool) -> tuple[list[str], tuple[int, int]]:
    """Writes `ds`; the files, and the numbers of cells and genes. The arguments are those of `Dataset.export`."""
    kind = format_of(path, wanted)
    files = targets(path, kind)
    if kind == "h5ad" and layer is not None:
        raise InvalidError("an h5ad file has all layers: leave layer= out")
    there = next((file for file in files if os.path.exists(file)), None)
    if there is not None and not replace:
        raise ConflictError(f"{there} exists already: choose another name, or say replace=True")
    parent = os.path.dirname(os.path.abspath(path.rstrip("/" + os.sep)))
    if not os.path.isdir(parent):
        raise NotFoundError(f"there is no directory {os.path.dirname(path.rstrip('/' + os.sep))} to put {os.path.basename(path.rstrip('/' + os.sep))} into")
    with ds._unchanged():
        table = ds._matrix(layer)
        var = _var(ds, table)
        gene_at = None if genes is None else _select.positions(genes, var.index, "gene", var)
        cell_at = None if cells is None else _select.positions(cells, ds._shell.obs.index, "cell")
        if kind == "h5ad":
            shape = _write_h5ad.write(ds, path, gene_at, cell_at)
            return files, shape
        stream = Stream(ds, table, gene_at, cell_at)
        obs = ds._shell.obs if cell_at is None else ds._shell.obs.iloc[cell_at]
        var = var if gene_at is None else var.iloc[gene_at]
        with _aside(parent, files) as parts:
            (_parquet if kind == "parquet" else _mtx)(ds, stream, obs, var, parts, layer)
            if kind == "mtx":
                os.makedirs(path, exist_ok=True)
            for part, file in zip(parts, files):
                os.replace(part, file)
    return files, stream.shape


def _var(ds: Dataset, table: str) -> pd.DataFrame:
    """What is known of the genes of a matrix."""
    origin = ds._kept["matrices"][table]["origin"]
    if origin.startswith(_features.ORIGIN):
        return ds._own_var(table)
    return ds._shell.raw.var if origin == "raw/X" else ds._shell.var


@contextmanager
def _aside(parent: str, files: Sequence[str]) -> Iterator[list[str]]:
    """Names for unfinished files, which vanish if something goes wrong."""
    try:
        place = tempfile.mkdtemp(dir=parent, prefix=".export-")
    except OSError as e:
        raise InvalidError(f"cannot write to {parent}: {e.strerror or e}") from e
    try:
        yield [os.path.join(place, os.path.basename(file)) for file in files]
    except OSError as e:
        if isinstance(e, (InvalidError, NotFoundError, ExhaustedError)):
            raise
        raise ExhaustedError(f"cannot write {files[0]}: {e.strerror or e}") from e
    finally:
        shutil.rmtree(place, ignore_errors=True)


# ---- Parquet


def _parquet(ds: Dataset, stream: Stream, obs: pd.DataFrame, var: pd.DataFrame, parts: list[str], layer: str | None) -> None:
    """Long form: a row for each value that is not zero. A part of the genes is a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for frame, index, path in ((obs, "cell", parts[1]), (var, "gene", parts[2])):
        pq.write_table(_tables.to_arrow(frame, index)[0], path, compression="zstd")
    names = [pa.array(frame.index.astype(str).to_numpy(object), pa.string()) for frame in (var, obs)]
    words = pa.dictionary(pa.int32(), pa.string())
    value = pa.from_numpy_dtype(np.float32 if stream.dtype == np.float16 else stream.dtype)
    schema = pa.schema([pa.field("gene", words, False), pa.field("cell", words, False), pa.field("value", value, False)])
    with pq.ParquetWriter(parts[0], schema, compression="zstd") as out:
        for first, part in stream.by_gene():
            gene = np.repeat(np.arange(first, first + part.shape[1], dtype=np.int32), np.diff(part.indptr))
            columns = [pa.DictionaryArray.from_arrays(pa.array(at), of) for at, of in ((gene, names[0]), (part.indices, names[1]))]
            out.write_table(pa.table([*columns, pa.array(part.data)], schema=schema))


# ---- 10x mtx


def _mtx(ds: Dataset, stream: Stream, obs: pd.DataFrame, var: pd.DataFrame, parts: list[str], layer: str | None) -> None:
    """The three files of Cell Ranger 3. Entries are in the order of the genes."""
    import pyarrow as pa
    import pyarrow.csv

    ids = next((column for column in ("gene_ids", "gene_id", "feature_id", "Accession") if column in var.columns), None)
    names = var.index.astype(str)
    kind = _features.GENES if layer not in ds.other_features else str(layer)
    types = var["feature_types"].astype(str) if "feature_types" in var.columns else [kind] * len(var)
    _lines(parts[1], [obs.index.astype(str)], ds.name)
    _lines(parts[2], [names if ids is None else var[ids].astype(str), names, types], ds.name)
    counts = ds._is_counts(layer)
    cells, genes = stream.shape
    with igzip.open(parts[0], "wb") as out:
        head = f"%%MatrixMarket matrix coordinate {'integer' if counts else 'real'} general\n%\n{genes} {cells} {stream.nnz()}\n"
        out.write(head.encode())
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
        for first, part in stream.by_gene():
            if part.data.dtype.kind == "f" and not np.isfinite(part.data).all():
                at = int(np.flatnonzero(~np.isfinite(part.data))[0])
                gene = names[first + int(np.searchsorted(part.indptr, at, side="right")) - 1]
                raise InvalidError(
                    f"{ds.name}: gene {gene!r} has the value {part.data[at]} in cell {str(obs.index[part.indices[at]])!r}, "
                    "which an mtx file can't hold: write h5ad or parquet"
                )
            gene = np.repeat(np.arange(first + 1, first + part.shape[1] + 1, dtype=np.int32), np.diff(part.indptr))
            values = part.data.astype(np.int64) if counts or part.data.dtype == bool else part.data
            if part.nnz:
                _rows(out, pa.table([pa.array(gene), pa.array(part.indices + 1), pa.array(values)], names=["gene", "cell", "value"]), options)


def _rows(out: IO[bytes], table: pa.Table, options: Any) -> None:
    import pyarrow as pa
    import pyarrow.csv

    text = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, text, options)
    out.write(memoryview(text.getvalue()))


def _lines(path: str, columns: Sequence[Any], name: str) -> None:
    """A list of cells or genes: a line each, with tabs between the columns."""
    rows = list(zip(*(list(column) for column in columns)))
    for row in rows:
        wrong = next((text for text in row if any(sign in text for sign in "\t\n\r")), None)
        if wrong is not None:
            raise InvalidError(f"{name} has the name {wrong!r}, with a tab or the end of a line, which a list of 10x can't hold: write h5ad or parquet")
    with igzip.open(path, "wb") as out:
        out.write("".join("\t".join(row) + "\n" for row in rows).encode())
