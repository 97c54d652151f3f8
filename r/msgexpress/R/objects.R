# Objects of R's packages for single cells: from a data set, and as a source of one.

#' A data set as an object of R's packages for single cells
#'
#' `as_sce()` gives a `SingleCellExperiment`, `as_seurat()` a `Seurat` object, in memory. Choose `genes` and `cells` of
#' a large data set: only these are read.
#'
#' @param ds A data set.
#' @param genes,cells As in [counts()].
#' @param layer Which matrix: `NULL` for the one that the data set is about, else one of [layers()].
#' @param assay What to call the matrix. In a `SingleCellExperiment`, `NULL` is `"counts"` where it holds non-negative
#'   integers alone, else `"logcounts"` for a matrix that h5ad files know as logarithms, else `"X"`. In a `Seurat`
#'   object it is the assay's name; counts go to its slot `counts`, other values to `data`.
#' @param layers Names of further matrices of the same genes for `as_sce()`, which become assays of their own names.
#' @return `as_sce()`: a `SingleCellExperiment` with [obs()] as `colData`, [var()] as `rowData`, and embeddings as
#'   `reducedDims` (`X_umap` is `UMAP`). `as_seurat()`: a `Seurat` object with [obs()] as metadata of cells, [var()] as
#'   that of genes, and embeddings as reductions (`X_umap` is `umap`).
#' @section Errors:
#' `msgexpress_unsupported` where the package SingleCellExperiment or SeuratObject is not installed; else as of
#' [counts()].
#' @examplesIf isTRUE(msgexpress::msgx_available()) && requireNamespace("SingleCellExperiment", quietly = TRUE)
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(200, 2), 20, 10, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:10)))
#' ds <- ingest(db, values, "lab/first", replace = TRUE)
#' as_sce(ds, genes = 1:5)
#' close(db)
#' @export
as_sce <- function(ds, genes = NULL, cells = NULL, layer = NULL, assay = NULL, layers = NULL) {
  check_dataset(ds)
  needs("SingleCellExperiment", "as_sce()")
  values <- counts(ds, genes, cells, layer)
  if (is.null(assay)) {
    assay <- if (holds_counts(ds, layer)) "counts" else if (holds_logarithms(ds, layer)) "logcounts" else "X"
  }
  assays <- stats::setNames(list(values), assay)
  for (name in layers) {
    more <- counts(ds, genes, cells, name)
    if (!identical(dimnames(more), dimnames(values))) {
      raise("invalid", sprintf("layer %s has other genes: make an object of its own of it, with layer = \"%s\"", name, name))
    }
    assays[[name]] <- more
  }
  rows <- S4Vectors::DataFrame(genes_frame(ds, layer, genes, rownames(values)), check.names = FALSE)
  cols <- S4Vectors::DataFrame(cells_frame(ds, cells, colnames(values)), check.names = FALSE)
  # Names repeat in these objects as they do in files.
  rownames(rows) <- rownames(values)
  rownames(cols) <- colnames(values)
  dims <- embeddings_of(ds, cells)
  names(dims) <- vapply(names(dims), sce_name, "")
  SingleCellExperiment::SingleCellExperiment(assays = assays, rowData = rows, colData = cols, reducedDims = dims)
}

#' @rdname as_sce
#' @export
as_seurat <- function(ds, genes = NULL, cells = NULL, layer = NULL, assay = "RNA") {
  check_dataset(ds)
  needs("SeuratObject", "as_seurat()")
  values <- counts(ds, genes, cells, layer)
  # Seurat has each name once, and no underscores in those of genes.
  rownames(values) <- row_names(rownames(values), "genes")
  colnames(values) <- row_names(colnames(values), "cells")
  about_genes <- genes_frame(ds, layer, genes, rownames(values))
  if (any(grepl("_", rownames(values), fixed = TRUE))) {
    warning(warning_condition("Seurat has no underscores in names of genes: they are dashes here"))
    rownames(values) <- make.unique(gsub("_", "-", rownames(values), fixed = TRUE))
    attr(about_genes, "row.names") <- rownames(values)
  }
  about_cells <- cells_frame(ds, cells, colnames(values))
  made <- if (holds_counts(ds, layer)) SeuratObject::CreateAssayObject(counts = values) else SeuratObject::CreateAssayObject(data = values)
  if (ncol(about_genes)) {
    made <- SeuratObject::AddMetaData(made, about_genes)
  }
  made <- keyed(made, assay)
  out <- SeuratObject::CreateSeuratObject(made, project = name_of(ds), assay = assay, meta.data = if (ncol(about_cells)) about_cells)
  for (name in names(dims <- embeddings_of(ds, cells))) {
    if (!nrow(dims[[name]]) || !ncol(dims[[name]])) next
    called <- sub("^X_", "", name)
    key <- seurat_key(called)
    values <- dims[[name]]
    dimnames(values) <- list(colnames(out), paste0(key, seq_len(ncol(values))))
    out[[called]] <- SeuratObject::CreateDimReducObject(embeddings = values, key = key, assay = assay)
  }
  out
}

holds_counts <- function(ds, layer) reticulate::py_to_r(ask(NULL, "is_counts", list(ds$python, layer)))

holds_logarithms <- function(ds, layer) reticulate::py_to_r(ask(NULL, "is_logarithmic", list(ds$python, layer)))

genes_frame <- function(ds, layer, genes, names) {
  frame_named(ask(NULL, "var_of", list(ds$python, layer, chosen_genes(ds, genes, layer))), names)
}

cells_frame <- function(ds, cells, names) {
  frame_named(ask(NULL, "obs_of", list(ds$python, chosen_cells(ds, cells))), names)
}

# A data frame with these row names where they are unique, else with numbers.
frame_named <- function(frame, names) {
  out <- frame_of(frame, large = "character", named = FALSE)
  if (!anyDuplicated(names)) {
    attr(out, "row.names") <- names
  }
  out
}

embeddings_of <- function(ds, cells) {
  found <- ask(NULL, "embeddings", list(ds$python, chosen_cells(ds, cells)))
  names <- texts_of(reticulate::import_builtins(convert = FALSE)$list(found))
  stats::setNames(lapply(names, function(name) dense_of(found$get(name))), names)
}

# What scater calls an embedding: X_umap is UMAP.
sce_name <- function(name) {
  plain <- sub("^X_", "", name)
  if (plain %in% c("pca", "umap", "tsne")) toupper(plain) else plain
}

# What Seurat calls the columns of an embedding: letters and digits, and an underscore.
seurat_key <- function(called) {
  plain <- gsub("[^A-Za-z0-9]", "", called)
  paste0(switch(plain, pca = "PC", umap = "UMAP", tsne = "tSNE", if (nzchar(plain)) plain else "dim"), "_")
}

# An assay whose key Seurat takes without a warning.
keyed <- function(made, assay) {
  SeuratObject::Key(made) <- paste0(tolower(gsub("[^A-Za-z0-9]", "", assay)), "_")
  made
}

# ---- as a source

parts_of_sce <- function(source, layer) {
  needs("SummarizedExperiment", "a SummarizedExperiment")
  known <- SummarizedExperiment::assayNames(source)
  if (!length(known)) {
    raise("invalid", "the SingleCellExperiment has no assay with a name: there is nothing to store")
  }
  wanted <- if (!is.null(layer)) layer else if ("counts" %in% known) "counts" else known[1]
  if (!wanted %in% known) {
    raise("not_found", sprintf("the SingleCellExperiment has no assay %s: it has %s", wanted, paste(known, collapse = ", ")))
  }
  assays <- stats::setNames(lapply(known, function(name) SummarizedExperiment::assay(source, name)), known)
  dims <- if (methods::is(source, "SingleCellExperiment")) as.list(SingleCellExperiment::reducedDims(source)) else list()
  names(dims) <- vapply(names(dims), anndata_name, "", USE.NAMES = FALSE)
  list(
    x = assays[[wanted]], layers = assays[setdiff(known, wanted)], obsm = lapply(dims, as.matrix),
    obs = plain_frame(SummarizedExperiment::colData(source)), var = plain_frame(SummarizedExperiment::rowData(source))
  )
}

parts_of_seurat <- function(source, layer) {
  needs("SeuratObject", "a Seurat object")
  assay <- SeuratObject::DefaultAssay(source)
  # Since SeuratObject 5 slots are layers.
  named <- if (utils::packageVersion("SeuratObject") >= "5") "layer" else "slot"
  read <- function(slot) {
    asked <- c(list(source, assay = assay), stats::setNames(list(slot), named))
    tryCatch(do.call(SeuratObject::GetAssayData, asked), error = function(e) NULL)
  }
  found <- Filter(function(values) !is.null(values) && prod(dim(values)) > 0, list(counts = read("counts"), data = read("data")))
  # Without normalisation both are the same.
  if (length(found) == 2 && isTRUE(all.equal(found$counts, found$data, check.attributes = FALSE))) {
    found$data <- NULL
  }
  wanted <- if (is.null(layer)) names(found)[1] else layer
  if (!length(found) || !wanted %in% names(found)) {
    raise("not_found", sprintf("assay %s of the Seurat object has no %s: it has %s", assay, wanted, paste(names(found), collapse = ", ")))
  }
  dims <- stats::setNames(
    lapply(SeuratObject::Reductions(source), function(name) SeuratObject::Embeddings(source, reduction = name)),
    vapply(SeuratObject::Reductions(source), anndata_name, "")
  )
  dims <- Filter(function(values) identical(rownames(values), colnames(source)), dims)
  genes <- tryCatch(source[[assay]][[]], error = function(e) NULL)
  list(x = found[[wanted]], layers = found[setdiff(names(found), wanted)], obsm = dims, obs = source[[]], var = plain_frame(genes))
}

# What scanpy calls an embedding.
anndata_name <- function(name) {
  if (startsWith(name, "X_")) name else paste0("X_", if (tolower(name) %in% c("pca", "umap", "tsne")) tolower(name) else name)
}

plain_frame <- function(frame) {
  if (is.null(frame)) {
    return(NULL)
  }
  columns <- stats::setNames(lapply(seq_len(ncol(frame)), function(at) frame[[at]]), colnames(frame))
  structure(columns, row.names = .set_row_names(nrow(frame)), class = "data.frame")
}
