//! Prefetch for a rebuild: shards that it needs group by group are read in the order in which they lie on their drives.
//!
//! Groups are formed of slices of like length, so the slices of a group lie up to some dozens apart on each drive. Read
//! group by group, each slice costs a disk a seek, which takes twice as long as the slice. So each drive's files (the
//! slices of a partition, its parities) are read a [row](crate::read_in_order::ROW) at a time, first the file whose
//! next shard is due first.
//!
//! Shards wait until their groups take them, within a [bound](OrderedReader::want). Up to half of it is read without a
//! group that waits. Beyond that, the drive reads up to the shard that a group waits for. A shard that is too far ahead
//! is read by the group itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName};
use skytether_erasure::map::{self, Role};
use tokio::sync::{Notify, oneshot};

use skytether_catalog::records::code_map::{Level, Part};

/// A shard to read.
#[derive(Debug, Clone)]
pub struct Shard {
    /// Its drive, by its place among the host's.
    pub(crate) at: usize,
    /// Under which its drive has it.
    pub(crate) key: Key,
    /// The drive's file that it lies in, and its number there: shards of one file that follow one another are read
    /// without a seek.
    pub(crate) file: (Part, u32),
    pub(crate) number: u32,
    /// Bytes.
    pub(crate) len: u64,
    /// How many groups are decoded before the one that takes it.
    pub(crate) due: usize,
}

impl Shard {
    /// Shard `shard` of the table that `table` is a partition of, which has `role` in a group of `level`.
    pub fn of(level: &Level, table: &PartitionName, shard: &map::Shard, role: Role, at: usize, due: usize) -> Option<Self> {
        let key = level.key(table, shard, role).ok()?;
        Some(Self { at, key, file: level.part(shard, role), number: shard.number, len: shard.len, due })
    }
}

/// How far the reading of a drive's shards is.
#[derive(Debug)]
pub(crate) struct OrderedReader {
    /// Bytes of the shards up to and with each, in the order in which they are read.
    ends: Vec<u64>,
    /// Bytes that may be read ahead and wait before any group asks for them.
    room: u64,
    state: Mutex<State>,
    pub moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The first that is not being read.
    next: usize,
    /// Bytes that are being read, or wait.
    held: u64,
    /// A reader waits for a shard before this one.
    wanted: usize,
}

/// A shard that is being read, or waits. Dropping this frees its room.
#[derive(Debug)]
pub(crate) struct OrderedReadGuard {
    reading: Arc<OrderedReader>,
    n: usize,
}

impl Drop for OrderedReadGuard {
    fn drop(&mut self) {
        let len = self.reading.end(self.n + 1) - self.reading.end(self.n);
        let mut state = self.reading.state();
        state.held = state.held.saturating_sub(len);
        drop(state);
        self.reading.moved.notify_one();
    }
}

impl OrderedReader {
    pub(crate) fn new(shards: &[Shard], room: u64) -> Arc<Self> {
        let ends = shards.iter().scan(0, |end, shard| {
            *end += shard.len;
            Some(*end)
        });
        Arc::new(Self { ends: ends.collect(), room, state: Mutex::default(), moved: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn end(&self, count: usize) -> u64 {
        count.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
    }

    /// A reader waits for shard `n`. Returns whether the shard will come: not where the shards up to it exceed twice
    /// the room.
    pub(crate) fn want(&self, n: usize) -> bool {
        let mut state = self.state();
        if n >= state.next && state.held + self.end(n + 1) - self.end(state.next) > 2 * self.room {
            return false;
        }
        state.wanted = state.wanted.max(n + 1);
        drop(state);
        self.moved.notify_one();
        true
    }

    /// The next shard that may be read now.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<OrderedReadGuard> {
        let mut state = self.state();
        let n = state.next;
        if n >= self.ends.len() || (state.held >= self.room && n >= state.wanted) {
            return None;
        }
        state.next += 1;
        state.held += self.end(n + 1) - self.end(n);
        Some(OrderedReadGuard { reading: Arc::clone(self), n })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state().next >= self.ends.len()
    }
}

/// A shard that was read, and the room that it takes until a group takes it.
pub(crate) type Came = (Bytes, OrderedReadGuard);

/// A shard that will come, as number `n` of a reading.
pub(crate) struct Coming {
    pub(crate) receive: oneshot::Receiver<Came>,
    pub(crate) reading: Arc<OrderedReader>,
    pub(crate) n: usize,
}

/// The order in which shards of one drive are read, `most` bytes of a file in a row.
pub(crate) fn in_order(shards: Vec<Shard>, most: u64) -> Vec<Shard> {
    let mut files: BTreeMap<(Part, u32), Vec<Shard>> = BTreeMap::new();
    for shard in shards {
        files.entry(shard.file).or_default().push(shard);
    }
    let mut files: Vec<VecDeque<Shard>> = files
        .into_values()
        .map(|mut file| {
            file.sort_by_key(|shard| shard.number);
            file.into()
        })
        .collect();
    let mut ordered = Vec::new();
    loop {
        let due = |file: &VecDeque<Shard>| file.front().map(|shard| shard.due);
        let Some(file) = files.iter_mut().filter(|file| !file.is_empty()).min_by_key(|file| due(file)) else { return ordered };
        let mut row = 0;
        while row < most
            && let Some(shard) = file.pop_front()
        {
            row += shard.len;
            ordered.push(shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_in_order::ROW;

    const MIB: u64 = 1 << 20;

    fn shard(file: Part, number: u32, due: usize) -> Shard {
        Shard { at: 0, key: Key::new(format!("d/s.{file:?}.{number}")).unwrap(), file: (file, 0), number, len: MIB, due }
    }

    #[test]
    fn files_are_read_in_rows_as_their_shards_are_due() {
        // 100 slices in groups that take them a little out of order, and a parity for every fourth group.
        let data = (0..100u32).map(|n| shard(Part::Slice, n ^ 5, n as usize));
        let parities = (0..25u32).map(|n| shard(Part::Parity, n, 4 * n as usize));
        let order = in_order(data.chain(parities).collect(), ROW);
        assert_eq!(order.len(), 125);
        let ways = order.windows(2).filter(|pair| pair[0].file != pair[1].file || pair[0].number + 1 != pair[1].number).count();
        assert!(ways <= 4, "{ways}");
        // What is due early is read early, by a row of each file.
        for (at, shard) in order.iter().enumerate() {
            assert!(at <= shard.due + shard.due / 4 + 2 * (ROW / MIB) as usize + 8, "{at}: {shard:?}");
        }
    }

    #[test]
    fn pending_reads_are_bounded_unless_a_later_one_is_wanted() {
        let shards: Vec<Shard> = (0..20).map(|n| shard(Part::Slice, n, n as usize)).collect();
        let reading = OrderedReader::new(&shards, 4 * MIB);
        let mut held = VecDeque::new();
        let begun = |held: &mut VecDeque<OrderedReadGuard>| {
            let new: Vec<OrderedReadGuard> = std::iter::from_fn(|| reading.begin()).collect();
            let numbers: Vec<usize> = new.iter().map(|held| held.n).collect();
            held.extend(new);
            numbers
        };
        assert_eq!(begun(&mut held), [0, 1, 2, 3]);
        held.pop_front();
        assert_eq!(begun(&mut held), [4]);
        assert!(reading.want(8), "four further on");
        assert_eq!(begun(&mut held), [5, 6, 7, 8]);
        assert!(!reading.want(9), "eight are held");
        assert!(reading.want(1), "was read");
        assert!(begun(&mut held).is_empty());
        held.clear();
        assert_eq!(begun(&mut held), [9, 10, 11, 12]);
        assert!(!reading.want(17) && reading.want(16));
        assert!(!reading.is_done());
    }
}
