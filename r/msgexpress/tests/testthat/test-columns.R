# The types of columns, between Python and R.

test_that("obs has the types that R users expect", {
  cells <- obs(test_dataset())
  expect_identical(rownames(cells)[1:3], c("cell-0", "cell-1", "cell-2"))
  expect_identical(vapply(cells, function(values) class(values)[1], ""), c(
    type = "factor", stage = "ordered", leiden = "factor", depth = "numeric", single = "numeric", n = "integer", big = "numeric", unsigned = "integer",
    ok = "logical", maybe = "integer", perhaps = "logical", note = "character", gap = "factor"
  ))
  # The order of categories is kept, those without a cell as well.
  expect_identical(levels(cells$type), c("T", "B", "NK", "unused"))
  expect_identical(levels(cells$stage), c("spät", "früh"))
  expect_identical(as.integer(table(cells$type)), c(20L, 20L, 20L, 0L))
  expect_identical(cells$big[60], 59e12)
  expect_identical(cells$note[3], "note é 2")
  expect_identical(cells$n, 0:59)
})

test_that("missing values arrive as NA", {
  cells <- obs(test_dataset())
  at <- 0:59
  expect_identical(which(is.na(cells$depth)), which(at %% 9 == 0))
  expect_identical(which(is.na(cells$maybe)), which(at %% 5 == 0))
  expect_identical(which(is.na(cells$perhaps)), which(at %% 5 == 0))
  expect_identical(which(is.na(cells$stage)), which(at %% 7 == 0))
  expect_identical(which(is.na(cells$gap)), which(at %% 4 == 0))
  expect_identical(cells$maybe[2:4], 1:3)
  expect_identical(cells$perhaps[2:5], c(FALSE, TRUE, FALSE, TRUE))
  # R's own NA, which writes itself as such.
  expect_identical(format(cells$depth[1]), "NA")
})

test_that("numbers of obs are those of Python", {
  ds <- test_dataset()
  cells <- obs(ds)
  wanted <- read_from_python(reticulate::py_get_attr(ds$python, "obs"))
  expect_identical(rownames(cells), rownames(wanted))
  for (name in c("depth", "single", "n", "big", "unsigned", "maybe")) expect_close(cells[[name]], wanted[[name]])
})

test_that("var has a row for each gene, of chosen columns", {
  genes <- var(test_dataset())
  expect_identical(rownames(genes)[40], "gene_39")
  expect_identical(genes$known[1:4], c(TRUE, FALSE, FALSE, TRUE))
  expect_identical(names(var(test_dataset(), columns = "gene_ids")), "gene_ids")
  expect_error(var(test_dataset(), columns = "gene_id"), "did you mean 'gene_ids'", class = "msgexpress_not_found")
})

test_that("var of other objects is that of stats", {
  expect_identical(var(c(1, 2, 4)), stats::var(c(1, 2, 4)))
  expect_identical(var(c(1, NA, 3), na.rm = TRUE), 2)
})

test_that("dates and times arrive as R's", {
  found <- msgexpress:::frame_of(py("timed"))
  expect_identical(rownames(found), c("a", "b"))
  expect_identical(found$naive, as.POSIXct(c("2024-03-01 12:30:00.25", NA), tz = "UTC"))
  expect_identical(attr(found$zoned, "tzone"), "Europe/Berlin")
  expect_identical(as.numeric(found$zoned), c(1719828000, NA))
  expect_identical(found$span, as.difftime(c(3600, NA), units = "secs"))
  expect_identical(found$day, as.Date(c("1969-12-31", NA)))
  expect_identical(format(found$far), c("2500-01-01", NA))
  expect_identical(found$z, c(1 + 2i, 0i))
  expect_identical(found$zeros, c(0, 1.5))
  expect_identical(found$none, c(NA_character_, NA_character_))
})

test_that("SQL gives dates, times and missing integers", {
  found <- msgx_sql(test_fleet(), "SELECT CAST('2024-03-01' AS DATE) AS day, TIMESTAMP '2024-03-01T12:30:00.5' AS at, CAST(NULL AS INT) AS gone, 5 AS n, [1, 2] AS several")
  expect_identical(found$day, as.Date("2024-03-01"))
  expect_equal(found$at, as.POSIXct("2024-03-01 12:30:00.5", tz = "UTC"), tolerance = 0)
  expect_identical(found$gone, NA_integer_)
  expect_identical(found$n, 5L)
  expect_identical(as.integer(found$several[[1]]), 1:2)
})

test_that("integers up to 2^53 are numbers, others an error", {
  found <- msgx_sql(test_fleet(), "SELECT 2147483647 AS a, 2147483648 AS b, 9007199254740992 AS c, -9007199254740992 AS d")
  expect_identical(vapply(found, typeof, ""), c(a = "integer", b = "double", c = "double", d = "double"))
  expect_identical(found$c, 2^53)
  huge <- ingest(test_fleet(), py("with_huge_integers", "7"), "lab/huge", replace = TRUE)
  expect_error(obs(huge), "column id holds integers beyond 2\\^53", class = "msgexpress_unsupported")
  expect_identical(obs(huge, large_integers = "character")$id, c("1152921504606846976", "3"))
  expect_identical(names(obs(huge, columns = character())), character())
  skip_if_not_installed("bit64")
  whole <- obs(huge, large_integers = "integer64")$id
  expect_s3_class(whole, "integer64")
  expect_identical(bit64::as.character.integer64(whole), c("1152921504606846976", "3"))
})

test_that("names that repeat are made unique, with a warning", {
  expect_warning(twice <- ingest(test_fleet(), py("with_names_twice"), "lab/twice", replace = TRUE), "cell names repeat", class = "msgexpress_warning")
  expect_warning(cells <- obs(twice), "1 names of cells are there more than once (a is the first)", fixed = TRUE, class = "msgexpress_warning")
  expect_identical(rownames(cells), c("a", "a.1", "b"))
  # A matrix may have a name twice.
  expect_identical(colnames(counts(twice)), c("a", "a", "b"))
})

test_that("columns of R come back as they went in", {
  values <- matrix(c(1, 0, 2, 3, 0, 1), 2, 3, dimnames = list(c("g", "h"), c("a", "b", "c")))
  cells <- data.frame(
    f = factor(c("x", NA, "y"), levels = c("y", "x", "z")), o = factor(c("lo", "hi", "lo"), levels = c("lo", "hi"), ordered = TRUE), t = c("é", NA, "z"),
    i = c(1L, NA, 3L), d = c(0.1, NA, 1e300), l = c(TRUE, NA, FALSE), whole = 1:3, stringsAsFactors = FALSE
  )
  genes <- data.frame(id = c("E1", "E2"), stringsAsFactors = FALSE)
  ds <- ingest(test_fleet(), values, "lab/own", obs = cells, var = genes, replace = TRUE)
  rownames(cells) <- colnames(values)
  rownames(genes) <- rownames(values)
  # AnnData keeps text that repeats or is missing as categories.
  found <- obs(ds)
  if (is.factor(found$t)) found$t <- as.character(found$t)
  expect_identical(found, cells)
  genes_found <- var(ds)
  expect_identical(as.character(genes_found$id), genes$id)
  expect_identical(as.matrix(counts(ds)), values)
})
