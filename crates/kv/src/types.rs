//! What callers write and read: changes, records, and how they fail.

use std::fmt;

use bytes::Bytes;
use skytether_common::{Error, Result};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 4096;

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// The longest version and the longest tag, in bytes each.
pub const MAX_LABEL: usize = 16 << 10;

/// The longest settings, in bytes.
pub const MAX_SETTINGS: usize = 1 << 20;

/// How a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many bytes of blocks the store keeps in memory.
    pub cache_bytes: u64,
    /// How many bytes of new records may gather in memory before they go to a table. Three times as many can be on
    /// their way to one. Large values gather apart, up to as many again.
    pub memtable_bytes: u64,
    /// How many bytes of journals may wait on disk for tables; at least 64 MiB.
    pub journal_bytes: u64,
    /// Whether acknowledged writes are flushed to the disk where the caller asks for it. `false` is for tests of other
    /// parts: what is written then survives the end of the process only.
    pub sync: bool,
    /// How many bytes all values may have together; a put beyond is `Exhausted`. No limit but the disk's if `None`.
    pub capacity: Option<u64>,
    /// How many bytes of the disk stay free; a put that needs them is `Exhausted`. Deletes may use them.
    pub minimum_free: u64,
    /// How many bytes of changes may wait for the writer; later callers wait until there is room.
    pub queue_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 32 << 20,
            memtable_bytes: 16 << 20,
            journal_bytes: 128 << 20,
            sync: true,
            capacity: None,
            minimum_free: 64 << 20,
            queue_bytes: 32 << 20,
        }
    }
}

/// What is stored about a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The version that the last put gave; any bytes.
    pub version: Bytes,
    /// The tag that the last put gave; any bytes, such as a digest that clients check.
    pub tag: Bytes,
    /// The algorithm of the tag, as a number that the store does not interpret.
    pub algorithm: i32,
    /// The length of the value, in bytes.
    pub len: u32,
}

/// A value, and what is stored about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Version, tag and length.
    pub meta: Meta,
    /// The bytes. They match the checksum that was written with them.
    pub value: Bytes,
}

/// When a write is acknowledged. Each acknowledged write is visible to reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// When it survives a loss of power.
    Through,
    /// When it is visible. It survives the end of the process, and a loss of power from the next flush on.
    Back,
    /// When it and all earlier writes survive a loss of power.
    Flush,
}

/// One change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which key; 0 to [`MAX_KEY`] bytes.
    pub key: Bytes,
    /// The version that the key must have before the batch. An absent key has the empty version for a put, and fails a
    /// delete. `None` forces the change.
    pub expect: Option<Bytes>,
    /// What the key becomes.
    pub to: To,
}

impl Change {
    /// The bytes that the change makes the store write, and that it takes in memory until then.
    pub(crate) fn weight(&self) -> usize {
        let content = match &self.to {
            To::Put { version, tag, value, .. } => version.len() + tag.len() + value.len(),
            To::Delete => 0,
        };
        self.key.len() + content + 64
    }

    /// A put of `value` that needs no version and gives an empty one.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        let to = To::Put { version: Bytes::new(), tag: Bytes::new(), algorithm: 0, value: value.into() };
        Self { key: key.into(), expect: None, to }
    }

    /// A delete that needs no version and may find nothing.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), expect: None, to: To::Delete }
    }

    /// The same change, if the key has this version.
    #[must_use]
    pub fn expecting(mut self, version: impl Into<Bytes>) -> Self {
        self.expect = Some(version.into());
        self
    }

    /// The same put, giving this version. A delete stays as it is.
    #[must_use]
    pub fn giving(mut self, new: impl Into<Bytes>) -> Self {
        if let To::Put { version, .. } = &mut self.to {
            *version = new.into();
        }
        self
    }
}

/// What a key becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// It has this value.
    Put {
        /// Its new version, at most [`MAX_LABEL`] bytes.
        version: Bytes,
        /// Its new tag, at most [`MAX_LABEL`] bytes.
        tag: Bytes,
        /// The algorithm of the tag.
        algorithm: i32,
        /// The value, at most [`MAX_VALUE`] bytes. The store may keep the buffer until it has written a table, so it
        /// should not be a small part of a large one.
        value: Bytes,
    },
    /// It is absent.
    Delete,
}

/// Why a batch was not carried out: nothing of it was done, unless the error is `Unavailable`.
#[derive(Debug)]
pub struct Failed {
    /// The first change that failed, counted from 0.
    pub index: usize,
    /// How.
    pub why: Why,
}

/// How a change fails.
#[derive(Debug)]
pub enum Why {
    /// The key has another version than the change expects.
    VersionMismatch,
    /// The key of a delete with an expected version is absent.
    NotFound,
    /// `Invalid` for a key, version, tag or value that is too long. `Exhausted` for a full disk or a used up capacity.
    /// `Corrupt` where the old record can't be read. `Unavailable` after a failed write: the outcome is unknown, and
    /// the store has to be opened again.
    Error(Error),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::VersionMismatch => write!(f, "change {}: the key has another version: read it and try again", self.index),
            Why::NotFound => write!(f, "change {}: the key to delete does not exist", self.index),
            Why::Error(error) => write!(f, "change {}: {error}", self.index),
        }
    }
}

impl std::error::Error for Failed {}

impl From<Failed> for Error {
    /// `Conflict` for another version, `NotFound` for an absent key, the error itself otherwise.
    fn from(failed: Failed) -> Self {
        match failed.why {
            Why::VersionMismatch => Error::conflict(failed.to_string()),
            Why::NotFound => Error::not_found(failed.to_string()),
            Why::Error(error) => error,
        }
    }
}

/// What a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How many keys there are.
    pub keys: u64,
    /// How many bytes their values have together.
    pub value_bytes: u64,
    /// How many bytes all files occupy; in memory, how many bytes keys and records have.
    pub stored_bytes: u64,
}

/// What [`crate::KeyValues::verify`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// How many keys were checked, damaged ones included.
    pub checked: u64,
    /// The keys whose record or value is damaged, in the order of the scan.
    pub damaged: Vec<Bytes>,
    /// The last key that was checked, from which a scan can go on. `None` where nothing was checked.
    pub last: Option<Bytes>,
    /// Whether the scan reached the end of the range, and not the limit or the deadline.
    pub complete: bool,
}

/// Refuses settings that are too long.
pub(crate) fn check_settings(settings: &[u8]) -> Result<()> {
    if settings.len() > MAX_SETTINGS {
        return Err(Error::invalid(format!("settings of {} bytes are too long: at most {MAX_SETTINGS} are stored", settings.len())));
    }
    Ok(())
}
