//! Resizes of an embedded fleet: the directories of its drives, and `fleet.json`.
//!
//! `fleet.json` names a joining drive before it is a member, and a leaving drive until it is none. The next open leaves
//! out drives that are no members, and corrects the list.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skytether_common::{Error, Kind, Result};
use skytether_drive::{Cse, Drive, DriveOptions, Storage, linked};
use skytether_host::{OnProgress, ResizeOptions, ResizeReport};
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

use crate::embedded::{Embedded, FleetFile, MAX_DRIVES, begun, drive_dir, identity_of, read, write};

impl Embedded {
    /// Creates drives and takes them in, and lets drives leave; see [`skytether_host::Host::resize`].
    pub(crate) async fn grow(&self, options: &ResizeOptions, tell: OnProgress<'_>) -> Result<ResizeReport> {
        if !options.addresses.is_empty() {
            return Err(Error::invalid("a fleet in a directory has all its drives below it: say how many are to come, not addresses"));
        }
        // One resize at a time: a second one would correct the list of the first.
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
        // After a failure as well: some drives may have joined or left.
        let kept = self.keep_list().await;
        let mut report = done?;
        kept?;
        for dir in self.left_behind(&report.retired)? {
            report.notes.push(format!("{} holds nothing that the fleet needs any more: it may be deleted", dir.display()));
        }
        Ok(report)
    }

    /// The directories of these retired drives.
    fn left_behind(&self, retired: &[String]) -> Result<Vec<PathBuf>> {
        if retired.is_empty() {
            return Ok(Vec::new());
        }
        let members = read(&self.path().join("fleet.json"))?.drives;
        let is_left = |dir: &PathBuf| identity_of(dir).is_some_and(|found| retired.contains(&found.name) && !members.contains(&found.id));
        Ok(begun(self.path())?.into_iter().map(|place| drive_dir(self.path(), place)).filter(is_left).collect())
    }

    /// Makes `fleet.json` name the members and no other drives. A drive that any drive takes for a member stays:
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

    /// Adds a member to a list that lacks it, since a disk or a person changed the list. It replaces an entry that is
    /// no member and has no directory, or gets the number of its own directory.
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

    /// Creates `count` blank drives, which `fleet.json` names.
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
            // A drive of an interrupted resize, or one that left and was emptied, is as good as a new one.
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

/// Opens the drive in a directory, or creates it. `None` where the directory has something else, or another process
/// uses the drive.
fn open(dir: &Path, name: String, like: DriveOptions) -> Result<Option<Arc<Drive>>> {
    let begun = dir.join("drive.json").try_exists().map_err(|e| Error::io("look for", dir, e))?;
    match Drive::open(dir, (!begun).then(|| DriveIdentity { id: Uuid::new_v4(), name }), like) {
        Ok(drive) => Ok(Some(drive)),
        Err(e) if begun && matches!(e.kind(), Kind::Conflict | Kind::Corrupt | Kind::Unsupported) => Ok(None),
        // An interrupted creation may have left files, which do not matter; anything else does.
        Err(e) if !begun && matches!(e.kind(), Kind::Invalid | Kind::Corrupt) => Ok(None),
        Err(e) => Err(e),
    }
}
