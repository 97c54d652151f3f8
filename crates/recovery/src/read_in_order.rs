//! Shards read from each drive in storage order, for a rebuild.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::Key;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::ordered_read::{Came, Coming, Reading, Shard, in_order};
use crate::reconstruct::Cover;

/// Requests that a drive has before it: it reads one, works on another, and its link has a third. More would only come out of order.
const DEPTH: usize = 4;

/// Bytes of a file that are read in a row, before another one is, unless a third of what may wait of a drive is less: so many that a seek of 8 ms is a tenth of the time.
pub(crate) const ROW: u64 = 16 << 20;

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
