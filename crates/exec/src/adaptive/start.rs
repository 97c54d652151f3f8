//! Runs an adaptive scan: carries out what `skytether_scheduler::query` decides (docs/internals/adaptive-execution.md).
//!
//! One task per scan holds the state machine ([`crate::adaptive::task`]). One channel brings it the messages of drives
//! and the results of the host's own lanes. Its actions go to the sessions of drives, to the host's lanes
//! ([`crate::adaptive::local_worker`]), and to the outputs, one per drive. A drive that runs its sub-plan as a whole is
//! read by itself: the machine knows no slices of it.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use skytether_common::Error;
use skytether_plan::error::to_datafusion;

use crate::adaptive::scan_setup::Start;

/// Runs a scan to its end. Errors go to the first output that takes one.
pub async fn run(start: Start) {
    let outputs: Vec<_> = start.members.iter().map(|member| member.output.clone()).collect();
    let ended = AssertUnwindSafe(crate::adaptive::task::work_off(start)).catch_unwind().await;
    // Without an error, readers would take a cut-off stream for a complete one.
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
