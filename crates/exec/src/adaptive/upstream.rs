//! Scans that a level above feeds: which slices come, and what becomes of them.

use futures::future::BoxFuture;
use skytether_adapt::cost::CostModel;
use skytether_adapt::message::{EpochId, Seconds, SliceCost, SliceId};
use skytether_adapt::query::Event;
use skytether_common::{Error, Result};
use skytether_device::session::Stripe;

use crate::adaptive::task::Task;

/// Where the slices of such a scan come from.
pub trait Source: Send + Sync {
    /// The stripes that lie on a drive, in storage order. (The drive itself has metadata of all of them, and may join small ones.)
    fn slice_manifest(&self, drive: usize) -> Vec<Stripe>;
    /// Takes up to `most` stripes that are wanted, each with the drive that has it.
    fn take(&self, most: usize) -> Vec<(usize, u32)>;
    /// Whether [`Self::take`] has seen the end.
    fn is_over(&self) -> bool;
    /// Ready when there may be more to take than when this was called.
    fn changed(&self) -> BoxFuture<'_, ()>;
    /// A stripe (which `cost` names as its slice) is worked off, for the first time or again.
    fn done(&self, cost: SliceCost);
    /// The stripes that a drive works on, with the processor seconds that they have had, how busy it is, and for how long it may stand still, as it says.
    fn progress(&self, drive: usize, running: &[(SliceId, Seconds)], load: f64, slack: Seconds);
    /// What is known of the costs from scans before.
    fn known(&self) -> Option<CostModel>;
    /// Keeps what this scan has learnt of them.
    fn learnt(&self, cost: CostModel);
}

impl Task {
    /// Takes from the source what drives need to have before them.
    pub(crate) fn feed(&mut self) -> Result<()> {
        let Some(source) = self.source.clone().filter(|_| !self.fed) else { return Ok(()) };
        if !self.drives.iter().all(|drive| drive.is_surveyed) {
            return Ok(());
        }
        let room = self.query.room();
        if room == 0 {
            return Ok(());
        }
        let mut slices = Vec::new();
        for (at, stripe) in source.take(room) {
            let drive = self.drives.get(at).ok_or_else(|| Error::invalid(format!("the level above feeds slice {stripe}, which the sub-plan does not read")))?;
            let slice = drive.stored(stripe);
            slices.push(slice.ok_or_else(|| Error::internal(format!("{} does not know slice {stripe} that lies on it", drive.cse.info().name)))?);
        }
        if !slices.is_empty() {
            self.handle(Event::More { slices });
        }
        if source.is_over() {
            self.fed = true;
            self.handle(Event::NoMore);
        }
        Ok(())
    }

    /// An epoch is worked off here, in so many seconds of processor time.
    pub(crate) fn worked(&mut self, epoch: EpochId, cpu: f64) {
        let Some(stripes) = self.handed.remove(&epoch) else { return };
        let Some(source) = &self.source else { return };
        let each = cpu / stripes.len().max(1) as f64;
        for stripe in stripes {
            source.done(SliceCost { slice: SliceId(stripe), cpu: each, rows_out: 0, bytes_out: 0 });
        }
    }
}
