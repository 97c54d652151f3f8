//! Slices and the Parquet view: what is written comes back, and hostile bytes are refused. One program for all of them:
//! linking takes longer than most of them run.

mod hostile;
mod plain;
mod roundtrip;
