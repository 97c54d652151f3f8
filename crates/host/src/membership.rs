//! Which drives make up a fleet: a record on every one of them.
//!
//! Home drives and garbage are told from the list of drives, so a host that is given too few drives, or one too many, would look for
//! root records in the wrong place and take what it does not find for garbage. The record makes it notice.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Expect, Op};
use skytether_wire::Cse;
use std::sync::Arc;
use uuid::Uuid;

use crate::catalog::{Catalog, within};
use crate::options::HostOptions;
use crate::session::Host;

/// The key of the record on every drive. It has no `/`, so it is neither a root record nor a part of a data set.
pub const MEMBERSHIP_KEY: &str = "skytether-fleet";

/// The newest membership record that this version reads, and the one that it writes for the drives of a branch: versions before would take those for their own.
pub const MEMBERSHIP_FORMAT: u32 = 2;

/// The one that it writes for a fleet.
const FLEET_FORMAT: u32 = 1;

/// One drive of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The drive's id, which is what counts.
    pub id: Uuid,
    /// Its name when the fleet was put together, for texts.
    pub name: String,
}

/// The drives that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Version of this record's format.
    pub format: u32,
    /// The fleet, drawn at random when it was put together.
    pub fleet: Uuid,
    /// All its drives, in order of their ids.
    pub drives: Vec<Member>,
    /// Where they are the drives of a branch: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// What drives are put together for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The fleet of a host that stands above all others.
    Fleet,
    /// A branch of this name, a drive of another host.
    Branch(String),
}

/// When drives without a membership record may become a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Founding {
    /// Only if all of them are empty: the list of drives was typed in by somebody.
    EmptyDrives,
    /// Always: the list of drives was kept with them, and is known to be whole.
    KnownList,
}

impl Membership {
    fn decode(drive: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let corrupt = |e| Error::corrupt(format!("{drive}: the record of its fleet's drives ({MEMBERSHIP_KEY}) is damaged")).because(e);
        let head: Head = serde_json::from_slice(bytes).map_err(corrupt)?;
        if head.format > MEMBERSHIP_FORMAT {
            return Err(Error::unsupported(format!(
                "{drive} belongs to a fleet of a newer version of Skytether (membership format {}, this version reads up to {MEMBERSHIP_FORMAT}): upgrade",
                head.format
            )));
        }
        serde_json::from_slice(bytes).map_err(corrupt)
    }

    /// Whether these drives are what `role` says. A host that took the drives of a branch for its own would delete all that is on them, since the records that name it are those of the host above.
    fn plays(&self, role: &Role) -> Result<()> {
        match (&self.branch, role) {
            (None, Role::Fleet) => Ok(()),
            (Some(own), Role::Branch(name)) if own == name => Ok(()),
            (Some(own), Role::Branch(name)) => {
                Err(Error::invalid(format!("these drives are those of the branch {own}, not of {name}: serve them under that name")))
            }
            (Some(own), Role::Fleet) => Err(Error::invalid(format!(
                "these drives are those of the branch {own}: serve it (`skytether host serve --as-drive {own}`) and name that as one drive"
            ))),
            (None, Role::Branch(name)) => {
                Err(Error::invalid(format!("these drives are a fleet of their own, with data sets of their own: the branch {name} needs empty drives")))
            }
        }
    }

    fn ids(&self) -> BTreeMap<Uuid, &str> {
        self.drives.iter().map(|m| (m.id, m.name.as_str())).collect()
    }
}

impl Host {
    /// A host over the drives of one fleet, checked to be all of them and no others, with what earlier ingests left behind deleted.
    /// The number of keys that were deleted comes with it. Only safe while nobody else writes to these drives.
    ///
    /// # Errors
    /// As [`Host::new`], [`Catalog::establish_membership`] and [`Catalog::collect_garbage`].
    pub async fn join(drives: Vec<Arc<dyn Cse>>, options: HostOptions, founding: Founding) -> Result<(Self, u64)> {
        let host = Self::new(drives, options)?;
        host.catalog().establish_membership(founding, &Role::Fleet).await?;
        let deleted = host.catalog().collect_garbage().await?;
        Ok((host, deleted))
    }
}

impl Catalog {
    /// Checks that the drives are exactly one fleet, in any order. Drives that belong to none become one, as far as `founding` allows.
    ///
    /// # Errors
    /// `Invalid` where drives are missing or belong to another fleet, by name and id, and where drives hold data and don't know their
    /// fleet; `Conflict` while another host puts a fleet together from them; `Corrupt`, `Unsupported`, `Unavailable`.
    pub async fn establish_membership(&self, founding: Founding, role: &Role) -> Result<Membership> {
        let found = self.memberships().await?;
        let membership = match self.agreed(&found)? {
            Some(membership) => {
                membership.plays(role)?;
                membership.clone()
            }
            None => {
                if founding == Founding::EmptyDrives {
                    self.check_empty().await?;
                }
                let mut drives: Vec<_> = self.drives().iter().map(|d| Member { id: d.info().id, name: d.info().name.clone() }).collect();
                drives.sort_by_key(|m| m.id);
                let (format, branch) = match role {
                    Role::Fleet => (FLEET_FORMAT, None),
                    Role::Branch(name) => (MEMBERSHIP_FORMAT, Some(name.clone())),
                };
                Membership { format, fleet: Uuid::new_v4(), drives, branch }
            }
        };
        let value = serde_json::to_vec(&membership).map(Bytes::from).map_err(|e| Error::internal("cannot write the record of a fleet's drives").because(e))?;
        // In order of the ids: of two hosts that do this at the same time, the second fails at the first drive and writes nothing. What a
        // crash left undone is done now, since the drives that have the record name the others.
        let mut missing: Vec<_> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
        missing.sort_by_key(|at| self.drives()[*at].info().id);
        for at in missing {
            let (drive, name) = (&self.drives()[at], &self.drives()[at].info().name);
            let put = Op::Put { key: Key::new(MEMBERSHIP_KEY)?, value: value.clone(), expect: Expect::Absent };
            within(self.deadline(), name, "note its fleet", drive.apply(vec![put])).await.map_err(|e| match e.kind() {
                Kind::Conflict => {
                    Error::conflict(format!("another host puts a fleet together from {name} at this moment: stop one of them and start again")).because(e)
                }
                _ => e.while_doing(format!("{name} could not note its fleet")),
            })?;
        }
        Ok(membership)
    }

    /// Checks that every drive knows its fleet, and that the drives are exactly that.
    ///
    /// # Errors
    /// As [`Self::establish_membership`]; `Invalid` for a drive without a record.
    pub async fn check_membership(&self) -> Result<()> {
        let found = self.memberships().await?;
        self.agreed(&found)?;
        match found.iter().position(Option::is_none) {
            Some(at) => Err(Error::invalid(format!("{} does not know its fleet: let the host join its drives first", self.drives()[at].info().name))),
            None => Ok(()),
        }
    }

    async fn memberships(&self) -> Result<Vec<Option<Membership>>> {
        let key = Key::new(MEMBERSHIP_KEY)?;
        try_join_all(self.drives().iter().map(|drive| async {
            let name = &drive.info().name;
            match within(self.deadline(), name, "name its fleet", drive.get(&key)).await {
                Ok(bytes) => Membership::decode(name, &bytes).map(Some),
                Err(e) if e.kind() == Kind::NotFound => Ok(None),
                Err(e) => Err(e.while_doing(format!("{name} could not name its fleet"))),
            }
        }))
        .await
    }

    /// The one record that all drives with a record have, if it names exactly these drives.
    fn agreed<'a>(&self, found: &'a [Option<Membership>]) -> Result<Option<&'a Membership>> {
        let mut known = found.iter().zip(self.drives()).filter_map(|(m, d)| m.as_ref().map(|m| (m, &d.info().name)));
        let Some((first, by)) = known.next() else { return Ok(None) };
        let members = first.ids();
        let ours: BTreeMap<Uuid, &str> = self.drives().iter().map(|d| (d.info().id, d.info().name.as_str())).collect();
        let list = |what: &str, these: &BTreeMap<Uuid, &str>, without: &BTreeMap<Uuid, &str>| {
            let names: Vec<_> = these.iter().filter(|(id, _)| !without.contains_key(*id)).map(|(id, name)| format!("{name} ({id})")).collect();
            if names.is_empty() { String::new() } else { format!("; {what}: {}", names.join(", ")) }
        };
        let (missing, foreign) = (list("missing", &members, &ours), list("not of this fleet", &ours, &members));
        if !missing.is_empty() || !foreign.is_empty() {
            return Err(Error::invalid(format!(
                "the {} drives given are not the fleet of {} drives that {by} belongs to{missing}{foreign}: start the host with exactly that fleet's drives",
                ours.len(),
                members.len()
            )));
        }
        if let Some((_, other)) = known.find(|(m, _)| m.fleet != first.fleet || m.ids().keys().ne(members.keys())) {
            return Err(Error::invalid(format!("{by} and {other} belong to different fleets: start the host with the drives of one")));
        }
        Ok(Some(first))
    }

    async fn check_empty(&self) -> Result<()> {
        for drive in self.drives() {
            let name = &drive.info().name;
            if let Some(entry) = within(self.deadline(), name, "list what it holds", drive.list("", None, 1)).await?.first() {
                return Err(Error::invalid(format!(
                    "{name} ({}) holds data ({}) and does not know its fleet, so nobody can tell whether these are all its drives: a new fleet is made of empty drives",
                    drive.info().id,
                    entry.key
                )));
            }
        }
        Ok(())
    }
}
