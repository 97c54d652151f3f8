//! The engine: runs sub-plans over slices, wherever they come from.
//!
//! A drive runs it over its own store; a host runs it over slices that drives hand out as they are stored. It knows nothing of hosts, data sets or placement: a sub-plan's ticket names the
//! partitions that it may read.
//!
//! | room | subject |
//! |---|---|
//! | [`reader`] | partitions, slices and whole columns out of a store, with caches |
//! | [`remote`], [`threads`] | a store behind a wire, for readers, and the threads that wait for it |
//! | `ticket` | which partitions a sub-plan may read, and what opens them |
//! | `bind`, `shipped`, [`beside`] | a ticket's tables, as DataFusion finds them; those that came beside the plan |
//! | `table`, `prune`, `prefilter` | a partition as a table; which stripes of rows a filter leaves over, and which rows of a stripe before all of it is decoded |
//! | [`indexed`], `ranges`, [`indexing`] | which rows an index leaves over; what filters say of its columns; how it is built |
//! | `scan_spec`, `scan`, `loading`, `stripe`, `dense`, `statistics` | what a scan reads; the operator that reads slices; from stripes to batches; the rows of several slices; the dense view of a matrix; what metadata tells of the rows |
//! | [`feed`], `runs` | stripes that come to a scan one by one; small ones that are taken together |
//! | `cells` | what grouped moments must know about cells |
//! | `known` | aggregates that metadata answers |
//! | [`divide`] | a sub-plan stripe by stripe, at several rungs |
//! | [`lanes`] | what works off the slices of a session over one's own store |
//! | [`session`] | a sub-plan that is worked off slice by slice, as the level above orders |
//! | [`meter`] | how long work takes |
//! | `spawned` | what runs beside the root of a sub-plan pays for itself, where that is to be as slow as some device |
//! | `prepared` | the operators of a sub-plan, which the drives of a process may share |
//! | [`execute`], `batches`, `annotate` | running a sub-plan, delivering, telling what happened |

mod annotate;
mod batches;
pub mod beside;
mod bind;
mod cache;
mod cells;
mod dense;
pub mod divide;
pub mod execute;
pub mod feed;
pub mod indexed;
pub mod indexing;
mod known;
pub mod lanes;
mod loading;
pub mod meter;
mod prefilter;
mod prepared;
pub mod prune;
mod ranges;
pub mod reader;
pub mod remote;
mod runs;
mod scan;
mod scan_spec;
pub mod session;
mod shipped;
mod spawned;
pub mod statistics;
mod stripe;
mod table;
pub mod threads;
mod ticket;

pub use execute::Engine;
pub use reader::Reader;
pub use threads::{blocking, blocking_on};
