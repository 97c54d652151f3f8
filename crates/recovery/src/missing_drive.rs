//! A drive that is missing: its directory is gone, or no server answers at its address.

use std::sync::{Arc, OnceLock};

use skytether_common::units::counted;
use skytether_common::{Error, Kind, Result};
use skytether_device::{Capabilities, Cse, CseInfo, Layer};
use uuid::Uuid;

/// A drive that could not be opened.
#[derive(Debug)]
pub struct UnavailableDrive {
    /// Its id, by which the fleet knows it.
    pub id: Uuid,
    /// Its place among the host's drives.
    pub place: usize,
    /// Why.
    pub error: Error,
}

impl UnavailableDrive {
    /// The error of opening a fleet that needs one of the `lost` drives, which must not be empty. It names all of them,
    /// by the names that `name` gives.
    #[must_use]
    pub fn needed(lost: &[Self], name: impl Fn(&Self) -> String) -> Error {
        let kind = lost.first().map_or(Kind::Unavailable, |first| first.error.kind());
        let each: Vec<_> = lost.iter().map(|one| format!("{} ({}): {}", name(one), one.id, one.error.report())).collect();
        let (verb, them) = if lost.len() == 1 { ("is", "it") } else { ("are", "them") };
        let (count, each) = (counted(lost.len() as u64, "drive"), each.join("; "));
        Error::new(
            kind,
            format!(
                "{count} {verb} lost, and without {them} this fleet can't be opened: {each}; bring {them} back (`skytether status` shows which drives are there)"
            ),
        )
    }
}

/// What to do about a drive that is not there, in a fleet that can do without it: in one whose directory has its
/// drives (`kept`), or in one of served drives.
pub fn advice(id: &Uuid, name: &str, kept: bool) -> String {
    if kept {
        format!(
            "bring its directory back, or, with what is left of it moved away, have a blank drive made there on which all of it is rebuilt (`skytether repair --replace {name}`)"
        )
    } else {
        format!(
            "start the host with its address, too, or have all of it rebuilt on a blank drive (`skytether drive serve --data NEW --name {name} --replace {id}`, then `skytether repair --replace {name} --replacement ADDR`)"
        )
    }
}

/// In the place of a drive that is not there: knows its name, and refuses everything, until another is put in its
/// place.
#[derive(Debug)]
pub struct MissingDrive {
    info: CseInfo,
    why: String,
    /// The drive that took its place.
    successor: OnceLock<Arc<dyn Cse>>,
}

impl MissingDrive {
    /// In the place of drive `id`, known as `name`, which is not there: `why` is for people.
    pub fn new(id: Uuid, name: &str, why: String) -> Self {
        Self {
            info: CseInfo { id, name: name.to_owned(), format: 1, memory_limit: 256 << 20, profile: None, device: None, capabilities: Capabilities::default() },
            why,
            successor: OnceLock::new(),
        }
    }

    /// Puts `drive` in its place, which has its id.
    ///
    /// # Errors
    /// Invalid where it has another; Conflict where there is one already.
    pub fn succeed(&self, drive: Arc<dyn Cse>) -> Result<()> {
        let (own, id) = (&self.info, drive.info().id);
        if id != own.id {
            return Err(Error::invalid(format!(
                "the drive that is to be in the place of {} has the id {id} instead of {}: make it with `skytether drive serve --replace {1}`",
                own.name, own.id
            )));
        }
        self.successor.set(drive).map_err(|_| Error::conflict(format!("there is another drive in the place of {} already", own.name)))
    }

    /// Why it is not there.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Whether a drive has taken its place.
    pub fn is_there(&self) -> bool {
        self.successor.get().is_some()
    }

    fn there(&self) -> Result<&Arc<dyn Cse>> {
        self.successor.get().ok_or_else(|| Error::unavailable(format!("{} is lost ({})", self.info.name, self.why)))
    }
}

/// Each call goes to the successor, or is refused.
impl Layer for MissingDrive {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.there()?.as_ref())
    }

    /// It answers, or refuses, at once.
    fn capabilities(&self) -> Capabilities {
        let capabilities = self.successor.get().map_or_else(|| self.info.capabilities.clone(), |drive| drive.capabilities());
        Capabilities { heartbeats: true, ..capabilities }
    }
}
