//! A table as one Parquet file, put together from its slices as they are stored.
//!
//! - [`ParquetView`](parquet_view::ParquetView) opens a table over a catalog, reads ranges of its file, and exports the
//!   whole to a [`Sink`](parquet_view::Sink).
//! - [`places`](places::places) tells which drives hold which values of a data set.
//! - [`VirtualFile`](virtual_file::VirtualFile) is an open file: its length, its footer, and a cache of slices.
//!
//! Invariants: a file has the generation that it was opened with, or reading fails with `Conflict`. Every slice is
//! verified before its bytes are given (I5). Rows are copied as they are encoded, and never decoded; so the dense
//! view of a matrix, which no drive stores, is not a file. This crate writes nothing and links no query engine.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use skytether_catalog::records::root::DatasetKind;
//! use skytether_catalog::root_store::Catalog;
//! use skytether_common::Generation;
//! use skytether_device::{Storage, StorageOnly};
//! use skytether_export::parquet_view::ParquetView;
//! use skytether_ingest::dataset_writer::DatasetWriter;
//! use skytether_partitioning::Placement;
//! use skytether_slice::SliceOptions;
//! use uuid::Uuid;
//!
//! let drive: Arc<dyn Storage> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive-0"));
//! let catalog = Catalog::new(vec![drive], Duration::from_secs(10))?;
//! let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! let rows = RecordBatch::try_from_iter([("id", ids)])?;
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let name = "lab.runs".parse()?;
//!     let (options, kind) = (SliceOptions::default(), DatasetKind::Table);
//!     let mut writer = DatasetWriter::begin(catalog.clone(), options, name, kind, false, Generation(1)).await?;
//!     writer.write_table("data", Placement::Spread, rows.schema(), [Ok(rows)].into_iter()).await?;
//!     writer.commit().await?;
//!
//!     let door = ParquetView::new(catalog.clone(), Arc::new(catalog));
//!     let file = door.open("lab.runs").await?;
//!     assert_eq!(file.rows(), 100);
//!     let bytes = door.read(&file, 0..file.len()).await?;
//!     assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
//!     Ok::<_, skytether_common::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/parquet-view.md`.

pub mod parquet_view;
pub mod places;
pub mod virtual_file;
