//! The backend on a disk: a log-structured merge tree.
//!
//! Records are one keyspace, large values another with its values in files of their own. The writer seals memtables
//! itself and waits for their tables, so that memory is bounded, and a merge tree whose threads have ended makes it
//! fail and not wait for ever.

mod directory;
mod failure;
mod journal;

use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::config::{BlockSizePolicy, HashRatioPolicy};
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OwnedWriteBatch, PersistMode, Readable, Snapshot};
use parking_lot::RwLock;
use skytether_common::{Error, Result};

use crate::backend::{Backend, Entries, Erased, Space, Step, View};
use crate::codec::{INLINE, MARK, State};
use crate::types::Options;
use directory::Synced;
use failure::guarded;

/// How long the writer waits for a table. A disk that takes longer for 16 MiB is out of order.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many sealed memtables of a keyspace may wait. The merge tree waits without end from 4 on.
const MOST_SEALED: usize = 2;
/// How many tables may wait for their first compaction. The merge tree slows down from 20 on.
const MOST_TABLES: usize = 18;
/// The threads that write tables and compact them. With two, one of them turns idly while the other one compacts.
const THREADS: usize = 3;

/// A store in a directory.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    options: Options,
    open: RwLock<Arc<Open>>,
    // Goes last.
    _lock: File,
}

/// An open merge tree.
struct Open {
    number: u64,
    home: PathBuf,
    synced: Synced,
    /// The last commit that was durable when the tree was opened.
    durable: u64,
    records: Keyspace,
    values: Keyspace,
    database: Database,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Open {
    fn new(dir: &Path, number: u64, options: &Options) -> Result<Self> {
        let home = directory::numbered(dir, number);
        let db = home.join(directory::DB);
        std::fs::create_dir_all(&home).map_err(|e| Error::io("create", &home, e))?;
        let (synced, durable) = Synced::open(&home)?;
        if db.exists() {
            journal::check(&db, durable)?;
        }
        let (database, records, values) = guarded("open", &db, || {
            let database = Database::builder(&db)
                .cache_size(options.cache_bytes)
                .max_journaling_size(options.journal_bytes.max(64 << 20))
                .worker_threads(THREADS)
                .open()?;
            // The writer seals memtables: see `throttle`.
            let keyspace = || KeyspaceCreateOptions::default().max_memtable_size(1 << 40);
            let records = database.keyspace("records", || {
                keyspace().data_block_size_policy(BlockSizePolicy::all(4096)).data_block_hash_ratio_policy(HashRatioPolicy::all(1.0))
            })?;
            let apart = KvSeparationOptions::default().separation_threshold(INLINE as u32 / 2).file_target_size(64 << 20);
            let values = database.keyspace("values", || keyspace().with_kv_separation(Some(apart)))?;
            Ok((database, records, values))
        })?;
        Ok(Self { number, home, synced, durable, records, values, database })
    }

    fn keyspace(&self, space: Space) -> &Keyspace {
        match space {
            Space::Records => &self.records,
            Space::Values => &self.values,
        }
    }

    fn each(&self) -> [&Keyspace; 2] {
        [&self.records, &self.values]
    }

    /// Whether a memtable or a table more would be too many.
    fn is_full(&self) -> bool {
        self.each().iter().any(|keyspace| keyspace.sealed_memtable_count() > MOST_SEALED || keyspace.l0_table_count() > MOST_TABLES)
    }

    /// Waits until `done`.
    fn wait(&self, done: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !done(self) {
            // An error where a thread of the merge tree has failed.
            guarded("write", &self.home, || self.database.persist(PersistMode::Buffer))?;
            if start.elapsed() > PATIENCE {
                let text = format!("{} has not taken up new tables within {} s: see whether its disk works", self.home.display(), PATIENCE.as_secs());
                return Err(Error::unavailable(text));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The state of a moment. The merge tree keeps it while it is used.
struct Reading {
    snapshot: Snapshot,
    open: Arc<Open>,
}

impl Reading {
    fn new(open: Arc<Open>) -> Self {
        Self { snapshot: open.database.snapshot(), open }
    }
}

impl View for Reading {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        let found = guarded("read", &self.open.home, || self.snapshot.get(self.open.keyspace(space), key))?;
        Ok(found.map(Bytes::from))
    }

    fn range<'a>(&'a self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool) -> Entries<'a> {
        let home = &self.open.home;
        let mut entries = match guarded("read", home, || Ok(self.snapshot.range::<&[u8], _>(&self.open.records, (from, to)))) {
            Ok(entries) => entries,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let mut next = move || {
            let entry = guarded("read", home, || {
                let entry = if reverse { entries.next_back() } else { entries.next() };
                entry.map(fjall::Guard::into_inner).transpose()
            });
            entry.transpose().map(|entry| entry.map(|(key, value)| (Bytes::from(key), Bytes::from(value))))
        };
        let mut failed = false;
        Box::new(std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let entry = next();
            failed = matches!(entry, Some(Err(_)));
            entry
        }))
    }
}

impl Disk {
    /// Opens the store in `dir`, or makes it.
    ///
    /// # Errors
    /// See [`crate::KeyValues::open`].
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self> {
        let lock = directory::lock(dir)?;
        let current = directory::current(dir)?;
        directory::clean(dir, current)?;
        let open = match current {
            Some(number) => Open::new(dir, number, options)?,
            None => {
                let open = Self::make(dir, 1, options)?;
                directory::set_current(dir, 1)?;
                open
            }
        };
        let open = Arc::new(open);
        let name = format!("the key-value store in {}", dir.display());
        let state = State::read(&Reading::new(open.clone()), &name)?;
        if state.commit < open.durable {
            let text = format!("{name} ends with commit {}, but commit {} was durable: restore the drive from its copies", state.commit, open.durable);
            return Err(Error::corrupt(text));
        }
        Ok(Self { dir: dir.to_owned(), options: options.clone(), open: RwLock::new(open), _lock: lock })
    }

    /// Makes an empty content, complete and durable.
    fn make(dir: &Path, number: u64, options: &Options) -> Result<Open> {
        let home = directory::numbered(dir, number);
        directory::destroy(&home)?;
        let open = Open::new(dir, number, options)?;
        directory::set_ready(&home)?;
        directory::sync_directory(dir)?;
        Ok(open)
    }

    fn opened(&self) -> Arc<Open> {
        self.open.read().clone()
    }

    fn note(&self, open: &Open, commit: u64) -> Result<()> {
        open.synced.set(commit).map_err(|e| Error::io("write the last durable commit in", &open.home, e))
    }
}

impl Backend for Disk {
    fn view(&self) -> Result<Box<dyn View + '_>> {
        Ok(Box::new(Reading::new(self.opened())))
    }

    fn commit(&self, steps: Vec<Step>, commit: u64, sync: bool) -> Result<()> {
        let open = self.opened();
        let sync = sync && self.options.sync;
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        guarded("write", &open.home, || {
            let mut batch = OwnedWriteBatch::with_capacity(open.database.clone(), steps.len()).durability(Some(mode));
            for step in steps {
                match step {
                    Step::Put(space, key, value) => batch.insert(open.keyspace(space), key, value),
                    Step::Remove(space, key) => batch.remove(open.keyspace(space), key),
                }
            }
            batch.commit()
        })?;
        if sync { self.note(&open, commit) } else { Ok(()) }
    }

    fn sync(&self, commit: u64) -> Result<()> {
        if !self.options.sync {
            return Ok(());
        }
        let open = self.opened();
        guarded("flush", &open.home, || open.database.persist(PersistMode::SyncData))?;
        self.note(&open, commit)
    }

    fn is_ready(&self) -> bool {
        let open = self.open.read();
        !open.is_full() && open.each().iter().all(|keyspace| keyspace.tree.active_memtable().size() <= self.options.memtable_bytes)
    }

    fn throttle(&self) -> Result<()> {
        let open = self.opened();
        for keyspace in open.each() {
            if keyspace.tree.active_memtable().size() > self.options.memtable_bytes {
                guarded("write", &open.home, || keyspace.rotate_memtable())?;
            }
        }
        open.wait(|open| !open.is_full())
    }

    fn room(&self) -> Result<Option<u64>> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|e| Error::io("ask for the free space of", &self.dir, e.into()))?;
        Ok(Some(disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(self.options.minimum_free)))
    }

    fn compact(&self) -> Result<()> {
        let open = self.opened();
        for keyspace in open.each() {
            guarded("compact", &open.home, || keyspace.rotate_memtable())?;
        }
        open.wait(|open| open.each().iter().all(|keyspace| keyspace.sealed_memtable_count() == 0))?;
        // The first pass finds which large values are gone, the second one takes the others out of their files.
        for keyspace in [&open.records, &open.values, &open.values] {
            guarded("compact", &open.home, || keyspace.major_compact())?;
        }
        // Files go with the first memtable that is sealed after a later write.
        guarded("compact", &open.home, || open.records.insert(MARK, []).and_then(|()| open.records.rotate_memtable()))?;
        Ok(())
    }

    fn erase(&self, secure: bool) -> Erased {
        let old = self.opened();
        let home = old.home.clone();
        // Not the number after the old one: an erasure with an unknown outcome may have made it the current one.
        let number = match directory::next_number(&self.dir) {
            Ok(number) => number.max(old.number + 1),
            Err(error) => return Erased::Nothing(error),
        };
        let made = Self::make(&self.dir, number, &self.options).and_then(|new| {
            if secure {
                directory::set_overwrite(&home)?;
            }
            Ok(new)
        });
        let new = match made {
            Ok(new) => new,
            Err(error) => return Erased::Nothing(error),
        };
        if let Err(error) = directory::set_current(&self.dir, number) {
            return Erased::Unknown(error);
        }
        *self.open.write() = Arc::new(new);
        match close(old).and_then(|()| directory::destroy(&home)) {
            Ok(()) => Erased::Done,
            Err(error) => {
                let text = format!("all keys are erased, but the files in {} remain: open the store again to remove them", home.display());
                Erased::Remains(Error::unavailable(text).with_source(error))
            }
        }
    }

    fn stored_bytes(&self) -> Result<u64> {
        directory::occupied(&self.dir)
    }
}

/// Closes a merge tree once its last reader is gone.
fn close(mut open: Arc<Open>) -> Result<()> {
    let start = Instant::now();
    loop {
        match Arc::try_unwrap(open) {
            // Ends the threads of the merge tree.
            Ok(open) => {
                return guarded("close", &open.home.clone(), || {
                    drop(open);
                    Ok(())
                });
            }
            Err(shared) if start.elapsed() > PATIENCE => return Err(Error::unavailable(format!("a read of {} does not end", shared.home.display()))),
            Err(shared) => open = shared,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
