//! A way to a target that computes: what SCSI and NVMe have in common.

use std::fmt::Debug;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_offload::Capabilities;
use tokio::time::Instant;

/// What a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// When it must be over.
    pub deadline: Instant,
}

/// Carries descriptors to a target, and results back. Several calls may be under way at once.
pub trait Path: Send + Sync + Debug {
    /// The target's name, for people. It has no secrets.
    fn name(&self) -> String;

    /// What the target can do.
    ///
    /// # Errors
    /// `Unsupported` where it has no EXEC, `Unavailable` where it can't be reached.
    fn capabilities(&self, caller: Caller) -> BoxFuture<'_, Result<Capabilities>>;

    /// Has a descriptor carried out. The result has at most `most` bytes, and is not looked into. A dropped call ends
    /// the computation where the transport can.
    ///
    /// # Errors
    /// By their kind: `Unsupported`, `Invalid`, `Exhausted` where the target refuses, `Corrupt` for damage and for
    /// answers that are none, `Unavailable` where it can't be reached.
    fn exec(&self, descriptor: Bytes, most: usize, caller: Caller) -> BoxFuture<'_, Result<Bytes>>;
}
