//! Membership changes of a resize: drives that join the fleet, and drives that leave it.

use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Context, DatasetName, Error, Key, Kind, Result};
use skytether_device::Cse;
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::Maintenance;
use skytether_catalog::join::{NOTES, is_note};
use skytether_catalog::records::failure_domains::FailureDomains;
use skytether_catalog::records::home_slots::HomeSlots;
use skytether_catalog::records::membership::{GROWN_FORMAT, MEMBERSHIP_KEY, Member, Membership, no_record};
use skytether_runtime::within;

impl Maintenance {
    async fn newest_membership(&self) -> Result<Membership> {
        let told = self.0.catalog().read_memberships(self.0.catalog().deadline()).await?;
        self.0.catalog().newest_of(&told).cloned().ok_or_else(|| no_record(&told))
    }

    /// Takes a blank drive into the fleet, on node `node` where the fleet has nodes. It holds nothing yet, so no reader
    /// needs it. Gives whether it is a new member.
    ///
    /// # Errors
    /// `Invalid` for a drive that holds data, is of another fleet, or has the name of another drive; `Unsupported` for
    /// the drives of an aggregator.
    pub(crate) async fn adopt(&self, drive: Arc<dyn Cse>, node: &str) -> Result<bool> {
        let (catalog, health) = (self.0.catalog(), self.0.catalog().health());
        let (id, name) = (drive.info().id, drive.info().name.clone());
        // A drive keeps its place if its note failed in an earlier call, or if it left and is blank again.
        let before = self.0.drives().iter().position(|other| other.info().id == id);
        if before.is_some_and(|at| !health.is_outside(at)) {
            return Ok(false);
        }
        let drive = before.map_or_else(|| self.0.fenced(drive), |at| Arc::clone(&self.0.reconstructor().drives[at]));
        let fleet = self.newest_membership().await?;
        if let Some(aggregator) = &fleet.aggregator {
            return Err(Error::unsupported(format!(
                "these drives are those of the aggregator {aggregator}, which places slices by their number: it can't grow"
            )));
        }
        // A join that was interrupted may be repeated.
        let key = Key::new(MEMBERSHIP_KEY)?;
        let own = match within(catalog.deadline(), &name, "name its fleet", drive.get(&key)).await {
            Ok(bytes) => Some(Membership::decode(&name, &bytes)?),
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => return Err(e.context(format!("{name} could not say whether it is of a fleet"))),
        };
        if own.is_some_and(|own| own.fleet != fleet.fleet) {
            return Err(Error::invalid(format!("{name} ({id}) is of another fleet: a drive that comes to this one must be blank")));
        }
        let holds = within(catalog.deadline(), &name, "list what it holds", drive.list("", None, NOTES.len() + 1)).await?;
        if let Some(entry) = holds.iter().find(|entry| !is_note(&entry.key)) {
            return Err(Error::invalid(format!("{name} ({id}) holds data ({}): a drive that comes to a fleet must be blank", entry.key)));
        }
        let at = before.map_or_else(|| self.0.push_drive(Arc::clone(&drive)), Ok)?;
        let member = Member { id, name: name.clone(), incarnation: 0, node: node.to_owned() };
        let grown = move |membership: &mut Membership| {
            let new = membership.drives.iter().all(|member| member.id != id);
            if new {
                membership.ensure_slots();
                membership.drives.push(member.clone());
                membership.format = membership.format.max(GROWN_FORMAT);
            }
            new
        };
        // The drive gets the record first. A host that finds the drive in a newer record then sees that it is no blank
        // replacement of a lost drive. Its own word alone counts for nothing.
        let mut first = fleet;
        grown(&mut first);
        let newest = std::mem::take(&mut first.change);
        let host = self.clone();
        whole(async move {
            let catalog = host.0.catalog();
            if newest == 0 {
                // So that it counts for less than what the others say.
                catalog
                    .change_membership(|membership| {
                        let new = membership.change == 0;
                        membership.ensure_slots();
                        membership.format = membership.format.max(GROWN_FORMAT);
                        new
                    })
                    .await?;
            }
            host.tell(&drive, &first).await?;
            let changed = catalog.change_membership(grown).await;
            // Of a change that failed some may know.
            let now = host.newest_membership().await;
            if let Ok(now) = &now {
                catalog.adopt_membership(now);
            }
            changed?;
            host.tell(&drive, &now?).await?;
            catalog.health().enter(at);
            Ok(true)
        })
        .await
    }

    async fn tell(&self, drive: &Arc<dyn Cse>, membership: &Membership) -> Result<()> {
        let name = &drive.info().name;
        let put = Op::Put { key: Key::new(MEMBERSHIP_KEY)?, value: membership.encode()?, expect: Expect::Any };
        within(self.0.catalog().deadline(), name, "note its fleet", drive.apply(vec![put]))
            .await
            .map(drop)
            .context(|| format!("{name} could not note its fleet"))
    }

    /// Ends the membership of drives on which nothing lies any more, and hands their root records on. Nothing if a root
    /// record names one of them still: that is to move first, and this to be tried again; whether it is done.
    ///
    /// # Errors
    /// What the drives say.
    pub(crate) async fn dismiss(&self, leaving: &[usize]) -> Result<bool> {
        let (host, leaving) = (self.clone(), leaving.to_vec());
        whole(async move { host.dismiss_now(&leaving).await }).await
    }

    async fn dismiss_now(&self, leaving: &[usize]) -> Result<bool> {
        let (catalog, health) = (self.0.catalog(), self.0.catalog().health());
        let ids: Vec<Uuid> = leaving.iter().map(|at| self.0.drives()[*at].info().id).collect();
        catalog.look_around().await?;
        let _turn = health.membership_lock().await;
        // A drive that was lost since must be noted as absent: its records may be old.
        catalog.record_absent().await?;
        // Before nothing may change: making copies alike is a change, too.
        catalog.agree_on_all().await?;
        // From here on no root record changes.
        let _still = health.freeze_records().await;
        let names = catalog.names().await?;
        let mut records: Vec<(DatasetName, Option<Bytes>)> = Vec::new();
        for name in &names {
            match catalog.read(name).await {
                Ok((record, _)) if ids.iter().any(|id| record.names(id)) => return Ok(false),
                Ok((record, _)) => records.push((name.clone(), Some(record.encode()?))),
                // An interrupted earlier leave may have left a copy of the record, of a data set that may be dropped by
                // now. The new home drives must not have it.
                Err(e) if e.kind() == Kind::NotFound => records.push((name.clone(), None)),
                Err(e) => return Err(e.context(format!("nobody can tell whether {name} has a part on the drives that are to leave"))),
            }
        }
        let mut after = self.newest_membership().await?;
        let change = |membership: &mut Membership| {
            let before = membership.drives.len();
            membership.ensure_slots();
            let (gone, stay) = std::mem::take(&mut membership.drives).into_iter().partition(|member| ids.contains(&member.id));
            membership.drives = stay;
            membership.absent.retain(|id| !ids.contains(id));
            let gone: Vec<Member> = gone;
            // Also for drives whose membership ended in a call that was interrupted.
            ids.iter().for_each(|id| membership.reassign_slots(id, gone.iter().find(|member| member.id == *id).map_or("", |member| &member.node)));
            membership.format = membership.format.max(GROWN_FORMAT);
            membership.drives.len() < before
        };
        change(&mut after);
        let seats = HomeSlots::of(&after).ok_or_else(|| Error::internal("a fleet without seats"))?;
        let domains = FailureDomains::of(&after, catalog.ids());
        for (name, value) in &records {
            for at in catalog.homes_where(name, health.homes(), Some(&seats), domains.as_ref()) {
                if health.is_down(at) {
                    continue;
                }
                self.0.catalog().place_record(at, name, value.as_ref()).await?;
            }
        }
        catalog.hand_records_on(|group| catalog.homes_of_key(group, health.homes(), Some(&seats), domains.as_ref())).await?;
        // From now on a reader finds the old homes or the new ones, all with the same records.
        if let Err(e) = catalog.change_membership(change).await {
            // Some drives may have the new record, and then it counts.
            if let Ok(now) = self.newest_membership().await {
                catalog.adopt_membership(&now);
            }
            return Err(e);
        }
        health.set_home_slots(Some(seats));
        health.set_failure_domains(domains);
        for at in leaving {
            health.leave(*at);
        }
        // Those who hold on to a list of drives are to look again.
        self.0.renew();
        Ok(true)
    }
}

/// Runs work that must not end half-way, whether or not its caller still waits.
async fn whole<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.map_err(|e| Error::unavailable("the host is shutting down, or a defect stopped it").with_source(e))?
}
