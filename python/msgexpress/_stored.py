"""What every use of a stored data set needs: its record, its parts, and that they are of one generation."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

from skytether import ConflictError, CorruptError, Fleet, InvalidError, SkytetherError, UnsupportedError

from . import _features
from ._habits import Names, copied
from ._names import check, missing, naming
from ._source import APPLICATION, NEWEST, labels

if TYPE_CHECKING:
    import anndata
    import pandas as pd
    import pyarrow as pa


class Stored:
    """The record and the parts of one generation of a data set."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self._read_record(name)

    def _read_record(self, name: str) -> None:
        check(name)
        with naming(name), missing(self.fleet, name):
            found = self.fleet.describe(name)
        if found["kind"] != "expression":
            raise InvalidError(f"{name} is a {found['kind']}, not an expression data set: skytether's own calls and commands are for it")
        self.name: str = found["name"].replace(".", "/", 1)
        self._generation: int = found["generation"]
        # Of each table, the generation that wrote it.
        self._written: dict[str, int] = {table: about.get("generation", self._generation) for table, about in found["tables"].items()}
        # Of each matrix that was ranked, its genes' names by number.
        self._gene_names: dict[str, np.ndarray] = {}
        try:
            self._kept: dict[str, Any] = json.loads(found["application"][APPLICATION])
            written = int(self._kept["format"])
        except (ValueError, TypeError) as e:
            raise CorruptError(f"{self.name}: what msgexpress keeps with it can't be read: {e}") from e
        except KeyError as e:
            raise UnsupportedError(f"{self.name} was not ingested with msgexpress: it lacks what is needed to read it as AnnData") from e
        if written > NEWEST:
            raise UnsupportedError(f"{self.name} was ingested with a newer msgexpress (format {written}, this one knows {NEWEST}): upgrade this one")

    # ---- what it holds

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of cells and genes."""
        cells, genes = self._kept["shape"]
        return cells, genes

    @property
    def n_obs(self) -> int:
        """Number of cells."""
        return self.shape[0]

    @property
    def n_vars(self) -> int:
        """Number of genes."""
        return self.shape[1]

    @property
    def layers(self) -> list[str]:
        """Values for `layer=` besides None: the names of the other matrices."""
        return Names(label for label in self._tables() if label is not None)

    @property
    def other_features(self) -> list[str]:
        """The types of features that were in the file and are no part of the matrix: antibodies, guides, genes of
        another genome. They are values for `layer=` and for `to_anndata(features=...)`, too."""
        return [origin.removeprefix(_features.ORIGIN) for origin in self._origins if origin.startswith(_features.ORIGIN)]

    @property
    def obs(self) -> pd.DataFrame:
        """The cells, as AnnData's obs: a row per cell, in order; a copy.

        Raises
        ------
        ConflictError
            The data set was replaced since this object was made.
        CorruptError
            What is stored can't be read.
        """
        return copied(self._shell.obs, "obs", self.name)

    @property
    def var(self) -> pd.DataFrame:
        """The genes, as AnnData's var (that of `raw` where the data set is about `raw`): a row per gene, in order; a
        copy. Errors as of `obs`."""
        return copied(self._genes, "var", self.name)

    @property
    def obs_names(self) -> pd.Index:
        """The cells' names, in order; a copy. Errors as of `obs`."""
        return self._shell.obs.index.copy()

    @property
    def var_names(self) -> pd.Index:
        """The genes' names, in order; a copy. Errors as of `obs`."""
        return self._genes.index.copy()

    def table(self, name: str) -> str:
        """The quoted SQL name of one of its tables: ``x``, ``x_rows``, ``obs``, ``var``, ... It is not looked up."""
        domain, dataset = self.name.split("/", 1)
        return ".".join('"' + part.replace('"', '""') + '"' for part in (domain, dataset, name))

    def __repr__(self) -> str:
        others = self.other_features
        layers = [layer for layer in self.layers if layer not in others]
        more = f", layers {', '.join(layers)}" if layers else ""
        more += f", other features {', '.join(others)}" if others else ""
        return f"<msgexpress.Dataset {self.name}: {self.n_obs:,} cells x {self.n_vars:,} genes{more}>"

    # ---- inside

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Around reads that belong together: all of them are of this object's generation, or a `ConflictError` is
        raised."""
        with naming(self.name):
            self._check_generation()
            try:
                yield
            except Exception as e:
                # It may have gone wrong because half of it was of another data set.
                try:
                    self._check_generation()
                except ConflictError as replaced:
                    raise replaced from e
                except SkytetherError:
                    pass
                raise
            self._check_generation()

    def _renew(self) -> None:
        """Continues on the newest version. What was remembered of the one before is forgotten."""
        for name in {*self.__dict__} - {"fleet"}:
            if isinstance(getattr(type(self), name, None), cached_property):
                del self.__dict__[name]
        # What views remember of the matrices (`_view`).
        for name in ("_settled_transforms", "_counted_cells"):
            self.__dict__.pop(name, None)
        self._read_record(self.name)

    def _check_generation(self) -> None:
        if self.fleet.describe(self.name)["generation"] != self._generation:
            raise ConflictError(f"{self.name} was replaced since this object was made: take db[{self.name!r}] again")

    @property
    def _origins(self) -> dict[str, str]:
        return {m["origin"]: table for table, m in self._kept["matrices"].items()}

    @property
    def _swapped(self) -> bool:
        """Whether the data set is about `raw`, so that its genes are raw's."""
        return self._kept["matrices"]["x"]["origin"] == "raw/X"

    def _tables(self) -> dict[str | None, str]:
        """The matrices' tables by what `layer=` says."""
        there = self._origins
        found: dict[str | None, str] = {None: "x"}
        found.update((label, there[origin]) for label, origin in labels(there).items() if there[origin] != "x")
        return found

    def _totals(self, matrix: str) -> np.ndarray:
        """The sum over all genes of each cell (float32), as the drives keep it since the ingest."""
        rows = self.fleet.sql(f'SELECT "total_{matrix}" FROM {self.table("cells")}').to_arrow()
        return rows.column(0).combine_chunks().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)

    def _own_var(self, table: str) -> pd.DataFrame:
        """What is known of the features of a matrix of its own, as AnnData's var."""
        about = "var_" + table.removeprefix(_features.TABLE)
        order = self._ordered(about).to_pandas()
        names = order.pop("gene").to_numpy(object)
        return order.set_axis(names, axis=0)

    def _file(self, table: str) -> bytes:
        """A file that is stored as the rows of a table."""
        rows = self.fleet.sql(f"SELECT part, bytes FROM {self.table(table)}").to_arrow()
        parts = dict(zip(rows.column("part").to_pylist(), rows.column("bytes").to_pylist()))
        return b"".join(parts[i] for i in sorted(parts))

    def _ordered(self, table: str) -> pa.Table:
        """One of its tables whole, with the rows in their order."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.fleet._inner.plain_file(f"{self.name.replace('/', '.', 1)}.{table}")
        return pq.read_table(pa.BufferReader(file.read(0, file.size())))

    @cached_property
    def _shell(self) -> anndata.AnnData:
        from . import _elements, _shell

        with self._unchanged():
            shell = _shell.opened(self._file("shell"), self.name)
            for at, table in self._kept.get("elements", {}).items():
                _elements.put(shell, at, None if table is None else _elements.decode(self._file(table), at, self.name))
        if shell.n_obs != self.n_obs:
            raise CorruptError(f"{self.name}: its shell is of {shell.n_obs} cells instead of {self.n_obs}")
        return shell

    @property
    def _genes(self) -> pd.DataFrame:
        return self._shell.raw.var if self._swapped else self._shell.var
