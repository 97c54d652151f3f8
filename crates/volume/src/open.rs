//! Makes, opens, grows and closes volumes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use skytether_common::{Error, Kind, Result};
use skytether_store::Expect;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::backing::Backing;
use crate::extents::{ExtentCache, Extents};
use crate::files::Files;
use crate::header::{FORMAT, Header, now_ms};
use crate::index::Index;
use crate::keys::{delete_keys, put_header, read_header, stored_extents};
use crate::names::{VolumeName, check_size};
use crate::numbers::put_numbered;
use crate::options::Options;
use crate::recovery::{self, Recovery};
use crate::volume::Volume;

/// What a volume needs from its surroundings.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where extents are.
    pub backing: Arc<dyn Backing>,
    /// Extents in memory.
    pub cache: Arc<ExtentCache>,
    /// Bounds.
    pub options: Options,
}

/// Makes a volume of `size` bytes, after what a removed one of this name left.
///
/// # Errors
/// `Conflict` where there is one; `Invalid` for the size; those of the drive.
pub async fn create(context: &Context, name: &VolumeName, size: u64) -> Result<()> {
    check_size(name, size)?;
    let (what, prefix) = (format!("volume {name}"), name.prefix());
    match read_header(&*context.backing, &what, &prefix).await? {
        Some((header, _)) if !header.removed => return Err(Error::conflict(format!("{what}: it is there already; remove it first, or use another name"))),
        _ => delete_keys(&*context.backing, &prefix).await?,
    }
    let extent = context.options.extent;
    let header = Header { format: FORMAT, id: Uuid::new_v4(), number: 0, size, extent, created_ms: now_ms(), journal: None, removed: false };
    put_numbered(&*context.backing, name, header).await
}

impl Volume {
    /// Opens the volume `name`, with its journal in `files`. What the journal says about the last run is told.
    ///
    /// # Errors
    /// `NotFound` where there is none. `Conflict` where its last writes are in another journal. `Corrupt` where the
    /// journal or the header record is damaged. Those of the drive and of the disk.
    pub async fn open(context: &Context, name: &VolumeName, files: Arc<dyn Files>) -> Result<(Arc<Self>, Recovery)> {
        context.options.check()?;
        let (what, prefix) = (format!("volume {name}"), name.prefix());
        let found = read_header(&*context.backing, &what, &prefix).await?.filter(|(header, _)| !header.removed);
        let (mut header, version) = found.ok_or_else(|| Error::not_found(format!("{what}: there is none on drive {}", context.backing.name())))?;
        let mut index = Index::new(header.extent.into());
        stored_extents(&*context.backing, &what, &prefix, &header, &mut index).await?;
        let (wanted, id, options) = (header.journal, header.id, context.options.clone());
        // Zeros are written up to the end of the last extent.
        let end = header.size.next_multiple_of(header.extent.into());
        let is_discarded = options.discard_journal.contains(name);
        let bounds = options.clone();
        let opened = spawn_blocking(move || open_journal(&what, &files, (id, wanted, end), (&bounds, is_discarded), index)).await;
        let (journal, index, recovery) = opened.map_err(|e| Error::internal("opening a volume ended early").with_source(e))??;
        // A process that still has the volume open sees by the version that it has lost it.
        header.journal = Some(journal.control.id);
        let version = put_header(&*context.backing, &prefix, &header, Expect::Version(version)).await?;
        let extents = Extents::new(format!("volume {name}"), prefix, header.extent.into(), Arc::clone(&context.backing), Arc::clone(&context.cache));
        let volume = Arc::new(Self::new(name.clone(), (header, version), options, Arc::new(journal), index, Arc::new(extents)));
        volume.spawn_merging();
        Ok((volume, recovery))
    }

    /// Makes the volume `size` bytes long.
    ///
    /// # Errors
    /// `Invalid` for a smaller size; those of the drive.
    pub async fn grow(&self, size: u64) -> Result<()> {
        check_size(&self.name, size)?;
        let mut header = self.header.lock().await;
        let now = header.0.size;
        if size < now {
            return Err(Error::invalid(format!("{}: it has {now} bytes and can't shrink to {size}: make another one and copy", self.what())));
        }
        if size > now {
            let next = Header { size, ..header.0.clone() };
            let version = put_header(&*self.extents.backing, &self.extents.prefix, &next, Expect::Version(header.1)).await?;
            *header = (next, version);
            self.size.store(size, Ordering::Release);
        }
        Ok(())
    }

    /// Merges all that the journal holds.
    ///
    /// # Errors
    /// `Corrupt` where damaged extents stand in the way; those of the drive.
    pub async fn drain(&self) -> Result<()> {
        let alone = self.merging.lock().await;
        self.merge_all(&alone).await
    }

    /// Makes everything durable, and takes no more changes. What the journal holds stays there.
    ///
    /// # Errors
    /// As for a flush.
    pub async fn close(&self) -> Result<()> {
        let flushed = self.journal.sync().await;
        self.stop().await;
        flushed
    }

    /// Takes no more changes, and waits until nothing is under way. What was not flushed is durable only by chance.
    pub async fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.work.notify_one();
        self.room.notify_waiters();
        drop(self.merging.lock().await);
        self.journal.settle().await;
        self.journal.discard_spares().await;
    }

    /// Merges everything and ends the journal, so that the volume can be opened elsewhere.
    ///
    /// # Errors
    /// As [`Self::drain`] and [`Self::close`].
    pub async fn release(&self) -> Result<()> {
        self.drain().await?;
        self.close().await?;
        let alone = self.merging.lock().await;
        self.merge_all(&alone).await?;
        let mut header = self.header.lock().await;
        let next = Header { journal: None, ..header.0.clone() };
        let version = put_header(&*self.extents.backing, &self.extents.prefix, &next, Expect::Version(header.1)).await?;
        *header = (next, version);
        let (what, files) = (self.what(), Arc::clone(&self.journal.files));
        spawn_blocking(move || recovery::clear(&what, &*files)).await.map_err(|e| Error::internal("a thread ended early").with_source(e))?
    }
}

type Opened = (crate::journal::Journal, Index, Recovery);

/// The journal of volume `id`, whose extents end at byte `end`. Its header record says that its last writes are in the
/// journal `wanted`. One that is absent, foreign or damaged is an error, or `is_discarded`.
fn open_journal(
    what: &str,
    files: &Arc<dyn Files>,
    (id, wanted, end): (Uuid, Option<Uuid>, u64),
    (options, is_discarded): (&Options, bool),
    mut index: Index,
) -> Result<Opened> {
    let discard = |why: &str| tracing::warn!(volume = what, why, "its journal is discarded: writes that were only there are lost");
    let is_damage = |error: &Error| is_discarded && error.kind() == Kind::Corrupt;
    let found = match recovery::find(what, &**files) {
        Err(error) if is_damage(&error) => {
            discard(&error.report());
            None
        }
        found => found?,
    };
    match (wanted, found) {
        (Some(wanted), Some(found)) if found.id == wanted && found.volume == id => match recovery::recover(what, files, found, (options, end), &mut index) {
            Err(error) if is_damage(&error) => discard(&error.report()),
            recovered => return recovered.map(|(journal, recovery)| (journal, index, recovery)),
        },
        (Some(_), _) if !is_discarded => {
            return Err(Error::conflict(format!(
                "{what}: its last writes are in a journal that is not in {}: open it with the directory that it had, or discard these writes",
                files.place()
            )));
        }
        (Some(_), _) => discard("it is not here"),
        // Nothing is in a journal alone. What lies here is of a volume that was released or removed.
        (None, _) => {}
    }
    let mut index = index.without_journal();
    recovery::clear(what, &**files)?;
    let control = recovery::create(what, &**files, id)?;
    let (journal, recovery) = recovery::recover(what, files, control, (options, end), &mut index)?;
    Ok((journal, index, recovery))
}
