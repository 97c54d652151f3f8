//! What comes beside a sub-plan, by itself: for the fuzzer, which gives it any bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::catalog::TableProvider;
use skytether_common::Result;

use crate::shipped::Shipped;

/// The tables of a ticket as a sub-plan reads them, by the order of their names.
///
/// # Errors
/// Invalid for a name that is none of theirs, and for bytes that are no stream of one uncompressed batch or claim more than may be sent.
pub fn tables(tables: &BTreeMap<String, Bytes>) -> Result<Vec<Arc<dyn TableProvider>>> {
    let read = Shipped::read(tables)?;
    Ok(tables.keys().filter_map(|name| read.table(name)).collect())
}
