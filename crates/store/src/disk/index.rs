//! The index of a drive: key to version, file, length and checksum, in one redb file. A value exists if and only if the
//! index has it.
//!
//! Tables: `values` holds a [`Row`] per key, `drive` one [`StoreTotals`] and the checksum of `drive.json`. redb checks
//! its pages only while it repairs, so rows and state carry checksums of their own, and opening checks the whole file
//! once. Batches are committed in two phases, so that after a crash a damaged commit slot is `Corrupt` and never an
//! older state.

use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Result};

use super::backend::{IndexFile, Overlay};
use super::crash::{Hook, Step};
use crate::row::{Change, Row, To, u64_at};
use crate::{Entry, Version, batch};

const VALUES: TableDefinition<'static, &str, [u8; Row::BYTES]> = TableDefinition::new("values");
const DRIVE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("drive");
const STATE: &str = "state";
const IDENTITY: &str = "identity";

/// Memory that redb may use for pages.
const CACHE_BYTES: usize = 8 << 20;

/// Length of redb's header: 64 bytes and two commit slots of 128 (its source, `page_store/header.rs`).
const HEADER: usize = 320;
/// The byte with these bits: which slot counts, not closed properly, committed in two phases.
const FLAGS: usize = 9;
const PRIMARY: u8 = 1;
const TWO_PHASES: u8 = 4;
/// Where the slots' transaction ids are.
const SLOT_IDS: [usize; 2] = [64 + 104, 192 + 104];

/// The index's totals over all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StoreTotals {
    /// The next version that a key gets.
    pub(super) next_version: u64,
    /// A number that no file of a committed batch has or had.
    pub(super) next_number: u64,
    pub(super) keys: u64,
    pub(super) value_bytes: u64,
    /// Wrapping sum of the rows' checksums: finds rows that are lost or come from another time.
    sum: u64,
}

impl StoreTotals {
    const BYTES: usize = 44;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (i, field) in [self.next_version, self.next_number, self.keys, self.value_bytes, self.sum].into_iter().enumerate() {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&field.to_le_bytes());
        }
        let check = crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let state = Self {
            next_version: u64_at(bytes, 0),
            next_number: u64_at(bytes, 8),
            keys: u64_at(bytes, 16),
            value_bytes: u64_at(bytes, 24),
            sum: u64_at(bytes, 32),
        };
        (state.encode() == *bytes).then_some(state)
    }
}

/// What a batch did.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) versions: Vec<Version>,
    /// Numbers of the files that nothing names any more.
    pub(super) replaced: Vec<u64>,
}

/// A batch that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// Nothing of the batch can be in the index; otherwise that shows at the next opening only.
    pub(super) nothing_changed: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, nothing_changed: true }
    }
}

/// What a batch would do to an index in a given state.
struct Planned {
    state: StoreTotals,
    rows: Vec<To>,
    committed: Committed,
}

fn plan(mut state: StoreTotals, changes: &[Change<'_>], capacity: Option<u64>, name: &str, find: impl Fn(&str) -> Result<Option<Row>>) -> Result<Planned> {
    let before = state.value_bytes;
    let mut rows = Vec::with_capacity(changes.len());
    let mut committed = Committed { versions: Vec::with_capacity(changes.len()), replaced: Vec::new() };
    for change in changes {
        let key = change.key.as_str();
        let found = find(key)?;
        batch::check_expectation(change.key, change.expect, found.map(|row| row.version))?;
        let row = match change.to {
            To::Stay => {
                committed.versions.push(0);
                rows.push(To::Stay);
                continue;
            }
            To::Be(row) => Some(Row { version: state.next_version, ..row }),
            To::Go => None,
        };
        if let Some(old) = found {
            state.keys = state.keys.wrapping_sub(1);
            state.value_bytes = state.value_bytes.wrapping_sub(u64::from(old.len));
            state.sum = state.sum.wrapping_sub(old.share(key));
            committed.replaced.push(old.number);
        }
        // Removing takes a version too, so that every committed batch leaves a new state.
        state.next_version += 1;
        if let Some(row) = &row {
            state.keys = state.keys.wrapping_add(1);
            state.value_bytes = state.value_bytes.wrapping_add(u64::from(row.len));
            state.sum = state.sum.wrapping_add(row.share(key));
            state.next_number = state.next_number.max(row.number + 1);
        }
        committed.versions.push(row.map_or(0, |row| row.version));
        rows.push(row.map_or(To::Go, To::Be));
    }
    if state.value_bytes > before {
        batch::check_capacity(name, capacity, state.value_bytes)?;
    }
    Ok(Planned { state, rows, committed })
}

/// An open index.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    /// `None` after an I/O error from which the index could not be opened again.
    db: RwLock<Option<Database>>,
    sync: bool,
    hook: Hook,
}

impl Index {
    /// Makes the index of a new drive whose `drive.json` has the checksum `identity`.
    pub(super) fn create(path: &Path, sync: bool, hook: Hook, identity: u32) -> Result<Self> {
        let index = Self { path: path.to_owned(), db: RwLock::new(None), sync, hook };
        std::fs::File::create_new(path).map_err(|e| Error::io("create", path, e))?;
        let db = index.connect()?;
        index.guard(|| {
            let mut txn = db.begin_write().map_err(redb::Error::from)?;
            txn.set_two_phase_commit(true);
            txn.open_table(VALUES)?;
            {
                let mut drive = txn.open_table(DRIVE)?;
                let state = StoreTotals { next_version: 1, ..StoreTotals::default() };
                drive.insert(STATE, state.encode().as_slice())?;
                drive.insert(IDENTITY, identity.to_le_bytes().as_slice())?;
            }
            Ok(txn.commit()?)
        })?;
        *index.db.write() = Some(db);
        Ok(index)
    }

    /// Opens an index after checking all of it, and shows every row to `each`.
    pub(super) fn open(path: &Path, sync: bool, hook: Hook, identity: u32, mut each: impl FnMut(&str, &Row)) -> Result<(Self, StoreTotals)> {
        let len = std::fs::metadata(path)
            .map_err(|e| if e.kind() == std::io::ErrorKind::NotFound { corrupt(path, "is missing") } else { Error::io("open", path, e) })?
            .len();
        if len == 0 {
            return Err(corrupt(path, "is empty"));
        }
        let index = Self { path: path.to_owned(), db: RwLock::new(None), sync, hook };
        index.check()?;
        let db = index.connect()?;
        let state = index.guard(|| {
            let txn = db.begin_read().map_err(redb::Error::from)?;
            let drive = txn.open_table(DRIVE)?;
            let stored = drive.get(IDENTITY)?.map(|guard| guard.value().to_vec());
            if stored.as_deref() != Some(identity.to_le_bytes().as_slice()) {
                return Ok(Err("belongs to another drive.json, or one of the two was changed"));
            }
            let Some(state) = drive.get(STATE)?.and_then(|guard| StoreTotals::decode(guard.value())) else {
                return Ok(Err("has a damaged state"));
            };
            let mut seen = StoreTotals { next_version: state.next_version, next_number: state.next_number, ..StoreTotals::default() };
            for item in txn.open_table(VALUES)?.iter()? {
                let (key, value) = item?;
                let Some(row) = Row::decode(key.value(), &value.value()) else {
                    return Ok(Err("has a damaged row"));
                };
                if row.version >= state.next_version || row.number >= state.next_number {
                    return Ok(Err("has a row from the future"));
                }
                seen.keys += 1;
                seen.value_bytes += u64::from(row.len);
                seen.sum = seen.sum.wrapping_add(row.share(key.value()));
                each(key.value(), &row);
            }
            Ok(if seen == state { Ok(state) } else { Err("has lost rows") })
        })?;
        let state = state.map_err(|what| corrupt(path, what))?;
        *index.db.write() = Some(db);
        Ok((index, state))
    }

    /// Lets redb verify every page, on a copy-on-write view, before the file itself may be repaired.
    ///
    /// The byte that selects one of the two commit slots has no checksum. If the other slot is newer, either that byte
    /// is damaged or a crash came between the two phases of a commit. The newer slot is then complete or does not
    /// verify. A complete one counts: it loses nothing that was acknowledged, and its files were there before it.
    fn check(&self) -> Result<()> {
        let mut header = [0; HEADER];
        let file = std::fs::File::options().read(true).write(true).open(&self.path).map_err(|e| Error::io("open", &self.path, e))?;
        file.read_exact_at(&mut header, 0).map_err(|_| corrupt(&self.path, "is cut off"))?;
        let flags = header[FLAGS];
        if flags & TWO_PHASES == 0 {
            return Err(corrupt(&self.path, "has a damaged header"));
        }
        let other_is_newer = {
            let ids = SLOT_IDS.map(|at| u64_at(&header, at));
            let primary = usize::from(flags & PRIMARY);
            ids[1 - primary] > ids[primary]
        };
        if other_is_newer && self.verify(Some(flags ^ PRIMARY)).is_ok() {
            let put = file.write_all_at(&[flags ^ PRIMARY], FLAGS as u64).and_then(|()| if self.sync { file.sync_data() } else { Ok(()) });
            put.map_err(|e| Error::io("write", &self.path, e))?;
            if self.sync {
                self.hook.flushed(&self.path);
            }
            return Ok(());
        }
        self.verify(None)
    }

    /// Checks the file as it is, or as if its header had other `flags`.
    ///
    /// redb rebuilds what it knows of free pages where a crash left none, which a header may call a clean end: a repair
    /// ends so, a moment before it is used on. It then verifies the commit that counts, all of it, and takes no other,
    /// as commits have two phases here.
    fn verify(&self, flags: Option<u8>) -> Result<()> {
        let clean = self.guard(|| {
            let overlay = Overlay::open(&self.path).map_err(redb::Error::from)?;
            if let Some(flags) = flags {
                overlay.write(FLAGS as u64, &[flags]).map_err(redb::Error::from)?;
            }
            let mut db = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(overlay)?;
            let clean = db.check_integrity()?;
            // Inside the guard, since closing may meet damage as well.
            drop(db);
            Ok(clean)
        })?;
        if clean { Ok(()) } else { Err(corrupt(&self.path, "does not match its checksums")) }
    }

    fn connect(&self) -> Result<Database> {
        self.guard(|| {
            let file = IndexFile::open(&self.path, self.sync, self.hook.clone()).map_err(redb::Error::from)?;
            Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(file)?)
        })
    }

    /// Runs `f`, which uses redb. redb asserts what damaged pages may break, so its panics are `Corrupt` here.
    fn guard<T>(&self, f: impl FnOnce() -> Result<T, redb::Error>) -> Result<T> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(done) => done.map_err(|e| self.error(e)),
            Err(_) => Err(corrupt(&self.path, "does not hold together")),
        }
    }

    fn error(&self, error: redb::Error) -> Error {
        use redb::Error as E;
        match error {
            E::Io(e) => Error::io("use", &self.path, e),
            E::PreviousIo => Error::unavailable(format!("the index {} had an I/O error before: open the drive again", self.path.display())),
            // No drive of format 1 ever had an index in one of redb's older formats.
            E::UpgradeRequired(_)
            | E::Corrupted(_)
            | E::TableTypeMismatch { .. }
            | E::TableDoesNotExist(_)
            | E::TableIsMultimap(_)
            | E::TypeDefinitionChanged { .. } => corrupt(&self.path, "is damaged").with_source(error),
            other => Error::internal(format!("the index {} failed", self.path.display())).with_source(other),
        }
    }

    fn lost(&self) -> Error {
        Error::unavailable(format!("the index {} could not be opened again after an I/O error: open the drive again", self.path.display()))
    }

    /// Runs `f` on a snapshot of the index.
    fn reading<T>(&self, f: impl FnOnce(&redb::ReadTransaction) -> Result<Result<T>, redb::Error>) -> Result<T> {
        let db = self.db.read();
        let db = db.as_ref().ok_or_else(|| self.lost())?;
        self.guard(|| f(&db.begin_read().map_err(redb::Error::from)?))?
    }

    fn decode(&self, key: &str, bytes: &[u8; Row::BYTES]) -> Result<Row> {
        Row::decode(key, bytes).ok_or_else(|| corrupt(&self.path, &format!("has a damaged row for key {key}")))
    }

    fn state_in(&self, drive: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Result<StoreTotals>, redb::Error> {
        let state = drive.get(STATE)?.and_then(|guard| StoreTotals::decode(guard.value()));
        Ok(state.ok_or_else(|| corrupt(&self.path, "has a damaged state")))
    }

    /// The row of `key`.
    pub(super) fn row(&self, key: &Key) -> Result<Option<Row>> {
        self.reading(|txn| {
            let found = txn.open_table(VALUES)?.get(key.as_str())?;
            Ok(found.map(|guard| self.decode(key.as_str(), &guard.value())).transpose())
        })
    }

    /// What is known about `key`.
    pub(super) fn entry(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.row(key)?.map(|row| row.entry(key.clone())))
    }

    /// The keys that begin with `prefix` and come after `after`, at most `limit`.
    pub(super) fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.reading(|txn| {
            let table = txn.open_table(VALUES)?;
            let mut entries = Vec::new();
            for item in table.range::<&str>((batch::list_start(prefix, after), Bound::Unbounded))? {
                let (key, value) = item?;
                if entries.len() == limit || !key.value().starts_with(prefix) {
                    break;
                }
                match self.decode(key.value(), &value.value()).and_then(|row| Ok(row.entry(Key::new(key.value())?))) {
                    Ok(entry) => entries.push(entry),
                    Err(e) => return Ok(Err(e)),
                }
            }
            Ok(Ok(entries))
        })
    }

    /// The index's totals over all keys.
    pub(super) fn state(&self) -> Result<StoreTotals> {
        self.reading(|txn| self.state_in(&txn.open_table(DRIVE)?))
    }

    /// Refuses now what [`Self::commit`] would refuse as things stand, before files are written for it.
    pub(super) fn check_batch(&self, changes: &[Change<'_>], capacity: Option<u64>) -> Result<()> {
        self.reading(|txn| {
            let values = txn.open_table(VALUES)?;
            let state = match self.state_in(&txn.open_table(DRIVE)?)? {
                Ok(state) => state,
                Err(e) => return Ok(Err(e)),
            };
            Ok(plan(state, changes, capacity, &self.name(), |key| self.find(&values, key)).map(|_| ()))
        })
    }

    fn find(&self, values: &impl ReadableTable<&'static str, [u8; Row::BYTES]>, key: &str) -> Result<Option<Row>> {
        let found = values.get(key).map_err(|e| self.error(e.into()))?;
        found.map(|guard| self.decode(key, &guard.value())).transpose()
    }

    fn name(&self) -> String {
        format!("the drive in {}", self.path.parent().unwrap_or(&self.path).display())
    }

    /// Makes `changes` visible and durable as one, if all expectations hold.
    pub(super) fn commit(&self, changes: &[Change<'_>], capacity: Option<u64>) -> Result<Committed, Failed> {
        self.hook.before(Step::CommitIndex).map_err(|e| Error::io("write", &self.path, e))?;
        let mut planned_state = None;
        let done = {
            let db = self.db.read();
            let db = db.as_ref().ok_or_else(|| self.lost())?;
            self.guard(|| {
                let mut txn = db.begin_write().map_err(redb::Error::from)?;
                txn.set_two_phase_commit(true);
                let planned = {
                    let mut values = txn.open_table(VALUES)?;
                    let mut drive = txn.open_table(DRIVE)?;
                    let state = self.state_in(&drive)?;
                    match state.and_then(|state| plan(state, changes, capacity, &self.name(), |key| self.find(&values, key))) {
                        Ok(planned) => {
                            for (change, row) in changes.iter().zip(&planned.rows) {
                                match row {
                                    To::Be(row) => drop(values.insert(change.key.as_str(), row.encode(change.key.as_str()))?),
                                    To::Go => drop(values.remove(change.key.as_str())?),
                                    To::Stay => {}
                                }
                            }
                            drive.insert(STATE, planned.state.encode().as_slice())?;
                            planned
                        }
                        Err(e) => {
                            drop((values, drive));
                            txn.abort()?;
                            return Ok(Err(e));
                        }
                    }
                };
                planned_state = Some(planned.state);
                txn.commit()?;
                Ok(Ok(planned.committed))
            })
        };
        match done {
            Ok(Ok(committed)) => Ok(committed),
            Ok(Err(refused)) => Err(refused.into()),
            Err(error) => Err(self.after_failure(error, planned_state)),
        }
    }

    /// redb stops at its first I/O error. Opens the index again, which goes back to the last transaction that is whole,
    /// and looks which one that is.
    fn after_failure(&self, error: Error, planned: Option<StoreTotals>) -> Failed {
        if self.hook.crashed() {
            return Failed { error, nothing_changed: false };
        }
        let mut db = self.db.write();
        let old = db.take();
        // Closing may meet the same failure, and must not take the process along.
        let _ = self.guard(|| {
            drop(old);
            Ok(())
        });
        let found = self.connect().and_then(|new| {
            let state = self.guard(|| self.state_in(&new.begin_read().map_err(redb::Error::from)?.open_table(DRIVE)?))??;
            *db = Some(new);
            Ok(state)
        });
        let nothing_changed = match (found, planned) {
            (Ok(_), None) => true,
            // Some other writer's batch may have come first; only versions at or above ours can
            // mean that ours is there.
            (Ok(found), Some(planned)) => found.next_version < planned.next_version,
            (Err(_), _) => planned.is_none(),
        };
        Failed { error, nothing_changed }
    }

    /// Bytes that the index file occupies.
    pub(super) fn occupied(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(&self.path).map_err(|e| Error::io("look at", &self.path, e))?;
        Ok(metadata.len().min(metadata.blocks() * 512))
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let db = self.db.get_mut().take();
        let _ = self.guard(|| {
            drop(db);
            Ok(())
        });
    }
}

fn corrupt(path: &Path, what: &str) -> Error {
    Error::corrupt(format!("the index {} {what}: restore the drive from elsewhere", path.display()))
}
