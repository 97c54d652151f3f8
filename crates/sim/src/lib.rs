//! A discrete-event simulator of a host and its drives that runs the decisions of `skytether-scheduler` on a simulated
//! clock.
//!
//! - [`calibration`]: what queries really cost, as measured;
//! - [`workload`]: queries: what the planner believes of them, and what is true;
//! - [`device`]: cores shared by processes, a disk with a head, a link;
//! - [`fleet`]: host and drives, messages and faults, one query from its beginning to its end;
//! - [`grid`]: the grid of issue 4 and its regrets;
//! - [`oracle`]: what no policy can beat, by linear programs ([`simplex`]);
//! - [`equal`]: how many slow drives equal one host;
//! - [`skyhook`]: how slow the processors of storage servers may be, and what a thinner network costs;
//! - [`parallel`]: independent runs on all processors;
//! - [`real`]: points measured in real time beside the same simulated;
//! - [`chaos`]: seeded runs with kills, stalls, drives that stand still, refusals, garbage, duplicates and reordering,
//!   whose answers are checked.
//!
//! Everything follows from a seed. Nothing depends on this crate.
//!
//! ```
//! // A run with faults ends with the right answer, and the same seed gives the same run.
//! let run = skytether_sim::chaos::check(7, false)?;
//! let again = skytether_sim::chaos::check(7, false)?;
//! assert_eq!(run.end, again.end);
//! # Ok::<(), String>(())
//! ```
//!
//! See also `docs/internals/adaptive-execution.md`, `docs/internals/cost-model.md` and `docs/figures.md`.

pub mod calibration;
pub mod chaos;
pub mod device;
pub mod equal;
pub mod fleet;
pub mod grid;
pub mod oracle;
pub mod parallel;
pub mod real;
pub mod simplex;
pub mod skyhook;
pub mod workload;
