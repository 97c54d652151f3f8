//! What callers ask of a fleet, and what they get: plain data that embedded fleets and connections share.
//!
//! | module | subject |
//! |---|---|
//! | [`statement`] | what is asked: SQL, a Substrait plan or a scan; options; the answer under way |
//! | [`receipt`], [`receipt_tree`] | what ran where, and how little moved |
//! | [`explanation`], [`estimate`] | how a query is cut, and what a scan was expected to take |
//! | [`scrub_report`], [`resize_report`] | options, progress and reports of maintenance |
//! | [`service`] | the north door: [`FleetService`](service::FleetService), which hosts and connections implement |
//! | [`status`], [`device_profile`] | the state of a drive, and the device that it is taken for |
//!
//! Everything but a running [`Query`](statement::Query) is serde data, because the host protocol sends it as JSON. New
//! fields need a default, so that hosts and clients of neighbouring versions understand each other. This crate asks no
//! drive and plans nothing: `skytether_host` does, and its documentation has an example of a query.
//!
//! ```
//! use skytether_api::receipt::{DriveReceipt, Receipt};
//!
//! let drive = DriveReceipt { name: "drive-0".to_owned(), rows_out: 3, bytes_sent: 96, ..DriveReceipt::default() };
//! let receipt = Receipt { finished: true, rows: 3, bytes_moved: 96, drives: vec![drive], ..Receipt::default() };
//! assert!(receipt.to_string().contains("drive-0"));
//! assert_eq!(serde_json::from_value::<Receipt>(receipt.to_json())?, receipt);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! See also `docs/internals/receipts.md` and `docs/explain.md`.

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
