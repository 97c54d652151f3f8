"""Matrices of an AnnData that stay on the drives until they are sliced.

AnnData takes any `anndata.abc.CSRDataset` for a matrix, as those of files that are not loaded. A view of the AnnData
slices it, and so holds a matrix in memory; `AnnData.to_memory` loads all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata.abc
import numpy as np

from skytether import ConflictError, InvalidError

from . import _export

if TYPE_CHECKING:
    from ._stored import Stored


class LazyMatrix(anndata.abc.CSRDataset):
    """A matrix of a data set, cells as rows, or some genes and cells of it in the order given (numbers; None for all).

    ``matrix[cells, genes]`` reads what it names, as the scipy matrix or numpy array that went in. After the data set
    was replaced or got a new version, that is a `ConflictError`.
    """

    #: Where anndata looks for a file; this matrix is in none.
    backend = "skytether"  # type: ignore[assignment]
    ndim = 2

    def __init__(self, ds: Stored, table: str, genes: np.ndarray | None = None, cells: np.ndarray | None = None) -> None:
        self._ds, self._table = ds, table
        # The data set's object goes on to its own versions: numbers of cells, genes and blocks are those of this one.
        self._generation = ds._generation
        self._kept: dict[str, Any] = ds._kept["matrices"][table]
        self._genes, self._cells = genes, cells
        n_cells, n_genes = self._kept["shape"]
        self.shape = (n_cells if cells is None else len(cells), n_genes if genes is None else len(genes))
        self.dtype = np.dtype(self._kept["dtype"])
        self.format = self._kept["layout"]

    def __getitem__(self, index: Any) -> Any:
        """What `index` names: a slice, a mask, numbers or one number for cells, and so for genes. Two numbers give a
        value; anything else a matrix, as `anndata.abc.CSRDataset` has it.

        Raises
        ------
        InvalidError
            It names no cells and genes of this matrix.
        """
        found = self._read(*self._chosen(index))
        single = isinstance(index, tuple) and len(index) == 2 and all(np.ndim(one) == 0 and not isinstance(one, slice) for one in index)
        return found[0, 0] if single else found

    def _chosen(self, index: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The stored numbers of the cells and genes that an index names."""
        chosen = index if isinstance(index, tuple) else (index,)
        if len(chosen) > 2:
            raise InvalidError(f"a matrix has cells and genes: choose with matrix[cells, genes], not with {len(chosen)} indices")
        of_cells, of_genes = (_numbers(one, n, what) for one, n, what in zip([*chosen, slice(None), slice(None)], self.shape, ("cell", "gene")))
        return _composed(self._cells, of_cells), _composed(self._genes, of_genes)

    def to_memory(self) -> Any:
        """All of it, as the scipy matrix or numpy array that went in."""
        return self._read(self._cells, self._genes)

    def copy(self) -> LazyMatrix:
        """Itself: it can't be changed."""
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<LazyMatrix of {self._ds.name}, {self.shape[0]:,} cells x {self.shape[1]:,} genes of {self.dtype}: read when it is sliced>"

    def _read(self, cells: np.ndarray | None, genes: np.ndarray | None) -> Any:
        """Cells and genes of the stored matrix, in the order given."""
        # Each is read once, in the order of the drives.
        sets = [None if at is None else np.unique(at) for at in (cells, genes)]
        with self._ds._unchanged():
            if self._ds._generation != self._generation:
                raise ConflictError(f"{self._ds.name} has a new version since this lazy AnnData was made: take it again (ds.to_anndata(lazy=True))")
            found = _export.matrix(self._ds.fleet, self._ds.table(f"{self._table}_rows"), self._kept, sets[1], sets[0])
        for axis, (at, known) in enumerate(zip((cells, genes), sets)):
            if at is not None and known is not None and not np.array_equal(at, known):
                order = np.searchsorted(known, at)
                found = found[order] if axis == 0 else found[:, order]
        return found


class LazyRaw(LazyMatrix):
    """The matrix of raw. AnnData slices raw's cells whenever a view is made, so that a slice of all genes is lazy as
    well: `to_memory` or `toarray` reads it."""

    def __getitem__(self, index: Any) -> Any:
        cells, genes = self._chosen(index)
        if genes is not self._genes:
            return super().__getitem__(index)
        return LazyRaw(self._ds, self._table, genes, cells)

    def toarray(self) -> np.ndarray:
        """All of it as a dense array."""
        found = self.to_memory()
        return found if isinstance(found, np.ndarray) else found.toarray()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.toarray().astype(dtype or self.dtype, copy=False)


def of(ds: Stored, table: str, genes: np.ndarray | None, cells: np.ndarray | None) -> LazyMatrix:
    """A matrix of a data set as it is kept in AnnData, lazy."""
    is_raw = ds._kept["matrices"][table]["origin"] == "raw/X" and (not ds._swapped or genes is None)
    return (LazyRaw if is_raw else LazyMatrix)(ds, table, genes, cells)


def _composed(outer: np.ndarray | None, inner: np.ndarray | None) -> np.ndarray | None:
    if inner is None:
        return outer
    return inner if outer is None else outer[inner]


def _numbers(chosen: Any, n: int, what: str) -> np.ndarray | None:
    """The numbers of the cells or genes that an index names; None for all."""
    if isinstance(chosen, slice):
        return None if chosen.indices(n) == (0, n, 1) else np.arange(*chosen.indices(n))
    array = np.asarray(chosen)
    if array.dtype == bool:
        array = array.reshape(-1)
        if len(array) != n:
            raise InvalidError(f"a mask of {len(array)} {what}s can't choose among {n}")
        return np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidError(f"{chosen!r} names no {what}: a matrix is indexed by slices, masks and numbers")
    array = array.reshape(-1).astype(np.int64)
    array = np.where(array < 0, array + n, array)
    if array.min() < 0 or array.max() >= n:
        raise InvalidError(f"there is no {what} {int(np.asarray(chosen).reshape(-1)[(array < 0) | (array >= n)][0])}: there are {n}")
    return array


def _register() -> None:
    """Teaches `AnnData.to_memory` to load these matrices."""
    # No public hook does that in anndata 0.12, which requirements pin.
    from anndata._core.file_backing import to_memory

    @to_memory.register(LazyMatrix)
    def _(x: LazyMatrix, *, copy: bool = False) -> Any:
        return x.to_memory()


_register()
