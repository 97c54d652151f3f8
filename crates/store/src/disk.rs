//! The store of a drive on a disk: one immutable file per value, and an index that says which files count.
//!
//! Layout: docs/internals/formats/drive-directory.md. A batch is written into a temporary directory, flushed, moved
//! into place and then made visible by one transaction of the index (I6). What a crash leaves before that transaction
//! is garbage, and the next opening removes it; what follows the transaction is only tidying. If the outcome of the
//! transaction is unknown, the error is `Unavailable`; after any other error nothing has changed.

mod backend;
#[doc(hidden)]
pub mod crash;
mod directory;
mod files;
mod index;
mod rows;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{Context, Detail, Error, Key, Result};

use crate::row::{Change, Row, To};
use crate::{Entry, Op, SliceStore, Usage, Version, batch, ranges};
use crash::{CrashPoint, Hook, Step};
pub use directory::DriveIdentity;
use files::{Content, Files, make_directory, sync_directory};
use index::Index;
use rows::Rows;

/// Whether what is written is flushed to the disk before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// Yes: an acknowledged batch survives a loss of power.
    #[default]
    Full,
    /// No: it survives the end of the process only. For tests and benchmarks of other parts.
    None,
}

/// How to open a drive.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Make the drive, under this identity, where there is none yet. A drive that is there must have the same id.
    pub create: Option<DriveIdentity>,
    /// How many bytes the values may have together; what goes beyond is `Exhausted`. No limit but the disk's if `None`.
    pub capacity: Option<u64>,
    /// Whether writes are flushed.
    pub sync: Sync,
    /// Makes steps fail in tests.
    #[doc(hidden)]
    pub crash_point: Option<Arc<dyn CrashPoint>>,
}

/// What opening a drive had to put right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Files that a process left in `tmp/`; removed.
    pub temporary_removed: u64,
    /// Value files that the index does not name; removed.
    pub orphans_removed: u64,
    /// Values that the index names and that are missing or have the wrong length. Reading them is `Corrupt`.
    pub damaged: Vec<Damaged>,
    /// Files below `slices/` that no drive wrote; left alone.
    pub foreign: Vec<PathBuf>,
}

/// A value that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Its key.
    pub key: String,
    /// Where it should be.
    pub file: PathBuf,
    /// The length that it should have.
    pub expected_len: u64,
    /// The length that it has; `None` where the file is missing.
    pub found_len: Option<u64>,
}

/// A drive's store in a directory.
#[derive(Debug)]
pub struct DiskStore {
    dir: PathBuf,
    identity: DriveIdentity,
    identity_bytes: u64,
    capacity: Option<u64>,
    recovery: Recovery,
    files: Files,
    next_number: AtomicU64,
    hook: Hook,
    /// Why the store refuses all work: a commit failed, and it is unknown whether it reached the disk.
    broken: OnceLock<String>,
    rows: Rows,
    // Dropped in this order: the lock goes last.
    index: Index,
    _lock: directory::Lock,
}

impl DiskStore {
    /// Opens the drive in `dir`, or makes it if the options say so, and puts right what a crash left.
    ///
    /// # Errors
    /// `NotFound` where there is no drive, `Conflict` where another process has it open or it has another id than the
    /// one to create, `Invalid` where `dir` holds other things, `Unsupported` where a newer version wrote it, `Corrupt`
    /// where `drive.json` or the index is damaged, `Exhausted` and `Unavailable` for failures of the disk.
    pub fn open(dir: &Path, options: OpenOptions) -> Result<Self> {
        let hook = Hook::new(options.crash_point);
        let sync = options.sync == Sync::Full;
        let identity_path = dir.join("drive.json");
        if options.create.is_some() {
            fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        } else if !identity_path.exists() {
            return Err(Error::not_found(format!("there is no drive in {}: create one there, or name the right directory", dir.display())));
        }
        if !identity_path.exists() {
            refuse_strangers(dir)?;
        }
        let lock = directory::lock(dir)?;
        let files = Files::new(dir, sync, hook.clone());
        let index_path = dir.join("index.redb");
        let mut rows = Vec::new();
        let (identity_bytes, identity, index, state) = match (directory::read_identity(&identity_path)?, options.create) {
            (Some((_, found)), Some(wanted)) if found.id != wanted.id => {
                return Err(Error::conflict(format!(
                    "the drive in {} is {} ({}), not {} ({}): open it as what it is, or create the new one elsewhere",
                    dir.display(),
                    found.name,
                    found.id,
                    wanted.name,
                    wanted.id
                )));
            }
            (Some((bytes, found)), _) => {
                for name in ["slices", "tmp"] {
                    make_directory(&dir.join(name))?;
                }
                let (index, state) = Index::open(&index_path, sync, hook.clone(), crc32c(&bytes), |key, row| {
                    rows.push((row.number, u64::from(row.len), key.to_owned()));
                })?;
                (bytes, found, index, state)
            }
            (None, Some(wanted)) => {
                let (bytes, index) = create(dir, &index_path, &wanted, sync, hook.clone())?;
                let state = index.state()?;
                (bytes, wanted, index, state)
            }
            (None, None) => return Err(Error::not_found(format!("there is no drive in {}", dir.display()))),
        };
        let recovery = recover(&files, rows)?;
        Ok(Self {
            dir: dir.to_owned(),
            identity,
            identity_bytes: identity_bytes.len() as u64,
            capacity: options.capacity,
            recovery,
            files,
            next_number: AtomicU64::new(state.next_number),
            hook,
            broken: OnceLock::new(),
            rows: Rows::default(),
            index,
            _lock: lock,
        })
    }

    /// The identity of this drive.
    #[must_use]
    pub fn identity(&self) -> &DriveIdentity {
        &self.identity
    }

    /// What opening had to put right.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The drive's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    fn alive(&self) -> Result<()> {
        self.hook.alive()?;
        match self.broken.get() {
            Some(why) => Err(Error::unavailable(format!("the drive in {} stopped after a failed commit: open it again ({why})", self.dir.display()))),
            None => Ok(()),
        }
    }

    fn damaged(&self, key: &Key, row: Row, what: &str) -> Error {
        let path = self.files.path(row.number);
        Error::corrupt(format!("the value of key {key} in {} {what}: drop its data set and ingest it again", path.display()))
    }

    /// The index's row of `key`, and the bytes of its value, all or those `wanted`, unverified.
    fn read(&self, key: &Key, wanted: Option<&[Range<u64>]>) -> Result<(Row, Vec<Bytes>)> {
        self.alive()?;
        let mut before = None;
        loop {
            let changes = self.rows.changes();
            let row = self
                .index
                .row(key)?
                .ok_or_else(|| Error::not_found(format!("there is no key {key} on drive {}", self.identity.name)).with_detail(Detail::missing_key(key)))?;
            let len = u64::from(row.len);
            let whole = 0..len;
            let wanted = wanted.unwrap_or(std::slice::from_ref(&whole));
            ranges::check(key, len, wanted)?;
            return match self.files.read(row.number, len, wanted).context(|| format!("cannot read key {key}"))? {
                Some(Ok(parts)) => {
                    self.rows.keep(key, row, changes);
                    Ok((row, parts))
                }
                Some(Err(found)) => Err(self.damaged(key, row, &format!("has {found} bytes instead of {len}"))),
                // The file is gone: replaced since the row was read, or lost if the row is still the same.
                None if before == Some(row) => Err(self.damaged(key, row, "is missing")),
                None => {
                    before = Some(row);
                    continue;
                }
            };
        }
    }

    /// The whole value that was read as `parts`.
    fn verified(&self, key: &Key, row: Row, parts: Vec<Bytes>) -> Result<Bytes> {
        match parts.into_iter().next() {
            Some(bytes) if crc32c(&bytes) == row.crc32c => Ok(bytes),
            _ => Err(self.damaged(key, row, "does not match its checksum")),
        }
    }

    /// What is new in `batch`, in order.
    fn contents<'a>(&self, batch: &'a [Op]) -> Result<Vec<Content<'a>>> {
        let mut contents = Vec::with_capacity(batch.len());
        for op in batch {
            match op {
                Op::Put { value, .. } => contents.push(Content::Bytes(value)),
                Op::Link { from, len, crc32c, .. } => {
                    let row = self.index.row(from)?;
                    batch::check_link(from, (*len, *crc32c), row.map(|row| (u64::from(row.len), row.crc32c)))?;
                    contents.extend(row.map(|row| Content::File { number: row.number, len: row.len, crc32c: row.crc32c }));
                }
                Op::Delete { .. } | Op::Check { .. } => {}
            }
        }
        Ok(contents)
    }

    fn changes<'a>(batch: &'a [Op], numbered: &[(u64, Content<'_>)]) -> Vec<Change<'a>> {
        let mut next = numbered.iter();
        let change = |op: &'a Op| {
            let to = match op {
                Op::Put { .. } | Op::Link { .. } => next.next().map_or(To::Stay, |(number, content)| {
                    let (len, crc32c) = match content {
                        // Fits: `validate` has refused what is above `MAX_VALUE`.
                        Content::Bytes(value) => (value.len() as u32, crc32c(value)),
                        Content::File { len, crc32c, .. } => (*len, *crc32c),
                    };
                    To::Be(Row { version: 0, number: *number, len, crc32c })
                }),
                Op::Delete { .. } => To::Go,
                Op::Check { .. } => To::Stay,
            };
            Change { key: op.key(), expect: op.expect(), to }
        };
        batch.iter().map(change).collect()
    }
}

impl SliceStore for DiskStore {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.alive()?;
        batch::validate(&batch)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let contents = self.contents(&batch)?;
        let first = self.next_number.fetch_add(contents.len() as u64, Ordering::Relaxed);
        let numbered: Vec<(u64, Content<'_>)> = (first..).zip(contents).collect();
        let changes = Self::changes(&batch, &numbered);
        self.index.check_batch(&changes, self.capacity)?;
        if batch.iter().all(|op| matches!(op, Op::Check { .. })) {
            return Ok(vec![0; batch.len()]);
        }
        self.files.write(&numbered)?;
        let committed = self.index.commit(&changes, self.capacity);
        self.rows.changed(batch.iter().map(Op::key));
        match committed {
            Ok(committed) => {
                let _ = self.hook.before(Step::Committed);
                self.hook.alive()?;
                self.files.remove(&committed.replaced);
                Ok(committed.versions)
            }
            Err(failed) if failed.nothing_changed => {
                if !self.hook.crashed() {
                    self.files.remove(&numbered.iter().map(|(number, _)| *number).collect::<Vec<_>>());
                }
                Err(failed.error)
            }
            Err(failed) => {
                // The files must stay: the batch may turn out to be there.
                let _ = self.broken.set(failed.error.to_string());
                // Always `Unavailable`: any other kind would mean that nothing has changed.
                Err(Error::unavailable(format!("nobody can know whether the batch reached the drive in {}: open it again", self.dir.display()))
                    .with_source(failed.error))
            }
        }
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let (row, parts) = self.read(key, None)?;
        self.verified(key, row, parts)
    }

    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        let (row, parts) = self.read(key, None)?;
        if u64::from(row.len) == len && row.crc32c == crc32c { self.verified(key, row, parts).map(Some) } else { Ok(None) }
    }

    fn get_ranges_unverified(&self, key: &Key, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read(key, Some(wanted))?.1)
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.alive().ok()?;
        // A page of the index may be on the disk alone. So a first read of the value waits, and notes its row.
        let row = self.rows.get(key)?;
        ranges::check(key, u64::from(row.len), std::slice::from_ref(&range)).ok()?;
        self.files.read_in_memory(row.number, u64::from(row.len), range)
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.alive()?;
        self.index.entry(key)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.alive()?;
        self.index.list(prefix, after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.alive()?;
        let state = self.index.state()?;
        let stored_bytes = state.value_bytes + self.index.occupied()? + self.identity_bytes;
        Ok(Usage { keys: state.keys, value_bytes: state.value_bytes, stored_bytes })
    }

    fn free(&self) -> Result<Option<(u64, u64)>> {
        self.alive()?;
        let disk = rustix::fs::statvfs(&self.dir).map_err(|e| Error::io("ask for the free space of", &self.dir, e.into()))?;
        let (free, all) = (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize));
        let Some(capacity) = self.capacity else { return Ok(Some((free, all))) };
        Ok(Some((free.min(capacity.saturating_sub(self.index.state()?.value_bytes)), all.min(capacity))))
    }
}

/// Refuses to make a drive among other people's files, or where a drive has lost its `drive.json`.
fn refuse_strangers(dir: &Path) -> Result<()> {
    let list = |dir: &Path| -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))?;
        entries.map(|entry| entry.map(|e| e.path()).map_err(|e| Error::io("list", dir, e))).collect()
    };
    for path in list(dir)? {
        match path.file_name().and_then(|n| n.to_str()) {
            Some("LOCK" | "index.redb" | "tmp") => {}
            Some("slices") if list(&path)?.is_empty() => {}
            Some("slices") => {
                return Err(Error::corrupt(format!("the drive in {} has slices but no drive.json: restore that file", dir.display())));
            }
            _ => return Err(Error::invalid(format!("{} is no drive and not empty (it holds {}): name another directory", dir.display(), path.display()))),
        }
    }
    Ok(())
}

/// Makes a drive. `drive.json` comes last, so that a drive is there whole or not at all.
fn create(dir: &Path, index_path: &Path, identity: &DriveIdentity, sync: bool, hook: Hook) -> Result<(Vec<u8>, Index)> {
    for name in ["slices", "tmp"] {
        make_directory(&dir.join(name))?;
    }
    if index_path.exists() {
        // Left by a creation that did not end: there are no slices that it could name.
        fs::remove_file(index_path).map_err(|e| Error::io("remove", index_path, e))?;
    }
    let bytes = directory::encode_identity(identity)?;
    let index = Index::create(index_path, sync, hook.clone(), crc32c(&bytes))?;
    if sync {
        sync_directory(dir, &hook)?;
    }
    directory::write_identity(dir, &bytes, sync, &hook)?;
    if sync && let Ok(dir) = dir.canonicalize() {
        for (above, parent) in dir.ancestors().skip(1).enumerate() {
            match sync_directory(parent, &hook) {
                // The parents may have been created just now as well. One that this process may not read was created
                // by another user, before.
                Err(e) if above > 0 && is_forbidden(&e) => break,
                done => done?,
            }
        }
    }
    Ok((bytes, index))
}

/// Whether this process cannot sync the directory: it has no permission, or the file system does not support it.
fn is_forbidden(error: &Error) -> bool {
    use std::io::ErrorKind;
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| {
        matches!(cause.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::Unsupported | ErrorKind::InvalidInput)
    })
}

/// Compares the files with the index's rows (number, length, key), and removes what no row names.
fn recover(files: &Files, mut rows: Vec<(u64, u64, String)>) -> Result<Recovery> {
    let mut recovery = Recovery { temporary_removed: files.empty_tmp()?, ..Recovery::default() };
    let mut found = files.scan()?;
    rows.sort_unstable();
    found.values.sort_unstable();
    let len_of = |number: u64| found.values.binary_search_by_key(&number, |(n, _)| *n).ok().map(|at| found.values[at].1);
    for (number, len, key) in &rows {
        let found_len = len_of(*number);
        if found_len != Some(*len) {
            let file = files.path(*number);
            // No warning: other drives may be able to reconstruct the value, which this store cannot know. Readers and
            // scrubs find that out and report it.
            tracing::info!(key, file = %file.display(), expected = len, found = ?found_len, "a value is missing or has the wrong length; `skytether scrub` mends it where other drives have what that takes");
            recovery.damaged.push(Damaged { key: key.clone(), file, expected_len: *len, found_len });
        }
    }
    let orphans: Vec<u64> =
        found.values.iter().map(|(number, _)| *number).filter(|n| rows.binary_search_by_key(n, |(number, _, _)| *number).is_err()).collect();
    for number in &orphans {
        let path = files.path(*number);
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
    }
    recovery.orphans_removed = orphans.len() as u64;
    for path in &found.foreign {
        tracing::warn!(path = %path.display(), "no drive wrote this; left alone");
    }
    recovery.foreign = found.foreign;
    if recovery.temporary_removed + recovery.orphans_removed > 0 {
        tracing::info!(temporary = recovery.temporary_removed, orphans = recovery.orphans_removed, "removed what an interrupted batch had left");
    }
    Ok(recovery)
}
