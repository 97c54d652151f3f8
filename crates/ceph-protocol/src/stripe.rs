//! A stripe of a fleet's table, as the object of a request: its one slice is the object, and values that the plan reads
//! besides come with the request, or came with one before it.

use std::collections::BTreeMap;

use crate::fields::{Decoded, Reader, Writer, wrong};
use crate::limits::{MAX_ENTRIES, MAX_NAME, MAX_OBJECT, MAX_REQUEST};

/// The bytes of a digest.
pub const DIGEST: usize = 32;

/// The most bytes of the values that come with one request.
pub const MAX_GIVEN: usize = MAX_REQUEST / 2;

/// A value of the fleet that a plan may read, besides the slice in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its length.
    pub len: u64,
    /// BLAKE3 of its bytes. An engine keeps values for the next requests, and its clients need not trust each other.
    pub digest: [u8; DIGEST],
    /// The bytes; `None` where the engine may still have them.
    pub bytes: Option<Vec<u8>>,
}

/// A stripe whose slice is in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripe {
    /// Its number in the partition.
    pub number: u32,
    /// The key of its slice.
    pub slice: String,
    /// The slice's length.
    pub len: u64,
    /// CRC-32C of all bytes of the slice.
    pub crc32c: u32,
    /// The keys of the partitions that the plan may read, by the names of their tables in the data set.
    pub partitions: BTreeMap<String, String>,
    /// What else the plan reads, by key. An engine names what is missing ([`crate::Outcome::Wants`]).
    pub given: BTreeMap<String, Given>,
}

impl Stripe {
    /// One without a slice, whose fields are still to come.
    #[must_use]
    pub fn nothing() -> Self {
        Self { number: 0, slice: String::new(), len: 0, crc32c: 0, partitions: BTreeMap::new(), given: BTreeMap::new() }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u32(self.number).blob(self.slice.as_bytes()).u64(self.len).u32(self.crc32c);
        writer.count(self.partitions.len());
        for (table, key) in &self.partitions {
            writer.blob(table.as_bytes()).blob(key.as_bytes());
        }
        writer.count(self.given.len());
        for (key, given) in &self.given {
            writer.blob(key.as_bytes()).u64(given.len).raw(&given.digest).u8(given.bytes.is_some().into());
            if let Some(bytes) = &given.bytes {
                writer.blob(bytes);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<Self> {
        let (number, slice, len, crc32c) = (reader.u32()?, reader.text(MAX_NAME)?, reader.u64()?, reader.u32()?);
        if len > MAX_OBJECT {
            return wrong(format!("a slice of {len} bytes; objects have at most {MAX_OBJECT}"));
        }
        let mut partitions = BTreeMap::new();
        for _ in 0..reader.count(MAX_ENTRIES)? {
            let (table, key) = (reader.text(MAX_NAME)?, reader.text(MAX_NAME)?);
            if partitions.insert(table, key).is_some() {
                return wrong("a request names a partition twice");
            }
        }
        let mut given = BTreeMap::new();
        for _ in 0..reader.count(MAX_ENTRIES)? {
            let (key, len) = (reader.text(MAX_NAME)?, reader.u64()?);
            let mut digest = [0; DIGEST];
            digest.copy_from_slice(reader.raw(DIGEST)?);
            let bytes = match reader.u8()? {
                0 => None,
                1 => Some(reader.blob()?.to_vec()),
                other => return wrong(format!("{other} where 0 or 1 is due")),
            };
            if bytes.as_ref().is_some_and(|bytes| bytes.len() as u64 != len) {
                return wrong(format!("a value with another length than its {len} bytes"));
            }
            if given.insert(key, Given { len, digest, bytes }).is_some() {
                return wrong("a request gives a value twice");
            }
        }
        Ok(Self { number, slice, len, crc32c, partitions, given })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn stripe() -> Stripe {
        let given = |bytes: Option<Vec<u8>>| Given { len: 3, digest: [7; DIGEST], bytes };
        Stripe {
            number: 4,
            slice: "city/rides/0.data.0;00000004".to_owned(),
            len: 5,
            crc32c: 9,
            partitions: BTreeMap::from([("data".to_owned(), "city/rides/0.data.0".to_owned())]),
            given: BTreeMap::from([("a".to_owned(), given(None)), ("b".to_owned(), given(Some(vec![1, 2, 3])))]),
        }
    }

    fn read(stripe: &Stripe) -> Decoded<Stripe> {
        let mut writer = Writer::default();
        stripe.write(&mut writer);
        Stripe::read(&mut Reader::new("stripe", &writer.0))
    }

    #[test]
    fn values_of_another_length_are_refused() {
        assert_eq!(read(&stripe()).unwrap(), stripe());
        let mut other = stripe();
        other.given.get_mut("b").unwrap().bytes = Some(vec![1]);
        assert!(read(&other).unwrap_err().0.contains("another length"));
        let mut long = stripe();
        long.len = MAX_OBJECT + 1;
        assert!(read(&long).unwrap_err().0.contains("a slice of"));
    }
}
