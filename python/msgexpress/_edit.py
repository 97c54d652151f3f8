"""Changes of a shell: the elements that change are written again, and all others are copied as they are."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py

from skytether import InvalidError, SkytetherError, UnsupportedError

from . import _same, _shell

if TYPE_CHECKING:
    import anndata
    import pandas as pd

#: The parts of AnnData that are dicts.
MAPPINGS = ("obsm", "varm", "obsp", "uns")


@dataclass
class Edit:
    """What becomes of a shell."""

    #: The shell as it was.
    before: anndata.AnnData
    #: obs and var as they will be; None where they stay.
    obs: pd.DataFrame | None
    var: pd.DataFrame | None
    #: Whether var is that of `raw`.
    of_raw: bool
    #: What obsm, varm, obsp and uns get by key; None removes a key.
    mappings: dict[str, dict[str, Any]]


def edited(shell: bytes, what: str, edit: Edit) -> tuple[bytes, anndata.AnnData]:
    """The shell with its changes, and what is read back from it.

    Raises
    ------
    InvalidError
        An h5ad file can't hold a value or a name, or gives something else back. The text has its place.
    UnsupportedError
        The shell is of a form of before anndata 0.7 that can't be changed.
    """
    with h5py.File(io.BytesIO(shell), "r") as old, h5py.File("shell.h5ad", "w", driver="core", backing_store=False) as new:
        names = _Encoder(what, _shell.ENCODED in old.attrs)
        genes = "raw/" if edit.of_raw else ""
        if edit.of_raw and not isinstance(old.get("raw"), h5py.Group) and (edit.var is not None or "varm" in edit.mappings):
            raise UnsupportedError(f"{what} has a raw of before anndata 0.7, which can't be changed: export it, and ingest the file again")
        frames = {at: frame for at, frame in (("obs", edit.obs), (f"{genes}var", edit.var)) if frame is not None}
        dicts = {(f"{genes}varm" if part == "varm" else part): given for part, given in edit.mappings.items()}
        _shell.copy_attributes(old, new)
        for key in old:
            if key in frames:
                continue
            whole = key in dicts and not isinstance(old[key], h5py.Group)  # before anndata 0.7: a table of records
            inside = isinstance(old[key], h5py.Group) and any(at == key or at.startswith(f"{key}/") for at in (*frames, *dicts))
            if not inside:
                if not whole:
                    old.copy(old[key], new, name=key)
                continue
            _copy_but(old[key], new.create_group(key), key, frames, dicts, names)
        _shell.restore_references(old, new)
        for at, frame in frames.items():
            _write(new, at, names.frame(frame, *_place(at)), what)
        for at, given in dicts.items():
            _write_mapping(new, at, given, edit, names, what)
        new.flush()
        image = new.id.get_file_image()
    back = _shell.opened(image, what)
    _check(back, frames, dicts, what)
    return bytes(image), back


class _Encoder(_shell.Names):
    """The names of a shell: encoded where the others in it are, and refused where they would have to be."""

    def __init__(self, what: str, encodes: bool) -> None:
        super().__init__(what)
        self._encodes = encodes

    def name(self, name: Any) -> Any:
        if self._encodes:
            return super().name(name)
        if isinstance(name, str) and (name in ("", ".", "..") or "/" in name or "\0" in name):
            raise InvalidError(f"{self._what}: the name {name!r} can't be added to it: HDF5 takes / and . for places, and knows no empty names; rename it")
        return name


def _place(at: str) -> list[str]:
    return at.split("/")


def _copy_but(old: h5py.Group, new: h5py.Group, at: str, frames: dict[str, Any], dicts: dict[str, Any], names: _Encoder) -> None:
    """Copies a group without what is written again."""
    _shell.copy_attributes(old, new)
    replaced = {names.name(key) for key in dicts.get(at, ())}
    for key in old:
        inner = f"{at}/{key}"
        if key in replaced or inner in frames:
            continue
        if inner in dicts and isinstance(old[key], h5py.Group):
            _copy_but(old[key], new.create_group(key), inner, frames, dicts, names)
        else:
            old.file.copy(old[key], new, name=key)


def _write_mapping(new: h5py.File, at: str, given: dict[str, Any], edit: Edit, names: _Encoder, what: str) -> None:
    if at not in new:
        # It is not there, or in a form of before anndata 0.7: then all of it is written.
        holder = edit.before.raw if at.startswith("raw/") else edit.before
        all_of_it = {**dict(getattr(holder, at.rpartition("/")[2])), **given}
        _write(new, at, names.mapping({key: value for key, value in all_of_it.items() if value is not None}, *_place(at)), what)
        return
    for key, value in names.mapping({key: value for key, value in given.items() if value is not None}, *_place(at)).items():
        _write(new[at], key, value, what)


def _write(new: h5py.Group, at: str, value: Any, what: str) -> None:
    import anndata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parent, _, key = at.rpartition("/")
            with anndata.settings.override(allow_write_nullable_strings=True):
                anndata.io.write_elem(new[parent] if parent else new, key, value, dataset_kwargs={"compression": "gzip"})
        except (MemoryError, SkytetherError):
            raise
        except Exception as e:  # anndata raises many kinds, each noting the element
            raise InvalidError(f"{what} can't be kept so: {_shell.unwritable(e)}") from e


def _check(back: anndata.AnnData, frames: dict[str, pd.DataFrame], dicts: dict[str, dict[str, Any]], what: str) -> None:
    """Compares what was read back with what was to be written."""
    for at, frame in frames.items():
        wrong = _same.frame(frame, (back.raw if at.startswith("raw/") else back).var if at.endswith("var") else back.obs, tuple(_place(at)))
        _refuse(wrong, what)
    for at, given in dicts.items():
        there = getattr(back.raw if at.startswith("raw/") else back, at.rpartition("/")[2])
        for key, value in given.items():
            if value is None:
                _refuse(_same.place(*_place(at), key) if key in there else None, what)
            else:
                _refuse(_same.nested(value, there[key], (*_place(at), key)) if key in there else _same.place(*_place(at), key), what)


def _refuse(wrong: str | None, what: str) -> None:
    if wrong is not None:
        raise InvalidError(f"{what} can't be kept so: {wrong} would come back as something else: {_shell.advice(wrong)}")
