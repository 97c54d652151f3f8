"""A transform that is chosen once, and transforms as the drives read them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skytether import InvalidError, _internal

from ._arguments import REQUIRED, chosen_layer
from ._stored import Stored
from ._transforms import CP10K, Settled, canonical, chosen, parts

if TYPE_CHECKING:
    from typing import Self


def median(totals: np.ndarray, layout: str, name: str) -> float:
    """The median of cells' sums as ``normalize_total`` takes it: of a sparse matrix over all cells, of a dense one over
    those with any counts.

    Raises
    ------
    InvalidError
        It is 0 or there is none.
    """
    chosen = totals[totals > 0] if layout == "dense" else totals
    middle = float(np.median(chosen)) if len(chosen) else 0.0
    if not 0 < middle < math.inf:
        raise InvalidError(f"the median of the cells' sums in {name} is {middle:g}, and cells can't be scaled to it: leave empty cells out, or give target_sum= a number")
    return middle


def resolved(ds: Stored, matrix: str, transform: Any) -> tuple[str | None, np.ndarray | None]:
    """A transform as the drives read it, and the totals that it needs other than those of the matrix."""
    transform = canonical(transform)
    if transform is None or isinstance(transform, str):
        return transform, None
    of = parts(transform)
    assert of is not None
    if isinstance(transform, Settled):
        target, totals = transform.target, np.ascontiguousarray(transform.totals, np.float32)
    else:
        target, totals = of.target_sum, None  # type: ignore[assignment]
        if target == "median":
            layout = ds._kept["matrices"][matrix]["layout"]
            target = median(ds._totals(matrix), layout, ds.name)  # type: ignore[arg-type]
    return json.dumps({"target": float(target), "log": None if not of.log1p else "e" if of.base is None else of.base}), totals


def moments_spec(
    ds: Stored, matrix: str, transform: Any, column: str | None = None, codes: Any = None, single: bool = False, back: bool = False
) -> str:
    """The literal of grouped moments for the drives. `back`: of the values whose logarithms the transform gives, or
    that are stored where there is none, as scanpy takes logarithms back."""
    literal, totals = resolved(ds, matrix, transform)
    if back:
        of = parts(transform)
        if of is None:
            base = ds._kept["log1p_base"]
        else:
            base = of.base
        made = {"log1p_cp10k": {"target": CP10K, "log": "e"}}.get(literal or "") or json.loads(literal or "{}")
        literal = json.dumps({**made, "exp": "e" if base is None else base})
    return _internal.moments_spec(ds.name, matrix, literal, column, codes, single, totals)


def applied(ds: Stored, matrix: str, transform: Any, data: np.ndarray, of_cell: np.ndarray) -> np.ndarray:
    """Values (float32) after a transform; `of_cell` has for each the total of its cell. The arithmetic is scanpy's."""
    of = parts(transform)
    assert of is not None
    literal, _ = resolved(ds, matrix, transform)
    target = CP10K if literal in ("log1p_cp10k", "cp10k") else json.loads(literal or "{}")["target"]
    out = data / (of_cell / np.float32(target))
    if of.log1p:
        np.log1p(out, out=out)
        if of.base is not None:
            np.divide(out, np.log(of.base), out=out, casting="same_kind")
    return out


class Transforming(Stored):
    """A transform that is chosen once, for each matrix."""

    def normalize(
        self,
        target_sum: float | Literal["median"] | None = CP10K,
        log1p: bool = True,
        base: float | None = None,
        *,
        layer: str | None = None,
        transform: Any = REQUIRED,
    ) -> Self:
        """Chooses once what is done to the stored values, as ``scanpy.pp.normalize_total`` and ``scanpy.pp.log1p`` do:
        later calls of this object may leave `transform` out. Nothing is computed or stored. A `transform` in a call
        still wins, and results say which was used. Gives the object itself.

        Parameters
        ----------
        target_sum, log1p, base
            As of `Normalize`; without arguments it is ``"log1p_cp10k"``.
        layer
            The matrix that it is chosen for: None for the main one.
        transform
            Instead of the others: a transform, or None for values that are normalised and logarithmic already.

        Raises
        ------
        InvalidError
            As `Normalize`.
        NotFoundError
            No such layer.
        """
        self._chosen_once[self._matrix(layer)] = chosen(target_sum, log1p, base, transform)
        return self

    @property
    def transforms(self) -> dict[str | None, Any]:
        """What `normalize` has chosen: transforms by layer, None for the main matrix. A copy."""
        return {layer: self._chosen_once[matrix] for layer, matrix in self._tables().items() if matrix in self._chosen_once}

    @property
    def _chosen_once(self) -> dict[str, Any]:
        return self.__dict__.setdefault("_transforms_by_matrix", {})

    def _matrix(self, layer: str | None) -> str:
        raise NotImplementedError

    def _remembered(self, transform: Any, layer: str | None, use_raw: bool | None = None) -> Any:
        """`transform`, or where it is left out the one that was chosen once; `REQUIRED` where none was."""
        if transform is not REQUIRED:
            return canonical(transform)
        return self._chosen_once.get(self._matrix(chosen_layer(layer, use_raw, self._origins, self.name)), REQUIRED)
