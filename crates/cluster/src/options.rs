//! Limits of a host: memory, threads, deadlines, redundancy, and which work may move.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use skytether_api::device_profile::UNKNOWN;
use skytether_common::DatasetName;
use skytether_erasure::Scheme;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy};
use skytether_slice::SliceOptions;
use uuid::Uuid;

use skytether_runtime::Ids;

/// Which work may move between drives and host while a query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdaptiveMode {
    /// None: drives run their sub-plans, or fail.
    Never,
    /// Work of drives with a device profile. Work of remote drives only if they reject it or are lost.
    #[default]
    AsNeeded,
    /// All work that can be split, by this policy: for tests and experiments.
    Always(Policy),
}

/// Options of a host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Bytes that all queries of this host together may use for sorting, joining and merging.
    pub memory_limit: usize,
    /// How many threads work on the host's part of a query.
    pub threads: usize,
    /// How long a drive may take for one storage operation.
    pub storage_deadline: Duration,
    /// How long a drive may take to accept a sub-plan. A drive with the capability `heartbeats`
    /// ([`Capabilities`](skytether_device::Capabilities)) may take longer while it sends heartbeats.
    pub begin_deadline: Duration,
    /// How long a drive may send nothing in the middle of a sub-plan. Heartbeats count as there.
    pub silence_deadline: Duration,
    /// How long a query may be planned, on a thread of its own. `None`: it is planned where it is asked, however long
    /// that takes, for simulations that have one thread.
    pub planning_deadline: Option<Duration>,
    /// Limit of bytes that all queries of this host together spill to disk for sorting, joining and merging.
    pub spill_limit: u64,
    /// Where spill files are: in a directory of this host below it, which is deleted with the host. `None`: the
    /// system's directory for temporary files.
    pub spill_below: Option<PathBuf>,
    /// How tables and matrices are cut into slices.
    pub slices: SliceOptions,
    /// The redundancy of a fleet that is founded now, for data sets whose ingest names none. An existing fleet keeps
    /// its own. This must equal that, or be `None`.
    pub redundancy: Scheme,
    /// The nodes (failure domains) of the drives of a fleet that is founded now, by drive ids. Empty where they are
    /// unknown; then data sets can't have two levels of redundancy.
    pub nodes: BTreeMap<Uuid, String>,
    /// Addresses that did not answer when the host connected to its drives; a lost drive may have been there. Only
    /// error texts use them.
    pub silent: Vec<String>,
    /// Which work may move.
    pub moving: AdaptiveMode,
    /// Deadlines and buffer limits for drives whose work moves. `memory` is at most a quarter of
    /// [`Self::memory_limit`].
    pub limits: Limits,
    /// Where ids come from.
    pub ids: Ids,
    /// Data sets that queries may name by one part.
    pub names: BTreeMap<String, DatasetName>,
}

/// Seconds without a heartbeat after which a drive with work counts as lost. A drive sends one every 50 ms, but may be
/// short of processor time.
const SILENCE: f64 = 30.0;

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            memory_limit: 1 << 30,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            storage_deadline: Duration::from_secs(60),
            begin_deadline: Duration::from_secs(60),
            silence_deadline: Duration::from_secs(600),
            planning_deadline: Some(Duration::from_secs(60)),
            spill_limit: 10 << 30,
            spill_below: None,
            slices: SliceOptions::default(),
            redundancy: Scheme::None,
            nodes: BTreeMap::new(),
            silent: Vec::new(),
            moving: AdaptiveMode::default(),
            limits: Limits { silence: SILENCE, ..Limits::default() },
            ids: Ids::random(),
            names: BTreeMap::new(),
        }
    }
}

impl HostOptions {
    /// The profile of this host in the cost model.
    pub fn profile(&self) -> Profile {
        let cores = u32::try_from(self.threads).unwrap_or(u32::MAX).max(1);
        Profile { cores, memory_bytes: self.memory_limit as u64, ..UNKNOWN }
    }
}
