//! Super-plans that outgrow one host: several hosts run one super-plan, stage by stage.
//!
//! | module | subject |
//! |---|---|
//! | [`stages`] | cuts a physical plan into stages at its exchanges of rows |
//! | `join_keys` | the keys of one side of a join, for scans on whichever host |
//! | `spilling_join` | the hash join of a partition, which uses disk where memory is short |
//! | `gathered` | rows that are gathered before such a join divides them |
//! | [`stage_read`] | the operator that reads what a stage gives, wherever it runs |
//! | [`part`] | the part of a query that one worker runs |
//! | [`worker`] | the parts of all queries of a worker, and the calls that other hosts make |
//! | [`peer`] | a connection to a worker |
//! | [`wire`] | the messages |
//! | [`coordinator`] | spreads a query, watches its workers, and runs it again without one that is lost |
//! | `one_host` | statements that several hosts can't run |
//! | [`fleet`] | a host with workers, as a [`FleetService`](skytether_api::service::FleetService) |
//!
//! No plan travels. Each host plans the same statement over the same root records, and both sides compare a digest of
//! the stages before the first row moves. So nothing but the statement needs a form as bytes.
//!
//! Invariants: each partition of a stage belongs to one task, and each task to one worker. A reader knows from how many
//! tasks it must read, and each of them says at its end how many rows it gave: rows that are missing are an error, and
//! never a shorter answer. This crate changes nothing on drives. See also `docs/internals/several-hosts.md`.

pub mod coordinator;
pub mod fleet;
mod gathered;
mod join_keys;
mod one_host;
pub mod part;
pub mod peer;
mod spilling_join;
pub mod stage_read;
pub mod stages;
pub mod wire;
pub mod worker;
