//! Decisions of adaptive execution: which drive processes which slices of a query, at which pushdown level.
//!
//! Everything here is pure: no I/O, no clock, no threads, no randomness. Events and times go in, actions come out. A
//! host, a drive and the simulator (`skytether-sim`) therefore run the same decisions.
//!
//! | module | subject |
//! |---|---|
//! | [`message`] | messages between a parent and a CSE |
//! | [`profile`] | a device's cores, memory, disk and link |
//! | [`work`] | what a sub-plan does, and priors of its time |
//! | [`cost`] | the cost model: predictions from priors and measurements |
//! | [`kinds`], [`learn`] | factors per kind of operator on a device, kept from one query to the next; estimators |
//! | [`plan`] | the planner of what is left, as a fluid |
//! | [`ledger`] | which slice is covered by which epoch, exactly once |
//! | [`query`] | the state machine of a parent |
//! | [`drive`] | the state machine of a CSE |
//!
//! Invariants: a slice counts once (I4), and a run follows from its inputs (I7). `tests/purity.rs` holds the second.
//!
//! ```
//! use skytether_scheduler::ledger::{Dropped, Ledger, Verdict};
//! use skytether_scheduler::message::{CseId, EpochId, PushdownLevel, SliceId};
//!
//! let mut ledger = Ledger::new();
//! let (drive, epoch, slice) = (CseId(0), EpochId(1), SliceId(7));
//! ledger.want(slice);
//! ledger.open(epoch, drive, PushdownLevel::Full);
//! ledger.give(epoch, &[slice]);
//! assert_eq!(ledger.batch(drive, epoch, 0, "rows"), Verdict::Held);
//!
//! // The end of the epoch makes its batches count; a second end does not.
//! let counted = ledger.end(drive, epoch, PushdownLevel::Full, &[slice], 1);
//! assert_eq!(counted, Verdict::Counted { slices: vec![slice], batches: vec!["rows"] });
//! assert_eq!(ledger.end(drive, epoch, PushdownLevel::Full, &[slice], 1), Verdict::Dropped(Dropped::Late));
//! assert!(ledger.complete());
//! ```
//!
//! See also `docs/internals/adaptive-execution.md` and `docs/internals/cost-model.md`.

pub mod cost;
pub mod drive;
pub mod kinds;
pub mod learn;
pub mod ledger;
pub mod message;
pub mod plan;
pub mod profile;
pub mod query;
pub mod work;
