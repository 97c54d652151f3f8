# Columns, frames and matrices between Python and R, as bytes of native numbers (python/msgexpress/_r.py).

numbers_of <- function(bytes, type, size = NA_integer_) {
  bytes <- reticulate::py_to_r(bytes)
  width <- if (is.na(size)) switch(type, double = 8L, integer = 4L, complex = 16L) else size
  readBin(bytes, type, n = length(bytes) %/% width, size = size)
}

logicals_of <- function(bytes) as.logical(as.integer(reticulate::py_to_r(bytes)))

texts_of <- function(values) {
  out <- as.character(reticulate::py_to_r(values))
  Encoding(out) <- "UTF-8"
  out
}

# A column that Python describes (`column` in _r.py). `large` says what integers beyond 2^53 become.
column_of <- function(described, name, large) {
  kind <- reticulate::py_to_r(described$get("kind"))
  data <- described$get("data")
  out <- switch(kind,
    factor = {
      codes <- numbers_of(data, "integer") + 1L
      codes[codes == 0L] <- NA_integer_
      levels <- texts_of(described$get("levels"))
      ordered <- reticulate::py_to_r(described$get("ordered"))
      structure(codes, levels = levels, class = if (ordered) c("ordered", "factor") else "factor")
    },
    logical = logicals_of(data),
    integer = numbers_of(data, "integer"),
    double = numbers_of(data, "double"),
    complex = numbers_of(data, "complex"),
    integer64 = large_integers(described, name, large),
    time = .POSIXct(numbers_of(data, "double"), tz = reticulate::py_to_r(described$get("zone"))),
    date = structure(numbers_of(data, "double"), class = "Date"),
    duration = as.difftime(numbers_of(data, "double"), units = "secs"),
    text = texts_of(data),
    list = I(reticulate::py_to_r(data)),
    raise("unsupported", sprintf("column %s is of a kind that this package does not know (%s): upgrade it", name, kind))
  )
  missing <- described$get("missing")
  if (!is_none(missing)) {
    gone <- logicals_of(missing)
    if (inherits(out, "integer64")) {
      # bit64 has the smallest integer for NA.
      bits <- unclass(out)
      bits[gone] <- readBin(as.raw(c(0, 0, 0, 0, 0, 0, 0, 0x80)), "double", endian = "little")
      out <- structure(bits, class = "integer64")
    } else {
      out[gone] <- NA
    }
  }
  out
}

large_integers <- function(described, name, large) {
  if (large == "character") {
    return(texts_of(described$get("text")))
  }
  data <- described$get("data")
  if (large == "integer64" && !is_none(data)) {
    needs("bit64", "64-bit integers")
    return(structure(numbers_of(data, "double"), class = "integer64"))
  }
  raise("unsupported", sprintf(paste(
    "column %s holds integers beyond 2^53, which R's numbers do not hold: say large_integers = \"character\" for texts,",
    "or \"integer64\" for those of bit64 (up to 2^63), or leave the column out with columns="
  ), name))
}

# A data frame. The names of rows are Python's index, where `named`.
frame_of <- function(frame, large = "error", named = TRUE, what = "rows") {
  described <- ask(NULL, "frame", list(frame, named))
  names <- texts_of(described$get("names"))
  columns <- described$get("columns")
  rows <- reticulate::py_to_r(described$get("rows"))
  out <- lapply(seq_along(names), function(at) column_of(columns[[at - 1L]], names[at], large))
  attr(out, "names") <- names
  attr(out, "row.names") <- .set_row_names(rows)
  class(out) <- "data.frame"
  if (named) {
    attr(out, "row.names") <- row_names(texts_of(described$get("index")), what)
  }
  out
}

# Names that R takes for rows: each one once.
row_names <- function(names, what) {
  if (!anyDuplicated(names)) {
    return(names)
  }
  again <- unique(names[duplicated(names)])
  warning(warning_condition(sprintf(
    "%d names of %s are there more than once (%s is the first): they get .1, .2, ... here, as R's row names are unique", length(again), what, again[1]
  )))
  make.unique(names)
}

# A matrix of doubles (`dense` in _r.py).
dense_of <- function(described, rows = NULL, columns = NULL) {
  known <- function(part) if (is_none(part)) NULL else texts_of(part)
  dim <- as.integer(unlist(reticulate::py_to_r(described$get("dim"))))
  rows <- if (is.null(rows)) known(described$get("rows")) else rows
  columns <- if (is.null(columns)) known(described$get("columns")) else columns
  names <- if (is.null(rows) && is.null(columns)) NULL else list(rows, columns)
  matrix(numbers_of(described$get("data"), "double"), dim[1], dim[2], dimnames = names)
}

# ---- to Python

# A column as `_series` of _r.py takes it.
described_column <- function(values, name) {
  gone <- is.na(values)
  out <- if (is.factor(values)) {
    codes <- as.integer(values) - 1L
    codes[gone] <- -1L
    list(kind = "factor", data = writeBin(codes, raw()), levels = as.list(enc2utf8(levels(values))), ordered = is.ordered(values))
  } else if (inherits(values, "integer64")) {
    bits <- unclass(values)
    bits[gone] <- 0
    list(kind = "integer64", data = writeBin(as.double(bits), raw()))
  } else if (is.object(values) && !inherits(values, "AsIs")) {
    raise("invalid", sprintf("column %s holds %s, which h5ad files have no form for: make it text with format()", name, class(values)[1]))
  } else if (is.character(values)) {
    list(kind = "text", data = as.list(enc2utf8(ifelse(gone, "", values))))
  } else if (is.logical(values)) {
    list(kind = "logical", data = as.raw(values %in% TRUE))
  } else if (is.integer(values)) {
    list(kind = "integer", data = writeBin(ifelse(gone, 0L, as.integer(values)), raw()))
  } else if (is.double(values)) {
    # NA is one of R's many NaNs; files have one.
    list(kind = "double", data = writeBin(ifelse(gone, NaN, as.double(values)), raw()))
  } else {
    raise("invalid", sprintf("column %s holds values of type %s: make them text, numbers, logicals or a factor", name, typeof(values)))
  }
  if (any(gone) && out$kind != "factor" && out$kind != "double") {
    out$missing <- as.raw(gone)
  }
  out
}

described_frame <- function(frame) {
  list(names = as.list(enc2utf8(names(frame))), columns = unname(Map(described_column, frame, names(frame))))
}

# The parts of a sparse matrix.
described_matrix <- function(values) {
  values <- as_dgc(values)
  list(x = writeBin(values@x, raw()), i = writeBin(values@i, raw()), p = writeBin(values@p, raw()), dim = as.list(dim(values)))
}

as_dgc <- function(values) {
  if (inherits(values, "dgCMatrix")) {
    return(values)
  }
  if (is.matrix(values) && !is.numeric(values) && !is.logical(values)) {
    raise("invalid", sprintf("a matrix of expression holds numbers, not values of type %s", typeof(values)))
  }
  methods::as(methods::as(methods::as(values, "dMatrix"), "generalMatrix"), "CsparseMatrix")
}

described_dense <- function(values) {
  values <- as.matrix(values)
  list(data = writeBin(as.double(values), raw()), dim = as.list(dim(values)))
}

needs <- function(package, what) {
  if (!requireNamespace(package, quietly = TRUE)) {
    raise("unsupported", sprintf("%s needs the package %s, which is not installed: install it, %s", what, package, how_to_get(package)))
  }
}

how_to_get <- function(package) {
  switch(package,
    SingleCellExperiment = "BiocManager::install(\"SingleCellExperiment\"), or Debian's r-bioc-singlecellexperiment",
    SeuratObject = "install.packages(\"SeuratObject\"), or Debian's r-cran-seuratobject",
    sprintf("install.packages(\"%s\"), or Debian's r-cran-%s", package, tolower(package))
  )
}
