"""Whether the rows of a text file are genes or cells, as far as names say it."""

from __future__ import annotations

import re
from typing import Sequence

from skytether import InvalidError

#: Values of `orientation=`.
GENES, CELLS = "genes_by_cells", "cells_by_genes"

#: Identifiers that only genes have: of Ensembl, FlyBase, WormBase, TAIR and yeast.
_GENE_IDS = re.compile(r"ENS[A-Z]*G\d{11}|FBGN\d{7}|WBGENE\d{8}|AT[1-5CM]G\d{5}|Y[A-P][LR]\d{3}[CW](-[A-Z])?")
#: Genes that nearly every expression matrix of people or mice has, in capitals.
_COMMON = frozenset(
    "ACTB ACTG1 B2M CALM1 CD74 EEF1A1 EEF2 FTH1 FTL GAPDH HSP90AB1 LDHA MALAT1 NACA NPM1 PPIA PTMA PTPRC RPLP0 RPLP1 RPLP2 RPSA "
    "TMSB10 TMSB4X TPT1 TUBA1B TUBB UBA52 UBB UBC VIM XIST YWHAZ".split()
)
_COMMON_FAMILIES = re.compile(r"MT-[A-Z0-9]+|RP[LS]\d+[AXY]?\d*L?")
#: Names that only cells have: a stretch of bases, or the number of a cell, a run or a sample.
_CELL_NAMES = re.compile(r"[ACGT]{8}|^(CELL|BARCODE|BC)[ _.-]?\d|^([SED]RR|GSM|SAMN|SAMEA)\d", re.I)
#: What the first field of the first line may say of the names below it.
_CORNERS = {
    "genes": {"gene", "genes", "gene_id", "gene_ids", "geneid", "gene_name", "gene_names", "gene_symbol", "symbol", "ensembl", "ensembl_id", "hgnc_symbol"},
    "cells": {"cell", "cells", "cell_id", "cellid", "cell_name", "cell_names", "barcode", "barcodes", "cell_barcode"},
}


def check(orientation: str | None) -> None:
    """Refuses what is no orientation."""
    if orientation not in (None, GENES, CELLS):
        raise InvalidError(f"orientation is {orientation!r}: say \"{GENES}\" where a row is a gene, or \"{CELLS}\" where it is a cell")


def decided(what: str, orientation: str | None, corner: str, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The orientation of the table `what`: the one that was said, or the one that its names leave.

    Raises
    ------
    InvalidError
        Names don't say it, or contradict each other.
    """
    if orientation is not None:
        return orientation
    of_rows, of_columns = kind(rows), kind(columns)
    head = next((found for found, words in _CORNERS.items() if corner.strip().lower().replace(" ", "_") in words), None)
    # Each says whether rows are genes; where two of them differ, neither counts.
    votes = {of_rows, head, {"genes": "cells", "cells": "genes", None: None}[of_columns]} - {None}
    if len(votes) == 1:
        return GENES if votes == {"genes"} else CELLS
    why = "its names do not say" if not votes else "its names contradict each other about"
    said = ", ".join(f"{part} are called {', '.join(map(repr, names[:2]))}, ..." for part, names in (("rows", rows), ("columns", columns)) if names)
    raise InvalidError(f"{what}: {why} whether a row is a gene or a cell ({said}): say orientation=\"{GENES}\" or orientation=\"{CELLS}\"")


def kind(names: Sequence[str]) -> str | None:
    """``genes`` or ``cells``, where names are only of these; None where they may be either."""
    if not names:
        return None
    genes = sum(_is_gene(name) for name in names)
    cells = sum(bool(_CELL_NAMES.search(name)) for name in names)
    # Known genes are few among all, and no cell is called so; names of cells are all alike.
    are = (genes > 0 and genes >= cells, cells > len(names) / 2)
    return {(True, False): "genes", (False, True): "cells"}.get(are)


def _is_gene(name: str) -> bool:
    parts = [part for part in re.split(r"[|_:;, ]", name.upper()) if part]
    return any(part in _COMMON or _COMMON_FAMILIES.fullmatch(part) or _GENE_IDS.fullmatch(part.partition(".")[0]) for part in parts)
