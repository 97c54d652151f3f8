//! Counters of the doors of a context.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happened at the doors of a context, counted since its start.
#[derive(Debug, Default)]
pub struct Metrics {
    pub(crate) accepted: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) over_limit: AtomicU64,
    pub(crate) failed_greetings: AtomicU64,
    pub(crate) admitted: AtomicU64,
    pub(crate) denied: AtomicU64,
}

/// The values of [`Metrics`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections that a door got.
    pub accepted: u64,
    /// The number of them that are open.
    pub open: u64,
    /// Connections closed because there were too many.
    pub over_limit: u64,
    /// Connections closed before a door got them: silent or slow ones, failed TLS handshakes, TLS where none is spoken
    /// and the reverse. Connections without a call in time count here as well.
    pub failed_greetings: u64,
    /// Calls that the authenticator let through.
    pub admitted: u64,
    /// Calls that it refused.
    pub denied: u64,
}

impl Metrics {
    /// The values now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let closed = of(&self.closed);
        let accepted = of(&self.accepted);
        Counts {
            accepted,
            open: accepted.saturating_sub(closed),
            over_limit: of(&self.over_limit),
            failed_greetings: of(&self.failed_greetings),
            admitted: of(&self.admitted),
            denied: of(&self.denied),
        }
    }

    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
