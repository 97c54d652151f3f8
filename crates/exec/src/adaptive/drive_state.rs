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
    /// Takes orders; `None` while the session is being opened, and where the drive runs its sub-plan as a whole.
    pub(crate) orders: Option<mpsc::UnboundedSender<Down>>,
    /// Orders for a session that is being opened.
    pub(crate) held: Vec<Down>,
    pub(crate) sessions: u32,
    /// When the last message of the session came.
    pub(crate) heard: Instant,
    pub(crate) opening: bool,
    pub(crate) is_surveyed: bool,
    /// Whether the drive has announced something invalid once.
    pub(crate) misannounced: bool,
    /// The drive's slices as it announced them, for a source that asks for some of them.
    pub(crate) stored: Vec<Slice>,
    /// The wanted pushdown level of the sub-plan.
    pub(crate) top: PushdownLevel,
    /// The columns of rows at `filter`, as its session announced them, where they differ from those at `full`.
    pub(crate) lower: Option<SchemaRef>,
    /// The pushdown level of each epoch that the machine takes for open.
    pub(crate) opened: HashMap<EpochId, PushdownLevel>,
    /// Epochs that the drive was asked for and has not ended. An epoch that was given up stays here: a drive that hangs
    /// still owes it.
    pub(crate) owes: HashSet<EpochId>,
    /// Stripes by the numbers of their slices, from `first` on.
    pub(crate) stripes: Vec<u32>,
    pub(crate) first: u32,
    pub(crate) places: HashMap<u32, u32>,
    /// Whether the last session is over, so that no more of it comes.
    pub(crate) silent: bool,
    pub(crate) trouble: Option<Arc<Error>>,
    pub(crate) whole: bool,
    /// The drive's own annotation, once it came.
    pub(crate) told: Option<Annotation>,
    /// What the host saw of earlier sessions, which ended without an annotation.
    pub(crate) before: WireCounters,
    /// Processor time on the host for this drive's slices and rows that the receipt has already.
    pub(crate) told_above: Duration,
    pub(crate) handed_out: Handed,
}

/// What a drive sent, by pushdown level.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handed {
    /// Slices sent raw, as the machine counts them: a run of small slices is one.
    pub(crate) slices: u64,
    /// Bytes of all slices sent raw, also of those that the host did not process in the end.
    pub(crate) bytes: u64,
    pub(crate) filtered: u64,
    pub(crate) full: u64,
    /// Number and bytes of the stored slices in `slices`.
    stored: (u64, u64),
}

impl Handed {
    /// The host processes `slices` of the machine's slices: these stored ones.
    pub(crate) fn take(&mut self, slices: u64, stored: &[FetchedSlice]) {
        self.slices += slices;
        self.stored.0 += stored.iter().map(FetchedSlice::slices).sum::<u64>();
        self.stored.1 += stored.iter().map(FetchedSlice::bytes).sum::<u64>();
    }
}

impl Drive {
    /// Takes the drive's slice list, numbered from `first` on. Returns the slices when it comes for the first time.
    ///
    /// # Errors
    /// Unavailable, where the list differs from the one before; internal, where it names a stripe twice.
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

    /// The slice of a stripe, with its rows and bytes.
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

    /// The slice of a stripe; `u32::MAX`, which no slice has, for a stripe that the drive does not have.
    fn slice(&self, stripe: SliceId) -> SliceId {
        SliceId(self.places.get(&stripe.0).copied().unwrap_or(u32::MAX))
    }

    fn slices(&self, stripes: Vec<SliceId>) -> Vec<SliceId> {
        stripes.into_iter().map(|stripe| self.slice(stripe)).collect()
    }

    /// The columns that rows of `epoch` must have, where those at `full` are `schema`. `None` where the host did not
    /// ask for the epoch: its rows don't count.
    pub(crate) fn columns(&self, epoch: EpochId, has_upper: bool, schema: &SchemaRef) -> Option<SchemaRef> {
        match self.opened.get(&epoch)? {
            PushdownLevel::Filter if has_upper => self.lower.clone(),
            _ => Some(Arc::clone(schema)),
        }
    }

    /// The message with the machine's slices in place of the drive's stripes.
    pub(crate) fn to_slices(&self, up: Up) -> Up {
        match up {
            Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes, slack } => {
                let done = done.into_iter().map(|cost| SliceCost { slice: self.slice(cost.slice), ..cost }).collect();
                let running = running.into_iter().map(|(stripe, cpu)| (self.slice(stripe), cpu)).collect();
                Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes, slack }
            }
            Up::Taken { epoch, number, slices } => Up::Taken { epoch, number, slices: self.slices(slices) },
            Up::EpochDone(end) => {
                // The level that the drive was asked for counts as the one that the machine meant. Any other level is
                // garbage.
                let asked = self.opened.get(&end.epoch).copied().filter(|meant| (*meant).min(self.top) == end.rung);
                let rung = asked.unwrap_or(end.rung);
                Up::EpochDone(Completed { rung, slices: self.slices(end.slices), ..end })
            }
            Up::Stopped { epoch, remaining, accepts, again, why } => Up::Stopped { epoch, remaining: self.slices(remaining), accepts, again, why },
            other => other,
        }
    }

    /// Notes which epochs the drive has ended.
    pub(crate) fn heard_of(&mut self, up: &Up) {
        match up {
            Up::EpochDone(end) => drop(self.owes.remove(&end.epoch)),
            Up::Refused { epoch, .. } | Up::Failed { epoch: Some(epoch), .. } => drop(self.owes.remove(epoch)),
            _ => {}
        }
    }

    /// What the host has processed of this drive's slices, in `time` of its processors.
    fn worked_above(&self, time: Duration) -> ParentWork {
        let (slices, bytes_read) = self.handed_out.stored;
        let rows_read = self.above.told().and_then(|told| told.rows_read).unwrap_or(0);
        ParentWork { slices, rows_read, bytes_read, seconds: time.as_secs_f64() }
    }

    /// Adds what the host has processed of this drive's slices so far to the receipt.
    pub(crate) fn tell_above(&mut self) {
        let time = self.above.time();
        let new = time.saturating_sub(self.told_above);
        self.told_above = time;
        self.reading.worked(self.worked_above(time), new);
    }

    /// Adds what this drive did to the receipt; `told` is its own annotation.
    pub(crate) fn note(&mut self, told: Option<Annotation>) {
        if self.whole {
            return;
        }
        self.tell_above();
        let above = self.worked_above(self.told_above);
        let read = self.above.told().unwrap_or_default();
        let Handed { slices, bytes, filtered, full, .. } = self.handed_out;
        // The host also read metadata and names from the drive. Raw bytes so far are in the receipt already, unless the
        // drive's annotation replaces them.
        let more = read.bytes_read.max(bytes).saturating_sub(if told.is_some() { 0 } else { bytes });
        let rung = if slices > 0 {
            PushdownLevel::Raw
        } else if filtered > 0 {
            PushdownLevel::Filter
        } else {
            self.top
        };
        self.reading.end(told, self.before, |annotation| {
            // Also counts what the drive processed in a session that broke.
            annotation.slices = annotation.slices.max(filtered + full);
            annotation.slices_told = annotation.slices_told.saturating_add(read.slices_told);
            // The drive may count slices that it read ahead and then sent raw. Those belong to the host, which
            // processed them.
            if let Some(all) = annotation.slices_total {
                let others = annotation.slices_pruned.saturating_add(annotation.slices_told).saturating_add(above.slices);
                annotation.slices = annotation.slices.min(all.saturating_sub(others));
            }
            annotation.bytes_read = annotation.bytes_read.saturating_add(more);
            // A drive whose values alone were read says so itself, and how many it sent.
            if annotation.reason.is_none() || annotation.reason != annotation.served_by_fallback {
                annotation.rung = Some(rung);
                annotation.reason = reason(annotation.slices, above.slices, (filtered, full));
                annotation.bytes_sent = annotation.bytes_sent.saturating_add(more);
            }
            annotation.above = above;
        });
    }
}

/// Why a drive did not run everything: it processed `own` slices and sent `handed` raw. By the machine's count it
/// filtered `filtered` slices and ran `full` in full.
fn reason(own: u64, handed: u64, (filtered, full): (u64, u64)) -> Option<String> {
    let all = own.saturating_add(handed);
    let mut reasons = Vec::new();
    if handed > 0 {
        reasons.push(format!("{handed} of {all} slices were handed to the host as they are stored"));
    }
    if filtered > 0 {
        // The machine may count a run of small slices as one.
        let share = filtered as f64 / (filtered + full) as f64;
        reasons.push(format!("{:.0} of {all} slices were filtered here and aggregated on the host", own as f64 * share));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
