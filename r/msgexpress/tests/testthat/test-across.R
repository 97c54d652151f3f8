# Several data sets: the numbers are Python's.

two <- local({
  made <- FALSE
  function() {
    db <- test_fleet()
    if (!made) {
      set.seed(4)
      for (name in c("two/a", "two/b")) {
        values <- matrix(rpois(1200, 3), 20, 60, dimnames = list(paste0("gene", if (name == "two/a") 1:20 else 25:6), paste0("cell", 1:60)))
        cells <- data.frame(type = factor(rep(c("B", "NK", "T"), 20)), depth = 1:60 / 4)
        ingest(db, values, name, obs = cells, progress = FALSE)
      }
      made <<- TRUE
    }
    db
  }
})

test_that("obs of several data sets is one data frame", {
  found <- msgx_obs(two(), "two", c("type", "depth"), where = list(type = c("B", "T")))
  expect_identical(names(found), c("dataset", "cell", "type", "depth"))
  expect_identical(levels(found$dataset), c("two/a", "two/b"))
  expect_identical(as.integer(table(found$dataset, found$type)[, "B"]), c(20L, 20L))
  expect_identical(nrow(msgx_obs(two(), c("two/a"), where = "depth > 14.5")), 2L)
})

test_that("msgx_compare equals ttest over shared genes", {
  db <- two()
  found <- msgx_compare(db, list(dataset = "two/a", type = "B"), list(dataset = "two/a", type = c("NK", "T")), transform = "log1p_cp10k")
  wanted <- ttest(db[["two/a"]], list(type = "B"), list(type = c("NK", "T")), transform = "log1p_cp10k")
  expect_identical(found$names, wanted$names)
  for (name in c("scores", "logfoldchanges", "pvals", "pvals_adj")) expect_close(found[[name]], wanted[[name]])
  other <- msgx_compare(db, list(dataset = "two/a", type = "B"), list(dataset = "two/b", type = "B"), transform = list("two/a" = "log1p_cp10k", "two/b" = "log1p_cp10k"))
  expect_setequal(other$names, paste0("gene", 6:20))
  expect_setequal(attr(other, "missing_in_a"), paste0("gene", 21:25))
  expect_setequal(attr(other, "missing_in_b"), paste0("gene", 1:5))
  expect_output(print(receipt(other)), "two/b: 20 genes")
})

test_that("centroids are means by cluster", {
  db <- two()
  found <- suppressWarnings(msgx_centroids(db, "two", "type", transform = NULL))
  expect_identical(dim(found), c(15L, 6L))
  expect_identical(unname(attr(found, "cells")), rep(20, 6))
  some <- counts(db[["two/b"]], genes = rownames(found))[, obs(db[["two/b"]])$type == "NK"]
  expect_close(found[, "two/b: NK"], Matrix::rowMeans(some))
})

test_that("similar clusters are those of Python", {
  db <- two()
  found <- msgx_similar(db, "two/a", "type", group = "B", transform = "log1p_cp10k", min_genes = 10, top = 2)
  expect_identical(found$dataset, c("two/b", "two/b"))
  expect_true(all(diff(found$similarity) <= 0))
  expect_identical(found$n_genes, c(15L, 15L))
  means <- msgx_centroids(db, "two", "type", transform = "log1p_cp10k")
  mine <- means[, 1:3]
  expect_close(found$similarity[1], cor(mine[, "two/a: B"] - rowMeans(mine), means[, paste0("two/b: ", found$match[1])] - rowMeans(mine)))
})

test_that("what is missing is said by class", {
  expect_error(msgx_obs(two(), "nowhere"), class = "msgexpress_not_found")
  expect_error(msgx_compare(two(), list(dataset = "two/a"), list(dataset = "two/b")), class = "msgexpress_invalid")
  expect_error(msgx_compare(two(), 3, list(dataset = "two/b")), class = "msgexpress_invalid")
  expect_error(msgx_similar(two(), "two/a", "type", transform = "log1p_cp10k"), class = "msgexpress_invalid")
})
