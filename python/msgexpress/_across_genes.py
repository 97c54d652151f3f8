"""Which genes of several data sets are the same: by their names, or by identifiers in a column of var."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import InvalidError, NotFoundError

from . import _features
from ._across import per
from ._across_sql import quoted
from ._hints import instead

if TYPE_CHECKING:
    from ._dataset import Dataset

#: An Ensembl identifier with its version. ``_PAR_Y`` is GENCODE's mark of a gene's copy on Y, and no part of the
#: version: https://www.gencodegenes.org/pages/faq.html
_VERSIONED = re.compile(r"(ENS[A-Z]{0,6}\d{11})\.\d+(_PAR_Y)?")


@dataclass(eq=False)
class Identified:
    """The genes of one matrix, by number: their identifiers (None: it has none, or one that others have, too, and that
    is left out) and their names."""

    dataset: str
    ids: np.ndarray
    names: np.ndarray
    #: Identifiers that several genes have, where these are left out.
    repeated: list[str]
    #: The names of the genes without an identifier.
    without: list[str]

    def numbers(self) -> dict[str, int]:
        """The gene's number by its identifier."""
        return {gene: number for number, gene in enumerate(self.ids) if gene is not None}


class Identifiers:
    """How genes are identified: the arguments `on`, `id_versions` and `duplicates` of the calls over several data
    sets."""

    def __init__(self, on: Any, id_versions: str | None, duplicates: str | None) -> None:
        if id_versions not in (None, "keep", "drop"):
            raise InvalidError(f"id_versions is {id_versions!r}: say \"drop\" to take ENSG00000010610.9 for ENSG00000010610, or \"keep\"")
        if duplicates not in (None, "drop"):
            raise InvalidError(f"duplicates is {duplicates!r}: say \"drop\" to leave genes out whose identifier another gene has, too")
        if on is not None and not isinstance(on, (str, Mapping)):
            raise InvalidError(f"on is {on!r}: name a column of var, or give a dict of one for each data set; left out, genes are the same by their names")
        self.on, self.id_versions, self.duplicates = on, id_versions, duplicates

    def of(self, parts: Sequence[tuple[Dataset, str]]) -> list[Identified]:
        """The genes of several matrices (data set and table).

        Raises
        ------
        NotFoundError
            No such column of var.
        InvalidError
            Genes share an identifier, and `duplicates` does not say what becomes of them; or identifiers are the same
            but for their versions, and `id_versions` does not say whether that counts.
        """
        names = [ds.name for ds, _ in parts]
        read = [_read(ds, matrix, per(self.on, ds.name, "on=", names)) for ds, matrix in parts]
        plain = [np.array([_without_version(gene) for gene in ids], object) for ids, _ in read]
        if self.id_versions == "drop":
            found = plain
        else:
            found = [ids for ids, _ in read]
            if self.id_versions is None:
                self._ask_of_versions(names, found, plain)
        return [self._settled(name, ids, called) for name, ids, (_, called) in zip(names, found, read)]

    def _ask_of_versions(self, names: list[str], kept: list[np.ndarray], plain: list[np.ndarray]) -> None:
        """Asks where genes would be the same without versions that are others with them."""
        if len(kept) < 2:
            return
        for i in range(1, len(kept)):
            with_versions = len(_there(kept[0]) & _there(kept[i]))
            without = len(_there(plain[0]) & _there(plain[i]))
            if without > with_versions:
                raise InvalidError(
                    f"{names[0]} and {names[i]} share {with_versions:,} identifiers of genes, and {without:,} without Ensembl's versions "
                    f"({_example(kept)}): say id_versions=\"drop\" to compare without them, or \"keep\""
                )

    def _settled(self, name: str, ids: np.ndarray, names: np.ndarray) -> Identified:
        ids = ids.copy()
        without = [str(called) for gene, called in zip(ids, names) if gene is None]
        values, counts = np.unique(ids[[gene is not None for gene in ids]].astype(str), return_counts=True)
        repeated = [str(v) for v in values[counts > 1]]
        if repeated:
            some = ", ".join(map(repr, repeated[:3])) + (", ..." if len(repeated) > 3 else "")
            if self.duplicates is None:
                raise InvalidError(
                    f"{len(repeated):,} identifiers of genes of {name} are those of several genes ({some}), so it is not said which of them is meant: "
                    "identify genes by another column with on=, or leave these out with duplicates=\"drop\""
                )
            out = set(repeated)
            ids[[gene in out for gene in ids]] = None
        if without:
            some = ", ".join(map(repr, without[:3])) + (", ..." if len(without) > 3 else "")
            warnings.warn(f"{len(without):,} genes of {name} have no identifier ({some}): they take no part", stacklevel=5)
        return Identified(name, ids, names, repeated, without)


def _without_version(gene: str | None) -> str | None:
    found = _VERSIONED.fullmatch(gene) if gene is not None else None
    return gene if found is None else found[1] + (found[2] or "")


def _there(ids: np.ndarray) -> set[str]:
    return {gene for gene in ids if gene is not None}


def _example(kept: list[np.ndarray]) -> str:
    return next((gene for ids in kept for gene in ids if gene is not None and _VERSIONED.fullmatch(gene)), "")


def _read(ds: Dataset, matrix: str, on: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The identifiers and names of a matrix's genes, by number. Only these columns are read."""
    import pyarrow as pa

    table = _features.var_table(matrix)
    with ds._unchanged():
        schema = pa.schema(ds.fleet.sql(f"SELECT * FROM {ds.table(table)} LIMIT 0"))
    # In SQL the names are the column gene, and a column of var that is called so is another one.
    plainly = on is not None and on != "gene" and on in schema.names
    with ds._unchanged():
        rows = ds.fleet.sql(f"SELECT gene{f', {quoted(on)} AS id' if plainly and on is not None else ''} FROM {ds.table(table)}").to_arrow()
    names = rows.column("gene").to_pandas().to_numpy(object)
    if on is None:
        return _texts(names), names
    if plainly:
        return _texts(rows.column("id").to_pandas().to_numpy(object)), names
    try:
        return _texts(ds._var_column(matrix, on)), names
    except NotFoundError as e:
        others = [name for name in schema.names if name != "gene"]
        raise NotFoundError(f"var of {ds.name} has no column {on!r} to identify genes by: it has {', '.join(map(repr, others)) or 'none'}{instead(on, others)}") from e


def _texts(values: np.ndarray) -> np.ndarray:
    """Identifiers as texts; None where there is none."""
    return np.array([_text(gene) for gene in values], object)


#: What files have where there is no identifier.
_NONE = ("", "nan", "NaN", "NA", "None", "<NA>")


def _text(gene: Any) -> str | None:
    if gene is None or gene != gene:
        return None
    if isinstance(gene, (float, np.floating)) and float(gene).is_integer():
        gene = int(gene)  # numbers with gaps are floats in pandas
    return None if str(gene).strip() in _NONE else str(gene)


def shared(parts: Sequence[Identified]) -> list[str]:
    """The identifiers that all have, in the order of the first."""
    others = [_there(part.ids) for part in parts[1:]]
    return [gene for gene in parts[0].ids if gene is not None and all(gene in there for there in others)]


def require_shared(parts: Sequence[Identified], on: Any) -> list[str]:
    """As `shared`.

    Raises
    ------
    InvalidError
        There is none.
    """
    found = shared(parts)
    if not found:
        by = "their names" if on is None else f"on={on!r}"
        some = "; ".join(f"{part.dataset} has {', '.join(repr(str(g)) for g in part.ids[:2])}, ..." for part in parts[:3])
        raise InvalidError(f"{', '.join(part.dataset for part in parts)} share no gene by {by}: {some}; name the column of var that identifies genes with on=")
    return found


def known_ids(genes: Any, parts: Sequence[Identified]) -> set[str]:
    """The identifiers that `genes` means: identifiers or, where these are others, names. A gene need not be in every
    data set.

    Raises
    ------
    NotFoundError
        No data set has such a gene.
    InvalidError
        `genes` is no list of names, or chooses none.
    """
    asked = [genes] if isinstance(genes, str) else list(genes) if hasattr(genes, "__iter__") and not isinstance(genes, Mapping) else None
    if asked is None or not all(isinstance(gene, str) for gene in asked):
        raise InvalidError(f"genes is {type(genes).__name__}, and genes of several data sets are chosen by their identifiers or names: give a list of texts")
    if not asked:
        raise InvalidError("there are no genes to compare: genes= chooses none")
    ids = set().union(*(_there(part.ids) for part in parts))
    by_name: dict[str, str] = {}
    for part in parts:
        for called, gene in zip(part.names, part.ids):
            if gene is not None:
                by_name.setdefault(str(called), gene)
    out = set()
    for gene in asked:
        found = gene if gene in ids else by_name.get(gene)
        if found is None:
            raise NotFoundError(f"none of {', '.join(part.dataset for part in parts)} has a gene {gene!r}{instead(gene, [*by_name, *ids])}")
        out.add(found)
    return out
