"""What users of AnnData and scanpy write out of habit: where a data set has something else, errors say what."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from skytether import InvalidError

from ._hints import instead

if TYPE_CHECKING:
    import pandas as pd

_LAZY = "ds.to_anndata(lazy=True).{0} has it, and no value of the matrix is read"
_MEMORY = "ds.to_anndata() is a copy in memory, ds[cells, genes] a part of it"
#: What to write instead of an attribute of AnnData.
_INSTEAD = {
    "X": "values stay on the drives: ds[cells, genes].X reads those that are chosen, ds.to_anndata().X all of them",
    "raw": 'layer="raw" or use_raw=True of a test chooses it, and ds.to_anndata().raw has its values',
    **{name: f"{_LAZY.format(name)}; ds.set_{name}(key, values) keeps more" for name in ("obsm", "uns")},
    **{name: _LAZY.format(name) for name in ("varm", "obsp", "varp")},
    **{name: f"ds.export(\"x.h5ad\") writes a file, and {_MEMORY}" for name in ("write", "write_h5ad", "write_zarr", "write_loom", "write_csvs", "filename")},
    "copy": f"calls change nothing in place but keep versions (ds.history); {_MEMORY}",
    "T": f"cells are rows here; {_MEMORY}, which has .T",
    "transpose": f"cells are rows here; {_MEMORY}, which has .T",
    "to_df": f"{_MEMORY}, which has .to_df()",
    "to_memory": _MEMORY,
    "obs_vector": "ds[:, \"CD3D\"].X has a gene's values, ds.obs[\"column\"] a column of obs",
    "var_vector": "ds[\"cell\"].X has a cell's values, ds.var[\"column\"] a column of var",
    "get": f"ds.obs and ds.var are data frames; {_MEMORY}",
    "concatenate": 'db.ingest({"a": a, "b": b}, "domain/both", batch="sample") stores several as one data set, ds.append(file) adds cells',
    **{f"{part}_keys": f"ds.{part}.columns has the names of columns" for part in ("obs", "var")},
    **{f"{part}_keys": f"list({_LAZY.format(part).partition(' has it')[0]}) has the keys" for part in ("obsm", "varm", "uns")},
    **{f"{part}_names_make_unique": "names that repeat are kept apart by their numbers; make them unique before the ingest" for part in ("obs", "var")},
    **{name: f"this is no AnnData, and scanpy's functions do not take it: its own methods do their work, and {_MEMORY}" for name in ("is_view", "isbacked", "chunked_X")},
    "sort_values": "ds.obs is a data frame: ds.obs.sort_values(...)",
    "groupby": 'ds.obs is a data frame: ds.obs.groupby(...); ds.pseudobulk("donor", "cell_type") adds up the cells of groups',
    "value_counts": 'ds.obs["cell_type"].value_counts() counts the cells of groups',
    "rank_genes": "it is called rank_genes_groups",
    "find_markers": "it is called rank_genes_groups; ds.ttest(a, b) compares two sets of cells",
    "log1p": 'ds.normalize() chooses log1p of counts per 10,000, as transform="log1p_cp10k" of each call does',
    "normalize_total": 'ds.normalize("median") scales cells to their median and takes log1p; ds.normalize(1e4) to 10,000',
    "scale": "ds.pca(scale=True, max_value=10) scales genes first",
    "louvain": "ds.leiden() finds clusters",
    "tsne": "ds.umap() makes a layout",
}
#: What keeps what would be assigned to an attribute.
_ASSIGN = {
    "obs": "ds.set_obs(frame) keeps columns of a frame, ds.drop_obs(names) removes some",
    "var": "ds.set_var(frame) keeps columns of a frame, ds.drop_var(names) removes some",
    "obsm": "ds.set_obsm(key, array) keeps an array",
    "uns": "ds.set_uns(key, value) keeps a value",
    "layers": "ds.set_layer(name, matrix) keeps a matrix",
    "X": 'ds.set_layer("mine", matrix) keeps another matrix, and layer="mine" chooses it',
    "raw": 'ds.set_layer("mine", matrix) keeps another matrix, and layer="mine" chooses it',
    **{name: "names are those of the ingest: change them before it" for name in ("obs_names", "var_names")},
}


class Sized:
    """Has the length of an AnnData, and is neither a sequence nor iterable."""

    n_obs: int
    __iter__ = None

    def __len__(self) -> int:
        """The number of cells, as of AnnData."""
        return int(self.n_obs)

    def __bool__(self) -> bool:
        return True


def of_view(name: str) -> str | None:
    """What to write instead of an attribute of AnnData at a view; None where there is no hint."""
    hint = _INSTEAD.get(name)
    return None if hint is None or "ds.set_" in hint or "db." in hint else re.sub(r"\bds\b", "view", hint)


class Habits(Sized):
    """Lookups that a data set answers by what to write instead."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # It is there, and raised an error of its own, which is not to be hidden.
            return object.__getattribute__(self, name)
        if name in _INSTEAD and not name.startswith("_"):
            raise AttributeError(f"a data set has no {name}: {_INSTEAD[name]}")
        more = "" if name.startswith("_") else instead(name, (known for known in dir(type(self)) if not known.startswith("_")))
        raise AttributeError(f"a data set has no attribute {name!r}{more}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ASSIGN:
            raise AttributeError(f"{name} of a data set can't be assigned: {_ASSIGN[name]}")
        super().__setattr__(name, value)


class Names(list):  # type: ignore[type-arg]
    """A list of matrices' names. Who looks a matrix up in it is told where it is."""

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            has = f"ds.to_anndata().layers[{at!r}] or ds[cells, genes].layers[{at!r}] has its values"
            raise InvalidError(f"ds.layers lists names: layer={at!r} of a test chooses that matrix, and {has}")
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, str):
            raise InvalidError(f"ds.layers lists names: ds.set_layer({at!r}, matrix) keeps a matrix")
        super().__setitem__(at, value)


@lru_cache(maxsize=1)
def _copied() -> type:
    """The class of frames that refuse a column where it would be lost at once.

    ``ds.obs["x"] = values`` changes a copy that nothing else refers to. pandas tells such statements of its own apart
    in the same way, by the count of references. A frame of this class becomes a plain one when anything else is done
    with it: anndata's writer, for one, looks for exactly that class, which a subclass with `_constructor` is not.
    """
    import pandas as pd

    class Like(type(pd.DataFrame)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, pd.DataFrame)

    class DataFrame(pd.DataFrame, metaclass=Like):
        def __getattribute__(self, name: str) -> Any:
            object.__setattr__(self, "__class__", pd.DataFrame)
            return getattr(self, name)

        def __setitem__(self, key: Any, value: Any) -> None:
            if sys.getrefcount(self) <= _ALONE:
                _lost(object.__getattribute__(self, "_copied_from"), key)
            object.__setattr__(self, "__class__", pd.DataFrame)
            self[key] = value

        def __setattr__(self, name: str, value: Any) -> None:
            alone = sys.getrefcount(self) <= _ALONE
            object.__setattr__(self, "__class__", pd.DataFrame)
            if alone:
                _lost(self._copied_from, name)
            setattr(self, name, value)

    return DataFrame


def _references() -> int:
    """How many references an object has while a method of it runs and no variable holds it. Python's versions differ;
    0 where they can't be told apart."""
    counts = []

    class Probe:
        def __setitem__(self, key: str, value: int) -> None:
            counts.append(sys.getrefcount(self))

    held = Probe()
    held["x"] = 1
    Probe()["x"] = 1
    return counts[1] if counts[1] < counts[0] else 0


_ALONE = _references()


def _lost(of: tuple[str, str, str], key: Any) -> None:
    part, name, keeper = of
    keeps = f"{keeper}.set_{part}(values, name={key!r}) keeps it in {name}"
    raise InvalidError(f".{part} is a copy, in which {key!r} would be lost: {keeps}, and a variable keeps the copy (frame = ds.{part})")


def copied(frame: pd.DataFrame, part: str, name: str, keeper: str = "ds") -> pd.DataFrame:
    """A copy of obs or var (`part`) of the data set `name`. It refuses a column that is set while no variable has the
    copy; `keeper` is what keeps columns."""
    made = frame.copy()
    for attribute, value in (("_copied_from", (part, name, keeper)), ("__class__", _copied())):
        object.__setattr__(made, attribute, value)
    return made
