//! Rows on their way from drives to readers, and how many of them may wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use skytether_adapt::message::EpochId;
use skytether_wire::size::batch_bytes;
use tokio::sync::Notify;

/// Rows that wait for whoever reads them, in bytes, before nothing more is taken in.
const WAITING: u64 = 32 << 20;

/// Milliseconds after which rows that nobody reads hold nothing up.
const STUCK: u64 = 1000;
/// Rows that wait for readers, of all drives.
pub(super) struct Flow {
    began: Instant,
    bytes: AtomicU64,
    /// When something was last read, in milliseconds since `began`.
    read: AtomicU64,
    pub(super) room: Notify,
    /// Bytes of filtered rows that wait to be worked off here, by their epochs.
    filtered: Mutex<BTreeMap<EpochId, u64>>,
}

impl Flow {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), bytes: AtomicU64::new(0), read: AtomicU64::new(0), room: Notify::new(), filtered: Mutex::default() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether enough waits. Where nobody reads any of it for long, somebody may be waiting for the rows of another drive first.
    pub(super) fn clogged(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > WAITING && self.now().saturating_sub(self.read.load(Ordering::Relaxed)) < STUCK
    }

    fn filtered(&self) -> MutexGuard<'_, BTreeMap<EpochId, u64>> {
        self.filtered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the task is to take nothing more in: of rows for readers, or of rows that are to be aggregated here.
    pub(super) fn full(&self) -> bool {
        self.clogged() || self.filtered().values().sum::<u64>() > WAITING
    }

    /// Filtered rows wait to be worked off.
    pub(super) fn waits(&self, epoch: EpochId, bytes: u64) {
        self.filtered().insert(epoch, bytes);
    }

    /// An epoch is worked off.
    pub(super) fn worked(&self, epoch: EpochId) {
        if self.filtered().remove(&epoch).is_some() {
            self.room.notify_waiters();
        }
    }

    pub(super) fn more(&self, batch: &RecordBatch) {
        if self.bytes.fetch_add(batch_bytes(batch), Ordering::Relaxed) == 0 {
            self.read.store(self.now(), Ordering::Relaxed);
        }
    }

    pub(super) fn less(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.read.store(self.now(), Ordering::Relaxed);
        self.room.notify_waiters();
    }
}
