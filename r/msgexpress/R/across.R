# Several data sets at a time.

#' Cells and clusters of several data sets
#'
#' `msgx_obs()` gives the cells of several data sets as one data frame. `msgx_compare()` tests which genes differ
#' between cells of one data set and cells of another. `msgx_similar()` finds the clusters of other data sets that are
#' most like those of one. `msgx_centroids()` gives the mean expression of all clusters. The drives do the work, and no
#' matrix moves.
#'
#' Genes are the same where their names are, or their identifiers in the column `on` of [var()]. A gene that a data set
#' lacks is missing there, and never zero. Two experiments differ by more than biology: read a test of cells of two
#' experiments as a description.
#'
#' @param db A fleet, of [msgx_open()] or [msgx_connect()].
#' @param which The data sets: a domain (`"blood"`), names, or `NULL` for all of the fleet.
#' @param columns Columns of [obs()]; `NULL` for all.
#' @param where The cells: a list of obs columns and values (all must match), or a condition of SQL. `NULL` for all.
#' @param large_integers As of [obs()].
#' @param a,b The cells of each side: `list(dataset = "blood/a", cell_type = "B")`. `dataset` may be several names.
#' @param groupby The obs column with the clusters, or a list of one for each data set:
#'   `list("blood/a" = "cell_type", "blood/b" = "leiden")`.
#' @param on The column of [var()] that identifies genes; `NULL` for their names.
#' @param method The test, or what similarity is: `"pearson"`, `"spearman"`, `"cosine"`.
#' @param transform As in [rank_genes_groups()]; it has no default.
#' @param ds The data set whose clusters to look for: its name.
#' @param group A cluster, or several; `NULL` for all.
#' @param against The data sets to look in, as `which`; `NULL` for the others of the domain.
#' @param top How many matches of each cluster.
#' @param genes Identifiers or names of genes; `NULL` for all, or for those that `msgx_similar()` chooses.
#' @param ... Further arguments of the Python function, by name: `id_versions`, `duplicates`, `layer`, `join`, ...
#' @return A data frame. Of `msgx_obs()`: `dataset`, `cell` (the name) and the columns. Of `msgx_compare()`: as of
#'   [rank_genes_groups()], with the attributes `missing_in_a` and `missing_in_b` (identifiers). Of `msgx_similar()`:
#'   `group`, `dataset`, `match`, `similarity`, `cells`, `match_cells`, `n_genes`, `genes`, `genes_low`. Of
#'   `msgx_centroids()`: a matrix of genes by clusters, with the sizes of clusters as the attribute `cells`.
#' @section Errors:
#' `msgexpress_invalid` where columns clash, data sets share no genes or too few, or `transform` is left out;
#' `msgexpress_not_found` for a domain, data set, column or value that is not there.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 20)))
#' ingest(db, values, "two/a", obs = cells, replace = TRUE)
#' ingest(db, values[20:1, ], "two/b", obs = cells, replace = TRUE)
#' table(msgx_obs(db, "two", "type")[c("dataset", "type")])
#' sides <- list(list(dataset = "two/a", type = "B"), list(dataset = "two/b", type = "NK"))
#' head(msgx_compare(db, sides[[1]], sides[[2]], transform = "log1p_cp10k"), 3)
#' msgx_similar(db, "two/a", "type", transform = "log1p_cp10k", min_genes = 10, top = 1)
#' close(db)
#' @export
msgx_obs <- function(db, which = NULL, columns = NULL, where = NULL, large_integers = c("error", "integer64", "character"), ...) {
  check_fleet(db)
  kwargs <- c(given(columns = names_listed(columns), where = chosen_by(where)), others(...))
  frame <- ask(db$python, "obs", list(names_listed(which)), kwargs)
  frame_of(ask(NULL, "with_cells", list(frame)), match.arg(large_integers), named = FALSE)
}

#' @rdname msgx_obs
#' @export
msgx_compare <- function(db, a, b, on = NULL, method = "t-test", transform, genes = NULL, ...) {
  check_fleet(db)
  kwargs <- c(
    given(on = named(on), method = method, genes = names_listed(genes)),
    if (!missing(transform)) list(transform = named(transform)),
    others(...)
  )
  result <- ask(db$python, "compare", list(chosen_by(a), chosen_by(b)), kwargs)
  ranks <- ranks_of(result, NULL)
  for (side in c("missing_in_a", "missing_in_b")) {
    attr(ranks, side) <- texts_of(reticulate::py_get_attr(result, side))
  }
  ranks
}

#' @rdname msgx_obs
#' @export
msgx_similar <- function(db, ds, groupby, group = NULL, against = NULL, top = 10, method = "pearson", on = NULL, transform, genes = NULL, ...) {
  check_fleet(db)
  kwargs <- c(
    given(group = names_listed(group), against = names_listed(against), top = whole(top), method = method, on = named(on), genes = names_listed(genes)),
    if (!missing(transform)) list(transform = named(transform)),
    others(...)
  )
  name <- if (inherits(ds, "msgx_dataset")) ds$python else check_text(ds, "ds")
  frame_of(ask(ask(db$python, "similar", list(name, named(groupby)), kwargs), "to_df"), named = FALSE)
}

#' @rdname msgx_obs
#' @export
msgx_centroids <- function(db, which, groupby, on = NULL, transform, genes = NULL, ...) {
  check_fleet(db)
  kwargs <- c(
    given(on = named(on), genes = names_listed(genes)),
    if (!missing(transform)) list(transform = named(transform)),
    others(...)
  )
  found <- ask(NULL, "parts_of_centroids", list(ask(db$python, "centroids", list(names_listed(which), named(groupby)), kwargs)))
  values <- t(dense_of(found$get("means")))
  sizes <- numbers_of(found$get("cells"), "double")
  names(sizes) <- colnames(values)
  structure(values, cells = sizes)
}

# Names as a list, so that one of them stays several.
names_listed <- function(names) if (is.null(names)) NULL else as.list(enc2utf8(as.character(names)))

# An argument that has one value, or one by data set.
named <- function(value) if (is.null(names(value))) value else as.list(value)

# Cells by obs columns and values, or a condition of SQL.
chosen_by <- function(cells) {
  if (is.null(cells) || is_text(cells)) {
    return(cells)
  }
  if (!is.list(cells) || is.null(names(cells))) {
    raise("invalid", "cells are chosen by a list of obs columns and values, such as list(dataset = \"blood/a\", cell_type = \"B\")")
  }
  lapply(cells, plain_values)
}
