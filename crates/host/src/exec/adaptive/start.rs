//! A scan whose work moves: carries out what `skytether_adapt::query` decides (docs/internals/adaptive-execution.md).
//!
//! One task per scan holds the machine. What drives say and what is worked off here comes to it through one channel; its actions go to the drives' sessions, to [`above`], and to the outputs, one per drive. A drive
//! that runs its sub-plan as a whole is read beside it, and has no slices in the machine's eyes.
//!
//! `task` holds the machine, `talk` its sessions with drives, `drive` is its view of a drive, `fed` is for scans that a level above feeds, `flow` bounds what waits for readers, `kept` holds it, in memory or on disk, `learnt` takes from annotations what the next query should know, `started` starts it once for all partitions, `traced` tells what happens; [`above`] works off what is handed out, and [`work`] says what it costs.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::SpillMetrics;
use futures::FutureExt;
use skytether_adapt::message::Rung;
use skytether_adapt::query::Setup;
use skytether_common::Error;
use skytether_device::{FaultReporter, SubPlan};
use skytether_plan::error::to_datafusion;
use tokio::sync::mpsc;

use crate::exec::adaptive::local_worker::EngineAbove;
use crate::exec::adaptive::upstream::Source;
use crate::exec::drive_reader::Reading;

/// Where rows of a drive go.
pub(crate) type Output = mpsc::Sender<DfResult<RecordBatch>>;

/// A drive that takes part.
pub(crate) struct Member {
    pub(crate) reading: Reading,
    pub(crate) plan: SubPlan,
    /// Hears of what is wrong with the drive.
    pub(crate) faults: Arc<dyn FaultReporter>,
    /// What works off what it hands out.
    pub(crate) engine: Arc<EngineAbove>,
    pub(crate) output: Output,
}

/// What a scan starts from.
pub(crate) struct Start {
    pub(crate) members: Vec<Member>,
    /// What the machine starts from.
    pub(crate) setup: Setup,
    /// The columns of all that comes out.
    pub(crate) schema: SchemaRef,
    /// How much of the sub-plan is wanted: `Full`, or `Filter`.
    pub(crate) top: Rung,
    /// Where the slices come from, if not all are wanted.
    pub(crate) source: Option<Arc<dyn Source>>,
    /// Where rows wait.
    pub(crate) runtime: Arc<RuntimeEnv>,
    pub(crate) spills: SpillMetrics,
}

/// Runs a scan to its end. Errors go to the first output that takes one.
pub(crate) async fn run(start: Start) {
    let outputs: Vec<_> = start.members.iter().map(|member| member.output.clone()).collect();
    let ended = AssertUnwindSafe(crate::exec::adaptive::task::work_off(start)).catch_unwind().await;
    // Whoever reads must not take what came for all there is.
    let ended = ended.unwrap_or_else(|_| Err(Error::internal("a defect while work was moved between drives and host")));
    if let Err(error) = ended {
        for output in &outputs {
            if output.is_closed() {
                continue;
            }
            let _ = output.send(Err(to_datafusion(error))).await;
            return;
        }
    }
}
