# Objects of SingleCellExperiment and Seurat. Where these are not installed, an error says how to get them.

test_that("a package that is not installed is named, with how to get it", {
  wrong <- caught(msgexpress:::needs("noSuchPackageAtAll", "as_that()"))
  expect_s3_class(wrong, "msgexpress_unsupported")
  expect_match(conditionMessage(wrong), "as_that() needs the package noSuchPackageAtAll, which is not installed: install it, install.packages(", fixed = TRUE)
  for (package in c("SingleCellExperiment", "SeuratObject")) {
    if (!requireNamespace(package, quietly = TRUE)) {
      made <- if (package == "SeuratObject") as_seurat else as_sce
      expect_error(made(test_dataset()), sprintf("%s, which is not installed: install it", package), class = "msgexpress_unsupported")
    }
  }
})

test_that("as_sce has matrix, annotations and embeddings", {
  skip_if_not_installed("SingleCellExperiment")
  ds <- test_dataset()
  sce <- as_sce(ds, layers = "spliced")
  expect_s4_class(sce, "SingleCellExperiment")
  expect_true(methods::validObject(sce))
  expect_identical(SummarizedExperiment::assayNames(sce), c("counts", "spliced"))
  expect_identical(SingleCellExperiment::counts(sce), counts(ds))
  expect_identical(SummarizedExperiment::assay(sce, "spliced"), counts(ds, layer = "spliced"))
  expect_identical(as.data.frame(SummarizedExperiment::colData(sce)), obs(ds))
  expect_identical(as.data.frame(SummarizedExperiment::rowData(sce)), var(ds))
  expect_setequal(SingleCellExperiment::reducedDimNames(sce), c("UMAP", "PCA"))
  adata <- reticulate::py_call(reticulate::py_get_attr(ds$python, "to_anndata"))
  umap <- SingleCellExperiment::reducedDim(sce, "UMAP")
  expect_identical(rownames(umap), colnames(sce))
  expect_identical(t(unname(umap)), matrix_from_python(reticulate::py_get_item(reticulate::py_get_attr(adata, "obsm"), "X_umap")))
})

test_that("as_sce of a part has that part alone", {
  skip_if_not_installed("SingleCellExperiment")
  ds <- test_dataset()
  part <- as_sce(ds, genes = c("gene_9", "gene_2"), cells = obs(ds)$type == "B", layer = "dense")
  expect_identical(SummarizedExperiment::assayNames(part), "X")
  expect_identical(rownames(part), c("gene_9", "gene_2"))
  expect_identical(SummarizedExperiment::rowData(part)$gene_ids, c("ENSG0009", "ENSG0002"))
  expect_identical(part$n, seq(1L, 58L, 3L))
  expect_identical(dim(SingleCellExperiment::reducedDim(part, "PCA")), c(20L, 3L))
  expect_identical(SummarizedExperiment::assay(part), counts(ds, c("gene_9", "gene_2"), seq(2, 59, 3), "dense"))
  raw <- as_sce(ds, layer = "raw", assay = "mine")
  expect_identical(dim(raw), c(45L, 60L))
  expect_identical(SummarizedExperiment::assayNames(raw), "mine")
  expect_error(as_sce(ds, layers = "raw"), "other genes", class = "msgexpress_invalid")
})

test_that("a SingleCellExperiment goes onto a fleet and comes back", {
  skip_if_not_installed("SingleCellExperiment")
  sce <- as_sce(test_dataset(), layers = "dense")
  again <- ingest(test_fleet(), sce, "lab/sce", replace = TRUE)
  expect_identical(layers(again), "dense")
  back <- as_sce(again, layers = "dense")
  expect_identical(SingleCellExperiment::counts(back), SingleCellExperiment::counts(sce))
  expect_identical(SummarizedExperiment::assay(back, "dense"), SummarizedExperiment::assay(sce, "dense"))
  expect_identical(dimnames(back), dimnames(sce))
  expect_identical(back$type, sce$type)
  expect_identical(SingleCellExperiment::reducedDim(back, "PCA"), SingleCellExperiment::reducedDim(sce, "PCA"))
  dense <- ingest(test_fleet(), sce, "lab/sce", layer = "dense", replace = TRUE)
  expect_identical(counts(dense), SummarizedExperiment::assay(sce, "dense"))
  expect_error(ingest(test_fleet(), sce, "lab/sce", layer = "none", replace = TRUE), "has no assay none", class = "msgexpress_not_found")
})

test_that("as_seurat has counts, metadata and reductions", {
  skip_if_not_installed("SeuratObject")
  ds <- test_dataset()
  expect_warning(made <- as_seurat(ds), "underscores", class = "msgexpress_warning")
  expect_s4_class(made, "Seurat")
  expect_identical(rownames(made)[1:2], c("gene-0", "gene-1"))
  values <- SeuratObject::GetAssayData(made, "counts")
  expect_identical(unname(as.matrix(values)), unname(as.matrix(counts(ds))))
  expect_identical(colnames(made), dimnames(ds)[[2]])
  expect_identical(made$type, stats::setNames(obs(ds)$type, colnames(made)))
  expect_identical(made[["RNA"]][[]]$gene_ids, var(ds)$gene_ids)
  expect_setequal(SeuratObject::Reductions(made), c("umap", "pca"))
  expect_identical(colnames(SeuratObject::Embeddings(made, "pca")), c("PC_1", "PC_2", "PC_3"))
  # What is no counts is data.
  expect_warning(normal <- as_seurat(ds, layer = "dense", genes = 1:3, cells = 4:9, assay = "norm"), class = "msgexpress_warning")
  expect_identical(unname(as.matrix(SeuratObject::GetAssayData(normal, "data"))), unname(as.matrix(counts(ds, 1:3, 4:9, "dense"))))
  expect_identical(SeuratObject::Assays(normal), "norm")
})

test_that("a Seurat object goes onto a fleet and comes back", {
  skip_if_not_installed("SeuratObject")
  made <- suppressWarnings(as_seurat(test_dataset()))
  again <- ingest(test_fleet(), made, "lab/seurat", replace = TRUE)
  expect_identical(layers(again), character())
  expect_identical(as.matrix(counts(again)), as.matrix(SeuratObject::GetAssayData(made, "counts")))
  expect_identical(levels(obs(again)$type), c("T", "B", "NK", "unused"))
  back <- as_seurat(again)
  expect_equal(SeuratObject::Embeddings(back, "umap"), SeuratObject::Embeddings(made, "umap"), tolerance = 0)
})

test_that("objects that can't be stored say why", {
  db <- test_fleet()
  values <- matrix(1:6 + 0, 2, 3, dimnames = list(c("g", "h"), c("a", "b", "c")))
  expect_error(ingest(db, unname(values), "lab/x"), "no names of rows", class = "msgexpress_invalid")
  expect_error(ingest(db, values, "lab/x", obs = data.frame(a = 1:2)), "a row for each of the 3 cells", class = "msgexpress_invalid")
  expect_error(ingest(db, values, "lab/x", obs = data.frame(day = as.Date("2024-03-01") + 0:2)), "column day holds Date.*format\\(\\)", class = "msgexpress_invalid")
  expect_error(ingest(db, 1:3, "lab/x"), "source is a integer", class = "msgexpress_invalid")
  expect_error(ingest(db, values, "lab/x", layer = "raw"), "source is a single one", class = "msgexpress_invalid")
  expect_error(ingest(db, shared$file, "lab/x", obs = data.frame()), "a file has its own", class = "msgexpress_invalid")
  letters <- values
  mode(letters) <- "character"
  expect_error(ingest(db, letters, "lab/x"), "holds numbers", class = "msgexpress_invalid")
})

test_that("antibodies of a 10x directory are a matrix of their own", {
  place <- withr::local_tempdir()
  kinds <- c("Gene Expression", "Antibody Capture", "Gene Expression")
  compressed <- function(lines, name) {
    file <- gzfile(file.path(place, name), "w")
    on.exit(close(file))
    writeLines(lines, file)
  }
  compressed(paste(c("E1", "A1", "E2"), c("CD3E", "CD3", "LYZ"), kinds, sep = "\t"), "features.tsv.gz")
  compressed(paste0("cell-", 1:2), "barcodes.tsv.gz")
  compressed(c("%%MatrixMarket matrix coordinate integer general", "3 2 4", "1 1 5", "2 1 700", "3 2 2", "2 2 9"), "matrix.mtx.gz")
  expect_warning(ds <- ingest(test_fleet(), place, "lab/cite", replace = TRUE), "Antibody Capture", class = "msgexpress_warning")
  expect_identical(as.matrix(counts(ds)), matrix(c(5, 0, 0, 2), 2, dimnames = list(c("CD3E", "LYZ"), c("cell-1", "cell-2"))))
  expect_identical(as.matrix(counts(ds, layer = "Antibody Capture")), matrix(c(700, 9), 1, dimnames = list("CD3", c("cell-1", "cell-2"))))
  skip_if_not_installed("SingleCellExperiment")
  sce <- as_sce(ds, layer = "Antibody Capture")
  expect_identical(rownames(sce), "CD3")
  expect_identical(as.character(SummarizedExperiment::rowData(sce)$gene_ids), "A1")
})
