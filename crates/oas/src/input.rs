//! What operations read: files, or parts of them.

use std::path::Path;
use std::sync::Arc;

use skytether_common::{Error, Result};
use skytether_offload::codes::object_flag;
use skytether_offload::{Extent, Object, ObjectReader};
use skytether_volume::device::LOGICAL;

use crate::files::{Content, Files, FilesDevice};
use crate::places::{Access, OpenFile, Places, slice};

const BLOCK: u64 = LOGICAL as u64;

/// Bytes of a read.
const READ: u32 = 1 << 20;

/// A part of a file, and what it is of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The first byte that counts.
    pub from: u64,
    /// The byte after the last one; `None` for the file's end.
    pub to: Option<u64>,
    /// For a search that goes on: the first byte at which a match may begin, or 0.
    pub resume: u64,
    /// For a chunk: what must be added to places in the file to get those in the whole, modulo 2^64.
    pub shift: u64,
    /// For a chunk: whether others come before it.
    pub preceded: bool,
    /// For a chunk: whether others come after it.
    pub followed: bool,
}

/// A file, or a part of one.
#[derive(Debug, Clone)]
pub struct Input {
    /// The file.
    pub file: Arc<OpenFile>,
    /// The part.
    pub part: Part,
}

impl Input {
    /// All of a file.
    #[must_use]
    pub fn of(file: Arc<OpenFile>) -> Self {
        Self { file, part: Part::default() }
    }

    /// Opens a file, for reading.
    ///
    /// # Errors
    /// Those of [`OpenFile::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of(Arc::new(OpenFile::open(path, Access::Read)?)))
    }

    fn named(&self, error: Error) -> Error {
        error.named(&self.file.path().display().to_string())
    }

    /// The object on the target's device.
    pub(crate) fn there(&self, places: &Places) -> Result<Object> {
        self.part.of(&places.object).map_err(|error| self.named(error))
    }

    /// Reads the input where it is: for engines of the caller's.
    ///
    /// # Errors
    /// `Invalid` where the file is shorter than the part, and what the system says.
    pub fn reader(&self) -> Result<ObjectReader> {
        let (mut files, size) = (Files::new(), self.file.size()?);
        let base = files.add(Content::File(self.file.clone()), size)?;
        Ok(ObjectReader::new(Arc::new(FilesDevice::new(files)), self.here(base, size)?, READ))
    }

    /// The same object on a device where the file begins at `base`.
    pub(crate) fn here(&self, base: u64, size: u64) -> Result<Object> {
        let extents = if size == 0 { Vec::new() } else { vec![Extent::new(base, size.next_multiple_of(BLOCK))] };
        self.part.of(&Object::new(size, extents)).map_err(|error| self.named(error))
    }
}

impl Part {
    /// The bytes from `from` to `to` of a file, as a chunk of a whole that has them from `position` on.
    ///
    /// # Errors
    /// `Invalid` where the block in which they begin would be before the whole.
    pub fn chunk(from: u64, to: u64, position: u64, preceded: bool, followed: bool) -> Result<Self> {
        if from > to || position < from % BLOCK {
            return Err(Error::invalid(format!("bytes {from} to {to} of a file can't be a chunk at {position}")));
        }
        Ok(Self { from, to: Some(to), resume: 0, shift: position.wrapping_sub(from), preceded, followed })
    }

    /// The object's byte 0 in the file.
    pub(crate) fn first(&self) -> u64 {
        self.from - self.from % BLOCK
    }

    /// This part of the file that `object` is.
    ///
    /// # Errors
    /// `Invalid` where the file is shorter.
    pub fn of(&self, object: &Object) -> Result<Object> {
        let (to, size) = (self.to.unwrap_or(object.length), object.length);
        if self.from > to || to > size {
            return Err(Error::invalid(format!("bytes {} to {to} are not in a file of {size}; it is shorter than expected", self.from)));
        }
        let flags = if self.preceded { object_flag::PRECEDED } else { 0 } | if self.followed { object_flag::FOLLOWED } else { 0 };
        let first = self.first();
        let part = slice(object, self.from, to)?;
        Ok(Object { resume: self.resume.saturating_sub(first), position: first.wrapping_add(self.shift), flags, ..part })
    }
}
