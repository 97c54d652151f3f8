//! Root records and notes of drives that join or leave a fleet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_common::{Context, DatasetName, Error, Key, Kind, Result};
use skytether_device::Cse;
use skytether_runtime::within;
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::fencing::COORDINATOR_KEY;
use crate::records::membership::MEMBERSHIP_KEY;
use crate::records::root::RootRecord;
use crate::root_store::Catalog;

/// Keys that are deleted at a time.
const PAGE: usize = 512;

impl Catalog {
    /// Has drive `at` hold this root record, or none, whatever it held under its key.
    pub async fn place_record(&self, at: usize, name: &DatasetName, value: Option<&Bytes>) -> Result<()> {
        // Read as it is: the lock keeps others from changing root records meanwhile.
        let drive = self.bare(at);
        let there = match within(self.deadline(), &drive.info().name, "read a root record", drive.get(&name.root_key())).await {
            Ok(bytes) => Some(Some(bytes)),
            Err(e) if e.kind() == Kind::NotFound => Some(None),
            Err(e) if e.kind() == Kind::Corrupt => None,
            Err(e) => return Err(e),
        };
        if there.is_some_and(|there| there.as_ref() == value) {
            return Ok(());
        }
        let (key, expect) = (name.root_key(), Expect::Any);
        let op = match value {
            Some(value) => Op::Put { key, value: value.clone(), expect },
            None => Op::Delete { key, expect },
        };
        within(self.deadline(), &drive.info().name, "take a root record", drive.apply(vec![op]))
            .await
            .map(drop)
            .context(|| format!("{} could not take the root record of {name}", drive.info().name))
    }

    /// Deletes root records on drives that are not their homes: a crash may leave them while homes change. Does nothing
    /// while a drive is down.
    ///
    /// # Errors
    /// What the drives say.
    pub async fn sweep_records(&self) -> Result<()> {
        let catalog = self;
        if !catalog.health().down().is_empty() {
            return Ok(());
        }
        let _still = catalog.health().freeze_records().await;
        for at in catalog.health().members() {
            for name in catalog.names_at(at).await? {
                let homes = catalog.homes(&name);
                if homes.contains(&at) {
                    continue;
                }
                let drive = self.bare(at);
                tracing::info!("a root record of {name} that {} has and should not is deleted", drive.info().name);
                let delete = Op::Delete { key: name.root_key(), expect: Expect::Any };
                within(catalog.deadline(), &drive.info().name, "delete a root record", drive.apply(vec![delete])).await?;
            }
        }
        Ok(())
    }
}

/// Keys of the records about the fleet on a drive, outside of its data.
pub const NOTES: [&str; 2] = [MEMBERSHIP_KEY, COORDINATOR_KEY];

/// Whether `key` is one of [`NOTES`].
pub fn is_note(key: &Key) -> bool {
    NOTES.contains(&key.as_str())
}

/// Whether all drives in `others` answer, and no root record there names the drive `id`, which has left their fleet.
/// Then no data set uses what is on it.
///
/// # Errors
/// Corrupt, naming a data set that has a part there.
pub async fn is_forgotten(id: &Uuid, name: &str, others: &[Arc<dyn Cse>], deadline: Duration) -> Result<bool> {
    let others = Catalog::new(others.iter().map(|drive| Arc::clone(drive) as _).collect(), deadline)?;
    for at in 0..others.drives().len() {
        let Ok(names) = others.names_at(at).await else { return Ok(false) };
        for dataset in names {
            match others.read_at(at, &dataset).await.map(|found| found.map(|(bytes, _)| RootRecord::decode(&dataset, &bytes))) {
                Ok(Some(Ok(record))) if record.names(id) => {
                    return Err(Error::corrupt(format!("{name} ({id}) left its fleet, and {dataset} has a part there: nothing is deleted")));
                }
                Ok(None | Some(Ok(_))) => {}
                Ok(Some(Err(_))) | Err(_) => return Ok(false),
            }
        }
    }
    Ok(true)
}

/// Deletes all that is on a drive that has left, its notes of the fleet last: then it is blank.
pub async fn wipe(drive: &dyn Cse, deadline: Duration) -> Result<()> {
    let name = &drive.info().name;
    loop {
        let page = within(deadline, name, "list what it holds", drive.list("", None, PAGE)).await?;
        let only_notes = page.iter().all(|entry| is_note(&entry.key));
        let ops: Vec<Op> =
            page.into_iter().filter(|entry| only_notes || !is_note(&entry.key)).map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect();
        if !ops.is_empty() {
            within(deadline, name, "delete what it holds", drive.apply(ops)).await?;
        }
        if only_notes {
            return Ok(());
        }
    }
}
