//! The slices that a fleet keeps under Kinetic keys, as a store to read: what the drive's query engine runs over.
//!
//! `skytether_kinetic::layout` has their form. Changes come through the protocol only. A batch that its writer has
//! committed and not finished is not completed here: a data set's slices are written before the record that names them.

use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use skytether_common::{Detail, Error, Key, Result};
use skytether_kinetic::layout::{OWN, Stamp};
use skytether_kv::KeyValues;
use skytether_store::{Entry, Op, SliceStore, Usage, Version, ranges};

/// How often a value is read that is replaced while its stripes are read.
const READS: usize = 16;

/// Keys that are listed at a time.
const PAGE: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct StoredSlices {
    keys: Arc<KeyValues>,
}

impl StoredSlices {
    /// Over the keys of a drive.
    #[must_use]
    pub fn new(keys: Arc<KeyValues>) -> Self {
        Self { keys }
    }

    /// What was noted with a value of ours; `None` where there is none.
    fn stamp(&self, key: &Key) -> Result<Option<Stamp>> {
        let meta = self.keys.meta(key.as_str().as_bytes())?;
        Ok(meta.and_then(|meta| Stamp::parse(&meta.version)).filter(|stamp| !stamp.absent))
    }

    /// The bytes of a value from `range` on; `None` where a stripe is absent.
    fn striped(&self, stamp: &Stamp, range: &Range<u64>) -> Result<Option<Bytes>> {
        let stripe = u64::from(stamp.stripe);
        let length = usize::try_from(range.end - range.start).map_err(|e| Error::exhausted("a value is longer than memory").with_source(e))?;
        let mut bytes = BytesMut::with_capacity(length);
        for number in range.start / stripe..range.end.div_ceil(stripe) {
            let Some(record) = self.keys.get(&stamp.stripe_key(number))? else { return Ok(None) };
            let (begin, end) = (number * stripe, (number + 1) * stripe);
            let due = end.min(stamp.len) - begin;
            if record.value.len() as u64 != due {
                return Err(Error::corrupt(format!("stripe {number} has {} bytes instead of {due}", record.value.len())));
            }
            let (from, to) = (range.start.max(begin) - begin, range.end.min(end) - begin);
            // Both are within the stripe.
            bytes.extend_from_slice(record.value.get(from as usize..to as usize).unwrap_or_default());
        }
        Ok(Some(bytes.freeze()))
    }

    /// Reads with `read`, again while the value is replaced; that gives `None` where a stripe is absent.
    fn reading<T>(&self, key: &Key, read: impl Fn(&Stamp, Bytes) -> Result<Option<T>>) -> Result<T> {
        let mut last = None;
        for _ in 0..READS {
            let record = self.keys.get(key.as_str().as_bytes())?;
            let found = record.and_then(|record| Some((Stamp::parse(&record.meta.version).filter(|stamp| !stamp.absent)?, record.value)));
            let Some((stamp, value)) = found else {
                return Err(Error::not_found(format!("there is no key {key}")).with_detail(Detail::missing_key(key)));
            };
            if let Some(read) = read(&stamp, value)? {
                return Ok(read);
            }
            if last.replace(stamp) == Some(stamp) {
                return Err(Error::corrupt(format!("the value of key {key} lacks stripes")));
            }
        }
        Err(Error::unavailable(format!("key {key} is replaced faster than it can be read; try again")))
    }
}

impl SliceStore for StoredSlices {
    fn apply(&self, _: Vec<Op>) -> Result<Vec<Version>> {
        Err(Error::unsupported("the keys of Kinetic clients are changed by the Kinetic protocol, and read here"))
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        self.reading(key, |stamp, value| {
            let whole = if stamp.stripe == 0 { Some(value) } else { self.striped(stamp, &(0..stamp.len))? };
            whole.map(|value| stamp.check(&format!("key {key}"), &value).map(|()| value)).transpose()
        })
    }

    fn get_ranges_unverified(&self, key: &Key, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.reading(key, |stamp, value| {
            ranges::check(key, stamp.len, wanted)?;
            if stamp.stripe != 0 {
                return wanted.iter().map(|range| self.striped(stamp, range)).collect();
            }
            if value.len() as u64 != stamp.len {
                return Err(Error::corrupt(format!("the value of key {key} has {} bytes, and {} were put", value.len(), stamp.len)));
            }
            Ok(Some(ranges::cut(&value, wanted)))
        })
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.stamp(key)?.map(|stamp| Entry { key: key.clone(), version: stamp.version, len: stamp.len, crc32c: stamp.crc32c }))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut from: Vec<u8> = after.map(|key| key.as_str()).filter(|after| *after >= prefix).unwrap_or(prefix).into();
        let mut is_after = after.is_some_and(|after| after.as_str() >= prefix);
        while entries.len() < limit {
            let start = if is_after { Bound::Excluded(from.as_slice()) } else { Bound::Included(from.as_slice()) };
            let page = self.keys.keys(start, Bound::Unbounded, false, PAGE)?;
            let Some(last) = page.last().cloned() else { break };
            for key in page {
                if !key.starts_with(prefix.as_bytes()) {
                    return Ok(entries);
                }
                let named = std::str::from_utf8(&key).ok().filter(|name| !name.starts_with(OWN)).and_then(|name| Key::new(name).ok());
                if let Some(entry) = named.map(|key| self.stat(&key)).transpose()?.flatten() {
                    entries.push(entry);
                    if entries.len() == limit {
                        return Ok(entries);
                    }
                }
            }
            (from, is_after) = (last.into(), true);
        }
        Ok(entries)
    }

    fn usage(&self) -> Result<Usage> {
        let usage = self.keys.usage()?;
        Ok(Usage { keys: usage.keys, value_bytes: usage.value_bytes, stored_bytes: usage.stored_bytes })
    }
}
