"""Genes ranked by the coefficients of a logistic regression of groups on genes, as scanpy's method ``logreg``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from skytether import ExhaustedError, InvalidError, NotFoundError, UnsupportedError

from . import _export, _values
from ._hints import instead
from ._transforms import Settled

if TYPE_CHECKING:
    from skytether import Fleet

    from ._asked import Asked
    from ._rank import RankResult
    from ._testing import Testing

#: Values other than zero that a regression reads here, where it runs: 8 bytes each, and as many again while it runs.
MOST_VALUES = 1 << 26


def rank(
    ds: Testing,
    matrix: str,
    params: dict[str, Any],
    asked: Asked,
    grouped: tuple[list[str], np.ndarray],
    wanted: list[str] | None,
    genes: Any,
    n_genes: int | None,
    options: dict[str, Any],
) -> RankResult:
    """Fits a regression of the cells' groups (`grouped`: as `Testing._codes` gives them) on the genes' values.

    Of more than two groups, scores are scanpy's. Of two groups, each gets its own coefficients here; scanpy gives the
    first group those of the second.

    Raises
    ------
    InvalidError
        Fewer than two groups; filters by numbers that a regression does not have.
    ExhaustedError
        The genes have more values than `MOST_VALUES`.
    UnsupportedError
        scikit-learn is not there.
    """
    import pyarrow as pa

    from ._rank import RankResult

    classifier = _classifier(options)
    if asked.filters or asked.logfc != "scanpy":
        raise InvalidError("a logistic regression has neither p-values nor fold changes nor shares of cells: leave logfc= and min_...= out")
    names, codes = grouped[0][:-1], grouped[1]
    reference = params["reference"]
    chosen = names if wanted is None else [*dict.fromkeys(wanted)]
    if wanted is not None and reference != "rest" and reference not in chosen:
        chosen = [*chosen, reference]
    for g in [*chosen, *([] if reference == "rest" else [reference])]:
        if g not in names:
            raise NotFoundError(f"there is no group {g!r}; the groups are {', '.join(map(repr, names[:50])) or 'none'}{instead(g, names)}")
    used = [i for i, name in enumerate(names) if name in chosen]
    if len(used) < 2:
        raise InvalidError(f"a logistic regression tells groups apart, and there is {len(used)} of them: name at least two with groups=")
    cells = np.flatnonzero(np.isin(codes, used))
    if (lonely := [names[i] for i in used if (codes == i).sum() < 2]):
        raise InvalidError(f"group {lonely[0]!r} has one cell: a test needs at least two; name the others with groups=")
    some = np.arange(ds._kept["matrices"][matrix]["shape"][1]) if genes is None else ds._some_genes(genes, ds._names(matrix))
    _check_size(ds, matrix, some)
    values, receipt = _matrix(ds, matrix, params["transform"], some, cells)
    fit = classifier.fit(values, codes[cells])
    # Of two classes there is one row, of the second one.
    rows = fit.coef_ if len(used) > 2 else np.vstack([-fit.coef_[0], fit.coef_[0]])
    batches = []
    for g, scores in zip(fit.classes_, rows):
        # Equal scores in the order of genes.
        order = np.argsort(-scores.astype(np.float64), kind="stable")
        columns = {
            "group": [names[g]] * len(order),
            "gene_id": some[order].astype(np.uint32),
            "names": ds._names(matrix)[some[order]],
            "scores": scores[order].astype(np.float64),
        }
        batches.append(pa.RecordBatch.from_pydict(columns))
    res = RankResult(
        ds.name,
        pa.Table.from_batches(batches),
        receipt,
        params,
        n_genes,
        names,
        False,
        ds._names(matrix),
        False,
        ids=ds._ids(matrix),
        var=lambda column: ds._var_column(matrix, column),
    )
    asked.name(res, ds, matrix)
    return res


def _classifier(options: dict[str, Any]) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as e:
        raise UnsupportedError("method=\"logreg\" needs scikit-learn: pip install scikit-learn") from e
    known = list(inspect.signature(LogisticRegression).parameters)
    for name in options:
        if name not in known:
            raise TypeError(
                f"rank_genes_groups(method=\"logreg\") got an unexpected keyword argument {name!r}: "
                f"scikit-learn's LogisticRegression takes {', '.join(known)}{instead(name, known)}"
            )
    return LogisticRegression(**options)


def _check_size(ds: Testing, matrix: str, genes: np.ndarray) -> None:
    """Refuses more values than this process should hold, before any of them moves."""
    with ds._unchanged():
        lengths = ds.fleet.sql(f"SELECT gene_id, nnz FROM {ds.table(matrix + '_rows')}{_export._where(genes)}").to_arrow()
    of, nnz = (lengths.column(i).to_numpy() for i in range(2))
    count = int(nnz[np.isin(of, genes)].sum())
    if count > MOST_VALUES:
        raise ExhaustedError(
            f"a logistic regression reads its genes' values where it runs, and these {len(genes):,} genes of {ds.name} have {count:,} of them: "
            f"at most {MOST_VALUES:,} are read; name fewer genes with genes="
        )


def _matrix(ds: Testing, matrix: str, transform: str | None, genes: np.ndarray, cells: np.ndarray) -> tuple[Any, Any]:
    """The values of `genes` (columns) in `cells` (rows), as the matrix that scanpy would have; and what it cost."""
    import scipy.sparse as sp

    asking = _Asking(ds.fleet)
    with ds._unchanged():
        kept = {**ds._kept["matrices"][matrix], "layout": "csc", "array": False, "index": "int32", "indptr": "int32"}
        found = _export.matrix(asking, ds.table(matrix + "_rows"), kept, genes, cells)  # type: ignore[arg-type]
        totals = None if transform is None else transform.totals if isinstance(transform, Settled) else _values.totals(ds, matrix)
        total = None if totals is None else totals[cells]
    sparse = sp.csc_matrix(found)
    if total is not None:
        sparse = _values._normalised(ds, transform, sparse, total, genes, matrix, cells)
    elif not np.isfinite(sparse.data).all():
        raise InvalidError(f"{ds.name}: the values of these genes are not all finite: a test needs finite numbers; leave such genes out")
    dense = ds._kept["matrices"][matrix]["layout"] == "dense"
    # Rows one after the other, as in AnnData: the last bits follow the order in memory.
    return (sparse.toarray(order="C") if dense else sparse.tocsr()), asking.results[-1].receipt


class _Asking:
    """A fleet whose results are kept, for the receipt of the last one, which moves the values."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.results: list[Any] = []

    def sql(self, query: str) -> Any:
        self.results.append(self.fleet.sql(query))
        return self.results[-1]
