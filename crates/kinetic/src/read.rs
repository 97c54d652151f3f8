//! Reads of a store on a Kinetic drive.

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::kinds::LogType;
use skytether_kinetic_protocol::limits::told;
use skytether_store::{Entry, Usage};

use crate::drive::Inner;
use crate::failure::{Failure, Outcome};
use crate::layout::{BEHIND_OWN, OWN, Stamp};
use crate::values::{Keys, Record};

/// How many requests of one call are under way at a time. The connection has its own limit.
pub(crate) const AHEAD: usize = 16;

/// How often a value is read whose stripes disappear while they are read.
const READS: usize = 16;

/// How many keys a range returns where the drive does not tell.
const PAGE: u32 = 200;

/// How many keys a range returns at most.
const MAX_PAGE: u32 = 1000;

/// A listing of this many keys or fewer is read until it stays the same, so that it shows one moment.
const MOMENT: usize = 1024;

/// How often it is read for that. One that changes all the time may mix moments.
const LISTINGS: usize = 16;

impl Inner {
    /// The record under a key; `None` where it is absent.
    pub(crate) async fn record(&self, key: &Bytes) -> Outcome<Option<Record>> {
        let asked = |on: std::sync::Arc<crate::Connection>| {
            let key = key.clone();
            async move { on.get(key, false).await }
        };
        match self.client.read(asked).await {
            Ok(record) => Ok(Some(record)),
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The Kinetic version of a key; `None` where it is absent.
    pub(crate) async fn raw_version(&self, key: &Bytes) -> Outcome<Option<Bytes>> {
        let asked = |on: std::sync::Arc<crate::Connection>| {
            let key = key.clone();
            async move { on.get_version(key).await }
        };
        self.client.read(asked).await
    }

    /// The value of a key.
    pub(crate) async fn get(&self, key: &Key) -> Result<Bytes> {
        crate::layout::check_key(key)?;
        let found = self.value(&wire(key), key.as_str()).await.map_err(|e| self.named(e))?;
        found.ok_or_else(|| self.named(Error::not_found(format!("there is no key {key}")).with_detail(Detail::missing_key(key))))
    }

    /// The value under a Kinetic key, verified; `None` where there is none of ours. `name` is for errors.
    pub(crate) async fn value(&self, key: &Bytes, name: &str) -> Result<Option<Bytes>> {
        let failed = |failure: Failure| {
            let error = Error::from(failure);
            Error::new(error.kind(), format!("cannot read key {name}: {}", error.message()))
        };
        for _ in 0..READS {
            let Some(record) = self.record(key).await.map_err(failed)? else { return Ok(None) };
            let Some(stamp) = Stamp::parse(&record.version).filter(|stamp| !stamp.absent) else { return Ok(None) };
            self.clock.seen(stamp.version);
            let value = if stamp.stripe == 0 { Some(detached(record.value)) } else { self.striped(&stamp, name).await.map_err(failed)? };
            if let Some(value) = value {
                stamp.check(&format!("key {name}"), &value)?;
                return Ok(Some(value));
            }
            // A writer replaced the value and deleted its stripes. If the same version is there, they are lost.
            if self.raw_version(key).await.map_err(failed)?.as_ref() == Some(&record.version) {
                return Err(Error::corrupt(format!("the value of key {name} lacks stripes")));
            }
        }
        Err(Error::unavailable(format!("key {name} is replaced faster than it can be read; try again")))
    }

    /// The value in stripes; `None` where one is absent.
    async fn striped(&self, stamp: &Stamp, name: &str) -> Outcome<Option<Bytes>> {
        let part = |number: u64| async move {
            let Some(part) = self.record(&stamp.stripe_key(number)).await? else { return Ok(None) };
            let due = (stamp.len - number * u64::from(stamp.stripe)).min(u64::from(stamp.stripe));
            if part.value.len() as u64 != due {
                let text = format!("stripe {number} of key {name} has {} bytes, and {due} were put", part.value.len());
                return Err(Failure::lost(Kind::Corrupt, text, false));
            }
            Ok(Some(part.value))
        };
        let Some(parts) = all((0..stamp.stripes()).map(|number| part(number).boxed()).collect()).await?.into_iter().collect::<Option<Vec<Bytes>>>() else {
            return Ok(None);
        };
        let mut value = BytesMut::with_capacity(usize::try_from(stamp.len).unwrap_or(0));
        parts.iter().for_each(|part| value.extend_from_slice(part));
        Ok(Some(value.freeze()))
    }

    /// What is known about a key.
    pub(crate) async fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        crate::layout::check_key(key)?;
        let version = self.raw_version(&wire(key)).await.map_err(|e| self.failed_to(&format!("ask for key {key}"), e))?;
        Ok(version.and_then(|version| self.entry(key.clone(), &version)))
    }

    fn entry(&self, key: Key, version: &[u8]) -> Option<Entry> {
        let stamp = Stamp::parse(version).filter(|stamp| !stamp.absent)?;
        self.clock.seen(stamp.version);
        Some(Entry { key, version: stamp.version, len: stamp.len, crc32c: stamp.crc32c })
    }

    /// Keys that begin with `prefix` and come after `after`.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let mut listed = self.listing(prefix, after, limit).await?;
        for _ in 0..LISTINGS {
            if listed.len() < 2 || listed.len() > MOMENT {
                break;
            }
            // Versions are never used twice: if nothing changed between two readings, both show one moment.
            let again = self.listing(prefix, after, limit).await?;
            if again == listed {
                break;
            }
            listed = again;
        }
        Ok(listed)
    }

    async fn listing(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut start = match after {
            Some(after) if after.as_str() >= prefix => (wire(after), false),
            _ => (Bytes::copy_from_slice(prefix.as_bytes()), true),
        };
        while entries.len() < limit {
            let behind_own = start.0.as_ref() >= BEHIND_OWN.as_bytes();
            if !behind_own && start.0.as_ref() >= OWN.as_bytes() {
                start = (Bytes::from_static(BEHIND_OWN.as_bytes()), true);
                continue;
            }
            let end = if behind_own { Bytes::from_static(&[0x7f]) } else { Bytes::from_static(OWN.as_bytes()) };
            let end = upper(prefix).filter(|upper| *upper < end).unwrap_or(end);
            if start.0 >= end {
                break;
            }
            let (keys, most) = self.page(start.clone(), (end.clone(), false), limit - entries.len()).await.map_err(|e| self.failed_to("list keys", e))?;
            let last = keys.last().cloned();
            // The order of the bytes is that of the keys.
            let named: Vec<Key> = keys.iter().filter_map(|key| Key::new(std::str::from_utf8(key).ok()?).ok()).collect();
            let known = |key: Key| async move {
                let version = self.raw_version(&wire(&key)).await?;
                Ok::<_, Failure>(version.and_then(|version| self.entry(key, &version)))
            };
            let known = all(named.into_iter().map(|key| known(key).boxed()).collect()).await.map_err(|e| self.failed_to("list keys", e))?;
            let left = limit - entries.len();
            entries.extend(known.into_iter().flatten().take(left));
            match last {
                Some(last) if keys.len() >= most => start = (last, false),
                _ if behind_own => break,
                _ => start = (Bytes::from_static(BEHIND_OWN.as_bytes()), true),
            }
        }
        Ok(entries)
    }

    /// The first keys of a range, `wanted` at most, and how many they are if there may be more.
    pub(crate) async fn page(&self, start: (Bytes, bool), end: (Bytes, bool), wanted: usize) -> Outcome<(Vec<Bytes>, usize)> {
        let (start, end) = (&start, &end);
        let asked = |on: std::sync::Arc<crate::Connection>| async move {
            let most = told(on.limits().max_key_range_count).unwrap_or(PAGE).min(MAX_PAGE).min(u32::try_from(wanted.max(1)).unwrap_or(u32::MAX));
            let range = Keys { start: start.clone(), end: end.clone(), most, reverse: false };
            Ok((on.get_key_range(range).await?, most as usize))
        };
        self.client.read(asked).await
    }

    /// How much is stored. It asks for every key, because Kinetic has no sum of them.
    pub(crate) async fn usage(&self) -> Result<Usage> {
        let entries = self.listing("", None, usize::MAX).await?;
        let value_bytes = entries.iter().map(|entry| entry.len).sum();
        let log = self.client.read(|on| async move { on.get_log(&[LogType::Capacities]).await }).await;
        // An identity may not be permitted to read logs.
        let capacity = log.ok().and_then(|log| log.capacity).unwrap_or_default();
        let occupied = capacity.nominal_capacity_in_bytes() as f64 * f64::from(capacity.portion_full());
        Ok(Usage { keys: entries.len() as u64, value_bytes, stored_bytes: (occupied as u64).max(value_bytes) })
    }
}

/// A small value in memory of its own: it would keep the block of 64 KiB that it came in for as long as it is held.
fn detached(value: Bytes) -> Bytes {
    if value.len() <= skytether_kinetic_protocol::decoder::BLOCK { Bytes::copy_from_slice(&value) } else { value }
}

/// Runs some requests, [`AHEAD`] at a time; their results in order. Boxes, because the compiler can't see that
/// closures over references give futures for any thread.
pub(crate) async fn all<T, E>(requests: Vec<BoxFuture<'_, Result<T, E>>>) -> Result<Vec<T>, E> {
    stream::iter(requests).buffered(AHEAD).try_collect().await
}

/// A store's key as a Kinetic key.
pub(crate) fn wire(key: &Key) -> Bytes {
    Bytes::copy_from_slice(key.as_str().as_bytes())
}

/// The first key behind all that begin with `prefix`; `None` for the empty prefix.
fn upper(prefix: &str) -> Option<Bytes> {
    let mut bytes = prefix.as_bytes().to_vec();
    // Below 0xff there is always room: UTF-8 does not use that byte.
    *bytes.last_mut()? += 1;
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends_before_the_next_byte() {
        assert_eq!(upper("a/"), Some(Bytes::from_static(b"a0")));
        assert_eq!((upper(""), upper("~")), (None, Some(Bytes::from_static(&[0x7f]))));
    }
}
