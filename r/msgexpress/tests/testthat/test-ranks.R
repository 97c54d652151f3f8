# Differential expression: the numbers are Python's.

# The data frame of the same call in Python, by way of a text file with all digits.
in_python <- function(ds, method, args, kwargs, symbols = NULL) {
  result <- do.call(reticulate::py_call, c(list(reticulate::py_get_attr(ds$python, method)), args, kwargs))
  to_df <- reticulate::py_get_attr(result, "to_df")
  read_from_python(if (is.null(symbols)) reticulate::py_call(to_df) else reticulate::py_call(to_df, gene_symbols = symbols))
}

numbers <- c("scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference")

expect_same_ranks <- function(found, wanted) {
  expect_identical(names(found), names(wanted))
  expect_identical(nrow(found), nrow(wanted))
  expect_identical(as.character(found$names), as.character(wanted$names))
  if ("group" %in% names(wanted)) expect_identical(as.character(found$group), as.character(wanted$group))
  for (name in numbers) expect_close(found[[name]], wanted[[name]])
}

test_that("rank_genes_groups equals Python's to 1e-12", {
  ds <- test_dataset()
  found <- rank_genes_groups(ds, "type", transform = "log1p_cp10k")
  expect_identical(names(found), c("group", "names", numbers))
  expect_identical(levels(found$group), c("T", "B", "NK"))
  expect_identical(nrow(found), 120L)
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(transform = "log1p_cp10k")))
})

test_that("its options mean what they mean in Python", {
  ds <- test_dataset()
  found <- rank_genes_groups(ds, "type", groups = c("B", "NK"), reference = "T", method = "student", corr_method = "bonferroni", transform = "log1p_cp10k", n_genes = 7)
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(
    groups = list("B", "NK"), reference = "T", method = "student", corr_method = "bonferroni", transform = "log1p_cp10k", n_genes = 7L
  )))
  expect_identical(nrow(found), 14L)
  found <- rank_genes_groups(ds, "type", groups = "B", method = "t-test_overestim_var", transform = NULL, layer = "dense", genes = c(3, 1, 9), cells = list(ok = TRUE))
  expect_false("group" %in% names(found))
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(
    groups = list("B"), method = "t-test_overestim_var", transform = NULL, layer = "dense", genes = list("gene_2", "gene_0", "gene_8"), cells = list(ok = TRUE)
  )))
  found <- rank_genes_groups(ds, "type", transform = "log1p_cp10k", use_raw = TRUE)
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(transform = "log1p_cp10k", layer = "raw")))
  found <- rank_genes_groups(ds, "type", transform = "log1p_cp10k", gene_symbols = "gene_ids")
  expect_identical(names(found)[3], "gene_ids")
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(transform = "log1p_cp10k"), "gene_ids"))
})

test_that("rank sums are those of Python, and of R's own test", {
  ds <- test_dataset()
  found <- rank_genes_groups(ds, "type", method = "wilcoxon", tie_correct = TRUE, transform = "log1p_cp10k")
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), list(method = "wilcoxon", tie_correct = TRUE, transform = "log1p_cp10k")))
  found <- rank_genes_groups(ds, "type", groups = "B", reference = "T", method = "wilcoxon", tie_correct = TRUE, transform = NULL, layer = "dense")
  values <- as.matrix(counts(ds, layer = "dense"))
  kind <- obs(ds)$type
  wanted <- vapply(found$names, function(gene) {
    x <- values[gene, ]
    suppressWarnings(stats::wilcox.test(x[kind == "B"], x[kind == "T"], exact = FALSE, correct = FALSE)$p.value)
  }, 0)
  expect_equal(found$pvals, unname(ifelse(is.nan(wanted), 1, wanted)), tolerance = 1e-9)
  pairs <- pairwise(ds, "type", method = "wilcoxon", tie_correct = TRUE, transform = NULL, layer = "dense")
  expect_equal(pairs[pairs$group == "B" & pairs$reference == "T", numbers], found[, numbers], tolerance = 1e-9, ignore_attr = TRUE)
})

test_that("filters, fold changes and regressions pass through by name", {
  ds <- test_dataset()
  found <- rank_genes_groups(ds, "type", transform = "log1p_cp10k", min_pct = 0.4, min_logfc = 0.1, min_cells = 10, logfc = "seurat")
  options <- list(transform = "log1p_cp10k", min_pct = 0.4, min_logfc = 0.1, min_cells = 10L, logfc = "seurat")
  expect_same_ranks(found, in_python(ds, "rank_genes_groups", list("type"), options))
  expect_lt(nrow(found), 120L)
  expect_identical(attr(found, "params")$logfc, "seurat")
  two <- ttest(ds, list(type = "B"), list(type = "NK"), transform = "log1p_cp10k", logfc = "seurat", min_pct = 0.4)
  expect_same_ranks(two, in_python(ds, "ttest", list(list(type = "B"), list(type = "NK")), list(transform = "log1p_cp10k", logfc = "seurat", min_pct = 0.4)))
  found <- rank_genes_groups(ds, "type", method = "logreg", genes = 1:5, transform = "log1p_cp10k", max_iter = 500)
  wanted <- in_python(ds, "rank_genes_groups", list("type"), list(method = "logreg", genes = as.list(0:4), transform = "log1p_cp10k", max_iter = 500L))
  expect_identical(names(found), c("group", "names", "scores"))
  expect_identical(as.character(found$names), as.character(wanted$names))
  expect_close(found$scores, wanted$scores)
})

test_that("pairs equal rank_genes_groups with that reference", {
  ds <- test_dataset()
  found <- pairwise(ds, "type", transform = "log1p_cp10k")
  expect_identical(nrow(found), 240L)
  some <- found[found$group == "B" & found$reference == "NK", ]
  wanted <- rank_genes_groups(ds, "type", groups = "B", reference = "NK", transform = "log1p_cp10k")
  expect_identical(some$names, wanted$names)
  for (name in numbers) expect_close(some[[name]], wanted[[name]])
  expect_s3_class(receipt(found), "msgx_receipt")
  least <- pairwise(ds, "type", c("B", "NK"), transform = "log1p_cp10k", summary = TRUE, n_genes = 4, min_pct = 0.1)
  expect_identical(dim(least), c(8L, 8L))
  expect_identical(least$names[least$group == "B"], some$names[1:4])
  expect_error(pairwise(ds, "type", "B", transform = "log1p_cp10k"), class = "msgexpress_invalid")
})

test_that("pseudobulk has the sums of the counts", {
  ds <- test_dataset()
  bulk <- pseudobulk(ds, "type", "ok", min_cells = 2)
  values <- as.matrix(counts(ds))
  cells <- obs(ds)
  expect_identical(colnames(bulk$counts), rownames(bulk$obs))
  expect_identical(sum(bulk$obs$n_cells), 60L)
  for (at in seq_len(nrow(bulk$obs))) {
    mine <- as.character(cells$type) == as.character(bulk$obs$type[at]) & cells$ok == bulk$obs$ok[at]
    expect_identical(bulk$counts[, at], rowSums(values[, mine]))
  }
  expect_error(pseudobulk(ds, "typ"), class = "msgexpress_not_found")
})

test_that("ttest equals Python's to 1e-12", {
  ds <- test_dataset()
  found <- ttest(ds, list(type = "B"), list(type = c("NK", "T"), ok = TRUE), transform = "log1p_cp10k")
  wanted <- in_python(ds, "ttest", list(list(type = "B"), list(type = list("NK", "T"), ok = TRUE)), list(transform = "log1p_cp10k"))
  expect_same_ranks(found, wanted)
  expect_identical(attr(found, "test"), "Welch's t-test")
  type <- as.character(obs(ds)$type)
  # A mask, numbers and names choose the same cells as a column's values.
  expect_identical(as.data.frame(ttest(ds, type == "B", which(type != "B" & obs(ds)$ok), transform = "log1p_cp10k"))[numbers], as.data.frame(found)[numbers])
  student <- ttest(ds, rownames(obs(ds))[1:30], 31:60, equal_var = TRUE, transform = "log1p_cp10k")
  expect_same_ranks(student, in_python(ds, "ttest", list(as.list(0:29), as.list(30:59)), list(equal_var = TRUE, transform = "log1p_cp10k")))
  expect_identical(attr(student, "test"), "Student's t-test")
})

test_that("ttest has the numbers of R's own Welch test", {
  ds <- test_dataset()
  values <- as.matrix(counts(ds, layer = "dense"))
  type <- as.character(obs(ds)$type)
  found <- ttest(ds, list(type = "B"), list(type = "T"), transform = NULL, layer = "dense")
  for (gene in c("gene_1", "gene_5")) {
    wanted <- stats::t.test(values[gene, type == "B"], values[gene, type == "T"])
    at <- match(gene, found$names)
    expect_equal(found$scores[at], unname(wanted$statistic), tolerance = 1e-9)
    expect_equal(found$pvals[at], wanted$p.value, tolerance = 1e-9)
  }
})

test_that("transform is required and NULL means as stored", {
  ds <- test_dataset()
  expect_error(rank_genes_groups(ds, "type"), "say transform=", class = "msgexpress_invalid")
  expect_error(ttest(ds, list(type = "B"), list(type = "T")), "transform=NULL", class = "msgexpress_invalid")
  expect_warning(rank_genes_groups(ds, "type", transform = NULL), "holds counts", class = "msgexpress_warning")
})

test_that("a result says what it cost and what was asked", {
  found <- rank_genes_groups(test_dataset(), "type", transform = "log1p_cp10k")
  cost <- receipt(found)
  expect_s3_class(cost, "msgx_receipt")
  expect_length(cost$drives, 3)
  expect_gt(cost$bytes_read, 0)
  expect_output(print(cost), "40 genes in .*drive-0")
  expect_identical(attr(found, "params")$transform, "log1p_cp10k")
  expect_error(receipt(data.frame()), class = "msgexpress_not_found")
})
