//! A drive: a compute-storage engine over one store of slices.
//!
//! [`Drive`] offers its store ([`Storage`]) and runs programs next to it ([`Cse`]): Substrait plans by [`skytether_engine`], and those of other [`Executor`]s, in this process or, by [`serve`], for others over Arrow Flight.
//! It knows nothing of hosts, data sets or placement: a sub-plan's ticket names the partitions that it may read.
//!
//! | room | subject |
//! |---|---|
//! | [`drive`] | the drive itself |
//! | [`executor`] | what it runs: an executor for each kind of program |
//! | `indexes` | the indexes that it builds over its own slices |
//! | `shared_reads` | slices that its sub-plans and somebody else read at the same time |
//! | [`throttle`] | the device that it is to be like: which one, its disk, its link |

pub mod drive;
pub mod executor;
mod indexes;
mod shared_reads;
pub mod throttle;

pub use drive::{Drive, DriveOptions, serve};
pub use executor::{ExecutionContext, Executor};
pub use skytether_device::{Cse, Storage};
pub use throttle::{Device, linked};
