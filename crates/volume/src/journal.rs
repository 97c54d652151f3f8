//! The journal of a volume: writes in segments on the local disk, durable by groups.
//!
//! | file | content |
//! |---|---|
//! | `journal` | JSON: format, id of the journal, id of the volume, secret |
//! | `durable` | the last record that is known to be durable, and the oldest segment; see [`Marked`] |
//! | `<number>.segment` | records; see [`record`](crate::record) |
//!
//! Invariants: segments are removed oldest first and have no gaps. A segment's name is durable before it has records. A
//! flush makes older segments durable before newer ones.
//!
//! The files of some removed segments are kept and used again: to write to pages that the system has in memory takes a
//! fifth of the time that new ones take. The number of a segment is part of its records' checksums, so that old ones
//! are no records of the new segment. Its head is durable with its first record; before, the file has an older head,
//! or one that says that it is not in use.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use tokio::sync::MutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use crate::files::{FileIo, Files};
use crate::record::{HEAD, Head, MAX_NUMBER, Mark, Marked, Record, RecordKind};

pub(crate) const CONTROL: &str = "journal";
pub(crate) const MARK: &str = "durable";
pub(crate) const FORMAT: u32 = 1;

/// The name of a segment's file.
#[must_use]
pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:016x}.segment")
}

/// The number of the segment in the file `name`.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".segment").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|number| *number <= MAX_NUMBER)
}

/// What a journal is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Control {
    pub(crate) format: u32,
    /// The header record of the volume names it while writes may be here alone.
    pub(crate) id: Uuid,
    pub(crate) volume: Uuid,
    pub(crate) secret: u64,
}

/// The segment that is written.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn FileIo>,
    pub(crate) len: u64,
    /// The last sequence number.
    seq: u64,
    /// The next segment, which is made while this one is filled.
    next: Option<JoinHandle<io::Result<Arc<dyn FileIo>>>>,
}

/// A record that was appended.
#[derive(Debug)]
pub(crate) struct Appended {
    pub(crate) record: Record,
    pub(crate) segment: u64,
    /// Where its data begins in the segment.
    pub(crate) data: u64,
}

#[derive(Debug, Default)]
struct Progress {
    appended: Mark,
    durable: Mark,
    /// What the flush that is under way, or was the last, makes durable.
    promised: Mark,
    /// Segments with records that are not durable, oldest first.
    unsynced: Vec<(u64, Arc<dyn FileIo>)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    /// For errors: `volume a`.
    what: String,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) control: Control,
    segment_bytes: u64,
    tail: tokio::sync::Mutex<Tail>,
    tail_number: AtomicU64,
    appended: AtomicU64,
    durable: AtomicU64,
    progress: Mutex<Progress>,
    syncing: tokio::sync::Mutex<()>,
    mark: Arc<dyn FileIo>,
    /// What its file has; locked while that is written.
    marked: Arc<Mutex<Marked>>,
    /// Why nothing more can become durable.
    failed: OnceLock<String>,
    /// Segments that hold nothing any more, oldest first.
    dead: Mutex<VecDeque<(u64, Arc<dyn FileIo>)>>,
    removing: Arc<tokio::sync::Mutex<()>>,
    /// Retired files, by their former names.
    spare: Arc<Mutex<Vec<String>>>,
    /// The most of them.
    most_spare: usize,
}

impl Journal {
    /// A journal that goes on after record `seq` in an empty segment.
    pub(crate) fn new(
        what: String,
        files: Arc<dyn Files>,
        control: Control,
        (segment_bytes, most_spare): (u64, usize),
        (mark, marked): (Arc<dyn FileIo>, Marked),
        seq: u64,
        number: u64,
    ) -> Result<Self> {
        let durable = marked.durable;
        let head = Head { volume: control.volume, secret: control.secret, number, first: seq + 1 };
        let failed = |e| Error::io("create", format!("{}/{}", files.place(), segment_name(number)), e);
        let file = files.create(&segment_name(number), &head.encode()).map_err(failed)?;
        let tail = Tail { number, file, len: HEAD as u64, seq, next: None };
        Ok(Self {
            what,
            files,
            control,
            segment_bytes,
            tail: tokio::sync::Mutex::new(tail),
            tail_number: AtomicU64::new(number),
            appended: AtomicU64::new(seq),
            durable: AtomicU64::new(seq),
            progress: Mutex::new(Progress { appended: durable, durable, promised: durable, unsynced: Vec::new() }),
            syncing: tokio::sync::Mutex::default(),
            mark,
            marked: Arc::new(Mutex::new(marked)),
            failed: OnceLock::new(),
            dead: Mutex::default(),
            removing: Arc::default(),
            spare: Arc::default(),
            most_spare,
        })
    }

    /// The last record that was appended.
    pub(crate) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// The number of the segment that is written.
    pub(crate) fn tail_number(&self) -> u64 {
        self.tail_number.load(Ordering::Acquire)
    }

    /// Waits until no work is under way any more in other threads.
    pub(crate) async fn settle(&self) {
        let mut tail = self.tail.lock().await;
        if let Some(next) = tail.next.take() {
            drop(next.await);
        }
        drop(self.syncing.lock().await);
        drop(self.removing.lock().await);
    }

    /// The number, file and length of the first segment, before anything was appended.
    pub(crate) fn begin(&mut self) -> (u64, Arc<dyn FileIo>, u64) {
        let tail = self.tail.get_mut();
        (tail.number, Arc::clone(&tail.file), tail.len)
    }

    /// Holds off all other appends.
    pub(crate) async fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().await
    }

    /// As [`Self::tail`], if nothing else holds it.
    pub(crate) fn try_tail(&self) -> Option<MutexGuard<'_, Tail>> {
        self.tail.try_lock().ok()
    }

    /// Which segments can go that hold nothing any more: by a segment's number, and the last record that overwrote
    /// something of it. What was durable in it must have been overwritten durably, or a loss of power would bring back
    /// what was there before both.
    pub(crate) fn may_go(&self) -> impl Fn(u64, u64) -> bool + use<> {
        let progress = self.progress.lock();
        let (appended, durable, promised) = (progress.appended.seq, progress.durable, progress.promised.max(progress.durable));
        move |number, overwritten| overwritten <= durable.seq || (number > promised.segment && overwritten <= appended)
    }

    /// Fails where nothing more can become durable.
    pub(crate) fn alive(&self) -> Result<()> {
        match self.failed.get() {
            Some(why) => Err(Error::unavailable(format!("{}: its journal failed ({why}); open the volume again to see what is durable", self.what))),
            None => Ok(()),
        }
    }

    /// Makes sure that `tail` takes `need` bytes more; whether it is another segment now.
    pub(crate) async fn make_tail(self: &Arc<Self>, tail: &mut Tail, need: u64) -> Result<bool> {
        let next = tail.number + 1;
        if tail.next.is_none() && tail.len > HEAD as u64 {
            tail.next = Some(self.prepare(next));
        }
        if tail.len + need <= self.segment_bytes || tail.len == HEAD as u64 {
            return Ok(false);
        }
        let prepared = match &mut tail.next {
            Some(next) => next,
            none => none.insert(self.prepare(next)),
        };
        let made = prepared.await;
        tail.next = None;
        let failed = |e| Error::io("create", format!("{}/{}", self.files.place(), segment_name(next)), e).context(self.what.clone());
        let file = made.map_err(|e| Error::internal(format!("{}: a thread ended early", self.what)).with_source(e))?.map_err(failed)?;
        // Durable with the first record.
        let head = Head { volume: self.control.volume, secret: self.control.secret, number: next, first: tail.seq + 1 };
        file.write_at(0, &[&head.encode()]).map_err(failed)?;
        (tail.number, tail.file, tail.len) = (next, file, HEAD as u64);
        self.tail_number.store(next, Ordering::Release);
        Ok(true)
    }

    fn prepare(self: &Arc<Self>, number: u64) -> JoinHandle<io::Result<Arc<dyn FileIo>>> {
        let head = Head { volume: self.control.volume, secret: self.control.secret, number, first: 0 };
        let (files, spare) = (Arc::clone(&self.files), Arc::clone(&self.spare));
        spawn_blocking(move || {
            let retired = spare.lock().pop();
            match retired.map(|retired| files.reuse(&retired, &segment_name(number), &head.encode())) {
                Some(Ok(file)) => Ok(file),
                _ => files.create(&segment_name(number), &head.encode()),
            }
        })
    }

    /// Appends a record. `data` are its parts, for which [`Self::make_tail`] has made room.
    pub(crate) fn append(&self, tail: &mut Tail, (kind, at, len): (RecordKind, u64, u64), blocks: Vec<u32>, data: &[u8]) -> Result<Appended> {
        self.alive()?;
        let record = Record { seq: tail.seq + 1, at, len, kind, durable: self.progress.lock().durable, blocks };
        let head = record.encode(self.control.secret, tail.number);
        let from = tail.len;
        // After an error the next record takes the same place and number.
        tail.file
            .write_at(from, &[&head, data])
            .map_err(|e| Error::io("write", format!("{}/{}", self.files.place(), segment_name(tail.number)), e).context(self.what.clone()))?;
        let start = from + head.len() as u64;
        tail.seq = record.seq;
        tail.len = start + data.len() as u64;
        Ok(Appended { record, segment: tail.number, data: start })
    }

    /// Lets flushes know of a record, after the index has it.
    pub(crate) fn publish(&self, tail: &Tail, appended: &Appended) {
        let mut progress = self.progress.lock();
        progress.appended = Mark { segment: tail.number, seq: appended.record.seq };
        if progress.unsynced.last().is_none_or(|(number, _)| *number != tail.number) {
            progress.unsynced.push((tail.number, Arc::clone(&tail.file)));
        }
        self.appended.store(appended.record.seq, Ordering::Release);
    }

    /// Makes all records durable that were appended before the call.
    pub(crate) async fn sync(self: &Arc<Self>) -> Result<()> {
        let wanted = self.appended();
        if self.durable.load(Ordering::Acquire) >= wanted {
            return self.alive();
        }
        // A task of its own: its outcome counts also where the caller goes away.
        let journal = Arc::clone(self);
        let flush = tokio::spawn(async move {
            let _one = journal.syncing.lock().await;
            journal.alive()?;
            if journal.durable.load(Ordering::Acquire) >= wanted { Ok(()) } else { journal.sync_files().await }
        });
        flush.await.map_err(|e| Error::internal(format!("{}: a flush ended early", self.what)).with_source(e))?
    }

    async fn sync_files(&self) -> Result<()> {
        let (last, files) = {
            let mut progress = self.progress.lock();
            progress.promised = progress.appended;
            (progress.appended, std::mem::take(&mut progress.unsynced))
        };
        let write_mark = self.mark_writer();
        let flush = move || {
            files.iter().try_for_each(|(_, file)| file.sync())?;
            write_mark(&|marked| marked.durable = last)
        };
        let done = spawn_blocking(flush).await;
        let done = done.map_err(|e| io::Error::other(format!("a thread ended early: {e}"))).and_then(|done| done);
        if let Err(e) = done {
            // The system has dropped what it could not write: to try again would only seem to work.
            let _ = self.failed.set(e.to_string());
            return self.alive();
        }
        self.progress.lock().durable = last;
        self.durable.store(last.seq, Ordering::Release);
        Ok(())
    }

    /// Changes the mark and writes it.
    fn mark_writer(&self) -> impl Fn(&dyn Fn(&mut Marked)) -> io::Result<()> + Send + 'static {
        let (mark, marked, secret) = (Arc::clone(&self.mark), Arc::clone(&self.marked), self.control.secret);
        move |change| {
            let mut marked = marked.lock();
            change(&mut marked);
            mark.write_at(0, &[&marked.encode(secret)])
        }
    }

    /// Notes segments for [`Self::remove`], oldest first. From here on the index does not know them.
    pub(crate) fn bury(&self, segments: Vec<(u64, Arc<dyn FileIo>)>) {
        self.dead.lock().extend(segments);
    }

    /// Removes the segments that were noted, in their order.
    ///
    /// # Errors
    /// Those of the disk; the segments are removed by a later call.
    pub(crate) async fn remove(self: &Arc<Self>) -> Result<()> {
        if self.dead.lock().is_empty() {
            return Ok(());
        }
        // A task of its own: also where the caller goes away, one removal follows the other. It has the lock when it
        // is made, so that [`Self::settle`] never passes one that has not begun.
        let (journal, one) = (Arc::clone(self), Arc::clone(&self.removing).lock_owned().await);
        let removal = tokio::spawn(async move {
            let _one = one;
            while journal.remove_one().await? {}
            Ok(())
        });
        removal.await.map_err(|e| Error::internal(format!("{}: a removal ended early", self.what)).with_source(e))?
    }

    /// Whether there was a segment to remove.
    async fn remove_one(&self) -> Result<bool> {
        let Some(number) = self.dead.lock().front().map(|(number, _)| *number) else { return Ok(false) };
        let (mark, write_mark) = (Arc::clone(&self.mark), self.mark_writer());
        let marked = spawn_blocking(move || {
            write_mark(&|marked| marked.oldest = number + 1)?;
            mark.sync()
        });
        let failed = |e| Error::io("flush", format!("{}/{MARK}", self.files.place()), e);
        marked.await.map_err(|e| Error::internal("a thread ended early").with_source(e))?.map_err(failed)?;
        // Until here a flush includes it: recovery reads it, so a later segment must not be durable without it.
        self.progress.lock().unsynced.retain(|(unsynced, _)| *unsynced != number);
        // A reader that has it open must not see other content.
        let is_read = self.dead.lock().front().is_none_or(|(_, file)| Arc::strong_count(file) > 1);
        let (files, name, spare) = (Arc::clone(&self.files), segment_name(number), Arc::clone(&self.spare));
        let path = format!("{}/{name}", files.place());
        let keep = !is_read && spare.lock().len() < self.most_spare;
        let removed = spawn_blocking(move || match keep {
            true => files.retire(&name).map(|()| spare.lock().push(name)),
            false => files.remove(&name),
        });
        match removed.await.map_err(|e| Error::internal("a thread ended early").with_source(e))? {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
            _ => Ok(self.dead.lock().pop_front().is_some()),
        }
    }

    /// Gives the space of retired files back.
    pub(crate) async fn discard_spares(&self) {
        let (files, spare) = (Arc::clone(&self.files), std::mem::take(&mut *self.spare.lock()));
        let discard = move || spare.iter().filter_map(|name| files.discard(name).err()).next();
        if let Ok(Some(error)) = spawn_blocking(discard).await {
            tracing::warn!(volume = %self.what, %error, "a file of the journal can't be removed now; it goes at the next opening");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_belong_to_their_journal() {
        let marked = Marked { durable: Mark { segment: 3, seq: 9 }, oldest: 2 };
        let bytes = marked.encode(5);
        assert_eq!(Marked::decode(&bytes, 5), Some(marked));
        assert_eq!(Marked::decode(&bytes, 6), None);
        assert_eq!(Marked::decode(&bytes[..20], 5), None);
        assert_eq!((segment_number(&segment_name(77)), segment_number("77.segment"), segment_number("durable")), (Some(77), None, None));
    }
}
