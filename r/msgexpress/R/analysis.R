# From counts to clusters: what the Python package computes on the drives.

#' Quality of cells and genes
#'
#' Totals, numbers of genes, and shares of sets of genes, as scanpy's `calculate_qc_metrics` has them. The drives do the
#' work.
#'
#' @param ds A data set.
#' @param qc_vars A named list of sets of genes: `list(mt = "MT-")` (a prefix of names), or for each the names or
#'   numbers of several genes, or a logical vector with an element for each gene.
#' @param ... Further arguments of the Python function, by name.
#' @return A list of two data frames: `obs`, with a row per cell, and `var`, with a row per gene.
#' @section Errors:
#' `msgexpress_unsupported` where the Python package is of a version without it.
#' @examples
#' \dontrun{
#' qc <- qc_metrics(ds, qc_vars = list(mt = "MT-"))
#' hist(qc$obs$pct_counts_mt)
#' }
#' @export
qc_metrics <- function(ds, qc_vars = NULL, ...) {
  check_dataset(ds)
  if (!is.null(qc_vars) && (!is.list(qc_vars) || is.null(names(qc_vars)))) {
    raise("invalid", "qc_vars is a named list, such as list(mt = \"MT-\")")
  }
  sets <- lapply(qc_vars, function(set) if (is_text(set)) enc2utf8(set) else gene_mask(ds, set))
  found <- ask(ds$python, "qc_metrics", kwargs = c(if (length(sets)) list(qc_vars = sets), others(...)))
  list(obs = frame_of(found[[0L]], what = "cells"), var = frame_of(found[[1L]], what = "genes"))
}

# A set of genes (names, numbers from 1, or a logical vector) as a mask of all genes.
gene_mask <- function(ds, set) {
  genes <- dimnames(ds)[[1]]
  chosen <- if (is.character(set) || is.factor(set)) {
    lost <- setdiff(as.character(set), genes)
    if (length(lost)) {
      raise("not_found", sprintf("there is no gene '%s' in %s", lost[1], name_of(ds)))
    }
    genes %in% as.character(set)
  } else if (is.logical(set) && length(set) == length(genes)) {
    set %in% TRUE
  } else if (is.numeric(set) && all(set %in% seq_along(genes))) {
    seq_along(genes) %in% set
  } else {
    raise("invalid", sprintf("a set of genes is a prefix, names, numbers 1 to %d, or a logical vector of that length", length(genes)))
  }
  ask(NULL, "mask", list(as_bytes(as.raw(chosen))))
}

#' Genes that vary most
#'
#' @param ds A data set.
#' @param n_top_genes How many genes to choose.
#' @param flavor `"seurat"`, `"cell_ranger"` or `"seurat_v3"`.
#' @param batch_key A column of [obs()] with batches, within which genes are chosen.
#' @param ... Further arguments of the Python function, by name.
#' @return A data frame with a row per gene, with the columns of scanpy's `highly_variable_genes`.
#' @section Errors:
#' `msgexpress_unsupported` where the Python package is of a version without it.
#' @examples
#' \dontrun{
#' genes <- highly_variable_genes(ds, n_top_genes = 2000)
#' rownames(genes)[genes$highly_variable]
#' }
#' @export
highly_variable_genes <- function(ds, n_top_genes = 2000, flavor = "seurat", batch_key = NULL, ...) {
  check_dataset(ds)
  kwargs <- c(given(n_top_genes = whole(n_top_genes), flavor = flavor, batch_key = batch_key), others(...))
  frame_of(ask(ds$python, "highly_variable_genes", kwargs = kwargs), what = "genes")
}

#' Principal components
#'
#' The drives send the values of the chosen genes once. The embedding is kept with the data set, as `obsm["X_pca"]`.
#' Counts need `transform = "log1p_cp10k"`, unless the Python object has been told.
#'
#' @param ds A data set.
#' @param n_comps How many components.
#' @param genes `"highly_variable"`, or genes as in [counts()].
#' @param zero_center Whether genes are centred.
#' @param seed Taken for scanpy's sake: nothing is random.
#' @param ... Further arguments of the Python function, by name.
#' @return A list: `embedding` (a matrix of cells by components, named), `loadings` (genes by components), `variance`
#'   and `variance_ratio` (a number per component).
#' @section Errors:
#' `msgexpress_unsupported` where the Python package is of a version without it.
#' @examples
#' \dontrun{
#' parts <- pca(ds, n_comps = 20, transform = "log1p_cp10k")
#' plot(parts$embedding[, 1:2])
#' }
#' @export
pca <- function(ds, n_comps = 50, genes = "highly_variable", zero_center = TRUE, seed = 0, ...) {
  check_dataset(ds)
  chosen <- if (identical(genes, "highly_variable")) genes else chosen_genes(ds, genes, NULL)
  kwargs <- c(given(n_comps = whole(n_comps), genes = chosen, zero_center = zero_center, seed = whole(seed)), others(...))
  found <- ask(ds$python, "pca", kwargs = kwargs)
  parts <- ask(NULL, "parts_of_pca", list(ds$python, found))
  out <- lapply(c("embedding", "loadings"), function(part) {
    values <- dense_of(parts$get(part))
    colnames(values) <- paste0("PC", seq_len(ncol(values)))
    values
  })
  numbers <- lapply(c("variance", "variance_ratio"), function(part) numbers_of(parts$get(part), "double"))
  stats::setNames(c(out, numbers), c("embedding", "loadings", "variance", "variance_ratio"))
}
