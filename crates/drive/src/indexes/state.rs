//! The state of a drive's indexes: definition, progress, and the time of the next attempt.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_common::{Error, Kind, PartitionName};
use skytether_index::{Definition, Head, Phase, State};

/// The least memory with which a segment is built, in bytes.
pub(super) const LEAST_MEMORY: usize = 4 << 20;

/// The delay before a failed build is retried, at first and at most: the failure may have been a passing fault of the
/// disk.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// Keys per page of a listing.
pub(super) const PAGE: usize = 128;

/// One index.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) of: PartitionName,
    pub(super) name: String,
    pub(super) definition: Definition,
    /// Unique: an index that was dropped and defined again gets another one.
    pub(super) serial: u64,
    pub(super) phase: Phase,
    pub(super) segments: Vec<Arc<Head>>,
    /// Whether its segments in the store were read.
    pub(super) loaded: bool,
    /// Stripes that are already in the next segment, which is not written yet.
    pub(super) ahead: u32,
    pub(super) stripes: u32,
    pub(super) bytes: u64,
    pub(super) why: Option<String>,
    /// Failed builds in a row.
    pub(super) failures: u32,
    /// When the build is retried.
    pub(super) again: Option<Instant>,
}

impl Entry {
    pub(super) fn done(&self) -> u32 {
        self.segments.iter().map(|head| head.header.stripes.len() as u32).sum()
    }

    /// Discards its segments, so that it is built from the start.
    pub(super) fn begin_again(&mut self) {
        (self.phase, self.loaded, self.ahead, self.bytes) = (Phase::Waiting, false, 0, 0);
        self.segments.clear();
    }

    /// Records that building failed with `error`.
    pub(super) fn fail(&mut self, error: &Error) {
        (self.phase, self.ahead, self.why) = (Phase::Failed, 0, Some(error.report()));
        // A retry changes neither table nor definition.
        let stays = matches!(error.kind(), Kind::Unsupported | Kind::Invalid);
        self.again = (!stays).then(|| Instant::now() + RETRY.0.saturating_mul(1 << self.failures.min(16)).min(RETRY.1));
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the builder has work for it now.
    pub(super) fn is_due(&self) -> bool {
        match self.phase {
            Phase::Waiting | Phase::Building => true,
            Phase::Failed => self.again.is_some_and(|again| again <= Instant::now()),
            Phase::Ready | Phase::Dropped => false,
        }
    }

    pub(super) fn state(&self) -> State {
        State {
            of: self.of.clone(),
            name: self.name.clone(),
            phase: self.phase,
            stripes: (self.done() + self.ahead, self.stripes),
            rows: self.segments.iter().map(|head| u64::from(head.rows())).sum(),
            bytes: self.bytes,
            why: self.why.clone(),
            definition: Some(self.definition.clone()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct IndexState {
    pub(super) stop: bool,
    pub(super) serials: u64,
    /// By the partitions in which the indexes are stored.
    pub(super) all: BTreeMap<PartitionName, Entry>,
}

impl IndexState {
    /// Adds an index, or replaces the one in this partition.
    pub(super) fn define(&mut self, at: &PartitionName, of: PartitionName, name: String, definition: Definition) -> &mut Entry {
        self.serials += 1;
        let (serial, phase) = (self.serials, Phase::Waiting);
        let entry = Entry {
            of,
            name,
            definition,
            serial,
            phase,
            segments: Vec::new(),
            loaded: false,
            ahead: 0,
            stripes: 0,
            bytes: 0,
            why: None,
            failures: 0,
            again: None,
        };
        match self.all.entry(at.clone()) {
            Slot::Occupied(mut slot) => {
                slot.insert(entry);
                slot.into_mut()
            }
            Slot::Vacant(slot) => slot.insert(entry),
        }
    }

    /// The next index with work to do after that at `last`: round robin.
    pub(super) fn next(&self, last: Option<&PartitionName>) -> Option<(&PartitionName, &Entry)> {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range::<PartitionName, _>((behind, Bound::Unbounded)).chain(&self.all).find(|(_, entry)| entry.is_due())
    }
}
