//! Bounds of a door.

use std::time::Duration;

/// The scheme of addresses: `nbd://host:port`.
pub const SCHEME: &str = "nbd";

/// What the clients of one door may take.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests of one connection that may be under way. Further ones wait in the socket.
    pub requests: usize,
    /// Bytes of payload that all requests of the door hold at once, at least that of the longest request. One
    /// connection has a quarter of them.
    pub bytes: usize,
    /// How long a client may take to send the rest of a request that it has begun, and to read an answer.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { requests: 128, bytes: 256 << 20, patience: Duration::from_secs(60) }
    }
}
