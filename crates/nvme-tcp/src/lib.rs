//! Volumes over NVMe/TCP: one subsystem, a namespace for each volume, EXEC as vendor commands.
//!
//! | module | subject |
//! |---|---|
//! | [`pdu`] | pure: units of the transport, their lengths and digests |
//! | [`command`] | pure: commands, completions, statuses |
//! | [`page`], [`identify`], [`logs`] | pure: what controllers and namespaces say of themselves, pages of logs |
//! | [`results`] | results of EXEC that wait for their host |
//! | `controller` | associations with hosts: properties, settings, queues |
//! | `admin`, `io` | commands of the admin queue and of I/O queues |
//! | `queue` | one connection: commands under way, transfers |
//! | `session` | one connection: what is read and written |
//! | `door` | [`NvmeTcp`], the door of a drive |
//!
//! Versions: NVM Express 1.4, NVMe over Fabrics 1.1, TCP transport 1.0. Linux' initiator is the client that it is tried
//! with. There is no TLS and no authentication within the protocol.
//!
//! # Ends of associations
//! A host repeats on a new association what was not answered on its former one. Commands of an ended connection are
//! dropped at once. Connect of an admin queue waits until former associations of its host (name and identifier) have
//! ended, or were heard of: then they are other paths. One that is silent for the host's keep-alive time is ended; for
//! 5 s, where the host has none.
//!
//! # EXEC
//! A command has data in one direction only, so that EXEC is a pair. Numbers are little-endian. Double words (`CDW`)
//! are those of the submission queue entry, `DW0` is that of the completion.
//!
//! | field | EXEC OUT, opcode C1h | EXEC IN, opcode C2h |
//! |---|---|---|
//! | NSID | the namespace over which it computes | the same |
//! | CDW10 | list identifier, the host's choice | the same |
//! | CDW11 | bytes of the descriptor, which is the data | bytes of the result that the host takes, at most |
//! | CDW12 | 0 | the first byte of them |
//! | CDW13 | 0 | bit 0: forget the result |
//! | CDW14, CDW15 | 0 | 0 |
//! | data | host to controller: the descriptor | controller to host: bytes of the result, none beyond its end |
//! | DW0 | bytes of the result | bytes of the whole result |
//!
//! - EXEC OUT completes when the computation has ended. Abort ends it, as does the end of the connection.
//! - A result belongs to the controller and the namespace. It goes with a later EXEC OUT of the same identifier, with
//!   the association, after a time, and as the oldest where there are too many (see [`results::ResultLimits`]).
//! - One command moves at most 1 MiB; a longer result takes several EXEC IN.
//! - What EXEC can do is the log page C0h: `Exec::capabilities`. Its length is at most 2 KiB; zeros follow.
//! - Statuses besides the usual ones, of the vendor's type 7h: 1h there is no such result, 2h the descriptor is of a
//!   newer version or asks for an unknown operation, 3h it would take more than it may.
//!
//! See also `docs/block.md`.
#![forbid(unsafe_code)]

mod admin;
pub mod command;
mod controller;
mod door;
pub mod identify;
mod io;
pub mod logs;
mod options;
pub mod page;
pub mod pdu;
mod queue;
pub mod results;
mod session;

pub use door::{NAMESPACE_MOST, NvmeTcp, nqn_of};
pub use options::{DISCOVERY_NQN, Options, SCHEME};
