//! One set of calls for an embedded fleet or a connection to a host elsewhere.
//!
//! [`Fleet`] is what the command line and the Python packages build on. [`Fleet::open`] puts drives and a host together
//! in this process, over one directory. [`Fleet::connect`] connects to a host that is served.
//!
//! | part | subject |
//! |---|---|
//! | [`Fleet`], [`OpenOptions`], [`IngestOptions`] | queries, ingest, export, maintenance, and how a fleet is opened |
//! | [`address`] | directories and URLs |
//! | [`files`], [`storage_schema`] | readers of file formats, and types that can be stored |
//! | [`generate`] | files of made-up particles |
//! | [`calibrate`](mod@calibrate), [`Profiles`] | measured device profiles |
//!
//! Invariants: an embedded fleet locks its directory, so one process at a time has it. A call means the same over
//! either kind of fleet. What a stopped ingest or export left is garbage, and the next open deletes it.
//!
//! `skytether_host` has an example of the calls below this crate. See also README.md and `docs/storage.md`.

pub mod address;
pub mod calibrate;
mod embedded;
mod embedded_resize;
mod export;
mod fleet;
pub mod generate;
mod indexes;
mod offline_status;
mod profiles;
mod service;
mod stored_elsewhere;

pub use calibrate::{Calibration, calibrate};
pub use embedded::{FORMAT, OpenOptions};
pub use export::ExportReport;
pub use fleet::{Fleet, IngestOptions};
pub use profiles::Profiles;
pub use skytether_formats::atomic_file::remove_unfinished;
pub use skytether_formats::{self as files, storage_schema};
pub use skytether_host::{
    AdaptiveMode, DatasetInfo, DatasetKind, DatasetWriter, DriveStatus, Explanation, FleetService, HostOptions, IndexInfo, IndexRecord, IngestReport,
    ListIndexes, Listing, NewIndex, OldIndex, Output, ParquetView, Placement, Progress, Pushdown, Query, QueryOptions, Receipt, ReceiptHandle, RepairOptions,
    RepairReport, ResizeOptions, ResizeReport, Scheme, ScrubOptions, ScrubReport, Statement, TableScan, Values, VirtualFile,
};
pub use skytether_host::{MatrixRecord, PartitionRecord, PartitionedBy, TableRecord};
pub use skytether_transport::{Credentials, Secret};
pub use skytether_vpic::Particles;
pub use stored_elsewhere::{ComputeElsewhere, Guard, Stores, refuse_redundancy};
