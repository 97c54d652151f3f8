//! Header records: the existence of a volume or snapshot, and what is fixed about it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use uuid::Uuid;

use crate::device::PHYSICAL;
use crate::names::MAX_SIZE;

/// The version of the format that this code writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// Extents that a volume can be made with, in bytes.
pub const EXTENTS: std::ops::RangeInclusive<u32> = PHYSICAL..=1 << 20;

/// The longest record, in bytes.
const MAX_RECORD: usize = 16 << 10;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none(number: &u32) -> bool {
    *number == 0
}

/// A volume or snapshot, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Given once; a snapshot has one of its own.
    pub id: Uuid,
    /// Of a volume: by which block protocols address it, from 1; see [`crate::volumes`]. 0 for snapshots.
    #[serde(default, skip_serializing_if = "is_none")]
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of an extent: a power of two.
    pub extent: u32,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// The journal that may hold writes which are not in extents; none after all were merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Uuid>,
    /// It is being removed: its extents may be gone, and it is no volume any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

impl Header {
    /// As it is stored.
    ///
    /// # Errors
    /// None in practice.
    pub fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal("a header record can't be written").with_source(e))
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// `Unsupported` for newer formats, `Corrupt` for anything else.
    pub fn decode(what: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |why: &str| Error::corrupt(format!("{what}: its header record is damaged ({why}): restore the drive or remove the volume"));
        if bytes.len() > MAX_RECORD {
            return Err(damaged("it is too long"));
        }
        let Format { format } = serde_json::from_slice(bytes).map_err(|e| damaged("it is no record").with_source(e))?;
        if format > FORMAT {
            return Err(Error::unsupported(format!("{what}: it has format {format}, and this version reads formats up to {FORMAT}: update it")));
        }
        let header: Self = serde_json::from_slice(bytes).map_err(|e| damaged("it is no record").with_source(e))?;
        if !header.extent.is_power_of_two() || !EXTENTS.contains(&header.extent) {
            return Err(damaged("its extent has no valid size"));
        }
        if header.size == 0 || header.size > MAX_SIZE || !header.size.is_multiple_of(PHYSICAL.into()) {
            return Err(damaged("it has no valid size"));
        }
        Ok(header)
    }
}

/// Milliseconds since 1970, for people only.
pub(crate) fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    #[test]
    fn header_records_round_trip_and_refuse_others() {
        let header = Header { format: FORMAT, id: Uuid::from_u128(7), number: 3, size: 1 << 20, extent: 65536, created_ms: 5, journal: None, removed: false };
        let bytes = header.encode().unwrap();
        assert_eq!(Header::decode("a", &bytes).unwrap(), header);
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let kind = |text: String| Header::decode("a", text.as_bytes()).unwrap_err().kind();
        assert_eq!(kind(text.replace("\"format\":1", "\"format\":2")), Kind::Unsupported);
        assert_eq!(kind(text.replace("65536", "65537")), Kind::Corrupt);
        assert_eq!(kind(text.replace("1048576", "0")), Kind::Corrupt);
        assert_eq!(kind(text[..10].to_owned()), Kind::Corrupt);
        assert_eq!(kind(" ".repeat(MAX_RECORD + 1)), Kind::Corrupt);
    }
}
