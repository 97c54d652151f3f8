//! The status of an embedded fleet's drives without a host, where too many are missing to open the fleet.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::{Error, Key, Result};
use skytether_device::{Capabilities, CseInfo};
use skytether_drive::drive::FORMAT;
use skytether_drive::{Drive, DriveOptions, Storage};
use skytether_host::MEMBERSHIP_KEY;
use skytether_host::{DriveStatus, Membership};
use uuid::Uuid;

use crate::embedded::{Lock, open_known, places, read};

/// A drive that `fleet.json` names, with the number of its directory, if it can be opened.
struct Found {
    id: Uuid,
    place: usize,
    drive: Result<Arc<Drive>>,
}

/// The present and the missing drives of the embedded fleet at `path`; see [`crate::Fleet::offline_status`].
pub(crate) fn offline_status(path: &Path) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
    Box::pin(async move {
        let dir = path.to_path_buf();
        // Opening verifies what a crash left behind, which blocks.
        let opened = tokio::task::spawn_blocking(move || open_all(&dir)).await;
        let (_lock, found) = opened.map_err(|e| Error::internal(format!("opening {} stopped", path.display())).with_source(e))??;
        let mut told = Vec::with_capacity(found.len());
        for one in &found {
            told.push(match &one.drive {
                Ok(drive) => membership(drive).await?,
                Err(_) => None,
            });
        }
        let newest = told.iter().flatten().max_by_key(|membership| membership.change);
        let mut all = Vec::with_capacity(found.len());
        for (one, own) in found.iter().zip(&told) {
            let member = newest.and_then(|newest| newest.drives.iter().find(|member| member.id == one.id));
            if newest.is_some() && member.is_none() {
                // It has left the fleet.
                continue;
            }
            all.push(match &one.drive {
                Ok(drive) => here(drive, own.is_none() && newest.is_some_and(|newest| newest.homes > 1)).await,
                Err(e) => lost(one, member.map(|member| member.name.clone()), e),
            });
        }
        Ok(all)
    })
}

/// Opens the drives of the fleet, as far as possible, and takes the lock, without which they must not be opened.
fn open_all(path: &Path) -> Result<(Lock, Vec<Found>)> {
    let file = path.join("fleet.json");
    // First: where there is no fleet, no lock is left behind.
    read(&file)?;
    let lock = Lock::take(path)?;
    let fleet = read(&file)?;
    let places = places(path, &fleet)?;
    let open = |(id, place): (&Uuid, usize)| Found { id: *id, place, drive: open_known(path, place, *id, DriveOptions::default()) };
    Ok((lock, fleet.drives.iter().zip(places).map(open).collect()))
}

/// What a drive knows of its fleet, if that can be read.
async fn membership(drive: &Drive) -> Result<Option<Membership>> {
    let told = drive.get(&Key::new(MEMBERSHIP_KEY)?).await;
    Ok(told.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// A drive that is there.
async fn here(drive: &Drive, blank: bool) -> DriveStatus {
    let (usage, error) = match drive.usage().await {
        Ok(usage) => (Some(usage), blank.then(|| "it is blank, in the place of one that was lost".to_owned())),
        Err(e) => (None, Some(e.report())),
    };
    DriveStatus { info: drive.info().clone(), found: None, node: None, usage, error, blank, fenced: None, damaged: 0, unreadable: Vec::new() }
}

/// A drive that is not there.
fn lost(one: &Found, name: Option<String>, error: &Error) -> DriveStatus {
    let name = name.unwrap_or_else(|| format!("drive-{}", one.place));
    let info = CseInfo { id: one.id, name, format: FORMAT, memory_limit: 0, profile: None, device: None, capabilities: Capabilities::default() };
    DriveStatus { info, found: None, node: None, usage: None, error: Some(error.report()), blank: false, fenced: None, damaged: 0, unreadable: Vec::new() }
}
