"""Types of features: genes, antibodies, guides, peaks. One of them is a data set's matrix; the others are kept as
matrices of their own, each with its own names and totals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from skytether import CorruptError, InvalidError

from ._arguments import names_of
from ._hints import instead

#: What 10x calls genes, and scanpy reads alone.
GENES = "Gene Expression"
#: How the place of a matrix of other features begins.
ORIGIN = "features/"
#: How the table of such a matrix is called; that of its features is called ``var_`` and the same.
TABLE = "features_"


def var_table(matrix: str) -> str:
    """The table about the genes of a matrix (docs/internals/formats/expression-tables.md)."""
    if matrix.startswith(TABLE):
        return "var_" + matrix.removeprefix(TABLE)
    return "raw_var" if matrix.startswith("raw_") else "var"


Part = tuple[int, np.ndarray, np.ndarray, np.ndarray]


@dataclass
class Features:
    """Some features of a file, which become one matrix."""

    #: ``X``, or ``features/`` and their type, with the genome where the type alone does not tell them apart.
    origin: str
    #: Their numbers in the file, ascending.
    at: np.ndarray

    @property
    def label(self) -> str:
        return self.origin.removeprefix(ORIGIN)


def divided(what: str, n: int, types: Sequence[str] | None, genomes: Sequence[str] | None, wanted: Any, genome: str | None) -> list[Features]:
    """The `n` features of a file (`types` and `genomes` have one for each; None where the file tells none), first those
    of the matrix: of the types `wanted` (None: genes, ``"all"``, a type or several), of `genome` if given.

    Raises
    ------
    InvalidError
        There are no such types, there is no such genome; or which type is meant must be said.
    """
    kinds = None if types is None else np.asarray([str(t) for t in types], object)
    chosen = _types(what, kinds, wanted)
    is_kind = np.ones(n, bool) if chosen is None or kinds is None else np.isin(kinds, list(chosen))
    is_genome = np.ones(n, bool)
    if genome is not None:
        known = sorted({g for g in genomes or () if g})
        if not known:
            raise InvalidError(f"{what} names no genome for its genes: leave genome= out")
        if genome not in known:
            raise InvalidError(f"{what} has no genome {genome!r}: its genes are of {', '.join(map(repr, known))}{instead(genome, known)}")
        is_genome = np.asarray([g == genome for g in genomes or ()], bool)
    mine = is_kind & is_genome
    if n and not mine.any():
        raise InvalidError(f"{what} has no features of genome {genome!r} that are {', '.join(map(repr, chosen or ()))}: leave genome= or feature_types= out")
    rest: dict[str, list[int]] = {}
    for at in np.flatnonzero(~mine):
        kind = GENES if kinds is None else kinds[at]
        # Genes of another genome are of the same type as those of the matrix.
        label = f"{kind} ({genomes[at]})" if is_kind[at] and genomes is not None and genomes[at] else kind
        rest.setdefault(label or "untyped", []).append(int(at))
    return [Features("X", np.flatnonzero(mine)), *(Features(ORIGIN + label, np.asarray(at)) for label, at in rest.items())]


def _types(what: str, kinds: np.ndarray | None, wanted: Any) -> tuple[str, ...] | None:
    """The types that are the matrix; None for all."""
    if isinstance(wanted, str) and wanted == "all":
        return None
    asked = None if wanted is None else tuple(dict.fromkeys(names_of(wanted, "feature_types", "type")))
    if asked is not None and not asked:
        raise InvalidError("feature_types names no type: leave it out for genes, or say \"all\"")
    if kinds is None:
        # What has no types is genes, as scanpy takes it.
        if asked in (None, (GENES,)):
            return None
        raise InvalidError(f"{what} names no types for its features: leave feature_types= out")
    there = list(dict.fromkeys(kinds))
    if asked is None:
        # Where there is only one type, whatever its name, nothing is to choose.
        if len(there) <= 1:
            return None
        if GENES in there:
            return (GENES,)
        raise InvalidError(f"{what} has no features of type {GENES!r}: say with feature_types= which are the matrix ({', '.join(map(repr, there))}), or \"all\"")
    missing = [kind for kind in asked if kind not in there]
    if missing:
        raise InvalidError(f"{what} has no features of type {missing[0]!r}: it has {', '.join(map(repr, there))}{instead(missing[0], there)}")
    return asked


def note(what: str, parts: list[Features]) -> str | None:
    """What to say of the features that are no part of the matrix; None where all are."""
    others = parts[1:]
    if not others:
        return None
    count = sum(len(part.at) for part in others)
    listed = ", ".join(f"{len(part.at):,} of {part.label}" for part in others)
    verb = "feature is no part of the matrix and is" if count == 1 else "features are no part of the matrix and are"
    return f"{what}: {count:,} {verb} kept apart ({listed}): layer={others[0].label!r} tests them, and feature_types= chooses at ingest which are the matrix"


def mixed(what: str, types: Iterable[Any]) -> str | None:
    """A warning about an AnnData whose genes are not all genes; None where they are, or may be."""
    counts: dict[str, int] = {}
    for kind in types:
        counts[str(kind)] = counts.get(str(kind), 0) + 1
    others = {kind: n for kind, n in counts.items() if kind != GENES}
    if GENES not in counts or not others:
        return None
    listed = ", ".join(f"{n:,} {kind}" for kind, n in others.items())
    return (
        f"{what}: not all of its features are genes ({listed}), and those count in each cell's total and are ranked as genes; "
        f"adata[:, adata.var[\"feature_types\"] == \"{GENES}\"] leaves them out"
    )


def renumbered(features: np.ndarray, n: int) -> np.ndarray | None:
    """For each of a file's `n` features its number among `features`, or -1; None where these are all."""
    if len(features) == n:
        return None
    here = np.full(n, -1, np.int32)
    here[features] = np.arange(len(features), dtype=np.int32)
    return here


def of(parts: Iterable[Part], here: np.ndarray, path: str, step: Callable[[int], None]) -> Iterator[Part]:
    """`parts` of a CSR matrix (the first row, row pointers from 0, indices, values), of the features that `here`
    numbers; `step` gets the number of values that each part had."""
    for first, indptr, indices, data in parts:
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(here)):
            at = int(np.flatnonzero((indices < 0) | (indices >= len(here)))[0])
            cell = first + int(np.searchsorted(indptr, at, side="right")) - 1
            raise CorruptError(f"{path}: cell {cell} has a value for feature {indices[at]}, but there are {len(here)} features")
        new = here[indices]
        stays = new >= 0
        before = np.concatenate([[0], np.cumsum(stays)])
        yield first, before[indptr], new[stays], data[stays]
        step(len(data))


def slug(label: str, taken: Iterable[str]) -> str:
    """`label` as a part of a table's name."""
    name = re.sub(r"\W+", "_", label.lower()).strip("_")[:60] or "other"
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
