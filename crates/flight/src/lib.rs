//! A host over Arrow Flight: the server that offers a [`Host`](skytether_host::Host), and the client of it.
//!
//! - [`serve_on`] serves a host on a bound port; [`Face`] says how it reaches drives whose addresses come with
//!   requests, and which tokens it manages.
//! - [`RemoteHost`] is the client: queries, ingest and export through a host elsewhere.
//! - [`protocol`] is what they say to each other; [`long_call`] is work that reports its progress and ends with its
//!   client.
//! - Calls that are not of this protocol go to `skytether_flight_sql`, on the same port.
//!
//! Invariants: a client that leaves ends its query, scrub or repair; a commit or resize that has begun goes on. A
//! client of another protocol number is refused. Storage of a drive through a host carries the host's instance, so that
//! a restarted host refuses writers that began before. This crate plans nothing and binds no port:
//! `skytether_transport` does the latter.
//!
//! `skytether_host` has an example of the calls that travel. See also `docs/internals/formats/flight-protocol.md` and
//! `docs/security.md`.

mod actions;
pub mod client;
pub mod long_call;
pub mod protocol;
pub mod server;

pub use client::RemoteHost;
pub use server::{Face, HostService, serve, serve_on, service};
