"""Versions of a data set: obs, var, obsm and the like are written again, and matrices stay where they are.

A version is a new generation that keeps the tables that it does not change (docs/internals/versions.md). The shell, the
tables `obs` and `var`, and the application metadata are small; a matrix is not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping


from skytether import ConflictError, InvalidError, NotFoundError

from . import _concurrent, _given, _history, _source, _tables
from ._hints import instead
from ._stored import Stored

if TYPE_CHECKING:
    import pandas as pd

    from skytether import _internal


#: How often a version is made again on top of others that came in between.
_ATTEMPTS = 4


class Versions(Stored):
    """What makes versions of a data set."""

    @property
    def history(self) -> pd.DataFrame:
        """The versions, a row each: `version` counts from 1, `generation` tells contents apart, `time` is in UTC,
        `action` names the method, `params` its arguments (shortened), and `changed` what it wrote. The latest 200 are
        kept. An ingest begins another history. Moves of data to other drives are no versions."""
        import pandas as pd

        rows = _history.versions(self._kept, self._generation)
        frame = pd.DataFrame(rows, columns=["version", "generation", "time", "action", "params", "changed"])
        frame["time"] = pd.to_datetime(frame["time"], utc=True)
        return frame

    def set_obs(self, values: Any, name: str | None = None) -> None:
        """Adds columns to `obs`, or replaces those of the same name, as a new version. The matrices stay as they are.

        Parameters
        ----------
        values
            A DataFrame whose index has the names of cells, in any order; cells that it lacks have missing values. Or
            one column: a Series with such an index, or an array with a value for each cell, in order. Categories and
            their order are kept.
        name
            What one column is called; by default the Series' name.

        Raises
        ------
        InvalidError
            There is a name that is no cell's, or one that repeats; an array has another length; or neither `h5ad` nor
            a table has a form for the values. The text has the column, and where it helps the cell.
        ConflictError
            One of the columns was changed since this object was made, or cells were appended. Nothing is changed.
            Versions that left the columns alone stay, and this one follows on them.
        """
        columns = _given.columns(values, name, self._shell.obs.index, "cell", self.name)
        put(self, obs=columns, action="set_obs", params={"columns": list(columns)})

    def set_var(self, values: Any, name: str | None = None) -> None:
        """As `set_obs`, for the genes: columns of `var`. Errors as of `set_obs`."""
        columns = _given.columns(values, name, self._genes.index, "gene", self.name)
        put(self, var=columns, action="set_var", params={"columns": list(columns)})

    def drop_obs(self, names: str | list[str]) -> None:
        """Removes columns of `obs`, one or several by name, as a new version.

        Raises
        ------
        NotFoundError
            There is no such column. Nothing is removed.
        InvalidError
            No column is named, or a name is no text.
        ConflictError
            As of `set_obs`.
        """
        wanted = _given.names(names, "obs")
        put(self, obs=dict.fromkeys(wanted), action="drop_obs", params={"columns": wanted})

    def drop_var(self, names: str | list[str]) -> None:
        """Removes columns of `var`, one or several by name, as a new version. Errors as of `drop_obs`."""
        wanted = _given.names(names, "var")
        put(self, var=dict.fromkeys(wanted), action="drop_var", params={"columns": wanted})

    def set_obsm(self, key: str, values: Any) -> None:
        """Keeps an array or a DataFrame with a row for each cell, in their order (cells x any number), as
        ``obsm[key]``, as a new version. None removes it.

        Raises
        ------
        InvalidError
            It has no rows, or not one for each cell; the frame's index is in another order; or `h5ad` has no form for
            the values.
        NotFoundError
            None is to remove what is not there.
        ConflictError
            It was changed since this object was made, or cells were appended. Nothing is changed.
        """
        put(self, obsm={key: values}, action="set_obsm", params={"key": key})

    def set_uns(self, key: str, value: Any) -> None:
        """Keeps `value` as ``uns[key]``: text, a number, an array, a DataFrame or a dict of these, as a new version.
        None removes it. Errors as of `set_obsm`; sets, dates and functions are among what h5ad has no form for."""
        put(self, uns={key: value}, action="set_uns", params={"key": key})

    def set_layer(self, name: str, values: Any) -> None:
        """Stores a matrix (cells x genes; a numpy array, or scipy CSR or CSC) as the layer `name`, as a new version.
        The other matrices stay as they are.

        Raises
        ------
        InvalidError
            It is of another shape, or its values are no integers or floats of at most 64 bits.
        UnsupportedError
            It is neither a numpy array nor a scipy CSR or CSC matrix, or it is masked.
        ConflictError
            The layer was changed since this object was made, or cells were appended. Nothing is changed.
        """
        put(self, layers={name: values}, action="set_layer", params={"name": name})

    def append(
        self,
        source: Any,
        batch: Any = None,
        *,
        join: str | None = None,
        on: str | None = None,
        fill_value: float | None = None,
        clash: Mapping[str, str] | None = None,
        genome: str | None = None,
        feature_types: Any = None,
        prefix: str | None = None,
        modality: str | None = None,
        orientation: str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> None:
        """Adds cells behind those that are there, as a new version: all of it or nothing.

        The matrices stay as they are, and get the new cells as a part of their own. That takes about as long as an
        ingest of the new cells. Where that can't be, all matrices are written again, as by an ingest of all cells.
        `history` says why: the new cells have other genes or lack a matrix, a value doesn't fit the stored type, or
        cells were appended seven times since the matrices were written.

        Parameters
        ----------
        source
            What an ingest takes: a file, a directory, or an AnnData. Its matrices must be those of the data set, else
            those that only one has are left out, and a warning names them.
        batch
            The label of the new cells in the obs column ``"batch"``. Where there is no such column yet, a pair: what
            the cells that are there get, and the new ones. A dict names another column: ``{"donor": "d2"}``. None: no
            column is written.
        join, on, fill_value, clash
            As of `MsgExpress.ingest` of several sources: what becomes of genes that only one has, by which column genes
            are the same, and what obs columns of different types become.
        genome, feature_types, prefix, modality, orientation, progress
            As of `MsgExpress.ingest`.

        What only the data set has of `uns` and `var` stays. What only one has of `obs` and `obsm` is filled with
        missing values; so is an entry of `obsm` that has another width in the new cells. `obsp` is left out. A warning
        says what is left out. Names of cells stay as they are on both sides.

        Raises
        ------
        InvalidError
            There is no cell in `source`; a name of a cell is there already; genes or types differ and it is not said
            what becomes of them.
        ConflictError
            The data set was changed since this object was made, or meanwhile. Nothing is changed.
        """
        from . import _append, _open, _several

        choices = _open.Choices(genome, feature_types, _source.ALL_LAYERS, modality, orientation)
        _append.append(self, source, batch, choices, prefix, _several.Joining(None, join, on, fill_value, clash), progress)


def put(
    ds: Versions,
    *,
    obs: Mapping[str, Any] | pd.DataFrame | None = None,
    var: Mapping[str, Any] | pd.DataFrame | None = None,
    obsm: Mapping[str, Any] | None = None,
    varm: Mapping[str, Any] | None = None,
    obsp: Mapping[str, Any] | None = None,
    uns: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    views: Mapping[str, Any] | None = None,
    action: str,
    params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes a version of `ds` with other annotations, in one commit, and lets `ds` continue on it.

    Parameters
    ----------
    obs, var
        Columns by name, with a value for each cell or gene in their order; None for a column removes it. A DataFrame is
        its columns; its index does not matter.
    obsm, varm, obsp, uns
        What to keep by key; None removes a key. Arrays have a row for each cell or gene.
    layers
        Matrices of cells x genes by the layers' names.
    views
        Records of views by name, as `_view` makes them; None drops a view.
    action, params
        What `history` says of the version: the method's name, and its arguments.

    Returns
    -------
    The report of the commit: `bytes_written` of `bytes_stored`.

    Raises
    ------
    InvalidError
        A value can't be kept, or has another length; the text has its place.
    NotFoundError
        What a None would remove is not there.
    ConflictError
        What the change writes was changed since `ds` was made, or cells were appended. Nothing is changed.
    """
    change = Change(
        obs=_by_name(obs),
        var=_by_name(var),
        mappings={part: dict(given) for part, given in (("obsm", obsm), ("varm", varm), ("obsp", obsp), ("uns", uns)) if given},
        layers=dict(layers or {}),
        views=dict(views or {}),
    )
    for _ in range(_ATTEMPTS):
        try:
            return _commit(ds, change, action, dict(params or {}))
        except ConflictError:
            if not _concurrent.follow(ds, change):
                raise
    return _commit(ds, change, action, dict(params or {}))


@dataclass
class Change:
    """What a version changes."""

    obs: dict[str, Any]
    var: dict[str, Any]
    mappings: dict[str, dict[str, Any]]
    layers: dict[str, Any] = field(default_factory=dict)
    views: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> str:
        """What `history` shows of it."""
        parts = {"obs": self.obs, "var": self.var, **self.mappings, "layers": self.layers, "views": self.views}
        return _history.short("; ".join(f"{part}: {', '.join(map(str, given))}" for part, given in parts.items() if given))


def _commit(ds: Versions, change: Change, action: str, params: dict[str, Any]) -> dict[str, Any]:
    from . import _elements

    what = ds.name
    with ds._unchanged():
        shell = ds._shell
        obs = _changed_frame(shell.obs, change.obs, f"obs of {what}") if change.obs else None
        var = _changed_frame(ds._genes, change.var, f"var of {what}") if change.var else None
        mappings = {part: _checked(ds, part, given) for part, given in change.mappings.items()}
        layers = {name: _given.layer(name, values, shell.shape, what) for name, values in change.layers.items()}
        values = {_elements.mapping_at(part, key, ds._swapped): value for part, given in mappings.items() for key, value in given.items()}
        values.update({at: frame for at, frame in (("obs", obs), (_elements.frame_at(ds._swapped), var)) if frame is not None})
        encoded = {at: None if value is None else _elements.encode(at, value, what) for at, value in values.items()}
        writer = ds.fleet._inner.version(ds.name.replace("/", ".", 1), ds._generation)
        try:
            kept = json.loads(json.dumps(ds._kept))
            if obs is not None:
                table, kept["obs_in_sql"], kept["not_in_sql"]["obs"] = _tables.to_arrow(obs, "cell")
                kept["categories"], kept["ordered"] = _tables.category_orders(obs), _tables.ordered(obs)
                writer.table("obs", "everywhere", table)
            if var is not None:
                table, _, kept["not_in_sql"]["var"] = _tables.to_arrow(var, "gene")
                writer.table("var", "everywhere", table)
            if "uns" in change.mappings and "log1p" in change.mappings["uns"]:
                from . import _h5ad

                kept["log1p_base"] = _h5ad.log1p_base({k: v for k, v in change.mappings["uns"].items() if v is not None}, what)
            if change.views:
                # A record that is None drops the view of its name.
                kept["views"] = {name: record for name, record in {**kept.get("views", {}), **change.views}.items() if record is not None}
            if layers:
                _write_layers(ds, writer, layers, kept)
            if values:
                kept["elements"], gone = _elements.tables_of(kept.get("elements", {}), values)
                kept["format"] = _source.NEWEST
                for table in gone:
                    writer.leave_out(table)
                for at, file in encoded.items():
                    if file is not None:
                        writer.table(kept["elements"][at], "spread", _source.shell_rows(file[0]))
            version = _history.Version(action, params, change.summary(), ds._generation, _history.versions(ds._kept, ds._generation))
            kept["history"] = version.history(writer.generation())
            writer.application(_source.APPLICATION, json.dumps(kept, ensure_ascii=False))
            report: dict[str, Any] = json.loads(writer.commit())
        except BaseException:
            writer.abort()
            raise
        # What belongs together is of the new generation from here on.
        ds._renew()
        for at, file in encoded.items():
            _elements.put(shell, at, None if file is None else file[1])
        ds.__dict__["_shell"] = shell
    return report


def _write_layers(ds: Versions, writer: _internal.Writer, layers: dict[str, Any], kept: dict[str, Any]) -> None:
    """Writes matrices, and the totals of all matrices with theirs."""
    import pyarrow as pa

    from . import _memory

    cells = ds._ordered("cells")
    wanted = kept["matrices"]["x"]["origin"]
    for name, values in layers.items():
        matrix = _memory.matrix(f"layers/{name}", values, ds.name)
        there = next((table for table, known in kept["matrices"].items() if known["origin"] == matrix.origin), None)
        table = there or _source.table_for(matrix.origin, wanted, set(kept["matrices"]))
        sink = writer.matrix(table, *matrix.shape)
        matrix.push(sink, lambda _: None)
        total, column = f"total_{table}", pa.table(sink.finish()).column(0)
        at = cells.column_names.index(total) if total in cells.column_names else None
        cells = cells.append_column(total, column) if at is None else cells.set_column(at, total, column)
        kept["matrices"][table] = {"origin": matrix.origin, "shape": list(matrix.shape), **matrix.encoding.to_json()}
    writer.table("cells", "everywhere", cells)


# ---- what is given


def _by_name(given: Mapping[str, Any] | pd.DataFrame | None) -> dict[str, Any]:
    if given is None:
        return {}
    if hasattr(given, "columns"):
        return {str(name): given.iloc[:, at] for at, name in enumerate(given.columns)}
    return {str(name): values for name, values in given.items()}


def _changed_frame(frame: pd.DataFrame, changes: Mapping[str, Any], what: str) -> pd.DataFrame:
    """A copy of obs or var with other columns."""
    frame = frame.copy()
    for name, values in changes.items():
        if values is None:
            if name not in frame.columns:
                raise NotFoundError(f"{what} has no column {name!r}{instead(name, frame.columns)}")
            del frame[name]
            continue
        frame[name] = _given.column(name, values, frame.index, what)
    return frame


def _checked(ds: Versions, part: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of obsm and the like that are given, as they are kept."""
    there = getattr(ds._shell.raw if part == "varm" and ds._swapped else ds._shell, part)
    n = {"obsm": ds.n_obs, "obsp": ds.n_obs, "varm": ds.n_vars}.get(part)
    checked = {}
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise InvalidError(f"{part} has keys of text, and {key!r} is none: write set_{part}(\"name\", value)")
        if value is None and key not in there:
            raise NotFoundError(f"{ds.name} has no {part}[{key!r}] to remove{instead(key, there)}")
        index = ds._genes.index if part == "varm" else ds._shell.obs.index
        checked[key] = value if value is None or n is None else _given.entry(part, key, value, n, index, ds.name)
    return checked
