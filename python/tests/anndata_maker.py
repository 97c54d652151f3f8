"""AnnData objects by seed: matrices, columns and annotations of all kinds, with names and values from the edges."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

#: Names that no format has a use of its own for.
PLAIN = ["a", "b c", "Größe", "e\u0301", "日本", "🧬", "CD4+ T", "x.y", "cell", "gene", "index", "group", "A", "select", "1", "n" * 300, " lead", "trail ", "quo'te", 'quo"te', "X", "raw"]
#: Names that a file format, a path or a table may take for something else.
ODD = ["", ".", "..", "a/b", "/", "a/", "/a", "./a", "a//b", "%", "%2F", "100%", "_index", "categories", "codes", "__categories", "values", "mask", "column-order", "new\nline", "ta\tb", "a\0b", "\ud800"]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


class Maker:
    """Makes one AnnData from a seed. An `odd` one may hold what has to be refused; any other must be kept."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.odd = bool(self.rng.random() < 0.4)
        self.cells, self.genes = (int(n) for n in self.rng.integers(1, [40, 15]))
        if self.rng.random() < 0.05:
            self.cells, self.genes = ((0, self.genes), (self.cells, 0))[int(self.rng.integers(2))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, of: list[Any]) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def names(self, most: int) -> list[str]:
        """Up to `most` names that differ."""
        pool = PLAIN + (ODD if self.odd else [])
        return [pool[i] for i in self.rng.permutation(len(pool))[: int(self.rng.integers(0, most + 1))]]

    # ---- matrices

    def values(self, rows: int, columns: int) -> np.ndarray:
        kind = np.dtype(self.pick(DTYPES))
        size = (rows, columns)
        if kind.kind == "b":
            x = self.rng.random(size) < 0.3
        elif kind.kind in "iu":
            # Whole numbers beyond 2^53 are no matrix's; all others of the type are.
            about = np.iinfo(kind)
            low, high = max(about.min, -(2**53)), min(about.max, 2**53)
            x = self.rng.integers(low, high, size, endpoint=True) if self.chance(0.3) else self.rng.integers(0, 9, size)
        else:
            x = self.rng.normal(size=size) * self.pick([1.0, 1e-3, 1e4]) if self.chance(0.6) else self.rng.integers(0, 9, size)
            edges = [np.nan, np.inf, -np.inf, -0.0, float(np.finfo(kind).max), float(np.finfo(kind).tiny)]
            if self.chance(0.3):
                x = np.where(self.rng.random(size) < 0.1, self.pick(edges), x)
        x = np.where(self.rng.random(size) < 0.5, 0, x)
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(kind)

    def matrix(self, rows: int, columns: int) -> Any:
        x = self.values(rows, columns)
        if self.chance(0.3) or x.dtype == np.float16:  # scipy has no sparse ones of float16
            return np.asfortranarray(x) if self.chance(0.3) else x
        made = self.pick([sp.csr_matrix, sp.csc_matrix, sp.csr_array, sp.csc_array])(x)
        if self.chance(0.2):
            made.indices, made.indptr = made.indices.astype(np.int64), made.indptr.astype(np.int64)
        if self.chance(0.2):  # rows whose indices are not in order
            for a, b in zip(made.indptr[:-1], made.indptr[1:]):
                made.indices[a:b], made.data[a:b] = made.indices[a:b][::-1].copy(), made.data[a:b][::-1].copy()
            made.has_sorted_indices = False
        return made

    # ---- columns

    def column(self, n: int) -> Any:
        return self.pick([*COLUMNS, *(ODD_COLUMNS if self.odd else [])])(self, n)

    def gaps(self, values: Any, missing: Any = None) -> list[Any]:
        return [missing if self.chance(0.2) else v for v in values]

    def words(self, n: int) -> list[str]:
        pool = ["T cell", "B", "NK/T", "", "nan", "NA", "None", "1", "1.0", "true", "é", "🧬", "new\nline", "x" * 500, "'", '"', "rest"]
        return [self.pick(pool) for _ in range(n)]

    def frame(self, index: list[str], most: int = 5) -> pd.DataFrame:
        made = {name: self.column(len(index)) for name in self.names(most)}
        frame = pd.DataFrame(index=pd.Index(index, dtype=object))
        for name, values in made.items():
            if isinstance(values, list):
                objects = np.empty(len(values), object)
                objects[:] = values
                values = objects
            frame[name] = pd.Series(values, index=frame.index)
        if self.chance(0.2):
            # No column's name: anndata gives the index's name to frames in obsm and varm, which may have such a column.
            frame.index.name = self.pick(["barcode", "the row's", "é"] + [n for n in ODD if self.odd and n not in frame.columns])
        return frame

    def index(self, n: int, sign: str) -> list[str]:
        if self.chance(0.1):
            return [f"{sign}{i // 2}" for i in range(n)]
        return [f"{self.pick(['', ' ', 'é/', '0'])}{sign}{i}" for i in range(n)]

    # ---- annotations

    def aligned(self, n: int, index: pd.Index) -> Any:
        k = int(self.rng.integers(0, 4))
        return self.pick(
            [
                lambda: self.rng.normal(size=(n, k)),
                lambda: self.rng.normal(size=(n, k)).astype(np.float32),
                lambda: self.values(n, 2),
                lambda: np.zeros((n, 2, 2)),
                lambda: sp.random(n, 3, 0.4, format=self.pick(["csr", "csc"]), random_state=self.seed),
                lambda: self.frame(list(index), 3).set_axis(index.rename(None), axis=0),
            ]
        )()

    def pairs(self, n: int) -> Any:
        return self.pick([lambda: self.rng.normal(size=(n, n)), lambda: sp.random(n, n, 0.3, format=self.pick(["csr", "csc"]), random_state=self.seed)])()

    def uns(self, depth: int = 0) -> dict[str, Any]:
        makers: list[Callable[[], Any]] = [
            lambda: "text é\n",
            lambda: 5,
            lambda: 2.5,
            lambda: True,
            lambda: np.arange(4),
            lambda: np.array(["a", "bé"], object),
            lambda: np.zeros((0, 3)),
            lambda: sp.random(3, 4, 0.5, format="csr", random_state=self.seed),
            lambda: ["x", "y"],
            lambda: [1, 0.5],
            lambda: [[1, 2], [3, 4]],
            lambda: np.array([("a", 1.5)], dtype=[("names", "O"), ("scores", "f4")]),
            lambda: None,
            lambda: pd.Categorical(["u", "v", "u"]),
            lambda: self.frame(["r0", "r1", "r2"], 3),
            lambda: {},
        ]
        if depth < 2:
            makers.append(lambda: self.uns(depth + 1))
        if self.odd:
            makers += [object, lambda: {1: "a key that is no text"}, lambda: pd.Timestamp("2024-02-29"), lambda: [1, "a", None]]
            makers += [lambda: ["a", 1, True], lambda: [True, 2], lambda: [2**53 + 1, 0.5], lambda: np.ma.masked_equal([1, 2, 3], 2), lambda: [[0.5, True]]]
        return {name: self.pick(makers)() for name in self.names(4)}

    def anndata(self) -> ad.AnnData:
        n, m = self.cells, self.genes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            obs, var = self.frame(self.index(n, "c")), self.frame(self.index(m, "g"))
            made = ad.AnnData(X=self.matrix(n, m), obs=obs, var=var, uns=self.uns())
            for name in self.names(2):
                made.obsm[name] = self.aligned(n, made.obs_names)
            for name in self.names(2):
                made.varm[name] = self.aligned(m, made.var_names)
            for name in self.names(1):
                made.obsp[name] = self.pairs(n)
            for name in self.names(1):
                made.varp[name] = self.pairs(m)
            for name in self.names(2):
                made.layers[name] = self.matrix(n, m)
            if self.chance(0.3):
                more = m + int(self.rng.integers(0, 3))
                made.raw = ad.AnnData(X=self.matrix(n, more), obs=pd.DataFrame(index=made.obs_names), var=self.frame(self.index(more, "r")))
        return made


COLUMNS: list[Callable[[Maker, int], Any]] = [
    lambda m, n: m.rng.integers(-5, 5, n).astype(m.pick(["int8", "int16", "int32", "int64"])),
    lambda m, n: m.rng.integers(0, 200, n).astype(m.pick(["uint8", "uint16", "uint32", "uint64"])),
    lambda m, n: np.full(n, m.pick([2**63 - 1, -(2**63)]), np.int64),
    lambda m, n: np.array(m.gaps(m.rng.normal(size=n), np.nan), m.pick(["float32", "float64"])),
    lambda m, n: np.array([m.pick([np.inf, -np.inf, -0.0, 1e300, 5e-324]) for _ in range(n)], np.float64),
    lambda m, n: m.rng.random(n) < 0.5,
    lambda m, n: m.words(n),
    lambda m, n: m.gaps(m.words(n)),
    lambda m, n: m.gaps(m.words(n), np.nan),
    lambda m, n: m.gaps([True] * n),
    lambda m, n: [None] * n,
    lambda m, n: [int(v) for v in m.rng.integers(0, 9, n)],
    lambda m, n: m.gaps([1.5] * n, np.nan),
    lambda m, n: pd.array(m.gaps(m.words(n)), "string"),
    lambda m, n: pd.array(m.words(n), "string"),
    lambda m, n: pd.array(m.gaps(range(n)), "Int64"),
    lambda m, n: pd.array(m.gaps([v % 100 for v in range(n)]), "UInt8"),
    lambda m, n: pd.array(m.gaps([False] * n), "boolean"),
    lambda m, n: pd.array(m.gaps([0.25] * n), "Float64"),
    lambda m, n: pd.Categorical(m.words(n)),
    lambda m, n: pd.Categorical(m.gaps(m.words(n)), ordered=m.chance(0.5) and n > 0),
    lambda m, n: pd.Categorical.from_codes(m.rng.integers(-1, 3, n), ["late", "early", "never"], ordered=True),
    lambda m, n: pd.Categorical(m.rng.integers(0, 4, n)),
    lambda m, n: pd.Categorical(m.rng.integers(0, 4, n) / 2),
    lambda m, n: pd.Categorical(m.rng.random(n) < 0.5),
]

#: Columns that anndata has no form for.
ODD_COLUMNS: list[Callable[[Maker, int], Any]] = [
    lambda m, n: pd.date_range("2020-02-28", periods=n),
    lambda m, n: pd.date_range("2020-02-28", periods=n, tz="Europe/Berlin"),
    lambda m, n: pd.to_timedelta(np.arange(n), "s"),
    lambda m, n: pd.period_range("2020-01", periods=n, freq="M"),
    lambda m, n: pd.cut(np.arange(n), 3) if n > 2 else m.words(n),
    lambda m, n: pd.Categorical(pd.date_range("2020-01-01", periods=n)),
    lambda m, n: np.arange(n) * 1j,
    lambda m, n: [v if v % 2 else f"n{v}" for v in range(n)],
    lambda m, n: [True if v % 2 else "x" for v in range(n)],
    lambda m, n: [[v, v] for v in range(n)],
    lambda m, n: [(v,) for v in range(n)],
    lambda m, n: [{"a": v} for v in range(n)],
    lambda m, n: [b"bytes"] * n,
    lambda m, n: [2**70 + v for v in range(n)],
    lambda m, n: ["lone \ud800"] * n,
    lambda m, n: ["zero \0 inside"] * n,
    lambda m, n: pd.arrays.SparseArray(np.zeros(n)),
]
