//! The surroundings of a door: limits, security, shutdown and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::auth::{Authenticator, Gate};
use crate::metrics::Metrics;
use crate::tls::ServerTls;

/// The longest message of the Flight faces. It also bounds a batch of changes, which is one message.
pub const MAX_MESSAGE: usize = 80 << 20;

/// What the connections of one door may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time; further ones are closed.
    pub connections: usize,
    /// Connections at the same time that have not said anything yet, or are in the middle of a TLS handshake. A further
    /// one waits until one of them is done. It ends the oldest of them once that is 0.5 s old: an honest one takes
    /// milliseconds, so the oldest is the least likely to be one.
    pub greetings: usize,
    /// How long the first byte, and a TLS handshake, may take together.
    pub greeting_time: Duration,
    /// How long a connection of a door with calls may take after that until its first admitted call. Later it may be
    /// idle as long as it answers probes.
    pub first_call_time: Duration,
    /// Calls that one connection may have under way at once.
    pub streams: u32,
    /// How long running calls may go on after a shutdown began.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            greetings: 64,
            greeting_time: Duration::from_secs(10),
            first_call_time: Duration::from_secs(30),
            streams: 256,
            grace: Duration::from_secs(5),
        }
    }
}

/// What the doors of one process share. Cheap to clone; clones share the shutdown and the metrics.
#[derive(Debug, Clone)]
pub struct ServeContext {
    /// Cancelled to close the doors.
    pub shutdown: CancellationToken,
    /// What doors with TLS use; without it they can't be opened.
    pub tls: Option<Arc<ServerTls>>,
    /// Authenticates callers.
    pub auth: Arc<dyn Authenticator>,
    /// Bounds of each door.
    pub limits: Limits,
    /// Counters of all doors together.
    pub metrics: Arc<Metrics>,
    /// Whether doors without TLS may listen beyond loopback (`--insecure`).
    pub insecure: bool,
}

impl Default for ServeContext {
    /// Loopback, no TLS, any caller.
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
    /// Whether its doors with TLS keep out all clients without a certificate, and nothing but the certificate does.
    pub(crate) fn admits_by_certificate_alone(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.asks_for_certificates()) && !self.auth.is_required()
    }

    /// TLS and authentication in words, for the line that a server prints at its start.
    #[must_use]
    pub fn security_text(&self, tls: bool) -> String {
        let transport = match (&self.tls, tls) {
            (Some(with), true) if with.asks_for_certificates() && with.files().client_cert_optional => "TLS with optional client certificates",
            (Some(with), true) if with.asks_for_certificates() => "mutual TLS",
            (Some(_), true) => "TLS",
            _ => "no TLS",
        };
        format!("{transport}, {}", if self.auth.is_required() { "authentication required" } else { "no authentication" })
    }
}
