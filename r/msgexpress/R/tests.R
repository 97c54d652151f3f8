# Differential expression.

#' Genes that mark groups of cells
#'
#' `rank_genes_groups()` compares each group of cells with the rest, or with one group, and `ttest()` any two sets of
#' cells. The drives do the work. The numbers and columns are those of scanpy.
#'
#' @param ds A data set.
#' @param groupby The column of [obs()] that groups the cells. Cells without a value are in no group, but count as rest.
#' @param method `"t-test"` (Welch), `"t-test_overestim_var"`, `"student"` (equal variances), `"wilcoxon"` (rank sums;
#'   scores are z, and `tie_correct = TRUE` is [stats::wilcox.test()] with `exact = FALSE, correct = FALSE`), and
#'   `"logreg"` in `rank_genes_groups()` (of chosen `genes`). `ttest()` has t-tests only.
#' @param reference `"rest"` (all other cells), or the group to compare with.
#' @param groups Which groups to test, or `"all"`.
#' @param transform What to do with the stored values first. It has no default, and is never guessed: `"log1p_cp10k"`
#'   for raw counts (each cell scaled to 10,000, then log(1 + x)), `NULL` for values that are normalised and logarithmic
#'   already.
#' @param corr_method How p-values are corrected: `"benjamini-hochberg"` or `"bonferroni"`.
#' @param n_genes How many genes of each group the result has; `NULL` for all.
#' @param layer Which matrix: `NULL` for the one that the data set is about, else one of [layers()].
#' @param cells,genes Which take part, as in [counts()]; `cells` may also be a list of obs columns and values. `NULL`
#'   for all.
#' @param gene_symbols A column of [var()] to have next to `names`.
#' @param ... Further arguments of the Python function, by name: `tie_correct`, `min_pct`, `min_logfc`, `min_cells`,
#'   `logfc` (`"scanpy"`, `"seurat"` for version 5 or `"seurat4"`).
#' @return A data frame of class `msgx_ranks`, best score first: `group` (a factor; where there are several), `names`,
#'   `scores`, `logfoldchanges` (base 2), `pvals`, `pvals_adj`, `pct_nz_group`, `pct_nz_reference` (shares of cells, 0
#'   to 1). [receipt()] says what ran where, and `attr(, "params")` what was asked for.
#' @section Errors:
#' `msgexpress_invalid` where `transform` is left out, or a group has fewer than two cells; `msgexpress_not_found` for a
#' column, group, gene or layer that is not there.
#' @seealso [plot_volcano()]
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 20)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' head(rank_genes_groups(ds, "type", transform = "log1p_cp10k"), 3)
#' head(ttest(ds, list(type = "B"), list(type = "NK"), transform = "log1p_cp10k"), 3)
#' close(db)
#' @export
rank_genes_groups <- function(ds, groupby, method = "t-test", reference = "rest", groups = "all", transform, corr_method = "benjamini-hochberg",
                              n_genes = NULL, layer = NULL, cells = NULL, genes = NULL, gene_symbols = NULL, ...) {
  check_dataset(ds)
  kwargs <- c(
    given(
      method = method, reference = texts(reference), groups = texts(groups), corr_method = corr_method, n_genes = whole(n_genes), layer = layer,
      cells = chosen_cells(ds, cells), genes = chosen_genes(ds, genes, layer)
    ),
    # NULL says something here.
    if (!missing(transform)) list(transform = transform),
    others(...)
  )
  ranks_of(ask(ds$python, "rank_genes_groups", list(check_text(groupby, "groupby")), kwargs), gene_symbols)
}

#' @rdname rank_genes_groups
#' @param a,b The sets of cells: a list of obs columns and values (`list(cell_type = c("NK", "CD8 T"))`; all must
#'   match), names, numbers from 1, or a logical vector.
#' @param equal_var `TRUE`: Student's test. `FALSE`: Welch's. `NULL`: the one that `method` says.
#' @export
ttest <- function(ds, a, b, equal_var = NULL, method = "t-test", transform, corr_method = "benjamini-hochberg", n_genes = NULL, layer = NULL,
                  genes = NULL, gene_symbols = NULL, ...) {
  check_dataset(ds)
  kwargs <- c(
    given(
      equal_var = equal_var, method = method, corr_method = corr_method, n_genes = whole(n_genes), layer = layer, genes = chosen_genes(ds, genes, layer)
    ),
    if (!missing(transform)) list(transform = transform),
    others(...)
  )
  ranks_of(ask(ds$python, "ttest", list(chosen_cells(ds, a), chosen_cells(ds, b)), kwargs), gene_symbols)
}

#' Every pair of groups
#'
#' Compares each group of cells with each other one. The drives look at the matrix once, however many pairs there are;
#' for `method = "wilcoxon"` once more for each group.
#' The numbers of a pair are those of [rank_genes_groups()] with that group and that reference.
#'
#' @inheritParams rank_genes_groups
#' @param groups Which groups to compare with each other, or `"all"`; others count nowhere.
#' @param summary `TRUE`: a row per gene and group, with what holds against every other group.
#' @return A data frame, best score of each pair first: `group`, `reference` (factors), and the columns of
#'   [rank_genes_groups()]. With `summary`, `group`, `names`, `min_score` (the least score over all references),
#'   `min_reference`, `min_logfoldchange`, `max_pval_adj`, `pct_nz_group`, `max_pct_nz_reference`.
#' @section Errors:
#' `msgexpress_invalid` where there are fewer than two groups, or as in [rank_genes_groups()].
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 20)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' head(pairwise(ds, "type", transform = "log1p_cp10k"), 3)
#' close(db)
#' @export
pairwise <- function(ds, groupby, groups = "all", transform, method = "t-test", n_genes = NULL, layer = NULL, cells = NULL, genes = NULL,
                     summary = FALSE, ...) {
  check_dataset(ds)
  kwargs <- c(
    given(groups = texts(groups), method = method, n_genes = whole(n_genes), layer = layer, cells = chosen_cells(ds, cells), genes = chosen_genes(ds, genes, layer)),
    if (!missing(transform)) list(transform = transform),
    others(...)
  )
  result <- ask(ds$python, "pairwise", list(check_text(groupby, "groupby")), kwargs)
  told <- reticulate::py_to_r(ask(NULL, "told_of_ranks", list(result)))
  structure(frame_of(ask(result, if (isTRUE(summary)) "summary" else "to_df"), named = FALSE),
    groups = as.character(told$groups), test = told$test, params = told$params, receipt = structure(told$receipt, tree = told$tree, class = "msgx_receipt")
  )
}

#' Sums per sample and group
#'
#' Adds up the stored values of each sample's cells, or of each sample's cells of each group: what DESeq2 and edgeR
#' take. The drives do the work.
#'
#' @inheritParams rank_genes_groups
#' @param sample The column of [obs()] with the samples.
#' @param groupby The column that groups the cells of a sample, such as cell types; `NULL` for none.
#' @param func `"sum"` or `"mean"`.
#' @param min_cells Leaves out what has fewer cells.
#' @return A list: `counts`, a matrix with genes as rows and a column per sample (and group), and `obs`, a data frame
#'   with a row for each column: sample, group, `n_cells`, and what is the same in all of its cells. Sums of counts are
#'   exact.
#' @section Errors:
#' `msgexpress_not_found` for a column that is not there; `msgexpress_invalid` where no cells are left.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(donor = factor(rep(c("a", "b"), 20)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' bulk <- pseudobulk(ds, "donor")
#' # DESeq2::DESeqDataSetFromMatrix(bulk$counts, bulk$obs, ~ condition)
#' close(db)
#' @export
pseudobulk <- function(ds, sample, groupby = NULL, layer = NULL, func = "sum", min_cells = 0, ...) {
  check_dataset(ds)
  kwargs <- c(given(groupby = groupby, layer = layer, func = func, min_cells = whole(min_cells)), others(...))
  parts <- ask(NULL, "parts_of_bulk", list(ask(ds$python, "pseudobulk", list(check_text(sample, "sample")), kwargs)))
  list(counts = dense_of(parts$get("values")), obs = frame_of(parts$get("obs")))
}

# The data frame of a result, with what it was asked for.
ranks_of <- function(result, gene_symbols) {
  frame <- frame_of(ask(result, "to_df", kwargs = given(gene_symbols = gene_symbols)), named = FALSE)
  told <- reticulate::py_to_r(ask(NULL, "told_of_ranks", list(result)))
  structure(frame,
    class = c("msgx_ranks", "data.frame"), dataset = told$dataset, groups = as.character(told$groups), test = told$test,
    params = told$params, receipt = structure(told$receipt, tree = told$tree, class = "msgx_receipt")
  )
}

#' What a result cost
#'
#' @param x A result, of [rank_genes_groups()] or [ttest()].
#' @return A list of class `msgx_receipt`, which prints as a tree: `bytes_stored`, `bytes_read`, `bytes_moved`,
#'   `seconds`, `drives` (a list for each drive), ...
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 20)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' receipt(rank_genes_groups(ds, "type", transform = "log1p_cp10k"))
#' close(db)
#' @export
receipt <- function(x) {
  found <- attr(x, "receipt")
  if (is.null(found)) {
    raise("not_found", "there is no receipt here: those of rank_genes_groups() and ttest() have one, until rows are taken out of them")
  }
  found
}

#' @export
print.msgx_receipt <- function(x, ...) {
  cat(attr(x, "tree"), "\n", sep = "")
  invisible(x)
}
