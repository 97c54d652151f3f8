//! Sections: where each column is in the slices of a table, with checksums. A reader can then leave the other columns
//! unread and unverified.
//!
//! A slice is divided into *sections* that follow one another: one for each column of its group, in order, and the
//! footer behind the last one. A section has all chunks of its column (a nested column has several); the first one also
//! has the file's magic number. A reader of some columns reads their sections and the footer, and small gaps between
//! them.

use std::ops::Range;

use arrow::array::{Array, FixedSizeBinaryArray};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use bytes::Bytes;
use parquet::file::metadata::ParquetMetaData;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};

use crate::groups::Groups;
use crate::metadata::entry::SliceEntry;
use crate::pieces::Pieces;

/// Bytes per column: where its section ends, and the section's CRC-32C, both u32 in little endian.
const COLUMN: usize = 8;
/// Bytes per slice in addition: the footer's CRC-32C.
const FOOTER: usize = 4;

/// Bytes between two ranges that are read along rather than reading twice: from the page cache they take less than
/// another read, some 3 us.
const GAP: u64 = 16 << 10;

/// The end of each column's section in a slice with this footer; `None` where columns do not follow one another.
pub(crate) fn ends(footer: &ParquetMetaData, columns: usize) -> Option<Vec<u32>> {
    let [group] = footer.row_groups() else { return None };
    let schema = footer.file_metadata().schema_descr();
    let (mut ends, mut at) = (vec![0u32; columns], 0);
    for (leaf, chunk) in group.columns().iter().enumerate() {
        let (start, len) = chunk.byte_range();
        if start < at {
            return None;
        }
        at = start.checked_add(len)?;
        *ends.get_mut(schema.get_column_root_idx(leaf))? = u32::try_from(at).ok()?;
    }
    (ends.is_sorted() && ends.first() != Some(&0)).then_some(ends)
}

/// Collects the sections of a partition's slices while they are written.
#[derive(Debug)]
pub(crate) struct SectionsBuilder(Vec<Vec<u8>>);

impl SectionsBuilder {
    pub(crate) fn new(groups: Groups) -> Self {
        Self(vec![Vec::new(); groups.len()])
    }

    /// The next stripe: its slices, and where the sections of all columns end in theirs.
    ///
    /// # Errors
    /// `Invalid` where those are not the ends of these slices' columns.
    pub(crate) fn add<'a>(&mut self, groups: Groups, slices: impl Iterator<Item = &'a Bytes>, ends: &[u32]) -> Result<()> {
        for (group, (grown, bytes)) in self.0.iter_mut().zip(slices).enumerate() {
            let ends = ends.get(groups.columns(group)).ok_or_else(|| Error::invalid("a stripe does not tell where all of its columns end"))?;
            let mut start = 0;
            for &end in ends {
                let section = bytes.get(start..end as usize).ok_or_else(|| Error::invalid("a stripe's columns end where its slices do not"))?;
                grown.extend(end.to_le_bytes());
                grown.extend(crc32c(section).to_le_bytes());
                start = end as usize;
            }
            grown.extend(crc32c(bytes.get(start..).unwrap_or_default()).to_le_bytes());
        }
        Ok(())
    }

    pub(crate) fn finish(self, groups: Groups) -> Result<Sections> {
        let array = |(group, grown)| {
            FixedSizeBinaryArray::try_new(width(groups, group), Buffer::from_vec(grown), None)
                .map_err(|e| Error::internal("cannot list sections").with_source(e))
        };
        Ok(Sections { groups, lists: self.0.into_iter().enumerate().map(array).collect::<Result<_>>()? })
    }
}

/// Bytes of the list of a slice's sections.
fn width(groups: Groups, group: usize) -> i32 {
    i32::try_from(groups.columns(group).len().saturating_mul(COLUMN).saturating_add(FOOTER)).unwrap_or(i32::MAX)
}

/// The type of the lists of a group's slices in a metadata slice.
pub(crate) fn data_type(groups: Groups, group: usize) -> DataType {
    DataType::FixedSizeBinary(width(groups, group))
}

/// The sections of all slices of a partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Sections {
    groups: Groups,
    /// One per group of columns, with an entry per stripe.
    lists: Vec<FixedSizeBinaryArray>,
}

impl Sections {
    /// Takes over lists of [`data_type`], one per group, each with an entry per stripe.
    ///
    /// # Errors
    /// `Corrupt` where they are not those of `slices`.
    pub(crate) fn read(groups: Groups, lists: Vec<FixedSizeBinaryArray>, slices: &[SliceEntry]) -> Result<Self> {
        let sections = Self { groups, lists };
        for (n, slice) in slices.iter().enumerate() {
            let list = sections.list(n).ok_or_else(|| Error::corrupt("a metadata slice does not list the sections of all slices"))?;
            let mut start = 0;
            for place in 0..list.len() / COLUMN {
                let end = number(list, place * COLUMN);
                if end < start || u64::from(end) > slice.len {
                    return Err(Error::corrupt(format!("a metadata slice lists sections of slice {n} that are not within its {} bytes", slice.len)));
                }
                start = end;
            }
        }
        Ok(sections)
    }

    pub(crate) fn lists(&self) -> &[FixedSizeBinaryArray] {
        &self.lists
    }

    /// The list of slice `n`.
    fn list(&self, n: usize) -> Option<&[u8]> {
        let (stripe, group) = (n / self.groups.len(), n % self.groups.len());
        let list = self.lists.get(group)?;
        (stripe < list.len()).then(|| list.value(stripe))
    }

    /// Where the sections of slice `n`, which has `len` bytes, end; the last is the footer.
    pub(crate) fn ends(&self, n: usize, len: u64) -> Option<Vec<u64>> {
        let list = self.list(n)?;
        Some((0..list.len() / COLUMN).map(|place| u64::from(number(list, place * COLUMN))).chain([len]).collect())
    }

    /// What to read for the columns at `places` of slice `n`, which has `len` bytes; `None` where there is
    /// no such slice or column.
    pub(crate) fn pick(&self, n: usize, len: u64, places: &[usize]) -> Option<Picked> {
        let list = self.list(n)?;
        let columns = list.len() / COLUMN;
        let end = |place: usize| u64::from(number(list, place * COLUMN));
        let start = |place: usize| if place == 0 { 0 } else { end(place - 1) };
        let mut places = places.to_vec();
        places.sort_unstable();
        places.dedup();
        if places.last().is_some_and(|&last| last >= columns) {
            return None;
        }
        let column = |place: usize| Section { range: start(place)..end(place), crc32c: number(list, place * COLUMN + 4) };
        let footer = Section { range: start(columns)..len, crc32c: number(list, columns * COLUMN) };
        let sections: Vec<Section> = places.into_iter().map(column).chain([footer]).collect();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for Section { range, .. } in &sections {
            match ranges.last_mut() {
                Some(last) if range.start - last.end <= GAP => last.end = range.end,
                _ => ranges.push(range.clone()),
            }
        }
        Some(Picked { len, sections, ranges })
    }
}

/// The number at `at` of a list, which must be there.
fn number(list: &[u8], at: usize) -> u32 {
    list.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    range: Range<u64>,
    crc32c: u32,
}

/// What to read of a slice for some of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picked {
    len: u64,
    /// Those of the columns, in order, and the footer's.
    sections: Vec<Section>,
    /// All of them and small gaps between them.
    ranges: Vec<Range<u64>>,
}

impl Picked {
    /// The bytes of the slice to read: ranges in ascending order that do not touch.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// How many bytes that are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Verifies what was read at the [ranges](Self::ranges) against the metadata slice's checksums, and returns the
    /// wanted pieces of the slice. Bytes of gaps are dropped.
    ///
    /// # Errors
    /// `Corrupt` where a checksum differs; `Internal` where other ranges were read.
    pub fn verify(&self, read: &[Bytes]) -> Result<Pieces> {
        let due = self.ranges.iter().map(|range| range.end - range.start);
        if !due.eq(read.iter().map(|bytes| bytes.len() as u64)) {
            return Err(Error::internal("other ranges of a slice were read than were picked"));
        }
        let mut read = self.ranges.iter().zip(read).peekable();
        let mut pieces = Vec::with_capacity(self.sections.len());
        for Section { range, crc32c: due } in &self.sections {
            while read.next_if(|(whole, _)| whole.end < range.end).is_some() {}
            let Some((whole, bytes)) = read.peek() else { return Err(Error::internal("a section of a slice is not among what was picked")) };
            let bytes = bytes.slice((range.start - whole.start) as usize..(range.end - whole.start) as usize);
            if crc32c(&bytes) != *due {
                return Err(Error::corrupt(format!(
                    "bytes {} to {} do not match their checksum: drop its data set and ingest it again",
                    range.start, range.end
                )));
            }
            pieces.push((range.start, bytes));
        }
        Ok(Pieces::new(self.len, pieces))
    }
}

#[cfg(test)]
mod tests;
