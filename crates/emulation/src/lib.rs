//! Device emulation: makes this machine work as slowly as a device of a
//! [`Profile`](skytether_scheduler::profile::Profile).
//!
//! Work is done first, at this machine's speed, and paid for afterwards. The device's time for it is *booked* on the
//! device's cores, disk or link, and the caller waits until the device would have been ready. So only time changes, and
//! bookings follow from bytes and processor time alone. Without a profile, nothing is booked.
//!
//! | module | subject |
//! |---|---|
//! | [`booking`] | pure: servers of one job at a time, and when jobs are done |
//! | [`processor`] | cores of some speed: futures, streams and blocking work that pay for their processor time |
//! | [`link`] | bytes and messages in two directions |
//! | [`wait`], [`timer`] | whether a thread or a task waits; waiting for less than a millisecond |
//!
//! Invariant: emulation never changes an answer.
//!
//! ```
//! use std::time::Duration;
//!
//! use skytether_emulation::Servers;
//!
//! // Three jobs of 10 ms on two cores: the third one waits for the first.
//! let (mut cores, takes) = (Servers::new(2), Duration::from_millis(10));
//! let done: Vec<_> = (0..3).map(|_| cores.book(Duration::ZERO, takes)).collect();
//! assert_eq!(done, [takes, takes, 2 * takes]);
//! assert_eq!(cores.accounted().queued, takes);
//! ```
//!
//! See also `docs/internals/device-emulation.md`.

pub mod booking;
pub mod link;
pub mod processor;
pub mod timer;
pub mod wait;

pub use booking::{Accounted, Servers};
pub use link::{Direction, Link};
pub use processor::{Paced, Processor, paced, thread_time};
