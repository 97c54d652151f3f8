//! Flight SQL, which ADBC, JDBC and ODBC drivers speak, over any
//! [`FleetService`](skytether_api::service::FleetService): a host in this process, or a connection to one.
//!
//! - [`FlightSqlHost`](service::FlightSqlHost) answers the requests of Flight SQL. `skytether_flight` routes them here.
//! - [`statements`] remembers prepared statements and the queries that run, within limits.
//! - [`catalog_metadata`] shows a fleet as catalogs, schemas and tables; [`bind_values`] reads parameters.
//!
//! Invariants: a ticket holds its whole statement, so the service remembers nothing between planning and fetching.
//! Writes and transactions are refused. Prepared statements that no client uses are forgotten. A client that leaves its
//! stream stops the query. This crate serves no port and checks no caller: `skytether_flight` and `skytether_transport`
//! do.
//!
//! `skytether_host` has an example of the calls that these requests become. See also `docs/sql.md`.

pub mod bind_values;
pub mod catalog_metadata;
mod forward;
pub mod service;
pub mod statements;
