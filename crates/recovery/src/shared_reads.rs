//! Reads of slices that both a query and decoding need, made once.

use bytes::Bytes;
use skytether_catalog::records::code_map::{Level, Part};
use skytether_common::{Key, PartitionName, Result};

use crate::read_sharing::*;
use crate::reconstruct::Reconstructor;

impl Reconstructor {
    /// Whether a slice on a lost drive is in the group of slice `number` of a partition: then decoding needs this slice
    /// too. False while the partition's code map is unknown: no decoding of its groups has begun then.
    fn is_wanted_twice(&self, partition: &PartitionName, number: u32) -> bool {
        if self.health.down().is_empty() {
            return false;
        }
        let Some(Some(map)) = self.known_map(partition) else { return false };
        let (part, _) = Part::parse(partition);
        // As decoding begins.
        let first = Level::all(&map).into_iter().find_map(|level| level.find(part, partition.slot, number).map(|place| (level, place)));
        let Some((level, place)) = first else { return false };
        let Some(members) = level.map().group(place.group as usize) else { return false };
        members.data.iter().any(|shard| self.at(&level, shard).is_none_or(|at| self.health.is_down(at)))
    }

    /// The value of `key` at drive `at`. A reader that waited for another one gets an error if the drive is lost since.
    async fn ask_drive(&self, at: usize, what: &str, key: &Key) -> Result<Bytes> {
        self.is_here(at)?;
        self.ask(at, what, self.drives[at].get(key)).await
    }

    /// Whether slices may be needed more than twice: with several drives lost, several slices of a group are decoded.
    fn is_wanted_more(&self) -> bool {
        self.health.down().len() > 1
    }

    /// The value of `key` at drive `at`, as the drive gives it, for a query.
    ///
    /// # Errors
    /// As the drive's storage; Unavailable where it is lost.
    pub(crate) async fn for_query(&self, at: usize, key: &Key) -> Result<Bytes> {
        self.is_here(at)?;
        let read = || self.ask_drive(at, "read a value", key);
        match PartitionName::parse(key) {
            Some((partition, Some(number))) if self.is_wanted_twice(&partition, number) => {
                let reading = self.shared.once(at, key, Reader::Query, self.is_wanted_more(), read);
                self.shared.goes_on(at, &partition, number);
                let read = reading.await;
                self.shared.goes_on(at, &partition, number);
                read
            }
            _ => read().await,
        }
    }

    /// The shard under `key` at drive `at`, as the drive gives it, for decoding.
    ///
    /// # Errors
    /// As the drive's storage; Unavailable where it is lost.
    pub(crate) async fn for_decoding(&self, at: usize, key: &Key) -> Result<Bytes> {
        let read = || self.ask_drive(at, "read a shard", key);
        match PartitionName::parse(key) {
            // No query reads a parity.
            Some((partition, Some(_))) if Part::parse(&partition).0 == Part::Slice && self.shared.is_read(&partition) => {
                self.shared.once(at, key, Reader::Decoder, self.is_wanted_more(), read).await
            }
            _ => read().await,
        }
    }
}
