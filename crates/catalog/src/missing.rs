//! The error for a key that a drive does not have.

use skytether_common::{Error, Kind, PartitionName};

use crate::root_store::Catalog;

/// The error for a reader of `partition` after `drive` reported by `error` that a part of it is missing. Where the root
/// record still names that partition, the data set was neither replaced nor dropped: the part is lost.
pub async fn explain(catalog: &Catalog, partition: &PartitionName, drive: &str, error: Error) -> Error {
    let name = &partition.dataset;
    match catalog.read(name).await {
        Ok((now, _)) if now.names_partition(partition) => {
            Error::corrupt(format!("{name} is incomplete, {drive} lacks a part of it (drop {name} and ingest it again)")).with_source(error)
        }
        Err(e) if e.kind() != Kind::NotFound => e.context(format!("{drive} lacks a part of {name}, and nobody can tell whether that was replaced")),
        _ => Error::conflict(format!("{name} was replaced or dropped while {drive} read it: run the query again")).with_source(error),
    }
}
