//! Frames: nine bytes of header, a message, and the value that belongs to it.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | `F` |
//! | 4 | length of the message, big-endian |
//! | 4 | length of the value, big-endian |
//! | | the message, a protocol buffer |
//! | | the value |
//!
//! See also [`crate::decoder`], which takes them apart.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::{Error, Kind};

use crate::limits::told;
use crate::log::Limits;
use crate::message::Message;
use crate::status::Refusal;

/// The length of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 9;

/// The first byte of a frame.
pub const MAGIC: u8 = b'F';

/// The longest message where a drive announces no limit, in bytes.
pub const DEFAULT_MESSAGE_BYTES: u32 = 1 << 20;

/// The longest value where a drive announces no limit, in bytes.
pub const DEFAULT_VALUE_BYTES: u32 = 1 << 20;

/// A frame that was received.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The message, still encoded.
    pub message: Bytes,
    /// The value; empty if there is none.
    pub value: Bytes,
    /// The length of a value that was longer than permitted, and that the decoder dropped.
    pub dropped: Option<u32>,
}

impl Frame {
    /// The same value in memory of its own.
    ///
    /// A small value shares a block of up to 64 KiB with the frames around it. Copy it if it is kept.
    #[must_use]
    pub fn detached_value(&self) -> Bytes {
        Bytes::copy_from_slice(&self.value)
    }
}

/// How long the parts of a frame may be, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// The message.
    pub message: u32,
    /// The value.
    pub value: u32,
    /// Values that are longer than `value`, but not longer than this, are dropped while they arrive, so that the
    /// command can be refused and the connection goes on. `value` or less: every longer value is an error.
    pub dropped_value: u32,
}

impl FrameLimits {
    /// The limits that a drive announces. Those that it does not tell are 1 MiB.
    #[must_use]
    pub fn of(limits: &Limits) -> FrameLimits {
        let value = told(limits.max_value_size).unwrap_or(DEFAULT_VALUE_BYTES);
        FrameLimits { message: told(limits.max_message_size).unwrap_or(DEFAULT_MESSAGE_BYTES), value, dropped_value: value }
    }

    /// The same limits, with longer values dropped up to `longest` bytes.
    #[must_use]
    pub fn dropping_values(self, longest: u32) -> FrameLimits {
        FrameLimits { dropped_value: longest, ..self }
    }

    /// The longest frame that is kept, in bytes.
    #[must_use]
    pub fn frame(&self) -> usize {
        HEADER_BYTES.saturating_add(self.message as usize).saturating_add(self.value as usize)
    }
}

/// Why bytes are no frame. Each ends the connection: it is unknown where the next frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is not [`MAGIC`].
    #[error("a frame begins with byte {found:#04x} and not with 'F'")]
    BadMagic {
        /// The byte.
        found: u8,
    },
    /// The message is longer than permitted.
    #[error("a message has {length} bytes, the limit is {limit}")]
    MessageTooLong {
        /// Its length, in bytes.
        length: u32,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The value is longer than permitted.
    #[error("a value has {length} bytes, the limit is {limit}")]
    ValueTooLong {
        /// Its length, in bytes.
        length: u32,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a frame: {held} bytes came, {missing} or more are missing")]
    Truncated {
        /// How many bytes of the frame came.
        held: u64,
        /// How many bytes are missing, at least.
        missing: u64,
    },
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        let kind = match error {
            FrameError::BadMagic { .. } | FrameError::MessageTooLong { .. } | FrameError::ValueTooLong { .. } => Kind::Corrupt,
            FrameError::Truncated { .. } => Kind::Unavailable,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<FrameError> for Refusal {
    /// What a server says before it closes the connection.
    fn from(error: FrameError) -> Refusal {
        Refusal::invalid(error.to_string())
    }
}

/// The header of a frame.
#[must_use]
pub fn header(message: u32, value: u32) -> [u8; HEADER_BYTES] {
    let ([a, b, c, d], [e, f, g, h]) = (message.to_be_bytes(), value.to_be_bytes());
    [MAGIC, a, b, c, d, e, f, g, h]
}

/// All of a frame but its value: send the value's bytes after these, from where they are.
///
/// # Errors
/// [`FrameError::MessageTooLong`] or [`FrameError::ValueTooLong`] if a length does not fit into four bytes. Whether
/// the other side takes it is not checked: [`FrameLimits`] and [`Limits`] say so.
pub fn encode_head(message: &Message, value_bytes: usize) -> Result<Bytes, FrameError> {
    let mut to = BytesMut::new();
    put_head(message, value_bytes, &mut to)?;
    Ok(to.freeze())
}

/// Appends a whole frame to `to`, with a copy of the value: for small values, many to a write.
///
/// # Errors
/// Those of [`encode_head`]; `to` is then unchanged.
pub fn encode_into(message: &Message, value: &[u8], to: &mut BytesMut) -> Result<(), FrameError> {
    put_head(message, value.len(), to)?;
    to.put_slice(value);
    Ok(())
}

fn put_head(message: &Message, value_bytes: usize, to: &mut BytesMut) -> Result<(), FrameError> {
    let fit = |length: usize| u32::try_from(length).ok();
    let length = prost::Message::encoded_len(message);
    let message_bytes = fit(length).ok_or(FrameError::MessageTooLong { length: u32::MAX, limit: u32::MAX })?;
    let value_bytes = fit(value_bytes).ok_or(FrameError::ValueTooLong { length: u32::MAX, limit: u32::MAX })?;
    to.reserve(HEADER_BYTES.saturating_add(length));
    to.put_slice(&header(message_bytes, value_bytes));
    prost::Message::encode_raw(message, to);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;

    #[test]
    fn frame_is_header_message_and_value() {
        let message = Message::unsolicited(&Command::default());
        let expected = [b'F', 0, 0, 0, 4, 0, 0, 0, 3, 0x20, 0x03, 0x3a, 0x00];
        assert_eq!(encode_head(&message, 3).unwrap()[..], expected);
        let mut to = BytesMut::from(&b"before"[..]);
        encode_into(&message, b"abc", &mut to).unwrap();
        assert_eq!(to[..], [b"before", &expected[..], b"abc"].concat());
        assert_eq!(header(0x0102_0304, 0x0a0b_0c0d), [b'F', 1, 2, 3, 4, 10, 11, 12, 13]);
    }

    #[test]
    fn value_of_four_gigabytes_does_not_fit() {
        let mut to = BytesMut::new();
        assert!(matches!(put_head(&Message::default(), 1 << 32, &mut to), Err(FrameError::ValueTooLong { .. })));
        assert!(to.is_empty());
        assert!(put_head(&Message::default(), u32::MAX as usize, &mut to).is_ok());
    }

    #[test]
    fn untold_limits_are_one_mebibyte() {
        let told = FrameLimits::of(&Limits { max_value_size: Some(10), max_message_size: Some(0), ..Limits::default() });
        assert_eq!(told, FrameLimits { message: 1 << 20, value: 10, dropped_value: 10 });
        assert_eq!(told.frame(), 9 + (1 << 20) + 10);
        assert_eq!(told.dropping_values(99).dropped_value, 99);
        assert_eq!(FrameLimits::of(&Limits::default()).value, 1 << 20);
        // The Java simulator sends -1 for what it does not tell.
        assert_eq!(FrameLimits::of(&Limits { max_message_size: Some(u32::MAX), ..Limits::JAVA }), FrameLimits::of(&Limits::JAVA));
    }

    #[test]
    fn errors_say_numbers_and_kind() {
        let error = FrameError::ValueTooLong { length: 11, limit: 10 };
        assert_eq!(error.to_string(), "a value has 11 bytes, the limit is 10");
        assert_eq!(Error::from(error).kind(), Kind::Corrupt);
        assert_eq!(Refusal::from(error).to_string(), "INVALID_REQUEST: a value has 11 bytes, the limit is 10");
        assert_eq!(FrameError::BadMagic { found: 71 }.to_string(), "a frame begins with byte 0x47 and not with 'F'");
        assert_eq!(Error::from(FrameError::Truncated { held: 1, missing: 8 }).kind(), Kind::Unavailable);
    }
}
