//! The client side of Kinetic: drives of any maker as drives of a fleet.
//!
//! | module | subject |
//! |---|---|
//! | [`connection`] | [`Connection`]: pipelined requests with deadlines, verified answers |
//! | [`values`], [`batch`], [`admin`], [`programs`] | its operations |
//! | [`client`] | [`Client`]: a connection that is made again |
//! | [`queries`], `run_query` | sub-plans as programs inside the drive |
//! | [`library`], [`watching`] | programs of a drive by name; those that run when keys change |
//! | [`layout`] | how values lie on a drive: versions, and keys of our own |
//! | [`drive`] | [`KineticDrive`]: `Storage` and `Cse` over a client |
//! | [`door`] | [`connectors_into`]: the schemes `kinetic://` and `kinetics://` |
//! | [`options`], [`failure`] | identity and patience; why a call did not succeed |
//!
//! Invariants:
//! - Every call ends within its deadline. A late answer ends the connection, so it is never taken for another one's.
//! - An answer counts only with the HMAC of the client's identity, its request's sequence and its request's type.
//! - A write whose outcome is unknown is `Unavailable`, unless the stored version proves that it was done.
//! - Bytes in memory are bounded by the drive's announced depths and limits, and these by limits of our own.
//!
//! See also `docs/internals/doors.md`, and crate `kinetic-protocol` for the messages.
#![forbid(unsafe_code)]

pub mod admin;
mod apply;
pub mod batch;
pub mod client;
mod commit;
pub mod connection;
pub mod door;
pub mod drive;
pub mod failure;
mod garbage;
pub mod layout;
pub mod library;
pub mod options;
pub mod programs;
pub mod queries;
mod read;
mod run_query;
mod traffic;
pub mod values;
pub mod watching;

pub use batch::Change;
pub use client::Client;
pub use connection::{Connection, Response};
pub use door::connectors_into;
pub use drive::KineticDrive;
pub use failure::{Failure, Outcome};
pub use options::{ClientOptions, Identity};
pub use programs::{Executed, Execution, Noticed, Watched};
pub use skytether_kinetic_protocol::program::ProgramResult;
pub use skytether_kinetic_protocol::{HmacKey, MessageType};
pub use values::{Delete, Keys, Put, Record};
