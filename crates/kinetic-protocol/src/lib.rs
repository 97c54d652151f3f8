//! The Kinetic protocol as data and pure functions: frames, messages, signatures, limits and access rules.
//!
//! Kinetic drives store values by key and speak this protocol over TCP or TLS. This crate does no I/O, reads no clock
//! and draws no random number: a server and a client feed it bytes and send what it returns. It covers protocol 4.0.1,
//! the messages that manage programs (`MANAGE_APPLET`), and clients of protocol 3.0.6.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`], [`decoder`] | nine bytes of header, a message, a value; a decoder that takes bytes in any pieces |
//! | [`message`], [`signature`] | the envelope: who sent a command, and the HMAC that proves it |
//! | [`command`], [`log`], [`security`], [`program`] | the messages, as structures that prost encodes |
//! | [`kinds`] | all enumerations: message types, status codes, permissions, ... |
//! | [`budget`] | how much memory a decoded command may take, checked before it is decoded |
//! | [`limits`] | what a drive accepts, in the profiles `java` and `drive`, with a check for each |
//! | [`response`] | headers of responses, the status with which a drive greets a client |
//! | [`range`], [`access`] | ranges of keys; which scope of an identity permits what |
//! | [`status`] | how a command ended: [`Status`] on the wire, and [`Refusal`], the error of most checks |
//!
//! Invariants:
//! - Any bytes give a value or an error, never a panic.
//! - A decoder holds no more than one frame of the permitted lengths, or one block of 64 KiB if that is more; a second
//!   block while it drops a value that is too long.
//! - An enumeration is a number in a message, so values that this version does not know pass through.
//! - Strings that come from programs or people (`program_param`, `status_message`) are bytes: no client of protocol
//!   buffers 2 has to check that a string is UTF-8.
//!
//! ```
//! use skytether_kinetic_protocol::command::{Command, Header};
//! use skytether_kinetic_protocol::decoder::FrameDecoder;
//! use skytether_kinetic_protocol::frame::{FrameLimits, encode_head};
//! use skytether_kinetic_protocol::{HmacKey, Limits, Message, MessageType};
//!
//! let key = HmacKey::new(b"asdfasdf");
//! let header = Header { message_type: Some(MessageType::Noop.into()), sequence: Some(7), ..Header::default() };
//! let command = Command { header: Some(header), ..Command::default() };
//! let head = encode_head(&Message::signed(1, &key, &command), 0)?;
//!
//! let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::JAVA));
//! assert_eq!(decoder.feed(&head), head.len());
//! let frame = decoder.next_frame()?.ok_or("a whole frame")?;
//! let message = Message::parse(frame.message)?;
//! assert!(message.is_signed_by(&key));
//! assert_eq!(message.command()?, command);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also the table of crates in `ARCHITECTURE.md`.
#![forbid(unsafe_code)]

pub mod access;
pub mod budget;
pub mod command;
pub mod decoder;
pub mod frame;
pub mod kinds;
pub mod limits;
pub mod log;
pub mod message;
pub mod program;
pub mod range;
pub mod response;
pub mod security;
pub mod signature;
pub mod status;

pub use command::Command;
pub use decoder::FrameDecoder;
pub use frame::{Frame, FrameError, FrameLimits};
pub use kinds::{MessageType, Permission, StatusCode};
pub use log::Limits;
pub use message::{Authentication, Message};
pub use signature::HmacKey;
pub use status::{Refusal, Status};
