"""Transforms as values: what is done to stored values first."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import numpy as np

from skytether import InvalidError

from ._arguments import REQUIRED

#: The sum of the named transforms.
CP10K = 1e4
#: Sums that float32 holds.
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
#: Transforms that have a name.
NAMED = ("log1p_cp10k", "cp10k")


@dataclass(frozen=True, repr=False)
class Normalize:
    """A transform: each cell is scaled to a sum, then log1p is taken, as ``scanpy.pp.normalize_total`` and
    ``scanpy.pp.log1p`` do, in float32. ``Normalize()`` is ``"log1p_cp10k"``.

    Parameters
    ----------
    target_sum
        The sum of each cell's values afterwards, or ``"median"`` (also None) for the median of the cells' sums, which
        is scanpy's default.
    log1p
        Whether the logarithm of 1 + x follows.
    base
        Its base; None for the natural logarithm.

    Raises
    ------
    InvalidError
        A sum that is not positive; a base that is not above 1, or is given without a logarithm.
    """

    target_sum: float | Literal["median"] | None = CP10K
    log1p: bool = True
    base: float | None = None

    def __post_init__(self) -> None:
        target, base = self.target_sum, self.base
        if target is None:
            object.__setattr__(self, "target_sum", "median")
        elif isinstance(target, str):
            if target != "median":
                raise InvalidError(f"target_sum is {target!r}: give a number, or \"median\" for the median of the cells' sums")
        elif isinstance(target, bool) or not isinstance(target, (int, float, np.integer, np.floating)) or not _LEAST <= float(target) <= _MOST:
            raise InvalidError(f"target_sum is {target!r}: cells can be scaled to a positive number, or to \"median\"")
        else:
            object.__setattr__(self, "target_sum", float(target))
        if not isinstance(self.log1p, (bool, np.bool_)):
            raise InvalidError(f"log1p is {self.log1p!r}: say True for logarithms of 1 + x, or False for none")
        if base is None:
            return
        if isinstance(base, bool) or not isinstance(base, (int, float, np.integer, np.floating)) or not 1 < base < math.inf:
            raise InvalidError(f"base is {base!r}: a logarithm needs a number above 1, or None for the natural one")
        if not self.log1p:
            raise InvalidError(f"base={base!r} is that of a logarithm, and log1p=False takes none: leave one of them out")
        object.__setattr__(self, "base", None if base == math.e else float(base))

    def __repr__(self) -> str:
        return str(said(self))


@dataclass(frozen=True, eq=False)
class Settled:
    """A transform whose sums are those of some genes: the total of each cell (float32), and the sum that cells are
    scaled to. Its text is that of the transform."""

    asked: Any
    target: float
    totals: np.ndarray = field(repr=False)

    def __repr__(self) -> str:
        return said(self.asked) or "None"


def check_transform(transform: Any) -> None:
    """Refuses what is no transform.

    Raises
    ------
    InvalidError
        It is neither one of `NAMED`, nor a `Normalize`, nor None.
    """
    if transform is None or isinstance(transform, (Normalize, Settled)) or isinstance(transform, str) and transform in NAMED:
        return
    raise InvalidError(
        f"there is no transform {transform!r}: use \"log1p_cp10k\" for raw counts (msgexpress.Normalize(...) for other sums and bases), "
        "or None for values that are normalised and logarithmic already"
    )


def canonical(transform: Any) -> Any:
    """The transform, by its name where it has one.

    Raises
    ------
    InvalidError
        It is none.
    """
    check_transform(transform)
    if transform == Normalize():
        return "log1p_cp10k"
    return "cp10k" if transform == Normalize(log1p=False) else transform


def chosen(target_sum: Any, log1p: Any, base: Any, transform: Any) -> Any:
    """The transform that the arguments of `normalize` say: its parts, or a whole one.

    Raises
    ------
    InvalidError
        Both are given, or they are none.
    """
    if transform is REQUIRED:
        return canonical(Normalize(target_sum, log1p, base))
    if (target_sum, log1p, base) != (CP10K, True, None):
        raise InvalidError("target_sum, log1p and base are a transform, and transform= is one, too: give one of them")
    return canonical(transform)


def parts(transform: Any) -> Normalize | None:
    """What a transform consists of; None for none."""
    if isinstance(transform, Settled):
        transform = transform.asked
    if transform is None or isinstance(transform, Normalize):
        return transform
    check_transform(transform)
    return Normalize(log1p=transform == "log1p_cp10k")


def said(transform: Any) -> str | None:
    """A transform as one would write it; None for none."""
    if isinstance(transform, Settled):
        transform = transform.asked
    if transform is None or isinstance(transform, str):
        return transform
    base = "" if transform.base is None else f", base={transform.base:g}"
    return f"Normalize(target_sum={transform.target_sum!r}{'' if transform.log1p else ', log1p=False'}{base})"


def written(transform: Any) -> str:
    """A transform as an argument, for messages."""
    return f'transform="{transform}"' if isinstance(transform, str) else f"transform={said(transform)}"


def takes_logs(transform: Any) -> bool:
    """Whether a transform gives logarithms."""
    of = parts(transform)
    return of is not None and of.log1p


def values_said(transform: Any) -> str:
    """What values are after a transform, for axes and titles."""
    of = parts(transform)
    if of is None:
        return "value as stored"
    if of.target_sum == CP10K:
        name = "CP10k"
    elif of.target_sum == 1e6:
        name = "CPM"
    else:
        name = "counts per median" if of.target_sum == "median" else f"counts per {of.target_sum:,.10g}"
    if not of.log1p:
        return name
    return f"log1p({name})" if of.base is None else f"log1p({name}) to base {of.base:g}"


#: What may be given for `transform`.
Transform = Union[str, Normalize, Settled, None]
