//! What a door needs from its surroundings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::auth::{Authenticator, Gate};
use crate::tls::ServerTls;

/// The longest message of the Flight faces. It also bounds a batch of changes, which is one message.
pub const MAX_MESSAGE: usize = 80 << 20;

/// What the connections of one door may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time; further ones are closed.
    pub connections: usize,
    /// Connections at the same time that have not said anything yet, or are in the middle of a TLS handshake. A further
    /// one ends the oldest of them: an honest one takes milliseconds, so the oldest is the least likely to be one.
    pub greetings: usize,
    /// How long the first byte, and a TLS handshake, may take together.
    pub greeting_time: Duration,
    /// Calls that one connection may have under way at once.
    pub streams: u32,
    /// Bytes of a message.
    pub message: usize,
    /// How long running calls may go on after a shutdown began.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, greetings: 64, greeting_time: Duration::from_secs(10), streams: 256, message: MAX_MESSAGE, grace: Duration::from_secs(5) }
    }
}

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
    /// Those of them that are open.
    pub open: u64,
    /// Connections closed because there were too many.
    pub over_limit: u64,
    /// Connections closed before a door got them: silent or slow ones, failed TLS handshakes, TLS where none is spoken
    /// and the reverse.
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

/// What the doors of one process share. Cheap to clone; clones share the shutdown and the metrics.
#[derive(Debug, Clone)]
pub struct ServeContext {
    /// Cancelled when the doors are to close.
    pub shutdown: CancellationToken,
    /// What doors with TLS use; without it they can't be opened.
    pub tls: Option<Arc<ServerTls>>,
    /// Says who calls.
    pub auth: Arc<dyn Authenticator>,
    /// Bounds of each door.
    pub limits: Limits,
    /// Counters of all doors together.
    pub metrics: Arc<Metrics>,
    /// Whether doors without TLS may listen beyond loopback (`--insecure`).
    pub insecure: bool,
}

impl Default for ServeContext {
    /// Loopback, no TLS, anybody.
    fn default() -> Self {
        Self {
            shutdown: CancellationToken::new(),
            tls: None,
            auth: Arc::new(Gate::default()),
            limits: Limits::default(),
            metrics: Arc::default(),
            insecure: false,
        }
    }
}

impl ServeContext {
    /// TLS and authentication in words, for the line that a server prints at its start.
    #[must_use]
    pub fn security_text(&self, tls: bool) -> String {
        let transport = match (&self.tls, tls) {
            (Some(with), true) if with.asks_for_certificates() => "mutual TLS",
            (Some(_), true) => "TLS",
            _ => "no TLS",
        };
        format!("{transport}, {}", if self.auth.is_required() { "authentication required" } else { "no authentication" })
    }
}
