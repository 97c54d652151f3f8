//! What a host is told of the files: one data set, with a partition for each drive, as its root record and metadata
//! slices have it.
//!
//! A file does not tell how many rows it has. So the record says more than any file has, and no bounds of columns: a
//! host leaves out no drive, and takes the table for a large one that does not travel.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use skytether_catalog::records::root::PLAIN_FORMAT;
use skytether_common::{DatasetName, Generation, Result};
use skytether_device::{Storage, StorageOnly};
use skytether_file_query::DATASET;
use skytether_host::{DatasetKind, PartitionRecord, Placement, RootRecord, TableRecord};
use skytether_slice::{Layout, MetadataBuilder};
use skytether_store::{Expect, Op};

/// The table's name in the data set, and in sub-plans.
pub(crate) const STORED: &str = "data";

/// More rows than a file has.
const ROWS: u64 = 1 << 40;

/// The data set's name.
///
/// # Errors
/// None that are not defects.
pub(crate) fn name() -> Result<DatasetName> {
    DatasetName::new(DATASET.0, DATASET.1)
}

/// Writes the records of a table with these columns to all drives. `bytes` are those of each drive's files.
///
/// # Errors
/// `Unsupported` for columns that can't be described.
pub(crate) async fn write(drives: &[StorageOnly], bytes: &[u64], schema: &SchemaRef) -> Result<()> {
    let partition = |(slot, (drive, bytes)): (usize, (&StorageOnly, &u64))| PartitionRecord {
        drive: drive.info().id,
        slot: slot as u32,
        rows: ROWS,
        slices: 1,
        bytes: *bytes,
        bounds: Default::default(),
    };
    let table = TableRecord {
        generation: None,
        placement: Placement::Spread,
        rows: ROWS,
        matrix: None,
        part: None,
        memory_bytes: None,
        partitioned_by: None,
        partitions: drives.iter().zip(bytes).enumerate().map(partition).collect(),
        redundancy: None,
    };
    let record = RootRecord {
        format: PLAIN_FORMAT,
        name: name()?,
        kind: DatasetKind::Table,
        generation: Generation(1),
        content: None,
        change: 0,
        tables: BTreeMap::from([(STORED.to_owned(), table)]),
        superseded: Vec::new(),
        indexes: Vec::new(),
        application: BTreeMap::new(),
    };
    let metadata = MetadataBuilder::new(Layout::Table, schema.clone(), BTreeMap::new()).finish()?.encode()?;
    for (slot, drive) in drives.iter().enumerate() {
        let put = |key, value| Op::Put { key, value, expect: Expect::Any };
        let partition = put(record.partition(STORED, slot as u32).key()?, metadata.clone());
        drive.apply(vec![partition, put(record.name.root_key(), record.encode()?)]).await?;
    }
    Ok(())
}
