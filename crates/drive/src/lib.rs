//! A drive: a compute-storage engine over one store of slices.
//!
//! [`Drive`] offers its store ([`Storage`]) and runs sub-plans next to it ([`Cse`]), in this process or, by [`serve`], for others over Arrow Flight.
//! It knows nothing of hosts, data sets or placement: a sub-plan's ticket names the partitions that it may read.
//!
//! | room | subject |
//! |---|---|
//! | [`drive`] | the drive itself |
//! | `reader` | partitions, slices and whole columns out of the store, with caches |
//! | `bind`, `shipped`, [`beside`] | a ticket's tables, as DataFusion finds them; those that came beside the plan |
//! | `table`, `prune` | a partition as a table; which stripes of rows a filter leaves over |
//! | `scan`, `stripe`, `dense`, `statistics` | the operator that reads slices; the rows of several slices; the dense view of a matrix; what metadata tells of the rows |
//! | `cells` | what grouped moments must know about cells |
//! | `execute`, `batches`, `annotate` | running a sub-plan, delivering, telling what happened |

mod annotate;
mod batches;
pub mod beside;
mod bind;
mod cache;
mod cells;
mod dense;
pub mod drive;
mod execute;
mod known;
mod prune;
mod reader;
mod scan;
mod shipped;
mod statistics;
mod stripe;
mod table;

pub use drive::{Drive, DriveOptions, serve};
pub use skytether_wire::{Cse, Storage};
