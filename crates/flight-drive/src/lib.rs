//! Drives over Arrow Flight: a server that offers any [`Cse`](skytether_device::Cse), and a client that is one.
//!
//! | call | request | answer |
//! |---|---|---|
//! | `DoGet` | a ticket, which holds a [`SubPlan`](skytether_device::SubPlan): see [`frames`] | the schema, then [`ResultMessage`](skytether_device::ResultMessage)s: see [`deliveries`] |
//! | `DoExchange` | a ticket, then orders about slices | a [`Session`](skytether_device::Session), or as `DoGet`: see [`sessions`] |
//! | `DoAction info` | nothing | JSON: protocol number and [`CseInfo`](skytether_device::CseInfo) |
//! | `DoAction get`, `get_ranges`, `stat`, `list`, `usage` | JSON | JSON; for `get` and `get_ranges` u32 LE CRC-32C and the value, or its parts |
//! | `DoAction verify` | a [`Verify`](skytether_device::Verify) | a [`Verified`](skytether_device::Verified) |
//! | `DoAction apply` | u32 LE length of a JSON header, the header, the values one after another | JSON: the versions |
//!
//! - While a call runs, the server sends heartbeats at the interval in the request's metadata (`skytether-heartbeat-ms`).
//!   A client takes a drive for dead after [`ConnectOptions::idle_timeout`] without a message.
//! - Every request but `info` names the drive that it is meant for (`skytether-drive`), and any other drive rejects it:
//!   after a connection broke, another drive may listen at the address.
//! - An error travels as a gRPC status with the [`Kind`](skytether_common::Kind) in its metadata (`skytether-kind`),
//!   and the [`Detail`](skytether_common::Detail) as JSON (`skytether-detail-bin`).
//!
//! See also `docs/internals/formats/flight-protocol.md`.

pub mod actions;
pub mod client;
pub(crate) mod consts;
pub mod deliveries;
pub mod details;
mod door;
pub mod frames;
mod limits;
pub mod server;
pub mod sessions;
pub mod status;

pub use client::FlightCse;
pub use consts::{DEFAULT_HEARTBEAT, MAX_MESSAGE, PROTOCOL};
pub use door::{Flight, connectors, drive_doors};
pub use server::{serve, serve_on, service};
pub use skytether_doors::ConnectOptions;
