//! Reads of extents, also where drives are down or shards are damaged.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Kind, Result};

use crate::backing::FleetBacking;
use crate::keys;
use crate::layout::{ExtentRecord, Shard};

/// How often an extent is read whose record changes meanwhile: many times, as merges of an extent that is written all
/// the time may be faster than a reader far from the drives.
const ATTEMPTS: usize = 64;

impl FleetBacking {
    /// An extent, by the key of its record.
    pub(crate) async fn read(&self, key: &Key) -> Result<Bytes> {
        let mut known = self.known_record(key);
        for _ in 0..ATTEMPTS {
            let record = match known.take() {
                Some(record) => record,
                None => self.stored_record(key).await?.ok_or_else(|| Error::not_found(format!("there is no extent {key}")))?.0,
            };
            match self.read_extent(key, &record).await {
                Ok(extent) => return Ok(extent),
                Err(error) => {
                    // A merge, or the repair of a scrub, may have written it again.
                    let now = self.stored_record(key).await?.map(|(record, _)| record);
                    if now.as_ref().is_some_and(|now| now.generation == record.generation) {
                        return Err(error);
                    }
                    known = now;
                }
            }
        }
        Err(Error::unavailable(format!("extent {key} changes all the time: try again")))
    }

    /// One shard, verified. A drive that does not answer is taken for lost where the fleet may lose it.
    async fn read_shard(&self, key: &Key, shard: &Shard) -> Result<Bytes> {
        let at = self.place(&shard.drive).ok_or_else(|| Error::unavailable(format!("drive {} is not of the fleet", shard.drive)))?;
        let health = self.catalog.health();
        if health.is_outside(at) || health.is_down(at) {
            return Err(Error::unavailable(format!("{} is lost", self.drive_name(at))));
        }
        match self.catalog.ask(at, "read a part of a volume", self.catalog.bare(at).get(key)).await {
            Ok(bytes) if bytes.len() as u64 == u64::from(shard.len) && crc32c(&bytes) == shard.crc32c => Ok(bytes),
            Ok(_) => Err(Error::corrupt(format!("{} has other bytes under {key}", self.drive_name(at)))),
            Err(e) if e.kind() == Kind::NotFound => Err(Error::corrupt(format!("{} does not have {key}", self.drive_name(at)))),
            Err(e) if e.kind() == Kind::Corrupt => Err(e.context(format!("{} has it damaged", self.drive_name(at)))),
            Err(e) => {
                let text = e.flattened();
                self.catalog.may_lose(at, e)?;
                Err(text)
            }
        }
    }

    /// An extent that this record describes: its data shards, and as many others as are needed for those that can't be
    /// read.
    pub(crate) async fn read_extent(&self, key: &Key, record: &ExtentRecord) -> Result<Bytes> {
        let shard_key = keys::shard(key, record.generation)?;
        let mut found: Vec<Option<Bytes>> = vec![None; record.shards.len()];
        let mut missed: Vec<(usize, Error)> = Vec::new();
        let mut next = 0;
        loop {
            let lacking = record.data() - found.iter().flatten().count();
            if lacking == 0 {
                break;
            }
            let some: Vec<usize> = (next..record.shards.len().min(next + lacking)).collect();
            next += some.len();
            if some.is_empty() {
                return Err(unreadable(record, &missed));
            }
            let read = join_all(some.iter().map(|at| self.read_shard(&shard_key, &record.shards[*at]))).await;
            for (at, read) in some.into_iter().zip(read) {
                match read {
                    Ok(bytes) => found[at] = Some(bytes),
                    Err(error) => missed.push((at, error)),
                }
            }
        }
        for (at, error) in &missed {
            self.note_degraded(&record.shards[*at], error);
        }
        if missed.is_empty() {
            for shard in &record.shards[..record.data()] {
                self.decoded_for.lock().remove(&shard.drive);
            }
            return record.join(&found);
        }
        self.degraded.fetch_add(1, Ordering::Relaxed);
        // One of the copies is the extent as it is.
        match found.iter().flatten().next() {
            Some(copy) if record.data() == 1 => Ok(copy.clone()),
            _ => record.join(&found),
        }
    }

    /// Says once for each drive that its shards are decoded from others, until it is read again.
    fn note_degraded(&self, shard: &Shard, error: &Error) {
        let mut decoded = self.decoded_for.lock();
        let count = decoded.entry(shard.drive).or_insert(0);
        *count += 1;
        if *count == 1 {
            let name = self.place(&shard.drive).map_or_else(|| shard.drive.to_string(), |at| self.drive_name(at).to_owned());
            tracing::warn!(drive = name, why = error.report(), "volumes are read without a drive, or a damaged part of it, from what others have");
        }
    }

    /// A part of an extent, unverified; whole and verified where the drives with that part do not have it.
    pub(crate) async fn read_range(&self, key: &Key, range: Range<u64>) -> Result<Bytes> {
        let record = match self.known_record(key) {
            Some(record) => record,
            None => self.stored_record(key).await?.ok_or_else(|| Error::not_found(format!("there is no extent {key}")))?.0,
        };
        if range.start > range.end || range.end > u64::from(record.len) {
            return Err(Error::invalid(format!("bytes {} to {} are not in extent {key}", range.start, range.end)));
        }
        if let Ok(bytes) = self.read_parts(key, &record, range.clone()).await {
            return Ok(bytes);
        }
        let whole = self.read(key).await?;
        if range.end > whole.len() as u64 {
            return Err(Error::corrupt(format!("extent {key} has {} bytes", whole.len())));
        }
        Ok(whole.slice(range.start as usize..range.end as usize))
    }

    /// The bytes of `range` from the data shards alone.
    async fn read_parts(&self, key: &Key, record: &ExtentRecord, range: Range<u64>) -> Result<Bytes> {
        let (shard_key, each) = (keys::shard(key, record.generation)?, record.data_len() as u64);
        let shards = range.start / each..range.end.div_ceil(each);
        let read = |n: u64| {
            let within = range.start.max(n * each) - n * each..range.end.min((n + 1) * each) - n * each;
            let (shard_key, shard) = (&shard_key, record.shards.get(n as usize));
            async move {
                let at = shard.and_then(|shard| self.place(&shard.drive)).ok_or_else(|| Error::unavailable("its drive is not of the fleet"))?;
                if self.catalog.health().is_down(at) || self.catalog.health().is_outside(at) {
                    return Err(Error::unavailable("its drive is lost"));
                }
                let mut parts = self
                    .catalog
                    .ask(at, "read a part of a volume", self.catalog.bare(at).get_ranges_unverified(shard_key, std::slice::from_ref(&within)))
                    .await?;
                parts.pop().ok_or_else(|| Error::internal("a part of an extent got lost"))
            }
        };
        let mut parts = join_all(shards.map(read)).await.into_iter().collect::<Result<Vec<Bytes>>>()?;
        if parts.len() == 1 {
            return parts.pop().ok_or_else(|| Error::internal("a part of an extent got lost"));
        }
        Ok(parts
            .into_iter()
            .fold(BytesMut::new(), |mut all, part| {
                all.extend_from_slice(&part);
                all
            })
            .freeze())
    }
}

/// Why too few shards can be read. Damage alone is `Corrupt`; where a drive may come back, it is not.
fn unreadable(record: &ExtentRecord, missed: &[(usize, Error)]) -> Error {
    let kind = if missed.iter().all(|(_, error)| error.kind() == Kind::Corrupt) { Kind::Corrupt } else { Kind::Unavailable };
    let each: Vec<String> = missed.iter().map(|(at, error)| format!("shard {at}: {}", error.report())).collect();
    let (needed, all) = (record.data(), record.shards.len());
    Error::new(kind, format!("{} of its {all} shards can't be read, and {needed} are needed: {}; bring the drives back", missed.len(), each.join("; ")))
}
