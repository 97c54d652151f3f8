//! The ledger: which complete epoch covers which slice. Each slice counts once, in whatever order messages arrive (I4).
//!
//! The ledger holds batches until their epoch is complete: its end has been reported, and all batches that the end
//! names are there. Then the epoch counts as a whole or is dropped as a whole. It is dropped if it was revoked, if
//! another epoch already covers one of its slices, or if it names slices that it was never given.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{CseId, EpochId, PushdownLevel, SliceId};

/// Why an epoch, or something that claims to belong to one, does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// The host opened no such epoch.
    Unknown,
    /// It counts already, or was dropped already.
    Late,
    /// The host gave it up.
    Revoked,
    /// Slices of it are covered by another epoch.
    Overlap,
    /// It names slices that it was never given, a slice twice, or another level than it was opened at. No message of
    /// its CSE can be trusted.
    Garbage,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict<B> {
    /// The epoch is not complete yet.
    Held,
    /// The epoch counts: its batches, in their order.
    Counted {
        /// The slices that it covers.
        slices: Vec<SliceId>,
        /// Its results.
        batches: Vec<B>,
    },
    /// It does not count, nor will anything else of it.
    Dropped(Dropped),
}

#[derive(Debug, Clone)]
struct Open<B> {
    cse: CseId,
    rung: PushdownLevel,
    given: BTreeSet<SliceId>,
    batches: BTreeMap<u32, B>,
    end: Option<(Vec<SliceId>, u32)>,
}

#[derive(Debug, Clone)]
enum State<B> {
    Open(Open<B>),
    Counted,
    Revoked,
    Dropped,
}

/// The ledger of a query. `B` is a batch, or a handle of one.
#[derive(Debug, Clone)]
pub struct Ledger<B> {
    wanted: BTreeMap<SliceId, Option<EpochId>>,
    epochs: BTreeMap<EpochId, State<B>>,
    uncovered: usize,
}

impl<B> Default for Ledger<B> {
    fn default() -> Self {
        Self { wanted: BTreeMap::new(), epochs: BTreeMap::new(), uncovered: 0 }
    }
}

impl<B> Ledger<B> {
    /// A book of no slices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The query needs `slice`, too. Repeated calls change nothing.
    pub fn want(&mut self, slice: SliceId) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.wanted.entry(slice) {
            place.insert(None);
            self.uncovered += 1;
        }
    }

    /// `cse` gets `epoch`. A number that was used before changes nothing.
    pub fn open(&mut self, epoch: EpochId, cse: CseId, rung: PushdownLevel) {
        self.epochs.entry(epoch).or_insert_with(|| State::Open(Open { cse, rung, given: BTreeSet::new(), batches: BTreeMap::new(), end: None }));
    }

    /// `slices` are given to `epoch`, which may name them in its end.
    pub fn give(&mut self, epoch: EpochId, slices: &[SliceId]) {
        if let Some(State::Open(open)) = self.epochs.get_mut(&epoch) {
            open.given.extend(slices);
        }
    }

    /// Whatever still comes of `epoch` is not to count; what it holds is freed. Epochs that count go on counting.
    pub fn revoke(&mut self, epoch: EpochId) {
        if let Some(state @ State::Open(_)) = self.epochs.get_mut(&epoch) {
            *state = State::Revoked;
        }
    }

    /// Batch `number` of `epoch`, from `cse`. One that is there already is dropped without harm.
    pub fn batch(&mut self, cse: CseId, epoch: EpochId, number: u32, batch: B) -> Verdict<B> {
        match self.opened(cse, epoch) {
            Ok(open) => {
                // No end that could count names fewer batches than this number.
                if open.end.as_ref().is_some_and(|(_, batches)| number >= *batches) {
                    return self.drop_it(epoch, Dropped::Garbage);
                }
                open.batches.entry(number).or_insert(batch);
            }
            Err(why) => return Verdict::Dropped(why),
        }
        self.settle(epoch)
    }

    /// The end of `epoch`, from `cse`: it ran at `rung`, its results are of exactly `slices`, in `batches` batches.
    pub fn end(&mut self, cse: CseId, epoch: EpochId, rung: PushdownLevel, slices: &[SliceId], batches: u32) -> Verdict<B> {
        match self.opened(cse, epoch) {
            Ok(open) => {
                let distinct: BTreeSet<SliceId> = slices.iter().copied().collect();
                let too_many = open.batches.last_key_value().is_some_and(|(last, _)| *last >= batches);
                if open.rung != rung || distinct.len() != slices.len() || !distinct.is_subset(&open.given) || too_many {
                    return self.drop_it(epoch, Dropped::Garbage);
                }
                if open.end.is_none() {
                    open.end = Some((slices.to_vec(), batches));
                }
            }
            Err(why) => return Verdict::Dropped(why),
        }
        self.settle(epoch)
    }

    fn opened(&mut self, cse: CseId, epoch: EpochId) -> Result<&mut Open<B>, Dropped> {
        match self.epochs.get_mut(&epoch) {
            Some(State::Open(open)) if open.cse == cse => Ok(open),
            None | Some(State::Open(_)) => Err(Dropped::Unknown),
            Some(State::Counted | State::Dropped) => Err(Dropped::Late),
            Some(State::Revoked) => Err(Dropped::Revoked),
        }
    }

    fn drop_it(&mut self, epoch: EpochId, why: Dropped) -> Verdict<B> {
        self.epochs.insert(epoch, State::Dropped);
        Verdict::Dropped(why)
    }

    fn settle(&mut self, epoch: EpochId) -> Verdict<B> {
        let Some(State::Open(open)) = self.epochs.get(&epoch) else { return Verdict::Held };
        let Some((slices, batches)) = &open.end else { return Verdict::Held };
        if slices.iter().any(|slice| self.wanted.get(slice).is_none_or(Option::is_some)) {
            return self.drop_it(epoch, Dropped::Overlap);
        }
        if open.batches.len() < *batches as usize {
            return Verdict::Held;
        }
        let Some(State::Open(open)) = self.epochs.insert(epoch, State::Counted) else { return Verdict::Held };
        let slices = open.end.map(|(slices, _)| slices).unwrap_or_default();
        for slice in &slices {
            self.wanted.insert(*slice, Some(epoch));
        }
        self.uncovered -= slices.len();
        Verdict::Counted { slices, batches: open.batches.into_values().collect() }
    }

    /// Whether every slice is covered.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.uncovered == 0
    }

    /// How many slices are not covered.
    #[must_use]
    pub fn uncovered(&self) -> usize {
        self.uncovered
    }

    /// The epoch that covers `slice`.
    #[must_use]
    pub fn covering(&self, slice: SliceId) -> Option<EpochId> {
        self.wanted.get(&slice).copied().flatten()
    }
}
