//! Shards read from each drive in storage order, for a rebuild.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::Key;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::ordered_read::{Came, Coming, OrderedReader, Shard, in_order};
use crate::reconstruct::Reconstructor;

/// Requests that a drive has before it: it reads one, works on another, and its link has a third. More
/// would only come out of order.
const DEPTH: usize = 4;

/// Bytes of a file that are read in a row before another file, so that a seek of 8 ms is a tenth of the time. Fewer,
/// where this exceeds a third of a drive's room for shards that wait.
pub(crate) const ROW: u64 = 16 << 20;

/// One of the shards that are being read.
struct Expected {
    shard: (usize, Key),
    reading: Arc<OrderedReader>,
}

/// Shards that are being read. Dropping this forgets those that no reader has taken.
pub struct InOrder {
    /// Weak: this must not keep drives open for shards without a reader.
    reconstructor: Weak<Reconstructor>,
    shards: Vec<Expected>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Drop for InOrder {
    fn drop(&mut self) {
        if let Some(reconstructor) = self.reconstructor.upgrade() {
            reconstructor.ahead.forget(self.shards.iter().map(|expected| (&expected.shard, &expected.reading)));
        }
    }
}

impl Reconstructor {
    /// Begins to read these shards. About `room` bytes of them may wait, and at most twice as many. The next reader of
    /// a shard gets it from here. Shards that another such reading brings are left to it.
    pub fn read_in_order(self: &Arc<Self>, shards: Vec<Shard>, room: u64) -> InOrder {
        let mut of: BTreeMap<usize, Vec<Shard>> = BTreeMap::new();
        for shard in shards.into_iter().filter(|shard| !self.health.is_down(shard.at)) {
            of.entry(shard.at).or_default().push(shard);
        }
        let room = room / of.len().max(1) as u64;
        let (mut all, mut tasks) = (Vec::new(), Vec::new());
        for (at, shards) in of {
            let shards = in_order(shards, ROW.min(room / 3).max(1));
            let reading = OrderedReader::new(&shards, room);
            let mut queue: VecDeque<(Key, oneshot::Sender<Came>)> = VecDeque::with_capacity(shards.len());
            for (n, shard) in shards.into_iter().enumerate() {
                let (send, receive) = oneshot::channel();
                let expected = Expected { shard: (at, shard.key.clone()), reading: Arc::clone(&reading) };
                if self.ahead.expect(&expected.shard, Coming { receive, reading: Arc::clone(&reading), n }) {
                    all.push(expected);
                }
                queue.push_back((shard.key, send));
            }
            let reconstructor = Arc::downgrade(self);
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move { read_along(&reconstructor, at, &reading, queue).await })));
        }
        InOrder { reconstructor: Arc::downgrade(self), shards: all, _tasks: tasks }
    }
}

/// Reads the shards in `queue` from drive `at`, as far as there is room. Ends where the drive is lost: readers that
/// wait see their channels close.
async fn read_along(reconstructor: &Weak<Reconstructor>, at: usize, reading: &Arc<OrderedReader>, mut queue: VecDeque<(Key, oneshot::Sender<Came>)>) {
    let mut reads = FuturesUnordered::new();
    loop {
        while reads.len() < DEPTH
            && let Some(held) = reading.begin()
        {
            let Some((key, send)) = queue.pop_front() else { return };
            // A reader that no longer waits has read the shard itself.
            if send.is_closed() {
                continue;
            }
            reads.push(async move {
                // A shard that can't be read is left to its reader, which reads it again and gets the error.
                let Some(reconstructor) = reconstructor.upgrade() else { return };
                if let Ok(bytes) = reconstructor.ask(at, "read a shard", reconstructor.drives[at].get(&key)).await {
                    let _ = send.send((bytes, held));
                }
            });
        }
        if reads.is_empty() && reading.is_done() {
            return;
        }
        tokio::select! {
            Some(()) = reads.next(), if !reads.is_empty() => {
                if reconstructor.upgrade().is_none_or(|reconstructor| reconstructor.health.is_down(at)) {
                    return;
                }
            }
            () = reading.moved.notified() => {}
        }
    }
}
