//! The query engine inside a Ceph cluster: sub-plans run next to the OSDs that have the objects.
//!
//! | module | subject |
//! |---|---|
//! | [`serve`] | the engine process next to an OSD, which the object class talks to |
//! | [`drive`] | a drive of a fleet in Ceph whose sub-plans run at the OSDs, slice by slice |
//! | [`install`] | object class and engine on the OSDs of a machine |
//! | [`evaluate`] | one sub-plan over one object, wherever it runs |
//! | [`object`] | bytes of an object |
//! | `table` | an object as a table |
//!
//! Invariants: what an OSD does not do is done above, with the reason in the receipt. An answer is the same wherever it
//! was computed, because the same code computes it. The engine bounds time, memory and rows of every request.
//!
//! See also `docs/internals/ceph-class.md` and `docs/ceph.md`.

pub mod drive;
pub mod evaluate;
pub mod install;
pub mod object;
pub mod serve;
mod table;

pub use drive::{OsdDrive, available};
pub use evaluate::{columns_of, evaluate};
pub use object::ObjectBytes;
pub use skytether_ceph_protocol::proxy::{DIR as SOCKETS, DIR_VARIABLE as SOCKETS_VARIABLE, socket_name};
