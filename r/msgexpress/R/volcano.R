# The volcano plot.

#' Volcano plot
#'
#' Log fold changes against p-values of one group, with ggplot2 where it is installed, and with R's own graphics
#' elsewhere.
#'
#' A gene beyond the edge is drawn at it: p-values too small for a double as triangles, fold changes of genes that no
#' cell of one side has as diamonds. The axes say so.
#'
#' @param x A result of [rank_genes_groups()] or [ttest()], or rows of one.
#' @param group Which group; may be left out if there is only one.
#' @param label How many genes to name on each side.
#' @param lfc,p Where the lines are: genes beyond both in colour. `lfc` is not negative, `p` above 0 and at most 1.
#' @param path A file to save it in; the ending chooses the format (.png, .pdf, .svg). `NULL` for the screen.
#' @param engine `"ggplot2"`, `"base"`, or `"auto"`: ggplot2 where it is installed.
#' @return With ggplot2 the plot, which you can change and print. With R's own graphics the data that were drawn,
#'   invisibly. The data: `names`, `change` and `height` (as drawn), `side` (`higher`, `lower`, `other`), `edge`
#'   (`none`, `change`, `p`), and `labelled`.
#' @section Errors:
#' `msgexpress_invalid` where `lfc` or `p` is none of these, or `group` is left out and there are several;
#' `msgexpress_not_found` where there is no such group; `msgexpress_unsupported` where ggplot2 is asked for and not
#' installed.
#' @examplesIf isTRUE(msgexpress::msgx_available())
#' db <- msgx_open(file.path(tempdir(), "fleet"))
#' values <- matrix(rpois(800, 2), 20, 40, dimnames = list(paste0("gene", 1:20), paste0("cell", 1:40)))
#' cells <- data.frame(type = factor(rep(c("B", "NK"), 20)))
#' ds <- ingest(db, values, "lab/first", obs = cells, replace = TRUE)
#' plot_volcano(rank_genes_groups(ds, "type", transform = "log1p_cp10k"), "B")
#' close(db)
#' @export
plot_volcano <- function(x, group = NULL, label = 12, lfc = 1, p = 0.05, path = NULL, engine = c("auto", "ggplot2", "base")) {
  engine <- match.arg(engine)
  if (!is.numeric(p) || length(p) != 1 || !isTRUE(p > 0 && p <= 1)) {
    raise("invalid", sprintf("p is %s: the line of significance is at a p-value above 0 and at most 1", format(p)))
  }
  if (!is.numeric(lfc) || length(lfc) != 1 || !isTRUE(lfc >= 0 && is.finite(lfc))) {
    raise("invalid", sprintf("lfc is %s: the lines of the fold change are at minus and plus a number that is not negative", format(lfc)))
  }
  if (engine == "auto") {
    engine <- if (requireNamespace("ggplot2", quietly = TRUE)) "ggplot2" else "base"
  }
  chosen <- rows_of_group(x, group)
  drawn <- volcano_points(chosen$rows, label, lfc, p)
  title <- volcano_title(x, chosen$group)
  if (engine == "ggplot2") {
    needs("ggplot2", "plot_volcano(engine = \"ggplot2\")")
    return(volcano_ggplot(drawn, title, lfc, p, path))
  }
  volcano_base(drawn, title, lfc, p, path)
}

# The rows of one group of a result, and its name.
rows_of_group <- function(x, group) {
  needed <- c("names", "logfoldchanges", "pvals_adj")
  if (!is.data.frame(x) || !all(needed %in% names(x))) {
    raise("invalid", sprintf("plot_volcano() draws a result of rank_genes_groups() or ttest(): a data frame with %s", paste(needed, collapse = ", ")))
  }
  there <- if ("group" %in% names(x)) unique(as.character(x$group)) else attr(x, "groups")
  if (is.null(group)) {
    if (length(there) > 1) {
      raise("invalid", sprintf("say which group: %s", paste(sprintf("'%s'", there), collapse = ", ")))
    }
  } else if (!is.null(there) && !as.character(group) %in% there) {
    raise("not_found", sprintf("there is no group '%s' in this result: there are %s", group, paste(sprintf("'%s'", there), collapse = ", ")))
  }
  rows <- if ("group" %in% names(x) && length(there) > 1) x[as.character(x$group) == as.character(group), ] else x
  list(rows = as.data.frame(unclass(rows)), group = if (is.null(group)) there else as.character(group))
}

volcano_title <- function(x, group) {
  params <- attr(x, "params")
  reference <- params$reference
  list(
    main = if (is.null(reference)) group else paste(group, "against", if (identical(reference, "rest")) "all other cells" else reference),
    sub = if (!is.null(params)) {
      values <- if (identical(params$transform, "log1p_cp10k")) "log1p of counts per 10,000" else "values as stored"
      paste(c(attr(x, "test"), values, params$corr_method), collapse = ", ")
    }
  )
}

# What is drawn: where each gene is, on which side, and which have their names next to them.
volcano_points <- function(rows, label, lfc, p) {
  # What was not tested is nowhere. A fold change may be infinite.
  rows <- rows[!is.na(rows$logfoldchanges) & !is.na(rows$pvals_adj), ]
  change <- as.numeric(rows$logfoldchanges)
  adjusted <- as.numeric(rows$pvals_adj)
  significant <- adjusted < p
  side <- ifelse(significant & change > lfc, "higher", ifelse(significant & change < -lfc, "lower", "other"))
  # A gene without any count on one side has a fold change of +-30 or so: it goes to the edge.
  usual <- abs(if (any(significant)) change[significant] else change)
  reach <- max(2 * lfc, ceiling(2 * max(0, usual[usual < 15])) / 2, 0.5)
  outside <- abs(change) > reach
  height <- -log10(adjusted)
  # Of a p-value too small for a double no more is known than that.
  vanished <- adjusted == 0
  top <- max(height[!vanished], -1.5 * log10(p), 0.1)
  if (any(vanished)) {
    top <- max(top, 308) * 1.04
    height[vanished] <- top
  }
  out <- data.frame(
    names = as.character(rows$names), change = pmin(pmax(change, -reach), reach), height = height,
    side = factor(side, levels = c("higher", "lower", "other")),
    edge = factor(ifelse(vanished, "p", ifelse(outside, "change", "none")), levels = c("none", "change", "p")),
    stringsAsFactors = FALSE
  )
  best <- utils::head(which(side == "higher"), label)
  worst <- utils::head(rev(which(side == "lower")), label)
  out$labelled <- seq_len(nrow(out)) %in% c(best, worst)
  structure(out, reach = reach, top = top)
}

volcano_colours <- c(higher = "#c8553d", lower = "#2f6690", other = "#c9ced6")
volcano_shapes <- c(none = 16, change = 18, p = 17)

volcano_labels <- function(drawn) {
  list(
    x = paste0("log2 fold change", if (any(drawn$edge == "change")) sprintf("  (diamonds: beyond %s)", format(attr(drawn, "reach")))),
    y = paste0("-log10 adjusted p-value", if (any(drawn$edge == "p")) "  (triangles: p below 1e-308)"),
    higher = sprintf("%s higher", commas(sum(drawn$side == "higher"))),
    lower = sprintf("%s lower", commas(sum(drawn$side == "lower")))
  )
}

volcano_ggplot <- function(drawn, title, lfc, p, path) {
  say <- volcano_labels(drawn)
  reach <- attr(drawn, "reach")
  top <- attr(drawn, "top")
  aes <- ggplot2::aes
  data <- drawn[order(drawn$side != "other"), ]
  plot <- ggplot2::ggplot(data, aes(x = .data$change, y = .data$height)) +
    ggplot2::geom_vline(xintercept = c(-lfc, lfc), linetype = "dashed", colour = "#9aa1ac", linewidth = 0.3) +
    ggplot2::geom_hline(yintercept = -log10(p), linetype = "dashed", colour = "#9aa1ac", linewidth = 0.3) +
    ggplot2::geom_point(aes(colour = .data$side, shape = .data$edge), alpha = 0.75, size = 1.6) +
    ggplot2::geom_text(
      # Names at an edge of the plot are on its inner side.
      data = data[data$labelled, ], aes(label = .data$names, hjust = 0.5 + 0.5 * trunc(.data$change / reach)),
      size = 2.8, vjust = -0.7, colour = "#2b2f36", check_overlap = TRUE
    ) +
    ggplot2::annotate("text", x = reach * 1.1, y = top * 1.12, label = say$higher, hjust = 1, colour = volcano_colours[["higher"]], size = 3.2) +
    ggplot2::annotate("text", x = -reach * 1.1, y = top * 1.12, label = say$lower, hjust = 0, colour = volcano_colours[["lower"]], size = 3.2) +
    ggplot2::scale_colour_manual(values = volcano_colours, guide = "none") +
    ggplot2::scale_shape_manual(values = volcano_shapes, guide = "none") +
    ggplot2::coord_cartesian(xlim = c(-1.12, 1.12) * reach, ylim = c(-0.02, 1.14) * top, expand = FALSE) +
    ggplot2::labs(x = say$x, y = say$y, title = title$main, subtitle = title$sub) +
    ggplot2::theme_classic() +
    ggplot2::theme(plot.title = ggplot2::element_text(face = "bold"), plot.subtitle = ggplot2::element_text(size = 8.5, colour = "#6b7280"))
  if (!is.null(path)) {
    saving(path, ggplot2::ggsave(path.expand(path), plot, width = 8, height = 6, dpi = 150))
  }
  plot
}

volcano_base <- function(drawn, title, lfc, p, path) {
  if (is.null(path)) {
    return(invisible(draw_base(drawn, title, lfc, p)))
  }
  open <- grDevices::dev.list()
  # Some devices open their file at the first page, and stay open where they can't.
  on.exit(for (device in setdiff(grDevices::dev.list(), open)) grDevices::dev.off(device))
  saving(path, {
    open_device(path)
    draw_base(drawn, title, lfc, p)
  })
  invisible(drawn)
}

draw_base <- function(drawn, title, lfc, p) {
  say <- volcano_labels(drawn)
  reach <- attr(drawn, "reach")
  top <- attr(drawn, "top")
  order <- order(drawn$side != "other")
  data <- drawn[order, ]
  graphics::plot(
    data$change, data$height,
    col = grDevices::adjustcolor(volcano_colours[as.character(data$side)], 0.75), pch = volcano_shapes[as.character(data$edge)], cex = 0.8,
    xlim = c(-1.12, 1.12) * reach, ylim = c(-0.02, 1.14) * top, xlab = say$x, ylab = say$y, main = title$main, bty = "l", las = 1
  )
  if (!is.null(title$sub)) graphics::mtext(title$sub, side = 3, line = 0.3, cex = 0.75, col = "#6b7280")
  graphics::abline(v = c(-lfc, lfc), h = -log10(p), lty = 2, col = "#9aa1ac")
  if (any(drawn$labelled)) {
    named <- drawn[drawn$labelled, ]
    named <- named[apart(named), ]
    graphics::text(named$change, named$height, named$names, pos = 3, cex = 0.65, offset = 0.3, xpd = NA)
  }
  graphics::legend("topright", say$higher, text.col = volcano_colours[["higher"]], bty = "n", cex = 0.8)
  graphics::legend("topleft", say$lower, text.col = volcano_colours[["lower"]], bty = "n", cex = 0.8)
  drawn
}

# Which names have room, the first ones first: as ggplot2's check_overlap has it.
apart <- function(named) {
  wide <- graphics::strwidth(named$names, cex = 0.65) / 2
  high <- graphics::strheight("X", cex = 0.65) * 1.3
  kept <- integer()
  for (at in seq_len(nrow(named))) {
    free <- abs(named$change[kept] - named$change[at]) > wide[kept] + wide[at] | abs(named$height[kept] - named$height[at]) > high
    if (all(free)) kept <- c(kept, at)
  }
  kept
}

open_device <- function(path) {
  path <- path.expand(path)
  switch(tolower(ending_of(path)),
    png = grDevices::png(path, width = 1200, height = 900, res = 150),
    pdf = grDevices::pdf(path, width = 8, height = 6),
    svg = grDevices::svg(path, width = 8, height = 6),
    raise("invalid", sprintf("%s: the ending chooses the format: .png, .pdf or .svg", path))
  )
}

ending_of <- function(path) sub(".*\\.", "", basename(path))

# What goes wrong with a file says which file.
saving <- function(path, expression) {
  tryCatch(force(expression),
    msgexpress_error = function(e) stop(e),
    error = function(e) raise("invalid", sprintf("cannot write %s: %s", path, first_line(conditionMessage(e))))
  )
}
