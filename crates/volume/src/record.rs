//! Bytes of the journal: segment heads and records, and the parser that reads a segment after a crash.
//!
//! All numbers are little-endian. A segment is a head and records, one after the other, without gaps.
//!
//! | bytes of the head | content |
//! |---|---|
//! | 0..8 | `SKYTVOLJ` |
//! | 8..12 | format, 1 (u32) |
//! | 12..16 | 0 |
//! | 16..32 | id of the volume |
//! | 32..40 | secret of the journal (u64) |
//! | 40..48 | number of the segment (u64) |
//! | 48..56 | sequence number of its first record (u64); 0 until it is taken into use: then it has no records |
//! | 56..60 | 0 |
//! | 60..64 | CRC-32C of bytes 0..60 (u32) |
//!
//! | bytes of a record | content |
//! |---|---|
//! | 0..4 | `SKYR` |
//! | 4..8 | CRC-32C of the secret, the number of the segment, bytes 8..56 and the table (u32) |
//! | 8..16 | sequence number (u64), one more than that of the record before |
//! | 16..24 | place in bytes (u64), a multiple of 4,096 |
//! | 24..32 | length in bytes (u64), a multiple of 4,096, not 0 |
//! | 32 | kind (u8): 1 data, 2 zeros that stay mapped, 3 zeros that are unmapped |
//! | 33..40 | 0 |
//! | 40..56 | the last record that was durable when this one was written: its segment and its number (u64 each) |
//! | 56.. | data only: the table, a CRC-32C (u32) for each block of 4,096 bytes; zeros up to a multiple of 8 |
//! | .. | data only: the data |
//!
//! The secret is drawn when the journal is made. Clients do not know it, so what they write never looks like a record.

use skytether_common::checksum::{crc32c, crc32c_append};
use skytether_common::{Error, Result};
use uuid::Uuid;

use crate::device::PHYSICAL;

/// Bytes of the head of a segment.
pub const HEAD: usize = 64;

/// Bytes of a record before its table.
pub const FIXED: usize = 56;

/// The most data of one record, in bytes.
pub const MAX_DATA: usize = 1 << 20;

/// No journal comes to a number of a segment or record beyond this. So the next number always exists.
pub const MAX_NUMBER: u64 = 1 << 62;

const BLOCK: usize = PHYSICAL as usize;
const SEGMENT_MAGIC: &[u8; 8] = b"SKYTVOLJ";
const RECORD_MAGIC: &[u8; 4] = b"SKYR";
const FORMAT: u32 = 1;

/// What a record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// It writes data.
    Data,
    /// It writes zeros; the place stays mapped.
    Zeros,
    /// It writes zeros and unmaps extents that it covers.
    Unmap,
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The volume.
    pub volume: Uuid,
    /// The secret of the journal.
    pub secret: u64,
    /// The number of the segment, from 1.
    pub number: u64,
    /// The sequence number that its first record has or will have; 0 before the segment is taken into use.
    pub first: u64,
}

impl Head {
    /// As it is written.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(self.volume.as_bytes());
        bytes[32..40].copy_from_slice(&self.secret.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.first.to_le_bytes());
        let check = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// `Unsupported` for newer formats, `Corrupt` for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Err(Error::corrupt("its head is cut off")) };
        if &head[..8] != SEGMENT_MAGIC || u32_at(head, 60) != crc32c(&head[..60]) {
            return Err(Error::corrupt("its head is damaged"));
        }
        if u32_at(head, 8) != FORMAT {
            return Err(Error::unsupported(format!("it has format {}, and this version reads format {FORMAT}", u32_at(head, 8))));
        }
        let volume = Uuid::from_bytes(std::array::from_fn(|i| head[16 + i]));
        let (number, first) = (u64_at(head, 40), u64_at(head, 48));
        if number.max(first) > MAX_NUMBER {
            return Err(Error::corrupt("its head has a number that no journal comes to"));
        }
        Ok(Self { volume, secret: u64_at(head, 32), number, first })
    }
}

/// A record that is durable, and with it all before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark {
    /// The segment that it is in.
    pub segment: u64,
    /// Its sequence number; 0 for none.
    pub seq: u64,
}

/// The file `durable`: secret, segment and sequence number of the last durable record, number of the oldest segment
/// (u64 each), CRC-32C of these 32 bytes (u32).
///
/// It is written after a flush and not flushed itself, so after a loss of power it may name an earlier record. It is
/// flushed before a segment is removed: no segment from the oldest on may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marked {
    /// The last durable record.
    pub durable: Mark,
    /// The oldest segment that counts.
    pub oldest: u64,
}

impl Marked {
    /// Bytes of the file.
    pub const BYTES: usize = 36;

    /// The bytes of the file.
    #[must_use]
    pub fn encode(self, secret: u64) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (to, field) in bytes.chunks_exact_mut(8).zip([secret, self.durable.segment, self.durable.seq, self.oldest]) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        let check = crc32c(&bytes[..32]);
        bytes[32..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no mark of this journal.
    #[must_use]
    pub fn decode(bytes: &[u8], secret: u64) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let marked = Self { durable: Mark { segment: field(8), seq: field(16) }, oldest: field(24) };
        let is_possible = marked.durable.segment.max(marked.durable.seq).max(marked.oldest) <= MAX_NUMBER;
        (is_possible && marked.encode(secret) == *bytes).then_some(marked)
    }
}

/// A record without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its sequence number.
    pub seq: u64,
    /// Bytes from the begin of the volume.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// What it does.
    pub kind: RecordKind,
    /// The last record that was durable when it was written.
    pub durable: Mark,
    /// The checksum of each block of its data; empty for zeros.
    pub blocks: Vec<u32>,
}

impl Record {
    /// Bytes before the data.
    #[must_use]
    pub fn head_len(&self) -> usize {
        head_len(self.blocks.len())
    }

    /// What is written before the data.
    #[must_use]
    pub fn encode(&self, secret: u64, segment: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.head_len()];
        bytes[..4].copy_from_slice(RECORD_MAGIC);
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_le_bytes());
        bytes[32] = match self.kind {
            RecordKind::Data => 1,
            RecordKind::Zeros => 2,
            RecordKind::Unmap => 3,
        };
        bytes[40..48].copy_from_slice(&self.durable.segment.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.durable.seq.to_le_bytes());
        for (block, to) in self.blocks.iter().zip(bytes[FIXED..].chunks_exact_mut(4)) {
            to.copy_from_slice(&block.to_le_bytes());
        }
        let check = checksum(secret, segment, &bytes);
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The record at the begin of `bytes`, if there is a whole head of one.
    fn decode(bytes: &[u8], secret: u64, segment: u64) -> Option<Self> {
        let fixed = bytes.first_chunk::<FIXED>()?;
        if &fixed[..4] != RECORD_MAGIC {
            return None;
        }
        let kind = match fixed[32] {
            1 => RecordKind::Data,
            2 => RecordKind::Zeros,
            3 => RecordKind::Unmap,
            _ => return None,
        };
        let (at, len) = (u64_at(fixed, 16), u64_at(fixed, 24));
        let whole = |n: u64| n.is_multiple_of(BLOCK as u64);
        if len == 0 || !whole(at) || !whole(len) || at.checked_add(len).is_none() || (kind == RecordKind::Data && len > MAX_DATA as u64) {
            return None;
        }
        let count = if kind == RecordKind::Data { len as usize / BLOCK } else { 0 };
        let head = bytes.get(..head_len(count))?;
        if u32_at(head, 4) != checksum(secret, segment, head) {
            return None;
        }
        let blocks = (0..count).map(|i| u32_at(head, FIXED + 4 * i)).collect();
        let durable = Mark { segment: u64_at(fixed, 40), seq: u64_at(fixed, 48) };
        Some(Self { seq: u64_at(fixed, 8), at, len, kind, durable, blocks })
    }

    /// Whether `data` are the bytes that the table is about.
    fn matches(&self, data: &[u8]) -> bool {
        data.chunks(BLOCK).map(crc32c).eq(self.blocks.iter().copied())
    }
}

/// Bytes of a record before the data of `blocks` blocks.
#[must_use]
pub fn head_len(blocks: usize) -> usize {
    (FIXED + 4 * blocks).next_multiple_of(8)
}

fn checksum(secret: u64, segment: u64, head: &[u8]) -> u32 {
    let salt = crc32c_append(crc32c(&secret.to_le_bytes()), &segment.to_le_bytes());
    crc32c_append(salt, &head[8..])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// What a segment holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// Its head.
    pub head: Head,
    /// Its records up to the first that is not whole, each with the place of its data in the segment.
    pub records: Vec<(Record, u64)>,
    /// Where the last whole record ends.
    pub end: u64,
    /// The last `durable` of all whole records, also of those after one that is not.
    pub durable: Mark,
    /// How many whole records there are after one that is not. They can't be used.
    pub beyond: u64,
}

/// Reads a segment. Its records end at the first that is not whole: what a crash interrupted, or damage. Which of the
/// two, the caller knows by [`Parsed::durable`] and the journal's own mark.
///
/// # Errors
/// `Corrupt` and `Unsupported` for the head.
pub fn parse(bytes: &[u8]) -> Result<Parsed> {
    let head = Head::decode(bytes)?;
    let mut parsed = Parsed { head, records: Vec::new(), end: HEAD as u64, durable: Mark::default(), beyond: 0 };
    let mut at = HEAD;
    let Some(mut last) = head.first.checked_sub(1) else { return Ok(parsed) };
    while let Some((record, data)) = whole_record(bytes, at, &head, last) {
        last = record.seq;
        at = data + if record.kind == RecordKind::Data { record.len as usize } else { 0 };
        parsed.durable = parsed.durable.max(record.durable);
        parsed.records.push((record, data as u64));
        parsed.end = at as u64;
    }
    // Heads begin at multiples of 8.
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= FIXED) {
        let found = Record::decode(rest, head.secret, head.number);
        parsed.durable = parsed.durable.max(found.as_ref().map_or(Mark::default(), |record| record.durable));
        parsed.beyond += u64::from(found.is_some());
        at += found.map_or(8, |record| record.head_len());
    }
    Ok(parsed)
}

/// The record at `at` and the place of its data, if it is whole and follows the one of number `last`.
fn whole_record(bytes: &[u8], at: usize, head: &Head, last: u64) -> Option<(Record, usize)> {
    let rest = bytes.get(at..)?;
    let follows = |record: &Record| last.checked_add(1) == Some(record.seq);
    let record = Record::decode(rest, head.secret, head.number).filter(follows)?;
    let data = record.head_len();
    if record.kind == RecordKind::Data {
        let data = rest.get(data..data + record.len as usize)?;
        if !record.matches(data) {
            return None;
        }
    }
    Some((record, at + data))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADED: Head = Head { volume: Uuid::from_u128(9), secret: 77, number: 3, first: 10 };

    fn segment(lens: &[usize]) -> Vec<u8> {
        let mut bytes = HEADED.encode().to_vec();
        for (n, blocks) in lens.iter().enumerate() {
            let data: Vec<u8> = (0..blocks * BLOCK).map(|i| (i * 7 + n) as u8).collect();
            let kind = if *blocks == 0 { RecordKind::Unmap } else { RecordKind::Data };
            let record = Record {
                seq: 10 + n as u64,
                at: 4096 * n as u64,
                len: data.len().max(4096) as u64,
                kind,
                durable: Mark { segment: 3, seq: n as u64 },
                blocks: data.chunks(BLOCK).map(crc32c).collect(),
            };
            bytes.extend(record.encode(HEADED.secret, HEADED.number));
            bytes.extend(data);
        }
        bytes
    }

    #[test]
    fn records_are_whole_or_absent_at_every_cut() {
        let bytes = segment(&[1, 0, 2, 1]);
        let whole = parse(&bytes).unwrap();
        assert_eq!((whole.head, whole.records.len(), whole.end, whole.durable.seq, whole.beyond), (HEADED, 4, bytes.len() as u64, 3, 0));
        let ends: Vec<usize> = whole.records.iter().map(|(r, at)| *at as usize + if r.kind == RecordKind::Data { r.len as usize } else { 0 }).collect();
        for cut in (HEAD..bytes.len()).step_by(13).chain(ends.clone()) {
            let parsed = parse(&bytes[..cut]).unwrap();
            assert_eq!(parsed.records.len(), ends.iter().filter(|end| **end <= cut).count(), "cut at {cut}");
        }
        for cut in 0..HEAD {
            assert!(parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn a_damaged_record_ends_and_later_ones_are_counted() {
        let bytes = segment(&[1, 1, 1, 1]);
        let places: Vec<u64> = parse(&bytes).unwrap().records.iter().map(|(_, at)| *at).collect();
        let mut other = bytes.clone();
        other[places[1] as usize + 5] ^= 1;
        let parsed = parse(&other).unwrap();
        // The head of the damaged record is whole, and so are the two after it.
        assert_eq!((parsed.records.len(), parsed.beyond, parsed.durable.seq), (1, 3, 3));
        let mut other = bytes;
        other[places[1] as usize - 30] ^= 1;
        assert_eq!(parse(&other).unwrap().beyond, 2);
    }

    #[test]
    fn data_that_looks_like_a_record_is_none() {
        // A client writes a record as data, but does not know the secret.
        let inner = Record { seq: 11, at: 0, len: 4096, kind: RecordKind::Unmap, durable: Mark { segment: 3, seq: 99 }, blocks: Vec::new() }.encode(78, 3);
        let mut bytes = HEADED.encode().to_vec();
        bytes.extend(inner);
        let parsed = parse(&bytes).unwrap();
        assert_eq!((parsed.records.len(), parsed.durable.seq, parsed.beyond), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn any_flipped_byte_leaves_a_prefix_of_records(lens in prop::collection::vec(0usize..3, 1..5), at: prop::sample::Index, flip in 1u8..) {
            let bytes = segment(&lens);
            let whole = parse(&bytes).unwrap();
            let mut other = bytes.clone();
            let at = at.index(bytes.len());
            other[at] ^= flip;
            if let Ok(parsed) = parse(&other) {
                prop_assert!(at >= HEAD);
                prop_assert_eq!(&parsed.records[..], &whole.records[..parsed.records.len()]);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), keep in 0usize..200) {
            let mut other = segment(&[1]);
            other.truncate(keep);
            other.extend(bytes);
            drop(parse(&other));
        }
    }
}
