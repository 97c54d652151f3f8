# Calls into Python: arguments on their way there, and conditions on their way back.

# A call of a method of a Python object, or of a function of the bridge where `owner` is NULL. `kwargs` are named.
# Nothing is converted on its way back.
ask <- function(owner, name, args = list(), kwargs = list()) {
  python <- bridge()
  out <- if (is.null(owner)) {
    python$attempt(python[[name]], as_python_list(args), as_python_dict(kwargs))
  } else {
    python$attempt(python$method, as_python_list(list(owner, name, as_python_list(args), as_python_dict(kwargs))))
  }
  for (text in as.character(reticulate::py_to_r(out$get("warnings")))) {
    warning(warning_condition(in_r(text)))
  }
  error <- out$get("error")
  if (!is_none(error)) {
    error <- reticulate::py_to_r(error)
    raise(gsub(" ", "_", error$kind), in_r(error$text), error$detail)
  }
  out$get("value")
}

is_none <- function(object) is.null(object) || inherits(object, "python.builtin.NoneType")

as_python_list <- function(values) reticulate::r_to_py(unname(values))

as_python_dict <- function(values) if (length(values)) reticulate::r_to_py(values)

# A condition of the classes that programs tell apart.
raise <- function(kind, text, detail = NULL) {
  stop(structure(
    class = c(paste0("msgexpress_", kind), "msgexpress_error", "error", "condition"),
    list(message = text, call = NULL, kind = kind, detail = detail)
  ))
}

warning_condition <- function(text) {
  structure(class = c("msgexpress_warning", "warning", "condition"), list(message = text, call = NULL))
}

# Python's words for values, in R's.
in_r <- function(text) {
  for (pair in list(c("None", "NULL"), c("True", "TRUE"), c("False", "FALSE"))) {
    text <- gsub(sprintf("=%s\\b", pair[1]), sprintf("=%s", pair[2]), text)
  }
  text <- gsub("db\\[('[^']*')\\]", "db[[\\1]]", text)
  gsub("ds\\.to_anndata\\(\\)", "the AnnData in Python", text)
}

is_text <- function(value) is.character(value) && length(value) == 1 && !is.na(value)

check_text <- function(value, what) {
  if (!is_text(value)) {
    raise("invalid", sprintf("%s is one text, such as %s", what, switch(what, name = "\"blood/pbmc3k\"", "\"cell_type\"")))
  }
  enc2utf8(value)
}

# ---- arguments

# Cells or genes as Python chooses them: numbers from 0, a mask, names, or obs columns and values (a named list).
# `size` gives how many there are, where numbers need it.
selector <- function(chosen, what, size) {
  if (is.null(chosen) || inherits(chosen, "python.builtin.object")) {
    return(chosen)
  }
  if (is.data.frame(chosen) || is.matrix(chosen)) {
    raise("invalid", sprintf("choose %ss with names, numbers or a mask, not with a %s", what, class(chosen)[1]))
  }
  if (is.list(chosen)) {
    if (is.null(names(chosen)) || any(!nzchar(names(chosen)))) {
      raise("invalid", "a list of obs columns and values has names: list(cell_type = \"B\")")
    }
    return(lapply(chosen, plain_values))
  }
  if (is.factor(chosen)) {
    chosen <- as.character(chosen)
  }
  if (is.character(chosen)) {
    if (anyNA(chosen)) {
      raise("invalid", sprintf("the name of the %s at place %d is missing", what, which(is.na(chosen))[1]))
    }
    return(as.list(enc2utf8(unname(chosen))))
  }
  if (is.logical(chosen)) {
    # As in Python, a missing value chooses nothing.
    return(ask(NULL, "mask", list(as_bytes(as.raw(!is.na(chosen) & chosen)))))
  }
  if (is.numeric(chosen)) {
    # R's own rules: numbers from 1, negative ones leave out.
    count <- size()
    kept <- tryCatch(seq_len(count)[chosen], error = function(e) raise("invalid", conditionMessage(e)))
    if (anyNA(kept)) {
      wrong <- chosen[is.na(chosen) | chosen > count][1]
      raise("invalid", sprintf("there is no %s %s: they are numbered 1 to %d", what, format(wrong), count))
    }
    return(ask(NULL, "positions", list(as_bytes(writeBin(kept - 1L, raw())))))
  }
  raise("invalid", sprintf("choose %ss with names, numbers or a mask, not with a %s", what, class(chosen)[1]))
}

# Values to look for in a column. A list in any case, as a vector of one would become that one.
plain_values <- function(values) {
  if (is.factor(values)) {
    values <- as.character(values)
  }
  if (is.character(values)) {
    values <- enc2utf8(values)
  }
  if (is.null(values) || !is.atomic(values) || anyNA(values)) {
    raise("invalid", "the values to look for in an obs column are texts, numbers or logicals, none of them missing")
  }
  if (length(values) == 1) unname(values) else as.list(unname(values))
}

# Names for an argument that takes one text or several: `"all"` stays a text.
texts <- function(values) {
  if (is.null(values)) {
    return(NULL)
  }
  values <- plain_values(values)
  if (is.list(values)) lapply(values, as.character) else as.character(values)
}

# Whole numbers that R writes as doubles (n_genes = 10).
whole <- function(value) {
  if (is.numeric(value) && length(value) == 1 && is.finite(value) && value == trunc(value) && abs(value) < 2^31) as.integer(value) else value
}

# Optional arguments: those that are NULL are left to Python.
given <- function(...) Filter(Negate(is.null), list(...))

# Further arguments of the Python function, as the user wrote them.
others <- function(...) {
  more <- list(...)
  if (length(more) && (is.null(names(more)) || any(!nzchar(names(more))))) {
    raise("invalid", "further arguments have names, such as n_genes = 10")
  }
  # A vector with names is a dict in Python, as a list is.
  lapply(more, function(value) if (is.atomic(value) && !is.null(names(value))) as.list(value) else whole(value))
}

as_bytes <- function(bytes) reticulate::r_to_py(bytes)
