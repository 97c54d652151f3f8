# Which Python is used, and what is said where there is none.

# What another R session says that evaluates `code` with this package, and these variables.
elsewhere <- function(code, ...) {
  load <- if (pkgload::is_dev_package("msgexpress")) {
    sprintf("pkgload::load_all(%s, quiet = TRUE, helpers = FALSE)", deparse(pkgload::pkg_path()))
  } else {
    "suppressPackageStartupMessages(library(msgexpress))"
  }
  script <- tempfile(fileext = ".R")
  writeLines(c(load, "said <- function(e) cat(class(e)[1], '|', conditionMessage(e), '\n')", sprintf("tryCatch({%s}, error = said)", code)), script)
  withr::local_envvar(..., PYTHONPATH = NA, VIRTUAL_ENV = NA, CONDA_PREFIX = NA)
  paste(system2(file.path(R.home("bin"), "Rscript"), c("--no-init-file", script), stdout = TRUE, stderr = TRUE), collapse = "\n")
}

test_that("the interpreter in use is named", {
  python()
  expect_identical(msgx_python(), reticulate::py_config()$python)
  expect_true(msgx_available())
  expect_identical(msgx_python(msgx_python()), msgx_python())
})

test_that("another Python in a session is a conflict", {
  python()
  other <- file.path(withr::local_tempdir(), "bin", "python")
  dir.create(dirname(other))
  file.create(other)
  expect_error(msgx_python(other), "restart R", class = "msgexpress_conflict")
  expect_error(msgx_python(dirname(dirname(other))), "restart R", class = "msgexpress_conflict")
  expect_error(msgx_python(tempfile()), "there is no Python at", class = "msgexpress_no_python")
  expect_error(msgx_python(1), class = "msgexpress_invalid")
})

test_that("the nearest .venv is found, and variables go before it", {
  place <- withr::local_tempdir()
  python <- file.path(place, ".venv", "bin", "python")
  dir.create(dirname(python), recursive = TRUE)
  file.create(python)
  dir.create(file.path(place, "a", "b"), recursive = TRUE)
  withr::local_dir(file.path(place, "a", "b"))
  withr::local_envvar(RETICULATE_PYTHON = NA, VIRTUAL_ENV = NA, CONDA_PREFIX = NA)
  old <- msgexpress:::state$python
  withr::defer(assign("python", old, msgexpress:::state))
  assign("python", NULL, msgexpress:::state)
  expect_identical(msgexpress:::found_python(), msgexpress:::absolute(python))
  withr::local_envvar(VIRTUAL_ENV = file.path(place, "none"))
  expect_identical(msgexpress:::found_python(), msgexpress:::absolute(python))
  withr::local_envvar(RETICULATE_PYTHON = "/somewhere/python")
  expect_identical(msgexpress:::found_python(), "/somewhere/python")
  assign("python", "/chosen/python", msgexpress:::state)
  expect_identical(msgexpress:::found_python(), "/chosen/python")
})

test_that("a Python without msgexpress says how to install it", {
  python()
  place <- file.path(withr::local_tempdir(), "bare")
  base <- reticulate::py_to_r(reticulate::import("sys", convert = FALSE)$`_base_executable`)
  expect_identical(system2(base, c("-m", "venv", "--without-pip", place)), 0L)
  said <- elsewhere("msgx_open('x')", RETICULATE_PYTHON = file.path(place, "bin", "python"))
  expect_match(said, "^msgexpress_no_python \\| the Python at .* can't load msgexpress \\(ModuleNotFoundError.*msgexpress.*make demo.*msgx_python")
  expect_no_match(said, "Traceback")
  expect_match(elsewhere("cat(msgx_available())", RETICULATE_PYTHON = file.path(place, "bin", "python")), "^FALSE$")
})

test_that("a Python package older than this one is to upgrade", {
  python()
  place <- withr::local_tempdir()
  dir.create(file.path(place, "msgexpress"))
  file.create(file.path(place, "msgexpress", "__init__.py"))
  said <- elsewhere(sprintf("Sys.setenv(PYTHONPATH = %s); msgx_open('x')", deparse(place)), RETICULATE_PYTHON = msgx_python())
  expect_match(said, "^msgexpress_unsupported \\| msgexpress of the Python at .* is older than this R package: upgrade it")
})

test_that("a Python that is not there says how to install it", {
  said <- elsewhere("msgx_open('x')", RETICULATE_PYTHON = "/no/such/python")
  expect_match(said, "^msgexpress_no_python \\| there is no Python at /no/such/python.*make demo")
  broken <- tempfile()
  writeLines(c("#!/bin/sh", "exit 3"), broken)
  Sys.chmod(broken, "755")
  said <- elsewhere("msgx_open('x')", RETICULATE_PYTHON = broken)
  expect_match(said, "msgexpress_no_python \\| R can't load the Python at .*shared library.*make demo")
})

test_that("msgx_python before the first call chooses it", {
  said <- elsewhere(
    sprintf("msgx_python(%s); cat(msgx_available(), msgx_python())", deparse(msgx_python())),
    RETICULATE_PYTHON = NA
  )
  # Where the Python package is on PYTHONPATH alone, it is not found from there, but the interpreter is the chosen one.
  expect_match(said, sprintf("(TRUE|FALSE) %s$", msgx_python()))
})
