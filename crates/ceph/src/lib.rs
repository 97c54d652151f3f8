//! The query engine inside a Ceph cluster: sub-plans run next to the OSDs that have the objects.
//!
//! | module | subject |
//! |---|---|
//! | [`serve`] | the engine process next to an OSD, which the object class talks to |
//! | `stripes` | stripes of a fleet's tables in that process: values and plans that it keeps |
//! | [`drive`], `work` | a drive of a fleet in Ceph whose sub-plans run at the OSDs, stripe by stripe |
//! | [`install`] | object class and engine on the OSDs of a machine |
//! | `evaluate` | one sub-plan over one object |
//! | [`object`] | bytes of an object |
//! | `table` | a file in an object as a table |
//! | `one_stripe` | a lane over one stripe |
//! | `values` | values of a fleet that go along with requests |
//!
//! Invariants: what an OSD does not do is done above, with the reason in the receipt. An answer is the same wherever it
//! was computed, because the same code computes it. The engine bounds time, memory and rows of every request.
//!
//! See also `docs/internals/ceph-class.md` and `docs/ceph.md`.

pub mod drive;
mod evaluate;
pub mod install;
pub mod object;
mod one_stripe;
pub mod serve;
mod stripes;
mod table;
mod values;
mod work;

pub use drive::{OsdDrive, available};
pub use object::ObjectBytes;
pub use skytether_ceph_protocol::proxy::{DIR as SOCKETS, DIR_VARIABLE as SOCKETS_VARIABLE, socket_name};
