//! Broadcast tables: the small tables that travel with a sub-plan and are joined with the drive's own rows; and tables
//! that the caller of the engine gives it in the same way.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use skytether_common::{Error, Result};
use skytether_plan::broadcast_join::{self, SHIPPED_PREFIX};
use skytether_plan::error::from_datafusion;
use skytether_slice::metadata::column_types::takes_bytes;
use skytether_slice::metadata::ipc;

/// The broadcast tables of a sub-plan, by name.
#[derive(Clone, Default)]
pub(crate) struct BroadcastTables(Arc<BTreeMap<String, Arc<dyn TableProvider>>>);

impl fmt::Debug for BroadcastTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl BroadcastTables {
    /// Reads Arrow IPC streams.
    ///
    /// # Errors
    /// Invalid for a name that is none of theirs, and for bytes that are no stream of one uncompressed batch.
    pub(crate) fn read(tables: &BTreeMap<String, Bytes>) -> Result<Self> {
        let mut read = BTreeMap::new();
        for (name, bytes) in tables {
            let number = name.strip_prefix(SHIPPED_PREFIX).and_then(|n| n.parse::<u16>().ok());
            // As it is written: a name that only reads as the same number is another table's.
            if number.is_none_or(|n| broadcast_join::name(n.into()) != *name) {
                return Err(Error::invalid(format!("a table beside a sub-plan is called {SHIPPED_PREFIX}0, {SHIPPED_PREFIX}1 and so on, not {name:?}")));
            }
            // The reader checks what it reads; what it overlooks must not take the drive with it.
            let table = catch_unwind(AssertUnwindSafe(|| stream(name, bytes)))
                .unwrap_or_else(|_| Err(Error::invalid(format!("the table {name} beside the sub-plan is no Arrow IPC stream"))))?;
            read.insert(name.clone(), Arc::new(table) as _);
        }
        Ok(Self(Arc::new(read)))
    }

    /// These and `given`, which are no part of the sub-plan.
    pub(crate) fn and(self, given: &BTreeMap<String, Arc<dyn TableProvider>>) -> Self {
        if given.is_empty() {
            return self;
        }
        let own = self.0.iter().map(|(name, table)| (name.clone(), Arc::clone(table)));
        Self(Arc::new(own.chain(given.iter().map(|(name, table)| (name.clone(), Arc::clone(table)))).collect()))
    }

    /// The table of that name.
    pub(crate) fn table(&self, name: &str) -> Option<Arc<dyn TableProvider>> {
        self.0.get(name).cloned()
    }
}

/// The broadcast tables of a ticket as a sub-plan reads them, by the order of their names. The fuzzer
/// calls it with any bytes.
///
/// # Errors
/// Invalid for a name that is none of theirs, and for bytes that are no stream of one uncompressed batch or
/// claim more than may be sent.
pub fn tables(tables: &BTreeMap<String, Bytes>) -> Result<Vec<Arc<dyn TableProvider>>> {
    let read = BroadcastTables::read(tables)?;
    Ok(tables.keys().filter_map(|name| read.table(name)).collect())
}

/// What the host sends, and no more: rows of types without bytes could be as many as a ticket likes to claim.
const ACCEPTED: ipc::Accepted = ipc::Accepted { rows: broadcast_join::MAX_ROWS, column: takes_bytes };

fn stream(name: &str, bytes: &Bytes) -> Result<MemTable> {
    let wrong = |e: Error| Error::invalid(format!("the table {name} beside the sub-plan can't be taken")).with_source(e);
    // Nothing is made larger than the bytes that are there.
    let (schema, batch) = ipc::read_accepted(bytes, ACCEPTED).map_err(wrong)?;
    if schema.fields().is_empty() {
        return Err(Error::invalid(format!("the table {name} beside the sub-plan has no columns")));
    }
    MemTable::try_new(schema, vec![batch.into_iter().collect()]).map_err(from_datafusion)
}

#[cfg(test)]
mod tests;
