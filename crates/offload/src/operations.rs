//! The operations of this crate.

pub mod compress;
pub mod digests;
pub mod framed;
pub mod merge;
pub mod order;
pub mod query;
pub mod search;
pub mod sort;
pub mod words;

mod characters;
mod lines;
mod pattern;

use std::sync::Arc;

use skytether_common::Result;

use crate::operation::Registry;
pub use lines::{Lines, Region};
pub use pattern::Pattern;
pub use query::{QueryFiles, QueryRequest};
pub use words::Counts;

/// All operations of this crate. Without `engine`, there are no queries.
///
/// # Errors
/// None that are not defects.
pub fn registry(engine: Option<Arc<dyn QueryFiles>>) -> Result<Registry> {
    let mut registry = Registry::empty();
    for algorithm in digests::Algorithm::ALL {
        registry.add(Arc::new(digests::Sum(algorithm)))?;
    }
    registry.add(Arc::new(framed::VerifyFramed))?;
    registry.add(Arc::new(search::Search))?;
    registry.add(Arc::new(words::WordCount))?;
    for records in [false, true] {
        registry.add(Arc::new(sort::Sort { records }))?;
        registry.add(Arc::new(merge::Merge { records }))?;
    }
    for codec in [compress::Codec::Zstd, compress::Codec::Lz4] {
        registry.add(Arc::new(compress::Compress(codec)))?;
        registry.add(Arc::new(compress::Decompress(codec)))?;
    }
    if let Some(engine) = engine {
        registry.add(Arc::new(query::Query(engine)))?;
    }
    Ok(registry)
}
