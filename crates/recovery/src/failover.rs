//! A drive with failover: a request goes to the drive if it can answer, and otherwise to what the other drives have.

use futures::future::BoxFuture;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Detail, Error, Key, Kind, PartitionName, Result};
use skytether_device::session::Message;
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, FaultReporter, Layer, OpenReply, ProgramKind, Session, Storage, SubPlan};
use skytether_store::{Entry, Op, Version};
use tokio::sync::RwLockReadGuard;

use crate::degraded_storage::{DegradedStorage, ReconstructionCounters, covers, mendable};
use crate::reconstruct::Reconstructor;
use crate::replacement_engine::ReplacementEngine;
use crate::replay_buffer::{RetryFn, held};
use skytether_catalog::records::failure_domains::FailureDomains;
use skytether_catalog::records::home_slots::HomeSlots;
use skytether_catalog::records::membership::{MEMBERSHIP_KEY, Membership};
use skytether_catalog::records::root::{RootRecord, root_name};

/// A drive of a fleet that may lose drives. Where the fleet may not, it is the drive and nothing else.
#[derive(Debug, Clone)]
pub struct FailoverDrive(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rebuilt: Arc<DegradedStorage>,
    stand_in: Mutex<Option<Arc<ReplacementEngine>>>,
    plans: Mutex<Plans>,
}

/// Sub-plans by their hashes.
#[derive(Debug, Default)]
struct Plans {
    /// Sub-plans that are open at the drive itself.
    open: HashSet<u64>,
    /// Those with which the drive failed, and why.
    failed: std::collections::VecDeque<(u64, String)>,
}

/// Failed sub-plans that are remembered.
const FAILED: usize = 256;

/// Distinguishes the sub-plans of one query at one drive.
fn hash(plan: &SubPlan) -> u64 {
    let mut hasher = DefaultHasher::new();
    (plan.query, &plan.program, plan.dataset.root_key(), &plan.partitions).hash(&mut hasher);
    hasher.finish()
}

impl FailoverDrive {
    /// Drive `at` of `reconstructor`.
    pub fn new(reconstructor: &Arc<Reconstructor>, at: usize) -> Self {
        let rebuilt = Arc::new(DegradedStorage { reconstructor: Arc::clone(reconstructor), at, tally: Arc::new(ReconstructionCounters::default()) });
        Self(Arc::new(Inner { rebuilt, stand_in: Mutex::default(), plans: Mutex::default() }))
    }

    fn drive(&self) -> &Arc<dyn Cse> {
        self.0.rebuilt.drive()
    }

    fn is_redundant(&self) -> bool {
        self.0.rebuilt.reconstructor.health.is_redundant()
    }

    /// Whether other drives may have the value under `key`. Values outside of data sets (root records, the membership
    /// record) are each drive's own; a drive is asked for these even while it is not in use otherwise.
    fn covers(&self, key: &Key) -> bool {
        self.is_redundant() && PartitionName::parse(key).is_some()
    }

    /// A client that ingests through this host changed the membership record.
    fn adopt_membership(&self, told: &[u8]) {
        let Ok(membership) = Membership::decode(&self.drive().info().name, told) else { return };
        let reconstructor = &self.0.rebuilt.reconstructor;
        if membership.homes as usize >= reconstructor.health.homes() {
            reconstructor.health.set_policy(membership.homes as usize, membership.redundancy);
            reconstructor.health.set_home_slots(HomeSlots::of(&membership));
            reconstructor.health.set_failure_domains(FailureDomains::of(&membership, reconstructor.drives.iter().map(|drive| drive.info().id)));
        }
        reconstructor.health.set_absent(&membership.absent);
        for at in reconstructor.drives().filter(|at| membership.absent.contains(&reconstructor.drives[*at].info().id)) {
            reconstructor.health.mark_down(at, "it was away while data sets changed");
        }
    }

    /// Whether a batch adds values of data sets to a drive that is being emptied, or has left: no data set would use
    /// them.
    fn is_late(&self, batch: &[Op]) -> bool {
        let adds = |op: &Op| matches!(op, Op::Put { .. } | Op::Link { .. }) && PartitionName::parse(op.key()).is_some();
        let health = &self.0.rebuilt.reconstructor.health;
        (health.is_outside(self.0.rebuilt.at) || health.is_leaving(self.0.rebuilt.at)) && batch.iter().any(adds)
    }

    /// Whether this batch may change root records, or add values to a drive that takes them. No drive leaves while the
    /// caller holds the returned lock.
    async fn may_change(&self, batch: &[Op]) -> Result<RwLockReadGuard<'_, ()>> {
        let reconstructor = &self.0.rebuilt.reconstructor;
        let changing = reconstructor.health.record_write().await;
        if reconstructor.health.is_outside(self.0.rebuilt.at) {
            return Err(Error::conflict(format!(
                "{} left the fleet in the middle of this ingest: nothing was committed; ingest again",
                self.drive().info().name
            )));
        }
        for op in batch {
            if let (Op::Put { value, .. }, Some(name)) = (op, root_name(op.key()))
                && let Ok(record) = RootRecord::decode(&name, value)
                && let Some(gone) = reconstructor.drives().find(|at| reconstructor.health.is_outside(*at) && record.names(&reconstructor.drives[*at].info().id))
            {
                let text =
                    format!("{} left the fleet while {name} was written, in part there: nothing was committed; ingest it again", reconstructor.name(gone));
                return Err(Error::conflict(text));
            }
        }
        Ok(changing)
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        self.0.plans.lock()
    }

    fn stand_in(&self) -> Result<Arc<ReplacementEngine>> {
        let mut stand_in = self.0.stand_in.lock();
        if let Some(made) = &*stand_in {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(ReplacementEngine::new(&self.0.rebuilt)?);
        *stand_in = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Whether sub-plans run here in the drive's place, always or when it fails.
    fn has_fallback(&self) -> bool {
        self.is_redundant() || !self.drive().capabilities().runs(ProgramKind::Substrait)
    }

    /// Whether a plan runs here, with which the drive failed with `error`. A drive without sessions can't give slices
    /// back: one that is too busy refuses the whole plan, and its values are read instead. Any other failure of a
    /// drive that nothing replaces is the query's: reading from a drive that answers wrongly would hide its fault.
    fn replaces(&self, error: &Error) -> bool {
        error.detail() == Some(&Detail::NotRun) || (self.has_fallback() && covers(error))
    }

    /// Why the drive itself is not to be asked to run a plan, if it is not.
    fn why(&self, plan: u64) -> Option<String> {
        let DegradedStorage { reconstructor, at, .. } = self.0.rebuilt.as_ref();
        if !self.drive().capabilities().runs(ProgramKind::Substrait) {
            return Some(format!("{} only stores: it runs no sub-plans", self.drive().info().name));
        }
        if reconstructor.health.is_down(*at) {
            return Some(reconstructor.lost(*at));
        }
        let plans = self.plans();
        let failed = plans.failed.iter().find(|(failed, _)| *failed == plan).map(|(_, why)| why.clone());
        // The session that it failed in may not be over yet.
        failed.or_else(|| plans.open.contains(&plan).then(|| format!("{} has not answered", self.drive().info().name)))
    }

    /// The drive failed with a plan; the text says so.
    fn failed(&self, plan: u64, error: &Error) -> String {
        let DegradedStorage { reconstructor, at, .. } = self.0.rebuilt.as_ref();
        let why = match error.kind() {
            Kind::Unavailable if error.detail() == Some(&Detail::NotRun) => format!("{} did not run it ({})", reconstructor.name(*at), error.report()),
            Kind::Unavailable => format!("{} was lost ({})", reconstructor.name(*at), error.report()),
            // The receipt says this where other drives had what it takes.
            Kind::Corrupt if self.is_redundant() => format!("{} could not ({})", reconstructor.name(*at), mendable(&error.report())),
            _ => format!("{} could not ({})", reconstructor.name(*at), error.report()),
        };
        let mut plans = self.plans();
        plans.failed.push_back((plan, why.clone()));
        if plans.failed.len() > FAILED {
            plans.failed.pop_front();
        }
        why
    }

    /// Runs a plan elsewhere, with which the drive failed with `error`.
    async fn instead<T>(&self, plan: u64, error: Error, run: impl AsyncFnOnce(Arc<ReplacementEngine>, String) -> Result<T>) -> Result<T> {
        let why = self.failed(plan, &error);
        match run(self.stand_in()?, why).await {
            // What the drive does not find is nowhere else either.
            Err(_) if error.kind() == Kind::NotFound => Err(error),
            done => done,
        }
    }

    /// What the drive answers. Where it fails before any row has left, the fallback answers instead.
    fn held(&self, plan: &SubPlan, number: u64, stream: DeliveryStream) -> DeliveryStream {
        let (own, plan) = (self.clone(), plan.clone());
        let again: RetryFn =
            Box::new(move |error| async move { own.instead(number, error, async |stand_in, why| stand_in.execute(plan, why).await).await }.boxed());
        held(&self.drive().info().name, stream, again)
    }

    /// A session with the drive. A failure that others can cover ends it; the caller then opens it again, elsewhere.
    fn watched_over(&self, number: u64, session: Session) -> Session {
        self.plans().open.insert(number);
        let open = Open { covered: self.clone(), number };
        let messages = stream::unfold(Some((session.messages, open)), |state| async move {
            let (mut messages, open) = state?;
            let next = messages.next().await;
            match next.unwrap_or_else(|| Err(Error::unavailable(format!("{} ended its answer without finishing it", open.covered.drive().info().name)))) {
                Ok(Message::EpochError { error, .. }) if covers(&error) => {
                    let why = open.covered.failed(open.number, &error);
                    Some((Err(Error::unavailable(why)), None))
                }
                Err(error) => {
                    open.covered.failed(open.number, &error);
                    Some((Err(error), None))
                }
                // Its last word.
                Ok(done @ Message::Done(_)) => Some((Ok(done), None)),
                message => Some((message, Some((messages, open)))),
            }
        });
        Session { messages: Box::pin(messages), ..session }
    }
}

/// A session at the drive, until it is over.
struct Open {
    covered: FailoverDrive,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.covered.plans().open.remove(&self.number);
    }
}

impl Layer for FailoverDrive {
    fn info(&self) -> &CseInfo {
        self.drive().info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive().as_ref())
    }

    /// What the drive can't run runs here, in its place.
    fn capabilities(&self) -> Capabilities {
        let own = self.drive().capabilities();
        if own.runs(ProgramKind::Substrait) { own } else { Capabilities { sessions: true, programs: vec![ProgramKind::Substrait], ..own } }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let told = batch.iter().find_map(|op| match op {
                Op::Put { key, value, .. } if key.as_str() == MEMBERSHIP_KEY => Some(value.clone()),
                _ => None,
            });
            let _changing =
                if self.is_late(&batch) || batch.iter().any(|op| root_name(op.key()).is_some()) { Some(self.may_change(&batch).await?) } else { None };
            let done = self.drive().apply(batch).await?;
            if let Some(told) = told {
                self.adopt_membership(&told);
            }
            Ok(done)
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            if !self.covers(key) {
                return self.drive().get(key).await;
            }
            if let (Some((partition, Some(_))), false) = (PartitionName::parse(key), self.0.rebuilt.reconstructor.health.down().is_empty()) {
                self.0.rebuilt.reconstructor.shared.reads(&partition);
            }
            self.0.rebuilt.get(key).await
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            if self.covers(key) { self.0.rebuilt.get_ranges_unverified(key, ranges).await } else { self.drive().get_ranges_unverified(key, ranges).await }
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { if self.covers(key) { self.0.rebuilt.stat(key).await } else { self.drive().stat(key).await } })
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let (number, has_fallback) = (hash(&plan), self.has_fallback());
            if has_fallback && let Some(why) = self.why(number) {
                return self.stand_in()?.execute(plan, why).await;
            }
            match self.drive().execute(plan.clone()).await {
                Ok(stream) if has_fallback => Ok(self.held(&plan, number, stream)),
                Err(e) if self.replaces(&e) => self.instead(number, e, async |stand_in, why| stand_in.execute(plan, why).await).await,
                other => other,
            }
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let (number, has_fallback) = (hash(&plan), self.has_fallback());
            if has_fallback && let Some(why) = self.why(number) {
                return self.stand_in()?.open(plan, why).await;
            }
            match self.drive().open(plan.clone()).await {
                Ok(OpenReply::Whole(stream)) if has_fallback => Ok(OpenReply::Whole(self.held(&plan, number, stream))),
                Ok(OpenReply::Session(session)) if has_fallback => Ok(OpenReply::Session(self.watched_over(number, session))),
                Err(e) if self.replaces(&e) => self.instead(number, e, async |stand_in, why| stand_in.open(plan, why).await).await,
                other => other,
            }
        })
    }
}

impl FaultReporter for FailoverDrive {
    fn stalled(&self, plan: &SubPlan, why: &str) {
        let DegradedStorage { reconstructor, at, .. } = self.0.rebuilt.as_ref();
        if self.is_redundant() {
            // It says that it is there, so it will be found again soon; this plan is not given to it once more.
            self.failed(hash(plan), &Error::unavailable(why));
            if reconstructor.health.mark_down(*at, why) {
                tracing::warn!("{} is taken for lost: {why}", reconstructor.name(*at));
            }
        }
    }

    fn protocol_violation(&self, plan: &SubPlan, why: &str) {
        if self.is_redundant() {
            // Its values are verified when read, so the drive is not marked down.
            self.failed(hash(plan), &Error::corrupt(why));
        }
    }
}
