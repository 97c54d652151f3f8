library(testthat)
library(msgexpress)

test_check("msgexpress")
