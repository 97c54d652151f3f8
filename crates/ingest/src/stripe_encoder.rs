//! [`StripeEncoder`]: forms the code groups of a table while it is written. Slices wait until a group is complete; then
//! the encoder makes and sends the parities of the group.
//!
//! If one thread cuts rows into slices, another thread makes parities ([`StripeEncoder::beside`]).
//!
//! On two levels each slice waits twice: for a group across nodes, and for a group within its node. Parities across
//! nodes wait for a group within their node, too.

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, PartitionName, Result};
use skytether_erasure::groups::{Group, Grouper, PlacedShard, default_window};
use skytether_erasure::levels::{Formed, Inside, Levels};
use skytether_erasure::map::{CodeMap, Shard};
use skytether_erasure::{Code, Scheme, code};
use skytether_runtime::threads;
use uuid::Uuid;

use crate::write_pipeline::WritePipeline;
use skytether_catalog::records::code_map::{Part, RedundancyRecord, StoredMap, StripeLayout, Within, holders, level_holders, parity_of};
use skytether_catalog::root_store::Catalog;

/// About how many bytes of slices wait for a group. Larger windows waste less space.
const WINDOW: usize = 96 << 20;

/// Groups that wait for the thread that makes parities.
const GROUPS: usize = 2;

/// A slice that waits, with its partition; its bytes are those that were sent.
#[derive(Debug, Clone)]
struct PendingShard {
    slot: u32,
    number: u32,
    bytes: Bytes,
}

/// Makes the parities of one table.
pub(crate) struct StripeEncoder<'a> {
    writes: &'a WritePipeline,
    over: StripeLayout,
    code: Code,
    /// A partition of the table; which one does not matter.
    table: PartitionName,
    state: Mutex<State>,
    /// To the thread that makes parities, while there is one.
    apart: Mutex<Option<SyncSender<Work>>>,
}

/// Who forms groups.
#[derive(Debug)]
enum GroupBuilder {
    Flat(Grouper<PendingShard>, u64),
    Levels(Levels<PendingShard>),
}

#[derive(Debug)]
struct State {
    former: GroupBuilder,
    /// Bytes that wait; on two levels, bytes that wait twice count twice.
    waiting: usize,
    /// Groups across drives or nodes, and within nodes: data and parity shards.
    groups: [Vec<(Vec<Shard>, Vec<Shard>)>; 2],
    /// The number and bytes of each drive's parities so far: across drives or nodes, and within nodes.
    parities: [Vec<(u32, u64)>; 2],
    /// Parities across nodes that wait for a group within their node, by group and place.
    made: HashMap<(u64, u32), PendingShard>,
    /// Groups within nodes with such a parity that another thread is making.
    pending: Vec<Inner>,
}

/// A group across drives or nodes whose parities have their names.
struct Outer {
    number: u64,
    data: Vec<PendingShard>,
    /// Drive and number of each parity.
    parity: Vec<(u32, u32)>,
}

/// A group within a node, likewise.
#[derive(Debug)]
struct Inner {
    data: Vec<Inside<PendingShard>>,
    parity: Vec<(u32, u32)>,
}

/// A group to encode.
enum Work {
    Outer(Outer),
    Inner(Inner),
}

fn shard(drive: u32, home: u32, number: u32, bytes: &[u8]) -> Shard {
    Shard { drive, home, number, len: bytes.len() as u64, crc32c: crc32c(bytes) }
}

impl<'a> StripeEncoder<'a> {
    /// An encoder for `table` with slices of about `slice_bytes`, and the scheme's `code` across drives or nodes.
    ///
    /// # Errors
    /// `Invalid` where there are fewer than K + M drives; on two levels, too few nodes or drives of a node.
    pub(crate) fn new(writes: &'a WritePipeline, over: StripeLayout, code: Code, table: PartitionName, slice_bytes: usize) -> Result<Self> {
        let most = WINDOW / slice_bytes.max(1);
        // Parities of many small tables begin on different drives, to balance them.
        let (seed, drives) = (table.generation.0, over.drives.len());
        let former = match over.scheme {
            Scheme::Levels(outer, inner) => {
                let nodes = over.nodes.iter().max().map_or(1, |last| *last as usize + 1);
                let windows = (default_window(outer).min(most), default_window(inner).min(most / nodes));
                GroupBuilder::Levels(Levels::new((outer, inner), &over.nodes, windows, seed)?)
            }
            _ => GroupBuilder::Flat(Grouper::new(code, drives, default_window(code).min(most), seed)?, 0),
        };
        let parities = || vec![(0, 0); drives];
        let state =
            State { former, waiting: 0, groups: [Vec::new(), Vec::new()], parities: [parities(), parities()], made: HashMap::new(), pending: Vec::new() };
        Ok(Self { writes, over, code, table, state: Mutex::new(state), apart: Mutex::new(None) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn apart(&self) -> MutexGuard<'_, Option<SyncSender<Work>>> {
        self.apart.lock()
    }

    /// Runs `work`, which pushes slices, while another thread makes their parities.
    ///
    /// # Errors
    /// Those of `work`, and those of the other thread.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Closes the channel however `work` ends; otherwise the other thread would wait for ever.
        struct Last<'c, 'a>(&'c StripeEncoder<'a>);
        impl Drop for Last<'_, '_> {
            fn drop(&mut self) {
                self.0.apart().take();
            }
        }
        let (send, receive) = sync_channel(GROUPS);
        *self.apart() = Some(send);
        std::thread::scope(|scope| {
            let last = Last(self);
            let worker = std::thread::Builder::new().name("parities".to_owned());
            let worker = worker.spawn_scoped(scope, move || receive.into_iter().try_for_each(|work| self.encode_one(work))).map_err(threads::no_more)?;
            let done = work();
            drop(last);
            let encoded = worker.join().unwrap_or_else(|_| Err(Error::internal("the thread that makes parities stopped")));
            encoded.and(done)
        })
    }

    /// Adds slice `number` of partition `slot`. This thread encodes the groups that it completes, or the thread of
    /// [`Self::beside`] does.
    ///
    /// # Errors
    /// As [`WritePipeline::put`] and [`Grouper::push`].
    pub(crate) fn push(&self, slot: u32, number: u32, bytes: &Bytes) -> Result<()> {
        // Bytes that wait on both levels count twice.
        let most = if self.over.scheme.inner().is_some() { 4 * WINDOW } else { 2 * WINDOW };
        let work = {
            let mut state = self.state();
            let held = PendingShard { slot, number, bytes: bytes.clone() };
            let mut work = state.push(PlacedShard { drive: slot, id: held, len: bytes.len() as u64 })?;
            if state.waiting > most {
                // Slices are much longer than expected. Incomplete groups are formed to free memory.
                work.extend(state.finish()?);
            }
            work
        };
        let apart = self.apart().clone();
        match apart {
            // The other thread reports its own error.
            Some(apart) => work.into_iter().try_for_each(|work| apart.send(work).map_err(|_| Error::unavailable("no more parities can be made"))),
            None => self.encode_all(work),
        }
    }

    fn encode_all(&self, work: Vec<Work>) -> Result<()> {
        work.into_iter().try_for_each(|work| self.encode_one(work))
    }

    fn encode_one(&self, work: Work) -> Result<()> {
        match work {
            Work::Outer(outer) => self.encode(outer),
            Work::Inner(inner) => self.encode_within(inner),
        }
    }

    /// Makes and sends the parities of a group across drives or nodes, and the groups that waited for them.
    fn encode(&self, Outer { number: group, data, parity: places }: Outer) -> Result<()> {
        let bytes: Vec<&[u8]> = data.iter().map(|held| held.bytes.as_ref()).collect();
        let parities = code::encode(self.code, &bytes)?;
        let shards = data.iter().map(|held| shard(held.slot, held.slot, held.number, &held.bytes)).collect();
        let mut parity = Vec::with_capacity(parities.len());
        let mut made = Vec::with_capacity(parities.len());
        for (at, ((slot, number), bytes)) in places.into_iter().zip(parities).enumerate() {
            parity.push(shard(slot, slot, number, &bytes));
            made.push(((group, at as u32), PendingShard { slot, number, bytes: bytes.clone() }));
            self.send(Part::Parity, slot, number, bytes)?;
        }
        let ready = {
            let mut state = self.state();
            state.groups[0].push((shards, parity));
            if matches!(state.former, GroupBuilder::Flat(..)) {
                return Ok(());
            }
            state.made.extend(made);
            let (ready, pending) = std::mem::take(&mut state.pending).into_iter().partition(|inner| state.has_all(inner));
            state.pending = pending;
            ready
        };
        let ready: Vec<Inner> = ready;
        ready.into_iter().try_for_each(|inner| self.encode_within(inner))
    }

    /// Makes and sends the parities of a group within a node. If another thread is making a parity that is in the
    /// group, that thread does it.
    fn encode_within(&self, inner: Inner) -> Result<()> {
        let Some(codes) = self.over.scheme.inner() else { return Err(Error::internal("a table on one level has a group within a node")) };
        let drives = self.over.drives.len() as u32;
        let mut data: Vec<(u32, PendingShard)> = Vec::with_capacity(inner.data.len());
        {
            let mut state = self.state();
            if !state.has_all(&inner) {
                state.pending.push(inner);
                return Ok(());
            }
            for inside in inner.data {
                data.push(match inside {
                    Inside::Data(held) => (held.slot, held),
                    Inside::Parity { group, parity } => {
                        let made = state.made.remove(&(group, parity)).ok_or_else(|| Error::internal("a parity is in two groups of its node"))?;
                        (made.slot + drives, made)
                    }
                });
            }
        }
        let bytes: Vec<&[u8]> = data.iter().map(|(_, held)| held.bytes.as_ref()).collect();
        let parities = code::encode(codes, &bytes)?;
        let shards = data.iter().map(|(home, held)| shard(held.slot, *home, held.number, &held.bytes)).collect();
        let mut parity = Vec::with_capacity(parities.len());
        for ((slot, number), bytes) in inner.parity.into_iter().zip(parities) {
            parity.push(shard(slot, slot, number, &bytes));
            self.send(Part::Inner, slot, number, bytes)?;
        }
        self.state().groups[1].push((shards, parity));
        Ok(())
    }

    fn send(&self, part: Part, slot: u32, number: u32, bytes: Bytes) -> Result<()> {
        let to = self.over.drives.get(slot as usize).ok_or_else(|| Error::internal("a parity is to go to no drive"))?;
        self.writes.put(*to, part.of(&self.table, slot).slice_key(number)?, bytes)
    }

    /// The drives, as numbers of the host's, that hold the metadata slice of partition `slot`.
    pub(crate) fn holders(&self, slot: u32) -> Vec<usize> {
        let places = match self.over.scheme {
            Scheme::Levels(outer, inner) => level_holders(slot, &self.over.nodes, outer, inner),
            _ => holders(slot, self.over.drives.len(), self.code.parity()).collect(),
        };
        places.into_iter().filter_map(|at| self.over.drives.get(at).copied()).collect()
    }

    /// Encodes the waiting slices and sends the code map. Gives the redundancy of the table for its root record.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn finish(self, catalog: &Catalog) -> Result<RedundancyRecord> {
        let work = self.state().finish()?;
        self.encode_all(work)?;
        let drives: Vec<Uuid> = self.over.drives.iter().filter_map(|at| Some(catalog.drives().get(*at)?.info().id)).collect();
        let state = self.state();
        if !state.pending.is_empty() || !state.made.is_empty() {
            return Err(Error::internal(format!("{} groups within nodes lack a parity across them", state.pending.len())));
        }
        let map_of = |code, groups: &[(Vec<Shard>, Vec<Shard>)]| CodeMap::new(code, groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice())));
        let within = match self.over.scheme.inner() {
            Some(code) => Some(Within { nodes: self.over.nodes.clone(), map: map_of(code, &state.groups[1])? }),
            None => None,
        };
        let map = StoredMap { drives: drives.clone(), map: map_of(self.code, &state.groups[0])?, within }.encode()?;
        let key = parity_of(&self.table, 0).key()?;
        for at in self.holders(0) {
            self.writes.put(at, key.clone(), map.clone())?;
        }
        Ok(RedundancyRecord::new(self.over.scheme, drives, self.over.nodes.clone(), &state.parities, map.len() as u64))
    }
}

impl State {
    fn push(&mut self, placed: PlacedShard<PendingShard>) -> Result<Vec<Work>> {
        let len = placed.id.bytes.len();
        let formed = match &mut self.former {
            GroupBuilder::Flat(grouper, formed) => {
                self.waiting += len;
                grouper.push(placed)?.into_iter().map(|group| flat(group, formed)).collect()
            }
            GroupBuilder::Levels(levels) => {
                self.waiting += 2 * len;
                levels.push(placed)?
            }
        };
        self.named(formed)
    }

    /// Groups of all that waits.
    fn finish(&mut self) -> Result<Vec<Work>> {
        let formed = match &mut self.former {
            GroupBuilder::Flat(grouper, formed) => grouper.finish().into_iter().map(|group| flat(group, formed)).collect(),
            GroupBuilder::Levels(levels) => levels.finish()?,
        };
        self.named(formed)
    }

    /// Numbers the parities of groups. Their slices no longer wait.
    fn named(&mut self, formed: Vec<Formed<PendingShard>>) -> Result<Vec<Work>> {
        let two = matches!(self.former, GroupBuilder::Levels(_));
        let mut work = Vec::with_capacity(formed.len());
        for formed in formed {
            work.push(match formed {
                Formed::Outer { number, group, parity_drives } => {
                    let parity = self.name(0, &parity_drives, group.parity_len)?;
                    let data: Vec<PendingShard> = group.data.into_iter().map(|placed| placed.id).collect();
                    self.waiting = self.waiting.saturating_sub(data.iter().map(|held| held.bytes.len()).sum());
                    if two {
                        self.waiting += parity.len() * group.parity_len as usize;
                    }
                    Work::Outer(Outer { number, data, parity })
                }
                Formed::Inner { group, .. } => {
                    let parity = self.name(1, &group.parity, group.parity_len)?;
                    self.waiting = self.waiting.saturating_sub(group.data_bytes() as usize);
                    Work::Inner(Inner { data: group.data.into_iter().map(|placed| placed.id).collect(), parity })
                }
            });
        }
        Ok(work)
    }

    fn name(&mut self, level: usize, drives: &[u32], len: u64) -> Result<Vec<(u32, u32)>> {
        let mut named = Vec::with_capacity(drives.len());
        for drive in drives {
            let (slices, bytes) = self.parities[level].get_mut(*drive as usize).ok_or_else(|| Error::internal("a parity is to go to no drive"))?;
            named.push((*drive, *slices));
            *slices = slices.checked_add(1).ok_or_else(|| Error::exhausted("too many parities on a drive"))?;
            *bytes += len;
        }
        Ok(named)
    }

    /// Whether all parities across nodes that a group within one has are made.
    fn has_all(&self, inner: &Inner) -> bool {
        inner.data.iter().all(|inside| match inside {
            Inside::Data(_) => true,
            Inside::Parity { group, parity } => self.made.contains_key(&(*group, *parity)),
        })
    }
}

/// A group across drives, in a scheme with one level.
fn flat(group: Group<PendingShard>, formed: &mut u64) -> Formed<PendingShard> {
    *formed += 1;
    Formed::Outer { number: *formed - 1, parity_drives: group.parity.clone(), group }
}
