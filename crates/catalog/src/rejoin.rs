//! Absence and return of drives that hold root records. Before something changes without a lost drive, the membership
//! record notes it as absent. Before the drive is used again, it gets the changes that it missed.
//!
//! The note is in the membership record, which every drive has. Of several records the one with the highest `change`
//! counts.

use crate::records::membership::highest;
use crate::records::membership::{newest, no_record};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use skytether_common::{DatasetName, Error, Key, Kind, Result};
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::fencing::is_refusal;
use crate::records::failure_domains::FailureDomains;
use crate::records::home_slots::HomeSlots;
use crate::records::membership::stranger;
use crate::records::membership::{MEMBERSHIP_KEY, Membership};
use crate::records::root::RootRecord;
use crate::root_store::Catalog;
use skytether_runtime::within;

/// The shortest time between two checks whether lost drives are back, and how long the drives have to answer.
const LOOK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(2));

/// The longest wait for such a check before the status of the drives. Ingests and repairs may hold the lock for it.
const PROBE: Duration = Duration::from_secs(5);

/// Data sets whose root records are compared at a time.
const AGREED: usize = 16;

/// How long a drive may take to name its fleet before an ingest does without it.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// How often a record that others change meanwhile is changed again.
const ATTEMPTS: usize = 8;

impl Catalog {
    /// What each drive knows of its fleet.
    pub async fn read_memberships(&self, deadline: Duration) -> Result<Vec<Result<Option<Membership>>>> {
        Ok(join_all((0..self.drives().len()).map(|at| self.read_membership(at, deadline))).await)
    }

    /// What drive `at` knows of its fleet.
    pub(crate) async fn read_membership(&self, at: usize, deadline: Duration) -> Result<Option<Membership>> {
        let (drive, name) = (&self.drives()[at], &self.drives()[at].info().name);
        if self.health().is_outside(at) {
            return Err(Error::unavailable(format!("{name} is not of this fleet")));
        }
        match within(deadline, name, "name its fleet", drive.get(&Key::new(MEMBERSHIP_KEY)?)).await {
            Ok(bytes) => Membership::decode(name, &bytes).map(Some),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e.context(format!("{name} could not name its fleet"))),
        }
    }

    /// Adopts what the newest record says of the fleet: the number of home drives, which ones they are, and which
    /// drives belong to the fleet. A join or leave may have been cut off after some drives had the record.
    pub fn adopt_membership(&self, newest: &Membership) {
        let health = self.health();
        health.set_policy(newest.homes as usize, newest.redundancy);
        health.set_home_slots(HomeSlots::of(newest));
        health.set_failure_domains(FailureDomains::of(newest, self.ids()));
        health.replaced(newest.drives.iter().filter(|member| member.incarnation > 0).map(|member| (member.id, member.incarnation)).collect());
        for (at, id) in self.ids().enumerate().filter(|_| !newest.seats.is_empty()) {
            match (health.is_outside(at), newest.drives.iter().any(|member| member.id == id)) {
                (true, true) => health.enter(at),
                (false, false) => health.leave(at),
                _ => {}
            }
        }
    }

    /// Sends the newest membership record to all drives, where a join or leave was cut off after some drives had it.
    ///
    /// # Errors
    /// What the drives say.
    pub async fn tell_all(&self) -> Result<()> {
        let told = self.read_memberships(self.deadline()).await?;
        let Some(newest) = self.newest_of(&told).filter(|newest| !newest.seats.is_empty()) else { return Ok(()) };
        self.adopt_membership(newest);
        let behind = |(at, told): (usize, &Result<Option<Membership>>)| {
            !self.health().is_outside(at) && !self.health().is_down(at) && matches!(told, Ok(Some(own)) if own.change < newest.change)
        };
        if !told.iter().enumerate().any(behind) {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            if self.change_membership_once(|_| false, true).await? {
                return Ok(());
            }
        }
        Err(always_changing())
    }

    /// The record that counts: the newest of the drives that were up throughout. A drive that was away does not count:
    /// another host that has lost the fleet may have written there meanwhile. Where none of the former answers, the
    /// others count.
    pub fn newest_of<'a>(&self, told: &'a [Result<Option<Membership>>]) -> Option<&'a Membership> {
        let here = told.iter().enumerate().filter(|(at, _)| !self.health().is_down(*at)).filter_map(|(_, told)| told.as_ref().ok()?.as_ref());
        here.max_by_key(|membership| membership.change).or_else(|| newest(told))
    }

    /// Learns what the membership record says, if that is not known, and looks whether drives that were lost are back.
    ///
    /// # Errors
    /// Unavailable where more drives are lost than root records survive.
    pub async fn look_around(&self) -> Result<()> {
        if self.health().is_known() && !self.health().is_redundant() {
            return Ok(());
        }
        if !self.health().down().is_empty() {
            self.rejoin(LOOK.1).await?;
        }
        // A drive that comes meanwhile was not asked, and does not count as lost.
        let members = self.health().members();
        let told = self.read_memberships(self.deadline().min(ANSWER)).await?;
        let Some(newest) = self.newest_of(&told) else { return Ok(()) };
        self.adopt_membership(newest);
        self.lose_strangers(newest, &told);
        let absent: BTreeSet<_> = newest.absent.iter().copied().collect();
        for (at, told) in told.into_iter().enumerate().filter(|(at, _)| members.contains(at)) {
            if self.health().is_down(at) || self.health().is_outside(at) {
                continue;
            }
            if absent.contains(&self.drives()[at].info().id) {
                self.health().mark_down(at, "it was away while data sets changed");
            } else if let Err(e) = told {
                // Where the fleet may lose no drive, the next request that needs the drive reports the error.
                drop(self.may_lose(at, e));
            }
        }
        self.check_presence()
    }

    /// Looks in the background whether drives that were lost are back, unless that was done a moment ago.
    /// To be called in a runtime.
    pub fn look_again(&self) {
        if self.health().down().is_empty() || !self.health().may_look(LOOK.0) {
            return;
        }
        let own = self.clone();
        tokio::spawn(async move {
            if let Err(e) = own.rejoin(LOOK.1).await {
                tracing::debug!("{e}");
            }
        });
    }

    /// Checks that all data sets are visible. Where too many drives are lost, it looks first whether they are back: the
    /// first request after their return must not fail for what was.
    ///
    /// # Errors
    /// Unavailable, naming the drives that are lost.
    pub async fn await_presence(&self) -> Result<()> {
        if self.check_presence().is_err() {
            self.probe_lost().await;
        }
        self.check_presence()
    }

    /// Checks before a status whether lost drives are back, and whether blank ones are in their places. A check that
    /// takes long goes on in the background.
    pub async fn probe_lost(&self) {
        if !self.health().is_redundant() {
            return;
        }
        let own = self.clone();
        let check = tokio::spawn(async move {
            if let Err(e) = own.rejoin(LOOK.1).await {
                tracing::debug!("{e}");
            }
        });
        if tokio::time::timeout(PROBE, check).await.is_err() {
            tracing::debug!("the check for lost drives takes long");
        }
    }

    /// The drives that were away while something changed, and have not got it yet.
    pub(crate) async fn absent(&self) -> Result<Vec<Uuid>> {
        let told = self.read_memberships(self.deadline()).await?;
        Ok(self.newest_of(&told).map(|membership| membership.absent.clone()).unwrap_or_default())
    }

    /// Takes lost drives that answer within `deadline` back, after they got what they missed.
    ///
    /// # Errors
    /// Unavailable where more drives are away, or missed something, than root records survive; what the drives say.
    pub async fn rejoin(&self, deadline: Duration) -> Result<()> {
        if !self.health().is_redundant() {
            return Ok(());
        }
        let _turn = self.health().membership_lock().await;
        let told = self.read_memberships(deadline).await?;
        let Some(newest) = self.newest_of(&told).cloned() else { return Ok(()) };
        self.lose_strangers(&newest, &told);
        let stranger = |at: usize| stranger(&newest, &self.drives()[at].info().id, &told[at]).is_some();
        let absent: BTreeSet<_> = newest.absent.iter().copied().collect();
        // A drive with a damaged membership record can't say what it knows. It gets everything, as a drive that was
        // away does.
        let damaged: BTreeSet<usize> = (0..told.len()).filter(|at| matches!(&told[*at], Err(e) if e.kind() == Kind::Corrupt) && !stranger(*at)).collect();
        // Except where nothing changed without it, and it never was replaced: then all its data is right, and only that
        // record must be written again.
        let incarnation = |at: usize| newest.drives.iter().find(|member| member.id == self.drives()[at].info().id).map_or(0, |member| member.incarnation);
        let (innocent, damaged): (BTreeSet<usize>, BTreeSet<usize>) =
            damaged.into_iter().partition(|at| !absent.contains(&self.drives()[*at].info().id) && incarnation(*at) == 0);
        for at in &innocent {
            match self.rewrite_record(*at, &newest, deadline).await {
                Ok(()) => self.health().mark_up(*at),
                Err(e) => drop(self.health().mark_down(*at, &e.report())),
            }
        }
        // This host also knows absent drives when the drives that have the note are not here.
        let away = |id: &Uuid| absent.contains(id) || self.health().are_noted(std::slice::from_ref(id));
        // A late note may have reached only the drive that it is about. That drive reports it, and its record does not
        // count otherwise.
        let alone = |at: usize| matches!(&told[at], Ok(Some(own)) if own.change > newest.change && own.absent.contains(&self.drives()[at].info().id));
        let missed = |at: usize| away(&self.drives()[at].info().id) || damaged.contains(&at) || alone(at);
        for (at, told) in told.iter().enumerate() {
            match told {
                _ if stranger(at) || innocent.contains(&at) => {}
                Ok(Some(_)) if missed(at) => drop(self.health().mark_down(at, "it was away while data sets changed")),
                Ok(Some(_)) => self.take_back(at, deadline).await?,
                // A drive that is only slow to answer is not lost: the next request that needs it finds out.
                Err(e) if damaged.contains(&at) => drop(self.health().mark_down(at, &e.report())),
                Ok(None) | Err(_) => {}
            }
        }
        self.check_presence()?;
        let back: Vec<usize> =
            (0..told.len()).filter(|at| missed(*at) && !stranger(*at) && (damaged.contains(at) || matches!(told[*at], Ok(Some(_))))).collect();
        if back.is_empty() {
            return Ok(());
        }
        let mut names = self.names().await?;
        for at in &back {
            names.extend(self.names_at(*at).await?);
        }
        self.agree_on(&names, &back).await?;
        self.reconcile_records(&back).await?;
        for at in &damaged {
            self.rewrite_record(*at, &newest, deadline).await?;
        }
        let ids: BTreeSet<_> = back.iter().map(|at| self.drives()[*at].info().id).collect();
        // Other records may also name them as absent, although the newest one does not.
        let is_named = told.iter().filter_map(|told| told.as_ref().ok()?.as_ref()).any(|own| own.absent.iter().any(|id| ids.contains(id)));
        self.change_membership(|membership| {
            let before = membership.absent.len();
            membership.absent.retain(|id| !ids.contains(id));
            membership.absent.len() < before || is_named
        })
        .await?;
        self.health().clear_absent(&ids);
        // Changes by other hosts that took these drives for absent until just now.
        self.agree_on(&self.names().await?, &back).await?;
        for at in back {
            tracing::info!("{} is back and knows what changed meanwhile", self.drives()[at].info().name);
            self.health().mark_up(at);
        }
        Ok(())
    }

    /// Uses drive `at` again, which has missed nothing, if it takes changes from this host: while it was away another
    /// one may have been there.
    async fn take_back(&self, at: usize, deadline: Duration) -> Result<()> {
        if self.health().is_down(at) {
            let (drive, name) = (&self.drives()[at], &self.drives()[at].info().name);
            // Any batch brings the record of this host there first.
            let nothing = Op::Check { key: Key::new(MEMBERSHIP_KEY)?, expect: Expect::Any };
            if let Err(e) = within(deadline, name, "take changes from this host", drive.apply(vec![nothing])).await {
                self.health().set_down_reason(at, &e.report());
                return Ok(());
            }
        }
        self.health().mark_up(at);
        Ok(())
    }

    /// Writes the damaged membership record of a drive again.
    async fn rewrite_record(&self, at: usize, membership: &Membership, deadline: Duration) -> Result<()> {
        let name = &self.drives()[at].info().name;
        let put = Op::Put { key: Key::new(MEMBERSHIP_KEY)?, value: membership.encode()?, expect: Expect::Any };
        within(deadline, name, "note its fleet again", self.drives()[at].apply(vec![put]))
            .await
            .map_err(|e| e.context(format!("{name} could not note its fleet again")))?;
        tracing::warn!("the record of the fleet at {name} was damaged, and is rewritten");
        Ok(())
    }

    /// Makes all copies of all root records equal: a crash between two writes leaves them different.
    ///
    /// # Errors
    /// What the drives say.
    pub async fn agree_on_all(&self) -> Result<()> {
        if !self.health().is_redundant() {
            return Ok(());
        }
        self.agree_on(&self.names().await?, &[]).await
    }

    /// As [`Self::reconcile_root_copies`], for [some](AGREED) at a time.
    async fn agree_on(&self, names: &BTreeSet<DatasetName>, back: &[usize]) -> Result<()> {
        for some in names.iter().collect::<Vec<_>>().chunks(AGREED) {
            join_all(some.iter().map(|name| self.reconcile_root_copies(name, back))).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Makes all copies of a root record equal to the newest one of the homes that are up, or deletes them if these
    /// have none. Copies of drives in `back` don't count.
    pub async fn reconcile_root_copies(&self, name: &DatasetName, back: &[usize]) -> Result<()> {
        let homes = self.homes(name);
        let mut best: Option<(u64, Bytes)> = None;
        let mut damaged = None;
        let mut has = BTreeMap::new();
        let here: Vec<usize> = homes.iter().copied().filter(|at| !self.health().is_down(*at)).collect();
        let each = join_all(here.iter().map(|at| self.read_at(*at, name))).await;
        for (at, read) in here.into_iter().zip(each) {
            match read {
                Ok(Some((bytes, _))) => {
                    has.insert(at, bytes.clone());
                    match RootRecord::decode(name, &bytes) {
                        Ok(record) if best.as_ref().is_none_or(|(change, _)| record.change > *change) => best = Some((record.change, bytes)),
                        Ok(_) => {}
                        // The meaning of a newer version is unknown.
                        Err(e) if e.kind() == Kind::Unsupported => return Ok(()),
                        Err(e) => damaged = Some(e),
                    }
                }
                Ok(None) => {}
                Err(e) if e.kind() == Kind::Corrupt => damaged = Some(e),
                Err(e) => self.may_lose(at, e)?,
            }
        }
        if let (None, Some(e)) = (&best, damaged) {
            // There is a record, but which one is unknown: no copy is touched.
            tracing::warn!("{e}");
            return Ok(());
        }
        let change = best.as_ref().map_or(u64::MAX, |(change, _)| *change);
        let value = best.map(|(_, bytes)| bytes);
        for at in homes {
            if back.contains(&at) {
                self.push_copy(at, name, u64::MAX, value.as_ref()).await?;
            } else if !self.health().is_down(at) && value.is_some() && has.get(&at) != value.as_ref() {
                self.push_copy(at, name, change, value.as_ref()).await?;
            }
        }
        Ok(())
    }

    /// Notes the lost drives as absent, so that no host takes their records for the truth when they are back. Call it
    /// before a root record changes.
    ///
    /// # Errors
    /// Unavailable where more drives are lost than root records survive, and where a drive that is up does not take the
    /// note.
    pub async fn record_absent(&self) -> Result<()> {
        if !self.health().is_redundant() {
            return Ok(());
        }
        self.check_presence()?;
        let lost: Vec<_> = self.health().down().into_iter().map(|at| self.drives()[at].info().id).collect();
        if self.health().are_noted(&lost) {
            return Ok(());
        }
        self.change_membership(|membership| {
            let before = membership.absent.len();
            membership.absent.extend(lost.iter().filter(|id| !membership.absent.contains(id)).copied().collect::<Vec<_>>());
            membership.absent.len() > before
        })
        .await?;
        self.health().add_absent(&lost);
        Ok(())
    }

    /// Changes the membership record on all drives that are up; `change` returns whether it changed anything. Where
    /// another writer changes it at the same time, `change` is applied again to that writer's record.
    pub async fn change_membership(&self, change: impl Fn(&mut Membership) -> bool) -> Result<()> {
        for attempt in 0..ATTEMPTS {
            if self.change_membership_once(&change, attempt > 0).await? {
                return Ok(());
            }
        }
        Err(always_changing())
    }

    /// As [`Self::change_membership`], once. Returns false where another writer was first at a drive. With `again` it
    /// writes what an earlier attempt left to all drives.
    async fn change_membership_once(&self, change: impl Fn(&mut Membership) -> bool, again: bool) -> Result<bool> {
        let key = Key::new(MEMBERSHIP_KEY)?;
        let members = self.health().members();
        let told = self.read_memberships(self.deadline()).await?;
        let known = self.newest_of(&told).cloned().ok_or_else(|| no_record(&told))?;
        let mut membership = known.clone();
        // Blank and replaced drives must stay without the record.
        let takes = |at: usize| told[at].is_ok() && (known.homes < 2 || stranger(&known, &self.drives()[at].info().id, &told[at]).is_none());
        let behind = (0..told.len()).any(|at| !self.health().is_outside(at) && takes(at) && matches!(&told[at], Ok(Some(own)) if own.change < known.change));
        if !change(&mut membership) && !again && !behind {
            return Ok(true);
        }
        membership.change = highest(&told).max(known.change) + 1;
        let value = membership.encode()?;
        let all: Vec<usize> = (0..told.len()).filter(|at| !self.health().is_outside(*at)).collect();
        if all.iter().any(|at| !members.contains(at)) {
            // A drive joined meanwhile, and was not asked.
            return Ok(false);
        }
        // Before any of them knows.
        if let Some(at) = all.iter().find(|at| !takes(**at) && !self.health().is_down(**at)) {
            let error = Error::unavailable(format!("{} could not take a note about its fleet: try again", self.drives()[*at].info().name));
            return Err(match told.into_iter().nth(*at) {
                Some(Err(e)) => error.with_source(e),
                _ => error,
            });
        }
        // Drives that are back but not in use yet get the record as well. A drive that leaves gets it last. If it alone
        // had the record, a host that begins with the others would not learn of it, and would write another record with
        // the same number.
        let stays = |at: &usize| membership.drives.iter().any(|member| member.id == self.drives()[*at].info().id);
        let (stay, leave): (Vec<usize>, Vec<usize>) = all.into_iter().filter(|at| takes(*at)).partition(stays);
        // The first drive decides where two hosts change the record at a time: the refused host has changed nothing.
        // After that no host waits for another drive's disk.
        let (first, rest) = stay.split_at(stay.len().min(1));
        for together in [first, rest, &leave] {
            let noted = join_all(together.iter().map(|at| self.note_membership(*at, &key, &membership, &value))).await;
            if !noted.into_iter().try_fold(true, |all, one| one.map(|one| all && one))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes a changed membership record, `value`, to a drive. Returns false where another writer was first there.
    async fn note_membership(&self, at: usize, key: &Key, membership: &Membership, value: &Bytes) -> Result<bool> {
        let drive = &self.drives()[at];
        let name = &drive.info().name;
        let there = within(self.deadline(), name, "look its fleet up", drive.stat(key)).await?;
        // The value that is read after its version is that version, or the compare-and-set fails.
        if there.is_some() {
            let bytes = within(self.deadline(), name, "name its fleet", drive.get(key)).await?;
            if Membership::decode(name, &bytes).is_ok_and(|other| other.change >= membership.change) && bytes != *value {
                return Ok(false);
            }
        }
        let put = Op::Put { key: key.clone(), value: value.clone(), expect: there.map_or(Expect::Absent, |entry| Expect::Version(entry.version)) };
        match within(self.deadline(), name, "take a note about its fleet", drive.apply(vec![put])).await {
            Err(e) if e.kind() == Kind::Conflict && !is_refusal(&e) => Ok(false),
            Err(e) => Err(e.context(format!("{name} could not take a note about its fleet"))),
            Ok(_) => Ok(true),
        }
    }
}

fn always_changing() -> Error {
    Error::conflict("the record of the fleet changes all the time: is there another host?")
}
