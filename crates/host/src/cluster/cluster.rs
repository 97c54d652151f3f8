//! The drives of a host: those that were not there when it began, those that come, and the condition on which they take changes from it.

use std::collections::HashMap;
use std::sync::Arc;

use skytether_common::{Error, Result};
use skytether_device::{Batches, Cse, Storage};
use uuid::Uuid;

use crate::catalog::fencing::Fence;
use crate::catalog::root_store::within;
use crate::exec::adaptive::local_worker::EngineAbove;
use crate::query::planner::Host;
use crate::recovery::failover::Covered;
use crate::recovery::missing_drive::Gone;

impl Host {
    pub(crate) fn set_gone(&self, gone: Vec<Arc<Gone>>) {
        // It is set once, by who made the host.
        let _ = self.0.gone.set(gone);
    }

    pub(crate) fn set_kept(&self, kept: bool) {
        // It is set once, by who made the host.
        let _ = self.0.kept.set(kept);
    }

    /// Whether the list of its drives is kept with them, in an embedded fleet's directory.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.kept.get().copied().unwrap_or(false)
    }

    /// The ids and names of drives that were not there when the host began, and still are not.
    #[must_use]
    pub fn gone(&self) -> Vec<(Uuid, String)> {
        let gone = self.0.gone.get().into_iter().flatten().filter(|gone| !gone.is_there());
        gone.map(|gone| (gone.info().id, gone.info().name.clone())).collect()
    }

    /// Puts `drive` in the place of one that was not there when the host began, whose id it has. [`Host::repair`] rebuilds on it what was on that.
    ///
    /// # Errors
    /// `Invalid` where no such drive is missing; `Conflict` where there is another in its place already.
    pub fn put_in_place(&self, drive: Arc<dyn Cse>) -> Result<()> {
        let id = drive.info().id;
        let gone = self.0.gone.get().into_iter().flatten().find(|gone| gone.info().id == id);
        gone.ok_or_else(|| self.nobodys(&drive.info().name))?.succeed(drive)
    }

    /// What is told of a drive that is in nobody's place.
    fn nobodys(&self, name: &str) -> Error {
        let gone: Vec<_> = self.gone().into_iter().map(|(id, name)| format!("{name} ({id})")).collect();
        let what = match gone.as_slice() {
            [] => "no drive is missing that was when the host began".to_owned(),
            some => format!("missing is {}: make a blank one with that id (`skytether drive serve --data NEW --replace ID`)", some.join(", ")),
        };
        Error::invalid(format!("the drive {name} that is there was made in the place of no drive that is missing; {what}"))
    }

    pub(crate) fn set_fence(&self, fence: Arc<Fence>) {
        // It is set once, by who made the host.
        let _ = self.0.fence.set(fence);
    }

    /// Which other host drive `at` takes changes from in the place of this one, if there is one and the drive says so.
    pub(crate) async fn other_host(&self, at: usize) -> Option<String> {
        let (drive, fence) = (&self.drives()[at], self.0.fence.get()?);
        within(self.options().storage_deadline, &drive.info().name, "name its host", fence.other_at(drive.as_ref())).await.ok().flatten()
    }

    /// `drive`, with the condition on which this host's others take changes from it.
    pub(crate) fn fenced(&self, drive: Arc<dyn Cse>) -> Arc<dyn Cse> {
        match self.0.fence.get() {
            Some(fence) => fence.around(drive),
            None => drive,
        }
    }

    /// One drive more, which is not of the fleet yet; its place.
    ///
    /// # Errors
    /// Invalid where there is one of its id or name.
    pub(crate) fn push_drive(&self, drive: Arc<dyn Cse>) -> Result<usize> {
        let inner = &self.0;
        let mut all: Vec<Arc<dyn Cse>> = inner.drives.to_vec();
        all.push(Arc::clone(&drive));
        check_names(&all)?;
        check_batches(&all)?;
        if inner.drives.iter().any(|other| other.info().id == drive.info().id) {
            return Err(Error::invalid(format!("{} ({}) is one of this host's drives", drive.info().name, drive.info().id)));
        }
        let at = inner.catalog.presence().grow();
        inner.cover.drives.push(drive);
        let covered = Arc::new(Covered::new(&inner.cover, at));
        inner.faults.push(Arc::clone(&covered) as _);
        let covered: Arc<dyn Cse> = covered;
        inner.catalog.grow(Arc::clone(&covered) as Arc<dyn Storage>);
        let above = EngineAbove::new(Arc::clone(&covered), self.memory(), inner.options.storage_deadline, at + 1, Arc::clone(&inner.readers));
        inner.above.push(Arc::new(above));
        inner.drives.push(covered);
        Ok(at)
    }
}

/// A data set is committed under conditions on several keys of a drive, of which one decides about all.
///
/// # Errors
/// Unsupported for a drive whose batches take effect key by key.
pub(crate) fn check_batches(drives: &[Arc<dyn Cse>]) -> Result<()> {
    match drives.iter().find(|drive| drive.capabilities().batches != Batches::Atomic) {
        Some(drive) => Err(Error::unsupported(format!(
            "{}: its batches take effect key by key, and a fleet commits under conditions on several; use a drive with atomic batches",
            drive.info().name
        ))),
        None => Ok(()),
    }
}

/// Errors and receipts name drives by their names, so these must differ.
pub(crate) fn check_names(drives: &[Arc<dyn Cse>]) -> Result<()> {
    let mut seen = HashMap::new();
    for drive in drives {
        let info = drive.info();
        if let Some(other) = seen.insert(info.name.as_str(), info.id)
            && other != info.id
        {
            return Err(Error::invalid(format!(
                "two drives ({other} and {}) are called {:?}: make one of them on a new directory with another `--name`",
                info.id, info.name
            )));
        }
    }
    Ok(())
}
