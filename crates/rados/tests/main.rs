//! Fleets in a real Ceph cluster, of Debian's packages that are unpacked and not installed (`tools/ceph_cluster.py`).
//!
//! Without the packages these tests are skipped; `SKYTETHER_CEPH=required` makes them run or fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod contract;
mod failures;
mod ownership;
mod refused;
