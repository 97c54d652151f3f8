# What the Python package computes of cells and genes: the numbers are its own.

in_python_of <- function(name, ...) reticulate::py_call(reticulate::py_get_attr(test_dataset()$python, name), ...)

expect_same_frame <- function(found, wanted) {
  expect_identical(rownames(found), rownames(wanted))
  expect_identical(names(found), names(wanted))
  for (name in names(wanted)[vapply(wanted, is.numeric, NA)]) expect_close(found[[name]], wanted[[name]])
}

test_that("qc_metrics has the numbers of Python", {
  ds <- test_dataset()
  found <- qc_metrics(ds, list(first = "gene_1", some = c(2, 5)))
  mask <- seq_len(40) %in% c(2, 5)
  wanted <- in_python_of("qc_metrics", qc_vars = list(first = "gene_1", some = as.list(mask)))
  expect_same_frame(found$obs, read_from_python(wanted[[0L]]))
  expect_same_frame(found$var, read_from_python(wanted[[1L]]))
  expect_identical(unname(found$obs$total_counts), unname(Matrix::colSums(counts(ds))))
})

test_that("highly_variable_genes has the numbers of Python", {
  ds <- test_dataset()
  found <- highly_variable_genes(ds, n_top_genes = 10, transform = "log1p_cp10k")
  wanted <- in_python_of("highly_variable_genes", n_top_genes = 10L, flavor = "seurat", transform = "log1p_cp10k")
  expect_same_frame(found, read_from_python(wanted))
  expect_identical(sum(found$highly_variable), 10L)
})

test_that("pca has the numbers of Python, with names", {
  ds <- test_dataset()
  # A data set of its own, as the result is kept with it.
  own <- function() ingest(test_fleet(), shared$file, "lab/parts", replace = TRUE)
  found <- pca(own(), n_comps = 3, genes = 1:20, transform = "log1p_cp10k")
  expect_identical(dim(found$embedding), c(60L, 3L))
  expect_identical(rownames(found$embedding), dimnames(ds)[[2]])
  expect_identical(colnames(found$loadings), paste0("PC", 1:3))
  expect_length(found$variance_ratio, 3)
  again <- reticulate::py_call(
    reticulate::py_get_attr(own()$python, "pca"), n_comps = 3L, genes = as.list(0:19), transform = "log1p_cp10k"
  )
  expect_close(found$variance, reticulate::py_to_r(reticulate::py_get_attr(again, "variance")$tolist()))
  # The embedding has cells as rows, in Python and here.
  expect_close(found$embedding, t(matrix_from_python(reticulate::py_get_attr(again, "embedding"))))
})

test_that("several sources become one data set with a column", {
  db <- test_fleet()
  values <- counts(test_dataset(), cells = 1:9)
  both <- list(one = values, two = values[, 1:4])
  ds <- ingest(db, both, "lab/both", batch = "donor")
  expect_identical(as.integer(table(obs(ds)$donor)[c("one", "two")]), c(9L, 4L))
  expect_identical(unname(as.matrix(counts(ds))), unname(as.matrix(cbind(values, values[, 1:4]))))
  paths <- ingest(db, c(a = shared$file, b = shared$file), "lab/paths")
  expect_identical(dim(paths), c(40L, 120L))
  # A vector with names is a dict.
  expect_identical(msgexpress:::others(clash = c(x = "text"), n = 3)[c("clash", "n")], list(clash = list(x = "text"), n = 3L))
})
