//! The code groups of a table while it is written: slices wait until a group of them is complete, and its parities go out with the slices.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, PartitionName, Result};
use skytether_redundancy::groups::{Group, Grouper, Placed, default_window};
use skytether_redundancy::map::{CodeMap, Shard};
use skytether_redundancy::{Code, Scheme, code};
use uuid::Uuid;

use super::stored::{RedundancyRecord, StoredMap, holders, parity_of};
use crate::catalog::{Catalog, PartitionRecord};
use crate::outbox::Outbox;

/// Bytes of slices that wait for others of their group, about: larger windows waste less.
const WINDOW: usize = 96 << 20;

/// A slice that waits; its bytes are those that were sent.
#[derive(Debug)]
struct Held {
    number: u32,
    bytes: Bytes,
}

/// Makes the parities of one table.
pub(crate) struct Coder<'a> {
    outbox: &'a Outbox,
    scheme: Scheme,
    code: Code,
    /// A partition of the table; which one does not matter.
    table: PartitionName,
    /// The host's drives that the table is written over; partitions are numbered by their places in this.
    drives: Vec<usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    grouper: Grouper<Held>,
    /// Bytes that wait.
    waiting: usize,
    groups: Vec<(Vec<Shard>, Vec<Shard>)>,
    /// Parities of each drive so far, and their bytes.
    parities: Vec<(u32, u64)>,
}

/// A group whose parities have their names.
struct Formed {
    group: Group<Held>,
    numbers: Vec<u32>,
}

impl<'a> Coder<'a> {
    /// For `table`, which is written over these of the host's `drives`, in slices of about `slice_bytes`.
    ///
    /// # Errors
    /// Invalid where there are fewer than K + M drives.
    pub(crate) fn new(outbox: &'a Outbox, scheme: Scheme, code: Code, table: PartitionName, drives: Vec<usize>, slice_bytes: usize) -> Result<Self> {
        let window = default_window(code).min(WINDOW / slice_bytes.max(1));
        // Parities of many small tables are to begin on different drives.
        let grouper = Grouper::new(code, drives.len(), window, table.generation.0)?;
        let parities = vec![(0, 0); drives.len()];
        let state = State { grouper, waiting: 0, groups: Vec::new(), parities };
        Ok(Self { outbox, scheme, code, table, drives, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slice `number` of partition `slot` goes out. What it completes is encoded by this thread.
    ///
    /// # Errors
    /// As [`Outbox::put`] and [`Grouper::push`].
    pub(crate) fn push(&self, slot: u32, number: u32, bytes: &Bytes) -> Result<()> {
        let formed = {
            let mut state = self.state();
            state.waiting += bytes.len();
            let held = Held { number, bytes: bytes.clone() };
            let mut groups: Vec<_> = state.grouper.push(Placed { drive: slot, id: held, len: bytes.len() as u64 })?.into_iter().collect();
            if state.waiting > 2 * WINDOW {
                // Slices are much longer than they should be: room comes first.
                groups.extend(state.grouper.finish());
            }
            groups.into_iter().map(|group| state.name(group)).collect::<Result<Vec<_>>>()?
        };
        formed.into_iter().try_for_each(|formed| self.encode(formed))
    }

    /// Makes and sends the parities of a group.
    fn encode(&self, formed: Formed) -> Result<()> {
        let Formed { group, numbers } = formed;
        let data: Vec<&[u8]> = group.data.iter().map(|placed| placed.id.bytes.as_ref()).collect();
        let parities = code::encode(self.code, &data)?;
        let shard = |drive: u32, number: u32, bytes: &[u8]| Shard { drive, home: drive, number, len: bytes.len() as u64, crc32c: crc32c(bytes) };
        let shards = group.data.iter().map(|placed| shard(placed.drive, placed.id.number, &placed.id.bytes)).collect();
        let mut parity = Vec::with_capacity(parities.len());
        for ((drive, number), bytes) in group.parity.iter().zip(numbers).zip(parities) {
            parity.push(shard(*drive, number, &bytes));
            let to = self.drives.get(*drive as usize).ok_or_else(|| Error::internal("a parity is to go to no drive"))?;
            self.outbox.put(*to, parity_of(&self.table, *drive).slice_key(number)?, bytes)?;
        }
        self.state().groups.push((shards, parity));
        Ok(())
    }

    /// The drives, of the host's, that have what lies under the key of partition `slot` itself.
    pub(crate) fn holders(&self, slot: u32) -> Vec<usize> {
        holders(slot, self.drives.len(), self.code.parity()).filter_map(|at| self.drives.get(at).copied()).collect()
    }

    /// Encodes what still waits, and sends the code map; what the root record is to say.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn finish(self, catalog: &Catalog) -> Result<RedundancyRecord> {
        let formed = {
            let mut state = self.state();
            let groups = state.grouper.finish();
            groups.into_iter().map(|group| state.name(group)).collect::<Result<Vec<_>>>()?
        };
        formed.into_iter().try_for_each(|formed| self.encode(formed))?;
        let ids: Vec<Uuid> = self.drives.iter().filter_map(|at| Some(catalog.drives().get(*at)?.info().id)).collect();
        let state = self.state();
        let map = CodeMap::new(self.code, state.groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice())))?;
        let map = StoredMap::encode(&ids, &map)?;
        let key = parity_of(&self.table, 0).key()?;
        for at in self.holders(0) {
            self.outbox.put(at, key.clone(), map.clone())?;
        }
        let parity = ids.iter().zip(&state.parities).enumerate().map(|(slot, (id, (slices, bytes)))| {
            let bytes = bytes + if slot == 0 { map.len() as u64 } else { 0 };
            PartitionRecord { drive: *id, slot: slot as u32, rows: 0, slices: *slices, bytes }
        });
        Ok(RedundancyRecord { scheme: self.scheme, parity: parity.filter(|p| p.slot == 0 || p.slices > 0).collect(), drives: ids })
    }
}

impl State {
    /// Gives a group's parities their numbers; its slices no longer wait.
    fn name(&mut self, group: Group<Held>) -> Result<Formed> {
        self.waiting = self.waiting.saturating_sub(group.data.iter().map(|placed| placed.id.bytes.len()).sum());
        let mut numbers = Vec::with_capacity(group.parity.len());
        for drive in &group.parity {
            let (slices, bytes) = self.parities.get_mut(*drive as usize).ok_or_else(|| Error::internal("a parity is to go to no drive"))?;
            numbers.push(*slices);
            *slices = slices.checked_add(1).ok_or_else(|| Error::exhausted("too many parities on a drive"))?;
            *bytes += group.parity_len;
        }
        Ok(Formed { group, numbers })
    }
}
