//! The task's view of a drive: its session, the names of its slices, and what it did.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use skytether_adapt::message::{Completed, CseId, Down, EpochId, Rung, Slice, SliceCost, SliceId, Up};
use skytether_common::{Error, Result};
use skytether_wire::session::Stripe;
use skytether_wire::{Annotation, Cse, SubPlan};
use tokio::sync::mpsc;

use super::above::Above;
use super::flow::Mouth;
use crate::reading::{Reading, Seen};

/// The task's view of a drive.
pub(super) struct Drive {
    pub(super) reading: Arc<Reading>,
    pub(super) plan: SubPlan,
    pub(super) cse: Arc<dyn Cse>,
    pub(super) above: Arc<Above>,
    pub(super) output: Arc<Mouth>,
    /// Orders go here; nothing while it is being opened, and where it runs its sub-plan as a whole.
    pub(super) orders: Option<mpsc::UnboundedSender<Down>>,
    /// Orders for a session that is being opened.
    pub(super) held: Vec<Down>,
    pub(super) sessions: u32,
    /// When the session was last heard of.
    pub(super) heard: Instant,
    pub(super) opening: bool,
    pub(super) is_surveyed: bool,
    /// Its slices as it told them, for a source that asks for some of them.
    pub(super) stored: Vec<Slice>,
    /// How much of the sub-plan is wanted.
    pub(super) top: Rung,
    /// At which rung the machine takes epochs to be open.
    pub(super) opened: HashMap<EpochId, Rung>,
    /// Stripes by the numbers of their slices, from `first` on.
    pub(super) stripes: Vec<u32>,
    pub(super) first: u32,
    pub(super) places: HashMap<u32, u32>,
    /// Whether the last session is over, so that nothing more will be told in it.
    pub(super) silent: bool,
    pub(super) trouble: Option<Arc<Error>>,
    pub(super) whole: bool,
    /// Its own figures, once told.
    pub(super) told: Option<Annotation>,
    /// What was seen of the sessions before the last one, which told nothing.
    pub(super) before: Seen,
    pub(super) handed_out: Handed,
}

/// What went up from a drive otherwise than as states.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handed {
    pub(super) slices: u64,
    pub(super) bytes: u64,
    pub(super) filtered: u64,
    pub(super) full: u64,
}

impl Drive {
    /// Takes what the drive has: its slices, numbered from `first` on, when it tells them for the first time.
    ///
    /// # Errors
    /// Unavailable, where it has others than before; internal, where it names one twice.
    pub(super) fn surveyed(&mut self, survey: &[Stripe], cse: CseId, first: u32) -> Result<Option<Vec<Slice>>> {
        let name = &self.cse.info().name;
        let stripes: Vec<u32> = survey.iter().map(|stripe| stripe.stripe).collect();
        if self.is_surveyed {
            if self.stripes != stripes {
                return Err(Error::unavailable(format!("{name} has other slices than before: the data set was replaced or dropped; ask again")));
            }
            return Ok(None);
        }
        let places: HashMap<u32, u32> = stripes.iter().zip(first..).map(|(stripe, slice)| (*stripe, slice)).collect();
        if places.len() != stripes.len() {
            return Err(Error::internal(format!("{name} names a stripe twice")));
        }
        let slices = survey.iter().zip(first..).map(|(stripe, id)| Slice {
            id: SliceId(id),
            rows: u32::try_from(stripe.rows).unwrap_or(u32::MAX),
            bytes: stripe.bytes,
            readers: vec![cse],
        });
        let slices: Vec<_> = slices.collect();
        self.stored.clone_from(&slices);
        (self.is_surveyed, self.first, self.places, self.stripes) = (true, first, places, stripes);
        Ok(Some(slices))
    }

    /// The slice of a stripe, with all that is known of it.
    pub(super) fn stored(&self, stripe: u32) -> Option<Slice> {
        self.stored.get(self.places.get(&stripe)?.checked_sub(self.first)? as usize).cloned()
    }

    /// The stripe of a slice.
    pub(super) fn stripe(&self, slice: SliceId) -> Option<u32> {
        self.stripes.get(slice.0.checked_sub(self.first)? as usize).copied()
    }

    pub(super) fn to_stripes(&self, slices: &[SliceId]) -> Vec<SliceId> {
        slices.iter().filter_map(|slice| self.stripe(*slice)).map(SliceId).collect()
    }

    /// The slice of a stripe; what the drive does not have is none of ours.
    fn slice(&self, stripe: SliceId) -> SliceId {
        SliceId(self.places.get(&stripe.0).copied().unwrap_or(u32::MAX))
    }

    fn slices(&self, stripes: Vec<SliceId>) -> Vec<SliceId> {
        stripes.into_iter().map(|stripe| self.slice(stripe)).collect()
    }

    /// A message with slices where the drive names stripes.
    pub(super) fn to_slices(&self, up: Up) -> Up {
        match up {
            Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes, slack } => {
                let done = done.into_iter().map(|cost| SliceCost { slice: self.slice(cost.slice), ..cost }).collect();
                let running = running.into_iter().map(|(stripe, cpu)| (self.slice(stripe), cpu)).collect();
                Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes, slack }
            }
            Up::Taken { epoch, number, slices } => Up::Taken { epoch, number, slices: self.slices(slices) },
            Up::EpochDone(end) => {
                // What was asked of the drive counts as what the machine meant; another rung is garbage.
                let asked = self.opened.get(&end.epoch).copied().filter(|meant| (*meant).min(self.top) == end.rung);
                let rung = asked.unwrap_or(end.rung);
                Up::EpochDone(Completed { rung, slices: self.slices(end.slices), ..end })
            }
            Up::Stopped { epoch, remaining, accepts, again, why } => Up::Stopped { epoch, remaining: self.slices(remaining), accepts, again, why },
            other => other,
        }
    }

    /// Writes into the receipt what this drive did, as `told` by itself.
    pub(super) fn note(&self, told: Option<Annotation>) {
        if self.whole {
            return;
        }
        let Handed { slices, bytes, filtered, full, .. } = self.handed_out;
        let all = slices + filtered + full;
        let mut reasons = Vec::new();
        if slices > 0 {
            reasons.push(format!("{slices} of {all} slices were handed to the host as they are stored"));
        }
        if filtered > 0 {
            reasons.push(format!("{filtered} of {all} slices were filtered here and aggregated on the host"));
        }
        let rung = if slices > 0 {
            Rung::Raw
        } else if filtered > 0 {
            Rung::Filter
        } else {
            self.top
        };
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        self.reading.end(told, self.before, |annotation| {
            // What a session that broke has worked off is counted here.
            annotation.slices = annotation.slices.max(filtered + full);
            annotation.rung = Some(rung);
            annotation.reason = reason;
            annotation.bytes_sent += bytes;
        });
    }
}
