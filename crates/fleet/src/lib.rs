//! One set of calls for an embedded fleet or a connection to a host elsewhere.
//!
//! [`Fleet`] is what the command line and the Python packages build on. [`Fleet::open`] puts drives and a host together
//! in this process, over one directory. [`Fleet::connect`] connects to a host that is served.
//!
//! | part | subject |
//! |---|---|
//! | [`Fleet`], [`OpenOptions`], [`IngestOptions`] | queries, ingest, export, maintenance, and how a fleet is opened |
//! | [`address`] | directories and URLs |
//! | [`files`], [`storable`] | readers of file formats, and types that can be stored |
//! | [`generate`] | files of made-up particles |
//! | [`calibrate`](mod@calibrate), [`Profiles`] | measured device profiles |
//!
//! Invariants: an embedded fleet locks its directory, so one process at a time has it. A call means the same over
//! either kind of fleet. What a stopped ingest or export left is garbage, and the next open deletes it.
//!
//! `skytether_host` has an example of the calls below this crate. See also README.md and `docs/storage.md`.

pub mod address;
mod aside;
pub mod calibrate;
mod embedded;
mod export;
pub mod files;
mod fleet;
pub mod generate;
mod glance;
mod grown;
mod indexes;
mod profiles;
mod service;
pub mod storable;

pub use aside::remove_unfinished;
pub use calibrate::{Calibration, calibrate};
pub use embedded::{FORMAT, OpenOptions};
pub use export::ExportReport;
pub use fleet::{Fleet, IngestOptions};
pub use profiles::Profiles;
pub use skytether_host::{
    AdaptiveMode, Asked, DatasetInfo, DatasetKind, DatasetWriter, DriveStatus, Explanation, FleetService, HostOptions, IndexInfo, IndexRecord, IngestReport,
    ListIndexes, Listing, NewIndex, OldIndex, Output, ParquetView, Placement, Progress, Pushdown, Query, QueryOptions, Receipt, ReceiptHandle, RepairOptions,
    RepairReport, ResizeOptions, ResizeReport, Scheme, ScrubOptions, ScrubReport, TableScan, VirtualFile,
};
pub use skytether_host::{MatrixRecord, PartitionRecord, PartitionedBy, TableRecord};
pub use skytether_particles::Particles;
pub use skytether_transport::{Credentials, Secret};
