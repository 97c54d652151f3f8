//! The task's view of a drive: its session, the names of its slices, and what it did.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use skytether_common::{Error, Result};
use skytether_device::session::Stripe;
use skytether_device::{Annotation, Cse, FaultReporter, ParentWork, SubPlan};
use skytether_engine::feed::FetchedSlice;
use skytether_scheduler::message::{Completed, CseId, Down, EpochId, PushdownLevel, Slice, SliceCost, SliceId, Up};
use tokio::sync::mpsc;

use crate::adaptive::backpressure::OutputQueue;
use crate::adaptive::local_worker::LocalWorker;
use crate::drive_reader::{DriveStream, WireCounters};

/// The task's view of a drive.
pub(crate) struct Drive {
    pub(crate) reading: Arc<DriveStream>,
    pub(crate) plan: SubPlan,
    pub(crate) cse: Arc<dyn Cse>,
    pub(crate) faults: Arc<dyn FaultReporter>,
    pub(crate) above: Arc<LocalWorker>,
    pub(crate) output: Arc<OutputQueue>,
    /// Orders go here; nothing while it is being opened, and where it runs its sub-plan as a whole.
    pub(crate) orders: Option<mpsc::UnboundedSender<Down>>,
    /// Orders for a session that is being opened.
    pub(crate) held: Vec<Down>,
    pub(crate) sessions: u32,
    /// When the session was last heard of.
    pub(crate) heard: Instant,
    pub(crate) opening: bool,
    pub(crate) is_surveyed: bool,
    /// Whether what it announced made no sense once.
    pub(crate) misannounced: bool,
    /// Its slices as it told them, for a source that asks for some of them.
    pub(crate) stored: Vec<Slice>,
    /// How much of the sub-plan is wanted.
    pub(crate) top: PushdownLevel,
    /// The columns of rows at `filter`, where those are others, as its session announced them.
    pub(crate) lower: Option<SchemaRef>,
    /// At which rung the machine takes epochs to be open.
    pub(crate) opened: HashMap<EpochId, PushdownLevel>,
    /// Epochs that it was asked for and has not ended. One that was given up stays: whoever hangs owes it still.
    pub(crate) owes: HashSet<EpochId>,
    /// Stripes by the numbers of their slices, from `first` on.
    pub(crate) stripes: Vec<u32>,
    pub(crate) first: u32,
    pub(crate) places: HashMap<u32, u32>,
    /// Whether the last session is over, so that nothing more will be told in it.
    pub(crate) silent: bool,
    pub(crate) trouble: Option<Arc<Error>>,
    pub(crate) whole: bool,
    /// Its own figures, once told.
    pub(crate) told: Option<Annotation>,
    /// What was seen of the sessions before the last one, which told nothing.
    pub(crate) before: WireCounters,
    /// Of the processor time that what it handed out took here, what the receipt has.
    pub(crate) told_above: Duration,
    pub(crate) handed_out: Handed,
}

/// What went up from a drive otherwise than as states.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handed {
    /// As the machine counts them: runs of small ones are one.
    pub(crate) slices: u64,
    /// All bytes of slices that came as they are stored, also of those that were not worked off in the end.
    pub(crate) bytes: u64,
    pub(crate) filtered: u64,
    pub(crate) full: u64,
    /// What is stored of `slices`: how many slices, and their bytes.
    stored: (u64, u64),
}

impl Handed {
    /// So many `slices` of the machine's are worked off here: these.
    pub(crate) fn take(&mut self, slices: u64, stored: &[FetchedSlice]) {
        self.slices += slices;
        self.stored.0 += stored.iter().map(FetchedSlice::slices).sum::<u64>();
        self.stored.1 += stored.iter().map(FetchedSlice::bytes).sum::<u64>();
    }
}

impl Drive {
    /// Takes what the drive has: its slices, numbered from `first` on, when it tells them for the first time.
    ///
    /// # Errors
    /// Unavailable, where it has others than before; internal, where it names one twice.
    pub(crate) fn surveyed(&mut self, slice_manifest: &[Stripe], cse: CseId, first: u32) -> Result<Option<Vec<Slice>>> {
        let name = &self.cse.info().name;
        let stripes: Vec<u32> = slice_manifest.iter().map(|stripe| stripe.stripe).collect();
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
        let slices = slice_manifest.iter().zip(first..).map(|(stripe, id)| Slice {
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
    pub(crate) fn stored(&self, stripe: u32) -> Option<Slice> {
        self.stored.get(self.places.get(&stripe)?.checked_sub(self.first)? as usize).cloned()
    }

    /// The stripe of a slice.
    pub(crate) fn stripe(&self, slice: SliceId) -> Option<u32> {
        self.stripes.get(slice.0.checked_sub(self.first)? as usize).copied()
    }

    pub(crate) fn to_stripes(&self, slices: &[SliceId]) -> Vec<SliceId> {
        slices.iter().filter_map(|slice| self.stripe(*slice)).map(SliceId).collect()
    }

    /// The slice of a stripe; what the drive does not have is none of ours.
    fn slice(&self, stripe: SliceId) -> SliceId {
        SliceId(self.places.get(&stripe.0).copied().unwrap_or(u32::MAX))
    }

    fn slices(&self, stripes: Vec<SliceId>) -> Vec<SliceId> {
        stripes.into_iter().map(|stripe| self.slice(stripe)).collect()
    }

    /// The columns that rows of `epoch` are to have, where those at `full` are `schema`; `None` where it was not asked
    /// for, so that they count for nothing.
    pub(crate) fn columns(&self, epoch: EpochId, has_upper: bool, schema: &SchemaRef) -> Option<SchemaRef> {
        match self.opened.get(&epoch)? {
            PushdownLevel::Filter if has_upper => self.lower.clone(),
            _ => Some(Arc::clone(schema)),
        }
    }

    /// A message with slices where the drive names stripes.
    pub(crate) fn to_slices(&self, up: Up) -> Up {
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

    /// Takes note of what the drive has ended.
    pub(crate) fn heard_of(&mut self, up: &Up) {
        match up {
            Up::EpochDone(end) => drop(self.owes.remove(&end.epoch)),
            Up::Refused { epoch, .. } | Up::Failed { epoch: Some(epoch), .. } => drop(self.owes.remove(epoch)),
            _ => {}
        }
    }

    /// What this level has worked off in the place of this drive, in so much time.
    fn worked_above(&self, time: Duration) -> ParentWork {
        let (slices, bytes_read) = self.handed_out.stored;
        let rows_read = self.above.told().and_then(|told| told.rows_read).unwrap_or(0);
        ParentWork { slices, rows_read, bytes_read, seconds: time.as_secs_f64() }
    }

    /// Writes into the receipt what this level has worked off so far in the place of this drive.
    pub(crate) fn tell_above(&mut self) {
        let time = self.above.time();
        let new = time.saturating_sub(self.told_above);
        self.told_above = time;
        self.reading.worked(self.worked_above(time), new);
    }

    /// Writes into the receipt what this drive did, as `told` by itself.
    pub(crate) fn note(&mut self, told: Option<Annotation>) {
        if self.whole {
            return;
        }
        self.tell_above();
        let above = self.worked_above(self.told_above);
        let read = self.above.told().unwrap_or_default();
        let Handed { slices, bytes, filtered, full, .. } = self.handed_out;
        // Beside slices the drive read metadata and names for this level. What came until now is in the receipt, unless
        // what the drive tells takes its place.
        let more = read.bytes_read.max(bytes).saturating_sub(if told.is_some() { 0 } else { bytes });
        let rung = if slices > 0 {
            PushdownLevel::Raw
        } else if filtered > 0 {
            PushdownLevel::Filter
        } else {
            self.top
        };
        self.reading.end(told, self.before, |annotation| {
            // What a session that broke has worked off is counted here.
            annotation.slices = annotation.slices.max(filtered + full);
            annotation.slices_told = annotation.slices_told.saturating_add(read.slices_told);
            // It may have read some ahead that were handed out then: whoever worked a slice off has it.
            if let Some(all) = annotation.slices_total {
                let others = annotation.slices_pruned.saturating_add(annotation.slices_told).saturating_add(above.slices);
                annotation.slices = annotation.slices.min(all.saturating_sub(others));
            }
            annotation.rung = Some(rung);
            annotation.reason = reason(annotation.slices, above.slices, (filtered, full));
            annotation.bytes_read = annotation.bytes_read.saturating_add(more);
            annotation.bytes_sent = annotation.bytes_sent.saturating_add(more);
            annotation.above = above;
        });
    }
}

/// Why less than everything ran at a drive that worked `own` slices off and handed `handed` out; the machine knows of
/// so many slices that it filtered, and that it worked off in full.
fn reason(own: u64, handed: u64, (filtered, full): (u64, u64)) -> Option<String> {
    let all = own.saturating_add(handed);
    let mut reasons = Vec::new();
    if handed > 0 {
        reasons.push(format!("{handed} of {all} slices were handed to the host as they are stored"));
    }
    if filtered > 0 {
        // The machine may count several small ones as one.
        let share = filtered as f64 / (filtered + full) as f64;
        reasons.push(format!("{:.0} of {all} slices were filtered here and aggregated on the host", own as f64 * share));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
