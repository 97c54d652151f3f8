//! Shards that a rebuild wants one group after the other, read in the order in which they lie on their drives, before they are asked for.
//!
//! The slices of a group lie up to some dozens apart on each drive, as groups are formed of slices of like length: read group by group they cost a disk a seek each, which is twice as long as a slice takes. So each drive is read along: of each of its files (the slices of a
//! partition, its parities) a [row](ROW) at a time, the file first whose next shard is due first. What is read waits until its group takes it. How much may wait has a [bound](Reading::want): up to half of it is read for nobody in particular, and beyond that what a group waits for further on, with all before it; a
//! shard that is too far on is read by who wants it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName};
use skytether_redundancy::map::{self, Role};
use tokio::sync::{Notify, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::reconstruct::Cover;
use skytether_catalog::code_map::{Level, Part};

/// Bytes of a file that are read in a row, before another one is, unless a third of what may wait of a drive is less: so many that a seek of 8 ms is a tenth of the time.
const ROW: u64 = 16 << 20;

/// Requests that a drive has before it: it reads one, works on another, and its link has a third. More would only come out of order.
const DEPTH: usize = 4;

/// A shard that is to be read.
#[derive(Debug, Clone)]
pub struct Shard {
    /// Its drive, by its place among the host's.
    pub(crate) at: usize,
    /// Under which its drive has it.
    pub(crate) key: Key,
    /// Which of the drive's files it lies in, and where there: shards of one file that follow one another are read without a seek.
    pub(crate) file: (Part, u32),
    pub(crate) number: u32,
    /// Bytes.
    pub(crate) len: u64,
    /// How many groups are made before the one that takes it.
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
pub(crate) struct Reading {
    /// Bytes of the shards up to and with each, in the order in which they are read.
    ends: Vec<u64>,
    /// Bytes that are read for nobody in particular, and not taken.
    room: u64,
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The first that is not being read.
    next: usize,
    /// Bytes that are being read, or wait.
    held: u64,
    /// Somebody waits for one before this.
    wanted: usize,
}

/// The place of a shard that is being read, or waits: with it goes the room that it takes.
#[derive(Debug)]
pub(crate) struct Held {
    reading: Arc<Reading>,
    n: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let len = self.reading.end(self.n + 1) - self.reading.end(self.n);
        let mut state = self.reading.state();
        state.held = state.held.saturating_sub(len);
        drop(state);
        self.reading.moved.notify_one();
    }
}

impl Reading {
    fn new(shards: &[Shard], room: u64) -> Arc<Self> {
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

    /// Somebody waits for shard `n`; whether it will come. One that is so far on that with all before it more than twice the room would be held will not.
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
    fn begin(self: &Arc<Self>) -> Option<Held> {
        let mut state = self.state();
        let n = state.next;
        if n >= self.ends.len() || (state.held >= self.room && n >= state.wanted) {
            return None;
        }
        state.next += 1;
        state.held += self.end(n + 1) - self.end(n);
        Some(Held { reading: Arc::clone(self), n })
    }

    fn is_done(&self) -> bool {
        self.state().next >= self.ends.len()
    }
}

/// A shard that came, and the room that it takes as long as nobody has it.
pub(crate) type Came = (Bytes, Held);

/// A shard that will come, as number `n` of a reading.
pub(crate) struct Coming {
    pub(crate) receive: oneshot::Receiver<Came>,
    pub(crate) reading: Arc<Reading>,
    pub(crate) n: usize,
}

/// The order in which shards of one drive are read, `most` bytes of a file in a row.
fn in_order(shards: Vec<Shard>, most: u64) -> Vec<Shard> {
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

/// One of the shards that are being read.
struct Expected {
    shard: (usize, Key),
    reading: Arc<Reading>,
}

/// Shards that are being read; what nobody has taken is forgotten with this.
pub struct InOrder {
    /// Nobody's drives stay open for what nobody has asked for.
    cover: Weak<Cover>,
    shards: Vec<Expected>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Drop for InOrder {
    fn drop(&mut self) {
        if let Some(cover) = self.cover.upgrade() {
            cover.ahead.forget(self.shards.iter().map(|expected| (&expected.shard, &expected.reading)));
        }
    }
}

impl Cover {
    /// Begins to read these shards, of which about `room` bytes may wait, and twice as many at most; whoever reads one next gets what was read here. Shards that another reading brings are left to that.
    pub fn read_in_order(self: &Arc<Self>, shards: Vec<Shard>, room: u64) -> InOrder {
        let mut of: BTreeMap<usize, Vec<Shard>> = BTreeMap::new();
        for shard in shards.into_iter().filter(|shard| !self.presence.is_lost(shard.at)) {
            of.entry(shard.at).or_default().push(shard);
        }
        let room = room / of.len().max(1) as u64;
        let (mut all, mut tasks) = (Vec::new(), Vec::new());
        for (at, shards) in of {
            let shards = in_order(shards, ROW.min(room / 3).max(1));
            let reading = Reading::new(&shards, room);
            let mut queue: VecDeque<(Key, oneshot::Sender<Came>)> = VecDeque::with_capacity(shards.len());
            for (n, shard) in shards.into_iter().enumerate() {
                let (send, receive) = oneshot::channel();
                let expected = Expected { shard: (at, shard.key.clone()), reading: Arc::clone(&reading) };
                if self.ahead.expect(&expected.shard, Coming { receive, reading: Arc::clone(&reading), n }) {
                    all.push(expected);
                }
                queue.push_back((shard.key, send));
            }
            let cover = Arc::downgrade(self);
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move { read_along(&cover, at, &reading, queue).await })));
        }
        InOrder { cover: Arc::downgrade(self), shards: all, _tasks: tasks }
    }
}

/// Reads the shards in `queue` from drive `at`, as far as there is room. Where the drive is lost it ends, and whoever waits is told by that.
async fn read_along(cover: &Weak<Cover>, at: usize, reading: &Arc<Reading>, mut queue: VecDeque<(Key, oneshot::Sender<Came>)>) {
    let mut reads = FuturesUnordered::new();
    loop {
        while reads.len() < DEPTH
            && let Some(held) = reading.begin()
        {
            let Some((key, send)) = queue.pop_front() else { return };
            // Who no longer waits has read it for itself.
            if send.is_closed() {
                continue;
            }
            reads.push(async move {
                // What can't be read is read once more by who wants it, and is told there.
                let Some(cover) = cover.upgrade() else { return };
                if let Ok(bytes) = cover.ask(at, "read a shard", cover.drives[at].get(&key)).await {
                    let _ = send.send((bytes, held));
                }
            });
        }
        if reads.is_empty() && reading.is_done() {
            return;
        }
        tokio::select! {
            Some(()) = reads.next(), if !reads.is_empty() => {
                if cover.upgrade().is_none_or(|cover| cover.presence.is_lost(at)) {
                    return;
                }
            }
            () = reading.moved.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_waits_is_bounded_unless_one_behind_it_is_waited_for() {
        let shards: Vec<Shard> = (0..20).map(|n| shard(Part::Slice, n, n as usize)).collect();
        let reading = Reading::new(&shards, 4 * MIB);
        let mut held = VecDeque::new();
        let begun = |held: &mut VecDeque<Held>| {
            let new: Vec<Held> = std::iter::from_fn(|| reading.begin()).collect();
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
