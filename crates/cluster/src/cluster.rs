//! [`Cluster`]: the drives of a host with their catalog, their failover, and the fence.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::{Batches, Cse, FaultReporter, Storage};
use skytether_erasure::Scheme;
use skytether_runtime::{AppendVec, within};
use uuid::Uuid;

use crate::options::HostOptions;
use skytether_catalog::fencing::Fence;
use skytether_catalog::health::DriveHealth;
use skytether_catalog::records::membership::newest;
use skytether_catalog::root_store::Catalog;
use skytether_recovery::failover::FailoverDrive;
use skytether_recovery::fallback::Fallback;
use skytether_recovery::missing_drive::MissingDrive;
use skytether_recovery::reconstruct::{Reconstructor, RecoveryOptions};

/// How long a drive that left has to say whether it holds anything.
const ANSWER: Duration = Duration::from_secs(10);

/// The drives of a host. Cheap to clone; it owns nothing durable.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    drives: AppendVec<Arc<dyn Cse>>,
    /// For each drive what receives reports of its faults.
    faults: AppendVec<Arc<dyn FaultReporter>>,
    catalog: Catalog,
    options: HostOptions,
    /// The ids of this host since it began, the newest last.
    instances: Mutex<Vec<Uuid>>,
    /// Held by the queries that began since a generation was last replaced.
    running: Mutex<Arc<()>>,
    /// Reconstructs values of drives that are down; also has the drives without failover.
    reconstructor: Arc<Reconstructor>,
    /// The drives that were missing when the host began.
    gone: OnceLock<Vec<Arc<MissingDrive>>>,
    /// Whether the directory of an embedded fleet has the list of its drives.
    kept: OnceLock<bool>,
    /// The fencing condition under which drives take changes from this host.
    fence: OnceLock<Arc<Fence>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drives: Vec<_> = self.0.drives.iter().map(|d| d.info().name.as_str()).collect();
        f.debug_struct("Cluster").field("drives", &drives).finish_non_exhaustive()
    }
}

/// A weak reference to a cluster: it does not keep the cluster in use.
pub struct WeakCluster(Weak<Inner>);

impl WeakCluster {
    /// The cluster, if it is still in use.
    pub fn upgrade(&self) -> Option<Cluster> {
        self.0.upgrade().map(Cluster)
    }
}

impl Cluster {
    /// A cluster over `drives`, which may be in this process or behind a wire; `fallback` runs the
    /// sub-plans of drives that can't.
    ///
    /// # Errors
    /// Invalid for no drive, one drive twice or two drives of one name.
    pub fn new(drives: Vec<Arc<dyn Cse>>, options: HostOptions, fallback: Arc<dyn Fallback>) -> Result<Self> {
        check_names(&drives)?;
        check_batches(&drives)?;
        let health = Arc::new(DriveHealth::new(drives.len()));
        let recovery = RecoveryOptions { memory: options.memory_limit, deadline: options.storage_deadline };
        let reconstructor = Reconstructor::new(drives, Arc::clone(&health), recovery, fallback);
        let covered: Vec<Arc<FailoverDrive>> = reconstructor.drives().map(|at| Arc::new(FailoverDrive::new(&reconstructor, at))).collect();
        let faults = covered.iter().map(|drive| Arc::clone(drive) as _).collect();
        let drives: Vec<Arc<dyn Cse>> = covered.into_iter().map(|drive| drive as _).collect();
        let storages = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Storage>).collect();
        let catalog = Catalog::of_host(storages, Arc::clone(&reconstructor.drives), health, options.storage_deadline)?;
        Ok(Self(Arc::new(Inner {
            drives: AppendVec::new(drives),
            faults: AppendVec::new(faults),
            catalog,
            options,
            instances: Mutex::new(vec![Uuid::new_v4()]),
            running: Mutex::default(),
            reconstructor,
            gone: OnceLock::new(),
            kept: OnceLock::new(),
            fence: OnceLock::new(),
        })))
    }

    /// The drives, in order.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Cse>] {
        &self.0.drives
    }

    /// What receives reports of faults of drive `at`.
    ///
    /// # Errors
    /// Internal for a number that no drive has.
    pub fn faults(&self, at: usize) -> Result<Arc<dyn FaultReporter>> {
        self.0.faults.get(at).cloned().ok_or_else(|| Error::internal(format!("no drive of this host has the number {at}")))
    }

    /// The catalog over these drives.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// How many of the drives are lost now.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.0.catalog.health().down().len()
    }

    /// On how many nodes the drives are, where the record of the fleet says so; otherwise 0.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.0.catalog.health().failure_domains().map_or(0, |domains| domains.nodes())
    }

    /// The redundancy of data sets whose ingest names none.
    #[must_use]
    pub fn redundancy(&self) -> Scheme {
        self.0.catalog.health().scheme()
    }

    /// Reconstructs values of drives that are down; also has the drives without failover.
    pub fn reconstructor(&self) -> &Arc<Reconstructor> {
        &self.0.reconstructor
    }

    /// How this host works.
    #[must_use]
    pub fn options(&self) -> &HostOptions {
        &self.0.options
    }

    /// The current id of this host. It is new with each start, and after a drive left: callers that remember the drives
    /// must then list them again.
    #[must_use]
    pub fn instance(&self) -> Uuid {
        self.0.instances.lock().last().copied().unwrap_or_default()
    }

    /// Whether `instance` is an id that this host has or had since its start, so that places of drives mean the same.
    pub fn was(&self, instance: Uuid) -> bool {
        self.0.instances.lock().contains(&instance)
    }

    /// Gives this host a new id, so that callers that remember the old one list its drives again.
    pub fn renew(&self) {
        self.0.instances.lock().push(Uuid::new_v4());
    }

    /// A weak reference, for callers that must not keep the cluster in use.
    pub fn downgrade(&self) -> WeakCluster {
        WeakCluster(Arc::downgrade(&self.0))
    }

    /// A guard that a query holds while it runs.
    pub fn running(&self) -> Arc<()> {
        Arc::clone(&self.0.running.lock())
    }

    /// The guard of the queries that began before now. Later queries get a new guard, so no query holds this one once
    /// these queries ended.
    pub fn ran(&self) -> Arc<()> {
        std::mem::take(&mut *self.0.running.lock())
    }

    /// The ids of the drives of the fleet, lost or not.
    #[must_use]
    pub fn members(&self) -> Vec<uuid::Uuid> {
        self.catalog().health().members().into_iter().map(|at| self.drives()[at].info().id).collect()
    }

    /// The ids of the drives that the list in an embedded fleet's directory must name: members, and drives that left
    /// and are not empty. Members are those of the newest record of any drive, which this host may not know yet. `None`
    /// where a member does not answer.
    ///
    /// # Errors
    /// `Internal` where there is no drive to ask.
    pub fn listed(&self) -> BoxFuture<'_, Result<Option<Vec<uuid::Uuid>>>> {
        Box::pin(async move {
            let (catalog, health) = (self.catalog(), self.catalog().health());
            let told = catalog.read_memberships(catalog.deadline()).await?;
            if told.iter().enumerate().any(|(at, told)| told.is_err() && !health.is_outside(at)) {
                return Ok(None);
            }
            let Some(newest) = newest(&told) else { return Ok(None) };
            let mut ids: Vec<uuid::Uuid> = newest.drives.iter().map(|member| member.id).collect();
            for at in health.outside() {
                let drive = &self.reconstructor().drives[at];
                let holds = within(catalog.deadline().min(ANSWER), &drive.info().name, "list what it holds", drive.list("", None, 1)).await;
                if holds.is_ok_and(|holds| !holds.is_empty()) && !ids.contains(&drive.info().id) {
                    ids.push(drive.info().id);
                }
            }
            Ok(Some(ids))
        })
    }

    pub(crate) fn set_gone(&self, gone: Vec<Arc<MissingDrive>>) {
        // Set once, by the function that made the cluster.
        let _ = self.0.gone.set(gone);
    }

    pub(crate) fn set_kept(&self, kept: bool) {
        // Set once, by the function that made the cluster.
        let _ = self.0.kept.set(kept);
    }

    /// Whether the directory of an embedded fleet has the list of its drives.
    pub fn is_kept(&self) -> bool {
        self.0.kept.get().copied().unwrap_or(false)
    }

    /// The ids and names of drives that were missing when the host began, and still are.
    #[must_use]
    pub fn gone(&self) -> Vec<(Uuid, String)> {
        let gone = self.0.gone.get().into_iter().flatten().filter(|gone| !gone.is_there());
        gone.map(|gone| (gone.info().id, gone.info().name.clone())).collect()
    }

    /// Puts `drive` in the place of a drive that was missing when the host began and has the same id. A repair then
    /// rebuilds the content of the missing drive on it.
    ///
    /// # Errors
    /// `Invalid` where no such drive is missing; `Conflict` where another drive has the place already.
    pub fn put_in_place(&self, drive: Arc<dyn Cse>) -> Result<()> {
        let id = drive.info().id;
        let gone = self.0.gone.get().into_iter().flatten().find(|gone| gone.info().id == id);
        gone.ok_or_else(|| self.nobodys(&drive.info().name))?.succeed(drive)
    }

    /// Checks that a drive at `address` may replace one, before a connection to that address is made.
    ///
    /// # Errors
    /// `Invalid` where no drive is missing, and where the fleet makes its blank drives itself.
    pub fn check_replacement(&self, address: &str) -> Result<()> {
        if self.is_kept() {
            return Err(Error::invalid(format!("{address}: a fleet in a directory makes its blank drives itself; leave the address out")));
        }
        if self.gone().is_empty() { Err(self.nobodys(address)) } else { Ok(()) }
    }

    /// The error for a drive that replaces no missing drive.
    fn nobodys(&self, name: &str) -> Error {
        let gone: Vec<_> = self.gone().into_iter().map(|(id, name)| format!("{name} ({id})")).collect();
        let what = match gone.as_slice() {
            [] => "no drive is missing that was when the host began".to_owned(),
            some => format!("missing is {}: make a blank one with that id (`skytether drive serve --data NEW --replace ID`)", some.join(", ")),
        };
        Error::invalid(format!("the drive {name} that is there was made in the place of no drive that is missing; {what}"))
    }

    pub(crate) fn set_fence(&self, fence: Arc<Fence>) {
        // Set once, by the function that made the cluster.
        let _ = self.0.fence.set(fence);
    }

    /// The other host from which drive `at` takes changes instead of this one, if the drive reports one.
    pub(crate) async fn other_host(&self, at: usize) -> Option<String> {
        let (drive, fence) = (&self.drives()[at], self.0.fence.get()?);
        within(self.options().storage_deadline, &drive.info().name, "name its host", fence.other_at(drive.as_ref())).await.ok().flatten()
    }

    /// `drive` behind the fence: each change to it carries this host's fencing condition.
    pub fn fenced(&self, drive: Arc<dyn Cse>) -> Arc<dyn Cse> {
        match self.0.fence.get() {
            Some(fence) => fence.around(drive),
            None => drive,
        }
    }

    /// Appends a drive that is not a member yet, and gives its place.
    ///
    /// # Errors
    /// `Invalid` where a drive has the same id or name.
    pub fn push_drive(&self, drive: Arc<dyn Cse>) -> Result<usize> {
        let inner = &self.0;
        let mut all: Vec<Arc<dyn Cse>> = inner.drives.to_vec();
        all.push(Arc::clone(&drive));
        check_names(&all)?;
        check_batches(&all)?;
        if inner.drives.iter().any(|other| other.info().id == drive.info().id) {
            return Err(Error::invalid(format!("{} ({}) is one of this host's drives", drive.info().name, drive.info().id)));
        }
        let at = inner.catalog.health().grow();
        inner.reconstructor.drives.push(drive);
        let covered = Arc::new(FailoverDrive::new(&inner.reconstructor, at));
        inner.faults.push(Arc::clone(&covered) as _);
        let covered: Arc<dyn Cse> = covered;
        inner.catalog.grow(Arc::clone(&covered) as Arc<dyn Storage>);
        inner.drives.push(covered);
        Ok(at)
    }
}

/// Checks that every drive applies a batch atomically: a commit has conditions on several keys of one drive.
///
/// # Errors
/// `Unsupported` for a drive whose batches take effect key by key.
fn check_batches(drives: &[Arc<dyn Cse>]) -> Result<()> {
    match drives.iter().find(|drive| drive.capabilities().batches != Batches::Atomic) {
        Some(drive) => Err(Error::unsupported(format!(
            "{}: its batches take effect key by key, and a fleet commits under conditions on several; use a drive with atomic batches",
            drive.info().name
        ))),
        None => Ok(()),
    }
}

/// Errors and receipts name drives by their names, so these must differ.
pub(crate) fn check_names(drives: &[Arc<dyn Cse>]) -> Result<()> {
    let mut seen = HashMap::new();
    for drive in drives {
        let info = drive.info();
        if let Some(other) = seen.insert(info.name.as_str(), info.id)
            && other != info.id
        {
            return Err(Error::invalid(format!(
                "two drives ({other} and {}) are called {:?}: make one of them on a new directory with another `--name`",
                info.id, info.name
            )));
        }
    }
    Ok(())
}
