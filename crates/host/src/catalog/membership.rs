//! Which drives make up a fleet: a record on every one of them.
//!
//! Home drives and garbage are told from the list of drives, so a host that is given too few drives, or one too many, would look for
//! root records in the wrong place and take what it does not find for garbage. The record makes it notice.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::units::counted;
use skytether_common::{Error, Key, Kind, Result};
use skytether_redundancy::Scheme;
use skytether_store::{Expect, Op};
use skytether_wire::{Cse, Storage};
use std::sync::Arc;
use uuid::Uuid;

use crate::catalog::code_map::code;
use crate::catalog::failure_domains::{Domains, Spread};
use crate::catalog::fencing::{Fence, take_over};
use crate::catalog::home_slots::Seat;
use crate::catalog::rejoin::newest;
use crate::catalog::root_store::{Catalog, within};
use crate::cluster::options::HostOptions;
use crate::common::ids::Ids;
use crate::maintenance::resize_members::{is_forgotten, wipe};
use crate::query::planner::Host;
use crate::recovery::missing_drive::Lost;
use crate::recovery::missing_drive::{Gone, advice};

/// The key of the record on every drive. It has no `/`, so it is neither a root record nor a part of a data set.
pub const MEMBERSHIP_KEY: &str = "skytether-fleet";

/// The newest membership record that this version reads.
pub const MEMBERSHIP_FORMAT: u32 = HOSTS_FORMAT;

/// The one that it writes for a fleet whose drives are on hosts that it knows: versions before would look for root records on too few drives.
pub(crate) const HOSTS_FORMAT: u32 = 6;

/// The one that it writes for a fleet that drives came to or left: versions before would look for root records where they are not.
pub(crate) const GROWN_FORMAT: u32 = 5;

/// The one that it writes for a fleet of which drives were replaced: versions before would use one that was, if it came back.
pub(crate) const REPLACED_FORMAT: u32 = 4;

/// The one that it writes for the drives of a branch: versions before would take those for their own.
const BRANCH_FORMAT: u32 = 2;

/// The one that it writes for a fleet that may lose drives: versions before would look for root records on one drive, and take parities for garbage.
pub(crate) const REDUNDANT_FORMAT: u32 = 3;

/// The one that it writes for a fleet.
const FLEET_FORMAT: u32 = 1;

/// One drive of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The drive's id, which is what counts.
    pub id: Uuid,
    /// Its name when the fleet was put together, for texts.
    pub name: String,
    /// How often another drive took its place: one that knows of fewer is not of the fleet any more.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub incarnation: u32,
    /// The host that it is a drive of, with which it may be lost; empty where nobody said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
}

/// The drives that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Version of this record's format.
    pub format: u32,
    /// The fleet, drawn at random when it was put together.
    pub fleet: Uuid,
    /// All its drives: those with which it was founded in order of their ids, and those that came since.
    pub drives: Vec<Member>,
    /// Where they are the drives of a branch: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// On how many drives each root record lies.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub homes: u32,
    /// On how many hosts they lie besides, and on how many drives of each, where a data set is on two levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// How data sets are kept from loss unless their ingest says otherwise.
    #[serde(default, skip_serializing_if = "is_none")]
    pub redundancy: Scheme,
    /// Drives that were away while a root record changed, and have not got the change yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Uuid>,
    /// What root records' homes follow from, where that is not the list of drives: in fleets that drives came to or left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Seat>,
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
    /// Never: some drives of the list could not be asked.
    Never,
}

impl Membership {
    pub(crate) fn decode(drive: &str, bytes: &[u8]) -> Result<Self> {
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

    /// The record's bytes.
    pub(crate) fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal("cannot write the record of a fleet's drives").because(e))
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
                "these drives are those of the branch {own}: serve it (`skytether host serve --aggregator {own}`) and name that as one drive"
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
    pub fn join(drives: Vec<Arc<dyn Cse>>, options: HostOptions, founding: Founding) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move { Self::join_without(drives, Vec::new(), options, founding).await })
    }

    /// As [`Host::join`], where some drives of the fleet are `lost`: known by their ids, and not to be had. A fleet that survives that is opened without them, and without those that it
    /// has and that are not named here at all. Nothing is collected then.
    ///
    /// # Errors
    /// As there; that of the first of `lost`, naming all, where the fleet can't lose any; Unavailable where more are lost than it survives.
    pub fn join_without(drives: Vec<Arc<dyn Cse>>, lost: Vec<Lost>, options: HostOptions, founding: Founding) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move {
            let mut drives = drives;

            let scheme = options.redundancy;
            let storages = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Storage>).collect();
            let told = Catalog::new(storages, options.storage_deadline)?.told(options.storage_deadline).await?;
            let newest = newest(&told);
            let strangers: Vec<Uuid> = match newest {
                Some(newest) => strangers(newest, &drives, &told, founding, options.storage_deadline).await?,
                None => Vec::new(),
            };
            drives.retain(|drive| !strangers.contains(&drive.info().id));
            // What left the fleet need not be there.
            let lost: Vec<Lost> = lost.into_iter().filter(|lost| newest.is_none_or(|newest| newest.drives.iter().any(|member| member.id == lost.id))).collect();
            let membership = newest.filter(|membership| membership.homes > 1);
            let Some(membership) = membership else {
                if !lost.is_empty() {
                    let known = |one: &Lost| newest.and_then(|newest| newest.drives.iter().find(|member| member.id == one.id));
                    return Err(Lost::needed(&lost, |one| known(one).map_or_else(|| format!("drive {}", one.place), |member| member.name.clone())));
                }
                return Self::joined(drives, Vec::new(), options, founding, scheme).await;
            };
            let mut why: BTreeMap<Uuid, Lost> = lost.into_iter().map(|lost| (lost.id, lost)).collect();
            let given: Vec<Uuid> = drives.iter().map(|drive| drive.info().id).collect();
            let mut missing = Vec::new();
            for member in membership.drives.iter().filter(|member| !given.contains(&member.id)) {
                let silent = || (usize::MAX, not_given(&member.id, &options.silent, founding));
                let (place, text) = why.remove(&member.id).map_or_else(silent, |lost| (lost.place, lost.error.full_text()));
                tracing::warn!("{} is lost: {text}; {}", member.name, advice(&member.id, &member.name, founding == Founding::KnownList));
                missing.push((place, Arc::new(Gone::new(member.id, &member.name, text))));
            }
            let gone = missing.iter().map(|(_, gone)| Arc::clone(gone)).collect();
            missing.sort_by_key(|(place, _)| *place);
            for (place, gone) in missing {
                drives.insert(place.min(drives.len()), gone);
            }
            Self::joined(drives, gone, options, founding, scheme).await
        })
    }

    async fn joined(drives: Vec<Arc<dyn Cse>>, gone: Vec<Arc<Gone>>, options: HostOptions, founding: Founding, scheme: Scheme) -> Result<(Self, u64)> {
        let deadline = options.storage_deadline;
        let fence = Fence::new(options.ids.id());
        let fenced: Vec<_> = drives.into_iter().map(|drive| fence.around(drive)).collect();
        let host = Self::new(fenced.iter().map(|drive| Arc::clone(drive) as _).collect(), options)?;
        for (at, drive) in host.drives().iter().enumerate() {
            // What is known of it says more than that it does not answer.
            if let Some(gone) = gone.iter().find(|gone| gone.info().id == drive.info().id) {
                host.catalog().presence().lose(at, gone.why());
            }
        }
        host.set_gone(gone);
        host.set_fence(Arc::clone(&fence));
        host.set_kept(founding == Founding::KnownList);
        let catalog = host.catalog();
        let hosts = host.options().hosts.clone();
        let known = catalog.establish(founding, &Role::Fleet, scheme, &hosts, &host.options().ids).await?;
        let missed = take_over(&fence, &fenced, deadline).await?;
        catalog.rejoin(deadline).await?;
        // The host before may still change what is there, so that it is not to be relied on, and nothing is garbage for want of a record.
        for (id, e) in missed {
            if let Some(at) = host.drives().iter().position(|drive| drive.info().id == id) {
                catalog.may_lose(at, e)?;
            }
        }
        // Until just now another host may have changed what was read; from here on none does.
        let told = catalog.told(deadline).await?;
        if catalog.newest_of(&told).is_some_and(|now| now.drives != known.drives || now.seats != known.seats) {
            return Err(Error::conflict("the drives of this fleet changed while this host began: start it again"));
        }
        if !catalog.presence().lost().is_empty() && host.drives().iter().any(|drive| drive.away()) {
            // Another host may still change what these have, and is not to be believed when they are back.
            match catalog.note_absent().await {
                Err(e) if e.kind() != Kind::Conflict => tracing::warn!("drives that are lost are not noted: {}", e.full_text()),
                noted => noted?,
            }
        }
        catalog.agree_on_all().await?;
        host.sweep_records().await?;
        let deleted = if catalog.presence().lost().is_empty() {
            catalog.collect_garbage().await?
        } else {
            // What a drive that is lost would name may be needed. Those that are here build their indexes all the same.
            if let Err(e) = catalog.define_all_indexes().await {
                tracing::warn!("drives were not told of their indexes: {}", e.full_text());
            }
            0
        };
        Ok((host, deleted))
    }
}

/// Why a drive of this id is not there that nobody named, where nobody answered at the addresses `silent`.
fn not_given(id: &Uuid, silent: &[String], founding: Founding) -> String {
    match silent {
        // Whoever keeps the list puts it right when the fleet is open.
        _ if founding == Founding::KnownList => {
            format!("it is missing: `fleet.json` did not name it (its id is {id}), and does again: open the fleet once more")
        }
        [] => format!("it is missing: the host was given no drive of its id, {id}"),
        _ => format!("it is missing: no drive that answers has its id, {id}, and nobody answers at {}", silent.join(", ")),
    }
}

/// Those of `drives` that the fleet is to be opened without: that left it, and, of a list that was kept with them, that were to come to it when a crash came first.
async fn strangers(
    newest: &Membership,
    drives: &[Arc<dyn Cse>],
    told: &[Result<Option<Membership>>],
    founding: Founding,
    deadline: Duration,
) -> Result<Vec<Uuid>> {
    let mut strangers = Vec::new();
    for (drive, told) in drives.iter().zip(told) {
        let info = drive.info();
        if newest.drives.iter().any(|member| member.id == info.id) {
            continue;
        }
        match told {
            Ok(Some(own)) if own.fleet == newest.fleet => {
                tracing::warn!("{} left the fleet, and is not used", info.name);
                strangers.push(info.id);
                let others: Vec<_> = drives.iter().filter(|other| newest.drives.iter().any(|member| member.id == other.info().id)).cloned().collect();
                if founding == Founding::KnownList && is_forgotten(&info.id, &info.name, &others, deadline).await? {
                    // It was to be wiped when a crash came first.
                    wipe(drive.as_ref(), deadline).await?;
                }
            }
            Ok(None) if founding == Founding::KnownList && within(deadline, &info.name, "list what it holds", drive.list("", None, 1)).await?.is_empty() => {
                tracing::warn!("{} was to come to the fleet, which was cut off: add it again", info.name);
                strangers.push(info.id);
            }
            _ => {}
        }
    }
    Ok(strangers)
}

/// On how many drives root records lie for data sets of a scheme, and on how many hosts with how many drives each.
pub(crate) fn homes_of(scheme: Scheme) -> (u32, Option<Spread>) {
    match Spread::of(scheme) {
        // What the spread takes has the first two among it.
        Some(spread) => (2, Some(spread)),
        None => (u32::try_from(scheme.tolerates()).unwrap_or(u32::MAX).saturating_add(1), None),
    }
}

/// What a host is told that is to serve a fleet of another redundancy.
fn other_redundancy(own: Scheme, asked: Scheme) -> Error {
    Error::conflict(format!(
        "the fleet of these drives has redundancy {own}, not {asked}, and keeps it: start the host without a redundancy, and say {asked} when a data set is ingested that is to have it (redundancy=, in the shell --redundancy)"
    ))
}

/// What a fleet is told that is to store something on two levels, and whose drives are on no hosts that anybody named.
pub(crate) fn no_hosts(scheme: Scheme) -> Error {
    Error::invalid(format!(
        "redundancy {scheme} is across hosts, and then across a host's drives, and nobody said which drives of this fleet are on which: a fleet is founded with its hosts (`skytether init --nodes N`, `skytether host serve --drives \"a:1,a:2;b:1,b:2\"`)"
    ))
}

impl Catalog {
    /// The drives' ids, in the host's order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.drives().iter().map(|drive| drive.info().id)
    }

    /// Checks that the drives are exactly one fleet, in any order. Drives that belong to none become one, as far as `founding` allows.
    ///
    /// # Errors
    /// `Invalid` where drives are missing or belong to another fleet, by name and id, and where drives hold data and don't know their
    /// fleet; `Conflict` while another host puts a fleet together from them; `Corrupt`, `Unsupported`, `Unavailable`.
    pub fn establish_membership<'a>(&'a self, founding: Founding, role: &'a Role) -> BoxFuture<'a, Result<Membership>> {
        Box::pin(async move { self.establish(founding, role, Scheme::None, &BTreeMap::new(), &Ids::random()).await })
    }

    /// The same; what is founded stores data sets with `scheme` from now on, and its drives are on these `hosts`. Of a fleet that may lose drives, drives may be lost.
    pub(crate) async fn establish(&self, founding: Founding, role: &Role, scheme: Scheme, hosts: &BTreeMap<Uuid, String>, ids: &Ids) -> Result<Membership> {
        let told = self.told(self.deadline()).await?;
        let homes = newest(&told).map_or(1, |membership| membership.homes as usize);
        let mut found = Vec::with_capacity(told.len());
        for (at, told) in told.into_iter().enumerate() {
            found.push(match told {
                Ok(known) => known,
                Err(e) if homes > 1 && matches!(e.kind(), Kind::Unavailable | Kind::Corrupt) => {
                    self.presence().lose(at, &e.full_text());
                    None
                }
                Err(e) => return Err(e),
            });
        }
        let membership = match self.agreed(&found)? {
            Some(membership) => {
                membership.plays(role)?;
                // Before anything is changed: the host that has these drives keeps them. Whoever names the fleet by its directory checks it in that one's words.
                if scheme != Scheme::None && scheme != membership.redundancy && founding != Founding::KnownList {
                    return Err(other_redundancy(membership.redundancy, scheme));
                }
                membership.clone()
            }
            None => {
                if founding == Founding::Never {
                    return Err(Error::unavailable("none of the drives that answer knows its fleet: a new one is made when all of them do"));
                }
                if founding == Founding::EmptyDrives {
                    self.check_empty().await?;
                }
                let host = |id: &Uuid| hosts.get(id).cloned().unwrap_or_default();
                let member = |d: &Arc<dyn Storage>| Member { id: d.info().id, name: d.info().name.clone(), incarnation: 0, host: host(&d.info().id) };
                let mut drives: Vec<_> = self.drives().iter().map(member).collect();
                drives.sort_by_key(|m| m.id);
                code(scheme, drives.len())?;
                let (format, branch) = match role {
                    Role::Fleet if drives.iter().any(|member| !member.host.is_empty()) => (HOSTS_FORMAT, None),
                    Role::Fleet if scheme != Scheme::None => (REDUNDANT_FORMAT, None),
                    Role::Fleet => (FLEET_FORMAT, None),
                    Role::Branch(name) => (BRANCH_FORMAT, Some(name.clone())),
                };
                let (homes, spread) = homes_of(scheme);
                let (fleet, redundancy) = (ids.id(), scheme);
                let founded = Membership { format, fleet, drives, branch, homes, spread, redundancy, absent: Vec::new(), seats: Vec::new(), change: 0 };
                if let Scheme::Levels(outer, inner) = scheme {
                    let all: Vec<usize> = (0..self.drives().len()).collect();
                    Domains::of(&founded, self.ids()).ok_or_else(|| no_hosts(scheme))?.usable(outer, inner, &all)?;
                }
                founded
            }
        };
        self.learn(&membership);
        self.lose_replaced(&membership, &found).await?;
        self.check_presence()?;
        let value = membership.encode()?;
        // In order of the ids: of two hosts that do this at the same time, the second fails at the first drive and writes nothing. What a
        // crash left undone is done now, since the drives that have the record name the others.
        let mut missing: Vec<_> = (0..found.len()).filter(|at| found[*at].is_none() && !self.presence().is_lost(*at)).collect();
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
        self.catch_up(&membership, &found, &value).await?;
        Ok(membership)
    }

    /// Brings drives to the newest record that a crash left with an older one, in a fleet that drives came to or left.
    async fn catch_up(&self, membership: &Membership, found: &[Option<Membership>], value: &Bytes) -> Result<()> {
        if membership.seats.is_empty() {
            return Ok(());
        }
        let behind = |at: &usize| found[*at].as_ref().is_some_and(|own| own.change < membership.change) && !self.presence().is_lost(*at);
        for at in (0..found.len()).filter(behind) {
            let (drive, name, key) = (&self.drives()[at], &self.drives()[at].info().name, Key::new(MEMBERSHIP_KEY)?);
            let there = within(self.deadline(), name, "look its fleet up", drive.stat(&key)).await?;
            let put = Op::Put { key, value: value.clone(), expect: there.map_or(Expect::Absent, |entry| Expect::Version(entry.version)) };
            within(self.deadline(), name, "note its fleet", drive.apply(vec![put]))
                .await
                .map_err(|e| e.while_doing(format!("{name} could not note that its fleet has other drives now")))?;
        }
        Ok(())
    }

    /// Takes drives for lost that were replaced, and those without a record in a fleet that has data sets: what was on those is gone. Without any, a founding was cut off.
    async fn lose_replaced(&self, membership: &Membership, found: &[Option<Membership>]) -> Result<()> {
        if membership.homes < 2 || found.iter().all(Option::is_none) {
            return Ok(());
        }
        // One that did not answer is not blank: nobody knows what is on it.
        let told = found.iter().enumerate().map(|(at, own)| match own {
            None if self.presence().is_lost(at) => Err(Error::unavailable("it did not name its fleet")),
            own => Ok(own.clone()),
        });
        let told: Vec<Result<Option<Membership>>> = told.collect();
        let blank = |at: &usize| found[*at].is_none() && !self.presence().is_lost(*at);
        let mut known = found.iter().enumerate().filter(|(at, own)| own.is_some() && !self.presence().is_lost(*at)).map(|(at, _)| at);
        // What is away may have what the others lack.
        let founded = membership.change == 0 && self.presence().lost().is_empty() && (0..found.len()).any(|at| blank(&at)) && {
            let mut any = false;
            for at in known.by_ref() {
                any |= !self.names_at(at).await?.is_empty();
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
            for (at, told) in self.told(self.deadline()).await?.into_iter().enumerate() {
                found.push(if self.presence().is_outside(at) { None } else { told? });
            }
            self.agreed(&found)?;
            match (0..found.len()).find(|at| found[*at].is_none() && !self.presence().is_outside(*at)) {
                Some(at) => Err(Error::invalid(format!("{} does not know its fleet: let the host join its drives first", self.drives()[at].info().name))),
                None => Ok(()),
            }
        })
    }

    /// The one record that all drives with a record have, if it names exactly these drives.
    fn agreed<'a>(&self, found: &'a [Option<Membership>]) -> Result<Option<&'a Membership>> {
        let known = || found.iter().zip(self.drives()).filter_map(|(m, d)| m.as_ref().map(|m| (m, &d.info().name)));
        let Some(newest) = known().map(|(m, _)| m.change).max() else { return Ok(None) };
        let Some((first, by)) = known().find(|(m, _)| m.change == newest) else { return Ok(None) };
        let members = first.ids();
        let ours = self.presence().members().into_iter().map(|at| self.drives()[at].info());
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
        // One with an older record may have missed that a drive came or left.
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
