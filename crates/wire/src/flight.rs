//! The Flight form of the [`Cse`](crate::Cse) trait: a server that offers any CSE, and a client that is one.
//!
//! | call | goes | comes |
//! |---|---|---|
//! | `DoGet` | ticket: u32 LE length of a JSON header, the header (a [`SubPlan`](crate::SubPlan)), the Substrait bytes, the sets of keys | the schema, then [`Delivery`](crate::Delivery)s: see [`frames`] |
//! | `DoExchange` | a ticket, then orders about slices | what a [`Session`](crate::Session) says, or deliveries: see [`sessions`] |
//! | `DoAction info` | nothing | JSON: protocol number and [`CseInfo`](crate::CseInfo) |
//! | `DoAction get`, `get_ranges`, `stat`, `list`, `usage` | JSON | JSON; for `get` and `get_ranges` u32 LE CRC-32C and the value, or its parts |
//! | `DoAction verify` | a [`Verify`](crate::Verify) | a [`Verified`](crate::Verified); both as [`verify`](crate::verify) has them |
//! | `DoAction apply` | u32 LE length of a JSON header, the header (a list of changes with lengths and checksums), the values one after another | JSON: the versions |
//!
//! While a call works, the server sends a sign of life as often as the client asks for in the request's metadata
//! (`skytether-heartbeat-ms`), so the client can tell a long query from a dead drive: silence for
//! [`ConnectOptions::idle_timeout`] means dead. Every request but `info` names the drive that it is meant for (`skytether-drive`), and any other
//! drive refuses it: a connection that broke may lead to another drive afterwards. An error travels as a gRPC status with the [`Kind`](skytether_common::Kind) in its
//! metadata (`skytether-kind`), and the [`Detail`](skytether_common::Detail) as JSON (`skytether-detail-bin`).

pub mod client;
pub(crate) mod consts;
pub mod deliveries;
pub mod details;
pub mod frames;
mod limits;
pub mod server;
pub mod sessions;
pub mod status;

pub use client::{ConnectOptions, FlightCse};
pub use consts::{DEFAULT_HEARTBEAT, MAX_MESSAGE, PROTOCOL};
pub use server::{serve, service};
