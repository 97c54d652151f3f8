//! Drives over Arrow Flight: a server that offers any [`Cse`](skytether_device::Cse), and a client that is one.
//!
//! | call | request | answer |
//! |---|---|---|
//! | `DoGet` | a ticket with a [`SubPlan`]: see [`frames`] | the schema, then [`ResultMessage`]s: see [`deliveries`] |
//! | `DoExchange` | a ticket, then orders about slices | a [`Session`], or as `DoGet`: see [`sessions`] |
//! | `DoAction info` | nothing | JSON: protocol number and [`CseInfo`](skytether_device::CseInfo) |
//! | `DoAction get`, `get_ranges` | JSON | u32 LE CRC-32C, and the value or its parts |
//! | `DoAction stat`, `list` | JSON | JSON |
//! | `DoAction usage`, `indexes` | nothing | JSON |
//! | `DoAction verify` | a [`Verify`](skytether_device::Verify) | a [`Verified`](skytether_device::Verified) |
//! | `DoAction apply` | u32 LE length of a JSON header, the header, the values one after another | JSON: the versions |
//!
//! [`SubPlan`]: skytether_device::SubPlan
//! [`ResultMessage`]: skytether_device::ResultMessage
//! [`Session`]: skytether_device::Session
//!
//! - While a call runs, the server sends heartbeats at the interval in the request's metadata
//!   (`skytether-heartbeat-ms`). A client takes a drive for dead after [`ConnectOptions::idle_timeout`] without a
//!   message.
//! - Every request but `info` names the drive that it is meant for (`skytether-drive`), and any other drive rejects it:
//!   after a connection broke, another drive may listen at the address.
//! - An error travels as a gRPC status with the [`Kind`](skytether_common::Kind) in its metadata (`skytether-kind`),
//!   and the [`Detail`](skytether_common::Detail) as JSON (`skytether-detail-bin`).
//!
//! ```
//! use std::sync::Arc;
//!
//! use skytether_common::{Error, Key, Kind};
//! use skytether_device::{Storage, StorageOnly};
//! use skytether_flight_drive::{ConnectOptions, FlightCse, serve};
//! use tokio::net::TcpListener;
//! use uuid::Uuid;
//!
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?.to_string();
//!     let drive = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive-0"));
//!     tokio::spawn(serve(drive, listener, std::future::pending()));
//!
//!     let remote = FlightCse::connect(&address, ConnectOptions::default()).await?;
//!     assert_eq!((remote.info().name.as_str(), remote.capabilities().remote), ("drive-0", true));
//!     let error = remote.get(&Key::new("a/b")?).await.unwrap_err();
//!     assert_eq!(error.kind(), Kind::NotFound);
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
