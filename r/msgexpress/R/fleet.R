# Fleets, and the data sets on them.

#' Open a fleet
#'
#' `msgx_open()` opens the fleet in a directory, and makes it where there is none. `msgx_connect()` connects to a host
#' that serves a fleet.
#'
#' One process at a time can have the fleet of a directory open: `close(db)` lets go of it.
#'
#' @param path The fleet's directory; drive n lives in `path/drives/n`.
#' @param drives How many drives a new fleet gets. A fleet that exists keeps its own: leave it out there, or give the
#'   right number.
#' @param ... Further arguments of Python's `msgexpress.open`: `redundancy`, `create`, `memory_per_drive`, ...
#' @return An object of class `msgx`: `db[["blood/pbmc3k"]]` is a data set of it.
#' @section Errors:
#' `msgexpress_conflict` where another process has the fleet open; `msgexpress_invalid` where it has another number of
#' drives; `msgexpress_unavailable` where the host does not answer; `msgexpress_no_python` where Python or its package
#' is not found.
#' @seealso [ingest()], [datasets()], [msgx_python()]
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"), drives = 4)
#' datasets(db)
#' close(db)
#' @export
msgx_open <- function(path, drives = 4, ...) {
  check_text(path, "path")
  path <- path.expand(path)
  # A fleet that is there keeps its number of drives.
  drives <- if (missing(drives)) NULL else whole(drives)
  new_msgx(ask(NULL, "open_fleet", list(path, drives), others(...)), path)
}

#' @rdname msgx_open
#' @param url The host, such as `"grpc://127.0.0.1:5300"`.
#' @param token The token of a host that asks for one; left out, that of the variable `SKYTETHER_TOKEN`.
#' @param tls_ca The file with the certificates that the host's is checked with.
#' @export
msgx_connect <- function(url, token = NULL, tls_ca = NULL) {
  check_text(url, "url")
  new_msgx(ask(NULL, "connect", list(url), given(token = token, tls_ca = if (!is.null(tls_ca)) path.expand(tls_ca))), url)
}

new_msgx <- function(python, place) structure(list(python = python, place = place), class = "msgx")

#' @export
close.msgx <- function(con, ...) {
  ask(con$python, "close")
  invisible()
}

#' @export
print.msgx <- function(x, ...) {
  cat(sprintf("<msgx %s>\n", x$place))
  invisible(x)
}

#' The data sets of a fleet
#'
#' `datasets()` lists the names, `db[["blood/pbmc3k"]]` gives one of them, `drop_dataset()` removes one for good.
#'
#' A data set refers to what was stored when you got it. Where another one takes its place (`ingest(replace = TRUE)`),
#' calls of the old one are an error of class `msgexpress_conflict`.
#'
#' @param db A fleet, of [msgx_open()] or [msgx_connect()].
#' @param x The same.
#' @param name,i A name, `"domain/dataset"`.
#' @return `datasets()`: a character vector. `db[[name]]`: an object of class `msgx_dataset`. `drop_dataset()`: nothing.
#' @section Errors:
#' `msgexpress_not_found` where there is no data set of that name.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- Matrix::rsparsematrix(20, 10, 0.3, rand.x = function(n) rpois(n, 3) + 1)
#' dimnames(values) <- list(paste0("gene", 1:20), paste0("cell", 1:10))
#' ds <- ingest(db, values, "lab/first", replace = TRUE)
#' datasets(db)
#' db[["lab/first"]]
#' drop_dataset(db, "lab/first")
#' close(db)
#' @export
datasets <- function(db) {
  check_fleet(db)
  texts_of(ask(db$python, "ls"))
}

#' @rdname datasets
#' @export
drop_dataset <- function(db, name) {
  check_fleet(db)
  ask(db$python, "drop", list(check_text(name, "name")))
  invisible()
}

#' @rdname datasets
#' @export
`[[.msgx` <- function(x, i) {
  # The name of a part of the object itself is no data set's: those have a slash or a dot.
  if (is_text(i) && i %in% c("python", "place")) {
    return(unclass(x)[[i]])
  }
  new_dataset(ask(x$python, "__getitem__", list(check_text(i, "name"))))
}

#' @export
`$.msgx` <- function(x, name) unclass(x)[[name]]

check_fleet <- function(db) {
  if (!inherits(db, "msgx")) {
    raise("invalid", sprintf("db is a fleet, of msgx_open() or msgx_connect(), and no %s", class(db)[1]))
  }
}

#' Store an expression matrix on a fleet
#'
#' All of it is stored, or nothing. Files are streamed: they need not fit in memory.
#'
#' @param db A fleet, of [msgx_open()] or [msgx_connect()].
#' @param source The path of an h5ad file, of a 10x `.h5` file, of a 10x mtx directory or of an Expression Atlas bundle.
#'   Or an object in memory with genes as rows: a matrix or sparse matrix with dimnames, a `SingleCellExperiment`, or a
#'   `Seurat` object. Several paths, or a list of paths and objects, become one data set; their names, where they have
#'   any, are the labels of the column `batch` (as of the Python package that takes several).
#' @param name `"domain/dataset"`.
#' @param layer Which matrix the data set is about. Of an h5ad file: `NULL` for X, `"raw"`, or a layer's name. Of a
#'   `SingleCellExperiment`: an assay's name (`NULL`: `counts`, or the first one). Of a `Seurat` object: a slot
#'   (`NULL`: `counts`).
#' @param replace `TRUE`: put it in the place of a data set of that name.
#' @param obs,var For a matrix in memory: data frames about cells (columns) and genes (rows), in their order.
#' @param progress `TRUE` for a bar on stderr, `FALSE` for none, `NULL` for one where stderr is a terminal.
#' @param ... Further arguments of Python's `ingest`: `genome`, `feature_types`, `layers`, `batch`, ...
#' @return The data set, of class `msgx_dataset`.
#' @section Errors:
#' `msgexpress_conflict` where the name is taken; `msgexpress_corrupt` where a file is damaged; `msgexpress_invalid`
#' where it is none of these, or holds what can't be kept; `msgexpress_not_found` where there is no such file, layer or
#' assay.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- Matrix::rsparsematrix(20, 10, 0.3, rand.x = function(n) rpois(n, 3) + 1)
#' dimnames(values) <- list(paste0("gene", 1:20), paste0("cell", 1:10))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 5)))
#' ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' close(db)
#' @export
ingest <- function(db, source, name, layer = NULL, replace = FALSE, obs = NULL, var = NULL, progress = NULL, ...) {
  check_fleet(db)
  check_text(name, "name")
  several <- is.character(source) && is.null(dim(source)) && length(source) > 1 || is.list(source) && !is.object(source)
  files <- is.character(source) && is.null(dim(source))
  if ((files || several) && (!is.null(obs) || !is.null(var))) {
    raise("invalid", "obs and var belong to a matrix in memory: a file has its own")
  }
  in_memory <- !files && !several && !inherits(source, "python.builtin.object")
  source <- if (several) lapply(as.list(source), one_source, layer) else one_source(source, layer, obs, var)
  kwargs <- c(given(layer = if (!in_memory) layer, replace = replace, progress = progress), others(...))
  new_dataset(ask(db$python, "ingest", list(source, name), kwargs))
}

# A source as Python takes it: a path, or an AnnData.
one_source <- function(source, layer, obs = NULL, var = NULL) {
  if (inherits(source, "python.builtin.object")) {
    return(source)
  }
  if (is.character(source) && is.null(dim(source))) {
    return(path.expand(check_text(source, "source")))
  }
  annotated(source, layer, obs, var)
}

# An AnnData in Python, from an object of R's.
annotated <- function(source, layer, obs, var) {
  if (methods::is(source, "SummarizedExperiment") || inherits(source, "Seurat")) {
    if (!is.null(obs) || !is.null(var)) {
      raise("invalid", sprintf("obs and var belong to a matrix: a %s has its own", class(source)[1]))
    }
    parts <- if (inherits(source, "Seurat")) parts_of_seurat(source, layer) else parts_of_sce(source, layer)
  } else if (methods::is(source, "Matrix") || is.matrix(source)) {
    if (!is.null(layer)) {
      raise("invalid", "layer chooses one matrix of several, and source is a single one: leave it out")
    }
    parts <- list(x = source, obs = obs, var = var, layers = list(), obsm = list())
  } else {
    raise("invalid", sprintf(
      "source is a %s: give the path of a file, a matrix with genes as rows, a SingleCellExperiment or a Seurat object", class(source)[1]
    ))
  }
  x <- parts$x
  for (side in c("rows", "columns")) {
    if (is.null(dimnames(x)[[if (side == "rows") 1L else 2L]])) {
      raise("invalid", sprintf("the matrix has no names of %s: genes are rows, cells are columns, and dimnames() has their names", side))
    }
  }
  ask(NULL, "annotated", list(
    described_matrix(x), as.list(enc2utf8(rownames(x))), as.list(enc2utf8(colnames(x))),
    described_frame(about(parts$var, nrow(x), "var", "genes")), described_frame(about(parts$obs, ncol(x), "obs", "cells")),
    lapply(parts$layers, described_matrix), lapply(parts$obsm, described_dense)
  ))
}

about <- function(frame, size, what, of) {
  if (is.null(frame)) {
    return(data.frame(row.names = seq_len(size)))
  }
  if (!is.data.frame(frame) || nrow(frame) != size) {
    raise("invalid", sprintf("%s is a data frame with a row for each of the %d %s, in their order", what, size, of))
  }
  frame
}

#' Ask a fleet in SQL
#'
#' @param db A fleet, of [msgx_open()] or [msgx_connect()].
#' @param query The query. The tables of the data set `blood/pbmc3k` are `blood.pbmc3k.x` (gene, cell, value),
#'   `blood.pbmc3k.obs`, `blood.pbmc3k.var`, ...
#' @param large_integers As of [obs()].
#' @return A data frame.
#' @section Errors:
#' `msgexpress_invalid` where the query is wrong; `msgexpress_not_found` where a table is not there.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' msgx_sql(db, "SELECT 1 + 1 AS two")
#' close(db)
#' @export
msgx_sql <- function(db, query, large_integers = c("error", "integer64", "character")) {
  check_fleet(db)
  found <- ask(NULL, "sql", list(db$python, check_text(query, "query")))
  frame_of(found, match.arg(large_integers), named = FALSE)
}
