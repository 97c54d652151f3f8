# What happens when R loads the package.

# Methods for generics of packages that are only suggested.
late_methods <- new.env()

# The counts() and var() of BiocGenerics mask ours where its package is attached later: they have methods for our data
# sets.
register_with_bioc <- function(...) {
  setOldClass("msgx_dataset", where = late_methods)
  for (name in c("counts", "var")) {
    generic <- getExportedValue("BiocGenerics", name)
    method <- if (name == "counts") {
      function(object, ...) counts.msgx_dataset(object, ...)
    } else {
      # The generic has no dots: var(ds) gives all columns.
      function(x, y = NULL, na.rm = FALSE, use) var.msgx_dataset(x)
    }
    methods::setMethod(generic, if (name == "counts") "msgx_dataset" else c("msgx_dataset", "ANY"), method, where = late_methods)
  }
}

.onLoad <- function(libname, pkgname) {
  if (isNamespaceLoaded("BiocGenerics")) {
    register_with_bioc()
  } else {
    setHook(packageEvent("BiocGenerics", "onLoad"), register_with_bioc)
  }
}

# Columns that ggplot2 finds in its data.
utils::globalVariables(".data")
