//! Snapshots: extents linked under other keys, and read-only devices over them.
//!
//! A snapshot exists once its header record does. Its links are made before, so that a crash leaves links without a
//! record, which the next snapshot of that name removes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use skytether_common::{Error, Kind, Result};
use skytether_store::{Entry, Expect, Op};
use uuid::Uuid;

use crate::backing::Backing;
use crate::device::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};
use crate::extents::Extents;
use crate::header::{FORMAT, Header, now_ms};
use crate::index::Index;
use crate::keys::{PAGE, delete_keys, put_header, read_header, stored_extents};
use crate::names::{VolumeName, extent_key, extent_number, extents_prefix, header_key};
use crate::numbers::put_numbered;
use crate::open::Context;
use crate::volume::{RUNS, Volume, check_range, to_places};

/// Links of one batch.
const LINKS: usize = 250;

/// Links all extents below `from` to the same numbers below `to`. Each batch has the condition `check`.
async fn link_all(backing: &dyn Backing, from: &str, to: &str, check: Option<(&str, u64)>) -> Result<()> {
    let extents = extents_prefix(from);
    let mut after = None;
    loop {
        let page = backing.list(&extents, after.as_ref(), PAGE).await?;
        let full = page.len() == PAGE;
        after = page.last().map(|entry| entry.key.clone()).or(after);
        let link = |Entry { key, len, crc32c, .. }: Entry| {
            let number = extent_number(from, &key)?;
            Some(extent_key(to, number).map(|to| Op::Link { key: to, from: key, len, crc32c, expect: Expect::Any }))
        };
        let mut links = page.into_iter().filter_map(link).collect::<Result<Vec<Op>>>()?;
        while !links.is_empty() {
            let rest = links.split_off(links.len().min(LINKS));
            if let Some((prefix, version)) = check {
                links.push(Op::Check { key: header_key(prefix)?, expect: Expect::Version(version) });
            }
            backing.apply(links).await?;
            links = rest;
        }
        if !full {
            return Ok(());
        }
    }
}

impl Volume {
    /// Keeps the present content as the snapshot `snapshot`. Writes wait only while the last of the journal is merged.
    ///
    /// # Errors
    /// `Conflict` where there is one of this name, `Unsupported` where the drive has no links; as [`Self::drain`].
    pub async fn snapshot(&self, snapshot: &VolumeName) -> Result<Header> {
        self.writable()?;
        let backing = &*self.extents.backing;
        let what = format!("snapshot {snapshot} of {}", self.what());
        if !backing.links() {
            return Err(Error::unsupported(format!("{what}: drive {} has no links, so it can't hold snapshots", backing.name())));
        }
        let prefix = self.name.snapshot_prefix(snapshot);
        let alone = self.merging.lock().await;
        match read_header(backing, &what, &prefix).await? {
            Some((header, _)) if !header.removed => return Err(Error::conflict(format!("{what}: it is there already; remove it or use another name"))),
            _ => delete_keys(backing, &prefix).await?,
        }
        self.merge_all(&alone).await?;
        let header = {
            let _no_writes = self.journal.tail().await;
            self.merge_all(&alone).await?;
            self.header.lock().await.clone()
        };
        // Writes go on into the journal; the extents stay, because no merge is under way.
        link_all(backing, &self.extents.prefix, &prefix, Some((&self.extents.prefix, header.1))).await?;
        let made = Header { format: FORMAT, id: Uuid::new_v4(), number: 0, created_ms: now_ms(), journal: None, removed: false, ..header.0 };
        put_header(backing, &prefix, &made, Expect::Absent).await?;
        drop(alone);
        Ok(made)
    }
}

/// Removes the volume or snapshot below `prefix`. It is gone at once; its extents follow. One that `is_broken` may have
/// no header record that can be read.
///
/// # Errors
/// `NotFound` where there is none; those of the drive.
pub(crate) async fn remove(backing: &dyn Backing, what: &str, prefix: &str, is_broken: bool) -> Result<()> {
    match read_header(backing, what, prefix).await {
        Ok(Some((header, version))) => drop(put_header(backing, prefix, &Header { removed: true, ..header }, Expect::Version(version)).await?),
        Ok(None) if !is_broken => return Err(Error::not_found(format!("{what}: there is none on drive {}", backing.name()))),
        Ok(None) => {}
        Err(error) if is_broken && matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {}
        Err(error) => return Err(error),
    }
    delete_keys(backing, prefix).await
}

/// Makes the volume `to` with the content of a snapshot.
///
/// # Errors
/// `NotFound` where there is no such snapshot, `Conflict` where `to` is there; those of the drive.
pub(crate) async fn clone(context: &Context, volume: &VolumeName, snapshot: &VolumeName, to: &VolumeName) -> Result<()> {
    let backing = &*context.backing;
    let (what, prefix) = (format!("snapshot {snapshot} of volume {volume}"), volume.snapshot_prefix(snapshot));
    let found = read_header(backing, &what, &prefix).await?.filter(|(header, _)| !header.removed);
    let (header, version) = found.ok_or_else(|| Error::not_found(format!("{what}: there is none on drive {}", backing.name())))?;
    match read_header(backing, &format!("volume {to}"), &to.prefix()).await? {
        Some((header, _)) if !header.removed => return Err(Error::conflict(format!("volume {to}: it is there already; remove it or use another name"))),
        _ => delete_keys(backing, &to.prefix()).await?,
    }
    link_all(backing, &prefix, &to.prefix(), Some((&prefix, version))).await?;
    let made = Header { id: Uuid::new_v4(), created_ms: now_ms(), ..header };
    put_numbered(backing, to, made).await
}

/// A snapshot as a device that can only be read.
#[derive(Debug)]
pub struct SnapshotDevice {
    name: String,
    header: Header,
    /// Which extents there are.
    index: Index,
    extents: Arc<Extents>,
}

impl SnapshotDevice {
    /// Opens a snapshot.
    ///
    /// # Errors
    /// `NotFound` where there is none; those of the drive.
    pub async fn open(context: &Context, volume: &VolumeName, snapshot: &VolumeName) -> Result<Arc<Self>> {
        let (what, prefix) = (format!("snapshot {snapshot} of volume {volume}"), volume.snapshot_prefix(snapshot));
        let found = read_header(&*context.backing, &what, &prefix).await?.filter(|(header, _)| !header.removed);
        let (header, _) = found.ok_or_else(|| Error::not_found(format!("{what}: there is none on drive {}", context.backing.name())))?;
        let mut index = Index::new(header.extent.into());
        stored_extents(&*context.backing, &what, &prefix, &header, &mut index).await?;
        let extents = Extents::new(what, prefix, header.extent.into(), Arc::clone(&context.backing), Arc::clone(&context.cache));
        Ok(Arc::new(Self { name: format!("{volume}@{snapshot}"), header, index, extents: Arc::new(extents) }))
    }

    fn refused<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T>> {
        async move { Err(Error::conflict(format!("{}: it can't be changed; make a volume of it first", self.extents.what))) }.boxed()
    }
}

impl BlockDevice for SnapshotDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: self.name.clone(), id: self.header.id, size: self.header.size, extent: self.header.extent.into(), read_only: true }
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            check_range(&self.extents.what, self.header.size, at, len.into())?;
            let (size, end) = (u64::from(self.header.extent), at + u64::from(len));
            let part = |extent: u64| (at.max(extent * size) - extent * size) as usize..(end.min((extent + 1) * size) - extent * size) as usize;
            let read = |extent: u64| async move {
                if !self.index.is_stored(extent) {
                    return Ok(BytesMut::zeroed(part(extent).len()).freeze());
                }
                let (from, to) = (part(extent).start / 4096 * 4096, part(extent).end.next_multiple_of(4096));
                let bytes = self.extents.read(extent, from..to).await?;
                Ok::<_, Error>(bytes.slice(part(extent).start - from..part(extent).end - from))
            };
            let mut parts = try_join_all((at / size..end.div_ceil(size)).map(read)).await?;
            if parts.len() == 1 { Ok(parts.remove(0)) } else { Ok(parts.concat().into()) }
        }
        .boxed()
    }

    fn write(&self, _: u64, _: Bytes, _: Durability) -> BoxFuture<'_, Result<()>> {
        self.refused()
    }

    fn compare_and_write(&self, _: u64, _: Bytes, _: Bytes, _: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        self.refused()
    }

    fn zero(&self, _: u64, _: u64, _: Zeros, _: Durability) -> BoxFuture<'_, Result<()>> {
        self.refused()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async { Ok(()) }.boxed()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        async move {
            check_range(&self.extents.what, self.header.size, at, len)?;
            let size = u64::from(self.header.extent);
            let runs = self.index.runs(at / size..(at + len).div_ceil(size), RUNS);
            Ok(to_places(runs, size, at, len))
        }
        .boxed()
    }
}
