//! The small tables that come beside a sub-plan, to be joined with the drive's own rows.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use skytether_common::{Error, Result};
use skytether_plan::error::from_datafusion;
use skytether_plan::shipped::SHIPPED;
use skytether_slice::metadata::ipc;

/// Tables by name.
#[derive(Clone, Default)]
pub(crate) struct Shipped(Arc<BTreeMap<String, Arc<MemTable>>>);

impl fmt::Debug for Shipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Shipped {
    /// Reads Arrow IPC streams.
    ///
    /// # Errors
    /// Invalid for a name that is none of theirs, and for bytes that are no stream of one uncompressed batch.
    pub(crate) fn read(tables: &BTreeMap<String, Bytes>) -> Result<Self> {
        let mut read = BTreeMap::new();
        for (name, bytes) in tables {
            if !name.strip_prefix(SHIPPED).is_some_and(|n| n.parse::<u16>().is_ok()) {
                return Err(Error::invalid(format!("a table beside a sub-plan is called {SHIPPED}0, {SHIPPED}1 and so on, not {name:?}")));
            }
            // The reader checks what it reads; what it overlooks must not take the drive with it.
            let table = catch_unwind(AssertUnwindSafe(|| stream(name, bytes)))
                .unwrap_or_else(|_| Err(Error::invalid(format!("the table {name} beside the sub-plan is no Arrow IPC stream"))))?;
            read.insert(name.clone(), Arc::new(table));
        }
        Ok(Self(Arc::new(read)))
    }

    /// The table of that name.
    pub(crate) fn table(&self, name: &str) -> Option<Arc<dyn TableProvider>> {
        self.0.get(name).map(|table| Arc::clone(table) as _)
    }
}

fn stream(name: &str, bytes: &Bytes) -> Result<MemTable> {
    let wrong = |e: Error| Error::invalid(format!("the table {name} beside the sub-plan is no Arrow IPC stream")).because(e);
    // Nothing is made larger than the bytes that are there.
    let (schema, batch) = ipc::read(bytes).map_err(wrong)?;
    MemTable::try_new(schema, vec![batch.into_iter().collect()]).map_err(from_datafusion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::record_batch::RecordBatch;
    use skytether_common::Kind;

    fn bytes() -> Vec<u8> {
        let batch = RecordBatch::try_from_iter([
            ("__shipped_0_0", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef),
            ("__shipped_0_1", Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]))),
        ])
        .unwrap();
        ipc::write(&batch.schema(), Some(&batch)).unwrap()
    }

    fn read(name: &str, bytes: Vec<u8>) -> Result<Shipped> {
        Shipped::read(&BTreeMap::from([(name.to_owned(), Bytes::from(bytes))]))
    }

    #[test]
    fn a_stream_is_a_table() {
        let shipped = read("__shipped_0", bytes()).unwrap();
        assert_eq!(shipped.table("__shipped_0").unwrap().schema().fields().len(), 2);
        assert!(shipped.table("__shipped_1").is_none());
    }

    #[test]
    fn names_of_stored_tables_are_refused() {
        for name in ["data", "__shipped_", "__shipped_x", "__shipped_-1", "x__shipped_0"] {
            assert_eq!(read(name, bytes()).unwrap_err().kind(), Kind::Invalid, "{name}");
        }
    }

    #[test]
    fn hostile_bytes_give_errors_and_no_panics() {
        let whole = bytes();
        for n in 0..whole.len() {
            if let Err(e) = read("__shipped_0", whole[..n].to_vec()) {
                assert_eq!(e.kind(), Kind::Invalid, "{n}");
            }
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[n] ^= 1 << bit;
                if let Err(e) = read("__shipped_0", flipped) {
                    assert_eq!(e.kind(), Kind::Invalid, "{n}.{bit}: {e}");
                }
            }
        }
    }
}
