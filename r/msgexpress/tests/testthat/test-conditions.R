# What goes wrong is told by the class of a condition, and said without Python.

test_that("each kind of error has its class and its detail", {
  db <- test_fleet()
  ds <- test_dataset()
  missing <- caught(db[["lab/nothing"]])
  expect_s3_class(missing, c("msgexpress_not_found", "msgexpress_error", "error", "condition"), exact = TRUE)
  expect_identical(missing$kind, "not_found")
  expect_identical(missing$detail, list(type = "missing_dataset", dataset = "lab.nothing"))
  expect_error(ingest(db, shared$file, "lab/rich"), "exists already", class = "msgexpress_conflict")
  expect_error(ingest(db, tempfile(), "lab/x"), "there is no file", class = "msgexpress_not_found")
  expect_error(msgx_sql(db, "SELEC"), class = "msgexpress_invalid")
  expect_error(rank_genes_groups(ds, "typ", transform = NULL), "did you mean 'type'", class = "msgexpress_not_found")
  expect_error(rank_genes_groups(ds, "type", transform = NULL, groups = "Q"), class = "msgexpress_not_found")
  expect_error(rank_genes_groups(ds, "type", transform = NULL, method = "logistic"), class = "msgexpress_invalid")
  expect_error(rank_genes_groups(ds, "type", transform = NULL, wrong = 1), "unexpected keyword argument 'wrong'", class = "msgexpress_invalid")
  expect_error(msgx_connect("grpc://127.0.0.1:9"), class = "msgexpress_unavailable")
  damaged <- tempfile(fileext = ".h5ad")
  writeBin(readBin(shared$file, raw(), 5000), damaged)
  expect_error(ingest(db, damaged, "lab/x"), class = "msgexpress_corrupt")
})

test_that("an error has no traceback of Python", {
  for (wrong in list(
    caught(counts(test_dataset(), genes = "nothing")), caught(rank_genes_groups(test_dataset(), "type", transform = NULL, wrong = 1)),
    caught(msgexpress:::ask(reticulate::py_eval("[]", convert = FALSE), "pop"))
  )) {
    expect_s3_class(wrong, "msgexpress_error")
    expect_no_match(conditionMessage(wrong), "Traceback|File \"|\n")
  }
})

test_that("errors that are not ours are told apart", {
  wrong <- caught(msgexpress:::ask(reticulate::py_eval("[]", convert = FALSE), "pop"))
  expect_s3_class(wrong, "msgexpress_python")
  expect_identical(conditionMessage(wrong), "IndexError: pop from empty list")
})

test_that("a data set that was replaced is a conflict", {
  db <- test_fleet()
  values <- matrix(1:6 + 0, 2, 3, dimnames = list(c("g", "h"), c("a", "b", "c")))
  old <- ingest(db, values, "lab/old", replace = TRUE)
  ingest(db, values * 2, "lab/old", replace = TRUE)
  expect_error(counts(old), "was replaced.*db\\[\\['lab/old'\\]\\]", class = "msgexpress_conflict")
  expect_identical(as.matrix(counts(db[["lab/old"]])), values * 2)
})

test_that("what the Python package lacks is unsupported", {
  expect_error(msgexpress:::ask(test_dataset()$python, "no_such_method"), "has no no_such_method: upgrade it", class = "msgexpress_unsupported")
})

test_that("sets of genes for QC are masks, or refused", {
  ds <- test_dataset()
  mask <- function(set) as.logical(reticulate::py_to_r(msgexpress:::gene_mask(ds, set)$tolist()))
  wanted <- c(FALSE, TRUE, FALSE, TRUE, rep(FALSE, 36))
  expect_identical(mask(c("gene_3", "gene_1")), wanted)
  expect_identical(mask(c(4, 2)), wanted)
  expect_identical(mask(replace(wanted, 1, NA)), wanted)
  expect_error(mask(c("gene_1", "MT-1")), "no gene 'MT-1'", class = "msgexpress_not_found")
  expect_error(mask(41), "numbers 1 to 40", class = "msgexpress_invalid")
  expect_error(mask(TRUE), class = "msgexpress_invalid")
  expect_error(qc_metrics(ds, list("MT-")), "named list", class = "msgexpress_invalid")
})

test_that("arguments of the wrong kind are refused before Python", {
  db <- test_fleet()
  expect_error(obs_of <- datasets("fleet"), "db is a fleet", class = "msgexpress_invalid")
  expect_error(layers(db), "ds is a data set", class = "msgexpress_invalid")
  expect_error(db[[1]], "name is one text", class = "msgexpress_invalid")
  expect_error(msgx_open(c("a", "b")), "path is one text", class = "msgexpress_invalid")
  expect_error(rank_genes_groups(test_dataset(), "type", "t-test", "rest", "all", NULL, "bonferroni", NULL, NULL, NULL, NULL, NULL, 1), "have names", class = "msgexpress_invalid")
})

test_that("a fleet keeps its drives, and close lets go of it", {
  place <- tempfile("fleet")
  db <- msgx_open(place, drives = 2)
  expect_output(print(db), "msgx")
  expect_identical(datasets(db), character())
  expect_length(list.files(file.path(place, "drives")), 2)
  close(db)
  again <- msgx_open(place)
  values <- matrix(1:6 + 0, 2, 3, dimnames = list(c("g", "h"), c("a", "b", "c")))
  ingest(again, values, "lab/one")
  expect_identical(datasets(again), "lab/one")
  expect_output(print(again[["lab/one"]]), "2 genes x 3 cells")
  drop_dataset(again, "lab/one")
  expect_identical(datasets(again), character())
  expect_error(drop_dataset(again, "lab/one"), class = "msgexpress_not_found")
  close(again)
  expect_error(datasets(again), class = "msgexpress_error")
  expect_error(msgx_open(place, drives = 5), class = "msgexpress_invalid")
  expect_error(msgx_open(tempfile(), create = FALSE), class = "msgexpress_not_found")
})

test_that("a host answers as the fleet that it serves", {
  place <- tempfile("fleet")
  python()
  values <- matrix(c(1, 0, 2, 3, 0, 1), 2, 3, dimnames = list(c("g", "h"), c("a", "b", "c")))
  db <- msgx_open(place, drives = 2)
  ingest(db, values, "lab/one", obs = data.frame(kind = factor(c("x", "y", "x"))))
  close(db)
  host <- py("Host", place)
  withr::defer(reticulate::py_call(reticulate::py_get_attr(host, "end")))
  url <- reticulate::py_to_r(reticulate::py_get_attr(host, "url"))
  served <- msgx_connect(url)
  expect_identical(datasets(served), "lab/one")
  expect_identical(as.matrix(counts(served[["lab/one"]])), values)
  expect_identical(levels(obs(served[["lab/one"]])$kind), c("x", "y"))
  # The fleet of a directory has one process at a time.
  expect_error(msgx_open(place), class = "msgexpress_conflict")
  close(served)
})
