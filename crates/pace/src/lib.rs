//! Pace: makes this machine work as slowly as a device of a [`Profile`](skytether_adapt::profile::Profile).
//!
//! Work is done first, at this machine's speed, and paid for afterwards: what it would have taken on the device is *booked* on the device's cores, disk or link, and whoever had it done waits
//! until the device would have been ready. So nothing but time changes, and what was booked follows from bytes and processor time alone. Without a profile there is none of this.
//!
//! | room | subject |
//! |---|---|
//! | [`booking`] | pure: things that do one job at a time, and when they are done |
//! | [`processor`] | cores of some speed: futures, streams and blocking work that pay for their processor time |
//! | [`link`] | bytes and messages in two directions |
//! | [`wait`], [`timer`] | who waits, a thread or a task; waiting for less than a millisecond |

pub mod booking;
pub mod link;
pub mod processor;
pub mod timer;
pub mod wait;

pub use booking::{Accounted, Servers};
pub use link::{Direction, Link};
pub use processor::{Paced, Processor, paced, thread_time};
