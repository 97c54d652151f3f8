//! What callers ask of a fleet and what they get, whichever door they come through.
//!
//! [`service::FleetService`] is the north door: a host in this process, a connection to one and an embedded fleet
//! implement it, and faces such as Flight SQL stand on it. No part of it knows a query engine.

pub mod device_profile;
pub mod estimate;
pub mod explanation;
pub mod receipt;
pub mod receipt_tree;
pub mod resize_report;
pub mod scrub_report;
pub mod service;
pub mod statement;
pub mod status;
pub mod values;
