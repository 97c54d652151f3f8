//! Embedded fleets that drives come to and leave: their directories, and `fleet.json`.
//!
//! A drive that comes is in `fleet.json` before it is a member of the fleet, and one that leaves is there after it has
//! ceased to be one: whoever opens the fleet leaves out those that are no members, and puts the list right.

use std::path::Path;
use std::sync::Arc;

use skytether_common::{Error, Kind, Result};
use skytether_drive::{Cse, Drive, DriveOptions, Storage, linked};
use skytether_host::{OnProgress, ResizeOptions, ResizeReport};
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

use crate::embedded::{Embedded, FleetFile, MAX_DRIVES, begun, drive_dir, identity_of, read, write};

impl Embedded {
    /// Makes drives and takes them in, and lets drives go; see [`skytether_host::Host::resize`].
    pub(crate) async fn grow(&self, options: &ResizeOptions, tell: OnProgress<'_>) -> Result<ResizeReport> {
        if !options.addresses.is_empty() {
            return Err(Error::invalid("a fleet in a directory has all its drives below it: say how many are to come, not addresses"));
        }
        // Of two at a time the second would put a list right that the first has not ended with.
        let _only = self
            .resizing
            .try_lock()
            .map_err(|_| Error::conflict("drives of this fleet are being added, retired or balanced at this moment: wait until that is done"))?;
        let mut new: Vec<Arc<dyn Cse>> = Vec::new();
        if options.count > 0 {
            self.host().check_resize(options.count, options).await?;
            for drive in self.make(options.count).await? {
                new.push(linked(drive));
            }
        }
        let done = self.host().resize(new, options, tell).await;
        // Also where it failed: what came has come, and what has left is gone.
        let kept = self.keep_list().await;
        done.and_then(|report| kept.map(|()| report))
    }

    /// `fleet.json` names the drives of the fleet and no others. None goes that any drive takes for one of them:
    /// without it the fleet could not be opened.
    pub(crate) async fn keep_list(&self) -> Result<()> {
        let fleet = read(&self.path().join("fleet.json"))?;
        let members = self.host().members();
        let before: Vec<(Uuid, usize)> = fleet.drives.iter().enumerate().map(|(at, id)| (*id, fleet.place(at))).collect();
        let mut drives = before.clone();
        for id in members.iter().filter(|id| !fleet.drives.contains(id)) {
            self.name_again(*id, &members, &mut drives)?;
        }
        if drives.iter().any(|(id, _)| !members.contains(id))
            && let Some(listed) = self.host().listed().await?
        {
            drives.retain(|(id, _)| members.contains(id) || listed.contains(id));
        }
        if drives == before { Ok(()) } else { write(self.path(), &FleetFile::new(drives)) }
    }

    /// Puts a drive of the fleet into the list that does not name it, since a disk or somebody changed it: in the place
    /// of what is none of its drives and nowhere, or else where the drive lies.
    fn name_again(&self, id: Uuid, members: &[Uuid], drives: &mut Vec<(Uuid, usize)>) -> Result<()> {
        let there = |place: usize| identity_of(&drive_dir(self.path(), place)).map(|found| found.id);
        let own = begun(self.path())?.into_iter().find(|place| there(*place) == Some(id));
        let is_its = |place: usize| own.map_or_else(|| there(place).is_none(), |own| own == place);
        match (drives.iter().position(|(other, place)| !members.contains(other) && is_its(*place)), own) {
            (Some(at), _) => drives[at].0 = id,
            (None, Some(own)) if drives.iter().any(|(_, place)| *place == own) => return Ok(()),
            (None, Some(own)) => drives.push((id, own)),
            (None, None) => {
                let is_free = |place: &usize| drives.iter().all(|(_, other)| other != place) && !drive_dir(self.path(), *place).exists();
                let free = (0..=MAX_DRIVES).find(is_free);
                drives.extend(free.map(|place| (id, place)));
            }
        }
        tracing::warn!("{} did not name drive {id}, which is of this fleet: it does now", self.path().join("fleet.json").display());
        Ok(())
    }

    /// So many blank drives, which `fleet.json` names.
    async fn make(&self, count: usize) -> Result<Vec<Arc<Drive>>> {
        let ids: Vec<Uuid> = self.host().drives().iter().map(|drive| drive.info().id).collect();
        let names: Vec<String> = self.host().drives().iter().map(|drive| drive.info().name.clone()).collect();
        let like = self.like.last().cloned().unwrap_or_default();
        let fleet = read(&self.path().join("fleet.json"))?;
        let mut drives: Vec<(Uuid, usize)> = fleet.drives.iter().enumerate().map(|(at, id)| (*id, fleet.place(at))).collect();
        if drives.len() + count > MAX_DRIVES {
            return Err(Error::invalid(format!("a fleet in one directory has {MAX_DRIVES} drives at most, not {}", drives.len() + count)));
        }
        let mut made = Vec::with_capacity(count);
        for place in 0.. {
            if made.len() == count {
                break;
            }
            let name = format!("drive-{place}");
            if drives.iter().any(|(_, other)| *other == place) || names.contains(&name) {
                continue;
            }
            let (dir, like) = (drive_dir(self.path(), place), like.clone());
            let opened =
                tokio::task::spawn_blocking(move || open(&dir, name, like)).await.map_err(|e| Error::internal("making a drive stopped").with_source(e))??;
            let Some(drive) = opened else { continue };
            // One that was to come when a crash came first, or left and was emptied, is as good as a new one.
            if ids.contains(&drive.info().id) || drive.usage().await?.keys > 1 {
                continue;
            }
            drives.push((drive.info().id, place));
            made.push(drive);
        }
        write(self.path(), &FleetFile::new(drives))?;
        Ok(made)
    }
}

/// The drive in a directory, made where there is none; nothing where there is something else,
/// or one that somebody uses.
fn open(dir: &Path, name: String, like: DriveOptions) -> Result<Option<Arc<Drive>>> {
    let begun = dir.join("drive.json").try_exists().map_err(|e| Error::io("look for", dir, e))?;
    match Drive::open(dir, (!begun).then(|| DriveIdentity { id: Uuid::new_v4(), name }), like) {
        Ok(drive) => Ok(Some(drive)),
        Err(e) if begun && matches!(e.kind(), Kind::Conflict | Kind::Corrupt | Kind::Unsupported) => Ok(None),
        // What the making of a drive left that was cut off is no obstacle, anything else is.
        Err(e) if !begun && matches!(e.kind(), Kind::Invalid | Kind::Corrupt) => Ok(None),
        Err(e) => Err(e),
    }
}
