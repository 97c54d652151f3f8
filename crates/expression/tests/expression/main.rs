//! The public behaviour of `skytether-expression`: one program, so that what it stands on is compiled and linked once.

mod common;

mod moments_sql;
mod rank_sums_sql;
mod rewrite;
