//! Basic types that every layer of Skytether shares.
//!
//! | module | subject |
//! |---|---|
//! | [`error`], [`detail`] | [`Error`]: a kind and a detail for programs, a text for people, a cause |
//! | [`names`] | [`DatasetName`], [`PartitionName`], [`Key`], [`Generation`]: names, and keys that contain them |
//! | [`blocks`] | [`Blocks`]: the cells that a sparse row of a matrix is about |
//! | [`pushdown`] | [`Pushdown`]: how much of a query drives run |
//! | [`checksum`] | CRC-32C |
//! | [`parallel`] | work on several threads, in order |
//! | [`memory`] | settings of the allocator |
//! | [`units`], [`operator_stats`], [`plan_words`] | numbers, statistics and plans as text |
//!
//! Nothing here does I/O, reads a clock or draws a random number: those come in as parameters from the layers above.
//!
//! ```
//! use skytether_common::{DatasetName, Generation, Kind, PartitionName};
//!
//! let dataset: DatasetName = "taxi.trips".parse()?;
//! let partition = PartitionName { dataset, generation: Generation(1), table: "data".to_owned(), slot: 0 };
//! let key = partition.slice_key(7)?;
//! assert_eq!(PartitionName::parse(&key), Some((partition, Some(7))));
//!
//! let error = "no data set".parse::<DatasetName>().unwrap_err();
//! assert_eq!(error.kind(), Kind::Invalid);
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/formats/keys.md`.

pub mod blocks;
pub mod checksum;
pub mod detail;
pub mod error;
pub mod lost;
pub mod memory;
pub mod names;
pub mod operator_stats;
pub mod parallel;
pub mod parquet_footer;
pub mod plan_words;
pub mod pushdown;
pub mod units;

pub use blocks::{BLOCK, Blocks, Span};
pub use detail::Detail;
pub use error::{Context, Error, Kind, Result};
pub use names::{DatasetName, Generation, Key, PartitionName};
pub use pushdown::Pushdown;
