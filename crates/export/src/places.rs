//! Where the values of a data set lie: the drives are asked, and not only the records about them.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use skytether_catalog::record_source::RecordSource;
use skytether_catalog::records::code_map::{INNER_PARITY, PARITY};
use skytether_catalog::records::root::RootRecord;
use skytether_catalog::root_store::Catalog;
use skytether_common::{DatasetName, Key, PartitionName, Result};
use skytether_device::Storage;
use skytether_device::kept::KEPT;
use skytether_index::INDEX;
use skytether_runtime::within;
use skytether_store::Entry;

/// Keys of one answer of a drive.
const PAGE: usize = 4096;

/// What a value is to its data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The root record.
    Root,
    /// The metadata slice of a partition, of parities the code map.
    Metadata,
    /// A slice of rows.
    Slice,
    /// A parity over drives or nodes.
    Parity,
    /// A parity within a node.
    InnerParity,
    /// A part of an index.
    Index,
    /// A kept result.
    Kept,
}

impl Purpose {
    /// In a word or two.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root record",
            Self::Metadata => "metadata",
            Self::Slice => "slice",
            Self::Parity => "parity",
            Self::InnerParity => "inner parity",
            Self::Index => "index",
            Self::Kept => "kept result",
        }
    }
}

/// A value of a data set on a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The drive's name.
    pub drive: String,
    /// The table, and of a part of a matrix the matrix's; none for the root record.
    pub table: Option<String>,
    /// What the value is.
    pub purpose: Purpose,
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its CRC-32C.
    pub crc32c: u32,
}

/// Where a data set lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The values, drive by drive, in the order of their keys.
    pub values: Vec<Place>,
    /// Drives that could not be asked, each with the reason. What they hold is not among the values.
    pub unasked: Vec<(String, String)>,
}

/// Where the values of the data set `name` lie. Values that no record names any more, or not yet, are left out.
///
/// # Errors
/// `NotFound` for an unknown data set; those of `records`.
pub fn places<'a>(catalog: &'a Catalog, records: &'a dyn RecordSource, name: &'a DatasetName) -> BoxFuture<'a, Result<Places>> {
    Box::pin(async move {
        let record = records.record(name).await?;
        let asked = catalog.drives().iter().map(|drive| async {
            let found = of_drive(drive.as_ref(), &record, catalog.deadline()).await;
            (drive.info().name.clone(), found)
        });
        let (mut values, mut unasked) = (Vec::new(), Vec::new());
        for (drive, found) in join_all(asked).await {
            match found {
                Ok(found) => values.extend(found),
                Err(error) => unasked.push((drive, error.report())),
            }
        }
        Ok(Places { values, unasked })
    })
}

async fn of_drive(drive: &dyn Storage, record: &RootRecord, deadline: Duration) -> Result<Vec<Place>> {
    let of = drive.info().name.as_str();
    let mut values = Vec::new();
    let root = record.name.root_key();
    if let Some(entry) = within(deadline, of, "look up a key", drive.stat(&root)).await? {
        values.push(place(drive, entry, None, Purpose::Root));
    }
    let (prefix, mut after) = (record.name.prefix(), None);
    loop {
        let page = within(deadline, of, "list keys", drive.list(&prefix, after.as_ref(), PAGE)).await?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|entry| entry.key.clone());
        for entry in page {
            if let Some((partition, slice)) = PartitionName::parse(&entry.key).filter(|(partition, _)| record.names_partition(partition)) {
                let purpose = purpose(&partition, slice.is_some());
                values.push(place(drive, entry, Some(partition), purpose));
            }
        }
        if is_last {
            return Ok(values);
        }
    }
}

fn place(drive: &dyn Storage, entry: Entry, partition: Option<PartitionName>, purpose: Purpose) -> Place {
    let table = partition.map(|partition| of_rows(&partition).to_owned());
    Place { drive: drive.info().name.clone(), table, purpose, key: entry.key, bytes: entry.len, crc32c: entry.crc32c }
}

fn purpose(partition: &PartitionName, is_slice: bool) -> Purpose {
    let table = partition.table.as_str();
    let own = [(PARITY, Purpose::Parity), (INNER_PARITY, Purpose::InnerParity), (INDEX, Purpose::Index), (KEPT, Purpose::Kept)];
    match own.into_iter().find(|(prefix, _)| table.starts_with(prefix)) {
        Some((_, Purpose::Parity | Purpose::InnerParity)) | None if !is_slice => Purpose::Metadata,
        Some((_, purpose)) => purpose,
        None => Purpose::Slice,
    }
}

/// The table whose rows a partition holds, or protects, or has an index of.
fn of_rows(partition: &PartitionName) -> &str {
    let table = partition.table.as_str();
    let of_parity = [PARITY, INNER_PARITY].into_iter().find_map(|prefix| table.strip_prefix(prefix));
    let of_index = || [INDEX, KEPT].into_iter().find_map(|prefix| table.strip_prefix(prefix)?.split_once('/')).map(|(_, table)| table);
    of_parity.or_else(of_index).unwrap_or_else(|| partition.whole())
}
