//! The query engine over files that are objects: what EXEC's operation `query` runs.
//!
//! A file is CSV, JSON lines or Parquet, read by the same readers as an ingest ([`skytether_formats`]), so its columns
//! have the same types and values as a table that it would be ingested as. A plan is a Substrait sub-plan, run by the
//! same engine as those over slices: same rules, memory pool, turns and receipts.
//!
//! | module | subject |
//! |---|---|
//! | [`engine`] | [`FileEngine`]: plans, rows as an Arrow IPC stream, the receipt |
//! | `table` | files of one table as DataFusion scans them |
//! | `object` | an object as a file that is read by place |
//!
//! A plan names its tables `[exec, files, TABLE]`. An empty plan asks for columns: the answer is a stream without rows.
//!
//! See also `docs/block.md`.
#![forbid(unsafe_code)]

pub mod engine;
mod object;
mod table;

pub use engine::{DATASET, FileEngine};
