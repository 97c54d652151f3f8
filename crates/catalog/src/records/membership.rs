//! The membership record, on every drive of a fleet: which drives make it up.
//!
//! Home drives and garbage follow from the list of drives. With one drive too few or too many, a host would look for
//! root records in the wrong place. It would take what it does not find for garbage. The record makes it notice.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Kind, Result};
use skytether_erasure::{Code, Scheme};
use uuid::Uuid;

/// The key of the record on every drive. It has no `/`, so it is neither a root record nor a part of a data set.
pub const MEMBERSHIP_KEY: &str = "skytether-fleet";

/// The newest membership record that this version reads.
pub const MEMBERSHIP_FORMAT: u32 = NODES_FORMAT;

/// The format for a fleet whose nodes are known: older versions would look for root records on too few drives.
pub(crate) const NODES_FORMAT: u32 = 6;

/// The format for a fleet that drives came to or left: older versions would look for root records where they are not.
pub const GROWN_FORMAT: u32 = 5;

/// The format for a fleet with replaced drives: older versions would use a replaced drive that came back.
pub(crate) const REPLACED_FORMAT: u32 = 4;

/// The format for the drives of an aggregator: older versions would take those for drives of a host.
pub(crate) const BRANCH_FORMAT: u32 = 2;

/// The format for a fleet that may lose drives: older versions would look for root records on one drive, and take
/// parities for garbage.
pub(crate) const REDUNDANT_FORMAT: u32 = 3;

/// The format for any other fleet.
pub(crate) const FLEET_FORMAT: u32 = 1;

/// One drive of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The drive's id, which is what counts.
    pub id: Uuid,
    /// Its name when the fleet was put together, for texts.
    pub name: String,
    /// How often another drive took its place. A drive that knows a lower number was replaced.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub incarnation: u32,
    /// The node (failure domain) of this drive, which may be lost as a whole; empty where unknown.
    #[serde(default, rename = "host", skip_serializing_if = "String::is_empty")]
    pub node: String,
}

/// The drives that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Version of this record's format.
    pub format: u32,
    /// The fleet, drawn at random when it was put together.
    pub fleet: Uuid,
    /// All its drives: the founding ones in order of their ids, then later ones.
    pub drives: Vec<Member>,
    /// The name of the aggregator that has these drives, if one has.
    #[serde(rename = "branch", default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<String>,
    /// The number of home drives of each root record.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub homes: u32,
    /// Further home drives where a data set is on two levels: the number of nodes, and of drives of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<DomainSpread>,
    /// How data sets are kept from loss unless their ingest says otherwise.
    #[serde(default, skip_serializing_if = "is_none")]
    pub redundancy: Scheme,
    /// Drives that were away while a root record changed, and have not got the change yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Uuid>,
    /// The list that root records' homes follow from, where that is not the list of drives: in fleets that drives came
    /// to or left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<HomeSlot>,
    /// Grows with each change: of several records the highest counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub change: u64,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

fn is_none(scheme: &Scheme) -> bool {
    *scheme == Scheme::None
}

fn is_nought(n: &u32) -> bool {
    *n == 0
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What drives are put together for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The fleet of a host, not of an aggregator.
    Fleet,
    /// An aggregator of this name, which is a drive of another host.
    Aggregator(String),
}

/// When drives without a membership record may become a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Founding {
    /// Only if all of them are empty: a person has typed the list of drives.
    EmptyDrives,
    /// Always: the list of drives was stored with them, and is complete.
    KnownList,
    /// Never: some drives of the list could not be asked.
    Never,
    /// Never: the caller asks for a fleet that exists.
    Existing,
}

impl Membership {
    /// The record in `bytes`, which `drive` (its name, for errors) has.
    ///
    /// # Errors
    /// `Unsupported` for a record of a newer version, `Corrupt` for bytes that are none.
    pub fn decode(drive: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let corrupt = |e| Error::corrupt(format!("{drive}: the record of its fleet's drives ({MEMBERSHIP_KEY}) is damaged")).with_source(e);
        let head: Head = serde_json::from_slice(bytes).map_err(corrupt)?;
        if head.format > MEMBERSHIP_FORMAT {
            return Err(Error::unsupported(format!(
                "{drive} belongs to a fleet of a newer version of Skytether (membership format {}, this version reads up to {MEMBERSHIP_FORMAT}): upgrade",
                head.format
            )));
        }
        serde_json::from_slice(bytes).map_err(corrupt)
    }

    /// The record's bytes.
    pub fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal("cannot write the record of a fleet's drives").with_source(e))
    }

    /// Checks that these drives are what `role` says. A host that took an aggregator's drives for its own would delete
    /// all their content: the records that name it are those of the aggregator's parent host.
    pub(crate) fn plays(&self, role: &Role) -> Result<()> {
        match (&self.aggregator, role) {
            (None, Role::Fleet) => Ok(()),
            (Some(own), Role::Aggregator(name)) if own == name => Ok(()),
            (Some(own), Role::Aggregator(name)) => {
                Err(Error::invalid(format!("these drives are those of the aggregator {own}, not of {name}: serve them under that name")))
            }
            (Some(own), Role::Fleet) => Err(Error::invalid(format!(
                "these drives are those of the aggregator {own}: serve it (`skytether host serve --aggregator {own}`) and name that as one drive"
            ))),
            (None, Role::Aggregator(name)) => {
                Err(Error::invalid(format!("these drives are a fleet of their own, with data sets of their own: the aggregator {name} needs empty drives")))
            }
        }
    }

    pub(crate) fn ids(&self) -> BTreeMap<Uuid, &str> {
        self.drives.iter().map(|m| (m.id, m.name.as_str())).collect()
    }
}

/// The number of home drives for data sets of a scheme, and the numbers of nodes and of drives of each.
pub(crate) fn homes_of(scheme: Scheme) -> (u32, Option<DomainSpread>) {
    match DomainSpread::of(scheme) {
        // What the spread takes has the first two among it.
        Some(spread) => (2, Some(spread)),
        None => (u32::try_from(scheme.tolerates()).unwrap_or(u32::MAX).saturating_add(1), None),
    }
}

/// The error for a fleet that needs two levels of redundancy, and whose drives have no named nodes.
pub(crate) fn no_nodes(scheme: Scheme) -> Error {
    Error::invalid(format!(
        "redundancy {scheme} needs to know which node each drive is on, and this fleet was founded without nodes: found another one with them (`skytether init --nodes N`, or `skytether host serve --drives \"a:1,a:2;b:1,b:2\"` over empty drives)"
    ))
}

/// A place for root records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeSlot {
    /// What its share of the names follows from: the id of the drive that had it first.
    pub id: Uuid,
    /// The drive that has it.
    pub drive: Uuid,
}

impl Membership {
    /// The same with seats, if it had none yet: one for each drive.
    pub fn ensure_slots(&mut self) {
        if self.seats.is_empty() {
            self.seats = self.drives.iter().map(|member| HomeSlot { id: member.id, drive: member.id }).collect();
        }
    }

    /// Gives each drive without a seat one of its own.
    pub(crate) fn add_slots(&mut self) {
        let seated: Vec<Uuid> = self.seats.iter().map(|seat| seat.drive).collect();
        let rest = self.drives.iter().map(|member| member.id).filter(|id| !seated.contains(id));
        self.seats.extend(rest.map(|id| HomeSlot { id, drive: id }));
    }

    /// Passes the seats of drive `id` of `node`, which has left, to others: to the drives with the fewest seats, and of
    /// these to the first. Where nodes are known, a drive of the same node gets them if there is any, and otherwise one
    /// of the node with the fewest. So as many nodes as before have seats, on as many drives.
    pub fn reassign_slots(&mut self, id: &Uuid, node: &str) {
        for at in 0..self.seats.len() {
            if self.seats[at].drive == *id {
                let has = |drive: &Uuid| self.seats.iter().filter(|seat| seat.drive == *drive).count();
                let on = |node: &str| self.drives.iter().filter(|other| other.node == node && has(&other.id) > 0).count();
                let others = self.drives.iter().filter(|other| other.id != *id);
                // Where nodes are unknown, all drives count as drives of one node.
                let next = others.min_by_key(|other| (other.node != node, has(&other.id) > 0, on(&other.node), has(&other.id)));
                if let Some(next) = next.map(|other| other.id) {
                    self.seats[at].drive = next;
                }
            }
        }
    }
}

/// The numbers of nodes, and of drives of each, that hold a value. It then survives the loss of whole nodes, and of
/// drives of other nodes at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainSpread {
    /// M + 1 nodes.
    #[serde(rename = "hosts")]
    pub nodes: u32,
    /// m + 1 drives of each.
    pub drives: u32,
}

impl DomainSpread {
    /// What a scheme on two levels takes; nothing for the others.
    pub(crate) fn of(scheme: Scheme) -> Option<Self> {
        let Scheme::Levels(outer, inner) = scheme else { return None };
        let more = |code: Code| u32::try_from(code.parity()).unwrap_or(u32::MAX).saturating_add(1);
        Some(Self { nodes: more(outer), drives: more(inner) })
    }

    /// As many as either takes.
    pub(crate) fn max(self, other: Option<Self>) -> Self {
        other.map_or(self, |other| Self { nodes: self.nodes.max(other.nodes), drives: self.drives.max(other.drives) })
    }
}

/// Why a blank drive is not used.
pub(crate) const BLANK: &str = "it is blank, in the place of one that was lost: `skytether repair` rebuilds what was on it";

/// Why a drive that was replaced is not used.
const REPLACED: &str = "another drive took its place while it was away: it is not of this fleet any more";

impl Membership {
    /// Which drive of this id counts: the first one is 0.
    pub(crate) fn incarnation(&self, id: &Uuid) -> u32 {
        self.drives.iter().find(|member| member.id == *id).map_or(0, |member| member.incarnation)
    }
}

/// Why the drive of this id must not be used, in a fleet that may lose drives. `told` is the drive's own membership
/// record, `newest` the fleet's newest one. `None` where nothing speaks against it.
pub(crate) fn stranger(newest: &Membership, id: &Uuid, told: &Result<Option<Membership>>) -> Option<&'static str> {
    match told {
        Ok(None) => Some(BLANK),
        Ok(Some(own)) if own.incarnation(id) < newest.incarnation(id) => Some(REPLACED),
        // It may be the drive that was replaced.
        Err(e) if e.kind() == Kind::Corrupt && newest.incarnation(id) > 0 => {
            Some("its record of the fleet is damaged, and it may be one that was replaced: replace it")
        }
        _ => None,
    }
}

/// The highest change in the records of all drives.
pub(crate) fn highest(told: &[Result<Option<Membership>>]) -> u64 {
    told.iter().filter_map(|told| told.as_ref().ok()?.as_ref()).map(|membership| membership.change).max().unwrap_or(0)
}

/// The record that counts.
pub fn newest(told: &[Result<Option<Membership>>]) -> Option<&Membership> {
    told.iter().filter_map(|told| told.as_ref().ok()?.as_ref()).max_by_key(|membership| membership.change)
}

/// The error where [`newest`] finds no record: no drive has one, or the first drive that did not answer says why.
#[must_use]
pub fn no_record(told: &[Result<Option<Membership>>]) -> Error {
    let error = Error::unavailable("no drive knows its fleet");
    match told.iter().find_map(|told| told.as_ref().err()) {
        Some(why) => error.with_source(Error::new(why.kind(), why.report())),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the format has them: older versions read and write these names.
    #[test]
    fn nodes_keep_their_names_in_the_record() {
        let (id, hosts) = (Uuid::from_u128(1), serde_json::json!({"hosts": 2, "drives": 3}));
        let written = serde_json::json!({"format": 6, "fleet": id, "drives": [{"id": id, "name": "a", "host": "n"}], "homes": 2, "spread": hosts});
        let read: Membership = serde_json::from_value(written.clone()).unwrap();
        assert_eq!((read.drives[0].node.as_str(), read.spread), ("n", Some(DomainSpread { nodes: 2, drives: 3 })));
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
    }

    #[test]
    fn without_a_record_the_first_failure_is_named() {
        let told = [Ok(None), Err(Error::corrupt("drive-1 is damaged")), Err(Error::unavailable("drive-2 is silent"))];
        assert!(newest(&told).is_none());
        let error = no_record(&told);
        assert_eq!((error.kind(), error.report().as_str()), (Kind::Unavailable, "no drive knows its fleet: drive-1 is damaged"));
        assert_eq!(no_record(&told[..1]).report(), "no drive knows its fleet");
    }
}
