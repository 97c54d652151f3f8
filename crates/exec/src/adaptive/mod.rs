//! Adaptive scans: work moves between drives and host while they run (docs/internals/adaptive-execution.md).
//!
//! `skytether_scheduler` decides; this module carries out. [`task`] is the loop that turns messages of drives into
//! events and actions into messages. [`session_io`] speaks with drives, [`local_worker`] runs slices on the host, and
//! [`upstream`] takes slices from a parent.

pub mod backpressure;
pub mod cost_feedback;
pub mod cost_inputs;
pub mod drive_state;
pub mod local_worker;
mod reconnect;
pub mod scan_setup;
pub mod session_io;
pub mod spill_buffer;
pub mod start;
pub mod start_once;
pub mod task;
pub mod trace;
pub mod upstream;
pub mod work_queue;
