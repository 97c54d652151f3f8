//! Merges what the journal holds into extents, and gives its segments free.
//!
//! A batch takes the extents with the oldest content, reads what of them it does not replace, and puts them under the
//! condition that the volume's header record has not changed: another process that opened the volume has changed it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use skytether_common::{Error, Kind, Result};
use skytether_store::{Expect, Op};
use tokio::sync::MutexGuard;
use tokio::task::spawn_blocking;

use crate::index::{Dirty, Index, Piece, Source};
use crate::names::{extent_key, header_key};
use crate::record::RecordKind;
use crate::volume::{BLOCK, Unchanged, Volume, read_journal};

/// Extents are read this many at a time.
const READS: usize = 8;

/// Extents that are removed at a time after the drive was full.
const UNMAPPED_AT_ONCE: usize = 32;

/// Pauses after a failure: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An extent that can't be read is tried again after this time.
const RETRY: Duration = Duration::from_secs(60);

/// How the merging goes.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    /// Why the last batch failed.
    pub(crate) failure: Option<Error>,
    /// Extents that can't be merged, because what they are made of is damaged, and when this was found.
    pub(crate) damaged: BTreeMap<u64, Instant>,
    failures: u32,
    /// The last record at the last look.
    seen: u64,
}

/// One extent of a batch.
struct Merging {
    extent: u64,
    dirty: Dirty,
    pieces: Vec<Piece>,
    base: Option<Bytes>,
}

/// Proof that no other merge is under way.
pub(crate) type Alone<'a> = MutexGuard<'a, ()>;

impl Volume {
    /// Whether the journal is so full that it must be merged.
    pub(crate) fn is_pressing(&self, index: &Index) -> bool {
        index.journal_bytes() > self.options.journal_bytes / 2 || index.dirty_extents() > self.options.dirty_extents / 2
    }

    /// Merges in the background until the volume is dropped or stopped.
    pub(crate) fn spawn_merging(self: &Arc<Self>) {
        let (weak, work, idle) = (Arc::downgrade(self), Arc::clone(&self.work), self.options.idle);
        tokio::spawn(async move {
            let mut quiet = false;
            loop {
                let pause = match weak.upgrade() {
                    Some(volume) if !volume.stopped.load(Ordering::Acquire) => volume.merge_turn(quiet).await,
                    _ => return,
                };
                match pause {
                    // After a failure, nothing makes it earlier.
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => quiet = tokio::time::timeout(idle, work.notified()).await.is_err(),
                }
            }
        });
    }

    /// Merges while the journal is full, or if the time since the last turn was `quiet`. The pause after a failure.
    async fn merge_turn(&self, quiet: bool) -> Option<Duration> {
        // Segments whose records were all overwritten go without a merge. Nothing does once the volume has stopped: who
        // opens it then has the journal's files.
        {
            let _alone = self.merging.lock().await;
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            if let Err(error) = self.free_segments().await {
                return Some(self.pause_after(&error));
            }
        }
        let seen = self.journal.appended();
        let idle = std::mem::replace(&mut self.merge_state.lock().seen, seen) == seen && quiet;
        loop {
            let wanted = {
                let index = self.index.read();
                self.is_pressing(&index) || (idle && index.live() > 0 && self.journal.appended() == seen)
            };
            if !wanted || self.stopped.load(Ordering::Acquire) {
                return None;
            }
            let alone = self.merging.lock().await;
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            match self.merge_batch(&alone).await {
                Ok(0) => match self.move_damaged().await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(self.pause_after(&error)),
                },
                Ok(_) => {}
                Err(error) => return Some(self.pause_after(&error)),
            }
        }
    }

    fn pause_after(&self, error: &Error) -> Duration {
        let mut state = self.merge_state.lock();
        if state.failures == 0 {
            tracing::warn!(volume = %self.name, error = %error.report(), "what the journal holds can't be merged; trying again");
        }
        state.failures += 1;
        drop(state);
        self.room.notify_waiters();
        PAUSES.0.saturating_mul(1 << self.merge_state.lock().failures.min(10)).min(PAUSES.1)
    }

    /// Merges everything that is in the journal when it begins, and what comes meanwhile.
    ///
    /// # Errors
    /// `Corrupt` where extents that are damaged stand in the way, others of the drive.
    pub(crate) async fn merge_all(&self, alone: &Alone<'_>) -> Result<()> {
        self.merge_state.lock().damaged.clear();
        while self.index.read().dirty_extents() > 0 {
            self.writable_to_merge()?;
            if self.merge_batch(alone).await? == 0 {
                let state = self.merge_state.lock();
                let failure = state.failure.as_ref().map_or_else(|| Error::internal(format!("{}: nothing could be merged", self.what())), Error::flattened);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn writable_to_merge(&self) -> Result<()> {
        match self.lost.get() {
            Some(why) => Err(Error::conflict(format!("{}: {why}; open it again", self.what()))),
            None => Ok(()),
        }
    }

    /// Merges the extents with the oldest content; how many.
    ///
    /// # Errors
    /// Those of the drive. Extents that are damaged are noted and left out.
    pub(crate) async fn merge_batch(&self, alone: &Alone<'_>) -> Result<usize> {
        self.merge_picked(alone, self.pick()).await
    }

    async fn merge_picked(&self, _alone: &Alone<'_>, picked: Vec<Merging>) -> Result<usize> {
        let merged = self.try_batch(picked).await;
        let mut state = self.merge_state.lock();
        match &merged {
            Ok(0) => {}
            Ok(_) => {
                state.failures = 0;
                if state.damaged.is_empty() {
                    state.failure = None;
                }
            }
            Err(error) => state.failure = Some(error.flattened()),
        }
        merged
    }

    async fn try_batch(&self, picked: Vec<Merging>) -> Result<usize> {
        self.writable_to_merge()?;
        let batch = self.read_bases(picked).await?;
        if batch.is_empty() {
            return Ok(0);
        }
        let (name, extent_bytes) = (self.name.clone(), self.extent as usize);
        let built = spawn_blocking(move || {
            let build = |merging: Merging| {
                let built = build(&name, extent_bytes, &merging);
                (merging, built)
            };
            batch.into_iter().map(build).collect::<Vec<_>>()
        });
        let built = built.await.map_err(|e| Error::internal(format!("{}: a merge ended early", self.what())).with_source(e))?;
        let mut ready = Vec::new();
        for (merging, content) in built {
            match content {
                Ok(content) => ready.push((merging, content)),
                Err(error) => self.note_damage(merging.extent, error)?,
            }
        }
        self.put(ready).await
    }

    /// Merges all that the journal holds now, for a flush: what comes meanwhile is for the next one. It waits for a
    /// store that does not answer, and for another merge or a snapshot, as long as a writer waits for room.
    ///
    /// # Errors
    /// Those of the drive; Corrupt where an extent is damaged, so that what was written to it is durable in the journal
    /// alone.
    pub(crate) async fn merge_flushed(&self) -> Result<()> {
        let until = Instant::now() + self.options.stall;
        let most = (self.options.merge_bytes / self.extent).max(1) as usize;
        let mut left = self.index.read().all_dirty();
        let asked = left.clone();
        while !left.is_empty() {
            let alone = tokio::time::timeout_at(until.into(), self.merging.lock()).await.map_err(|_| {
                Error::unavailable(format!(
                    "{}: what was flushed is in the host's journal alone, since another merge or a snapshot took longer than {:?}; try again later",
                    self.what(),
                    self.options.stall
                ))
            })?;
            self.writable()?;
            let rest = left.len().saturating_sub(most);
            let picked = {
                let index = self.index.read();
                let merging = |extent: &u64| index.to_merge(*extent).map(|(dirty, pieces)| Merging { extent: *extent, dirty, pieces, base: None });
                left[rest..].iter().filter_map(merging).collect()
            };
            match self.merge_picked(&alone, picked).await {
                Ok(_) => left.truncate(rest),
                Err(error) if error.kind() == Kind::Unavailable && Instant::now() + PAUSES.0 < until => {
                    drop(alone);
                    tokio::time::sleep(PAUSES.0).await;
                }
                Err(error) => return Err(error),
            }
        }
        let (index, state) = (self.index.read(), self.merge_state.lock());
        match asked.into_iter().find(|extent| state.damaged.contains_key(extent) && index.to_merge(*extent).is_some()) {
            None => Ok(()),
            Some(extent) => Err(Error::corrupt(format!(
                "{}: extent {extent} is damaged, so that what was written to it is in the host's journal alone: scrub, or write the whole extent",
                self.what()
            ))),
        }
    }

    /// The next extents, as far as they are not known to be damaged. After the drive was full, those first that give
    /// space back, whatever their age, and otherwise one at a time: a batch fails as a whole.
    fn pick(&self) -> Vec<Merging> {
        let was_full = self.merge_state.lock().failure.as_ref().is_some_and(|failure| failure.kind() == Kind::Exhausted);
        let damaged: Vec<u64> = {
            let mut state = self.merge_state.lock();
            state.damaged.retain(|_, since| since.elapsed() < RETRY);
            state.damaged.keys().copied().collect()
        };
        let most = (self.options.merge_bytes / self.extent).max(1) as usize;
        let index = self.index.read();
        let merging = |extent| index.to_merge(extent).map(|(dirty, pieces)| Merging { extent, dirty, pieces, base: None });
        let unmapping = if was_full { index.unmapping(UNMAPPED_AT_ONCE) } else { Vec::new() };
        if !unmapping.is_empty() {
            return unmapping.into_iter().filter_map(merging).collect();
        }
        let most = if was_full { 1 } else { most };
        // One that is replaced as a whole is merged without what is damaged.
        let possible = |merging: &Merging| damaged.binary_search(&merging.extent).is_err() || !merging.needs_base();
        let picked = index.oldest(most + damaged.len(), u64::MAX).into_iter();
        picked.filter_map(merging).filter(possible).take(most).collect()
    }

    /// The batch with the extents as they are now, where they are needed.
    async fn read_bases(&self, batch: Vec<Merging>) -> Result<Vec<Merging>> {
        let read = |mut merging: Merging| async move {
            if merging.needs_base() {
                match self.extents.whole(merging.extent).await {
                    Ok(base) => merging.base = Some(base),
                    Err(error) => return self.note_damage(merging.extent, error).map(|()| None),
                }
            }
            Ok(Some(merging))
        };
        let reads: Vec<_> = stream::iter(batch.into_iter().map(read)).buffered(READS).collect().await;
        Ok(reads.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Leaves out an extent that is damaged; other errors go on.
    fn note_damage(&self, extent: u64, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        let mut state = self.merge_state.lock();
        if state.damaged.insert(extent, Instant::now()).is_none() {
            tracing::warn!(volume = %self.name, extent, error = %error.report(), "an extent is damaged, so that writes to it stay in the journal");
        }
        state.failure = Some(error);
        Ok(())
    }

    async fn put(&self, ready: Vec<(Merging, Bytes)>) -> Result<usize> {
        if ready.is_empty() {
            return Ok(0);
        }
        let prefix = &self.extents.prefix;
        let header = self.header.lock().await;
        let mut batch = vec![Op::Check { key: header_key(prefix)?, expect: Expect::Version(header.1) }];
        let mut keeps = Vec::with_capacity(ready.len());
        for (merging, content) in &ready {
            let keep = merging.dirty.is_mapping() || (merging.needs_base() && content.iter().any(|byte| *byte != 0));
            keeps.push(keep);
            let key = extent_key(prefix, merging.extent)?;
            if keep {
                batch.push(Op::Put { key, value: content.clone(), expect: Expect::Any });
            } else {
                self.extents.unsure.lock().insert(merging.extent);
                batch.push(Op::Delete { key, expect: Expect::Any });
            }
        }
        if let Err(error) = self.extents.backing.apply(batch).await {
            if error.kind() == Kind::Conflict {
                let _ = self.lost.set("another process has opened or removed it".to_owned());
                self.room.notify_waiters();
            }
            return Err(error.context(format!("{}: extents can't be stored on drive {}", self.what(), self.extents.backing.name())));
        }
        drop(header);
        let count = ready.len();
        for ((merging, content), keep) in ready.into_iter().zip(keeps) {
            // The cache first: who no longer finds the content in the index must not find an older one there.
            self.extents.changed(merging.extent, keep.then_some(&content));
            self.index.write().merged(merging.extent, &merging.dirty, keep);
            self.extents.unsure.lock().remove(&merging.extent);
            self.merge_state.lock().damaged.remove(&merging.extent);
        }
        self.free_segments().await?;
        Ok(count)
    }

    /// Removes the segments that hold nothing any more.
    async fn free_segments(&self) -> Result<()> {
        let is_blocked = {
            let mut index = self.index.write();
            self.bury_dead(&mut index);
            index.is_oldest_dead(self.journal.tail_number() - 1) && self.is_pressing(&index)
        };
        if is_blocked {
            // What was durable there was overwritten, but not durably.
            self.journal.sync().await?;
            self.bury_dead(&mut self.index.write());
        }
        // Extents that are merged give room as well.
        self.room.notify_waiters();
        self.journal.remove().await
    }

    fn bury_dead(&self, index: &mut Index) {
        let dead = index.take_dead(self.journal.tail_number() - 1, self.journal.may_go());
        self.journal.bury(dead);
    }

    /// Where damaged extents alone keep the oldest segment, and the journal is full: appends what it holds of them
    /// again, so that it can go. Whether that gave room.
    async fn move_damaged(&self) -> Result<bool> {
        let damaged: Vec<u64> = self.merge_state.lock().damaged.keys().copied().collect();
        let before = {
            let index = self.index.read();
            if !self.is_pressing(&index) {
                return Ok(false);
            }
            index.journal_bytes()
        };
        for extent in damaged {
            let since = self.journal.appended();
            let found = {
                let index = self.index.read();
                if index.is_oldest(extent) { index.to_merge(extent) } else { None }
            };
            for piece in found.into_iter().flat_map(|(_, pieces)| pieces) {
                self.append_again(extent, piece, since).await?;
            }
        }
        self.free_segments().await?;
        Ok(self.index.read().journal_bytes() < before)
    }

    /// Appends a piece of an extent again, unless it was written since.
    async fn append_again(&self, extent: u64, piece: Piece, since: u64) -> Result<()> {
        let first = extent * (self.extent / BLOCK);
        let blocks = first + u64::from(piece.blocks.start)..first + u64::from(piece.blocks.end);
        let (at, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        let (kind, crcs, data) = match piece.source {
            Source::Stored => return Ok(()),
            Source::Zeros => (RecordKind::Zeros, Vec::new(), Vec::new()),
            Source::Journal { file, at: from, crcs } => {
                let name = self.name.clone();
                let read = spawn_blocking(move || {
                    let mut data = vec![0; len as usize];
                    read_journal(&name, &file, from, &crcs, &mut data, (at, true)).map(|_| (crcs, data))
                });
                let (crcs, data) = read.await.map_err(|e| Error::internal(format!("{}: a read ended early", self.what())).with_source(e))??;
                (RecordKind::Data, crcs, data)
            }
        };
        let mut tail = self.journal.tail().await;
        self.append_to(&mut tail, (kind, at, len), crcs, &data, Some(Unchanged { blocks, since })).await.map(drop)
    }
}

impl Merging {
    fn needs_base(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece.source, Source::Stored))
    }
}

/// The content of an extent.
fn build(volume: &dyn std::fmt::Display, extent_bytes: usize, merging: &Merging) -> Result<Bytes> {
    let mut content = BytesMut::zeroed(extent_bytes);
    for piece in &merging.pieces {
        let range = piece.blocks.start as usize * BLOCK as usize..piece.blocks.end as usize * BLOCK as usize;
        let place = merging.extent * extent_bytes as u64 + range.start as u64;
        match (&piece.source, &merging.base) {
            (Source::Zeros, _) => {}
            (Source::Stored, Some(base)) => content[range.clone()].copy_from_slice(&base[range]),
            (Source::Stored, None) => return Err(Error::internal(format!("volume {volume}: an extent to merge was not read"))),
            (Source::Journal { file, at, crcs }, _) => {
                read_journal(volume, file, *at, crcs, &mut content[range], (place, true))?;
            }
        }
    }
    Ok(content.freeze())
}
