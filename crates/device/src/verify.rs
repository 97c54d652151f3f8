//! Verifies values on their drive: a host names values, and the drive reports those that are not what they should be.
//!
//! Request and answer are small: some 15 to 40 bytes for each value, since keys share prefixes, and one digest of 4 KiB
//! ([`skytether_erasure::digest`]) for each *sum* of many values. Values themselves do not travel.
//!
//! Numbers are LEB128 varints unless stated otherwise. The request has:
//! - u64 LE seed, u64 LE bytes per second (0: without a limit), the number of values;
//! - for each value: the length of the prefix that its key shares with the key before it, the length of the rest of its
//!   key, that rest, and flags;
//! - with flag 1 its length and u32 LE CRC-32C; with flag 2 the number of the sum and u16 LE turn.
//!
//! The answer has:
//! - bytes that were read, and the number of values with a finding;
//! - for each of these its place in the request and a word: 0 missing, 1 damaged, 2 another one, 3 as asked for;
//! - for 1 a text, for 2 and 3 the value's length and u32 LE CRC-32C;
//! - the number of sums, and for each its number and digest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Kind, Result};
use skytether_erasure::digest::{DIGEST_BYTES, Digest, Digesting};

/// The most values that one request may name.
pub const MAX_ITEMS: usize = 1 << 16;

/// The most sums that one request may ask for.
pub const MAX_SUMS: u32 = 1 << 12;

/// The longest key, as text.
const MAX_KEY: u64 = 4 << 10;

/// The longest text of an answer about one value.
const MAX_TEXT: usize = 300;

/// What a value should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Bytes.
    pub len: u64,
    /// Their CRC-32C.
    pub crc32c: u32,
}

/// The sum that the digest of a value is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summed {
    /// Into which sum; below [`MAX_SUMS`].
    pub sum: u32,
    /// The rotation of the digest's columns, which is the same for all shards of a group.
    pub turn: u16,
}

/// A value to be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The value's key.
    pub key: Key,
    /// Its expected length and checksum; where the host does not know them, the answer has the present ones.
    pub expected: Option<Expected>,
    /// The sum that its digest is added to, if it is as expected.
    pub summed: Option<Summed>,
}

/// Values to be verified, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verify {
    /// Of the digests.
    pub seed: u64,
    /// The most bytes per second to read; no limit if `None`.
    pub bytes_per_s: Option<u64>,
    /// The values.
    pub items: Vec<Item>,
}

/// A finding about a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// There is no such key.
    Missing,
    /// The drive can't read it, or its bytes differ from those written.
    Damaged(String),
    /// It is whole, and another one than it should be.
    Other(Expected),
    /// The value is whole, and this; the host had no expectation.
    Told(Expected),
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Bytes that were read.
    pub bytes: u64,
    /// By place in the request: values that are not as expected, and values without an expectation. All others are
    /// right.
    pub found: BTreeMap<u32, Found>,
    /// Sums of the digests of values that are as expected.
    pub sums: BTreeMap<u32, Digest>,
}

/// Verifies values as they are read.
#[derive(Debug)]
pub struct Verifying {
    digesting: Option<Digesting>,
    verified: Verified,
}

impl Verifying {
    /// For what `asked` names.
    #[must_use]
    pub fn new(asked: &Verify) -> Self {
        let digesting = asked.items.iter().any(|item| item.summed.is_some()).then(|| Digesting::new(asked.seed));
        Self { digesting, verified: Verified::default() }
    }

    /// Value `at` was read, or not; how many bytes it had.
    ///
    /// # Errors
    /// The reading's, where it says nothing about the value.
    pub fn take(&mut self, at: u32, item: &Item, read: Result<Bytes>) -> Result<u64> {
        let value = match read {
            Ok(value) => value,
            Err(e) if e.kind() == Kind::NotFound => {
                self.verified.found.insert(at, Found::Missing);
                return Ok(0);
            }
            Err(e) if e.kind() == Kind::Corrupt => {
                let text: String = e.report().chars().take(MAX_TEXT).collect();
                self.verified.found.insert(at, Found::Damaged(text));
                return Ok(item.expected.map_or(0, |expected| expected.len));
            }
            Err(e) => return Err(e),
        };
        let is = Expected { len: value.len() as u64, crc32c: crc32c(&value) };
        self.verified.bytes += is.len;
        match item.expected {
            None => drop(self.verified.found.insert(at, Found::Told(is))),
            Some(expected) if expected != is => drop(self.verified.found.insert(at, Found::Other(is))),
            Some(_) => {
                if let (Some(Summed { sum, turn }), Some(digesting)) = (item.summed, &self.digesting) {
                    let mut digester = digesting.begin_turned(turn);
                    digester.update(&value);
                    let digest = digester.finish();
                    match self.verified.sums.get_mut(&sum) {
                        Some(sum) => sum.add(&digest)?,
                        None => drop(self.verified.sums.insert(sum, digest)),
                    }
                }
            }
        }
        Ok(is.len)
    }

    /// The result.
    #[must_use]
    pub fn finish(self) -> Verified {
        self.verified
    }
}

/// Keeps a rate.
#[derive(Debug)]
pub struct Pace {
    begun: Instant,
    bytes_per_s: Option<u64>,
    bytes: u64,
}

impl Pace {
    /// A limit of `bytes_per_s` from now on; none if `None`.
    #[must_use]
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { begun: Instant::now(), bytes_per_s: bytes_per_s.filter(|rate| *rate > 0), bytes: 0 }
    }

    /// Counts `bytes` more, and waits until the limit allows them.
    pub async fn passed(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(rate) = self.bytes_per_s {
            let due = Duration::try_from_secs_f64(self.bytes as f64 / rate as f64).unwrap_or(Duration::MAX);
            tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await;
        }
    }
}

impl Verify {
    /// Bytes of the values as they should be.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.items.iter().filter_map(|item| item.expected).map(|expected| expected.len).sum()
    }

    /// As it travels; see the [module](self).
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(24 + 20 * self.items.len());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&self.bytes_per_s.unwrap_or(0).to_le_bytes());
        put(&mut out, self.items.len() as u64);
        let mut before: &[u8] = b"";
        for Item { key, expected, summed } in &self.items {
            let key = key.as_str().as_bytes();
            let shared = key.iter().zip(before).take_while(|(a, b)| a == b).count();
            put(&mut out, shared as u64);
            put(&mut out, (key.len() - shared) as u64);
            out.extend_from_slice(&key[shared..]);
            out.push(u8::from(expected.is_some()) | u8::from(summed.is_some()) << 1);
            if let Some(expected) = expected {
                put_expected(&mut out, *expected);
            }
            if let Some(Summed { sum, turn }) = summed {
                put(&mut out, u64::from(*sum));
                out.extend_from_slice(&turn.to_le_bytes());
            }
            before = key;
        }
        out.into()
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// Invalid for anything else, and for more values than [`MAX_ITEMS`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader(bytes);
        let (seed, rate) = (u64::from_le_bytes(from.array()?), u64::from_le_bytes(from.array()?));
        let count = from.count(MAX_ITEMS)?;
        let mut items = Vec::with_capacity(count);
        let mut before = Vec::new();
        for _ in 0..count {
            let (shared, rest) = (from.number()?, from.number()?);
            if shared > before.len() as u64 || rest > MAX_KEY {
                return Err(wrong("a key is too long"));
            }
            before.truncate(shared as usize);
            before.extend_from_slice(from.take(rest as usize)?);
            let text = std::str::from_utf8(&before).map_err(|e| wrong("a key is no text").with_source(e))?;
            let key = Key::new(text)?;
            let [flags] = from.array()?;
            let expected = if flags & 1 != 0 { Some(from.expected()?) } else { None };
            let summed = if flags & 2 != 0 {
                let sum = u32::try_from(from.number()?).ok().filter(|sum| *sum < MAX_SUMS).ok_or_else(|| wrong("there are too many sums"))?;
                Some(Summed { sum, turn: u16::from_le_bytes(from.array()?) })
            } else {
                None
            };
            items.push(Item { key, expected, summed });
        }
        from.end()?;
        Ok(Self { seed, bytes_per_s: (rate > 0).then_some(rate), items })
    }
}

impl Verified {
    /// As it travels; see the [module](self).
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(16 + 8 * self.found.len() + (DIGEST_BYTES + 2) * self.sums.len());
        put(&mut out, self.bytes);
        put(&mut out, self.found.len() as u64);
        for (at, found) in &self.found {
            put(&mut out, u64::from(*at));
            match found {
                Found::Missing => out.push(0),
                Found::Damaged(text) => {
                    out.push(1);
                    put(&mut out, text.len() as u64);
                    out.extend_from_slice(text.as_bytes());
                }
                Found::Other(is) => {
                    out.push(2);
                    put_expected(&mut out, *is);
                }
                Found::Told(is) => {
                    out.push(3);
                    put_expected(&mut out, *is);
                }
            }
        }
        put(&mut out, self.sums.len() as u64);
        for (sum, digest) in &self.sums {
            put(&mut out, u64::from(*sum));
            out.extend_from_slice(&digest.to_bytes());
        }
        out.into()
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// Invalid for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader(bytes);
        let mut verified = Self { bytes: from.number()?, ..Self::default() };
        for _ in 0..from.count(MAX_ITEMS)? {
            let at = u32::try_from(from.number()?).map_err(|_| wrong("a place is out of range"))?;
            let [word] = from.array()?;
            let found = match word {
                0 => Found::Missing,
                1 => {
                    let len = from.count(4 * MAX_TEXT)?;
                    Found::Damaged(String::from_utf8_lossy(from.take(len)?).into_owned())
                }
                2 => Found::Other(from.expected()?),
                3 => Found::Told(from.expected()?),
                _ => return Err(wrong("a word is not known")),
            };
            verified.found.insert(at, found);
        }
        for _ in 0..from.count(MAX_SUMS as usize)? {
            let sum = u32::try_from(from.number()?).map_err(|_| wrong("a sum's number is out of range"))?;
            verified.sums.insert(sum, Digest::from_bytes(from.take(DIGEST_BYTES)?)?);
        }
        from.end()?;
        Ok(verified)
    }
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("what is to be verified, or came out, is garbled: {what}"))
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_expected(out: &mut Vec<u8>, Expected { len, crc32c }: Expected) {
    put(out, len);
    out.extend_from_slice(&crc32c.to_le_bytes());
}

/// The unread bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| wrong("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or_else(|| wrong("it is cut off"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..63).step_by(7) {
            let [byte] = self.array()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(wrong("a number is too long"))
    }

    /// How many of something there are, `most` at most; each takes a byte at least.
    fn count(&mut self, most: usize) -> Result<usize> {
        let n = self.number()?;
        usize::try_from(n).ok().filter(|n| *n <= most && *n <= self.0.len()).ok_or_else(|| wrong("it has too many parts"))
    }

    fn expected(&mut self) -> Result<Expected> {
        Ok(Expected { len: self.number()?, crc32c: u32::from_le_bytes(self.array()?) })
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(wrong("something follows its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Verify {
        let key = |n: usize| Key::new(format!("lab/t/0123456789abcdef.data.{};{n:08x}", n / 20)).unwrap();
        let item = |n: usize| Item {
            key: key(n),
            expected: (n % 5 != 4).then_some(Expected { len: 1000 * n as u64, crc32c: 77 + n as u32 }),
            summed: n.is_multiple_of(2).then_some(Summed { sum: n as u32 % 7, turn: 900 * n as u16 }),
        };
        Verify { seed: 9, bytes_per_s: Some(5), items: (0..50).map(item).collect() }
    }

    #[test]
    fn verify_requests_and_answers_round_trip_and_are_small() {
        let asked = asked();
        let bytes = asked.encode();
        assert_eq!(Verify::decode(&bytes).unwrap(), asked);
        assert!(bytes.len() < 16 * asked.items.len() + 80, "{}", bytes.len());
        let is = Expected { len: 3, crc32c: 4 };
        let found = BTreeMap::from([(1, Found::Missing), (4, Found::Damaged("wörn".into())), (9, Found::Other(is)), (40_000, Found::Told(is))]);
        let sums = BTreeMap::from([(3, Digesting::new(1).digest(b"abc")), (4000, Digesting::new(1).digest(b""))]);
        let verified = Verified { bytes: 1 << 40, found, sums };
        let answer = verified.encode();
        assert_eq!(Verified::decode(&answer).unwrap(), verified);
        for cut in 0..bytes.len() {
            assert_eq!(Verify::decode(&bytes[..cut]).unwrap_err().kind(), Kind::Invalid, "cut at {cut}");
        }
        for cut in 0..answer.len() {
            assert!(Verified::decode(&answer[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.to_vec();
            other[at] ^= 0xff;
            drop(Verify::decode(&other));
        }
    }

    #[test]
    fn values_are_compared_with_their_expected_checksums() {
        let value = Bytes::from_static(b"some bytes");
        let right = Expected { len: 10, crc32c: crc32c(&value) };
        let item = |expected, sum| Item { key: Key::new("a/b").unwrap(), expected, summed: Some(Summed { sum, turn: 3 }) };
        let asked = Verify { seed: 5, bytes_per_s: None, items: vec![item(Some(right), 1)] };
        let mut verifying = Verifying::new(&asked);
        let other = Expected { crc32c: 1, ..right };
        assert_eq!(verifying.take(0, &item(Some(right), 1), Ok(value.clone())).unwrap(), 10);
        verifying.take(1, &item(Some(other), 1), Ok(value.clone())).unwrap();
        verifying.take(2, &item(None, 1), Ok(value.clone())).unwrap();
        verifying.take(3, &item(Some(right), 1), Err(Error::not_found("no key"))).unwrap();
        verifying.take(4, &item(Some(right), 1), Err(Error::corrupt("does not match"))).unwrap();
        assert_eq!(verifying.take(5, &item(None, 1), Err(Error::unavailable("gone"))).unwrap_err().kind(), Kind::Unavailable);
        let Verified { bytes, found, sums } = verifying.finish();
        assert_eq!(bytes, 30);
        assert_eq!(
            found,
            BTreeMap::from([(1, Found::Other(right)), (2, Found::Told(right)), (3, Found::Missing), (4, Found::Damaged("does not match".into()))])
        );
        let mut digester = Digesting::new(5).begin_turned(3);
        digester.update(&value);
        assert_eq!(sums, BTreeMap::from([(1, digester.finish())]));
    }
}
