//! A volume: reads and writes over its journal and its extents.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Kind, Result};
use tokio::sync::{MutexGuard, Notify};
use uuid::Uuid;

use crate::device::{BlockDevice, DeviceInfo, Durability, Extent, LOGICAL, PHYSICAL, Zeros};
use crate::extents::Extents;
use crate::files::FileIo;
use crate::header::Header;
use crate::index::Index;
use crate::journal::{Journal, Tail};
use crate::merge::MergeState;
use crate::names::VolumeName;
use crate::options::Options;
use crate::record::{MAX_DATA, RecordKind, head_len};

pub(crate) const BLOCK: u64 = PHYSICAL as u64;

/// Blocks share these by their number: the last record that wrote one of them.
const STAMPS: u64 = 4096;

/// After this number of attempts, a write of parts of blocks keeps other writes away.
const ATTEMPTS: u32 = 4;

/// The most extents that one record of zeros covers, of those that are in the store or in the journal; fewer where the
/// reserve of [`Options::dirty_extents`] is smaller.
const ZEROED_AT_ONCE: u64 = 256;

/// Bytes of the journal that only records of zeros may take, so that a full drive can be emptied by them.
const ZEROS_RESERVE: u64 = 256 << 10;

/// The part of [`Options::dirty_extents`] that is kept for them: data never makes zeros wait for long.
const ZEROS_PART: usize = 8;

/// The most runs that [`BlockDevice::extents`] tells at a time.
pub(crate) const RUNS: usize = 4096;

/// A volume that is open. Its background work ends when it is dropped or [stopped](Volume::stop).
#[derive(Debug)]
pub struct Volume {
    pub(crate) name: VolumeName,
    pub(crate) id: Uuid,
    number: u32,
    pub(crate) size: AtomicU64,
    pub(crate) extent: u64,
    pub(crate) options: Options,
    pub(crate) journal: Arc<Journal>,
    pub(crate) index: RwLock<Index>,
    pub(crate) extents: Arc<Extents>,
    /// The header record and its version, which every merge expects.
    pub(crate) header: tokio::sync::Mutex<(Header, u64)>,
    stamps: Box<[AtomicU64]>,
    /// Told when the journal has room again.
    pub(crate) room: Notify,
    /// Told when there is something to merge.
    pub(crate) work: Arc<Notify>,
    pub(crate) merging: tokio::sync::Mutex<()>,
    pub(crate) merge_state: Mutex<MergeState>,
    pub(crate) stopped: AtomicBool,
    /// Why the volume takes no change any more: another process opened it.
    pub(crate) lost: OnceLock<String>,
}

/// What a volume takes besides its extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Blocks, and extents of zeros, that are in the journal alone.
    pub unmerged: u64,
    /// The extents that these belong to.
    pub unmerged_extents: usize,
    /// Why merging fails at present.
    pub merge_failure: Option<String>,
}

/// What a write of some blocks depends on: that nothing wrote to them after this record.
pub(crate) struct Unchanged {
    pub(crate) blocks: Range<u64>,
    pub(crate) since: u64,
}

impl Volume {
    pub(crate) fn new(
        name: VolumeName,
        (header, version): (Header, u64),
        options: Options,
        journal: Arc<Journal>,
        index: Index,
        extents: Arc<Extents>,
    ) -> Self {
        Self {
            name,
            id: header.id,
            number: header.number,
            size: AtomicU64::new(header.size),
            extent: header.extent.into(),
            options,
            journal,
            index: RwLock::new(index),
            extents,
            header: tokio::sync::Mutex::new((header, version)),
            stamps: (0..STAMPS).map(|_| AtomicU64::new(0)).collect(),
            room: Notify::new(),
            work: Arc::default(),
            merging: tokio::sync::Mutex::default(),
            merge_state: Mutex::default(),
            stopped: AtomicBool::new(false),
            lost: OnceLock::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &VolumeName {
        &self.name
    }

    /// By which block protocols address it: from 1, and never given to another volume of the drive.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it takes now.
    #[must_use]
    pub fn usage(&self) -> VolumeUsage {
        let index = self.index.read();
        let (journal_bytes, unmerged, unmerged_extents) = (index.journal_bytes(), index.live(), index.dirty_extents());
        VolumeUsage { journal_bytes, unmerged, unmerged_extents, merge_failure: self.merge_state.lock().failure.as_ref().map(Error::report) }
    }

    /// Extents that are being read from the drive, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn loads(&self) -> usize {
        self.extents.loads()
    }

    pub(crate) fn what(&self) -> String {
        format!("volume {}", self.name)
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        check_range(&self.what(), self.size.load(Ordering::Relaxed), at, len)
    }

    /// Fails where the volume takes no change.
    pub(crate) fn writable(&self) -> Result<()> {
        if let Some(why) = self.lost.get() {
            return Err(Error::conflict(format!("{}: {why}; open it again", self.what())));
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(Error::unavailable(format!("{}: it was closed; open it again", self.what())));
        }
        self.journal.alive()
    }

    /// The blocks of `at` and `len`, which may begin and end within blocks.
    fn blocks(at: u64, len: u64) -> Range<u64> {
        at / BLOCK..(at + len).div_ceil(BLOCK)
    }

    /// Appends a record of whole blocks, if nothing wrote to those that it depends on. Whether it did.
    async fn append(&self, change: (RecordKind, u64, u64), data: &[u8], unchanged: Option<Unchanged>) -> Result<bool> {
        let blocks: Vec<u32> = data.chunks(BLOCK as usize).map(crc32c).collect();
        let mut tail = self.tail_with_room((head_len(blocks.len()) + data.len()) as u64, change).await?;
        self.append_to(&mut tail, change, blocks, data, unchanged).await
    }

    /// As [`Self::append`], to a journal that is held already, with or without room.
    pub(crate) async fn append_to(
        &self,
        tail: &mut Tail,
        change: (RecordKind, u64, u64),
        blocks: Vec<u32>,
        data: &[u8],
        unchanged: Option<Unchanged>,
    ) -> Result<bool> {
        if unchanged.is_some_and(|unchanged| self.is_changed(unchanged)) {
            return Ok(false);
        }
        let need = (head_len(blocks.len()) + data.len()) as u64;
        if self.journal.make_tail(tail, need).await? {
            self.index.write().add_segment(tail.number, Arc::clone(&tail.file), tail.len);
            self.work.notify_one();
        }
        // Nothing is waited for from here on: a record in the journal is in the index.
        let appended = self.journal.append(tail, change, blocks, data)?;
        let written = Self::blocks(change.1, change.2);
        self.stamp(written, appended.record.seq);
        let mut index = self.index.write();
        index.apply(&appended.record, appended.segment, appended.data);
        index.set_len(tail.number, tail.len);
        drop(index);
        self.journal.publish(tail, &appended);
        Ok(true)
    }

    /// How many extents more the journal has something of after a record. Zeros cover more only where most are
    /// unmapped.
    fn extents_of(&self, index: &Index, (_, at, len): (RecordKind, u64, u64)) -> usize {
        let range = at / self.extent..(at + len).div_ceil(self.extent);
        let most = (range.end - range.start).min(ZEROED_AT_ONCE + 1) as usize;
        most.saturating_sub(index.dirty_in(range))
    }

    /// Whether a record of `need` bytes fits.
    fn has_room(&self, index: &Index, need: u64, change: (RecordKind, u64, u64)) -> bool {
        let (bytes, extents) = match change.0 {
            RecordKind::Data => (ZEROS_RESERVE, self.options.dirty_extents / ZEROS_PART),
            RecordKind::Zeros | RecordKind::Unmap => (0, 0),
        };
        index.journal_bytes() + need + bytes <= self.options.journal_bytes
            && index.dirty_extents() + self.extents_of(index, change) + extents <= self.options.dirty_extents
    }

    fn stamp(&self, blocks: Range<u64>, seq: u64) {
        for block in blocks.start..blocks.end.min(blocks.start + STAMPS) {
            self.stamps[(block % STAMPS) as usize].store(seq, Ordering::Relaxed);
        }
    }

    fn is_changed(&self, Unchanged { blocks, since }: Unchanged) -> bool {
        blocks.into_iter().any(|block| self.stamps[(block % STAMPS) as usize].load(Ordering::Relaxed) > since)
    }

    /// The end of the journal, which has room for a record of `need` bytes with this `change`. Waits for merges where
    /// it is full.
    async fn tail_with_room(&self, need: u64, change: (RecordKind, u64, u64)) -> Result<MutexGuard<'_, Tail>> {
        let begun = Instant::now();
        loop {
            let freed = self.room.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            self.writable()?;
            let tail = match self.journal.try_tail() {
                Some(tail) => tail,
                // A snapshot may hold it while it merges.
                None => {
                    let left = self.options.stall.saturating_sub(begun.elapsed());
                    let tail = tokio::time::timeout(left, self.journal.tail()).await;
                    tail.map_err(|_| Error::unavailable(format!("{}: other changes took longer than {:?}; try again later", self.what(), self.options.stall)))?
                }
            };
            // It may have been closed meanwhile: nothing comes into the journal after that.
            self.writable()?;
            {
                let index = self.index.read();
                if self.is_pressing(&index) {
                    self.work.notify_one();
                }
                if self.has_room(&index, need, change) {
                    return Ok(tail);
                }
            }
            drop(tail);
            let failure = self.merge_state.lock().failure.as_ref().map(Error::flattened);
            let left = self.options.stall.saturating_sub(begun.elapsed());
            let full = failure.as_ref().is_some_and(|failure| failure.kind() == Kind::Exhausted);
            if full || left.is_zero() || tokio::time::timeout(left, freed).await.is_err() {
                return Err(self.no_room(failure));
            }
        }
    }

    fn no_room(&self, failure: Option<Error>) -> Error {
        let what = format!("{}: its journal is full and nothing of it can be moved to drive {}", self.what(), self.extents.backing.name());
        match failure {
            Some(failure) => Error::new(failure.kind(), what).with_source(failure),
            None => Error::unavailable(format!("{what} in {:?}; try again later", self.options.stall)),
        }
    }

    /// Writes bytes that may begin and end within blocks.
    async fn write_parts(&self, at: u64, data: &[u8], expected: Option<&[u8]>) -> Result<Option<u32>> {
        let blocks = Self::blocks(at, data.len() as u64);
        let (from, to) = ((at - blocks.start * BLOCK) as usize, (at - blocks.start * BLOCK) as usize + data.len());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let len = (blocks.end - blocks.start) * BLOCK;
            let change = (RecordKind::Data, blocks.start * BLOCK, len);
            // Only in the last resort, because the read may have to wait for the drive.
            let held = if attempts > ATTEMPTS { Some(self.tail_with_room(head_len((len / BLOCK) as usize) as u64 + len, change).await?) } else { None };
            let since = self.journal.appended();
            let before = self.read_blocks(blocks.clone()).await?;
            if let Some(differs) = expected.and_then(|expected| before[from..to].iter().zip(expected).position(|(a, b)| a != b)) {
                return Ok(Some(differs as u32));
            }
            let mut after = BytesMut::from(before.as_ref());
            after[from..to].copy_from_slice(data);
            let unchanged = Unchanged { blocks: blocks.clone(), since };
            let done = match held {
                Some(mut tail) => {
                    let crcs = after.chunks(BLOCK as usize).map(crc32c).collect();
                    self.append_to(&mut tail, change, crcs, &after, Some(unchanged)).await?
                }
                None => self.append(change, &after, Some(unchanged)).await?,
            };
            if done {
                return Ok(None);
            }
        }
    }

    async fn write_all(&self, at: u64, data: &[u8]) -> Result<()> {
        // Blocks that are not covered whole are written apart: the others need no read.
        let (end, first) = (at + data.len() as u64, at.next_multiple_of(BLOCK));
        let last = end / BLOCK * BLOCK;
        if first >= last {
            if !data.is_empty() {
                for (from, to) in [(at, end.min(first)), (end.min(first), end)] {
                    if from < to {
                        self.write_parts(from, &data[(from - at) as usize..(to - at) as usize], None).await?;
                    }
                }
            }
            return Ok(());
        }
        if at < first {
            self.write_parts(at, &data[..(first - at) as usize], None).await?;
        }
        let whole = &data[(first - at) as usize..(last - at) as usize];
        for (n, piece) in whole.chunks(MAX_DATA).enumerate() {
            self.append((RecordKind::Data, first + (n * MAX_DATA) as u64, piece.len() as u64), piece, None).await?;
        }
        if last < end {
            self.write_parts(last, &data[(last - at) as usize..], None).await?;
        }
        Ok(())
    }

    async fn zero_all(&self, at: u64, len: u64, how: Zeros) -> Result<()> {
        let size = self.size.load(Ordering::Relaxed);
        let (end, first) = (at + len, at.next_multiple_of(BLOCK));
        let last = end / BLOCK * BLOCK;
        if first >= last {
            return self.write_all(at, &vec![0; len as usize]).await;
        }
        self.write_all(at, &vec![0; (first - at) as usize]).await?;
        // The last extent may reach beyond the end; there is nothing in it.
        let until = if last == size { last.next_multiple_of(self.extent) } else { last };
        let kind = if how == Zeros::Mapped { RecordKind::Zeros } else { RecordKind::Unmap };
        let mut from = first;
        while from < until {
            let Some((begin, to)) = self.next_zeroed(from, until, how) else { break };
            self.append((kind, begin, to - begin), &[], None).await?;
            from = to;
        }
        self.write_all(last, &vec![0; (end - last) as usize]).await
    }

    /// The next places to be zeroed: those of a bounded number of extents, without what is unmapped already.
    fn next_zeroed(&self, from: u64, until: u64, how: Zeros) -> Option<(u64, u64)> {
        // With the reserve alone there is room for it.
        let most = ZEROED_AT_ONCE.min((self.options.dirty_extents / ZEROS_PART) as u64 - 1);
        if how == Zeros::Mapped {
            return Some((from, until.min((from / self.extent + most) * self.extent)));
        }
        let index = self.index.read();
        let last = until.div_ceil(self.extent);
        let first = index.next_touched(from / self.extent, last)?;
        let mut after = first + 1;
        for _ in 1..most {
            match index.next_touched(after, last) {
                Some(next) => after = next + 1,
                None => break,
            }
        }
        Some((from.max(first * self.extent), until.min(after * self.extent)))
    }

    async fn flush_after(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.flush_all().await,
        }
    }

    async fn flush_all(&self) -> Result<()> {
        self.journal.sync().await?;
        if self.options.flush_merges { self.merge_flushed().await } else { Ok(()) }
    }
}

/// `Invalid` for places that are no blocks of a device.
pub(crate) fn check_range(what: &str, size: u64, at: u64, len: u64) -> Result<()> {
    let fits = at.checked_add(len).is_some_and(|end| end <= size);
    if fits && at.is_multiple_of(LOGICAL.into()) && len.is_multiple_of(LOGICAL.into()) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what}: {len} bytes at {at} are no blocks of a device of {size} bytes")))
}

/// Reads blocks from the journal and verifies them; `false` where `wait` would be needed.
pub(crate) fn read_journal(
    volume: &dyn std::fmt::Display,
    file: &Arc<dyn FileIo>,
    at: u64,
    crcs: &[u32],
    to: &mut [u8],
    (place, wait): (u64, bool),
) -> Result<bool> {
    let end = place + to.len() as u64;
    let failed = |e: std::io::Error| {
        let text = format!("volume {volume}: bytes {place} to {end} can't be read from its journal");
        let damaged = e.kind() == std::io::ErrorKind::UnexpectedEof || e.raw_os_error() == Some(5);
        Error::new(if damaged { Kind::Corrupt } else { Kind::Unavailable }, text).with_source(e)
    };
    match file.read_at(at, to, wait) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(e) => return Err(failed(e)),
    }
    match to.chunks(BLOCK as usize).zip(crcs).position(|(block, crc)| crc32c(block) != *crc) {
        None => Ok(true),
        Some(block) => {
            let place = place + block as u64 * BLOCK;
            Err(Error::corrupt(format!(
                "volume {volume}: extent data at bytes {place} to {} is damaged in its journal: write these blocks again, or restore them",
                place + BLOCK
            )))
        }
    }
}

/// `runs` of extents as places, cut to `at` and `len`.
pub(crate) fn to_places(runs: Vec<(Range<u64>, bool)>, extent: u64, at: u64, len: u64) -> Vec<Extent> {
    let cut = |(run, mapped): (Range<u64>, bool)| {
        let (from, to) = ((run.start * extent).max(at), (run.end * extent).min(at + len));
        Extent { at: from, len: to.saturating_sub(from), mapped }
    };
    runs.into_iter().map(cut).filter(|found| found.len > 0).collect()
}

impl Drop for Volume {
    fn drop(&mut self) {
        // The task that merges looks up, and ends.
        self.work.notify_one();
    }
}

impl BlockDevice for Volume {
    fn keeps_notes(&self) -> bool {
        true
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>>> {
        self.read_note(name).boxed()
    }

    fn keep_note<'a>(&'a self, name: &'a str, note: Option<Bytes>) -> BoxFuture<'a, Result<()>> {
        self.write_note(name, note).boxed()
    }

    fn info(&self) -> DeviceInfo {
        let size = self.size.load(Ordering::Relaxed);
        DeviceInfo { name: self.name.to_string(), id: self.id, size, extent: self.extent, read_only: false }
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            self.check(at, len.into())?;
            if len == 0 {
                return Ok(Bytes::new());
            }
            let blocks = Self::blocks(at, len.into());
            let from = (at - blocks.start * BLOCK) as usize;
            Ok(self.read_blocks(blocks).await?.slice(from..from + len as usize))
        }
        .boxed()
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.check(at, data.len() as u64)?;
            self.writable()?;
            self.write_all(at, &data).await?;
            self.flush_after(durability).await
        }
        .boxed()
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        async move {
            self.check(at, data.len() as u64)?;
            self.writable()?;
            if expected.len() != data.len() || data.len() > MAX_DATA - BLOCK as usize {
                let (len, most) = (data.len(), MAX_DATA - BLOCK as usize);
                return Err(Error::invalid(format!("{}: {len} bytes can't be compared with {}; at most {most} can", self.what(), expected.len())));
            }
            if data.is_empty() {
                return Ok(None);
            }
            let differs = self.write_parts(at, &data, Some(&expected)).await?;
            if differs.is_none() {
                self.flush_after(durability).await?;
            }
            Ok(differs)
        }
        .boxed()
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.check(at, len)?;
            self.writable()?;
            if len > 0 {
                self.zero_all(at, len, how).await?;
            }
            self.flush_after(durability).await
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            self.writable()?;
            self.flush_all().await
        }
        .boxed()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        async move {
            self.check(at, len)?;
            let runs = self.index.read().runs(at / self.extent..(at + len).div_ceil(self.extent), RUNS);
            Ok(to_places(runs, self.extent, at, len))
        }
        .boxed()
    }
}
