//! The fleet that a Python fleet and its results share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use skytether::{Fleet, Query};
use skytether_common::{Error, Result};

/// The fleet that a Python fleet and its results share until it is closed. Only an Arrow stream that is being read and
/// an ingest keep the fleet open for longer, each for itself.
pub(crate) struct Slot {
    open: Mutex<Option<Open>>,
    location: String,
    remote: bool,
}

pub(crate) struct Open {
    fleet: Arc<Fleet>,
    /// Queries that are planned and not started. Their plans hold the drives, so closing the fleet drops them.
    planned: HashMap<u64, Query>,
    next: u64,
}

impl Slot {
    pub(crate) fn new(fleet: Fleet) -> Self {
        let (location, remote) = (fleet.location(), fleet.is_remote());
        let open = Open { fleet: Arc::new(fleet), planned: HashMap::new(), next: 0 };
        Self { open: Mutex::new(Some(open)), location, remote }
    }

    /// The directory or URL.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Whether the fleet is behind a connection.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote
    }

    fn locked(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock()
    }

    fn closed(&self) -> Error {
        Error::invalid(format!("the fleet {} is closed: open it again", self.location))
    }

    /// The fleet, if it is open.
    pub(crate) fn fleet(&self) -> Result<Arc<Fleet>> {
        self.locked().as_ref().map(|open| Arc::clone(&open.fleet)).ok_or_else(|| self.closed())
    }

    /// Keeps a planned query and returns its number.
    pub(crate) fn keep(&self, query: Query) -> Result<u64> {
        let mut guard = self.locked();
        let open = guard.as_mut().ok_or_else(|| self.closed())?;
        let number = open.next;
        open.next += 1;
        open.planned.insert(number, query);
        Ok(number)
    }

    /// Removes and returns the planned query of this number, if the fleet is open and has it.
    pub(crate) fn take(&self, number: u64) -> Option<Query> {
        self.locked().as_mut()?.planned.remove(&number)
    }

    /// Closes the fleet and returns what was open, because dropping it may block.
    pub(crate) fn close(&self) -> Option<Open> {
        self.locked().take()
    }
}
