"""Several data sets at a time: the domains of a fleet, and the receipts of work on several data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Iterator

from skytether import InvalidError, NotFoundError, Receipt

from ._across_sql import columns_of, quoted, text
from ._dataset import Dataset
from ._hints import instead
from ._names import expressions, slashed
from ._text import table

if TYPE_CHECKING:
    import pandas as pd

#: What names data sets: a domain, a data set, several of these, or None for all of the fleet.
Which = Any


class Receipts(Mapping[str, Receipt]):
    """The receipts of one piece of work on several data sets, by the data sets' names: what ran where, and how little
    moved."""

    def __init__(self, found: Mapping[str, Receipt]) -> None:
        self._found = dict(found)

    def __getitem__(self, name: str) -> Receipt:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def to_dict(self) -> dict[str, Any]:
        """`bytes_stored`, `bytes_read`, `bytes_moved` and `seconds` of all together, `drives` (those of all receipts,
        each with its `dataset`), and `datasets`: each receipt by its data set."""
        each = {name: receipt.to_dict() for name, receipt in self._found.items()}
        sums = {key: sum(one[key] for one in each.values()) for key in ("bytes_stored", "bytes_read", "bytes_moved", "seconds")}
        return {**sums, "drives": [{"dataset": name, **drive} for name, one in each.items() for drive in one["drives"]], "datasets": each}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {receipt}" for name, receipt in self._found.items())

    __repr__ = __str__


class Domain:
    """The data sets of one domain: ``db.domain("blood")``. It holds names and sizes, and reads the rest when asked."""

    def __init__(self, db: Any, name: str, datasets: list[str]) -> None:
        self._db, self.name = db, name
        #: The names of its data sets, ``domain/dataset`` each.
        self.names = datasets

    def __getitem__(self, name: str) -> Dataset:
        """A data set by its name, with the domain or without it.

        Raises
        ------
        NotFoundError
            The domain had none of that name when this object was made, or has none now.
        """
        full = slashed(name) if "/" in name or "." in name else f"{self.name}/{name}"
        if full not in self.names:
            raise NotFoundError(f"domain {self.name} has no data set {name!r}: it has {', '.join(self.names)}{instead(full, self.names)}")
        return self._db[full]

    def __iter__(self) -> Iterator[str]:
        """The names of its data sets."""
        return iter(self.names)

    def __len__(self) -> int:
        """The number of its data sets."""
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        """Whether a data set is in it, by its name with the domain or without it."""
        return slashed(str(name)) in self.names or f"{self.name}/{name}" in self.names

    @property
    def datasets(self) -> pd.DataFrame:
        """A row per data set: `dataset`, `cells`, `genes`, and the names of its `layers`. `NotFoundError` where one was
        dropped since."""
        import pandas as pd

        each = [self._db[name] for name in self.names]
        return pd.DataFrame({"dataset": self.names, "cells": [d.n_obs for d in each], "genes": [d.n_vars for d in each], "layers": [", ".join(d.layers) for d in each]})

    @property
    def columns(self) -> pd.DataFrame:
        """A row per obs column and data set: `column`, `dataset`, `type` (``"categories"``, ``"texts"``,
        ``"numbers"``, ``"booleans"``, ``"times"``), the number of distinct `values`, and how many cells have one
        `missing`. The drives count."""
        import pandas as pd

        rows = []
        for name in self.names:
            ds = self._db[name]
            columns = columns_of(ds)
            counts = [f"count(DISTINCT {quoted(c.sql)}) AS d{i}, count({quoted(c.sql)}) AS n{i}" for i, c in enumerate(columns.values())]
            with ds._unchanged():
                found = ds.fleet.sql(f"SELECT {', '.join(counts)} FROM {ds.table('obs')}").to_arrow().to_pylist()[0] if counts else {}
            rows += [(label, name, column.kind, found[f"d{i}"], ds.n_obs - found[f"n{i}"]) for i, (label, column) in enumerate(columns.items())]
        order = {label: i for i, label in enumerate(dict.fromkeys(row[0] for row in rows))}
        rows.sort(key=lambda row: order[row[0]])
        return pd.DataFrame(rows, columns=["column", "dataset", "type", "values", "missing"])

    def obs(self, columns: Iterable[str] | str | None = None, **options: Any) -> pd.DataFrame:
        """The cells of all its data sets: arguments and errors as of `MsgExpress.obs`."""
        return self._db.obs(self, columns, **options)

    def sql(self, of: str = "obs", columns: Iterable[str] = ()) -> str:
        """The text of a query over the table `of` (``obs``, ``var``) of all its data sets together: `columns` (by their
        names in SQL) and the data set's name, to be put where SQL takes a table. Without `columns`, the names of cells
        or genes.

        >>> types = domain.sql("obs", ["cell_type"])                                        # doctest: +SKIP
        >>> db.sql(f"SELECT cell_type, count(*) FROM ({types}) GROUP BY cell_type")         # doctest: +SKIP
        """
        names = [columns] if isinstance(columns, str) else list(columns)
        chosen = ", ".join(map(quoted, names or ["gene" if of.endswith("var") or of.startswith("var_") else "cell"]))
        return " UNION ALL ".join(f"SELECT {text(name)} AS dataset, {chosen} FROM {self._db[name].table(of)}" for name in self.names)

    def __repr__(self) -> str:
        frame = self.datasets
        shown = frame.head(20)
        more = "" if len(shown) == len(frame) else f"\n... and {len(frame) - len(shown)} more"
        count = f"{len(frame)} data set{'' if len(frame) == 1 else 's'}"
        rows = table(["dataset", "cells", "genes"], [(row.dataset, f"{row.cells:,}", f"{row.genes:,}") for row in shown.itertuples()])
        return (
            f"<msgexpress.Domain {self.name}: {count}, {int(frame['cells'].sum()):,} cells>\n{rows}{more}\n"
            f"the obs columns: .columns    the cells: .obs([\"cell_type\"])    one data set: [\"{self.names[0].partition('/')[2]}\"]"
        )


def domains(db: Any) -> dict[str, list[str]]:
    """The names of a fleet's data sets by their domains."""
    found: dict[str, list[str]] = {}
    for name in expressions(db.fleet):
        found.setdefault(name.partition("/")[0], []).append(name)
    return found


def domain(db: Any, name: str) -> Domain:
    """The domain `name`.

    Raises
    ------
    NotFoundError
        No expression data set is in it.
    """
    there = domains(db)
    if name not in there:
        known = f"this fleet has {', '.join(there)}" if there else "this fleet has no expression data sets"
        raise NotFoundError(f"there is no domain {name!r} with expression data sets: {known}{instead(name, there)}")
    return Domain(db, name, there[name])


def names_of(db: Any, which: Which) -> list[str]:
    """The names of the data sets that are meant, each once: those of a domain, of a `Domain`, a data set's own, those
    of several of these in order, or all of the fleet for None.

    Raises
    ------
    NotFoundError
        No such domain; or the fleet has no data sets.
    InvalidError
        There are none, or it is something else.
    """
    if which is None:
        there = expressions(db.fleet)
        if not there:
            raise NotFoundError("this fleet has no expression data sets: ingest one")
        return there
    if isinstance(which, Domain):
        return list(which.names)
    if isinstance(which, Dataset):
        return [which.name]
    if isinstance(which, str):
        return [slashed(which)] if "/" in which or "." in which else domain(db, which).names
    if isinstance(which, Mapping) or not isinstance(which, Iterable):
        raise InvalidError(f"{which!r} names no data sets: give a domain, a data set (domain/dataset), or a list of them")
    names = list(dict.fromkeys(name for one in which for name in names_of(db, one)))
    if not names:
        raise InvalidError("there are no data sets to look at: the list of names is empty")
    return names


def chosen(db: Any, which: Which) -> list[Dataset]:
    """The data sets that are meant, as `names_of`."""
    given = {one.name: one for one in ([which] if isinstance(which, Dataset) else which if isinstance(which, (list, tuple)) else ()) if isinstance(one, Dataset)}
    return [given.get(name) or db[name] for name in names_of(db, which)]


def per(value: Any, name: str, what: str, names: Iterable[str]) -> Any:
    """What an argument says for data set `name`: it may be a dict by data set.

    Raises
    ------
    InvalidError
        The dict says nothing for it, or names a data set that takes no part.
    """
    if not isinstance(value, Mapping):
        return value
    said = {slashed(str(key)): one for key, one in value.items()}
    names = list(names)
    for key in said:
        if key not in names:
            raise InvalidError(f"{what} says something of {key}, which takes no part: there are {', '.join(names)}{instead(key, names)}")
    if name not in said:
        raise InvalidError(f"{what} says nothing of {name}: give it a value for each data set, or one value for all")
    return said[name]
