# Values of genes and cells.

test_that("counts has genes as rows and the values of Python", {
  ds <- test_dataset()
  found <- counts(ds)
  expect_s4_class(found, "dgCMatrix")
  expect_true(methods::validObject(found))
  expect_identical(dim(found), c(40L, 60L))
  expect_identical(dim(ds), dim(found))
  expect_identical(dimnames(found), list(paste0("gene_", 0:39), paste0("cell-", 0:59)))
  expect_identical(dimnames(ds), dimnames(found))
  adata <- reticulate::py_call(reticulate::py_get_attr(ds$python, "to_anndata"))
  expect_identical(unname(as.matrix(found)), matrix_from_python(reticulate::py_get_attr(adata, "X")))
})

test_that("layers, dense ones and raw as well, have their values", {
  ds <- test_dataset()
  expect_setequal(layers(ds), c("raw", "spliced", "dense"))
  adata <- reticulate::py_call(reticulate::py_get_attr(ds$python, "to_anndata"))
  of_python <- reticulate::py_get_attr(adata, "layers")
  for (layer in c("spliced", "dense")) {
    expect_identical(unname(as.matrix(counts(ds, layer = layer))), matrix_from_python(reticulate::py_get_item(of_python, layer)))
  }
  raw <- counts(ds, layer = "raw", genes = c("raw_44", "raw_0"))
  expect_identical(rownames(raw), c("raw_44", "raw_0"))
  # raw has X's first five genes once more behind the others.
  expect_identical(unname(as.matrix(raw)), unname(as.matrix(counts(ds, genes = c("gene_4", "gene_0")))))
})

test_that("genes and cells are chosen by R's rules", {
  ds <- test_dataset()
  all <- as.matrix(counts(ds))
  expect_part <- function(genes, cells) expect_identical(as.matrix(counts(ds, genes = genes, cells = cells)), all[genes, cells, drop = FALSE])
  expect_part(c("gene_7", "gene_3", "gene_39"), c("cell-5", "cell-1"))
  expect_part(c(5, 2, 2), 60:58)
  expect_part(-(1:38), -1)
  expect_part(rep(c(TRUE, FALSE), 20), rep(c(FALSE, FALSE, TRUE), 20))
  expect_part("gene_7", 9L)
  expect_part(character(), 1:3)
  expect_part("gene_7", integer())
  expect_identical(counts(ds, genes = factor(c("gene_7", "gene_3"))), counts(ds, genes = c("gene_7", "gene_3")))
  expect_identical(counts(ds, cells = c(TRUE, NA, rep(FALSE, 58))), counts(ds, cells = 1))
  expect_identical(as.matrix(ds[c("gene_7", "gene_3"), 5:1]), all[c("gene_7", "gene_3"), 5:1])
  expect_identical(as.matrix(ds["gene_7", ]), all["gene_7", , drop = FALSE])
  expect_identical(as.matrix(ds[, -(1:55)]), all[, 56:60])
})

test_that("a choice that is wrong says so", {
  ds <- test_dataset()
  expect_error(counts(ds, genes = "gene_99"), "there is no gene 'gene_99'", class = "msgexpress_not_found")
  expect_error(counts(ds, layer = "splice"), "did you mean 'spliced'", class = "msgexpress_not_found")
  expect_error(counts(ds, genes = 41), "there is no gene 41: they are numbered 1 to 40", class = "msgexpress_invalid")
  expect_error(counts(ds, cells = c(1, NA)), "numbered 1 to 60", class = "msgexpress_invalid")
  expect_error(counts(ds, cells = c(1, -1)), class = "msgexpress_invalid")
  expect_error(counts(ds, cells = c(TRUE, FALSE)), "the mask is for 2 cells, but there are 60", class = "msgexpress_invalid")
  expect_error(counts(ds, cells = c("cell-1", NA)), "at place 2 is missing", class = "msgexpress_invalid")
  expect_error(counts(ds, cells = list("B")), "list\\(cell_type", class = "msgexpress_invalid")
  expect_error(counts(ds, cells = data.frame(a = 1)), "not with a data.frame", class = "msgexpress_invalid")
  expect_error(ds["gene_1"], "ds\\[genes, cells\\]", class = "msgexpress_invalid")
})

test_that("a few genes are read without the others", {
  many <- matrix(rpois(400 * 3000, 3), 3000, 400, dimnames = list(paste0("g", 1:3000), paste0("c", 1:400)))
  ds <- ingest(test_fleet(), many, "lab/many", replace = TRUE)
  read_by <- function(...) {
    fleet <- reticulate::py_get_attr(ds$python, "fleet")
    recorded <- py("Recorded", fleet)
    reticulate::py_set_attr(ds$python, "fleet", recorded)
    on.exit(reticulate::py_set_attr(ds$python, "fleet", fleet))
    found <- counts(ds, ...)
    list(found = found, bytes = reticulate::py_to_r(reticulate::py_call(reticulate::py_get_attr(recorded, "bytes_read"))))
  }
  few <- read_by(genes = c("g3000", "g2999"), cells = 1:10)
  all <- read_by()
  expect_gt(few$bytes, 0)
  expect_lt(few$bytes, all$bytes / 2)
  expect_identical(few$found, all$found[c("g3000", "g2999"), 1:10])
})

test_that("integers that doubles hold are exact, others refused", {
  huge <- ingest(test_fleet(), py("with_huge_integers", "1152921504606846976"), "lab/huge", replace = TRUE)
  expect_identical(as.numeric(counts(huge)), c(2^60, 1, 0, 5))
  expect_error(ingest(test_fleet(), py("with_huge_integers", "9007199254740993"), "lab/lost"), "value 9007199254740993 is not exact", class = "msgexpress_invalid")
})

test_that("counts of BiocGenerics works on data sets, in either order", {
  skip_if_not_installed("SingleCellExperiment")
  ds <- test_dataset()
  expect_identical(BiocGenerics::counts(ds, genes = 1:2), counts(ds, genes = 1:2))
  expect_identical(BiocGenerics::var(ds), var(ds))
  values <- counts(ds, genes = 1:3)
  sce <- SingleCellExperiment::SingleCellExperiment(list(counts = values))
  expect_identical(counts(sce), values)
})
