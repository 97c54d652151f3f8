//! Traces of adaptive scans, events and decisions: `SKYTETHER_LOG=skytether::moves=trace`. Seconds count from the
//! beginning of the scan.

use skytether_scheduler::message::Up;
use skytether_scheduler::query::{Action, Event};
use tracing::{Level, enabled, trace};

/// Traces of this name.
const MOVES: &str = "skytether::moves";

/// Traces an event.
pub(crate) fn event<B>(seconds: f64, event: &Event<B>) {
    if !enabled!(target: MOVES, Level::TRACE) {
        return;
    }
    match event {
        Event::Surveyed { cse, slices } => trace!(target: MOVES, "{seconds:.4} drive {} has {} slices", cse.0, slices.len()),
        Event::Batch { cse, epoch, number, bytes, .. } => {
            trace!(target: MOVES, "{seconds:.4} drive {} epoch {}: batch {number} of {bytes} bytes", cse.0, epoch.0)
        }
        Event::Up { cse, up: Up::Progress { epoch, done, running, load, waits, .. } } => {
            let done: Vec<_> = done.iter().map(|cost| (cost.slice.0, cost.cpu)).collect();
            let running: Vec<_> = running.iter().map(|(slice, cpu)| (slice.0, cpu)).collect();
            trace!(target: MOVES, "{seconds:.4} drive {} epoch {}: done {done:?}, running {running:?}, load {load:.2}{}", cse.0, epoch.0, if *waits { ", waits" } else { "" });
        }
        Event::Up { cse, up } => trace!(target: MOVES, "{seconds:.4} drive {} says {up:?}", cse.0),
        Event::Worked { epoch, cpu, .. } => trace!(target: MOVES, "{seconds:.4} epoch {}: worked off above in {cpu:.5} s", epoch.0),
        _ => {}
    }
}

/// Traces a decision.
pub(crate) fn action<B>(seconds: f64, action: &Action<B>) {
    if !enabled!(target: MOVES, Level::TRACE) {
        return;
    }
    match action {
        Action::Send { cse, down } => trace!(target: MOVES, "{seconds:.4} > drive {} epoch {}: {:?}", cse.0, down.epoch.0, down.order),
        Action::Count { epoch, cse, rung, slices, .. } => {
            trace!(target: MOVES, "{seconds:.4} > {} slices of drive {} count, epoch {}, {rung:?}", slices.len(), cse.0, epoch.0)
        }
        Action::Stuck { cse, seconds: still } => trace!(target: MOVES, "{seconds:.4} > drive {} has stood still for {still:.2} s", cse.0),
        Action::Dropped { epoch, .. } => trace!(target: MOVES, "{seconds:.4} > epoch {} is dropped", epoch.0),
        Action::Finish => trace!(target: MOVES, "{seconds:.4} > finished"),
        Action::Fail { cse, .. } => trace!(target: MOVES, "{seconds:.4} > failed by drive {}", cse.0),
    }
}
