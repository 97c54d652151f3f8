//! Calls of the object class on a real Ceph cluster, with the engine as a process of its own next to each OSD.
//!
//! Without Ceph's packages these tests are skipped; `SKYTETHER_CEPH=required` makes them run or fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// A cluster of one monitor and three OSDs, shared with the tests of the store.
#[allow(dead_code)]
#[path = "../../rados/tests/cluster.rs"]
mod cluster;
mod coded;
mod engines;
mod poison;
