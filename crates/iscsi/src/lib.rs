//! An iSCSI target in user space (RFC 7143): volumes as disks of a door of the drive, scheme `iscsi`.
//!
//! | module | subject |
//! |---|---|
//! | [`door`] | [`Iscsi`], a [`DriveDoor`](skytether_doors::DriveDoor) |
//! | `connection`, `session`, `commands` | a connection: its login, its session, the session's commands |
//! | `answers`, `output`, `task`, `memory`, `sessions`, `targets` | what these are made of |
//! | [`pdu`], [`decoder`], [`text`], [`parameters`], [`login`], [`chap`] | the protocol, without I/O |
//! | [`secrets`], [`options`] | what operators set |
//!
//! # What initiators see
//! - One target, `iqn.2024-01.io.skytether:DRIVE` unless the operator names it. Its name is in lower case; what an
//!   iSCSI name can't have is `-`.
//! - The volumes are its logical units from 1 on; there may be gaps. Unit 0 is no device: it answers INQUIRY,
//!   REPORT LUNS and REQUEST SENSE alone. libiscsi's URL is `iscsi://HOST:PORT/NAME/LUN`.
//! - Discovery by SendTargets, with the address that the door has bound; a door of all addresses tells none, so that
//!   initiators keep the one that they have asked.
//! - Error recovery level 0 and one connection a session: a second one is refused as "too many connections". A session
//!   that fails is made again by its initiator; a login with the same name and ISID ends the former session.
//! - CHAP with MD5 or SHA-256, one-way or mutual ([`Secrets`]); CRC-32C of headers and of data.
//! - Immediate and unasked data up to 64 KiB, bursts up to 1 MiB, four requests for data of a command at a time.
//!
//! # Bounds
//! | what | bound |
//! |---|---|
//! | data segment | 8 KiB in a login, then 256 KiB |
//! | login | 20 s, 32 requests, 64 KiB of text, 128 pairs |
//! | commands of a session | 128 in the window, 32 immediate ones besides |
//! | unasked data | what the window and the first burst allow; 512 MiB of all sessions |
//! | reads, and data that was asked for | 64 MiB a session, 256 MiB of all |
//! | answers that wait before a session reads no more | 2 MiB |
//! | an initiator that reads no answers, sends no data, answers no probe | 60 s, 120 s, 60 s |
//!
//! [`Options`] has those that an operator may change.
//!
//! Invariants:
//! - What a session holds is bounded before it is allocated: unasked data by the window of commands, which is paid for
//!   at login; other data by a queue for memory.
//! - A command is answered once, or not at all where a management function has ended it.
//! - Commands run at the same time; those whose data is cached are answered before the next one is read.
//!
//! See also `docs/block.md`.
#![forbid(unsafe_code)]

mod answers;
pub mod chap;
mod commands;
mod connection;
pub mod decoder;
pub mod door;
pub mod login;
mod memory;
pub mod options;
mod output;
pub mod parameters;
pub mod pdu;
pub mod secrets;
mod session;
mod sessions;
mod targets;
mod task;
pub mod text;

pub use door::Iscsi;
pub use options::{Options, SCHEME};
pub use secrets::Secrets;
/// The note of a volume that has the persistent reservations of its initiators.
pub use skytether_scsi::note::NAME as RESERVATIONS;
