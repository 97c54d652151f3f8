# Which Python runs msgexpress, and the module on its side that this package talks to.
# See also: python/msgexpress/_r.py.

#: The module, once it is loaded, and the interpreter that was asked for.
state <- new.env(parent = emptyenv())

#' The Python that runs msgexpress
#'
#' One R session has one Python, which the first call chooses. It is the first of these that is there:
#'
#' 1. the one that you named with `msgx_python(path)`
#' 2. that of the variable `RETICULATE_PYTHON`
#' 3. that of the environment that is active (`VIRTUAL_ENV`, `CONDA_PREFIX`)
#' 4. that of the nearest `.venv` in the working directory or above
#' 5. the one that reticulate finds
#'
#' @param path The interpreter, such as `"skytether/.venv/bin/python"`, or the directory of its virtual environment.
#'   Left out, nothing is chosen.
#' @return The path of the interpreter that is in use or would be; `NA` where reticulate will look for one. Invisibly,
#'   where `path` was given.
#' @section Errors:
#' `msgexpress_no_python` where there is no file `path`. `msgexpress_conflict` where this session has another Python
#' already: restart R.
#' @seealso [msgx_available()]
#' @examples
#' msgx_python()
#' \dontrun{
#' msgx_python("~/skytether/.venv/bin/python")
#' }
#' @export
msgx_python <- function(path = NULL) {
  if (is.null(path)) {
    if (reticulate::py_available()) {
      return(reticulate::py_config()$python)
    }
    return(found_python())
  }
  if (!is_text(path)) {
    raise("invalid", "path names one Python interpreter, as a text")
  }
  python <- path.expand(path)
  if (dir.exists(python)) {
    python <- interpreter_of(python)
  }
  if (!file.exists(python)) {
    raise("no_python", sprintf("there is no Python at %s: give the path of an interpreter. %s", path, how_to_install()))
  }
  python <- absolute(python)
  if (reticulate::py_available() && !same_python(python, reticulate::py_config()$python)) {
    raise("conflict", sprintf(
      "this session uses %s already, and a session has one Python: restart R, and call msgx_python(\"%s\") first",
      reticulate::py_config()$python, path
    ))
  }
  state$python <- python
  invisible(python)
}

#' Whether this session can use msgexpress
#'
#' @return `TRUE` where Python and its package msgexpress are there, else `FALSE`, with the reason as the attribute
#'   `reason`. The first call starts Python.
#' @seealso [msgx_python()]
#' @examples
#' isTRUE(msgx_available())
#' @export
msgx_available <- function() {
  tryCatch(
    {
      bridge()
      TRUE
    },
    msgexpress_error = function(e) structure(FALSE, reason = conditionMessage(e))
  )
}

found_python <- function() {
  named <- c(state$python, nonempty(Sys.getenv("RETICULATE_PYTHON")))
  if (length(named)) {
    return(named[[1]])
  }
  active <- c(nonempty(Sys.getenv("VIRTUAL_ENV")), nonempty(Sys.getenv("CONDA_PREFIX")))
  for (place in c(active, above(file.path(getwd(), ".venv")))) {
    if (file.exists(interpreter_of(place))) {
      return(absolute(interpreter_of(place)))
    }
  }
  NA_character_
}

interpreter_of <- function(environment) {
  if (.Platform$OS.type == "windows") {
    file.path(environment, "Scripts", "python.exe")
  } else {
    file.path(environment, "bin", "python")
  }
}

# `path` in its directory and in each one above.
above <- function(path) {
  found <- path
  repeat {
    parent <- file.path(dirname(dirname(path)), basename(path))
    if (parent == path) {
      return(found)
    }
    found <- c(found, parent)
    path <- parent
  }
}

# An environment's interpreter is a link, which must not be followed: its place is what names the environment.
absolute <- function(path) file.path(normalizePath(dirname(path)), basename(path))

same_python <- function(a, b) {
  identical(absolute(a), absolute(b)) || identical(dirname(absolute(a)), dirname(absolute(b)))
}

nonempty <- function(text) text[nzchar(text)]

how_to_install <- function() {
  paste(
    "To install msgexpress, run `make demo` in the directory of the Skytether project. Then name its interpreter before",
    "the first call: msgx_python(\"<project>/.venv/bin/python\"), or the variable RETICULATE_PYTHON."
  )
}

# The Python module that this package talks to. The first call starts Python.
bridge <- function() {
  if (is.null(state$bridge)) {
    start_python()
    state$bridge <- tryCatch(
      reticulate::import("msgexpress._r", convert = FALSE),
      error = function(e) {
        if (grepl("msgexpress._r", conditionMessage(e), fixed = TRUE)) {
          raise("unsupported", sprintf(
            "msgexpress of the Python at %s is older than this R package: upgrade it (`make setup` in the project's directory)",
            reticulate::py_config()$python
          ))
        }
        raise("no_python", sprintf(
          "the Python at %s can't load msgexpress (%s). %s", reticulate::py_config()$python, first_line(conditionMessage(e)), how_to_install()
        ))
      }
    )
  }
  state$bridge
}

start_python <- function() {
  if (reticulate::py_available()) {
    return(invisible())
  }
  # reticulate offers to download a Python where it finds none; that one would not have msgexpress.
  old <- Sys.getenv(c("RETICULATE_MINICONDA_ENABLED", "RETICULATE_USE_MANAGED_VENV"), unset = NA)
  Sys.setenv(RETICULATE_MINICONDA_ENABLED = "FALSE", RETICULATE_USE_MANAGED_VENV = "no")
  on.exit({
    Sys.unsetenv(names(old)[is.na(old)])
    if (any(!is.na(old))) do.call(Sys.setenv, as.list(old[!is.na(old)]))
  })
  python <- found_python()
  if (!is.na(python) && !file.exists(python)) {
    raise("no_python", sprintf("there is no Python at %s. %s", python, how_to_install()))
  }
  tryCatch(
    {
      if (!is.na(python)) {
        reticulate::use_python(python, required = TRUE)
      }
      reticulate::py_config()
      stopifnot(reticulate::py_available(initialize = TRUE))
    },
    error = function(e) {
      where <- if (is.na(python)) "there is no Python that R can load" else sprintf("R can't load the Python at %s", python)
      raise("no_python", sprintf(
        "%s (%s). It needs a shared library (Debian: libpython3-dev; pyenv: --enable-shared). %s", where, first_line(conditionMessage(e)), how_to_install()
      ))
    }
  )
  invisible()
}

first_line <- function(text) trimws(strsplit(text, "\n", fixed = TRUE)[[1]][1])
