"""The shell of a data set: an h5ad file in memory with everything but the values of the stored matrices.

The shell of an h5ad file is a copy of it. That of an AnnData in memory is written by anndata, and read again before
anything is stored: what could not be read again is refused by its place.

HDF5 takes a ``/`` in a name for a group, and ``.`` for the group itself, and has no empty names. Such names, and those
with ``%``, are percent-encoded in the shell of an AnnData in memory. The attribute `ENCODED` of its root says so.
"""

from __future__ import annotations

import io
import posixpath
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Iterator
from urllib.parse import unquote

import h5py
import numpy as np

from skytether import CorruptError, InvalidError, NotFoundError, SkytetherError, UnsupportedError

from . import _h5, _same
from ._hints import JOIN_LEVELS

if TYPE_CHECKING:
    import anndata
    import pandas as pd

#: The attribute of a shell's root whose presence says that names are percent-encoded.
ENCODED = "skytether-encoded-names"
#: What AnnData has at the root of a file, now and before 0.7. Other programs put more there.
PARTS = ("X", "layers", "obs", "var", "obsm", "varm", "obsp", "varp", "uns", "raw", "raw.X", "raw.var", "raw.varm")
#: What anndata notes about an error: the key, and the path of the group.
_NOTE = re.compile(r"Error raised while (?:read|writ)ing key (.*) of <class '.*'> (?:from|to) (.*)", re.S)


def opened(shell: bytes, what: str) -> anndata.AnnData:
    """The AnnData in a shell; its matrices hold nothing.

    Raises
    ------
    CorruptError
        It is damaged, or what it holds contradicts itself.
    UnsupportedError
        It holds something that this anndata can't read: of a newer version, or for a package that is not installed.
    """
    import anndata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with h5py.File(io.BytesIO(shell), "r") as file:
                encoded = ENCODED in file.attrs
            found = anndata.read_h5ad(io.BytesIO(shell))  # type: ignore[arg-type]
        except (MemoryError, SkytetherError):
            raise
        except Exception as e:  # anndata, pandas, numpy and h5py raise many kinds
            raise unreadable(e, what) from e
        if encoded:
            _decode(found)
    return found


def unreadable(error: Exception, what: str) -> SkytetherError:
    """The error for `error`, which reading the shell of `what` raised."""
    where = _place(error)
    for cause in _causes(error):
        if isinstance(cause, ImportError):
            package = f": install {cause.name}" if cause.name else ""
            return UnsupportedError(f"{what}: {where} needs a package that is not installed{package} ({_sentence(cause)})")
        if type(cause).__name__ == "IORegistryError":
            return UnsupportedError(f"{what}: {where} has a form that this anndata can't read ({_sentence(cause)}): upgrade anndata, or take it out of the file")
    return CorruptError(f"{what}: cannot read {where}: {_sentence(error)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _sentence(error: BaseException) -> str:
    # KeyError prints the repr of its text.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = " ".join(text.split())
    return text or type(error).__name__


def _place(error: BaseException) -> str:
    """Where in AnnData an error is about, from anndata's notes: ``obs['cluster']``."""
    for cause in _causes(error):
        for note in getattr(cause, "__notes__", ()):
            found = _NOTE.search(note)
            if found:
                key, path = found[1].strip(), found[2].strip()
                group, named = ([unquote(part) for part in text.split("/") if part] for text in (path, key.strip("'\"")))
                # Of lists anndata notes the whole path for the key.
                parts = named if len(named) > len(group) and named[: len(group)] == group else [*group, *named]
                if parts[-1:] == ["_index"]:
                    return f"the index of {_same.place(*parts[:-1])}"
                if len(parts) > 2 and parts[-1] in ("categories", "codes", "values", "mask"):
                    parts.pop()  # how a column is stored
                if len(parts) > 8:  # a group that holds itself
                    parts = [*parts[:8], "..."]
                if parts:
                    return _same.place(*parts)
    return "obs, var and the like"


# ---- of a file


def of_file(file: h5py.Group, path: str, matrices: set[str], raw_genes: int | None, left_out: set[str]) -> bytes:
    """A copy in memory of a file, or of one AnnData in it, with an empty sparse matrix in the place of each of
    `matrices`, and without the layers `left_out`."""
    with h5py.File("shell.h5ad", "w", driver="core", backing_store=False) as shell:
        _copy_attributes(file, shell)
        foreign = [key for key in file if key not in PARTS]
        if foreign:
            warnings.warn(f"{path}: {', '.join(map(repr, foreign))} {'is' if len(foreign) == 1 else 'are'} no part of AnnData and left out", stacklevel=6)
        for key in file:
            if key in foreign:
                continue
            if key == "X" or key == "raw.X":
                if (key if key == "X" else "raw/X") not in matrices:
                    file.copy(file[key], shell, name=key, expand_external=True)
            elif key in ("layers", "raw") and isinstance(file[key], h5py.Group):
                inside = shell.create_group(key)
                _copy_attributes(file[key], inside)
                for part in file[key]:
                    if f"{key}/{part}" not in matrices and f"{key}/{part}" not in left_out:
                        file.copy(file[key][part], inside, name=part, expand_external=True)
            else:
                file.copy(file[key], shell, name=key, expand_external=True)
        _follow_links(file, shell)
        _restore_references(file, shell)
        for key in ("obs", "var", "raw/var"):
            if isinstance(shell.get(key), h5py.Group):
                _complete(shell[key])
        cells, genes = _length(file["obs"]), _length(file["var"])
        if "X" in matrices:
            empty_matrix(shell, "X", cells, genes)
        if raw_genes is not None:
            empty_matrix(shell, "raw/X" if "raw" in file else "raw.X", cells, raw_genes)
        shell.flush()
        return shell.id.get_file_image()


def _within(source: h5py.Group, name: str) -> str:
    """The path of an object of the file from `source` on, which is the root or a modality in it."""
    inside = source.name.rstrip("/") + "/"
    return name.removeprefix(inside) if name.startswith(inside) else name


def _follow_links(source: h5py.Group, copy: h5py.File) -> None:
    """Replaces soft links of the copy that lead nowhere there by what they lead to in the source. Links to other files
    were followed where those are there."""
    lost: list[tuple[str, str]] = []
    elsewhere: list[tuple[str, Any]] = []

    def look(name: str, link: Any) -> None:
        if isinstance(link, h5py.SoftLink) and copy.get(name) is None:
            lost.append((name, posixpath.normpath(posixpath.join("/", source.name, posixpath.dirname(name), link.path))))

        if isinstance(link, h5py.ExternalLink):
            elsewhere.append((name, link))

    copy.visititems_links(look)
    for name, link in elsewhere:
        raise NotFoundError(f"{source.file.filename}: {name} is a link to {link.filename}, {link.path}, which is not there: bring that file, or take the link out")
    for name, target in lost:
        if source.get(target) is not None:
            parent, _, last = name.rpartition("/")
            del copy[name]
            source.copy(source[target], copy[parent or "/"], name=last, expand_external=True)


def _restore_references(source: h5py.Group, copy: h5py.File) -> None:
    """Points the copy's object references to the copy's objects: HDF5 empties them when it copies to another file.

    anndata 0.7 and SeuratDisk refer from a column's codes to its categories so.
    """

    def moved(reference: Any) -> Any:
        if not reference:
            return reference
        name = source[reference].name
        name = None if name is None else _within(source, name)
        return copy[name].ref if name is not None and name in copy else h5py.Reference()

    def restore(name: str, there: Any) -> None:
        here = source.get(name)
        if here is None:
            return
        for key in here.attrs:
            if h5py.check_ref_dtype(here.attrs.get_id(key).dtype) is h5py.Reference:
                there.attrs.create(key, _each(moved, here.attrs[key]), dtype=h5py.ref_dtype)
        if isinstance(here, h5py.Dataset) and h5py.check_ref_dtype(here.dtype) is h5py.Reference and here.shape is not None:
            there[()] = _each(moved, here[()])

    for key in source.attrs:
        if h5py.check_ref_dtype(source.attrs.get_id(key).dtype) is h5py.Reference:
            copy.attrs.create(key, _each(moved, source.attrs[key]), dtype=h5py.ref_dtype)
    copy.visititems(restore)


def _each(change: Any, values: Any) -> Any:
    """`change` of a value, or of each value of an array of objects."""
    if not isinstance(values, np.ndarray):
        return change(values)
    out = np.empty(values.shape, h5py.ref_dtype)
    for at, value in np.ndenumerate(values):
        out[at] = change(value)
    return out


def _complete(frame: h5py.Group) -> None:
    """Adds to a frame of anndata 0.7's form what SeuratDisk leaves out: references from codes to their categories, the
    order of the columns, and that it is a frame. R's missing code becomes -1."""
    if "encoding-type" in frame.attrs and _h5.text(frame.attrs.get("encoding-version", "")) != "0.1.0":
        return
    index = _h5.text(frame.attrs.get("_index", "_index"))
    if index not in frame:
        return
    if "encoding-type" not in frame.attrs:
        frame.attrs["encoding-type"], frame.attrs["encoding-version"] = "dataframe", "0.1.0"
    if "_index" not in frame.attrs:
        frame.attrs["_index"] = index
    if "column-order" not in frame.attrs:
        frame.attrs.create("column-order", [k for k in frame if k not in (index, "__categories")], dtype=h5py.string_dtype())
    categories = frame.get("__categories")
    for name in categories if isinstance(categories, h5py.Group) else ():
        codes = frame.get(name)
        if not isinstance(codes, h5py.Dataset) or codes.dtype.kind != "i" or not isinstance(categories[name], h5py.Dataset):
            continue
        if not codes.attrs.get("categories"):
            codes.attrs["categories"] = categories[name].ref
        there = codes[()]
        if (there < -1).any():
            codes[()] = np.where(there < 0, -1, there)


def empty_matrix(file: h5py.File, key: str, cells: int, genes: int) -> None:
    """Writes a CSR matrix without values, as anndata does."""
    group = file.create_group(key)
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    group.attrs["shape"] = np.array([cells, genes], np.int64)
    group.create_dataset("data", data=np.zeros(0, np.float32))
    group.create_dataset("indices", data=np.zeros(0, np.int32))
    group.create_dataset("indptr", data=np.zeros(cells + 1, np.int32), compression="gzip")


def _length(frame: h5py.Group | h5py.Dataset) -> int:
    """Rows of obs or var, as a group of columns or (before anndata 0.7) a table of records."""
    if isinstance(frame, h5py.Dataset):
        return frame.shape[0]
    index = frame[_h5.text(frame.attrs.get("_index", "_index"))]
    if isinstance(index, h5py.Group):  # categories or nullable text
        index = index["codes"] if "codes" in index else index["values"]
    return index.shape[0]


def _copy_attributes(source: Any, target: Any) -> None:
    for key in source.attrs:
        # References are restored when there is what they refer to.
        if h5py.check_ref_dtype(source.attrs.get_id(key).dtype) is None:
            target.attrs[key] = source.attrs[key]


# ---- of an AnnData in memory


def of_anndata(adata: anndata.AnnData, what: str) -> bytes:
    """`adata` as an h5ad file in memory, with empty matrices and without layers.

    Raises
    ------
    InvalidError
        It holds something that h5ad files can't, or that does not come back from them. The text names its place.
    """
    import anndata
    import scipy.sparse

    from . import _backed

    def empty(shape: tuple[int, int]) -> Any:
        return scipy.sparse.csr_matrix(shape, dtype=np.float32)

    raw, names = adata.raw, Names(what)
    with warnings.catch_warnings():
        # Names that repeat are ours to warn of.
        warnings.simplefilter("ignore")
        try:
            bare = anndata.AnnData(
                X=empty(adata.shape) if _backed.has_x(adata) else None,
                obs=names.frame(adata.obs, "obs"),
                var=names.frame(adata.var, "var"),
                uns=names.mapping(adata.uns, "uns"),
                obsm=names.mapping(adata.obsm, "obsm"),
                varm=names.mapping(adata.varm, "varm"),
                obsp=names.mapping(adata.obsp, "obsp"),
                varp=names.mapping(adata.varp, "varp"),
                raw=None if raw is None else {"X": empty(raw.shape), "var": names.frame(raw.var, "raw", "var"), "varm": names.mapping(raw.varm, "raw", "varm")},
            )
        except SkytetherError:
            raise
        except (ValueError, TypeError, KeyError, IndexError) as e:
            raise InvalidError(f"{what} can't be kept: {_sentence(e)}") from e
        with h5py.File("shell.h5ad", "w", driver="core", backing_store=False) as file:
            try:
                # Nullable text comes back as such, and not as categories.
                with anndata.settings.override(allow_write_nullable_strings=True):
                    anndata.io.write_elem(file, "/", bare, dataset_kwargs={"compression": "gzip"})
            except MemoryError:
                raise
            except Exception as e:  # anndata raises many kinds, each noting the element
                raise InvalidError(f"{what} can't be kept: {unwritable(e)}") from e
            if names.encoded:
                file.attrs[ENCODED] = "percent"
            file.flush()
            written = file.id.get_file_image()
    try:
        back = opened(written, what)
    except SkytetherError as e:
        raise InvalidError(f"{what} can't be kept: anndata writes it, and can't read it again: {e}") from e
    wrong = _same.difference(adata, back)
    if wrong is not None:
        raise InvalidError(f"{what} can't be kept: {wrong} would come back as something else: {advice(wrong)}")
    return written


def name_in_the_way(adata: anndata.AnnData) -> str | None:
    """The first place whose name an h5ad file can't hold; None where there is none. Columns may have a ``/``."""
    parts = {part: getattr(adata, part) for part in ("obsm", "varm", "obsp", "varp", "layers", "uns")}
    if adata.raw is not None:
        parts["raw.varm"] = adata.raw.varm

    def first(mapping: Mapping[Any, Any], at: tuple[str, ...]) -> str | None:
        for key, value in mapping.items():
            if isinstance(key, str) and ("/" in key or "\0" in key or key in ("", ".", "..")):
                return _same.place(*at, key)
            found = first(value, (*at, str(key))) if isinstance(value, Mapping) else None
            if found is not None:
                return found
        return None

    for part, mapping in parts.items():
        found = first(mapping, (part,))
        if found is not None:
            return found
    frames = {"obs": adata.obs, "var": adata.var}
    return next((_same.place(part, column) for part, frame in frames.items() for column in frame.columns if column in ("", ".", "..") or "\0" in column), None)


def unwritable(error: Exception) -> str:
    """What is wrong where anndata could not write: the place, and what to do."""
    where, text = _place(error), _sentence(error)
    kind = re.search(r"(?:writing <(?:class|enum) '|No conversion path for dtype: dtype\(')([^']*)'", text)
    if kind:
        package, _, rest = kind[1].partition(".")
        text = f"h5ad files have no form for {package}{'.' if rest else ''}{rest.rpartition('.')[2]}"
    elif "no native HDF5 equivalent" in text:
        text = "h5ad files have no form for such a value"
    elif "inhomogeneous shape" in text:
        text = "its lists are of different lengths"
    elif "implicitly convert" in text:
        text = "its values are neither all texts nor all numbers"
    elif "embedded NULL" in text:
        return f"{where}: a text has the character \\0, which h5ad files can't hold: take it out, for example with .str.replace(\"\\0\", \"\")"
    elif "surrogates not allowed" in text:
        example = '.str.encode("utf-8", "replace").str.decode("utf-8")'
        return f"{where}: a text has half of a character (a lone surrogate), which is no Unicode: replace it, for example with {example}"
    return f"{where}: {text.rstrip('.')}: {advice(where)}"


def advice(where: str) -> str:
    if where.startswith(("obs[", "var[", "raw.var[")):
        return "make the column text (astype(str)), numbers or categories of text, or leave it out"
    if where.startswith("the index of "):
        return "make all of its names text (index.astype(str))"
    return "make it an array of one type, a data frame, a text, a number or a dict of these, without masks, or leave it out"


def _unnamed(frame: pd.DataFrame, where: str) -> str | None:
    """What is wrong with the names of a frame's rows and columns, and what to do; None where all can be kept."""
    import pandas as pd

    if isinstance(frame.index, pd.MultiIndex):
        return f"the index of {where} has several levels: make it one (reset_index())"
    if isinstance(frame.columns, pd.MultiIndex):
        return f"the columns of {where} have several levels, as {frame.columns[0]!r}: {JOIN_LEVELS}"
    for column in frame.columns:
        if not isinstance(column, str):
            return f"{where} has the column {column!r}, whose name is no text: rename it (frame.columns.astype(str))"
        if column == "_index":
            return f"{where} has a column named '_index', which h5ad files keep for the index: rename the column"
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        return f"{where} has two columns named {twice[0]!r}: rename one of them"
    name = frame.index.name
    if name is not None and (not isinstance(name, str) or name == "_index"):
        why = "which is no text" if not isinstance(name, str) else "which h5ad files keep for an index without a name"
        return f"the index of {where} is named {name!r}, {why}: rename it (index.name = \"row\")"
    if name in frame.columns and list(frame[name]) != list(frame.index):
        return f"{where} has a column and an index named {name!r} with different values: rename one of them"
    missing = frame.index.isna()
    if missing.any():
        return f"row {int(missing.argmax()) + 1} of {where} has no name: name all rows"
    return None


class Names:
    """Encodes what HDF5 does not take for a name, and columns that have another form in h5ad files."""

    def __init__(self, what: str) -> None:
        self._what = what
        #: Whether a name had to be encoded.
        self.encoded = False

    def name(self, name: Any) -> Any:
        if not isinstance(name, str) or not (name in ("", ".", "..") or any(sign in name for sign in "/%\0")):
            return name
        self.encoded = True
        if name == "":
            return "%"
        text = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
        return text.replace(".", "%2E") if text in (".", "..") else text

    def mapping(self, values: Mapping[Any, Any], *at: str) -> dict[Any, Any]:
        for key in values:
            if not isinstance(key, str):
                raise InvalidError(f"{self._what} can't be kept: {_same.place(*at)} has the key {key!r}, which is no text: make it text")
        return {self.name(key): self.value(value, *at, key) for key, value in values.items()}

    def value(self, value: Any, *at: str) -> Any:
        import pandas as pd

        if isinstance(value, pd.DataFrame):
            return self.frame(value, *at)
        return self.mapping(value, *at) if isinstance(value, Mapping) else value

    def frame(self, frame: pd.DataFrame, *at: str) -> pd.DataFrame:
        wrong = _unnamed(frame, _same.place(*at))
        if wrong is not None:
            raise InvalidError(f"{self._what} can't be kept: {wrong}")
        frame = storable(frame)
        columns = [self.name(column) for column in frame.columns]
        index = self.name(frame.index.name)
        if columns == list(frame.columns) and index == frame.index.name:
            return frame
        frame = frame.set_axis(columns, axis=1)
        return frame.rename_axis(index=index)


def _decode(adata: anndata.AnnData) -> None:
    """Gives an AnnData the names back that `Names` encoded."""
    raw = adata.raw
    frames = [adata.obs, adata.var] if raw is None else [adata.obs, adata.var, raw.var]
    for frame in frames:
        _decode_frame(frame)
    for mapping in (adata.obsm, adata.varm, adata.obsp, adata.varp, adata.uns, *([] if raw is None else [raw.varm])):
        _decode_mapping(mapping)


def decoded_value(value: Any) -> Any:
    """A value with the names back that `Names` encoded."""
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        _decode_frame(value)
    elif isinstance(value, dict):
        _decode_mapping(value)
    return value


def _decoded(name: Any) -> Any:
    return "" if name == "%" else unquote(name) if isinstance(name, str) else name


def _decode_frame(frame: pd.DataFrame) -> None:
    frame.columns = [_decoded(column) for column in frame.columns]
    frame.index.name = _decoded(frame.index.name)


def _decode_mapping(mapping: Any) -> None:
    import pandas as pd

    values = dict(mapping)
    for value in values.values():
        if isinstance(value, pd.DataFrame):
            _decode_frame(value)
        elif isinstance(value, dict):
            _decode_mapping(value)
    if any(_decoded(key) != key for key in values):
        # All at once: one name decoded may be another one encoded.
        for key in values:
            del mapping[key]
        for key, value in values.items():
            mapping[_decoded(key)] = value


#: What pandas calls the values of an object column, and a type for them that h5ad files have: without missing values,
#: and with.
_BETTER = {
    "string": (None, "category"),
    "empty": (None, "category"),
    "boolean": ("bool", "boolean"),
    "integer": ("int64", "Int64"),
    "floating": ("float64", "float64"),
    "mixed-integer-float": ("float64", "float64"),
}


def storable(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with other types for columns of types that h5ad files lack, where that changes no value.

    Texts that miss values become categories, as anndata itself makes them when it writes a file. Numbers and booleans
    in object columns get types of their own, and nullable floats become plain ones.
    """
    import pandas as pd

    better = {}
    for name in frame.columns[~frame.columns.duplicated(keep=False)]:
        column = frame[name]
        if isinstance(column.dtype, pd.api.extensions.ExtensionDtype) and column.dtype.kind == "f":
            better[name] = column.astype(column.dtype.type)
        if column.dtype != object:
            continue
        missing = column.isna()
        full, gaps = _BETTER.get(pd.api.types.infer_dtype(column, skipna=True), (None, None))
        to = gaps if missing.any() else full
        if to is None:
            continue
        try:
            changed = column.where(~missing, None if to == "category" else pd.NA if to in ("boolean", "Int64") else np.nan).astype(to)
        except (ValueError, TypeError, OverflowError):
            continue  # integers of more than 64 bits: anndata says so
        if to != "float64" or changed[~missing].tolist() == column[~missing].tolist():
            better[name] = changed
    return frame.assign(**better) if better and all(isinstance(name, str) for name in better) else frame
