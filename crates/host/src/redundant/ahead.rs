//! Shards that queries will want soon, read before they are asked for, in the order in which they lie on their drives.
//!
//! Who stands for a lost drive comes to its slices one after the other, and each takes shards of other drives. Read slice by slice these cost a disk a seek each, beside what the drive reads for its own sub-plan. So where slices of a partition
//! are decoded in a row, what those after them take is [read along](super::in_order).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::{Key, PartitionName};

use super::decoded::Cover;
use super::in_order::{Coming, InOrder, Reading, Shard};
use super::mend::role;
use super::stored::{Level, Part, StoredMap};

/// Bytes of shards that are read along for a partition, and wait; twice as many at most.
const ROOM: u64 = 96 << 20;

/// Slices whose shards are read along at first; when these are over, those of as many more are.
const SLICES: u32 = 1024;

/// So many slices of a partition, one after the other, that are at most so far apart are decoded in a row: lanes side by side don't come in order to the slice.
const ROW: (usize, u32) = (4, 8);

/// So many slices may be left out of those that are read along, beside half of them: statistics may tell that they have nothing that is wanted.
const LEFT_OUT: u32 = 32;

/// How long a partition is read along that nobody decodes a slice of: a query may end before it comes to them.
const KEPT: Duration = Duration::from_secs(5);

/// Partitions whose last slices are remembered.
const FOLLOWED: usize = 256;

/// What is read ahead.
#[derive(Default)]
pub(super) struct Ahead {
    coming: Mutex<HashMap<(usize, Key), Coming>>,
    following: Mutex<Following>,
}

/// How far partitions are decoded, and which one is read along: one at a time, as two would be two ways of the head for each shard.
#[derive(Default)]
struct Following {
    last: HashMap<PartitionName, VecDeque<u32>>,
    along: Option<Along>,
    /// Something looks whether that is over.
    tidied: bool,
}

/// A partition that is read along.
struct Along {
    partition: PartitionName,
    /// The first slice that it is read along for, and the first for which it is not.
    from: u32,
    until: u32,
    /// Slices that were decoded since, and when the last one was.
    decoded: u32,
    at: Instant,
    /// Nothing as long as it is being begun.
    shards: Option<InOrder>,
}

impl Ahead {
    fn coming(&self) -> MutexGuard<'_, HashMap<(usize, Key), Coming>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shard comes; false where another reading brings it already.
    pub(super) fn expect(&self, shard: &(usize, Key), coming: Coming) -> bool {
        match self.coming().entry(shard.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(coming);
                true
            }
        }
    }

    /// Nobody takes these any more, of those that were expected from these readings.
    pub(super) fn forget<'a>(&self, given: impl Iterator<Item = (&'a (usize, Key), &'a Arc<Reading>)>) {
        let mut over = Vec::new();
        let mut coming = self.coming();
        for (shard, of) in given {
            if coming.get(shard).is_some_and(|one| Arc::ptr_eq(&one.reading, of)) {
                over.extend(coming.remove(shard));
            }
        }
        // What they hold is freed without it.
        drop(coming);
    }

    /// A shard of drive `at` that is read ahead; nothing where none is, and where it could not be read.
    pub(super) async fn take(&self, at: usize, key: &Key) -> Option<Bytes> {
        let Coming { receive, reading, n } = self.coming().remove(&(at, key.clone()))?;
        if !reading.want(n) {
            return None;
        }
        let (bytes, _) = receive.await.ok()?;
        Some(bytes)
    }

    /// Notes that slice `number` of a partition is decoded; the slices to read along from now on, if it is time to, which whoever is told begins.
    fn follow(&self, partition: &PartitionName, number: u32) -> Option<(u32, u32)> {
        let mut over = None;
        let mut following = self.following();
        let Following { last, along, .. } = &mut *following;
        if last.len() >= FOLLOWED && !last.contains_key(partition) {
            last.clear();
        }
        let numbers = last.entry(partition.clone()).or_default();
        numbers.push_back(number);
        if numbers.len() > ROW.0 {
            numbers.pop_front();
        }
        let (least, most) = (numbers.iter().min().copied()?, numbers.iter().max().copied()?);
        let begin = |from: u32| {
            let until = from.saturating_add(SLICES);
            (Along { partition: partition.clone(), from, until, decoded: 0, at: Instant::now(), shards: None }, (from, until))
        };
        let told = match along {
            Some(one) if one.partition == *partition => {
                (one.at, one.decoded) = (Instant::now(), one.decoded + 1);
                let passed = number.saturating_sub(one.from);
                if number + 4 * ROW.1 < one.from || number > one.until + ROW.1 || passed > 2 * one.decoded + LEFT_OUT {
                    // Somebody is elsewhere, or takes few of them.
                    numbers.clear();
                    over = along.take();
                    None
                } else if number >= one.until.saturating_sub(ROW.1) {
                    let (next, told) = begin(one.until);
                    over = along.replace(next);
                    Some(told)
                } else {
                    if let Some(shards) = &mut one.shards {
                        shards.passed((number.saturating_sub(one.from + ROW.1)) as usize);
                    }
                    None
                }
            }
            None if numbers.len() == ROW.0 && most - least <= ROW.1 => {
                let (next, told) = begin(most + 1);
                *along = Some(next);
                Some(told)
            }
            _ => None,
        };
        drop(following);
        // What it holds is freed without the lock.
        drop(over);
        told
    }

    /// What was to be begun for a partition from slice `from` on.
    fn begun(&self, partition: &PartitionName, from: u32, shards: InOrder) {
        let mut following = self.following();
        match &mut following.along {
            Some(one) if one.partition == *partition && one.from == from => one.shards = Some(shards),
            // It is over already.
            _ => {
                drop(following);
                drop(shards);
            }
        }
    }

    /// Ends what is read along where nothing was decoded for some time; whether it is to be looked at again.
    fn tidy(&self) -> bool {
        let mut following = self.following();
        let over = following.along.take_if(|one| one.at.elapsed() >= KEPT);
        following.tidied = following.along.is_some();
        let again = following.tidied;
        drop(following);
        drop(over);
        again
    }
}

impl Cover {
    /// The shards that decoding slice `number` of a partition takes, which so many others are decoded before; nothing where not enough of its group is here, or there is no such slice.
    fn shards_for(&self, partition: &PartitionName, number: u32, map: &Arc<StoredMap>, due: usize) -> Option<Vec<Shard>> {
        let (part, table) = Part::parse(partition);
        Level::all(map).into_iter().find_map(|level| {
            let place = level.find(part, partition.slot, number)?;
            let members = level.map().group(place.group as usize)?;
            let (all, need) = (members.all(), members.data.len());
            // As `gather_at` begins.
            let order = (0..all.len()).map(|at| (at + place.group as usize) % all.len()).filter(|at| *at != place.shard as usize);
            let here = order.filter_map(|at| Some((at, self.at(&level, &all[at]).filter(|at| !self.presence.is_lost(*at))?))).take(need);
            let shards: Vec<_> = here.filter_map(|(at, drive)| Shard::of(&level, &table, &all[at], role(at, need), drive, due)).collect();
            (shards.len() == need).then_some(shards)
        })
    }

    /// Slice `number` of a partition is to be decoded: where those before it were, shards for those after it are read along.
    pub(super) fn look_ahead(self: &Arc<Self>, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) {
        let Some((from, until)) = self.ahead.follow(partition, number) else { return };
        let shards: Vec<_> = (from..until).filter_map(|number| self.shards_for(partition, number, map, (number - from) as usize)).flatten().collect();
        self.ahead.begun(partition, from, self.read_in_order(shards, ROOM));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::replace(&mut self.ahead.following().tidied, true) {
            // Nobody's drives stay open for what nobody has asked for.
            let cover = Arc::downgrade(self);
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(KEPT).await;
                    let Some(cover) = cover.upgrade() else { return };
                    if !cover.ahead.tidy() {
                        return;
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Generation;

    use super::*;

    #[test]
    fn what_is_decoded_in_a_row_is_read_along_once() {
        let ahead = Ahead::default();
        let partition = |slot| PartitionName { dataset: "lab.t".parse().unwrap(), generation: Generation(1), table: "data".into(), slot };
        let follow = |slot, numbers: &[u32]| numbers.iter().map(|number| ahead.follow(&partition(slot), *number)).collect::<Vec<_>>();
        assert_eq!(follow(0, &[0, 2, 1, 3]), [None, None, None, Some((4, 1028))]);
        ahead.begun(&partition(0), 4, InOrder::nothing());
        let due: Vec<_> = (4..1030).filter_map(|number| ahead.follow(&partition(0), number).map(|along| (number, along))).collect();
        assert_eq!(due, [(1020, (1028, 2052))], "when it is nearly over");
        assert_eq!(follow(0, &[1031, 1030]), [None; 2]);
        // Of another one nothing, as long as this goes on.
        assert_eq!(follow(1, &[903, 904, 905, 906]), [None; 4]);
        // One slice of four is wanted from here on, and it is over.
        assert!((0..40).all(|n| ahead.follow(&partition(0), 1034 + 4 * n).is_none()) && ahead.following().along.is_none());
        // One by one, from anywhere, is nothing in a row.
        assert_eq!(follow(1, &[500, 30, 900, 901, 950, 902]), [None; 6]);
        assert_eq!(follow(1, &[903, 904, 905]), [None, None, Some((906, 1930))]);
        // Somebody who jumps begins anew.
        assert_eq!(follow(1, &[3, 4, 5, 6, 7]), [None, None, None, None, Some((8, 1032))]);
        assert!(ahead.tidy());
    }
}
