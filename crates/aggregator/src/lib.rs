//! An aggregator: a cluster of drives that is one drive of another host.
//!
//! [`Aggregator`] implements [`Cse`](skytether_device::Cse) over the drives below it. [`striped_storage`] distributes
//! what the parent stores: slices of a partition go to the drives round robin, metadata slices to all of them.
//! [`worker`] runs a sub-plan: the drives below process the slices that the parent feeds, and the aggregator merges
//! their states.
//!
//! Invariants:
//! - The parent sees one drive: it knows neither the drives below nor the places of slices on them.
//! - No host may run over the drives of an aggregator. Their membership record has the aggregator's name and refuses
//!   one.
//! - It commits no data set: the host above does.
//!
//! `skytether host serve --aggregator NAME` starts one. `crates/skytether/tests/fleet/aggregators.rs` shows whole
//! trees. See also `docs/internals/aggregators.md`.

pub mod aggregator;
pub mod striped_storage;
pub mod worker;

pub use aggregator::Aggregator;
