//! Work that moves: who works off which slices of a query, at which rung, decided while it runs.
//!
//! Everything here is pure: no I/O, no clock, no threads, no randomness. Events and times go in, actions come out, so that a host, a drive and
//! the simulator (`skytether-sim`) run the same decisions.
//!
//! - [`message`]: what travels between two levels;
//! - [`profile`]: what a device is made of;
//! - [`work`]: what a sub-plan does, and priors of what that takes;
//! - [`cost`]: what it costs on a device, from priors and from what was measured;
//! - [`kinds`]: what each kind of operator takes on a device, from one query to the next;
//! - [`plan`]: the best division of what is left, as a fluid;
//! - [`ledger`]: which slice is covered by which epoch, exactly once;
//! - [`query`]: the machine of the level above;
//! - [`drive`]: the machine of the level below.

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
