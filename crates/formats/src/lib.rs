//! Table files, read as Arrow batches: Parquet, Arrow IPC and Feather, CSV and TSV, JSON, raw VPIC particles.
//!
//! - [`open`] reads files as one table, [`open_with`] also ones whose columns differ; [`find`] finds files by patterns.
//! - [`open_locations`] reads bytes that are no files ([`Object`]) in the same way.
//! - [`Format`] follows from the name's ending, or the caller gives it. Text may be compressed with gzip or zstd, with
//!   a second ending (`.csv.gz`).
//! - [`storage_schema`] is the form in which columns are stored.
//! - [`check_values`] refuses values that arrays of other libraries have, and their types don't.
//! - [`atomic_file`] writes a file that is there whole or not at all.
//!
//! Invariants: all files are inspected, one by one, before the first row is read, and then opened again one after the
//! other. So at most one file is open at a time. A file that changes in between is an error that names it. Every value
//! that is read is equal to what the file says, or an error names its place. Limits are checked before a library is
//! given the bytes, so memory is bounded whatever a file claims. This crate knows no fleet and no query engine.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! let path = dir.path().join("t.csv");
//! std::fs::write(&path, "gene,count\nCD3D,7\nMS4A1,\n")?;
//! let table = skytether_formats::open(&[&path])?;
//! assert_eq!(table.schema.field(1).name(), "count");
//! let rows: usize = table.batches.map(|batch| batch.map(|batch| batch.num_rows())).sum::<Result<usize, _>>()?;
//! assert_eq!(rows, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/storage.md`.

pub mod atomic_file;
pub mod storage_schema;

mod arrow_file;
mod convert;
mod csv_asked;
mod csv_nulls;
mod csv_quotes;
mod csv_values;
mod find_files;
mod footer;
mod format;
mod guard;
mod hive;
mod json_file;
mod json_objects;
mod json_shape;
mod large_text;
mod legacy;
mod location;
mod open;
mod options;
mod parquet_file;
mod pieces;
mod separated;
mod sound;
mod source;
mod together;
mod vpic_file;
mod widen;

pub use self::find_files::find;
pub use self::format::{BATCH_ROWS, Format};
pub use self::location::{Location, Object};
pub use self::open::{TableFile, open, open_as, open_locations, open_with};
pub use self::options::{NO_QUOTE, ReadOptions, SchemaMode, TextOptions, TextType};
pub use self::sound::check as check_values;
pub use self::widen::exactly as common_type;

#[cfg(test)]
mod tests;
