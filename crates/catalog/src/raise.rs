//! Puts root records on more drives than before, for a data set that must survive more losses than the others. Every
//! copy is in its place before any drive learns that readers look for it there.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::future::join_all;
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_erasure::Scheme;
use skytether_store::{Expect, Op};

use crate::fencing::is_refusal;
use crate::records::failure_domains::FailureDomains;
use crate::records::home_slots::HomeSlots;
use crate::records::membership::DomainSpread;
use crate::records::membership::{Membership, REDUNDANT_FORMAT, homes_of, no_record};
use crate::records::root::RootRecord;
use crate::rejoin::ANSWER;
use crate::root_store::Catalog;

/// Records that are copied at the same time.
const COPIES: usize = 32;

/// How often a record that changes meanwhile is copied again.
const ATTEMPTS: usize = 16;

/// How many home drives root records need.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    homes: u32,
    spread: Option<DomainSpread>,
}

impl Wanted {
    fn wider(self, membership: &Membership) -> Option<DomainSpread> {
        self.spread.map(|spread| spread.max(membership.spread)).or(membership.spread)
    }

    /// Whether a membership record says so. Root records of an aggregator's drives lie with its parent host.
    fn is_in(self, membership: &Membership) -> bool {
        membership.aggregator.is_some() || (membership.homes >= self.homes && membership.spread == self.wider(membership))
    }

    /// Has it say so; whether it did not.
    fn put_into(self, membership: &mut Membership) -> bool {
        if self.is_in(membership) {
            return false;
        }
        (membership.homes, membership.spread) = (membership.homes.max(self.homes), self.wider(membership));
        if membership.spread.is_some() && !membership.seats.is_empty() {
            // Without seats for drives that joined later, a node may have too few drives with seats.
            membership.add_slots();
        }
        membership.format = membership.format.max(REDUNDANT_FORMAT);
        true
    }
}

/// The homes of root records under a membership record.
struct Homes {
    number: usize,
    seats: Option<HomeSlots>,
    domains: Option<FailureDomains>,
}

impl Catalog {
    /// Puts root records on as many drives (or nodes, and drives of each) as data sets of `scheme` need. Call it before
    /// the first of them is stored. It goes on if the caller stops waiting.
    ///
    /// # Errors
    /// Unavailable while a drive is lost or does not answer; Unsupported in drives that are no fleet.
    pub async fn raise_homes(&self, scheme: Scheme) -> Result<()> {
        let (homes, spread) = homes_of(scheme);
        let wanted = Wanted { homes, spread };
        if homes < 2 && spread.is_none() {
            return Ok(());
        }
        if !self.health().is_known() {
            return Err(Error::unsupported("redundancy needs drives that know their fleet: let the host join them first"));
        }
        // Asks the drives, not this host's memory: the host knows of the change as soon as one drive does. Another host
        // may open the fleet without that drive.
        let told = self.read_memberships(self.deadline().min(ANSWER)).await?;
        let behind = |at: usize| !self.health().is_down(at) && matches!(&told[at], Ok(Some(own)) if !wanted.is_in(own));
        if let Some(newest) = self.newest_of(&told).filter(|newest| wanted.is_in(newest))
            && !(0..told.len()).any(behind)
        {
            self.adopt_membership(newest);
            return Ok(());
        }
        if !self.health().down().is_empty() {
            return Err(Error::unavailable(format!(
                "root records are to lie on more drives, as {scheme} takes it, for which all drives of the fleet must be here"
            )));
        }
        let own = self.clone();
        let raised = tokio::spawn(async move { own.raise(wanted).await }).await;
        raised.map_err(|e| Error::internal("what copies root records stopped").with_source(e))?
    }

    async fn raise(&self, wanted: Wanted) -> Result<()> {
        let _turn = self.health().membership_lock().await;
        // From here on no root record changes through this host.
        let _still = self.health().freeze_records().await;
        let told = self.read_memberships(self.deadline()).await?;
        for at in self.health().up() {
            let silent = || Error::unavailable(format!("{} can't take more root records: try again", self.drives()[at].info().name));
            match &told[at] {
                Ok(Some(_)) => {}
                Ok(None) => return Err(silent()),
                Err(e) => return Err(silent().with_source(Error::unavailable(e.report()))),
            }
        }
        let newest = self.newest_of(&told).ok_or_else(|| no_record(&told))?;
        let homes = |of: &Membership| Homes { number: of.homes as usize, seats: HomeSlots::of(of), domains: FailureDomains::of(of, self.ids()) };
        let mut after = newest.clone();
        wanted.put_into(&mut after);
        let (before, after) = (homes(newest), homes(&after));
        self.copy_all(&before, &after).await?;
        let changed = self.change_membership(|membership| wanted.put_into(membership)).await;
        // Of a change that failed some may know.
        let told = self.read_memberships(self.deadline()).await?;
        if let Some(newest) = self.newest_of(&told) {
            self.adopt_membership(newest);
        }
        changed?;
        if self.is_of_host() {
            return Ok(());
        }
        // Through a host others change root records as well, and until just now where these lay before.
        self.copy_all(&before, &after).await
    }

    /// Copies all root records to their homes `after` that were none `before`.
    async fn copy_all(&self, before: &Homes, after: &Homes) -> Result<()> {
        let mut names = BTreeSet::new();
        for at in self.health().up() {
            names.extend(self.names_at(at).await?);
        }
        let mut copies = Vec::new();
        for name in names {
            let had = self.homes_where(&name, before.number, before.seats.as_ref(), before.domains.as_ref());
            let new = self.homes_where(&name, after.number, after.seats.as_ref(), after.domains.as_ref()).into_iter().filter(|at| !had.contains(at));
            copies.extend(new.map(|at| (at, name.clone(), had.clone())));
        }
        self.hand_records_on(|group| self.homes_of_key(group, after.number, after.seats.as_ref(), after.domains.as_ref())).await?;
        for some in copies.chunks(COPIES) {
            // All of them come to their end: none is written when others may change it again.
            let done = join_all(some.iter().cloned().map(|(at, name, had)| async move { self.copy_to(at, &name, &had).await })).await;
            done.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Has drive `at` hold what the homes that a root record had until now hold of it: nothing, where that is so.
    async fn copy_to(&self, at: usize, name: &DatasetName, had: &[usize]) -> Result<()> {
        let drive = &self.drives()[at].info().name;
        for _ in 0..ATTEMPTS {
            let Some(value) = self.decided(name, had).await? else { return Ok(()) };
            let expect = match self.read_at(at, name).await {
                Ok(found) if found.as_ref().map(|(bytes, _)| bytes) == value.as_ref() => return Ok(()),
                Ok(found) => found.map_or(Expect::Absent, |(_, version)| Expect::Version(version)),
                Err(e) if e.kind() == Kind::Corrupt => Expect::Any,
                Err(e) => return Err(e),
            };
            let key = name.root_key();
            let op = match value {
                Some(value) => Op::Put { key, value, expect },
                None => Op::Delete { key, expect },
            };
            match self.ask(at, "take a root record", self.bare(at).apply(vec![op])).await {
                // Read once more: the original may have changed.
                Ok(_) => {}
                Err(e) if e.kind() == Kind::Conflict && !is_refusal(&e) => {}
                Err(e) => return Err(e.context(format!("{drive} could not take the root record of {name}"))),
            }
        }
        Err(Error::conflict(format!("the root record of {name} changes all the time: try again")))
    }

    /// What the first of these homes has of a root record that is whole, and nothing where none of their copies is.
    async fn decided(&self, name: &DatasetName, homes: &[usize]) -> Result<Option<Option<Bytes>>> {
        for at in homes {
            match self.read_at(*at, name).await {
                Ok(Some((bytes, _))) if RootRecord::decode(name, &bytes).is_err_and(|e| e.kind() == Kind::Corrupt) => {}
                Ok(found) => return Ok(Some(found.map(|(bytes, _)| bytes))),
                Err(e) if e.kind() == Kind::Corrupt => {}
                Err(e) => return Err(e),
            }
        }
        tracing::warn!("the root record of {name} is damaged, and is not copied");
        Ok(None)
    }
}
