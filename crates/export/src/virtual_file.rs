//! [`VirtualFile`]: the parts of a table's file, and a cache of the bytes that were read last.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use parquet::file::reader::ChunkReader;
use skytether_common::{DatasetName, Error, Generation, Key, PartitionName, Result};
use skytether_slice::{Metadata, Pieces, SliceEntry};
use uuid::Uuid;

/// Bytes of slices in the cache of an open file.
const CACHE: usize = 64 << 20;

/// A partition of the table.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: PartitionName,
    /// The drives that have it, in the order of requests.
    pub(crate) drives: Vec<Uuid>,
    pub(crate) metadata: Metadata,
}

/// A slice of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) part: usize,
    pub(crate) stripe: usize,
    pub(crate) n: usize,
}

impl Slice {
    pub(crate) fn key(&self, parts: &[Part]) -> Result<Key> {
        parts[self.part].name.slice_key(u32::try_from(self.n).unwrap_or(u32::MAX))
    }

    pub(crate) fn entry<'a>(&self, parts: &'a [Part]) -> Option<&'a SliceEntry> {
        parts[self.part].metadata.slices.get(self.n)
    }
}

/// The footer of a slice that was read without a checksum. A later read of the whole slice, which has a checksum,
/// compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) start: u64,
    pub(crate) crc32c: u32,
}

/// A table as one Parquet file, made of its stored slices. It holds no drive; [`crate::parquet_view::ParquetView`]
/// reads it.
#[derive(Debug)]
pub struct VirtualFile {
    pub(crate) name: DatasetName,
    pub(crate) generation: Generation,
    pub(crate) parts: Vec<Part>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) tails: Vec<Option<Tail>>,
    /// Where each slice ends.
    ends: Vec<u64>,
    footer: Bytes,
    cache: Mutex<Cache>,
}

/// A cache of whole slices or sections. The oldest leave first, since files are read forwards. A cache of the most used
/// ones (quick_cache) would keep the first and lose the last.
#[derive(Debug, Default)]
struct Cache {
    kept: HashMap<(usize, usize), Bytes>,
    /// Oldest first.
    order: VecDeque<(usize, usize)>,
    bytes: usize,
}

/// The place of a whole slice.
const WHOLE: usize = usize::MAX;

impl Cache {
    fn put(&mut self, at: (usize, usize), bytes: Bytes) {
        let new = bytes.len();
        if self.kept.insert(at, bytes).is_none() {
            self.bytes += new;
            self.order.push_back(at);
        }
        while self.bytes > CACHE
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.kept.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
    }
}

impl VirtualFile {
    pub(crate) fn new(
        name: DatasetName,
        generation: Generation,
        parts: Vec<Part>,
        slices: Vec<Slice>,
        tails: Vec<Option<Tail>>,
        footer: Bytes,
    ) -> Result<Self> {
        let mut ends = Vec::with_capacity(slices.len());
        let mut end = 0u64;
        for slice in &slices {
            end += slice.entry(&parts).ok_or_else(|| Error::internal("a slice that is in no metadata"))?.len;
            ends.push(end);
        }
        Ok(Self { name, generation, parts, slices, tails, ends, footer, cache: Mutex::default() })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.footer_at() + self.footer.len() as u64
    }

    /// Always false: there is a footer at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.metadata.rows).sum()
    }

    /// The generation that wrote the table, or the last part of the matrix.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Where the file's footer begins.
    pub(crate) fn footer_at(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The bytes of the footer that are in `range`.
    pub(crate) fn of_footer(&self, range: &Range<u64>) -> &[u8] {
        let at = |place: u64| usize::try_from(place.saturating_sub(self.footer_at())).unwrap_or(usize::MAX).min(self.footer.len());
        &self.footer[at(range.start)..at(range.end)]
    }

    fn start(&self, at: usize) -> u64 {
        at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0)
    }

    /// The slices that `range` touches, each with the bytes of it that are wanted.
    pub(crate) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let first = self.ends.partition_point(|end| *end <= range.start);
        let mut all = Vec::new();
        for at in first..self.ends.len() {
            let start = self.start(at);
            if start >= range.end {
                break;
            }
            all.push((at, range.start.max(start) - start..range.end.min(self.ends[at]) - start));
        }
        all.into_iter().filter(|(_, part)| !part.is_empty())
    }

    fn locked(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock()
    }

    /// The sections of slice `at` that `range` touches, each with its bounds. `None` where its metadata does not have
    /// them.
    fn sections(&self, at: usize, range: &Range<u64>) -> Option<Vec<(usize, Range<u64>)>> {
        let slice = &self.slices[at];
        let ends = self.parts[slice.part].metadata.section_ends(slice.n)?;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let all = starts.zip(ends.iter().copied()).enumerate().map(|(place, (start, end))| (place, start..end));
        Some(all.filter(|(_, section)| section.start < range.end && range.start < section.end).collect())
    }

    /// Bytes `range` of slice `at`, if they are in the cache.
    pub(crate) fn cached(&self, at: usize, range: &Range<u64>) -> Option<Bytes> {
        let cache = self.locked();
        if let Some(whole) = cache.kept.get(&(at, WHOLE)) {
            return Some(whole.slice(range.start as usize..range.end as usize));
        }
        let mut all = BytesMut::new();
        let sections = self.sections(at, range)?;
        let one = sections.len() == 1;
        for (place, section) in sections {
            let bytes = cache.kept.get(&(at, place))?;
            let (from, to) = (range.start.max(section.start) - section.start, range.end.min(section.end) - section.start);
            if one {
                return Some(bytes.slice(from as usize..to as usize));
            }
            all.extend_from_slice(&bytes[from as usize..to as usize]);
        }
        Some(all.freeze())
    }

    /// The columns of slice `at` whose sections `range` needs; the footer comes with them. `None` where the slice must
    /// be read whole.
    pub(crate) fn missing(&self, at: usize, range: &Range<u64>) -> Option<Vec<usize>> {
        let slice = &self.slices[at];
        let columns = self.parts[slice.part].metadata.groups.columns(slice.n % self.parts[slice.part].metadata.groups.len()).len();
        let sections = self.sections(at, range)?;
        let cache = self.locked();
        Some(sections.into_iter().map(|(place, _)| place).filter(|place| *place < columns && !cache.kept.contains_key(&(at, *place))).collect())
    }

    /// Keeps the sections of the columns at `places` of slice `at`, and its footer.
    pub(crate) fn keep_sections(&self, at: usize, places: &[usize], pieces: &Pieces) -> Result<()> {
        let slice = &self.slices[at];
        let Some(ends) = self.parts[slice.part].metadata.section_ends(slice.n) else { return Ok(()) };
        let footer = ends.len() - 1;
        for place in places.iter().copied().chain([footer]) {
            let start = place.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
            let length = ends.get(place).and_then(|end| end.checked_sub(start)).and_then(|length| usize::try_from(length).ok());
            let length = length.ok_or_else(|| Error::internal("a section that ends before it begins"))?;
            let bytes = if length == 0 {
                Bytes::new()
            } else {
                pieces.get_bytes(start, length).map_err(|e| Error::internal("a section was not read").with_source(e))?
            };
            self.locked().put((at, place), bytes);
        }
        Ok(())
    }

    /// Keeps slice `at`.
    pub(crate) fn keep(&self, at: usize, bytes: Bytes) {
        self.locked().put((at, WHOLE), bytes);
    }
}
