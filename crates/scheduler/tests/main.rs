//! The state machines from outside: what they decide, and that they stay pure. One program for all of them: linking
//! takes longer than most of them run.

mod drive;
mod kinds;
mod ledger;
mod purity;
mod query;
