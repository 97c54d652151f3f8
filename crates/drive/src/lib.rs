//! A drive: a compute-storage engine over one store of slices.
//!
//! [`Drive`] offers its store ([`Storage`]) and runs programs next to it ([`Cse`]). [`skytether_engine`] runs Substrait
//! plans; other kinds of programs have an [`Executor`] each. [`serve`] offers a drive to others over Arrow Flight.
//!
//! | module | subject |
//! |---|---|
//! | [`drive`] | the drive itself |
//! | [`executor`] | what it runs: an executor for each kind of program |
//! | `heads` | the partitions in its store |
//! | `indexes` | the indexes that it builds over its own slices |
//! | `other_store` | its engine over the values of another door |
//! | `kept` | the results that it keeps to answer the same sub-plan again |
//! | `shared_reads` | slices that its sub-plans and others read at the same time |
//! | [`throttle`] | the device that it emulates: which one, its disk, its link |
//!
//! Invariants: a batch is atomic (I6); a sub-plan sees the partitions of its ticket and nothing else (I9); an index
//! only leaves out what does not match (I14). A drive knows nothing of hosts, data sets or placement.
//!
//! `skytether_host` has an example of drives under a host. See also `docs/internals/formats/drive-directory.md`,
//! `docs/internals/indexes.md` and `docs/internals/device-emulation.md`.

pub mod drive;
pub mod executor;
mod heads;
mod indexes;
mod kept;
mod other_store;
mod shared_reads;
pub mod throttle;

pub use drive::{Drive, DriveOptions, serve};
pub use executor::{ExecutionContext, Executor};
pub use skytether_device::{Cse, Storage};
pub use throttle::{Device, linked};
