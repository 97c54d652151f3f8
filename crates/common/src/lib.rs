//! What every layer of Skytether shares: errors, names and keys, checksums, work on several threads.
//!
//! Nothing here does I/O, reads a clock or draws a random number: those come in as parameters from the layers above.

pub mod checksum;
pub mod detail;
pub mod error;
pub mod memory;
pub mod names;
pub mod operator_stats;
pub mod parallel;
pub mod plan_words;
pub mod pushdown;
pub mod units;

pub use detail::Detail;
pub use error::{Context, Error, Kind, Result};
pub use names::{DatasetName, Generation, Key, PartitionName};
pub use pushdown::Pushdown;
