//! What a client, the object class inside an OSD, and the engine next to the OSD say to each other.
//!
//! A client calls method `run` of the class on an object. The class passes the [`Request`] to the engine over a Unix
//! socket, reads the object for the engine ([`proxy`]), and gives the engine's [`Response`] back. Of a request, the
//! class itself reads only the [`deadline`](request::deadline).
//!
//! | module | subject |
//! |---|---|
//! | [`request`] | a sub-plan, what the object is, limits |
//! | [`stripe`] | a stripe of a fleet's table as the object, and values that come along |
//! | [`response`] | rows or a refusal, and a receipt |
//! | [`proxy`] | frames between class and engine; the answer of method `probe` |
//! | `fields`, `limits` | bytes with bounds; limits that requests share |
//!
//! Invariants: pure, without dependencies; numbers are little endian; every length is checked before anything of that
//! length is made (I15).
//!
//! See also `docs/internals/ceph-class.md`.
#![forbid(unsafe_code)]

mod fields;
mod limits;
pub mod proxy;
pub mod request;
pub mod response;
pub mod stripe;

pub use fields::Malformed;
pub use request::{FileFormat, Limits, Object, Piece, Request};
pub use response::{Outcome, Receipt, Refusal, Response};
pub use stripe::{Given, Stripe};

/// The class's name: its version is in it, so that two versions work side by side in one OSD.
pub const CLASS: &str = "skytether_1";

/// The version of the bytes of requests and responses.
pub const VERSION: u16 = 1;

/// The method that runs a [`Request`].
pub const RUN: &str = "run";

/// The method that tells what the class can do on an object; see [`proxy::Probe`].
pub const PROBE: &str = "probe";
