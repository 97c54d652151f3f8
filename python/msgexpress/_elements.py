"""Elements that versions have put in the place of the shell's: obs, var, and entries of obsm, varm, obsp and uns.

Each is an HDF5 file of one element, in the h5ad layout and at its place there. It lies in a table of its own, so that a
version writes what it changes and nothing else.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import h5py

from skytether import InvalidError, SkytetherError

from . import _same, _shell

if TYPE_CHECKING:
    import anndata

#: Names of the tables, before a number.
TABLE = "shell_"


def place(at: str) -> tuple[str, ...]:
    """An element's place: ``raw/varm/PCs`` is ``("raw", "varm", "PCs")``. A key may have a ``/``."""
    head = 2 if at.startswith("raw/") else 1
    parts = at.split("/", head)
    return tuple(parts)


def encode(at: str, value: Any, what: str) -> tuple[bytes, Any]:
    """The file of an element, and what is read back from it.

    Raises
    ------
    InvalidError
        An h5ad file can't hold a value or a name, or gives something else back. The text has its place.
    """
    import anndata

    names, parts = _shell.Names(what), place(at)
    encoded = names.value(value, *parts)
    with h5py.File("element.h5", "w", driver="core", backing_store=False) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = file
        for part in parts[:-1]:
            group = group.create_group(part)
        try:
            with anndata.settings.override(allow_write_nullable_strings=True):
                # Drives compress the file as a whole.
                anndata.io.write_elem(group, names.name(parts[-1]), encoded)
        except (MemoryError, SkytetherError):
            raise
        except Exception as e:  # anndata raises many kinds, each noting the element
            raise InvalidError(f"{what} can't be kept so: {_shell.unwritable(e)}") from e
        if names.encoded:
            file.attrs[_shell.ENCODED] = "percent"
        file.flush()
        image = bytes(file.id.get_file_image())
    back = decode(image, at, what)
    wrong = _same.nested(value, back, parts)
    if wrong is not None:
        raise InvalidError(f"{what} can't be kept so: {wrong} would come back as something else: {_shell.advice(wrong)}")
    return image, back


def decode(image: bytes, at: str, what: str) -> Any:
    """The element in a file.

    Raises
    ------
    CorruptError, UnsupportedError
        As of `_shell.opened`.
    """
    import anndata

    parts = place(at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with h5py.File(io.BytesIO(image), "r") as file:
                names = _shell.Names(what)
                is_encoded = _shell.ENCODED in file.attrs
                key = names.name(parts[-1]) if is_encoded else parts[-1]
                value = anndata.io.read_elem(file["/".join((*parts[:-1], key))])
        except (MemoryError, SkytetherError):
            raise
        except Exception as e:  # anndata, pandas, numpy and h5py raise many kinds
            raise _shell.unreadable(e, what) from e
    return _shell.decoded_value(value) if is_encoded else value


def put(shell: anndata.AnnData, at: str, value: Any) -> None:
    """Puts an element into an AnnData; None removes it."""
    import anndata

    first, *rest = place(at)
    if first == "raw":
        raw = shell.raw
        frame, varm = raw.var, dict(raw.varm)
        if rest == ["var"]:
            frame = value
        else:
            _put(varm, rest[1], value)
        shell._raw = anndata.Raw(shell, X=raw.X, var=frame, varm=varm)
    elif first in ("obs", "var"):
        setattr(shell, first, value)
    else:
        _put(getattr(shell, first), rest[0], value)


def _put(mapping: Any, key: str, value: Any) -> None:
    if value is not None:
        mapping[key] = value
    elif key in mapping:
        del mapping[key]


def tables_of(elements: dict[str, str | None], changed: dict[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """The tables of all elements after a change of some (None for one that is removed), and the tables that have none
    any more."""
    after, gone = dict(elements), []
    for at, value in changed.items():
        before = after.get(at)
        if value is None:
            after[at] = None
            gone += [before] if before is not None else []
        elif before is None:
            taken = {table for table in after.values() if table is not None} | {*gone}
            after[at] = next(name for n in range(len(taken) + 1) if (name := f"{TABLE}{n}") not in taken)
    return after, gone


def frame_at(of_raw: bool) -> str:
    """Where the var of a data set is that may be about `raw`."""
    return "raw/var" if of_raw else "var"


def mapping_at(part: str, key: str, of_raw: bool) -> str:
    """Where an entry of obsm, varm, obsp or uns is. (Genes of a data set about `raw` are raw's.)"""
    return f"{'raw/' if of_raw and part == 'varm' else ''}{part}/{key}"
