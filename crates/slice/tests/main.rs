//! Slices and the Parquet view: rows that are written come back, and hostile bytes are refused. All tests are one
//! program, because linking takes longer than most of them run.

mod hostile;
mod plain;
mod roundtrip;
