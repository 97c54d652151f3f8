//! What an adaptive scan starts from: its drives, its outputs, and where its slices come from.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::SpillMetrics;
use futures::future::BoxFuture;
use skytether_device::session::Stripe;
use skytether_device::{FaultReporter, SubPlan};
use skytether_scheduler::cost::CostModel;
use skytether_scheduler::message::{PushdownLevel, Seconds, SliceCost, SliceId};
use skytether_scheduler::query::Setup;
use tokio::sync::mpsc;

use crate::adaptive::local_worker::LocalExecutor;
use crate::drive_reader::DriveStream;

/// Where rows of a drive go.
pub type Output = mpsc::Sender<DfResult<RecordBatch>>;

/// A drive that takes part.
pub struct Member {
    /// The drive, its schema, its figures and its deadlines.
    pub reading: DriveStream,
    /// The sub-plan that it runs.
    pub plan: SubPlan,
    /// Receives reports of faults of the drive.
    pub faults: Arc<dyn FaultReporter>,
    /// The engine on the host for slices that the drive sends raw.
    pub engine: Arc<LocalExecutor>,
    /// Where its rows go.
    pub output: Output,
}

/// What a scan starts from.
pub struct Start {
    /// The drives that take part, by their numbers in the scan.
    pub members: Vec<Member>,
    /// The setup of the state machine.
    pub setup: Setup,
    /// The columns of all that comes out.
    pub schema: SchemaRef,
    /// How much of the sub-plan is wanted: `Full`, or `Filter` for a parent that aggregates itself.
    pub top: PushdownLevel,
    /// Where the slices come from, unless the scan takes all of them.
    pub source: Option<Arc<dyn SliceSource>>,
    /// Where rows wait.
    pub runtime: Arc<RuntimeEnv>,
    /// Counts rows and bytes that wait on disk.
    pub spills: SpillMetrics,
}

/// Where the slices of such a scan come from.
pub trait SliceSource: Send + Sync {
    /// The stripes on a drive, in storage order. (The drive itself has metadata of all of them, and may coalesce small
    /// ones.)
    fn slice_manifest(&self, drive: usize) -> Vec<Stripe>;
    /// Takes up to `most` of the wanted stripes, each with the number of its drive.
    fn take(&self, most: usize) -> Vec<(usize, u32)>;
    /// Whether [`Self::take`] has seen the end.
    fn is_over(&self) -> bool;
    /// Ready when there may be more to take than when this was called.
    fn changed(&self) -> BoxFuture<'_, ()>;
    /// A stripe is processed, for the first time or again; `cost` names it as its slice.
    fn done(&self, cost: SliceCost);
    /// The stripes that a drive processes, with their processor seconds so far; its load, and the seconds that it may
    /// stand still, by its own report.
    fn progress(&self, drive: usize, running: &[(SliceId, Seconds)], load: f64, slack: Seconds);
    /// The costs that earlier scans have shown.
    fn known(&self) -> Option<CostModel>;
    /// Keeps the costs that this scan has shown.
    fn learnt(&self, cost: CostModel);
}
