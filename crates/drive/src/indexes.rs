//! The indexes of a drive. The drive builds them in the background, uses them as far as they are built, and drops them
//! when space is short.
//!
//! The definitions in the store (`skytether_index::Definition`, under a partition's key of its own) say what to build,
//! so a drive continues by itself after it was opened again. One thread builds: all the time while no query runs, and a
//! quarter of the time otherwise. The drive's device is charged for what the thread reads and computes, as for all
//! work.
//!
//! Each write to an index is one change together with its definition, on the condition that the definition is
//! unchanged. So an index whose generation or definition is gone is never written again. What can't be built is tried
//! again at growing intervals, and at once where something of its partition is written again.

use std::sync::Arc;
use std::thread::JoinHandle;

use datafusion::execution::memory_pool::MemoryPool;
use parking_lot::{Condvar, Mutex};
use skytether_common::{PartitionName, Result};
use skytether_engine::Reader;
use skytether_engine::indexed::Indexes;
use skytether_index::{Definition, Phase, State, of_partition};
use skytether_store::{Op, SliceStore};
use tokio::sync::Semaphore;

mod building;
mod state;
#[cfg(test)]
mod tests;

use self::building::Shared;
use self::state::{Entry, LEAST_MEMORY};
use crate::heads::heads;

/// Bytes of memory for a segment while it is built, and the largest share (one in this many) of the drive's memory for
/// it: the rest is for queries.
const MEMORY: usize = 128 << 20;
const SHARE: usize = 4;

/// Builds the indexes of a drive, until it is dropped.
#[derive(Debug)]
pub(crate) struct Builder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the builder stands on.
pub(crate) struct IndexContext {
    /// Where indexes are found and written.
    pub(crate) store: Arc<dyn SliceStore>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) pool: Arc<dyn MemoryPool>,
    pub(crate) turns: Arc<Semaphore>,
    /// Bytes that the pool has.
    pub(crate) limit: usize,
    pub(crate) leave_free: f64,
}

impl Builder {
    /// Looks what indexes `store` has, which are used from now on, and goes on building those that are not ready.
    /// `open` is the store without the device's disk: looking is a part of opening a drive.
    pub(crate) fn begin(open: &dyn SliceStore, context: IndexContext) -> Self {
        let IndexContext { store, reader, indexes, pool, turns, limit, leave_free } = context;
        let memory = MEMORY.min(limit / SHARE).max(LEAST_MEMORY);
        let most_turns = turns.available_permits();
        let shared = Arc::new(Shared { store, reader, indexes, pool, turns, most_turns, memory, leave_free, state: Mutex::default(), wake: Condvar::new() });
        match definitions(open) {
            Ok(found) => {
                for (at, definition) in found {
                    if let Some((of, name)) = of_partition(&at) {
                        let mut state = shared.state();
                        let entry = state.define(&at, of, name, definition);
                        if let Err(error) = shared.load(open, &at, entry) {
                            entry.begin_again();
                            tracing::warn!("index {} of {} can't be read, and is built again: {}", entry.name, entry.of.dataset, error.report());
                        }
                    }
                }
            }
            Err(error) => tracing::warn!("indexes can't be listed: {}", error.report()),
        }
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("indexes".into()).spawn(move || works.run());
        if let Err(error) = &thread {
            tracing::warn!("indexes are not built: {error}");
        }
        Self { shared, thread: thread.ok() }
    }

    /// What there is, and how far it is.
    pub(crate) fn states(&self) -> Vec<State> {
        self.shared.state().all.values().map(Entry::state).collect()
    }

    /// Whether something could be dropped.
    pub(crate) fn takes_space(&self) -> bool {
        self.shared.state().all.values().any(|entry| entry.bytes > 0 || entry.phase == Phase::Building)
    }

    /// The store was changed by `batch`.
    pub(crate) fn changed(&self, batch: &[Op]) {
        let mut changed = false;
        let mut state = self.shared.state();
        let failed = state.all.values().any(|entry| entry.phase == Phase::Failed);
        for op in batch {
            let Some((at, slice)) = PartitionName::parse(op.key()) else { continue };
            match (of_partition(&at), op) {
                (Some((of, name)), Op::Put { value, .. }) if slice.is_none() => match Definition::decode(value) {
                    Ok(definition) => {
                        let same = |entry: &Entry| entry.definition == definition && !matches!(entry.phase, Phase::Dropped | Phase::Failed);
                        if !state.all.get(&at).is_some_and(same) {
                            self.shared.indexes.remove(&of, &name);
                            state.define(&at, of, name, definition);
                            changed = true;
                        }
                    }
                    Err(error) => tracing::warn!("index {name} of {} is not built: {}", of.dataset, error.report()),
                },
                (Some((of, name)), Op::Delete { .. }) if slice.is_none() => {
                    self.shared.indexes.remove(&of, &name);
                    state.all.remove(&at);
                    changed = true;
                }
                // A partition that arrives later than its index, or a slice that was repaired.
                (None, Op::Put { .. } | Op::Link { .. }) if failed => {
                    for entry in state.all.values_mut().filter(|entry| entry.of == at && entry.phase == Phase::Failed) {
                        (entry.phase, entry.failures) = (Phase::Waiting, 0);
                        if slice.is_none() {
                            entry.begin_again();
                        }
                        changed = true;
                    }
                }
                // Slices of indexes are written by the drive itself, and definitions are not linked.
                (_, Op::Put { .. } | Op::Delete { .. } | Op::Check { .. } | Op::Link { .. }) => {}
            }
        }
        drop(state);
        if changed {
            self.shared.wake.notify_all();
        }
    }

    /// Takes all indexes off the drive, because of `why`; whether there was one. Blocks.
    pub(crate) fn make_room(&self, why: &str) -> bool {
        self.shared.make_room(why)
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake.notify_all();
        // It holds the store. What it is at takes as long as a stripe, or putting a segment in order.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that builds indexes panicked");
        }
    }
}

/// The definitions in a store, with the partitions that they are the keys of.
fn definitions(store: &dyn SliceStore) -> Result<Vec<(PartitionName, Definition)>> {
    let mut found = Vec::new();
    heads(store, |at, entry| {
        if of_partition(&at).is_some() {
            match store.get(&entry.key).and_then(|bytes| Definition::decode(&bytes)) {
                Ok(definition) => found.push((at, definition)),
                Err(error) => tracing::warn!("{} is not built: {}", entry.key, error.report()),
            }
        }
    })?;
    Ok(found)
}
