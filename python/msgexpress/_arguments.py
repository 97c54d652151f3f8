"""Arguments of scanpy's functions, as far as they are ours: what they mean here, or what to write instead."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import numpy as np

from skytether import InvalidError, UnsupportedError

from ._hints import instead


class Missing:
    """A default that is told apart from all that callers may give; `text` is what help() shows of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


REQUIRED: Any = Missing("<required>")

#: Arguments of ``scanpy.tl.rank_genes_groups`` and ``scipy.stats.ttest_ind`` that have no meaning here, and what has.
_INSTEAD = {
    "key_added": "nothing is written into an AnnData here: adata.uns[{value!r}] = res.to_uns() puts the result there",
    "copy": "nothing is changed in place here: the result is what the call returns",
    "inplace": "nothing is changed in place here: the result is what the call returns",
    "mask_var": "genes= chooses the genes to test: a mask, names or numbers",
    "rankby_abs": "the genes are ranked by their scores: res.to_df(group).sort_values(\"scores\", key=abs, ascending=False) ranks them by the absolute ones",
    "tie_correct": "it belongs to the Wilcoxon test: ds.wilcoxon(a, b, tie_correct={value!r})",
    "subset": "nothing is removed in place: ds.filter_genes(mask=frame[\"highly_variable\"]) is a view of the genes that are selected",
    "random_state": "it is called seed= here",
    "svd_solver": "components are exact, and need none: leave it out",
    "use_highly_variable": "genes=None takes all genes, and left out, those that highly_variable_genes marked",
    "return_info": "the result has .embedding, .loadings, .variance and .variance_ratio",
    "nan_policy": "a test refuses NaN and names its gene and cell: leave it out",
    "alternative": "p-values are two-sided here: leave it out",
    "axis": "cells are compared, gene by gene: leave it out",
}


def refuse_others(function: str, others: dict[str, Any]) -> None:
    """Refuses what was given besides a function's own arguments.

    Raises
    ------
    InvalidError
        An argument of scanpy's that means nothing here: the text has what to write instead.
    TypeError
        No such argument at all, as for any Python function.
    """
    for name, value in others.items():
        if name not in _INSTEAD:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{instead(name, _KNOWN)}")
        raise InvalidError(f"{name} is none of {function}'s arguments: {_INSTEAD[name].format(value=value)}")


#: Names that are suggested for misspelt ones.
_KNOWN = (
    *("groupby", "method", "reference", "groups", "transform", "corr_method", "n_genes", "layer", "use_raw", "cells", "genes", "pts", "equal_var", "overlap"),
    *("gene_symbols", "min_pct", "min_logfc", "min_cells", "logfc", "tie_correct"),
)


def chosen_layer(layer: str | None, use_raw: bool | None, origins: Mapping[str, str], name: str) -> str | None:
    """The layer that `layer` and scanpy's `use_raw` mean; None for the matrix that the data set is about. `origins` has
    the matrices' tables by where they are in AnnData.

    Raises
    ------
    InvalidError
        Both are given and differ; or there is no raw, or no X; or `layer` is no text.
    """
    if layer is not None:
        one_name(layer, "layer", "matrix")
    if use_raw is None:
        return layer
    if layer is not None and (layer != "raw" if use_raw else layer == "raw"):
        raise InvalidError(f"use_raw={use_raw} and layer={layer!r} are different matrices: give one of them")
    if layer is not None:
        return layer
    wanted, label = ("raw/X", "raw") if use_raw else ("X", "X")
    if wanted not in origins:
        raise InvalidError(f"{name} has no {label}: leave use_raw= out for its matrix, or say which with layer=")
    return None if origins[wanted] == "x" else label


def one_name(value: Any, what: str, kind: str) -> None:
    """Refuses a `value` of the argument `what` that is not the name of one `kind`.

    Raises
    ------
    InvalidError
        It is a list, a number, ...
    """
    if not isinstance(value, str):
        said = f": say {what}={value[0]!r}" if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], str) else ""
        shown = " ".join(repr(value).split())
        given = shown if len(shown) <= 80 else f"of type {type(value).__name__}"
        if kind == "obs column" and hasattr(value, "index") and hasattr(value, "dtype"):
            said = ": give the column's name; ds.set_obs(series) keeps a column that is not there yet"
        raise InvalidError(f"{what} is {given}, which is no text: it names one {kind}{said}")


def names_of(values: Any, what: str, kind: str) -> list[str]:
    """The names in an argument `what` that may name one `kind`, several or (None) none.

    Raises
    ------
    InvalidError
        It is something else.
    """
    if values is None:
        return []
    if isinstance(values, str):
        return [values]
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, (bytes, Mapping)) else [values]
    if not all(isinstance(value, str) for value in found):
        raise InvalidError(f"{what} is {values!r}: give the name of a {kind}, or a list of names")
    return [str(value) for value in found]


def check_n_genes(n_genes: Any) -> None:
    """Refuses a number of genes to show that is none.

    Raises
    ------
    InvalidError
        It is neither a whole number above 0 nor None.
    """
    if n_genes is not None and (isinstance(n_genes, bool) or not isinstance(n_genes, (int, np.integer)) or n_genes < 1):
        raise InvalidError(f"n_genes is {n_genes!r}: show at least one gene, as a whole number, or None for all")


def chosen_method(method: str, known: tuple[str, ...]) -> str:
    """`method`, if it is known.

    Raises
    ------
    UnsupportedError
        One of scanpy's that is not offered.
    InvalidError
        None at all.
    """
    if method in known:
        return method
    offered = ", ".join(map(repr, known))
    if method == "wilcoxon":
        raise InvalidError(f"method {method!r} is no t-test: ds.wilcoxon(a, b) makes it; here, use one of {offered}")
    if method == "logreg":
        raise UnsupportedError(f"method {method!r} is not offered: use one of {offered}, or scanpy on ds.to_anndata()")
    raise InvalidError(f"method {method!r} does not exist: use one of {offered}{instead(method, known)}")
