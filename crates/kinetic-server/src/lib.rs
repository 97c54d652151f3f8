//! A drive as a Kinetic drive: the server of the open key-value protocol.
//!
//! The door serves the key-value store of one drive ([`skytether_kv::KeyValues`]) over TCP (`kinetic://`) and TLS
//! (`kinetics://`). Its keys are a name space of their own: no Kinetic client can change a slice or a record of the
//! drive. A client may read slices by their names ([`skytether_device::Storage::get`]).
//!
//! | module | subject |
//! |---|---|
//! | [`door`] | the listener, the connections, the shutdown |
//! | `session` | one connection: frames in, frames out, what waits |
//! | `admission` | who sent a request, and whether it may be answered at all |
//! | `data`, `batch`, `media` | keys, values, ranges; batches; scans |
//! | `peers` | copies to other drives |
//! | `programs`, `program_bytes`, `reach` | programs inside the drive, their bytes, and what they reach |
//! | `loaded`, `program_list` | eBPF and WebAssembly programs that are loaded; all that run |
//! | `native_programs`, `guest` | native programs, and who they are on their connections |
//! | `watch`, `watches`, `watcher` | watches, the changes that they see, and the runs of their programs |
//! | `turns` | turns for programs and long work, by priority |
//! | `queries`, [`query_engine`], [`stored_slices`] | sub-plans as programs, and the slices they read |
//! | `admin`, `settings` | identities, PINs, cluster version, erasure |
//! | `logs`, `counters` | what the drive says of itself |
//!
//! Invariants:
//! - A connection's requests take effect in the order in which they came: a read waits for the writes before it.
//! - What waits for the store is bounded in bytes, over all connections together.
//! - A request is refused by a status; the connection ends only where it is unknown where the next frame begins, or
//!   where the protocol says so.
//!
//! See also `docs/internals/kinetic.md` and `docs/kinetic.md`.
#![forbid(unsafe_code)]

mod admin;
mod admission;
mod batch;
mod chain;
mod counters;
mod data;
pub mod door;
mod guest;
mod loaded;
mod logs;
mod media;
mod native_programs;
pub mod options;
mod peers;
mod program_bytes;
mod program_list;
mod programs;
mod queries;
pub mod query_engine;
mod reach;
mod reply;
mod session;
mod settings;
mod shared;
pub mod stored_slices;
mod turns;
mod usage;
mod watch;
mod watcher;
mod watches;

pub use door::Kinetic;
pub use options::{Options, Profile};
pub use query_engine::QueryEngine;
pub use stored_slices::StoredSlices;
