//! Writers of data sets: rows and matrices become slices on drives, and one compare-and-set makes them visible.
//!
//! - [`DatasetWriter`](dataset_writer::DatasetWriter) is one ingest under way, from `begin` to `commit` or `abort`.
//! - [`row_router`] gives rows to partitions, in turn or by key; [`matrix_writer`] gives genes to partitions.
//!   `partition_writer` writes them.
//! - [`stripe_encoder`] forms code groups and makes parities; [`write_pipeline`] sends batches, two under way per drive.
//!
//! Invariants: nothing of an ingest is visible before its commit, and everything after it (I1). A writer that is
//! dropped deletes what it wrote; after a crash the next open does. Memory is bounded, whatever the input has. This
//! crate reads no file formats (`skytether` does) and links no query engine.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use skytether_catalog::records::root::DatasetKind;
//! use skytether_catalog::root_store::Catalog;
//! use skytether_common::{DatasetName, Generation};
//! use skytether_device::{Storage, StorageOnly};
//! use skytether_ingest::dataset_writer::DatasetWriter;
//! use skytether_partitioning::Placement;
//! use skytether_slice::SliceOptions;
//! use uuid::Uuid;
//!
//! let drives: Vec<Arc<dyn Storage>> =
//!     (0..2).map(|n| Arc::new(StorageOnly::in_memory(Uuid::from_u128(n + 1), format!("drive-{n}"))) as _).collect();
//! let catalog = Catalog::new(drives, Duration::from_secs(10))?;
//! let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! let rows = RecordBatch::try_from_iter([("id", ids)])?;
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let name: DatasetName = "lab.runs".parse()?;
//!     let (options, kind) = (SliceOptions::default(), DatasetKind::Table);
//!     let begun = DatasetWriter::begin(catalog.clone(), options, name.clone(), kind, false, Generation(1));
//!     let mut writer = begun.await?;
//!     writer.write_table("data", Placement::Spread, rows.schema(), [Ok(rows)].into_iter()).await?;
//!     assert!(catalog.names().await?.is_empty());
//!
//!     assert_eq!(writer.commit().await?.rows, 100);
//!     assert!(catalog.names().await?.contains(&name));
//!     Ok::<_, skytether_common::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also ARCHITECTURE.md, section 6, and `docs/internals/erasure-coding.md`.

pub mod dataset_writer;
pub mod matrix_writer;
pub mod nesting;
mod partition_writer;
pub mod row_router;
pub mod stripe_encoder;
pub mod write_pipeline;
