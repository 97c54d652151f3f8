//! The engine: runs sub-plans over slices, wherever they come from.
//!
//! A drive runs it over its own store; a host runs it over slices that drives hand out as they are stored. It knows nothing of hosts, data sets or placement: a sub-plan's ticket names the
//! partitions that it may read.
//!
//! | room | subject |
//! |---|---|
//! | [`reader`] | partitions, slices and whole columns out of a store, with caches |
//! | `bind`, `shipped`, [`beside`] | a ticket's tables, as DataFusion finds them; those that came beside the plan |
//! | `table`, `prune` | a partition as a table; which stripes of rows a filter leaves over |
//! | `scan`, `stripe`, `dense`, `statistics` | the operator that reads slices; the rows of several slices; the dense view of a matrix; what metadata tells of the rows |
//! | `cells` | what grouped moments must know about cells |
//! | `known` | aggregates that metadata answers |
//! | `prepared` | the operators of a sub-plan, which the drives of a process may share |
//! | [`execute`], `batches`, `annotate` | running a sub-plan, delivering, telling what happened |

mod annotate;
mod batches;
pub mod beside;
mod bind;
mod cache;
mod cells;
mod dense;
pub mod execute;
mod known;
mod prepared;
mod prune;
pub mod reader;
mod scan;
mod shipped;
mod statistics;
mod stripe;
mod table;

pub use execute::Engine;
pub use reader::Reader;
pub use table::blocking;
