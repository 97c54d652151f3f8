//! The SCSI command set of a disk target over [`BlockDevice`](skytether_volume::BlockDevice), without a transport.
//!
//! A transport makes a [`Target`], connects a [`Nexus`] for each session, and passes on commands and task management
//! functions. It owns residuals, tags, lengths of sense data and all else that is its protocol's.
//!
//! | module | subject |
//! |---|---|
//! | `command`, `options` | what a transport passes on and gets back; names and limits |
//! | `execute`, `dispatch` | the life of a command: order, unit attentions, reservations; task management |
//! | `operations`, `transfer` | all operations with the bits of their CDBs; how many bytes each moves |
//! | `target`, `unit`, `tasks` | logical units, nexuses and running commands |
//! | `sense`, `cdb`, `address` | bytes of sense data, CDBs and logical unit numbers |
//! | `inquiry`, `identity`, `report`, `capacity`, `mode`, `status` | what a unit is and tells |
//! | `io`, `atomic`, `thin`, `sanitize`, `copy` | blocks: read, written, compared, unmapped, overwritten, copied |
//! | `persistent`, `reserve` | persistent reservations as a state, and the commands about them |
//! | [`note`] | how these are kept and read back, and what happens where they can't be |
//! | [`exec`] | EXEC OUT and EXEC IN, byte for byte |
//!
//! Invariants:
//! - Commands begin in the order in which their futures are first polled. ORDERED waits for all before it.
//! - A reservation or a unit attention is checked when a command begins, in one step with its state.
//! - Of all states, persistent reservations alone outlive the process, where APTPL asks for that: they are a note of
//!   the device, which is durable before the command is answered. Mode pages are not saved.
//! - A unit whose note can't be read refuses all commands: it never runs without reservations that it may have.
//! - No command holds more memory than a small multiple of [`Options::transfer`].
//!
//! Section numbers are those of SAM-5, SPC-4 (revision 37) and SBC-3 (revision 36). See also `docs/block.md`.
#![forbid(unsafe_code)]

mod address;
mod atomic;
mod call;
mod capacity;
mod cdb;
mod command;
mod computed;
mod copied;
mod copy;
mod dispatch;
pub mod exec;
mod execute;
mod identity;
mod inquiry;
mod io;
mod kept;
mod mode;
mod modes;
pub mod note;
mod operations;
mod options;
mod persistent;
mod protected;
mod report;
mod request_sense;
mod reserve;
mod sanitize;
mod sense;
mod status;
mod target;
mod tasks;
mod thin;
mod transfer;
mod unit;

pub use command::{Command, InitiatorPort, Management, ManagementReply, Reply, TaskAttribute, Transfer};
pub use options::Options;
pub use target::{Nexus, Target};
pub use unit::Unit;
