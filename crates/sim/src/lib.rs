//! A discrete-event simulator of a host and its drives. It runs the decisions of `skytether-scheduler` on a simulated
//! clock.
//!
//! - [`calibration`]: true costs of queries, as measured;
//! - [`workload`]: queries, each with the planner's beliefs and the truth;
//! - [`device`]: cores that processes share, a disk with a head, a link;
//! - [`fleet`]: host and drives, messages and faults, one query from its beginning to its end;
//! - [`grid`]: the grid of points, and the regret of each choice;
//! - [`oracle`]: a lower bound of any policy's time, by linear programs ([`simplex`]);
//! - [`equal`]: the number of slow drives that equals one host;
//! - [`skyhook`]: how slow the processors of storage servers may be, and the cost of a slower network;
//! - [`parallel`]: independent runs on all processors;
//! - [`real`]: points measured in real time, compared with their simulation;
//! - [`chaos`]: seeded runs with kills, stalls, drives without progress, refusals, garbage, duplicates and reordering,
//!   whose answers are checked.
//!
//! Everything follows from a seed. No other crate depends on this one.
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
