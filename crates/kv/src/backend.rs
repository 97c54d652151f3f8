//! What keeps the bytes: an ordered map of two spaces with atomic commits.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use skytether_common::{Error, Result};

/// One of the maps of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Records, the state and the settings.
    Records,
    /// Large values under their numbers.
    Values,
}

/// One step of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The key gets this value.
    Put(Space, Bytes, Bytes),
    /// The key goes.
    Remove(Space, Bytes),
}

/// What [`View::range`] gives: keys with their bytes, in order.
pub type Entries<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

/// One state of a backend: each commit is in it as a whole, or not at all.
pub trait View {
    /// The bytes under `key`.
    ///
    /// # Errors
    /// `Corrupt` for damaged bytes, other kinds for failures of the disk.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>>;

    /// The entries of [`Space::Records`] within the bounds, which are in order.
    fn range<'a>(&'a self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool) -> Entries<'a>;
}

/// How an erasure ended.
#[derive(Debug)]
pub enum Erased {
    /// All is gone.
    Done,
    /// All is gone, but the old files remain until the next opening.
    Remains(Error),
    /// Nothing has changed.
    Nothing(Error),
    /// It is unknown which of these.
    Unknown(Error),
}

/// An ordered map with atomic commits. One thread writes; any number reads.
pub trait Backend: Send + Sync + fmt::Debug {
    /// The state of this moment. A thread has one view at a time, drops it soon, and before it writes.
    ///
    /// # Errors
    /// `Unavailable` where there is none.
    fn view(&self) -> Result<Box<dyn View + '_>>;

    /// Carries out all steps or none, as commit number `commit`; each key is in one step only. With `sync`, the commit
    /// and all earlier ones are durable when the call returns.
    ///
    /// # Errors
    /// After any error it is unknown whether the commit was carried out.
    fn commit(&self, steps: Vec<Step>, commit: u64, sync: bool) -> Result<()>;

    /// Makes all commits durable; `commit` is the last one.
    ///
    /// # Errors
    /// After any error it is unknown which commits are durable.
    fn sync(&self, commit: u64) -> Result<()>;

    /// Whether a small commit without `sync` would wait neither for memory nor for the disk.
    fn is_ready(&self) -> bool {
        false
    }

    /// Waits until the next commit fits into memory.
    ///
    /// # Errors
    /// `Unavailable` if it does not within a minute.
    fn throttle(&self) -> Result<()>;

    /// How many bytes the next commits may write; `None` without a limit.
    ///
    /// # Errors
    /// `Unavailable` where the disk does not say.
    fn room(&self) -> Result<Option<u64>>;

    /// Rewrites the files without what was replaced and removed.
    ///
    /// # Errors
    /// Those of the disk; `Corrupt` for damaged files.
    fn compact(&self) -> Result<()>;

    /// Removes everything at once. With `secure`, the old files are overwritten before they are removed.
    fn erase(&self, secure: bool) -> Erased;

    /// How many bytes are occupied.
    ///
    /// # Errors
    /// Those of the disk.
    fn stored_bytes(&self) -> Result<u64>;
}
