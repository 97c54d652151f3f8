"""What errors and warnings are called in the shell: messages name arguments of Python's functions."""

from __future__ import annotations

import os
import re

#: What messages call the arguments of Python's functions, and what they are here.
_IN_THE_SHELL = {
    'transform="log1p_cp10k"': "--transform log1p_cp10k",
    "transform=None": "--transform none",
    "transform=": "--transform",
    "layer=None": "no --layer",
    "say groupby= with": "say --groupby with",
    "layer=": "--layer",
    "genome=": "--genome",
    "modality=": "--modality",
    'orientation="genes_by_cells"': "--orientation genes_by_cells",
    'orientation="cells_by_genes"': "--orientation cells_by_genes",
    "orientation=": "--orientation",
    'join="inner"': "--join inner",
    'join="outer"': "--join outer",
    'fill_value=0, as if none was found, or fill_value=float("nan")': "--fill-value 0, as if none was found, or --fill-value nan",
    "fill_value=": "--fill-value",
    "prefix=": "--prefix ",
    "batch=": "--batch",
    "on=": "--on ",
    "clash=": "--clash ",
    "feature_types= ": "--feature-types ",
    "feature_types=": "--feature-types ",
    "(replace=True, in the shell --replace)": "(--replace)",
    'say groups="all"': "leave --group out",
    "groups=": "--group",
    'id_versions="drop"': "--id-versions drop",
    'duplicates="drop"': "--duplicates drop",
    "center=None": "--center none",
    "against=": "--against ",
    "min_genes=": "--min-genes ",
    "where=": "--where ",
    'logfc="seurat"': "--logfc seurat",
    'logfc="seurat4"': "--logfc seurat4",
    'logfc="scanpy"': "--logfc scanpy",
    "leave logfc= and min_...= out": "leave --logfc and --min-... out",
    "cells=, genes= or min_cells=": "--min-cells",
    " genes=": " --genes",
    'func="mean"': "--func mean",
    "max_value= is for scale=True, and positive": "--max-value is for --scale, and positive",
    "join= is for": "--join is for",
    "groupby= out": "--groupby out",
    "min_cells=": "--min-cells ",
    "or lower min_genes": "or lower --min-genes",
    "say a smaller n_genes": "say a smaller --top",
    "clash names": "--clash names",
    "batch has": "--label has",
    "the index of the DataFrame has": "the first column has",
}
#: What a message begins with that is about an argument's value.
_BEGINNINGS = {
    **{name: f"--{name.replace('_', '-')}" for name in ("min_pct", "min_cells", "min_logfc", "max_value", "fill_value", "target_sum", "min_dist")},
    **{"n_comps": "--components", "n_pcs": "--components", "n_neighbors": "--neighbors", "key_added": "--key", "n_genes": "--top"},
    **{name: f"--{name}" for name in ("resolution", "span", "base", "seed", "metric")},
}


def sentence(error: Exception) -> str:
    """What is said of an error: one line, in words of the shell."""
    from skytether import SkytetherError

    if isinstance(error, OSError) and not isinstance(error, SkytetherError) and error.errno is not None:
        return f"{error.filename or 'a file'}: {reason(error)}"
    text = in_the_shell(" ".join(str(error).split()))
    if isinstance(error, SkytetherError) or isinstance(error, OSError):
        return text
    return f"{type(error).__name__}: {text} (MSGX_DEBUG=1 shows where)"


def reason(error: OSError) -> str:
    """Why a file could not be read or written, without what the library around it says."""
    return os.strerror(error.errno) if error.errno else str(error)


def in_the_shell(text: str) -> str:
    """`text` with options of the shell in the place of arguments of Python's functions."""
    for python, shell in _IN_THE_SHELL.items():
        text = text.replace(python, shell)
    text = re.sub(r"groupby=\{'([^']+)': \.\.\., \.\.\.\}", r"--groupby \1=COLUMN", text)
    named = re.match(r"(\w+)(?= is )", text)
    if named and named[1] in _BEGINNINGS:
        text = _BEGINNINGS[named[1]] + text[named.end() :]
        text = re.sub(r", or None\b", ", or leave it out", text)
    # An option whose value would follow, at the end of a clause or before another word.
    return re.sub(r"(--[a-z-]+) +(?=[ ,;:.)]|$)", r"\1", text)
