library(testthat)
library(msgexpress)

# Without Python and its package there is nothing to test. `make test-r` does not come by here: it fails then.
if (isTRUE(available <- msgx_available())) {
  test_check("msgexpress")
} else {
  message("the tests did not run: ", attr(available, "reason"))
}
