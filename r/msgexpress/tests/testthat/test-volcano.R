# The volcano plot, with and without ggplot2.

ranks <- function() rank_genes_groups(test_dataset(), "type", transform = "log1p_cp10k")

test_that("the points are the result's genes", {
  found <- ranks()
  of_b <- found[found$group == "B", ]
  drawn <- plot_volcano(found, "B", engine = "base", lfc = 0.5, label = 2, path = tempfile(fileext = ".pdf"))
  there <- !is.na(of_b$logfoldchanges) & !is.na(of_b$pvals_adj)
  expect_identical(drawn$names, as.character(of_b$names[there]))
  inside <- drawn$edge == "none"
  expect_gt(sum(inside), 20)
  expect_identical(drawn$change[inside], of_b$logfoldchanges[there][inside])
  expect_identical(drawn$height[inside], -log10(of_b$pvals_adj[there][inside]))
  higher <- with(of_b[there, ], pvals_adj < 0.05 & logfoldchanges > 0.5)
  expect_identical(drawn$side == "higher", higher)
  expect_lte(sum(drawn$labelled), 4)
})

test_that("vanished p-values and lost genes are at the edge", {
  made <- data.frame(
    names = paste0("g", 1:5), scores = 5:1, logfoldchanges = c(2, Inf, 1.5, -30, NA), pvals_adj = c(0, 1e-10, 1e-20, 1e-8, 0.5), stringsAsFactors = FALSE
  )
  drawn <- plot_volcano(made, engine = "base", path = tempfile(fileext = ".png"))
  expect_identical(drawn$names, paste0("g", 1:4))
  expect_identical(as.character(drawn$edge), c("p", "change", "none", "change"))
  expect_true(all(is.finite(drawn$change)) && all(is.finite(drawn$height)))
  expect_gt(drawn$height[1], 308)
  expect_identical(as.character(drawn$side), c("higher", "higher", "higher", "lower"))
})

test_that("a file of each kind is written", {
  for (engine in c("base", if (requireNamespace("ggplot2", quietly = TRUE)) "ggplot2")) {
    for (ending in c(".png", ".pdf")) {
      path <- tempfile(fileext = ending)
      plot_volcano(ranks(), "NK", engine = engine, path = path)
      expect_gt(file.size(path), 2000)
      begin <- readBin(path, raw(), 4)
      expect_identical(rawToChar(begin[2:4]), if (ending == ".png") "PNG" else "PDF")
    }
    expect_error(plot_volcano(ranks(), "NK", engine = engine, path = file.path(tempfile(), "x.png")), "cannot write", class = "msgexpress_invalid")
  }
})

test_that("with ggplot2 it is a plot that can be changed", {
  skip_if_not_installed("ggplot2")
  plot <- plot_volcano(ranks(), "B")
  expect_s3_class(plot, "ggplot")
  expect_identical(plot$labels$title, "B against all other cells")
  expect_match(plot$labels$subtitle, "Welch's t-test, log1p of counts per 10,000")
  drawn <- ggplot2::ggplot_build(plot + ggplot2::ggtitle("mine"))
  expect_identical(nrow(drawn$data[[3]]), sum(!is.na(ranks()$logfoldchanges[ranks()$group == "B"])))
})

test_that("a plot that can't be is refused", {
  expect_error(plot_volcano(ranks()), "say which group: 'T', 'B', 'NK'", class = "msgexpress_invalid")
  expect_error(plot_volcano(ranks(), "Q"), "no group 'Q'", class = "msgexpress_not_found")
  expect_error(plot_volcano(ranks(), "B", p = 0), "p is 0", class = "msgexpress_invalid")
  expect_error(plot_volcano(ranks(), "B", lfc = -1), "lfc is -1", class = "msgexpress_invalid")
  expect_error(plot_volcano(data.frame(a = 1)), "logfoldchanges", class = "msgexpress_invalid")
  expect_error(plot_volcano(ranks(), "B", engine = "base", path = "x.bmp"), "the ending chooses the format", class = "msgexpress_invalid")
})
