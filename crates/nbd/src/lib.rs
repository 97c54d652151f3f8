//! Volumes over NBD, the network block device protocol.
//!
//! | module | subject |
//! |---|---|
//! | [`wire`] | pure: magic numbers, requests, replies, option payloads |
//! | [`negotiation`] | pure: what the server answers to each option, and what the client has chosen |
//! | `commands` | requests of the transmission phase over a [`BlockDevice`](skytether_volume::BlockDevice) |
//! | `places` | any bytes of a device, by reading and comparing the blocks around them |
//! | `ahead` | reading ahead of a request that waits, to see the end of a connection |
//! | `session` | one connection: bounded requests under way, answers in the order in which they are ready |
//! | `door` | [`Nbd`], the door of a drive |
//!
//! Spoken: fixed newstyle negotiation, exports by name, structured replies, `base:allocation`, FLUSH, FUA, TRIM,
//! WRITE_ZEROES (NO_HOLE, FAST_ZERO), CACHE, several connections to one export. TLS within NBD (STARTTLS) is refused.
//!
//! Requests that were not answered when their connection ends are dropped, unless the client has sent DISC. NBD does
//! not say which connections are one client's: of one that the network has lost, only TCP's probes tell.
//!
//! Source: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. See also `docs/block.md`.
#![forbid(unsafe_code)]

mod ahead;
mod commands;
mod door;
pub mod negotiation;
mod options;
mod places;
mod session;
pub mod wire;

pub use door::Nbd;
pub use options::{Options, SCHEME};
