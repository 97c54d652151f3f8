//! The commit: root records on their home drives. There is one home drive, or several where the fleet may lose drives.
//!
//! A change is a compare-and-set at the first home drive that is up, which decides between writers. The other homes get
//! it afterwards. Before the first change without a lost drive, the membership record notes that drive as absent
//! ([`crate::rejoin`]). So no host takes the drive's old records for the truth when it is back.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{DatasetName, Error, Key, Kind, Result};
use skytether_store::{Expect, Op, Version};
use uuid::Uuid;

use crate::fencing::is_refusal;
use crate::records::failure_domains::FailureDomains;
use crate::records::home_slots::HomeSlots;
use crate::records::membership::{MEMBERSHIP_KEY, Membership};
use crate::records::root::RootRecord;
use crate::rendezvous::rendezvous_order;
use crate::root_store::Catalog;

/// How often a record that changes meanwhile is read again.
const ATTEMPTS: usize = 16;

/// How often a drop is tried again after a change of the record that did not change the content.
const DROPS: usize = 8;

/// What an ingest ends with that finds another root record than when it began.
pub fn lost_update(name: &DatasetName) -> Error {
    Error::conflict(format!("somebody else wrote, replaced or dropped {name} in the meantime: nothing was changed; look at what is there now and ingest again"))
}

/// The error of a change of `name` that its first home drive refused. A refusal by fencing does not concern the data
/// set.
fn refused(name: &DatasetName, error: Error) -> Error {
    if is_refusal(&error) { error.context(format!("{name} was not changed")) } else { lost_update(name).with_source(error) }
}

/// What a change of `name` ends with that is made, and that `drive` may not have.
fn replica_behind(name: &DatasetName, drive: &str, error: Error) -> Error {
    Error::unavailable(format!("{name} was changed, but {drive} could not note it: look at what is there now")).with_source(error)
}

/// What a home drive must do, where its answer decides over a change.
enum Decides {
    /// The change, if the record is still as this says.
    Change(Expect),
    /// Nothing: it has the change.
    Knows,
}

impl Catalog {
    /// The home drives of `name`, up or down; the one that decides comes first.
    pub fn homes(&self, name: &DatasetName) -> Vec<usize> {
        self.homes_where(name, self.health().homes(), self.health().home_slots().as_deref(), self.health().failure_domains().as_deref())
    }

    /// The homes under another policy: `number` drives per root record, with these home slots and failure domains.
    pub fn homes_where(&self, name: &DatasetName, number: usize, seats: Option<&HomeSlots>, domains: Option<&FailureDomains>) -> Vec<usize> {
        self.homes_of_key(name.root_key().as_str(), number, seats, domains)
    }

    /// As [`Self::homes_where`], of what lies under `key`.
    pub fn homes_of_key(&self, key: &str, number: usize, seats: Option<&HomeSlots>, domains: Option<&FailureDomains>) -> Vec<usize> {
        let (mut homes, seated) = match seats {
            Some(seats) => {
                let (order, seated) = seats.order(key);
                let place = |id: &Uuid| self.drives().iter().position(|drive| drive.info().id == *id);
                let seated = order[..seated].iter().filter_map(place).count();
                (order.iter().filter_map(place).collect(), seated)
            }
            None => {
                let members = self.health().members();
                let ids: Vec<_> = members.iter().map(|at| self.drives()[*at].info().id).collect();
                let order = rendezvous_order(key, ids.iter());
                (order.into_iter().map(|at| members[at]).collect::<Vec<_>>(), members.len())
            }
        };
        if let Some(domains) = domains {
            // A drive that joined has no seat, so no record has to move when it joins.
            return domains.homes(&homes[..seated.max(number).min(homes.len())], number);
        }
        homes.truncate(number);
        homes
    }

    /// The home drives that are up: at least one.
    fn homes_here(&self, name: &DatasetName) -> Result<Vec<usize>> {
        self.check_presence()?;
        let homes: Vec<_> = self.homes(name).into_iter().filter(|at| !self.health().is_down(*at)).collect();
        if homes.is_empty() { Err(Error::unavailable(format!("all drives that hold the root record of {name} are lost"))) } else { Ok(homes) }
    }

    /// Checks that no more drives are lost than root records survive.
    ///
    /// # Errors
    /// Unavailable, naming the drives that are lost.
    pub fn check_presence(&self) -> Result<()> {
        self.health().check(|at| self.drives().get(at).map_or("?", |drive| drive.info().name.as_str()))
    }

    /// Marks drive `at` as lost, if it did not answer and the fleet may lose it; returns the error otherwise.
    pub fn may_lose(&self, at: usize, error: Error) -> Result<()> {
        if error.kind() != Kind::Unavailable || !self.health().is_redundant() {
            return Err(error);
        }
        if self.health().mark_down(at, &error.report()) {
            tracing::warn!("{} is taken for lost: {error}", self.drives()[at].info().name);
        }
        self.check_presence()
    }

    /// The root record of `name` and its length in bytes.
    ///
    /// # Errors
    /// `NotFound`, naming data sets that there are, `Unsupported`, `Corrupt`, `Unavailable`.
    pub fn read<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<(RootRecord, u64)>> {
        Box::pin(async move {
            let mut trouble = None;
            self.await_presence().await?;
            for home in self.homes_here(name)? {
                match self.ask(home, &format!("read the root record of {name}"), self.drives()[home].get(&name.root_key())).await {
                    Ok(bytes) => match RootRecord::decode(name, &bytes) {
                        Err(e) if e.kind() == Kind::Corrupt => drop(trouble.get_or_insert(e)),
                        read => return Ok((read?, bytes.len() as u64)),
                    },
                    // What a blank drive does not have says nothing.
                    Err(e) if e.kind() == Kind::NotFound && self.is_blank(home).await => drop(trouble.get_or_insert(e)),
                    Err(e) if e.kind() == Kind::NotFound && trouble.as_ref().is_none_or(|e| e.kind() == Kind::NotFound) => {
                        if self.has_left(home).await {
                            let text = format!(
                                "another host changed which drives this fleet has, so that this one can't tell what {name} is: ask that one, or start this one again"
                            );
                            return Err(Error::conflict(text));
                        }
                        return Err(Box::pin(self.unknown_dataset(name)).await);
                    }
                    Err(e) => {
                        let text = format!("cannot read the root record of {name} at {}", self.drives()[home].info().name);
                        if e.kind() == Kind::Unavailable && self.health().is_redundant() {
                            self.health().mark_down(home, &e.report());
                        }
                        trouble.get_or_insert(e.context(text));
                    }
                }
            }
            self.check_presence()?;
            Err(trouble.unwrap_or_else(|| Error::internal(format!("the root record of {name} has no home"))))
        })
    }

    /// As [`Self::read`], for queries; how many bytes were fetched is nothing where the record is remembered, and its
    /// home says that it has that still.
    ///
    /// # Errors
    /// As there.
    pub async fn read_cached(&self, name: &DatasetName) -> Result<(Arc<RootRecord>, u64)> {
        self.await_presence().await?;
        let homes = self.homes_here(name)?;
        let home = homes.first().copied().unwrap_or(0);
        if self.remembered.has(home, name) {
            match self.ask(home, "look up a root record", self.drives()[home].stat(&name.root_key())).await {
                Ok(Some(entry)) => {
                    if let Some(record) = self.remembered.get(home, name, &(entry.version, entry.len, entry.crc32c)) {
                        return Ok((record, 0));
                    }
                }
                Ok(None) => {}
                Err(e) if e.kind() == Kind::Unavailable => self.may_lose_home(home, name, e)?,
                Err(_) => {}
            }
        } else {
            match self.read_at(home, name).await {
                Ok(Some((bytes, version))) => {
                    if let Ok(record) = RootRecord::decode(name, &bytes) {
                        let (record, len) = (Arc::new(record), bytes.len() as u64);
                        self.remembered.put(home, (version, len, crc32c(&bytes)), &record);
                        return Ok((record, len));
                    }
                }
                Err(e) if e.kind() == Kind::Unavailable => self.may_lose_home(home, name, e)?,
                // The read below reports that, and knows where else the record may lie.
                Ok(None) | Err(_) => {}
            }
        }
        self.remembered.forget(name);
        self.read(name).await.map(|(record, len)| (Arc::new(record), len))
    }

    /// As [`Self::may_lose`]. Only an error that is returned says what was to be read: it is no reason of the drive's.
    fn may_lose_home(&self, home: usize, name: &DatasetName, error: Error) -> Result<()> {
        if self.health().is_redundant() {
            return self.may_lose(home, error);
        }
        Err(error.context(format!("cannot read the root record of {name} at {}", self.drives()[home].info().name)))
    }

    /// Whether drive `at` has left the fleet, as other drives know, though this host counts it.
    async fn has_left(&self, at: usize) -> bool {
        let id = self.drives()[at].info().id;
        let Ok(told) = self.read_memberships(self.deadline()).await else { return false };
        !self.health().is_outside(at) && self.newest_of(&told).is_some_and(|newest| newest.drives.iter().all(|member| member.id != id))
    }

    /// The root record of `name` with the version that a compare-and-set needs, or `None`.
    ///
    /// # Errors
    /// As [`Self::read`]; a record of a newer format is `Unsupported` here too, so that an older
    /// version never replaces it.
    pub fn read_versioned<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<Option<(RootRecord, Version)>>> {
        Box::pin(async move {
            self.await_presence().await?;
            let homes = self.homes_here(name)?;
            let Some(home) = homes.first() else { return Ok(None) };
            match self.read_at(*home, name).await {
                // The version is that of the damaged record, which a change replaces.
                Err(e) if e.kind() == Kind::Corrupt && homes.len() > 1 => {
                    let Some(entry) = self.ask(*home, "look up a root record", self.drives()[*home].stat(&name.root_key())).await? else { return Ok(None) };
                    let (record, _) = self.read(name).await?;
                    Ok(Some((record, entry.version)))
                }
                Ok(Some((bytes, version))) => Ok(Some((RootRecord::decode(name, &bytes)?, version))),
                Ok(None) if self.is_blank(*home).await => {
                    self.check_presence()?;
                    Box::pin(self.read_versioned(name)).await
                }
                Ok(None) => Ok(None),
                Err(e) => {
                    self.may_lose(*home, e)?;
                    Box::pin(self.read_versioned(name)).await
                }
            }
        })
    }

    /// The bytes of the root record that drive `at` has, and their version.
    ///
    /// # Errors
    /// `Corrupt`, `Unavailable`; `Conflict` where it changes all the time.
    pub async fn read_at(&self, at: usize, name: &DatasetName) -> Result<Option<(Bytes, Version)>> {
        let key = name.root_key();
        // Version and bytes are two requests; the checksum shows whether the record changed in between.
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.ask(at, "look up a root record", self.drives()[at].stat(&key)).await? else { return Ok(None) };
            match self.ask(at, "read a root record", self.drives()[at].get(&key)).await {
                Ok(bytes) if bytes.len() as u64 == entry.len && crc32c(&bytes) == entry.crc32c => return Ok(Some((bytes, entry.version))),
                Ok(_) => {}
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::conflict(format!("the root record of {name} changes all the time: try again")))
    }

    /// Commits `record`, if the root record is still what `expect` says, which is that of change `before`: the one
    /// commit point of an ingest. Where the deciding home drive does not answer, and the fleet may lose it, the next
    /// one decides. The first one gets the change when it is back, whatever it did.
    ///
    /// # Errors
    /// `Conflict` when another writer was first: nothing was changed.
    pub fn commit<'a>(&'a self, record: &'a RootRecord, expect: Expect, before: Option<u64>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let _turn = self.health().membership_lock().await;
            let value = record.encode()?;
            let mut known = Some(expect);
            let others = loop {
                self.record_absent().await?;
                let homes = self.homes_here(&record.name)?;
                let Some(first) = homes.first() else { return Err(Error::internal(format!("the root record of {} has no home", record.name))) };
                let decides = match known.take() {
                    Some(expect) => Ok(Decides::Change(expect)),
                    None => self.decides(*first, record, before).await,
                };
                let done = match decides {
                    Ok(Decides::Knows) => Ok(()),
                    Ok(Decides::Change(expect)) => {
                        let put = Op::Put { key: record.name.root_key(), value: value.clone(), expect };
                        self.ask(*first, &format!("commit {}", record.name), self.drives()[*first].apply(vec![put])).await.map(drop)
                    }
                    Err(e) => Err(e),
                };
                match done {
                    Ok(()) => break self.followers(*first, &record.name).await?,
                    Err(e) if e.kind() == Kind::Conflict => return Err(refused(&record.name, e)),
                    Err(e) => self.may_lose(*first, e.context(format!("cannot commit {}", record.name)))?,
                }
            };
            for home in others {
                self.follow(home, &record.name, record.change, Some(&value)).await?;
            }
            self.repair_followers(&record.name, record.change, Some(&value)).await
        })
    }

    /// The homes that must follow a change that `first` has taken. Computed only then: a host that puts records on more
    /// drives copies what `first` had until just before.
    async fn followers(&self, first: usize, name: &DatasetName) -> Result<Vec<usize>> {
        if !self.is_of_host() && !self.health().is_redundant() {
            // An ingest through a host gets no notice of such a change.
            let known = self.ask(first, "name its fleet", self.drives()[first].get(&Key::new(MEMBERSHIP_KEY)?)).await;
            match known.and_then(|bytes| Membership::decode(&self.drives()[first].info().name, &bytes)) {
                Ok(now) if now.homes > 1 => self.adopt_membership(&now),
                Ok(_) => {}
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(replica_behind(name, &self.drives()[first].info().name, e)),
            }
        }
        Ok(self.homes(name).into_iter().filter(|at| *at != first && !self.health().is_down(*at)).collect())
    }

    /// What the next home drive must do for a change that follows on change `before`, where the deciding one did not
    /// answer.
    async fn decides(&self, home: usize, record: &RootRecord, before: Option<u64>) -> Result<Decides> {
        match self.read_at(home, &record.name).await? {
            None if self.is_blank(home).await => Err(Error::unavailable(format!("{} is blank", self.drives()[home].info().name))),
            None if before.is_none() => Ok(Decides::Change(Expect::Absent)),
            None => Err(Error::conflict("there is none any more")),
            Some((bytes, version)) => {
                let found = RootRecord::decode(&record.name, &bytes)?;
                if found.generation == record.generation && found.change == record.change {
                    Ok(Decides::Knows)
                } else if Some(found.change) == before {
                    Ok(Decides::Change(Expect::Version(version)))
                } else {
                    Err(Error::conflict("it has changed"))
                }
            }
        }
    }

    /// Sends a change to home drives that came back in another process's view while the change was made without them.
    async fn repair_followers(&self, name: &DatasetName, change: u64, value: Option<&Bytes>) -> Result<()> {
        if self.health().down().is_empty() {
            return Ok(());
        }
        let absent = self.absent().await?;
        for home in self.homes(name) {
            if self.health().is_down(home) && !absent.contains(&self.drives()[home].info().id) {
                self.follow(home, name, change, value).await?;
            }
        }
        Ok(())
    }

    /// Brings what `home` has of `name` up to `change`: `value`, or nothing.
    ///
    /// # Errors
    /// Unavailable where that drive, or one more, could not be done without: the change is made elsewhere by then.
    async fn follow(&self, home: usize, name: &DatasetName, change: u64, value: Option<&Bytes>) -> Result<()> {
        let Err(e) = self.push_copy(home, name, change, value).await else { return Ok(()) };
        let what = |e: Error| replica_behind(name, &self.drives()[home].info().name, e);
        self.may_lose(home, e).map_err(what)?;
        self.record_absent().await.map_err(what)
    }

    /// As [`Self::follow`], at a drive that must be up.
    pub(crate) async fn push_copy(&self, home: usize, name: &DatasetName, change: u64, value: Option<&Bytes>) -> Result<()> {
        let key = name.root_key();
        for _ in 0..ATTEMPTS {
            let expect = match self.read_at(home, name).await {
                Ok(None) if value.is_none() => return Ok(()),
                Ok(None) => Expect::Absent,
                Ok(Some((bytes, _))) if Some(&bytes) == value => return Ok(()),
                Ok(Some((bytes, version))) => match RootRecord::decode(name, &bytes) {
                    // Another writer was first, and has changed it again.
                    Ok(newer) if newer.change > change => return Ok(()),
                    _ => Expect::Version(version),
                },
                Err(e) if e.kind() == Kind::Corrupt => Expect::Any,
                Err(e) => return Err(e),
            };
            let op = match value {
                Some(value) => Op::Put { key: key.clone(), value: value.clone(), expect },
                None => Op::Delete { key: key.clone(), expect },
            };
            match self.ask(home, &format!("note a change of {name}"), self.drives()[home].apply(vec![op])).await {
                Err(e) if e.kind() == Kind::Conflict && !is_refusal(&e) => {}
                done => return done.map(drop),
            }
        }
        Err(Error::unavailable(format!("the root record of {name} changes all the time: try again")))
    }

    /// Removes the data set: first its root record, then what it named. Where the root record is corrupt, only that
    /// goes at once: its slices are unknown then, and the next opening of the fleet collects them.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is replaced at the same moment; `Unsupported` for a data set of a newer version.
    pub fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let turn = self.health().membership_lock().await;
            let dropped = self.drop_record(name).await?;
            drop(turn);
            match dropped {
                Some(record) => self.delete_replaced(&record, None).await,
                None => Ok(()),
            }
        })
    }

    /// Removes the root record of `name`, and returns it, if it could be read. A data set that a resize moved meanwhile
    /// is dropped too.
    async fn drop_record(&self, name: &DatasetName) -> Result<Option<RootRecord>> {
        let changed = || Error::conflict(format!("somebody else changed {name} in the meantime: nothing was dropped"));
        let (mut content, mut tries) = (None, 0);
        loop {
            self.record_absent().await?;
            let homes = self.homes_here(name)?;
            let Some(home) = homes.first().copied() else { return Ok(None) };
            let before = match self.ask(home, "look up a root record", self.drives()[home].stat(&name.root_key())).await {
                Ok(before) => before,
                Err(e) => {
                    self.may_lose(home, e)?;
                    continue;
                }
            };
            let (known, version) = match (self.read_versioned(name).await, before) {
                (Ok(Some((record, version))), _) => (Some(record), version),
                (Ok(None), _) => return Err(self.unknown_dataset(name).await),
                (Err(e), Some(entry)) if e.kind() == Kind::Corrupt => (None, entry.version),
                (Err(e), _) => return Err(e),
            };
            let now = known.as_ref().map(RootRecord::written);
            if content.replace(now).is_some_and(|before| before != now) {
                return Err(changed());
            }
            let delete = Op::Delete { key: name.root_key(), expect: Expect::Version(version) };
            match self.ask(home, &format!("drop {name}"), self.drives()[home].apply(vec![delete])).await {
                Ok(_) => {}
                Err(e) if is_refusal(&e) => return Err(e.context(format!("{name} was not dropped"))),
                Err(e) if e.kind() == Kind::Conflict && (tries == DROPS || known.is_none()) => return Err(changed().with_source(e)),
                Err(e) if e.kind() == Kind::Conflict => {
                    tries += 1;
                    continue;
                }
                // The next one decides, as of a commit.
                Err(e) => {
                    self.may_lose(home, e.context(format!("cannot drop {name}")))?;
                    continue;
                }
            }
            let change = known.as_ref().map_or(u64::MAX, |record| record.change);
            for other in self.followers(home, name).await? {
                self.follow(other, name, change, None).await?;
            }
            self.repair_followers(name, change, None).await?;
            return Ok(known);
        }
    }

    /// The number of the change that follows on change `before`; 0 where there is one copy of each record. Of a name
    /// that was dropped and is written again it is higher than any before.
    pub fn next_change(&self, before: u64) -> u64 {
        if !self.health().is_redundant() {
            return 0;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        before.saturating_add(1).max(now)
    }
}
