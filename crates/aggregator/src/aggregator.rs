//! [`Aggregator`]: a cluster of drives that is one drive of another host.
//!
//! Its parent sees one CSE. The drives below store what the parent writes ([`crate::striped_storage`]). They process a
//! sub-plan slice by slice, as the parent feeds it; the aggregator merges their states before it sends them
//! ([`crate::worker`]). Work moves between aggregator and drives as it does between host and drives. A sub-plan that
//! can't be split (sorts, limits, windows) runs in the aggregator itself, over slices that it reads from its drives.

use futures::future::BoxFuture;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Context, Key, Result};
use skytether_device::negotiate::verify_by_reading;
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, OpenReply, Storage, SubPlan, Verified, Verify};
use skytether_engine::remote::RemoteStore;
use skytether_engine::session::{Bounds, Sessions};
use skytether_engine::split_execution::Taken;
use skytether_engine::{Engine, Reader};
use skytether_runtime::threads::{Threads, spawn_blocking_thread};
use skytether_scheduler::profile::Profile;
use skytether_store::{Entry, Op, Usage, Version};

use crate::striped_storage::StripedStorage;
use crate::worker::{AggregatorJob, Below};
use skytether_catalog::fencing::{Fence, take_over};
use skytether_catalog::records::membership::{Founding, Role};
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::HostOptions;
use skytether_engine::split_execution::SplitExecution;
use skytether_exec::fallback::EngineFallback;
use skytether_exec::local_executors::LocalExecutors;
use skytether_exec::query_runtime::QueryRuntime;
use std::collections::HashMap;

/// The format version of what an aggregator stores on its drives.
const FORMAT: u32 = 1;

/// Epochs that may run or wait at the same time.
const EPOCHS: u32 = 64;

/// Threads that wait for reads of drives.
const READERS: usize = 8;

/// Sub-plans that run in the aggregator itself at the same time.
const PLANS: usize = 4;

/// A cluster of drives as one drive of another host.
pub struct Aggregator {
    cluster: Cluster,
    executors: LocalExecutors,
    runtime: QueryRuntime,
    placed: Arc<StripedStorage>,
    engine: Arc<Engine>,
    sessions: Arc<Sessions>,
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator").field("placed", &self.placed).finish_non_exhaustive()
    }
}

impl Aggregator {
    /// Opens the aggregator `name` over `drives`, which belong to it from now on: no host may open them.
    ///
    /// The parent plans by the aggregator's profile, the sum of the drives' profiles. There is none if no drive has
    /// one. `link` is the link to the parent: bits per second, and seconds that a message takes. By default it is the
    /// sum of the drives' links.
    ///
    /// # Errors
    /// As [`Cluster::new`] and `Catalog::establish_membership`; `Invalid` where the drives are those of another
    /// aggregator, or of a fleet.
    pub fn open<'a>(
        name: &'a str,
        drives: Vec<Arc<dyn Cse>>,
        options: HostOptions,
        founding: Founding,
        link: Option<(f64, f64)>,
    ) -> BoxFuture<'a, Result<Arc<Self>>> {
        Box::pin(async move {
            let mut drives = drives;

            drives.sort_by_key(|drive| drive.info().id);
            let profile = together(&drives, &options, link);
            let fence = Fence::new(options.ids.id());
            let fenced: Vec<_> = drives.into_iter().map(|drive| fence.around(drive)).collect();
            let drives: Vec<Arc<dyn Cse>> = fenced.iter().map(|drive| Arc::clone(drive) as _).collect();
            let runtime = QueryRuntime::new(options.memory_limit, options.spill_limit, options.spill_below.as_deref())?;
            let pool = Arc::clone(&runtime.env().memory_pool);
            let fallback = EngineFallback::new(Arc::clone(&pool), options.storage_deadline);
            let executors = LocalExecutors::new(Arc::clone(&pool), options.storage_deadline);
            let cluster = Cluster::new(drives.clone(), options, Arc::new(fallback))?;
            let membership = cluster.catalog().establish_membership(founding, &Role::Aggregator(name.to_owned())).await?;
            if let Some((_, e)) = take_over(&fence, &fenced, cluster.options().storage_deadline).await?.into_iter().next() {
                return Err(e);
            }
            let memory_limit = cluster.options().memory_limit as u64;
            // Two keys may belong to different drives, and indexes are the drives' own.
            let capabilities = Capabilities { link: false, indexes: false, ..Capabilities::default() };
            let info = CseInfo { id: membership.fleet, name: name.to_owned(), format: FORMAT, memory_limit, profile, device: None, capabilities };
            let placed = Arc::new(StripedStorage::new(info, drives));
            let store = RemoteStore::new(Arc::clone(&placed) as Arc<dyn Storage>, cluster.options().storage_deadline);
            let reader = Reader::new(Arc::new(store)).waiting_on(Arc::new(Threads::new(READERS)));
            let engine = Engine::new(name.to_owned(), Arc::new(reader), pool, cluster.options().threads, PLANS)?;
            let engine = Arc::new(engine.apart());
            let sessions = Sessions::new(Arc::clone(&engine), memory_limit, None, Bounds { epochs: EPOCHS, load: f64::INFINITY });
            Ok(Arc::new(Self { cluster, executors, runtime, placed, engine, sessions }))
        })
    }

    /// The drives below.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Cse>] {
        self.cluster.drives()
    }

    /// Starts `plan` on the drives below.
    async fn work(&self, plan: SubPlan, divided: SplitExecution, places: HashMap<u32, usize>) -> Result<Arc<AggregatorJob>> {
        let below = Below { cluster: self.cluster.clone(), executors: self.executors.clone(), runtime: Arc::clone(self.runtime.env()) };
        AggregatorJob::new(below, plan, divided, places).await
    }

    /// Plans on a thread that may wait for reads of drives.
    async fn planned<T: Send + 'static>(&self, planning: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        spawn_blocking_thread(move || futures::executor::block_on(planning)).await.map_err(|e| self.engine.named(e))
    }
}

/// The sum of the drives' profiles; `None` if no drive has one.
fn together(drives: &[Arc<dyn Cse>], options: &HostOptions, link: Option<(f64, f64)>) -> Option<Profile> {
    let profiles: Vec<Profile> = drives.iter().filter_map(|drive| drive.info().profile).collect();
    let first = profiles.first()?;
    let sum = |of: fn(&Profile) -> f64| profiles.iter().map(of).sum::<f64>();
    let cores: u32 = profiles.iter().map(|profile| profile.cores).fold(0, u32::saturating_add);
    Some(Profile {
        speed_per_core: sum(|profile| profile.speed_per_core * f64::from(profile.cores)) / f64::from(cores.max(1)),
        cores,
        memory_bytes: options.memory_limit as u64,
        disk_bytes_per_s: sum(|profile| profile.disk_bytes_per_s),
        disk_seek_s: first.disk_seek_s,
        link_bits_per_s: link.map_or_else(|| sum(|profile| profile.link_bits_per_s), |(rate, _)| rate),
        link_latency_s: link.map_or_else(|| profiles.iter().map(|profile| profile.link_latency_s).fold(0.0, f64::max), |(_, latency)| latency),
    })
}

impl Storage for Aggregator {
    fn info(&self) -> &CseInfo {
        self.placed.info()
    }

    /// Its drives may be remote, so the parent should prefer sub-plans that can be split. An aggregator in this process
    /// lives as long as its caller.
    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, heartbeats: true, ..self.info().capabilities.clone() }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.placed.apply(batch).await.context(|| self.info().name.clone()) })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.placed.get(key).await.context(|| self.info().name.clone()) })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.placed.get_ranges_unverified(key, ranges).await.context(|| self.info().name.clone()) })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.placed.stat(key).await.context(|| self.info().name.clone()) })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.placed.list(prefix, after, limit).await.context(|| self.info().name.clone()) })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.placed.usage().await.context(|| self.info().name.clone()) })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { verify_by_reading(self, &asked).await })
    }
}

impl Cse for Aggregator {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let engine = Arc::clone(&self.engine);
            self.planned(async move { engine.start(plan).await }).await
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let (engine, taken) = (Arc::clone(&self.engine), plan.clone());
            Ok(match self.planned(async move { engine.take(taken).await }).await? {
                Taken::Whole(stream) => OpenReply::Whole(stream),
                Taken::Split(divided) => match crate::worker::places(&divided, &plan, &self.placed)? {
                    Some(places) => OpenReply::Session(self.sessions.open(&plan, self.work(plan.clone(), *divided, places).await?)),
                    // No single drive has whole rows of the columns that the plan reads.
                    None => OpenReply::Whole(divided.whole(&self.engine, &plan)),
                },
            })
        })
    }
}
