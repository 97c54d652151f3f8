//! Fleets in a Ceph cluster: slices are RADOS objects, and an object's omap is each drive's index.
//!
//! [`open`] opens the fleet at an [`Address`], or makes it, and gives a [`SliceStore`](skytether_store::SliceStore) for
//! each of its drives. Engines run where the fleet is opened. Ceph places, copies and recovers the objects; so the
//! fleet's own redundancy is `none`.
//!
//! | module | subject |
//! |---|---|
//! | `address` | `rados://POOL?conf=PATH` |
//! | `library` | librados, opened at run time |
//! | `cluster`, `operations` | safe calls: connections, pools, operations on objects |
//! | `calls` | methods of object classes: code that runs in the OSD with the object |
//! | `pools` | which pools are taken |
//! | `index` | pure: rows of an index, and what a batch does to them |
//! | `store` | the store of one drive |
//! | `lease` | which process has a fleet |
//! | `fleet` | the record of a fleet; opening and making one |
//! | `files` | files in CephFS and RADOS that are no fleet's |
//!
//! Invariants: a batch is atomic, and durable when it is acknowledged (I6); a process that another one has displaced
//! changes nothing; every call ends within the address's timeout. Nothing here knows tables or hosts.
//!
//! See also `docs/internals/rados.md` and `docs/ceph.md`.

mod address;
mod calls;
mod cluster;
mod files;
mod fleet;
mod index;
mod lease;
mod library;
mod operations;
mod pools;
mod store;

pub use address::{Address, AtOsds, SCHEME, is_address};
pub use calls::{Called, Objects};
pub use files::{CephFile, CephFiles, Listed, ObjectRange, ObjectReads, is_files};
pub use fleet::{FORMAT, Guard, OpenDrive, OpenFleet, open};
pub use store::RadosStore;
