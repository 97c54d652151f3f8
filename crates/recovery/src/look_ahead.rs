//! Predicts which shards decoding needs next, and prefetches them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use skytether_common::{Key, PartitionName};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::prefetch::{Kind, PrefetchWindow};
use crate::reconstruct::Reconstructor;
use crate::shard::role;
use skytether_catalog::records::code_map::{Level, Part, StoredMap};

/// Requests for shards that a drive has at a time. With many, a drive that also runs a sub-plan reads both in rows.
const DEPTH: usize = 16;

/// Bytes prefetched at a time: slices, and parities, which lie elsewhere on a disk. Larger windows need fewer seeks. At
/// most an eighth of the host's memory holds prefetched shards.
const WINDOW: [(Kind, u64); 2] = [(Kind::Parities, 64 << 20), (Kind::Slices, 36 << 20)];

/// The most slices whose shards are prefetched at a time.
const MOST_SLICES: u32 = 64;

/// How long shards that no reader takes are kept: a query may end before it needs them.
const KEPT: Duration = Duration::from_secs(10);

impl Reconstructor {
    /// Begins to prefetch these shards, as far as there is room. A shard is given by its drive's place on this host,
    /// its key and its length in bytes. The next reader gets it from here, as long as the window is kept.
    pub(crate) fn read_ahead(self: &Arc<Self>, shards: impl IntoIterator<Item = (usize, Key, u64)>) -> PrefetchWindow {
        let mut of: BTreeMap<usize, Vec<(Key, oneshot::Sender<Bytes>)>> = BTreeMap::new();
        let mut begun = Vec::new();
        {
            let mut known = self.ahead.shards();
            for (at, key, len) in shards.into_iter().filter(|(at, _, _)| !self.health.is_down(*at)) {
                let shard = (at, key);
                let Some(send) = known.add(&shard, len, self.room as u64) else { continue };
                of.entry(at).or_default().push((shard.1.clone(), send));
                begun.push(shard);
            }
        }
        let read = |(at, mut shards): (usize, Vec<(Key, oneshot::Sender<Bytes>)>)| {
            shards.sort_by(|a, b| a.0.cmp(&b.0));
            let (reconstructor, turn) = (Arc::downgrade(self), self.ahead.turn(at));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let _turn = turn.lock().await;
                let reads = stream::iter(shards).map(|(key, send)| {
                    let reconstructor = reconstructor.clone();
                    async move {
                        // A shard that can't be read is left to its reader, which reads it again and gets the error.
                        if !send.is_closed()
                            && let Some(reconstructor) = reconstructor.upgrade()
                            && let Ok(bytes) = reconstructor.for_decoding(at, &key).await
                        {
                            let _ = send.send(bytes);
                        }
                    }
                });
                reads.buffer_unordered(DEPTH).collect::<()>().await;
            }))
        };
        PrefetchWindow::new(&self.ahead, begun, of.into_iter().map(read).collect())
    }

    /// The shards of a kind that decoding slice `number` of a partition takes, with their drives and bytes. `None`
    /// where too few of its group are up.
    fn shards_for(&self, partition: &PartitionName, kind: Kind, number: u32, map: &Arc<StoredMap>) -> Option<Vec<(usize, Key, u64)>> {
        let (part, table) = Part::parse(partition);
        Level::all(map).into_iter().find_map(|level| {
            let place = level.find(part, partition.slot, number)?;
            let members = level.map().group(place.group as usize)?;
            let (all, need) = (members.all(), members.data.len());
            // As `gather_at` begins.
            let order = (0..all.len()).map(|at| (at + place.group as usize) % all.len()).filter(|at| *at != place.shard as usize);
            let here = order.filter_map(|at| Some((at, self.at(&level, &all[at]).filter(|at| !self.health.is_down(*at))?))).take(need);
            let here: Vec<_> = here.collect();
            if here.len() < need {
                return None;
            }
            let kind_of = |at: usize| if level.part(&all[at], role(at, need)).0 == Part::Slice { Kind::Slices } else { Kind::Parities };
            let here = here.into_iter().filter(|(at, _)| kind_of(*at) == kind);
            here.map(|(at, drive)| Some((drive, level.key(&table, &all[at], role(at, need)).ok()?, all[at].len))).collect()
        })
    }

    /// Slice `number` of a partition will be decoded. Where those before it were, shards for those after it are
    /// prefetched.
    pub(crate) fn look_ahead(self: &Arc<Self>, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) {
        for (kind, room) in WINDOW {
            if kind == Kind::Parities || !self.shared.is_read(partition) {
                self.look_ahead_for(partition, kind, number, map, room.min(self.room as u64));
            }
        }
    }

    fn look_ahead_for(self: &Arc<Self>, partition: &PartitionName, kind: Kind, number: u32, map: &Arc<StoredMap>, room: u64) {
        let Some(shards) = self.shards_for(partition, kind, number, map) else { return };
        let bytes: u64 = shards.iter().map(|(_, _, len)| len).sum();
        if bytes == 0 {
            return;
        }
        let most = u32::try_from(room / bytes).unwrap_or(u32::MAX).clamp(1, MOST_SLICES);
        let Some(from) = self.ahead.follow(partition, kind, number, most) else { return };
        let next = from..from.saturating_add(most);
        let shards: Vec<_> = next.filter_map(|number| self.shards_for(partition, kind, number, map)).flatten().collect();
        let window = self.read_ahead(shards);
        if let (false, Ok(runtime)) = (window.shards.is_empty(), tokio::runtime::Handle::try_current()) {
            self.ahead.windows().push_back((Instant::now() + KEPT, window));
            let reconstructor = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep(KEPT).await;
                let Some(reconstructor) = reconstructor.upgrade() else { return };
                let over: Vec<_> = {
                    let mut windows = reconstructor.ahead.windows();
                    let over = windows.iter().take_while(|(until, _)| *until <= Instant::now()).count();
                    windows.drain(..over).collect()
                };
                drop(over);
            });
        }
    }
}
