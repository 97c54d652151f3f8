//! What of a volume is in the journal and not in extents yet, and which extents there are. Pure: it reads and writes
//! no file.
//!
//! Invariants:
//! - A segment's `live` counts the blocks and whole extents whose newest record it holds. It can be removed when this
//!   and that of all older ones is 0: what remains of the journal is a suffix, so its replay gives the newest content.
//! - An extent without an entry here has its newest content in the store, or is unmapped and reads as zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::device::PHYSICAL;
use crate::files::FileIo;
use crate::record::{Record, RecordKind};

const BLOCK: u64 = PHYSICAL as u64;

/// Where the newest content of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the record.
    pub(crate) seq: u64,
    /// The segment of the record.
    pub(crate) segment: u64,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// In the segment at this byte, with this CRC-32C.
    Data { at: u32, crc32c: u32 },
    /// Zeros; whether the place is to be mapped.
    Zeros { mapped: bool },
}

impl Content {
    fn maps(self) -> bool {
        !matches!(self, Content::Zeros { mapped: false })
    }
}

/// What is newer than the extent in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// No segment before this one holds anything of it.
    first: u64,
    /// The last zeros over the whole extent: what the store has is not read any more.
    pub(crate) whole: Option<Place>,
    /// The blocks that were written since, by their number within the extent.
    pub(crate) blocks: Vec<(u32, Place)>,
}

impl Dirty {
    fn range(&self, blocks: &Range<u32>) -> Range<usize> {
        let from = self.blocks.partition_point(|(block, _)| *block < blocks.start);
        let to = from + self.blocks[from..].partition_point(|(block, _)| *block < blocks.end);
        from..to
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.whole.iter().chain(self.blocks.iter().map(|(_, place)| place))
    }

    /// Whether the extent is mapped once this is merged, given whether it is in the store now.
    fn maps(&self, stored: bool) -> bool {
        (self.whole.is_none() && stored) || self.is_mapping()
    }

    /// Whether something of this asks for the extent to be mapped.
    pub(crate) fn is_mapping(&self) -> bool {
        self.places().any(|place| place.content.maps())
    }
}

/// A file of the journal.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) file: Arc<dyn FileIo>,
    /// Bytes that are used.
    pub(crate) len: u64,
    live: u64,
    /// The last record that overwrote something of it.
    overwritten: u64,
}

/// Blocks of one extent whose content is in the same place.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Numbers within the extent.
    pub(crate) blocks: Range<u32>,
    pub(crate) source: Source,
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// In the extent as stored.
    Stored,
    Zeros,
    /// In this file from this byte on, and the CRC-32C of each block.
    Journal {
        file: Arc<dyn FileIo>,
        at: u64,
        crcs: Vec<u32>,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    /// Blocks of an extent.
    per_extent: u64,
    dirty: BTreeMap<u64, Dirty>,
    /// The same, by the segment from which on they have something.
    by_age: BTreeSet<(u64, u64)>,
    segments: BTreeMap<u64, Segment>,
    stored: Bits,
    /// How often an extent came into the store or left it.
    moves: u64,
}

impl Index {
    pub(crate) fn new(extent: u64) -> Self {
        Self { per_extent: extent / BLOCK, dirty: BTreeMap::new(), by_age: BTreeSet::new(), segments: BTreeMap::new(), stored: Bits::default(), moves: 0 }
    }

    /// Forgets the journal, but not which extents are in the store.
    pub(crate) fn without_journal(self) -> Self {
        Self { dirty: BTreeMap::new(), by_age: BTreeSet::new(), segments: BTreeMap::new(), ..self }
    }

    /// Notes that an extent is in the store.
    pub(crate) fn set_stored(&mut self, extent: u64) {
        self.stored.set(extent, true);
    }

    /// A number that grows whenever an extent comes into the store or leaves it.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    pub(crate) fn is_stored(&self, extent: u64) -> bool {
        self.stored.get(extent)
    }

    /// The first extent of `range` in the store.
    pub(crate) fn next_stored(&self, range: Range<u64>) -> Option<u64> {
        self.stored.next(range)
    }

    pub(crate) fn add_segment(&mut self, number: u64, file: Arc<dyn FileIo>, len: u64) {
        self.segments.insert(number, Segment { file, len, live: 0, overwritten: 0 });
    }

    pub(crate) fn set_len(&mut self, number: u64, len: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.len = len;
        }
    }

    /// Bytes of all segments.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.len).sum()
    }

    /// How many blocks and whole extents the journal holds that are not in extents.
    pub(crate) fn live(&self) -> u64 {
        self.segments.values().map(|segment| segment.live).sum()
    }

    /// How many extents have something in the journal.
    pub(crate) fn dirty_extents(&self) -> usize {
        self.dirty.len()
    }

    /// How many of `range` have something in the journal.
    pub(crate) fn dirty_in(&self, range: Range<u64>) -> usize {
        self.dirty.range(range).count()
    }

    /// Extents that are unmapped as a whole once they are merged, of any age, at most `most`.
    pub(crate) fn unmapping(&self, most: usize) -> Vec<u64> {
        let is_unmapping = |dirty: &Dirty| !dirty.is_mapping() && (dirty.whole.is_some() || dirty.blocks.len() as u64 == self.per_extent);
        self.dirty.iter().filter(|(_, dirty)| is_unmapping(dirty)).take(most).map(|(extent, _)| *extent).collect()
    }

    fn count(&mut self, place: &Place, by: i64) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live = segment.live.saturating_add_signed(by);
        }
    }

    /// Record `seq` has overwritten `places`.
    fn overwritten(&mut self, places: &[Place], seq: u64) {
        for place in places {
            if let Some(segment) = self.segments.get_mut(&place.segment) {
                segment.live = segment.live.saturating_sub(1);
                segment.overwritten = segment.overwritten.max(seq);
            }
        }
    }

    /// Takes over a record whose data begins at `data` in `segment`.
    pub(crate) fn apply(&mut self, record: &Record, segment: u64, data: u64) {
        let place = |content| Place { seq: record.seq, segment, content };
        let zeros = match record.kind {
            RecordKind::Data => None,
            RecordKind::Zeros => Some(place(Content::Zeros { mapped: true })),
            RecordKind::Unmap => Some(place(Content::Zeros { mapped: false })),
        };
        let all = record.at / BLOCK..(record.at + record.len) / BLOCK;
        let mut block = all.start;
        while block < all.end {
            let extent = block / self.per_extent;
            let first = extent * self.per_extent;
            let until = (first + self.per_extent).min(all.end);
            let within = (block - first) as u32..(until - first) as u32;
            match zeros {
                None => {
                    let (from, to) = ((block - all.start) as usize, (until - all.start) as usize);
                    let at = |i: usize| (data + (from + i) as u64 * BLOCK) as u32;
                    let news = record.blocks[from..to].iter().enumerate();
                    let news = news.map(|(i, crc32c)| (within.start + i as u32, place(Content::Data { at: at(i), crc32c: *crc32c }))).collect();
                    self.write(extent, within, news, (segment, record.seq));
                }
                Some(place) if (until - block) < self.per_extent => {
                    if place.content.maps() || self.is_stored(extent) || self.dirty.contains_key(&extent) {
                        let news = within.clone().map(|block| (block, place)).collect();
                        self.write(extent, within, news, (segment, record.seq));
                    }
                }
                Some(place) => {
                    if !place.content.maps() && !self.is_stored(extent) && !self.dirty.contains_key(&extent) {
                        // Unmapped already: on to the next that is not.
                        let next = self.next_touched(extent + 1, all.end.div_ceil(self.per_extent));
                        block = next.map_or(all.end, |next| next * self.per_extent).max(until);
                        continue;
                    }
                    self.zero_whole(extent, place);
                }
            }
            block = until;
        }
    }

    /// The first extent from `from` on that is in the store or in the journal, below `to`.
    pub(crate) fn next_touched(&self, from: u64, to: u64) -> Option<u64> {
        let dirty = self.dirty.range(from..to.max(from)).next().map(|(extent, _)| *extent);
        let stored = self.next_stored(from..to);
        dirty.into_iter().chain(stored).min()
    }

    fn dirty_mut(&mut self, extent: u64, segment: u64) -> &mut Dirty {
        let by_age = &mut self.by_age;
        self.dirty.entry(extent).or_insert_with(|| {
            by_age.insert((segment, extent));
            Dirty { first: segment, ..Dirty::default() }
        })
    }

    fn write(&mut self, extent: u64, blocks: Range<u32>, news: Vec<(u32, Place)>, (segment, seq): (u64, u64)) {
        let per_extent = self.per_extent as usize;
        let count = news.len() as i64;
        let dirty = self.dirty_mut(extent, segment);
        let range = dirty.range(&blocks);
        let mut old: Vec<Place> = dirty.blocks.splice(range, news).map(|(_, place)| place).collect();
        if dirty.blocks.len() == per_extent {
            old.extend(dirty.whole.take());
        }
        self.overwritten(&old, seq);
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live = segment.live.saturating_add_signed(count);
        }
    }

    fn zero_whole(&mut self, extent: u64, place: Place) {
        let dirty = self.dirty_mut(extent, place.segment);
        let mut old: Vec<Place> = std::mem::take(&mut dirty.blocks).into_iter().map(|(_, place)| place).collect();
        old.extend(dirty.whole.replace(place));
        self.overwritten(&old, place.seq);
        self.count(&place, 1);
    }

    /// Where the content of `blocks` of an extent is, in order.
    pub(crate) fn resolve(&self, extent: u64, blocks: Range<u32>) -> Vec<Piece> {
        let stored = if self.is_stored(extent) { Source::Stored } else { Source::Zeros };
        let Some(dirty) = self.dirty.get(&extent) else { return vec![Piece { blocks, source: stored }] };
        let below = if dirty.whole.is_some() { Source::Zeros } else { stored };
        let (mut pieces, mut at) = (Vec::new(), blocks.start);
        for (block, place) in &dirty.blocks[dirty.range(&blocks)] {
            if at < *block {
                pieces.push(Piece { blocks: at..*block, source: below.clone() });
            }
            self.push(&mut pieces, *block, place);
            at = block + 1;
        }
        if at < blocks.end {
            pieces.push(Piece { blocks: at..blocks.end, source: below });
        }
        pieces
    }

    fn push(&self, pieces: &mut Vec<Piece>, block: u32, place: &Place) {
        if let Some(last) = pieces.last_mut()
            && last.blocks.end == block
        {
            match (&mut last.source, place.content) {
                (Source::Zeros, Content::Zeros { .. }) => {
                    last.blocks.end += 1;
                    return;
                }
                (Source::Journal { file, at, crcs }, Content::Data { at: next, crc32c })
                    if *at + crcs.len() as u64 * BLOCK == u64::from(next) && self.segments.get(&place.segment).is_some_and(|s| Arc::ptr_eq(&s.file, file)) =>
                {
                    crcs.push(crc32c);
                    last.blocks.end += 1;
                    return;
                }
                _ => {}
            }
        }
        let source = match (place.content, self.segments.get(&place.segment)) {
            (Content::Data { at, crc32c }, Some(segment)) => Source::Journal { file: Arc::clone(&segment.file), at: at.into(), crcs: vec![crc32c] },
            // A segment with live blocks is there.
            _ => Source::Zeros,
        };
        pieces.push(Piece { blocks: block..block + 1, source });
    }

    /// The extents with the oldest content in the journal, at most `most`, but only such as have something in the
    /// segments up to `until`.
    pub(crate) fn oldest(&self, most: usize, until: u64) -> Vec<u64> {
        self.by_age.iter().take_while(|(segment, _)| *segment <= until).take(most).map(|(_, extent)| *extent).collect()
    }

    /// The extents that the journal has something of.
    pub(crate) fn all_dirty(&self) -> Vec<u64> {
        self.dirty.keys().copied().collect()
    }

    /// Whether the oldest segment has something of an extent.
    pub(crate) fn is_oldest(&self, extent: u64) -> bool {
        let oldest = self.segments.first_key_value().map(|(number, _)| *number);
        self.dirty.get(&extent).is_some_and(|dirty| dirty.places().any(|place| Some(place.segment) == oldest))
    }

    /// What of an extent is to be merged: a copy, and the pieces of the whole extent.
    pub(crate) fn to_merge(&self, extent: u64) -> Option<(Dirty, Vec<Piece>)> {
        let dirty = self.dirty.get(&extent)?.clone();
        Some((dirty, self.resolve(extent, 0..self.per_extent as u32)))
    }

    /// `merged`, a copy that [`Self::to_merge`] gave, is in the store now; the extent is there if `stored`.
    pub(crate) fn merged(&mut self, extent: u64, merged: &Dirty, stored: bool) {
        self.moves += u64::from(self.stored.get(extent) != stored);
        self.stored.set(extent, stored);
        let Some(dirty) = self.dirty.get_mut(&extent) else { return };
        let mut gone: Vec<Place> = Vec::new();
        if dirty.whole == merged.whole {
            gone.extend(dirty.whole.take());
        }
        let mut old = merged.blocks.iter().peekable();
        dirty.blocks.retain(|entry| {
            while old.next_if(|(block, _)| *block < entry.0).is_some() {}
            let same = old.peek().is_some_and(|old| **old == *entry);
            if same {
                gone.push(entry.1);
            }
            !same
        });
        let (before, remains) = (dirty.first, dirty.places().map(|place| place.segment).min());
        self.by_age.remove(&(before, extent));
        match remains {
            Some(first) => {
                dirty.first = first;
                self.by_age.insert((first, extent));
            }
            None => {
                self.dirty.remove(&extent);
            }
        }
        for place in &gone {
            self.count(place, -1);
        }
    }

    /// Whether the oldest segment holds nothing any more, and is not after `last`.
    pub(crate) fn is_oldest_dead(&self, last: u64) -> bool {
        self.segments.first_key_value().is_some_and(|(number, segment)| *number <= last && segment.live == 0)
    }

    /// Takes away the oldest segments that hold nothing any more, up to `last`; oldest first. A segment stays where
    /// `may_go` refuses, which gets its number and the last record that overwrote something of it.
    pub(crate) fn take_dead(&mut self, last: u64, may_go: impl Fn(u64, u64) -> bool) -> Vec<(u64, Arc<dyn FileIo>)> {
        let mut dead = Vec::new();
        let is_dead = |number: u64, segment: &Segment| number <= last && segment.live == 0 && may_go(number, segment.overwritten);
        while let Some(first) = self.segments.first_entry().filter(|first| is_dead(*first.key(), first.get())) {
            let (number, segment) = first.remove_entry();
            dead.push((number, segment.file));
        }
        dead
    }

    /// The extents of `range` that are mapped or not, as runs, at most `most`.
    pub(crate) fn runs(&self, range: Range<u64>, most: usize) -> Vec<(Range<u64>, bool)> {
        let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
        let mut extent = range.start;
        while extent < range.end {
            // A gap is passed over at once.
            let (until, mapped) = match self.next_touched(extent, range.end) {
                Some(next) if next == extent => (extent + 1, self.maps(extent)),
                next => (next.unwrap_or(range.end), false),
            };
            let count = runs.len();
            match runs.last_mut() {
                Some((run, is)) if *is == mapped => run.end = until,
                _ if count == most => break,
                _ => runs.push((extent..until, mapped)),
            }
            extent = until;
        }
        runs
    }

    fn maps(&self, extent: u64) -> bool {
        let stored = self.is_stored(extent);
        self.dirty.get(&extent).map_or(stored, |dirty| dirty.maps(stored))
    }
}

/// A set of numbers.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn get(&self, n: u64) -> bool {
        self.0.get((n / 64) as usize).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    pub(crate) fn set(&mut self, n: u64, to: bool) {
        let at = (n / 64) as usize;
        if at >= self.0.len() {
            if !to {
                return;
            }
            self.0.resize(at + 1, 0);
        }
        let bit = 1 << (n % 64);
        if to { self.0[at] |= bit } else { self.0[at] &= !bit }
    }

    pub(crate) fn next(&self, range: Range<u64>) -> Option<u64> {
        let mut n = range.start;
        while n < range.end {
            let word = *self.0.get((n / 64) as usize)? >> (n % 64);
            if word != 0 {
                n += u64::from(word.trailing_zeros());
                return (n < range.end).then_some(n);
            }
            n = (n / 64 + 1) * 64;
        }
        None
    }
}
