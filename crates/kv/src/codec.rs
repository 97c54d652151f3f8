//! The bytes of records and of the state of a store. All numbers are little-endian.
//!
//! A record: format 1 (u8), flags (u8: 1 where the value is apart), length of the version (u16), of the tag (u16),
//! 0 (u16), algorithm (i32), length of the value (u32), CRC-32C of the value (u32), number of the value (u64, 0 where
//! it follows), CRC-32C of the key and all this, with version and tag (u32), version, tag, and the value if it is not
//! apart. Keys are stored with [`RECORD`] in front, because a log-structured merge tree has no empty keys.
//!
//! The state: format 1 (u8), number of the last commit (u64), next number of a value (u64), keys (u64), bytes of values
//! (u64), CRC-32C of all this (u32). Each commit writes it.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::checksum::{crc32c, crc32c_append};
use skytether_common::{Error, Result};

use crate::backend::{Space, View};
use crate::types::Meta;

/// In front of each key of a record.
pub(crate) const RECORD: u8 = 1;
/// The key of the state.
pub(crate) const STATE: &[u8] = b"\0state";
/// The key of the settings.
pub(crate) const SETTINGS: &[u8] = b"\0settings";
/// A key that is written for the sake of a write, and never read.
pub(crate) const MARK: &[u8] = b"\0mark";
/// Values up to this length are stored in their record.
pub(crate) const INLINE: usize = 16 << 10;

const FORMAT: u8 = 1;
const APART: u8 = 1;
/// The bytes that the second checksum covers, but for version and tag.
const CHECKED: usize = 28;
const HEADER: usize = 32;
const STATE_LEN: usize = 37;

/// A key as it is stored.
pub(crate) fn stored_key(key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(key.len() + 1);
    bytes.put_u8(RECORD);
    bytes.put_slice(key);
    bytes.freeze()
}

/// Where a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the record.
    Here(Bytes),
    /// Under this number among the large values.
    Apart(u64),
}

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) meta: Meta,
    pub(crate) crc: u32,
    pub(crate) place: Place,
}

/// The bytes of a record; `key` without [`RECORD`]. Version and tag are at most 64 KiB (checked by callers).
pub(crate) fn encode(key: &[u8], meta: &Meta, crc: u32, place: &Place) -> Bytes {
    let (here, number): (&[u8], u64) = match place {
        Place::Here(value) => (value, 0),
        Place::Apart(number) => (&[], *number),
    };
    let mut bytes = BytesMut::with_capacity(HEADER + meta.version.len() + meta.tag.len() + here.len());
    bytes.put_u8(FORMAT);
    bytes.put_u8(if matches!(place, Place::Apart(_)) { APART } else { 0 });
    bytes.put_u16_le(meta.version.len() as u16);
    bytes.put_u16_le(meta.tag.len() as u16);
    bytes.put_u16_le(0);
    bytes.put_i32_le(meta.algorithm);
    bytes.put_u32_le(meta.len);
    bytes.put_u32_le(crc);
    bytes.put_u64_le(number);
    bytes.put_u32_le(header_crc(key, &bytes, &meta.version, &meta.tag));
    bytes.put_slice(&meta.version);
    bytes.put_slice(&meta.tag);
    bytes.put_slice(here);
    bytes.freeze()
}

/// The record in `bytes`; its value is checked where it is read.
///
/// # Errors
/// `Corrupt` where the header is not what was written for this key, `Unsupported` for a newer format.
pub(crate) fn decode(key: &[u8], bytes: &Bytes) -> Result<Stored> {
    let (Some(u), Some(version_len), Some(tag_len)) = (bytes.first_chunk::<HEADER>(), u16_at(bytes, 2), u16_at(bytes, 4)) else {
        return Err(damaged(key, "is too short"));
    };
    if u[0] > FORMAT {
        return Err(Error::unsupported(format!("the record of key {} has format {}: open it with a newer version", shown(key), u[0])));
    }
    let tag_at = HEADER + usize::from(version_len);
    let value_at = tag_at + usize::from(tag_len);
    if bytes.len() < value_at {
        return Err(damaged(key, "is too short"));
    }
    let number = |at: usize| u32::from_le_bytes([u[at], u[at + 1], u[at + 2], u[at + 3]]);
    if number(CHECKED) != header_crc(key, &u[..CHECKED], &bytes[HEADER..tag_at], &bytes[tag_at..value_at]) {
        return Err(damaged(key, "does not match its checksum"));
    }
    let len = number(12);
    let place = if u[1] & APART != 0 { Place::Apart(u64::from(number(20)) | u64::from(number(24)) << 32) } else { Place::Here(bytes.slice(value_at..)) };
    let meta = Meta { version: bytes.slice(HEADER..tag_at), tag: bytes.slice(tag_at..value_at), algorithm: number(8) as i32, len };
    Ok(Stored { meta, crc: number(16), place })
}

/// Refuses a value that is not the one of the record.
pub(crate) fn check_value(key: &[u8], stored: &Stored, value: &[u8]) -> Result<()> {
    if value.len() as u64 != u64::from(stored.meta.len) {
        return Err(damaged(key, &format!("has a value of {} bytes instead of {}", value.len(), stored.meta.len)));
    }
    if crc32c(value) != stored.crc {
        return Err(damaged(key, "has a value that does not match its checksum"));
    }
    Ok(())
}

/// The error of a record that is not what was written.
pub(crate) fn damaged(key: &[u8], what: &str) -> Error {
    Error::corrupt(format!("the record of key {} {what}: write it again", shown(key)))
}

/// A key for people: its first bytes, with escapes where they are no text.
pub(crate) fn shown(key: &[u8]) -> String {
    const MOST: usize = 64;
    let start = key.get(..MOST).unwrap_or(key).escape_ascii();
    if key.len() > MOST { format!("\"{start}\"... ({} bytes)", key.len()) } else { format!("\"{start}\"") }
}

fn header_crc(key: &[u8], header: &[u8], version: &[u8], tag: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c_append(crc32c(key), header), version), tag)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// What a store knows of itself; part of each commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// The number of the last commit; the first one is 1.
    pub(crate) commit: u64,
    /// The number that the next large value gets.
    pub(crate) next_number: u64,
    pub(crate) keys: u64,
    pub(crate) value_bytes: u64,
}

impl Default for State {
    /// Before the first commit.
    fn default() -> Self {
        Self { commit: 0, next_number: 1, keys: 0, value_bytes: 0 }
    }
}

impl State {
    /// The state that a view has; the first one where there is none.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged, and those of the view. `name` is that of the store.
    pub(crate) fn read(view: &dyn View, name: &str) -> Result<Self> {
        match view.get(Space::Records, STATE)? {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(&bytes).ok_or_else(|| Error::corrupt(format!("{name} has a damaged state: restore the drive from its copies"))),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(STATE_LEN);
        bytes.put_u8(FORMAT);
        for number in [self.commit, self.next_number, self.keys, self.value_bytes] {
            bytes.put_u64_le(number);
        }
        bytes.put_u32_le(crc32c(&bytes));
        bytes.freeze()
    }

    /// The state in `bytes`, if it is one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STATE_LEN] = bytes.try_into().ok()?;
        let (checked, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c(checked) != u32::from_le_bytes(*crc) || checked[0] != FORMAT {
            return None;
        }
        let (numbers, _) = checked[1..].as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map(|bytes| u64::from_le_bytes(*bytes));
        Some(Self { commit: number(0)?, next_number: number(1)?, keys: number(2)?, value_bytes: number(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    fn meta() -> Meta {
        Meta { version: Bytes::from_static(b"v1"), tag: Bytes::from_static(b"tag"), algorithm: -3, len: 5 }
    }

    #[test]
    fn record_encoded_decodes_to_itself() {
        for place in [Place::Here(Bytes::from_static(b"value")), Place::Apart(0x0102_0304_0506_0708)] {
            let bytes = encode(b"key", &meta(), crc32c(b"value"), &place);
            let stored = decode(b"key", &bytes).unwrap();
            assert_eq!((&stored.meta, stored.crc, &stored.place), (&meta(), crc32c(b"value"), &place));
            check_value(b"key", &stored, b"value").unwrap();
            assert_eq!(check_value(b"key", &stored, b"valuf").unwrap_err().kind(), Kind::Corrupt);
            assert_eq!(check_value(b"key", &stored, b"valu").unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn record_with_any_flipped_bit_is_refused() {
        let whole = encode(b"key", &meta(), crc32c(b"value"), &Place::Here(Bytes::from_static(b"value")));
        assert!(decode(b"kez", &whole).is_err(), "a record is bound to its key");
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let bytes = Bytes::from(bytes);
            let found = decode(b"key", &bytes).and_then(|stored| match &stored.place {
                Place::Here(value) => check_value(b"key", &stored, value),
                Place::Apart(_) => Ok(()),
            });
            assert!(found.is_err(), "bit {bit}");
        }
        for len in 0..whole.len() {
            let cut = whole.slice(..len);
            let found = decode(b"key", &cut).and_then(|stored| match &stored.place {
                Place::Here(value) => check_value(b"key", &stored, value),
                Place::Apart(_) => Ok(()),
            });
            assert!(found.is_err(), "{len} bytes");
        }
    }

    #[test]
    fn state_with_any_flipped_bit_is_refused() {
        let state = State { commit: 7, next_number: 9, keys: 3, value_bytes: 1 << 40 };
        let whole = state.encode();
        assert_eq!(State::decode(&whole), Some(state));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(State::decode(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn long_or_binary_keys_are_shown_in_short() {
        assert_eq!(shown(b"a\n\xff"), r#""a\n\xff""#);
        assert!(shown(&[b'a'; 4096]).len() < 100);
    }
}
