//! The membership record on every drive of a fleet: founding a fleet, and checking that the drives are exactly one.

use crate::records::code_map::code;
use crate::records::failure_domains::FailureDomains;
use crate::records::membership::Founding;
use crate::records::membership::MEMBERSHIP_KEY;
use crate::records::membership::Member;
use crate::records::membership::Membership;
use crate::records::membership::NODES_FORMAT;
use crate::records::membership::Role;
use crate::records::membership::homes_of;
use crate::records::membership::newest;
use crate::records::membership::no_nodes;
use crate::records::membership::{BRANCH_FORMAT, FLEET_FORMAT};
use crate::records::root::REDUNDANT_FORMAT;
use crate::volume_records::{DATA_PREFIX as PARTS, PREFIX as VOLUMES};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::units::counted;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::Storage;
use skytether_erasure::Scheme;
use skytether_runtime::{Ids, within};
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::root_store::Catalog;

/// The error for a host that serves a fleet under another redundancy.
fn other_redundancy(own: Scheme, asked: Scheme) -> Error {
    Error::conflict(format!(
        "the fleet of these drives has redundancy {own}, not {asked}, and keeps it: start the host without a redundancy, and say {asked} when a data set is ingested that is to have it (redundancy=, in the shell --redundancy)"
    ))
}

/// The error for a host whose fleet another host changes.
pub fn changed_meanwhile() -> Error {
    Error::conflict("the drives of this fleet changed while this host began: start it again")
}

impl Catalog {
    /// The drives' ids, in the host's order.
    pub fn ids(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.drives().iter().map(|drive| drive.info().id)
    }

    /// Checks that the drives are exactly one fleet, in any order. Drives that belong to none become one, as
    /// far as `founding` allows.
    ///
    /// # Errors
    /// `Invalid` where drives are missing or belong to another fleet, by name and id, and where drives hold data and
    /// don't know their fleet; `Conflict` while another host puts a fleet together from them; `Corrupt`,
    /// `Unsupported`, `Unavailable`.
    pub fn establish_membership<'a>(&'a self, founding: Founding, role: &'a Role) -> BoxFuture<'a, Result<Membership>> {
        Box::pin(async move { self.establish(founding, role, Scheme::None, &BTreeMap::new(), &Ids::random()).await })
    }

    /// As [`Self::establish_membership`]. A new fleet stores data sets with `scheme` from now on, and its drives are on
    /// these `nodes`. Where the fleet may lose drives, drives may be down.
    pub async fn establish(&self, founding: Founding, role: &Role, scheme: Scheme, nodes: &BTreeMap<Uuid, String>, ids: &Ids) -> Result<Membership> {
        let told = self.read_memberships(self.deadline()).await?;
        let homes = newest(&told).map_or(1, |membership| membership.homes as usize);
        let mut found = Vec::with_capacity(told.len());
        for (at, told) in told.into_iter().enumerate() {
            found.push(match told {
                Ok(known) => known,
                Err(e) if homes > 1 && matches!(e.kind(), Kind::Unavailable | Kind::Corrupt) => {
                    self.health().mark_down(at, &e.report());
                    None
                }
                Err(e) => return Err(e),
            });
        }
        let membership = match self.agreed(&found)? {
            Some(membership) => {
                membership.plays(role)?;
                // Checked before anything changes: the host that has these drives keeps them. Where the caller names
                // the fleet by its directory, that host's fleet decides.
                if scheme != Scheme::None && scheme != membership.redundancy && founding != Founding::KnownList {
                    return Err(other_redundancy(membership.redundancy, scheme));
                }
                membership.clone()
            }
            None => {
                if founding == Founding::Existing {
                    return Err(Error::not_found("none of these drives belongs to a fleet: one is made of them where that is asked for"));
                }
                if founding == Founding::Never {
                    return Err(Error::unavailable("none of the drives that answer knows its fleet: a new one is made when all of them do"));
                }
                if founding == Founding::EmptyDrives {
                    self.check_empty().await?;
                }
                let node = |id: &Uuid| nodes.get(id).cloned().unwrap_or_default();
                let member = |d: &Arc<dyn Storage>| Member { id: d.info().id, name: d.info().name.clone(), incarnation: 0, node: node(&d.info().id) };
                let mut drives: Vec<_> = self.drives().iter().map(member).collect();
                drives.sort_by_key(|m| m.id);
                code(scheme, drives.len())?;
                let (format, aggregator) = match role {
                    Role::Fleet if drives.iter().any(|member| !member.node.is_empty()) => (NODES_FORMAT, None),
                    Role::Fleet if scheme != Scheme::None => (REDUNDANT_FORMAT, None),
                    Role::Fleet => (FLEET_FORMAT, None),
                    Role::Aggregator(name) => (BRANCH_FORMAT, Some(name.clone())),
                };
                let (homes, spread) = homes_of(scheme);
                let (fleet, redundancy) = (ids.id(), scheme);
                let founded = Membership { format, fleet, drives, aggregator, homes, spread, redundancy, absent: Vec::new(), seats: Vec::new(), change: 0 };
                if let Scheme::Levels(outer, inner) = scheme {
                    let all: Vec<usize> = (0..self.drives().len()).collect();
                    FailureDomains::of(&founded, self.ids()).ok_or_else(|| no_nodes(scheme))?.usable(outer, inner, &all)?;
                }
                founded
            }
        };
        self.adopt_membership(&membership);
        self.lose_replaced(&membership, &found).await?;
        self.check_presence()?;
        let value = membership.encode()?;
        // In order of the ids: of two hosts that do this at the same time, the second fails at the first drive and
        // writes nothing. What a crash left undone is done now, since the drives that have the record name the others.
        let mut missing: Vec<_> = (0..found.len()).filter(|at| found[*at].is_none() && !self.health().is_down(*at)).collect();
        missing.sort_by_key(|at| self.drives()[*at].info().id);
        for at in missing {
            let (drive, name) = (&self.drives()[at], &self.drives()[at].info().name);
            let put = Op::Put { key: Key::new(MEMBERSHIP_KEY)?, value: value.clone(), expect: Expect::Absent };
            match within(self.deadline(), name, "note its fleet", drive.apply(vec![put])).await {
                // A request of a host before was still on its way.
                Err(e) if e.kind() == Kind::Conflict && self.read_membership(at, self.deadline()).await?.as_ref() == Some(&membership) => drop(e),
                Err(e) if e.kind() == Kind::Conflict => {
                    let text = format!("another host puts a fleet together from {name} at this moment: stop one of them and start again");
                    return Err(Error::conflict(text).with_source(e));
                }
                done => drop(done.map_err(|e| e.context(format!("{name} could not note its fleet")))?),
            }
        }
        self.catch_up(&membership, &found, &value).await?;
        Ok(membership)
    }

    /// Brings drives to the newest record, where a crash left an older one, in a fleet that drives came to or left.
    async fn catch_up(&self, membership: &Membership, found: &[Option<Membership>], value: &Bytes) -> Result<()> {
        if membership.seats.is_empty() {
            return Ok(());
        }
        let behind = |at: &usize| found[*at].as_ref().is_some_and(|own| own.change < membership.change) && !self.health().is_down(*at);
        for at in (0..found.len()).filter(behind) {
            self.note_newest(at, membership, value).await?;
        }
        Ok(())
    }

    /// Notes `membership` at drive `at`, unless a request of a host before, which was still on its way, has done so.
    async fn note_newest(&self, at: usize, membership: &Membership, value: &Bytes) -> Result<()> {
        /// Each request that was on its way costs one.
        const TRIES: usize = 4;
        let (drive, name, key) = (&self.drives()[at], &self.drives()[at].info().name, Key::new(MEMBERSHIP_KEY)?);
        for _ in 0..TRIES {
            // The version first: what is read after it is of this version, or the put fails.
            let there = within(self.deadline(), name, "look its fleet up", drive.stat(&key)).await?;
            match self.read_membership(at, self.deadline()).await?.map(|own| own.change) {
                Some(now) if now == membership.change => return Ok(()),
                Some(now) if now > membership.change => return Err(changed_meanwhile()),
                _ => {}
            }
            let put = Op::Put { key: key.clone(), value: value.clone(), expect: there.map_or(Expect::Absent, |entry| Expect::Version(entry.version)) };
            match within(self.deadline(), name, "note its fleet", drive.apply(vec![put])).await {
                Err(e) if e.kind() == Kind::Conflict => {}
                done => return done.map(drop).map_err(|e| e.context(format!("{name} could not note that its fleet has other drives now"))),
            }
        }
        Err(changed_meanwhile())
    }

    /// Marks as lost: drives that were replaced, and drives without a record in a fleet that has data sets or volumes,
    /// whose content is gone. In a fleet without either, a founding was cut off.
    async fn lose_replaced(&self, membership: &Membership, found: &[Option<Membership>]) -> Result<()> {
        if membership.homes < 2 || found.iter().all(Option::is_none) {
            return Ok(());
        }
        // A drive that did not answer is not blank: its content is unknown.
        let told = found.iter().enumerate().map(|(at, own)| match own {
            None if self.health().is_down(at) => Err(Error::unavailable("it did not name its fleet")),
            own => Ok(own.clone()),
        });
        let told: Vec<Result<Option<Membership>>> = told.collect();
        let blank = |at: &usize| found[*at].is_none() && !self.health().is_down(*at);
        let mut known = found.iter().enumerate().filter(|(at, own)| own.is_some() && !self.health().is_down(*at)).map(|(at, _)| at);
        // A drive that is away may have data sets or volumes that the others lack.
        let founded = membership.change == 0 && self.health().down().is_empty() && (0..found.len()).any(|at| blank(&at)) && {
            let mut any = false;
            for at in known.by_ref() {
                any |= !self.names_at(at).await?.is_empty();
                for prefix in [VOLUMES, PARTS] {
                    any |= !self.ask(at, "list parts of volumes", self.bare(at).list(prefix, None, 1)).await?.is_empty();
                }
            }
            !any
        };
        if !founded {
            self.lose_strangers(membership, &told);
        }
        Ok(())
    }

    /// Checks that every drive knows its fleet, and that the drives are exactly that.
    ///
    /// # Errors
    /// As [`Self::establish_membership`]; `Invalid` for a drive without a record.
    pub fn check_membership(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for (at, told) in self.read_memberships(self.deadline()).await?.into_iter().enumerate() {
                found.push(if self.health().is_outside(at) { None } else { told? });
            }
            self.agreed(&found)?;
            match (0..found.len()).find(|at| found[*at].is_none() && !self.health().is_outside(*at)) {
                Some(at) => Err(Error::invalid(format!("{} does not know its fleet: let the host join its drives first", self.drives()[at].info().name))),
                None => Ok(()),
            }
        })
    }

    /// The record that all drives with a record share, if it names exactly these drives.
    fn agreed<'a>(&self, found: &'a [Option<Membership>]) -> Result<Option<&'a Membership>> {
        let known = || found.iter().zip(self.drives()).filter_map(|(m, d)| m.as_ref().map(|m| (m, &d.info().name)));
        let Some(newest) = known().map(|(m, _)| m.change).max() else { return Ok(None) };
        let Some((first, by)) = known().find(|(m, _)| m.change == newest) else { return Ok(None) };
        let members = first.ids();
        let ours = self.health().members().into_iter().map(|at| self.drives()[at].info());
        let ours: BTreeMap<Uuid, &str> = ours.map(|info| (info.id, info.name.as_str())).collect();
        let list = |what: &str, these: &BTreeMap<Uuid, &str>, without: &BTreeMap<Uuid, &str>| {
            let names: Vec<_> = these.iter().filter(|(id, _)| !without.contains_key(*id)).map(|(id, name)| format!("{name} ({id})")).collect();
            if names.is_empty() { String::new() } else { format!("; {what}: {}", names.join(", ")) }
        };
        let (missing, foreign) = (list("missing", &members, &ours), list("not of this fleet", &ours, &members));
        if !missing.is_empty() || !foreign.is_empty() {
            return Err(Error::invalid(format!(
                "the drives given, {} of them, are not the fleet of {} that {by} belongs to{missing}{foreign}: start the host with exactly that fleet's drives",
                ours.len(),
                counted(members.len() as u64, "drive")
            )));
        }
        // A drive with an older record may have missed a join or leave.
        if let Some((_, other)) = known().find(|(m, _)| m.fleet != first.fleet || (m.change == newest && m.ids().keys().ne(members.keys()))) {
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
