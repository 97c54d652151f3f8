#' MSG Express: single-cell expression on a fleet of drives
#'
#' The drives themselves find which genes differ between groups of cells. The matrix never has to fit in memory, and
#' the numbers are those of scanpy. This package calls the Python package `msgexpress`, and gives R's own types.
#'
#' [msgx_open()] opens a fleet, [ingest()] stores a file on it, [rank_genes_groups()] finds marker genes. Genes are rows
#' and cells are columns, as R's packages for single cells have them. Numbers of cells and genes count from 1.
#'
#' @section Errors:
#' What goes wrong is a condition of class `msgexpress_error`, and of one class that says what you can do:
#'
#' | class | meaning |
#' |---|---|
#' | `msgexpress_invalid` | the input or the call is wrong: correct it |
#' | `msgexpress_not_found` | the named object does not exist |
#' | `msgexpress_conflict` | the object is there already, is in use, or was replaced: nothing was changed |
#' | `msgexpress_corrupt` | stored or received bytes are not what was written |
#' | `msgexpress_unavailable` | a drive, host or file can't be reached |
#' | `msgexpress_exhausted` | memory, disk or a limit is used up |
#' | `msgexpress_unsupported` | this version, or a package that is not installed, lacks it |
#' | `msgexpress_no_python` | Python, or its package msgexpress, is not found |
#' | `msgexpress_internal`, `msgexpress_python` | a defect of ours, or of another Python package: please report it |
#'
#' `condition$kind` is the class without its prefix. `condition$detail` is a list with what a program may want to know,
#' or `NULL`. Warnings are of class `msgexpress_warning`.
#'
#' @importFrom methods new setOldClass
#' @importClassesFrom Matrix dgCMatrix
#' @keywords internal
"_PACKAGE"
