//! What a drive knows of each index: its definition, how far it is, and when it is tried again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_common::{Error, Kind, PartitionName};
use skytether_index::{Definition, Head, Phase, State};

/// The least that is tried with.
pub(super) const LEAST_MEMORY: usize = 4 << 20;

/// After how long an index that could not be built is tried again, at first and at most: what failed may have been the disk, at that moment.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// Keys that are listed at once.
pub(super) const PAGE: usize = 128;

/// One index.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) of: PartitionName,
    pub(super) name: String,
    pub(super) definition: Definition,
    /// No other entry has had it: one that was dropped and defined again is another one.
    pub(super) serial: u64,
    pub(super) phase: Phase,
    pub(super) segments: Vec<Arc<Head>>,
    /// Whether what the store has of it was looked at.
    pub(super) loaded: bool,
    /// Stripes that are being put into the next segment.
    pub(super) ahead: u32,
    pub(super) stripes: u32,
    pub(super) bytes: u64,
    pub(super) why: Option<String>,
    /// How often in a row it could not be built.
    pub(super) failures: u32,
    /// When it is tried again.
    pub(super) again: Option<Instant>,
}

impl Entry {
    pub(super) fn done(&self) -> u32 {
        self.segments.iter().map(|head| head.header.stripes.len() as u32).sum()
    }

    /// What is stored of it is not worth anything.
    pub(super) fn begin_again(&mut self) {
        (self.phase, self.loaded, self.ahead, self.bytes) = (Phase::Waiting, false, 0, 0);
        self.segments.clear();
    }

    /// It can't be built, because of `error`.
    pub(super) fn fail(&mut self, error: &Error) {
        (self.phase, self.ahead, self.why) = (Phase::Failed, 0, Some(error.full_text()));
        // What a table or a definition is like stays so.
        let stays = matches!(error.kind(), Kind::Unsupported | Kind::Invalid);
        self.again = (!stays).then(|| Instant::now() + RETRY.0.saturating_mul(1 << self.failures.min(16)).min(RETRY.1));
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether there is something to do.
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
    /// By the partitions that they lie in.
    pub(super) all: BTreeMap<PartitionName, Entry>,
}

impl IndexState {
    /// An index as it is defined now, in place of what was there.
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

    /// The next index with something to do, after that at `last`: they take turns.
    pub(super) fn next(&self, last: Option<&PartitionName>) -> Option<(&PartitionName, &Entry)> {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range::<PartitionName, _>((behind, Bound::Unbounded)).chain(&self.all).find(|(_, entry)| entry.is_due())
    }
}
