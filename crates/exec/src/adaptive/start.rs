//! A scan whose work moves: carries out what `skytether_scheduler::query` decides
//! (docs/internals/adaptive-execution.md).
//!
//! One task per scan holds the machine. What drives say and what is worked off here comes to it through one channel;
//! its actions go to the drives' sessions, to [`above`], and to the outputs, one per drive. A drive that runs its
//! sub-plan as a whole is read beside it, and has no slices in the machine's eyes.
//!
//! `task` holds the machine, `talk` its sessions with drives, `drive` is its view of a drive, `fed` is for scans that a
//! level above feeds, `flow` bounds what waits for readers, `kept` holds it, in memory or on disk, `learnt` takes from
//! annotations what the next query should know, `started` starts it once for all partitions, `traced` tells what
//! happens; [`above`] works off what is handed out, and [`work`] says what it costs.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use skytether_common::Error;
use skytether_plan::error::to_datafusion;

use crate::adaptive::scan_setup::Start;

/// Runs a scan to its end. Errors go to the first output that takes one.
pub async fn run(start: Start) {
    let outputs: Vec<_> = start.members.iter().map(|member| member.output.clone()).collect();
    let ended = AssertUnwindSafe(crate::adaptive::task::work_off(start)).catch_unwind().await;
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
