"""The expression data sets of a fleet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence

import skytether
from skytether import Fleet, InvalidError

from ._dataset import Dataset
from ._names import expressions, naming, slashed
from ._source import ALL_LAYERS, Layers

if TYPE_CHECKING:
    import anndata

    from ._source import Source


def open(path: str | os.PathLike[str], drives: int | None = None, **options: Any) -> MsgExpress:  # noqa: A001
    """Opens the embedded fleet in directory `path`, and makes it where there is none; options
    as of `skytether.open`."""
    return MsgExpress(skytether.open(path, drives, **options))


def connect(url: str, *, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None) -> MsgExpress:
    """Connects to a host that serves a fleet, ``grpc://127.0.0.1:5300``; token and TLS as of `skytether.connect`."""
    return MsgExpress(skytether.connect(url, token=token, tls_ca=tls_ca))


class MsgExpress:
    """The expression data sets of a fleet, by name: ``db["blood/pbmc3k"]``. Usable in a ``with`` statement."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def ingest(
        self,
        source: str | os.PathLike[str] | anndata.AnnData,
        name: str,
        layer: str | None = None,
        replace: bool = False,
        progress: Callable[[int, int], None] | bool | None = None,
        genome: str | None = None,
        feature_types: str | Sequence[str] | None = None,
        layers: Iterable[str] | None = ALL_LAYERS,  # type: ignore[assignment]
    ) -> Dataset:
        """Stores an expression matrix and all that belongs to it under `name`; all of it or nothing.

        Parameters
        ----------
        source
            An h5ad file, a 10x ``.h5`` file, a 10x mtx directory (of version 2 or 3), an EBI Expression Atlas bundle
            (its directory), or an AnnData in memory. Files are streamed.
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

        Raises
        ------
        CorruptError
            The input is cut short or damaged.
        InvalidError
            It is none of the above; it holds names or values that can't be kept (the text has their place); `layer`,
            `genome`, `feature_types` or one of `layers` is not there.
        UnsupportedError
            It holds something that the installed anndata can't read.
        """
        from . import _open

        made = _open.open_source(source, genome, feature_types, Layers.chosen(layers, layer))
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
        return Dataset(self.fleet, name)

    def __contains__(self, name: object) -> bool:
        return slashed(str(name)) in self.ls()

    def __iter__(self) -> Iterator[str]:
        return iter(self.ls())

    def __len__(self) -> int:
        return len(self.ls())

    def ls(self) -> list[str]:
        """The names of the expression data sets, ``domain/dataset`` each."""
        return expressions(self.fleet)

    def drop(self, name: str) -> None:
        """Removes a data set. There is no way back."""
        if name not in self:
            # Says that it is not there, or that it is a table, which is not ours to drop.
            Dataset(self.fleet, name)
            raise InvalidError(f"{name} is no expression data set")
        with naming(name):
            self.fleet.drop(name)

    def close(self) -> None:
        """Lets go of the fleet."""
        self.fleet.close()

    def __enter__(self) -> MsgExpress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<msgexpress.MsgExpress {self.fleet!r}>"
