//! The volumes of a drive.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Kind, Result};
use uuid::Uuid;

use crate::backing::Backing;
use crate::device::BlockDevice;
use crate::extents::ExtentCache;
use crate::files::{DiskFiles, Files};
use crate::header::Header;
use crate::keys::{delete_keys, each_extent, names_below, read_header};
use crate::names::{PREFIX, VolumeName, VolumeSpec};
use crate::open::{self, Context};
use crate::options::Options;
use crate::scrub::{Scrubbed, scrub};
use crate::snapshot::{self, SnapshotDevice};
use crate::volume::Volume;

/// A volume or snapshot, for listings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// By which block protocols address it, from 1. It is never given to another volume. 0 for snapshots.
    pub number: u32,
    /// Its id.
    pub id: Uuid,
    /// Bytes that clients see.
    pub size: u64,
    /// Bytes of an extent.
    pub extent: u32,
    /// Extents on the drive. They take `extent` bytes each, but for those that snapshots share.
    pub extents: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its snapshots, by name.
    pub snapshots: Vec<VolumeStatus>,
    /// Why it can't be opened. Where its header record can't be read, nothing else but the name is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// All volumes of a drive, open, with their journals below one directory. It is locked meanwhile.
#[derive(Debug)]
pub struct Volumes {
    context: Context,
    dir: PathBuf,
    open: RwLock<BTreeMap<VolumeName, Arc<Volume>>>,
    /// Volumes that can't be opened, and why.
    failed: Mutex<BTreeMap<VolumeName, Error>>,
    /// Creations, removals and the like, one at a time.
    changes: tokio::sync::Mutex<()>,
    _lock: File,
}

impl Volumes {
    /// Opens all volumes that are on the drive, with their journals below `dir`, which is made where it is missing. One
    /// that can't be opened does not stop the others: see [`Self::failed`].
    ///
    /// # Errors
    /// `Conflict` where another process has `dir` open; those of the drive and of the disk.
    pub async fn open(backing: Arc<dyn Backing>, dir: &Path, options: Options) -> Result<Arc<Self>> {
        options.check()?;
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        let lock = lock(dir)?;
        let context = Context { backing, cache: Arc::new(ExtentCache::new(options.cache_bytes)), options };
        let (open, failed) = (RwLock::default(), Mutex::default());
        let volumes = Self { context, dir: dir.to_owned(), open, failed, changes: tokio::sync::Mutex::default(), _lock: lock };
        for name in names_below(&*volumes.context.backing, PREFIX).await? {
            if let Err(error) = volumes.open_found(&name).await {
                tracing::warn!(volume = %name, error = %error.report(), "this volume can't be opened");
                volumes.failed.lock().insert(name, error.flattened());
            }
        }
        Ok(Arc::new(volumes))
    }

    /// Opens a volume that has keys on the drive, and finishes removals, clones and snapshots that were interrupted.
    async fn open_found(&self, name: &VolumeName) -> Result<()> {
        let backing = &*self.context.backing;
        if finish(backing, &format!("volume {name}"), &name.prefix()).await? {
            return self.remove_journal(name);
        }
        for snapshot in names_below(backing, &name.snapshots_prefix()).await? {
            let what = format!("snapshot {snapshot} of volume {name}");
            // Damage of a snapshot is no reason to refuse its volume.
            if let Err(error) = finish(backing, &what, &name.snapshot_prefix(&snapshot)).await {
                tracing::warn!(snapshot = %what, error = %error.report(), "this snapshot can't be read");
            }
        }
        self.open_one(name, self.files(name)?).await.map(drop)
    }

    /// The directory of a volume's journal.
    fn files(&self, name: &VolumeName) -> Result<Arc<dyn Files>> {
        let dir = self.dir.join(name.as_str());
        Ok(Arc::new(DiskFiles::open(&dir).map_err(|e| Error::io("open", &dir, e))?))
    }

    fn remove_journal(&self, name: &VolumeName) -> Result<()> {
        let dir = self.dir.join(name.as_str());
        match fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &dir, e)),
            _ => Ok(()),
        }
    }

    async fn open_one(&self, name: &VolumeName, files: Arc<dyn Files>) -> Result<Arc<Volume>> {
        let (volume, recovery) = Volume::open(&self.context, name, files).await?;
        if recovery.records > 0 {
            tracing::info!(volume = %name, records = recovery.records, dropped = recovery.dropped, "read the journal back");
        }
        self.open.write().insert(name.clone(), Arc::clone(&volume));
        Ok(volume)
    }

    /// The volume that `wanted` names: made where it is missing, and grown where it is smaller.
    ///
    /// # Errors
    /// `Invalid` where it is larger; why it can't be opened; those of the drive and of the disk.
    pub async fn ensure(&self, wanted: &VolumeSpec) -> Result<Arc<Volume>> {
        let _one = self.changes.lock().await;
        if let Some(volume) = self.found(&wanted.name)? {
            volume.grow(wanted.size).await?;
            return Ok(volume);
        }
        self.check_new(&wanted.name)?;
        // The directory first: a volume without one could not be opened again.
        let files = self.files(&wanted.name)?;
        open::create(&self.context, &wanted.name, wanted.size).await?;
        self.open_one(&wanted.name, files).await
    }

    /// Refuses a name that differs from another one in the case of letters only: their journals would share a directory
    /// on some file systems.
    fn check_new(&self, name: &VolumeName) -> Result<()> {
        match self.names().into_iter().find(|other| other != name && other.as_str().eq_ignore_ascii_case(name.as_str())) {
            Some(other) => Err(Error::conflict(format!("volume {name}: there is volume {other}, which differs in case only; use another name"))),
            None => Ok(()),
        }
    }

    /// The names of all volumes, in their order, of those that can't be opened, too. It reads nothing.
    #[must_use]
    pub fn names(&self) -> Vec<VolumeName> {
        let mut names: Vec<VolumeName> = self.open.read().keys().cloned().collect();
        names.extend(self.failed.lock().keys().cloned());
        names.sort();
        names
    }

    /// The open volumes with their numbers, ascending, for doors. It reads nothing.
    #[must_use]
    pub fn numbered(&self) -> Vec<(u32, Arc<Volume>)> {
        let mut all: Vec<_> = self.all().into_iter().map(|volume| (volume.number(), volume)).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }

    /// The volumes that can't be opened, and why.
    #[must_use]
    pub fn failed(&self) -> Vec<(VolumeName, Error)> {
        self.failed.lock().iter().map(|(name, error)| (name.clone(), error.flattened())).collect()
    }

    /// An open volume.
    #[must_use]
    pub fn get(&self, name: &VolumeName) -> Option<Arc<Volume>> {
        self.open.read().get(name).cloned()
    }

    /// All open volumes, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.open.read().values().cloned().collect()
    }

    /// The volume `NAME`, or the snapshot `NAME@SNAPSHOT`, as a device.
    ///
    /// # Errors
    /// `NotFound` where there is none, `Invalid` for other texts; those of the drive.
    pub async fn device(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        match name.split_once('@') {
            Some((volume, snapshot)) => Ok(SnapshotDevice::open(&self.context, &volume.parse()?, &snapshot.parse()?).await?),
            None => Ok(self.known(&name.parse()?)?),
        }
    }

    /// An open volume, or why it can't be opened.
    fn found(&self, name: &VolumeName) -> Result<Option<Arc<Volume>>> {
        match self.failed.lock().get(name) {
            Some(error) => Err(error.flattened()),
            None => Ok(self.get(name)),
        }
    }

    fn known(&self, name: &VolumeName) -> Result<Arc<Volume>> {
        self.found(name)?.ok_or_else(|| Error::not_found(format!("volume {name}: there is none on drive {}", self.context.backing.name())))
    }

    /// What there is, by name. It counts extents, which takes a while: see [`Self::names`] and [`Self::numbered`].
    ///
    /// # Errors
    /// Those of the drive.
    pub async fn list(&self) -> Result<Vec<VolumeStatus>> {
        let mut all = list(&*self.context.backing).await?;
        let failed = self.failed.lock();
        for status in &mut all {
            if let Some(error) = VolumeName::new(&status.name).ok().and_then(|name| failed.get(&name).map(Error::report)) {
                status.error = Some(error);
            }
        }
        Ok(all)
    }

    /// Removes a volume with its journal and all its snapshots, also one that can't be opened.
    ///
    /// # Errors
    /// `NotFound`; those of the drive and of the disk. A removal that failed can be called again.
    pub async fn remove(&self, name: &VolumeName) -> Result<()> {
        let _one = self.changes.lock().await;
        let is_broken = self.failed.lock().contains_key(name);
        if !is_broken {
            self.known(name)?.stop().await;
            self.open.write().remove(name);
        }
        let removed = snapshot::remove(&*self.context.backing, &format!("volume {name}"), &name.prefix(), is_broken).await;
        match removed.and_then(|()| self.remove_journal(name)) {
            Ok(()) => drop(self.failed.lock().remove(name)),
            Err(error) => {
                self.failed.lock().insert(name.clone(), error.flattened().context("its removal failed"));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Keeps the present content of a volume.
    ///
    /// # Errors
    /// As [`Volume::snapshot`].
    pub async fn snapshot(&self, name: &VolumeName, snapshot: &VolumeName) -> Result<()> {
        let _one = self.changes.lock().await;
        self.known(name)?.snapshot(snapshot).await.map(drop)
    }

    /// Removes a snapshot. Who has it open gets errors.
    ///
    /// # Errors
    /// `NotFound`; those of the drive.
    pub async fn remove_snapshot(&self, name: &VolumeName, snapshot: &VolumeName) -> Result<()> {
        let _one = self.changes.lock().await;
        let what = format!("snapshot {snapshot} of volume {name}");
        snapshot::remove(&*self.context.backing, &what, &name.snapshot_prefix(snapshot), false).await
    }

    /// Makes the volume `to` with the content of a snapshot, and opens it. No data is copied.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` where `to` is there; those of the drive and of the disk.
    pub async fn clone_snapshot(&self, name: &VolumeName, snapshot: &VolumeName, to: &VolumeName) -> Result<Arc<Volume>> {
        let _one = self.changes.lock().await;
        self.found(to)?;
        self.check_new(to)?;
        let files = self.files(to)?;
        snapshot::clone(&self.context, name, snapshot, to).await?;
        self.open_one(to, files).await
    }

    /// Verifies the extents of a volume and of its snapshots, at most at this rate. Where it is to `repair`, and the
    /// backing has what is damaged elsewhere, it is written again.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable`; damaged header records. Other damage is no error.
    pub async fn scrub(&self, name: &VolumeName, bytes_per_s: Option<u64>, repair: bool) -> Result<Scrubbed> {
        let (volume, backing) = (self.known(name)?, &*self.context.backing);
        let mut scrubbed = scrub(backing, name.as_str(), &name.prefix(), volume.extent, bytes_per_s, repair).await?;
        for snapshot in names_below(backing, &name.snapshots_prefix()).await? {
            let (of, prefix) = (format!("{name}@{snapshot}"), name.snapshot_prefix(&snapshot));
            let Some((header, _)) = read_header(backing, &format!("snapshot {of}"), &prefix).await? else { continue };
            let found = scrub(backing, &of, &prefix, header.extent.into(), bytes_per_s, repair).await?;
            scrubbed.extents += found.extents;
            scrubbed.bytes += found.bytes;
            scrubbed.damaged.extend(found.damaged);
        }
        Ok(scrubbed)
    }

    /// Flushes and closes all volumes. What their journals hold stays there for the next opening.
    ///
    /// # Errors
    /// As for a flush, for the first volume that can't be flushed; all are closed.
    pub async fn close(&self) -> Result<()> {
        let mut done = Ok(());
        for volume in self.all() {
            done = done.and(volume.close().await);
        }
        self.open.write().clear();
        done
    }
}

/// The volumes on a drive, by name, whether or not they are open.
///
/// # Errors
/// Those of the drive.
pub async fn list(backing: &dyn Backing) -> Result<Vec<VolumeStatus>> {
    let mut all = Vec::new();
    for name in names_below(backing, PREFIX).await? {
        let Some(mut status) = status(backing, &format!("volume {name}"), name.as_str(), &name.prefix()).await? else { continue };
        for snapshot in names_below(backing, &name.snapshots_prefix()).await? {
            let what = format!("snapshot {snapshot} of volume {name}");
            status.snapshots.extend(self::status(backing, &what, snapshot.as_str(), &name.snapshot_prefix(&snapshot)).await?);
        }
        all.push(status);
    }
    Ok(all)
}

/// What there is below `prefix`; nothing where it is being removed.
async fn status(backing: &dyn Backing, what: &str, name: &str, prefix: &str) -> Result<Option<VolumeStatus>> {
    let mut status = VolumeStatus { name: name.to_owned(), ..VolumeStatus::default() };
    match read_header(backing, what, prefix).await {
        Ok(Some((header, _))) if !header.removed => {
            let Header { number, id, size, extent, created_ms, .. } = header;
            status = VolumeStatus { number, id, size, extent, created_ms, ..status };
            each_extent(backing, prefix, |_, _| status.extents += 1).await?;
        }
        Ok(_) => return Ok(None),
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => status.error = Some(error.report()),
        Err(error) => return Err(error),
    }
    Ok(Some(status))
}

/// Deletes what an interrupted removal, clone or snapshot left below `prefix`: whether it was such.
async fn finish(backing: &dyn Backing, what: &str, prefix: &str) -> Result<bool> {
    let is_there = read_header(backing, what, prefix).await?.is_some_and(|(header, _)| !header.removed);
    if !is_there {
        delete_keys(backing, prefix).await?;
    }
    Ok(!is_there)
}

/// Takes the directory for this process.
fn lock(dir: &Path) -> Result<File> {
    // No volume has a name that begins with a dot.
    let path = dir.join(".lock");
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(|e| Error::io("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::conflict(format!("the volumes in {} are open in another process: close them there", dir.display()))),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", &path, e)),
    }
}
