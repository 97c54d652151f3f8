//! What a host may use and how patient it is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use skytether_api::device_profile::UNKNOWN;
use skytether_erasure::Scheme;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy};
use skytether_slice::SliceOptions;
use uuid::Uuid;

use skytether_runtime::Ids;

/// Which work may move between drives and host while a query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdaptiveMode {
    /// None: drives run what they are sent, or fail.
    Never,
    /// That of drives that say what they are made of, and of those behind a wire if they refuse it or are lost.
    #[default]
    AsNeeded,
    /// All that can be divided, as this policy says: for tests and experiments.
    Always(Policy),
}

/// How a host works.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Bytes that all queries of this host together may use for sorting, joining and merging.
    pub memory_limit: usize,
    /// How many threads work on the host's part of a query.
    pub threads: usize,
    /// How long a drive may take for one storage operation.
    pub storage_deadline: Duration,
    /// How long a drive may take to accept a sub-plan. It does not hold for a drive with the capability `heartbeats`
    /// ([`Capabilities`](skytether_device::Capabilities)), which may take as long as it sends them.
    pub begin_deadline: Duration,
    /// How long a drive may be silent in the middle of a sub-plan; the same holds.
    pub silence_deadline: Duration,
    /// Bytes that all queries of this host together may put aside on disk for sorting, joining and
    /// merging what memory can't hold.
    pub spill_limit: u64,
    /// Where they are put: in a directory of this host's own below it, which is deleted with the host. The system's
    /// directory for temporary files if `None`.
    pub spill_below: Option<PathBuf>,
    /// How tables and matrices are cut into slices.
    pub slices: SliceOptions,
    /// How data sets are kept from loss in a fleet that is founded now, unless their ingest says otherwise. A fleet
    /// that is there keeps to its own, which this must be unless it is `None`.
    pub redundancy: Scheme,
    /// The hosts that the drives of a fleet that is founded now are on, by the drives' ids: those that are lost
    /// together. Nothing where nobody knows; data sets can't be on two levels then.
    pub hosts: BTreeMap<Uuid, String>,
    /// Addresses at which nobody answered when the drives were connected: those that are lost may have
    /// been there. Only for texts.
    pub silent: Vec<String>,
    /// Which work may move.
    pub moving: AdaptiveMode,
    /// How patient a host is with drives whose work moves, and what it holds of theirs; of `memory` a quarter of
    /// [`Self::memory_limit`] at most.
    pub limits: Limits,
    /// Where ids come from.
    pub ids: Ids,
}

/// Seconds without a sign of life after which a drive that has work is taken for lost; it gives one every 50 ms,
/// but may be short of time.
const SILENCE: f64 = 30.0;

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            memory_limit: 1 << 30,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            storage_deadline: Duration::from_secs(60),
            begin_deadline: Duration::from_secs(60),
            silence_deadline: Duration::from_secs(600),
            spill_limit: 10 << 30,
            spill_below: None,
            slices: SliceOptions::default(),
            redundancy: Scheme::None,
            hosts: BTreeMap::new(),
            silent: Vec::new(),
            moving: AdaptiveMode::default(),
            limits: Limits { silence: SILENCE, ..Limits::default() },
            ids: Ids::random(),
        }
    }
}

impl HostOptions {
    /// What work that moves takes this host for.
    pub fn profile(&self) -> Profile {
        let cores = u32::try_from(self.threads).unwrap_or(u32::MAX).max(1);
        Profile { cores, memory_bytes: self.memory_limit as u64, ..UNKNOWN }
    }
}
