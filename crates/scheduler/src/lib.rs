//! Decisions of adaptive execution: which drive processes which slices of a query, at which pushdown level.
//!
//! Everything here is pure: no I/O, no clock, no threads, no randomness. Events and times go in, actions come out. A
//! host, a drive and the simulator (`skytether-sim`) therefore run the same decisions.
//!
//! | module | subject |
//! |---|---|
//! | [`message`] | what travels between two levels |
//! | [`profile`] | what a device is made of |
//! | [`work`] | what a sub-plan does, and priors of the time that it takes |
//! | [`cost`] | what it costs on a device, from priors and from measurements |
//! | [`kinds`], [`learn`] | what each kind of operator takes on a device, from one query to the next |
//! | [`plan`] | the best division of what is left, as a fluid |
//! | [`ledger`] | which slice is covered by which epoch, exactly once |
//! | [`query`] | the machine of the level above |
//! | [`drive`] | the machine of the level below |
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
