//! Scans that a parent feeds: which slices come, and what becomes of them.

use skytether_common::{Error, Result};
use skytether_scheduler::message::{EpochId, SliceCost, SliceId};
use skytether_scheduler::query::Event;

use crate::adaptive::task::Task;

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

    /// An epoch is processed here, in `cpu` seconds of processor time.
    pub(crate) fn worked(&mut self, epoch: EpochId, cpu: f64) {
        let Some(stripes) = self.handed.remove(&epoch) else { return };
        let Some(source) = &self.source else { return };
        let each = cpu / stripes.len().max(1) as f64;
        for stripe in stripes {
            source.done(SliceCost { slice: SliceId(stripe), cpu: each, rows_out: 0, bytes_out: 0 });
        }
    }
}
