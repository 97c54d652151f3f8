//! Puts a fleet together: directories, drives and a host in one process, or a connection to a host elsewhere.
//!
//! [`Fleet`] is what the command line and the Python packages stand on: the same calls, whichever it is.

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
    Asked, Cut, DatasetInfo, DatasetKind, DatasetWriter, Door, DriveStatus, Explanation, FleetService, GrowthOptions, GrowthReport, HostOptions, IndexInfo,
    IndexRecord, IngestReport, ListIndexes, Listing, Moving, NewIndex, OldIndex, Output, Placement, PlainFile, Progress, Query, QueryOptions, Receipt,
    ReceiptHandle, RepairOptions, RepairReport, Scheme, ScrubOptions, ScrubReport, TableScan,
};
pub use skytether_host::{MatrixRecord, PartitionRecord, PartitionedBy, TableRecord};
pub use skytether_particles::Particles;
pub use skytether_transport::{Credentials, Secret};
