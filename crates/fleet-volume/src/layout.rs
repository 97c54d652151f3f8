//! Extent records, and how an extent is cut into shards.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};
use skytether_erasure::scheme::{MAX_DATA, MAX_PARITY};
use skytether_erasure::{Code, Scheme, code};
use skytether_volume::device::PHYSICAL;
use skytether_volume::header::EXTENTS;
use uuid::Uuid;

/// The version of the format that this code writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// Where one shard of an extent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The drive.
    pub drive: Uuid,
    /// Its bytes.
    pub len: u32,
    /// Their CRC-32C.
    pub crc32c: u32,
}

/// Where the bytes of an extent are, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentRecord {
    /// The version of the format: 1.
    pub format: u32,
    /// Drawn for each write; a part of the shards' key.
    pub generation: u64,
    /// Bytes of the extent.
    pub len: u32,
    /// The CRC-32C of the extent.
    pub crc32c: u32,
    /// How many of the shards have the extent's bytes, in order. The others are parities.
    pub data: u16,
    /// All shards.
    pub shards: Vec<Shard>,
}

/// The number of data and parity shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Data shards at most: a small extent has fewer.
    pub data: usize,
    /// Parity shards.
    pub parity: usize,
}

impl Shape {
    /// What `scheme` gives an extent of `len` bytes where `drives` drives take data. With fewer than the scheme needs,
    /// it first has fewer data shards, and then fewer parities.
    ///
    /// # Errors
    /// `Unsupported` for redundancy on two levels; `Unavailable` without a drive.
    pub fn of(scheme: Scheme, len: usize, drives: usize) -> Result<Self> {
        if scheme.inner().is_some() {
            return Err(Error::unsupported(format!("volumes can't have the redundancy {scheme} on two levels: use a fleet with ec:K+M or replicas:R")));
        }
        if drives == 0 {
            return Err(Error::unavailable("no drive of the fleet takes data: bring drives back"));
        }
        let (data, parity) = scheme.code().map_or((1, 0), |code| (code.data(), code.parity()));
        let data = data.min(drives.saturating_sub(parity)).max(1);
        // As many as there are when each has the same number of blocks, but for the last.
        let blocks = len.div_ceil(PHYSICAL as usize).max(1);
        let data = blocks.div_ceil(blocks.div_ceil(data));
        Ok(Self { data, parity: parity.min(drives - data) })
    }

    /// How many drives it takes.
    #[must_use]
    pub fn shards(self) -> usize {
        self.data + self.parity
    }

    fn code(self) -> Result<Option<Code>> {
        if self.parity == 0 { Ok(None) } else { Code::new(self.data, self.parity).map(Some) }
    }

    /// The shards of an extent, data first.
    ///
    /// # Errors
    /// None for shapes of [`Self::of`].
    pub fn encode(self, extent: &Bytes) -> Result<Vec<Bytes>> {
        let each = shard_len(extent.len(), self.data);
        let mut shards: Vec<Bytes> = (0..self.data).map(|at| extent.slice((at * each).min(extent.len())..((at + 1) * each).min(extent.len()))).collect();
        if let Some(code) = self.code()? {
            shards.extend(code::encode(code, &shards)?);
        }
        Ok(shards)
    }
}

/// Bytes of all data shards but the last.
fn shard_len(extent: usize, data: usize) -> usize {
    extent.div_ceil(PHYSICAL as usize).div_ceil(data.max(1)) * PHYSICAL as usize
}

impl ExtentRecord {
    /// Of shards on these drives.
    #[must_use]
    pub fn new(generation: u64, extent: &Bytes, shape: Shape, shards: &[Bytes], drives: &[Uuid]) -> Self {
        let shard = |(shard, drive): (&Bytes, &Uuid)| Shard { drive: *drive, len: shard.len() as u32, crc32c: crc32c(shard) };
        let shards = shards.iter().zip(drives).map(shard).collect();
        Self { format: FORMAT, generation, len: extent.len() as u32, crc32c: crc32c(extent), data: shape.data as u16, shards }
    }

    /// As it is stored.
    ///
    /// # Errors
    /// None in practice.
    pub fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal("an extent record can't be written").with_source(e))
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
        let damaged = |why: &str| Error::corrupt(format!("{what}: it is no extent record ({why}): write the extent again"));
        let Format { format } = serde_json::from_slice(bytes).map_err(|e| damaged("it has no format").with_source(e))?;
        if format > FORMAT {
            return Err(Error::unsupported(format!("{what}: it has format {format}, and this version reads formats up to {FORMAT}: update it")));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(|e| damaged("a field is wrong").with_source(e))?;
        let (data, all) = (usize::from(record.data), record.shards.len());
        if data == 0 || data > all || data > usize::from(MAX_DATA) || all - data > usize::from(MAX_PARITY) {
            return Err(damaged("it has no valid number of shards"));
        }
        if record.len == 0 || record.len > *EXTENTS.end() || record.data_lens().into_iter().ne(record.shards.iter().take(data).map(|shard| shard.len as usize))
        {
            return Err(damaged("its lengths do not fit"));
        }
        Ok(record)
    }

    /// How many shards have the extent's bytes.
    #[must_use]
    pub fn data(&self) -> usize {
        usize::from(self.data)
    }

    /// How many drives may be lost without it.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.shards.len().saturating_sub(self.data())
    }

    fn data_lens(&self) -> Vec<usize> {
        let (len, each) = (self.len as usize, self.data_len());
        (0..self.data()).map(|at| ((at + 1) * each).min(len) - (at * each).min(len)).collect()
    }

    /// Bytes of all data shards but the last.
    #[must_use]
    pub fn data_len(&self) -> usize {
        shard_len(self.len as usize, self.data())
    }

    /// The extent, from the shards that are there, each at its place.
    ///
    /// # Errors
    /// `Unavailable` where too few are there; `Corrupt` where the result is not what was written.
    pub fn join(&self, shards: &[Option<Bytes>]) -> Result<Bytes> {
        let data = self.data();
        if let [Some(only)] = &shards[..data.min(1).min(shards.len())]
            && data == 1
        {
            return Ok(only.clone());
        }
        if shards.iter().take(data).all(Option::is_some) {
            return Ok(shards
                .iter()
                .take(data)
                .flatten()
                .fold(Vec::with_capacity(self.len as usize), |mut all, shard| {
                    all.extend_from_slice(shard);
                    all
                })
                .into());
        }
        let shape = Shape { data, parity: self.parity() };
        let code = shape.code()?.ok_or_else(|| Error::unavailable("its only shard is not there"))?;
        let present: Vec<Option<&[u8]>> = shards.iter().map(Option::as_deref).collect();
        let wanted: Vec<usize> = (0..data).collect();
        let whole: Bytes = code::decode(code, &self.data_lens(), &present, &wanted)?.concat().into();
        if whole.len() != self.len as usize || crc32c(&whole) != self.crc32c {
            return Err(Error::corrupt("what its shards are decoded to is not what was written"));
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    fn extent(len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
        bytes.into()
    }

    #[test]
    fn extents_come_back_without_as_many_shards_as_parities() {
        for scheme in ["none", "replicas:2", "replicas:3", "ec:2+1", "ec:3+2", "ec:5+1"] {
            for len in [4096, 8192, 65536, 262_144] {
                for drives in 1..8 {
                    let extent = extent(len);
                    let shape = Shape::of(scheme.parse().unwrap(), len, drives).unwrap();
                    assert!(shape.shards() <= drives, "{scheme} over {drives}: {shape:?}");
                    let shards = shape.encode(&extent).unwrap();
                    let ids: Vec<Uuid> = (0..drives as u128).map(Uuid::from_u128).collect();
                    let record = ExtentRecord::new(9, &extent, shape, &shards, &ids);
                    assert_eq!(ExtentRecord::decode("x", &record.encode().unwrap()).unwrap(), record);
                    for lost in 0..1u32 << shards.len() {
                        let left = |at: usize| lost >> at & 1 == 0;
                        let there: Vec<Option<Bytes>> = shards.iter().enumerate().map(|(at, shard)| left(at).then(|| shard.clone())).collect();
                        match record.join(&there) {
                            Ok(whole) => assert!(whole == extent, "{scheme} over {drives}"),
                            Err(error) => assert!(lost.count_ones() as usize > shape.parity, "{scheme} over {drives} without {lost:b}: {error}"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn few_drives_cost_data_shards_before_parities() {
        let shape = |scheme: &str, drives| {
            let shape = Shape::of(scheme.parse().unwrap(), 262_144, drives).unwrap();
            (shape.data, shape.parity)
        };
        assert_eq!([1, 2, 3, 9].map(|drives| shape("ec:2+1", drives)), [(1, 0), (1, 1), (2, 1), (2, 1)]);
        assert_eq!([1, 2, 3, 4, 5, 6].map(|drives| shape("ec:4+2", drives)), [(1, 0), (1, 1), (1, 2), (2, 2), (3, 2), (4, 2)]);
        assert_eq!([1, 2, 3].map(|drives| shape("replicas:2", drives)), [(1, 0), (1, 1), (1, 1)]);
        assert_eq!(shape("none", 3), (1, 0));
        assert_eq!(Shape::of("ec:2+1/2+1".parse().unwrap(), 4096, 9).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(Shape::of("none".parse().unwrap(), 4096, 0).unwrap_err().kind(), Kind::Unavailable);
    }

    #[test]
    fn extent_records_refuse_what_does_not_fit() {
        let extent = extent(65536);
        let shape = Shape { data: 2, parity: 1 };
        let ids: Vec<Uuid> = (0..3).map(Uuid::from_u128).collect();
        let record = ExtentRecord::new(1, &extent, shape, &shape.encode(&extent).unwrap(), &ids);
        let text = String::from_utf8(record.encode().unwrap().to_vec()).unwrap();
        let kind = |text: String| ExtentRecord::decode("x", text.as_bytes()).map(drop).unwrap_err().kind();
        assert_eq!(kind(text.replace("\"format\":1", "\"format\":2")), Kind::Unsupported);
        assert_eq!(kind(text.replace("\"len\":65536", "\"len\":65537")), Kind::Corrupt);
        assert_eq!(kind(text.replace("\"len\":65536", "\"len\":4294967295")), Kind::Corrupt);
        assert_eq!(kind(text.replace("\"data\":2", "\"data\":0")), Kind::Corrupt);
        assert_eq!(kind(text.replace("\"data\":2", "\"data\":4")), Kind::Corrupt);
        assert_eq!(kind(text[..20].to_owned()), Kind::Corrupt);
    }
}
