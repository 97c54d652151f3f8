"""The expression data sets of a fleet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence, Union

import skytether
from skytether import Fleet, InvalidError

from . import _imports
from ._across_calls import Across
from ._dataset import Dataset
from ._names import check, expressions, naming, slashed
from ._source import ALL_LAYERS, Layers

if TYPE_CHECKING:
    import anndata

    from ._source import Source

    #: What one source of an ingest may be.
    Source_ = Union[str, os.PathLike[str], anndata.AnnData]


def open(path: str | os.PathLike[str], drives: int | None = None, **options: Any) -> MsgExpress:  # noqa: A001
    """Opens the embedded fleet in directory `path`, and makes it where there is none. Options and errors are those of
    `skytether.open`: a `ConflictError` where another process has it open."""
    with _imports.meanwhile():
        return MsgExpress(skytether.open(path, drives, **options))


def connect(url: str, *, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None) -> MsgExpress:
    """Connects to a host that serves a fleet, ``grpc://127.0.0.1:5300``. Token, TLS and errors are those of
    `skytether.connect`: an `UnavailableError` where no host answers."""
    with _imports.meanwhile():
        return MsgExpress(skytether.connect(url, token=token, tls_ca=tls_ca))


class MsgExpress(Across):
    """The expression data sets of a fleet, by name: ``db["blood/pbmc3k"]``. Usable in a ``with`` statement."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def ingest(
        self,
        source: Source_ | Sequence[Source_] | Mapping[str, Source_],
        name: str,
        layer: str | None = None,
        replace: bool = False,
        progress: Callable[[int, int], None] | bool | None = None,
        genome: str | None = None,
        feature_types: str | Sequence[str] | None = None,
        layers: Iterable[str] | None = ALL_LAYERS,  # type: ignore[assignment]
        prefix: str | Sequence[str] | None = None,
        batch: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
        *,
        modality: str | None = None,
        orientation: str | None = None,
        join: str | None = None,
        on: str | None = None,
        fill_value: float | None = None,
        clash: Mapping[str, str] | None = None,
    ) -> Dataset:
        """Stores an expression matrix and all that belongs to it under `name`; all of it or nothing.

        Parameters
        ----------
        source
            An h5ad file, one AnnData of an h5mu file, AnnData in zarr (a directory or its ``.zip``), a loom file, a 10x
            ``.h5`` file, a 10x mtx directory (of version 2 or 3), an EBI Expression Atlas bundle (its directory), or a
            text file of genes by cells (``.csv``, ``.tsv``, ``.txt``, with ``.gz`` or not). Or an AnnData in memory or
            backed. Files are streamed. A list of these, or a dict of them by label, becomes one data set.
        name
            ``domain/dataset``.
        layer
            Which matrix of an AnnData the data set is about: None for X, ``"raw"``, or a layer's name.
            The others are kept too.
        replace
            True: put it in the place of a data set of that name, atomically. False: a data set of that
            name is a `ConflictError`.
        progress
            Called with values done and values in all; True for a bar on stderr; None for a bar where stderr is a
            terminal; False for nothing.
        genome
            Which genome of a 10x ``.h5`` file with several: its genes are the matrix. An error for any other source.
        feature_types
            Which features of a 10x file are the matrix: a type (``"Antibody Capture"``), several, or ``"all"``. By
            default these are genes (``"Gene Expression"``), as for scanpy, or the only type that there is. The others,
            and genes of other genomes, are kept as matrices of their own, which `layer=` of the tests chooses and
            `Dataset.to_anndata` gives; a warning says what they are. An error for any other source.
        layers
            Which layers of an AnnData to keep in addition to X and raw: their names; None for none; left out, all.
            The one that `layer` names is kept in any case.
        prefix
            Of a directory with the files of several 10x matrices, as GEO has them, the one whose names begin so; or
            several, which become one data set.
        batch
            For several sources: the obs column that says which source a cell is from (``"batch"`` by default), or the
            sources' labels, or both as ``{"donor": ["d1", "d2"]}``. Labels are the dict's keys, else the files' names.
            For a directory of several 10x matrices it means all of them.
        modality
            Which AnnData of a MuData (h5mu, or zarr) with several.
        orientation
            What the rows of a text file are: ``"genes_by_cells"`` or ``"cells_by_genes"``. Left out, names decide.
        join
            For sources with different genes: ``"inner"`` for those that all have, or ``"outer"`` for all.
        on
            The var column by which genes of several sources are the same; by default their names.
        fill_value
            With ``join="outer"``, what a source has for genes that it lacks: 0 (as if counted and not found) or NaN.
        clash
            For obs columns whose types differ between sources: ``"text"``, ``"number"`` or ``"drop"``, by column.

        Raises
        ------
        CorruptError
            The input is cut short or damaged.
        InvalidError
            It is none of the above; it holds names or values that can't be kept (the text has their place); a choice
            is needed, or what it names is not there.
        UnsupportedError
            It holds something that the installed anndata can't read.
        """
        from . import _open, _several

        check(name)
        if "/" not in name and "." not in name:
            raise InvalidError(f"{name!r} is no data set name: write it as domain/dataset, for example blood/{name or 'pbmc3k'}")
        choices = _open.Choices(genome, feature_types, Layers.chosen(layers, layer), modality, orientation)
        made = _several.open_sources(source, choices, prefix, _several.Joining(batch, join, on, fill_value, clash))
        try:
            made.arrange(layer)
            return self._store(made, name, replace, progress)
        finally:
            made.close()

    def _store(self, source: Source, name: str, replace: bool, progress: Callable[[int, int], None] | bool | None) -> Dataset:
        """Stores a source that is open and arranged. The caller closes it."""
        from . import _progress

        with naming(name), _progress.reporter(progress, f"ingesting {name}") as report:
            source.write(self.fleet, name, replace, report)
        return self[name]

    def __getitem__(self, name: str) -> Dataset:
        """The data set `name` (``domain/dataset``, or as SQL writes it); `NotFoundError` where there is none."""
        made = Dataset(self.fleet, name)
        _imports.finish()
        return made

    def __contains__(self, name: object) -> bool:
        """Whether there is an expression data set of that name, in either spelling."""
        return slashed(str(name)) in self.ls()

    def __iter__(self) -> Iterator[str]:
        """The names of the expression data sets, as `ls`."""
        return iter(self.ls())

    def __len__(self) -> int:
        """The number of expression data sets."""
        return len(self.ls())

    def ls(self) -> list[str]:
        """The names of the expression data sets, ``domain/dataset`` each, sorted."""
        return expressions(self.fleet)

    def drop(self, name: str) -> None:
        """Removes a data set. There is no way back.

        Raises
        ------
        NotFoundError
            There is no data set of that name.
        InvalidError
            It is a table, which `skytether.Fleet.drop` removes.
        """
        if name not in self:
            # Says that it is not there, or that it is a table, which is not ours to drop.
            Dataset(self.fleet, name)
            raise InvalidError(f"{name} is no expression data set")
        with naming(name):
            self.fleet.drop(name)

    def close(self) -> None:
        """Lets go of the fleet. Its objects raise an error from then on. Closing again does nothing."""
        _imports.stop()
        self.fleet.close()

    def __enter__(self) -> MsgExpress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<msgexpress.MsgExpress {self.fleet!r}>"
