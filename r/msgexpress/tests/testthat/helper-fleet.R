# One fleet for all tests of a file, and a data set with every kind of column, made by Python.

python <- local({
  made <- NULL
  function() {
    if (is.null(made)) {
      # Starts Python as users do, or says why it can't.
      if (!isTRUE(available <- msgx_available())) stop(attr(available, "reason"))
      made <<- reticulate::import_from_path("made", normalizePath(test_path(".")), convert = FALSE)
    }
    made
  }
})

# A call of one of these functions.
py <- function(name, ...) reticulate::py_call(reticulate::py_get_attr(python(), name), ...)

shared <- new.env()

# The fleet of this process, and the data set of `made` on it.
test_fleet <- function() {
  if (is.null(shared$db)) {
    python()
    place <- tempfile("fleet")
    shared$file <- tempfile(fileext = ".h5ad")
    py("written", shared$file)
    shared$db <- msgx_open(place, drives = 3)
    shared$ds <- ingest(shared$db, shared$file, "lab/rich", progress = FALSE)
  }
  shared$db
}

test_dataset <- function() {
  test_fleet()
  shared$ds
}

# A Python data frame as R reads it from text with all digits, by no code of ours.
read_from_python <- function(frame) {
  file <- tempfile(fileext = ".csv")
  on.exit(unlink(file))
  py("as_text", frame, file)
  utils::read.csv(file, row.names = 1, check.names = FALSE, na.strings = "NA")
}

# The same of a matrix, with genes as rows.
matrix_from_python <- function(values) {
  file <- tempfile(fileext = ".txt")
  on.exit(unlink(file))
  py("dense_text", values, file)
  out <- unname(as.matrix(utils::read.table(file)))
  storage.mode(out) <- "double"
  out
}

expect_close <- function(found, wanted) {
  found <- as.numeric(found)
  wanted <- as.numeric(wanted)
  expect_identical(is.na(found), is.na(wanted))
  there <- !is.na(wanted)
  same <- found[there] == wanted[there] | abs(found[there] - wanted[there]) <= 1e-12 * abs(wanted[there])
  expect_true(all(same))
}

caught <- function(expression) tryCatch(expression, error = function(e) e)
