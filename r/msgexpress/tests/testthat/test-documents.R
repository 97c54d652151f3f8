# The code of the vignette and of the project's documents runs, and prints what the documents say. These are no part of
# the built package (.Rbuildignore).

project <- normalizePath(test_path("..", "..", "..", ".."))

# A directory with the examples' data, as the project's root has them.
place <- function(env = parent.frame()) {
  found <- withr::local_tempdir(.local_envir = env)
  dir.create(file.path(found, "examples", "data"), recursive = TRUE)
  file.copy(file.path(project, "examples", "data", "pbmc3k.h5ad"), file.path(found, "examples", "data"))
  withr::local_dir(found, .local_envir = env)
  withr::local_options(width = 120, .local_envir = env)
  withr::local_pdf(NULL, .local_envir = env)
  found
}

# What code prints, as at the prompt; names stay in `env`.
printed <- function(code, env) {
  utils::capture.output(for (expression in parse(text = code, keep.source = FALSE)) {
    shown <- withVisible(eval(expression, env))
    if (shown$visible) print(shown$value)
  })
}

# That what was printed begins as shown; numbers may differ in their seventh digit.
expect_begins <- function(found, shown) {
  expect_gte(length(found), length(shown))
  words <- function(lines) unlist(strsplit(trimws(lines), "[[:space:]]+"))
  a <- words(found[seq_along(shown)])
  b <- words(shown)
  expect_identical(length(a), length(b))
  numbers <- suppressWarnings(cbind(as.numeric(a), as.numeric(b)))
  near <- !is.na(numbers[, 1]) & !is.na(numbers[, 2]) & abs(numbers[, 1] - numbers[, 2]) <= 1e-6 * abs(numbers[, 2])
  expect_identical(a[!near], b[!near])
}

blocks_of <- function(document) {
  lines <- readLines(file.path(project, document), encoding = "UTF-8")
  fences <- grep("^```", lines)
  starts <- fences[c(TRUE, FALSE)]
  ends <- fences[c(FALSE, TRUE)]
  Map(function(start, end) list(language = sub("^```", "", lines[start]), text = lines[seq_len(end - start - 1) + start]), starts, ends)
}

test_that("the vignette's code runs from top to bottom", {
  python()
  vignette <- normalizePath(test_path("..", "..", "vignettes", "msgexpress.Rmd"))
  where <- place()
  code <- file.path(where, "vignette.R")
  # It tells chunks that are not run by a comment sign.
  knitr::purl(vignette, code, documentation = 0, quiet = TRUE)
  lines <- readLines(code)
  expect_gt(sum(grepl("rank_genes_groups|plot_volcano|counts\\(|ttest\\(|as_sce\\(", lines)), 4)
  env <- new.env()
  shown <- printed(lines, env)
  expect_true(any(grepl("32,738 genes x 2,700 cells", shown)))
  expect_true(any(grepl("NKG7", shown)))
  expect_true(any(grepl("did you mean 'cell_type'", shown)))
})

test_that("R examples of README and docs run and print what they say", {
  python()
  ran <- 0
  for (document in c("README.md", "docs/biologists.md")) {
    where <- place()
    env <- new.env()
    follows <- NULL
    for (block in blocks_of(document)) {
      if (block$language == "r") {
        follows <- printed(block$text, env)
        ran <- ran + 1
      } else {
        if (block$language == "" && !is.null(follows)) expect_begins(follows, block$text)
        follows <- NULL
      }
    }
  }
  expect_gte(ran, 4)
})

test_that("help has a page for each export, with its arguments", {
  source <- normalizePath(test_path("..", ".."))
  pages <- list.files(file.path(source, "man"), full.names = TRUE)
  for (page in pages) expect_length(tools::checkRd(page), 0)
  texts <- lapply(pages, readLines, encoding = "UTF-8")
  exported <- sub("^export\\((.*)\\)$", "\\1", grep("^export\\(", readLines(file.path(source, "NAMESPACE")), value = TRUE))
  expect_gt(length(exported), 20)
  for (name in exported) {
    page <- Filter(function(text) sprintf("\\alias{%s}", name) %in% text, texts)
    expect_length(page, 1)
    documented <- unlist(strsplit(sub("^\\\\item\\{([^}]*)\\}.*", "\\1", grep("^\\\\item\\{", page[[1]], value = TRUE)), ", *"))
    documented <- sub("\\dots", "...", documented, fixed = TRUE)
    taken <- as.character(names(formals(getExportedValue("msgexpress", name))))
    expect_identical(setdiff(taken, documented), character())
  }
})
