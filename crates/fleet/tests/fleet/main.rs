//! The fleet from outside: ingest, queries, commits, crashes, locks, servers, receipts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod branches;
mod coming;
mod commits;
mod crashes;
mod dialect;
mod dying;
mod explain;
mod expression;
mod fenced;
mod growth;
mod housed;
mod in_order;
mod indexes;
mod levels;
mod levels_model;
mod locks;
mod lost;
mod mended;
mod missing;
mod moved;
mod moving;
mod moving_faults;
mod plain;
mod profiles;
mod receipts;
mod redundancy;
mod replaced;
mod scrub;
mod served;
mod storms;
mod stuck;
mod tables;
mod util;
mod wide;
