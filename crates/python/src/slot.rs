//! The fleet that a Python fleet and its results share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use skytether::{Fleet, Query};
use skytether_common::{Error, Result};

use crate::runtime::runtime;

/// Longest wait for a fleet that is being closed. A forked process lacks the thread that closes it.
const CLOSING: Duration = Duration::from_secs(10);

/// The fleet that a Python fleet and its results share until it is closed. Only an Arrow stream that is being read and
/// an ingest keep the fleet open for longer, each for itself.
pub(crate) struct Slot {
    open: Mutex<Option<Open>>,
    /// Whether a thread of ours is closing the fleet.
    closing: Mutex<bool>,
    done: Condvar,
    location: String,
    remote: bool,
}

/// A fleet that a thread of ours is closing; it is closed when this is dropped.
struct Closing(Arc<Slot>);

impl Drop for Closing {
    fn drop(&mut self) {
        *self.0.closing.lock() = false;
        self.0.done.notify_all();
    }
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
        Self { open: Mutex::new(Some(open)), closing: Mutex::new(false), done: Condvar::new(), location, remote }
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

    /// Closes the fleet on a thread of ours, and does not wait for it.
    pub(crate) fn release(self: &Arc<Self>) {
        let mut closing = self.closing.lock();
        let Some(open) = self.close() else { return };
        // Without a runtime, the fleet is closed here.
        let Ok(runtime) = runtime() else { return };
        *closing = true;
        let done = Closing(Arc::clone(self));
        runtime.spawn_blocking(move || {
            drop(open);
            drop(done);
        });
    }

    /// Waits for the thread that closes the fleet, if there is one.
    pub(crate) fn wait_until_closed(&self) {
        let mut closing = self.closing.lock();
        self.done.wait_while_for(&mut closing, |closing| *closing, CLOSING);
    }
}
