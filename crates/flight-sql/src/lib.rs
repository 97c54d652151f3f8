//! Flight SQL over any fleet that is a [`FleetService`](skytether_api::service::FleetService): a host in this process, or
//! a connection to one.

pub mod bind_values;
pub mod catalog_metadata;
mod forward;
pub mod service;
pub mod statements;
