# Runs the tests of r/msgexpress, says how many passed, and fails where one did (r/test.sh calls it).
options(warn = 1)
found <- as.data.frame(testthat::test_local("r/msgexpress", reporter = "check", stop_on_failure = FALSE))
skipped <- found$test[found$skipped]
failed <- sum(found$failed) + sum(found$error)
passed <- sum(found$nb) - sum(found$failed) - length(skipped)
if (length(skipped)) cat("skipped, as a suggested package is not installed:", paste0("\n  ", skipped), "\n")
cat(sprintf("R: %d tests in %d files\n%d passed, %d failed\n", nrow(found), length(unique(found$file)), passed, failed))
required <- identical(Sys.getenv("SKYTETHER_R"), "required")
quit(status = as.integer(failed > 0 || passed == 0 || (required && length(skipped) > 0)))
