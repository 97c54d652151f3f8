# One data set: its annotations and its values.

new_dataset <- function(python) structure(list(python = python), class = "msgx_dataset")

check_dataset <- function(ds) {
  if (!inherits(ds, "msgx_dataset")) {
    raise("invalid", sprintf("ds is a data set, such as db[[\"blood/pbmc3k\"]], and no %s", class(ds)[1]))
  }
}

part_of <- function(ds, name) reticulate::py_get_attr(ds$python, name)

name_of <- function(ds) reticulate::py_to_r(part_of(ds, "name"))

#' @export
print.msgx_dataset <- function(x, ...) {
  size <- dim(x)
  cat(sprintf("<msgx_dataset %s: %s genes x %s cells>\n", name_of(x), commas(size[1]), commas(size[2])))
  if (length(layers(x))) {
    cat("layers:", paste(layers(x), collapse = ", "), "\n")
  }
  invisible(x)
}

commas <- function(n) format(n, big.mark = ",", scientific = FALSE)

#' Size and names of a data set
#'
#' Genes are rows and cells are columns, as in R's packages for single cells (in Python it is the other way).
#'
#' @param x,ds A data set.
#' @return `dim()`: numbers of genes and cells. `dimnames()`: their names. `layers()`: the names of the matrices besides
#'   the one that the data set is about, which `layer=` takes.
#' @name size
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(200, 2), 20, 10, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:10)))
#' ds <- ingest(db, values, "lab/first", replace = TRUE)
#' dim(ds)
#' close(db)
NULL

#' @rdname size
#' @export
dim.msgx_dataset <- function(x) {
  rev(as.integer(unlist(reticulate::py_to_r(part_of(x, "shape")))))
}

#' @rdname size
#' @export
dimnames.msgx_dataset <- function(x) {
  list(texts_of(ask(NULL, "names", list(x$python, NULL))), texts_of(ask(NULL, "cell_names", list(x$python))))
}

#' @rdname size
#' @export
layers <- function(ds) {
  check_dataset(ds)
  # Python's list has hints for who looks a matrix up in it; reticulate converts plain lists alone.
  texts_of(reticulate::import_builtins(convert = FALSE)$list(part_of(ds, "layers")))
}

#' What is known of cells and genes
#'
#' `obs()` gives a data frame of a row per cell, `var()` one of a row per gene. Their names are the row names.
#'
#' | in the data set | in R |
#' |---|---|
#' | categories | factor, ordered where they are; the order of levels is kept |
#' | text | character |
#' | booleans | logical |
#' | integers | integer; numeric where 32 bits do not hold them |
#' | fractions | numeric |
#' | dates, times, spans of time | `Date`, `POSIXct`, `difftime` (of SQL: h5ad files have no form for them) |
#' | missing values | `NA` |
#'
#' `var()` of any other object is [stats::var()].
#'
#' @param x A data set.
#' @param columns Names of columns, where not all are wanted.
#' @param large_integers What integers beyond 2^53 become, which R's numbers do not hold: an `"error"`, texts
#'   (`"character"`) or `"integer64"` of the package bit64.
#' @param ... Nothing; for other objects the arguments of [stats::var()].
#' @return A data frame. Where names of cells or genes repeat, the row names get `.1`, `.2`, ..., with a warning.
#' @section Errors:
#' `msgexpress_not_found` for a column that is not there; `msgexpress_unsupported` for integers beyond 2^53;
#' `msgexpress_conflict` where the data set was replaced.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(200, 2), 20, 10, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:10)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 5)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' table(obs(ds)$type)
#' close(db)
#' @export
obs <- function(x, ...) UseMethod("obs")

#' @rdname obs
#' @export
obs.msgx_dataset <- function(x, columns = NULL, large_integers = c("error", "integer64", "character"), ...) {
  annotations(x, "obs", columns, match.arg(large_integers))
}

#' @rdname obs
#' @export
var <- function(x, ...) UseMethod("var")

#' @rdname obs
#' @export
var.msgx_dataset <- function(x, columns = NULL, large_integers = c("error", "integer64", "character"), ...) {
  annotations(x, "var", columns, match.arg(large_integers))
}

#' @export
var.default <- function(x, ...) stats::var(x, ...)

annotations <- function(ds, which, columns, large) {
  frame <- ask(NULL, "annotations", list(ds$python, which, if (!is.null(columns)) as.list(as.character(columns))))
  frame_of(frame, large, what = if (which == "obs") "cells" else "genes")
}

#' The values of a data set
#'
#' The stored values of all genes and cells, or of some of them: only these are read. `ds[genes, cells]` is short for
#' it.
#'
#' `counts()` of any other object is that of BiocGenerics, where it is installed.
#'
#' @param object,x A data set.
#' @param genes,i,cells,j What to read, in the order wanted: names, numbers from 1 (negative ones leave out), or a
#'   logical vector (a missing value chooses nothing); `NULL` for all.
#' @param layer Which matrix: `NULL` for the one that the data set is about, else one of [layers()].
#' @param drop Ignored: the result is a matrix in any case.
#' @param ... Nothing; for other objects the arguments of BiocGenerics.
#' @return A `dgCMatrix` (package Matrix) with genes as rows and cells as columns. They are the values as they were
#'   stored, whether counts or normalised.
#' @section Errors:
#' `msgexpress_not_found` for a gene, cell or layer that is not there; `msgexpress_invalid` for a name that is there
#' twice, a number out of range, a mask of another length, or more than 2^31 - 1 values, which a `dgCMatrix` can't hold.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(200, 2), 20, 10, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:10)))
#' ds <- ingest(db, values, "lab/first", replace = TRUE)
#' counts(ds, genes = c("gene3", "gene1"), cells = 1:4)
#' ds["gene3", ]
#' close(db)
#' @export
counts <- function(object, ...) UseMethod("counts")

#' @rdname counts
#' @export
counts.msgx_dataset <- function(object, genes = NULL, cells = NULL, layer = NULL, ...) {
  found <- ask(NULL, "counts", list(object$python, layer, chosen_genes(object, genes, layer), chosen_cells(object, cells)))
  new("dgCMatrix",
    i = numbers_of(found$get("i"), "integer"),
    p = numbers_of(found$get("p"), "integer"),
    x = numbers_of(found$get("x"), "double"),
    Dim = as.integer(unlist(reticulate::py_to_r(found$get("dim")))),
    Dimnames = list(texts_of(found$get("genes")), texts_of(found$get("cells")))
  )
}

#' @export
counts.default <- function(object, ...) {
  needs("BiocGenerics", sprintf("counts() of a %s", class(object)[1]))
  getExportedValue("BiocGenerics", "counts")(object, ...)
}

#' @rdname counts
#' @export
`[.msgx_dataset` <- function(x, i, j, ..., drop = FALSE) {
  if (nargs() - (!missing(drop)) < 3) {
    raise("invalid", "a data set has genes and cells: choose with ds[genes, cells]")
  }
  counts.msgx_dataset(x, genes = if (!missing(i)) i, cells = if (!missing(j)) j)
}

chosen_cells <- function(ds, cells) selector(cells, "cell", function() dim(ds)[2])

chosen_genes <- function(ds, genes, layer) {
  selector(genes, "gene", function() length(reticulate::py_to_r(ask(NULL, "names", list(ds$python, layer)))))
}
